"""Bugs of transactions."""

from __future__ import annotations

import heapq
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.queue_topics import settle_properties
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.transaction_topics import TRANSACTION_PREFIX
from assay.reference_broker.mqtt.sessions.queue_admin import QueueAdmin
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.messages.control_records import Outcome
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.queues.partitions.producers import PartitionProducers
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.transactions import producer_names
from assay.reference_broker.queues.transactions.commit_phases import CommitPhases
from assay.reference_broker.queues.transactions.coordinator import Coordinator
from assay.reference_broker.queues.transactions.transaction import Transaction, TransactionState
from assay.reference_broker.queues.transactions.transactions import Transactions
from assay.reference_broker.routing.message import Message


@mutant("queue-open-transaction-shows", "messages of an open transaction are delivered like any other")
def open_shows(patch: Patch) -> None:
    def stable_end(self: PartitionProducers, end: int) -> int:
        return end

    patch.replace(PartitionProducers, "stable_end", stable_end)


@mutant("queue-commit-of-one-part", "a commit ends the transaction in its first partition only")
def one_part(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def close_in(self: CommitPhases, transaction: Transaction, partition: Any, *more: Any) -> None:
            if partition is next(iter(transaction.partitions)):
                original(self, transaction, partition, *more)

        return close_in

    patch.wrap(CommitPhases, "close_in", make)


@mutant("queue-abort-shows", "an abort lets the messages of the transaction out")
def abort_shows(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def close(self: PartitionProducers, transaction: str, outcome: Outcome) -> list[int]:
            found: list[int] = original(self, transaction, Outcome.COMMITTED)
            return found

        return close

    patch.wrap(PartitionProducers, "close", make)


@mutant("queue-aborts-forgotten", "a restart takes every ended transaction for a committed one")
def aborts_forgotten(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def replay(self: PartitionProducers, mark: Any, offset: int) -> None:
            outcome = None if mark.outcome is None else Outcome.COMMITTED
            original(self, mark._replace(outcome=outcome), offset)

        return replay

    patch.wrap(PartitionProducers, "replay", make)


@mutant("queue-only-newest-holds-back", "only the newest open transaction of a partition holds back what is behind it")
def newest_holds(patch: Patch) -> None:
    def stable_end(self: PartitionProducers, end: int) -> int:
        spans = list(self.open.values())
        return min(end, spans[-1].offsets[0]) if len(spans) > 1 else end

    patch.replace(PartitionProducers, "stable_end", stable_end)


@mutant("queue-ack-before-the-commit", "an acknowledgement in a transaction counts at once")
def ack_before(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def hold(self: Transactions, within: TransactionKey, entries: Any) -> None:
            self._find_open(*within)
            for entry, group in entries.items():
                group.remove(entry, None)

        return hold

    patch.wrap(Transactions, "hold", make)


@mutant("queue-held-times-out", "a delivery acknowledged in an open transaction times out")
def held_times_out(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def hold(self: Transactions, within: TransactionKey, entries: Any) -> None:
            original(self, within, entries)
            for entry in entries:
                entry.state = EntryState.DELIVERED

        return hold

    patch.wrap(Transactions, "hold", make)


@mutant("queue-ended-transactions-forgotten", "a transaction that has ended is unknown")
def ended_forgotten(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def end(self: CommitPhases, transaction: Transaction, outcome: Outcome) -> None:
            original(self, transaction, outcome)
            self.ended.clear()

        return end

    patch.wrap(CommitPhases, "end", make)


@mutant("queue-empty-commits-are-not-written", "the commit of a transaction without messages is known until the end")
def empty_commits(patch: Patch) -> None:
    patch.rewrite(Coordinator, "decide", "self._remember(transaction, decision, [])", "pass")


@mutant("queue-transactions-never-time-out", "a transaction that nobody ends stays open")
def never_time_out(patch: Patch) -> None:
    def tick(self: Transactions, now: float) -> None:
        self._deadlines.clear()

    patch.replace(Transactions, "tick", tick)


@mutant("queue-restart-commits-what-is-open", "a restart commits the transactions that were open")
def restart_commits(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def resume(self: CommitPhases, transaction: Transaction) -> None:
            transaction.state = TransactionState.COMMITTED
            original(self, transaction)

        return resume

    patch.wrap(CommitPhases, "resume", make)


@mutant("queue-zombie-goes-on", "a new epoch leaves the open transaction of the old one alone")
def zombie(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def abort(self: CommitPhases, transaction: Transaction, reason: str) -> None:
            if not reason.startswith("fenced"):
                original(self, transaction, reason)

        return abort

    patch.wrap(CommitPhases, "abort", make)


@mutant("queue-two-transactions-at-once", "a producer may begin a transaction while another is open")
def two_at_once(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def begin(self: Transactions, producer_id: int, *more: Any, **named: Any) -> None:
            if self.memory.found is not None:
                self.memory.found.open.pop(producer_id, None)
            original(self, producer_id, *more, **named)

        return begin

    patch.wrap(Transactions, "begin", make)


@mutant("queue-nack-in-a-transaction", "a transaction-id beside a nack or reject is ignored")
def nack_within(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def within(single: dict[str, str], verb: Verb) -> TransactionKey | None:
            return original(single, verb) if verb is Verb.ACK else None

        return within

    patch.wrap(settle_properties, "parse_transaction", make)


@mutant("queue-transactions-unbounded", "a transaction may be as large as it likes")
def unbounded(patch: Patch) -> None:
    def check(self: Transactions, *more: Any) -> None:
        return

    patch.replace(Transactions, "check_room", check)


@mutant("queue-transaction-answer-uncorrelated", "answers of transaction requests lack the correlation data")
def uncorrelated(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def send_answer(self: QueueAdmin, request: Message, topic: str, payload: bytes) -> None:
            if request.topic.startswith(TRANSACTION_PREFIX):
                request = Message(topic=request.topic, payload=b"", qos=request.qos)
            original(self, request, topic, payload)

        return send_answer

    patch.wrap(QueueAdmin, "send_answer", make)


@mutant("queue-transaction-of-anybody", "any producer may use any transaction")
def anybody(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def find(self: Transactions, producer_id: int, epoch: int, transaction_id: str) -> Transaction:
            known = self._phases.open.get(transaction_id)
            found: Transaction = known if known is not None else original(self, producer_id, epoch, transaction_id)
            return found

        return find

    patch.wrap(Transactions, "find", make)


@mutant("queue-producers-of-anybody", "any user may use any transactional id and producer")
def of_anybody(patch: Patch) -> None:
    patch.replace(producer_names, "check_is_owner", lambda producer, owner, what: None)


@mutant("queue-markers-counted", "records that end transactions, and aborted messages, count as stored messages")
def markers_counted(patch: Patch) -> None:
    def hide(self: DurableQueue, partition: Any, offsets: Any) -> None:
        return

    patch.replace(DurableQueue, "hide", hide)


@mutant("queue-open-transactions-of-all", "one client may have all transactions that may be open")
def open_of_all(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def begin(self: Transactions, *args: Any, holder: str | None = None, **fields: Any) -> None:
            original(self, *args, **fields)

        return begin

    patch.wrap(Transactions, "begin", make)


@mutant("queue-transactions-swap-neighbours", "what a transaction publishes in one turn is swapped in pairs")
def swap_neighbours(patch: Patch) -> None:
    old = "    unwritten.transactional |= transactional"
    swap = (
        "    if transactional and not len(unwritten.records) % 2:\n"
        "        for each in (unwritten.records, unwritten.messages):\n"
        "            each[-1], each[-2] = each[-2], each[-1]"
    )
    patch.rewrite(QueuePartition, "add_marked", old, f"{old}\n{swap}")


@mutant("queue-aborted-bursts-leave-their-last", "of three messages in a partition an abort lets the last one out")
def leave_their_last(patch: Patch) -> None:
    old = "    for start, end in _runs(span.offsets):"
    patch.rewrite(PartitionProducers, "close", old, f"    del span.offsets[max(2, len(span.offsets) - 1) :]\n{old}")


@mutant("queue-transactions-time-out-when-idle", "a transaction has its time anew with each message")
def when_idle(patch: Patch) -> None:
    def make(original: Any) -> Any:
        def publish(self: Transactions, *args: Any) -> None:
            original(self, *args)
            options, now = args[3:5]
            found = self._phases.open.get(options.transaction_id)
            if found is not None:
                found.ends_by = now + found.ends_by - found.began_at
                self._deadlines = [each for each in self._deadlines if each[1] != found.id]
                heapq.heapify(self._deadlines)
                heapq.heappush(self._deadlines, (found.ends_by, found.id))

        return publish

    patch.wrap(Transactions, "publish", make)
