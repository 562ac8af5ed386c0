"""The snapshot of a consumer group, in FluxMQ's files: cursors in ``<group>.cur``, pending entries in ``<group>.pel``.

Both are JSON with Go's capitalised field names and an indent of two spaces. They are read as FluxMQ wrote them with
partitions (January 2026) and after it had given partitions up; they are written in the first form. ``DueAt`` and
``Annotations`` are ours: only entries that wait for redelivery have the one, and those that consumers noted something
on the other (Base64 of an encoded table); readers of FluxMQ's own fields pass over them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.trace.described import described

VERSION = 1
MAX_FILE_BYTES = 1024 * 1024 * 1024
_MAX_U64 = 2**64 - 1
_MAX_PARTITION = 2**32 - 1
_MAX_DELIVERY_COUNT = 65_535
_Document = TypeVar("_Document")


class GroupFileError(ValueError):
    """The bytes are no such file; the text says why."""


class GroupFileVersionError(GroupFileError):
    """The file is sound, but of a version that this code does not know."""


class CursorFile(msgspec.Struct, frozen=True, kw_only=True):
    """A ``.cur`` file. Times are Unix milliseconds."""

    group: str
    cursors: dict[int, CursorRecord]
    """By partition; a file without partitions has partition 0."""
    saved_at_ms: int


class PendingFile(msgspec.Struct, frozen=True, kw_only=True):
    """A ``.pel`` file. Times are Unix milliseconds."""

    group: str
    entries: tuple[PendingRecord, ...]
    """In the order of the file."""
    saved_at_ms: int


# -- writing -----------------------------------------------------------------------------------------------------


def encode_cursor_file(group: str, cursors: Mapping[int, CursorRecord], now_ms: int) -> bytes:
    """Partition -> cursor as a ``.cur`` file, ordered as Go orders keys."""
    pieces = [
        f"    {_text(name)}: {{\n"
        f'      "Cursor": {cursors[partition].cursor},\n'
        f'      "Committed": {cursors[partition].committed},\n'
        f'      "UpdatedAt": {now_ms}\n'
        "    }"
        for name, partition in sorted((str(partition), partition) for partition in cursors)
    ]
    return _document(group, "cursors", pieces, now_ms)


class PendingFileEncoder:
    """Builds a ``.pel`` file, some entries at a time."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_consumer: dict[str, tuple[str, list[str]]] = {}
        self.encoded_characters = 0

    def add(self, entries: Iterable[PendingRecord]) -> int:
        """Take entries in, in the order in which each consumer's shall be listed; returns how many there were."""
        known = self._by_consumer
        count = characters = 0
        for partition, offset, consumer, claimed_at_ms, due_at_ms, delivery_count, noted in entries:
            listed = known.get(consumer)
            if listed is None:
                listed = known[consumer] = (_text(consumer), [])
            due = "" if consumer and not due_at_ms else f',\n        "DueAt": {due_at_ms}'
            if noted:
                due += f',\n        "Annotations": "{b64encode(noted).decode()}"'
            encoded = (
                f'      {{\n        "Offset": {offset},\n        "PartitionID": {partition},\n'
                f'        "ConsumerID": {listed[0]},\n        "ClaimedAt": {claimed_at_ms},\n'
                f'        "DeliveryCount": {delivery_count}{due}\n      }}'
            )
            listed[1].append(encoded)
            count += 1
            characters += len(encoded)
        self.encoded_characters += characters
        return count

    def encode(self, now_ms: int) -> bytes:
        """The file's content."""
        pieces = [
            f"    {text}: [\n" + ",\n".join(entries) + "\n    ]"
            for _, (text, entries) in sorted(self._by_consumer.items(), key=lambda item: item[0].encode())
        ]
        return _document(self._group, "entries", pieces, now_ms)


def _document(group: str, name: str, pieces: list[str], now_ms: int) -> bytes:
    content = "{\n" + ",\n".join(pieces) + "\n  }" if pieces else "{}"
    head = f'{{\n  "version": {VERSION},\n  "group_id": {_text(group)},\n  "{name}": '
    return f'{head}{content},\n  "saved_at": {now_ms}\n}}'.encode()


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()


# -- reading -----------------------------------------------------------------------------------------------------


class _Versioned(msgspec.Struct, frozen=True, kw_only=True):
    version: int


class _Cursor(msgspec.Struct, frozen=True, kw_only=True):
    cursor: int = msgspec.field(name="Cursor")
    committed: int = msgspec.field(name="Committed", default=0)


class _CursorDocument(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    cursors: dict[int, _Cursor] | None = None
    cursor: _Cursor | None = None
    saved_at: int = 0


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    offset: int = msgspec.field(name="Offset")
    partition: int = msgspec.field(name="PartitionID", default=0)
    consumer: str = msgspec.field(name="ConsumerID")
    claimed_at_ms: int = msgspec.field(name="ClaimedAt")
    delivery_count: int = msgspec.field(name="DeliveryCount")
    due_at_ms: int = msgspec.field(name="DueAt", default=0)
    annotations: bytes = msgspec.field(name="Annotations", default=b"")


class _PendingDocument(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    entries: dict[str, list[_Entry] | None] | None
    saved_at: int = 0


_version_decoder = msgspec.json.Decoder(described(_Versioned))
_cursor_decoder = msgspec.json.Decoder(described(_CursorDocument))
_pending_decoder = msgspec.json.Decoder(described(_PendingDocument))


def decode_cursor_file(data: bytes) -> CursorFile:
    """Read a ``.cur`` file, with partitions or without. Raises :class:`GroupFileError`."""
    document = _decode(data, _cursor_decoder)
    found = document.cursors or {}
    if document.cursor is not None:
        found = {**found, 0: document.cursor}
    cursors: dict[int, CursorRecord] = {}
    for partition, entry in found.items():
        _check(partition, _MAX_PARTITION, "partition")
        _check(entry.cursor, _MAX_U64, "Cursor")
        _check(entry.committed, entry.cursor, "Committed")
        cursors[partition] = CursorRecord(entry.cursor, entry.committed)
    return CursorFile(group=document.group_id, cursors=cursors, saved_at_ms=document.saved_at)


def decode_pending_file(data: bytes) -> PendingFile:
    """Read a ``.pel`` file, with partitions or without. Raises :class:`GroupFileError`."""
    document = _decode(data, _pending_decoder)
    entries: list[PendingRecord] = []
    for listed in (document.entries or {}).values():
        for entry in listed or ():
            _check(entry.offset, _MAX_U64 - 1, "Offset")
            _check(entry.partition, _MAX_PARTITION, "PartitionID")
            _check(entry.claimed_at_ms, _MAX_U64, "ClaimedAt")
            _check(entry.due_at_ms, _MAX_U64, "DueAt")
            _check(entry.delivery_count, _MAX_DELIVERY_COUNT, "DeliveryCount")
            entries.append(
                PendingRecord(
                    entry.partition,
                    entry.offset,
                    entry.consumer,
                    entry.claimed_at_ms,
                    entry.due_at_ms,
                    entry.delivery_count,
                    entry.annotations,
                )
            )
    return PendingFile(group=document.group_id, entries=tuple(entries), saved_at_ms=document.saved_at)


def _decode(data: bytes, decoder: msgspec.json.Decoder[_Document]) -> _Document:
    if len(data) > MAX_FILE_BYTES:
        raise GroupFileError(f"it has {len(data)} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        version = _version_decoder.decode(data).version
        if version != VERSION:
            raise GroupFileVersionError(f"it has version {version}; this broker reads version {VERSION}")
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GroupFileError(f"it is no such JSON: {error}") from error


def _check(number: int, highest: int, name: str) -> None:
    if not 0 <= number <= highest:
        raise GroupFileError(f"{name} is {number}, not between 0 and {highest}")
