"""Snapshots of coordinator state, in GoQueue's file format; the newest three are kept.

``snapshot-<kind>-<last offset>-<Unix ms>.bin``, big-endian: a header of 32 bytes (magic ``GQSP``, version 1, kind,
CRC-32 at bytes 6 to 9, last log offset contained, time taken in Unix ms, entry count, 2 reserved), then per entry: kind
(1), key length (2), key, value length (4), value.

The checksum is GoQueue's: CRC-32 (of IEEE 802.3, unlike that of its messages) over the entries, not over the header.
What it leaves open is closed here by redundancy: kind, last offset and time must be those of the file's name, the
reserved bytes must be zero, and the entries counted must fill the file exactly. So no single flipped bit passes.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.whole_file import sync_up, write_whole

MAGIC = b"GQSP"
VERSION = 1
HEADER_BYTES = 32
KEPT_SNAPSHOTS = 3
SNAPSHOT_RECORDS = 10_000
SNAPSHOT_INTERVAL_S = 300.0
MAX_KEY_BYTES = 65_535
MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024
ENTRY_OVERHEAD_BYTES = 7
_MAX_NUMBER = 2**63 - 1
_HEADER = struct.Struct(">4sBBIqqIH")
_ENTRY = struct.Struct(">BH")
_VALUE_BYTES = struct.Struct(">I")
_NAME = re.compile(r"snapshot-(\d{1,3})-(\d{1,19})-(\d{1,19})\.bin")
_TEMPORARY_SUFFIX = ".tmp"

Note = Callable[[str, str], None]
"""Called with (place, problem) for what people should know."""


class SnapshotKind(IntEnum):
    """What the state belongs to. GoQueue knows the first two."""

    GROUPS = 1
    TRANSACTIONS = 2
    KEYED_STATE = 16
    """Of a :class:`assay.reference_broker.storage.state_log.StateLog`."""


class SnapshotProblem(Enum):
    """Why bytes are not a snapshot, or cannot become one."""

    TRUNCATED = "the snapshot is cut short"
    BAD_MAGIC = "no snapshot starts here"
    BAD_VERSION = "the snapshot is of an unknown format version"
    BAD_HEADER = "the header contradicts the file"
    BAD_CHECKSUM = "the checksum does not match"
    BAD_ENTRIES = "the entries cannot be decoded"
    TOO_LARGE = "a size exceeds its limit"


class SnapshotError(ValueError):
    """Bytes are not a whole, sound snapshot, or state does not fit into one."""

    def __init__(self, problem: SnapshotProblem, detail: str = "") -> None:
        super().__init__(f"{problem.value}: {detail}" if detail else problem.value)
        self.problem = problem


class SnapshotEntry(NamedTuple):
    """One piece of state. ``kind`` is the coordinator's own (GoQueue: 1 offset commit, 2 group, 3 member)."""

    kind: int
    key: bytes
    value: bytes


class SnapshotName(NamedTuple):
    """What a snapshot's file name says. Sorts by age within a kind."""

    kind: int
    last_offset: int
    timestamp_ms: int

    @property
    def file_name(self) -> str:
        return f"snapshot-{self.kind}-{self.last_offset}-{self.timestamp_ms}.bin"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State of a coordinator as of a place in its log."""

    kind: int
    last_offset: int
    """Of the last log record that the state contains; replay goes on behind it."""
    timestamp_ms: int
    """When it was taken, Unix time."""
    entries: tuple[SnapshotEntry, ...]


def parse_snapshot_name(name: str) -> SnapshotName | None:
    """What the name of a snapshot's file says; None for any other file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    found = SnapshotName(*(int(digits) for digits in match.groups()))
    return found if found.file_name == name and found.kind < 256 and max(found) <= _MAX_NUMBER else None


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot. Raises :class:`SnapshotError` (TOO_LARGE, BAD_HEADER)."""
    if not 0 <= snapshot.kind < 256 or not 0 <= snapshot.last_offset <= _MAX_NUMBER:
        raise SnapshotError(SnapshotProblem.BAD_HEADER, f"kind {snapshot.kind}, last offset {snapshot.last_offset}")
    if not 0 <= snapshot.timestamp_ms <= _MAX_NUMBER:
        raise SnapshotError(SnapshotProblem.BAD_HEADER, f"time {snapshot.timestamp_ms} ms")
    parts: list[bytes] = []
    size = HEADER_BYTES
    for kind, key, value in snapshot.entries:
        if len(key) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES:
            detail = (
                f"an entry with a key of {len(key)} and a value of {len(value)} bytes; "
                f"the limits are {MAX_KEY_BYTES} and {MAX_VALUE_BYTES}"
            )
            raise SnapshotError(SnapshotProblem.TOO_LARGE, detail)
        parts += (_ENTRY.pack(kind, len(key)), key, _VALUE_BYTES.pack(len(value)), value)
        size += ENTRY_OVERHEAD_BYTES + len(key) + len(value)
    if size > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(SnapshotProblem.TOO_LARGE, f"{size} bytes; the limit is {MAX_SNAPSHOT_BYTES}")
    body = b"".join(parts)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        snapshot.kind,
        zlib.crc32(body),
        snapshot.last_offset,
        snapshot.timestamp_ms,
        len(snapshot.entries),
        0,
    )
    return header + body


def decode_snapshot(data: bytes, name: SnapshotName | None = None) -> Snapshot:
    """A whole snapshot, verified, also against its file name if given. Raises :class:`SnapshotError`."""
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(SnapshotProblem.TOO_LARGE, f"{len(data)} bytes; the limit is {MAX_SNAPSHOT_BYTES}")
    if len(data) < HEADER_BYTES:
        raise SnapshotError(SnapshotProblem.TRUNCATED, f"{len(data)} of {HEADER_BYTES} header bytes")
    magic, version, kind, checksum, last_offset, timestamp_ms, count, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotError(SnapshotProblem.BAD_MAGIC)
    if version != VERSION:
        raise SnapshotError(SnapshotProblem.BAD_VERSION, f"version {version}; known is {VERSION}")
    found = SnapshotName(kind, last_offset, timestamp_ms)
    if reserved or last_offset < 0 or (name is not None and found != name):
        raise SnapshotError(SnapshotProblem.BAD_HEADER, f"it says {found.file_name}, reserved bytes {reserved:#06x}")
    if zlib.crc32(memoryview(data)[HEADER_BYTES:]) != checksum:
        raise SnapshotError(SnapshotProblem.BAD_CHECKSUM)
    return Snapshot(kind=kind, last_offset=last_offset, timestamp_ms=timestamp_ms, entries=_decode_entries(data, count))


def _decode_entries(data: bytes, count: int) -> tuple[SnapshotEntry, ...]:
    """Exactly ``count`` entries that fill the rest. The count alone allocates nothing."""
    entries: list[SnapshotEntry] = []
    at = HEADER_BYTES
    try:
        while at < len(data) and len(entries) < count:
            kind, key_bytes = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            key = data[at : at + key_bytes]
            at += key_bytes
            (value_bytes,) = _VALUE_BYTES.unpack_from(data, at)
            at += _VALUE_BYTES.size
            entries.append(SnapshotEntry(kind, key, data[at : at + value_bytes]))
            at += value_bytes
    except struct.error:
        at = len(data) + 1
    if at != len(data) or len(entries) != count:
        raise SnapshotError(SnapshotProblem.BAD_ENTRIES, f"{count} entries do not fill {len(data)} bytes")
    return tuple(entries)


class SnapshotStore:
    """The snapshots of one coordinator in a folder, which other kinds may share."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        kind: int,
        *,
        note: Note,
        interval_records: int = SNAPSHOT_RECORDS,
        interval_s: float = SNAPSHOT_INTERVAL_S,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._kind = kind
        self._note = note
        self._interval_records = interval_records
        self._interval_s = interval_s
        self._damaged: set[SnapshotName] = set()
        self._taken_at_s: float | None = None
        self._folder_is_durable = False

    def due(self, records_since: int, now_s: float) -> bool:
        """Whether it is time for a snapshot: ``records_since`` the last one, or 5 minutes with at least one record."""
        if self._taken_at_s is None or now_s < self._taken_at_s:
            self._taken_at_s = now_s
        if records_since >= self._interval_records:
            return True
        return records_since > 0 and now_s - self._taken_at_s >= self._interval_s

    def names(self) -> list[SnapshotName]:
        """Snapshots in the folder, newest first, sound or not. Raises :class:`OSError`."""
        found = (parse_snapshot_name(name) for name in self._disk.list(self._folder))
        return sorted((name for name in found if name is not None and name.kind == self._kind), reverse=True)

    @property
    def oldest_kept_offset(self) -> int:
        """Last offset of the oldest snapshot that :meth:`load` may fall back to; -1 when there is none.

        The log must keep what lies behind it. Raises :class:`OSError`.
        """
        kept = [name.last_offset for name in self.names() if name not in self._damaged]
        return min(kept, default=-1)

    def load(self) -> Snapshot | None:
        """The newest sound snapshot; None when there is none. Others are noted and skipped. Raises :class:`OSError`."""
        for name in self.names():
            path = f"{self._folder}/{name.file_name}"
            try:
                snapshot = decode_snapshot(self._read(path), name)
            except SnapshotError as error:
                self._damaged.add(name)
                self._note(path, f"damaged snapshot ({error}); an older one is used, and more of the log read")
            except OSError as error:
                self._note(
                    path, f"unreadable ({error.strerror or error}); an older one is used, and more of the log read"
                )
            else:
                self._taken_at_s = snapshot.timestamp_ms / 1000
                return snapshot
        return None

    def _read(self, path: str) -> bytes:
        with closing(self._disk.open(path)) as file:
            return file.read_at(0, MAX_SNAPSHOT_BYTES + 1)

    def write(self, entries: Iterable[SnapshotEntry], last_offset: int, timestamp_ms: int) -> None:
        """Store a snapshot durably, then remove those older than the newest three. Blocking; any thread.

        ``last_offset``: of the last record contained, which must be durable in the log already. Until this returns, the
        older snapshots are all there. Raises :class:`SnapshotError` when the state is too large, and :class:`OSError`.
        """
        name = SnapshotName(self._kind, last_offset, timestamp_ms)
        data = encode_snapshot(
            Snapshot(kind=self._kind, last_offset=last_offset, timestamp_ms=timestamp_ms, entries=tuple(entries))
        )
        self._make_folder()
        path = f"{self._folder}/{name.file_name}"
        temporary = f"{path}{_TEMPORARY_SUFFIX}"
        try:
            self.write_file(temporary, data)
        except OSError:
            self._remove(temporary)
            raise
        self._disk.rename(temporary, path)
        self._disk.sync_folder(self._folder)
        self._damaged.discard(name)
        self._taken_at_s = timestamp_ms / 1000
        self._remove_old()

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file whole and sync it, whatever was there. Raises :class:`OSError`."""
        write_whole(self._disk, path, data)

    def _make_folder(self) -> None:
        if self._folder_is_durable:
            return
        self._disk.make_folder(self._folder)
        sync_up(self._disk, self._folder.rpartition("/")[0])
        self._folder_is_durable = True

    def _remove_old(self) -> None:
        """Damaged ones do not count. A removal that a power loss undoes costs space, no state."""
        names = self.names()
        sound = [name for name in names if name not in self._damaged]
        doomed = [name.file_name for name in (*sound[KEPT_SNAPSHOTS:], *self._damaged) if name in names]
        own_prefix = f"snapshot-{self._kind}-"
        doomed += [
            name
            for name in self._disk.list(self._folder)
            if name.startswith(own_prefix) and name.endswith(_TEMPORARY_SUFFIX)
        ]
        for file_name in doomed:
            self._remove(f"{self._folder}/{file_name}")
        self._damaged.clear()

    def _remove(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._note(path, f"cannot be removed: {error.strerror or error}")
