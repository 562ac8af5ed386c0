"""What a start makes of the log of delayed messages and of what is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.reference_broker.queues.delays.delayed_message import due_of
from assay.reference_broker.queues.delays.done_records import Ends, Known
from assay.reference_broker.queues.jobs.store import PartitionLog
from assay.reference_broker.queues.messages.stored_message import delay_number
from assay.reference_broker.queues.partitions.partition import QueuePartition

READ_RECORDS = 512
_NOWHERE = 2**63


def waiting_runs(log: PartitionLog, known: Known) -> Iterator[tuple[Sequence[int], Sequence[int | None]]]:
    """Offsets of messages that are not done and their due times (None = it cannot be read), ascending, in runs.

    Only those that nothing is told of are read. Raises :class:`LogError`.
    """
    told = [(offsets[0], offsets, dues) for offsets, dues in known.waiting]
    untold = [(first, end) for first, end in known.untold]
    while told or untold:
        if not untold or (told and told[0][0] < untold[0][0]):
            _, offsets, dues = told.pop(0)
            yield offsets, dues
        else:
            yield from _read(log, *untold.pop(0), known)


def _read(log: PartitionLog, at: int, end: int, known: Known) -> Iterator[tuple[list[int], list[int | None]]]:
    while at < end and (records := log.read(at, READ_RECORDS)):
        found = [record for record in records if record.offset < end and record.offset not in known.done]
        yield [record.offset for record in found], [due_of(record) for record in found]
        at = records[-1].offset + 1


def fired_among(partitions: Sequence[QueuePartition], firing: dict[int, list[Ends]]) -> dict[int, QueuePartition]:
    """Of the messages that were firing those that a partition has. Raises :class:`LogError`."""
    firsts: dict[int, int] = {}
    for noted in firing.values():
        for ends in noted:
            for index, end in ends.items():
                firsts[index] = min(end, firsts.get(index, end))
    found: dict[int, QueuePartition] = {}
    for partition in partitions:
        at = firsts.get(partition.index, _NOWHERE)
        while at < partition.log.next_offset and (records := partition.log.read(at, READ_RECORDS)):
            for record in records:
                number = delay_number(record)
                # An older record may name a message that was lost, and whose number was given out again.
                if number in firing and any(
                    ends.get(partition.index, _NOWHERE) <= record.offset for ends in firing[number]
                ):
                    found[number] = partition
            at = records[-1].offset + 1
    return found
