"""The bench counts exactly, notices what goes missing, and judges ratios, absolute aims and the client's own limits."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from assay.cli import build_app
from assay.conformance.adapter import broker_config, reference_broker_endpoint
from assay.conformance.targets import RunningTarget, StartHook, Target, running
from assay.loadtests import null_broker
from assay.loadtests.bench import cases, fan_in, fan_out, open_loop, queue_flow, subscriptions
from assay.loadtests.bench import pump as pump_module
from assay.loadtests.bench.broker_process import BrokerProcess, process_cpu_s, process_tree
from assay.loadtests.bench.cases import PUB_SUB, Case, lines_of
from assay.loadtests.bench.figures import BenchRun, Reading
from assay.loadtests.bench.mqtt import WORKLOADS, run_bench
from assay.loadtests.bench.peers import KNOWN, Peer, mosquitto, peers, reference
from assay.loadtests.bench.pump import Stream
from assay.loadtests.bench.report import checks, notes, result, table
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, UnsupportedError
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.trace.results import RunKind, Verdict, read_result

PLAN = BenchPlan(rounds=1, messages=3_000)
SMALL = BenchPlan(rounds=1, messages=400, seconds=0.2, crowd=20, idle=30, filters=1_000, window=100)
STALL_TIMEOUT_S = 0.3


def _measure(broker: RunningTarget, case: Case, plan: BenchPlan) -> list[Figure]:
    with WORKLOADS[case](broker.endpoint, plan, BrokerProcess(broker.pid)) as workload:
        workload.prepare()
        return [figure for number in range(workload.measurements) for figure in workload.measure(number)]


@pytest.mark.parametrize(("mode", "wanted"), [("pipe", PUB_SUB), ("relay", (*PUB_SUB, Case.QUEUE, Case.QUEUE_KEYED))])
def test_every_message_goes_all_the_way(mode: str, wanted: tuple[Case, ...]) -> None:
    with running(null_broker.target("--mode", mode)) as broker:
        for case in wanted:
            (figure,) = _measure(broker, case, PLAN)
            assert (figure.line, figure.count) == (case.replace("-", "_"), 3_000)
            assert figure.value is not None
            assert figure.value > 0
            assert figure.client_load is not None
            assert figure.client_load > 0


@pytest.fixture(scope="module")
def reference_process() -> Iterator[RunningTarget]:
    with running(reference().target) as broker:
        yield broker


@pytest.mark.parametrize("case", cases.COMPARED)
def test_every_case_yields_its_lines(case: Case, reference_process: RunningTarget) -> None:
    figures = _measure(reference_process, case, SMALL)
    expected = [line.name for line in lines_of(case) if line.name != "filters_100000"]
    assert sorted(figure.line for figure in figures) == sorted(expected)
    for figure in figures:
        assert figure.value is not None
        assert figure.count > 0
        assert figure.value > 0 or case is Case.IDLE  # memory comes in pages, and thirty connections may fit into one


def test_fan_out_counts_every_delivery(reference_process: RunningTarget) -> None:
    plain, confirmed, single = _measure(reference_process, Case.FAN_OUT, SMALL)
    assert (plain.count, confirmed.count, single.count) == (400 * 20, 400 * 20, 400 * 20)


def test_a_lower_qos_than_asked_for_is_unsupported() -> None:
    lesser = msgspec.structs.replace(
        broker_config(None, 0), mqtt=msgspec.structs.replace(BrokerConfig().mqtt, maximum_qos=0)
    )
    with reference_broker_endpoint(config=lesser) as endpoint:
        for case in (Case.QOS_1, Case.FAN_OUT, Case.FAN_IN, Case.OPEN_LOOP):
            with pytest.raises(UnsupportedError, match="QoS 1 is granted as 0"):
                _measure(RunningTarget(Target(name="lesser"), endpoint), case, SMALL)


@pytest.mark.parametrize("fault", ["--lose-every", "--duplicate-every", "--swap-every"])
def test_a_figure_of_a_broker_that_loses_repeats_or_swaps_is_void(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pump_module, queue_flow, fan_out, fan_in, open_loop):
        monkeypatch.setattr(module, "STALL_TIMEOUT_S", STALL_TIMEOUT_S)
    plan = msgspec.structs.replace(SMALL, messages=3_000)
    text = r"sequence|nothing arrived|missing|twice|something else|more (messages|than)"
    with running(null_broker.target(fault, "500")) as broker:
        for case in (
            *PUB_SUB,
            Case.MIXED,
            Case.FAN_OUT,
            Case.FAN_IN,
            Case.OPEN_LOOP,
            *([Case.QUEUE] if "swap" not in fault else []),
        ):
            with pytest.raises(BenchError, match=text):
                _measure(broker, case, plan)


@pytest.fixture
def spread() -> Iterator[tuple[subscriptions._Spread, subscriptions._Mix, list[socket.socket]]]:
    """A measurement between sockets whose other ends the test holds."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(subscriptions.RECEIVERS + 1)]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        mix = subscriptions._Mix(7, 100, None)
        streams = [Stream(ours) for ours, _ in pairs]
        yield subscriptions._Spread(streams[0], streams[1:], mix, 50, None), mix, [theirs for _, theirs in pairs[1:]]


@pytest.mark.parametrize("fault", ["none", "lost", "repeated", "foreign", "altered"])
def test_receivers_get_what_their_filters_match_and_nothing_else(
    fault: str,
    spread: tuple[subscriptions._Spread, subscriptions._Mix, list[socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "STALL_TIMEOUT_S", STALL_TIMEOUT_S)
    run, mix, ends = spread
    for receiver, end in enumerate(ends):
        due = mix.due(receiver, 0, 39)
        if receiver == 4 and fault != "none":
            changed = {
                "lost": np.delete(due, 1),
                "repeated": np.insert(due, 1, due[0]),
                "foreign": np.arange(0, int(due[-1]) + 1),
                "altered": due,
            }
            due = changed[fault]
        data = mix.frames(due).tobytes()
        if receiver == 4 and fault == "altered":
            data = data[:-1] + b"!"
        end.sendall(data)
    if fault == "none":
        assert run.run(messages=40) == 40
    else:
        with pytest.raises(BenchError, match="got other"):
            run.run(messages=40)


def test_every_message_matches_three_receivers_and_topics_stay_in_their_group() -> None:
    for groups, cold in ((3, None), (333, None), (33_333, 5_000)):
        mix = subscriptions._Mix(groups, 100, cold)
        numbers = np.arange(2_500)
        takers = np.concatenate([mix.due(receiver, 0, 2_499) for receiver in range(subscriptions.RECEIVERS)])
        assert np.bincount(takers).tolist() == [3] * 2_500
        raw = [bytes(frame)[4:] for frame in mix.frames(numbers)]
        topics = {bytes(frame[: len(subscriptions._TOPIC)]).decode() for frame in raw}
        assert len(topics) == (2_500 if cold else subscriptions.TOPICS)
        assert all(re.fullmatch(r"s/\d\d/\d{6}/\d{9}", topic) for topic in topics)
        areas = {topic.split("/")[2]: topic.split("/")[1] for topic in topics}
        assert all(int(group) % subscriptions.AREAS == int(area) for group, area in areas.items())


def test_rounds_are_interleaved_and_absent_peers_noted() -> None:
    relay = Peer(name="relay", target=null_broker.target("--mode", "relay"))
    absent = Peer(name="absent", target=relay.target, missing="not installed")
    nowhere = Target(name="nowhere", start=StartHook(command=("no-such-broker",), advice="get it"))
    plan = BenchPlan(rounds=2, messages=200, cases=(Case.QOS_0, Case.QOS_1))
    bench = run_bench([relay, absent, Peer(name="nowhere", target=nowhere, optional=True)], plan)
    order = [(reading.figure.line, reading.round, reading.peer) for reading in bench.readings]
    brokers = [(0, "relay"), (0, "null"), (1, "relay")]  # the null broker shows the ceiling once
    assert order == [(case, n, peer) for case in plan.cases for n, peer in brokers]
    assert bench.peers == ["relay"]
    assert bench.skipped["absent"] == "not installed"
    assert bench.skipped["nowhere"].endswith("; get it")
    assert bench.median("absent", "qos0") is None


def test_a_peer_that_fails_leaves_the_case_with_its_reason_and_the_first_voids_the_run() -> None:
    good = Peer(name="good", target=null_broker.target())
    bad = Peer(name="bad", target=null_broker.target("--duplicate-every", "50"))
    plan = BenchPlan(rounds=2, messages=500, cases=(Case.QOS_0,))
    bench = run_bench([good, bad], plan)
    assert len(bench.values("good", "qos0")) == 2
    assert bench.values("bad", "qos0") == []
    assert bench.note("bad", "qos0").startswith("failed: ")
    assert checks(bench) == {}
    with pytest.raises(BenchError, match="bad, qos0"):
        run_bench([bad, good], plan)


def _reading(peer: str, line: str, value: float, *, load: float = 0.6, number: int = 0, note: str = "") -> Reading:
    figure = Figure(line=line, value=value, count=int(value), client_load=load, broker_cpu_s=1.0, note=note)
    return Reading(peer=peer, round=number, figure=figure)


def _run(*readings: Reading) -> BenchRun:
    bench = BenchRun(plan=BenchPlan())
    bench.versions = dict.fromkeys(
        [*dict.fromkeys(reading.peer for reading in readings if reading.peer != "null"), "null"], "1"
    )
    bench.readings = list(readings)
    return bench


def test_ratios_are_judged_unless_the_client_was_the_limit() -> None:
    bench = _run(
        *(_reading("a", "qos0", rate) for rate in (100.0, 900.0, 300.0)),
        _reading("mosquitto", "qos0", 50.0, load=0.2),
        _reading("null", "qos0", 400.0),
        _reading("a", "qos2", 50.0, load=0.1),
        _reading("mosquitto", "qos2", 25.0, load=0.1),
        _reading("a", "qos1", 50.0, load=0.7),  # 55 / 50 is too near to the client's ceiling; 50 / 0.7 might be enough
        _reading("mosquitto", "qos1", 14.0, load=0.1),
        _reading("null", "qos1", 55.0),
    )
    assert bench.median("a", "qos0") == 300.0
    assert bench.per_cpu_second("a", "qos0") == pytest.approx(1_300 / 3)
    found = {line: [check.verdict for check in group] for (line, _), group in checks(bench).items()}
    assert found == {"qos0": [Verdict.PASS], "qos1": [Verdict.UNKNOWN], "qos2": [Verdict.FAIL]}
    said = result(bench, name="bench mqtt", command="c")
    assert (said.kind, said.verdict, said.target) == (RunKind.BENCH, Verdict.FAIL, "a, mosquitto")
    assert said.metrics["a.qos0.messages_per_s"] == 300.0
    assert said.metrics["mosquitto.qos0.ratio"] == 6.0


def test_a_peer_whose_client_was_the_limit_is_not_beaten() -> None:
    bench = _run(
        _reading("a", "fan_in_qos0", 90.0, load=0.95),
        _reading("nats", "fan_in_qos0", 88.0, load=0.95),  # might be 88 / 0.95, which is more than 90
        _reading("amqtt", "fan_in_qos0", 80.0, load=0.2),
        _reading("mosquitto", "fan_in_qos0", 60.0, load=0.7),  # at most 60 / 0.7, which is less than 90
    )
    found = {peer: check.verdict for (_, peer), (check,) in checks(bench).items()}
    assert found == {"nats": Verdict.UNKNOWN, "amqtt": Verdict.PASS, "mosquitto": Verdict.PASS}


def test_lower_is_better_for_latency_and_memory() -> None:
    line = "open_loop_qos1_p99"
    bench = _run(
        _reading("a", line, 2.0),
        _reading("mosquitto", line, 3.0),
        _reading("nats", line, 1.0),
        _reading("a", "idle", 21.0),
    )
    judged = checks(bench)
    (latency,) = judged[line, "mosquitto"]
    assert (latency.value, latency.verdict) == (1.5, Verdict.PASS)
    assert (line, "nats") not in judged, "p99 is aimed at against Mosquitto alone"
    (memory,) = judged["idle", "a"]
    assert (memory.relation, memory.bound, memory.verdict) == ("<=", 20.0, Verdict.FAIL)
    late = _run(_reading("a", line, 4.0, note="the client itself was late"), _reading("mosquitto", line, 3.0))
    assert checks(late)[line, "mosquitto"][0].verdict is Verdict.UNKNOWN


def test_flat_cost_compares_what_a_second_of_the_broker_moves() -> None:
    bench = _run(_reading("a", "filters_10", 100.0), _reading("a", "filters_100000", 79.0))
    (flat,) = checks(bench)["filters_100000", "a"]
    assert flat.value == pytest.approx(0.79)
    assert flat.verdict is Verdict.FAIL


def test_every_line_says_what_it_is() -> None:
    assert len({line.name for line in cases.LINES}) == len(cases.LINES)
    assert {line.case for line in cases.LINES} == set(Case) == set(WORKLOADS)
    for line in cases.LINES:
        for aim in line.aims:
            assert sum((bool(aim.times), aim.at_least is not None, aim.at_most is not None)) == 1
            assert not aim.share_of or aim.share_of in {other.name for other in cases.LINES}
        assert "." not in line.name, "metrics are split at dots"


def test_the_table_shows_medians_ratios_aims_and_reasons() -> None:
    bench = _run(
        _reading("a", "qos0", 9_000.0, load=0.1),
        _reading("mosquitto", "qos0", 1_000.0, load=0.1),
        Reading(peer="nats", round=0, figure=Figure(line="qos0", value=None, note="unsupported: QoS 0")),
    )
    console = Console(width=140, file=StringIO(), record=True)
    console.print(table(bench))
    text = console.export_text()
    assert "9.00x" in text
    assert "met >= 5x" in text
    assert "unsupported" in text
    assert notes(bench) == ["nats unsupported: QoS 0 (1 -> 1, QoS 0)"]


def test_processor_time_and_memory_of_the_whole_broker_are_counted() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        both = process_tree(parent.pid)
        assert len(both) == 2
        broker = BrokerProcess(parent.pid)
        assert (broker.cpu_s() or 0) == pytest.approx(sum(process_cpu_s(pid) or 0 for pid in both), abs=0.05)
        assert (broker.memory_bytes() or 0) > 2_000_000
        broker.settle(5.0)
        parent.communicate(b"\n")
    assert process_cpu_s(None) is None
    assert BrokerProcess(None).memory_bytes() is None
    assert (process_cpu_s(os.getpid()) or 0) > 0


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not on the PATH")
def test_reference_and_mosquitto_lose_nothing() -> None:
    plan = msgspec.structs.replace(SMALL, cases=cases.COMPARED)
    bench = run_bench([reference(), mosquitto()], plan)
    assert bench.peers == ["reference", "mosquitto"]
    for line in bench.lines:
        assert bench.values("mosquitto", line.name), bench.note("mosquitto", line.name)
        assert line.case is Case.IDLE or bench.advantage(line, "reference", "mosquitto") is not None


def test_the_command_writes_results_and_takes_selections(tmp_path: Path) -> None:
    app = build_app("bench")
    arguments = ["bench", "mqtt", "--rounds", "1", "--messages", "500", "--case", "qos0", "--peer", "reference"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "QoS 0" in done.output
    assert read_result(tmp_path / "result.json").kind is RunKind.BENCH
    assert CliRunner().invoke(app, [*arguments[:-1], "nonsense"]).exit_code == 2
    refused = CliRunner().invoke(app, [*arguments, "--case", "queue"])
    assert (refused.exit_code, "assay bench queue" in refused.output) == (2, True)


def test_the_queue_command_measures_the_engine_and_the_sockets(tmp_path: Path) -> None:
    done = CliRunner().invoke(build_app("bench"), ["bench", "queue", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    engine = read_result(tmp_path / "engine" / "result.json")
    assert float(engine.metrics["enqueue_batch.messages_per_s"]) > 0
    assert not engine.checks
    sockets = read_result(tmp_path / "sockets" / "result.json")
    for durability in ("interval", "fsync", "memory"):
        assert float(sockets.metrics[f"reference/{durability}.queue.messages_per_s"]) > 0
        assert float(sockets.metrics[f"reference/{durability}.queue_keyed.messages_per_s"]) > 0
    skipped = shutil.which("rabbitmq-server") is None
    assert ("rabbitmq.skipped" in sockets.metrics) == skipped
    assert skipped or float(sockets.metrics["rabbitmq.queue.messages_per_s"]) > 0


def test_peers_take_target_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('schema = "assay.target/1"\nname = "mine"\n')
    assert [peer.name for peer in peers(["reference", str(path)])] == ["reference", "mine"]


def test_known_peers_are_tuned_versions_of_the_shipped_targets() -> None:
    by_name = {peer.name: peer for peer in peers(list(KNOWN))}
    assert list(by_name) == ["reference", "mosquitto", "nats", "rabbitmq", "amqtt"]
    for name, file, setting in (
        ("nats", "nats.conf", "consumer_memory_storage: true"),
        ("rabbitmq", "rabbitmq.conf", "mqtt.prefetch = 65535"),
        ("mosquitto", "mosquitto.conf", "persistence false"),
    ):
        hook = by_name[name].target.start
        assert hook is not None
        assert setting in hook.files[file]
