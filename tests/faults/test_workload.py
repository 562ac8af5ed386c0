"""The workload clients, in virtual time against a small broker: what they write into the history is the truth."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Connack, Publish, encode
from assay.faults.workload import HistoryRecorder, PayloadError, decode_payload, encode_payload, intended_ns
from assay.faults.workload.client import Timing
from assay.faults.workload.mqtt_client import MqttClient
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

NAMES = st.text(alphabet="abcdefgh0123456789./", min_size=1, max_size=12)
SETTLEMENTS = (OpKind.ACK, OpKind.NACK, OpKind.REJECT)
COMPLETIONS = (OpType.OK, OpType.FAIL, OpType.INFO)
OPERATIONS = (OpKind.CONNECT, OpKind.SUBSCRIBE, OpKind.PUBLISH, OpKind.ACK, OpKind.NACK, OpKind.REJECT)


def assert_well_formed(events: list[HistoryEvent]) -> None:
    """The rules of the schema that hold for every history."""
    assert [event.index for event in events] == list(range(len(events)))
    times = [event.time_ns for event in events]
    assert times == sorted(times)
    invoked = {event.index: event for event in events if event.type is OpType.INVOKE}
    completed = Counter(event.op for event in events if event.f in OPERATIONS and event.type is not OpType.INVOKE)
    assert completed == Counter(invoked.keys()), "each invocation has exactly one completion"
    for event in events:
        if event.f in OPERATIONS and event.type is not OpType.INVOKE:
            first = invoked[event.op]
            same = (first.f, first.process, first.value, first.key, first.group, first.message_id)
            assert same == (event.f, event.process, event.value, event.key, event.group, event.message_id)
    sent = [event.value for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE]
    assert len(sent) == len(set(sent)), "no value is ever sent twice"
    held = {(event.process, event.value, event.message_id) for event in events if event.f is OpKind.DELIVER}
    for event in events:
        if event.f in SETTLEMENTS:
            assert (event.process, event.value, event.message_id) in held, "settled in another session than delivered"
    retired: set[str] = set()
    for event in events:
        if event.type is OpType.INVOKE:
            assert event.process not in retired, f"{event.process} goes on after an unknown outcome"
        if event.type is OpType.INFO and event.f in OPERATIONS:
            retired.add(event.process)


def count(events: list[HistoryEvent], f: OpKind, type_: OpType) -> int:
    return sum(event.f is f and event.type is type_ for event in events)


def test_a_calm_run_acks_everything(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    scenario = scenario_of(workload={"producers": 2, "groups": ["a", "b"], "consumers_per_group": 2})
    run = virtual_run(scenario, fake_broker)
    events = run.run()
    assert_well_formed(events)
    assert run.plan.drained
    assert run.plan.open_count == 0
    assert count(events, OpKind.PUBLISH, OpType.OK) == 80
    assert count(events, OpKind.ACK, OpType.OK) == 160
    assert count(events, OpKind.DELIVER, OpType.OK) == 160
    drains = {event.queue: event.type for event in events if event.f is OpKind.DRAIN}
    assert drains == {"tasks": OpType.OK, "$dlq/tasks": OpType.OK}
    delivered = next(event for event in events if event.f is OpKind.DELIVER)
    assert delivered.message_id == f"$queue/tasks:{delivered.offset}"
    assert (delivered.producer, delivered.delivery_count, delivered.redelivered) == ("p0", 1, False) or (
        delivered.producer == "p1"
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_gives_the_same_history(virtual_run: Any, broker_of: Any, scenario_of: Any, seed: int) -> None:
    scenario = scenario_of(workload={"settlement": {"ack": 5, "nack": 2, "reject": 1, "ignore": 1}})
    first, second = (virtual_run(scenario, broker_of(), seed=seed).run() for _ in range(2))
    assert first == second


def test_every_settlement_is_used(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    settlement = {"ack": 1, "nack": 1, "reject": 1, "ignore": 0}
    events = virtual_run(scenario_of(workload={"settlement": settlement}), fake_broker).run()
    assert_well_formed(events)
    rejected = {event.value for event in events if event.f is OpKind.REJECT and event.type is OpType.OK}
    dead = {event.value for event in events if event.f is OpKind.DELIVER and event.queue == "$dlq/tasks"}
    assert rejected
    assert dead == rejected
    assert count(events, OpKind.NACK, OpType.OK) > 0
    again = [event for event in events if event.f is OpKind.DELIVER and event.redelivered]
    assert len(again) == count(events, OpKind.NACK, OpType.OK)


def test_the_drain_acknowledges_what_was_ignored(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    run = virtual_run(scenario_of(workload={"settlement": {"ack": 0, "ignore": 1}}), fake_broker)
    events = run.run()
    assert run.plan.drained
    assert count(events, OpKind.ACK, OpType.OK) == 40


# The fixtures are factories without state.
def test_the_drain_acknowledges_what_was_to_be_nacked(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    workload = {"process_s": [5.0, 5.0], "settlement": {"ack": 0, "nack": 1}}
    events = virtual_run(scenario_of(workload=workload), fake_broker).run()
    assert count(events, OpKind.NACK, OpType.INVOKE) == 0
    assert count(events, OpKind.ACK, OpType.OK) == 40


def test_a_settlement_without_answer_ends_the_session(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    settled: list[str] = []

    def silent(packet: Any) -> bool:
        if packet.topic.endswith("/$ack"):
            settled.append(packet.topic)
            return len(settled) == 20
        return False

    fake_broker.silent = silent
    events = virtual_run(scenario_of(workload={"publish_timeout_s": 0.1}), fake_broker).run()
    assert_well_formed(events)
    unknown = next(event for event in events if event.f is OpKind.ACK and event.type is OpType.INFO)
    end = next(event for event in events if event.f is OpKind.SESSION_END and event.process == unknown.process)
    assert end.detail == "a settlement got no answer"
    assert end.time_ns - unknown.time_ns < 10_000_000
    assert any(event.process != unknown.process and event.f is OpKind.DELIVER for event in events[end.index :])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.floats(0.0, 0.6), max_size=4), dark_s=st.floats(0.0, 0.3))
def test_cut_connections_leave_a_well_formed_history(
    virtual_run: Any, broker_of: Any, scenario_of: Any, seed: int, cuts: list[float], dark_s: float
) -> None:
    scenario = scenario_of(
        workload={
            "producers": 2,
            "consumers_per_group": 2,
            "process_s": [0.0, 0.2],
            "settlement": {"ack": 3, "nack": 1, "reject": 1},
        }
    )
    run = virtual_run(scenario, broker_of(), seed=seed, delay_s=0.003)
    start = run.now
    run.cut = lambda now: any(start + cut <= now < start + cut + dark_s for cut in cuts)
    for cut in cuts:
        run.at(start + cut, run.cut_connections)
    events = run.run()
    assert_well_formed(events)
    assert run.plan.drained
    unknown = count(events, OpKind.ACK, OpType.INFO) + count(events, OpKind.REJECT, OpType.INFO)
    assert run.plan.open_count <= unknown, "only a settlement without answer may leave a pair open"
    invoked = count(events, OpKind.PUBLISH, OpType.INVOKE)
    assert invoked == 80
    ends = [event for event in events if event.f is OpKind.SESSION_END]
    assert len({event.process for event in ends}) == len(ends), "one session per process name"
    by_process: defaultdict[str, set[OpKind]] = defaultdict(set)
    for event in events:
        by_process[event.process].add(event.f)
    for process, kinds in by_process.items():
        if OpKind.DELIVER in kinds:
            assert OpKind.SESSION_END in kinds, process


def test_a_silent_broker_makes_publishes_unknown_and_their_late_confirm_is_ignored(
    virtual_run: Any, fake_broker: Any, scenario_of: Any
) -> None:
    silent = {f"p0-{seq}" for seq in range(5, 10)}
    fake_broker.silent = lambda packet: bool(packet.payload) and decode_payload(packet.payload).value in silent
    fake_broker.release = lambda packet: bool(packet.payload) and decode_payload(packet.payload).seq == 35
    run = virtual_run(scenario_of(workload={"publish_timeout_s": 0.05}), fake_broker)
    events = run.run()
    assert_well_formed(events)
    unknown = {event.value for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INFO}
    assert unknown == silent
    assert count(events, OpKind.PUBLISH, OpType.OK) == 35
    assert count(events, OpKind.ACK, OpType.OK) == 40, "an unknown publish may well have happened"
    assert not fake_broker.withheld, "the late confirms were sent"
    ends = [event for event in events if event.f is OpKind.SESSION_END and event.process.startswith("p0")]
    assert [event.detail for event in ends] == ["disconnect"], "and they did not end the connection"


def test_a_refusal_fails_and_is_not_retried(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    fake_broker.refuse = lambda packet: decode_payload(packet.payload).seq % 2 == 1
    run = virtual_run(scenario_of(), fake_broker)
    events = run.run()
    assert_well_formed(events)
    assert count(events, OpKind.PUBLISH, OpType.FAIL) == 20
    assert "0x97" in next(event.detail for event in events if event.type is OpType.FAIL)
    assert run.plan.open_count == 0


@pytest.mark.parametrize(("version", "code"), [(4, 3), (4, 5), (5, 0x88)])
def test_every_connack_that_is_not_success_is_a_refusal(version: int, code: int) -> None:
    """Swarm seed 200169 of mqtt-flaky-network: codes of 3.1.1 were taken for success, and sessions for lost."""
    events: list[HistoryEvent] = []
    timing = Timing(operation_timeout_s=1.0, reconnect_after_s=1.0, handshake_timeout_s=1.0, keep_alive_s=2)
    client = MqttClient("c0", timing, HistoryRecorder(events.append, 0.0), 1, version=version)
    client.start(0.0)
    client.connection_made(0.0)
    client.receive(encode(Connack(reason_code=code), version), 0.1)
    assert client.closing
    assert events[-1].type is OpType.FAIL
    assert events[-1].detail == f"connection refused, reason 0x{code:02x}"


def test_lost_messages_end_the_drain_by_silence(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    fake_broker.lose = lambda packet: decode_payload(packet.payload).seq == 7
    run = virtual_run(scenario_of(), fake_broker)
    events = run.run()
    assert run.plan.drained, "silence for longer than any redelivery takes proves the queue empty"
    assert run.plan.open_count == 1
    last_delivery = max(event.time_ns for event in events if event.f is OpKind.DELIVER)
    drain = next(event for event in events if event.f is OpKind.DRAIN)
    assert drain.time_ns - last_delivery >= 2.0e9, "delivery timeout + 1 s"


def test_a_dead_broker_ends_the_run_as_not_drained(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    run = virtual_run(scenario_of(), fake_broker)
    run.cut = lambda now: True
    events = run.run()
    assert {event.type for event in events if event.f is OpKind.DRAIN} == {OpType.INFO}
    assert "not connected: c0" in next(event.detail for event in events if event.f is OpKind.DRAIN)
    assert not run.plan.drained


def test_a_queue_is_not_called_empty_while_a_consumer_is_away(
    virtual_run: Any, fake_broker: Any, scenario_of: Any
) -> None:
    run = virtual_run(scenario_of(workload={"consumers_per_group": 2}), fake_broker)
    run.hang = lambda client: client.client_id == "c1"
    events = run.run()
    first = next(event for event in events if event.f is OpKind.PUBLISH)
    assert 5.0e9 <= first.time_ns < 6.0e9, "producers wait for the consumers, but not for ever"
    drains = [event for event in events if event.f is OpKind.DRAIN]
    assert {(event.type, event.detail) for event in drains} == {
        (OpType.INFO, "not empty after 10 s; not connected: c1")
    }


def test_the_drain_waits_for_a_redelivery_after_the_ack(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    """Everything is settled, yet a broker that forgot an ack would show it one delivery timeout later."""
    run = virtual_run(scenario_of(), fake_broker)
    settle = fake_broker.settle

    def forget(connection: Any, verb: str, message_id: str) -> int:
        if message_id == "$queue/tasks:39":
            run.at(run.now + 1.2, lambda: fake_broker.deliver(connection, 39))
        return int(settle(connection, verb, message_id))

    fake_broker.settle = forget
    events = run.run()
    again = [event for event in events if event.f is OpKind.DELIVER and event.value == "p0-39"]
    assert len(again) >= 2
    drain = next(event for event in events if event.f is OpKind.DRAIN)
    assert drain.index > again[1].index


def test_late_publishes_tell_when_they_were_due(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    run = virtual_run(scenario_of(), fake_broker)
    dark_from, dark_to = run.now + 0.05, run.now + 0.15
    run.cut = lambda now: dark_from <= now < dark_to
    run.at(dark_from, run.cut_connections)
    events = run.run()
    late = [event for event in events if event.f is OpKind.PUBLISH and intended_ns(event) < event.time_ns]
    assert late
    assert all(event.type is OpType.INVOKE for event in late)
    assert max(event.time_ns - intended_ns(event) for event in late) > 50_000_000


def test_the_broker_s_receive_maximum_is_kept(virtual_run: Any, broker_of: Any, scenario_of: Any) -> None:
    broker = broker_of(receive_maximum=3)
    events = virtual_run(scenario_of(workload={"rate_per_s": 5_000}), broker, delay_s=0.02).run()
    in_flight, most = 0, 0
    for event in events:
        if event.f is OpKind.PUBLISH:
            in_flight += 1 if event.type is OpType.INVOKE else -1
            most = max(most, in_flight)
    assert most == 3
    assert count(events, OpKind.PUBLISH, OpType.OK) == 40


def test_a_broker_that_swallows_a_whole_window_is_left(virtual_run: Any, broker_of: Any, scenario_of: Any) -> None:
    broker = broker_of(receive_maximum=4)
    broker.silent = lambda packet: bool(packet.payload) and decode_payload(packet.payload).seq < 4
    events = virtual_run(scenario_of(workload={"publish_timeout_s": 0.2}), broker).run()
    assert_well_formed(events)
    assert count(events, OpKind.PUBLISH, OpType.INFO) == 4
    assert count(events, OpKind.PUBLISH, OpType.OK) == 36


def test_the_notice_that_a_subscription_ended_is_no_delivery(
    virtual_run: Any, fake_broker: Any, scenario_of: Any
) -> None:
    """It was taken for a message that nobody had sent, where the disk did not make a dead-letter queue (swarm seed
    300967 of `crash-restart`). Whoever is told begins anew."""
    deliver, ended = fake_broker.deliver, []

    def once(connection: Any, offset: int) -> None:
        if not ended:
            ended.append(connection)
            connection.send(Publish(topic=f"{connection.queue}/$ended", payload=b'{"event": "deleted"}'))
        deliver(connection, offset)

    fake_broker.deliver = once
    events = virtual_run(scenario_of(), fake_broker).run()
    assert_well_formed(events)
    assert not [event for event in events if (event.value or "").startswith("corrupt:")]
    [end] = [event for event in events if event.detail == "the subscription was ended with its queue"]
    assert any(event.f is OpKind.SUBSCRIBE and event.type is OpType.OK for event in events[end.index :])
    assert {event.value for event in events if event.f is OpKind.ACK and event.type is OpType.OK} >= {
        event.value for event in events if event.f is OpKind.PUBLISH and event.type is OpType.OK
    }


def test_an_altered_payload_becomes_a_value_nobody_sent(virtual_run: Any, fake_broker: Any, scenario_of: Any) -> None:
    deliver = fake_broker.deliver

    def spoil(connection: Any, offset: int) -> None:
        message = fake_broker.messages[connection.queue][offset]
        if offset == 3:
            fake_broker.messages[connection.queue][offset] = type(message)(
                topic=message.topic, payload=message.payload[:-1] + b"!", qos=1, packet_id=1
            )
        deliver(connection, offset)

    fake_broker.deliver = spoil
    events = virtual_run(scenario_of(), fake_broker).run()
    odd = [event for event in events if event.f is OpKind.DELIVER and event.value.startswith("corrupt:")]
    assert len(odd) == 1


@given(value=NAMES, key=NAMES, seq=st.integers(0, 10**9), size=st.integers(0, 600))
def test_payload_round_trip(value: str, key: str, seq: int, size: int) -> None:
    data = encode_payload(f"{value}-{seq}", key, size)
    payload = decode_payload(data)
    assert (payload.producer, payload.seq, payload.key) == (value, seq, key)
    assert len(data) == size or len(data) > size == 0 or len(data) == len(encode_payload(f"{value}-{seq}", key, 0))


@given(size=st.integers(0, 300), data=st.data())
def test_every_altered_byte_and_every_cut_is_noticed(size: int, data: st.DataObject) -> None:
    payload = encode_payload("p0-17", "k1", size)
    position = data.draw(st.integers(0, len(payload) - 1))
    flipped = bytearray(payload)
    flipped[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        decode_payload(bytes(flipped))
    with pytest.raises(PayloadError):
        decode_payload(payload[:position])


def test_streams_of_chance_are_independent(virtual_run: Any, broker_of: Any, scenario_of: Any) -> None:
    """Adding a consumer must not change what the producers send and when they mean to send it."""

    def sent(consumers: int) -> list[tuple[str, str]]:
        scenario = scenario_of(workload={"consumers_per_group": consumers})
        events = virtual_run(scenario, broker_of()).run()
        return [(e.value, e.key) for e in events if e.f is OpKind.PUBLISH and e.type is OpType.INVOKE]

    assert sent(1) == sent(3)
