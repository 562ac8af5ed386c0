"""What the hunt knows of each kind of workload, above all how it gets smaller: one row a kind.

A new kind of workload is a row here, and nothing else in the hunt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from assay.faults.scenario import AmqpWorkload, MqttWorkload, QueueWorkload, Settlement
from assay.reference_broker.trace.file_kinds import FileKind

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
    going_round: Callable[[Any], Iterator[Any]]
    """Fewer messages, which are delivered again and again: for the broker as much to write down as many."""
    simpler: Callable[[Any], Iterator[Any]]
    """Fewer clients, groups, keys; outcomes and sizes that are the usual ones."""
    constant: Callable[[Any], Iterator[Any]]
    """Times that were drawn become constants."""
    files: Mapping[FileKind, tuple[FileKind, ...]] = {}
    """What a fault of the disk hits instead of files of a kind, where a queue's are not all that the broker writes."""


def _at_default(workload: msgspec.Struct, *names: str) -> Iterator[Any]:
    """Without one of the parts that a workload need not have."""
    defaults = {field.name: field for field in msgspec.structs.fields(workload)}
    for name in names:
        usual = defaults[name].default if defaults[name].default_factory is msgspec.NODEFAULT else {}
        if getattr(workload, name) != usual:
            yield replace(workload, **{name: usual})


def _smaller_numbers(workload: msgspec.Struct, least: int, *names: str) -> Iterator[Any]:
    for name in names:
        most = getattr(workload, name)
        for fewer in dict.fromkeys((least, most // 2, most - 1)):
            if least <= fewer < most:
                yield replace(workload, **{name: fewer})


def _fewer_messages(workload: Any, name: str) -> Iterator[Any]:
    """Over sooner; then as long, one after the other more seldom: what else happens has a time of its own."""
    messages = getattr(workload, name)
    fewer = [each for each in dict.fromkeys((1, messages // 4, messages // 2)) if 1 <= each < messages]
    for smaller in dict.fromkeys((*fewer, messages * 3 // 4, messages - 1)):
        if 1 <= smaller < messages:
            yield replace(workload, **{name: smaller})
    for smaller in fewer:
        seldom = round(workload.rate_per_s * smaller / messages, 3)
        if seldom > 0:
            yield replace(workload, **{name: smaller, "rate_per_s": seldom})


def _fewer_rounds(workload: Any, name: str) -> Iterator[Any]:
    """What is ignored costs its client no operation, but waits for a timeout, or its consumer to leave."""
    messages = getattr(workload, name)
    for ack in (0.3, 0.5):
        for settlement in (Settlement(ack=ack, ignore=1.0 - ack), Settlement(ack=ack, nack=1.0 - ack)):
            for fewer in dict.fromkeys((messages // 4, messages // 2, messages * 3 // 4)):
                if 1 <= fewer < messages:
                    yield replace(workload, settlement=settlement, **{name: fewer})


def _queue_quicker(workload: QueueWorkload) -> QueueWorkload:
    messages = workload.messages_per_producer
    return replace(workload, messages_per_producer=min(messages, max(messages // 4, _FEW_MESSAGES)))


def _queue_fewer(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    yield from _fewer_messages(workload, "messages_per_producer")


def _queue_simpler(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    yield from _at_default(
        workload, "passing_groups", "transactions", "delays", "priorities", "absences", "receive_maximum"
    )
    yield from _smaller_numbers(workload, 1, "producers", "consumers_per_group", "keys")
    for index in range(len(workload.passing_groups)):
        left = workload.passing_groups[:index] + workload.passing_groups[index + 1 :]
        yield replace(workload, passing_groups=left)
    if len(workload.groups) > 1:
        for index in range(len(workload.groups)):
            yield replace(workload, groups=workload.groups[:index] + workload.groups[index + 1 :])
    yield from _plain_settlement(workload)
    if workload.payload_bytes > 0:
        yield replace(workload, payload_bytes=0)


def _plain_settlement(workload: Any) -> Iterator[Any]:
    settlement: Settlement = workload.settlement
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


def _constant_processing(workload: Any) -> Iterator[Any]:
    low, high = workload.process_s
    for fixed in dict.fromkeys((0.0, low, high)):
        if workload.process_s != (fixed, fixed):
            yield replace(workload, process_s=(fixed, fixed))


def _amqp_quicker(workload: AmqpWorkload) -> AmqpWorkload:
    messages = workload.messages_per_publisher
    return replace(workload, messages_per_publisher=min(messages, max(messages // 4, _FEW_MESSAGES)))


def _amqp_fewer(workload: AmqpWorkload) -> Iterator[AmqpWorkload]:
    yield from _fewer_messages(workload, "messages_per_publisher")


def _amqp_simpler(workload: AmqpWorkload) -> Iterator[AmqpWorkload]:
    parts = ("passing_queues", "movers", "transactions", "priorities", "absences", "delivery_limit", "multiple")
    yield from _at_default(workload, *parts, "exchange", "queue_type")
    yield from _smaller_numbers(workload, 1, "publishers", "queues", "consumers_per_queue", "keys", "prefetch")
    yield from _smaller_numbers(workload, 0, "movers")
    if (passing := workload.passing_queues) is not None:
        for part in _smaller_numbers(passing, 1, "number"):
            yield replace(workload, passing_queues=part)
    yield from _plain_settlement(workload)
    if workload.payload_bytes > 0:
        yield replace(workload, payload_bytes=0)


def _mqtt_with(workload: MqttWorkload, messages: int, writes: int) -> MqttWorkload:
    retained = workload.retained and replace(workload.retained, writes_per_writer=writes)
    return replace(workload, messages_per_publisher=messages, retained=retained)


def _mqtt_quicker(workload: MqttWorkload) -> MqttWorkload:
    messages = workload.messages_per_publisher
    writes = workload.retained.writes_per_writer if workload.retained else 0
    quarter = (min(count, max(count // 4, _FEW_MESSAGES)) for count in (messages, writes))
    return _mqtt_with(workload, *quarter)


def _mqtt_fewer(workload: MqttWorkload) -> Iterator[MqttWorkload]:
    yield from _at_default(workload, "retained", "wills")
    messages = workload.messages_per_publisher
    yield from _fewer_messages(workload, "messages_per_publisher")
    if (retained := workload.retained) is not None:
        writes = retained.writes_per_writer
        for smaller in dict.fromkeys((1, writes // 4, writes // 2, writes - 1)):
            if 1 <= smaller < writes:
                yield _mqtt_with(workload, messages, smaller)


def _mqtt_simpler(workload: MqttWorkload) -> Iterator[MqttWorkload]:
    yield from _at_default(workload, "absences", "receive_maximum")
    yield from _smaller_numbers(workload, 1, "publishers", "topics")
    if workload.sessions + workload.clean_sessions + workload.share_members > 1:
        yield from _smaller_numbers(workload, 0, "sessions", "clean_sessions", "share_members")
    if (retained := workload.retained) is not None:
        for part in _smaller_numbers(retained, 1, "writers", "topics", "readers"):
            yield replace(workload, retained=part)
    for number in range(3):
        if workload.qos[number] > 0 and sum(workload.qos) > workload.qos[number]:
            rest = tuple(0.0 if place == number else weight for place, weight in enumerate(workload.qos))
            yield replace(workload, qos=rest)
    if workload.payload_bytes > 0:
        yield replace(workload, payload_bytes=0)


def _mqtt_constant(workload: MqttWorkload) -> Iterator[MqttWorkload]:
    absences = workload.absences
    if absences is not None:
        for name in ("stay_s", "away_s"):
            low, high = getattr(absences, name)
            if low != high:
                yield replace(workload, absences=replace(absences, **{name: (low, low)}))


WORKLOAD_KINDS: Final[dict[type[msgspec.Struct], WorkloadKind]] = {
    MqttWorkload: WorkloadKind(
        lasts_s=lambda workload: workload.schedule_s,
        operations=lambda workload: workload.operations,
        quicker=_mqtt_quicker,
        fewer=_mqtt_fewer,
        going_round=lambda workload: iter(()),
        simpler=_mqtt_simpler,
        constant=_mqtt_constant,
        files=dict.fromkeys((FileKind.SEGMENTS, FileKind.GROUPS, FileKind.OTHERS), (FileKind.SESSIONS,)),
    ),
    QueueWorkload: WorkloadKind(
        lasts_s=lambda workload: workload.schedule_s,
        operations=lambda workload: workload.operations,
        quicker=_queue_quicker,
        fewer=_queue_fewer,
        going_round=lambda workload: _fewer_rounds(workload, "messages_per_producer"),
        simpler=_queue_simpler,
        constant=_constant_processing,
    ),
    AmqpWorkload: WorkloadKind(
        lasts_s=lambda workload: workload.schedule_s,
        operations=lambda workload: workload.operations,
        quicker=_amqp_quicker,
        fewer=_amqp_fewer,
        going_round=lambda workload: _fewer_rounds(workload, "messages_per_publisher"),
        simpler=_amqp_simpler,
        constant=_constant_processing,
        files={FileKind.OTHERS: (FileKind.OTHERS, FileKind.SESSIONS)},  # what is declared is kept beside sessions
    ),
}
"""By class of workload."""


def operations(workloads: tuple[Any, ...]) -> int:
    """How much some workloads do together."""
    return sum(WORKLOAD_KINDS[type(workload)].operations(workload) for workload in workloads)


def lasts_s(workloads: tuple[Any, ...]) -> float:
    """The time until the last of some workloads is done when nothing goes wrong."""
    return max(WORKLOAD_KINDS[type(workload)].lasts_s(workload) for workload in workloads)


def files_of(workloads: tuple[Any, ...], kind: FileKind) -> list[FileKind]:
    """The kinds of files of which a fault hits one, where ``kind`` was drawn."""
    return [file for workload in workloads for file in WORKLOAD_KINDS[type(workload)].files.get(kind, (kind,))]
