"""Charts: plotly accepts them, spikes survive, times have a readable unit."""

from __future__ import annotations

import json
import math

import msgspec
import plotly.graph_objects
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import bench_run, fault_run, load_run

from assay.reference_broker.trace.results import Band, RunKind, RunResult, Series
from assay.reports.charts import MAX_LABELLED_BANDS, Chart, percentile_ladder, thin, timeline


def rounds_run() -> RunResult:
    line = Series(name="reference", unit="messages/s", x_s=[0, 1, 2], y=[3.0, 4.0, 5.0], group="QoS 0 by round")
    return msgspec.structs.replace(bench_run(), series=[line])


def all_charts() -> list[Chart]:
    charts = [timeline(run) for run in (fault_run(RunKind.SIM), fault_run(RunKind.FAULTS), load_run())]
    charts += [percentile_ladder(load_run().percentiles), timeline(rounds_run())]
    assert None not in charts
    return [chart for chart in charts if chart is not None]


def with_series(*series: Series, bands: tuple[Band, ...] = ()) -> RunResult:
    return msgspec.structs.replace(load_run(), series=list(series), bands=list(bands))


@pytest.mark.parametrize("chart", all_charts(), ids=lambda chart: chart.name)
def test_plotly_accepts_every_attribute(chart: Chart) -> None:
    figure = plotly.graph_objects.Figure(chart.figure)
    assert len(figure.data) == len(json.loads(chart.json)["data"]) > 0


def test_faults_are_shaded_over_all_rows() -> None:
    chart = timeline(fault_run(RunKind.FAULTS))
    assert chart is not None
    layout = json.loads(chart.json)["layout"]
    assert {shape["name"] for shape in layout["shapes"]} == {"fault"}
    assert [(shape["x0"], shape["x1"], shape["yref"]) for shape in layout["shapes"]] == [
        (5, 7, "paper"),
        (12, 14, "paper"),
    ]
    assert {"kill -9 broker", "cut network"} <= {note["text"] for note in layout["annotations"]}


def test_groups_stack_and_share_the_time_axis() -> None:
    chart = timeline(fault_run(RunKind.FAULTS))
    assert chart is not None
    figure = json.loads(chart.json)
    assert [(trace["xaxis"], trace["yaxis"]) for trace in figure["data"]] == [
        ("x", "y"),
        ("x", "y"),
        ("x", "y2"),
        ("x", "y2"),
    ]
    domains = [figure["layout"][axis]["domain"] for axis in ("yaxis", "yaxis2")]
    assert domains[0][0] > domains[1][1], "rows do not overlap"


def test_a_row_grows_with_its_legend() -> None:
    few = [Series(name="one", unit="1/s", x_s=[0], y=[1], group="rate")]
    many = [Series(name=f"line {at}", unit="ms", x_s=[0], y=[1], group="latency") for at in range(14)]
    chart = timeline(with_series(*few, *many))
    assert chart is not None
    layout = json.loads(chart.json)["layout"]
    heights = [(high - low) * chart.height for low, high in (layout["yaxis"]["domain"], layout["yaxis2"]["domain"])]
    assert heights[1] > 14 * 18 > heights[0]
    assert [layout[name]["orientation"] for name in ("legend", "legend2")] == ["h", "v"]


def test_crowded_faults_lose_their_labels_but_not_their_shade() -> None:
    bands = tuple(Band(label=f"b{at}", from_s=at, to_s=at + 0.5) for at in range(MAX_LABELLED_BANDS + 1))
    chart = timeline(with_series(Series(name="a", unit="x", x_s=[0, 1], y=[1, 2]), bands=bands))
    assert chart is not None
    layout = json.loads(chart.json)["layout"]
    assert len(layout["shapes"]) == len(bands)
    assert [note["text"] for note in layout["annotations"]] == ["<b>a</b>"]


def test_no_chart_is_made_of_nothing() -> None:
    empty = Series(name="a", unit="ms", x_s=[], y=[])
    gaps = Series(name="b", unit="ms", x_s=[0, 1], y=[None, math.nan])
    assert timeline(with_series(empty, gaps)) is None
    assert percentile_ladder([]) is None
    assert percentile_ladder([msgspec.structs.replace(load_run().percentiles[0], count=0)]) is None


def test_times_are_shown_in_a_readable_unit() -> None:
    line = Series(name="p99", unit="µs", x_s=[0, 1, 2], y=[900, None, 180_000], group="latency")
    chart = timeline(with_series(line))
    assert chart is not None
    assert json.loads(chart.json)["data"][0]["y"] == [0.9, None, 180]
    assert chart.head[1] == "p99 (ms)"


def test_a_bench_counts_rounds_not_seconds() -> None:
    chart = timeline(rounds_run())
    assert chart is not None
    assert chart.title == "Round by round"
    assert json.loads(chart.json)["layout"]["xaxis"]["title"]["text"] == "round"


def test_a_label_cannot_end_the_script_element_it_stands_in() -> None:
    chart = timeline(with_series(Series(name="</script><b>", unit="&", x_s=[0], y=[1])))
    assert chart is not None
    assert not set("<>&") & set(chart.json)
    assert json.loads(chart.json)["data"][0]["name"] == "&lt;/script&gt;&lt;b&gt;"


values = st.lists(st.one_of(st.none(), st.floats(min_value=-1e9, max_value=1e9)), max_size=400)


@given(values=values, limit=st.integers(min_value=1, max_value=50))
def test_thinning_keeps_the_limit_the_order_and_the_largest_value(values: list[float | None], limit: int) -> None:
    line = Series(name="a", unit="", x_s=[float(at) for at in range(len(values))], y=values)
    xs, ys = thin(line, limit)
    assert len(xs) == len(ys) <= limit
    assert xs == sorted(xs)
    real = [value for value in values if value is not None]
    kept = [value for value in ys if value is not None]
    assert max(kept, default=None) == max(real, default=None)
