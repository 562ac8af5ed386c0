"""Which runs decide a report's verdict when only some targets are judged."""

from __future__ import annotations

from pathlib import Path

from assay.reference_broker.trace.results import RunKind, RunResult, Verdict, write_result
from assay.reports.collect import collect


def test_an_analysis_without_target_decides_and_another_broker_does_not(tmp_path: Path) -> None:
    for name, kind, target in (
        ("mine", RunKind.LOAD, "reference"),
        ("theirs", RunKind.LOAD, "mosquitto"),
        ("analysis", RunKind.SPARK, ""),
    ):
        write_result(tmp_path / name, RunResult(kind=kind, name=name, verdict=Verdict.PASS, summary="", target=target))
    decides = {run.result.name: run.decides for run in collect(tmp_path, ("reference",)).runs}
    assert decides == {"mine": True, "theirs": False, "analysis": True}
