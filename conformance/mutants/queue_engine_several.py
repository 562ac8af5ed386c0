"""Planted bugs of the queue engine that show when one settlement names several deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.queue_topics import settle_properties
from assay.reference_broker.queues.delivery import settle_request as settle_types
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import EntryState, PendingEntry
from assay.reference_broker.queues.messages.control_records import Outcome
from assay.reference_broker.queues.transactions.commit_phases import CommitPhases
from assay.reference_broker.queues.transactions.transaction import Transaction
from assay.reference_broker.queues.transactions.transactions import Transactions

Original = Callable[..., Any]


@mutant("engine-range-takes-others", "a range of offsets settles what other consumers of the group hold, too")
def range_takes_others(patch: Patch) -> None:
    def held_range(group: ConsumerGroup, partition: int, first: int, end: int, consumer_id: str) -> list[PendingEntry]:
        pending = group.places[partition].pending if partition < len(group.places) else {}
        entries = [pending[offset] for offset in range(first, end) if offset in pending]
        return [entry for entry in entries if entry.state is EntryState.DELIVERED]

    patch.replace(settlement, "held_range", held_range)


@mutant("engine-range-ends-early", "the last offset of a range is not settled with the others")
def range_ends_early(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
            return tuple((first, max(first + 1, end - 1)) for first, end in original(text))

        return parse_ranges

    patch.wrap(settle_properties, "parse_ranges", make)


@mutant("engine-last-range-only", "of several ranges of offsets only the last one is settled")
def last_range_only(patch: Patch) -> None:
    def make(original: Original) -> Original:
        return lambda text: original(text)[-1:]

    patch.wrap(settle_properties, "parse_ranges", make)


@mutant("engine-list-ends-at-what-is-missing", "a list of message ids is settled up to the first that is not pending")
def list_ends_at_what_is_missing(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def find_entry(groups: Iterable[ConsumerGroup], *args: Any) -> Any:
            if request == [True]:
                return original([], *args)
            try:
                return original(groups, *args)
            except Exception:
                request[:] = [True] * len(request)
                raise

        return find_entry

    def once(original: Original) -> Original:
        def settle_request(*args: Any) -> None:
            request[:] = [False]
            try:
                original(*args)
            finally:
                # Nothing of it lasts, however it ends.
                request.clear()

        return settle_request

    request: list[bool] = []
    """Whether something was missing in the request that is under way, if there is one."""
    patch.wrap(settlement, "find_entry", make)
    patch.wrap(settlement, "settle_request", once)


@mutant("engine-missing-told-as-one-range", "who is told what was not pending is told of what lies between, too")
def missing_told_as_one_range(patch: Patch) -> None:
    def format_ranges(offsets: list[int]) -> str:
        return str(offsets[0]) if len(offsets) == 1 else f"{offsets[0]}-{offsets[-1]}"

    patch.replace(settlement, "format_ranges", format_ranges)


@mutant("engine-several-rejected-one-letter", "of messages rejected together only the last becomes a dead letter")
def several_rejected_one_letter(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def apply(found: dict[PendingEntry, ConsumerGroup], request: Any, now: float, joint: Any) -> None:
            if request.outcome is settle_types.Outcome.REJECT:
                for entry in list(found)[:-1]:
                    group = found.pop(entry)
                    group.counts.rejected += 1
                    group.counts.dead_lettered += 1
                    group.remove(entry, joint.part())
            original(found, request, now, joint)

        return apply

    patch.wrap(settlement, "apply", make)


@mutant("engine-abort-gives-back-the-first", "of the deliveries acknowledged in an aborted transaction one comes back")
def abort_gives_back_the_first(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def end(self: CommitPhases, transaction: Transaction, outcome: Outcome) -> None:
            if outcome is Outcome.ABORTED:
                for entry in list(transaction.held)[1:]:
                    del transaction.held[entry]
            original(self, transaction, outcome)

        return end

    patch.wrap(CommitPhases, "end", make)


@mutant("engine-commit-forgets-a-lists-end", "of a list that is acknowledged in a transaction the last is not held")
def commit_forgets_a_lists_end(patch: Patch) -> None:
    def make(original: Original) -> Original:
        def hold(self: Transactions, within: Any, entries: dict[PendingEntry, ConsumerGroup]) -> None:
            original(self, within, dict(list(entries.items())[: max(1, len(entries) - 1)]))

        return hold

    patch.wrap(Transactions, "hold", make)
