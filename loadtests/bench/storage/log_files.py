"""Logs on real files for the bench, and the raw system calls on the same bytes that their figures stand beside."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from assay.reference_broker.config import Compression
from assay.reference_broker.storage.batch import HEADER_BYTES, BatchEncoder, decode_header
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog

_PARTITION = "partition"
_READ_BYTES = 256 * 1024
_DERIVED = (".idx", ".tix", ".mark")


class LogNoteError(RuntimeError):
    """A log that the bench wrote had something to report at opening: its figures would be of another case."""


class BatchPlace(NamedTuple):
    """Where a stored batch lies."""

    base_offset: int
    path: Path
    position: int
    length: int


class LogFolder:
    """The folder of one log."""

    def __init__(self, root: Path, *, segment_bytes: int = 64 * 1024 * 1024) -> None:
        self.root = root
        self._segment_bytes = segment_bytes
        (root / _PARTITION).mkdir(parents=True, exist_ok=True)

    def open(self, compression: Compression = Compression.NONE, *, write_buffer_bytes: int = 0) -> SegmentedLog:
        """Open and recover, or create. Raises :class:`LogNoteError` when recovery finds anything worth a note."""

        def note(place: str, problem: str) -> None:
            message = f"{place}: {problem}"
            raise LogNoteError(message)

        return SegmentedLog(
            RealDisk(self.root),
            _PARTITION,
            options=LogOptions(segment_bytes=self._segment_bytes, write_buffer_bytes=write_buffer_bytes),
            encoder=BatchEncoder(compression),
            volatile=False,
            note=note,
        )

    @property
    def segments(self) -> list[Path]:
        return sorted((self.root / _PARTITION).glob("*.seg"))

    @property
    def segment_bytes(self) -> int:
        """Bytes in all segments."""
        return sum(path.stat().st_size for path in self.segments)

    def places(self) -> list[BatchPlace]:
        """Where every batch lies, in order."""
        return [place for path in self.segments for place in _places(path)]

    def batches(self) -> list[bytes]:
        """Every stored batch, in order."""
        found = []
        for path in self.segments:
            data = path.read_bytes()
            found += [data[place.position : place.position + place.length] for place in _places(path)]
        return found

    def forget_indexes(self) -> None:
        """Leave the segments alone, as if every index were lost: the next opening must scan them."""
        for path in (self.root / _PARTITION).iterdir():
            if path.suffix in _DERIVED:
                path.unlink()

    def copy_start(self, root: Path, *, at_least_bytes: int) -> LogFolder:
        """A log of the first segments of this one, on disk as a whole: later syncs must not have to write it."""
        copy = LogFolder(root, segment_bytes=self._segment_bytes)
        size = 0
        for path in self.segments:
            if size >= at_least_bytes:
                break
            target = root / _PARTITION / path.name
            shutil.copyfile(path, target)
            with target.open("rb") as copied:
                os.fsync(copied.fileno())
            size += path.stat().st_size
        return copy

    def remove(self) -> None:
        shutil.rmtree(self.root)


def _places(path: Path) -> list[BatchPlace]:
    places = []
    data = memoryview(path.read_bytes())
    position = 0
    while position < len(data):
        header = decode_header(bytes(data[position : position + HEADER_BYTES]))
        length = header.total_bytes
        places.append(BatchPlace(header.base_offset, path, position, length))
        position += length
    return places


def joined(pieces: Iterable[bytes], size: int) -> list[bytes]:
    """Pieces put together until each is at least ``size`` bytes, as a write buffer does."""
    found: list[bytes] = []
    collected: list[bytes] = []
    length = 0
    for piece in pieces:
        collected.append(piece)
        length += len(piece)
        if length >= size:
            found.append(b"".join(collected))
            collected, length = [], 0
    if collected:
        found.append(b"".join(collected))
    return found


def raw_write_s(path: Path, pieces: Sequence[bytes]) -> float:
    """Seconds that ``os.pwrite`` takes for these pieces, one after the other, to a new file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        position = 0
        began = time.perf_counter()
        for piece in pieces:
            os.pwrite(descriptor, piece, position)
            position += len(piece)
        return time.perf_counter() - began
    finally:
        os.close(descriptor)
        path.unlink()


def raw_sync_s(path: Path, piece: bytes, *, seconds: float) -> float:
    """Mean seconds of ``os.pwrite`` of a piece at the end of a file, then ``os.fsync``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        position = count = 0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or not count:
            os.pwrite(descriptor, piece, position)
            os.fsync(descriptor)
            position += len(piece)
            count += 1
        return took / count
    finally:
        os.close(descriptor)
        path.unlink()


def raw_read_s(paths: Iterable[Path], *, at_most_bytes: int | None = None) -> tuple[float, int]:
    """Seconds that ``os.pread`` takes for files in pieces of 256 KiB, and the bytes it read."""
    size = 0
    took = 0.0
    for path in paths:
        if at_most_bytes is not None and size >= at_most_bytes:
            break
        descriptor = os.open(path, os.O_RDONLY)
        try:
            position = 0
            began = time.perf_counter()
            while piece := os.pread(descriptor, _READ_BYTES, position):
                position += len(piece)
            took += time.perf_counter() - began
            size += position
        finally:
            os.close(descriptor)
    return took, size
