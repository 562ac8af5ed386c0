"""Opening a group's files: what state they hold, and which log goes on.

The state is the snapshot (``.cur``, ``.pel``), then ``.pel.log``, then ``.pel.log.next``. A log of sequence 0 holds
everything since the group began and needs no snapshot. The next log counts only when the one before it is whole: it
was synced after that one, and without it a cursor might pass over messages that nobody was given. For the same reason
whatever follows damage is left out, and an unreadable ``.pel`` is replaced by everything that ``.cur`` does not call
settled: messages may come again, none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, TypeVar

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.group_files import (
    MAX_FILE_BYTES,
    GroupFileError,
    GroupFileVersionError,
    decode_cursor_file,
    decode_pending_file,
)
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.pending_codec import (
    MAX_HEADER_BYTES,
    VERSION,
    LogDamage,
    LogHeader,
    decode_header,
    decode_operations,
    encode_header,
    walk_frames,
)
from assay.reference_broker.storage.pending_snapshot import GroupPaths
from assay.reference_broker.storage.pending_state import PendingState
from assay.reference_broker.storage.record import RecordError
from assay.reference_broker.storage.reopened_file import ReopenedFile

Note = Callable[[str, str], None]
"""Called with (place, problem) for what people should know."""

CORRUPT_SUFFIX = ".corrupt"
_MAX_ASSUMED = 1_000_000
"""Most messages that are taken for unsettled in the place of a damaged ``.pel``."""
_COPY_BYTES = 1024 * 1024
_Document = TypeVar("_Document")


class OpenedGroup(NamedTuple):
    """A group's files after recovery."""

    state: PendingState
    logs: list[ReopenedFile]
    """One, or two while a snapshot is wanted; the last is written."""
    sequence: int
    """Of the last log."""
    operations: list[int]
    """Replayed from each log."""
    snapshot_due: bool
    """The files should be put in order by a snapshot, however few operations there are."""


class _Log(NamedTuple):
    path: str
    file: ReopenedFile
    header: LogHeader


class _Replayed(NamedTuple):
    end: int
    operations: int
    damage: LogDamage | None


class GroupRecovery:
    """Opens the files of one group. Raises :class:`LogError` for an unknown version and :class:`OSError`."""

    def __init__(
        self,
        disk: Disk,
        paths: GroupPaths,
        *,
        group: str,
        pattern: str,
        note: Note,
        open_files: OpenFiles | None = None,
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._paths = paths
        self._group = group
        self._pattern = pattern
        self._note = note
        self._snapshot_damaged = False
        self._files: list[ReopenedFile] = []

    def open(self) -> OpenedGroup:
        """Recover what is there, or create the group's log."""
        try:
            return self._open()
        except BaseException:
            for file in self._files:
                file.close()
            raise

    def _open(self) -> OpenedGroup:
        for path in self._paths.temporary:
            if self._disk.exists(path):
                self._disk.remove(path)
        log = self.open_log(self._paths.log)
        if log is None:
            return self._start_log()
        state = PendingState() if log.header.sequence == 0 else self._load_snapshot()
        if state is None:
            self._quarantine(log, LogDamage(0, log.file.size, "the snapshot that it continues is gone", is_tail=False))
            log.file.close()
            return self._start_log()
        replayed = self._replay(log, state)
        following = self._open_next(log, replayed)
        if replayed.damage is not None:
            self.cut(log, replayed.damage)
        operations = [replayed.operations]
        if following is not None:
            replayed = self._replay(following, state)
            operations.append(replayed.operations)
            if replayed.damage is not None:
                self.cut(following, replayed.damage)
        elif log.header.version != VERSION:
            following = self._create(self._paths.next_log, log.header.sequence + 1, previous_bytes=log.file.size)
            operations.append(0)
        logs = [log] if following is None else [log, following]
        due = following is not None or self._snapshot_damaged
        return OpenedGroup(state, [log.file for log in logs], logs[-1].header.sequence, operations, due)

    # -- logs ----------------------------------------------------------------------------------------------------

    def _start_log(self) -> OpenedGroup:
        """There is no usable log. A snapshot may be there all the same, if only an older one."""
        if self._disk.exists(self._paths.next_log):
            self._set_aside(self._paths.next_log, "the log before it is gone")
            # Were it to come back after a power loss, it might seem to continue the log that is begun now.
            self._disk.sync_folder(self._paths.folder)
        has_snapshot = any(self._disk.exists(path) for path in (self._paths.pending, self._paths.cursors))
        state = self._load_snapshot() if has_snapshot else None
        # The log that is replaced may have been the whole state, so nothing older than its loss may be left out.
        log = self._create(self._paths.log, 0 if state is None else 1)
        return OpenedGroup(state or PendingState(), [log.file], log.header.sequence, [0], self._snapshot_damaged)

    def _create(self, path: str, sequence: int, *, previous_bytes: int = 0) -> _Log:
        file = create_log(
            self._disk, path, self._open_files, self._group, self._pattern, sequence, previous_bytes=previous_bytes
        )
        self._files.append(file)
        header = LogHeader(
            version=VERSION,
            group=self._group,
            pattern=self._pattern,
            sequence=sequence,
            previous_bytes=previous_bytes,
            size=file.size,
        )
        return _Log(path, file, header)

    def open_log(self, path: str) -> _Log | None:
        """A log with a sound header; None when there is none. A damaged one is kept beside and reported."""
        if not self._disk.exists(path):
            return None
        file = ReopenedFile(self._disk, path, self._open_files)
        self._files.append(file)
        data = file.read_at(0, min(file.size, MAX_HEADER_BYTES))
        try:
            header = decode_header(data)
        except LogError as error:
            raise LogError(f"{path}: {error}") from error
        if header is not None:
            return _Log(path, file, header)
        longest = encode_header(self._group, self._pattern, sequence=2**63, previous_bytes=2**63)
        if any(data) and file.size >= len(longest):
            self._keep(path, file, 0, "its header is damaged")
        file.close()
        return None

    def _replay(self, log: _Log, state: PendingState) -> _Replayed:
        end, operations = log.header.size, 0
        for found in walk_frames(log.file, log.header.size):
            if isinstance(found, LogDamage):
                return _Replayed(end, operations, found)
            try:
                decoded = decode_operations(found.payload, log.header.version)
            except RecordError as error:
                return _Replayed(end, operations, LogDamage(found.position, log.file.size, str(error), is_tail=False))
            operations += state.apply(decoded)
            end = found.end
        return _Replayed(end, operations, None)

    def _open_next(self, log: _Log, replayed: _Replayed) -> _Log | None:
        """The log that goes on where ``log`` ends; anything else of its name is put away, durably."""
        path = self._paths.next_log
        if not self._disk.exists(path):
            return None
        found = self.open_log(path)
        if found is not None:
            header = found.header
            follows = header.sequence == log.header.sequence + 1 and header.previous_bytes == replayed.end
            if follows and replayed.damage is None:
                return found
            has_operations = found.file.size > header.size
            found.file.close()
            # Of the same sequence, it is the same log: its new name was durable, the removal of the old one was not.
            if has_operations and header.sequence != log.header.sequence:
                self._set_aside(path, f"{log.path} lost what it continues")
        if self._disk.exists(path):
            self._disk.remove(path)
        self._disk.sync_folder(self._paths.folder)
        return None

    def cut(self, log: _Log, damage: LogDamage) -> None:
        """Cut off a log where its damage begins: a torn tail, or a part that is kept beside."""
        if damage.is_tail:
            self._note(f"{log.path} bytes {damage.position} to {damage.end}", "torn tail; cut off")
        else:
            self._quarantine(log, damage)
        log.file.truncate(damage.position)
        log.file.sync()

    def _quarantine(self, log: _Log, damage: LogDamage) -> None:
        self._keep(log.path, log.file, damage.position, damage.problem)

    def _keep(self, path: str, file: ReopenedFile, start: int, problem: str) -> None:
        """Copy damaged bytes beside the log. Settlements among them are lost, so those messages come again."""
        place = path + CORRUPT_SUFFIX
        with closing(self._disk.open(place, create=True)) as kept:
            kept.truncate(0)
            for position in range(start, file.size, _COPY_BYTES):
                kept.append(file.read_at(position, min(_COPY_BYTES, file.size - position)))
            kept.sync()
        self._note(
            f"{path} bytes {start} to {file.size}",
            f"corrupt ({problem}); kept in {place}; what they settled is delivered again",
        )

    def _set_aside(self, path: str, problem: str) -> None:
        place = path + CORRUPT_SUFFIX
        self._disk.rename(path, place)
        self._note(path, f"unusable ({problem}); kept in {place}; what it settled is delivered again")

    # -- snapshot ------------------------------------------------------------------------------------------------

    def _load_snapshot(self) -> PendingState | None:
        """The state that the logs continue; None when nothing of it can be read."""
        cursors = self._read(self._paths.cursors, decode_cursor_file)
        pending = self._read(self._paths.pending, decode_pending_file)
        state = PendingState()
        if pending is not None:
            for entry in pending.entries:
                state.put(entry)
        if cursors is not None:
            state.cursors.update((partition, record.cursor) for partition, record in cursors.cursors.items())
        elif pending is not None:
            # At least what is pending was delivered; where that ends, settled messages come again.
            for entry in pending.entries:
                state.cursors[entry.partition] = max(state.cursors.get(entry.partition, 0), entry.offset + 1)
        self._snapshot_damaged = cursors is None or pending is None
        if cursors is None and pending is None:
            return None
        if cursors is not None and pending is None:
            return self._assume_pending(cursors.cursors, state)
        return state

    def _assume_pending(self, cursors: dict[int, CursorRecord], state: PendingState) -> PendingState | None:
        """Without ``.pel``, all that ``.cur`` does not call settled is pending; None when that is too much."""
        if sum(record.cursor - record.committed for record in cursors.values()) > _MAX_ASSUMED:
            return None
        for partition, record in cursors.items():
            for offset in range(record.committed, record.cursor):
                state.put(PendingRecord(partition, offset, "", 0, 0, 1))
        return state

    def _read(self, path: str, decode: Callable[[bytes], _Document]) -> _Document | None:
        """A decoded file; None when it is missing, or damaged and set aside."""
        if not self._disk.exists(path):
            self._note(path, "it is missing; messages that it would call settled or delivered may come again")
            return None
        with closing(self._disk.open(path)) as file:
            data = file.read_at(0, min(file.size, MAX_FILE_BYTES + 1))
        try:
            return decode(data)
        except GroupFileVersionError as error:
            raise LogError(f"{path}: {error}") from error
        except GroupFileError as error:
            self._set_aside(path, str(error))
            return None


def create_log(
    disk: Disk,
    path: str,
    open_files: OpenFiles | None,
    group: str,
    pattern: str,
    sequence: int,
    *,
    previous_bytes: int,
) -> ReopenedFile:
    """An empty log, not synced. Raises :class:`OSError`, and then leaves no usable log of that name."""
    file = ReopenedFile(disk, path, open_files, create=True)
    try:
        file.truncate(0)
        file.append(encode_header(group, pattern, sequence=sequence, previous_bytes=previous_bytes))
    except OSError:
        file.close()
        disk.remove(path)
        raise
    return file
