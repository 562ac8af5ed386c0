"""Deliveries that go out as a run are, byte for byte and on disk, those that go out one by one."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Connect, Properties, Publish, Subscribe, Subscription
from assay.conformance.wire.decode import decode_packet
from assay.conformance.wire.encode import encode
from assay.loadtests.packets import split_frames
from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.mqtt.batches.queue_deliveries import DeliveryEncoder
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.mqtt.sessions.session import OutgoingDeliveries
from assay.reference_broker.mqtt.wire.packets import V5
from assay.reference_broker.mqtt.wire.publish_encoder import PublishEncoder
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.delivery import dispatcher
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk

NOW = 1_700_000_000.0
DEFAULTS = {
    "durability": "interval",
    "partitions": 2,
    "max_in_flight": 40,
    "delivery_timeout_s": 30.0,
    "message_ttl_s": 90.0,
    "retry": {"max_retries": 2},
}
TOPICS = ["$queue/q"] * 6 + ["$queue/q/key", "$queue/q/other"]


class Life:
    """A node with a publisher and a consumer whose deliveries go out as runs, or never do."""

    def __init__(self, *, shortest: int, window: int, extra: tuple[tuple[str, str], ...] = ()) -> None:
        self._shortest, self._window, self._extra = shortest, window, extra
        self.now = NOW
        self.disk = MemoryDisk()
        config = BrokerConfig(queues=QueuesConfig(defaults=DEFAULTS))
        self.node = BrokerNode(config, self.disk, random.Random(1), NOW)
        self.received: list[Publish] = []
        self.said: list[bytes] = []
        self.publisher = self._connect("publisher", 1_000)
        self.consumer = self._consume()
        self._ids = 0
        self._make_queue()

    def _connect(self, client_id: str, window: int) -> MqttConnection:
        connection = self.node.accept(client_id, self.now)
        packet = Connect(version=5, client_id=client_id, clean=True, properties=Properties(receive_maximum=window))
        self._send(connection, encode(packet, 5))
        return connection

    def _consume(self) -> MqttConnection:
        connection = self._connect("consumer", self._window)
        joining = Properties(user_property=(("consumer-group", "g"), *self._extra))
        subscription = Subscription(filter="$queue/q", qos=1)
        self._send(connection, encode(Subscribe(packet_id=1, subscriptions=(subscription,), properties=joining), 5))
        return connection

    def _make_queue(self) -> None:
        """What was asked for so far is there for good."""
        while jobs := list(self.node.take_jobs(self.now)):
            for job in jobs:
                job.run()
                self.node.job_done(job, None, self.now)
            self.wait(0.0)

    def _send(self, connection: MqttConnection, data: bytes) -> None:
        with mock.patch.object(dispatcher, "MIN_RUN", self._shortest):
            self.node.receive(connection, data, self.now)
            for _ in range(3):
                self.node.take_dirty(self.now)
        output = connection.take_output()
        self.said.append(output)
        if connection is not getattr(self, "publisher", None):
            self._take(output)

    def _take(self, output: bytes) -> None:
        at = 0
        for _, _, end in split_frames(output)[0]:
            packet = decode_packet(output[at:end], 5)
            at = end
            if isinstance(packet, Publish):
                self.received.append(packet)

    def _next_id(self) -> int:
        self._ids = self._ids % 900 + 1
        return self._ids

    def publish(self, messages: Sequence[tuple[str, int, str]]) -> None:
        data = b""
        for topic, size, kind in messages:
            properties = Properties(
                user_property=(("colour", "red"),) if kind == "named" else (),
                message_expiry_interval=5 if kind == "short" else None,
            )
            packet = Publish(topic=topic, payload=bytes(size), qos=1, packet_id=self._next_id(), properties=properties)
            data += encode(packet, 5)
        self._send(self.publisher, data)
        output = self.consumer.take_output()
        self.said.append(output)
        self._take(output)

    def confirm(self, count: int) -> None:
        """PUBACK the oldest deliveries."""
        confirmed, self.received = self.received[:count], self.received[count:]
        self._send(self.consumer, b"".join(b"\x40\x02" + each.packet_id.to_bytes(2, "big") for each in confirmed))
        self.unsettled = [*getattr(self, "unsettled", []), *confirmed]

    def settle(self, count: int) -> None:
        waiting: list[Publish] = getattr(self, "unsettled", [])
        settled, self.unsettled = waiting[:count], waiting[count:]
        data = b""
        for each in settled:
            found = dict(each.properties.user_property)
            pairs = tuple((name, found[name]) for name in ("message-id", "group-id"))
            packet = Publish(
                topic="$queue/q/$ack", qos=1, packet_id=self._next_id(), properties=Properties(user_property=pairs)
            )
            data += encode(packet, 5)
        self._send(self.consumer, data)

    def reconnect(self) -> None:
        self.node.connection_lost(self.consumer, self.now)
        self.received, self.unsettled = [], []
        self.consumer = self._consume()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        with mock.patch.object(dispatcher, "MIN_RUN", self._shortest):
            self.node.tick(self.now)
            for _ in range(3):
                self.node.take_dirty(self.now)
        output = self.consumer.take_output()
        self.said.append(output)
        self._take(output)

    def end(self) -> tuple[object, ...]:
        stats = [self.node.engine.stats(queue) for queue in self.node.engine.queues()]
        traffic = self.node.state.traffic
        figures = traffic.publishes_sent, traffic.payload_bytes_sent, traffic.dropped
        self.node.close(self.now)
        return self.said, stats, figures, self.disk._files


messages = st.lists(
    st.tuples(
        st.sampled_from(TOPICS), st.sampled_from([0, 3, 3, 3, 200]), st.sampled_from(["plain"] * 8 + ["named", "short"])
    ),
    min_size=1,
    max_size=40,
)
alike = st.builds(lambda count, size: [("$queue/q", size, "plain")] * count, st.integers(1, 60), st.integers(0, 5))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.one_of(messages, alike, alike)),
        st.tuples(st.sampled_from(["confirm", "settle"]), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 6.0, 31.0, 100.0])),
        st.just(("reconnect", None)),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(steps, st.sampled_from([1, 3, 10, 1_000]), st.sampled_from([(), (("ack-mode", "auto"),)]))
def test_runs_and_single_deliveries_end_alike(
    story: list[tuple[str, object]], window: int, extra: tuple[tuple[str, str], ...]
) -> None:
    lives = Life(shortest=2, window=window, extra=extra), Life(shortest=1 << 60, window=window, extra=extra)
    for name, argument in story:
        for life in lives:
            arguments = () if argument is None else (argument,)
            getattr(life, name)(*arguments)
    assert lives[0].end() == lives[1].end()


def test_a_run_is_taken_and_one_object_stands_for_its_deliveries() -> None:
    life = Life(shortest=2, window=1_000)
    life.publish([("$queue/q", 3, "plain")] * 20)
    session = life.consumer.active_session
    assert {type(outgoing) for outgoing in session.in_flight.values()} == {OutgoingDeliveries}
    assert len(set(map(id, session.in_flight.values()))) == 1
    for each in life.received:
        outgoing = session.in_flight[each.packet_id]
        delivery = outgoing.delivery_for(each.packet_id)
        assert delivery is not None
        assert delivery.message_id == dict(each.properties.user_property)["message-id"]
        assert outgoing.message_for(each.packet_id) is delivery.message
    life.confirm(20)
    assert not session.in_flight


def _stored(size: int, **fields: object) -> StoredMessage:
    message = Message(topic="$queue/q", payload=bytes(size), **fields)  # type: ignore[arg-type]
    return StoredMessage(message, "$queue/q", "", NOW, float("inf"), size)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 65_000),
    st.one_of(st.integers(0, 2**62), st.sampled_from([5, 95, 999])),
    st.integers(0, 1_023),
    st.lists(st.sampled_from([0, 1, 100, 127, 5_000]), min_size=1, max_size=40),
)
def test_a_run_has_the_bytes_of_its_packets(first_id: int, offset: int, partition: int, sizes: list[int]) -> None:
    run = DeliveryRun("q", "g", partition, offset, [_stored(size) for size in sizes])
    encoder = DeliveryEncoder()
    data = encoder.encode_run(first_id, run, 1 << 30)
    single = [encoder.encode(first_id + index, run.delivery(index)) for index in range(len(sizes))]
    packets = [packet for packet in single if packet is not None]
    assert data == b"".join(packets)
    largest = max(map(len, packets))
    assert encoder.encode_run(first_id, run, largest) == data
    assert encoder.encode_run(first_id, run, largest - 1) is None


NAMED = [
    (),
    (("colour", "red"),),
    (("colour", "tan"),),
    (("offset", "7"),),
    (("", "x"), ("", "x"), ("queue", "q")),
    (("long", "x" * 252),),
    (("long", "x" * 253),),
    (("ü" * 100, "ü" * 156),),
    (("", ""),) * 32,
    (("", ""),) * 3_300,
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(NAMED), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 40))
def test_user_properties_come_as_the_general_way_has_them(
    named: list[tuple[tuple[str, str], ...]], times: int, others: int
) -> None:
    encoder, general = DeliveryEncoder(), PublishEncoder(V5)
    stored = [_stored(3, user_properties=pairs) for pairs in named for _ in range(times)]
    stored[1:1] = [_stored(3)] * others
    run = DeliveryRun("q", "g", 3, 100, stored)
    expected = []
    for index in range(len(stored)):
        delivery = run.delivery(index)
        message = Message(topic=delivery.topic, payload=bytes(3), user_properties=delivery_properties(delivery))
        expected.append(general.encode(5 + index, message, 0x32, (), NOW))
        assert encoder.encode(5 + index, delivery) in (expected[-1], None)
    data = encoder.encode_run(5, run, 1 << 30)
    assert data in (b"".join(expected), None)
    if not {NAMED[6], NAMED[-1]} & set(named):
        assert data is not None
        largest = max(map(len, expected))
        assert encoder.encode_run(5, run, largest) == data
        assert encoder.encode_run(5, run, largest - 1) is None


@pytest.mark.parametrize("times", [1, 8])
def test_thousands_of_empty_properties_are_delivered(times: int) -> None:
    life = Life(shortest=4, window=1_000)
    pairs = (("", ""),) * 3_300
    packets = [
        Publish(topic="$queue/q", payload=b"", qos=1, packet_id=at + 1, properties=Properties(user_property=pairs))
        for at in range(times)
    ]
    life._send(life.publisher, b"".join(encode(packet, 5) for packet in packets))
    life._take(life.consumer.take_output())
    assert [each.properties.user_property[-3_300:] for each in life.received] == [pairs] * times


@pytest.mark.parametrize(
    "other",
    [
        _stored(1, expires_at=NOW),
        _stored(1, content_type="t"),
        _stored(16_384),
        _stored(1, user_properties=(("a", "b"),), content_type="t"),
    ],
)
def test_what_is_more_than_plain_goes_alone(other: StoredMessage) -> None:
    run = DeliveryRun("q", "g", 0, 10, [_stored(1), other, _stored(1)])
    assert DeliveryEncoder().encode_run(1, run, 1 << 30) is None
    assert DeliveryEncoder().encode_run(1, run.first(1), 1 << 30) is not None


@pytest.mark.parametrize("following", [1, 2, 65_519, 65_520, 65_521, 65_530, 65_535])
@pytest.mark.parametrize("count", [1, 2, 9, 15, 16, 17])
def test_packet_ids_of_a_run_follow_each_other_and_never_leave_their_range(following: int, count: int) -> None:
    """65 535 is the last one, behind which a run begins anew; ids that are in use are in no run."""
    session = Life(shortest=1, window=40).consumer.active_session
    session._next_packet_id = following
    wanted = following if following + count - 1 <= 65_535 else 1
    assert session.can_send_run(count, 0) == wanted
    for taken, expected in ((wanted + count - 1, 0), (wanted, 0), (wanted + count, wanted), (wanted - 1, wanted)):
        with mock.patch.object(session, "in_flight", {taken: None}):
            assert session.can_send_run(count, 0) == expected


def test_a_run_goes_out_only_where_all_of_it_has_room() -> None:
    """Window, bytes of the client, bytes of all, what waits in front, and a connection: each at its bound."""
    session = Life(shortest=1, window=40).consumer.active_session
    budget = session._budget
    others = dict.fromkeys(range(1000, 1030))

    def first(**state: object) -> int:
        with contextlib.ExitStack() as stack:
            for name, value in {"in_flight": others, "in_flight_bytes": 0, **state}.items():
                stack.enter_context(mock.patch.object(session, name, value))
            return session.can_send_run(10, 500)

    assert first() == session._next_packet_id
    assert first(in_flight=others | {2_000: None}) == 0
    assert first(queued=[None]) == 0
    assert first(connection=None) == 0
    assert first(in_flight_bytes=session.max_in_flight_bytes - 500)
    assert first(in_flight_bytes=session.max_in_flight_bytes - 499) == 0
    for used, may in ((budget.half - 500, True), (budget.half - 499, False)):
        with mock.patch.object(budget, "used", used):
            assert bool(first()) == may
