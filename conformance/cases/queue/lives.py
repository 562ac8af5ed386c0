"""Whole lives of a queue, with everything that a message may carry, over several deaths of the broker.

Each story is drawn from the seed of the run: bursts of messages of all sizes, two groups of which one is often away,
settlements one by one and many at once. After every death each group must be given exactly what it has not settled,
as it was published, with its earlier deliveries counted; and the figures must say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.queue.administration import ask, create
from assay.conformance.cases.queue.support import (
    consume,
    count_of,
    deliveries,
    new_queue,
    property_of,
    settlement,
)
from assay.conformance.cases.restart_support import SMALL_SEGMENTS
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Subscription

_LIMIT_S = 20.0
_DEATHS = 4
_BURST = 24
_SIZES = (0, 1, 30, 200, 200, 1_500)
_KEPT = ("content_type", "response_topic", "correlation_data", "payload_format_indicator")
"""What a delivery carries as it was published, beside its user properties."""


class Group:
    """What one group has not settled: number of a message -> deliveries so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left: dict[int, int] = {}
        self.rejected: list[int] = []
        self.lost: set[int] = set()
        """Of them, those that may be gone: their bytes were damaged."""
        self.again: set[int] = set()
        """What was settled, and may come again: that was damaged."""
        self.counts = True
        """Whether earlier deliveries are known: not where that was damaged."""


class QueueLife:
    """One queue, its messages by number, and its groups."""

    def __init__(self, ctx: CaseContext, settings: dict[str, Any], priorities: tuple[str, ...]) -> None:
        self.ctx = ctx
        self.rng = ctx.rng
        self.queue = new_queue(ctx)
        self.settings = settings
        self.priorities = priorities
        self.sent: list[Publish] = []
        self.groups = [Group("always"), Group("sometimes")]

    def _message(self, number: int) -> Publish:
        rng = self.rng
        named = [("x-number", str(number))]
        named += [("x-more", "ä" * rng.randrange(40))] * rng.randrange(3)
        if rng.random() < 0.4:
            named.append(("partition-key", rng.choice("abc")))
        if self.priorities:
            named.append(("priority", rng.choice(self.priorities)))
        properties = Properties(
            user_property=tuple(named),
            content_type=rng.choice((None, "text/plain")),
            response_topic=rng.choice((None, "answers/here")),
            correlation_data=rng.choice((None, b"", bytes(range(9)))),
            payload_format_indicator=rng.choice((None, 1)),
            message_expiry_interval=rng.choice((None, 100_000)),
        )
        payload = rng.choice((b"a", b"0123456789")) * rng.choice(_SIZES)
        return Publish(topic=f"$queue/{self.queue}", payload=payload, qos=1, packet_id=1, properties=properties)

    async def begin(self) -> None:
        publisher = await self.ctx.connect(version=5, name="publisher")
        await create(self.ctx, publisher, self.queue, retry={"max_retries": 50}, **self.settings)
        for group in self.groups:
            await consume(self.ctx, self.queue, group=group.name, name=f"first of {group.name}")

    async def publish(self, publisher: Connection) -> None:
        """In one write, as far as the broker lets many be unconfirmed."""
        window = min(_BURST, publisher.connack.properties.receive_maximum or _BURST)
        count = self.rng.randrange(1, _BURST)
        for first in range(0, count, window):
            packets = [self._message(len(self.sent) + place) for place in range(min(window, count - first))]
            packets = [
                Publish(
                    topic=packet.topic,
                    payload=packet.payload,
                    qos=1,
                    packet_id=publisher.next_packet_id(),
                    properties=packet.properties,
                )
                for packet in packets
            ]
            publisher.send(*packets)
            for _ in packets:
                puback = await publisher.expect(Puback)
                self.ctx.must(puback.reason_code < 0x80, f"publisher: expected the message to be taken; seen {puback}")
            for group in self.groups:
                group.left |= dict.fromkeys(range(len(self.sent), len(self.sent) + len(packets)), 0)
            self.sent += packets

    async def take(self, consumer: Connection, group: Group) -> dict[int, Publish]:
        """All that the group has not settled must come: by number."""
        found: dict[int, Publish] = {}
        last: dict[tuple[str, str], int] = {}
        wanted_ones = group.left.keys() - group.lost
        came = await deliveries(consumer, at_least=len(wanted_ones))
        while group.again and not wanted_ones <= {int(property_of(self.ctx, each, "x-number")) for each in came}:
            # A server may send what need not come first, and have one under way at a time.
            came += await deliveries(consumer, at_least=1)
        for delivery in came:
            number = int(property_of(self.ctx, delivery, "x-number"))
            wanted = group.left.get(number)
            seen = count_of(self.ctx, delivery)
            what = f"{consumer.name}: message {number}"
            known = wanted is not None or number in group.again
            self.ctx.must(known and number not in found, f"{what} came, which is settled, or there already")
            counts = not group.counts or seen == (wanted or 0) + 1
            self.ctx.must(counts, f"{what}: expected delivery {(wanted or 0) + 1}; seen {seen}")
            self._compare(what, delivery, self.sent[number])
            if seen == 1:
                lane = dict(delivery.properties.user_property).get("priority", "")
                place = property_of(self.ctx, delivery, "partition"), lane
                before = last.get(place, -1)
                self.ctx.must(before < number, f"{what} came behind {before} of its partition: order is kept there")
                last[place] = number
            found[number] = delivery
        missing = sorted(group.left.keys() - found.keys() - group.lost)
        self.ctx.must(not missing, f"{consumer.name}: expected the messages {missing[:20]} as well; they did not come")
        group.left = {number: count_of(self.ctx, delivery) for number, delivery in found.items()}
        group.lost, group.again, group.counts = set(), set(), True
        return found

    def _compare(self, what: str, delivery: Publish, sent: Publish) -> None:
        self.ctx.must(delivery.payload == sent.payload, f"{what}: expected the payload that was published")
        for name in _KEPT:
            wanted, seen = getattr(sent.properties, name), getattr(delivery.properties, name)
            self.ctx.must(seen == wanted, f"{what}: expected {name} {wanted!r}; seen {seen!r}")
        own = [
            [pair for pair in each.properties.user_property if pair[0].startswith("x-")] for each in (delivery, sent)
        ]
        self.ctx.must(own[0] == own[1], f"{what}: expected the user properties {own[1]}; seen {own[0]}")
        left_s = delivery.properties.message_expiry_interval
        expiry_s = sent.properties.message_expiry_interval
        lives = left_s is None if expiry_s is None else left_s is not None and expiry_s - 3_600 < left_s <= expiry_s
        self.ctx.must(lives or expiry_s is None, f"{what}: expected what is left of {expiry_s} s; seen {left_s}")

    async def settle(self, consumer: Connection, group: Group, held: dict[int, Publish]) -> None:
        """Some are acknowledged one by one, some together, some are rejected, and some are kept."""
        for number, delivery in held.items():
            choice = self.rng.random()
            if choice < 0.3:
                await self._send(consumer, "ack", [delivery])
            elif choice < 0.35:
                await self._send(consumer, "reject", [delivery])
                group.rejected.append(number)
            else:
                continue
            del group.left[number]
        if some := [number for number in group.left if self.rng.random() < 0.4]:
            await self._send(consumer, "ack", [held[number] for number in some])
            for number in some:
                del group.left[number]

    async def _send(self, consumer: Connection, verb: str, settled: Iterable[Publish]) -> None:
        first, *rest = settled
        more = tuple(("message-id", property_of(self.ctx, each, "message-id")) for each in rest)
        named = settlement(self.ctx, first).user_property
        packet_id = consumer.next_packet_id()
        properties = Properties(user_property=(*named, *more))
        consumer.send(Publish(topic=f"$queue/{self.queue}/${verb}", qos=1, packet_id=packet_id, properties=properties))
        puback = await consumer.expect(Puback, skipping=(Publish,))
        self.ctx.must(puback.reason_code < 0x80, f"{consumer.name}: expected the {verb} to be accepted; seen {puback}")

    async def compare_figures(self, client: Connection, held: dict[str, int], when: str) -> None:
        """``held``: how many each group's consumer has."""
        stats = await ask(self.ctx, client, self.queue, "stats")
        figures = {each["group"]: each for each in stats["groups"]}
        for group in self.groups:
            seen = {name: figures[group.name][name] for name in ("lag", "in_flight", "retrying")}
            new = sum(not count for count in group.left.values())
            in_flight = held.get(group.name, 0)
            wanted = {"lag": new, "in_flight": in_flight, "retrying": len(group.left) - new - in_flight}
            self.ctx.must(seen == wanted, f"{when}: expected {wanted} of the group {group.name}; seen {seen}")
        depth = max(len(group.left) for group in self.groups)
        dead = sum(len(group.rejected) for group in self.groups)
        seen_depth = stats["depth"], stats["dead_letters"]
        self.ctx.must(
            seen_depth == (depth, dead), f"{when}: expected depth and dead letters {(depth, dead)}; seen {seen_depth}"
        )

    async def live(self) -> None:
        await self.begin()
        for death in range(_DEATHS):
            await self.ctx.restart()
            when = f"after {death + 1} deaths"
            publisher = await self.ctx.connect(version=5, name=f"publisher {when}")
            await self.compare_figures(publisher, {}, when)
            await self.publish(publisher)
            held: dict[str, int] = {}
            delivered = redelivered = 0
            for group in self.groups[: self.rng.choice((1, 2))]:
                consumer = await consume(self.ctx, self.queue, group=group.name, name=f"{group.name} {when}")
                found = await self.take(consumer, group)
                first = sum(count_of(self.ctx, each) == 1 for each in found.values())
                delivered, redelivered = delivered + first, redelivered + len(found) - first
                await self.settle(consumer, group, found)
                held[group.name] = len(group.left)
            await self.compare_figures(publisher, held, f"{when}, settled")
            await self._compare_counts(publisher, delivered, redelivered, when)
        await self.ctx.restart()
        for group in self.groups:
            consumer = await consume(self.ctx, self.queue, group=group.name, name=f"last of {group.name}")
            if found := await self.take(consumer, group):
                await self._send(consumer, "ack", found.values())
            group.left = {}
        await self.compare_figures(consumer, {}, "in the end")
        await self._read_dead_letters()

    async def _read_dead_letters(self) -> None:
        rejected = sorted(number for group in self.groups for number in group.rejected)
        reader = await self.ctx.connect(version=5, name="dead letters")
        joining = Properties(user_property=(("consumer-group", "graveyard"),))
        await reader.subscribe(Subscription(filter=f"$dlq/{self.queue}", qos=1), properties=joining)
        found = await deliveries(reader, at_least=len(rejected))
        numbers = sorted(int(property_of(self.ctx, letter, "x-number")) for letter in found)
        self.ctx.must(numbers == rejected, f"dead letters: expected what was rejected, {rejected}; seen {numbers}")
        for letter in found:
            number = int(property_of(self.ctx, letter, "x-number"))
            what = f"dead letters: message {number}"
            self.ctx.must(
                letter.payload == self.sent[number].payload, f"{what}: expected the payload that was published"
            )

    async def _compare_counts(self, client: Connection, delivered: int, redelivered: int, when: str) -> None:
        stats = await ask(self.ctx, client, self.queue, "stats")
        seen = tuple(sum(each[name] for each in stats["groups"]) for name in ("delivered", "redelivered"))
        self.ctx.must(
            seen == (delivered, redelivered),
            f"{when}: expected {delivered} first deliveries and {redelivered} later ones to be counted; seen {seen}",
        )


def _life(slug: str, *clauses: str, mutant: str, priorities: tuple[str, ...] = (), **settings: Any) -> CaseFunction:
    async def life(ctx: CaseContext) -> None:
        await QueueLife(ctx, settings, priorities).live()

    life.__doc__ = f"""After every death each group gets exactly what it has not settled, as it was published ({slug}).

    Two groups, of which one is often away, live through {_DEATHS + 1} deaths of the broker. Between them bursts of
    up to {_BURST - 1} messages are published, of all sizes and with all properties, and some of what a group is given
    is acknowledged one by one or together, or rejected. What a group is given is what it has not settled, in order,
    with the deliveries of before counted; the figures say the same. In the end the dead letters are what was rejected.
    """
    return case(
        f"queue/lives/{slug}",
        clauses=("Q-DURA-04", "Q-DURA-05", "Q-DURA-08", "Q-DURA-09", *clauses),
        requires=("queues", "restart"),
        mutant=mutant,
        near_miss="queue-one-batch-per-message",
        settings=SMALL_SEGMENTS,
        together=True,
        limit_s=_LIMIT_S,
    )(life)


plain = _life("one-partition", "Q-DURA-01", mutant="queue-content-type-lost-on-disk", partitions=1, durability="fsync")
compressed = _life("compressed", "Q-DURA-02", mutant="queue-redeliveries-count-twice", partitions=3, compression="zstd")
lanes = _life(
    "lanes",
    "Q-DURA-02",
    "Q-DURA-07",
    mutant="queue-priority-lost-on-disk",
    priorities=("critical", "high", "normal", "low"),
    partitions=2,
)
