"""One damaged file at a time: the report names it, judges the rest, is never green, and never ends in a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_files import GOOD, damages, make_run
from typer.testing import CliRunner

from assay.reference_broker.trace.results import RunKind, RunResult, Verdict, write_result
from assay.reports.cli import app
from assay.reports.collect import collect


def _two_runs(root: Path) -> None:
    make_run(root / "damaged")
    sound = RunResult(kind=RunKind.SIM, name="sound", verdict=Verdict.PASS, summary="fine", metrics={"events": 3})
    write_result(root / "sound", sound)


def test_sound_runs_are_green(tmp_path: Path) -> None:
    _two_runs(tmp_path)
    collection = collect(tmp_path)
    assert (collection.verdict, collection.problems) == (Verdict.PASS, [])


@pytest.mark.parametrize(("name", "kind", "damage"), damages(), ids=[f"{name}: {kind}" for name, kind, _ in damages()])
def test_a_damaged_file_is_named_and_the_rest_judged(
    tmp_path: Path, name: str, kind: str, damage: Callable[[Path], None]
) -> None:
    _two_runs(tmp_path)
    damage(tmp_path / "damaged" / name)
    done = CliRunner().invoke(app, [str(tmp_path), "--check"])
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    file_name = name.rsplit("/", 1)[-1]
    said = [line for line in done.output.splitlines() if file_name in line]
    assert said, done.output
    assert "damaged" in said[0]
    index = (tmp_path / "report" / "index.html").read_text()
    assert file_name in index
    assert "sound" in index
    collection = collect(tmp_path)
    assert collection.verdict is not Verdict.PASS
    verdicts = {run.place: run.verdict for run in collection.runs}
    assert verdicts["sound"] is Verdict.PASS
    assert verdicts.get("damaged", Verdict.ERROR) is not Verdict.PASS
    assert "error" in (tmp_path / "report" / "badge.json").read_text() or collection.verdict is Verdict.UNKNOWN


def test_every_kind_of_file_is_there() -> None:
    assert {"result.json", "report.jsonl", "transcripts/one.jsonl", "history.jsonl", "trace.jsonl"} <= set(GOOD)
