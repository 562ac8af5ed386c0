"""The recorder through which every client of a run writes: one index, one clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

_NS_PER_S = 1_000_000_000
_INTENDED = "intended_ns="


class EventFields(TypedDict, total=False):
    """Optional fields of a :class:`HistoryEvent`."""

    op: int
    queue: str
    key: str
    value: str
    producer: str
    seq: int
    group: str
    message_id: str
    partition: int
    offset: int
    delivery_count: int
    redelivered: bool
    reason: str
    detail: str
    txn: str
    qos: int
    delay_ns: int
    lane: int


class HistoryRecorder:
    """Numbers events and hands them to a sink. One recorder per run; ``started_at`` is Unix seconds."""

    def __init__(self, sink: Callable[[HistoryEvent], None], started_at: float) -> None:
        self._sink = sink
        self._started_at = started_at
        self._next_index = 0

    def time_ns(self, now: float) -> int:
        """Nanoseconds since the start of the run."""
        return max(0, round((now - self._started_at) * _NS_PER_S))

    def record(self, now: float, process: str, f: OpKind, type_: OpType, **fields: Unpack[EventFields]) -> int:
        """Write one event; returns its index, which a completion passes as ``op``."""
        index = self._next_index
        self._next_index = index + 1
        self._sink(HistoryEvent(index=index, time_ns=self.time_ns(now), process=process, f=f, type=type_, **fields))
        return index


def intended_detail(time_ns: int) -> str:
    """``detail`` of a publish that could not be sent when the open-loop schedule wanted it."""
    return f"{_INTENDED}{time_ns}"


def intended_ns(event: HistoryEvent) -> int:
    """When the schedule wanted this invocation, in nanoseconds since the start; latency counts from here."""
    if event.detail.startswith(_INTENDED):
        return int(event.detail.removeprefix(_INTENDED))
    return event.time_ns
