"""What the hunt knows of each kind of workload, above all how it gets smaller: one row a kind.

A new kind of workload is a row here, and nothing else in the hunt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from assay.faults.scenario import QueueWorkload, Settlement

_FEW_MESSAGES: Final = 15
"""Fewer per producer would make an anomaly depend on chance before the faults are gone."""
replace = msgspec.structs.replace


class WorkloadKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of workload. What yields candidates yields the smallest first."""

    lasts_s: Callable[[Any], float]
    """The time that it takes when nothing goes wrong."""
    operations: Callable[[Any], int]
    """How much the workload does, by count: what is to become small."""
    quicker: Callable[[Any], Any]
    """A quarter of the operations, for the first big step; the workload itself when that would be too few."""
    fewer: Callable[[Any], Iterator[Any]]
    """Fewer operations."""
    simpler: Callable[[Any], Iterator[Any]]
    """Fewer clients, groups, keys; outcomes and sizes that are the usual ones."""
    constant: Callable[[Any], Iterator[Any]]
    """Times that were drawn become constants."""


def _queue_lasts_s(workload: QueueWorkload) -> float:
    return workload.messages_per_producer / workload.rate_per_s


def _queue_operations(workload: QueueWorkload) -> int:
    return workload.producers * workload.messages_per_producer


def _queue_quicker(workload: QueueWorkload) -> QueueWorkload:
    messages = workload.messages_per_producer
    return replace(workload, messages_per_producer=min(messages, max(messages // 4, _FEW_MESSAGES)))


def _queue_fewer(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    messages = workload.messages_per_producer
    for smaller in dict.fromkeys((1, messages // 4, messages // 2, messages * 3 // 4, messages - 1)):
        if 1 <= smaller < messages:
            yield replace(workload, messages_per_producer=smaller)


def _queue_simpler(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    for name in ("producers", "consumers_per_group", "keys"):
        most = getattr(workload, name)
        for fewer in dict.fromkeys((1, most // 2, most - 1)):
            if 1 <= fewer < most:
                yield replace(workload, **{name: fewer})
    if len(workload.groups) > 1:
        for index in range(len(workload.groups)):
            yield replace(workload, groups=workload.groups[:index] + workload.groups[index + 1 :])
    settlement = workload.settlement
    if settlement != Settlement() and settlement.ack > 0:
        yield replace(workload, settlement=Settlement())
    for name in ("nack", "reject", "ignore"):
        only = Settlement(**{"ack": 0.0, name: 1.0})
        if getattr(settlement, name) > 0 and settlement != only:
            yield replace(workload, settlement=only)
    for name in ("nack", "reject", "ignore"):
        if getattr(settlement, name) > 0:
            rest = replace(settlement, **{name: 0.0})
            if rest.ack + rest.nack + rest.reject + rest.ignore > 0:
                yield replace(workload, settlement=rest)
    if workload.payload_bytes > 0:
        yield replace(workload, payload_bytes=0)


def _queue_constant(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    low, high = workload.process_s
    for fixed in dict.fromkeys((0.0, low, high)):
        if workload.process_s != (fixed, fixed):
            yield replace(workload, process_s=(fixed, fixed))


WORKLOAD_KINDS: Final[dict[type[msgspec.Struct], WorkloadKind]] = {
    QueueWorkload: WorkloadKind(
        lasts_s=_queue_lasts_s,
        operations=_queue_operations,
        quicker=_queue_quicker,
        fewer=_queue_fewer,
        simpler=_queue_simpler,
        constant=_queue_constant,
    ),
}
"""By class of workload."""


def operations(workloads: tuple[Any, ...]) -> int:
    """How much some workloads do together."""
    return sum(WORKLOAD_KINDS[type(workload)].operations(workload) for workload in workloads)


def lasts_s(workloads: tuple[Any, ...]) -> float:
    """The time until the last of some workloads is done when nothing goes wrong."""
    return max(WORKLOAD_KINDS[type(workload)].lasts_s(workload) for workload in workloads)
