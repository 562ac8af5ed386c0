"""Drawn schedules: legal, as their tables say, the same for the same number, and aimed where they say."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import msgspec
import pytest

from assay.faults.scenario import (
    Fault,
    FaultKind,
    MqttWorkload,
    Scenario,
    ScenarioWorld,
    find_scenario,
    names_a_client,
    parse_scenario,
    shipped_scenarios,
)
from assay.faults.workload import client_names
from assay.reference_broker.config import parse_config
from assay.reference_broker.trace.file_kinds import FileKind
from assay.reference_broker.trace.schema import AckedMeans, HistoryEvent, OrderGuarantee
from assay.sim.hunt.explore import run_schedule
from assay.sim.hunt.fault_draws import FAULT_DRAWS
from assay.sim.hunt.option_draws import OPTION_DRAWS, with_options
from assay.sim.hunt.schedule import FAMILY, Moment, Schedule, aimed, drawn_blindly, moment_of
from assay.sim.hunt.workload_kinds import lasts_s

FAMILIES = range(1, 200 * FAMILY, FAMILY)


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    scenario = find_scenario("crash-restart")
    return [drawn_blindly(scenario, number) for number in FAMILIES]


def test_every_kind_of_fault_has_a_row() -> None:
    assert sorted(FAULT_DRAWS) == sorted(FaultKind)


@pytest.mark.parametrize("name", shipped_scenarios())
def test_drawn_schedules_are_scenarios(name: str) -> None:
    scenario = find_scenario(name)
    for number in FAMILIES[:60]:
        drawn = drawn_blindly(scenario, number).scenario
        assert parse_scenario(msgspec.to_builtins(drawn)) == msgspec.convert(msgspec.to_builtins(drawn), Scenario)
        parse_config({**drawn.topology.broker, "data_dir": "somewhere"})
        assert ScenarioWorld.SIM in drawn.worlds


def test_the_number_decides(schedules: list[Schedule]) -> None:
    scenario = find_scenario("crash-restart")
    again = [drawn_blindly(scenario, number) for number in FAMILIES[:20]]
    assert again == schedules[:20]
    assert len({msgspec.json.encode(schedule.scenario.faults) for schedule in schedules}) == len(schedules)


def test_every_kind_and_option_is_drawn_and_no_schedule_has_all(schedules: list[Schedule]) -> None:
    drawn = Counter(kind for schedule in schedules for kind in {fault.kind for fault in schedule.scenario.faults})
    mqtt = [drawn_blindly(find_scenario("mqtt-sessions"), number) for number in FAMILIES[:60]]
    options = Counter(option for schedule in [*schedules, *mqtt] for option in schedule.options)
    for kind in FaultKind:
        assert 0.01 * len(schedules) < drawn[kind] < 0.8 * len(schedules), kind
    assert set(options) == set(OPTION_DRAWS)
    assert max(len(schedule.options) for schedule in schedules) < len(OPTION_DRAWS) / 2 + 5


def test_some_starts_run_into_a_disk_that_refuses(schedules: list[Schedule]) -> None:
    ends = FAULT_DRAWS[FaultKind.CRASH].apart_from
    errors = {FaultKind.WRITE_ERROR, FaultKind.READ_ERROR, FaultKind.SYNC_ERROR, FaultKind.DISK_FULL}
    ill = [
        schedule
        for schedule in schedules
        if any(
            end.kind in ends and error.kind in errors and error.at_s < end.at_s + end.for_s < error.at_s + error.for_s
            for end in schedule.scenario.faults
            for error in schedule.scenario.faults
        )
    ]
    assert 0.1 * len(schedules) < len(ill) < 0.6 * len(schedules)


def test_errors_of_the_disk_are_shown_by_an_end_while_nobody_reads(schedules: list[Schedule]) -> None:
    """What a failed sync took shows only when power fails, and only of messages that nobody had got before."""
    shown = [
        schedule
        for schedule in schedules
        for error in schedule.scenario.faults
        for end in schedule.scenario.faults
        for away in schedule.scenario.faults
        if error.kind is FaultKind.SYNC_ERROR
        and end.kind is FAULT_DRAWS[error.kind].shown_by
        and away.kind is FaultKind.PARTITION
        and away.target == "consumers"
        and max(away.at_s, error.at_s) < end.at_s <= min(away.ends_s, error.ends_s + 0.2)
    ]
    assert len(shown) >= 3


def test_one_client_alone_is_hit_now_and_then(schedules: list[Schedule]) -> None:
    alone = [
        (fault.target, schedule.scenario)
        for schedule in schedules
        for fault in schedule.scenario.faults
        if names_a_client(fault)
    ]
    assert len(alone) > 0.1 * len(schedules)
    assert {name[0] for name, _ in alone} == {"p", "c", "d"}
    assert all(name in client_names(scenario) for name, scenario in alone)


def test_a_fault_of_the_file_for_a_client_that_options_took_away_is_left_out() -> None:
    scenario = find_scenario("crash-restart")
    last = Fault(at_s=0.1, kind=FaultKind.RESET, target="c3")
    drawn = [drawn_blindly(msgspec.structs.replace(scenario, faults=(last,)), number) for number in FAMILIES]
    kept = [last in each.scenario.faults for each in drawn if each.options.get("consumers") != 1]
    assert any(kept)
    gone = [each.scenario.faults for each in drawn if each.options.get("consumers") == 1]
    assert gone
    assert not any(fault.target == "c3" for faults in gone for fault in faults)


def test_faults_keep_apart_and_heal(schedules: list[Schedule]) -> None:
    for schedule in schedules:
        scenario = schedule.scenario
        assert scenario.faults
        assert scenario.faults_end_s <= lasts_s(scenario.workload) + 2.5
        for one, other in combinations(scenario.faults, 2):
            at_once = one.at_s <= other.at_s + other.for_s and other.at_s <= one.at_s + one.for_s
            if at_once and one.target == other.target:
                assert other.kind not in FAULT_DRAWS[one.kind].apart_from
        for kind, count in Counter(fault.kind for fault in scenario.faults).items():
            assert count <= FAULT_DRAWS[kind].most + 1  # a restart may come last


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("crash-restart", {FileKind.SEGMENTS, FileKind.GROUPS, FileKind.OTHERS}),
        ("amqp", {FileKind.SEGMENTS, FileKind.GROUPS, FileKind.OTHERS, FileKind.SESSIONS}),
        ("mqtt-sessions", {FileKind.SESSIONS}),
    ],
)
def test_faults_of_the_disk_hit_files_that_the_broker_writes(name: str, written: set[FileKind]) -> None:
    scenario = find_scenario(name)
    drawn = {fault.files for number in FAMILIES for fault in drawn_blindly(scenario, number).scenario.faults}
    assert drawn == written | {FileKind.ALL}


def test_the_drain_outlasts_clocks_that_are_set_back_under_delayed_messages() -> None:
    """Swarm seed 200029 of delays-priorities: by a clock that was set back by a minute they were due a minute later."""
    scenario = find_scenario("delays-priorities")
    drawn = [drawn_blindly(scenario, number).scenario for number in FAMILIES]
    assert min(fault.by_s for each in drawn for fault in each.faults) == -60.0
    for each in drawn:
        back_s = sum(max(0.0, -fault.by_s) for fault in each.faults)
        assert each.quiet_s > 1.0 + back_s


def test_what_aims_hits(schedules: list[Schedule]) -> None:
    """The run is the same up to the added fault, so the fault is where it aims in the second run, too."""
    blind = schedules[0]
    _, events = run_schedule(blind)
    hit = 0
    for number in range(blind.number + 1, blind.number + FAMILY):
        schedule = aimed(blind, number, events)
        added = [fault for fault in schedule.scenario.faults if fault not in blind.scenario.faults]
        first_s = min((fault.at_s for fault in added), default=0.0)
        # The drain begins with the end of the faults.
        if (
            not added
            or first_s > blind.scenario.faults_end_s
            or any(fault.at_s < first_s for fault in blind.scenario.faults if fault not in schedule.scenario.faults)
        ):
            continue
        before = [event for event in events if event.time_ns < (first_s - 1e-6) * 1e9]
        _, later = run_schedule(schedule)
        assert later[: len(before)] == before
        assert any(abs(event.time_ns / 1e9 - first_s) <= 0.0501 for event in events)
        hit += 1
        if hit == 3:
            return
    pytest.fail(f"only {hit} of a family aimed")


def test_a_revoked_partition_waits_no_longer_than_the_contract_says() -> None:
    """What its consumer has not settled then is taken back: found as a delivery to two consumers (number 1051)."""
    scenario = find_scenario("crash-restart")
    options = {"protocol": "cooperative", "rebalance_timeout": 0.4, "delivery_timeout": 1.5}
    assert with_options(scenario, options).contract.delivery_timeout_s == 0.4
    eager = with_options(scenario, {**options, "protocol": "eager"})
    assert eager.contract.delivery_timeout_s == 1.5


@pytest.mark.parametrize(
    ("durability", "means"), [("fsync", AckedMeans.DISK), ("interval", AckedMeans.OS), ("memory", AckedMeans.MEMORY)]
)
def test_the_contract_of_sessions_follows_from_what_is_drawn(durability: str, means: AckedMeans) -> None:
    scenario = find_scenario("mqtt-sessions")
    changed = with_options(scenario, {"session_durability": durability, "mqtt_protocol": "3.1.1", "keep_alive": 4})
    assert changed.contract.acked_means is means
    (workload,) = changed.workload
    assert isinstance(workload, MqttWorkload)
    assert workload.wills is not None
    assert workload.wills.delay_s == (0, 0)
    assert changed.quiet_s > workload.longest_wait_s
    over_amqp = with_options(find_scenario("amqp"), {"session_durability": durability})
    assert over_amqp.contract.acked_means is means, "exchanges and bindings are in the log of the sessions"


@pytest.mark.parametrize(
    ("durability", "means"), [("fsync", AckedMeans.DISK), ("interval", AckedMeans.OS), ("memory", AckedMeans.MEMORY)]
)
def test_the_contract_follows_from_what_is_drawn(durability: str, means: AckedMeans) -> None:
    scenario = find_scenario("crash-restart")
    changed = with_options(scenario, {"durability": durability, "max_retries": 7, "ordering": "none"})
    assert changed.contract.acked_means is means
    assert changed.contract.max_deliveries == 8
    assert with_options(scenario, {"ordering": "strict"}).contract.lane_shares == "", "Q-PRIO-11"
    assert changed.contract.order is OrderGuarantee.NONE
    assert changed.quiet_s > changed.contract.delivery_timeout_s
    assert with_options(scenario, {}).contract == scenario.contract


@pytest.mark.parametrize(
    ("fields", "moment"),
    [
        ({"f": "deliver", "type": "ok", "queue": "q"}, Moment.DELIVERY),
        ({"f": "deliver", "type": "ok", "queue": "q", "redelivered": True}, Moment.REDELIVERY),
        ({"f": "deliver", "type": "ok", "queue": "$dlq/q", "redelivered": True}, Moment.DEAD_LETTER),
        ({"f": "ack", "type": "invoke"}, Moment.SETTLEMENT),
        ({"f": "nack", "type": "invoke"}, Moment.REFUSAL),
        ({"f": "reject", "type": "invoke"}, Moment.REFUSAL),
        ({"f": "reject", "type": "ok"}, Moment.SETTLED),
        ({"f": "fault", "type": "invoke", "detail": "crash broker"}, Moment.FAULT),
        ({"f": "fault", "type": "ok", "detail": "crash broker"}, Moment.START),
        ({"f": "fault", "type": "ok", "detail": "pause broker"}, Moment.FAULT),
        ({"f": "drain", "type": "ok"}, None),
    ],
)
def test_what_is_rare_is_a_moment_of_its_own(fields: dict[str, object], moment: Moment | None) -> None:
    """Moments are drawn alike, however often each comes."""
    event = msgspec.convert({"index": 0, "time_ns": 0, "process": "c0", **fields}, HistoryEvent)
    assert moment_of(event) is moment


def test_errors_come_soon_after_starts_and_take_one_of_the_first_calls(schedules: list[Schedule]) -> None:
    """What a broker has in memory otherwise it reads then: these reads are the only ones there are."""
    ends = FAULT_DRAWS[FaultKind.CRASH].apart_from
    soon = [
        error
        for schedule in schedules
        for error in schedule.scenario.faults
        if error.kind is FaultKind.READ_ERROR and error.nth <= 4
        if any(end.kind in ends and 0 < error.at_s - end.at_s - end.for_s < 0.02 for end in schedule.scenario.faults)
    ]
    assert len(soon) > 0.01 * len(schedules)
