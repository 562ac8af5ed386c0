"""Scenarios on real processes: every kind of fault is made and healed, verdicts are right, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toxiproxy
import yaml
from typer.testing import CliRunner

from assay.faults.cli import app
from assay.faults.runner import RunError, RunOptions, run_scenario
from assay.faults.scenario import Scenario, parse_scenario
from assay.faults.toxiproxy import ToxiproxyClient, ToxiproxyThread
from assay.reference_broker.trace.files import read_history
from assay.reference_broker.trace.results import RunResult, Verdict, read_result
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

CLI = CliRunner()
RETRY = {"max_retries": 5, "initial_backoff_s": 0.05, "max_backoff_s": 0.1, "multiplier": 2.0}
QUEUE = {"name": "q", "partitions": 2, "durability": "fsync", "delivery_timeout_s": 0.5, "retry": RETRY}


def scenario(*faults: dict[str, Any], queue: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    workload = {
        "queue": "q",
        "messages_per_producer": 60,
        "rate_per_s": 60,
        "consumers_per_group": 2,
        "publish_timeout_s": 1.0,
        "settlement": {"ack": 8, "nack": 1, "reject": 1},
        **changes.pop("workload", {}),
    }
    return parse_scenario(
        {
            "name": "small",
            "topology": {"broker": {"queues": {"configured": [QUEUE | (queue or {})]}}},
            "workload": [workload],
            "faults": list(faults),
            "contract": {"delivery_timeout_s": 0.5, "max_deliveries": 6},
            "drain_timeout_s": 60,
            **changes,
        }
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[RunResult, list[HistoryEvent]]]:
    def execute(wanted: Scenario, **options: Any) -> tuple[RunResult, list[HistoryEvent]]:
        result = run_scenario(wanted, RunOptions(out=tmp_path, seed=7, **{"attempts": 1, **options}))
        assert read_result(tmp_path / "result.json") == result
        history = tmp_path / "history.jsonl"
        events = list(read_history(history)[1]) if history.exists() else []
        return result, events

    return execute


def broker_processes(folder: Path) -> list[int]:
    """Processes that serve from this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if b"assay.conformance.adapter" in command and str(folder).encode() in command:
            found.append(int(entry.parent.name))
    return found


def faults_of(events: list[HistoryEvent]) -> list[tuple[str, str]]:
    return [(event.detail, event.type.value) for event in events if event.f is OpKind.FAULT]


def test_every_kind_of_fault(run: Any, tmp_path: Path) -> None:
    wanted = scenario(
        {"at_s": 0.1, "kind": "latency", "for_s": 0.2, "target": "clients", "latency_ms": 20, "jitter_ms": 5},
        {"at_s": 0.2, "kind": "loss", "for_s": 0.2, "target": "producers", "rate": 0.05},
        {"at_s": 0.3, "kind": "bandwidth", "for_s": 0.1, "target": "consumers", "rate": 50},
        {"at_s": 0.4, "kind": "reset", "target": "clients"},
        {"at_s": 0.6, "kind": "partition", "for_s": 0.2, "target": "producers"},
        {"at_s": 0.9, "kind": "crash", "for_s": 0.1},
        {"at_s": 1.0, "kind": "pause", "for_s": 0.2},
    )
    result, events = run(wanted)
    assert result.verdict is Verdict.PASS, (result.summary, result.findings)
    labels = [
        "latency clients 20+/-5 ms",
        "loss producers 5%",
        "bandwidth consumers 50 kB/s",
        "reset clients",
        "partition producers",
        "crash broker",
        "pause broker",
    ]
    seen = faults_of(events)
    assert [label for label, type_ in seen if type_ == "invoke"] == labels
    assert sorted(label for label, type_ in seen if type_ == "ok") == sorted(labels)
    assert [band.label for band in result.bands] == labels
    by_label = {band.label: band.to_s - band.from_s for band in result.bands}
    assert by_label["pause broker"] >= 0.2
    assert by_label["partition producers"] >= 0.2
    assert result.metrics["broker_starts"] == 2
    assert result.metrics["sessions"] > 4, "clients came back after the reset and the crash"
    assert result.metrics["proxy"] == "embedded 2.12.0+assay"
    assert broker_processes(tmp_path) == []
    assert {each.name for each in result.percentiles} == {"publish_to_ack", "publish_to_deliver"}


def commits(seconds: int) -> Scenario:
    """A second's or several seconds' work, killed in the middle."""
    return parse_scenario(
        {
            "name": "commits",
            "topology": {"broker": {"sessions": {"durability": "fsync"}}},
            "workload": [
                {
                    "kind": "amqp091",
                    "name": "shop",
                    "publishers": 2,
                    "messages_per_publisher": 60 * seconds,
                    "rate_per_s": 60,
                    "queues": 2,
                    "prefetch": 8,
                    "transactions": {"share": 0.8, "messages": [2, 5], "commit": 0.8, "rollback": 0.1, "abandon": 0.1},
                    "movers": 2,
                    "publish_timeout_s": 1.0,
                    "keep_alive_s": 1,
                }
            ],
            "faults": [{"at_s": 0.6 * seconds, "kind": "crash", "for_s": 0.1}],
            "contract": {"delivery": "at_least_once", "acked_means": "disk"},
            "drain_timeout_s": 60,
            "drain_quiet_s": 2.5,
        }
    )


@pytest.mark.timeout(300)
def test_commits_over_a_kill(run: Any) -> None:
    """AMQP 0.9.1 on a process that is killed amid commits: what was committed is there as a whole, else none of it."""
    for seconds in (1, 4, 16):  # a busy machine begins late, and is killed before its first commit
        result, events = run(commits(seconds))
        assert result.verdict is Verdict.PASS, (result.summary, result.findings)
        killed_at = next(at for at, each in enumerate(events) if each.f is OpKind.FAULT)
        committed = [at for at, each in enumerate(events) if each.f is OpKind.COMMIT and each.type is OpType.OK]
        if committed and committed[0] < killed_at < committed[-1]:
            return
    pytest.fail("no run was killed amid its commits")


def test_latency_is_really_between_clients_and_broker(run: Any) -> None:
    wanted = scenario(
        {"at_s": 0.0, "kind": "latency", "for_s": 1.0, "target": "producers", "latency_ms": 60},
        workload={"messages_per_producer": 15},
    )
    result, _ = run(wanted)
    assert result.verdict is Verdict.PASS
    ack = next(each for each in result.percentiles if each.name == "publish_to_ack")
    assert ack.p50_us >= 119_000, "60 ms each way"


def test_a_server_that_is_given_is_used_and_left_clean(run: Any) -> None:
    with ToxiproxyThread(seed=1) as server:
        result, _ = run(scenario(workload={"messages_per_producer": 10}), toxiproxy_url=server.url)
        assert result.verdict is Verdict.PASS
        assert str(result.metrics["proxy"]).startswith("given ")
        assert toxiproxy.Toxiproxy().proxies() == {}, "it still speaks to the server of the run"


def test_when_nothing_succeeds_no_claim_is_made(run: Any) -> None:
    result, events = run(scenario(queue={"max_message_bytes": 1}, workload={"messages_per_producer": 5}))
    assert result.verdict is Verdict.UNKNOWN
    assert "no publish was acknowledged" in result.summary
    refused = [event for event in events if event.f is OpKind.PUBLISH and event.type is OpType.FAIL]
    assert len(refused) == 5


def test_a_missed_target_fails(run: Any) -> None:
    target = {"metric": "sends_ok", "relation": ">=", "bound": 1_000}
    result, _ = run(scenario(workload={"messages_per_producer": 5}, targets=[target]))
    assert result.verdict is Verdict.FAIL
    assert "sends_ok" in result.summary
    assert not result.findings


def test_a_broker_that_does_not_come_back_is_a_finding(run: Any, tmp_path: Path) -> None:
    """A folder in the place of the lock makes the restart impossible; a real broker might fail by a corrupt log."""
    wanted = scenario({"at_s": 0.5, "kind": "crash", "for_s": 1.0})

    def spoil(phase: str, events: int) -> None:
        if phase == "producing" and events > 100 and (tmp_path / "data").is_dir():
            (tmp_path / "data").rename(tmp_path / "gone")
            (tmp_path / "data").write_text("no folder any more")

    result = run_scenario(wanted, RunOptions(out=tmp_path, seed=7), spoil)
    assert result.verdict is Verdict.FAIL
    assert result.findings[0].checker == "process"
    assert "File exists" in result.findings[0].message, "why it did not start"
    assert broker_processes(tmp_path) == []


def test_a_broker_that_dies_by_itself_is_a_finding(run: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def stab(phase: str, events: int) -> None:
        if phase == "producing" and not killed:
            killed.extend(broker_processes(tmp_path))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    wanted = scenario(
        workload={"messages_per_producer": 20, "settlement": {"ack": 1}}, drain_timeout_s=1.0, drain_quiet_s=0.8
    )
    result = run_scenario(wanted, RunOptions(out=tmp_path, seed=7), stab)
    assert killed
    assert result.verdict is Verdict.FAIL
    assert "ended by itself, status -9" in result.findings[0].message


def test_a_broker_that_cannot_start_is_an_error_of_the_harness(run: Any) -> None:
    result, _ = run(scenario(queue={"partitions": 5_000}))
    assert result.verdict is Verdict.ERROR
    assert "partitions must be 1 to 1024" in result.summary


def test_a_proxy_that_is_not_there_is_an_error_of_the_harness(run: Any) -> None:
    result, _ = run(scenario(), toxiproxy_url="http://127.0.0.1:1")
    assert result.verdict is Verdict.ERROR
    assert "127.0.0.1:1" in result.summary


def test_simulation_only_scenarios_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="assay sim run"):
        run_scenario(scenario(worlds=["sim"]), RunOptions(out=tmp_path, seed=1))


# The command line


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    data = {
        "name": "tiny",
        "topology": {"broker": {"queues": {"configured": [QUEUE]}}},
        "workload": [{"queue": "q", "messages_per_producer": 10}],
        "contract": {"delivery_timeout_s": 0.5, "max_deliveries": 6},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def test_run_passes_with_status_0(scenario_file: Path, tmp_path: Path) -> None:
    done = CLI.invoke(app, ["run", str(scenario_file), "--out", str(tmp_path / "out"), "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "PASS" in done.output
    result = read_result(tmp_path / "out" / "result.json")
    assert result.command == f"assay faults run {scenario_file} --seed 3"
    assert (result.seed, result.world, result.target) == (3, "real", "reference")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["run", "no-such-scenario"], 2, "crash-restart"),
        (["run", "power-loss"], 2, "assay sim run"),
        (["run", "crash-restart", "--mutant", "no-such-mutant"], 2, "unknown mutant"),
        (["show", "no-such-scenario"], 2, "unknown scenario"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], status: int, text: str) -> None:
    done = CLI.invoke(app, arguments)
    assert done.exit_code == status
    assert text in done.output


def test_a_failing_harness_is_status_4(scenario_file: Path, tmp_path: Path) -> None:
    done = CLI.invoke(app, ["run", str(scenario_file), "--out", str(tmp_path / "out"), "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 4
    assert "ERROR" in done.output


def test_no_claim_is_status_1(scenario_file: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(scenario_file.read_text())
    data["topology"]["broker"]["queues"]["configured"][0]["max_message_bytes"] = 1
    scenario_file.write_text(yaml.safe_dump(data))
    done = CLI.invoke(app, ["run", str(scenario_file), "--attempts", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "UNKNOWN" in done.output


def test_list_and_show() -> None:
    listed = CLI.invoke(app, ["list"])
    assert listed.exit_code == 0
    assert "power-loss" in listed.output
    shown = CLI.invoke(app, ["show", "flaky-network"])
    assert shown.exit_code == 0
    assert parse_scenario(yaml.safe_load(shown.output)).name == "flaky-network"


@pytest.fixture
def proxy_process() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", "from assay.faults.cli import app; app()", "proxy", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_proxy_serves_until_it_is_told_to_end(proxy_process: subprocess.Popen[str]) -> None:
    assert proxy_process.stdout is not None
    line = proxy_process.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert address, line
    assert ToxiproxyClient(address.group()).version() == "2.12.0+assay"
    proxy_process.send_signal(signal.SIGTERM)
    assert proxy_process.wait(60) == 0


def test_a_run_that_saw_too_little_is_repeated_and_then_unknown(run: Callable[..., Any]) -> None:
    """One message after the other never shows an order; what was seen in all runs counts together."""
    few = {"messages_per_producer": 4}
    result, _ = run(scenario(enough={"order": 10**6}, workload=few), attempts=2)
    assert result.verdict is Verdict.UNKNOWN
    assert result.metrics["attempts"] == 2
    assert f"order had {result.metrics['chances_order']} of 1000000 chances" in result.summary
    result, _ = run(scenario(enough={"delivery_count": 1}, workload={"settlement": {"ack": 1, "nack": 1}}))
    assert result.verdict is Verdict.PASS
    assert result.metrics["attempts"] == 1


def test_chances_of_a_rule_that_nobody_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="enough for luck: chances are counted for order"):
        run_scenario(scenario(enough={"luck": 1}), RunOptions(out=tmp_path, seed=1))


def test_a_time_that_a_stalled_bench_measured_says_nothing(tmp_path: Path) -> None:
    stalls = iter([0.5])

    def stall(_phase: str, events: int) -> None:
        if events:
            time.sleep(next(stalls, 0.0))

    target = {"metric": "publish_gap_max_s", "bound": 0.001}
    wanted = scenario(workload={"messages_per_producer": 20}, targets=[target])
    result = run_scenario(wanted, RunOptions(out=tmp_path, seed=7, attempts=1), stall)
    assert result.verdict is Verdict.UNKNOWN
    assert "the bench itself was held up" in result.summary
    assert float(result.metrics["bench_stall_max_s"]) >= 0.25
