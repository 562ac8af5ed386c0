"""Lives of AMQP 0.9.1 as chance draws them: each by its number from the seed of its campaign, and of few features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from assay.conformance.explore.amqp import life as plan
from assay.conformance.targets import CapabilityValue

TIMES_S = (50, 100_000)
"""Lives of messages and queues: no sum of few moves of the clock is near them."""
ADVANCES_S = (30, 90, 300_000)
_T = TypeVar("_T")
_KEYS = ("a", "b", "a.b", "a.c", "", "a.b.c")
_PATTERNS = ("a", "a.*", "#", "a.#", "*.b", "*", "#.b", "a.b", "*.*", "")
_MATCHES = ("all", "any", "all-with-x", "any-with-x", "")
_SIZES = (8, 8, 0, 30, 5_000, 140_000)


class _Bent:
    """What a life is like: without most of what there is, so that the rest meets (swarm testing)."""

    def __init__(self, chance: Random, can: Mapping[str, CapabilityValue]) -> None:
        def some(feature: str, one_in: int = 3) -> bool:
            return chance.randrange(one_in) == 0 and bool(can.get(feature, False))

        pick = chance.choice
        self.quorum = some("amqp-delivery-limit", 6)
        self.ways = pick((False, False, True))
        """More of exchanges and bindings, which are made and undone."""
        self.exchanges = pick((2, 3)) if self.ways else pick((0, 0, 1, 2, 3))
        kinds = ["direct", "fanout", *(kind for kind in ("topic", "headers") if can.get(f"amqp-{kind}", False))]
        self.kinds = chance.sample(kinds, pick((1, 2)))
        self.alternate, self.internal = some("amqp-alternate", 1 if self.ways else 3), some("amqp-internal", 4)
        self.between = some("exchange_exchange_bindings", 2)
        self.expires = some("amqp-ttl", 4)
        self.queue_expires = some("amqp-expires", 4) and bool(can.get("clock", False))
        self.letters = some("amqp-letters", 3)
        self.priority = some("amqp-priority", 5) and not self.quorum
        self.single = some("amqp-single", 6)
        self.transactions = some("amqp-tx", 4) and not self.quorum
        # What a commit does where a queue has no room is not said.
        self.max_length = some("amqp-max-length", 4) and not self.transactions
        self.overflows = ["", "drop-head", *["reject-publish"] * 2 * bool(can.get("amqp-reject"))]
        self.overflows += ["reject-publish-dlx"] * bool(can.get("amqp-reject-dlx"))
        self.confirms = some("publisher_confirms", 2)
        self.shared = some("amqp-shared", 5) and bool(can.get("per_consumer_qos")) and not self.quorum
        self.exclusive = pick((False, False, False, True)) and not self.quorum
        self.transient = pick((False, False, True)) and not self.quorum
        self.auto_delete = pick((False, False, False, True)) and not self.quorum
        self.selected = pick((False, False, False, True))
        self.mistakes = pick((False, False, True))
        self.bursts = pick((False, True))
        self.sizes = pick((_SIZES, (8,), (8, 30)))
        self.clock = bool(can.get("clock", False)) and (self.expires or self.queue_expires)
        self.restarts = pick((0, 0, 1, 1, 2)) if can.get("restart", False) and pick((True, False)) else 0
        self.persistent = (True,) if self.restarts and pick((True, False)) else (True, True, False)
        self.verbs = pick((("ack",), ("ack", "ack", "nack", "reject"), ("nack", "reject")))
        self.recovers = pick((False, True))
        self.circles = self.letters and pick((False, True))
        """Dead letters come back to where they died, and die again."""
        if self.circles or self.quorum:
            self.verbs = ("reject", "nack")
        self.tidies = pick((False, False, False, True))
        """Much is deleted, on conditions."""


class _Draw:
    def __init__(self, chance: Random, can: Mapping[str, CapabilityValue]) -> None:
        self._chance, self.bent = chance, _Bent(chance, can)
        self.queues = 0
        self.channels = 0
        self.reading: dict[int, None] = {}
        """Channels that have got something."""

    def pick(self, items: Sequence[_T]) -> _T:
        return self._chance.choice(items)

    def exchange(self) -> plan.ExchangePlan:
        pick, bent = self.pick, self.bent
        is_transient = bent.transient and pick((True, False))
        return plan.ExchangePlan(
            kind=pick(bent.kinds),
            durable=not is_transient,
            auto_delete=is_transient and bent.auto_delete and pick((True, False)),
            internal=bent.internal and pick((True, False)),
            alternate=self._chance.randrange(bent.exchanges) if bent.alternate and pick((True, False)) else -1,
        )

    def queue(self, number: int) -> plan.QueuePlan:
        pick, bent = self.pick, self.bent
        is_quorum = bent.quorum and pick((True, True, False))
        is_exclusive = bent.exclusive and pick((True, False))
        is_transient = not is_quorum and (is_exclusive or (bent.transient and pick((True, False))))
        is_bounded = bent.max_length and not is_quorum and pick((True, True, False))
        overflow = pick(bent.overflows) if is_bounded else ""
        has_letters = bent.letters and pick((True, True, False))
        is_prior = bent.priority and not is_bounded and pick((True, True, False))
        exchange = pick((plan.DEFAULT, plan.DEFAULT, *range(bent.exchanges)))
        if bent.circles and pick((True, True, False)):
            exchange = plan.DEFAULT
        names_letters = exchange == plan.DEFAULT or pick((True, False))
        if overflow == "reject-publish-dlx" and not has_letters:
            overflow = "reject-publish"
        return plan.QueuePlan(
            durable=not is_transient,
            exclusive=is_exclusive,
            auto_delete=is_transient and bent.auto_delete and pick((True, False)),
            named_by_server=is_transient and pick((True, False, False)),
            ttl_s=pick((-1, 0, *TIMES_S)) if bent.expires else -1,
            expires_s=pick((0, *TIMES_S)) if bent.queue_expires and not is_quorum and not is_exclusive else 0,
            max_length=pick((1, 2, 4)) if is_bounded else 0,
            overflow=overflow,
            letters=exchange if has_letters else plan.NO_LETTERS,
            letter_queue=self._letter_queue(number) if has_letters and names_letters else -1,
            max_priority=pick((1, 2, 4, 9)) if is_prior else 0,
            single_active=bent.single and not is_quorum and pick((True, True, False)),
            delivery_limit=pick((0, 0, 1, 2)) if is_quorum else -1,
        )

    def _letter_queue(self, number: int) -> int:
        """Where the letters of a queue go by its name."""
        others = self._chance.randrange(self.queues)
        return number if self.bent.circles and self.pick((True, False)) else others

    def channel(self) -> plan.ChannelPlan:
        pick, bent = self.pick, self.bent
        modes = ["", "confirm", "confirm"] if bent.confirms else [""]
        if bent.quorum or bent.priority:  # without confirms nothing says when a message is there
            modes = ["confirm"]
        return plan.ChannelPlan(
            connection=pick((0, 0, 1, 2)),
            mode=pick(modes + ["tx", "tx"] * bent.transactions),
            prefetch=pick((0, 1, 2, 3)),
            shared=pick((0, 1, 2)) if bent.shared else 0,
        )

    def where(self) -> dict[str, Any]:
        return {"channel": self._chance.randrange(self.channels), "queue": self._chance.randrange(self.queues)}

    def publish(self, channel: int = -1) -> plan.Publish:
        pick, bent = self.pick, self.bent
        exchange = pick((plan.DEFAULT, *range(bent.exchanges), *range(bent.exchanges)))
        ttls = (-1, -1, 0, *TIMES_S) if bent.expires else (-1,)
        selects = bent.selected and exchange >= 0
        return plan.Publish(
            channel=self._chance.randrange(self.channels) if channel < 0 else channel,
            exchange=exchange,
            queue=self._chance.randrange(self.queues),
            key=pick(_KEYS) if exchange >= 0 else "",
            mandatory=not bent.transactions and pick((True, False, False)),
            persistent=pick(bent.persistent),
            size_bytes=pick(bent.sizes),
            priority=pick((-1, 0, 1, 2, 4, 5, 8, 9, 200)) if bent.priority else pick((-1, -1, -1, 3)),
            ttl_s=pick(ttls),
            rich=pick((False, False, False, True)),
            table=pick(range(len(plan.TABLES))) if "headers" in bent.kinds else pick((0, 0, 0, 2)),
            cc=tuple(self._chance.sample(_KEYS, 1)) if selects and pick((True, True, False)) else (),
            bcc=tuple(self._chance.sample(_KEYS, 1)) if selects and pick((True, True, False)) else (),
        )

    def burst(self) -> plan.Burst:
        channel = self._chance.randrange(self.channels)
        return plan.Burst(
            channel=channel, publishes=tuple(self.publish(channel) for _ in range(self._chance.randint(2, 8)))
        )

    def bind(self) -> plan.Bind:
        pick, bent = self.pick, self.bent
        between = bent.between and pick((True, False, False))
        return plan.Bind(
            **self.where(),
            exchange=self._chance.randrange(bent.exchanges),
            to_exchange=self._chance.randrange(bent.exchanges) if between else -1,
            key=pick(_PATTERNS if "topic" in bent.kinds else _KEYS),
            match=pick(_MATCHES) if "headers" in bent.kinds else "",
            table=pick(range(len(plan.TABLES))) if "headers" in bent.kinds else 0,
        )

    def settle(self) -> plan.Settle:
        pick = self.pick
        verb = pick(self.bent.verbs)
        return plan.Settle(
            channel=pick((*self.reading, *self.reading, self._chance.randrange(self.channels))),
            verb=verb,
            which=pick((0, 0, 1, 2, 3)),
            multiple=pick((False, False, True)),
            requeue=verb != "ack"
            and pick((True, False, False) if self.bent.circles and not self.bent.quorum else (True, True, False)),
            everything=pick((False, False, False, False, True)),
        )

    def consume(self) -> plan.Consume:
        found = plan.Consume(
            **self.where(),
            no_ack=self.pick((False, False, False, True)),
            exclusive=self.pick((False, False, False, False, True)) and not self.bent.quorum,
        )
        self.reading[found.channel] = None
        return found

    def get(self) -> plan.Get:
        found = plan.Get(**self.where(), no_ack=self.pick((False, False, True)))
        self.reading[found.channel] = None
        return found

    def step(self, binds: list[plan.Bind]) -> plan.Step:
        pick, bent = self.pick, self.bent
        where = self.where()
        channel = where["channel"]
        kinds = "ppppppssssssccgggglx" + "b" * 3 * bent.bursts + "m" * 2 * bent.mistakes + "t" * 2 * bent.clock
        kinds += "TTTR" * bent.transactions + "i" * bool(bent.exchanges) + "u" * bool(binds) + "r" * bent.recovers
        kinds += (
            "kqPDde" + "iiiuuuuppppp" * bent.ways + "DDDDccP" * bent.tidies + "gscsss" * (bent.circles or bent.quorum)
        )
        kinds += "cccxx" * bent.single + "gggbb" * bent.priority
        match pick(kinds):
            case "p":
                return self.publish()
            case "b":
                return self.burst()
            case "s":
                return self.settle()
            case "c":
                return self.consume()
            case "g":
                return self.get()
            case "l":
                return plan.Look(**where)
            case "x":
                return plan.Cancel(channel=channel, which=pick((0, 1)))
            case "m":
                return plan.Mistake(**where, what=pick(tuple(plan.MISTAKES)))
            case "t":
                return plan.Advance(seconds=pick(ADVANCES_S))
            case "T":
                return plan.Commit(channel=channel)
            case "R":
                return plan.Rollback(channel=channel)
            case "i":
                return self.bind()
            case "u":
                known = pick(binds)
                fields = {
                    name: getattr(known, name) for name in ("exchange", "queue", "to_exchange", "key", "match", "table")
                }
                return plan.Bind(channel=channel, undo=True, **fields)
            case "r":
                return plan.Recover(channel=channel)
            case "q":
                return plan.Qos(channel=channel, count=pick((0, 1, 2, 5)), shared=bent.shared and pick((True, False)))
            case "P":
                return plan.Purge(**where)
            case "D":
                return self.delete(where)
            case "d":
                exchange = self._chance.randrange(bent.exchanges) if bent.exchanges and pick((True, False)) else -1
                return plan.Declare(**where, exchange=exchange, otherwise=bent.mistakes and pick((True, False)))
            case "e":
                kind = pick(("channel", "channel", "connection", "abrupt"))
                return plan.Close(channel=channel, connection=kind == "connection", abrupt=kind == "abrupt")
        return plan.Look(**where)

    def delete(self, where: dict[str, Any]) -> plan.Delete:
        pick = self.pick
        exchange = self._chance.randrange(self.bent.exchanges) if self.bent.exchanges and pick((True, False)) else -1
        return plan.Delete(
            **where,
            exchange=exchange,
            if_unused=pick((True, False)),
            if_empty=exchange < 0 and pick((True, True, False)),
        )

    def steps(self) -> Iterator[plan.Step]:
        pick, bent = self.pick, self.bent
        binds: list[plan.Bind] = []
        for number in range(self.queues):
            yield plan.Declare(channel=self._chance.randrange(self.channels), queue=number)
        for _ in range(bent.exchanges * (4 if bent.ways else 2)):
            binds.append(self.bind())
            yield binds[-1]
        for _ in range(self._chance.randint(1, 5)):
            yield self.publish()
        for part in range(bent.restarts + 1):
            for _ in range(self._chance.randint(4, 16)):
                step = self.step(binds)
                if isinstance(step, plan.Bind) and not step.undo:
                    binds.append(step)
                yield step
            if part < bent.restarts:
                amid = pick((None, self.publish(), self.burst(), self.settle()))
                yield plan.Restart(amid=amid)
                self.reading = {}


def drawn(seed: int, number: int, capabilities: Mapping[str, CapabilityValue]) -> plan.AmqpLife:
    """A life that a broker with these capabilities can be asked to live."""
    chance = Random(f"amqp091/{seed}/{number}")
    draw = _Draw(chance, capabilities)
    draw.queues, draw.channels = chance.choice((1, 2, 2, 3)), chance.choice((1, 2, 3))
    return plan.AmqpLife(
        exchanges=tuple(draw.exchange() for _ in range(draw.bent.exchanges)),
        queues=tuple(draw.queue(number) for number in range(draw.queues)),
        channels=tuple(draw.channel() for _ in range(draw.channels)),
        steps=tuple(draw.steps()),
    )
