"""A broker that dies is started again: its killers are found by themselves, and who ran beside them is not accused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.conformance.case import load_cases
from assay.conformance.engine import RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.report import ExitCode
from assay.conformance.run import Run, RunPlan, await_return
from assay.conformance.targets import Endpoint, RunningTarget, StartHook, Target, free_port, running
from assay.reference_broker.trace.conformance import BrokerDeath, CaseVerdict, Footer, read_report
from assay.reference_broker.trace.results import read_result
from tests.conformance import fragile_broker

PING = "mqtt311/ping/every-pingreq-is-answered"
FIRST = "mqtt311/connect/first-packet-must-be-connect"
OTHERS = (
    "mqtt311/connect/plain-client-ids-are-accepted",
    "mqtt311/connect/client-ids-differ-by-case",
    "mqtt311/connect/session-present-0-without-a-session",
    PING,
)


def target(how: str, **fields: object) -> Target:
    command = ("{python}", fragile_broker.__file__, "{port}", how)
    return Target(name="fragile", start=StartHook(command=command), **fields)  # type: ignore[arg-type]


def judge(plan: RunPlan, *case_ids: str) -> tuple[dict[str, Outcome], ExitCode]:
    outcomes, code = judge_often(plan, dict.fromkeys(case_ids, 1))
    return {outcome.result.case: outcome for outcome in outcomes}, code


def judge_often(plan: RunPlan, times: dict[str, int]) -> tuple[list[Outcome], ExitCode]:
    cases = [load_cases()[case_id] for case_id, count in times.items() for _ in range(count)]
    with Run(plan) as run:
        futures = [run.submit(case) for case in cases]
        wait(futures)
        return [future.result() for future in futures], run.finish()


def deaths_of(path: Path) -> list[BrokerDeath]:
    footer = list(read_report(path))[-1]
    assert isinstance(footer, Footer)
    return footer.deaths


def test_its_killer_fails_with_status_and_log_and_all_others_are_judged(tmp_path: Path) -> None:
    plan = RunPlan(target=target("unconnected"), report=tmp_path / "report.jsonl")
    outcomes, code = judge(plan, FIRST, *OTHERS)
    assert code is ExitCode.FAILED
    assert {name: outcomes[name].result.verdict for name in OTHERS} == dict.fromkeys(OTHERS, CaseVerdict.PASS)
    killer = outcomes[FIRST].result
    assert killer.verdict is CaseVerdict.FAIL
    assert "the broker died (exit status 3)" in killer.detail
    assert "panic: runtime error: unconnected is out of range" in killer.detail
    assert "a line before it" not in killer.detail
    (death,) = deaths_of(tmp_path / "report.jsonl")
    assert (death.status, death.killers) == ("the broker died (exit status 3)", [FIRST])
    assert FIRST in death.during
    assert "a line before it" in (tmp_path / death.log).read_text(encoding="utf-8")
    summed_up = read_result(tmp_path / "result.json")
    assert [(finding.checker, finding.values) for finding in summed_up.findings] == [("broker_alive", [FIRST])]
    assert (tmp_path / summed_up.artefacts["logs of brokers that died"]).is_dir()
    assert "a line before it" in (tmp_path / "brokers" / f"{FIRST.replace('/', '-')}.log").read_text(encoding="utf-8")


def test_one_that_hangs_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.conformance.targets.process._ENDING_TIMEOUT_S", 0.1)
    monkeypatch.setattr("assay.conformance.case._HANDSHAKE_TIMEOUT_S", 0.2)
    plan = RunPlan(
        target=target("unconnected-hang"), options=RunOptions(patience_s=0.5), report=tmp_path / "report.jsonl"
    )
    outcomes, code = judge(plan, FIRST, *OTHERS)
    assert code is ExitCode.FAILED
    assert {name: outcomes[name].result.verdict for name in OTHERS} == dict.fromkeys(OTHERS, CaseVerdict.PASS)
    assert outcomes[FIRST].result.verdict is CaseVerdict.FAIL
    assert "does not answer" in deaths_of(tmp_path / "report.jsonl")[0].status


def test_the_run_gives_up_a_broker_that_dies_again_and_again(tmp_path: Path) -> None:
    plan = RunPlan(
        target=target("pingreq"), options=RunOptions(concurrency=1), report=tmp_path / "report.jsonl", restarts=1
    )
    killers = [case.id for case in load_cases().values() if case.id.startswith("mqtt311/ping/every")]
    killers += ["mqtt311/connect/client-ids-differ-by-case", FIRST]
    outcomes, code = judge(plan, *killers)
    assert code is ExitCode.FAILED
    verdicts = Counter(outcome.result.verdict for outcome in outcomes.values())
    assert verdicts == {CaseVerdict.FAIL: 2, CaseVerdict.NOT_RUN: 1}
    left = next(outcome.result for outcome in outcomes.values() if outcome.result.verdict is CaseVerdict.NOT_RUN)
    assert "gives up after 1 restart" in left.detail
    assert "exit status 3" in left.detail


def test_a_death_that_no_case_repeats_by_itself_is_nobodys_failure_and_no_success(tmp_path: Path) -> None:
    """It dies of the fourth packet before CONNECT; the case sends three."""
    plan = RunPlan(target=target("unconnected-late"), report=tmp_path / "report.jsonl")
    once = dict.fromkeys((FIRST, *OTHERS), 1)
    outcomes, code = judge_often(plan, once | {FIRST: 2})
    assert {outcome.result.verdict for outcome in outcomes} == {CaseVerdict.PASS}
    assert code is ExitCode.UNREACHABLE
    (death,) = deaths_of(tmp_path / "report.jsonl")
    assert death.killers == []


@contextmanager
def hosted(how: str, lives: int) -> Iterator[Target]:
    """A broker that somebody else has started, and starts again on the same port, so often."""
    port = free_port()
    command = [sys.executable, fragile_broker.__file__, str(port), how]
    watch = f"import subprocess\nfor _ in range({lives}): subprocess.run({command!r}, stderr=subprocess.DEVNULL)"
    process = subprocess.Popen([sys.executable, "-c", watch], start_new_session=True)
    try:
        endpoint = Endpoint(port=port)
        await_return(Target(name="hosted", endpoint=endpoint))
        yield Target(name="hosted", endpoint=endpoint)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_foreign_broker_that_comes_back_is_judged_to_the_end() -> None:
    with hosted("unconnected", lives=8) as foreign:
        outcomes, code = judge(RunPlan(target=foreign), FIRST, *OTHERS)
    assert code is ExitCode.FAILED
    assert {name: outcomes[name].result.verdict for name in OTHERS} == dict.fromkeys(OTHERS, CaseVerdict.PASS)
    assert outcomes[FIRST].result.verdict is CaseVerdict.FAIL


def test_a_foreign_broker_that_is_back_before_anybody_looks_is_judged_to_the_end() -> None:
    """Whoever supervises it was quicker than the handshake that asks whether it lives: cases beside were accused."""
    with hosted("unconnected-flicker", lives=1) as foreign:
        outcomes, code = judge(RunPlan(target=foreign), FIRST, *OTHERS)
    assert code is ExitCode.FAILED
    assert {name: outcomes[name].result.verdict for name in OTHERS} == dict.fromkeys(OTHERS, CaseVerdict.PASS)
    assert outcomes[FIRST].result.verdict is CaseVerdict.FAIL


def test_of_a_foreign_broker_that_stays_dead_nobody_beside_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted("unconnected", lives=1) as foreign:
        monkeypatch.setattr("assay.conformance.run.RETURN_TIMEOUT_S", 0.1)
        outcomes, code = judge(RunPlan(target=foreign), FIRST, *OTHERS)
    assert code is ExitCode.UNREACHABLE
    verdicts = {outcome.result.verdict for outcome in outcomes.values()}
    assert CaseVerdict.NOT_RUN in verdicts
    assert verdicts <= {CaseVerdict.NOT_RUN, CaseVerdict.PASS}
    assert "other case(s) ran beside" in outcomes[FIRST].result.detail


def test_what_a_broker_started_ends_with_it() -> None:
    """Also what outlives its parent, as the processes of a launcher do."""
    with running(target("unconnected-leave")) as broker:
        assert broker.pid is not None
        group = broker.pid
        os.kill(broker.pid, signal.SIGKILL)
        assert broker.ending() == "ended by SIGKILL"
        os.killpg(group, 0)  # the other one lives
    assert is_gone(group)


def is_gone(group: int) -> bool:
    """Wait until no process of the group is left (a killed one is there until init has taken note of it)."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        states = [Path(f"/proc/{pid}/stat") for pid in os.listdir("/proc") if pid.isdigit()]
        if not any(_is_alive(path, group) for path in states):
            return True
    return False


def _is_alive(path: Path, group: int) -> bool:
    try:
        state, _parent, of = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:3]
    except OSError:
        return False
    return int(of) == group and state != "Z"


@pytest.mark.parametrize(
    ("log", "quoted", "left"),
    [
        ("a\nb\n", "b", ""),
        ("ready\npanic: index out of range\n\ngoroutine 7 [running]:\n" + "frame\n" * 50, "panic: index", "ready"),
        (
            "ready\nTraceback (most recent call last):\n" + "  File x\n" * 50 + "ValueError: y\n",
            "ValueError: y",
            "ready",
        ),
        ("thread 'main' panicked at src/lib.rs:1\n" + "note\n" * 20, "panicked at src", ""),
        ("line\n" * 100 + "the last\n", "the last", ""),
    ],
)
def test_the_last_words_of_a_log(tmp_path: Path, log: str, quoted: str, left: str) -> None:
    path = tmp_path / "broker.log"
    path.write_text(log, encoding="utf-8")
    words = RunningTarget(Target(name="x"), Endpoint(), log=path).last_words()
    assert quoted in words
    assert not left or left not in words
    assert len(words.splitlines()) <= 9
