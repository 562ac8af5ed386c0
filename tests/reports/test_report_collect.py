"""What is read, what is refused, and which verdict a report stands for."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from report_samples import case_result, fault_run, load_run, write_conformance, write_report

from assay.reference_broker.trace.conformance import CaseVerdict, Footer, Header
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, write_result
from assay.reports.collect import MARKER_FILE, ReportError, collect, slugify

HEADER = Header(target="reference", started_at="2026-03-01T10:00:00Z", suite_version="0.1.0", seed=1)
FOOTER = Footer(counts={}, exit_code=0, duration_s=1.0)


def only_verdict(root: Path) -> Verdict:
    collection = collect(root)
    assert len(collection.runs) == 1
    return collection.runs[0].verdict


def test_every_run_below_a_folder_is_found_in_a_stable_order(sample_runs: Path) -> None:
    collection = collect(sample_runs)
    assert [(run.result.kind.value, run.result.target) for run in collection.runs] == [
        ("conformance", "mosquitto"),
        ("conformance", "reference"),
        ("self_check", "reference"),
        ("sim", "reference"),
        ("faults", "reference"),
        ("load", "reference"),
        ("bench", "reference, mosquitto"),
        ("spark", "reference"),
    ]
    assert collection.problems == []
    assert collection.verdict is Verdict.FAIL


def test_a_missing_or_empty_folder_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="not a folder"):
        collect(tmp_path / "absent")
    with pytest.raises(ReportError, match="assay conformance run"):
        collect(tmp_path)


def test_a_former_report_is_not_searched(tmp_path: Path) -> None:
    write_result(tmp_path / "load", load_run())
    shutil.copytree(tmp_path / "load", tmp_path / "report" / "raw")
    (tmp_path / "report" / MARKER_FILE).write_text("{}")
    assert [run.place for run in collect(tmp_path).runs] == ["load"]


def test_a_bad_result_is_named_with_the_path_of_its_key_and_does_not_hide_the_rest(tmp_path: Path) -> None:
    write_result(tmp_path / "good", load_run())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text(
        '{"kind": "load", "name": "x", "verdict": "pass", "summary": "", "checks": [{"name": 3}]}'
    )
    collection = collect(tmp_path)
    assert [run.place for run in collection.runs] == ["good"]
    assert collection.problems[0].path == "bad/result.json"
    assert "$.checks[0].name" in collection.problems[0].message
    assert collection.verdict is Verdict.ERROR


def test_a_verdict_nobody_knows_is_a_problem_never_a_pass(tmp_path: Path) -> None:
    path = write_result(tmp_path / "run", load_run())
    path.write_bytes(path.read_bytes().replace(b'"verdict": "pass"', b'"verdict": "splendid"', 1))
    collection = collect(tmp_path)
    assert "splendid" in collection.problems[0].message
    assert collection.verdict is Verdict.ERROR


def test_a_bad_line_of_a_report_is_named(tmp_path: Path) -> None:
    path = write_report(tmp_path / "run", [HEADER, case_result("mqtt5/connect/a"), FOOTER])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"verdict":"pass"', b'"verdict":"splendid"')
    path.write_bytes(b"".join(lines))
    collection = collect(tmp_path)
    assert "line 2" in collection.problems[0].message
    assert "$.verdict" in collection.problems[0].message
    assert collection.verdict is Verdict.ERROR


def test_a_report_without_header_is_a_problem(tmp_path: Path) -> None:
    write_report(tmp_path / "run", [case_result("mqtt5/connect/a"), FOOTER])
    assert "no header" in collect(tmp_path).problems[0].message


def test_a_case_that_appears_twice_is_a_problem(tmp_path: Path) -> None:
    twice = [case_result("mqtt5/connect/a"), case_result("mqtt5/connect/a", CaseVerdict.FAIL)]
    write_report(tmp_path / "run", [HEADER, *twice, FOOTER])
    assert "twice" in collect(tmp_path).problems[0].message


@pytest.mark.parametrize("tail", [b"", b'{"type":"result","case":"mqtt5/con'])
def test_a_run_that_was_cut_is_an_error_and_keeps_its_cases(tmp_path: Path, tail: bytes) -> None:
    write_conformance(tmp_path / "run", "reference", {}, cut=True)
    with (tmp_path / "run" / "report.jsonl").open("ab") as file:
        file.write(tail)
    collection = collect(tmp_path)
    run = collection.runs[0]
    assert collection.problems == []
    assert run.conformance is not None
    assert len(run.conformance.results) == 8
    assert run.verdict is Verdict.ERROR
    assert any("cut" in note for note in run.notes)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([CaseVerdict.PASS, CaseVerdict.NON_STRICT, CaseVerdict.XFAIL, CaseVerdict.UNSUPPORTED], Verdict.PASS),
        ([CaseVerdict.PASS, CaseVerdict.FAIL], Verdict.FAIL),
        ([CaseVerdict.PASS, CaseVerdict.XPASS], Verdict.FAIL),
        ([CaseVerdict.PASS, CaseVerdict.ERROR], Verdict.ERROR),
        ([CaseVerdict.FAIL, CaseVerdict.ERROR], Verdict.FAIL),
        ([CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN], Verdict.UNKNOWN),
        ([], Verdict.UNKNOWN),
    ],
)
def test_the_cases_decide_even_where_the_result_says_pass(
    tmp_path: Path, verdicts: list[CaseVerdict], expected: Verdict
) -> None:
    results = [case_result(f"mqtt5/connect/c{index}", verdict) for index, verdict in enumerate(verdicts)]
    write_report(tmp_path / "run", [HEADER, *results, FOOTER])
    claimed = RunResult(kind=RunKind.CONFORMANCE, name="x", verdict=Verdict.PASS, summary="")
    write_result(tmp_path / "run", claimed)
    assert only_verdict(tmp_path) is expected


def test_a_pass_without_any_figure_is_unknown(tmp_path: Path) -> None:
    write_result(tmp_path, RunResult(kind=RunKind.LOAD, name="empty", verdict=Verdict.PASS, summary="fine"))
    assert only_verdict(tmp_path) is Verdict.UNKNOWN


def test_a_pass_with_a_failed_check_is_a_fail(tmp_path: Path) -> None:
    check = Check(name="publish p99", value=12, unit="ms", bound=10, relation="<", verdict=Verdict.FAIL)
    write_result(tmp_path, RunResult(kind=RunKind.LOAD, name="x", verdict=Verdict.PASS, summary="", checks=[check]))
    assert only_verdict(tmp_path) is Verdict.FAIL


def test_an_error_is_not_softened_by_the_data(tmp_path: Path) -> None:
    write_result(tmp_path, msgspec.structs.replace(load_run(), verdict=Verdict.ERROR))
    assert only_verdict(tmp_path) is Verdict.ERROR


def test_runs_of_one_name_get_pages_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        write_result(tmp_path / folder, fault_run(RunKind.SIM))
    assert len({run.slug for run in collect(tmp_path).runs}) == 3


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b\\c", "", "  ", "ünï", "<script>", "a" * 500])
def test_a_slug_cannot_leave_its_folder(text: str) -> None:
    slug = slugify(text)
    assert slug
    assert len(slug) <= 100
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_a_judged_target_that_no_run_has_is_an_error(sample_runs: Path) -> None:
    with pytest.raises(ReportError, match=r"target emqx; there are mosquitto, reference"):
        collect(sample_runs, ["emqx"])
