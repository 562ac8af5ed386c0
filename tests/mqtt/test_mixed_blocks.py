"""Publishes of many topics and sizes end as the same packets do one by one, wherever their bytes are cut."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.conformance.wire import Connect, Properties, Publish, Subscribe, Subscription
from assay.conformance.wire.decode import Decoder
from assay.conformance.wire.encode import encode
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    BrokerConfig,
    DefaultAccess,
    LimitsConfig,
    MqttConfig,
    Permission,
)
from assay.reference_broker.mqtt.batches.runs import MixedRun
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound, Plan
from assay.reference_broker.node import BrokerNode

NOW = 1_700_000_000.0
VERSIONS = (4, 5)
TOPICS = ("a", "a/b", "a/long/" + "x" * 120, "b", "b/c", "c", "own", "é/日", "a/1/2/3/4/5", "a/forbidden", "$x")


def _config() -> BrokerConfig:
    return BrokerConfig(
        mqtt=MqttConfig(max_packet_bytes=18_000, max_topic_levels=5, receive_maximum=30),
        limits=LimitsConfig(max_payload_bytes=17_000),
        acl=AclConfig(
            default=DefaultAccess.ALLOW,
            rules=(AclRuleConfig(topic="a/forbidden", client="publisher", access=Permission.DENY),),
        ),
    )


class Life:
    """A node with a publisher and whoever subscribes."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.node = BrokerNode(_config(), None, random.Random(1), NOW)
        self.publisher = self.connect("publisher")
        self.clients = [self.publisher]

    def connect(self, client_id: str, version: int = 0, most_bytes: int | None = None) -> MqttConnection:
        version = version or self.version
        connection = self.node.accept(client_id, NOW)
        own = Properties(maximum_packet_size=most_bytes) if version == 5 else Properties()
        self.node.receive(
            connection, encode(Connect(version=version, client_id=client_id, clean=True, properties=own), version), NOW
        )
        self.turn()
        connection.take_output()
        return connection

    def subscribe(self, connection: MqttConnection, topic_filter: str, qos: int, **options: bool) -> None:
        packet = Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic_filter, qos=qos, **options),))
        self.node.receive(connection, encode(packet, connection.version), NOW)
        self.turn()
        connection.take_output()

    def turn(self) -> None:
        for _ in range(3):
            self.node.take_dirty(NOW)
            self.node.tick(NOW)

    def send_plainly(self, frames: Iterable[bytes]) -> tuple[object, ...]:
        """Likewise, each packet by itself and the general way."""

        def renew(inbound: Inbound, plan: Plan, _qos: int) -> None:
            plan.epoch, plan.targets = inbound._broker.tree.epoch, None

        with mock.patch.object(Inbound, "renew", renew):
            return self.send(frames)

    def send(self, chunks: Iterable[bytes]) -> tuple[Any, ...]:
        """What can be seen once the publisher has sent these chunks."""
        for chunk in chunks:
            if not self.publisher.closing:
                self.node.receive(self.publisher, chunk, NOW)
            self.turn()
        for _ in range(200):
            self.turn()
        traffic = self.node.state.traffic
        return (
            [client.take_output() for client in self.clients],
            self.publisher.closing,
            (traffic.publishes_received, traffic.payload_bytes_received),
            (traffic.publishes_sent, traffic.payload_bytes_sent, traffic.dropped, self.node.state.published),
        )


def _each_by_order(version: int, seen: tuple[Any, ...]) -> tuple[object, ...]:
    """What was seen; of the publisher's own output deliveries and acknowledgements, each in its order: how one stands
    to the other is nobody's rule.
    """
    (output, *others), *rest = seen
    said = list(Decoder(version).feed(output))
    deliveries = [packet for packet in said if isinstance(packet, Publish)]
    return deliveries, [packet for packet in said if not isinstance(packet, Publish)], others, *rest


receivers = st.lists(
    st.tuples(
        st.sampled_from(["a/#", "#", "#", "+/+", "b", "b/c", "+", "own"]),
        st.sampled_from([0, 0, 1, 2]),
        st.sampled_from([0, 0, 0, 9]),  # 9 = the other version
        st.sampled_from([None, None, 60]),
    ),
    max_size=4,
)


@st.composite
def packets(draw: st.DrawFn) -> list[tuple[str, int, int, str]]:
    """Few topics, sizes and oddities at a time: what stands side by side is mostly alike, so that blocks form."""
    topics = draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3))
    levels = draw(st.sampled_from([(0,), (1,), (0, 1), (1, 2)]))
    sizes = draw(
        st.lists(st.sampled_from([0, 1, 5, 100, 127, 128, 300, 16_370, 16_384, 17_001]), min_size=1, max_size=3)
    )
    oddity = draw(st.sampled_from(["", "retain", "dup", "no id", "long", "property"]))
    parts = (
        st.sampled_from(topics),
        st.sampled_from(levels),
        st.sampled_from(sizes),
        st.sampled_from(["", "", oddity]),
    )
    return draw(st.lists(st.tuples(*parts), min_size=2, max_size=25))


def _encoded(version: int, sent: Sequence[tuple[str, int, int, str]]) -> list[bytes]:
    frames = []
    for number, (topic, qos, size, oddity) in enumerate(sent, 1):
        properties = Properties(content_type="t") if oddity == "property" and version == 5 else Properties()
        packet = Publish(
            topic=topic,
            payload=bytes([number % 256]) * size,
            qos=qos,
            packet_id=number if qos else 0,
            retain=oddity == "retain",
            dup=oddity == "dup" and qos > 0,
            properties=properties,
        )
        frame = encode(packet, version)
        if oddity == "no id" and qos:
            at = frame.index(topic.encode()) + len(topic.encode())
            frame = frame[:at] + b"\0\0" + frame[at + 2 :]
        if oddity == "long" and version == 4 and frame[1] < 0x80:
            # 3.1.1 does not demand that the remaining length is in its shortest form.
            frame = frame[:1] + bytes([frame[1] | 0x80, 0]) + frame[2:]
        frames.append(frame)
    return frames


def _life(version: int, wanted: Sequence[tuple[str, int, int, int | None]]) -> Life:
    life = Life(version)
    for number, (topic_filter, qos, other, most_bytes) in enumerate(wanted):
        if topic_filter == "own":
            life.subscribe(life.publisher, topic_filter, qos)
            continue
        client = life.connect(f"c{number}", 9 - version if other else version, most_bytes)
        life.subscribe(client, topic_filter, qos)
        life.clients.append(client)
    return life


@given(st.sampled_from(VERSIONS), receivers, packets(), st.lists(st.integers(0, 60_000), max_size=4))
@example(4, [("own", 1, 0, None)], [("own", 1, 0, ""), ("own", 1, 0, "")], [])
@settings(max_examples=60, deadline=None)
def test_blocks_end_as_single_packets_do(
    version: int,
    wanted: Sequence[tuple[str, int, int, int | None]],
    sent: Sequence[tuple[str, int, int, str]],
    cuts: list[int],
) -> None:
    frames = _encoded(version, sent)
    together = b"".join(frames)
    places = sorted({0, len(together), *(cut % (len(together) + 1) for cut in cuts)})
    in_chunks, one_by_one = _life(version, wanted), _life(version, wanted)
    known = _encoded(version, [(topic, qos, 1, "") for topic, qos, *_ in sent])
    assert in_chunks.send(known) == one_by_one.send_plainly(known)
    found = in_chunks.send(together[first:end] for first, end in pairwise(places))
    assert _each_by_order(version, found) == _each_by_order(version, one_by_one.send_plainly(frames))


Receiver = tuple[str, int, int, int | None]
ALL: Receiver = ("#", 0, 0, None)
SMALL: Receiver = ("#", 0, 0, 60)
"""Takes 60 bytes at most."""
ODD: dict[str, tuple[int, tuple[Receiver, ...], int, tuple[str, int, int, str]]] = {
    "larger than a receiver takes": (5, (SMALL, ALL), 0, ("b", 0, 100, "")),
    "larger than a receiver takes, QoS 1": (5, (SMALL, ALL), 1, ("b", 1, 100, "")),
    "larger than the limit of payloads": (4, (ALL,), 0, ("b", 0, 17_001, "")),
    "larger than the limit of packets": (4, (ALL,), 0, ("b", 0, 18_001, "")),
    "a length of three bytes": (4, (ALL,), 0, ("b", 0, 16_384, "")),
    "a length that is not in its shortest form": (4, (ALL,), 0, ("b", 0, 1, "long")),
    "not in its shortest form, QoS 1": (4, (ALL,), 1, ("b", 1, 1, "long")),
    "a property": (5, (ALL,), 0, ("b", 0, 1, "property")),
    "a property, QoS 1": (5, (ALL,), 1, ("b", 1, 1, "property")),
    "retained": (4, (ALL,), 0, ("b", 0, 1, "retain")),
    "said again": (4, (ALL,), 1, ("b", 1, 1, "dup")),
    "without an id": (4, (ALL,), 1, ("b", 1, 1, "no id")),
    "another QoS": (4, (ALL,), 0, ("b", 1, 1, "")),
    "a topic with more receivers": (4, (ALL, ("b", 0, 0, None)), 0, ("b", 0, 1, "")),
    "a topic with fewer receivers": (4, (("a/#", 0, 0, None),), 0, ("b", 0, 1, "")),
    "a receiver that was granted more": (4, (("a/#", 0, 0, None), ("b", 1, 0, None)), 1, ("b", 1, 1, "")),
    "some receivers that were granted more": (4, (ALL, ("b", 1, 0, None)), 1, ("b", 1, 1, "")),
    "QoS 2 to QoS 0": (4, (ALL,), 1, ("b", 2, 1, "")),
    "a receiver of the other version": (4, (ALL, ("b", 0, 9, None)), 0, ("b", 0, 1, "")),
    "too many levels": (4, (ALL,), 0, ("a/1/2/3/4/5", 0, 1, "")),
    "not allowed": (4, (ALL,), 0, ("a/forbidden", 0, 1, "")),
    "not allowed, QoS 1": (4, (ALL,), 1, ("a/forbidden", 1, 1, "")),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_unlike_ends_a_block(what: str) -> None:
    version, wanted, qos, odd = ODD[what]
    like = [("a/b", qos, 3, ""), ("a", qos, 5, "")]
    frames = _encoded(version, [*like, odd, *like, ("a/b", qos, 90 if SMALL in wanted else 3, "")])
    in_chunks, one_by_one = _life(version, wanted), _life(version, wanted)
    known = _encoded(version, [*like, (odd[0], odd[1], 1, "")])
    assert in_chunks.send(known) == one_by_one.send_plainly(known)
    assert in_chunks.send([b"".join(frames)]) == one_by_one.send_plainly(frames)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wire", ["3003000161", "3001", "30020001", "32040001610001", "3203000161", "3202000161"])
def test_damage_behind_a_block_ends_as_by_itself(version: int, wire: str) -> None:
    """Lengths that leave no room for a topic, an id or the properties."""
    qos = bytes.fromhex(wire)[0] >> 1 & 3
    frames = [*_encoded(version, [("a", qos, 1, ""), ("a/b", qos, 2, "")]), bytes.fromhex(wire)]
    in_chunks, one_by_one = _life(version, [ALL]), _life(version, [ALL])
    in_chunks.send(frames[:2])
    one_by_one.send_plainly(frames[:2])
    assert in_chunks.send([b"".join(frames)]) == one_by_one.send_plainly(frames)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_was_granted_more_of_one_topic(version: int) -> None:
    """The receivers are the same, and get one topic as it is published, and another without its packet id."""
    lives = Life(version), Life(version)
    for life in lives:
        client = life.connect("both")
        life.subscribe(client, "a/#", 0)
        life.subscribe(client, "b", 1)
        life.clients.append(client)
    frames = _encoded(version, [("a", 1, 1, ""), ("b", 1, 1, ""), ("a", 1, 2, ""), ("b", 1, 3, ""), ("b", 1, 3, "")])
    assert lives[0].send(frames[:2]) == lives[1].send_plainly(frames[:2])
    assert lives[0].send([b"".join(frames)]) == lives[1].send_plainly(frames)


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements_stay_in_order_behind_one_that_waits(version: int) -> None:
    """A publish to a queue is confirmed at the end of the turn; the block behind it must not overtake it."""
    life = _life(version, [ALL])
    frames = _encoded(
        version, [("a", 1, 1, ""), ("a/b", 1, 2, ""), ("$queue/q", 1, 1, ""), ("a", 1, 3, ""), ("a/b", 1, 4, "")]
    )
    life.send(frames[:2])
    outputs = life.send([b"".join(frames)])[0]
    assert isinstance(outputs, list)
    assert [outputs[0][at + 3] for at in range(0, len(outputs[0]), 4)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("granted", [0, 1])
def test_a_block_keeps_to_the_receive_maximum(granted: int) -> None:
    """What waits for its confirm counts, and what is acknowledged behind it (MQTT-3.3.4-9)."""
    lives = _life(5, [("#", granted, 0, None)]), _life(5, [("#", granted, 0, None)])
    frames = _encoded(5, [("$queue/q", 1, 1, ""), *(("a", 1, number, "") for number in range(40))])
    assert lives[0].send(frames[1:2]) == lives[1].send_plainly(frames[1:2])
    found = lives[0].send([b"".join(frames)])
    assert found == lives[1].send_plainly([b"".join(frames)])
    assert found[1], "the client sent more than it may"


def test_a_changed_subscription_ends_what_is_known_of_receivers() -> None:
    life = _life(4, [ALL])
    frames = _encoded(4, [("a", 0, 1, ""), ("a/b", 0, 2, ""), ("a", 0, 3, "")])
    life.send(frames)
    late = life.connect("late")
    life.subscribe(late, "a/b", 0)
    life.send([b"".join(frames)])
    assert late.take_output() == frames[1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("qos", "granted"), [(0, 0), (0, 1), (1, 0)])
def test_topics_and_sizes_take_turns_in_one_block(version: int, qos: int, granted: int) -> None:
    sent = [(TOPICS[number % 3], qos, 10 + 7 * number, "") for number in range(60)]
    frames = _encoded(version, sent)
    life = _life(version, [("a/#", granted, 0, None), ("a/#", granted, 0, None)])
    life.send(_encoded(version, [(topic, qos, 1, "") for topic in TOPICS[:3]]))
    with mock.patch.object(Inbound, "on_plain", side_effect=AssertionError("one by one")):
        outputs = life.send([b"".join(frames)])[0]
    assert isinstance(outputs, list)
    lowered = _encoded(version, [(topic, 0, size, "") for topic, _, size, _ in sent])
    # The payloads of these tell the packets apart; their sizes and topics are the same.
    assert outputs[1] == outputs[2] == b"".join(lowered)
    assert len(outputs[0]) == (4 * len(sent) if qos else 0)


def test_a_block_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a chunk, one call takes so much of it at most, and the turn is told."""
    monkeypatch.setattr(inbound, "MAX_BLOCK", 32)
    life = _life(4, [("a/#", 0, 0, None)])
    frames = _encoded(4, [(TOPICS[number % 2], 0, number % 5, "") for number in range(200)])
    life.send(frames[:2])
    blocks: list[int] = []
    forward = Inbound.forward

    def noted(self: Inbound, block: bytes, count: int, *rest: object) -> None:
        blocks.append(count)
        forward(self, block, count, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Inbound, "forward", noted)
    before = life.node.state.work
    life.node.receive(life.publisher, b"".join(frames), NOW)
    assert max(blocks) <= 32 + 1
    assert sum(blocks) == 200
    assert life.node.state.work - before >= 200 >> 5


def test_a_block_costs_a_share_of_its_receivers() -> None:
    """So that a turn ends sooner, the more there are: one for each 32."""
    costs = []
    for receivers in (1, 31, 32, 200):
        life = _life(4, [("a/#", 0, 0, None)] * receivers)
        frames = _encoded(4, [("a/b", 0, 10, "")] * 40)
        life.send(frames)
        before = life.node.state.work
        life.node.receive(life.publisher, b"".join(frames), NOW)
        costs.append(life.node.state.work - before)
    assert [cost - costs[0] for cost in costs] == [0, 0, 1, 200 >> 5]


@pytest.mark.parametrize(("receivers", "blocks"), [(3, 1), (4, 6)])
def test_many_receivers_are_not_compared_for_each_packet(
    monkeypatch: pytest.MonkeyPatch, receivers: int, blocks: int
) -> None:
    """Two topics reach the same clients by filters of their own: a long list of these is not gone through each time."""
    monkeypatch.setattr(inbound, "COMPARED_RECEIVERS", 3)
    life = Life(4)
    for number in range(receivers):
        client = life.connect(f"c{number}")
        life.subscribe(client, "a", 0)
        life.subscribe(client, "b", 0)
        life.clients.append(client)
    frames = _encoded(4, [("ab"[number % 2], 0, number, "") for number in range(6)])
    life.send(frames[:2])
    with mock.patch.object(Inbound, "forward", autospec=True, side_effect=Inbound.forward) as forward:
        outputs = life.send([b"".join(frames)])[0]
    assert forward.call_count == blocks
    assert isinstance(outputs, list)
    assert outputs[1:] == [b"".join(frames)] * receivers


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_looking_for_blocks_is_linear(qos: int) -> None:
    """Packets that form no block, since one of another kind stands between any two, are looked at twice at most."""
    life = _life(4, [("#", 1, 0, None)])
    sent = [("a", qos, number % 9, "retain" if number % 2 else "") for number in range(500)]
    looked_at = 0
    original = Inbound._block

    def counted(self: Inbound, data: bytes, position: int, *rest: object) -> object:
        nonlocal looked_at
        block = original(self, data, position, *rest)  # type: ignore[arg-type]
        looked_at += len(block.ends) + 1
        return block

    with mock.patch.object(Inbound, "_block", counted):
        life.send([b"".join(_encoded(4, sent))])
    assert looked_at <= 2 * len(sent)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_new_topics_join_a_block_and_a_turn_has_so_many_of_them(qos: int) -> None:
    life = _life(4, [("#", qos, 0, None)])
    sent = [(f"new/{number}", qos, number % 9, "") for number in range(3_000)]
    blocks: list[int] = []
    original = Inbound._block

    def counted(self: Inbound, *arguments: object) -> object:
        block = original(self, *arguments)  # type: ignore[arg-type]
        blocks.append(len(block.ends))
        return block

    with mock.patch.object(Inbound, "_block", counted):
        life.node.receive(life.publisher, b"".join(_encoded(4, sent)), NOW)
    assert 900 < sum(blocks) <= 1_100
    assert max(blocks) > 900
    life.send([])
    assert life.node.state.published == 3_000


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_receivers_of_a_block_get_ids_of_their_own_and_all_of_it_again(version: int, qos: int) -> None:
    sent = [(TOPICS[number % 4], qos, 10 + 7 * number, "") for number in range(25)]
    life = _life(version, [("#", 2, 0, None), ("#", qos, 0, None)])
    with mock.patch.object(Inbound, "on_plain", side_effect=AssertionError("one by one")):
        outputs = life.send([b"".join(_encoded(version, sent))])[0]
    assert isinstance(outputs, list)
    assert len(outputs[0]) == 4 * len(sent)
    wanted = [(topic, qos, bytes([number]) * size) for number, (topic, _, size, _) in enumerate(sent, 1)]
    for output, client in zip(outputs[1:], life.clients[1:], strict=True):
        found = [packet for packet in Decoder(version).feed(output) if isinstance(packet, Publish)]
        assert [(packet.topic, packet.qos, packet.payload) for packet in found] == wanted
        assert [packet.packet_id for packet in found] == list(range(1, 26))
        held = client.active_session.in_flight
        again = [held[packet.packet_id].message_for(packet.packet_id) for packet in found]
        assert [(message.topic, message.qos, message.payload) for message in again] == wanted
        assert {message.publisher for message in again} == {"publisher"}


@pytest.mark.parametrize(("count", "others", "wanted"), [(2, 0, "AlikeRun"), (7, 3, "MixedRun"), (8, 3, "AlikeRun")])
def test_few_packets_that_are_alike_are_a_run_where_no_others_follow(count: int, others: int, wanted: str) -> None:
    """To join them with what is behind them takes longer, and pays only where there is something."""
    life = _life(4, [("#", 1, 0, None)])
    sent = [("a", 1, 5, "")] * count + [("b", 1, number, "") for number in range(others)]
    kinds: list[str] = []

    def forward(_self: Inbound, _targets: object, _qos: int, run: object) -> bool:
        kinds.append(type(run).__name__)
        return False

    with mock.patch.object(Inbound, "_forward_run", forward):
        life.send([b"".join(_encoded(4, sent))])
    assert kinds[0] == wanted


def test_a_block_in_flight_takes_the_memory_that_it_is_charged_with() -> None:
    frames = _encoded(4, [("a/topic", 1, 20 + number % 50, "") for number in range(2_000)])
    ends = list(accumulate(map(len, frames)))
    topic_ends = [end - len(frame) + 11 for end, frame in zip(ends, frames, strict=True)]

    def taken() -> tuple[int, int]:
        """Bytes, and those that it is charged with."""
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            run = MixedRun(b"".join(frames), topic_ends, ends, 2)
            assert run.with_ids(run.ids) == b"".join(frames)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return after - before, run.size

    # Other threads may take memory meanwhile: the least of a few tries is the block's own.
    memory, size = min(taken() for _ in range(5))
    assert size <= memory <= 1.05 * size
