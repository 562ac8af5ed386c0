"""``assay conformance peers``: what is there is judged, what is not is reported, and nothing is left running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from assay.conformance.case import load_cases
from assay.conformance.cli import app
from assay.conformance.peers import (
    PEERS,
    PeerOutcome,
    PeerPlan,
    PeerState,
    judge_peer,
    make_ready,
    maven_install,
    npm_install,
    overall,
)
from assay.conformance.report import ExitCode
from assay.conformance.targets import StartHook, Target, TargetStartError, load_target, running, shipped_targets
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, read_report
from assay.reference_broker.trace.results import Verdict, read_result

PING = "mqtt311/ping/every-pingreq-is-answered"
PYTHON_VERSION = (sys.executable, "--version")
NO_SUCH_BROKER = """
name = "absent"
[start]
command = ["no-such-broker"]
version = ["no-such-broker", "--version"]
advice = "brew it yourself"
"""


def plan(out: Path) -> PeerPlan:
    return PeerPlan(cases=(load_cases()[PING],), out=out, install=False)


@pytest.mark.parametrize("name", [name for name in PEERS if name != "reference"])
def test_every_peer_has_a_target_that_says_how_to_get_it(name: str) -> None:
    assert name in shipped_targets()
    hook = load_target(name).start
    assert hook is not None
    assert hook.version or hook.maven
    assert hook.advice


@pytest.mark.parametrize("name", shipped_targets())
def test_expected_failures_name_cases_that_exist(name: str) -> None:
    assert {entry.case for entry in load_target(name).expect_fail} <= set(load_cases())


def test_a_missing_peer_is_reported_and_holds_up_no_other(tmp_path: Path) -> None:
    absent, out = tmp_path / "absent.toml", tmp_path / "out"
    absent.write_text(NO_SUCH_BROKER, encoding="utf-8")
    stale = out / "absent" / "report.jsonl"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a former run", encoding="utf-8")
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    done = runner.invoke(app, ["peers", "--only", f"{absent},reference", "-k", PING, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "absent is not installed" in done.output
    assert "brew it yourself" in done.output
    missing = read_result(out / "absent" / "result.json")
    assert missing.verdict is Verdict.UNKNOWN
    assert "brew it yourself" in missing.summary
    assert not stale.exists()
    assert read_result(out / "reference" / "result.json").verdict is Verdict.PASS
    lines = read_report(out / "reference" / "report.jsonl")
    assert [line.case for line in lines if isinstance(line, CaseResult)] == [PING]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--only", "absent"), ExitCode.USAGE),
        (("--spec", "mqtt7"), ExitCode.USAGE),
        (("-k", "no such case"), ExitCode.NOTHING_SELECTED),
    ],
)
def test_wrong_usage_starts_nothing(tmp_path: Path, arguments: tuple[str, ...], code: ExitCode) -> None:
    done = CliRunner().invoke(app, ["peers", "--out", str(tmp_path / "out"), *arguments])
    assert done.exit_code == code
    assert not (tmp_path / "out").exists()


def test_a_peer_that_does_not_start_leaves_its_log_and_no_former_verdict(tmp_path: Path) -> None:
    hook = StartHook(command=(sys.executable, "-c", "import sys; sys.exit('port in use')"), version=PYTHON_VERSION)
    outcome = judge_peer(Target(name="sad", start=hook), plan(tmp_path))
    assert outcome.state is PeerState.FAILED_TO_START
    assert "port in use" in outcome.message
    assert read_result(tmp_path / "sad" / "result.json").verdict is Verdict.UNKNOWN
    assert overall([outcome]) is ExitCode.UNREACHABLE


def test_a_stopped_run_leaves_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    folder.mkdir()
    for name in ("result.json", "report.jsonl"):
        (folder / name).write_text("of a former run", encoding="utf-8")
    stop = threading.Event()
    stop.set()
    outcome = judge_peer(load_target("reference"), plan(tmp_path), stop=stop)
    assert outcome.state is PeerState.STOPPED
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], ExitCode.UNREACHABLE),
        ([(PeerState.MISSING, {})], ExitCode.UNREACHABLE),
        ([(PeerState.MISSING, {}), (PeerState.JUDGED, {CaseVerdict.FAIL: 3})], ExitCode.OK),
        ([(PeerState.JUDGED, {CaseVerdict.PASS: 3}), (PeerState.FAILED_TO_START, {})], ExitCode.UNREACHABLE),
        ([(PeerState.JUDGED, {CaseVerdict.PASS: 3, CaseVerdict.NOT_RUN: 1})], ExitCode.UNREACHABLE),
        ([(PeerState.JUDGED, {CaseVerdict.ERROR: 1})], ExitCode.HARNESS),
    ],
)
def test_the_status_says_whether_all_were_judged(
    outcomes: list[tuple[PeerState, dict[CaseVerdict, int]]], code: ExitCode
) -> None:
    assert overall([PeerOutcome(name="x", state=state, counts=counts) for state, counts in outcomes]) is code


def fake_npm(folder: Path, script: str, name: str = "npm") -> dict[str, str]:
    """An environment whose npm, or another program, is a script of ours."""
    program = folder / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.defpath}"}


def test_npm_packages_are_installed_below_the_cache_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = fake_npm(
        tmp_path, 'for last; do :; done; for word; do echo "$word"; done > asked; echo 1.2.3 > version'
    )
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    hook = StartHook(command=("broker",), version=("cat", str(tmp_path / "version")), npm=("broker@1.2.3",))
    target = Target(name="js", start=hook)
    assert make_ready(target, install=False) == ("", "js is not installed")
    assert make_ready(target, install=True) == ("1.2.3", "")
    asked = (tmp_path / "asked").read_text(encoding="utf-8").split()
    assert asked[asked.index("--prefix") + 1] == str(tmp_path / "cache" / "packages" / "js")
    assert asked[-1] == "broker@1.2.3"
    assert "--ignore-scripts" in asked


def test_a_failed_npm_install_says_why(tmp_path: Path) -> None:
    target = Target(name="js", start=StartHook(command=("broker",), npm=("broker",)))
    environment = fake_npm(tmp_path, "echo 'no such package' >&2; exit 1")
    assert "no such package" in npm_install(target, tmp_path / "packages", environment)
    assert npm_install(target, tmp_path / "packages", {"PATH": str(tmp_path)}) == "npm is not on the PATH"


MAVEN = """\
cat "$4" > "$PWD/asked"
for word; do case $word in -DoutputDirectory=*) folder="${word#*=}" ;; esac; done
mkdir "$folder" && touch "$folder/broker-1.2.3.jar"
"""
ARTIFACTS = ("org.example:broker:1.2.3", "org.example:log:2")
JAVA = Target(name="java", start=StartHook(command=("broker",), maven=ARTIFACTS))


def test_maven_artifacts_are_copied_below_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, MAVEN, "mvn")
    monkeypatch.setenv("PATH", fake_npm(tmp_path, "", "javac")["PATH"])
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert make_ready(JAVA, install=False) == ("", "java is not installed")
    assert make_ready(JAVA, install=True) == ("1.2.3", "")
    assert make_ready(JAVA, install=False) == ("1.2.3", "")
    asked = (tmp_path / "asked").read_text(encoding="utf-8")
    assert "<artifactId>log</artifactId><version>2</version>" in asked
    assert [path.name for path in (tmp_path / "cache" / "packages" / "java").iterdir() if path.is_dir()] == ["lib"]


def test_a_broker_of_java_that_is_not_there_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    advised = msgspec.structs.replace(JAVA, start=StartHook(command=("broker",), maven=ARTIFACTS, advice="do this"))
    for target, text in ((JAVA, "`assay conformance peers` copies them"), (advised, "do this")):
        with pytest.raises(TargetStartError, match=text), running(target):
            pass


def test_a_maven_copy_that_was_cut_is_no_installed_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path, MAVEN + "echo 'no such artifact' && exit 1", "mvn")
    monkeypatch.setenv("PATH", fake_npm(tmp_path, "", "javac")["PATH"])
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    version, missing = make_ready(JAVA, install=True)
    assert version == ""
    assert "no such artifact" in missing
    assert maven_install(JAVA, tmp_path / "packages", {"PATH": str(tmp_path)}) == "javac is not on the PATH"


def found(name: str) -> bool:
    hook = load_target(name).start
    return hook is not None and bool(make_ready(load_target(name), install=False)[0])


@pytest.mark.peer
@pytest.mark.parametrize("name", ["mosquitto", "nats", "amqtt", "aedes", "hivemq", "artemis", "moquette"])
def test_a_peer_is_started_judged_and_ended(name: str, tmp_path: Path) -> None:
    if not found(name):
        pytest.skip(f"{name} is not installed")
    outcome = judge_peer(load_target(name), plan(tmp_path))
    assert (outcome.state, outcome.counts) == (PeerState.JUDGED, {CaseVerdict.PASS: 1})


@pytest.mark.peer
@pytest.mark.slow
def test_rabbitmq_is_judged_by_amqp_and_keeps_what_it_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found("rabbitmq-amqp091"):
        pytest.skip("rabbitmq is not installed")
    names = ("queue/requests-are-answered", "confirm/every-publish-gets-one", "restart/confirmed-messages")
    cases = tuple(load_cases()[f"amqp091/{name}"] for name in names)
    monkeypatch.setenv(OURS, str(tmp_path))
    outcome = judge_peer(load_target("rabbitmq-amqp091"), PeerPlan(cases=cases, out=tmp_path, install=False))
    assert (outcome.state, outcome.counts) == (PeerState.JUDGED, {CaseVerdict.PASS: 3})
    until_gone(str(tmp_path))


@pytest.mark.peer
@pytest.mark.slow
def test_rabbitmq_is_started_judged_and_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found("rabbitmq"):
        pytest.skip("rabbitmq is not installed")
    monkeypatch.setenv(OURS, str(tmp_path))
    outcome = judge_peer(load_target("rabbitmq"), plan(tmp_path))
    assert (outcome.state, outcome.counts) == (PeerState.JUDGED, {CaseVerdict.PASS: 1})
    until_gone(str(tmp_path))


OURS = "ASSAY_TEST_THAT_STARTED_IT"
WAIT_S = 20.0


def test_processes_are_known_by_who_started_them(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"], env={**os.environ, OURS: str(tmp_path)}) as process:
        try:
            while not (found := processes_of(str(tmp_path))):
                assert process.poll() is None
        finally:
            process.kill()
    assert found == [process.pid]
    until_gone(str(tmp_path))


def until_gone(test: str) -> None:
    """What its parent does not wait for ends a moment after it."""
    deadline = time.monotonic() + WAIT_S
    while left := processes_of(test):
        assert time.monotonic() < deadline, left


def processes_of(test: str) -> list[int]:
    """Processes that live and were started by a test, or by what it started: others may judge RabbitMQ meanwhile."""
    ps = shutil.which("ps")
    if ps is None:
        pytest.skip("no ps")
    env = {name: value for name, value in os.environ.items() if name != OURS}
    listed = subprocess.run(
        [ps, "axeww", "-o", "pid=,stat=,command="], check=True, capture_output=True, env=env
    ).stdout.decode(errors="replace")
    rows = (line.split(None, 2) for line in listed.splitlines())
    return [int(pid) for pid, state, command in rows if "Z" not in state and f"{OURS}={test} " in f"{command} "]
