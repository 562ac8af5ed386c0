"""Planted bugs of the queue engine that show with credit, and in deliveries that are given back untried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.queue_engine import Original, after
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups import group_state
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import Consumer, PendingEntry
from assay.reference_broker.queues.groups.retry import exhausted_reason
from assay.reference_broker.queues.jobs.store import PendingRecord
from assay.reference_broker.queues.messages.stored_message import StoredMessage


@mutant("engine-credit-ignored", "a consumer is given all that it may hold, whatever its credit")
def credit_ignored(patch: Patch) -> None:
    patch.replace(Consumer, "room", property(lambda self: self.limit - self.in_flight))


@mutant("engine-redeliveries-cost-no-credit", "what comes again is not taken from the credit")
def redeliveries_free(patch: Patch) -> None:
    def give(taken: bool, _self: Dispatcher, entry: PendingEntry, consumer: Consumer, _now: float) -> None:
        consumer.credit += taken

    after(patch, Dispatcher, "redeliver", give)


@mutant("engine-settling-gives-credit", "a consumer that settles may have another delivery for it")
def settling_gives_credit(patch: Patch) -> None:
    def give(_result: None, _self: ConsumerGroup, consumer: Consumer, *_args: object) -> None:
        consumer.credit += 1

    after(patch, ConsumerGroup, "let_go", give)


@mutant("engine-grants-add-up", "a grant adds to what is left of the one before")
def grants_add_up(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def grant(self: QueueEngine, consumer: Consumer, credit: int, now: float, *args: Any) -> None:
            original(self, consumer, credit + consumer.credit if credit else 0, now, *args)

        return grant

    patch.wrap(QueueEngine, "grant", make)


@mutant("engine-grant-serves-nobody", "a grant wakes nobody")
def grant_serves_nobody(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def grant(self: QueueEngine, consumer: Consumer, *args: Any) -> None:
            served = dict(self._agenda.groups_to_serve)
            original(self, consumer, *args)
            self._agenda.groups_to_serve = served

        return grant

    patch.wrap(QueueEngine, "grant", make)


@mutant("engine-drained-credit-stays", "what is left of a drained credit is told, and may be used all the same")
def drained_credit_stays(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def end(self: QueueEngine) -> None:
            before = {consumer: consumer.credit for consumer in self._draining}
            original(self)
            for consumer, credit in before.items():
                if consumer not in self._draining:
                    consumer.credit = credit

        return end

    patch.wrap(QueueEngine, "end_draining", make)


@mutant("engine-drain-untold", "nobody is told what is left of a drained credit")
def drain_untold(patch: Patch) -> None:
    patch.replace(QueueEngine, "end_draining", lambda _self: None)


@mutant("engine-release-counts", "a delivery that is given back untried counts as one that failed")
def release_counts(patch: Patch) -> None:
    def forget(_result: None, _self: ConsumerGroup, entry: PendingEntry, *_args: object) -> None:
        entry.released = False

    after(patch, ConsumerGroup, "give_back", forget)


@mutant("engine-release-fails-for-good", "what is given back untried after the last failure is given up")
def release_fails_for_good(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def gives_up(self: ConsumerGroup, entry: PendingEntry, stored: StoredMessage, now: float) -> bool:
            count = entry.delivery_count - entry.released
            # It is higher by one here than what is asked about.
            reason = exhausted_reason(self.config.retry, count + (count > 0), 0.0)
            if reason is None or self.keeps_exhausted:
                return bool(original(self, entry, stored, now))
            self.dead_letter(entry, reason, now, None)
            return True

        return gives_up

    patch.wrap(ConsumerGroup, "gives_up", make)


@mutant("engine-release-counts-from-then-on", "after one release no delivery of the message counts")
def release_for_ever(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def redeliver(self: Dispatcher, entry: PendingEntry, consumer: Consumer, now: float) -> bool:
            released = entry.released
            taken: bool = original(self, entry, consumer, now)
            entry.released = released
            return taken

        return redeliver

    patch.wrap(Dispatcher, "redeliver", make)


@mutant("engine-release-not-logged", "that a delivery was given back untried is forgotten over a start")
def release_not_logged(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def give_back(self: ConsumerGroup, entry: PendingEntry, *args: Any) -> None:
            claim, self.log.claim = self.log.claim, lambda *_: None  # type: ignore[method-assign]
            try:
                original(self, entry, *args)
            finally:
                self.log.claim = claim  # type: ignore[method-assign]

        return give_back

    patch.wrap(ConsumerGroup, "give_back", make)


@mutant("engine-snapshot-counts-releases", "in a snapshot of its group, a delivery that was given back untried counts")
def snapshot_counts_releases(patch: Patch) -> None:
    original = group_state.pending_records

    def pending_records(entries: Sequence[PendingEntry]) -> Iterator[PendingRecord]:
        for entry in entries:
            for record in original([entry]):
                yield record._replace(delivery_count=entry.delivery_count)

    patch.replace(group_state, "pending_records", pending_records)


@variation("engine-grant-serves-everybody", "a grant has every group of the queue looked at")
def serves_everybody(patch: Patch) -> None:
    def serve(_result: None, self: QueueEngine, consumer: Consumer, *_args: object) -> None:
        queue = self._queues.get(consumer.queue)
        if queue is not None and not self._closed:
            self._agenda.groups_to_serve.update(dict.fromkeys(queue.groups.values()))

    after(patch, QueueEngine, "grant", serve)
