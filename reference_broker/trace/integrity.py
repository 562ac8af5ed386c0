"""What is wrong with the files of a run, one by one: every reader names the damaged ones and judges the rest.

A file is known by its name. Nothing here raises for a bad file: what cannot be read is a sentence.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from assay.reference_broker.trace.conformance import CaseResult, Header, WireLine, read_report
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.files import COMPRESSED_SUFFIX, MAX_LINE_BYTES, read_history, read_trace
from assay.reference_broker.trace.results import read_result
from assay.reference_broker.trace.schema import LatencySample
from assay.reference_broker.trace.yaml_text import read_yaml

MAX_CHECKED_BYTES: Final = 256 * 1024 * 1024
"""A larger file is named as too large to be looked through."""
MAX_MESSAGE_CHARS: Final = 300
READ_ERRORS: Final = (OSError, ValueError, RecursionError)
"""Whatever reading a damaged file of JSON may raise: msgspec's errors and those of decoding text are ValueErrors."""
_PARQUET_MAGIC: Final = b"PAR1"
_WIRE_LINE_MAX_BYTES: Final = 4 * MAX_LINE_BYTES


def why(error: BaseException) -> str:
    """An error as one short line, without the path that stands beside it anyway."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return text.splitlines()[0][:MAX_MESSAGE_CHARS] if text else type(error).__name__


def _history(path: Path) -> Iterator[str]:
    seen: set[int] = set()
    repeated = 0
    for event in read_history(path)[1]:
        repeated += event.index in seen
        seen.add(event.index)
    if repeated:
        yield f"{repeated} repeated indices"


def _trace(path: Path) -> Iterator[str]:
    seen: set[tuple[str, int]] = set()
    repeated = 0
    for event in read_trace(path)[1]:
        repeated += (event.node, event.seq) in seen
        seen.add((event.node, event.seq))
    if repeated:
        yield f"{repeated} repeated sequence numbers"


def _result(path: Path) -> Iterator[str]:
    str(path.read_bytes(), "utf-8")
    for line in read_result(path).series:
        if len(line.x_s) != len(line.y):
            yield f"the series {line.name!r} has {len(line.x_s)} moments and {len(line.y)} values"


def _conformance(path: Path) -> Iterator[str]:
    lines = list(read_report(path))
    if not any(isinstance(line, Header) for line in lines):
        yield "no header line, so the target is not known"
    cases = [line.case for line in lines if isinstance(line, CaseResult)]
    if len(set(cases)) < len(cases):
        yield f"{len(cases) - len(set(cases))} cases appear twice"


def _transcript(path: Path) -> Iterator[str]:
    yield from _lines_of(path, msgspec.json.Decoder(described(WireLine)).decode)


def _histograms(path: Path) -> Iterator[str]:
    class Line(msgspec.Struct):
        second: int
        count: int
        histogram: str

    yield from _lines_of(path, msgspec.json.Decoder(described(Line)).decode)


def _lines_of(path: Path, decode: Callable[[bytes], object]) -> Iterator[str]:
    number = 0
    with path.open("rb") as file:
        while line := file.readline(_WIRE_LINE_MAX_BYTES):
            number += 1
            if line.strip():
                try:
                    str(line, "utf-8")  # a decoder passes over the names that it does not know
                    decode(line)
                except (ValueError, RecursionError) as error:
                    yield f"line {number}: {why(error)}"
                    return
    if not number:
        yield "is empty"


def _json(path: Path) -> Iterator[str]:
    msgspec.json.decode(str(path.read_bytes(), "utf-8"))
    yield from ()


def _yaml(path: Path) -> Iterator[str]:
    if read_yaml(path) is None:
        yield "is empty"


def _samples(path: Path) -> Iterator[str]:
    if importlib.util.find_spec("pyarrow") is not None:
        yield from _parquet_rows(path)
    elif path.is_file():  # without a reader, at least whether it is whole at both ends
        with path.open("rb") as file:
            begin = file.read(4)
            file.seek(max(-4, -path.stat().st_size), os.SEEK_END)
            if not begin == file.read(4) == _PARQUET_MAGIC:
                yield "is not readable Parquet: its marks are missing"


def _parquet_rows(path: Path) -> Iterator[str]:
    # Only what records samples has this library.
    import pyarrow as pa
    import pyarrow.dataset as ds

    fields = msgspec.structs.fields(LatencySample)
    try:
        dataset = ds.dataset(path, format="parquet")
        absent = [field.name for field in fields if field.required and field.name not in dataset.schema.names]
        if absent:
            yield f"lacks the columns {', '.join(absent)}"
            return
        for field in fields:
            if field.name in dataset.schema.names:
                kind = dataset.schema.field(field.name).type
                whole = pa.types.is_integer(kind) if field.type is int else pa.types.is_string(kind)
                if not whole:
                    yield f"column {field.name} holds {kind}"
        required = [field.name for field in fields if field.required]
        nulls = 0
        for batch in dataset.to_batches(columns=required):
            nulls += sum(column.null_count for column in batch.columns)
        if nulls:
            yield f"{nulls} values are missing"
    except (pa.ArrowException, OSError, ValueError) as error:
        yield f"is not readable Parquet: {why(error)}"


CHECKS: Final[tuple[tuple[str, Callable[[Path], Iterator[str]]], ...]] = (
    ("result.json", _result),
    ("report.jsonl", _conformance),
    ("history*.jsonl", _history),
    (f"history*.jsonl{COMPRESSED_SUFFIX}", _history),
    ("trace*.jsonl", _trace),
    (f"trace*.jsonl{COMPRESSED_SUFFIX}", _trace),
    ("samples*.parquet", _samples),
    ("histograms.jsonl", _histograms),
    ("latencies.json", _json),
    ("*.yaml", _yaml),
)
"""Kinds of files by the patterns of their names, the first that fits."""


def is_known(path: Path) -> bool:
    """Whether :func:`problems_of` can look into a file of this name."""
    return _check_of(path) is not None


def _check_of(path: Path) -> Callable[[Path], Iterator[str]] | None:
    if path.suffix == ".jsonl" and "transcripts" in path.parts:
        return _transcript
    return next((check for pattern, check in CHECKS if fnmatch.fnmatch(path.name, pattern)), None)


def problems_of(path: Path) -> list[str]:
    """What is wrong with a file, each as a phrase; empty when nothing is, or nothing is known of such files."""
    check = _check_of(path)
    if check is None:
        return []
    found: list[str] = []
    try:
        if path.is_dir() and check is not _samples:
            return ["is a folder, not a file"]
        if path.is_file() and path.stat().st_size > MAX_CHECKED_BYTES:
            return [f"larger than the {MAX_CHECKED_BYTES // 1024**2} MiB that are looked through"]
        found.extend(check(path))
    except READ_ERRORS as error:
        found.append(why(error))
    # The path stands beside the problem anyway, and some libraries name it in their own way.
    return [
        text.removeprefix(f"{path}, ")
        .removeprefix(f"{path}: ")
        .replace(str(path), path.name)
        .replace(str(path.parent), ".")
        for text in found
    ]


def walk(root: Path, skip: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Every damaged file below a folder, and what is wrong with it; folders that ``skip`` names are left out."""
    errors: list[OSError] = []
    for current, folders, files in os.walk(root, onerror=errors.append, followlinks=False):
        folder = Path(current)
        folders[:] = sorted(name for name in folders if not skip(folder / name))
        for name in sorted([*files, *folders]):
            for problem in problems_of(folder / name):
                yield folder / name, problem
        folders[:] = [name for name in folders if not is_known(folder / name)]
    for error in errors:
        yield Path(error.filename or root), f"cannot be listed: {why(error)}"
