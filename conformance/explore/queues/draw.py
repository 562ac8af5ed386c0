"""Lives of queues as chance draws them: each by its number from the seed of its campaign, and of few features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from assay.conformance.explore.queues import life as plan
from assay.conformance.targets import CapabilityValue

TIMES_S = (50, 100_000)
"""Delays, timeouts and lives of messages: no sum of few moves of the clock is near them."""
ADVANCES_S = (30, 90, 300_000)
_T = TypeVar("_T")
_ROUTES = ("", "eu", "eu/1", "us", "eu//2")
_FILTERS = ("eu/#", "+/1", "eu/1", "#")
"""Whether ``+`` fits a message without a routing key is not said."""
_KEYS = ("", "a", "b")
_MANY_KEYS = ("", "a", "b", "c", "d", "e", "f", "ü")
_SIZES = (8, 8, 0, 300, 300, 20_000, 70_000)
_NEARLY_S = 40
"""What waits for the short time is due soon after it."""
_EXTENSIONS_S = (0, TIMES_S[0], 20_000)
_AGED = 3
"""Of eleven lives, the one in which messages become too old for a retry."""
_ANEW = 5
"""Of seven lives, the one in which groups and queues are deleted."""
_COMPRESSED = {2: "s2", 7: "zstd"}
"""Of eleven lives, those whose queues are compressed, and how."""
_VALUES: tuple[tuple[str, tuple[int, ...]], ...] = (
    *[("max_in_flight", (1, 2, 4, 100))] * 2,
    *[("group_max_in_flight", (0, 1, 2, 5))] * 2,
    ("max_retries", (1, 2, 3, 50)),
    ("max_depth", (1, 2, 5, 9)),
    ("max_message_bytes", (300, 350, 500)),
)
"""Settings that change, and what they become."""
_ODD = ("queue", "rich", "lane", "ttl_s", "expiry_s")
_CHANGES: tuple[dict[str, Any], ...] = (
    *({"key": key} for key in _KEYS),
    *({"route": "eu/1"}, {"size_bytes": 9}, {"client": 1}, {"rich": True}, {"lane": 1}),
)
_VERBS = ("ack", "ack", "ack", "nack", "nack", "reject", "extend")


class _Bent:
    """What a life is like: without most of what there is, so that the rest meets (swarm testing)."""

    def __init__(self, chance: Random, can: Mapping[str, CapabilityValue]) -> None:
        pick = chance.choice
        self.clock, self.restart = bool(can.get("clock", False)), bool(can.get("restart", False))
        self.delays = pick((False, True))
        self.expires = pick((False, False, True))
        self.lanes = pick(((2,), (2,), (0, 1, 2, 3, 4), (0, 2)))
        self.routes = pick((("",), ("",), _ROUTES))
        self.keys = pick((("",), _KEYS, ("a",)))
        self.sizes = pick((_SIZES, (8,), (8, 300)))
        self.transactions = pick((False, False, True))
        self.letters = pick((False, True))
        self.verbs = pick((_VERBS, ("ack", "nack"), ("ack",), ("ack", "reject", "nack")))
        self.admin = pick((False, False, True))
        self.bursts = pick((False, True))
        self.qos = pick(((1,), (1,), (0, 1, 2)))
        self.restarts = pick((0, 0, 1, 1, 2)) if self.restart else 0


class _More:
    """What every third life has beside that: many consumers share partitions, and do what is asked for more rarely."""

    def __init__(self, chance: Random, number: int) -> None:
        is_meant = number % 3 == 2
        some = chance.sample(("claims", "commits", "growth", "receipts", "sizes", "resets"), chance.choice((1, 2, 3)))
        self.claims, self.commits, self.growth, self.receipts, self.sizes, self.resets = (
            is_meant and name in some for name in ("claims", "commits", "growth", "receipts", "sizes", "resets")
        )
        self.is_meant = is_meant
        self.tenant = is_meant and chance.choice((True, False, False))
        self.partitions = chance.choice((2, 3, 4, 5))
        self.consumers = chance.choice((1, 2, 3)) if is_meant else 0
        self.partitioner = chance.choice(("", "fnv1a", "murmur3")) if is_meant else ""
        self.kinds = "vvv" * self.claims + "mmm" * self.commits + "g" * self.growth + "aaa" * self.resets


class _Stream:
    """The end of other lives: much of the same at once, which a broker may read, write and settle as one."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance = draw, chance
        pick = chance.choice
        self._like = plan.Publish(
            key=pick(("", "", "a")),
            size_bytes=pick((0, 8, 8, 300, 2_000)),
            partition=pick((-1, 0)),
            route=pick(("", "", "eu/1")),
        )
        if pick((True, False, False)):
            self._like = msgspec.structs.replace(self._like, **{name: getattr(draw.publish(), name) for name in _ODD})

    def burst(self) -> plan.Burst:
        """Alike but for a few, from one client or two."""
        pick = self._chance.choice
        found = [self._like] * pick((7, 8, 9, 16, 17, 33, 40))
        for _ in range(pick((0, 0, 0, 0, 1, 2))):
            found[self._chance.randrange(len(found))] = msgspec.structs.replace(self._like, **pick(_CHANGES))
        return plan.Burst(publishes=tuple(found), together=True)

    def settle(self) -> plan.Settle:
        pick = self._chance.choice
        first, last = pick((0, 0, 0, 1, 5)), pick((8, 9, 16, 40))
        which = [*range(first, last)]
        if pick((True, False, False)):
            self._chance.shuffle(which)
        return plan.Settle(
            consumer=self._draw.who(),
            verb=pick(("ack",) * 6 + ("nack", "reject")),
            which=tuple(which[:: pick((1, 1, 1, 2))]),
            form=pick((plan.Form.IDS, plan.Form.IDS, plan.Form.OFFSETS)),
            each=pick((True, True, False)),
        )

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        if pick((True, True, False)):
            yield draw.join(0)
        for _ in range(pick((1, 2, 3))):
            yield self.burst()
            if pick((True, False)):
                yield draw.join(pick((0, 0, 1, 2)))
            for _ in range(pick((1, 1, 2))):
                yield self.settle()
            if draw.bent.restart and pick((True, False, False)):
                yield plan.Restart(amid=pick((None, self.settle())))
                draw.gone()
                yield draw.join(pick((0, 0, 1, 2)))
                yield self.settle()
            elif pick((True, False, False)):
                yield draw.step()


class _Tail:
    """The end of other lives: messages that are numbered, and names of what never was."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance = draw, chance
        self._queue = chance.choice((0, 0, 1))

    def numbered(self) -> plan.Numbered:
        pick = self._chance.choice
        whats = (plan.Number.NEXT,) * 4 + (plan.Number.AGAIN,) * 3 + (plan.Number.EARLY, plan.Number.FENCED)
        return plan.Numbered(
            producer=pick((0, 0, 0, 1)),
            queue=self._queue,
            partition=pick((0, 0, 0, 1)),
            what=pick(whats),
            back=pick((0, 1, 2, 30, 31)),
            afresh=pick((False,) * 7 + (True,)),
        )

    def stray(self) -> plan.Stray:
        pick = self._chance.choice
        verb = pick(("", "ack", "nack", "reject", "extend", "claim", "commit", "replay"))
        return plan.Stray(queue=self._queue, verb=verb, offset=pick((0, 1, 7)))

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        for _ in range(pick((12, 24, 45))):
            yield (
                self.numbered() if pick((True, True, True, False)) else pick((self.stray(), draw.settle(), draw.step()))
            )
            if draw.bent.restart and pick((True, *[False] * 14)):
                yield plan.Restart(amid=pick((None, self.numbered())))
                draw.gone()
                yield draw.join(pick((0, 0, 1, 2)))


class _Waits:
    """The end of other lives: several wait for their time, by delays and after failures, as the broker is killed."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance = draw, chance

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        consumer = pick((0, 0, 1))
        yield draw.join(consumer)
        for _ in range(pick((1, 2))):
            for _ in range(pick((2, 3, 5, 9))):
                delay_s = pick((0, *TIMES_S[:1] * 3, TIMES_S[1]))
                yield msgspec.structs.replace(draw.publish(), delay_s=delay_s, transaction=False)
            for which in range(pick((0, 1, 3))):
                delay_s = pick((0, *TIMES_S[:1] * 2))
                yield plan.Settle(consumer=consumer, verb="nack", which=(which,), delay_s=delay_s)
            if pick((True, False, False)):
                yield plan.Cancel(which=self._chance.randrange(4))
            if pick((True, False)):
                yield plan.Advance(seconds=_NEARLY_S)
            if pick((True, True, False)):
                yield plan.Restart(amid=pick((None, None, draw.amid())))
                draw.gone()
            yield draw.join(consumer)
            yield plan.Advance(seconds=pick(ADVANCES_S[:2]))
            yield draw.settle()


class _Back:
    """The end of other lives: dead letters go back to their queue, over kills as well, and fail again."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance = draw, chance

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        consumer = pick((0, 0, 1))
        yield draw.join(consumer)
        for _ in range(pick((1, 2, 3))):
            for _ in range(pick((2, 3, 5))):
                yield msgspec.structs.replace(draw.publish(), delay_s=0, ttl_s=0, expiry_s=0, transaction=False)
            which = pick(((0,), (0, 1), (1, 2), tuple(range(5))))
            yield plan.Settle(consumer=consumer, verb="reject", which=which)
            if pick((True, False, False)):
                yield draw.step()
            if draw.bent.restart and pick((True, False, False, False)):
                yield plan.Restart()
                draw.gone()
                yield draw.join(consumer)
            yield plan.Replay(queue=pick((0, 0, 1)))
            for _ in range(pick((0, 1, 2))):
                yield pick((draw.settle, draw.step))()


class _Settings:
    """The end of other lives: settings of queues in use change, and what comes next meets the new ones."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance = draw, chance

    def change(self) -> plan.Change:
        pick = self._chance.choice
        setting, values = pick(_VALUES)
        return plan.Change(
            queue=pick((0, 0, 1)), setting=setting, value=pick(values), spoilt=pick((False, False, False, True))
        )

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        yield draw.join(pick((0, 0, 1)))
        for _ in range(pick((2, 3, 5))):
            for _ in range(pick((1, 1, 2))):
                yield self.change()
            if draw.bent.restart and pick((True, *[False] * 7)):
                yield plan.Restart()
                draw.gone()
            if pick((True, False)):
                yield draw.join(pick((0, 1, 2)))
            for _ in range(pick((2, 4, 7))):
                yield pick((draw.publish, draw.publish, draw.settle, draw.step))()


class _Anew:
    """The end of some lives: groups and queues are deleted and come again, deliveries get other deadlines."""

    def __init__(self, draw: _Draw, chance: Random) -> None:
        self._draw, self._chance, self._settings = draw, chance, _Settings(draw, chance)

    def delete(self) -> plan.Delete:
        pick = self._chance.choice
        return plan.Delete(queue=pick((0, 0, 1)), group=pick((0, 0, 1, -1, -1)))

    def steps(self) -> Iterator[plan.Step]:
        pick, draw = self._chance.choice, self._draw
        for _ in range(pick((1, 2, 3))):
            consumer = pick((0, 0, 1))
            yield draw.join(consumer)
            for _ in range(pick((1, 2, 4))):
                yield draw.publish()
            for _ in range(pick((0, 1, 2))):
                which = pick(((0,), (0, 1), (1,)))
                yield plan.Settle(consumer=consumer, verb="extend", which=which, extend_s=pick(_EXTENSIONS_S))
            if pick((True, False)):
                yield pick((draw.settle, draw.step))()
            if pick((True, False, False)):
                yield self._settings.change()
            if draw.bent.clock and pick((True, True, False)):
                yield plan.Advance(seconds=pick((*ADVANCES_S[:2], ADVANCES_S[1])))
                yield draw.publish()
                yield plan.Claim(
                    consumer=draw.who(), which=pick((0, 1)), idle_s=pick((0, 20)), unnamed=pick((True, False))
                )
            if pick((True, False, False)):
                yield draw.leave()
            elif pick((True, True, False)):
                yield plan.Leave(consumer=consumer, how=pick(tuple(plan.Leaving)))
            yield self.delete()
            for _ in range(pick((0, 1, 2))):
                yield pick((draw.publish, draw.publish, draw.step, self.delete))()
            if draw.bent.restart and pick((True, False)):
                yield plan.Restart(amid=pick((None, None, draw.amid())))
                draw.gone()


class _Draw:
    def __init__(self, chance: Random, can: Mapping[str, CapabilityValue], more: _More) -> None:
        self._chance, self.bent, self.more = chance, _Bent(chance, can), more
        self._groups = 0
        self._joined: dict[int, None] = {}
        """Consumers that are there: most of what is asked of others does nothing."""

    def pick(self, items: Sequence[_T]) -> _T:
        return self._chance.choice(items)

    def queue(self) -> plan.QueuePlan:
        pick, bent = self.pick, self.bent
        limit = pick(("", "", "", "depth", "bytes"))
        return plan.QueuePlan(
            partitions=pick((1, 1, 2, 3)) if not self.more.is_meant else self.more.partitions,
            ordering=pick(("partition", "partition", "none", "strict")),
            durability=pick(("interval", "interval", "interval", "interval", "fsync", "memory")),
            timeout_s=pick((100_000, 100_000, 50)),
            max_retries=pick((50, 2, 1, 0)) if bent.letters else 50,
            backoff_s=pick((0, 0, 50)) if bent.clock else 0,
            dead_letters=bent.letters or pick((True, True, False)),
            max_depth=pick((2, 5)) if limit == "depth" else 0,
            max_bytes=pick((1_000, 50_000)) if limit == "bytes" else 0,
            overflow=pick(("reject", "reject", "drop_oldest", "dead_letter_oldest")) if limit else "reject",
            ttl_s=pick((0, 0, *TIMES_S)) if bent.expires else 0,
            to_letters=bent.expires and pick((False, True)),
            max_in_flight=pick((0, 0, 2, 4)),
            group_max_in_flight=pick((0, 0, 0, 3)),
            max_message_bytes=400 * self.more.sizes,
            partitioner=self.more.partitioner,
            receipts=self.more.receipts,
        )

    def groups(self, queues: int) -> tuple[plan.GroupPlan, ...]:
        pick = self.pick
        found = [
            plan.GroupPlan(
                queue=self._chance.randrange(queues),
                filter=pick(_FILTERS) if len(self.bent.routes) > 1 and pick((False, True)) else "",
                latest=pick((False, False, False, True)),
            )
            for _ in range(pick((1, 1, 2, 3)))
        ]
        if self.bent.letters:
            found.append(plan.GroupPlan(queue=found[0].queue, dead=True))
        return tuple(found)

    def consumers(self, groups: int) -> tuple[plan.ConsumerPlan, ...]:
        pick = self.pick
        self._groups = groups
        return tuple(
            plan.ConsumerPlan(group=number % groups, prefetch=pick((0, 0, 1, 3)), receive_maximum=pick((0, 0, 0, 1, 2)))
            for number in range(groups + pick((0, 1, 1, 2)) + self.more.consumers)
        )

    def publish(self) -> plan.Publish:
        pick, bent = self.pick, self.bent
        return plan.Publish(
            client=pick((0, 0, 1)),
            queue=pick((0, 0, 1)),
            route=pick(bent.routes),
            key=pick(_MANY_KEYS if self.more.is_meant else bent.keys),
            partition=pick((-1, -1, -1, 0, 1)),
            size_bytes=pick(bent.sizes),
            over_limit=pick((-1, -1, 0, 1)) if self.more.sizes else -1,
            lane=pick(bent.lanes),
            delay_s=pick((0, 0, *TIMES_S[:1], TIMES_S[1])) if bent.delays else 0,
            ttl_s=pick((0, 0, *TIMES_S)) if bent.expires else 0,
            expiry_s=pick((0, 0, *TIMES_S)) if bent.expires else 0,
            rich=pick((False, False, True)),
            qos=pick(bent.qos),
            transaction=bent.transactions and pick((True, True, False)),
        )

    def who(self) -> int:
        """A consumer, mostly one that is there."""
        return self.pick((*self._joined, *self._joined, *self._joined, 0, 1, 2))

    def join(self, consumer: int) -> plan.Join:
        self._joined[consumer] = None
        return plan.Join(consumer=consumer)

    def gone(self) -> None:
        """All consumers are."""
        self._joined = {}

    def leave(self) -> plan.Leave:
        consumer = self.who()
        self._joined.pop(consumer, None)
        return plan.Leave(consumer=consumer, how=self.pick(tuple(plan.Leaving)))

    def settle(self) -> plan.Settle:
        pick, bent = self.pick, self.bent
        verb = pick(bent.verbs)
        shows = self.more.receipts and pick((True, True, False))
        return plan.Settle(
            consumer=self.who(),
            verb=verb,
            which=pick(((0,), (0,), (0, 1), (0, 1, 2), (1,), (2, 0), (0, 2, 3), (99,), (0, 99), tuple(range(8)))),
            form=plan.Form.RECEIPTS if shows else pick((plan.Form.IDS, plan.Form.OFFSETS)),
            delay_s=pick((0, 0, *TIMES_S)) if verb == "nack" else 0,
            producer=pick((0, 1, -1)) if bent.transactions and verb == "ack" else -1,
            shown_by=pick((-1, -1, 0, 1)) if shows else -1,
            first_receipt=shows and pick((False, False, True)),
        )

    def step(self) -> plan.Step:
        pick, bent = self.pick, self.bent
        kinds = "ppppppssssssssjjjllww" + "x" * 5 * bent.transactions + "c" * 2 * bent.delays
        kinds += "aa" * bent.admin + "k" + "b" * 3 * bent.bursts + "t" * 2 * bent.clock + self.more.kinds
        match pick(kinds):
            case "p":
                return self.publish()
            case "b":
                return plan.Burst(publishes=tuple(self.publish() for _ in range(self._chance.randint(2, 8))))
            case "s":
                return self.settle()
            case "j":
                return self.join(pick((0, 0, 1, 2, 3)))
            case "l":
                return self.leave()
            case "w":
                return plan.Withhold(consumer=pick((0, 1, 2)), on=pick((True, False)))
            case "x":
                return self.transaction()
            case "c":
                return plan.Cancel(which=self._chance.randrange(4))
            case "a":
                if pick((True, False)):
                    return plan.Purge(queue=pick((0, 1)))
                return plan.Reset(group=pick((0, 1)), latest=pick((False, False, True)))
            case "v":
                return plan.Claim(consumer=self.who(), which=pick((0, 0, 1, 2, 99)), idle_s=pick((0, 0, 20, 200)))
            case "m":
                return plan.Commit(consumer=self.who(), which=pick((0, 0, 1, 2, 99, -1, -2)))
            case "g":
                return plan.Grow(queue=pick((0, 1)), partitions=pick((1, 3, 4, 5, 6)))
            case "t":
                return plan.Advance(seconds=pick(ADVANCES_S))
        return plan.Look(queue=pick((0, 1)))

    def transaction(self) -> plan.Begin | plan.End:
        pick = self.pick
        if pick((True, False)):
            return plan.Begin(producer=pick((0, 1)), timeout_s=pick((900, 900, 50)))
        return plan.End(producer=pick((0, 1)), commit=pick((True, True, False)))

    def whole_transaction(self) -> Iterator[plan.Step]:
        """Messages and acknowledgements, and an end of both."""
        pick = self.pick
        producer = pick((0, 1))
        yield plan.Begin(producer=producer)
        for _ in range(pick((1, 1, 2))):
            yield msgspec.structs.replace(self.settle(), verb="ack", delay_s=0, producer=producer)
            if pick((True, False)):
                yield msgspec.structs.replace(self.publish(), client=producer, transaction=True, delay_s=0)
        if pick((True, True, False)):
            yield plan.End(producer=producer, commit=pick((True, False)))

    def amid(self) -> plan.Publish | plan.Settle | plan.End | plan.Cancel | None:
        pick = self.pick
        kind = pick("----psec")
        if kind == "p":
            return self.publish()
        if kind == "s":
            return self.settle()
        if kind == "e" and self.bent.transactions:
            return plan.End(producer=pick((0, 1)), commit=pick((True, True, False)))
        return plan.Cancel(which=self._chance.randrange(4)) if kind == "c" and self.bent.delays else None

    def in_a_row(self) -> Iterator[plan.Step]:
        """Steps that meet when they come one behind the other, of what only some lives have."""
        pick, more, consumer = self.pick, self.more, self.who()
        if more.commits and pick((True, False)):
            yield plan.Settle(consumer=consumer, verb="nack", which=pick(((0,), (1,))), delay_s=pick(TIMES_S))
            yield plan.Commit(consumer=consumer, which=pick((0, 1)))
        if more.receipts and pick((True, False)):
            for _ in range(pick((1, 2))):
                yield plan.Settle(consumer=consumer, verb="nack", form=plan.Form.RECEIPTS)
            yield plan.Settle(consumer=consumer, form=plan.Form.RECEIPTS, first_receipt=pick((True, False, False)))
        if more.growth and pick((True, False)):
            yield plan.Grow(partitions=pick((4, 5, 6)))
            yield plan.Burst(publishes=tuple(self.publish() for _ in range(4)))

    def part(self, least: int, most: int) -> Iterator[plan.Step]:
        for _ in range(self._chance.randint(least, most)):
            if self.more.is_meant and self.pick((True, False, False)):
                yield from self.in_a_row()
            if self.bent.transactions and self.pick((True, False, False, False, False, False)):
                yield from self.whole_transaction()
            yield self.step()

    def steps(self) -> Iterator[plan.Step]:
        pick = self.pick
        if pick((True, True, False)):
            yield self.join(0)
        for number in range(self.more.consumers):
            yield self.join(self._groups + number)
        if self.bent.transactions:
            yield plan.Begin(producer=0)
        for _ in range(self._chance.randint(2, 6)):
            yield self.publish()
        yield from self.part(4, 14)
        for _ in range(self.bent.restarts):
            if self.more.claims:
                yield plan.Claim(consumer=self.who(), which=pick((0, 0, 1)))
            yield plan.Restart(amid=self.amid())
            self.gone()
            if pick((True, True, False)):
                yield self.join(pick((0, 0, 1, 2)))
            if self.bent.transactions and pick((True, False)):
                yield plan.Begin(producer=0)
            yield from self.part(2, 8)
        if not self.bent.restarts:
            yield from self.part(4, 14)


def drawn(seed: int, number: int, capabilities: Mapping[str, CapabilityValue]) -> plan.QueueLife:
    """A life that a broker with these capabilities can be asked to live."""
    chance = Random(f"queues/{seed}/{number}")
    draw = _Draw(chance, capabilities, _More(Random(f"queues/{seed}/{number}/more"), number))
    queues = tuple(draw.queue() for _ in range(chance.choice((1, 1, 2))))
    groups = draw.groups(len(queues))
    consumers = draw.consumers(len(groups))
    steps = list(draw.steps())
    stream = Random(f"queues/{seed}/{number}/stream")
    if number % 3 == 0:
        steps += (_Stream if stream.choice((True, False)) else _Settings)(draw, stream).steps()
    elif number % 3 == 1:
        steps += (_Tail if stream.choice((True, False)) else _Back)(draw, stream).steps()
    elif number % 3 == 2 and stream.choice((True, False)) and draw.bent.restart and draw.bent.clock:
        steps += _Waits(draw, stream).steps()
    if number % 7 == _ANEW:
        steps += _Anew(draw, Random(f"queues/{seed}/{number}/anew")).steps()
    if number % 11 == _AGED:
        queues = tuple(msgspec.structs.replace(queue, total_timeout_s=TIMES_S[0]) for queue in queues)
    if number % 11 in _COMPRESSED:
        queues = tuple(msgspec.structs.replace(queue, compression=_COMPRESSED[number % 11]) for queue in queues)
    return plan.QueueLife(
        queues=queues, groups=groups, consumers=consumers, tenant=draw.more.tenant, steps=tuple(steps)
    )
