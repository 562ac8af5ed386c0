"""Packet ids of QoS 2 that clients do not release: as many as there are for one client, but not for all of them."""

from __future__ import annotations

import sys

import pytest

from assay.reference_broker.config import BrokerConfig, MqttConfig
from assay.reference_broker.mqtt.sessions.session import FREE_IDS, ID_BYTES
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from tests.mqtt.conftest import Client, World

_STEP_BYTES = 1_024 * ID_BYTES


def _publish(ids: range, topic: str = "t") -> bytes:
    return b"".join(encode_packet(p.Publish(topic=topic, payload=b"", qos=2, packet_id=n), p.V311) for n in ids)


def _release(client: Client, ids: range) -> None:
    client.send(*(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=number) for number in ids))


def _received(client: Client) -> int:
    return sum(isinstance(each, p.Acknowledgement) and each.type is p.PacketType.PUBREC for each in client.inbox)


@pytest.mark.parametrize("chunk", [1, 999])
def test_a_client_may_have_all_ids_unreleased_and_they_count(make_world: type[World], chunk: int) -> None:
    world = make_world()
    client = world.connect("c", p.V311, clean_start=False)
    before = world.node.state.held.used
    ids = range(1, 65_536 if chunk > 1 else 5_000)
    for start in range(0, len(ids), chunk):
        client.send_bytes(_publish(ids[start : start + chunk]))
    while client.connection._rest is not None:
        world.turn()
    assert _received(client) == len(ids)
    session = client.connection.active_session
    counted = world.node.state.held.used - before
    assert ID_BYTES * (len(ids) - FREE_IDS) <= counted <= ID_BYTES * len(ids) + _STEP_BYTES
    assert counted == session.held_bytes
    assert sys.getsizeof(session.inbound_qos2) + 32 * len(ids) <= counted
    client.lose()
    client = world.connect("c", p.V311, clean_start=False)
    assert world.node.state.held.used - before == ID_BYTES * (len(ids) - FREE_IDS), "they are still there"
    for start in range(0, len(ids), 500):
        _release(client, ids[start : start + 500])
    client.lose()
    client = world.connect("c", p.V311, clean_start=False)
    assert world.node.state.held.used == before


@pytest.mark.parametrize("topic", ["t", "$queue/q"])
@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_all_clients_together_have_no_more_than_fit(make_world: type[World], version: int, topic: str) -> None:
    limits = MqttConfig(max_held_bytes=2 * _STEP_BYTES, receive_maximum=65_535)
    world = make_world(BrokerConfig(mqtt=limits))
    first, second, other = (world.connect(name, version) for name in "abc")

    def sends(client: Client, ids: range) -> None:
        packets = [p.Publish(topic=topic, payload=b"", qos=2, packet_id=number) for number in ids]
        for start in range(0, len(packets), 200):
            if not client.closed:
                client.send(*packets[start : start + 200])

    def taken(client: Client) -> int:
        answers = [each for each in client.inbox if isinstance(each, p.Acknowledgement)]
        return sum(each.type is p.PacketType.PUBREC and each.reason < 0x80 for each in answers)

    most = FREE_IDS + 1_024
    sends(first, range(1, most + 1))
    assert taken(first) == most, "exactly as many as the limit"
    sends(first, range(most + 1, most + 2))
    assert taken(first) == most
    if version == p.V5:
        refused = first.inbox[-1]
        assert isinstance(refused, p.Acknowledgement)
        assert refused.reason == 0x97
        assert not first.closed
        _release(first, range(1, 2))
        sends(first, range(most + 1, most + 2))
        assert taken(first) == most + 1, "one that is released makes room"
    else:
        assert first.closed
    sends(other, range(1, FREE_IDS + 1))
    assert taken(other) == FREE_IDS, "a few have all"
    first.lose()
    sends(second, range(1, most + 1))
    assert taken(second) == most, "what a session had is free with it"
    second.lose()
    other.lose()
    assert world.node.state.held.used == 0
