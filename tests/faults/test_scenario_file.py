"""The scenario file: what is wrong is named, and the scenarios that come with Assay are consistent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from narrow_pipe import output_of

from assay.faults.runner import check_runnable
from assay.faults.scenario import (
    Scenario,
    ScenarioError,
    ScenarioWorld,
    find_scenario,
    load_scenario,
    parse_scenario,
    shipped_scenarios,
)
from assay.faults.workload_kinds import (
    Absences,
    AmqpWorkload,
    Delaying,
    MqttWorkload,
    PassingGroup,
    QueueWorkload,
    Retained,
    Settlement,
    Transactions,
    Wills,
)
from assay.reference_broker.config import Durability, QueueConfig, parse_config, queue_defaults
from assay.reference_broker.trace.schema import AckedMeans

GOOD: dict[str, Any] = {"name": "x", "workload": [{"queue": "q"}], "contract": {"delivery_timeout_s": 1.0}}


def changed(**changes: Any) -> dict[str, Any]:
    return GOOD | changes


def workload(**changes: Any) -> dict[str, Any]:
    return changed(workload=[{"queue": "q"} | changes])


def fault(**changes: Any) -> dict[str, Any]:
    return changed(faults=[{"at_s": 1.0} | changes])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (changed(workload=[]), "workload: at least one"),
        (changed(workload=[{"queue": "q"}, {"queue": "q"}]), "a queue or topic space of its own"),
        (changed(topology={"nodes": ["a", "b"]}), "exactly one node"),
        (changed(worlds=[]), "worlds"),
        (changed(drain_timeout_s=1.5), "drain_timeout_s: must exceed the 2 s"),
        (changed(surprise=1), "surprise"),
        (workload(producers=0), r"workload\[0\].producers"),
        (workload(rate_per_s=0), r"workload\[0\].rate_per_s"),
        (workload(process_s=[2.0, 1.0]), r"workload\[0\].process_s"),
        (workload(groups=[]), r"workload\[0\].groups"),
        (workload(groups=["a", "a"]), r"workload\[0\].groups"),
        (workload(settlement={"ack": 0}), r"workload\[0\].settlement"),
        (workload(settlement={"ack": 2, "nack": -1}), r"workload\[0\].settlement"),
        (workload(queue="a/+/b"), r"workload\[0\].queue"),
        (workload(queue="a/$ack"), r"workload\[0\].queue"),
        (workload(payload_bytes=2_000_000), r"workload\[0\].payload_bytes"),
        (workload(messages_per_producer=100_000_000), r"workload\[0\].messages_per_producer"),
        (workload(keep_alive_s=0), r"workload\[0\].keep_alive_s"),
        (fault(kind="explode"), "kind"),
        (fault(kind="crash", at_s=-1), r"faults\[0\].at_s"),
        (fault(kind="crash", target="clients"), r"faults\[0\].target: crash takes broker"),
        (fault(kind="latency", for_s=1, target="nobody", latency_ms=5), r"faults\[0\].target: latency takes clients"),
        (fault(kind="crash", target="c0"), r"faults\[0\].target: crash takes broker, not 'c0'"),
        (fault(kind="latency", for_s=1, target="clients"), r"faults\[0\].latency_ms"),
        (fault(kind="latency", for_s=1, latency_ms=5, jitter_ms=6), r"faults\[0\].latency_ms"),
        (fault(kind="loss", for_s=1, rate=1.0), r"faults\[0\].rate: loss"),
        (fault(kind="bandwidth", for_s=1), r"faults\[0\].rate: bandwidth"),
        (fault(kind="partition"), r"faults\[0\].for_s: partition needs a duration"),
        (fault(kind="power_loss"), "power_loss can only be simulated"),
        (fault(kind="crash", call="sync"), "crash can only be simulated .*nth call"),
        (fault(kind="crash", nth=2), r"faults\[0\].nth, files: are of a call"),
        (fault(kind="crash", latency_ms=5), r"faults\[0\].latency_ms: crash does not take it"),
        (fault(kind="pause", for_s=1, factor=3), r"faults\[0\].factor: pause does not take it"),
        (fault(kind="reset", target="clients", direction="to_broker"), r"faults\[0\].direction: reset does not"),
        (fault(kind="latency", for_s=1, target="clients", latency_ms=5, direction="up"), "direction"),
        (fault(kind="sync_error"), r"faults\[0\].for_s: sync_error needs a duration"),
        (fault(kind="sync_error", for_s=1, nth=0), r"faults\[0\].nth: must be 1"),
        (fault(kind="write_error", for_s=1, files="photos"), "files"),
        (fault(kind="restart_storm", times=0), r"faults\[0\].times: must be 1"),
        (fault(kind="disk_full", for_s=1, free_bytes=-1), r"faults\[0\].free_bytes: must not be negative"),
        (fault(kind="slow_node", for_s=1), r"faults\[0\].factor: slow_node needs one above 1"),
        (fault(kind="clock_rate", for_s=1, factor=3), r"faults\[0\].factor: clock_rate needs one from 0.5 to 2"),
        (fault(kind="clock_jump"), r"faults\[0\].by_s: clock_jump needs seconds"),
        (fault(kind="lying_sync", for_s=1), "lying_sync can only be simulated"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        parse_scenario(data)


def test_several_problems_are_told_at_once() -> None:
    with pytest.raises(ScenarioError, match=r"producers.*keys"):
        parse_scenario(workload(producers=0, keys=0))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(tmp_path / "absent.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    with pytest.raises(ScenarioError, match="not YAML"):
        load_scenario(bad)
    with pytest.raises(ScenarioError, match="crash-restart"):
        find_scenario("no-such-scenario")


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_shipped_scenarios_agree_with_their_own_broker(name: str) -> None:
    """The contract must be one that the configured broker promises, else a finding would accuse the innocent."""
    scenario = find_scenario(name)
    assert scenario.name == name
    assert scenario.description
    config = parse_config({**scenario.topology.broker, "data_dir": "somewhere"})
    contract = scenario.contract
    for each in scenario.workload:
        if isinstance(each, MqttWorkload):
            assert (contract.acked_means is AckedMeans.DISK) == (config.sessions.durability is Durability.FSYNC)
            continue
        if isinstance(each, AmqpWorkload):
            durable = {config.sessions.durability, queue_defaults(config.queues, each.name).durability} == {
                Durability.FSYNC
            }
            assert (contract.acked_means is AckedMeans.DISK) == durable
            continue
        queue: QueueConfig = queue_defaults(config.queues, each.queue)
        assert contract.max_deliveries == queue.retry.max_retries + 1
        assert contract.delivery_timeout_s == queue.delivery_timeout_s
        assert contract.dead_letters == queue.dead_letters
        assert (contract.acked_means is AckedMeans.DISK) == (queue.durability is Durability.FSYNC)
        longest_silence_s = queue.delivery_timeout_s + queue.retry.max_backoff_s
        assert scenario.quiet_s > longest_silence_s, "silence must outlast any redelivery"


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_shipped_scenarios_run_where_they_say(name: str) -> None:
    scenario = find_scenario(name)
    assert (check_runnable(scenario) == []) == (ScenarioWorld.REAL in scenario.worlds)


def test_what_show_prints_can_be_read_again() -> None:
    scenario = find_scenario("crash-restart")
    assert parse_scenario(yaml.safe_load(yaml.safe_dump(msgspec.to_builtins(scenario)))) == scenario


def test_the_runner_refuses_what_it_cannot_do() -> None:
    scenario: Scenario = parse_scenario(
        changed(
            worlds=["sim"],
            targets=[{"metric": "happiness", "bound": 1}],
            topology={"broker": {"data_dir": "/elsewhere"}},
        )
    )
    problems = "\n".join(check_runnable(scenario))
    assert "assay sim run" in problems
    assert "happiness" in problems
    assert "data_dir" in problems


def test_the_scenarios_are_all_named_in_a_narrow_pipe() -> None:
    listed = output_of("faults", "list")
    assert "flaky-network" in listed
    assert "…" not in listed


def test_the_page_names_every_key_of_every_workload() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    parts = (QueueWorkload, MqttWorkload, Settlement, Absences, Transactions, Delaying, PassingGroup, Retained, Wills)
    absent = [
        f"{part.__name__}.{field.name}"
        for part in parts
        for field in msgspec.structs.fields(part)
        if not re.search(rf"\b{field.name}\b", page)
    ]
    assert absent == []


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"kind": "amqp", "queue": "q"}, "kind"),
        ({"queue": "q", "absences": {"take_over": 1}}, "absences.take_over"),
        ({"queue": "q", "absences": {"stay_s": [2, 1]}}, "absences.stay_s"),
        ({"queue": "q", "transactions": {"share": 2}}, "transactions.share"),
        ({"queue": "q", "transactions": {"messages": [0, 1]}}, "transactions.messages"),
        ({"queue": "q", "transactions": {"timeout_s": 100}}, "drain_quiet_s: must exceed the 100 s"),
        ({"queue": "q", "delays": {"delay_s": [0, 5_000]}}, "delays.delay_s"),
        ({"queue": "q", "priorities": {"urgent": 1}}, "priorities.urgent"),
        ({"queue": "q", "passing_groups": [{"name": "workers"}]}, "groups"),
        ({"queue": "q", "passing_groups": [{"name": "late", "at_s": -1}]}, r"passing_groups\[0\]"),
        ({"kind": "mqtt", "name": "a b"}, "name"),
        ({"kind": "mqtt", "name": "s", "sessions": 0, "clean_sessions": 0}, "sessions"),
        ({"kind": "mqtt", "name": "s", "protocol": "4"}, "protocol"),
        ({"kind": "mqtt", "name": "s", "qos": [0, 0, 0]}, "qos"),
        ({"kind": "mqtt", "name": "s", "retained": {"read_s": 0}}, "retained"),
        ({"kind": "mqtt", "name": "s", "protocol": "3.1.1", "wills": {"delay_s": [0, 1]}}, "wills.delay_s"),
    ],
)
def test_what_is_wrong_with_a_workload_is_named(entry: dict[str, Any], problem: str) -> None:
    data = {"name": "n", "workload": [entry], "drain_timeout_s": 60, "drain_quiet_s": 20}
    with pytest.raises(ScenarioError, match=problem):
        parse_scenario(data)
