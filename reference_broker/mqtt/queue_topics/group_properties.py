"""``$commit`` and ``$claim``: what consumers ask of their group in user properties."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import (
    GENERATION,
    GROUP_ID,
    MESSAGE_ID,
    OFFSET,
    PARTITION,
    whole_number,
)
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import parse_message_id
from assay.reference_broker.queues.messages.durations import parse_duration_ms
from assay.reference_broker.queues.operations.group_operations import (
    DEFAULT_CLAIMS,
    MAX_CLAIMS,
    Claim,
    GroupOperations,
)

GROUP_VERBS: Final = frozenset((Verb.COMMIT, Verb.CLAIM))
"""Verbs that :func:`request_of_group` serves."""
MIN_IDLE: Final = "min-idle"
COUNT: Final = "count"


def request_of_group(
    groups: GroupOperations,
    verb: Verb,
    queue: str,
    properties: tuple[tuple[str, str], ...],
    *,
    consumer_id: str | None,
    now: float,
    on_done: Confirm,
) -> None:
    """Serve ``$commit`` or ``$claim``. Raises :class:`QueueError`.

    ``group-id`` may be left out by a consumer of one group of the queue.
    """
    named = _single(properties)
    group = named.get(GROUP_ID)
    if group is None:
        group = groups.only_group_of(queue, consumer_id)
    if GENERATION in named:
        generation = whole_number(named[GENERATION], GENERATION)
        groups.check_generation(queue, group, consumer_id or "", generation)
    if verb is Verb.COMMIT:
        if OFFSET not in named:
            raise QueueError(QueueErrorCode.BAD_ADDRESS, "a commit names a partition and the offset to go on from")
        partition = _partition(groups, queue, named)
        offset = whole_number(named[OFFSET], OFFSET)
        groups.commit(queue, group, partition, offset, consumer_id=consumer_id, now=now, on_done=on_done)
        return
    wanted = _claim(groups, queue, named)
    groups.claim(queue, group, wanted, consumer_id=consumer_id or "", now=now, on_done=on_done)


def _partition(groups: GroupOperations, queue: str, named: dict[str, str]) -> int:
    if PARTITION in named:
        return whole_number(named[PARTITION], PARTITION)
    if groups.partition_count(queue) != 1:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, "the queue has several partitions: name one by partition")
    return 0


def _claim(groups: GroupOperations, queue: str, named: dict[str, str]) -> Claim:
    place: tuple[int, int] | None = None
    if MESSAGE_ID in named:
        of_queue, *numbers = parse_message_id(named[MESSAGE_ID])
        if of_queue != queue:
            raise QueueError(QueueErrorCode.BAD_ADDRESS, f"the message id is of another queue than {queue!r}")
        place = numbers[0], numbers[1]
    elif OFFSET in named:
        place = _partition(groups, queue, named), whole_number(named[OFFSET], OFFSET)
    limit = whole_number(named[COUNT], COUNT) if COUNT in named else DEFAULT_CLAIMS
    if not 1 <= limit <= MAX_CLAIMS:
        raise QueueError(QueueErrorCode.BAD_OPTION, f"the user property {COUNT} must be 1 to {MAX_CLAIMS}")
    try:
        min_idle_s = parse_duration_ms(named.get(MIN_IDLE, "0")) / 1000
    except ValueError as error:
        raise QueueError(QueueErrorCode.BAD_OPTION, f"the user property {MIN_IDLE}: {error}") from error
    return Claim(place=place, min_idle_s=min_idle_s, limit=limit)


_SINGLE = frozenset((GROUP_ID, MESSAGE_ID, PARTITION, OFFSET, GENERATION, MIN_IDLE, COUNT))


def _single(properties: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The properties that these verbs know. Raises :class:`QueueError` (BAD_OPTION) for one that is there twice."""
    found: dict[str, str] = {}
    for name, value in properties:
        if name in _SINGLE:
            if name in found:
                raise QueueError(QueueErrorCode.BAD_OPTION, f"the user property {name} is there twice")
            found[name] = value
    return found
