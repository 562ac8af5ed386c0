"""What exactly fits, fits, one less does not: each limit of what a client may have, by every way that leads to it.

A way brings messages to a client, and says how many came, or wait. It is measured without a limit first; then the limit
is what it took, one more, and one less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from assay.reference_broker.config import BrokerConfig, LimitsConfig, MqttConfig
from assay.reference_broker.core.rates import ArrivalRates
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from tests.mqtt.conftest import Client, World

COUNT = 5
FOR_EVER = p.Properties(session_expiry_interval=0xFFFFFFFF)
_SIZES = (40, 200, 40, 77, 500)


class Seen(NamedTuple):
    """How many messages are where they may be; messages and bytes then, and bytes of the last."""

    count: int
    used_bytes: int
    last_bytes: int


def _publishes(topic: str, sizes: tuple[int, ...] = (60,) * COUNT) -> list[p.Publish]:
    return [
        p.Publish(topic=topic, payload=b"%d" % number * size, qos=1, packet_id=number)
        for number, size in enumerate(sizes, 1)
    ]


def _subscribe(client: Client, topic_filter: str) -> None:
    client.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=1),)))
    client.take()


def _send(world: World, packets: list[p.Publish], *, together: bool) -> None:
    publisher = world.connect("publisher")
    for some in [packets] if together else [[packet] for packet in packets]:
        publisher.send(*some)


def _seen(world: World, client_id: str, *, queued: bool = False) -> Seen:
    session = world.node.state.sessions[client_id]
    waiting = list(session.queued) if queued else list(session.in_flight.values())
    size = session.queued_bytes if queued else session.in_flight_bytes
    last = waiting[-1].message.memory_bytes if queued and waiting else 0
    return Seen(len(waiting), size, last)


# -- ways ------------------------------------------------------------------------------------------------------------


def _connected(world: World, receive_maximum: int | None = None, topic_filter: str = "t") -> Client:
    properties = p.Properties(session_expiry_interval=1_000, receive_maximum=receive_maximum)
    client = world.connect("c", properties=properties)
    _subscribe(client, topic_filter)
    return client


def one_by_one(world: World, receive_maximum: int | None) -> Seen:
    _connected(world, receive_maximum)
    _send(world, _publishes("t"), together=False)
    return _seen(world, "c")


def in_one_chunk(world: World, receive_maximum: int | None) -> Seen:
    _connected(world, receive_maximum)
    _send(world, _publishes("t"), together=True)
    return _seen(world, "c")


def of_many_sizes(world: World, receive_maximum: int | None) -> Seen:
    _connected(world, receive_maximum)
    _send(world, _publishes("t", _SIZES), together=True)
    return _seen(world, "c")


def by_a_share(world: World, receive_maximum: int | None) -> Seen:
    _connected(world, receive_maximum, "$share/g/t")
    _send(world, _publishes("t"), together=False)
    return _seen(world, "c")


def out_of_the_session(world: World, receive_maximum: int | None) -> Seen:
    _connected(world).lose()
    _send(world, _publishes("t", _SIZES), together=False)
    world.connect("c", clean_start=False, properties=p.Properties(receive_maximum=receive_maximum))
    return _seen(world, "c")


def when_others_are_done(world: World, receive_maximum: int | None) -> Seen:
    """Behind one that takes all the room until it is acknowledged."""
    client = _connected(world, receive_maximum)
    large = [p.Publish(topic="t", payload=bytes(100_000), qos=1, packet_id=number) for number in range(1, COUNT + 1)]
    _send(world, large + _publishes("t"), together=False)
    while first := [
        packet for packet in client.take() if isinstance(packet, p.Publish) and packet.payload[:1] == b"\0"
    ]:
        for packet in first:
            client.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=packet.packet_id))
    return _seen(world, "c")


def from_a_queue(world: World, receive_maximum: int | None) -> Seen:
    _connected(world, receive_maximum, "$queue/q")
    _send(world, _publishes("$queue/q", _SIZES), together=False)
    return _seen(world, "c")


def from_a_queue_that_is_full(world: World, receive_maximum: int | None) -> Seen:
    _send(world, _publishes("$queue/q"), together=True)
    _connected(world, receive_maximum, "$queue/q")
    return _seen(world, "c")


IN_FLIGHT: tuple[Callable[[World, int | None], Seen], ...] = (
    one_by_one,
    in_one_chunk,
    of_many_sizes,
    by_a_share,
    out_of_the_session,
    when_others_are_done,
    from_a_queue,
    from_a_queue_that_is_full,
)


def _world(**limits: Any) -> World:
    return World(BrokerConfig(mqtt=MqttConfig(**limits)))


@pytest.mark.parametrize("way", IN_FLIGHT)
def test_in_flight_to_a_client(way: Callable[[World, int | None], Seen]) -> None:
    free = way(_world(), None)
    assert free.count == COUNT
    for more, count in ((1, COUNT), (0, COUNT), (-1, COUNT - 1)):
        assert way(_world(max_inflight_out=COUNT + more), None).count == count
        assert way(_world(), COUNT + more).count == count, "as the client says itself"
        seen = way(_world(max_inflight_bytes=free.used_bytes + more), None)
        assert seen.used_bytes <= free.used_bytes + more
        # Messages that do not fit as a block go one by one, and take more.
        assert seen.count == count or (way in (in_one_chunk, of_many_sizes) and 0 < seen.count < count < COUNT)
    everything = way(_world(max_inflight_out=COUNT, max_inflight_bytes=free.used_bytes), COUNT)
    assert everything == free


def _offline(world: World, sizes: tuple[int, ...], topic_filter: str, *, together: bool) -> Seen:
    _connected(world, None, topic_filter).lose()
    _send(world, _publishes("t", sizes), together=together)
    return _seen(world, "c", queued=True)


@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
@pytest.mark.parametrize("sizes", [(60,) * COUNT, _SIZES])
@pytest.mark.parametrize("together", [False, True])
def test_queued_for_a_client(topic_filter: str, sizes: tuple[int, ...], together: bool) -> None:
    def seen(**limits: int) -> Seen:
        return _offline(_world(**limits), sizes, topic_filter, together=together)

    free = seen()
    assert free.count == COUNT
    # Of what all sessions hold nobody gets more than what is left: twice as much, less the newest.
    shared = 2 * free.used_bytes - free.last_bytes
    for more, count in ((1, COUNT), (0, COUNT), (-1, COUNT - 1)):
        assert seen(max_queued_messages=COUNT + more).count == count
        assert seen(max_queued_bytes=free.used_bytes + more).count == count
        assert seen(max_held_bytes=shared + more).count == count


@pytest.mark.parametrize("topic", ["t", "$queue/q"])
def test_publishes_that_are_not_answered(topic: str) -> None:
    """Of QoS 2, until they are released: one more is an error of the client."""
    for count in (1, COUNT):
        for more, closed in ((0, False), (-1, True)):
            client = _world(receive_maximum=max(1, count + more)).connect("c")
            publishes = [
                p.Publish(topic=topic, payload=b"x", qos=2, packet_id=number + 1)
                for number in range(count if count > 1 else count - more)
            ]
            client.send(*publishes)
            assert client.closed == closed


def test_a_client_waits_while_too_much_of_it_is_not_confirmed() -> None:
    """Beyond four times the Receive Maximum, which binds no client of 3.1.1."""
    for count, waits in ((12, False), (13, True)):
        world = _world(receive_maximum=3)
        client = world.connect("c", p.V311)
        packets = [p.Publish(topic="$queue/q", payload=b"x", qos=1, packet_id=n + 1) for n in range(count)]
        data = b"".join(encode_packet(packet, p.V311) for packet in packets)
        world.node.receive(client.connection, data, world.now)
        assert client.connection.inbound.unconfirmed == count
        assert client.connection.wants_pause == waits
        world.turn()
        assert not client.connection.wants_pause


def test_bytes_of_packets_and_payloads() -> None:
    packet = p.Publish(topic="topic", payload=b"x" * 300, qos=1, packet_id=1)
    size = len(encode_packet(packet, p.V5))
    for more, taken in ((1, True), (0, True), (-1, False)):
        client = _world(max_packet_bytes=size + more).connect("c")
        client.send(packet)
        assert client.closed != taken
        client = World(BrokerConfig(limits=LimitsConfig(max_payload_bytes=300 + more))).connect("c")
        (answer,) = client.send(packet)
        assert isinstance(answer, p.Acknowledgement)
        assert answer.reason == (0x10 if taken else 0x97)


def test_addresses_that_are_remembered() -> None:
    """One that had its arrival is known for as long as there is room."""
    for most in (COUNT - 1, COUNT, COUNT + 1):
        rates = ArrivalRates(1.0, 1, most)
        assert all(rates.allows(str(number), 0.0) for number in range(COUNT))
        assert len(rates) == min(COUNT, most)
        assert rates.allows("0", 0.1) == (most < COUNT)
