"""The umbrella command, and the demo's own logic. What the parts do is tested with the parts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from assay import cli, demo
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, write_result

WAIT_S = 60.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_help_names_every_part_without_importing_any() -> None:
    finished = run("--help")
    assert finished.returncode == 0
    for name in cli._PARTS:
        assert name in finished.stdout
    probe = "import sys; from assay.cli import build_app; build_app(None); print([m for m in sys.modules if m in %r])"
    heavy = ("pyspark", "locust", "pytest", "plotly", "assay.conformance.cli", "assay.reference_broker.broker")
    found = subprocess.run(
        [sys.executable, "-c", probe % (heavy,)], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert found.stdout.strip() == "[]"


def test_version() -> None:
    finished = run("--version")
    assert finished.returncode == 0
    assert finished.stdout.strip()


def test_an_unknown_command_is_a_usage_error() -> None:
    finished = run("no-such-part")
    assert finished.returncode == 2
    assert "no-such-part" in finished.stderr


@pytest.mark.parametrize(
    "command", [("serve", "--config"), ("conformance", "run", "--target"), ("conformance", "self-check", "--mutant")]
)
def test_a_second_value_does_not_silently_win_over_the_first(command: tuple[str, ...]) -> None:
    *part, option = command
    finished = run(*part, option, "one", option, "two")
    assert finished.returncode == 2
    assert "given 2 times" in finished.stderr


def test_options_that_take_several_values_and_flags_may_be_repeated() -> None:
    finished = run("conformance", "list", "--json", "--json", "--area", "ping", "--area", "auth", "-k", "a", "-k", "e")
    assert finished.returncode == 0, finished.stderr
    assert {line.split('"id":"')[1].split("/")[1] for line in finished.stdout.splitlines()} == {"ping", "auth"}


def test_commands_that_pages_name_are_there() -> None:
    root = Path(__file__).resolve().parents[1]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "deploy").glob("*.md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"(?m)(?:^|`|\$ )assay ([a-z][a-z-]*)\b", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert {(page, name) for page, name in named if name not in cli._PARTS} == set()


@pytest.mark.parametrize(("line", "expected"), [("assay que", "queue"), ("assay queue pur", "purge")])
def test_a_shell_completes_commands_and_those_of_a_part(line: str, expected: str) -> None:
    script = "from assay.cli import main; import sys; sys.argv = ['assay']; main()"
    environment = {
        **os.environ,
        "_ASSAY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, env=environment, check=False
    )
    assert expected in finished.stdout.split()


@pytest.mark.parametrize("command", ["serve", "report", "demo", "hash-password"])
def test_every_command_of_this_environment_explains_itself(command: str) -> None:
    finished = run(command, "--help")
    assert finished.returncode == 0, finished.stderr
    assert "Usage" in finished.stdout


def test_the_demo_never_empties_a_folder_it_did_not_make(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine", encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="not empty"):
        demo.prepare(tmp_path)
    assert precious.read_text(encoding="utf-8") == "mine"


def test_the_demo_replaces_its_own_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    demo.prepare(out)
    (out / "old.log").write_text("x", encoding="utf-8")
    demo.prepare(out)
    assert [entry.name for entry in out.iterdir()] == [demo.MARK]


def test_a_step_without_a_result_is_an_error_whatever_it_printed(tmp_path: Path) -> None:
    step = demo.Step(name="broken", title="t", arguments=("--version",), folder="nowhere")
    outcome = demo.run_step(step, tmp_path)
    assert outcome.verdict is Verdict.ERROR
    assert "left no result" in outcome.summary
    assert (tmp_path / "broken.log").exists()


@pytest.mark.parametrize(("arguments", "expected"), [("--version", Verdict.PASS), ("--no-such", Verdict.ERROR)])
def test_a_step_that_leaves_no_result_is_judged_by_its_exit_status(
    tmp_path: Path, arguments: str, expected: Verdict
) -> None:
    step = demo.Step(name="s", title="t", arguments=(arguments,), folder="")
    assert demo.run_step(step, tmp_path).verdict is expected


def test_a_pass_that_ends_with_an_error_is_no_pass(tmp_path: Path) -> None:
    write_result(tmp_path / "there", RunResult(kind=RunKind.SIM, name="n", verdict=Verdict.PASS, summary="fine"))
    step = demo.Step(name="s", title="t", arguments=("--no-such",), folder="there")
    assert demo.run_step(step, tmp_path).verdict is Verdict.ERROR


def test_a_steps_verdict_is_its_results(tmp_path: Path) -> None:
    write_result(tmp_path / "there", RunResult(kind=RunKind.SIM, name="n", verdict=Verdict.UNKNOWN, summary="nothing"))
    step = demo.Step(name="fine", title="t", arguments=("--version",), folder="there")
    assert demo.run_step(step, tmp_path).verdict is Verdict.UNKNOWN


def _check(unit: str, verdict: Verdict, name: str = "n") -> Check:
    return Check(name=name, value=1.0, unit=unit, bound=0.0, relation="<", verdict=verdict, source="s")


@pytest.mark.parametrize(
    ("verdict", "checks", "is_well"),
    [
        (Verdict.UNKNOWN, [_check("messages", Verdict.PASS), _check("ms", Verdict.UNKNOWN)], True),
        (
            Verdict.UNKNOWN,
            [_check("messages", Verdict.PASS), _check("x", Verdict.UNKNOWN, "generator: headroom")],
            True,
        ),
        (Verdict.UNKNOWN, [_check("messages", Verdict.UNKNOWN), _check("ms", Verdict.UNKNOWN)], False),
        (Verdict.FAIL, [_check("messages", Verdict.PASS), _check("ms", Verdict.FAIL)], False),
        (Verdict.UNKNOWN, [_check("ms", Verdict.UNKNOWN)], False),
        (Verdict.UNKNOWN, [], False),
        (Verdict.PASS, [], True),
    ],
)
def test_latencies_that_a_busy_machine_leaves_open_end_no_demo_as_failed(
    tmp_path: Path, verdict: Verdict, checks: list[Check], is_well: bool
) -> None:
    result = RunResult(kind=RunKind.LOAD, name="n", verdict=verdict, summary="", checks=checks)
    write_result(tmp_path / "there", result)
    step = demo.Step(name="fine", title="t", arguments=("--version",), folder="there")
    outcome = demo.run_step(step, tmp_path)
    assert outcome.is_well is is_well
    assert outcome.verdict is verdict, "it is told as it is"


def test_every_deciding_step_names_a_folder_of_its_own(tmp_path: Path) -> None:
    plan = demo.steps(tmp_path, 1)
    folders = [step.folder for step in plan if step.folder]
    assert len(set(folders)) == len(folders)
    assert {step.name for step in plan if step.decides} == {
        "conformance",
        "sim",
        "faults",
        "load",
        "spark",
        "notebook",
        "models",
        "clusters",
    }


@pytest.mark.parametrize(
    ("verdicts", "expected", "runs"),
    [
        ([Verdict.UNKNOWN, Verdict.PASS], Verdict.PASS, 2),
        ([Verdict.ERROR, Verdict.UNKNOWN, Verdict.FAIL], Verdict.FAIL, 3),
        ([Verdict.UNKNOWN] * 5, Verdict.UNKNOWN, demo.ATTEMPTS),
        ([Verdict.FAIL, Verdict.PASS], Verdict.FAIL, 1),
    ],
)
def test_a_step_is_repeated_only_while_it_can_say_nothing(
    tmp_path: Path, verdicts: list[Verdict], expected: Verdict, runs: int
) -> None:
    step = demo.Step(name="s", title="t", arguments=(), folder="f")
    left = list(verdicts)

    def run(step: demo.Step, _out: Path) -> demo.Outcome:
        return demo.Outcome(step=step, verdict=left.pop(0), summary="", duration_s=1.0)

    outcome = demo.run_patiently(step, tmp_path, run)
    assert outcome.verdict is expected
    assert len(verdicts) - len(left) == runs
    assert outcome.duration_s == runs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_says_what_it_saw_and_ends_as_the_readme_says(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "assay", "fuzz", "mqtt", "--packets", "1000000000", "--seed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "seed 1\n"
        process.send_signal(number)
        told = process.stderr.read()
        assert process.wait(WAIT_S) == 6
    assert "stopped before the end" in told


def test_a_demo_that_is_stopped_ends_what_it_has_started(tmp_path: Path) -> None:
    first, second = (demo.Step(name=name, title="t", arguments=(), folder="") for name in ("first", "second"))
    processes = demo.Processes()
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    started: list[int] = []

    def run(step: demo.Step) -> demo.Outcome:
        with (tmp_path / "log").open("wb") as log:
            code = f"import os, signal; open({str(fifo)!r}, 'w').write(str(os.getpid())); signal.pause()"
            started.append(processes.run([sys.executable, "-c", code], log, dict(os.environ)))
        return demo.Outcome(step=step, verdict=Verdict.PASS, summary="", duration_s=0.0)

    with pytest.raises(KeyboardInterrupt):
        _interrupt_once(fifo, demo.run_all([first, second], run, processes.stop))
    assert started == [-signal.SIGTERM], "the one that ran is gone, and no other was begun"
    with pytest.raises(demo.StoppedError):
        run(second)


def _interrupt_once(fifo: Path, outcomes: Iterator[demo.Outcome]) -> None:
    """As a signal does: in the main thread, once the first step runs."""

    def interrupt() -> None:
        fifo.read_text(encoding="utf-8")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    next(outcomes)


def test_a_step_waits_for_those_before_it_or_runs_beside_the_last() -> None:
    def step(name: str, *, beside: bool = False) -> demo.Step:
        return demo.Step(name=name, title="t", arguments=(), folder="f", beside=beside)

    met = threading.Barrier(2)
    begun: list[str] = []

    def run(step: demo.Step) -> demo.Outcome:
        begun.append(step.name)
        if step.name in ("first", "beside"):
            met.wait(WAIT_S)  # neither goes on without the other
        return demo.Outcome(step=step, verdict=Verdict.PASS, summary="", duration_s=1.0)

    outcomes = demo.run_all([step("first"), step("beside", beside=True), step("then"), step("last")], run)
    assert [outcome.step.name for outcome in outcomes] == ["first", "beside", "then", "last"]
    assert set(begun[:2]) == {"first", "beside"}
    assert begun[2:] == ["then", "last"]


@pytest.mark.parametrize(("options", "parts"), [((), 6), (("--scram",), 4)])
def test_a_password_that_is_piped_in_is_hashed_and_nothing_else_printed(options: tuple[str, ...], parts: int) -> None:
    command = [sys.executable, "-m", "assay.cli", "hash-password", *options]
    for text, status in (("hunter2\n", 0), ("", 2), ("\n", 2)):
        finished = subprocess.run(command, input=text, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert finished.returncode == status, finished.stderr
        assert finished.stdout.count("\n") == (status == 0)
        assert len(finished.stdout.split("$")) == (parts if status == 0 else 1)
        assert finished.stderr == ("" if status == 0 else "error: the password is empty\n")
