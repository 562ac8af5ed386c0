"""GoQueue's messages as our records, and back.

===================== ================================================================================================
GoQueue               record
===================== ================================================================================================
offset                counted anew, or kept
timestamp in ns       timestamp in ms; a remainder is kept in the header ``_goqueue_timestamp_ns`` (0 to 999999)
no key                empty key (a null key is exported as none, so it comes back empty)
tombstone, no value   null value
priority              header ``_priority`` (0 to 4), none for normal
other flags           header ``_goqueue_flags``, as a number
header                header; a name that starts with ``_`` gets a second one, as user properties do
header that is no     header ``_goqueue_header``: name and value in base64, joined by ``:``. It could not be delivered
UTF-8 text            as a user property otherwise
===================== ================================================================================================

Our own broker headers (``_topic``, ``_publisher``, ...) have no place in GoQueue. :class:`BrokerHeaders` says what
becomes of them.
"""

from __future__ import annotations

import base64
import binascii
from enum import Enum

from assay.reference_broker.queues.jobs.store import Headers, LogRecord, NewRecord
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    GoQueueFlag,
    GoQueueLayout,
    GoQueueMessage,
    GoQueueMessageError,
    check_encodable,
)

PRIORITY_HEADER = b"_priority"
FLAGS_HEADER = b"_goqueue_flags"
TIMESTAMP_HEADER = b"_goqueue_timestamp_ns"
BINARY_HEADER = b"_goqueue_header"
OWN_PREFIX = b"assay."
MAX_TEXT_BYTES = 65_535
"""MQTT's limit of a user property's name and of its value."""
_NS_PER_MS = 1_000_000
_MAX_DIGITS = 9
_, _HAS_HEADERS, _TOMBSTONE, _CONTROL, _COMMIT = (int(flag) for flag in GoQueueFlag)
_FLAGS = [GoQueueFlag(number) for number in range(2 * _COMMIT)]
_OWN_PRIORITIES = {b"%d" % priority: priority for priority in Priority if priority is not Priority.NORMAL}


class BrokerHeaders(Enum):
    """What to do with headers that only our broker may write."""

    DROP = "drop"
    """Export leaves them out; import takes every header for a producer's. Right for files that GoQueue writes or reads:
    its producers must not pose as our broker."""
    KEEP = "keep"
    """Export writes them with the prefix ``assay.``, import takes it off: what was exported comes back as it was. Only
    for files that this broker exported."""


class ConversionError(ValueError):
    """A record or message cannot be converted. ``offset``: where it is, in the log that it comes from."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(f"offset {offset}: {detail}")
        self.offset = offset
        self.detail = detail


def to_record(message: GoQueueMessage, *, broker_headers: BrokerHeaders = BrokerHeaders.DROP) -> NewRecord:
    """The record of a message. Raises :class:`ConversionError` for a binary header that is too large."""
    timestamp_ms, remainder_ns = divmod(message.timestamp_ns, _NS_PER_MS)
    value: bytes | None = message.value
    flags = int(message.flags)
    if message.headers:
        flags &= ~_HAS_HEADERS
    if flags & _TOMBSTONE and not message.value:
        value = None
        flags &= ~_TOMBSTONE
    headers: list[tuple[bytes, bytes]] = []
    if message.priority is not Priority.NORMAL:
        headers.append((PRIORITY_HEADER, b"%d" % message.priority))
    if flags:
        headers.append((FLAGS_HEADER, b"%d" % flags))
    if remainder_ns:
        headers.append((TIMESTAMP_HEADER, b"%d" % remainder_ns))
    keep = broker_headers is BrokerHeaders.KEEP
    for name, header_value in message.headers:
        if keep and name.startswith(OWN_PREFIX):
            headers.append((name.removeprefix(OWN_PREFIX), header_value))
        elif not (_is_text(name) and _is_text(header_value)):
            headers.append((BINARY_HEADER, _pack_binary(message.offset, name, header_value)))
        elif name.startswith(b"_"):
            headers.append((b"_" + name, header_value))
        else:
            headers.append((name, header_value))
    return NewRecord(timestamp_ms, message.key, value, tuple(headers))


def to_message(
    record: LogRecord,
    *,
    layout: GoQueueLayout = GoQueueLayout.V34,
    broker_headers: BrokerHeaders = BrokerHeaders.DROP,
) -> GoQueueMessage:
    """The message of a record, with its offset. Raises :class:`ConversionError` when GoQueue has no room for it.

    Header names may repeat in a record; GoQueue keeps all in the file, but shows its clients the last of them.
    """
    priority, flags_header, remainder_ns, others = _take_own(record.headers)
    headers = _foreign_headers(others, broker_headers)
    flags = 0 if record.value is not None else _TOMBSTONE
    if flags_header is not None:
        own = _own_flags(flags_header, has_value=bool(record.value), has_headers=bool(headers))
        if own is not None:
            flags |= own
        elif broker_headers is BrokerHeaders.KEEP:
            headers = ((OWN_PREFIX + FLAGS_HEADER, flags_header), *headers)
    message = GoQueueMessage(
        offset=record.offset,
        timestamp_ns=record.timestamp_ms * _NS_PER_MS + remainder_ns,
        key=record.key or b"",
        value=record.value or b"",
        flags=_FLAGS[flags],
        priority=priority,
        headers=headers,
    )
    try:
        check_encodable(message, layout)
    except GoQueueMessageError as error:
        raise ConversionError(record.offset, str(error)) from error
    return message


def _take_own(headers: Headers) -> tuple[Priority, bytes | None, int, Headers]:
    """Priority, value of the flags header, nanoseconds, and the headers that are left.

    Only values that an import writes are taken; others are headers like any other of the broker.
    """
    priority: Priority | None = None
    flags_header: bytes | None = None
    remainder_ns = 0
    others: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == PRIORITY_HEADER and priority is None and value in _OWN_PRIORITIES:
            priority = _OWN_PRIORITIES[value]
        elif name == FLAGS_HEADER and flags_header is None:
            flags_header = value
        elif name == TIMESTAMP_HEADER and not remainder_ns and 0 < (number := _number(value)) < _NS_PER_MS:
            remainder_ns = number
        else:
            others.append((name, value))
    return Priority.NORMAL if priority is None else priority, flags_header, remainder_ns, tuple(others)


def _number(value: bytes) -> int:
    """A decimal number as an import writes it; -1 for anything else."""
    if not value.isdigit() or len(value) > _MAX_DIGITS or (value.startswith(b"0") and value != b"0"):
        return -1
    return int(value)


def _own_flags(value: bytes, *, has_value: bool, has_headers: bool) -> int | None:
    """The flags of a header that an import of just such a message would write; None for any other value."""
    flags = _number(value)
    if (
        not 0 < flags < len(_FLAGS)
        or (flags & _COMMIT and not flags & _CONTROL)
        or (flags & _HAS_HEADERS and has_headers)
        or (flags & _TOMBSTONE and not has_value)
    ):
        return None
    return flags


def _foreign_headers(headers: Headers, broker_headers: BrokerHeaders) -> Headers:
    """Record headers as GoQueue's."""
    keep = broker_headers is BrokerHeaders.KEEP
    found: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name.startswith(b"__"):
            found.append((name[1:], value))
        elif name == BINARY_HEADER and (unpacked := _unpack_binary(value)) is not None:
            # A name with our prefix would be taken for a header of ours when it comes back.
            own = keep and unpacked[0].startswith(OWN_PREFIX)
            found.append((OWN_PREFIX + name, value) if own else unpacked)
        elif name.startswith(b"_"):
            if keep:
                found.append((OWN_PREFIX + name, value))
        else:
            found.append((OWN_PREFIX + name if keep and name.startswith(OWN_PREFIX) else name, value))
    return tuple(found)


def _is_text(data: bytes) -> bool:
    """Whether MQTT can carry it as a string."""
    if data.isascii():
        return len(data) <= MAX_TEXT_BYTES and b"\x00" not in data
    if len(data) > MAX_TEXT_BYTES or b"\x00" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pack_binary(offset: int, name: bytes, value: bytes) -> bytes:
    packed = base64.b64encode(name) + b":" + base64.b64encode(value)
    if len(packed) > MAX_TEXT_BYTES:
        raise ConversionError(offset, f"a binary header of {len(name) + len(value)} bytes is too large to keep as text")
    return packed


def _unpack_binary(packed: bytes) -> tuple[bytes, bytes] | None:
    """Name and value of a header that was packed; None when it was not."""
    name, _, value = packed.partition(b":")
    try:
        unpacked = base64.b64decode(name, validate=True), base64.b64decode(value, validate=True)
    except binascii.Error:
        return None
    canonical = base64.b64encode(unpacked[0]) + b":" + base64.b64encode(unpacked[1]) == packed
    return unpacked if canonical and not (_is_text(unpacked[0]) and _is_text(unpacked[1])) else None
