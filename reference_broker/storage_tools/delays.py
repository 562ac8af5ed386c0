"""Reads the two logs of a queue's delayed messages as a start does: how many wait, until when, and what makes no sense.

Memory grows with the messages that wait, by 16 bytes each, as in a broker.
"""

from __future__ import annotations

import msgspec

from assay.reference_broker.queues.delays.delayed_message import due_of
from assay.reference_broker.queues.delays.done_records import DoneReader
from assay.reference_broker.queues.partitions.intervals import Intervals
from assay.reference_broker.storage_tools.dump import RecordFilter, read_partition
from assay.reference_broker.storage_tools.findings import FindingKind, Findings, Severity
from assay.reference_broker.storage_tools.layout import QueuePlace, StoreLayout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk

MAX_LISTED = 100
"""Records of one queue that are reported one by one; more are counted."""
_END = 2**63
_EVERYTHING = RecordFilter()


class DelayState(msgspec.Struct, kw_only=True):
    """What a start would make of the two logs. Times in Unix ms, None when nothing waits."""

    records: int = 0
    """In the log of delayed messages, with those that are done."""
    waiting: int = 0
    next_due_ms: int | None = None
    last_due_ms: int | None = None
    undated: int = 0
    """Messages without a due time, which never fire."""
    undated_offsets: list[int] = []
    """The first of them."""
    meaningless: int = 0
    """Records of the done log that say nothing."""
    meaningless_offsets: list[int] = []
    known_to: int = 0
    """The done log says nothing of offsets from there on."""
    end_offset: int = 0
    """Of the log of delayed messages."""

    @property
    def done(self) -> int:
        """Messages that fired or were cancelled, as far as their segments are still there."""
        return max(0, self.records - self.waiting - self.undated)

    def _waits(self, count: int, first_due_ms: int, last_due_ms: int) -> None:
        self.waiting += count
        self.next_due_ms = first_due_ms if self.next_due_ms is None else min(first_due_ms, self.next_due_ms)
        self.last_due_ms = last_due_ms if self.last_due_ms is None else max(last_due_ms, self.last_due_ms)


def read_delays(disk: ReadOnlyDisk, queue: QueuePlace) -> DelayState | None:
    """None where no message was ever delayed. Damage is left out: each log's own check reports it.

    Raises :class:`OSError`.
    """
    if queue.delayed is None:
        return None
    state = DelayState()
    reader = DoneReader()
    if queue.delays_done is not None:
        for _, record in read_partition(disk, queue.delays_done, _EVERYTHING, _pass_over):
            if not reader.take(record.key or b"", record.value or b""):
                state.meaningless += 1
                state.meaningless_offsets += [record.offset] if state.meaningless <= MAX_LISTED else []
    start = queue.delayed.segments[0].base_offset if queue.delayed.segments else 0
    known = reader.known(start, _END)
    untold = Intervals(known.untold)
    state.known_to, state.end_offset = known.known_to, start
    for _, record in read_partition(disk, queue.delayed, _EVERYTHING, _pass_over):
        state.records += 1
        state.end_offset = record.offset + 1
        if record.offset in known.done or record.offset not in untold:
            continue
        due_ms = due_of(record)
        if due_ms is not None:
            state._waits(1, due_ms, due_ms)
        else:
            state.undated += 1
            state.undated_offsets += [record.offset] if state.undated <= MAX_LISTED else []
    for offsets, dues in known.waiting:
        there = [due for offset, due in zip(offsets, dues, strict=True) if offset < state.end_offset]
        if there:
            state._waits(len(there), min(there), max(there))
    return state


def _pass_over(place: str, problem: str) -> None:
    """Reported elsewhere."""


def check_delays(disk: ReadOnlyDisk, layout: StoreLayout, findings: Findings, *, in_use: bool) -> int:
    """Hold the two logs of every queue against each other; returns how many messages wait."""
    waiting = 0
    for queue in layout.queues:
        try:
            state = read_delays(disk, queue)
        except OSError:
            # The check of the logs has said so.
            continue
        if state is not None:
            waiting += state.waiting
            _judge(queue, state, findings, in_use=in_use)
    return waiting


def _judge(queue: QueuePlace, state: DelayState, findings: Findings, *, in_use: bool) -> None:
    assert queue.delayed is not None
    for offset in state.undated_offsets:
        findings.report(
            Severity.FAULT,
            FindingKind.DELAY_UNDATED,
            queue.delayed.folder,
            f"no due time in the record, one of {state.undated:,}",
            "the message never becomes due; a broker counts it as unreadable; publish it anew from a dump",
            queue=queue.name,
            partition=queue.delayed.partition,
            offset=offset,
            end_offset=offset + 1,
        )
    done = queue.delays_done
    if done is None:
        if state.records and not in_use:
            findings.report(
                Severity.FAULT,
                FindingKind.DELAY_INDEX_WRONG,
                queue.delayed.folder,
                "the log that tells which messages fired is not there",
                "a broker takes all of them for waiting, and those that fired fire again; restore its folder",
                queue=queue.name,
                partition=queue.delayed.partition,
            )
        return
    for offset in state.meaningless_offsets:
        findings.report(
            Severity.FAULT,
            FindingKind.DELAY_INDEX_WRONG,
            done.folder,
            f"the record says nothing of delayed messages, one of {state.meaningless:,}",
            "a broker passes over it; what it was to say may fire again",
            queue=queue.name,
            partition=done.partition,
            offset=offset,
            end_offset=offset + 1,
        )
    if state.known_to > state.end_offset:
        findings.report(
            Severity.NOTE if in_use else Severity.WARNING,
            FindingKind.DELAY_INDEX_WRONG,
            done.folder,
            f"it tells of delayed messages up to offset {state.known_to - 1}, "
            f"but the last there is has {state.end_offset - 1}",
            "power was lost before the messages were on disk; a broker writes down that it does not count any more",
            queue=queue.name,
            partition=done.partition,
            offset=state.end_offset,
            end_offset=state.known_to,
        )
