"""The fast ways of queue clients do what the general way does: bytes in one chunk and packet by packet end alike."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Connect, Properties, Puback, Publish, Subscribe, Subscription
from assay.conformance.wire.decode import Decoder
from assay.conformance.wire.encode import encode
from assay.reference_broker.config import AclConfig, AclRuleConfig, BrokerConfig, MqttConfig, Permission, QueuesConfig
from assay.reference_broker.config_tenants import TenantConfig
from assay.reference_broker.mqtt.batches import ack_runs
from assay.reference_broker.mqtt.batches.ack_runs import AckRun, AckRunReader, read_ack_run
from assay.reference_broker.mqtt.batches.queue_deliveries import DeliveryEncoder
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.mqtt.wire.packets import V5
from assay.reference_broker.mqtt.wire.publish_encoder import PublishEncoder
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import Delivery, QueueEngine
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.memory_disk import MemoryDisk

NOW = 1_700_000_000.0
DEFAULTS = {"durability": "memory", "partitions": 1, "max_depth": 40, "max_message_bytes": 200}


class Life:
    """A node with a publisher and a consumer; input goes in as one chunk, or each packet alone."""

    def __init__(
        self, *, whole: bool, version: int = 5, config: BrokerConfig | None = None, disk: Disk | None = None
    ) -> None:
        self.whole = whole
        config = config or BrokerConfig(queues=QueuesConfig(defaults=DEFAULTS), mqtt=MqttConfig(receive_maximum=60))
        self.node = BrokerNode(config, disk, random.Random(1), NOW)
        self.publisher = self._connect("publisher", version)
        self.consumer = self._connect("consumer", 5)
        joining = Properties(user_property=(("consumer-group", "g"),))
        subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter="$queue/q", qos=1),), properties=joining)
        self.send(self.consumer, [encode(subscribe, 5)])
        self.output(self.consumer)

    def _connect(self, client_id: str, version: int) -> MqttConnection:
        connection = self.node.accept(client_id, NOW)
        properties = Properties(receive_maximum=1_000) if version == 5 else Properties()
        packet = Connect(version=version, client_id=client_id, clean=True, properties=properties)
        self.send(connection, [encode(packet, version)])
        self.output(connection)
        return connection

    def send(self, connection: MqttConnection, packets: Sequence[bytes]) -> None:
        # One $ack is a run of one; here, those that come alone go the general way.
        general = mock.patch.object(AckRunReader, "read", return_value=None)
        with contextlib.nullcontext() if self.whole else general:
            for chunk in [b"".join(packets)] if self.whole else packets:
                if not connection.closing:
                    self.node.receive(connection, chunk, NOW)
        for _ in range(3):
            self.node.take_dirty(NOW)

    def output(self, connection: MqttConnection) -> bytes:
        return connection.take_output()

    def seen(self) -> tuple[object, ...]:
        state = self.node.state
        figures = state.traffic.publishes_received, state.traffic.payload_bytes_received, state.traffic.publishes_sent
        stats = [self.node.engine.stats(queue) for queue in self.node.engine.queues()]
        return (
            self.output(self.publisher),
            self.output(self.consumer),
            self.publisher.closing,
            self.consumer.closing,
            figures,
            stats,
        )


def _publish(packet_id: int, *, payload: bytes = b"x", topic: str = "$queue/q", version: int = 5) -> bytes:
    return encode(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id), version)


def _ack(packet_id: int, *pairs: tuple[str, str], topic: str = "$queue/q/$ack", payload: bytes = b"") -> bytes:
    properties = Properties(user_property=pairs)
    return encode(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, properties=properties), 5)


def _both(publishes: Sequence[bytes], acks: Sequence[bytes], *, version: int = 5) -> tuple[Life, Life]:
    lives = Life(whole=True, version=version), Life(whole=False, version=version)
    for life in lives:
        life.send(life.publisher, publishes)
        life.send(life.consumer, acks)
    return lives


TOPICS = ["$queue/q"] * 9 + ["$queue/q/key"] * 9 + ["$queue/q/another/key", "$queue/other", "$queue/q/$ack"]


def _publishes(version: int, ids: Sequence[int], topics: Sequence[str]) -> st.SearchStrategy[list[bytes]]:
    packet = st.builds(
        _publish,
        st.sampled_from(ids),
        payload=st.sampled_from([b"x", b"y", b"", bytes(130), bytes(150), bytes(201)]),
        topic=st.sampled_from(topics),
        version=st.just(version),
    )
    return st.lists(packet, max_size=50)


publishes = _publishes(5, [*range(1, 40)] * 2 + [0], TOPICS)
mixed = _publishes(5, range(1, 60), TOPICS[:-2])
plain_runs = st.builds(
    lambda count, size: [_publish(number + 1, payload=bytes(size)) for number in range(count)],
    st.integers(0, 50),
    st.integers(0, 210),
)
places = st.one_of(
    st.builds(lambda offset: (("message-id", f"q:0:{offset}"), ("group-id", "g")), st.integers(0, 45)),
    st.sampled_from(
        [
            (("message-id", "q:0:1"),),
            (("group-id", "g"), ("message-id", "q:0:2")),
            (("message-id", "q:1:2"), ("group-id", "g")),
            (("message-id", "q:0:3"), ("group-id", "other")),
            (("message-id", "other:0:3"), ("group-id", "g")),
            (("message-id", "q:0:+3"), ("group-id", "g")),
            (("message-id", "q:0:3"), ("group-id", "g"), ("reason", "r")),
            (("message-id", "q:0:" + "9" * 25), ("group-id", "g")),
            (("message-id", ""), ("group-id", "")),
        ]
    ),
)
acks = st.lists(
    st.builds(
        lambda packet_id, pairs, topic, payload: _ack(packet_id, *pairs, topic=topic, payload=payload),
        st.sampled_from([*range(1, 40)] * 3 + [0]),
        places,
        st.sampled_from(["$queue/q/$ack"] * 9 + ["$queue/q/key/$ack", "$queue/q/$nack"]),
        st.sampled_from([b""] * 9 + [b"payload"]),
    ),
    max_size=60,
)
in_order = st.builds(
    lambda start, count: [
        _ack(number + 1, ("message-id", f"q:0:{start + number}"), ("group-id", "g")) for number in range(count)
    ],
    st.integers(0, 5),
    st.integers(0, 60),
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(plain_runs, mixed, publishes), st.one_of(in_order, acks))
def test_one_chunk_and_single_packets_end_alike(published: list[bytes], settled: list[bytes]) -> None:
    whole, single = _both(published, settled)
    assert whole.seen() == single.seen()


@settings(max_examples=30, deadline=None)
@given(_publishes(4, range(1, 40), TOPICS))
def test_so_they_do_in_311(published: list[bytes]) -> None:
    whole, single = _both(published, [], version=4)
    assert whole.seen() == single.seen()


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", ["publishes", "keyed", "acks"])
def test_what_waits_for_the_disk_is_answered_alike(what: str, version: int, error: OSError | None) -> None:
    """Each packet of a run hears what became of it, in its turn: also that the disk failed it."""
    config = BrokerConfig(queues=QueuesConfig(defaults=DEFAULTS | {"durability": "fsync"}))
    seen = []
    for whole in (True, False):
        life = Life(whole=whole, version=version, config=config, disk=MemoryDisk())

        def sync(life: Life, problem: OSError | None) -> bool:
            jobs = life.node.take_jobs(NOW)
            for job in jobs:
                if problem is None:
                    job.run()
                life.node.job_done(job, problem, NOW)
            life.send(life.publisher, [])
            return bool(jobs)

        sender = life.publisher
        published = [_publish(number + 1, version=version) for number in range(20)]
        if what == "keyed" and version == 5:
            published = [_ack(number + 1, ("a", "b"), topic="$queue/q", payload=b"x") for number in range(20)]
        life.send(life.publisher, published)
        if what == "acks":
            while sync(life, None):
                pass
            life.output(life.publisher)
            life.output(life.consumer)
            sender = life.consumer
            pairs = [(("message-id", f"q:0:{number}"), ("group-id", "g")) for number in range(20)]
            life.send(sender, [_ack(number + 1, *pair) for number, pair in enumerate(pairs)])
        assert not life.output(sender), "nothing is said before it is known"
        assert sync(life, error)
        while sync(life, None):
            pass
        seen.append((life.output(sender), sender.closing))
    assert seen[0] == seen[1]
    output, closing = seen[0]
    five = version == 5 or what == "acks"
    if five or error is None:
        answers = Decoder(5 if five else version).feed(output)
        assert [answer.packet_id for answer in answers if isinstance(answer, Puback)] == list(range(1, 21))
        codes = {answer.reason_code >= 0x80 for answer in answers if isinstance(answer, Puback)}
        assert codes == {error is not None}
        assert not closing
    else:
        assert closing, "3.1.1 has no other way to say so"
        assert not output


def test_a_batch_is_taken_as_one_and_its_limits_are_those_of_single_packets() -> None:
    life = Life(whole=True)
    engine = life.node.engine
    taken: list[bool] = []

    def publish_batch(*arguments: object) -> bool:
        taken.append(QueueEngine.publish_batch(engine, *arguments))  # type: ignore[arg-type]
        return taken[-1]

    engine.publish_batch = publish_batch  # type: ignore[method-assign]
    topics = ("$queue/q", "$queue/q/key", "$queue/q/another/key")
    sent = [_publish(number + 1, payload=bytes(number), topic=topics[number % 3]) for number in range(30)]
    life.send(life.publisher, sent)
    # Whatever they are like: topics of one queue, payloads of any size.
    assert taken == [True]
    # Ten more would fit; the batch must not be refused as a whole.
    life.send(life.publisher, [_publish(number + 1) for number in range(20)])
    assert taken == [True, False]
    stats = engine.stats("q")
    assert (stats.depth, stats.refused) == (40, 10)


def test_rules_of_access_hold_in_the_lanes() -> None:
    rules = (
        AclRuleConfig(topic="other", access=Permission.READWRITE),
        AclRuleConfig(topic="$queue/q", access=Permission.READ),
    )
    config = BrokerConfig(queues=QueuesConfig(defaults=DEFAULTS), acl=AclConfig(rules=rules))
    seen = []
    for whole in (True, False):
        life = Life(whole=whole, config=config)
        life.send(life.publisher, [_publish(number + 1) for number in range(20)])
        seen.append(life.seen())
        assert life.node.engine.stats("q").enqueued == 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("topic", "mqtt"),
    [
        ("$queue/q/#/$ack", MqttConfig()),
        ("$queue/q/+/$ack", MqttConfig()),
        ("$queue/q/a/b/$ack", MqttConfig(max_topic_levels=4)),
        ("$queue/q/$ack", MqttConfig(maximum_qos=0)),
    ],
)
def test_acks_on_forbidden_topics_settle_nothing_in_the_lanes_either(topic: str, mqtt: MqttConfig) -> None:
    seen = []
    for whole in (True, False):
        life = Life(whole=whole, config=BrokerConfig(queues=QueuesConfig(defaults=DEFAULTS), mqtt=mqtt))
        life.send(life.publisher, [encode(Publish(topic="$queue/q", payload=b"x", qos=0, packet_id=0), 5)] * 20)
        pairs = [(("message-id", f"q:0:{number}"), ("group-id", "g")) for number in range(20)]
        life.send(life.consumer, [_ack(number + 1, *pair, topic=topic) for number, pair in enumerate(pairs)])
        # Too many levels break no rule: each is refused by itself.
        assert life.consumer.closing is (mqtt.max_topic_levels != 4)
        assert life.node.engine.stats("q").groups[0].acked == 0
        seen.append(life.node.engine.stats("q"))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("queue", ["q", "acme.q"])
def test_beside_tenants_the_lanes_serve_who_has_none_and_reach_no_tenant(queue: str) -> None:
    queues = QueuesConfig(defaults=DEFAULTS, tenants=(TenantConfig(name="acme", users=("alice",)),))
    rule = AclRuleConfig(topic="$queue/#", access=Permission.READWRITE)  # and nobody may administer
    seen = []
    for whole in (True, False):
        life = Life(whole=whole, config=BrokerConfig(queues=queues, acl=AclConfig(rules=(rule,))))
        with mock.patch.object(life.node.engine, "publish_batch", wraps=life.node.engine.publish_batch) as runs:
            life.send(life.publisher, [_publish(number + 1, topic=f"$queue/{queue}") for number in range(20)])
        assert runs.called == (whole and queue == "q")
        pairs = [(("message-id", f"{queue}:0:{number}"), ("group-id", "g")) for number in range(20)]
        with mock.patch.object(life.node.engine, "ack_run", wraps=life.node.engine.ack_run) as runs:
            acks = [_ack(number + 1, *pair, topic=f"$queue/{queue}/$ack") for number, pair in enumerate(pairs)]
            life.send(life.consumer, acks)
        assert runs.called == (whole and queue == "q")
        seen.append(life.seen())
    assert seen[0] == seen[1]
    stats = life.node.engine.stats("q")
    assert stats.enqueued == stats.groups[0].acked == (20 if queue == "q" else 0)


@pytest.mark.parametrize("cut", range(1, 54))
def test_a_cut_off_run_is_read_as_far_as_it_is_whole(cut: int) -> None:
    first, second, third = (_ack(number, ("message-id", f"q:0:{number}"), ("group-id", "g")) for number in (1, 2, 3))
    data = first + second + third
    topic_field = b"\0\x0d$queue/q/$ack"
    run = read_ack_run(data[:-cut], 0, topic_field, b"q:")
    assert run is not None
    assert run.places == [(0, 1), (0, 2)]
    assert run.ends == [len(first), len(first) + len(second)]
    assert run.ids == b"\0\1\0\2"
    alone = read_ack_run(first + second[:-cut], 0, topic_field, b"q:")
    assert alone is not None
    assert (alone.places, alone.ids, alone.ends) == ([(0, 1)], b"\0\1", [len(first)])
    assert read_ack_run(first[:-cut], 0, topic_field, b"q:") is None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 300, 0x2632, 0]),
            st.sampled_from([0, 3, 11]),
            st.integers(0, 12),
            st.sampled_from(["g"] * 20 + ["h", "g&"]),
        ),
        min_size=1,
        max_size=150,
    ),
    st.sampled_from([0, 90, 10**18]),
    st.one_of(st.none(), st.tuples(st.integers(0, 5_000), st.integers(0, 255))),
    st.integers(0, 30),
)
def test_packets_of_one_size_are_read_as_others_are(
    named: list[tuple[int, int, int, str]], base: int, damage: tuple[int, int] | None, cut: int
) -> None:
    named = sorted(named, key=lambda each: each[1]) if cut % 2 else named
    stream = b"".join(
        _ack(packet_id, ("message-id", f"q:{partition}:{base + offset}"), ("group-id", group))
        for packet_id, partition, offset, group in named
    )
    if damage is not None:
        at = damage[0] % len(stream)
        stream = stream[:at] + bytes((damage[1],)) + stream[at + 1 :]
    stream = stream[: len(stream) - cut]
    topic_field = b"\0\x0d$queue/q/$ack"
    reader = AckRunReader()
    start = 0
    while start + 3 < len(stream):
        known = read_ack_run(stream, start, topic_field, b"q:")
        found = reader.read(stream, start, topic_field, b"q:")
        if known is None or found is None:
            assert found is known
            break
        count = len(found.places)
        assert count
        assert found == AckRun(known.group, known.places[:count], known.ids[: 2 * count], known.ends[:count])
        start = found.ends[-1]


def test_packets_of_one_size_take_the_pattern_whatever_their_number() -> None:
    for count in (8, 63, 64, 65, 200):
        stream = b"".join(_ack(7, ("message-id", f"q:1:{offset + 100}"), ("group-id", "g")) for offset in range(count))
        reader = AckRunReader()
        ack_runs._PATTERNS.clear()
        for rest in (b"", _ack(1, ("message-id", "q:0:1"), ("group-id", "g")), b"\x40\x02\0\1"):
            run = reader.read(stream + rest, 0, b"\0\x0d$queue/q/$ack", b"q:")
            assert run is not None
            assert run.places == [(1, offset + 100) for offset in range(count)]
            assert run.ends[-1] == len(stream)
        assert len(ack_runs._PATTERNS) == 1


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 65_535),
    st.text(st.characters(codec="utf-8", exclude_characters="\0+#$"), min_size=1, max_size=200),
    st.integers(0, 1_023),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    st.sampled_from([0, 1, 100, 20_000]),
)
def test_templates_give_the_bytes_of_the_general_encoder(
    packet_id: int, name: str, partition: int, offsets: list[int], payload_bytes: int
) -> None:
    lane, general = DeliveryEncoder(), PublishEncoder(V5)
    for offset in offsets:
        delivery = Delivery(
            queue=name,
            partition=partition,
            offset=offset,
            message_id=f"{name}:{partition}:{offset}",
            group="group",
            delivery_count=1,
            topic=f"$queue/{name}",
            message=Message(topic="t", payload=bytes(payload_bytes)),
        )
        message = Message(
            topic=delivery.topic, payload=bytes(payload_bytes), user_properties=delivery_properties(delivery)
        )
        data = lane.encode(packet_id, delivery)
        assert data is None or data == general.encode(packet_id, message, 0x32, (), NOW)
        assert data is not None or len(name) > 100
