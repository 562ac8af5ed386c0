"""One life of a queue engine: what clients, time and disasters do to it, each told to the oracle as it happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from assay.reference_broker.config import (
    Assignor,
    Durability,
    GroupConfig,
    Ordering,
    Overflow,
    Profile,
    QueueConfig,
    QueuesConfig,
    RebalanceProtocol,
    RetryConfig,
)
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES
from assay.reference_broker.queues import BackgroundJob, Consumer, Delivery, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.delivery import settle_request
from assay.reference_broker.queues.delivery.settle_request import SettleRequest
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.retry import backoff_s
from assay.reference_broker.queues.jobs.confirms import RewrittenPoint, Stored
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import matches
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.sim.disk import DiskProfile, Persistence, SimDisk
from assay.sim.queue_model.contents import Contents, dressed, name_in
from assay.sim.queue_model.delayed import Delays
from assay.sim.queue_model.figures import check
from assay.sim.queue_model.leaving import Leaving
from assay.sim.queue_model.oracle import Oracle
from assay.sim.queue_model.outcome import Outcome
from assay.sim.queue_model.state import Rules, Sent, ViolationError

QUEUE: Final = "q"
OTHER: Final = "r"
"""A second queue, for transactions."""
LETTERS: Final = "$dlq/q"
START: Final = 1_700_000_000.0
_TURNS: Final = 30
_PROFILE: Final = DiskProfile(stall_rate=0.0)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the queue of a life. Times are chosen so that steps of time of a few seconds matter."""

    durability: str = "fsync"
    ordered: bool = True
    partitions: int = 1
    max_retries: int = 1
    nack_waits: bool = False
    dead_letters: bool = True
    max_depth: int = 1_000
    ttl_s: float = 0.0
    max_in_flight: int = 1_000
    group_limit: int = 0
    overflow: str = "reject"
    protocol: str = "eager"
    assignor: str = "range"
    segment_bytes: int = 400
    cache_bytes: int = 0
    """Of messages that need not be read back; 0 = many. Queues in memory are not held to it."""
    to_letters: bool = False
    """What leaves the queue by its limits or by time becomes a dead letter; no group joins it."""

    def configured(self) -> tuple[QueueConfig, ...]:
        """The queue, its dead-letter queue, and another queue."""
        queue = QueueConfig(
            name=QUEUE,
            partitions=self.partitions,
            durability=Durability(self.durability),
            ordering=Ordering.PARTITION if self.ordered else Ordering.NONE,
            delivery_timeout_s=4.0,
            retry=RetryConfig(
                max_retries=self.max_retries,
                initial_backoff_s=2.0,
                max_backoff_s=6.0,
                total_timeout_s=0.0,
                nack_immediately=not self.nack_waits,
            ),
            dead_letters=self.dead_letters,
            max_depth=self.max_depth,
            message_ttl_s=self.ttl_s,
            max_in_flight=self.max_in_flight,
            overflow=self._overflow,
            expired_to_dead_letters=self.to_letters,
            group=GroupConfig(
                max_in_flight=self.group_limit,
                protocol=RebalanceProtocol(self.protocol),
                assignor=Assignor(self.assignor),
                # Deliveries time out first: the oracle does not know which partitions are on the move.
                rebalance_timeout_s=60.0,
            ),
        )
        letters = msgspec.structs.replace(
            queue,
            expired_to_dead_letters=False,
            name=LETTERS,
            partitions=1,
            dead_letters=False,
            message_ttl_s=0.0,
            max_depth=100_000,
        )
        return queue, letters, msgspec.structs.replace(queue, name=OTHER, partitions=1, dead_letters=False)

    @property
    def _overflow(self) -> Overflow:
        """In the words of the configuration."""
        if self.to_letters and self.overflow == Overflow.DROP_OLDEST:
            return Overflow.DEAD_LETTER_OLDEST
        return Overflow(self.overflow)


def rules_of(config: QueueConfig) -> Rules:
    """What the oracle needs of a configuration."""
    return Rules(
        durability=config.durability.value,
        ordered=config.ordering is not Ordering.NONE,
        partitions=config.partitions,
        timeout_s=config.delivery_timeout_s,
        max_retries=float("inf") if config.name == LETTERS else config.retry.max_retries,
        backoff_s=partial(backoff_s, config.retry),
        nack_waits=not config.retry.nack_immediately,
        dead_letters=LETTERS if config.dead_letters and config.name == QUEUE else None,
        max_depth=config.max_depth,
        ttl_s=config.message_ttl_s,
        max_in_flight=config.max_in_flight,
        group_limit=config.group.max_in_flight or float("inf"),
        drops_oldest=config.overflow is not Overflow.REJECT,
        cooperative=config.group.protocol is RebalanceProtocol.COOPERATIVE,
    )


class Held(msgspec.Struct, frozen=True):
    """A delivery and what the oracle knows it as."""

    delivery: Delivery
    sent: Sent


class Member:
    """A consumer of a group. It takes up to ``room`` deliveries; an eager one acks within the call."""

    def __init__(self, life: QueueLife, queue: str, group: str, name: str, room: int, *, is_eager: bool) -> None:
        self.life = life
        self.queue = queue
        self.group = group
        self.name = name
        self.room = room
        self.is_eager = is_eager
        self.credit: float = float("inf")
        """Deliveries that it still gets."""
        self.drains = False
        """It waits to be told how much of its credit is left."""
        self.handle: Consumer
        self.got: list[Held] = []
        """What it was given, oldest first; settled deliveries stay, to be settled wrongly a second time."""

    @property
    def takes(self) -> bool:
        """It takes a delivery, whatever it holds."""
        return self.room > 0 and self.credit > 0

    def drained(self, left: int) -> None:
        """What the engine could not use of its credit."""
        if not self.drains or left != self.credit:
            raise ViolationError(f"{self.name} is told that {left} of {self.credit} are left, drains: {self.drains}")
        self.drains, self.credit = False, 0
        self.life.oracle.queues[self.queue].groups[self.group].members[self.name] = False

    def deliver(self, delivery: Delivery) -> bool:
        life = self.life
        members = life.oracle.queues[self.queue].groups[self.group].members
        if self.credit <= 0:
            raise ViolationError(f"{self.name} is given {delivery.message_id} without credit")
        if self.room <= 0:
            return False
        self.room -= 1
        self.credit -= 1
        members[self.name] = self.takes
        life.contents.check(delivery)
        label = name_in(delivery.message)
        letter_of = delivery.message.user_property("_dlq_group")
        sent = life.oracle.deliver(
            self.queue,
            self.group,
            self.name,
            label if letter_of is None else f"{letter_of}>{label}",
            (delivery.partition, delivery.offset),
            delivery.delivery_count,
        )
        life.oracle.queues[self.queue].groups[self.group].copies[sent].delivered_at = life.now
        self.got.append(Held(delivery, sent))
        if self.is_eager:
            life.settle(self, len(self.got) - 1, Verb.ACK)
        return True


class QueueLife:
    """An engine, its clients, its disk and its clock; every method is a step that :mod:`machine` may choose."""

    def __init__(self, setup: Setup, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(self.rng, _PROFILE)
        self.config = QueuesConfig(
            profile=Profile.FLUXMQ,
            configured=setup.configured(),
            auto_create=False,
            segment_bytes=setup.segment_bytes,
            max_memory_bytes=0 if setup.durability == "memory" else 4 * setup.cache_bytes,
        )
        self.names = tuple(queue.name for queue in self.config.configured)
        self.now = START
        self.oracle = Oracle({queue.name: rules_of(queue) for queue in self.config.configured}, self.now)
        self.delays = Delays(self.oracle)
        self.to_letters = setup.to_letters and setup.dead_letters
        self.leaving = Leaving(self.oracle, QUEUE) if self.to_letters else None
        self.contents = Contents()
        self.sent = 0
        self._start()

    def _start(self) -> None:
        store = LogQueueStore(self.disk, options=LogOptions(segment_bytes=self.config.segment_bytes))
        self.engine = QueueEngine(self.config, store, self.rng, self.now)
        self.steps = 0
        """Since the start."""
        self.members: dict[tuple[str, str, str], Member] = {}
        self.jobs: list[BackgroundJob] = []
        """Syncs that have begun, and that nobody has carried out yet."""
        self.done: list[BackgroundJob] = []
        """Syncs that were carried out, which the engine does not know yet."""
        self.waiting: set[str] = set()
        """What must still be confirmed."""
        self._written: list[tuple[float, int]] = []
        """(time, step) of each dispatch that no sync is known to cover."""

    def outcome(self, what: str, *, fails: bool = False, told: frozenset[str] | None = None) -> Outcome:
        """Waits for the answer to what is asked now; ``told``: what a failure must say in its details."""
        return Outcome(f"{what} ({self.oracle.step})", self.waiting, fails=fails, told=told)

    # -- clients -------------------------------------------------------------------------------------------------

    def publish(
        self,
        key: str | None = None,
        routing_key: str = "",
        expires_in_s: float = 0.0,
        priority: int | None = None,
        *,
        queue: str = QUEUE,
        dress: str = "",
        marks: dict[str, str] | None = None,
        on_stored: Stored | None = None,
    ) -> Sent | None:
        """None when the queue is full. ``dress``: how it looks; ``marks``: what names a producer."""
        self.sent += 1
        label = f"m{self.sent}"
        topic = f"$queue/{queue}/{routing_key}" if routing_key else f"$queue/{queue}"
        options = (marks or {}) | {"partition-key": key, "priority": None if priority is None else str(priority)}
        message = Message(
            topic=topic,
            payload=label.encode(),
            expires_at=self.now + expires_in_s if expires_in_s else 0.0,
            user_properties=tuple((name, value) for name, value in options.items() if value is not None),
        )
        message = dressed(message, dress)
        self.contents.published(message)
        outcome = self.outcome(label)
        if self.leaving is not None and queue == QUEUE:
            # Room is made for one that is refused in the end, too.
            self.leaving.publishing()
        try:
            QueueTopics(self.engine).publish(message, self.now, outcome, on_stored)
        except QueueError as error:
            if error.code is not QueueErrorCode.FULL:
                raise
            self.oracle.refused(queue)
            return None
        sent = self.oracle.publish(queue, label, key, routing_key, message.expires_at or float("inf"))
        sent.lane = 2 if priority is None else priority
        outcome.accepted(partial(setattr, sent, "confirmed", True))
        return sent

    def join(
        self, queue: str, group: str, name: str, *, pattern: str = "", room: int = 1_000, is_eager: bool = False
    ) -> Member:
        group_id = f"{group}@{pattern}" if pattern else group
        member = Member(self, queue, group_id, name, room, is_eager=is_eager)
        member.handle = self.engine.subscribe(
            queue, pattern=pattern, group=group, consumer_id=name, deliver=member.deliver, now=self.now
        )
        self.oracle.join(queue, group_id, name, partial(matches, pattern) if pattern else _wants_all)
        self.members[queue, group_id, name] = member
        self.oracle.queues[queue].groups[group_id].members[name] = room > 0
        return member

    def limit(self, max_depth: int) -> None:
        """From now on the queue holds so many messages, over starts, too; what is beyond it stays."""
        told: list[QueueError | None] = []
        self.engine.update_queue(QUEUE, {"max_depth": max_depth}, self.now, told.append)
        while not told:
            # It is asked for until it holds: whether a kill takes it back before that nobody could know.
            self._remember()
        queue = self.oracle.queues[QUEUE]
        queue.rules = queue.rules._replace(max_depth=max_depth)

    def leave(self, member: Member) -> None:
        self.engine.unsubscribe(member.handle, self.now)
        self.oracle.leave(member.queue, member.group, member.name)
        del self.members[member.queue, member.group, member.name]

    def make_room(self, member: Member, room: int) -> None:
        member.room = room
        self.oracle.queues[member.queue].groups[member.group].members[member.name] = member.takes
        if room > 0:
            self.engine.resume(member.handle, self.now)

    def settle(
        self, member: Member, index: int, verb: Verb, *, by_place: bool = False, any_group: bool = False
    ) -> None:
        """Settle one of the deliveries that a consumer got, be it settled, timed out or lost by now."""
        delivery, sent = (held := member.got[index]).delivery, held.sent
        holders = self.oracle.holders(member.queue, sent, member.name)
        outcome = self.outcome(f"{verb} of {sent.label}")
        try:
            request = SettleRequest(
                outcome=OUTCOMES[verb],
                message_ids=() if by_place else (delivery.message_id,),
                partition=delivery.partition if by_place else None,
                ranges=((delivery.offset, delivery.offset + 1),) if by_place else (),
                group=None if any_group else delivery.group,
                reason="bad",
            )
            self.engine.settle(delivery.queue, request, consumer_id=member.name, now=self.now, on_done=outcome)
        except QueueError as error:
            is_held = bool(holders) if any_group else member.group in holders
            is_ambiguous = any_group and len(holders) > 1
            if error.code is QueueErrorCode.AMBIGUOUS and is_ambiguous:
                return
            if error.code is not QueueErrorCode.NOT_PENDING or is_held:
                raise ViolationError(f"{verb} of {sent.label} by {member.name}: {error}") from error
            return
        if len(holders) != 1 if any_group else member.group not in holders:
            raise ViolationError(f"{verb} of {sent.label} by {member.name} is accepted; it is held in {holders}")
        outcome.accepted(self.oracle.settle(member.queue, holders[0] if any_group else member.group, sent, verb.value))

    def release(self, member: Member, index: int) -> None:
        """Give a delivery back untried."""
        held = member.got[index]
        is_held = member.group in self.oracle.holders(member.queue, held.sent, member.name)
        what = f"release of {held.sent.label} by {member.name}"
        outcome = self.outcome(what)
        request = SettleRequest(
            outcome=settle_request.Outcome.RELEASE, message_ids=(held.delivery.message_id,), group=member.group
        )
        try:
            self.engine.settle(member.queue, request, consumer_id=member.name, now=self.now, on_done=outcome)
        except QueueError as error:
            if is_held or error.code is not QueueErrorCode.NOT_PENDING:
                raise ViolationError(f"{what}: {error}") from error
            return
        if not is_held:
            raise ViolationError(f"{what}, which does not hold it")
        outcome.accepted(self.oracle.settle(member.queue, member.group, held.sent, "release"))

    def grant(self, member: Member, credit: int, *, drain: bool) -> None:
        """From now on a consumer gets so many deliveries."""
        member.credit, member.drains = credit, drain
        self.engine.grant(member.handle, credit, self.now, member.drained if drain else None)
        self.oracle.queues[member.queue].groups[member.group].members[member.name] = member.takes

    def settle_later(self, member: Member, index: int, verb: Verb, wait_s: float) -> None:
        """Give a delivery back for some time, or keep it for longer than it had."""
        held = member.got[index]
        request = SettleRequest(
            outcome=OUTCOMES[verb],
            message_ids=(held.delivery.message_id,),
            group=member.group,
            delay_s=wait_s if verb is Verb.NACK else None,
            extend_s=wait_s if verb is Verb.EXTEND else None,
        )
        is_held = member.group in self.oracle.holders(member.queue, held.sent, member.name)
        outcome = self.outcome(f"{verb} of {held.sent.label}")
        try:
            self.engine.settle(member.queue, request, consumer_id=member.name, now=self.now, on_done=outcome)
        except QueueError as error:
            if is_held or error.code is not QueueErrorCode.NOT_PENDING:
                raise ViolationError(f"{verb} of {held.sent.label} by {member.name}: {error}") from error
            return
        if not is_held:
            raise ViolationError(f"{verb} of {held.sent.label} by {member.name}, which does not hold it")
        outcome.accepted(self.oracle.settle(member.queue, member.group, held.sent, verb.value, wait_s))

    def ack_all(self, member: Member) -> None:
        """One settlement for everything that a consumer ever got."""
        got = {held.delivery.message_id: held.sent for held in member.got}
        held = [sent for sent in got.values() if member.group in self.oracle.holders(member.queue, sent, member.name)]
        outcome = self.outcome(f"ack of all by {member.name}", fails=len(held) < len(got))
        request = SettleRequest(outcome=OUTCOMES[Verb.ACK], message_ids=tuple(got), group=member.group)
        try:
            self.engine.settle(member.queue, request, consumer_id=member.name, now=self.now, on_done=outcome)
        except QueueError as error:
            if held or error.code is not QueueErrorCode.NOT_PENDING:
                raise ViolationError(f"ack of {[sent.label for sent in held]} by {member.name}: {error}") from error
            return
        if not held:
            raise ViolationError(f"an ack of nothing by {member.name} is accepted")
        confirms = [self.oracle.settle(member.queue, member.group, sent, "ack") for sent in held]
        outcome.accepted(lambda: [confirm() for confirm in confirms])

    def held(self) -> list[tuple[Member, int]]:
        """Deliveries that are not settled: who has them, and the index in what it got."""
        return [
            (member, index)
            for member in self.members.values()
            for index, held in enumerate(member.got)
            if member.group in self.oracle.holders(member.queue, held.sent, member.name)
        ]

    # -- time ----------------------------------------------------------------------------------------------------

    def turn(self, *, sync: bool = True) -> None:
        """A turn of the driver's loop. Without ``sync`` what the disk has to do stays undone."""
        self._begin_turn()
        if sync:
            self.run_syncs()
            self.report_syncs()

    def _begin_turn(self) -> None:
        self.oracle.tick(self.now)
        if self.leaving is not None:
            self.leaving.tick()
        before = {name: self.engine.stats(name) for name in self.delays.names}
        self.engine.tick(self.now)
        for name, figures in before.items():
            self.delays.tick(name, figures, self.engine.stats(name))
        self._dispatch()
        self.jobs += self.engine.take_jobs(self.now)

    def _dispatch(self) -> None:
        self.oracle.transactions.turn()
        self._remember()
        self.engine.dispatch(self.now)
        if self._remember():
            self.engine.dispatch(self.now)
        self.oracle.written = self.oracle.step
        self._written.append((self.now, self.oracle.step))
        self.oracle.transactions.turned()

    def run_syncs(self, only: Callable[[BackgroundJob], bool] | None = None) -> None:
        """The disk does what it was asked to, or some of it so far."""
        for job in [job for job in self.jobs if only is None or only(job)]:
            job.run()
            self.jobs.remove(job)
            self.done.append(job)

    def _remember(self) -> bool:
        """The disk learns at once what is known of queues, so that nothing waits for that; False: it knows it."""
        awaited = self.engine.agenda.awaited_syncs
        found = False
        while any(isinstance(point, RewrittenPoint) for point in awaited):
            found = True
            self.jobs += self.engine.take_jobs(self.now)
            self.run_syncs(only=lambda job: isinstance(job.point, RewrittenPoint))
            self.report_syncs()
            awaited = self.engine.agenda.awaited_syncs
        return found

    def report_syncs(self) -> None:
        """The engine learns which syncs are done."""
        done, self.done = self.done, []
        for job in done:
            self.engine.job_done(job, None, self.now)

    def rest(self) -> None:
        """Turns until nothing is left to do now; then everything that had to happen has happened."""
        was_syncing = bool(self.jobs or self.done)
        for _ in range(_TURNS):
            self._begin_turn()
            had_syncs = bool(self.jobs or self.done)
            self.run_syncs()
            self.report_syncs()
            deadline = self.engine.next_deadline()
            if not had_syncs and (deadline is None or deadline > self.now):
                break
        else:
            raise ViolationError("the engine does not come to rest")
        if self.waiting:
            raise ViolationError(f"never confirmed: {sorted(self.waiting)}")
        if not was_syncing:
            covered = [step for time, step in self._written if time <= self.now - self.config.sync_interval_s]
            self.oracle.synced = max(self.oracle.synced, *covered[-1:], 0)
            self._written = self._written[len(covered) :]
        self.delays.rest()
        if self.leaving is not None:
            self.leaving.rest()
        self.oracle.rest()
        for member in self.members.values():
            if member.drains:
                raise ViolationError(f"{member.name} is not told what is left of its credit, {member.credit}")
        due = min(self.oracle.next_due(), self.delays.next_due())
        if due < float("inf") and (deadline is None or deadline > due):
            raise ViolationError(f"the engine sleeps until {deadline}, but something is due at {due}")

    def wait(self, seconds: float) -> None:
        """Time passes; the engine looks at the clock when somebody calls it."""
        self.now += seconds
        self.oracle.now = self.now

    # -- disasters -----------------------------------------------------------------------------------------------

    def kill(self, *, rested: bool = False) -> None:
        """The process is gone; what it wrote is there. ``rested``: it had nothing left to do, so all is as it was."""
        if rested:
            self.rest()
            self.check()
        before = self._depths() if rested else {}
        self.disk.crash()
        self._reopen(power=False)
        self._check_depths(before)

    def _depths(self) -> dict[str, int]:
        """Of what a start must find as it was, dead letters among it: nothing that left may come back, or be lost."""
        if self.oracle.transactions.all:
            return {}
        return {
            name: self.engine.stats(name).depth
            for name in self.names
            if self.oracle.queues[name].rules.durability != "memory"
        }

    def _check_depths(self, before: dict[str, int]) -> None:
        for name, depth in before.items():
            if (after := self.engine.stats(name).depth) != depth:
                raise ViolationError(f"{name}: depth {depth} before the start, {after} behind it")

    def lose_power(self, mode: Persistence | None = None) -> None:
        """What was not synced is gone, in one of the ways of :class:`Persistence`."""
        self.disk.power_loss(*(() if mode is None else ((mode,),)))
        self._reopen(power=True)

    def close(self) -> None:
        """The engine is closed in an orderly way."""
        self.run_syncs()
        self.report_syncs()
        self.engine.close(self.now)
        if self.waiting:
            raise ViolationError(f"closed without an answer to {sorted(self.waiting)}")
        self.oracle.written = self.oracle.synced = self.oracle.step
        before = self._depths()
        self._reopen(power=False)
        self._check_depths(before)

    def _reopen(self, *, power: bool) -> None:
        mark = self.oracle.crash(power=power)
        self.delays.crash(mark, power=power)
        if self.leaving is not None:
            self.leaving.crash(mark, power=power)
        self._start()
        for name in self.names:
            self.oracle.reopened(name, [group.group for group in self.engine.stats(name).groups], mark)

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """After every step."""
        self.steps += 1
        for name in self.names:
            stats = self.engine.stats(name)
            check(self.oracle.queues[name], stats, now=self.now, step=self.oracle.step, written=self.oracle.written)
            self.delays.check(name, stats.delays)

    def drain(self) -> None:
        """At the end every group takes and acks all that it can get, and the dead letters are read."""
        for member in list(self.members.values()):
            self.leave(member)
        for name in self.names:
            queue = self.oracle.queues[name]
            if (self.leaving is None or name != QUEUE) and not any(group.wants("") for group in queue.groups.values()):
                self.join(name, "last", "z", is_eager=True)
            for group_id in queue.groups:
                group, _, pattern = group_id.partition("@")
                self.join(name, group, "z", pattern=pattern, is_eager=True)
        # Once all others have had what was there, each turn has room for one that was delayed.
        for _ in range(_TURNS + self.delays.open_count):
            self.rest()
            self.check()
            if self.leaving is not None and self.leaving.is_over:
                self.leaving.finish()
            if not self.oracle.is_open and not self.delays.open_count:
                break
            due = self.oracle.transactions.next_due()
            self.now = max(self.now + 2.0, 0.0 if due == float("inf") else due)
        self.oracle.finish()
        self.delays.finish()


def _wants_all(routing_key: str) -> bool:
    return True


def is_of_a_group(job: BackgroundJob) -> bool:
    """Whether a sync is of what a group has settled, not of messages."""
    return isinstance(job.point, ConsumerGroup)
