"""The notebook on clusters, executed on what models leave; the demo executes it on models that were run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import nbformat
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from assay.reference_broker.trace.results import Band, Check, RunKind, RunResult, Series, Verdict, write_result
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA
from assay.reference_broker.trace.schema import LatencyOperation
from assay.spark_analysis.cli import app
from assay.spark_analysis.notebook import Kind, notebook_text, with_parameters

ROWS = 100


def model(name: str, **fields: object) -> RunResult:
    check = Check(name=f"{name}: mean", value=0.4, unit="%", bound=2.0, relation="<=", verdict=Verdict.PASS)
    result = RunResult(kind=RunKind.MODEL, name=f"model {name}", verdict=Verdict.PASS, summary="s", checks=[check])
    return msgspec.structs.replace(result, **fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models of those that the page shows: what is missing is left out."""
    line = Series(name="behind", unit="messages", x_s=[0.0, 1.0], y=[3.0, 4.0], group="replication lag")
    metrics: dict[str, float | int | str] = {"healthy.p99_ms": 8.5, "all.p99_ms": 9.0, "all.lost_messages": 0}
    band = Band(label="a node died", from_s=0.2, to_s=0.5)
    artefacts = {"samples": "samples.parquet"}
    cluster = model("cluster", metrics=metrics, series=[line], bands=[band], artefacts=artefacts)
    write_result(tmp_path / "cluster", cluster)
    times_ns = np.arange(ROWS) * 1_000_000
    text = {"run_id": "m", "phase": "steady", "operation": LatencyOperation.PUBLISH_TO_ACK.value, "client": "model"}
    text |= {"status": "ok", "workload": "cluster healthy", "queue": "", "protocol": ""}
    columns: dict[str, object] = {name: [value] * ROWS for name, value in text.items()}
    columns |= dict.fromkeys(("intended_ns", "sent_ns", "offered_ns"), times_ns)
    columns |= {"qos": np.ones(ROWS, np.int64), "seq": np.arange(ROWS)}
    columns["completed_ns"] = times_ns + np.where(np.arange(ROWS) < 25, 20_000_000, 1_000_000)
    ordered = {name: columns[name] for name in SAMPLE_SCHEMA.names}
    pq.write_table(pa.table(ordered, schema=SAMPLE_SCHEMA), tmp_path / "cluster" / "samples.parquet")
    gaps = Series(name="kill, measured", unit="s", x_s=[1.0, 99.0], y=[4.1, 8.4], group="time without a confirm")
    nats = model("nats", metrics={"kill.median_s": 5.8}, series=[gaps], x_axis="percentile")
    write_result(tmp_path / "nats", nats)
    return tmp_path


def outputs(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    return json.dumps([cell.get("outputs", []) for cell in notebook.cells])


def test_the_notebook_shows_models_and_agrees_with_their_checks(folder: Path) -> None:
    finished = CliRunner().invoke(app, ["notebook", "--clusters", str(folder)])
    assert finished.exit_code == 0, finished.output
    told = outputs(folder / "cluster" / "clusters.ipynb")
    assert "consistent" in told
    assert "0.25" in told, "share of the samples above the bound"
    assert "replication lag" in told
    assert "percentile" in told, "the axis of a chart whose x is no time"
    assert "seconds since the start of the run" in told
    page = (folder / "cluster" / "clusters.html").read_text(encoding="utf-8")
    assert "What each policy of acknowledgement costs and loses" in page
    assert "var(--jp-icon-" in page
    assert "url(data:image/svg" not in page, "no pictures of buttons that a page has not"


def test_the_notebook_fails_when_a_check_does(folder: Path) -> None:
    wrong = Check(name="nats: p-value", value=0.01, unit="", bound=0.05, relation=">=", verdict=Verdict.FAIL)
    write_result(folder / "nats", model("nats", checks=[wrong]))
    notebook = with_parameters(notebook_text(Kind.CLUSTERS), {"run_folder": str(folder)})
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    with pytest.raises(AssertionError, match="p-value is fail"):
        exec(code, {"__name__": "notebook"})  # as its kernel would


def test_models_must_have_been_run(tmp_path: Path) -> None:
    finished = CliRunner().invoke(app, ["notebook", "--clusters", str(tmp_path)])
    assert finished.exit_code == 2
    assert "assay sim model run cluster" in finished.output.replace("\n", " ")
    assert "parameters" in notebook_text(Kind.CLUSTERS)
