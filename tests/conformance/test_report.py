"""Reports: the published schema is that of the structs, a run writes what it allows, exit codes mean what they say."""

from __future__ import annotations

from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from assay.conformance.judged import Outcome
from assay.conformance.report import (
    ExitCode,
    ReportWriter,
    exit_code,
    missing_required,
    read_transcript,
    summarize,
    this_machine,
    write_run_result,
)
from assay.conformance.schema import (
    REPORT_SCHEMA_FILE,
    TRANSCRIPT_SCHEMA_FILE,
    report_schema,
    schema_text,
    transcript_schema,
)
from assay.reference_broker.trace.conformance import (
    CaseResult,
    CaseVerdict,
    Clause,
    ClauseStatus,
    Footer,
    Header,
    WireLine,
    read_report,
)
from assay.reference_broker.trace.results import RunKind, Verdict, read_result

HEADER = Header(
    target="fake",
    target_version="1.0",
    started_at="2026-01-01T00:00:00+00:00",
    suite_version="1",
    seed=3,
    capabilities={"qos2": True, "receive_maximum": 20, "refused_topic": ""},
    machine=this_machine(),
)
CLAUSE = Clause(
    spec="mqtt311",
    id="MQTT-3.1.0-1",
    level="MUST",
    role="client",
    section="3.1",
    sentence="CONNECT comes first.",
    status=ClauseStatus.TESTED,
    cases=["mqtt311/connect/first"],
)


def result(verdict: CaseVerdict, case: str = "mqtt311/connect/first") -> CaseResult:
    return CaseResult(
        case=case,
        title="CONNECT comes first.",
        spec="mqtt311",
        area="connect",
        clauses=["MQTT-3.1.0-1"],
        level="MUST",
        verdict=verdict,
        detail="expected the end; seen PINGRESP",
        reproduce="assay conformance run -k first",
    )


LINES = (
    WireLine(t_ns=5, connection="c1", direction="send", hex="c000", decoded="PINGREQ"),
    WireLine(t_ns=9, connection="c1", direction="event", decoded="connection closed"),
)


def write_all(path: Path, folder: Path | None = None) -> tuple[ReportWriter, Footer]:
    with ReportWriter(path, folder) as writer:
        writer.begin(HEADER, [CLAUSE])
        writer.add(Outcome(result=result(CaseVerdict.FAIL), transcript=LINES))
        writer.add(Outcome(result=result(CaseVerdict.UNSUPPORTED, "mqtt311/connect/second")))
        return writer, writer.finish(ExitCode.FAILED)


def test_the_published_schemas_are_those_of_the_structs() -> None:
    """To renew them: python -m assay.conformance.schema"""
    assert REPORT_SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(report_schema())
    assert TRANSCRIPT_SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(transcript_schema())


def test_a_report_is_valid_by_the_published_schema(tmp_path: Path) -> None:
    write_all(tmp_path / "report.jsonl")
    report = jsonschema_rs.validator_for(msgspec.json.decode(REPORT_SCHEMA_FILE.read_bytes()))
    lines = [msgspec.json.decode(line) for line in (tmp_path / "report.jsonl").read_bytes().splitlines()]
    assert [line["type"] for line in lines] == ["header", "clause", "result", "result", "footer"]
    for line in lines:
        report.validate(line)
    transcript = jsonschema_rs.validator_for(msgspec.json.decode(TRANSCRIPT_SCHEMA_FILE.read_bytes()))
    rows = (tmp_path / "transcripts" / "mqtt311" / "connect" / "first.jsonl").read_bytes().splitlines()
    assert len(rows) == 2
    for row in rows:
        transcript.validate(msgspec.json.decode(row))


@pytest.mark.parametrize(
    "line",
    [{"type": "result", "case": "x"}, {"type": "verdict"}, {"case": "x"}, {"type": "footer", "counts": {"pass": "1"}}],
)
def test_the_schema_refuses_what_is_no_report_line(line: dict[str, object]) -> None:
    report = jsonschema_rs.validator_for(msgspec.json.decode(REPORT_SCHEMA_FILE.read_bytes()))
    assert not report.is_valid(line)


def test_a_report_reads_back(tmp_path: Path) -> None:
    write_all(tmp_path / "report.jsonl")
    lines = list(read_report(tmp_path / "report.jsonl"))
    assert lines[0] == HEADER
    assert lines[1] == CLAUSE
    first = lines[2]
    assert isinstance(first, CaseResult)
    assert read_transcript(tmp_path / first.transcript) == (list(LINES), "")
    footer = lines[-1]
    assert isinstance(footer, Footer)
    assert footer.counts == {"fail": 1, "unsupported": 1}
    assert footer.exit_code == 1


def test_a_report_that_was_cut_keeps_what_was_written(tmp_path: Path) -> None:
    with ReportWriter(tmp_path / "report.jsonl") as writer:
        writer.begin(HEADER, [])
        writer.add(Outcome(result=result(CaseVerdict.PASS)))
        assert len(list(read_report(tmp_path / "report.jsonl"))) == 2


def test_transcripts_may_be_elsewhere_than_the_report(tmp_path: Path) -> None:
    write_all(tmp_path / "reports" / "out.jsonl", tmp_path / "evidence")
    first = next(line for line in read_report(tmp_path / "reports" / "out.jsonl") if isinstance(line, CaseResult))
    assert first.transcript == "../evidence/transcripts/mqtt311/connect/first.jsonl"
    assert read_transcript(tmp_path / "reports" / first.transcript) == (list(LINES), "")


def test_the_result_of_a_run_sums_it_up(tmp_path: Path) -> None:
    writer, footer = write_all(tmp_path / "report.jsonl")
    path = write_run_result(
        tmp_path, HEADER, writer.results, [CLAUSE], footer, report=writer.path, command="assay conformance run"
    )
    run = read_result(path)
    assert run.kind is RunKind.CONFORMANCE
    assert run.verdict is Verdict.FAIL
    assert run.artefacts["report"] == "report.jsonl"
    assert run.metrics == {"cases_fail": 1, "cases_unsupported": 1}
    assert run.checks[0].value == 1.0
    assert run.summary == summarize(HEADER, writer.results, [CLAUSE], ExitCode.FAILED)
    assert "violated: MQTT-3.1.0-1" in run.summary


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["pass", "non_strict", "unsupported", "xfail"], ExitCode.OK),
        (["pass", "fail"], ExitCode.FAILED),
        (["pass", "xpass"], ExitCode.FAILED),
        (["fail", "error", "not_run"], ExitCode.FAILED),
        (["pass", "error", "not_run"], ExitCode.HARNESS),
        (["pass", "not_run"], ExitCode.UNREACHABLE),
        ([], ExitCode.NOTHING_SELECTED),
    ],
)
def test_exit_codes(verdicts: list[str], code: ExitCode) -> None:
    assert exit_code([result(CaseVerdict(verdict)) for verdict in verdicts]) is code


def test_a_required_case_that_was_not_run_fails_the_run() -> None:
    """Else a capability that a broker lost would hide its failures."""
    unsupported = result(CaseVerdict.UNSUPPORTED)
    assert exit_code([unsupported]) is ExitCode.OK
    assert exit_code([unsupported], ["mqtt5/*"]) is ExitCode.OK
    assert exit_code([unsupported], ["mqtt311/*"]) is ExitCode.FAILED
    assert exit_code([unsupported], ["mqtt311/*"], ["mqtt311/*"]) is ExitCode.OK
    assert missing_required([unsupported, result(CaseVerdict.PASS)], ["*"]) == [unsupported]
