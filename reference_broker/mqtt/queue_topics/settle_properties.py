"""What a settlement names and asks for, as consumers write it in user properties."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.publish_properties import PRODUCER_EPOCH, PRODUCER_ID, TRANSACTION_ID
from assay.reference_broker.queues.delivery.settle_request import MAX_DELIVERIES, Outcome, SettleRequest
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.durations import parse_duration_ms
from assay.reference_broker.queues.messages.publish_options import TransactionKey

MESSAGE_ID: Final = "message-id"
GROUP_ID: Final = "group-id"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
OFFSETS: Final = "offsets"
RECEIPT: Final = "receipt"
DELAY: Final = "delay"
EXTEND: Final = "extend"
REASON: Final = "reason"
GENERATION: Final = "generation"


MAX_NACK_DELAY_S = 604_800.0
MAX_EXTENSION_S = 43_200.0
_MAX_DIGITS = 19
OUTCOMES: Final = {
    Verb.ACK: Outcome.ACCEPT,
    Verb.NACK: Outcome.FAIL,
    Verb.REJECT: Outcome.REJECT,
    Verb.EXTEND: Outcome.EXTEND,
}
"""The verbs that settle deliveries."""


def parse_settlement(verb: Verb, properties: tuple[tuple[str, str], ...]) -> SettleRequest:
    """Read a settlement. Other properties are ignored.

    Raises :class:`QueueError`: BAD_ADDRESS for a malformed or missing name, BAD_OPTION for a value that cannot be
    honoured, an option that does not belong to the verb, and more deliveries than one settlement may name.
    """
    ids: list[str] = []
    receipts: list[str] = []
    single: dict[str, str] = {}
    for name, value in properties:
        if name == MESSAGE_ID:
            ids.append(value)
        elif name == RECEIPT:
            receipts.append(value)
        elif name in _SINGLE:
            if name in single:
                raise _bad_option(f"the user property {name} is there twice")
            single[name] = value
    if len(ids) == 1 and not receipts and (not single or single.keys() == _ONLY_GROUP):
        # What nearly every settlement looks like.
        return SettleRequest(outcome=OUTCOMES[verb], message_ids=(ids[0],), group=single.get(GROUP_ID))
    return _parse(verb, tuple(ids), tuple(receipts), single)


_TRANSACTION: Final = (PRODUCER_ID, PRODUCER_EPOCH, TRANSACTION_ID)
_SINGLE = frozenset((GENERATION, GROUP_ID, PARTITION, OFFSET, OFFSETS, DELAY, EXTEND, REASON, *_TRANSACTION))
_ONLY_GROUP = frozenset((GROUP_ID,))


def _parse(verb: Verb, ids: tuple[str, ...], receipts: tuple[str, ...], single: dict[str, str]) -> SettleRequest:
    partition = whole_number(single[PARTITION], PARTITION) if PARTITION in single else None
    offset = whole_number(single[OFFSET], OFFSET) if OFFSET in single else None
    ranges = parse_ranges(single[OFFSETS]) if OFFSETS in single else ()
    if offset is not None and ranges:
        raise _bad_address("a settlement names an offset or offsets, not both")
    if ranges and (ids or receipts):
        raise _bad_address("a settlement names offsets, or message ids, or receipts")
    if receipts and (ids or partition is not None or offset is not None):
        raise _bad_address("a settlement that names receipts names nothing beside them")
    if ranges and partition is None:
        raise _bad_address("offsets need the partition that they belong to")
    if not ids and not receipts and (partition is None or (offset is None and not ranges)):
        raise _bad_address("a settlement must name its delivery: message-id, receipt, or partition and offset")
    if len(ids) > 1 and (partition is not None or offset is not None):
        raise _bad_address("a settlement of several message ids names no partition or offset beside them")
    if len(ids) + len(receipts) > MAX_DELIVERIES:
        raise _bad_option(f"a settlement names at most {MAX_DELIVERIES} deliveries")
    if offset is not None:
        ranges = ((offset, offset + 1),)
    return SettleRequest(
        outcome=OUTCOMES[verb],
        message_ids=ids,
        receipts=receipts,
        partition=partition,
        ranges=ranges,
        group=single.get(GROUP_ID),
        delay_s=parse_seconds(single, DELAY, verb, Verb.NACK, MAX_NACK_DELAY_S),
        extend_s=parse_seconds(single, EXTEND, verb, Verb.EXTEND, MAX_EXTENSION_S),
        reason=single.get(REASON, ""),
        generation=whole_number(single[GENERATION], GENERATION) if GENERATION in single else None,
        within=parse_transaction(single, verb),
    )


def parse_transaction(single: dict[str, str], verb: Verb) -> TransactionKey | None:
    """The transaction that the settlement belongs to. Raises :class:`QueueError` (BAD_OPTION)."""
    if TRANSACTION_ID not in single:
        return None
    if verb is not Verb.ACK:
        raise _bad_option("in a transaction a delivery can be acknowledged, nothing else")
    if PRODUCER_ID not in single or PRODUCER_EPOCH not in single:
        raise _bad_option(f"{TRANSACTION_ID} needs {PRODUCER_ID} and {PRODUCER_EPOCH} beside it")
    producer_id = whole_number(single[PRODUCER_ID], PRODUCER_ID)
    return TransactionKey(producer_id, whole_number(single[PRODUCER_EPOCH], PRODUCER_EPOCH), single[TRANSACTION_ID])


def parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """``1,2,5-9`` as ``((1, 3), (5, 10))``: ascending, without overlaps, ends exclusive. Raises :class:`QueueError`.

    ``MAX_DELIVERIES`` offsets at most.
    """
    found: list[tuple[int, int]] = []
    for part in text.split(",", MAX_DELIVERIES):
        first, dash, last = part.strip().partition("-")
        start = whole_number(first, OFFSETS)
        end = whole_number(last, OFFSETS) + 1 if dash else start + 1
        if end <= start:
            raise _bad_address(f"the user property {OFFSETS}: {part[:40]!r} ends before it begins")
        found.append((start, end))
    merged: list[tuple[int, int]] = []
    total = 0
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            previous, known_end = merged.pop()
            total -= known_end - previous
            start, end = previous, max(known_end, end)
        merged.append((start, end))
        total += end - start
    if total > MAX_DELIVERIES:
        raise _bad_option(f"the user property {OFFSETS} names {total} offsets; at most {MAX_DELIVERIES} are allowed")
    return tuple(merged)


def whole_number(text: str, name: str) -> int:
    """A number of at most 19 decimal digits. Raises :class:`QueueError` (BAD_ADDRESS)."""
    # isdecimal also holds for digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise _bad_address(f"the user property {name} must be a whole number, not {text[:40]!r}")
    return int(text)


def parse_seconds(single: dict[str, str], name: str, verb: Verb, wanted: Verb, limit_s: float) -> float | None:
    """The user property ``name`` in seconds, of the verb ``wanted``; None without it. Raises :class:`QueueError`."""
    text = single.get(name)
    if text is None:
        return None
    if verb is not wanted:
        raise _bad_option(f"the user property {name} belongs to ${wanted.value}, not to ${verb.value}")
    try:
        seconds = parse_duration_ms(text) / 1000
    except ValueError as error:
        raise _bad_option(f"the user property {name}: {error}") from error
    if seconds > limit_s:
        raise _bad_option(f"the user property {name} is {seconds:g} s; at most {limit_s:g} s are allowed")
    return seconds


def _bad_address(text: str) -> QueueError:
    return QueueError(QueueErrorCode.BAD_ADDRESS, text)


def _bad_option(text: str) -> QueueError:
    return QueueError(QueueErrorCode.BAD_OPTION, text)
