"""Charts of an analysis, from its result and tables: figures of plotly, drawn by the notebook."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import pandas as pd
import plotly.graph_objects as go
import pyarrow.parquet as pq

from assay.reference_broker.trace.results import Band, RunResult, Series, Verdict, read_result
from assay.spark_analysis.latency import NS_PER_S
from assay.spark_analysis.sources import SPARK_FOLDER

COLOURS: Final = {
    Verdict.PASS: "#2e7d32",
    Verdict.FAIL: "#c62828",
    Verdict.UNKNOWN: "#9e9e9e",
    Verdict.ERROR: "#ef6c00",
}
_HEIGHT_PX: Final = 380


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """A finished analysis: the folder that holds its ``result.json``, and that result."""

    folder: Path
    result: RunResult

    def table(self, name: str) -> pd.DataFrame | None:
        """A table of the analysis by its name in ``result.artefacts``; ``None`` when the run had nothing for it."""
        place = self.result.artefacts.get(name)
        return None if place is None else pq.read_table(self.folder / place).to_pandas()

    def groups(self) -> list[str]:
        """Groups of series, each of which is one chart."""
        return list(dict.fromkeys(line.group for line in self.result.series))

    def bands(self, group: str) -> list[Band]:
        """The faults of the run to which a group of series belongs."""
        recovery = self.table("recovery")
        if recovery is None:
            return []
        alone = "[" not in group
        return [
            Band(label=row["detail"], from_s=row["from_ns"] / NS_PER_S, to_s=row["to_ns"] / NS_PER_S)
            for _, row in recovery.iterrows()
            if alone or group.endswith(f"[{row['run_id']}]")
        ]


def open_analysis(run_folder: Path) -> Analysis:
    """The analysis of a run. Raises :class:`FileNotFoundError` when it has not been made (``assay spark analyse``)."""
    folder = run_folder / SPARK_FOLDER
    path = folder / "result.json"
    if not path.exists():
        message = f"{run_folder} has not been analysed: run `assay spark analyse {run_folder}` first"
        raise FileNotFoundError(message)
    return Analysis(folder=folder, result=read_result(path))


class Shown:
    """Figures as one piece of HTML: the value of a notebook cell."""

    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html


class Page:
    """Renders figures for a notebook without the network: the script of plotly is a file beside it, named once."""

    def __init__(self) -> None:
        self._has_script = False

    def show(self, *figures: go.Figure) -> Shown:
        """The figures, one below the other."""
        parts = []
        for figure in figures:
            parts.append(figure.to_html(full_html=False, include_plotlyjs=False if self._has_script else "directory"))
            self._has_script = True
        return Shown("\n".join(parts) or "<p>Nothing to draw.</p>")


def verdict_chart(result: RunResult) -> go.Figure:
    """How far each measured figure is from its bound; grey bars were not judged."""
    shown = [check for check in result.checks if check.bound is not None and check.value is not None]
    ratios = [check.value / check.bound if check.bound else check.value for check in shown if check.value is not None]
    figure = go.Figure(
        go.Bar(
            x=ratios,
            y=[check.name for check in shown],
            orientation="h",
            marker_color=[COLOURS[check.verdict] for check in shown],
            text=[f"{check.value:g} {check.unit} (bound {check.relation} {check.bound:g})" for check in shown],
            hovertext=[check.background for check in shown],
        )
    )
    figure.add_vline(x=1.0, line_dash="dash", annotation_text="bound")
    return _styled(figure, "Figures against their bounds", "value / bound", "").update_layout(showlegend=False)


def percentile_chart(result: RunResult) -> go.Figure:
    """Percentiles of each operation on a logarithmic scale."""
    names = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"]
    figure = go.Figure(
        [
            go.Scatter(
                x=[name.removesuffix("_us") for name in names],
                y=[getattr(row, name) / 1000 for name in names],
                name=f"{row.name} ({row.count})",
                mode="lines+markers",
            )
            for row in result.percentiles
        ]
    )
    figure.update_yaxes(type="log")
    return _styled(figure, "Latency percentiles", "", "ms")


def series_chart(result: RunResult, group: str, bands: Iterable[Band]) -> go.Figure:
    """The lines of one group over time, bands shaded."""
    lines = [line for line in result.series if line.group == group]
    figure = go.Figure([_line(line) for line in lines])
    _shade(figure, bands)
    unit = lines[0].unit if lines else ""
    return _styled(figure, group, result.x_axis or "seconds since the start of the run", unit)


def fault_chart(table: pd.DataFrame) -> go.Figure:
    """p99 of each operation inside and outside faults; ``table`` is ``fault_latency``."""
    figure = go.Figure(
        [
            go.Bar(
                x=rows["queue"] + " " + rows["operation"] + " " + rows["run_id"],
                y=rows["p99_us"] / 1000,
                name=str(place),
            )
            for place, rows in table.groupby("place")
        ]
    )
    return _styled(figure, "p99 inside and outside faults", "", "ms")


def _line(line: Series) -> go.Scatter:
    return go.Scatter(x=line.x_s, y=line.y, name=line.name, mode="lines+markers")


def _shade(figure: go.Figure, bands: Iterable[Band]) -> None:
    for band in bands:
        figure.add_vrect(
            x0=band.from_s,
            x1=band.to_s,
            fillcolor="#c62828",
            opacity=0.12,
            line_width=0,
            annotation_text=band.label,
            annotation_position="top left",
        )


def _styled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    figure.update_layout(
        title=title, xaxis_title=x, yaxis_title=y, height=_HEIGHT_PX, template="plotly_white", showlegend=True
    )
    return figure
