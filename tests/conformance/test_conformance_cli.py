"""``assay conformance`` from outside: verbs, exit codes, and cases against the reference broker, sound and broken."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import assay.conformance.cases
from assay.conformance.adapter import reference_broker_endpoint
from assay.conformance.cli import app
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Footer, Header, read_report
from assay.reference_broker.trace.results import RunKind, Verdict, read_result

PING = "mqtt311/ping/every-pingreq-is-answered"
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


def invoke(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


def broken_target(folder: Path, mutant: str, more: str = "") -> Path:
    """A target file that starts the reference broker with a planted bug."""
    path = folder / "broken.toml"
    path.write_text(
        f"""
name = "broken"
[start]
command = ["{{python}}", "-m", "assay.conformance.adapter", "--mutant", "{mutant}"]
port_from = "stdout"
{more}
""",
        encoding="utf-8",
    )
    return path


def test_run_writes_report_transcript_and_result(tmp_path: Path) -> None:
    done = invoke("run", "-k", "mqtt311/ping/every,mqtt311/connect/first", "--out", str(tmp_path), "--seed", "7")
    assert done.exit_code == 0, done.output
    assert "PASS" in done.output
    lines = list(read_report(tmp_path / "report.jsonl"))
    results = [line for line in lines if isinstance(line, CaseResult)]
    assert sorted(result.case for result in results) == ["mqtt311/connect/first-packet-must-be-connect", PING]
    assert {result.verdict for result in results} == {CaseVerdict.PASS}
    assert all((tmp_path / result.transcript).exists() for result in results)
    assert isinstance(lines[-1], Footer)
    assert lines[-1].exit_code == 0
    run = read_result(tmp_path / "result.json")
    assert (run.kind, run.verdict, run.seed) == (RunKind.CONFORMANCE, Verdict.PASS, 7)

    explained = invoke("explain", str(tmp_path / "report.jsonl"), PING)
    assert explained.exit_code == 0
    assert "-> PINGREQ" in explained.output
    assert "<- PINGRESP" in explained.output
    assert "c000" in explained.output


def test_a_broken_broker_fails_and_the_reproduce_command_is_shown(tmp_path: Path) -> None:
    path = broken_target(tmp_path, "v3-every-second-ping-lost")
    done = invoke("run", "--target", str(path), "-k", PING, "--json", str(tmp_path / "out.jsonl"))
    assert done.exit_code == 1, done.output
    assert "MQTT-3.12.4-1" in done.output
    command = re.search(r"repeat: assay conformance (run .*)", done.output)
    assert command is not None
    again = invoke(*command[1].split())
    assert again.exit_code == 1
    explained = invoke("explain", str(tmp_path / "out.jsonl"), PING)
    assert "fail" in explained.output
    assert "expected PINGRESP" in explained.output


def test_an_expected_failure_is_no_failure_and_an_unexpected_pass_is(tmp_path: Path) -> None:
    entry = f'[[expect_fail]]\ncase = "{PING}"\nreason = "known"\nlink = "https://example.org"'
    path = broken_target(tmp_path, "v3-every-second-ping-lost", entry)
    done = invoke("run", "--target", str(path), "-k", PING)
    assert done.exit_code == 0, done.output
    assert "xfail" in done.output
    path = broken_target(tmp_path, "v3-one-packet-at-a-time", entry)
    done = invoke("run", "--target", str(path), "-k", PING)
    assert done.exit_code == 1, done.output
    assert "xpass" in done.output


def test_a_required_case_that_is_unsupported_fails_the_run(tmp_path: Path) -> None:
    more = "[capabilities]\nqos2 = false\n"
    case_id = "mqtt311/publish/qos-2-takes-four-steps"
    path = broken_target(tmp_path, "v3-one-packet-at-a-time", more)
    assert invoke("run", "--target", str(path), "-k", case_id).exit_code == 0
    path.write_text("required = ['mqtt311/*']\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    done = invoke("run", "--target", str(path), "-k", case_id)
    assert done.exit_code == 1
    assert "required" in done.output


def test_a_broker_that_already_runs_is_judged_by_host_and_port() -> None:
    with reference_broker_endpoint() as endpoint:
        done = invoke("run", "--host", endpoint.host, "--port", str(endpoint.port), "-k", "mqtt311/retained,mqtt5/ping")
        assert done.exit_code == 0, done.output
        # Nothing of the run is left behind: a second one finds the same broker.
        again = invoke("run", "--host", endpoint.host, "--port", str(endpoint.port), "-k", "mqtt311/retained")
        assert again.exit_code == 0, again.output


def test_an_unreachable_broker_is_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    done = invoke("run", "--host", "127.0.0.1", "--port", str(port), "-k", PING)
    assert done.exit_code == 3, done.output
    assert "cannot be reached" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "--target", "rabbit"), 2, "use one of"),
        (("run", "--target", "absent.toml"), 2, "cannot read"),
        (("run", "--spec", "mqtt9"), 2, "unknown specification"),
        (("run", "--area", "nowhere"), 2, "unknown area"),
        (("run", "--port", "0"), 2, ""),
        (("run", "-k", "no-such-case"), 5, "no case is selected"),
        (("run", "-k", PING, "--required", "mqtt5/*"), 2, "--required 'mqtt5/*' matches no case"),
        (("run", "-k", PING, "--exclude", "nothing-like-it"), 2, "'nothing-like-it'"),
        (("run", "--host", "h", "--username", "u", "--password-env", "ASSAY_NOT_SET"), 2, "ASSAY_NOT_SET"),
        (("run", "-k", PING, "--baseline", "absent.toml"), 2, "is no baseline"),
        (("show", "mqtt311/ping"), 2, "does not name one case"),
        (("show", "nothing-like-it"), 2, "does not name one case"),
        (("self-check", "--mutant", "no-such-mutant"), 5, "no mutant is named"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == code, done.output
    assert text in done.output


def test_a_target_file_that_expects_unknown_cases_to_fail_is_wrong(tmp_path: Path) -> None:
    entry = '[[expect_fail]]\ncase = "mqtt311/ping/renamed"\nreason = "known"\nlink = "https://example.org"'
    done = invoke("run", "--target", str(broken_target(tmp_path, "v3-one-packet-at-a-time", entry)), "-k", PING)
    assert done.exit_code == 2
    assert "mqtt311/ping/renamed" in done.output


def test_list_and_show_tell_what_there_is() -> None:
    listed = invoke("list", "--spec", "mqtt311", "--area", "ping")
    assert listed.exit_code == 0
    assert PING in listed.output
    assert "mqtt5/" not in listed.output
    as_json = invoke("list", "-k", PING, "--json")
    assert '"clauses":["MQTT-3.12.4-1"]' in as_json.output
    shown = invoke("show", PING)
    for text in ("MQTT-3.12.4-1", "MUST: ", "v3-every-second-ping-lost", "Each PINGREQ is answered"):
        assert text in shown.output


def test_explain_refuses_what_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"type": "something else"}\n', encoding="utf-8")
    done = invoke("explain", str(path), PING)
    assert done.exit_code == 2
    assert "is not a whole conformance report" in done.output


def test_self_check_kills_a_mutant_and_passes_a_near_miss(tmp_path: Path) -> None:
    done = invoke("self-check", "--mutant", "v3-every-second-ping-lost", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "1 of 1 mutants killed" in done.output
    run = read_result(tmp_path / "result.json")
    assert (run.kind, run.verdict) == (RunKind.SELF_CHECK, Verdict.PASS)
    done = invoke("self-check", "--mutant", "v3-refuses-names-with-code-1")
    assert done.exit_code == 0, done.output
    assert "1 of 1 near misses passed" in done.output


def test_self_check_judges_a_case_on_the_target_that_it_names(tmp_path: Path) -> None:
    done = invoke("self-check", "--mutant", "lesser-retained-will-taken", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "1 of 1 mutants killed" in done.output
    assert "lesser-retained-will-taken on reference-lesser" in {
        check.name for check in read_result(tmp_path / "result.json").checks
    }


def pytest_in_folder(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    cases = str(Path(assay.conformance.cases.__path__[0]))
    command = [sys.executable, "-m", "pytest", "-p", "assay.conformance.pytest_runner", "-p", "no:cacheprovider", cases]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=folder)


def test_the_cases_are_pytest_items(tmp_path: Path) -> None:
    selection = ("-k", "every-pingreq or first-packet", "--junitxml", str(tmp_path / "junit.xml"), "-v")
    done = pytest_in_folder(tmp_path, *selection)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{PING} PASSED" in done.stdout
    assert "MQTT-3.12.4-1" in (tmp_path / "junit.xml").read_text(encoding="utf-8")


def test_a_failing_pytest_item_shows_clause_and_transcript(tmp_path: Path) -> None:
    path = broken_target(tmp_path, "v3-every-second-ping-lost")
    done = pytest_in_folder(tmp_path, "--assay-target", str(path), "-k", "every-pingreq and mqtt311")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "clauses: MQTT-3.12.4-1" in done.stdout
    assert "<- PINGRESP" in done.stdout


def test_what_failed_is_accepted_by_a_baseline_compared_and_run_again(tmp_path: Path) -> None:
    """A broker breaks a rule; the failure is written down, accepted, and, once it is mended, told as stale."""
    broken, first = broken_target(tmp_path, "v3-every-second-ping-lost"), tmp_path / "first"
    known = tmp_path / "known.toml"
    names = f"{PING},mqtt311/connect/first-packet-must-be-connect"
    done = invoke("run", "--target", str(broken), "-k", names, "--out", str(first), "--write-baseline", str(known))
    assert done.exit_code == 1, done.output
    assert "1 known failure(s)" in done.output
    accepted = invoke("run", "--target", str(broken), "-k", names, "--baseline", str(known))
    assert accepted.exit_code == 0, accepted.output
    assert "xfail" in accepted.output
    again = tmp_path / "again"
    repeated = invoke("run", "--target", str(broken), "--rerun-failed", str(first), "--out", str(again))
    assert repeated.exit_code == 1
    assert [line.case for line in read_report(again / "report.jsonl") if isinstance(line, CaseResult)] == [PING]
    mended = tmp_path / "mended"
    done = invoke("run", "-k", names, "--out", str(mended), "--baseline", str(known))
    assert done.exit_code == 1
    assert f"{PING}: it passes" in done.output
    fixed = invoke("diff", str(first), str(mended / "report.jsonl"))
    assert fixed.exit_code == 0, fixed.output
    assert "1 fixed" in fixed.output
    newly = invoke("diff", str(mended), str(first), "--json")
    assert newly.exit_code == 1
    assert f'"newly_failing":[{{"case":"{PING}","before":"xpass","after":"fail"' in newly.output
    assert invoke("diff", str(mended), str(tmp_path / "absent")).exit_code == 2
    nothing = invoke("run", "--rerun-failed", str(again), "--exclude", PING)
    assert nothing.exit_code == 5, nothing.output


def test_queue_cases_are_left_out_in_one_line_where_there_are_no_queues(tmp_path: Path) -> None:
    path = broken_target(tmp_path, "v3-one-packet-at-a-time")
    out = tmp_path / "out"
    done = invoke("run", "--target", str(path), "-k", f"{PING},queue/ordering,queue/publish", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert re.search(r"left out: \d+ cases that need queues", done.output)
    header, *lines = read_report(out / "report.jsonl")
    assert isinstance(header, Header)
    assert header.left_out["queues"] > 1
    assert [line.case for line in lines if isinstance(line, CaseResult)] == [PING]
    done = invoke("run", "--target", str(path), "--spec", "queue")
    assert done.exit_code == 5
    assert "capabilities.queues = true" in done.output


def test_a_folder_that_cannot_be_written_is_told_before_the_broker_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = invoke("run", "-k", PING, "--out", str(tmp_path / "file"))
    assert done.exit_code == 2
    assert "cannot write to" in done.output
