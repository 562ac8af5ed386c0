"""Batches of publishes to a queue end as the same packets do one by one, wherever their bytes are cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Connect, Properties, Publish, Subscribe, Subscription
from assay.conformance.wire.encode import encode
from assay.reference_broker.config import AclConfig, AclRuleConfig, BrokerConfig, MqttConfig, Permission, QueuesConfig
from assay.reference_broker.config_tenants import TenantConfig
from assay.reference_broker.mqtt.batches import publish_batches
from assay.reference_broker.mqtt.batches.publish_batches import PublishBatch, PublishBatchReader
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.queue_topics.publish_properties import OPTION_NAMES
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.messages.stored_message import MessageCodec, is_plain, message_bytes
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import SharedMemory

NOW = 1_700_000_000.0
QUEUE = "$queue/q"
Pairs = tuple[tuple[str, str], ...]


def _config(partitions: int = 3, **more: object) -> BrokerConfig:
    defaults = {"durability": "memory", "partitions": partitions, "max_depth": 40, "max_message_bytes": 200, **more}
    return BrokerConfig(queues=QueuesConfig(defaults=defaults), mqtt=MqttConfig(receive_maximum=60))


class Life:
    """A node with a publisher and a consumer."""

    def __init__(self, config: BrokerConfig) -> None:
        self.node = BrokerNode(config, None, random.Random(1), NOW)
        self.publisher, self.consumer = self._connect("publisher"), self._connect("consumer")
        joining = Properties(user_property=(("consumer-group", "g"),))
        subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter=QUEUE, qos=1),), properties=joining)
        self.node.receive(self.consumer, encode(subscribe, 5), NOW)
        self.node.take_dirty(NOW)
        self.consumer.take_output()

    def _connect(self, client_id: str) -> MqttConnection:
        connection = self.node.accept(client_id, NOW)
        packet = Connect(version=5, client_id=client_id, clean=True, properties=Properties(receive_maximum=1_000))
        self.node.receive(connection, encode(packet, 5), NOW)
        self.node.take_dirty(NOW)
        connection.take_output()
        return connection

    def send(self, chunks: Sequence[bytes]) -> tuple[object, ...]:
        """What can be seen after the publisher has sent these chunks in one turn."""
        with mock.patch.object(self.node.engine, "publish_batch", wraps=self.node.engine.publish_batch) as runs:
            for chunk in chunks:
                if not self.publisher.closing:
                    self.node.receive(self.publisher, chunk, NOW)
        self.runs = runs.call_count
        for _ in range(3):
            self.node.take_dirty(NOW)
        traffic = self.node.state.traffic
        return (
            self.publisher.take_output(),
            self.consumer.take_output(),
            self.publisher.closing,
            (traffic.publishes_received, traffic.payload_bytes_received, traffic.publishes_sent),
            [self.node.engine.stats(queue) for queue in self.node.engine.queues()],
        )


def _publish(packet_id: int, pairs: Pairs, payload: bytes = b"x", topic: str = QUEUE, **more: object) -> bytes:
    properties = Properties(user_property=pairs, **more)  # type: ignore[arg-type]
    return encode(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, properties=properties), 5)


def _keyed(count: int, payload: bytes = b"x") -> list[bytes]:
    return [_publish(number + 1, (("partition-key", f"key-{number % 7}"),), payload) for number in range(count)]


keys = st.sampled_from(["a", "b", "key-17", "é", ""])
own = st.tuples(st.sampled_from(["trace", "x", "_hidden", "__", "", "é"]), st.sampled_from(["", "1", "ü" * 20]))
options = st.sampled_from(
    [
        ("priority", "high"),
        ("priority", "no such"),
        ("partition", "1"),
        ("partition", "9"),
        ("ttl", "5s"),
        ("delay", "1s"),
        ("receipt", "1"),
        ("producer-id", "1"),
        ("transaction-id", "t"),
    ]
)


def _pairs(key: str, others: Sequence[tuple[str, str]], option: Sequence[tuple[str, str]], *, behind: bool) -> Pairs:
    named = ("partition-key", key)
    return (*others, named, *option) if behind else (named, *others, *option)


sometimes = st.integers(0, 15).flatmap(
    lambda number: st.lists(options, min_size=1, max_size=2) if not number else st.just([])
)
packets = st.lists(
    st.builds(
        lambda packet_id, pairs, payload, topic, expiry: _publish(
            packet_id, pairs, payload, topic, message_expiry_interval=expiry
        ),
        st.sampled_from([*range(1, 60)] * 3 + [0]),
        st.builds(_pairs, keys, st.lists(own, max_size=2), sometimes, behind=st.booleans()),
        st.sampled_from([b"x", b"yy", b"", bytes(100), bytes(201)]),
        st.sampled_from([QUEUE] * 20 + [f"{QUEUE}/key", "$queue/other", "$queue/q/$ack", "$queue/+", "plain"]),
        st.sampled_from([None] * 20 + [5]),
    ),
    max_size=60,
)
runs_of_keys = st.builds(lambda count, size: _keyed(count, bytes(size)), st.integers(0, 60), st.integers(0, 210))


@settings(max_examples=200, deadline=None)
@given(st.one_of(packets, runs_of_keys), st.sampled_from([1, 3]))
def test_one_chunk_and_single_packets_end_alike(sent: list[bytes], partitions: int) -> None:
    config = _config(partitions)
    assert Life(config).send([b"".join(sent)]) == Life(config).send(sent)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(own, max_size=2), min_size=8, max_size=40), st.booleans())
def test_so_they_do_without_keys(named: list[list[tuple[str, str]]], keyed: bool) -> None:
    # One partition: without a key the lane deals blocks out, the general way messages.
    key = ("partition-key", "k")
    sent = [
        _publish(number + 1, (*pairs, key) if keyed and number % 3 == 0 else tuple(pairs))
        for number, pairs in enumerate(named)
    ]
    config = _config(1)
    assert Life(config).send([b"".join(sent)]) == Life(config).send(sent)


def test_a_run_may_be_cut_at_every_byte() -> None:
    sent = _keyed(24)
    sent[9] = _publish(10, (("partition-key", "a"), ("trace", "t" * 90)), bytes(100))
    stream = b"".join(sent)
    config = _config()
    known = Life(config).send(sent)
    for cut in range(len(stream) + 1):
        assert Life(config).send([stream[:cut], stream[cut:]]) == known, cut


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_runs_end_as_damaged_packets_do(at: int, byte: int) -> None:
    stream = bytearray(b"".join(_keyed(20)))
    stream[at % len(stream)] = byte
    config = _config()
    seen = []
    for lane in (True, False):
        with mock.patch("assay.reference_broker.mqtt.connections.queue_batches.FEWEST", 8 if lane else 10**9):
            seen.append(Life(config).send([bytes(stream)]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_each_publish_is_told_what_became_of_its_own_partition(failing: int) -> None:
    seen = []
    for whole in (True, False):
        life = Life(_config())
        life.send([_publish(1, (("partition-key", "k"),))])
        log = life.node.engine._queues["q"].partitions[failing].log
        sent = _keyed(21)
        with mock.patch.object(type(log), "keep", autospec=True, side_effect=_fails_for(log)):
            seen.append(life.send([b"".join(sent)] if whole else sent))
        assert bool(life.runs) == whole
    assert seen[0] == seen[1]
    assert seen[0][0] != b"".join(b"\x40\x02" + (number + 1).to_bytes(2, "big") for number in range(21))


def _fails_for(broken: object):  # type: ignore[no-untyped-def]
    original = type(broken).keep  # type: ignore[attr-defined]

    def keep(log: object, messages: object, size_bytes: int) -> int:
        if log is broken:
            raise LogError("no space")
        return original(log, messages, size_bytes)  # type: ignore[no-any-return]

    return keep


def test_a_run_takes_the_lane_unless_a_limit_might_be_reached() -> None:
    life = Life(_config())
    life.send([b"".join(_keyed(30))])
    assert life.runs == 1
    stats = life.node.engine.stats("q")
    assert (stats.enqueued, stats.refused) == (30, 0)
    life.send([b"".join(_keyed(20))])
    assert life.runs == 1  # it said that it must go singly
    assert (life.node.engine.stats("q").depth, life.node.engine.stats("q").refused) == (40, 10)
    for config, count in ((_config(max_bytes=200), 30), (_config(max_depth=5), 30), (_config(), 70)):
        sent = _keyed(count)
        assert Life(config).send([b"".join(sent)]) == Life(config).send(sent)


@pytest.mark.parametrize("mqtt", [MqttConfig(maximum_qos=0), MqttConfig(max_topic_levels=1)])
def test_what_a_publish_may_not_be_no_run_is(mqtt: MqttConfig) -> None:
    config = BrokerConfig(queues=QueuesConfig(defaults={"durability": "memory", "partitions": 3}), mqtt=mqtt)
    sent = _keyed(20)
    node = BrokerNode(config, None, random.Random(1), NOW)
    connection = node.accept("publisher", NOW)
    node.receive(connection, encode(Connect(version=5, client_id="publisher", clean=True), 5), NOW)
    node.receive(connection, b"".join(sent), NOW)
    # Too many levels break no rule: each packet is refused, and the connection goes on.
    assert connection.closing is (mqtt.maximum_qos == 0)
    assert not node.engine.queues()


@pytest.mark.parametrize("queue", ["q", "acme.q"])
def test_access_and_tenants_hold(queue: str) -> None:
    queues = QueuesConfig(
        defaults={"durability": "memory", "partitions": 3}, tenants=(TenantConfig(name="acme", users=("alice",)),)
    )
    rules = (AclRuleConfig(topic="$queue/#", access=Permission.READWRITE),)
    for given_rules in (rules, (AclRuleConfig(topic=QUEUE, access=Permission.READ),)):
        config = BrokerConfig(queues=queues, acl=AclConfig(rules=given_rules))
        sent = [
            _publish(number + 1, (("partition-key", str(number)),), topic=f"$queue/{queue}") for number in range(20)
        ]
        whole, single = Life(config), Life(config)
        assert whole.send([b"".join(sent)]) == single.send(sent)
        assert bool(whole.runs) == (queue == "q" and given_rules is rules)


@given(st.lists(st.lists(st.one_of(own, st.tuples(st.just("partition-key"), keys)), max_size=3), max_size=5))
def test_a_described_message_is_stored_as_any_other(named: list[list[tuple[str, str]]]) -> None:
    codec = MessageCodec("q", 0.0, SharedMemory(1 << 20))
    for pairs in named * 2:
        message = Message(topic=QUEUE, payload=b"", publisher="p", user_properties=tuple(pairs))
        described = codec.describe(message.user_properties)
        plain = Message(topic=QUEUE, payload=b"", publisher="p")
        common, whole = (codec.headers(each, "key", plain=is_plain(each))[0] for each in (plain, message))
        assert common + described.headers == whole
        assert described.size == message_bytes(message)
        assert described.key == message.user_property("partition-key")


def _read(reader: PublishBatchReader, data: bytes) -> PublishBatch:
    body = 2 + (data[1] >= 0x80)
    end = body + (data[1] & 0x7F | (data[2] << 7 if body == 3 else 0))
    return reader.read(data, 0, body, end, b"\0\x08" + QUEUE.encode(), lambda _: False, 100, five=True)


def test_the_reader_remembers_a_bounded_number_of_sections_and_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PublishBatchReader()
    monkeypatch.setattr(publish_batches, "MAX_SECTIONS", 1_024)
    publish_batches._SECTIONS.clear()
    for number in range(3_000):
        packet = _publish(1, (("trace", str(number)),))
        run = _read(reader, packet)
        assert run.properties == [(("trace", str(number)),)]
        assert len(publish_batches._SECTIONS) <= 1_024
    for name in OPTION_NAMES:
        assert not _read(reader, _publish(1, ((name, "1"),))).payloads
    long = (("trace", "t" * 300),)
    assert not _read(reader, _publish(1, long)).payloads


@pytest.mark.parametrize(
    ("value", "taken"), [(b"abcd", True), (b"\xc3\xbcab", True), (b"\xff\xffab", False), (b"a\0bc", False)]
)
def test_sections_of_one_form_are_held_to_what_any_section_is(value: bytes, taken: bool) -> None:
    reader = PublishBatchReader()
    first = _publish(1, (("trace", "1234"), ("partition-key", "k")))
    assert _read(reader, first).payloads
    run = _read(reader, first.replace(b"1234", value))
    assert run.properties == ([(("trace", value.decode()), ("partition-key", "k"))] if taken else None)
    # As long, but not of that form: other names, an option, another split of the same bytes.
    for pairs in ((("trice", "1234"), ("partition-key", "k")), (("trac", "12345"), ("partition-key", "k"))):
        assert _read(reader, _publish(1, pairs)).properties == [pairs]
    assert not _read(reader, _publish(1, (("delay", "1234"), ("partition-key", "k")))).payloads
    assert _read(reader, first).payloads


def test_no_packet_is_read_out_of_the_payload_of_a_large_one() -> None:
    """Its remaining length has three bytes. Where two of them are taken for all, packets would begin in the payload,
    whoever wrote that."""
    settings: dict[str, object] = {"max_message_bytes": 300_000, "max_depth": 400}
    large = bytearray(_publish(0x0100, (), bytes(200_000)))
    assert large[1] >= 0x80
    assert large[2] >= 0x80
    shorter = 3 + (large[1] & 0x7F | large[2] << 7)
    for at in range(shorter, len(large) - shorter, shorter):
        large[at : at + 16] = large[:16]  # up to the first byte of the packet id, and what is taken for no properties
    sent = [bytes(large), *_keyed(10)]
    whole, single = Life(_config(1, **settings)), Life(_config(1, **settings))
    assert whole.send([b"".join(sent)]) == single.send(sent)
    assert whole.node.engine.stats("q").enqueued == 11


@pytest.mark.parametrize("bound", ["$queue/q", "$queue/q/key", "$queue/q/#"])
def test_queues_bound_to_a_topic_of_a_batch_get_its_messages(bound: str) -> None:
    """Topics of one queue may be bound to others, each to its own."""
    topics = (QUEUE, f"{QUEUE}/key", f"{QUEUE}/other")
    sent = [_publish(number + 1, (), bytes(number), topics[number % 3]) for number in range(24)]
    seen = []
    for chunks in ([b"".join(sent)], sent):
        life = Life(_config(1))
        life.node.engine.create_queue("copies", {"topics": [bound]}, NOW)
        seen.append(life.send(chunks))
        wanted = {"$queue/q": 8, "$queue/q/key": 8, "$queue/q/#": 24}[bound]
        assert life.node.engine.stats("copies").depth == wanted
    assert seen[0] == seen[1]
