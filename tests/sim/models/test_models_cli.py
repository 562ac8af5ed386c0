"""The command, its files, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from assay.reference_broker.trace.integrity import problems_of
from assay.reference_broker.trace.results import RunKind, Verdict, read_result
from assay.reference_broker.trace.schema import LatencySample
from assay.sim.cli import app
from assay.sim.models.mistakes import MISTAKES
from assay.sim.models.model import load_parameters
from assay.sim.models.registry import MODELS

runner = CliRunner()


def test_a_run_leaves_a_result_samples_of_the_trace_schema_and_a_plot(tmp_path: Path) -> None:
    finished = runner.invoke(app, ["model", "run", "group-commit", "--set", "customers=20000", "--out", str(tmp_path)])
    assert finished.exit_code == 0, finished.output
    folder = tmp_path / "group-commit"
    result = read_result(folder / "result.json")
    assert (result.kind, result.verdict) == (RunKind.MODEL, Verdict.PASS)
    assert result.checks[0].value is not None
    assert result.metrics["parameter.sync_s"] == 0.002
    assert "fsync" in str(result.metrics["source.sync_s"])
    rows = pq.read_table(folder / result.artefacts["samples"])
    assert tuple(rows.schema.names) == LatencySample.__struct_fields__
    assert rows.num_rows > 5_000, "of 38 000, evenly spaced"
    latencies_us = (rows["completed_ns"].to_numpy() - rows["intended_ns"].to_numpy()) / 1_000
    assert latencies_us.min() >= 2_000 - 0.002
    assert "plotly.min.js" in (folder / "plot.html").read_text(encoding="utf-8")
    assert (tmp_path / "plotly.min.js").exists()
    assert [problem for path in folder.iterdir() for problem in problems_of(path)] == []


def test_a_mistake_fails_the_command() -> None:
    arguments = ["model", "run", "group-commit", "--set", "customers=20000", "--mistake", "a-sync-for-each"]
    finished = runner.invoke(app, arguments)
    assert finished.exit_code == 1
    assert "fail" in finished.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "there is no model"),
        (["mm1", "--set", "utilisation=1.5"], "utilisation"),
        (["mm1", "--set", "customers=1000000000"], "customers"),
        (["mm1", "--set", "colour=blue"], "colour"),
        (["mm1", "--set", "utilisation"], "name=value"),
        (["mm1", "--mistake", "a-sync-for-each"], "no mistake"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], said: str) -> None:
    finished = runner.invoke(app, ["model", "run", *arguments])
    assert finished.exit_code == 2
    assert said in finished.output


def test_parameters_without_a_source_or_of_another_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    text = "schema: assay.model/1\nmodel: {}\nparameters:\n  utilisation: {{value: 0.5, source: '{}'}}\n"
    for model, source, said in (("mm1", " ", "no source"), ("mmc", "guess", "parameters of 'mmc'")):
        path.write_text(text.format(model, source), encoding="utf-8")
        finished = runner.invoke(app, ["model", "run", "mm1", "--parameters", str(path)])
        assert finished.exit_code == 2
        assert said in finished.output


@pytest.mark.parametrize("name", MODELS)
def test_shipped_parameters_are_complete_and_sourced(name: str) -> None:
    parameters, sources = load_parameters(MODELS[name])
    assert set(sources) == set(parameters.__struct_fields__)


def test_the_list_names_models_and_mistakes() -> None:
    finished = runner.invoke(app, ["model", "list"])
    assert all(name in finished.output for name in (*MODELS, *MISTAKES))
    assert {mistake.model for mistake in MISTAKES.values()} == set(MODELS), "every check can fail"


def test_the_table_can_be_had_as_markdown() -> None:
    finished = runner.invoke(app, ["model", "run", "group-commit", "--set", "customers=20000", "--markdown"])
    assert finished.stdout.startswith("| model | figure |")
    assert finished.stdout.count("\n| group-commit |") == 3


def test_the_page_shows_what_the_models_compute() -> None:
    """Of those that are quick; the others' rows are named."""
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    finished = runner.invoke(app, ["model", "run", "group-commit", "nats", "rabbitmq", "own-cluster", "--markdown"])
    shown = finished.stdout.strip().splitlines()
    assert len(shown) > 12
    assert [line for line in shown if line not in page] == []
    assert all(f"| {name} |" in page for name in MODELS)
