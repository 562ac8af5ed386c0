"""What runs leave behind says which schema it follows, and reads back as written."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from assay.reference_broker.trace.conformance import CONFORMANCE_SCHEMA, Footer, Header, read_report
from assay.reference_broker.trace.results import (
    RESULT_SCHEMA,
    RunKind,
    RunResult,
    Verdict,
    read_result,
    worst,
    write_result,
)


def test_a_result_names_its_schema_and_reads_back(tmp_path: Path) -> None:
    result = RunResult(kind=RunKind.SIM, name="n", verdict=Verdict.PASS, summary="fine", seed=3, metrics={"a": 1.5})
    path = write_result(tmp_path / "run", result)
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == RESULT_SCHEMA
    assert read_result(path) == result
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"], "no temporary file is left"


def test_a_wrong_result_is_refused_with_the_path_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"kind": "sim", "name": "n", "verdict": "good", "summary": ""}', encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match=r"\$\.verdict"):
        read_result(path)


def test_a_report_names_its_schema_and_may_end_early(tmp_path: Path) -> None:
    header = Header(target="t", started_at="now", suite_version="1", seed=0)
    path = tmp_path / "report.jsonl"
    path.write_bytes(msgspec.json.encode(header) + b"\n\n")
    assert json.loads(path.read_bytes())["schema"] == CONFORMANCE_SCHEMA
    assert list(read_report(path)) == [header]
    footer = Footer(counts={"pass": 1}, exit_code=0, duration_s=1.0)
    path.write_bytes(path.read_bytes() + msgspec.json.encode(footer) + b"\n")
    assert list(read_report(path)) == [header, footer]


def test_no_data_is_never_green() -> None:
    assert worst([]) is Verdict.UNKNOWN
    assert worst([Verdict.PASS, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert worst([Verdict.PASS, Verdict.FAIL, Verdict.ERROR]) is Verdict.FAIL
    assert worst([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
