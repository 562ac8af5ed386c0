"""History and trace files: JSON lines, the header first, zstd-compressed when the name ends with ``.zst``."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Generic, Self, TypeVar

import msgspec
import zstandard

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.schema import (
    HISTORY_SCHEMA,
    TRACE_SCHEMA,
    HistoryEvent,
    HistoryHeader,
    Record,
    TraceEvent,
    TraceHeader,
)

COMPRESSED_SUFFIX: Final = ".zst"
MAX_LINE_BYTES: Final = 1_048_576
"""No record comes near this; a longer line means that the file is something else."""

_Header = TypeVar("_Header", HistoryHeader, TraceHeader)
_Event = TypeVar("_Event", HistoryEvent, TraceEvent)


class RecordFileError(ValueError):
    """A file is not of the schema; the text gives path, line number and what was expected."""


class _Writer(Generic[_Event]):
    """Appends records to a new file. Use as a context manager; until it closes, the tail may be in memory."""

    def __init__(self, path: Path, schema: str, header: Record) -> None:
        self.path = path
        self.count = 0
        """Events written so far."""
        self.bytes_written = 0
        """Before compression."""
        self._encoder = msgspec.json.Encoder()
        self._line = bytearray()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        if path.suffix == COMPRESSED_SUFFIX:
            compressor = zstandard.ZstdCompressor(level=3)
            self._sink: BinaryIO = compressor.stream_writer(self._file)
        else:
            self._sink = self._file
        # The encoder leaves defaults out, and the schema's name is one: a file must say what it is.
        self._append(msgspec.json.encode({"schema": schema, **msgspec.to_builtins(header)}))

    @property
    def descriptor(self) -> int:
        """Of the file."""
        return self._file.fileno()

    def _append(self, line: bytes | bytearray) -> None:
        self._sink.write(line)
        self._sink.write(b"\n")
        self.bytes_written += len(line) + 1

    def write(self, event: _Event) -> None:
        """Append one event."""
        self._encoder.encode_into(event, self._line)
        self._append(self._line)
        self.count += 1

    def flush(self) -> None:
        """Let readers have what was written."""
        self._sink.flush()
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close; a second call does nothing."""
        if not self._sink.closed:
            self._sink.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HistoryWriter(_Writer[HistoryEvent]):
    """Writes a history file: ``HistoryWriter(path, HistoryHeader(...))``, then :meth:`write` for each event."""

    def __init__(self, path: Path, header: HistoryHeader) -> None:
        super().__init__(path, HISTORY_SCHEMA, header)


class TraceWriter(_Writer[TraceEvent]):
    """Writes a trace file: ``TraceWriter(path, TraceHeader(...))``, then :meth:`write` for each event."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        super().__init__(path, TRACE_SCHEMA, header)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        source: io.BufferedReader
        if path.suffix == COMPRESSED_SUFFIX:
            raw = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            source = io.BufferedReader(raw, buffer_size=1 << 16)
        else:
            source = file
        number = 0
        try:
            while line := source.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise RecordFileError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
                if line.strip():
                    yield number, line
        except zstandard.ZstdError as error:
            raise RecordFileError(f"{path}: not a whole zstd file: {error}") from error


def _read(path: Path, schema: str, header: type[_Header], event: type[_Event]) -> tuple[_Header, Iterator[_Event]]:
    lines = _lines(path)
    _, first = next(lines, (0, b""))
    try:
        found = msgspec.json.decode(first, type=described(header))
        named = msgspec.json.decode(first, type=dict[str, object])
    except (ValueError, RecursionError) as error:  # msgspec's own, text that is not UTF-8, endless nesting
        raise RecordFileError(f"{path}, line 1: no {schema} header: {error}") from error
    if "schema" not in named:
        # Every field of a header has a default, so an event would pass for one.
        raise RecordFileError(f"{path}, line 1: no {schema} header, since no schema is named")
    if found.schema != schema:
        raise RecordFileError(f"{path}, line 1: schema is {found.schema!r}, expected {schema!r}")

    def events() -> Iterator[_Event]:
        decoder = msgspec.json.Decoder(described(event))
        for number, line in lines:
            try:
                str(line, "utf-8")  # the decoder passes over names that it does not know, however they are damaged
                yield decoder.decode(line)
            except (ValueError, RecursionError) as error:
                raise RecordFileError(f"{path}, line {number}: {error}") from error

    return found, events()


def read_history(path: Path) -> tuple[HistoryHeader, Iterator[HistoryEvent]]:
    """Header and events of a history file, the events read as they are consumed.

    Raises :class:`RecordFileError` for a wrong header at once, for a wrong line when it is reached.
    """
    return _read(path, HISTORY_SCHEMA, HistoryHeader, HistoryEvent)


def read_trace(path: Path) -> tuple[TraceHeader, Iterator[TraceEvent]]:
    """Header and events of a trace file; as :func:`read_history`."""
    return _read(path, TRACE_SCHEMA, TraceHeader, TraceEvent)
