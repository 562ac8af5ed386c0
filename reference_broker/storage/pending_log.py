"""The pending-entry log of a consumer group: what was delivered and not settled, and where each partition's cursor is.

A file is a header, then frames; a frame is a length, a CRC32-C and operations, so that a torn tail shows. The
operations are those of the seeds' log (add, ack, claim, expire) plus the cursor; each names its partition.
Everything is little-endian.

File header: magic u32, version u16, reserved u16, length u32 and CRC32-C u32 of what follows: group and pattern, each a
uvarint length and UTF-8. When the log has grown well past what is pending, a snapshot replaces it by rename.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from crc32c import crc32c

from reference_broker.core.queues.errors import LogError
from reference_broker.core.queues.store import PendingRecord
from reference_broker.storage.disk import Disk, DiskFile
from reference_broker.storage.log import FileSync, Note
from reference_broker.storage.record import RecordError, read_uvarint, uvarint

MAGIC = 0x4C455046
VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024
SNAPSHOT_SUFFIX = ".tmp"
_FILE_HEADER = struct.Struct("<IHHII")
_FRAME = struct.Struct("<II")
_FRAME_OPERATIONS = 16_384
_MIN_COMPACT_BYTES = 1024 * 1024
_MAX_DELIVERY_COUNT = 65_535

_ADD, _ACK, _CLAIM, _EXPIRE, _CURSOR = 1, 2, 3, 4, 5
_PLACE = struct.Struct("<BQI")
_PLACE_TIME = struct.Struct("<BQIQ")
_TIME = struct.Struct("<Q")
_TIME_COUNT = struct.Struct("<QH")
_pack_place = _PLACE.pack


class PendingLogFile:
    """Implements :class:`reference_broker.core.queues.store.PendingLog`."""

    def __init__(self, disk: Disk, path: str, *, group: str, pattern: str, volatile: bool, note: Note) -> None:
        """Open and recover, or create. Raises :class:`LogError`."""
        self._disk = disk
        self._path = path
        self._header = encode_header(group, pattern)
        self._volatile = volatile
        self._note = note
        self._operations: list[bytes] = []
        self._claim_structs: dict[str, tuple[struct.Struct, struct.Struct, bytes]] = {}
        self._failure = ""
        self._dirty = False
        self._names_unsynced = True
        self._syncing = False
        self._compact_above = _MIN_COMPACT_BYTES
        self.recovered: list[PendingRecord] = []
        self.recovered_cursors: dict[int, int] = {}
        try:
            self._file = self._open()
        except OSError as error:
            message = f"cannot open {path}: {error.strerror or error}"
            raise LogError(message) from error

    # -- opening -------------------------------------------------------------------------------------------------

    def _open(self) -> DiskFile:
        leftover = self._path + SNAPSHOT_SUFFIX
        if self._disk.exists(leftover):
            self._disk.remove(leftover)
        if not self._disk.exists(self._path):
            return self._create()
        file = self._disk.open(self._path)
        data = file.read_at(0, file.size)
        start = header_length(data)
        if start is None:
            if len(data) >= len(self._header):
                self._quarantine(data, 0, "its header is damaged")
            file.truncate(0)
            file.close()
            return self._create()
        state = PendingState()
        end = start
        try:
            for payload, frame_end in _frames(data, start):
                state.replay(payload)
                end = frame_end
        except RecordError as error:
            self._quarantine(data, end, str(error))
        if end < len(data):
            if _sound_frame_after(data, end):
                self._quarantine(data, end, "sound frames follow a damaged one")
            else:
                self._note(f"{self._path} bytes {end} to {len(data)}", "torn tail; cut off")
            file.truncate(end)
            file.sync()
        self.recovered = state.records()
        self.recovered_cursors = dict(sorted(state.cursors.items()))
        return file

    def _create(self) -> DiskFile:
        file = self._disk.open(self._path, create=True)
        file.append(self._header)
        self._dirty = not self._volatile
        return file

    def _quarantine(self, data: bytes, start: int, problem: str) -> None:
        """Keep the damaged bytes beside the log. Settlements among them are lost, so those messages come again."""
        place = f"{self._path}.corrupt"
        if self._disk.exists(place):
            self._disk.remove(place)
        kept = self._disk.open(place, create=True)
        kept.append(data[start:])
        kept.sync()
        kept.close()
        self._note(
            f"{self._path} bytes {start} to {len(data)}",
            f"corrupt ({problem}); kept in {place}; what they settled is delivered again",
        )

    # -- operations ----------------------------------------------------------------------------------------------

    def add(self, partition: int, offset: int, consumer: str, claimed_at_ms: int, delivery_count: int) -> None:
        """See :meth:`PendingLog.add`."""
        whole, _, name = self._structs(consumer)
        count = delivery_count if delivery_count < _MAX_DELIVERY_COUNT else _MAX_DELIVERY_COUNT
        self._operations.append(whole.pack(_ADD, offset, partition, name, claimed_at_ms, count))

    def ack(self, partition: int, offset: int) -> None:
        """See :meth:`PendingLog.ack`."""
        self._operations.append(_pack_place(_ACK, offset, partition))

    def claim(self, partition: int, offset: int, consumer: str, claimed_at_ms: int) -> None:
        """See :meth:`PendingLog.claim`."""
        _, without_count, name = self._structs(consumer)
        self._operations.append(without_count.pack(_CLAIM, offset, partition, name, claimed_at_ms))

    def expire(self, partition: int, offset: int, due_at_ms: int) -> None:
        """See :meth:`PendingLog.expire`."""
        self._operations.append(_PLACE_TIME.pack(_EXPIRE, offset, partition, due_at_ms))

    def move_cursor(self, partition: int, offset: int) -> None:
        """See :meth:`PendingLog.move_cursor`."""
        self._operations.append(_pack_place(_CURSOR, offset, partition))

    def _structs(self, consumer: str) -> tuple[struct.Struct, struct.Struct, bytes]:
        """Layouts of add and claim for a consumer's id, so that each operation is packed in one call."""
        known = self._claim_structs.get(consumer)
        if known is None:
            raw = consumer.encode()
            name = uvarint(len(raw)) + raw
            known = (struct.Struct(f"<BQI{len(name)}sQH"), struct.Struct(f"<BQI{len(name)}sQ"), name)
            if len(self._claim_structs) >= 1_024:
                self._claim_structs.clear()
            self._claim_structs[consumer] = known
        return known

    # -- writing -------------------------------------------------------------------------------------------------

    @property
    def has_unflushed(self) -> bool:
        return bool(self._operations)

    def flush(self) -> None:
        """See :meth:`PendingLog.flush`."""
        if not self._operations:
            return
        if self._failure:
            raise LogError(self._failure, sticky=True)
        frames = b"".join(_encode_frames(self._operations))
        before = self._file.size
        try:
            self._file.append(frames)
        except OSError as error:
            try:
                self._file.truncate(before)
            except OSError as second:
                self._failure = f"{self._path} has a partial write that cannot be cut off: {second.strerror or second}"
            message = f"cannot write {self._path}: {error.strerror or error}"
            raise LogError(message, sticky=bool(self._failure)) from error
        self._operations.clear()
        self._dirty = not self._volatile

    @property
    def wants_snapshot(self) -> bool:
        return self._file.size > self._compact_above and not self._syncing and not self._failure

    def write_snapshot(self, cursors: dict[int, int], entries: Iterable[PendingRecord]) -> None:
        """See :meth:`PendingLog.write_snapshot`."""
        unflushed, self._operations = self._operations, []
        for entry in entries:
            self.add(entry.partition, entry.offset, entry.consumer, entry.claimed_at_ms, entry.delivery_count)
            if not entry.consumer:
                self.expire(entry.partition, entry.offset, entry.due_at_ms)
        # Cursors come last, since an add moves its partition's cursor too.
        for partition, offset in cursors.items():
            self.move_cursor(partition, offset)
        content = b"".join((self._header, *_encode_frames(self._operations)))
        self._operations = unflushed
        temporary = self._path + SNAPSHOT_SUFFIX
        file: DiskFile | None = None
        try:
            file = self._disk.open(temporary, create=True)
            file.truncate(0)
            file.append(content)
            if not self._volatile:
                file.sync()
            self._disk.rename(temporary, self._path)
            if not self._volatile:
                for folder in self._folders_to_sync(renamed=True):
                    self._disk.sync_folder(folder)
        except OSError as error:
            if file is not None:
                file.close()
            self._compact_above = self._file.size * 2
            message = f"cannot replace {self._path} by a snapshot: {error.strerror or error}"
            raise LogError(message) from error
        self._file.close()
        self._file = file
        self._operations.clear()
        self._dirty = self._names_unsynced = False
        self._compact_above = max(_MIN_COMPACT_BYTES, 4 * len(content))

    def start_sync(self) -> FileSync | None:
        """See :meth:`PendingLog.start_sync`."""
        if not self._dirty or self._syncing:
            return None
        self._dirty = False
        self._syncing = True
        folders = self._folders_to_sync(renamed=False)
        self._names_unsynced = False
        return FileSync(self._disk, [self._file], folders)

    def _folders_to_sync(self, *, renamed: bool) -> list[str]:
        """The first sync also covers the names: a log that is found may be new, its creator killed before any sync."""
        folder = self._path.rpartition("/")[0]
        if self._names_unsynced:
            return [folder, folder.rpartition("/")[0]]
        return [folder] if renamed else []

    def finish_sync(self, error: OSError | None) -> None:
        """See :meth:`PendingLog.finish_sync`."""
        self._syncing = False
        if error is not None:
            self._dirty = False
            self._failure = (
                f"a sync of {self._path} failed ({error.strerror or error}); nobody knows what is on disk, "
                "so this group refuses work until the broker restarts"
            )

    def close(self) -> None:
        """Close without syncing. Twice is fine."""
        self._failure = self._failure or "the log is closed"
        self._file.close()


class PendingState:
    """What a replay of operations leads to."""

    def __init__(self) -> None:
        self.cursors: dict[int, int] = {}
        self._entries: dict[tuple[int, int], PendingRecord] = {}

    def records(self) -> list[PendingRecord]:
        return [self._entries[place] for place in sorted(self._entries)]

    def replay(self, payload: bytes) -> None:
        """Apply the operations of one frame. Raises :class:`RecordError` for an unknown or cut operation."""
        at = 0
        try:
            while at < len(payload):
                at = self._apply(payload, at)
        except (struct.error, UnicodeDecodeError) as error:
            message = f"a damaged operation: {error}"
            raise RecordError(message) from error

    def _apply(self, payload: bytes, at: int) -> int:
        operation, offset, partition = _PLACE.unpack_from(payload, at)
        at += _PLACE.size
        place = (partition, offset)
        entries = self._entries
        if operation == _ACK:
            entries.pop(place, None)
        elif operation == _ADD:
            consumer, at = _read_name(payload, at)
            claimed_at_ms, count = _TIME_COUNT.unpack_from(payload, at)
            at += _TIME_COUNT.size
            entries[place] = PendingRecord(partition, offset, consumer, claimed_at_ms, 0, count)
            self.cursors[partition] = max(self.cursors.get(partition, 0), offset + 1)
        elif operation == _CLAIM:
            consumer, at = _read_name(payload, at)
            (claimed_at_ms,) = _TIME.unpack_from(payload, at)
            at += _TIME.size
            if (entry := entries.get(place)) is not None:
                entries[place] = entry._replace(
                    consumer=consumer, claimed_at_ms=claimed_at_ms, delivery_count=entry.delivery_count + 1
                )
        elif operation == _EXPIRE:
            (due_at_ms,) = _TIME.unpack_from(payload, at)
            at += _TIME.size
            if (entry := entries.get(place)) is not None:
                entries[place] = entry._replace(consumer="", due_at_ms=due_at_ms)
        elif operation == _CURSOR:
            self.cursors[partition] = offset
        else:
            message = f"unknown operation {operation}"
            raise RecordError(message)
        return at


def encode_header(group: str, pattern: str) -> bytes:
    """The start of a file."""
    body = b"".join(uvarint(len(raw)) + raw for raw in (group.encode(), pattern.encode()))
    return _FILE_HEADER.pack(MAGIC, VERSION, 0, len(body), crc32c(body)) + body


def header_length(data: bytes) -> int | None:
    """Bytes of a sound file header; None when it is damaged or of another format."""
    if len(data) < _FILE_HEADER.size:
        return None
    magic, version, _, length, checksum = _FILE_HEADER.unpack_from(data)
    end = _FILE_HEADER.size + int(length)
    sound = magic == MAGIC and version == VERSION and end <= len(data)
    return end if sound and crc32c(data[_FILE_HEADER.size : end]) == checksum else None


def read_header(data: bytes) -> tuple[str, str] | None:
    """Group and pattern of a file that starts with these bytes; None when they are damaged."""
    end = header_length(data)
    if end is None:
        return None
    try:
        group, at = _read_name(data[:end], _FILE_HEADER.size)
        pattern, _ = _read_name(data[:end], at)
    except (RecordError, UnicodeDecodeError):
        return None
    return group, pattern


def _encode_frames(operations: list[bytes]) -> Iterator[bytes]:
    for start in range(0, len(operations), _FRAME_OPERATIONS):
        payload = b"".join(operations[start : start + _FRAME_OPERATIONS])
        for piece in (payload,) if len(payload) <= MAX_FRAME_BYTES else operations[start : start + _FRAME_OPERATIONS]:
            yield _FRAME.pack(len(piece), crc32c(piece))
            yield piece


def _frames(data: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Payloads of the sound frames from a position, each with the position after it; stops at the first bad one."""
    at = start
    while (end := _frame_end(data, at)) is not None:
        yield data[at + _FRAME.size : end], end
        at = end


def _frame_end(data: bytes, at: int) -> int | None:
    if at + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + int(length)
    if not 0 < length <= MAX_FRAME_BYTES or end > len(data):
        return None
    return end if crc32c(memoryview(data)[at + _FRAME.size : end]) == checksum else None


def _sound_frame_after(data: bytes, at: int) -> bool:
    """Whether the frame behind a damaged one, where its length points to, is sound."""
    if at + _FRAME.size > len(data):
        return False
    length, _ = _FRAME.unpack_from(data, at)
    return _frame_end(data, at + _FRAME.size + int(length)) is not None


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    size, at = read_uvarint(data, at)
    if at + size > len(data):
        raise RecordError("a name reaches past the end")
    return data[at : at + size].decode(), at + size
