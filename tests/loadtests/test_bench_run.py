"""The bench counts exactly, notices what goes missing, and judges ratios and headroom."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from conformance.targets import running
from loadtests import null_broker
from loadtests.bench import pump as pump_module
from loadtests.bench import queue as queue_module
from loadtests.bench.broker_cpu import process_cpu_s
from loadtests.bench.mqtt import PUB_SUB, BenchPlan, BenchRun, Case, Measurement, measure, run_bench
from loadtests.bench.peers import Peer, mosquitto, peers, reference
from loadtests.bench.pump import BenchError, Throughput
from loadtests.bench.report import checks, result
from reference_broker.trace.results import RunKind, Verdict, read_result

PLAN = BenchPlan(rounds=1, messages=3_000)


def _measured(peer: str, case: Case, rate: float, client_load: float = 0.6) -> Measurement:
    throughput = Throughput(qos=case.qos, messages=int(rate), duration_s=1.0, client_cpu_s=client_load)
    return Measurement(peer=peer, case=case, round=0, throughput=throughput)


@pytest.mark.parametrize(("mode", "cases"), [("pipe", PUB_SUB), ("relay", (*PUB_SUB, Case.QUEUE))])
def test_every_message_goes_all_the_way(mode: str, cases: tuple[Case, ...]) -> None:
    with running(null_broker.target("--mode", mode)) as broker:
        for case in cases:
            throughput = measure(broker.endpoint, case, PLAN, label=case)
            assert throughput.messages == 3_000
            assert throughput.rate_per_s > 0
            assert throughput.client_cpu_s > 0


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("--lose-every", r"out of sequence|nothing arrived|something is missing"),
        ("--duplicate-every", r"out of sequence|twice"),
    ],
)
def test_a_figure_of_a_broker_that_loses_or_repeats_is_void(
    fault: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "STALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(queue_module, "STALL_TIMEOUT_S", 0.3)
    with running(null_broker.target(fault, "500")) as broker:
        for case in (*PUB_SUB, Case.QUEUE):
            with pytest.raises(BenchError, match=text):
                measure(broker.endpoint, case, PLAN, label=case)


def test_rounds_are_interleaved_and_absent_peers_noted() -> None:
    relay = Peer(name="relay", target=null_broker.target("--mode", "relay"))
    absent = Peer(name="absent", target=relay.target, missing="not installed")
    plan = BenchPlan(rounds=2, messages=200, cases=(Case.QOS_0, Case.QOS_1))
    bench = run_bench([relay, absent], plan)
    order = [(m.round, m.case, m.peer) for m in bench.measurements]
    assert order == [(n, case, peer) for n in (0, 1) for case in plan.cases for peer in ("relay", "null")]
    assert bench.peers == ["relay"]
    assert bench.skipped == {"absent": "not installed"}
    assert bench.median_per_s("absent", Case.QOS_0) is None


def test_medians_ratios_and_headroom_decide() -> None:
    bench = BenchRun(plan=BenchPlan(rounds=3, cases=(Case.QOS_0, Case.QOS_2)))
    bench.versions = {"a": "1", "b": "2", "null": "null"}
    for rate in (100.0, 900.0, 300.0):
        bench.measurements.append(_measured("a", Case.QOS_0, rate))
    bench.measurements += [_measured("b", Case.QOS_0, 100.0), _measured("null", Case.QOS_0, 400.0)]
    bench.measurements += [_measured(name, Case.QOS_2, 50.0, client_load=0.1) for name in ("a", "b", "null")]
    assert bench.median_per_s("a", Case.QOS_0) == 300.0
    assert bench.ratio("a", "b", Case.QOS_0) == 3.0
    verdicts = {check.name: check.verdict for check in checks(bench, aim=3.5)}
    assert verdicts == {
        "client headroom, QoS 0": Verdict.UNKNOWN,  # 400 / 300 is too near to the client's ceiling
        "client headroom, QoS 2": Verdict.PASS,  # the client was idle most of the time
        "a / b, QoS 0": Verdict.FAIL,  # the aim is for QoS 0 and 1 only
    }
    found = result(bench, command="c", aim=3.0)
    assert (found.kind, found.verdict) == (RunKind.BENCH, Verdict.UNKNOWN)
    assert found.metrics["a.qos0.messages_per_s"] == 300.0
    assert found.target == "a, b"


def test_processor_time_of_the_broker_is_counted() -> None:
    bench = run_bench([Peer(name="relay", target=null_broker.target())], BenchPlan(messages=20_000, rounds=2))
    measured = [m.throughput for m in bench.measurements if m.peer == "relay"]
    assert all(found.broker_cpu_s is not None and found.broker_cpu_s <= found.duration_s + 0.1 for found in measured)
    per_cpu_s = bench.per_cpu_second("relay", Case.QOS_2)
    assert per_cpu_s is not None
    assert per_cpu_s >= min(bench.rates_per_s("relay", Case.QOS_2)) * 0.5
    assert process_cpu_s(None) is None
    assert (process_cpu_s(os.getpid()) or 0) > 0


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on the PATH")
def test_reference_and_mosquitto_lose_nothing() -> None:
    bench = run_bench([reference(), mosquitto()], BenchPlan(rounds=1, messages=5_000))
    assert bench.peers == ["reference", "mosquitto"]
    assert {m.throughput.messages for m in bench.measurements} == {5_000}
    assert bench.ratio("reference", "mosquitto", Case.QOS_0) is not None


def test_the_command_writes_results_and_exits_by_the_aim(tmp_path: Path) -> None:
    app = build_app("bench")
    arguments = ["bench", "mqtt", "--rounds", "1", "--messages", "500", "--qos", "0", "--peer", "reference"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "QoS 0" in done.output
    assert "$ack" in done.output
    assert read_result(tmp_path / "pubsub" / "result.json").kind is RunKind.BENCH
    queue = read_result(tmp_path / "queue" / "result.json")
    assert float(queue.metrics["reference/fsync.queue.messages_per_s"]) > 0
    assert CliRunner().invoke(app, [*arguments[:-1], "nonsense"]).exit_code == 2


def test_peers_take_target_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = "assay.target/1"\nname = "mine"\n')
    assert [peer.name for peer in peers(["reference", str(path)])] == ["reference", "mine"]
