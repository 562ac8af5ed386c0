"""Reads what runs leave behind: histories and traces (JSON lines, plain or zstd) and latency samples (Parquet).

Nothing is dropped in silence. A line that is not of the schema, a second header, a compressed file cut short: each is
counted in a :class:`SourceReport`, and whoever judges must look at it (``SourceReport.whole``).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, Generic, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import zstandard
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from assay.reference_broker.trace.files import COMPRESSED_SUFFIX, MAX_LINE_BYTES, read_history, read_trace
from assay.reference_broker.trace.integrity import READ_ERRORS, problems_of, why
from assay.reference_broker.trace.schema import (
    HistoryEvent,
    HistoryHeader,
    LatencySample,
    Record,
    TraceEvent,
    TraceHeader,
)
from assay.spark_analysis.schemas import SAMPLE_TYPE, breaks_schema, filled, literal_frame, struct_type

EXAMPLES_MAX: Final = 5
EXAMPLE_CHARS_MAX: Final = 200
SPARK_FOLDER: Final = "spark"
"""Where the analysis writes; never read as a source."""
_CHUNK_BYTES: Final = 1 << 20

_Header = TypeVar("_Header", HistoryHeader, TraceHeader)


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one file, and what could not be."""

    path: str
    run_id: str
    kind: str
    """``history``, ``trace``, ``samples``, ``result`` or ``folder``."""
    rows: int = 0
    unreadable: int = 0
    """Lines or rows that are not of the schema."""
    examples: list[str] = []
    """The beginning of some unreadable lines."""
    headers: int = 1
    truncated: bool = False
    """The compressed stream ends early; what could be saved was read."""
    repeated: int = 0
    """Rows whose index (history) or sequence number (trace) another row has too."""
    missing: int = 0
    """History: completions without their invocation. Trace: sequence numbers that are not there."""
    error: str = ""
    """The file could not be read at all."""

    @property
    def whole(self) -> bool:
        """Whether everything that was written seems to be there."""
        damage = (self.unreadable, self.truncated, self.repeated, self.missing, self.error, self.headers != 1)
        return not any(damage)

    def describe(self) -> str:
        """The damage as one phrase."""
        if self.error:
            return f"{self.path}: {self.error}"
        found = [
            f"{self.unreadable} unreadable rows" if self.unreadable else "",
            f"{self.repeated} repeated indices" if self.repeated else "",
            f"{self.missing} missing rows" if self.missing else "",
            f"{self.headers} headers" if self.headers != 1 else "",
            "cut short" if self.truncated else "",
        ]
        return f"{self.path}: " + (", ".join(phrase for phrase in found if phrase) or "whole")


class SourceFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a run folder; the run id of a file is its folder, relative to the run folder (``.`` for the top)."""

    folder: Path
    histories: dict[str, Path] = {}
    traces: dict[str, Path] = {}
    samples: dict[str, Path] = {}
    results: dict[str, Path] = {}
    unlisted: dict[str, str] = {}
    """Folders that could not be listed, and why."""

    @property
    def empty(self) -> bool:
        return not (self.histories or self.traces or self.samples)

    @property
    def several(self) -> bool:
        """Whether the folder holds more than one run."""
        return len({*self.histories, *self.traces, *self.samples}) > 1


def _keyed(folder: Path, found: Sequence[Path]) -> dict[str, Path]:
    parents = [path.parent for path in found]
    keyed = {}
    for path in found:
        place = path.parent if parents.count(path.parent) == 1 else path
        keyed[place.relative_to(folder).as_posix()] = path
    return keyed


def find_sources(folder: Path) -> SourceFiles:
    """Everything below ``folder`` that can be analysed, in the order of the paths.

    Raises :class:`FileNotFoundError` when the folder does not exist.
    """
    if not folder.is_dir():
        message = f"{folder} is not a folder: give the folder of a run (one that holds result.json)"
        raise FileNotFoundError(message)

    everything: list[Path] = []
    errors: list[OSError] = []
    for current, folders, files in os.walk(folder, onerror=errors.append):
        everything += [Path(current) / name for name in (*folders, *files)]
        folders[:] = [name for name in folders if name != SPARK_FOLDER]

    def below(*patterns: str) -> dict[str, Path]:
        found = [path for path in everything if any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)]
        return _keyed(folder, sorted(found))

    return SourceFiles(
        folder=folder,
        histories=below("history*.jsonl", f"history*.jsonl{COMPRESSED_SUFFIX}"),
        traces=below("trace*.jsonl", f"trace*.jsonl{COMPRESSED_SUFFIX}"),
        samples=below("samples*.parquet"),
        results=below("result.json"),
        unlisted={str(error.filename): why(error) for error in errors},
    )


def damaged_results(sources: SourceFiles) -> list[SourceReport]:
    """The results that cannot be read, and the folders that cannot be listed."""
    found = []
    for run_id, path in sources.results.items():
        if problems := problems_of(path):
            found.append(SourceReport(path=str(path), run_id=run_id, kind="result", error="; ".join(problems)))
    found += [
        SourceReport(path=path, run_id=path, kind="folder", error=f"cannot be listed: {error}")
        for path, error in sources.unlisted.items()
    ]
    return found


class Loaded(msgspec.Struct, Generic[_Header], frozen=True, kw_only=True):
    """Rows of several files as one frame, ``run_id`` beside the record's own fields."""

    frame: DataFrame
    headers: dict[str, _Header]
    reports: list[SourceReport]
    cached: DataFrame | None = None

    def release(self) -> None:
        """Give the parsed lines back; the frame is then computed anew when it is read."""
        if self.cached is not None:
            self.cached.unpersist()


def _salvaged(path: Path, scratch: Path, number: int) -> tuple[Path, bool]:
    """The file itself, or, where its zstd stream is cut short, a plain copy of what can still be read."""
    if path.suffix != COMPRESSED_SUFFIX or _unpack(path, None):
        return path, False
    copy = scratch / f"{number}.jsonl"
    with copy.open("wb") as target:
        _unpack(path, target)
    return copy, True


def _unpack(path: Path, target: BinaryIO | None) -> bool:
    """Decompress as far as possible; true when the last zstd frame is whole.

    Frame by frame, because the stream reader may take the end of the file for the end of a frame.
    """
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            while chunk:
                if frame.eof:
                    frame = decompressor.decompressobj()
                try:
                    data = frame.decompress(chunk)
                except zstandard.ZstdError:
                    return False
                if target is not None:
                    target.write(data)
                chunk = frame.unused_data if frame.eof else b""
    return frame.eof


def _literal(path: Path) -> str:
    """The path with the characters escaped that Hadoop would take for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", str(path.resolve()))


def _local_path(uri: str) -> str:
    return unquote(re.sub(r"^file:/+", "/", uri))


def _raw_lines(spark: SparkSession, paths: dict[str, Path]) -> DataFrame:
    """``run_id, line`` of all files in one scan."""
    text = spark.read.text([_literal(path) for path in paths.values()])
    run_of = {str(path.resolve()): run_id for run_id, path in paths.items()}
    rows = [(uri, run_of[_local_path(uri)]) for uri in text.inputFiles()]
    # Spark writes file:/x in one place and file:///x in the other.
    places = StructType([StructField("uri", StringType()), StructField("run_id", StringType())])
    names = literal_frame(spark, rows, places).select(
        sf.regexp_replace("uri", "^file:/+", "/").alias("place"), "run_id"
    )
    lines = text.select(
        sf.regexp_replace("_metadata.file_path", "^file:/+", "/").alias("place"), sf.col("value").alias("line")
    )
    return lines.join(sf.broadcast(names), "place").where(sf.length(sf.trim("line")) > 0).select("run_id", "line")


def _parsed(record: type[Record], lines: DataFrame) -> DataFrame:
    """``run_id, line, is_header, unreadable`` and the record's fields."""
    fields = [StructField(field.name, field.dataType, nullable=True) for field in struct_type(record).fields]
    extra = [StructField("schema", StringType()), StructField("_unreadable", StringType())]
    parsed = sf.from_json("line", StructType([*fields, *extra]), {"columnNameOfCorruptRecord": "_unreadable"})
    row = lines.withColumn("row", parsed).select("run_id", "line", "row.*")
    is_header = sf.col("schema").isNotNull() & sf.col("_unreadable").isNull()
    unreadable = sf.col("_unreadable").isNotNull() | breaks_schema(record) | (sf.length("line") > MAX_LINE_BYTES)
    # Spark takes bytes that are no UTF-8 as they come; the record's own decoder refuses them.
    unreadable = unreadable | ~sf.is_valid_utf8("line")
    return row.select(
        "run_id",
        "line",
        is_header.alias("is_header"),
        (~is_header & unreadable).alias("unreadable"),
        *filled(record, row),
    )


def _examples(parsed: DataFrame) -> dict[str, list[str]]:
    bad = parsed.where("unreadable").select("run_id", sf.substring("line", 1, EXAMPLE_CHARS_MAX).alias("line"))
    ranked = bad.selectExpr("*", "row_number() OVER (PARTITION BY run_id ORDER BY line) AS place")
    found: dict[str, list[str]] = {}
    for row in ranked.where(sf.col("place") <= EXAMPLES_MAX).orderBy("run_id", "place").collect():
        found.setdefault(row["run_id"], []).append(row["line"])
    return found


def _counts(parsed: DataFrame) -> dict[str, tuple[int, int, int]]:
    summed = parsed.groupBy("run_id").agg(
        sf.sum(sf.expr("CAST(NOT is_header AND NOT unreadable AS INT)")).alias("good"),
        sf.sum(sf.expr("CAST(unreadable AS INT)")).alias("bad"),
        sf.sum(sf.expr("CAST(is_header AS INT)")).alias("headers"),
    )
    return {row["run_id"]: (row["good"], row["bad"], row["headers"]) for row in summed.collect()}


def _history_damage(events: DataFrame) -> dict[str, tuple[int, int]]:
    """Per run: repeated indices, completions whose invocation is missing."""
    invocations = events.where("type = 'invoke'").select("run_id", sf.col("index").alias("op")).distinct()
    orphans = events.where("op >= 0 AND type <> 'invoke'").join(invocations, ["run_id", "op"], "left_anti")
    lost = {row["run_id"]: row["count"] for row in orphans.groupBy("run_id").count().collect()}
    seen = events.groupBy("run_id").agg(sf.expr("count(*) - count(DISTINCT index)").alias("repeated"))
    return {row["run_id"]: (row["repeated"], lost.get(row["run_id"], 0)) for row in seen.collect()}


def _trace_damage(events: DataFrame) -> dict[str, tuple[int, int]]:
    """Per run: repeated and missing sequence numbers, summed over its nodes."""
    nodes = events.groupBy("run_id", "node").agg(
        sf.expr("count(*) - count(DISTINCT seq)").alias("repeated"),
        sf.expr("max(seq) - min(seq) + 1 - count(DISTINCT seq)").alias("missing"),
    )
    seen = nodes.groupBy("run_id").agg(sf.sum("repeated").alias("repeated"), sf.sum("missing").alias("missing"))
    return {row["run_id"]: (row["repeated"], row["missing"]) for row in seen.collect()}


def _load(
    spark: SparkSession,
    kind: str,
    record: type[Record],
    files: dict[str, Path],
    headers: dict[str, _Header],
    errors: dict[str, str],
    scratch: Path,
) -> Loaded[_Header]:
    readable = {run_id: path for run_id, path in files.items() if run_id in headers}
    saved = {run_id: _salvaged(path, scratch, number) for number, (run_id, path) in enumerate(readable.items())}
    reports = [
        SourceReport(path=str(files[run_id]), run_id=run_id, kind=kind, headers=0, error=error)
        for run_id, error in errors.items()
    ]
    if not saved:
        empty = literal_frame(spark, [], StructType([StructField("run_id", StringType()), *struct_type(record).fields]))
        return Loaded(frame=empty, headers=headers, reports=reports)
    parsed = _parsed(record, _raw_lines(spark, {run_id: path for run_id, (path, _) in saved.items()})).persist()
    counts = _counts(parsed)
    examples = _examples(parsed) if any(bad for _, bad, _ in counts.values()) else {}
    names = [field.name for field in struct_type(record).fields if field.name != "run_id"]
    frame = parsed.where("NOT is_header AND NOT unreadable").select("run_id", *names)
    damage = _history_damage(frame) if kind == "history" else _trace_damage(frame)
    for run_id, (_, truncated) in saved.items():
        good, bad, found = counts.get(run_id, (0, 0, 0))
        repeated, missing = damage.get(run_id, (0, 0))
        reports.append(
            SourceReport(
                path=str(files[run_id]),
                run_id=run_id,
                kind=kind,
                rows=good,
                unreadable=bad,
                examples=examples.get(run_id, []),
                headers=found,
                truncated=truncated,
                repeated=repeated,
                missing=missing,
            )
        )
    return Loaded(frame=frame, headers=headers, reports=reports, cached=parsed)


def _reason(path: Path, error: BaseException) -> str:
    return why(error).removeprefix(f"{path}, ").removeprefix(f"{path}: ")


def load_histories(spark: SparkSession, files: dict[str, Path], scratch: Path) -> Loaded[HistoryHeader]:
    """Histories by run id. ``scratch`` is a folder that must live as long as the frame: salvaged files go there."""
    headers: dict[str, HistoryHeader] = {}
    errors: dict[str, str] = {}
    for run_id, path in files.items():
        try:
            headers[run_id], _ = read_history(path)
        except READ_ERRORS as error:
            errors[run_id] = _reason(path, error)
    return _load(spark, "history", HistoryEvent, files, headers, errors, scratch)


def load_traces(spark: SparkSession, files: dict[str, Path], scratch: Path) -> Loaded[TraceHeader]:
    """Traces by run id; as :func:`load_histories`."""
    headers: dict[str, TraceHeader] = {}
    errors: dict[str, str] = {}
    for run_id, path in files.items():
        try:
            headers[run_id], _ = read_trace(path)
        except READ_ERRORS as error:
            errors[run_id] = _reason(path, error)
    return _load(spark, "trace", TraceEvent, files, headers, errors, scratch)


def load_samples(spark: SparkSession, files: dict[str, Path]) -> tuple[DataFrame, list[SourceReport]]:
    """Latency samples (:class:`LatencySample`) of all files; ``run_id`` is replaced by the key of the file."""
    frame = literal_frame(spark, [], SAMPLE_TYPE)
    reports = []
    for run_id, path in files.items():
        if problem := _parquet_problem(path):
            reports.append(_unread(path, run_id, problem))
            continue
        source = spark.read.parquet(_literal(path))
        rows = source.select(*filled(LatencySample, source)).withColumn("broken", breaks_schema(LatencySample))
        try:
            good, bad = _good_and_bad(rows)
        except (PySparkException, Py4JJavaError) as error:
            reports.append(_unread(path, run_id, f"is damaged inside: {str(error).splitlines()[0]}"))
            continue
        frame = frame.unionByName(rows.where("NOT broken").drop("broken").withColumn("run_id", sf.lit(run_id)))
        reports.append(SourceReport(path=str(path), run_id=run_id, kind="samples", rows=good, unreadable=bad))
    return frame, reports


def _parquet_problem(path: Path) -> str:
    """What keeps a file or folder from being samples, by its footers; empty when nothing does."""
    try:
        dataset = ds.dataset(path, format="parquet")
        for fragment in dataset.get_fragments():
            fragment.ensure_complete_metadata()
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"is not readable Parquet: {why(error)}"
    required = [field.name for field in msgspec.structs.fields(LatencySample) if field.required]
    absent = [name for name in required if name not in dataset.schema.names]
    return f"lacks the columns {', '.join(absent)}" if absent else ""


def _unread(path: Path, run_id: str, error: str) -> SourceReport:
    return SourceReport(path=str(path), run_id=run_id, kind="samples", error=error)


def _good_and_bad(rows: DataFrame) -> tuple[int, int]:
    counted = rows.agg(sf.count("*").alias("all"), sf.count_if(sf.col("broken")).alias("bad")).collect()[0]
    return counted["all"] - counted["bad"], counted["bad"]
