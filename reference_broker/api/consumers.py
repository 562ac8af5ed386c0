"""Consumers that are bound to no connection: they come back for more. Ordinary ones of the engine, with credit.

A member consumes from one queue, or from several as one. While it polls it has as much credit as it wants messages, and
otherwise none, so that nothing is delivered to nobody. It is there as long as it polls or sends heartbeats within the
session timeout of its queues; then the engine takes it out, and what it held is ready again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from assay.reference_broker.api.asking import may_consume
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.desk import Desk
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.config import Scope
from assay.reference_broker.queues import Consumer, Delivery, Outcome, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.pending import AssignmentEvent, Drained
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.operations.group_operations import Claim

_ASSIGNED_WITHIN_S = 5.0
"""Who joins is told its partitions by then; those that are still moving it gets later."""
_SWEEP_EVERY = 64
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Of payloads in one answer, unless a single one is larger."""
_DRAINED_WITHIN_S = 1.0
"""Who does not wish to wait is answered by then, also where a group is busy."""

Gone = Callable[[], Awaitable[object]]
"""Returns when the client that waits has gone."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, and the queue as its consumer knows it."""

    queue: str
    delivery: Delivery
    enqueued_at: float
    """Unix seconds; 0 = not known."""


class Member:
    """One of them. A :class:`Client` of the broker."""

    connection = None

    def __init__(self, desk: Desk, caller: Caller, group: str, member_id: str, *, bound: bool = False) -> None:
        """``bound``: to a stream, which takes it out when it ends; then it is there although it is silent."""
        self.username = caller.username
        self.tenant = caller.tenant
        self.may_administer = caller.may_administer
        self.client_id = member_id
        """Its id in every group of its queues."""
        self.group = group
        self.owner = caller.owner
        self.joined_at = desk.turn()[1]
        self.seen_at = self.joined_at
        self.consumers: dict[str, Consumer] = {}
        """By the names of queues as its caller knows them."""
        self.assigned: dict[str, AssignmentEvent] = {}
        """The last assignment by queue, likewise."""
        self.on_assigned: Callable[[], None] | None = None
        """Called after each."""
        self._desk = desk
        self._bound = bound
        self._told = caller.told
        self._buffer: deque[Taken] = deque()
        self._buffered_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._polls = False

    # -- joining and leaving ---------------------------------------------------------------------------------------

    def join(self, caller: Caller, queue: str, pattern: str, options: SubscribeOptions) -> None:
        """Consume from one more queue. Raises :class:`QueueError`."""
        name = caller.queue(queue, Scope.READ, pattern)
        told = caller.told(name)
        driver, now = self._desk.turn()
        broker = driver.node.state

        def deliver(delivery: Delivery) -> bool:
            return self._take(told, consumer, delivery)

        def notify(event: AssignmentEvent) -> None:
            self.assigned[told] = event
            self._rouse()
            if self.on_assigned is not None:
                self.on_assigned()

        consumer = broker.consume(
            self,
            QueueAddress(queue=name, routing_key=pattern),
            self.group,
            deliver,
            now,
            options=options,
            notify=notify,
            credit=0,
            heartbeats=not self._bound,
        )
        consumer.on_left = self._rouse
        self.consumers[told] = consumer

    async def wait_until_assigned(self) -> None:
        """Its partitions are known, or take long to move."""
        driver, now = self._desk.turn()
        until = now + _ASSIGNED_WITHIN_S
        while len(self.assigned) < len(self.consumers) and (now := driver.clock.now()) < until:
            await self._sleep(until - now)

    def leave(self) -> None:
        """What it held is ready at once. Twice is fine."""
        driver, now = self._desk.turn()
        for consumer in self.consumers.values():
            driver.node.engine.unsubscribe(consumer, now)
        self._rouse()

    @property
    def is_active(self) -> bool:
        """False once it left, was removed since it was silent, or one of its queues went."""
        return all(consumer.active for consumer in self.consumers.values())

    @property
    def generation(self) -> int:
        """It grows with every change of any of its groups."""
        engine = self._desk.engine
        return sum(engine.groups.generation(each.queue, each.group) for each in self.consumers.values() if each.active)

    def heartbeat(self, generation: int | None = None) -> None:
        """It is alive. Raises :class:`QueueError` (UNKNOWN_MEMBER, STALE_GENERATION)."""
        driver, now = self._desk.turn()
        self.seen_at = now
        if not self.is_active:
            raise unknown_member(self.client_id, self.group)
        for consumer in self.consumers.values():
            driver.node.engine.groups.keep_alive(consumer.queue, consumer.group, consumer.consumer_id, now)
        if generation is not None and generation != (current := self.generation):
            text = f"generation {generation} of group {self.group!r} is not the current one, {current}"
            raise QueueError(QueueErrorCode.STALE_GENERATION, text, (("generation", str(current)),))

    # -- deliveries ------------------------------------------------------------------------------------------------

    def _take(self, queue: str, consumer: Consumer, delivery: Delivery) -> bool:
        broker = self._desk.turn()[0].node.state
        size = len(delivery.message.payload)
        if broker.must_wait(consumer, self.tenant, size):
            return False
        if self._buffer and self._buffered_bytes + size > MAX_ANSWER_BYTES:
            # The next poll begins with it.
            return False
        self._buffered_bytes += size
        enqueued_at = broker.engine.enqueued_at(delivery.queue, delivery.partition, delivery.offset)
        self._buffer.append(Taken(queue=queue, delivery=delivery, enqueued_at=enqueued_at))
        self._rouse()
        return True

    def _take_buffer(self) -> list[Taken]:
        taken = list(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return taken

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _sleep(self, seconds: float) -> None:
        """Until something comes, or so long."""
        driver = self._desk.turn()[0]
        self._wake = driver.loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._wake
        except TimeoutError:
            pass
        finally:
            self._wake = None

    async def poll(self, most: int, wait_s: float, gone: Gone, *, counted: bool = True) -> list[Taken]:
        """Up to ``most`` messages, at once when there are any, else as soon as some come, at most ``wait_s`` later.

        Whoever asked is told them, or has ``gone`` meanwhile: then they are given back untried. ``counted``: among
        those that wait, unless whoever asks is so already. Raises :class:`QueueError` (IN_USE while another poll of it
        waits, UNKNOWN_MEMBER), :class:`RequestError` (BUSY).
        """
        if self._polls:
            raise QueueError(QueueErrorCode.IN_USE, f"another poll of {self.client_id[:80]!r} is waiting")
        self.heartbeat()
        self._polls = True
        watch = asyncio.ensure_future(gone())
        watch.add_done_callback(lambda _: self._rouse())
        is_wanted = False
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._desk.until_stopped(self._rouse))
                if counted:
                    stack.enter_context(self._desk.waiting.take())
                    stack.enter_context(self._desk.requests.leave())
                await self._wait(most, wait_s, watch)
            is_wanted = not watch.done()
        finally:
            self._polls = False
            watch.cancel()
            taken = self._take_buffer()
            self._grant(0)
            if not is_wanted:
                self.give_back(taken)
        if not is_wanted:
            return []
        driver, now = self._desk.turn()
        for each in taken:
            delivery = each.delivery
            driver.node.engine.groups.received(self.consumers[each.queue], delivery.partition, delivery.offset, now)
        return taken

    async def _wait(self, most: int, wait_s: float, watch: asyncio.Future[object]) -> None:
        driver, now = self._desk.turn()
        until = now + wait_s
        if not wait_s:
            # Told when all turns are over that what is there now needs.
            left = len(self.consumers)

            def drained(_unused: int) -> None:
                nonlocal left
                left -= 1
                self._rouse()

            self._grant(most, drained)
            until = now + _DRAINED_WITHIN_S
            while left and driver.clock.now() < until and self.is_active and not watch.done():
                await self._sleep(until - driver.clock.now())
            return
        self._grant(most)
        while not self._buffer and not watch.done() and not self._desk.stopping and self.is_active:
            now = driver.clock.now()
            if now >= until:
                return
            await self._sleep(min(until - now, self._interval_s))
            self.heartbeat()

    async def claim(self, queue: str, wanted: Claim) -> list[Taken]:
        """Take over what others of the group, or itself, have had for long; ``queue`` as its caller knows it.

        Raises :class:`QueueError` (NOT_PENDING, NOT_IDLE, LIMIT, IN_USE while it polls, UNKNOWN_MEMBER).
        """
        if self._polls:
            raise QueueError(QueueErrorCode.IN_USE, f"a poll of {self.client_id[:80]!r} is waiting")
        self.heartbeat()
        consumer = self.consumers[queue]
        driver, now = self._desk.turn()
        groups = driver.node.engine.groups

        def start(confirm: Confirm) -> None:
            # Without credit nothing else comes with it.
            self._grant(wanted.limit)
            try:
                groups.claim(
                    consumer.queue, consumer.group, wanted, consumer_id=self.client_id, now=now, on_done=confirm
                )
            finally:
                self._grant(0)

        self._polls = True
        try:
            await self._desk.confirmed(start)
        finally:
            self._polls = False
            taken = self._take_buffer()
        return taken

    @property
    def _interval_s(self) -> float:
        """Of heartbeats while it waits: its client cannot send any."""
        engine = self._desk.engine
        timeouts = [engine.config_of(each.queue).group.session_timeout_s for each in self.consumers.values()]
        return min(timeouts, default=30.0) / 3

    def _grant(self, credit: int, drained: Drained | None = None) -> None:
        """Shared between its queues: each gets its part, and the first ones what is left over."""
        driver, now = self._desk.turn()
        count = len(self.consumers)
        for index, consumer in enumerate(self.consumers.values()):
            if consumer.active:
                if credit and consumer.blocked:
                    driver.node.engine.resume(consumer, now)
                driver.node.engine.grant(consumer, (credit + count - 1 - index) // count, now, drained)

    def give_back(self, taken: Sequence[Taken]) -> None:
        """They reached nobody: ready again at once, and not counted."""
        driver, now = self._desk.turn()
        for each in taken:
            driver.node.state.settle_delivery(each.delivery, Outcome.RELEASE, self, now, ignore)


class Members:
    """All of them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._members: dict[tuple[str, str], Member] = {}
        """By group and id."""
        self._added = 0

    def __len__(self) -> int:
        return len(self._members)

    def find(self, caller: Caller, group: str, member_id: str) -> Member:
        """Raises :class:`QueueError` (UNKNOWN_MEMBER)."""
        found = self._members.get((group, member_id))
        if found is None or found.owner != caller.owner:
            raise unknown_member(member_id, group)
        if not found.is_active:
            self.remove(found)
            raise unknown_member(member_id, group)
        return found

    def add(self, caller: Caller, group: str, member_id: str, *, bound: bool = False) -> Member:
        """A new one, which has joined nothing yet; see :class:`Member`. Raises :class:`QueueError` (LIMIT)."""
        limit = self._desk.config.max_consumers
        self._added += 1
        if self._added % _SWEEP_EVERY == 0 or len(self._members) >= limit:
            self._members = {key: each for key, each in self._members.items() if each.is_active}
        if len(self._members) >= limit:
            raise QueueError(QueueErrorCode.LIMIT, f"{limit} consumers come back for more, which is the limit")
        member = self._members[group, member_id] = Member(self._desk, caller, group, member_id, bound=bound)
        return member

    def remove(self, member: Member) -> None:
        """It leaves. Twice is fine."""
        member.leave()
        if self._members.get((member.group, member.client_id)) is member:
            del self._members[member.group, member.client_id]

    def all_of(self, group: str) -> list[Member]:
        """Those of a group that came over this face."""
        return [each for (name, _), each in self._members.items() if name == group and each.is_active]

    def known(self, caller: Caller, queue: str, group: str, consumer: str, pattern: str) -> Member | None:
        """The consumer of that name of one queue, if it is there."""
        try:
            return self.find(caller, group, member_id(caller, queue, consumer, pattern))
        except QueueError:
            return None

    async def one_of(
        self,
        caller: Caller,
        queue: str,
        group: str,
        consumer: str,
        pattern: str,
        options: SubscribeOptions,
        *,
        bound: bool = False,
    ) -> Member:
        """Likewise; it joins if it is not there, or ``bound`` to a stream, takes the place of one that is.

        Raises :class:`QueueError`.
        """
        found = self.known(caller, queue, group, consumer, pattern)
        if found is not None and not bound:
            return found
        await may_consume(self._desk, caller, (queue,), pattern)
        found = self.known(caller, queue, group, consumer, pattern)
        if found is not None and not bound:
            return found
        if found is not None:
            self.remove(found)
        member = self.add(caller, group, member_id(caller, queue, consumer, pattern), bound=bound)
        try:
            member.join(caller, queue, pattern, options)
        except BaseException:
            self.remove(member)
            raise
        return member


def member_id(caller: Caller, queue: str, consumer: str, pattern: str) -> str:
    """Of a consumer by its own name: nobody's over another protocol, and no other user's."""
    named = f"api:{caller.username or caller.client_id}:{consumer}:{queue}"
    return f"{named}/{pattern}" if pattern else named


def unknown_member(member_id: str, group: str) -> QueueError:
    """It never joined, left, or was silent for too long."""
    text = f"{member_id[:80]!r} is no member of group {group[:80]!r}: it never joined, left, or was silent for too long"
    return QueueError(QueueErrorCode.UNKNOWN_MEMBER, text)


def check_wait(desk: Desk, wait_s: float, most: int) -> None:
    """Raises :class:`RequestError` for what no poll may ask."""
    config = desk.config
    if not 0 <= wait_s <= config.max_poll_s or not 1 <= most <= config.max_batch:
        text = f"a poll waits 0 to {config.max_poll_s:g} s for 1 to {config.max_batch} messages"
        raise RequestError(Code.BAD_REQUEST, text)
