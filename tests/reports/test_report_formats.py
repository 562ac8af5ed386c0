"""JUnit, Markdown and badge, each from the same collection as the site."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest
from report_samples import case_result, load_run, write_conformance, write_report

from assay.reference_broker.trace.conformance import CaseVerdict, Footer, Header
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, write_result
from assay.reports.attention import first_of_each_run, needs_attention
from assay.reports.badge import encode_badge
from assay.reports.collect import collect
from assay.reports.junit import junit_xml
from assay.reports.markdown import MAX_FAILURES, escape, summary_markdown

HEADER = Header(target="reference", started_at="2026-03-01T10:00:00Z", suite_version="0.1.0", seed=1)


def junit_suites(root: Path) -> dict[str, ElementTree.Element]:
    document = ElementTree.fromstring(junit_xml(collect(root)))
    assert document.tag == "testsuites"
    return {suite.get("name", ""): suite for suite in document}


def counts(suite: ElementTree.Element) -> tuple[str | None, ...]:
    return tuple(suite.get(key) for key in ("tests", "failures", "errors", "skipped"))


def test_junit_counts_every_case_once(sample_runs: Path) -> None:
    suites = junit_suites(sample_runs)
    # 8 cases and the verdict: fail, xpass and the verdict are failures; xfail, unsupported and not_run are skipped
    assert counts(suites["conformance-mqtt-mosquitto"]) == ("9", "3", "1", "3")
    assert counts(suites["conformance-mqtt-reference"]) == ("9", "0", "0", "0")
    assert counts(suites["self-check-mutants-reference"]) == ("6", "2", "0", "0")
    # A check that was not judged is skipped, a run without a claim is an error.
    assert counts(suites["spark-verdicts-reference-steady-2k"]) == ("3", "0", "1", "1"), "unknown is never a pass"
    document = ElementTree.fromstring(junit_xml(collect(sample_runs)))
    cases = document.findall(".//testcase")
    assert document.get("tests") == str(len(cases))
    assert document.get("failures") == str(len(document.findall(".//failure")))
    assert document.get("errors") == str(len(document.findall(".//error")))
    assert document.get("skipped") == str(len(document.findall(".//skipped")))


def test_junit_carries_clause_and_reproduce_command(sample_runs: Path) -> None:
    suite = junit_suites(sample_runs)["conformance-mqtt-mosquitto"]
    failure = suite.find(".//testcase[@name='second-connect-is-an-error']/failure")
    assert failure is not None
    assert failure.text is not None
    assert "MQTT-3.1.0-1" in failure.text
    assert "reproduce: assay conformance run" in failure.text


def test_junit_shows_a_cut_run_and_an_unreadable_file_as_errors(tmp_path: Path) -> None:
    write_conformance(tmp_path / "cut", "reference", {}, cut=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text("{")
    suites = junit_suites(tmp_path)
    assert counts(suites["conformance-cut-reference"]) == ("9", "0", "1", "0")
    assert counts(suites["unreadable files"]) == ("1", "0", "1", "0")


def test_a_passing_run_is_not_red_for_what_it_did_not_measure(tmp_path: Path) -> None:
    checks = [
        Check(name="measured", value=1.0, unit="ms", bound=2.0, relation="<", verdict=Verdict.PASS),
        Check(name="failover", value=None, unit="s", bound=5.0, relation="<", reason="needs a cluster"),
    ]
    run = RunResult(kind=RunKind.SPARK, name="demo", verdict=Verdict.PASS, summary="", checks=checks)
    write_result(tmp_path, run)
    (suite,) = junit_suites(tmp_path).values()
    assert counts(suite) == ("3", "0", "0", "1")
    skipped = suite.find(".//testcase[@name='failover']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "not judged: needs a cluster"
    assert "not measured, target < 5 s" in (skipped.text or "")
    assert suite.find(".//testcase[@name='verdict']/*") is None
    assert "failover" not in summary_markdown(collect(tmp_path))


def test_a_failed_run_does_not_list_what_was_not_measured_among_its_failures(tmp_path: Path) -> None:
    checks = [
        Check(name="slow", value=9.0, unit="ms", bound=2.0, relation="<", verdict=Verdict.FAIL),
        Check(name="failover", value=None, unit="s", bound=5.0, relation="<", reason="needs a cluster"),
    ]
    for verdict, listed in ((Verdict.FAIL, ["slow misses its target"]), (Verdict.UNKNOWN, ["failover was not judged"])):
        chosen = checks if verdict is Verdict.FAIL else checks[1:]
        write_result(tmp_path, RunResult(kind=RunKind.LOAD, name="x", verdict=verdict, summary="", checks=chosen))
        assert [item.title for item in needs_attention(collect(tmp_path))] == listed


def test_junit_survives_characters_that_xml_cannot_hold(tmp_path: Path) -> None:
    case = case_result("mqtt5/connect/x", CaseVerdict.FAIL, detail="seen \x00\x1b[31m\ud7ff ]]> <b>&")
    write_report(tmp_path, [HEADER, case, Footer(counts={}, exit_code=1, duration_s=1)])
    failure = next(iter(junit_suites(tmp_path).values())).find(".//failure")
    assert failure is not None
    assert "seen \ufffd\ufffd[31m\ud7ff ]]> <b>&" in (failure.text or "")


def test_the_summary_has_verdicts_failures_clauses_and_commands(sample_runs: Path) -> None:
    text = summary_markdown(collect(sample_runs))
    assert text.startswith("## ✗ Assay: fail\n")
    assert "| ✗ Fail | Conformance: mqtt | mosquitto | 1 of 8 cases pass on mosquitto." in text
    assert "- **✗ A second CONNECT ends the connection** (mosquitto)" in text
    assert "  - clauses: `MQTT-3.1.0-1`" in text
    assert "  - reproduce: `assay conformance run --target reference --case mqtt5/connect/second-connect" in text
    columns = {line.count(" | ") for line in text.splitlines() if line.startswith("| ") and "Fail" in line}
    assert columns == {4, 9}, "every row of a table has all its cells"


def test_the_summary_of_a_pass_lists_no_failures(tmp_path: Path) -> None:
    write_result(tmp_path, load_run())
    text = summary_markdown(collect(tmp_path))
    assert text.startswith("## ✓ Assay: pass\n")
    assert "to look at" not in text


def test_the_summary_is_bounded(tmp_path: Path) -> None:
    results = [case_result(f"mqtt5/connect/c{index}", CaseVerdict.FAIL) for index in range(MAX_FAILURES + 30)]
    write_report(tmp_path, [HEADER, *results, Footer(counts={}, exit_code=1, duration_s=1)])
    text = summary_markdown(collect(tmp_path))
    assert text.count("\n- **") == MAX_FAILURES
    assert "- and 30 more in the full report" in text


@pytest.mark.parametrize("text", ["a|b", "<img src=x>", "`code`", "[x](y)", "line\nbreak", "# head", "a_b_c"])
def test_markdown_text_is_escaped(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped
    assert "<" not in escaped
    for mark in "|`[]#_":
        assert escaped.count(mark) == escaped.count(f"\\{mark}")


@pytest.mark.parametrize(
    ("verdict", "colour", "is_error"),
    [
        (Verdict.PASS, "brightgreen", False),
        (Verdict.FAIL, "red", True),
        (Verdict.ERROR, "orange", True),
        (Verdict.UNKNOWN, "lightgrey", False),
    ],
)
def test_the_badge_of_each_verdict(tmp_path: Path, verdict: Verdict, colour: str, is_error: bool) -> None:
    write_result(tmp_path, msgspec.structs.replace(load_run(), verdict=verdict))
    assert json.loads(encode_badge(collect(tmp_path))) == {
        "schemaVersion": 1,
        "label": "assay",
        "message": f"{verdict.value} · 1 run",
        "color": colour,
        "isError": is_error,
    }


def test_the_badge_counts_cases_that_were_judged(sample_runs: Path) -> None:
    badge = json.loads(encode_badge(collect(sample_runs)))
    assert badge["message"] == "fail · 9/14 cases"  # neither the unsupported nor the not_run case was judged


def test_a_badge_without_data_is_grey(tmp_path: Path) -> None:
    write_result(tmp_path, RunResult(kind=RunKind.LOAD, name="x", verdict=Verdict.PASS, summary=""))
    assert json.loads(encode_badge(collect(tmp_path)))["color"] == "lightgrey"


def test_a_run_with_many_failures_leaves_room_for_others(tmp_path: Path) -> None:
    results = [case_result(f"mqtt5/connect/c{index}", CaseVerdict.FAIL) for index in range(9)]
    write_report(tmp_path / "a", [HEADER, *results, Footer(counts={}, exit_code=1, duration_s=1)])
    write_result(tmp_path / "b", load_run(verdict=Verdict.FAIL))
    shown = first_of_each_run(needs_attention(collect(tmp_path)), 3)
    assert [(item.case or item.title, left_out) for item, left_out in shown] == [
        ("mqtt5/connect/c0", 0),
        ("mqtt5/connect/c1", 0),
        ("mqtt5/connect/c2", 6),
        ("publish p99 misses its target", 0),
    ]


def test_other_brokers_can_be_shown_without_deciding(sample_runs: Path, tmp_path: Path) -> None:
    write_conformance(tmp_path / "m", "mosquitto", {"mqtt5/will/delayed-will": CaseVerdict.FAIL})
    write_conformance(tmp_path / "r", "reference", {})
    assert collect(tmp_path).verdict is Verdict.FAIL
    judged = collect(tmp_path, ["reference"])
    assert judged.verdict is Verdict.PASS
    assert [(run.result.target, run.decides) for run in judged.runs] == [("reference", True), ("mosquitto", False)]
    assert needs_attention(judged) == []
    assert json.loads(encode_badge(judged))["message"] == "pass · 8/8 cases"
    text = summary_markdown(judged)
    assert "1 run of other brokers for comparison" in text
    assert "| ✗ Fail \\(for comparison\\) |" in text
    document = ElementTree.fromstring(junit_xml(judged))
    assert [document.get(key) for key in ("failures", "errors", "skipped")] == ["0", "0", "2"]
    assert collect(sample_runs, ["mosquitto"]).verdict is Verdict.FAIL
    decide = [run.result.kind.value for run in collect(sample_runs, ["mosquitto"]).deciding]
    assert decide == ["conformance", "bench"], "a bench names several brokers"
