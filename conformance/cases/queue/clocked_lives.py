"""Lives of a queue in which hours pass: what is due comes, what has expired does not, whenever the broker dies.

As in ``queue/lives``, with a clock that the case moves: delayed messages, some of them cancelled, and messages that
expire. After every hour the figures, the list of what is delayed, and what two groups are given must be what a plain
model says.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.queue.administration import ask, create, figures_become
from assay.conformance.cases.queue.delays import cancel, delay_id
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, publish_with, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Publish, Subscription

_HOUR_S = 3_600.0
_HOURS = 7
_A_TURN = 9
_LIMIT_S = 20.0
_SOON_S = 5.0
_NEVER = 10**6


class _Message:
    """A message, by hours: when it is due, and when it has expired."""

    def __init__(self, payload: bytes, published: int, due: int, expires: int) -> None:
        self.payload, self.published, self.due, self.expires = payload, published, due, expires
        self.delay_id = ""
        self.left: set[str] = {"always", "sometimes"}
        """Groups that have not settled it."""
        self.is_cancelled = False


class _Life:
    def __init__(self, ctx: CaseContext, settings: dict[str, Any]) -> None:
        self.ctx = ctx
        self.rng = ctx.rng
        self.queue = new_queue(ctx)
        self.settings = settings
        self.to_letters = bool(settings.get("expired_to_dead_letters"))
        self.hour = 0
        self.messages: list[_Message] = []
        self.letters: Counter[bytes] = Counter()
        self.unsure: set[bytes] = set()
        """Expired just before a death, which may have come between its letters and its leaving: they may come twice."""

    def _ready(self, group: str) -> list[_Message]:
        return [
            each
            for each in self.messages
            if group in each.left and each.due <= self.hour < each.expires and not each.is_cancelled
        ]

    def _delayed(self) -> list[_Message]:
        return [each for each in self.messages if each.due > self.hour and not each.is_cancelled]

    async def publish(self, publisher: Connection) -> None:
        for _ in range(self.rng.randrange(2, _A_TURN)):
            payload = b"%d " % len(self.messages) + b"." * self.rng.choice((0, 50, 900))
            kind, hours = self.rng.choice(("plain", "delayed", "delayed", "expires")), self.rng.randrange(1, 4)
            message = _Message(
                payload,
                self.hour,
                self.hour + hours if kind == "delayed" else self.hour,
                self.hour + hours if kind == "expires" else _NEVER,
            )
            options = {"delay": f"{hours}h"} if kind == "delayed" else {"ttl": f"{hours}h"} if kind == "expires" else {}
            puback = await publish_with(publisher, self.queue, payload, **options)
            if kind == "delayed":
                message.delay_id = delay_id(self.ctx, puback)
            self.ctx.must(puback.reason_code < 0x80, f"publisher: expected the message to be taken; seen {puback}")
            self.messages.append(message)
        for message in self._delayed():
            if self.rng.random() < 0.15:
                puback = await cancel(publisher, self.queue, message.delay_id)
                self.ctx.must(
                    puback.reason_code < 0x80, f"publisher: expected the cancel to be accepted; seen {puback}"
                )
                message.is_cancelled = True

    async def pass_an_hour(self) -> None:
        await self.ctx.advance(_HOUR_S)
        await self.ctx.advance(_SOON_S)
        self.hour += 1
        if self.to_letters:
            for each in self.messages:
                if each.expires == self.hour:
                    self.letters[each.payload] += len(each.left)

    async def take(self, name: str) -> None:
        """All that is due and has not expired; some of it is settled, and the rest is there again afterwards."""
        consumer = await consume(self.ctx, self.queue, group=name, name=f"{name} in hour {self.hour}")
        wanted = {each.payload: each for each in self._ready(name)}
        found = await deliveries(consumer, at_least=len(wanted))
        seen = sorted(delivery.payload for delivery in found)
        self.ctx.must(
            seen == sorted(wanted),
            f"{consumer.name}: expected {sorted(each[:8] for each in wanted)}; seen {[each[:8] for each in seen]}",
        )
        for delivery in found:
            choice = self.rng.random()
            if choice < 0.6:
                await settle(self.ctx, consumer, self.queue, "ack" if choice < 0.5 else "reject", delivery)
                wanted[delivery.payload].left.discard(name)
                self.letters[delivery.payload] += choice >= 0.5
        await consumer.disconnect()

    async def look(self, client: Connection, when: str) -> None:
        """Figures, and the list of what is delayed.

        What has expired leaves the depth soon.
        """
        when = f"in hour {self.hour}, {when}"
        wanted = len(self._delayed()), max(len(self._ready(name)) for name in ("always", "sometimes")), 0
        seen = await figures_become(self.ctx, client, self.queue, _waiting, wanted)
        self.ctx.must(seen == wanted, f"{when}: expected delayed, depth and dead-lettering {wanted}; seen {seen}")
        listed = (await ask(self.ctx, client, self.queue, "delays"))["messages"]
        found = [
            (each["delay_id"], each["payload_bytes"], round((each["deliver_at"] - each["published_at"]) / _HOUR_S, 2))
            for each in listed
        ]
        due = [(each.delay_id, len(each.payload), each.due - each.published) for each in self._delayed()]
        self.ctx.must(found == due, f"{when}: expected the delayed messages {due}; seen {found}")

    async def live(self) -> None:
        publisher = await self.ctx.connect(version=5, name="publisher")
        await create(self.ctx, publisher, self.queue, retry={"max_retries": 50, "total_timeout_s": 0}, **self.settings)
        for name in ("always", "sometimes"):
            await (await consume(self.ctx, self.queue, group=name, name=f"first of {name}")).disconnect()
        for _ in range(_HOURS):
            await self.publish(publisher)
            await self.look(publisher, "published")
            for name in ("always", "sometimes")[: self.rng.choice((0, 1, 1, 2))]:
                await self.take(name)
            dies = self.rng.random()
            if dies < 0.4:
                await self.ctx.restart()
                publisher = await self.ctx.connect(version=5, name=f"publisher behind hour {self.hour}")
            await self.pass_an_hour()
            await self.look(publisher, "an hour later")
            if dies > 0.6:
                self.unsure |= {each.payload for each in self.messages if each.expires == self.hour}
                await self.ctx.restart()
                publisher = await self.ctx.connect(version=5, name=f"publisher of hour {self.hour}")
                await self.look(publisher, "after a death")
        await self.take("always")
        await self.take("sometimes")
        await self._read_letters()

    async def _read_letters(self) -> None:
        reader = await self.ctx.connect(version=5, name="dead letters")
        joining = Properties(user_property=(("consumer-group", "graveyard"),))
        await reader.subscribe(Subscription(filter=f"$dlq/{self.queue}", qos=1), properties=joining)
        found = await deliveries(reader, at_least=self.letters.total())
        seen, wanted = Counter(each.payload for each in found), +self.letters
        right = all(
            wanted[each] <= seen[each] <= (1 + (each in self.unsure)) * wanted[each]
            for each in seen.keys() | wanted.keys()
        )
        self.ctx.must(right, f"dead letters: expected {_short(wanted)}; seen {_short(seen)}")
        self._compare_reasons(found)

    def _compare_reasons(self, letters: list[Publish]) -> None:
        expired = {each.payload for each in self.messages if each.expires <= self.hour}
        for letter in letters:
            reason = property_of(self.ctx, letter, "_dlq_reason")
            right = reason != "TTL_EXPIRED" or letter.payload in expired
            self.ctx.must(right, f"dead letters: {letter.payload[:8]!r} has not expired; its reason is {reason}")


def _waiting(stats: dict[str, Any]) -> tuple[int, int, int]:
    """Delayed, depth, and what is on its way to the dead letters."""
    return stats["delayed"], stats["depth"], sum(each["dead_lettering"] for each in stats["groups"])


def _short(counted: Counter[bytes]) -> dict[bytes, int]:
    return {payload[:8]: count for payload, count in sorted(counted.items())}


def _life(slug: str, *clauses: str, mutant: str, **settings: Any) -> CaseFunction:
    async def life(ctx: CaseContext) -> None:
        await _Life(ctx, settings).live()

    life.__doc__ = f"""Every hour what is due comes, and what has expired does not, whenever the broker dies ({slug}).

    In {_HOURS} hours messages are published that are delayed by some hours, that expire after some, or neither; some
    delays are cancelled. Each hour the broker may die before the clock moves, or after it. The figures, the list of the
    delayed and what two groups are given are what is due and has not expired; the dead letters are what was rejected,
    and what expired where the queue keeps that.
    """
    return case(
        f"queue/lives/{slug}",
        clauses=("Q-DURA-04", "Q-DURA-09", *clauses),
        requires=("queues", "restart", "clock"),
        mutant=mutant,
        near_miss="queue-one-batch-per-message",
        settings={"queues": {"segment_bytes": 4_096, "defaults": {"delivery_timeout_s": 10**6}}},
        limit_s=_LIMIT_S,
    )(life)


hours = _life("hours", "Q-DELAY-20", "Q-LIMIT-16", mutant="queue-delays-listed-late", partitions=1)
hours_to_letters = _life(
    "hours-to-dead-letters",
    "Q-LIMIT-11",
    "Q-LIMIT-16",
    mutant="queue-expiry-looks-once",
    partitions=2,
    expired_to_dead_letters=True,
)
