"""Every damage of every file that Spark reads, in one analysis: each is named, the sound run is judged, no green."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damaged_files import damages, make_run
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from assay.reference_broker.trace.results import Verdict
from assay.spark_analysis import analyse as analysis_module
from assay.spark_analysis.analyse import analyse
from assay.spark_analysis.cli import app
from assay.spark_analysis.exit_status import ExitStatus

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

READ = ("history", "trace", "samples", "result")


def test_every_damaged_file_is_named_and_the_sound_run_is_judged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    monkeypatch.setattr(analysis_module, "DAMAGED_NAMED_MAX", 200)
    make_run(tmp_path / "sound")
    expected = []
    for number, (name, kind, damage) in enumerate(damages()):
        if name.startswith(READ):
            folder = tmp_path / f"{number:03}"
            folder.mkdir()
            shutil.copyfile(tmp_path / "sound" / name, folder / name)
            damage(folder / name)
            expected.append((f"{folder.name}/{name}", kind))
    assert len(expected) > 30
    result = analyse(tmp_path)
    (check,) = (check for check in result.checks if check.name == "Damaged sources")
    unnamed = [f"{place}: {kind}" for place, kind in expected if place not in check.source]
    assert unnamed == []
    assert check.value == len(expected)
    assert check.verdict is Verdict.UNKNOWN
    assert result.verdict is not Verdict.PASS
    assert expected[0][0] in result.summary
    assert any("[sound]" in row.name for row in result.percentiles), "the rest is measured all the same"
    assert "sound/" not in check.source


def test_the_command_prints_each_of_them(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    make_run(tmp_path / "run")
    (tmp_path / "run" / "trace.jsonl").write_bytes(b"")
    (tmp_path / "run" / "result.json").write_text("{")
    answer = CliRunner().invoke(app, ["analyse", str(tmp_path)])
    assert answer.exit_code in (ExitStatus.UNKNOWN, ExitStatus.FAIL)
    lines = [line for line in answer.output.splitlines() if line.startswith("damaged:")]
    assert any("trace.jsonl: " in line for line in lines)
    assert any("result.json: " in line for line in lines)
