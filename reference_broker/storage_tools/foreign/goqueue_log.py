"""Walks and writes the log segments of GoQueue.

The walk tells sound messages from damage as :mod:`assay.reference_broker.storage.segment_scan` does for batches: a
damaged range with sound messages behind it is kept apart from the tail, where a write most likely did not finish.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from assay.reference_broker.storage.disk import Disk, DiskFile
from assay.reference_broker.storage.segment_scan import Damage, Window
from assay.reference_broker.storage.whole_file import sync_up, write_whole
from assay.reference_broker.storage_tools.foreign.goqueue_files import (
    INDEX_INTERVAL_BYTES,
    INDEX_SUFFIX,
    SEGMENT_BYTES,
    TIME_INDEX_SUFFIX,
    encode_index,
    file_name,
    segment_bases,
)
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    MAGIC_BYTES,
    MAX_OFFSET,
    GoQueueLayout,
    GoQueueMessage,
    GoQueueMessageError,
    GoQueueProblem,
    claimed_size,
    decode_message,
    encode_message,
    has_sound_body,
    message_size,
)

_WRITE_BYTES = 1024 * 1024
_CONVINCING_CHAIN = 8
"""So many sound messages in a row are no accident, even when their offsets lie far ahead."""
_MAX_SEARCHED_BYTES = 1024 * 1024 * 1024
"""Bytes that the search behind one damage may checksum: payloads can be made of what looks like messages."""


class SoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message whose bounds, checksum and place in the order of offsets are right."""

    position: int
    """Of its first byte in the segment file."""
    size: int
    """Bytes in the file."""
    message: GoQueueMessage


def walk_messages(
    file: DiskFile,
    *,
    layout: GoQueueLayout = GoQueueLayout.V34,
    base_offset: int = 0,
    end_offset: int | None = None,
    start: int = 0,
) -> Iterator[SoundMessage | Damage]:
    """The messages of a segment from a position on, verified, and the damage between them. Raises :class:`OSError`.

    ``base_offset``: the least offset that may come; ``end_offset``: offsets stay below it, if known. Offsets grow;
    compaction leaves gaps, which are no damage.
    """
    reader = _Reader(file, layout, MAX_OFFSET + 1 if end_offset is None else end_offset)
    position, least_offset = start, base_offset
    while position < reader.size:
        try:
            message, size = reader.message_at(position, least_offset)
        except GoQueueMessageError as error:
            found = reader.next_message(position, least_offset)
            end = reader.size if found is None else found
            yield Damage(start=position, end=end, problem=str(error), is_tail=found is None)
            position = end
        else:
            yield SoundMessage(position=position, size=size, message=message)
            least_offset = message.offset + 1
            position += size


class _Reader:
    """Reads the messages of one segment file."""

    def __init__(self, file: DiskFile, layout: GoQueueLayout, end_offset: int) -> None:
        self._window = Window(file)
        self._layout = layout
        self._end_offset = end_offset
        self._budget_bytes = 0
        self.size = self._window.size

    def message_at(self, position: int, least_offset: int) -> tuple[GoQueueMessage, int]:
        """The sound message at a position, and its size. Raises :class:`GoQueueMessageError`."""
        data, at = self._window.locate(position, self._layout.value)
        size = message_size(data, at, self._layout)
        data, at = self._window.locate(position, size)
        message = decode_message(data, at, layout=self._layout)
        if not least_offset <= message.offset < self._end_offset:
            detail = f"offset {message.offset} is not one of {least_offset} to {self._end_offset - 1}"
            raise GoQueueMessageError(GoQueueProblem.BAD_OFFSET, detail, position=position)
        return message, size

    def next_message(self, position: int, least_offset: int) -> int | None:
        """Where to go on after a bad message at a position; None when nothing sound follows.

        While lengths lead somewhere they are followed: a byte search would meet messages that a producer has put into
        a value. Only lengths that lead nowhere leave no other way.
        """
        self._budget_bytes = _MAX_SEARCHED_BYTES
        claimed = self._claimed_end(position)
        if claimed is not None and claimed <= self.size:
            data, at = self._window.locate(position, claimed - position)
            if has_sound_body(data, at, self._layout):
                # Only the bytes outside the checksum are damaged, or the offset is one that cannot be.
                return claimed
        bad, at_header = position, True
        while at_header and (end := self._claimed_end(bad)) is not None:
            if end >= self.size:
                return self._search(bad, position, least_offset, to_the_end=True)
            if self._try_message(end, least_offset) is not None:
                return end
            bad, at_header = end, self._starts_message(end)
        return self._search(position, position, least_offset, to_the_end=False)

    def _claimed_end(self, position: int) -> int | None:
        data, at = self._window.locate(position, self._layout.value)
        size = claimed_size(data, at, self._layout)
        return None if size is None else position + size

    def _starts_message(self, position: int) -> bool:
        data, at = self._window.locate(position, self._layout.value)
        try:
            message_size(data, at, self._layout)
        except GoQueueMessageError:
            return False
        return True

    def _try_message(self, position: int, least_offset: int) -> tuple[GoQueueMessage, int] | None:
        try:
            found = self.message_at(position, least_offset)
        except GoQueueMessageError:
            claimed = self._claimed_end(position)
            self._budget_bytes -= 0 if claimed is None else min(claimed, self.size) - position
            return None
        self._budget_bytes -= found[1]
        return found

    def _search(self, bad: int, first_bad: int, least_offset: int, *, to_the_end: bool) -> int | None:
        """Look for a sound message byte by byte behind a bad one.

        ``to_the_end``: the bad one claims more than is left, as a torn write does. Then what is found in it only counts
        when it is a chain of sound messages up to the end, so that it is the length that must be wrong.
        """
        at = bad + 1
        while at < self.size and self._budget_bytes > 0:
            data, begin = self._window.locate(at, self._layout.value)
            hit = data.find(MAGIC_BYTES, begin)
            if hit < 0:
                at += max(1, len(data) - begin - len(MAGIC_BYTES) + 1)
                continue
            at += hit - begin
            found = self._try_message(at, least_offset)
            if found is not None:
                most_skipped = (at - first_bad) // self._layout.value + 1
                is_near = found[0].offset <= least_offset + most_skipped
                if (is_near and not to_the_end) or self._chains(at, least_offset, to_the_end=to_the_end):
                    return at
            at += 1
        return None

    def _chains(self, position: int, least_offset: int, *, to_the_end: bool) -> bool:
        """Whether sound messages follow each other from a position to exactly the end of the file, or long enough."""
        length = 0
        while position < self.size:
            found = self._try_message(position, least_offset)
            if found is None or self._budget_bytes <= 0:
                return False
            least_offset = found[0].offset + 1
            position += found[1]
            length += 1
            if length >= _CONVINCING_CHAIN and not to_the_end:
                return True
        return True


class GoQueueLogWriter:
    """Writes a new partition folder: segments with their indexes, as GoQueue would have written them.

    Nothing is promised before :meth:`close`, which syncs all of it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        layout: GoQueueLayout = GoQueueLayout.V34,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Raises :class:`FileExistsError` when the folder holds segments, :class:`OSError` when the disk fails."""
        if segment_bases(disk, folder):
            raise FileExistsError(f"{folder} already holds segments; choose an empty folder")
        self._disk = disk
        self._folder = folder
        self._layout = layout
        self._segment_bytes = segment_bytes
        self._next_offset = 0
        self._file: DiskFile | None = None
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._index: list[tuple[int, int]] = []
        self._time_index: list[tuple[int, int]] = []
        self._base_offset = 0
        self._size = 0
        disk.make_folder(folder)

    def add(self, message: GoQueueMessage) -> None:
        """Append a message. Raises :class:`GoQueueMessageError` with nothing written, and :class:`OSError`."""
        if message.offset < self._next_offset:
            detail = f"offset {message.offset} goes back; at least {self._next_offset} is due"
            raise GoQueueMessageError(GoQueueProblem.BAD_OFFSET, detail)
        data = encode_message(message, layout=self._layout)
        if self._file is not None and self._size + len(data) > self._segment_bytes:
            self._finish_segment()
        if self._file is None:
            self._start_segment(message.offset)
        if not self._index or self._size - self._index[-1][1] >= INDEX_INTERVAL_BYTES:
            self._index.append((message.offset, self._size))
            self._time_index.append((message.timestamp_ns, message.offset))
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        self._size += len(data)
        self._next_offset = message.offset + 1
        if self._buffered_bytes >= _WRITE_BYTES:
            self._write_buffer()

    def _start_segment(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._index, self._time_index = [], []
        self._size = 0
        self._file = self._disk.open(f"{self._folder}/{file_name(base_offset)}", create=True)

    def _write_buffer(self) -> None:
        assert self._file is not None
        self._file.append(b"".join(self._buffer))
        self._buffer = []
        self._buffered_bytes = 0

    def _finish_segment(self) -> None:
        assert self._file is not None
        self._write_buffer()
        self._file.sync()
        self._file.close()
        self._file = None
        for suffix, entries in ((INDEX_SUFFIX, self._index), (TIME_INDEX_SUFFIX, self._time_index)):
            path = f"{self._folder}/{file_name(self._base_offset, suffix)}"
            write_whole(self._disk, path, encode_index(entries))

    def close(self) -> None:
        """Finish and sync everything. Twice is fine. Raises :class:`OSError`."""
        if self._file is not None:
            self._finish_segment()
        sync_up(self._disk, self._folder)
