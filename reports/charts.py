"""Charts as plotly figures in plain data; ``assets/charts.js`` adds the theme's colours and draws them.

Figures are plain dictionaries rather than ``plotly.graph_objects``: the same bytes for the same input, no slow import.
The tests feed each of them to ``plotly.graph_objects.Figure``, which refuses unknown attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from assay.reference_broker.trace.results import Band, Percentiles, RunKind, RunResult, Series
from assay.reports.humanise import quantity, words

Json = dict[str, "Json"] | list["Json"] | str | float | int | bool | None

MAX_POINTS = 4_000
MAX_MARKED_POINTS = 150
"""A point between two gaps is only seen by its marker; a dense line needs none."""
MAX_SERIES = 40
MAX_LINES_IN_ROW_LEGEND = 3
"""More lines than this get their legend at the side."""
MAX_BANDS = 60
MAX_LABELLED_BANDS = 10
MAX_TABLE_ROWS = 120
LOG_SPREAD = 50.0
"""A time axis turns logarithmic when its largest value is this many times its median."""

_ROW_HEIGHT = 210
_ROW_HEAD = 38
"""Pixels above a row for its heading and legend."""
_ROW_GAP = 20
_LEGEND_LINE = 19
_LABEL_HEIGHT = 14
_TO_US = {"ns": 1e-3, "µs": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
_UNIT_NAMES = {"1/s": "per second"}
_DASHES = ("solid", "dash", "dot", "dashdot")
_PERCENTILE_NAMES = ("p50", "p90", "p99", "p99.9", "max")


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, and the same figures as a table for those who cannot see it."""

    name: str
    """Unique on its page."""
    title: str
    description: str
    figure: dict[str, Json]
    head: list[str]
    rows: list[list[str]]
    """Empty where the page shows the figures in a table anyway."""
    note: str = ""

    @property
    def json(self) -> str:
        """The figure as JSON that is safe inside a ``script`` element: no ``<`` can end it."""
        text = msgspec.json.encode(self.figure).decode()
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    @property
    def height(self) -> int:
        layout = self.figure["layout"]
        height = layout.get("height") if isinstance(layout, dict) else None
        return height if isinstance(height, int) else 320


def timeline(result: RunResult, name: str = "timeline") -> Chart | None:
    """All series over time, a row per group and unit, fault bands shaded across them; ``None`` without data."""
    series = _scaled([line for line in result.series if any(_finite(value) for value in line.y)][:MAX_SERIES])
    if not series:
        return None
    rounds = result.kind is RunKind.BENCH  # its x is the number of the round
    axis = result.x_axis or ("round" if rounds else "seconds since the start")
    rows, height = _stack(series)
    layout: dict[str, Json] = {"height": 110 + height, "hovermode": "x unified"}
    for row in rows:
        layout |= _row_layout(row)
    layout["xaxis"] = {
        "title": {"text": axis},
        "anchor": f"y{rows[-1].axis}",
        "rangemode": "tozero",
    }
    bands = sorted(result.bands, key=lambda band: band.from_s)[:MAX_BANDS]
    layout["shapes"] = [_band_shape(band, result.kind) for band in bands]
    layout["annotations"] = [*(_heading(row) for row in rows), *_band_labels(bands)]
    layout["margin"] = {"t": 30 + _LABEL_HEIGHT * _label_levels(bands)}
    dropped = len(result.series) - len(series)
    return Chart(
        name=name,
        title=f"By {result.x_axis}" if result.x_axis else "Round by round" if rounds else "Over time",
        description=_describe_timeline(series, bands),
        figure={
            "data": [_trace(line, place, row.axis) for row in rows for place, line in enumerate(row.lines)],
            "layout": layout,
        },
        head=[
            result.x_axis or ("round" if rounds else "seconds"),
            *(f"{words(line.name)} ({line.unit})" if line.unit else words(line.name) for line in series),
        ],
        rows=_series_table(series),
        note=f"{dropped} series without data, or beyond the first {MAX_SERIES}, are left out." if dropped else "",
    )


def percentile_ladder(percentiles: Sequence[Percentiles], name: str = "percentiles") -> Chart | None:
    """Latency per percentile on a logarithmic axis, one line per operation; ``None`` without samples."""
    shown = [row for row in percentiles if row.count > 0][:MAX_SERIES]
    if not shown:
        return None
    traces: list[Json] = []
    for index, row in enumerate(shown):
        values = _percentile_values(row)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _plain(words(row.name)),
                "x": list(_PERCENTILE_NAMES),
                "y": [value / 1_000 if value > 0 else None for value in values],
                "line": {"width": 2, "dash": _DASHES[(index // 8) % len(_DASHES)]},
                "marker": {"size": 8, "symbol": index % 8},
                "meta": {"colour": index % 8},
            }
        )
    layout: dict[str, Json] = {
        "height": 360,
        "yaxis": {"type": "log", "title": {"text": "latency, ms (log)"}, "dtick": 1},
        "xaxis": {"type": "category"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return Chart(
        name=name,
        title="Latency by percentile",
        description="; ".join(
            f"{row.name}: median {quantity(row.p50_us, 'µs')}, p99 {quantity(row.p99_us, 'µs')}" for row in shown
        ),
        figure={"data": traces, "layout": layout},
        head=[],
        rows=[],
    )


def _scaled(series: list[Series]) -> list[Series]:
    """Times of one group in the unit that suits their largest value: nobody reads ``150k µs``."""
    scaled: list[Series] = []
    for line in series:
        factor = _TO_US.get(line.unit)
        if factor is None:
            scaled.append(line)
            continue
        peers = [other for other in series if other.group == line.group and other.unit == line.unit and line.group]
        largest = max(_or_least(value) for other in [line, *peers] for value in other.y) * factor
        unit = "s" if largest >= 10e6 else "ms" if largest >= 1_000 else "µs"
        values = [value * factor / _TO_US[unit] if value is not None else None for value in line.y]
        scaled.append(msgspec.structs.replace(line, unit=unit, y=values))
    return scaled


def thin(line: Series, limit: int) -> tuple[list[float], list[float | None]]:
    """At most about ``limit`` points; of each stretch the largest value stays, so a spike is never thinned away."""
    count = min(len(line.x_s), len(line.y))
    if count <= limit:
        return line.x_s[:count], [value if _finite(value) else None for value in line.y[:count]]
    stride = math.ceil(count / limit)
    xs: list[float] = []
    ys: list[float | None] = []
    for start in range(0, count, stride):
        stretch = range(start, min(start + stride, count))
        best = max(stretch, key=lambda at: _or_least(line.y[at]))
        xs.append(line.x_s[best])
        ys.append(line.y[best] if _finite(line.y[best]) else None)
    return xs, ys


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _or_least(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def _percentile_values(row: Percentiles) -> tuple[float, ...]:
    return (row.p50_us, row.p90_us, row.p99_us, row.p999_us, row.max_us)


def _trace(line: Series, place: int, axis: str) -> Json:
    xs, ys = thin(line, MAX_POINTS)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(xs) <= MAX_MARKED_POINTS else "lines",
        "name": _plain(words(line.name)),
        "x": list(xs),
        "y": list(ys),
        "xaxis": "x",
        "yaxis": f"y{axis}",
        "legend": f"legend{axis}",
        "line": {"width": 2, "dash": _DASHES[(place // 8) % len(_DASHES)]},
        "marker": {"size": 4},
        "connectgaps": False,
        "meta": {"colour": place % 8},
    }


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One chart of the stack; ``bottom`` and ``top`` are shares of the stack's height."""

    group: str
    unit: str
    lines: list[Series]
    bottom: float
    top: float
    axis: str
    """Plotly's suffix: empty for the first, then ``2``, ``3``..."""

    @property
    def crowded(self) -> bool:
        return len(self.lines) > MAX_LINES_IN_ROW_LEGEND


def _stack(series: list[Series]) -> tuple[list[_Row], int]:
    """Rows by group and unit from top to bottom, and their height in pixels; a crowded row grows with its legend."""
    grouped: dict[tuple[str, str], list[Series]] = {}
    for line in series:
        grouped.setdefault((line.group or line.name, line.unit), []).append(line)
    heights = [max(_ROW_HEIGHT, _LEGEND_LINE * len(lines) + _ROW_HEAD) for lines in grouped.values()]
    total = sum(heights)
    rows: list[_Row] = []
    above = 0
    for index, ((group, unit), lines) in enumerate(grouped.items()):
        under = above + heights[index]
        last = index == len(heights) - 1
        rows.append(
            _Row(
                group=group,
                unit=unit,
                lines=lines,
                bottom=round(1 - (under - (0 if last else _ROW_GAP)) / total, 4),
                top=round(1 - (above + _ROW_HEAD) / total, 4),
                axis="" if index == 0 else str(index + 1),
            )
        )
        above = under
    return rows, total


def _row_layout(row: _Row) -> dict[str, Json]:
    """The row's axis and its own legend."""
    values = sorted(value for line in row.lines for value in line.y if value is not None and math.isfinite(value))
    positive = [value for value in values if value > 0]
    logarithmic = (
        row.unit in _TO_US and len(positive) == len(values) and values[-1] > LOG_SPREAD * positive[len(positive) // 2]
    )
    title = f"{row.unit} (log)" if logarithmic else _UNIT_NAMES.get(row.unit, row.unit)
    yaxis: dict[str, Json] = {"domain": [row.bottom, row.top], "anchor": "x", "title": {"text": _plain(title)}}
    yaxis |= {"type": "log", "dtick": 1} if logarithmic else {"rangemode": "tozero"}
    legend: dict[str, Json] = (
        {"orientation": "v", "x": 1.01, "xanchor": "left", "y": row.top, "yanchor": "top"}
        if row.crowded
        else {"orientation": "h", "x": 1, "xanchor": "right", "y": row.top, "yanchor": "bottom"}
    )
    return {f"yaxis{row.axis}": yaxis, f"legend{row.axis}": legend}


def _heading(row: _Row) -> Json:
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": row.top,
        "text": f"<b>{_plain(words(row.group))}</b>",
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
    }


def _band_shape(band: Band, kind: RunKind) -> Json:
    return {
        "name": "phase" if kind is RunKind.LOAD else "fault",
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": band.from_s,
        "x1": band.to_s,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 1, "dash": "dot"},
    }


def _band_labels(bands: list[Band]) -> list[Json]:
    if len(bands) > MAX_LABELLED_BANDS:
        return []  # they would cover each other; the table of faults names them all
    return [
        {
            "xref": "x",
            "yref": "paper",
            "x": band.from_s,
            "y": 1,
            "yshift": 2 + _LABEL_HEIGHT * (index % _label_levels(bands)),
            "text": _plain(words(band.label)),
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 11},
        }
        for index, band in enumerate(bands)
    ]


def _label_levels(bands: list[Band]) -> int:
    """Rows of labels above the chart, so that neighbours do not cover each other."""
    return 0 if not bands or len(bands) > MAX_LABELLED_BANDS else min(3, len(bands))


def _plain(text: str) -> str:
    """Plotly reads a few tags in labels; hostile or accidental ones must stay text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _series_table(series: list[Series]) -> list[list[str]]:
    """One row per moment of the first, densest series; at most ``MAX_TABLE_ROWS``."""
    thinned = [thin(line, MAX_TABLE_ROWS) for line in series]
    moments = sorted({round(x, 3) for xs, _ in thinned for x in xs})
    stride = max(1, math.ceil(len(moments) / MAX_TABLE_ROWS))
    lookup = [{round(x, 3): y for x, y in zip(xs, ys, strict=True)} for xs, ys in thinned]
    return [[quantity(moment), *(_cell(values.get(moment)) for values in lookup)] for moment in moments[::stride]]


def _cell(value: float | None) -> str:
    return "" if value is None else quantity(value)


def _describe_timeline(series: list[Series], bands: list[Band]) -> str:
    names = ", ".join(dict.fromkeys(line.name for line in series))
    faults = f" Shaded: {', '.join(dict.fromkeys(band.label for band in bands))}." if bands else ""
    return f"{names} over time.{faults}"
