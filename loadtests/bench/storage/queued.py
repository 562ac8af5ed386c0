"""Rows of the queued messages: starts the processes of :mod:`assay.loadtests.bench.storage.queued_messages`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO

import msgspec

from assay.loadtests.bench.storage.measurement import MeasuredRow, RowSpec
from assay.loadtests.bench.storage.plan import Progress, StoragePlan
from assay.loadtests.bench.storage.queued_messages import Line, QueuedFigures
from assay.reference_broker.trace.described import described

_MEGA = 1e6
_END_TIMEOUT_S = 10.0


class QueuedMessagesError(RuntimeError):
    """The child failed; the text is what it said."""


def measure_queued(plan: StoragePlan, folder: Path, progress: Progress) -> list[MeasuredRow]:
    """Enqueue in one process, open again in another; one round, since each takes a fresh process and a gigabyte."""
    folder.mkdir(exist_ok=True)
    count = f"{plan.queued_messages:,}"
    filled = _run_child(plan, folder, "enqueueing messages", progress)
    opened = _run_child(plan, folder, "opening the queue again", progress, "--reopen")
    for figures in (filled, opened):
        if figures.depth != plan.queued_messages:
            message = f"the queue holds {figures.depth} messages in place of {plan.queued_messages}"
            raise QueuedMessagesError(message)
    return [
        _row(
            "queued.rate",
            f"{count} messages of {plan.queued_bytes:,} bytes through the queue engine, fsync",
            "msg/s",
            plan.queued_messages / filled.took_s,
            raw=plan.queued_messages / filled.raw_s,
            raw_title="write and fsync of the same bytes",
        ),
        _row("queued.peak", "  most resident memory of the process, Python included", "MB", filled.peak_bytes / _MEGA),
        _row("queued.resident", "  resident memory at the end", "MB", filled.resident_bytes / _MEGA),
        _row("queued.python", "  of it before the engine was made", "MB", filled.before_bytes / _MEGA),
        _row(
            "queued.disk",
            "  bytes on disk",
            "MB",
            filled.disk_bytes / _MEGA,
            raw=plan.queued_messages * plan.queued_bytes / _MEGA,
            raw_title="payloads",
        ),
        _row("queued.open", "  restart: opening the store", "s", opened.took_s),
        _row("queued.open.peak", "  restart: most resident memory", "MB", opened.peak_bytes / _MEGA),
    ]


def _row(
    key: str, title: str, unit: str, value: float, *, raw: float | None = None, raw_title: str = ""
) -> MeasuredRow:
    spec = RowSpec(key=key, title=title, unit=unit, raw_title=raw_title, needs_disk=key == "queued.rate")
    return MeasuredRow(spec=spec, values=[value], raw_values=[] if raw is None else [raw])


def _run_child(plan: StoragePlan, folder: Path, what: str, progress: Progress, *options: str) -> QueuedFigures:
    command = [sys.executable, "-m", "assay.loadtests.bench.storage.queued_messages", str(folder)]
    command += ["--count", str(plan.queued_messages), "--payload-bytes", str(plan.queued_bytes), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            figures = _read_lines(child.stdout, plan, what, progress)
            errors = child.stderr.read().decode(errors="replace")
            child.wait(_END_TIMEOUT_S)
        finally:
            child.kill()
    if figures is None or child.returncode:
        message = f"the process that was {what} ended with {child.returncode}: {errors.strip()[-2_000:]}"
        raise QueuedMessagesError(message)
    return figures


def _read_lines(stdout: IO[bytes], plan: StoragePlan, what: str, progress: Progress) -> QueuedFigures | None:
    decoder = msgspec.json.Decoder(described(Line))
    progress(what, 0.0)
    for raw in stdout:
        line = decoder.decode(raw)
        if isinstance(line, QueuedFigures):
            return line
        progress(what, line.count / plan.queued_messages)
    return None
