"""Writes of many packets of several kinds: each comes out as if it had come alone.

A broker may handle packets that follow each other together. So a write holds runs of every kind, of all lengths: plain
messages, messages with properties, of every QoS, some too large, settlements that count and that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.queue.administration import ask
from assay.conformance.cases.queue.support import consume, deliveries, join, new_queue, property_of, publish, settlement
from assay.conformance.connection import Connection
from assay.conformance.wire import Packet, Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel, describe

_ROUNDS, _LIKE_ONES = 10, 2
_MOST = 30
_LARGEST = 200
_LIMIT_S = 20.0
_SIZES = (20, 20, 20, 90)


class _Burst:
    """One write: the packets, and for each that is answered its id and whether it is to be accepted."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self.answers: dict[type[Packet], dict[int, bool]] = {Puback: {}, Pubrec: {}, Pubcomp: {}}


class _Mixer:
    """A client that publishes to a queue and consumes from it, and what it knows."""

    def __init__(self, ctx: CaseContext, client: Connection, queue: str) -> None:
        self.ctx, self.client, self.queue = ctx, client, queue
        self.rng = ctx.rng
        self.held: dict[bytes, Publish] = {}
        """Payload -> a delivery that is not settled."""
        self.settled: dict[bytes, Publish] = {}
        self.sent: set[bytes] = set()
        self.received: list[int] = []
        """Packet ids of QoS 2 that are to be released."""
        self.window = min(_MOST, client.connack.properties.receive_maximum or _MOST)

    def _publish(
        self, burst: _Burst, topic: str, payload: bytes, qos: int, pairs: tuple[Any, ...], *, taken: bool
    ) -> int:
        packet_id = self.client.next_packet_id() if qos else 0
        properties = Properties(user_property=pairs)
        burst.packets.append(Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, properties=properties))
        if qos:
            burst.answers[Puback if qos == 1 else Pubrec][packet_id] = taken
        return packet_id

    def _messages(self, burst: _Burst, count: int) -> None:
        rng = self.rng
        qos, kind, size = (
            rng.choice((0, 1, 1, 1, 2)),
            rng.choice(("plain", "plain", "keys", "sizes")),
            rng.choice(_SIZES),
        )
        self._run(burst, count, qos, kind, size, is_large=qos == 1 and rng.random() < 0.15)

    def _run(self, burst: _Burst, count: int, qos: int, kind: str, size: int, *, is_large: bool = False) -> None:
        rng = self.rng
        for _ in range(count):
            if kind == "sizes":
                size = rng.choice(_SIZES)
            value = b"%d " % (len(self.sent) + 1_000)
            pairs = (("partition-key", rng.choice("abc")),) if kind == "keys" else ()
            payload = value.ljust(_LARGEST + 1 if is_large else size, b".")
            packet_id = self._publish(burst, f"$queue/{self.queue}", payload, qos, pairs, taken=not is_large)
            if is_large:
                continue
            self.sent.add(payload)
            if qos == 2:
                self.received.append(packet_id)

    def _settlements(self, burst: _Burst, count: int, left: int) -> None:
        """In the order in which they came, or any; then perhaps one of them once more, which counts for nothing."""
        chosen = list(self.held)[:count] if self.rng.random() < 0.7 else self.rng.sample(list(self.held), count)
        self._settle(burst, [*chosen, *(chosen[:1] if self.rng.random() < 0.2 and count < left else [])])

    def _settle(self, burst: _Burst, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            counts = payload in self.held
            delivery = self.held.pop(payload) if counts else self.settled[payload]
            self.settled[payload] = delivery
            named = settlement(self.ctx, delivery).user_property
            self._publish(burst, f"$queue/{self.queue}/$ack", b"", 1, named, taken=counts)

    def release(self, burst: _Burst) -> None:
        for packet_id in self.received:
            burst.packets.append(Pubrel(packet_id=packet_id))
            burst.answers[Pubcomp][packet_id] = True
        self.received = []

    def like_ones(self) -> _Burst:
        """A run of messages with nothing to tell them apart, and the settlements of all that came: none of that is left
        to chance."""
        burst = _Burst()
        self._settle(burst, list(self.held)[: self.window // 2])
        self._run(burst, max(1, self.window // 2), 1, "plain", _SIZES[0])
        return burst

    def burst(self) -> _Burst:
        # Those that are to be released count until the server has completed them.
        burst, left = _Burst(), self.window - len(self.received)
        self.release(burst)
        while left > 0 and (len(burst.packets) < 3 or self.rng.random() < 0.8):
            count = min(left, self.rng.choice((1, 2, 5, 12)))
            if self.held and self.rng.random() < 0.4:
                self._settlements(burst, min(count, len(self.held)), left)
                left -= 1
            else:
                self._messages(burst, count)
            left -= count
        return burst

    async def send(self, burst: _Burst) -> None:
        self.client.send(*burst.packets)
        while any(burst.answers.values()):
            packet = await self.client.receive("the answers to a burst")
            if isinstance(packet, Publish):
                await self._take(packet)
                continue
            # No statement has a server acknowledge in order (MQTT 5.0, 4.6).
            answers = {} if packet is None else burst.answers.get(type(packet), {})
            if not isinstance(packet, Puback | Pubrec | Pubcomp) or packet.packet_id not in answers:
                self.ctx.fail(f"{self.client.name}: expected other answers; seen {packet and describe(packet)}")
            taken = answers.pop(packet.packet_id)
            what = f"{self.client.name}: expected {'success' if taken else 'a failure'} for {packet.packet_id}"
            self.ctx.must((packet.reason_code < 0x80) == taken, f"{what}; seen {describe(packet)}")

    async def _take(self, delivery: Publish) -> None:
        payload = delivery.payload
        self.ctx.must(payload in self.sent, f"{self.client.name}: {payload[:40]!r} was never taken")
        new = payload not in self.held and payload not in self.settled
        self.ctx.must(new, f"{self.client.name}: {payload[:40]!r} came a second time")
        await self.client.acknowledge(delivery)
        self.held[payload] = delivery

    async def settle_down(self) -> None:
        """All that was taken must have come."""
        left = len(self.sent) - len(self.held) - len(self.settled)
        for delivery in await deliveries(self.client, at_least=left):
            await self._take(delivery)
        missing = sorted(self.sent - self.held.keys() - self.settled.keys())
        self.ctx.must(not missing, f"{self.client.name}: expected {missing[:10]} as well; they did not come")


def _mixed(
    slug: str, *clauses: str, mutant: str, is_killed: bool, **more: Any
) -> Callable[[CaseFunction], CaseFunction]:
    return case(
        f"queue/bursts/{slug}",
        clauses=clauses,
        requires=("queues", "restart") if is_killed else ("queues",),
        mutant=mutant,
        near_miss="queue-one-batch-per-message",
        settings={"queues": {"defaults": {"max_message_bytes": _LARGEST, "delivery_timeout_s": 3_600, **more}}},
        limit_s=_LIMIT_S,
    )


async def _mix(ctx: CaseContext) -> tuple[_Mixer, str]:
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client", properties=Properties(receive_maximum=65_535))
    await publish(client, queue, b"0 first")
    await join(client, queue)
    mixer = _Mixer(ctx, client, queue)
    mixer.sent.add(b"0 first")
    for number in range(_ROUNDS):
        await mixer.send(mixer.burst() if number >= _LIKE_ONES else mixer.like_ones())
        await mixer.settle_down()
    await mixer.send(_last(mixer))
    stats = await ask(ctx, client, queue, "stats")
    seen = stats["depth"], stats["enqueued"], stats["in_flight"], stats["refused"]
    wanted = len(mixer.held), len(mixer.sent), len(mixer.held)
    ctx.must(seen[:3] == wanted, f"client: expected depth, enqueued and in flight {wanted}; seen {seen[:3]}")
    return mixer, queue


def _last(mixer: _Mixer) -> _Burst:
    burst = _Burst()
    mixer.release(burst)
    return burst


async def _left(ctx: CaseContext, mixer: _Mixer, queue: str) -> None:
    consumer = await consume(ctx, queue, name="successor")
    found = await deliveries(consumer, at_least=len(mixer.held))
    payloads = sorted(delivery.payload for delivery in found)
    ctx.must(payloads == sorted(mixer.held), f"successor: expected what is not settled; seen {payloads}")
    counts = {property_of(ctx, delivery, "delivery-count") for delivery in found}
    ctx.must(counts <= {"2"}, f"successor: expected second deliveries; seen {counts}")


@_mixed("mixed", "Q-ADDR-10", "Q-ACK-1", "Q-LIMIT-13", mutant="queue-burst-repeats-a-message", is_killed=False)
async def mixed(ctx: CaseContext) -> None:
    """A write of many kinds is answered packet by packet, in order, and each message is delivered once.

    A client publishes to a queue and consumes from it. In ten writes of up to thirty packets there are runs of
    messages of every QoS, with properties and without, too large ones, settlements that count and that do not. Each
    gets its own answer, those of a kind in order; what was taken is delivered once, and what is not settled comes
    again to the next consumer.
    """
    mixer, queue = await _mix(ctx)
    await mixer.client.disconnect()
    await _left(ctx, mixer, queue)


@_mixed(
    "mixed-over-a-death",
    "Q-DURA-01",
    "Q-DURA-04",
    "Q-DURA-05",
    "Q-LIMIT-13",
    mutant="queue-burst-settlements-unwritten",
    is_killed=True,
    partitions=2,
)
async def mixed_and_killed(ctx: CaseContext) -> None:
    """What writes of many kinds have published and settled is so after kill -9.

    As the mix of every kind in ten writes, in a queue of two partitions; then the broker is killed and started
    again, and the next consumer gets what was not settled, and nothing else.
    """
    mixer, queue = await _mix(ctx)
    await ctx.restart()
    await _left(ctx, mixer, queue)
