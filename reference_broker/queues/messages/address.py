"""Queue addresses: ``$queue/<name>/<routing key>``, ``$dlq/<name>``, and the settlement verbs as last level."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode

QUEUE_PREFIX = "$queue/"
DEAD_LETTER_PREFIX = "$dlq/"
DEAD_LETTER_ALIAS = "$queue/dlq/"
MARK_GROUP = "$mark"
"""A group of the broker's own: it remembers what is gone from a dead-letter queue that has no other group."""
MAX_QUEUE_NAME_BYTES = 512
MAX_GROUP_BYTES = 1_024
_MAX_DIGITS = 19
_NONCE = re.compile(r"[0-9a-f]{16}")


class Verb(StrEnum):
    """A settlement."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    """Keep the delivery longer before it times out."""
    CANCEL = "cancel"
    """Not of a delivery: a delayed message shall never be published."""
    COMMIT = "commit"
    """Settle everything of a partition below an offset."""
    CLAIM = "claim"
    """Take over deliveries that another consumer has had for long."""


_VERB_LEVELS = {f"${verb.value}": verb for verb in Verb}


class QueueAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a topic points to."""

    queue: str
    """Engine name of the queue; a dead-letter queue's is ``$dlq/<origin>``."""
    routing_key: str
    """The levels after the queue name; a filter when the topic is a subscription's."""
    verb: Verb | None
    bound: tuple[str, ...] = ()
    """Other queues whose filters match the topic."""


def is_dead_letter(queue: str) -> bool:
    """Whether an engine name is that of a dead-letter queue."""
    return queue.startswith(DEAD_LETTER_PREFIX)


def dead_letter_name(queue: str) -> str:
    """Engine name of the dead-letter queue of a queue."""
    return DEAD_LETTER_PREFIX + queue


def topic_of(queue: str, routing_key: str) -> str:
    """The topic that addresses a queue: the one its deliveries carry."""
    base = queue if is_dead_letter(queue) else QUEUE_PREFIX + queue
    return f"{base}/{routing_key}" if routing_key else base


def check_queue_name(name: str) -> None:
    """Refuse names that no topic could address. Raises :class:`QueueError` (BAD_ADDRESS)."""
    plain = name[len(DEAD_LETTER_PREFIX) :] if is_dead_letter(name) else name
    levels = plain.split("/")
    problem = None
    if "" in levels:
        problem = "has an empty level"
    elif "+" in plain or "#" in plain:
        problem = "contains a wildcard"
    elif any(level.startswith("$") for level in levels):
        problem = "has a level that starts with '$', which is reserved"
    elif levels[0] == "dlq" and not is_dead_letter(name):
        problem = "starts with 'dlq', which addresses dead-letter queues"
    elif "\x00" in plain or _utf8_length(plain) > MAX_QUEUE_NAME_BYTES:
        problem = f"must be at most {MAX_QUEUE_NAME_BYTES} bytes of UTF-8 without NUL"
    if problem is not None:
        raise _bad(f"the queue name {name[:80]!r} {problem}")


def check_group_name(group: str) -> None:
    """Raises :class:`QueueError` (BAD_ADDRESS)."""
    if not group or "\x00" in group or _utf8_length(group) > MAX_GROUP_BYTES:
        raise _bad(f"a consumer group needs a name of 1 to {MAX_GROUP_BYTES} bytes of UTF-8 without NUL")
    if group == MARK_GROUP:
        raise _bad(f"the group name {MARK_GROUP} is the broker's own")


def parse_address(topic: str, exists: Callable[[str], bool]) -> QueueAddress:
    """Resolve a topic or filter. The queue is the longest existing name that is a prefix, else the first level.

    ``exists`` tells whether a plain queue name (without ``$dlq/``) is in use. Raises :class:`QueueError` (BAD_ADDRESS).
    """
    if topic.startswith(DEAD_LETTER_ALIAS):
        path, dead_letters = topic[len(DEAD_LETTER_ALIAS) :], True
    elif topic.startswith(DEAD_LETTER_PREFIX):
        path, dead_letters = topic[len(DEAD_LETTER_PREFIX) :], True
    elif topic.startswith(QUEUE_PREFIX):
        path, dead_letters = topic[len(QUEUE_PREFIX) :], False
    else:
        raise _bad(f"{topic[:80]!r} is not a queue topic: those start with $queue/ or $dlq/")
    levels = path.split("/")
    verb = _VERB_LEVELS.get(levels[-1])
    if verb is not None:
        del levels[-1]
    if any(level in _VERB_LEVELS for level in levels):
        raise _bad(f"{topic[:80]!r}: {', '.join(_VERB_LEVELS)} are only allowed as the last level")
    if not levels:
        raise _bad(f"{topic[:80]!r} names no queue before the settlement verb")
    used = _queue_levels(levels, exists)
    name = "/".join(levels[:used])
    queue = dead_letter_name(name) if dead_letters else name
    check_queue_name(queue)
    return QueueAddress(queue=queue, routing_key="/".join(levels[used:]), verb=verb)


def _queue_levels(levels: list[str], exists: Callable[[str], bool]) -> int:
    for used in range(len(levels), 1, -1):
        if exists("/".join(levels[:used])):
            return used
    return 1


def receipt_of(queue: str, partition: int, offset: int, delivery_count: int, nonce: int) -> str:
    """The handle of one delivery: whoever has it may settle that delivery, and no later one."""
    return f"{queue}:{partition}:{offset}:{delivery_count}:{nonce:016x}"


def parse_receipt(receipt: str) -> tuple[str, int, int, int, int]:
    """``<queue>:<partition>:<offset>:<delivery count>:<nonce>`` -> its parts; the queue name may contain ``:``.

    Raises :class:`QueueError` (BAD_ADDRESS).
    """
    parts = receipt.rsplit(":", 4)
    if len(parts) == 5 and parts[0] and _NONCE.fullmatch(parts[4]):
        numbers = parts[1:4]
        if all(text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS for text in numbers):
            partition, offset, delivery_count = map(int, numbers)
            return parts[0], partition, offset, delivery_count, int(parts[4], 16)
    raise _bad(f"the receipt {receipt[:80]!r} is not <queue>:<partition>:<offset>:<delivery count>:<nonce>")


def message_id_of(queue: str, partition: int, offset: int) -> str:
    return f"{queue}:{partition}:{offset}"


def parse_message_id(message_id: str) -> tuple[str, int, int]:
    """``<queue>:<partition>:<offset>`` -> its parts, read from the right since a queue name may contain ``:``.

    Raises :class:`QueueError` (BAD_ADDRESS).
    """
    parts = message_id.rsplit(":", 2)
    # isdecimal also holds for digits of other scripts; those are no message ids.
    if len(parts) == 3 and parts[0] and parts[1].isdecimal() and parts[2].isdecimal():
        queue, partition, offset = parts
        if len(partition) <= _MAX_DIGITS and len(offset) <= _MAX_DIGITS and partition.isascii() and offset.isascii():
            return queue, int(partition), int(offset)
    raise _bad(f"the message id {message_id[:80]!r} is not <queue>:<partition>:<offset>")


def _utf8_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise _bad("names must be valid Unicode, without lone surrogates") from error


def _bad(text: str) -> QueueError:
    return QueueError(QueueErrorCode.BAD_ADDRESS, text)
