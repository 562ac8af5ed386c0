"""Connections: header, negotiation, credentials, virtual hosts, and how they end."""

from __future__ import annotations

import asyncio
import time

from assay.conformance.amqp091.client import MOST_CHANNELS, AmqpConnection, outcome_of
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Rule
from assay.conformance.targets.amqp import plain
from assay.conformance.wire.amqp091 import (
    FRAME_MIN_BYTES,
    PROTOCOL_HEADER,
    Method,
    encode_method,
    encode_table,
)

_WANTED = ("product", "version", "platform", "copyright", "information", "host")
_MOST_FRAME_BYTES = 2**32 - 1


@amqp_case(
    "connection/opens-step-by-step",
    mutant="amqp-version-0-8",
    clauses=("sync.connection.open", "sec.2.3.3.tune", "grammar.connection"),
)
async def opens(ctx: AmqpContext) -> None:
    """Header, Start, Start-Ok, Tune, Tune-Ok, Open and Open-Ok follow each other.

    Start must offer version 0-9 and a mechanism, Tune no smaller frames than 4096 bytes (0 = no limit); the client
    properties are empty, which any server must take.
    """
    connection = await ctx.open_socket()
    with ctx.own_point():
        connection.send_bytes(PROTOCOL_HEADER)
        start = await connection.zero.expect("connection.start")
        version = start["version-major"], start["version-minor"]
        ctx.must(version == (0, 9), f"expected version 0-9 in connection.start; seen {version}")
        ctx.must(bool(start["mechanisms"]), "expected mechanisms in connection.start; seen none")
        connection.start_ok(client_capabilities={})
        await connection.tuned()
        offered = connection.tune["frame-max"]
        ctx.must(offered == 0 or offered >= FRAME_MIN_BYTES, f"expected a frame-max of 4096 or more; seen {offered}")
        await connection.zero.call("connection.open", virtual_host="/")
        channel = await connection.channel()
        await channel.barrier()


@amqp_case(
    "connection/close-is-answered",
    mutant="amqp-close-unanswered",
    clauses=("sync.connection.close", "sec.2.3.7.close-handshake"),
)
async def close(ctx: AmqpContext) -> None:
    """connection.close is answered by close-ok.

    With a channel open that has a consumer; what the server sends in between may come before.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    await channel.consume(await channel.queue())
    with ctx.own_point():
        await connection.disconnect()


@amqp_case(
    "connection/locales-hold-en-us", mutant="amqp-other-locale", clauses=("connection.start.locales.required-support",)
)
async def locales(ctx: AmqpContext) -> None:
    """en_US is among the locales of Start.

    Locales are separated by spaces.
    """
    connection = await ctx.client()
    ctx.must("en_US" in connection.locales, f"expected en_US among the locales; seen {connection.locales}")


@amqp_case(
    "connection/server-properties-name-the-server",
    mutant="amqp-nameless-server",
    clauses=("connection.start.server-properties.required-fields",),
    level="SHOULD",
)
async def server_properties(ctx: AmqpContext) -> None:
    """The server-properties name host, product, version, platform, copyright and information.

    Each that is missing is a SHOULD that was missed (copyright only if appropriate).
    """
    connection = await ctx.client()
    missing = [name for name in _WANTED if name != "copyright" and name not in connection.server_properties]
    ctx.should(not missing, f"server-properties without {', '.join(missing)}")


@amqp_case(
    "connection/capabilities-are-told",
    mutant="amqp-nameless-server",
    clauses=("rmq.capabilities.advertised",),
    level="SHOULD",
)
async def capabilities(ctx: AmqpContext) -> None:
    """The server-properties hold a table of capabilities, each true or false.

    A server without extensions may well have none; what is there must be a table of booleans.
    """
    connection = await ctx.client()
    table = connection.server_properties.get("capabilities")
    ctx.should(isinstance(table, dict), "server-properties without a table of capabilities")
    odd = [name for name, value in (table or {}).items() if not isinstance(value, bool)]
    ctx.must(not odd, f"expected booleans in the table of capabilities; seen others for {', '.join(odd)}")


async def _gets_a_header(ctx: AmqpContext, data: bytes) -> None:
    connection = await ctx.open_socket()
    connection.send_raw(data)
    await connection.end("a protocol header and the end of the connection")
    found = b"" if connection.header is None else connection.header.data
    ctx.must(
        found[:4] == b"AMQP" and found[4:5] in (b"\0", b"\2", b"\3"),
        f"expected a protocol header in answer to {data[:8]!r}, then the end; seen {found!r}",
    )


@amqp_case(
    "connection/other-protocols-get-a-header",
    mutant="amqp-strange-headers-unanswered",
    clauses=("connection.start.protocol-name",),
)
async def other_protocol(ctx: AmqpContext) -> None:
    """A client of another protocol gets a protocol header, and the end of the connection.

    HTTP, and eight bytes that differ from a protocol header in one letter.
    """
    ctx.needs_a_port_of_its_own()
    for data in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"AMQQ\x00\x00\x09\x01"):
        await _gets_a_header(ctx, data)


@amqp_case(
    "connection/unknown-versions-get-a-header",
    mutant="amqp-strange-headers-unanswered",
    clauses=("connection.start.server-support", "sec.4.2.2.bad-header"),
)
async def unknown_version(ctx: AmqpContext) -> None:
    """A version that nobody speaks is answered by a header, and the end of the connection.

    Versions 2.0.0 and 0.200.0; a server that also speaks 1.0 may offer that.
    """
    for data in (b"AMQP\x00\x02\x00\x00", b"AMQP\x00\x00\xc8\x00"):
        await _gets_a_header(ctx, data)


@amqp_case(
    "connection/unknown-protocol-ids-get-a-header",
    mutant="amqp-strange-headers-unanswered",
    clauses=("sec.4.2.1.protocol-id", "sec.4.2.2.bad-header"),
)
async def unknown_protocol_id(ctx: AmqpContext) -> None:
    """A header with a protocol id that does not exist is answered by a header, and the end.

    Id 7: 0 is AMQP, 2 and 3 are TLS and SASL of 1.0, and 1 was used by old clients.
    """
    await _gets_a_header(ctx, b"AMQP\x07\x00\x09\x01")


@amqp_case(
    "connection/a-method-first-gets-a-header",
    mutant="amqp-strange-headers-unanswered",
    clauses=("sec.4.2.2.client-header-first",),
)
async def method_first(ctx: AmqpContext) -> None:
    """A client that begins with a method gets a protocol header, and the end.

    The first bytes are a well-formed start-ok.
    """
    ctx.needs_a_port_of_its_own()
    method = Method("connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
    await _gets_a_header(ctx, encode_method(0, method))


@amqp_case("connection/header-in-pieces", mutant="amqp-header-in-one-piece", clauses=("sec.4.2.2.bad-header",))
async def header_in_pieces(ctx: AmqpContext) -> None:
    """A protocol header that comes byte by byte is as good as any.

    Each byte is written alone, with a request of another client behind it; then the connection opens.
    """
    other = await ctx.channel()
    connection = await ctx.open_socket()
    for index in range(len(PROTOCOL_HEADER)):
        connection.send_bytes(PROTOCOL_HEADER[index : index + 1])
        await other.barrier()
    with ctx.own_point():
        await connection.zero.expect("connection.start")
        connection.start_ok()
        await connection.tuned()
        await connection.zero.call("connection.open", virtual_host="/")


@amqp_case(
    "connection/unknown-mechanisms-end-it",
    mutant="amqp-any-mechanism",
    clauses=("connection.start-ok.mechanism.validity",),
    limit_s=10.0,
)
async def unknown_mechanism(ctx: AmqpContext) -> None:
    """A mechanism that was not offered ends the connection.

    Without another word, as the specification has it; a Close that says why is reported.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok(mechanism="ASSAY-UNKNOWN")
    event = await connection.zero.receive("the end of the connection")
    ctx.prefer("connection.start-ok.mechanism.validity", outcome_of(event))


def _refused(ctx: AmqpContext) -> bytes:
    return f"\0{ctx.capabilities['refused_username']}\0wrong".encode()


@amqp_case(
    "connection/bad-credentials-end-it",
    mutant="amqp-any-password",
    kills=("amqp-tables-of-credentials-refused",),
    clauses=("sec.2.2.4.pre-open-error",),
    requires=("refused_username",),
    limit_s=10.0,
)
async def bad_credentials(ctx: AmqpContext) -> None:
    """A wrong password ends the connection, and no Tune comes.

    The client does not announce that it wants to be told why. Where AMQPLAIN is offered, it is refused by it as well,
    and the right password opens the connection.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok(response=_refused(ctx), client_capabilities={})
    event = await connection.zero.receive("the end of the connection")
    ctx.allow("sec.2.2.4.pre-open-error", outcome_of(event))
    if "AMQPLAIN" not in connection.mechanisms:
        return
    _, username, password = plain(ctx.endpoint).decode().split("\0")
    for name, secret in ((username, password), (str(ctx.capabilities["refused_username"]), "wrong")):
        connection = await ctx.open_socket()
        await connection.start()
        response = encode_table({"LOGIN": name, "PASSWORD": secret})[4:]
        connection.start_ok(mechanism="AMQPLAIN", response=response, client_capabilities={})
        if secret == password:
            with ctx.own_point():
                await connection.tuned()
                await connection.zero.call("connection.open", virtual_host="/")
        else:
            event = await connection.zero.receive("the end of the connection")
            ctx.allow("sec.2.2.4.pre-open-error", outcome_of(event))


@amqp_case(
    "connection/bad-credentials-are-told",
    mutant="amqp-refusals-untold",
    clauses=("rmq.auth-failure-close",),
    requires=("authentication_failure_close", "refused_username"),
    limit_s=10.0,
)
async def bad_credentials_told(ctx: AmqpContext) -> None:
    """A client that announces authentication_failure_close is told of its wrong password by 403.

    The Close comes in place of Tune.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok(response=_refused(ctx))
    event = await connection.zero.receive("connection.close")
    ctx.allow("rmq.auth-failure-close", outcome_of(event))


@amqp_case(
    "connection/start-ok-of-4096-bytes",
    mutant="amqp-small-frames-before-tune",
    clauses=("connection.tune.frame-max.minimum",),
)
async def largest_start_ok(ctx: AmqpContext) -> None:
    """A frame of exactly 4096 bytes is taken before any size was agreed on.

    The start-ok is filled up by a client property.
    """
    connection = await ctx.open_socket()
    await connection.start()

    def start_ok(filler: int) -> bytes:
        properties = {"filler": "x" * filler}
        method = Method(
            "connection.start-ok",
            client_properties=properties,
            mechanism="PLAIN",
            response=plain(ctx.endpoint),
            locale="en_US",
        )
        return encode_method(0, method)

    data = start_ok(FRAME_MIN_BYTES - len(start_ok(0)))
    ctx.must(len(data) == FRAME_MIN_BYTES, "the case itself: the frame is not as large as it should be")
    connection.send_bytes(data)
    with ctx.own_point():
        await connection.tuned()
        await connection.zero.call("connection.open", virtual_host="/")


async def _tune(ctx: AmqpContext, *, channel_max: int | None = None, frame_max: int | None = None) -> str:
    """How opening ends with this answer to Tune."""
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok()
    tune = await connection.zero.expect("connection.tune", rule=Rule.AMQP_OPEN)
    if channel_max is not None and not 0 < tune["channel-max"] < channel_max:
        ctx.unsupported(f"no more channels can be asked for than the {tune['channel-max']} of its Tune (0: no limit)")
    if frame_max is not None and frame_max > FRAME_MIN_BYTES and not 0 < tune["frame-max"] < frame_max:
        ctx.unsupported(f"no larger frames can be asked for than the {tune['frame-max']} of its Tune (0: no limit)")
    connection.send(
        "connection.tune-ok",
        channel_max=tune["channel-max"] if channel_max is None else channel_max,
        frame_max=tune["frame-max"] if frame_max is None else frame_max,
    )
    connection.send("connection.open", virtual_host="/")
    event = await connection.zero.receive("the end of the connection", ("connection.open-ok",))
    return outcome_of(event)


@amqp_case(
    "connection/channel-max-above-the-offer",
    mutant="amqp-any-tune-taken",
    clauses=("connection.tune-ok.channel-max.upper-limit",),
    limit_s=10.0,
)
async def channel_max_above(ctx: AmqpContext) -> None:
    """A client that asks for more channels than were offered is cut off.

    65535 in place of what Tune said.
    """
    ctx.allow("connection.tune-ok.channel-max.upper-limit", await _tune(ctx, channel_max=MOST_CHANNELS))


@amqp_case(
    "connection/channel-max-of-zero",
    mutant="amqp-no-channels-for-zero",
    clauses=("connection.tune-ok.channel-max.upper-limit",),
    limit_s=10.0,
)
async def channel_max_zero(ctx: AmqpContext) -> None:
    """A client that asks for a channel-max of 0, which is none, is cut off, or has as many channels as were offered.

    Found in a client, which was cut off with no word. Where the connection opens, its first and its last channel do.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok()
    await connection.tuned(channel_max=0)
    if not connection.tune["channel-max"]:
        ctx.unsupported("its Tune names no most of channels")
    connection.send("connection.open", virtual_host="/")
    outcome = outcome_of(await connection.zero.receive("the end of the connection", ("connection.open-ok",)))
    ctx.allow("connection.tune-ok.channel-max.upper-limit", outcome, "ok")
    if outcome == "ok":
        with ctx.own_point():
            for number in (1, connection.tune["channel-max"]):
                await connection.channel_numbered(number).call("channel.open")


@amqp_case(
    "connection/frame-max-above-the-offer",
    mutant="amqp-any-tune-taken",
    clauses=("connection.tune-ok.frame-max.upper-limit",),
    limit_s=10.0,
)
async def frame_max_above(ctx: AmqpContext) -> None:
    """A client that asks for larger frames than were offered is cut off.

    The largest size that can be written in place of what Tune said.
    """
    ctx.allow("connection.tune-ok.frame-max.upper-limit", await _tune(ctx, frame_max=_MOST_FRAME_BYTES))


@amqp_case(
    "connection/frame-max-below-the-minimum",
    mutant="amqp-small-frames-agreed",
    clauses=("connection.tune-ok.frame-max.minimum",),
    limit_s=10.0,
)
async def frame_max_below(ctx: AmqpContext) -> None:
    """A client that asks for frames smaller than 4096 bytes is cut off, or gets 4096.

    A frame-max of 1024. Where the connection opens, a message of 3000 bytes in one frame must be taken.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok()
    await connection.tuned(frame_max=1_024)
    connection.send("connection.open", virtual_host="/")
    event = await connection.zero.receive("the end of the connection", ("connection.open-ok",))
    outcome = outcome_of(event)
    ctx.allow("connection.tune-ok.frame-max.minimum", outcome)
    if outcome == "ok":
        channel = await connection.channel()
        queue = await channel.queue()
        channel.publish("", queue, b"x" * 3_000, part_bytes=3_000)
        with ctx.own_point():
            await channel.get_soon(queue)


@amqp_case(
    "connection/unknown-virtual-hosts-are-refused",
    mutant="amqp-one-vhost-for-all",
    clauses=("connection.open.virtual-host.security",),
    level="SHOULD",
    limit_s=10.0,
)
async def unknown_vhost(ctx: AmqpContext) -> None:
    """A virtual host that does not exist is not opened.

    Its name is one that nobody has ever used.
    """
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok()
    await connection.tuned()
    outcome = await connection.zero.outcome("connection.open", virtual_host=f"/{ctx.queue_name()}")
    if outcome == "ok":
        ctx.should(False, "a virtual host that nobody has made is opened")
    else:
        ctx.allow("connection.open.virtual-host.security", outcome)


@amqp_case(
    "connection/virtual-hosts-are-apart",
    mutant="amqp-one-vhost-for-all",
    clauses=("connection.open.virtual-host.separation",),
    requires=("amqp091_second_vhost",),
)
async def vhosts_apart(ctx: AmqpContext) -> None:
    """What is declared in one virtual host is not seen from another.

    A queue and an exchange of the first are asked for in the second.
    """
    first = await ctx.channel()
    queue, exchange = await first.queue(shared=True), await first.exchange()
    username, password = (str(ctx.capabilities[f"amqp091_second_{name}"]) for name in ("username", "password"))
    response = f"\0{username}\0{password}".encode() if username else None
    second = await ctx.client(vhost=str(ctx.capabilities["amqp091_second_vhost"]), response=response)
    for name, fields in (("queue", {"queue": queue}), ("exchange", {"exchange": exchange, "type_": "direct"})):
        outcome = await (await second.channel()).outcome(f"{name}.declare", passive=True, **fields)
        ctx.must(outcome == "channel 404", f"expected no {name} of another virtual host; seen {outcome}")


@amqp_case(
    "connection/opens-once", mutant="amqp-opened-twice", clauses=("sec.3.1.2.vhost-single", "grammar.connection")
)
async def opens_once(ctx: AmqpContext) -> None:
    """A second Open costs the connection.

    The same virtual host is opened again.
    """
    connection = await ctx.client()
    ctx.sent_raw = True
    outcome = await connection.zero.outcome("connection.open", virtual_host="/")
    ctx.allow("sec.3.1.2.vhost-single", outcome)


@amqp_case(
    "connection/steps-out-of-order-end-it",
    mutant="amqp-steps-in-any-order",
    clauses=("grammar.connection", "sec.2.2.4.pre-open-error"),
    limit_s=10.0,
)
async def out_of_order(ctx: AmqpContext) -> None:
    """A step of the handshake at a wrong place ends the connection.

    Open in place of Start-Ok; Tune-Ok in place of Start-Ok; a channel before Open.
    """
    for step in (
        Method("connection.open", virtual_host="/"),
        Method("connection.tune-ok", frame_max=FRAME_MIN_BYTES),
    ):
        connection = await ctx.open_socket()
        await connection.start()
        connection.send_raw(encode_method(0, step))
        event = await connection.zero.receive(f"the end after {step.name} in place of start-ok")
        ctx.allow("grammar.connection", outcome_of(event))
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok()
    await connection.tuned()
    connection.next_channel()
    connection.send_raw(encode_method(1, Method("channel.open")))
    event = await connection.zero.receive("the end after channel.open before connection.open")
    ctx.allow("grammar.connection", outcome_of(event))


@amqp_case(
    "connection/after-its-close-nothing-counts",
    mutant="amqp-close-unanswered-while-closing",
    clauses=("connection.close.stability",),
)
async def close_stability(ctx: AmqpContext) -> None:
    """A server that has sent Close looks at nothing but Close and Close-Ok.

    An error is provoked and not answered; a queue is declared on another channel meanwhile, and the connection closed.
    The Close must be answered, and the declaration neither answered nor carried out.
    """
    connection = await ctx.client()
    connection.answers_closes = False
    channel = await connection.channel()
    connection.send_raw(encode_method(9, Method("queue.declare")))  # a channel that was not opened
    queue = ctx.queue_name()
    event = await connection.zero.receive("connection.close")
    ctx.step(Rule.AMQP_LEVEL, event is not None and event.name == "connection.close", "expected connection.close")
    connection.zero.closed_by = None
    channel.send("queue.declare", queue=queue, durable=True)
    connection.left = True
    connection.send("connection.close", reply_code=200)
    event = await connection.zero.receive("connection.close-ok", ("connection.close-ok",))
    ctx.must(
        event is not None and event.name == "connection.close-ok",
        f"expected close-ok after both have sent Close; seen {'the end' if event is None else event.name}",
    )
    ctx.must(not channel.inbox, "expected no answer on a connection that is being closed")
    connection.send("connection.close-ok")
    other = await ctx.channel()
    outcome = await other.outcome("queue.declare", queue=queue, passive=True)
    ctx.must(outcome == "channel 404", f"expected what was asked after Close not to be done; seen {outcome}")


@amqp_case(
    "connection/an-error-ends-the-socket",
    mutant="amqp-unopened-channels-pass",
    clauses=("sec.4.8.1.hard-error", "sec.2.3.6.exceptions"),
)
async def hard_error(ctx: AmqpContext) -> None:
    """After an error of the connection and its Close-Ok, the server ends the socket.

    A method on a channel that was not opened; the Close must have a code of an error of the connection.
    """
    connection = await ctx.client()
    connection.send_raw(encode_method(5, Method("basic.get", queue="x")))
    event = await connection.zero.receive("connection.close")
    ctx.allow("sec.4.2.3.unopened-channel", outcome_of(event))
    with ctx.own_point():
        await connection.end()


@amqp_case(
    "connection/update-secret-is-answered",
    mutant="amqp-some-answers-missing",
    clauses=("rmq.connection.update-secret",),
)
async def update_secret(ctx: AmqpContext) -> None:
    """connection.update-secret is answered by update-secret-ok.

    The new secret is the old one. A server that does not know the method, or has no use for it, ends as unsupported.
    """
    connection = await ctx.client()
    secret = (ctx.endpoint.password or "").encode()
    outcome = await connection.zero.outcome("connection.update-secret", new_secret=secret, reason="assay")
    if outcome != "ok":
        ctx.unsupported(f"connection.update-secret is answered by {outcome}")
    channel = await connection.channel()
    await channel.barrier()


@amqp_case(
    "heartbeat/the-server-sends-them",
    mutant="amqp-no-heartbeats",
    clauses=("sec.4.2.7.heartbeat-send",),
    level="SHOULD",
    limit_s=8.0,
)
async def heartbeat_sent(ctx: AmqpContext) -> None:
    """An idle server sends heartbeats as often as agreed.

    One second is agreed on; three heartbeats are awaited, and many of ours sent meanwhile. Whoever does not send any
    lets its clients think that it has died: a SHOULD.
    """
    ctx.is_timed = True
    connection = await ctx.client(heartbeat_s=1)
    beating = asyncio.create_task(_beat(connection))
    try:
        while connection.heartbeats < 3:
            seen = connection.heartbeats
            try:
                await connection.wait("a heartbeat", within_s=2.0)
            except CaseFailureError:
                ctx.should(connection.heartbeats > seen, "no heartbeat within two seconds, where one was agreed on")
                return
            if connection.closed:
                ctx.fail("expected a client that sends heartbeats to be served; seen the end of the connection")
    finally:
        beating.cancel()


async def _beat(connection: AmqpConnection) -> None:
    """Send heartbeats, whatever is waited for meanwhile."""
    while not connection.closed:
        connection.send_heartbeat()
        await asyncio.sleep(0.3)


@amqp_case(
    "heartbeat/silent-clients-are-cut-off",
    mutant="amqp-impatient-heartbeats",
    clauses=("sec.4.2.7.heartbeat-miss",),
    level="SHOULD",
    limit_s=12.0,
)
async def heartbeat_missed(ctx: AmqpContext) -> None:
    """A client that is silent for two intervals loses its connection.

    One second is agreed on; ten are waited for. No server may do so before two intervals have passed.
    """
    ctx.is_timed = True
    began = time.monotonic()  # its answer to our last words may take its time
    connection = await ctx.client(heartbeat_s=1)
    while not connection.closed and connection.ended() is None:
        left_s = began + 10.0 - time.monotonic()
        if left_s <= 0:
            ctx.should(False, "a client that has been silent for ten seconds, with one agreed on, is still connected")
            return
        try:
            await connection.wait("the end", within_s=left_s)
        except CaseFailureError:
            continue
    took_s = time.monotonic() - began
    ctx.must(took_s > 1.9, f"expected the end after two seconds of silence; seen after {took_s:.1f} s")
    ctx.should(connection.ended() is None, "a Close in place of the mere end of the connection")


@amqp_case(
    "heartbeat/not-agreed-on-is-no-error",
    mutant="amqp-heartbeats-only-as-agreed",
    clauses=("sec.4.2.7.heartbeat-unsupported",),
)
async def heartbeat_unsupported(ctx: AmqpContext) -> None:
    """A heartbeat where none was agreed on is no error.

    Ten heartbeats, then a request that must be answered.
    """
    connection = await ctx.client(heartbeat_s=0)
    channel = await connection.channel()
    for _ in range(10):
        connection.send_heartbeat()
    with ctx.own_point():
        await channel.barrier()


@amqp_case(
    "heartbeat/goes-on-while-closing",
    mutant="amqp-heartbeats-end-closing",
    clauses=("sec.4.2.7.heartbeat-during-close",),
    level="SHOULD",
)
async def heartbeat_while_closing(ctx: AmqpContext) -> None:
    """A heartbeat of a client that is closing is no error.

    It stands between Close and its Close-Ok, which must come nevertheless.
    """
    connection = await ctx.client(heartbeat_s=10)
    connection.left = True
    connection.send("connection.close", reply_code=200)
    connection.send_heartbeat()
    with ctx.own_point():
        await connection.zero.expect("connection.close-ok", rule=Rule.AMQP_CLOSE)
