"""Bugs in the life of a delivery: timeouts, retries, counts, and who may settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import PROFILE_DEFAULTS, Profile, RetryConfig
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups import group, group_recovery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import Consumer, EntryState, PendingEntry
from assay.reference_broker.queues.groups.retry import exhausted_reason
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError

_IDLE_S = 1_800.0
_Retry = Callable[..., None]


@mutant("queue-own-messages-not-redelivered", "a failed message is only redelivered to other consumers than its last")
def own_messages(patch: Patch) -> None:
    last: dict[int, Consumer] = {}

    def make_retry(original: _Retry) -> _Retry:
        def retry(self: ConsumerGroup, entry: PendingEntry, *rest: Any) -> None:
            if entry.consumer is not None:
                last[id(entry)] = entry.consumer
            original(self, entry, *rest)

        return retry

    def make_redeliver(original: Callable[..., bool]) -> Callable[..., bool]:
        def redeliver(self: Dispatcher, entry: PendingEntry, consumer: Consumer, now: float) -> bool:
            if last.get(id(entry)) is not consumer:
                return original(self, entry, consumer, now)
            entry.place.pop_waiting()
            entry.deadline = float("inf")
            entry.place.push_waiting(entry)
            return False

        return redeliver

    patch.wrap(ConsumerGroup, "retry", make_retry)
    patch.wrap(Dispatcher, "redeliver", make_redeliver)


@mutant("queue-never-times-out", "deliveries have no timeout")
def never_times_out(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: Dispatcher, served: ConsumerGroup) -> None:
            original(self, served)
            self._timeout_s = float("inf")

        return build

    patch.wrap(Dispatcher, "__init__", make)


@mutant("queue-late-acks-count", "a delivery that timed out can still be settled")
def late_acks(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def find_entry(
            groups: Any, queue: str, partition: int, offset: int, consumer_id: str | None
        ) -> tuple[ConsumerGroup, PendingEntry]:
            for held_by in groups:
                entry = held_by.places[partition].pending.get(offset)
                if entry is not None and entry.state is EntryState.WAITING:
                    return held_by, entry
            found: tuple[ConsumerGroup, PendingEntry] = original(groups, queue, partition, offset, consumer_id)
            return found

        return find_entry

    patch.wrap(settlement, "find_entry", make)


@mutant("queue-unsubscribed-stays", "a consumer that unsubscribes remains a member of its group")
def unsubscribed_stays(patch: Patch) -> None:
    patch.replace(QueueEngine, "unsubscribe", lambda _self, _consumer, _now: None)


@mutant("queue-lost-consumer-keeps-its-share", "a consumer that is gone gives back what it holds, and stays a member")
def lost_keeps_share(patch: Patch) -> None:
    def leave(self: ConsumerGroup, consumer: Consumer, now: float) -> None:
        for place in self.every_place:
            for entry in list(place.pending.values()):
                if entry.consumer is consumer:
                    self.retry(entry, now, now, "consumer left")
        consumer.blocked = True

    patch.replace(ConsumerGroup, "leave", leave)


def _wrap_retry(patch: Patch, change: Callable[[PendingEntry, float, str], float]) -> None:
    """Have ``change`` give another due time for a failed delivery."""

    def make(original: _Retry) -> _Retry:
        def retry(self: ConsumerGroup, entry: PendingEntry, due: float, now: float, cause: str, *rest: Any) -> None:
            original(self, entry, change(entry, due, cause), now, cause, *rest)

        return retry

    patch.wrap(ConsumerGroup, "retry", make)


@mutant("queue-counts-twice", "a failure and the delivery that follows it both count as a delivery")
def counts_twice(patch: Patch) -> None:
    def change(entry: PendingEntry, due: float, _cause: str) -> float:
        entry.delivery_count += 1
        return due

    _wrap_retry(patch, change)


@mutant("queue-nacks-wait", "a refused message waits as if it had timed out")
def nacks_wait(patch: Patch) -> None:
    _wrap_retry(patch, lambda _entry, due, cause: due + 5 if cause == "nacked" else due)


@mutant("queue-lost-consumers-wait", "what a lost consumer held waits as if it had timed out")
def lost_consumers_wait(patch: Patch) -> None:
    _wrap_retry(patch, lambda _entry, due, cause: due + 5 if cause == "consumer left" else due)


@mutant("queue-settles-twice", "settling what is settled is confirmed")
def settles_twice(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle_request(
            groups: Any,
            queue: str,
            request: Any,
            client_id: str | None,
            now: float,
            on_done: Confirm | None,
            *rest: Any,
        ) -> None:
            try:
                original(groups, queue, request, client_id, now, on_done, *rest)
            except QueueError:
                if on_done is not None:
                    on_done(None)

        return settle_request

    patch.wrap(settlement, "settle_request", make)


@mutant("queue-anybody-settles", "a delivery can be settled by whoever knows its message id")
def anybody_settles(patch: Patch) -> None:
    patch.replace(settlement, "holds", lambda _entry, _consumer_id: True)


@mutant("queue-acks-count-for-all-groups", "an ack of one group moves the others past the message")
def acks_for_all(patch: Patch) -> None:
    def pass_others(served: ConsumerGroup, entries: Sequence[PendingEntry]) -> None:
        owner: Any = served.owner
        for other in owner.groups.values():
            for entry in entries:
                place = other.places[entry.place.index]
                if other is not served and place.cursor == entry.offset:
                    place.cursor += 1
                    other.cursor_total += 1

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle(served: ConsumerGroup, entry: PendingEntry, *rest: Any) -> None:
            original(served, entry, *rest)
            pass_others(served, (entry,))

        return settle

    def make_many(original: Callable[..., None]) -> Callable[..., None]:
        def ack_many(served: ConsumerGroup, entries: Sequence[PendingEntry], *rest: Any) -> None:
            original(served, entries, *rest)
            pass_others(served, entries)

        return ack_many

    patch.wrap(settlement, "settle", make)
    patch.wrap(settlement, "ack_many", make_many)


@mutant("queue-offset-0-not-pending", "a pending message at offset 0 is taken for none once later ones were delivered")
def offset_0(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def detach(self: ConsumerGroup, consumer: Consumer, now: float) -> None:
            for place in self.places:
                entry = place.pending.get(0)
                if entry is not None and entry.consumer is consumer and place.cursor > 1:
                    self.remove(entry, None)
            original(self, consumer, now)

        return detach

    patch.wrap(ConsumerGroup, "detach", make)


def _exhausted(patch: Patch, instead: Callable[[RetryConfig, int, float], str | None]) -> None:
    patch.replace(group, "exhausted_reason", instead)


@mutant("queue-retries-for-ever", "the number of retries has no limit")
def retries_for_ever(patch: Patch) -> None:
    _exhausted(patch, lambda _retry, _count, _age_s: None)


@mutant("queue-total-time-ignored", "the total time for retries has no effect")
def total_time_ignored(patch: Patch) -> None:
    _exhausted(patch, lambda retry, count, _age_s: exhausted_reason(retry, count, 0.0))


@mutant("queue-age-unknown-at-first", "the total time has no effect on a first delivery")
def unknown_at_first(patch: Patch) -> None:
    def make(original: _Retry) -> _Retry:
        def retry(self: ConsumerGroup, entry: PendingEntry, *rest: Any) -> None:
            if entry.delivery_count == 1:
                entry.enqueued_at = float("inf")
            original(self, entry, *rest)

        return retry

    patch.wrap(ConsumerGroup, "retry", make)


@mutant("queue-age-forgiven-at-a-start", "what consumers held when the broker was killed comes again, however old")
def forgiven_at_a_start(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def gives_up(self: ConsumerGroup, entry: PendingEntry, *rest: Any) -> bool:
            entry.lost_at = 0.0
            return original(self, entry, *rest)

        return gives_up

    patch.wrap(ConsumerGroup, "gives_up", make)


@mutant(
    "queue-failure-found-is-forgotten",
    "what a start found in flight is not written down: at the next start it fails once more, and is older",
)
def found_is_forgotten(patch: Patch) -> None:
    written = "self.log.expire(entry.place.number, entry.offset, int(entry.lost_at * 1000))"
    patch.rewrite(ConsumerGroup, "gives_up", written, "pass")


@mutant(
    "queue-age-begins-with-a-start",
    "the age of what consumers held when the broker was killed begins with the next start",
)
def begins_with_a_start(patch: Patch) -> None:
    def make_recover(original: Callable[..., None]) -> Callable[..., None]:
        def recover(taken_up: ConsumerGroup, now: float, **named: Any) -> None:
            original(taken_up, now, **named)
            known.update((entry, now) for place in taken_up.every_place for entry in place.pending.values())

        return recover

    def make_retry(original: _Retry) -> _Retry:
        def retry(self: ConsumerGroup, entry: PendingEntry, *rest: Any) -> None:
            entry.enqueued_at = max(entry.enqueued_at, known.get(entry, 0.0))
            original(self, entry, *rest)

        return retry

    known: dict[PendingEntry, float] = {}
    patch.wrap(group_recovery, "recover", make_recover)
    patch.wrap(ConsumerGroup, "retry", make_retry)


@mutant("queue-backoff-without-cap", "the wait before a retry grows without limit")
def without_cap(patch: Patch) -> None:
    def backoff_s(retry: RetryConfig, failures: int) -> float:
        return retry.initial_backoff_s * retry.multiplier ** (failures - 1)

    patch.replace(settlement, "backoff_s", backoff_s)


@mutant("queue-backoff-is-constant", "every retry waits as long as the first")
def constant_backoff(patch: Patch) -> None:
    patch.replace(settlement, "backoff_s", lambda retry, _failures: retry.initial_backoff_s)


@mutant("queue-profile-ignored", "the profile does not change the defaults")
def profile_ignored(patch: Patch) -> None:
    patch.item(PROFILE_DEFAULTS, Profile.GOQUEUE, {})


@mutant("queue-idle-consumers-dropped", "a consumer that got nothing for half an hour is taken for dead")
def idle_removed(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def serve(self: Dispatcher, now: float) -> None:
            served = self._group
            last = served.timeouts[-1][0] if served.timeouts else now
            for consumer in list(served.consumers.values()):
                joined: dict[Consumer, float] = served.__dict__.setdefault("mutant_seen", {})
                if now - joined.setdefault(consumer, min(last, now)) > _IDLE_S:
                    served.leave(consumer, now)
            original(self, now)

        return serve

    patch.wrap(Dispatcher, "serve", make)


@mutant("queue-first-subscription-only", "a client is served by the first queue that it subscribed to only")
def first_only(patch: Patch) -> None:
    first: dict[str, str] = {}

    def make(original: Callable[..., Consumer]) -> Callable[..., Consumer]:
        def subscribe(self: QueueEngine, queue: str, **more: Any) -> Consumer:
            if first.setdefault(more["consumer_id"], queue) != queue:
                more["deliver"] = lambda _delivery: False
            return original(self, queue, **more)

        return subscribe

    patch.wrap(QueueEngine, "subscribe", make)
