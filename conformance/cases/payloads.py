"""Payloads that look like packets: whoever reads a length wrongly finds packets where a publisher wrote data.

A packet is framed by its Remaining Length (2.2.3 of 3.1.1, 2.1.4 of 5.0), which has up to four bytes. A broker that
takes fewer of them for all, on one of its ways, lets any publisher forge packets. So each payload here is made for such
readings: at every place where one of them sees the next packet, there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import product

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import subscribe_at, taken
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.bursts import settle_together
from assay.conformance.cases.queue.support import consume, deliveries, new_queue
from assay.conformance.connection import FIRST_FAILURE_CODE, Connection
from assay.conformance.wire import Puback, Publish, encode
from assay.conformance.wire.encode import varint

_STEPS = (127, 128, 16_383, 16_384, 2_097_151, 2_097_152)
"""Remaining Lengths where the field that holds them gets another byte."""
_BETWEEN = (168, 16_684, 140_000)
"""Whose first bytes, taken for all, are lengths themselves."""
_LENGTHS = sorted((*_STEPS, *_BETWEEN))
_LARGE_BYTES = 1_000_000
"""Of packets from this size on, fewer are sent."""
_UNSURE_BYTES = 1_000
"""A broker need not take packets of more than this: it is asked with a payload of zeros first."""
_BEHIND = 9
"""Packets behind one of these, in the same write: some brokers have ways of their own for many."""
_SHED_BYTES = 1 << 16
"""A message of QoS 0 comes once or not at all (4.3.1): who is being sent more than this may lose some."""
_PATIENT_S = 3.0
_CUT = ((127, 0), (128, 1), (168, 0), (16_383, 1), (16_384, 0), (16_684, 1))
"""Lengths and QoS of those that are sent in pieces."""
_LIMIT_S = 20.0

Take = Callable[[list[Publish]], Awaitable[None]]
"""Takes so many messages, which must be those that were published."""
Send = Callable[[Connection, list[Publish], list[int]], Awaitable[None]]
"""Sends packets, the first of which has these sizes for whoever reads its length wrongly."""


def _both_versions(
    slug: str, *, mutant: str, near_miss: str, requires: tuple[str, ...] = ("qos1",)
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (
            ("mqtt311", ("MQTT-3.3.4-1", "MQTT-4.5.0-1")),
            ("mqtt5", ("MQTT-3.3.4-1", "MQTT-4.2.0-1", "MQTT-4.5.0-1")),
        ):
            case(
                f"{spec}/size/{slug}",
                clauses=clauses,
                requires=requires,
                mutant=mutant,
                near_miss=near_miss,
                limit_s=_LIMIT_S,
            )(function)
        return function

    return register


class _Framing:
    """PUBLISH packets of one topic, QoS and Remaining Length."""

    def __init__(self, publisher: Connection, topic: str, forged: str, *, qos: int, length: int) -> None:
        self._publisher, self._topic, self._qos = publisher, topic, qos
        self._length, self._width = length, len(varint(length))
        self._forged = encode(Publish(topic=forged, payload=b"forged"), publisher.version)
        self._head_bytes = len(self._head(1))

    def _head(self, packet_id: int) -> bytes:
        """All in front of the payload."""
        empty = Publish(topic=self._topic, qos=self._qos, packet_id=packet_id)
        first, _, *rest = encode(empty, self._publisher.version)
        return bytes((first, *varint(self._length), *rest))

    def seen_sizes(self) -> list[int]:
        """How long the packet is for whoever takes some bytes of its length for all, as far as there is room for what
        is to be found then; and the least there is room in."""
        lengths = [self._length & (1 << 7 * taken) - 1 for taken in range(1, self._width)]
        sizes = {1 + read + length for taken, length in enumerate(lengths, 1) for read in (taken, self._width)}
        return [self._head_bytes + len(self._forged), *sorted(size for size in sizes if size >= self._head_bytes)]

    def packet(self, seen_bytes: int = 0) -> Publish:
        """One whose payload repeats, every so many bytes, the packet's own beginning, and forged packets; 0: zeros."""
        packet_id = self._publisher.next_packet_id() if self._qos else 0
        size = 1 + self._width + self._length
        head = self._head(packet_id)
        if seen_bytes:
            piece = (head + self._forged * (seen_bytes // len(self._forged) + 1))[:seen_bytes]
            payload = (piece * (size // seen_bytes + 1))[len(head) : size]
        else:
            payload = bytes(size - len(head))
        return self.behind(payload, packet_id)

    def behind(self, payload: bytes, packet_id: int | None = None) -> Publish:
        """Any other packet of the topic."""
        if packet_id is None:
            packet_id = self._publisher.next_packet_id() if self._qos else 0
        return Publish(topic=self._topic, payload=payload, qos=self._qos, packet_id=packet_id)


async def _takes(ctx: CaseContext, version: int, topic: str, length: int) -> bool:
    """Whether the broker takes packets so long, of which nothing else is special: it may have any limit."""
    if length < _UNSURE_BYTES:
        return True
    if ctx.room_bytes(length) < length:
        return False
    asking = await ctx.connect(version=version, name=f"whether {length} bytes are taken")
    asking.send(_Framing(asking, topic, topic, qos=1, length=length).packet())
    answer = await asking.receive_or_end(Puback)
    takes = isinstance(answer, Puback) and answer.reason_code < FIRST_FAILURE_CODE
    if not takes:
        ctx.note(f"the broker does not take a packet of {length} bytes")
    return takes


async def _accepted(ctx: CaseContext, publisher: Connection, packets: list[Publish]) -> None:
    """Every publish is answered, in any order, and nothing else."""
    owed = {packet.packet_id for packet in packets if packet.qos}
    while owed:
        puback = await publisher.expect(Puback)
        ctx.must(puback.packet_id in owed, f"{publisher.name}: expected the PUBACKs of {sorted(owed)}; seen {puback}")
        ctx.must(puback.reason_code < FIRST_FAILURE_CODE, f"{publisher.name}: expected success; seen {puback}")
        owed.discard(puback.packet_id)
    await publisher.expect_nothing()


def _strike_out(ctx: CaseContext, reader: Connection, found: list[Publish], missing: list[bytes]) -> None:
    """What was found is missing no more, and nothing came that was not missing."""
    for message in found:
        what = f"{len(message.payload)} bytes that begin with {message.payload[:20]!r}, on {message.topic}"
        ctx.must(message.payload in missing, f"{reader.name}: expected what was published, once; seen {what}")
        missing.remove(message.payload)


def _check(ctx: CaseContext, reader: Connection, found: list[Publish], wanted: list[bytes]) -> None:
    """All that was published, and nothing that was not."""
    missing = list(wanted)
    _strike_out(ctx, reader, found, missing)
    ctx.must(not missing, f"{reader.name}: expected messages of {[len(each) for each in missing]} bytes, too")


async def _in_one_write(publisher: Connection, packets: list[Publish], _sizes: list[int]) -> None:
    publisher.send(*packets)


async def _send_all(
    ctx: CaseContext,
    version: int,
    topics: tuple[str, str, str],
    take: Take,
    rounds: Iterable[tuple[int, int]],
    send: Send = _in_one_write,
) -> None:
    """Packets of these lengths and QoS, as far as the broker takes them, and some behind them, in one ``send`` each.

    ``topics``: theirs, that of the packets in their payloads, and one to ask about lengths.
    """
    topic, forged, asked = topics
    publisher = await ctx.connect(version=version, name=f"publisher of version {version}")
    most = publisher.connack.properties.receive_maximum or 1 << 16
    for length, qos in rounds:
        if not await _takes(ctx, version, asked, length):
            continue
        framing = _Framing(publisher, topic, forged, qos=qos, length=length)
        sizes = framing.seen_sizes()
        packets = [framing.packet(seen_bytes) for seen_bytes in (sizes if length < _LARGE_BYTES else sizes[-1:])]
        packets += [framing.behind(b"behind %d" % number) for number in range(_BEHIND)]
        del packets[most if qos else len(packets) :]
        await send(publisher, packets, sizes)
        # A broker may acknowledge when those who get the messages have done so.
        await asyncio.gather(_accepted(ctx, publisher, packets), take(packets))


async def _subscriber(ctx: CaseContext, topic: str, forged: str) -> Take:
    """Of both topics."""
    subscriber = await ctx.connect(name="subscriber")
    for each in (topic, forged):
        await subscribe_at(ctx, subscriber, each, qos=1)

    lost: list[bytes] = []
    """At QoS 0, or late."""

    async def take(packets: list[Publish]) -> None:
        wanted = [packet.payload for packet in packets]
        if packets[0].qos or sum(map(len, wanted)) <= _SHED_BYTES:
            found: list[Publish] = []
            while len(found) < len(wanted):
                message = await subscriber.expect_publish()
                if packets[0].qos > message.qos and message.payload in lost:
                    lost.remove(message.payload)
                else:
                    found.append(message)
            _check(ctx, subscriber, found, wanted)
            await subscriber.expect_nothing()
            return
        lost.extend(wanted)
        _strike_out(ctx, subscriber, await taken(subscriber, len(wanted), silence_s=_PATIENT_S), lost)

    return take


@_both_versions(
    "payloads-that-look-like-packets",
    mutant="runs-are-measured-by-two-length-bytes",
    near_miss="qos-0-is-shed",
)
async def look_like_packets(ctx: CaseContext) -> None:
    """What a publisher writes into a payload is never read as a packet, however long the payload is.

    Packets whose Remaining Lengths lie around each length at which that field gets another byte, and well beyond it,
    are published with nine small ones behind them, each length in one write, at QoS 0 and 1. Their payloads hold
    packets at every place where one would begin if some bytes of the length were taken for all. A subscriber gets what
    was published, of more than 64 KB at QoS 0 what comes, and nothing on the topic of the packets in the payloads. What
    the broker does not take when it is all zeros is left out.
    """
    topics = ctx.topic(), ctx.topic("forged"), ctx.topic("asked")
    take = await _subscriber(ctx, *topics[:2])
    await _send_all(ctx, ctx.case.version, topics, take, product(_LENGTHS, (0, 1)))


@_both_versions(
    "payloads-that-look-like-packets-in-pieces",
    mutant="half-a-length-is-taken-for-all",
    near_miss="reads-in-small-pieces",
)
async def in_pieces(ctx: CaseContext) -> None:
    """Packets that come in pieces are what they are in one, wherever they are cut.

    The packets are those of payloads-that-look-like-packets, up to a Remaining Length of 17 000. The first is cut
    within and behind every field, where a packet would begin if some bytes of the length were taken for all, before its
    last byte, at its end, and within the one behind it. A piece is sent when the broker has answered another client.
    """
    topics = ctx.topic(), ctx.topic("forged"), ctx.topic("asked")
    take = await _subscriber(ctx, *topics[:2])
    other = await ctx.connect(name="other")

    async def send(publisher: Connection, packets: list[Publish], sizes: list[int]) -> None:
        data = [encode(packet, publisher.version) for packet in packets]
        size = len(data[0])
        head_bytes = size - len(packets[0].payload)
        cuts = {*range(1, 8), *range(head_bytes - 3, head_bytes + 1)}
        cuts |= {at + more for at in (*sizes, size) for more in (-1, 0, 1)}
        await publisher.send_in_pieces(b"".join(data), sorted(cuts), other.barrier)

    await _send_all(ctx, ctx.case.version, topics, take, _CUT, send)


@case(
    "queue/bursts/payloads-that-look-like-packets",
    clauses=("Q-ADDR-10", "Q-ADDR-11"),
    requires=("queues",),
    mutant="queue-bursts-are-measured-by-two-length-bytes",
    near_miss="queue-one-batch-per-message",
    limit_s=_LIMIT_S,
)
async def queue_payloads(ctx: CaseContext) -> None:
    """What a publisher writes into a payload is never read as a packet, if it goes to a queue, too.

    Packets as in the cases of that name for ordinary topics are published to a queue, at QoS 0 and 1, by a client of
    each version. A consumer gets what was published, and nothing else; a queue that is named in the payloads only stays
    empty.
    """
    queue, forged = new_queue(ctx), new_queue(ctx)
    creator = await ctx.connect(version=5, name="creator")
    for each in (queue, forged):
        await create(ctx, creator, each)
    consumer, watcher = await consume(ctx, queue), await consume(ctx, forged, name="consumer of the forged")

    async def take(packets: list[Publish]) -> None:
        found = await deliveries(consumer, at_least=len(packets))
        _check(ctx, consumer, found, [packet.payload for packet in packets])
        await settle_together(ctx, consumer, queue, found)

    topics = f"$queue/{queue}", f"$queue/{forged}", f"$queue/{new_queue(ctx)}"
    await _send_all(ctx, 4, topics, take, product(_LENGTHS, (1,)))
    await _send_all(ctx, 5, topics, take, product(_LENGTHS, (0, 1)))
    await watcher.expect_nothing()
