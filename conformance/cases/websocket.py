"""MQTT over WebSocket (section 6 of both versions). Each case is there twice, once for each version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.wire import (
    Connack,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.websocket import SUBPROTOCOL, Opcode

_RESERVED_DATA_OPCODE = 0x3
_SWITCHING_PROTOCOLS = 101
_ENDLESS_HEADER_BYTES = 1_000_000
_LONG_BYTES = 70_000
"""Its frame has a length of eight bytes."""


def _both_versions(
    slug: str,
    *,
    clauses: tuple[str, ...],
    mutant: str,
    kills: tuple[str, ...] = (),
    near_miss: str,
    level: Literal["MUST", "SHOULD"] = "MUST",
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec in ("mqtt311", "mqtt5"):
            case(
                f"{spec}/websocket/{slug}",
                clauses=clauses,
                level=level,
                requires=("websocket_url",),
                mutant=mutant,
                kills=kills,
                near_miss=near_miss,
            )(function)
        return function

    return register


@_both_versions(
    "server-selects-the-sub-protocol-mqtt",
    clauses=("MQTT-6.0.0-4", "RFC6455-4.2.2-1"),
    mutant="ws-first-offer-selected",
    near_miss="ws-handshake-says-more",
)
async def sub_protocol(ctx: CaseContext) -> None:
    """Of the sub-protocols that a client offers, the server selects "mqtt".

    "mqtt" is offered alone, then behind others and before others. The server accepts each handshake, and names "mqtt"
    as the selected sub-protocol.
    """
    for offered in ((SUBPROTOCOL,), ("assay", SUBPROTOCOL), (SUBPROTOCOL, "assay"), ("assay", "chat", SUBPROTOCOL)):
        connection = await ctx.open_websocket(name=" ".join(offered), subprotocols=None)
        connection.send_handshake(subprotocols=offered)
        response = await connection.expect_upgrade()
        selected = response.header("sec-websocket-protocol")
        ctx.must(selected == SUBPROTOCOL, f"{connection.name}: expected the sub-protocol mqtt; seen {selected!r}")


@_both_versions(
    "no-sub-protocol-is-selected-that-was-not-offered",
    clauses=("MQTT-6.0.0-3", "MQTT-6.0.0-4"),
    mutant="ws-any-offer-accepted",
    near_miss="ws-handshake-without-offer-accepted",
)
async def without_offer(ctx: CaseContext) -> None:
    """A client that does not offer "mqtt" is not given another sub-protocol.

    One client offers "chat" alone, one offers nothing. Nothing is said of the server's reaction: it may refuse, or
    accept without selecting any, and then some clients get along. But it does not select "chat", which is not MQTT,
    and an answer that selects what was not offered is reported: a WebSocket client must give up on it.
    """
    for name, offered in (("chat", ("chat",)), ("nothing", ())):
        connection = await ctx.open_websocket(name=name, subprotocols=None)
        connection.send_handshake(subprotocols=offered)
        response = await connection.response()
        if response is None or response.status != _SWITCHING_PROTOCOLS:
            continue
        selected = response.header("sec-websocket-protocol")
        ctx.must(selected in (None, SUBPROTOCOL), f"{name}: expected no sub-protocol or mqtt; seen {selected!r}")
        ctx.should(selected is None, f"{name}: the server selects {selected!r}, which was not offered")


@_both_versions(
    "what-is-no-handshake-is-not-upgraded",
    clauses=("RFC6455-4.2.1-1",),
    mutant="ws-handshake-unchecked",
    near_miss="ws-handshake-says-more",
)
async def bad_handshakes(ctx: CaseContext) -> None:
    """Only a whole and right WebSocket handshake is answered by an upgrade.

    A plain GET, and a handshake that never ends within a megabyte of headers, are not answered by 101. That the
    server ends the endless one (and does not collect it), and that it refuses a handshake that asks for version 12 of
    WebSocket, are SHOULDs here: no client that speaks version 13 suffers from it.
    """
    old = "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    old += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 12\r\n"
    old += "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    accepted = {}
    for name, request in (("version 12", old), ("plain GET", "GET / HTTP/1.1\r\nHost: x\r\n\r\n")):
        connection = await ctx.open_websocket(name=name, subprotocols=None)
        connection.send_bytes(request.encode(), f"{name}, {len(request)} bytes")
        response = await connection.response_or_silence(within_s=2.0)
        accepted[name] = response is not None and response.status == _SWITCHING_PROTOCOLS
    ctx.must(not accepted["plain GET"], "plain GET: expected no upgrade; seen status 101")
    ctx.should(not accepted["version 12"], "version 12: expected no upgrade; seen status 101")
    endless = await ctx.open_websocket(name="endless", subprotocols=None)
    head = b"GET /mqtt HTTP/1.1\r\nHost: x\r\n"
    endless.send_bytes(head + b"X-Filler: " + b"x" * _ENDLESS_HEADER_BYTES, "a handshake without end")
    ctx.sent_raw = True
    response = await endless.response_or_silence(within_s=2.0)
    upgraded = response is not None and response.status == _SWITCHING_PROTOCOLS
    ctx.must(not upgraded, "endless: expected no upgrade; seen status 101")
    ctx.should(response is not None or endless.closed, "endless: the server collects a megabyte of headers")


@_both_versions(
    "packets-travel-in-binary-frames",
    clauses=("MQTT-6.0.0-1",),
    mutant="ws-text-frames-sent",
    near_miss="ws-frames-of-one-byte",
)
async def binary_frames(ctx: CaseContext) -> None:
    """A whole exchange works over WebSocket, and all that the server sends is in binary frames.

    A WebSocket client subscribes and publishes at QoS 0, 1 and 2, and gets its own messages. A client on the plain
    listener gets them too, so that both transports meet in one server.
    """
    topic = ctx.topic()
    plain = await ctx.connect(name="plain")
    await plain.subscribe(topic, qos=0)
    connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
    granted = (await connection.subscribe(topic, qos=2))[0]
    for qos in range(granted + 1):
        payload = b"level %d" % qos
        await connection.publish(topic, payload, qos=qos)
        await connection.expect_publish(topic, payload, qos=qos)
        await plain.expect_publish(topic, payload)
    await connection.expect_nothing()


@_both_versions(
    "frames-of-the-server-are-well-formed",
    clauses=("RFC6455-5.1-2", "RFC6455-5.2-1", "RFC6455-5.2-2", "RFC6455-5.4-1", "RFC6455-5.5-1"),
    mutant="ws-frames-masked",
    kills=("ws-reserved-bit-sent", "ws-reserved-opcode-sent", "ws-stray-continuation-sent", "ws-control-frames-cut"),
    near_miss="ws-frames-of-one-byte",
)
async def well_formed(ctx: CaseContext) -> None:
    """Whatever the server sends is frames as RFC 6455 wants them: packets short and long, pongs and the close frame.

    None is masked, none has a reserved bit or opcode, no message begins by a continuation or is broken by another one,
    and control frames are whole and short. A client gets messages of 1 byte and of 70 000 (less, where the server takes
    no such packet), sends a ping, and closes. They come from a client without WebSocket: a server may limit the frames
    that it takes.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
    await connection.subscribe(topic)
    connection.send_frame(Opcode.PING, b"between")
    for size in (1, ctx.room_bytes(_LONG_BYTES)):
        await publisher.publish(topic, b"x" * size)
        await connection.expect_publish(topic, b"x" * size)
    await connection.barrier()
    connection.send_close()
    await connection.expect_close(allowed=())


@_both_versions(
    "a-text-frame-ends-the-connection",
    clauses=("MQTT-6.0.0-1",),
    mutant="ws-text-frames-taken",
    near_miss="ws-ends-without-close-frame",
)
async def text_frame(ctx: CaseContext) -> None:
    """A data frame that is not binary ends the connection, and what it holds is not MQTT.

    A connected client sends a PUBLISH, all of whose bytes are valid text, in a text frame. The server ends the
    connection, and the message reaches nobody.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect_over(await ctx.open_websocket(name="writer"), ctx.connect_packet())
    connection.send_frame(Opcode.TEXT, encode(Publish(topic=topic, payload=b"text"), connection.version))
    await connection.expect_close()
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@_both_versions(
    "a-reserved-data-frame-ends-the-connection",
    clauses=("RFC6455-5.2-2", "MQTT-6.0.0-1"),
    mutant="ws-reserved-opcodes-taken",
    near_miss="ws-ends-without-close-frame",
)
async def reserved_frame(ctx: CaseContext) -> None:
    """Data frames of a kind that WebSocket reserves end the connection.

    A connected client sends a PINGREQ in a frame with opcode 3. The server ends the connection without a PINGRESP.
    """
    connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
    connection.send_frame(_RESERVED_DATA_OPCODE, encode(Pingreq(), connection.version))
    await connection.expect_close()


@_both_versions(
    "an-unmasked-frame-ends-the-connection",
    clauses=("RFC6455-5.1-1",),
    mutant="ws-unmasked-frames-taken",
    near_miss="ws-ends-without-close-frame",
)
async def unmasked_frame(ctx: CaseContext) -> None:
    """A client's frame that is not masked is not a frame that WebSocket knows, and ends the connection.

    A connected client sends a PINGREQ in a binary frame without a mask (RFC 6455, 5.1). The server ends the connection
    without a PINGRESP.
    """
    connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
    connection.send_frame(Opcode.BINARY, encode(Pingreq(), connection.version), masked=False)
    await connection.expect_close()


@_both_versions(
    "a-packet-may-be-spread-over-frames",
    clauses=("MQTT-6.0.0-2",),
    mutant="ws-message-is-whole-packets",
    near_miss="ws-frames-of-one-byte",
)
async def spread_packet(ctx: CaseContext) -> None:
    """Packets are put together from the stream of frames, wherever these cut them.

    CONNECT comes as one message in three frames, SUBSCRIBE as a message per byte with empty messages between, and a
    PUBLISH begins at the end of one message and ends in the next. All are answered.
    """
    topic = ctx.topic()
    connection = await ctx.open_websocket()
    connect = encode(ctx.connect_packet(), connection.version)
    connection.send_in_frames(connect[:1], connect[1:7], connect[7:])
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    subscribe = Subscribe(packet_id=7, subscriptions=(Subscription(filter=topic),))
    for value in encode(subscribe, connection.version):
        connection.send_frame(Opcode.BINARY, bytes((value,)))
        connection.send_frame(Opcode.BINARY)
    await connection.granted(subscribe, skipping=())
    ping = encode(Pingreq(), connection.version)
    publish = encode(Publish(topic=topic, payload=b"cut"), connection.version)
    connection.send_frame(Opcode.BINARY, ping + publish[:3])
    await connection.expect(Pingresp)
    connection.send_in_frames(publish[3:5], publish[5:])
    await connection.expect_publish(topic, b"cut")


@_both_versions(
    "a-frame-may-hold-several-packets",
    clauses=("MQTT-6.0.0-2",),
    mutant="ws-one-packet-per-message",
    near_miss="ws-frames-of-one-byte",
)
async def several_packets(ctx: CaseContext) -> None:
    """All packets of a frame are processed, in order.

    CONNECT, SUBSCRIBE, PUBLISH and PINGREQ travel in one binary frame. CONNACK, SUBACK, the message and PINGRESP
    come back.
    """
    topic = ctx.topic()
    connection = await ctx.open_websocket()
    subscribe = Subscribe(packet_id=3, subscriptions=(Subscription(filter=topic),))
    connection.send(ctx.connect_packet(), subscribe, Publish(topic=topic, payload=b"third"), Pingreq())
    connack = await connection.expect(Connack)
    ctx.must(connack.reason_code == 0, f"expected to be accepted; seen {describe(connack)}")
    # No clause orders these answers among each other.
    await connection.granted(subscribe, skipping=(Publish, Pingresp))
    message = await connection.expect(Publish, skipping=(Pingresp,))
    good = (message.topic, message.payload) == (topic, b"third")
    ctx.must(good, f"expected the message; seen {describe(message)}")
    await connection.expect(Pingresp)


@_both_versions(
    "control-frames-are-not-part-of-the-stream",
    clauses=("RFC6455-5.4-1", "MQTT-6.0.0-2"),
    mutant="ws-ping-payload-taken",
    near_miss="ws-frames-of-one-byte",
)
async def control_frames(ctx: CaseContext) -> None:
    """WebSocket pings are answered by pongs, and their payload is no MQTT, also in the middle of a packet.

    A PUBLISH is cut into two frames of one message, with a ping between them whose payload would be a PINGREQ. The
    pong repeats the payload; no PINGRESP comes, and the message arrives whole.
    """
    topic = ctx.topic()
    connection = await ctx.connect_over(await ctx.open_websocket(), ctx.connect_packet())
    await connection.subscribe(topic)
    ping = encode(Pingreq(), connection.version)
    publish = encode(Publish(topic=topic, payload=b"whole"), connection.version)
    connection.send_frame(Opcode.BINARY, publish[:6], final=False)
    connection.send_frame(Opcode.PING, ping)
    await connection.expect_pong(ping)
    connection.send_frame(Opcode.CONTINUATION, publish[6:])
    await connection.expect_publish(topic, b"whole")
    await connection.expect_nothing()


@_both_versions(
    "pings-are-answered",
    clauses=("RFC6455-5.5.2-1",),
    mutant="ws-pings-unanswered",
    near_miss="ws-frames-of-one-byte",
)
async def pings(ctx: CaseContext) -> None:
    """A WebSocket ping gets its pong, before CONNECT and after it.

    A ping without payload is sent once the handshake is done, and one with 125 bytes on the connected client. Each
    is answered by a pong with the same payload (RFC 6455, 5.5.3); the MQTT connection goes on.
    """
    connection = await ctx.open_websocket()
    connection.send_frame(Opcode.PING)
    await connection.expect_pong(b"")
    await ctx.connect_over(connection, ctx.connect_packet())
    payload = ctx.rng.randbytes(125)
    connection.send_frame(Opcode.PING, payload)
    await connection.expect_pong(payload)
    await connection.expect_nothing()


@_both_versions(
    "a-close-frame-ends-the-connection-without-disconnect",
    clauses=("MQTT-3.1.2-8",),
    mutant="ws-close-frame-ignored",
    near_miss="ws-ends-without-close-frame",
)
async def close_frame(ctx: CaseContext) -> None:
    """The WebSocket close handshake ends the network connection, which is no DISCONNECT: the will is published.

    A client with a will sends a close frame. The server ends the connection, and a subscriber gets the will. That the
    server answers the close frame by its own is a SHOULD here: it is WebSocket's rule (RFC 6455, 5.5.1), not MQTT's.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    packet = ctx.connect_packet(will=Will(topic=topic, payload=b"closed"))
    connection = await ctx.connect_over(await ctx.open_websocket(name="leaver"), packet)
    connection.send_close()
    await connection.expect_close(allowed=())
    ctx.should(connection.close_code is not None, "leaver: the connection ended without the server's close frame")
    await watcher.expect_publish(topic, b"closed")
