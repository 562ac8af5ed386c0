"""The bench of AMQP 0.9.1: its messages byte by byte, every case on the reference broker, and how it judges."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from assay.conformance.targets import RunningTarget, running
from assay.loadtests.bench import amqp
from assay.loadtests.bench.amqp_messages import (
    Cycle,
    Message,
    Properties,
    alike_messages,
    delivery_bytes,
    mixed_messages,
    publish_bytes,
)
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.cases import AMQP, Case, lines_of
from assay.loadtests.bench.figures import BenchRun, Reading
from assay.loadtests.bench.mqtt import WORKLOADS
from assay.loadtests.bench.peers import reference_amqp091
from assay.loadtests.bench.report import checks, table
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure
from assay.reference_broker.amqp091.wire.content import decode_header
from assay.reference_broker.amqp091.wire.frames import FrameType, read_frame
from assay.reference_broker.amqp091.wire.methods import decode_method
from assay.reference_broker.trace.results import Verdict

SMALL = BenchPlan(rounds=1, messages=300, seconds=0.1, window=100, in_flight=50, amqp_crowd=5, bindings=200, idle=30)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningTarget]:
    with running(reference_amqp091().target) as found:
        yield found


@pytest.mark.parametrize("case", AMQP)
def test_every_case_yields_its_lines(case: Case, broker: RunningTarget) -> None:
    with WORKLOADS[case](broker.endpoint, SMALL, BrokerProcess(broker.pid)) as workload:
        workload.prepare()
        figures = [figure for number in range(workload.measurements) for figure in workload.measure(number)]
    assert [figure.line for figure in figures] == [line.name for line in lines_of(case)]
    for figure in figures:
        assert figure.value is not None
        assert figure.count == (30 if case is Case.IDLE_CHANNELS else 300 * (5 if case is Case.FANOUT else 1))
        assert figure.value > 0 or case is Case.IDLE_CHANNELS


def parts(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at < len(data):
        read = read_frame(data, at, 1 << 20)
        assert read is not None
        part, at = read
        found.append((part.kind, part.payload))
    return found


def test_publishes_are_what_they_say() -> None:
    properties = Properties(
        content_type="a/b",
        headers=(("x", "y"),),
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        message_id="m",
        timestamp=5,
        kind="k",
        app_id="p",
    )
    data, at = publish_bytes(Message("e", "r", 12, properties))
    (kind, method), (_, header), (_, body) = parts(data)
    assert kind == FrameType.METHOD
    assert decode_method(method)[1] == ["e", "r", False, False]
    size, read = decode_header(header)
    assert (size, len(body), data[at : at + 12]) == (12, 12, body)
    assert (read.content_type, read.delivery_mode, read.priority, read.correlation_id) == ("a/b", 2, 3, "c")
    assert (read.message_id, read.timestamp, read.kind, read.app_id) == ("m", 5, "k", "p")
    assert [(name, value.value) for name, value in read.headers or ()] == [("x", "y")]


def delivered(messages: list[Message], first: int, count: int) -> bytes:
    """The stream of a broker."""
    stream = b""
    for number in range(first, first + count):
        data, tag_at, number_at = delivery_bytes(messages[number % len(messages)], amqp.CONSUMER)
        octets = bytearray(data)
        octets[tag_at : tag_at + 8] = (number + 1).to_bytes(8, "big")
        octets[number_at : number_at + 8] = number.to_bytes(8, "big")
        stream += octets
    return stream


def some_messages() -> list[Message]:
    return [
        Message("", "q", 8),
        Message("e", "orders.1", 20, Properties(app_id="a", delivery_mode=2)),
        Message("e", "orders.12", 9),
    ]


def test_deliveries_are_read_wherever_the_stream_is_cut() -> None:
    cycle = Cycle(some_messages(), amqp.CONSUMER)
    stream = delivered(some_messages(), 1, 5)
    for cut in range(len(stream) + 1):
        first, used = cycle.read(stream[:cut], 1)
        second, rest = cycle.read(stream[used:], 1 + len(first))
        assert [*first, *second] == [2, 3, 4, 5, 6]
        assert used + rest == len(stream)


def test_a_delivery_that_is_otherwise_in_any_byte_is_refused() -> None:
    cycle = Cycle(some_messages(), amqp.CONSUMER)
    stream = delivered(some_messages(), 0, 3)
    _, tag_at, _ = delivery_bytes(some_messages()[0], amqp.CONSUMER)
    for at in range(len(stream)):
        damaged = bytearray(stream)
        damaged[at] ^= 1
        if tag_at <= at < tag_at + 8:
            continue
        try:
            tags, _ = cycle.read(bytes(damaged), 0)
        except BenchError:
            continue
        assert list(tags) != [1, 2, 3], at
    with pytest.raises(BenchError, match="sequence"):
        cycle.read(delivered(some_messages(), 3, 3), 0)


def test_publishes_go_round_and_carry_their_numbers() -> None:
    messages = mixed_messages("e", 1)
    cycle = Cycle(messages, amqp.CONSUMER)
    count = len(messages)
    data = cycle.publishes(count - 2, 5)
    bodies = [payload for kind, payload in parts(data) if kind == FrameType.BODY]
    assert [int.from_bytes(body[:8], "big") for body in bodies] == [count - 2, count - 1, count, count + 1, count + 2]
    sizes = [message.body_bytes for message in messages]
    assert [len(body) for body in bodies] == [*sizes[-2:], *sizes[:3]]


def test_mixed_messages_are_of_every_size_and_kind() -> None:
    messages = mixed_messages("e", 2)
    sizes = np.array([message.body_bytes for message in messages])
    assert sizes.min() < 20
    assert sizes.max() > 9_000
    assert 200 < np.median(sizes) < 500
    assert len({message.routing_key for message in messages}) == 50
    assert len({message.properties for message in messages}) > 512
    assert {message.properties.delivery_mode for message in messages} == {2}
    assert len(set(alike_messages("", "q", 100, 1))) == 1


def test_confirms_may_overtake_each_other() -> None:
    floor = amqp.ConfirmFloor()
    for tag, multiple, count in ((3, False, 1), (2, True, 3), (6, False, 4), (6, True, 6), (7, False, 7)):
        floor.confirm(tag, multiple=multiple)
        assert floor.count == count


def reading(peer: str, value: float, cpu_s: float) -> Reading:
    figure = Figure(line="amqp_persistent", value=value, count=1_000, client_load=0.1, broker_cpu_s=cpu_s)
    return Reading(peer=peer, round=0, figure=figure)


def test_rates_and_processor_time_are_judged_apart() -> None:
    bench = BenchRun(
        plan=BenchPlan(),
        versions={"reference": "1", "rabbitmq": "2"},
        readings=[reading("reference", 30_000.0, 0.2), reading("rabbitmq", 20_000.0, 0.4)],
    )
    found = checks(bench)["amqp_persistent", "rabbitmq"]
    assert [(check.value, check.bound, check.verdict) for check in found] == [
        (1.5, 2.0, Verdict.FAIL),
        (2.0, 1.0, Verdict.PASS),
    ]
    assert str(table(bench).title).startswith("100-byte payloads, AMQP 0.9.1")


def test_cases_of_other_protocols_are_refused() -> None:
    runner = CliRunner()
    for command, case in (("amqp091", "qos1"), ("mqtt", "transient")):
        result = runner.invoke(build_app("bench"), ["bench", command, "--case", case])
        assert result.exit_code == 2, result.output
        assert re.search("amqp091|AMQP", result.output)
