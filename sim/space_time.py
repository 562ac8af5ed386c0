"""A run as a space-time diagram: who told the broker what and when, what it said, and when faults came.

The lines are those of a wire transcript, so a report draws both alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from assay.reference_broker.trace.conformance import WireLine
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.results import Finding
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

SPACE_TIME_NAME: Final = "space_time.jsonl"
_MOST_LINES: Final = 60
"""More would be drawn as a wall; then only what concerns the findings is."""
_MOST_WRITTEN: Final = 400
_VALUES: Final = 3
"""Values of a finding whose story is told."""


def write_space_time(path: Path, events: Sequence[HistoryEvent], findings: Iterable[Finding]) -> bool:
    """Write the lines that a report draws; of a long run what concerns its findings, and nothing where it has none.

    Returns whether there is a file. Raises :class:`OSError`.
    """
    lines = list(space_time(events))
    if len(lines) > _MOST_LINES:
        values = {value for finding in findings for value in finding.values[:_VALUES]}
        concerned = {event.process for event in events if event.value in values}
        lines = list(space_time(event for event in events if _concerns(event, values, concerned)))[:_MOST_WRITTEN]
        if not values:
            return False
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return True


def _concerns(event: HistoryEvent, values: set[str], processes: set[str]) -> bool:
    if event.f is OpKind.SESSION_END:
        return event.process in processes
    return event.f is OpKind.FAULT or event.value in values


def space_time(events: Iterable[HistoryEvent]) -> Iterator[WireLine]:
    """Arrows between clients and broker, and notes of what happened to either."""
    for event in events:
        client = event.process.partition(".")[0]
        told = _told(event)
        if event.f is OpKind.FAULT:
            ends = "begins" if event.type is OpType.INVOKE else "is over"
            yield WireLine(t_ns=event.time_ns, connection="", direction="event", decoded=f"{event.detail} {ends}")
        elif event.f is OpKind.DRAIN:
            yield WireLine(
                t_ns=event.time_ns, connection="", direction="event", decoded=f"{event.queue} read: {event.detail}"
            )
        elif event.f is OpKind.SESSION_END:
            yield WireLine(t_ns=event.time_ns, connection=client, direction="event", decoded=event.detail)
        elif event.type is OpType.INVOKE:
            yield WireLine(t_ns=event.time_ns, connection=client, direction="send", decoded=told)
        elif event.type is OpType.INFO:
            yield WireLine(t_ns=event.time_ns, connection=client, direction="event", decoded=f"{told}: unknown")
        else:
            said = "" if event.f is OpKind.DELIVER else " ok" if event.type is OpType.OK else " refused"
            yield WireLine(t_ns=event.time_ns, connection=client, direction="recv", decoded=f"{told}{said}")


def _told(event: HistoryEvent) -> str:
    if event.f is OpKind.DELIVER:
        again = f" (delivery {event.delivery_count})" if event.delivery_count > 1 else ""
        return f"deliver {event.value}{again}" + (f" from {event.queue}" if event.queue.startswith("$dlq/") else "")
    return f"{event.f.value} {event.value}".rstrip()


def read_space_time(path: Path) -> list[WireLine]:
    """The lines of such a file. Raises :class:`OSError`."""
    decoder = msgspec.json.Decoder(described(WireLine))
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
