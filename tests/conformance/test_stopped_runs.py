"""A run that is stopped closes its report, says what has no verdict, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.conformance.case import load_cases
from assay.conformance.report import ExitCode
from assay.conformance.run import Run, RunPlan
from assay.conformance.signals import stopped_by_signals
from assay.conformance.targets import StartHook, Target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Footer, Header, read_report
from assay.reference_broker.trace.results import Verdict, read_result
from tests.conformance import fragile_broker
from tests.conformance.test_died_brokers import is_gone

WAIT_S = 60.0
QUICK = "mqtt311/connect/plain-client-ids-are-accepted"
SILENCE = "mqtt311/ping/silence-beyond-the-keep-alive-ends-the-connection"
"""It waits for eleven seconds on a broker that does not mind."""
PATIENT = ("{python}", fragile_broker.__file__, "{port}", "nothing")


def target_file(folder: Path, command: tuple[str, ...]) -> Path:
    path = folder / "patient.toml"
    path.write_text(f"name = 'patient'\n[start]\ncommand = {list(command)!r}\n", encoding="utf-8")
    return path


def started(out: Path, target: Path, part: str = "run", *arguments: str) -> subprocess.Popen[str]:
    code = (
        "from assay.conformance.cli import app; from assay.conformance.explore.campaign import Campaign;"
        "Campaign.__init__.__kwdefaults__['shrink_s'] = 0.0; app()"
    )
    chosen = arguments or ("-k", f"{QUICK},{SILENCE}")
    command = [sys.executable, "-c", code, part, "--target", str(target), *chosen, "--out", str(out)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    _begun.append(run)
    return run


_begun: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_outlives_a_test() -> Iterator[None]:
    """Not even one that failed before it had stopped its run."""
    yield
    while _begun:
        run = _begun.pop()
        if run.poll() is None:
            for pid in children_of(run.pid):
                os.kill(pid, signal.SIGKILL)
            run.kill()
            run.wait(WAIT_S)


def wait_for_result(report: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if report.exists() and b'"type":"result"' in report.read_bytes():
            return
        time.sleep(0.02)  # for another process; its report is all that can be seen of it
    pytest.fail("no result was written")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_the_report_and_ends_the_broker(tmp_path: Path, number: signal.Signals) -> None:
    run = started(tmp_path / "out", target_file(tmp_path, PATIENT))
    wait_for_result(tmp_path / "out" / "report.jsonl")
    brokers = children_of(run.pid)
    assert brokers
    run.send_signal(number)
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == ExitCode.STOPPED, output
    assert f"stopped by {number.name}" in output
    lines = list(read_report(tmp_path / "out" / "report.jsonl"))
    verdicts = {line.case: line.verdict for line in lines if isinstance(line, CaseResult)}
    assert verdicts == {QUICK: CaseVerdict.PASS, SILENCE: CaseVerdict.NOT_RUN}
    assert isinstance(lines[-1], Footer)
    assert lines[-1].exit_code == ExitCode.STOPPED
    assert read_result(tmp_path / "out" / "result.json").verdict is Verdict.UNKNOWN
    assert all(is_gone(pid) for pid in brokers)


NEVER_UP = "import pathlib, time; pathlib.Path({begun!r}).touch(); time.sleep(600)"


def stopped_before_it_is_up(folder: Path, part: str, *arguments: str) -> str:
    """What a command prints that is ended while its broker has begun and does not answer."""
    begun = folder / "begun"
    target = target_file(folder, ("{python}", "-c", NEVER_UP.format(begun=str(begun))))
    run = started(folder / "out", target, part, *arguments)
    deadline = time.monotonic() + WAIT_S
    while not begun.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    brokers = children_of(run.pid)
    run.terminate()
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == ExitCode.STOPPED, output
    assert brokers
    assert all(is_gone(pid) for pid in brokers)
    return output


def check_report_without_verdicts(out: Path, code: ExitCode, reason: str) -> None:
    header, *lines, footer = read_report(out / "report.jsonl")
    assert isinstance(header, Header)
    results = [line for line in lines if isinstance(line, CaseResult)]
    assert {(result.case, result.verdict) for result in results} == {
        (name, CaseVerdict.NOT_RUN) for name in (QUICK, SILENCE)
    }
    assert all(reason in result.detail for result in results)
    assert isinstance(footer, Footer)
    assert footer.exit_code == code
    assert read_result(out / "result.json").verdict is Verdict.UNKNOWN


def test_a_signal_before_the_broker_answers_ends_it_too_and_leaves_a_report(tmp_path: Path) -> None:
    former = tmp_path / "out" / "report.jsonl"
    former.parent.mkdir()
    former.write_text("of another run\n", encoding="utf-8")
    stopped_before_it_is_up(tmp_path, "run")
    check_report_without_verdicts(tmp_path / "out", ExitCode.STOPPED, "stopped by SIGTERM before its broker was up")


def test_a_broker_that_does_not_start_leaves_a_report(tmp_path: Path) -> None:
    run = started(tmp_path / "out", target_file(tmp_path, ("{python}", "-c", "raise SystemExit(7)")))
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == ExitCode.UNREACHABLE, output
    check_report_without_verdicts(tmp_path / "out", ExitCode.UNREACHABLE, "it ended with status 7")


def test_lives_that_are_stopped_before_the_first_say_so(tmp_path: Path) -> None:
    output = stopped_before_it_is_up(tmp_path, "explore", "--seed", "77")
    assert "stopped by SIGTERM" in output
    assert "0 lives" in output
    assert "seed 77" in output
    assert read_result(tmp_path / "out" / "result.json").verdict is Verdict.UNKNOWN


def test_lives_that_are_stopped_tell_what_was_found_until_then(tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "broken.toml"
    command = ["{python}", "-m", "assay.conformance.adapter", "--mutant", "v5-retain-as-published-ignored"]
    target.write_text(f"name = 'broken'\n[start]\ncommand = {command!r}\nport_from = 'stdout'\n", encoding="utf-8")
    run = started(out, target, "explore", "--seed", "78", "--examples", "1000000")
    deadline = time.monotonic() + WAIT_S
    while not (kept := list(out.glob("broken-1-*.json"))):
        assert time.monotonic() < deadline
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)  # for another process; what it writes is all that can be seen of it
    run.terminate()
    output, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == ExitCode.FAILED, output
    assert "stopped by SIGTERM" in output
    assert "retain-flag" in output
    assert str(kept[0]) in output.replace("\n", "")
    assert "seed 78" in output
    assert read_result(out / "result.json").verdict is Verdict.FAIL


def test_the_time_limit_ends_a_run_with_what_it_has(tmp_path: Path) -> None:
    target = Target(name="patient", start=StartHook(command=PATIENT))
    plan = RunPlan(target=target, report=tmp_path / "report.jsonl", time_limit_s=3.0)
    with Run(plan) as run:
        futures = run.submit_all([load_cases()[case_id] for case_id in (QUICK, SILENCE)])
        assert futures[QUICK].result(WAIT_S).result.verdict is CaseVerdict.PASS
        late = futures[SILENCE].result(WAIT_S).result
        code = run.finish()
    assert late.verdict is CaseVerdict.NOT_RUN
    assert "time limit of 3 s" in late.detail
    assert code is ExitCode.STOPPED
    header, *_, footer = read_report(tmp_path / "report.jsonl")
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)


def test_a_broker_that_a_case_has_to_itself_ends_with_the_run(tmp_path: Path) -> None:
    target = Target(name="patient", start=StartHook(command=PATIENT), broker_per_case=True)
    with Run(RunPlan(target=target, report=tmp_path / "report.jsonl")) as run:
        future = run.submit(load_cases()[SILENCE])
        deadline = time.monotonic() + WAIT_S
        while len(own := children_of_this_process()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.stop("the test is over")
        assert future.result(WAIT_S).result.verdict is CaseVerdict.NOT_RUN
        assert run.finish() is ExitCode.STOPPED
    assert all(is_gone(pid) for pid in own)


def children_of_this_process() -> list[int]:
    return [pid for thread in os.listdir("/proc/self/task") for pid in _children(thread)]


def _children(thread: str) -> list[int]:
    try:
        text = Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii")
    except OSError:
        return []
    pids = [int(word) for word in text.split()]
    return [pid for pid in pids if fragile_broker.__file__ in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")]


def test_the_first_signal_is_told_the_second_interrupts() -> None:
    told: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(told.append):
        signal.raise_signal(signal.SIGTERM)
        assert told == ["SIGTERM"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
