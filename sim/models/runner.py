"""Runs a model and writes what it found: ``result.json``, ``samples.parquet`` in the trace schema, ``plot.html``."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.reference_broker.trace.results import Machine, Percentiles, RunKind, RunResult, Series, write_result
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA
from assay.sim.models.model import Latencies, Model, ModelError, Outcome, P, Part, Progress

MAX_ROWS: Final = 10_000
"""Of ``samples.parquet``: of more, evenly spaced ones are kept, which leaves percentiles as they are."""
SAMPLES_FILE: Final = "samples.parquet"
PLOT_FILE: Final = "plot.html"
PLOTLY_FILE: Final = "plotly.min.js"
"""Beside the folders of the models, so that all plots share it."""
_NS: Final = 1e9
_CURVE: Final = (1, 5, *range(10, 95, 5), 95, 97, 99, 99.5, 99.9)


def _thinned(samples: Sequence[Latencies]) -> list[Latencies]:
    every = max(1, -(-sum(len(part.intended_s) for part in samples) // MAX_ROWS))
    return [
        msgspec.structs.replace(part, intended_s=part.intended_s[::every], completed_s=part.completed_s[::every])
        for part in samples
    ]


def write_samples(path: Path, samples: Sequence[Latencies], *, run_id: str) -> int:
    """Write ``samples.parquet`` (zstd); returns the number of rows."""
    rows = 0
    texts = [field.name for field in SAMPLE_SCHEMA if field.type == pa.string()]
    deltas = {field.name: "DELTA_BINARY_PACKED" for field in SAMPLE_SCHEMA if field.name not in texts}
    with pq.ParquetWriter(
        path, SAMPLE_SCHEMA, compression="zstd", use_dictionary=texts, column_encoding=deltas
    ) as writer:
        for part in _thinned(samples):
            count = len(part.intended_s)
            intended_ns = np.round(part.intended_s * _NS).astype(np.int64)
            columns = {
                "run_id": [run_id] * count,
                "phase": [part.phase] * count,
                "operation": [part.operation.value] * count,
                "qos": np.ones(count, np.int64),
                "client": ["model"] * count,
                "seq": np.arange(count),
                "intended_ns": intended_ns,
                "sent_ns": intended_ns,
                "completed_ns": np.round(part.completed_s * _NS).astype(np.int64),
                "status": [part.status] * count,
                "workload": [part.workload] * count,
                "queue": [""] * count,
                "protocol": [""] * count,
                "offered_ns": intended_ns,
            }
            writer.write_table(pa.table(columns, schema=SAMPLE_SCHEMA))
            rows += count
    return rows


def percentiles(part: Latencies) -> Percentiles:
    """Exact percentiles of a kind of requests, by nearest rank."""
    latency_us = (part.completed_s - part.intended_s) * 1e6
    p50, p90, p99, p999 = np.percentile(latency_us, [50, 90, 99, 99.9], method="inverted_cdf")
    return Percentiles(
        name=f"{part.workload}: {part.operation.replace('_', ' ')}",
        count=len(latency_us),
        p50_us=round(float(p50), 1),
        p90_us=round(float(p90), 1),
        p99_us=round(float(p99), 1),
        p999_us=round(float(p999), 1),
        max_us=round(float(latency_us.max()), 1),
    )


def _curve(part: Latencies) -> Series:
    values = np.percentile((part.completed_s - part.intended_s) * 1e3, _CURVE)
    return Series(
        name=part.workload,
        unit="ms",
        x_s=[float(x) for x in _CURVE],
        y=[float(y) for y in values],
        group="latency by percentile",
    )


def _this_machine() -> Machine:
    return Machine(
        platform=platform.platform(),
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def run_model(
    model: Model[P],
    parameters: P,
    *,
    seed: int,
    sources: Mapping[str, str],
    command: str,
    out: Path | None = None,
    progress: Progress | None = None,
    measured: Sequence[Path] = (),
) -> tuple[Outcome, RunResult]:
    """Run a model, or compare it with measurements; with ``out``, leave its files there.

    Raises :class:`assay.sim.models.model.ModelError`.
    """
    began = time.perf_counter()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    show: Progress = progress or (lambda _what, _share: None)
    if measured and model.compare is None:
        message = f"there is nothing to compare {model.name} with: its check is in the model"
        raise ModelError(message)
    if measured and model.compare is not None:
        outcome = model.compare(parameters, seed, list(measured), show)
    else:
        outcome = model.run(parameters, seed, show)
    answered = [part for part in outcome.samples if len(part.intended_s)]
    series, x_axis = outcome.series, outcome.x_axis
    if not series:
        series, x_axis = [_curve(part) for part in answered], "percentile"
    failed = [row.what for row in outcome.rows if row.verdict.value != "pass"]
    agreed = f"{len(outcome.rows) - len(failed)} of {len(outcome.rows)} rows agree with theory or measurement"
    result = RunResult(
        kind=RunKind.MODEL,
        name=f"model {model.name}",
        verdict=outcome.verdict,
        summary="; ".join([agreed, *outcome.answers]) + (f"; not: {', '.join(failed)}" if failed else ""),
        target="model",
        world="model",
        seed=seed,
        started_at=started_at,
        duration_s=round(time.perf_counter() - began, 3),
        command=command,
        checks=[row.check(model.name) for row in outcome.rows],
        metrics={**_flat(parameters, sources), **outcome.metrics},
        percentiles=[percentiles(part) for part in answered],
        series=series,
        x_axis=x_axis,
        bands=outcome.bands,
        artefacts={"samples": SAMPLES_FILE} if answered and out is not None else {},
        machine=_this_machine(),
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if answered:
            write_samples(out / SAMPLES_FILE, answered, run_id=f"{model.name}-{seed}")
        write_result(out, result)
        write_plot(out, result)
    return outcome, result


def _flat(parameters: Part, sources: Mapping[str, str]) -> dict[str, float | int | str]:
    """Parameters as metrics; a source stands beside each."""
    found: dict[str, float | int | str] = {}
    for name, value in msgspec.to_builtins(parameters).items():
        found[f"parameter.{name}"] = value if isinstance(value, int | float | str) else str(value)
        found[f"source.{name}"] = sources.get(name, "default")
    return found


def write_plot(out: Path, result: RunResult) -> Path:
    """Draw the rows against their bounds and every group of series; a page without the network."""
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs
    from plotly.subplots import make_subplots

    groups = list(dict.fromkeys(line.group for line in result.series))
    titles = ["figures against their bounds (1 = the bound)", *groups]
    figure: Any = make_subplots(rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=0.35 / len(titles))
    shown = [check for check in result.checks if check.value is not None and check.bound]
    figure.add_trace(
        go.Bar(
            x=[(check.value or 0.0) / check.bound for check in shown if check.bound],
            y=[check.name for check in shown],
            orientation="h",
            marker_color=["#2e7d32" if check.verdict.value == "pass" else "#c62828" for check in shown],
            hovertext=[f"{check.subject}; {check.source}" for check in shown],
            showlegend=False,
        ),
        row=1,
        col=1,
    )
    for place, group in enumerate(groups, start=2):
        for line in result.series:
            if line.group == group:
                trace = go.Scatter(x=line.x_s, y=line.y, name=f"{line.name}, {line.unit}", mode="lines+markers")
                figure.add_trace(trace, row=place, col=1)
        figure.update_xaxes(title_text=result.x_axis or "seconds", row=place, col=1)
    figure.update_layout(
        title=f"{result.name}: {result.verdict.value}", height=360 * len(titles), template="plotly_white"
    )
    path, script = out / PLOT_FILE, out.parent / PLOTLY_FILE
    if not script.exists():
        script.write_text(get_plotlyjs(), encoding="utf-8")
    figure.write_html(path, include_plotlyjs=f"../{PLOTLY_FILE}")
    return path
