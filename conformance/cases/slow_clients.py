"""Clients that are slow, silent or wild cost nobody else anything. Each case is there twice, once for each version.

The standards bind the server to whoever keeps to the rules (3.1.1 4.1.0, 4.5.0; 5.0 4.1.0, 4.5.0): what another
client does on its own connection changes nothing of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from time import monotonic

from assay.conformance.case import CaseContext, CaseFunction, Level, case
from assay.conformance.cases.mqtt5.support import comes, drained
from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Rule, StepFailureError
from assay.conformance.wire import (
    Connack,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    describe,
    encode,
)
from assay.conformance.wire.encode import raw_packet, uint16

_V5 = 5
_BURST_PACKETS = 5_000
_OVERLAPPING_LEVELS = 12
_LONG_WAIT_S = 1.0
"""What others may be kept waiting by what a broker does for one client: a hundred times what it takes the slowest."""
_ROUNDS = 3
"""A wait counts when each of so many is long: what a loaded machine does now and then is not the broker's doing."""
_MANY = 30
_PIECES = 12
"""Of a packet: more would take longer than a keep alive of seconds on a slow machine."""
_LARGE_ONES = 40
_FLOOD_PACKETS = 160
_FLOOD_PAYLOAD_BYTES = 64_000
"""10 MB together: more than the buffers of two sockets on loopback hold."""


def _both_versions(
    slug: str,
    *,
    in_311: tuple[str, ...],
    in_5: tuple[str, ...],
    mutant: str,
    near_miss: str,
    requires: tuple[str, ...] = (),
    area: str = "slow-clients",
    level: Level = "MUST",
    limit_s: float = 8.0,
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", in_311), ("mqtt5", in_5)):
            if not clauses:
                continue
            case(
                f"{spec}/{area}/{slug}",
                clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                requires=requires,
                mutant=mutant,
                near_miss=near_miss,
                level=level,
                limit_s=limit_s,
            )(function)
        return function

    return register


class _Pair:
    """A publisher and a subscriber that keep to the rules."""

    def __init__(self, topic: str, publisher: Connection, subscriber: Connection) -> None:
        self._topic, self._publisher, self._subscriber = topic, publisher, subscriber
        self._sent = 0

    async def exchange(self) -> None:
        """A message passes between them at QoS 0."""
        self._sent += 1
        payload = str(self._sent).encode()
        await self._publisher.publish(self._topic, payload)
        await self._subscriber.expect_publish(self._topic, payload)


async def _pair(ctx: CaseContext) -> _Pair:
    topic = ctx.topic("pair")
    subscriber = await ctx.connect(name="pair subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="pair publisher")
    pair = _Pair(topic, publisher, subscriber)
    await pair.exchange()
    return pair


@_both_versions(
    "half-a-packet-blocks-nobody-else",
    in_311=("4.5.0-1", "3.1.4-4"),
    in_5=("4.5.0-1", "4.2.0-1"),
    mutant="half-a-packet-blocks-others",
    near_miss="reads-in-small-pieces",
)
async def half_packets(ctx: CaseContext) -> None:
    """A client that is silent in the middle of a packet delays nobody else.

    One client stops inside its CONNECT, one inside the remaining length of a PUBLISH, one inside its payload. A
    publisher and a subscriber go on. Then the three send the rest, and are served as if nothing had been.
    """
    version = ctx.case.version
    topic = ctx.topic("late")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    pair = await _pair(ctx)
    publish = encode(Publish(topic=topic, payload=b"x" * 300), version)
    connect = encode(ctx.connect_packet(), version)
    ctx.is_timed = True  # a server may give up a connection that takes long over its CONNECT
    connecting = await ctx.open(name="inside CONNECT")
    connecting.send_raw(connect[:9])
    unfinished = [(connecting, connect[9:])]
    for cut, where in ((2, "the length"), (100, "the payload")):
        connection = await ctx.connect(name=f"inside {where}")
        connection.send_raw(publish[:cut])
        unfinished.append((connection, publish[cut:]))
        await pair.exchange()
    for connection, rest in unfinished:
        connection.send_raw(rest)
        await pair.exchange()
    connack = await connecting.expect(Connack)
    ctx.must(connack.reason_code == 0, f"inside CONNECT: expected to be accepted; seen {describe(connack)}")
    for _ in range(2):
        await watcher.expect_publish(topic, b"x" * 300)


@_both_versions(
    "a-trickling-publish-arrives-whole",
    in_311=("4.3.3-2", "4.5.0-1"),
    in_5=("4.3.3-8", "4.3.3-11", "4.2.0-1"),
    requires=("qos2",),
    mutant="half-a-packet-blocks-others",
    near_miss="reads-in-small-pieces",
)
async def trickle(ctx: CaseContext) -> None:
    """CONNECT, PUBLISH and PUBREL may come in small pieces, while others are served in between.

    After every few bytes of a slow client a publisher and a subscriber exchange a message, so that the broker has
    seen those bytes alone. The slow client is accepted and its QoS 2 message delivered, once and whole.
    """
    version = ctx.case.version
    topic = ctx.topic("slow")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    pair = await _pair(ctx)
    ctx.is_timed = True  # a server may give up a connection that takes long over its CONNECT
    slow = await ctx.open(name="slow")

    async def trickle_bytes(data: bytes) -> None:
        step = max(3, len(data) // _PIECES)
        for start in range(0, len(data), step):
            slow.send_raw(data[start : start + step])
            await pair.exchange()

    await trickle_bytes(encode(ctx.connect_packet(), version))
    connack = await slow.expect(Connack)
    ctx.must(connack.reason_code == 0, f"slow: expected to be accepted; seen {describe(connack)}")
    payload = bytes(range(130))
    await trickle_bytes(encode(Publish(topic=topic, payload=payload, qos=2, packet_id=9), version))
    await slow.expect(Pubrec)
    await trickle_bytes(encode(Pubrel(packet_id=9), version))
    await slow.expect(Pubcomp)
    await watcher.expect_publish(topic, payload)
    await watcher.expect_nothing()


@_both_versions(
    "a-client-that-does-not-read-delays-nobody",
    in_311=("4.5.0-1",),
    in_5=("4.5.0-1",),
    mutant="unread-output-blocks-others",
    near_miss="slow-readers-are-ended",
)
async def no_reader(ctx: CaseContext) -> None:
    """A subscriber that reads nothing does not delay those that do.

    10 MB are published for a client that has stopped reading. Other clients exchange messages meanwhile. What becomes
    of the deaf client is left to the broker. Some let the publisher wait for it (aedes documents such back pressure):
    reported, not failed, if the publisher's PINGREQ is answered once the deaf client has gone.
    """
    topic = ctx.topic("flood")
    deaf = await ctx.connect(name="deaf")
    await deaf.subscribe(topic)
    deaf.stop_reading()
    pair = await _pair(ctx)
    publisher = await ctx.connect(name="publisher")
    payload = b"x" * ctx.room_bytes(_FLOOD_PAYLOAD_BYTES)
    publisher.send_many(Publish(topic=topic, payload=payload), _FLOOD_PACKETS)
    publisher.send(Pingreq())
    answered = await comes(publisher, Pingresp)
    ctx.should(answered, "publisher: waits for the subscriber that does not read")
    await pair.exchange()
    deaf.abort()
    await pair.exchange()
    if not answered:
        await publisher.expect(Pingresp)


@_both_versions(
    "large-messages-that-waited-reach-who-reads-them",
    in_311=("3.1.2-5", "4.3.2-1"),
    in_5=("3.1.2-5", "4.1.0-1", "4.3.2-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="a-burst-cuts-its-reader",
    near_miss="deliveries-wait-for-readers-early",
)
async def large_messages(ctx: CaseContext) -> None:
    """A client that reads and acknowledges at full speed gets all large messages that waited for it, and is not cut.

    Forty messages of 64 kB at QoS 1 are published while a client with a lasting session is away. It comes back, reads,
    and acknowledges each as it comes: it gets every one, on this one connection.
    """
    version = ctx.case.version
    topic, client_id = ctx.topic("large"), ctx.client_id()
    lasting = Properties(session_expiry_interval=600) if version >= _V5 else Properties()
    first = await ctx.connect(client_id=client_id, clean=False, properties=lasting, name="first")
    await first.subscribe(Subscription(filter=topic, qos=1))
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    rest = b"x" * (ctx.room_bytes(_FLOOD_PAYLOAD_BYTES) - 8)
    wanted = [b"%08d" % number for number in range(_LARGE_ONES)]
    for start in wanted:
        await publisher.publish(topic, start + rest, qos=1)
    back = await ctx.connect(client_id=client_id, clean=False, properties=lasting, name="back")
    seen: list[bytes] = []
    for _ in wanted:
        message = await back.expect_publish(topic, qos=1)
        start, size = message.payload[:8], len(message.payload)
        whole = size == 8 + len(rest) and start in set(wanted).difference(seen)
        ctx.must(whole, f"back: expected each message once and whole; seen {start!r} with {size} bytes")
        seen.append(start)
    if seen != wanted:
        ctx.breach(Rule.ORDER, f"back: expected the messages in the order of their publication; seen {seen}")
    await back.expect_nothing()


@_both_versions(
    "all-retained-messages-reach-who-acknowledges-them",
    in_311=("3.3.1-6",),
    in_5=("3.3.1-9", "3.3.4-9"),
    requires=("qos1", "retain"),
    mutant="retained-beyond-the-window-lost",
    near_miss="deliveries-wait-for-readers-early",
)
async def all_retained(ctx: CaseContext) -> None:
    """However many retained messages match, a subscriber gets each, as it acknowledges those before.

    Forty topics hold a message at QoS 1, which has come to a present subscriber. A client (in 5.0 with Receive Maximum
    3) subscribes to all of them in one packet and acknowledges what comes: it gets each message once, marked as
    retained.
    """
    version = ctx.case.version
    topics = [ctx.topic(f"kept/{number}") for number in range(_LARGE_ONES)]
    present, publisher = await ctx.connect(name="present"), await ctx.connect(name="publisher")
    await present.subscribe(*topics, qos=1)
    for topic in topics:
        await publisher.publish(topic, topic.encode(), qos=1, retain=True)
        await present.expect_publish(topic, topic.encode())
    properties = Properties(receive_maximum=3) if version >= _V5 else Properties()
    client = await ctx.connect(name="client", properties=properties)
    client.send(
        Subscribe(packet_id=1, subscriptions=tuple(Subscription(filter=topic, qos=1) for topic in topics)),
    )
    missing = set(topics)
    answered = False
    while missing or not answered:
        packet = await client.receive(f"SUBACK and the retained messages of {len(missing)} topics")
        if isinstance(packet, Suback):
            answered = True
        elif isinstance(packet, Publish):
            ctx.must(packet.topic in missing, f"client: expected each message once; seen {describe(packet)} again")
            seen, wanted = (packet.payload, packet.qos), (packet.topic.encode(), 1)
            ctx.must(seen == wanted, f"client: expected payload and QoS {wanted}; seen {seen}")
            client.check_flag(packet, retain=True)
            missing.discard(packet.topic)
            await client.acknowledge(packet)
        else:
            ctx.fail(f"client: expected SUBACK or a retained message; seen {packet and describe(packet)}")
    await client.expect_nothing()


@_both_versions(
    "many-packets-in-one-segment",
    in_311=("4.3.2-2", "3.8.4-1", "3.10.4-4", "3.12.4-1"),
    in_5=("4.2.0-1",),
    requires=("qos1",),
    mutant="rest-of-a-segment-is-lost",
    near_miss="reads-in-small-pieces",
)
async def many_packets(ctx: CaseContext) -> None:
    """All packets of one segment are served, however many and different they are.

    One write holds SUBSCRIBE, thirty PUBLISH packets at QoS 1, PINGREQ, UNSUBSCRIBE and another PINGREQ. Each gets
    its answer, in any order: the PUBACKs, two PINGRESPs, SUBACK and UNSUBACK. A watcher gets the messages in order.
    """
    topic, other = ctx.topic("many"), ctx.topic("other")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    client = await ctx.connect(name="client")
    count = min(_MANY, client.connack.properties.receive_maximum or _MANY)
    publishes = [Publish(topic=topic, payload=str(n).encode(), qos=1, packet_id=100 + n) for n in range(count)]
    client.send(
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=other),)),
        *publishes,
        Pingreq(),
        Unsubscribe(packet_id=2, filters=(other,)),
        Pingreq(),
    )
    acknowledged: list[int] = []
    others: list[str] = []
    for _ in range(count + 4):
        packet = await client.receive(f"the rest of {count} PUBACKs, 2 PINGRESPs, SUBACK and UNSUBACK")
        if isinstance(packet, Puback):
            acknowledged.append(packet.packet_id)
        elif isinstance(packet, Pingresp | Suback | Unsuback):
            others.append(packet.type.name)
        else:
            ctx.fail(f"client: expected only answers to its packets; seen {packet and describe(packet)}")
    wanted = [packet.packet_id for packet in publishes]
    ctx.must(sorted(acknowledged) == wanted, f"client: expected PUBACKs for {wanted}; seen {acknowledged}")
    expected = ["PINGRESP", "PINGRESP", "SUBACK", "UNSUBACK"]
    ctx.must(sorted(others) == expected, f"client: expected {expected}; seen {sorted(others)}")
    for packet in publishes:
        await watcher.expect_publish(topic, packet.payload)


async def _delays_nobody(ctx: CaseContext, what: str, act: Callable[[int], Awaitable[Connection]]) -> None:
    """Others exchange messages while the broker does ``what``; ``act`` asks for it and returns who did.

    That client publishes once more afterwards: when its message arrives, the broker has done what it was asked for, or
    has ended the connection.
    """
    pair = await _pair(ctx)
    done = ctx.topic("done")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(done)
    waits_s: list[float] = []
    for turn in range(_ROUNDS):
        client = await act(turn)
        client.send(Publish(topic=done, payload=str(turn).encode()))
        finished = asyncio.ensure_future(comes(watcher, Publish))
        longest_s = 0.0
        try:
            while not finished.done():
                began = monotonic()
                await pair.exchange()
                longest_s = max(longest_s, monotonic() - began)
        finally:
            finished.cancel()
        waits_s.append(longest_s)
        client.abort()
        if longest_s <= _LONG_WAIT_S:
            return
    seen = ", ".join(f"{wait_s:.1f}" for wait_s in waits_s)
    ctx.should(False, f"expected others to be served within {_LONG_WAIT_S:.0f} s of {what}; seen {seen} s")


@_both_versions(
    "a-burst-that-waits-for-its-receiver-delays-nobody",
    in_311=("4.5.0-1",),
    in_5=(),
    requires=("qos1",),
    mutant="refused-runs-are-looked-at-anew",
    near_miss="reads-in-small-pieces",
    level="SHOULD",
    limit_s=30.0,
)
async def waiting_burst(ctx: CaseContext) -> None:
    """Thousands of small QoS 1 messages in one write, for a subscriber that acknowledges none, keep nobody waiting.

    They cannot all be passed on at once; whether they are kept, dropped or refused is left to the broker. Two other
    clients exchange messages meanwhile. Only waits of seconds, time and again, are reported: brokers are not judged by
    their speed, but the work for a burst must not grow with its square.
    """
    topic = ctx.topic("b")
    deaf = await ctx.connect(name="deaf")
    await deaf.subscribe(topic, qos=1)
    deaf.stop_reading()
    frames = [
        encode(Publish(topic=topic, payload=b"x", qos=1, packet_id=number + 1), ctx.case.version)
        for number in range(_BURST_PACKETS)
    ]

    async def act(turn: int) -> Connection:
        publisher = await ctx.connect(name=f"publisher {turn}")
        publisher.stop_reading()
        publisher.send_raw(b"".join(frames))
        return publisher

    await _delays_nobody(ctx, "a burst for a client that acknowledges nothing", act)


@_both_versions(
    "a-subscribe-of-equal-filters-delays-nobody",
    in_311=("3.8.4-4",),
    in_5=("3.8.4-5",),
    mutant="filters-compared-with-each-other",
    near_miss="reads-in-small-pieces",
    level="SHOULD",
    limit_s=30.0,
)
async def equal_filters(ctx: CaseContext) -> None:
    """A SUBSCRIBE that names one filter thousands of times keeps nobody waiting.

    Whether it is granted is left to the broker, which may also end the connection. Only waits of seconds, time and
    again, are reported.
    """
    request = Subscription(filter=ctx.topic("same") + "/#")
    frame = encode(Subscribe(packet_id=1, subscriptions=(request,) * _BURST_PACKETS), ctx.case.version)

    async def act(turn: int) -> Connection:
        subscriber = await ctx.connect(name=f"subscriber {turn}")
        subscriber.send_raw(frame)
        return subscriber

    await _delays_nobody(ctx, "a SUBSCRIBE of many equal filters", act)


@_both_versions(
    "overlapping-filters-of-one-client-delay-nobody",
    in_311=("3.3.5-1",),
    in_5=("3.3.4-2",),
    mutant="overlaps-merged-two-by-two",
    near_miss="v5-one-copy-per-subscription",
    level="SHOULD",
    limit_s=30.0,
)
async def many_overlapping(ctx: CaseContext) -> None:
    """A message that thousands of filters of one client match keeps nobody waiting.

    Whether the client gets it once or more often, or may have so many subscriptions, is left to the broker. Only waits
    of seconds, time and again, are reported. Who takes longer than the case to subscribe to them all is not asked.
    """
    root = ctx.topic("o")
    filters = [f"{root}/{'/'.join(levels)}/#" for levels in product("a+", repeat=_OVERLAPPING_LEVELS)]
    subscriber = await ctx.connect(name="subscriber")
    for at in range(0, len(filters), 500):
        some = tuple(Subscription(filter=each) for each in filters[at : at + 500])
        subscriber.send_raw(encode(Subscribe(packet_id=1 + at, subscriptions=some), ctx.case.version))
        try:
            if await subscriber.receive("SUBACK") is None:
                break
        except StepFailureError:
            raise
        except CaseFailureError as error:  # no clause says how soon
            ctx.unsupported(f"{at} of {len(filters)} overlapping filters: {error}")
    subscriber.stop_reading()

    async def act(turn: int) -> Connection:
        publisher = await ctx.connect(name=f"publisher {turn}")
        await publisher.publish(f"{root}/{'/'.join('a' * _OVERLAPPING_LEVELS)}/{turn}", b"x")
        return publisher

    await _delays_nobody(ctx, "a message that many filters of one client match", act)


@_both_versions(
    "noise-stops-no-other-connection",
    area="malformed",
    in_311=("4.8.0-1",),
    in_5=("4.13.1-1",),
    mutant="others-unserved-after-bad-input",
    near_miss="v5-closes-silently",
)
async def noise(ctx: CaseContext) -> None:
    """Whatever bytes a client sends, the broker ends its connection at most.

    Noise of many kinds is sent, before CONNECT and behind it: random bytes, lengths without end, packets cut short, a
    CONNECT that promises more than it holds. A broker may wait for the rest of a packet; at which bytes it must end the
    connection is judged by other cases. Two clients that were there before go on exchanging messages; and after this
    case, as after every case in which malformed bytes were sent or a connection was lost, a client that took no part
    sends itself one.
    """
    version = ctx.case.version
    pair = await _pair(ctx)
    connect = encode(ctx.connect_packet(), version)
    opening = (
        b"\xf5" + ctx.rng.randbytes(300),
        b"\x10\xff\xff\xff\xff\xff",
        connect[:1] + b"\x0a" + connect[2:12],
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x20" + ctx.rng.randbytes(2_000),
    )
    for number, data in enumerate(opening):
        connection = await ctx.open(name=f"opening {number}")
        connection.send_raw(data)
        connection.end_stream()
        await drained(connection)
    behind = (
        raw_packet(0x82, uint16(1) + b"\xff\xff"),
        raw_packet(0x30, b"\xff\xff" + ctx.rng.randbytes(40)),
        raw_packet(0x3E, ctx.rng.randbytes(40)),
        raw_packet(0x36, b"\x00\x01t\x00\x01"),
        b"\xf0\x00" if version < _V5 else b"\xf1\x00",
        b"\x30\xff\xff\xff\xff\x7f",
    )
    for number, data in enumerate(behind):
        connection = await ctx.connect(name=f"behind {number}")
        connection.send_raw(data)
        await drained(connection)
    await pair.exchange()
