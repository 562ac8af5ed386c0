"""Names of queues, groups, messages and deliveries, and the topics under which records keep them."""

from __future__ import annotations

import re

import msgspec

from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode

QUEUE_PREFIX = "$queue/"
DEAD_LETTER_PREFIX = "$dlq/"
DEAD_LETTER_ALIAS = "$queue/dlq/"
_ALIAS_BY_NAME = "dlq/"
MARK_GROUP = "$mark"
"""A group of the broker's own: it remembers what is gone from a dead-letter queue that has no other group."""
MAX_QUEUE_NAME_BYTES = 512
MAX_GROUP_BYTES = 1_024
_MAX_DIGITS = 19
_NONCE = re.compile(r"[0-9a-f]{16}")


class QueueAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message goes, or a consumer consumes."""

    queue: str
    """Engine name of the queue; a dead-letter queue's is ``$dlq/<origin>``."""
    routing_key: str = ""
    """A filter where it is a consumer's."""
    bound: tuple[str, ...] = ()
    """Other queues that get the message as well."""


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


def engine_name(name: str) -> str:
    """The queue that a name stands for; ``dlq/<queue>`` is the dead-letter queue. Raises :class:`QueueError`."""
    if name.startswith(_ALIAS_BY_NAME):
        name = DEAD_LETTER_PREFIX + name[len(_ALIAS_BY_NAME) :]
    check_queue_name(name)
    return name
