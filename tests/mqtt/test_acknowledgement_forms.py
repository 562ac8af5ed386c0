"""Acknowledgements of 5.0 in each form: bare, with a reason, with properties; alone and one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

K = p.PacketType
FIRST_BYTE = {K.PUBACK: 0x40, K.PUBREC: 0x50, K.PUBREL: 0x62, K.PUBCOMP: 0x70}
FORMS = [b"", b"\0", b"\0\0", b"\0\x09\x26\0\x01a\0\x03bcd", b"\0\x04\x1f\0\x01r"]
"""What may stand behind the packet id (5.0, 3.4.2): no reason code, one, and properties; the code is success."""
COUNT = 5


def _packets(kind: p.PacketType, ids: list[int], form: bytes) -> list[bytes]:
    return [bytes((FIRST_BYTE[kind], 2 + len(form))) + number.to_bytes(2, "big") + form for number in ids]


def _send(client: Client, packets: list[bytes], *, together: bool) -> None:
    for chunk in [b"".join(packets)] if together else packets:
        client.send_bytes(chunk)


def _answers(client: Client, kind: p.PacketType) -> list[int]:
    return [each.packet_id for each in client.take() if isinstance(each, p.Acknowledgement) and each.type is kind]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("qos", [1, 2])
def test_deliveries_end_by_any_form(make_world: type[World], qos: int, form: bytes, together: bool) -> None:
    world = make_world()
    receiver = world.connect("r", p.V5, properties=p.Properties(receive_maximum=COUNT))
    receiver.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="t", qos=qos),)))
    publisher = world.connect("p", p.V5)
    for number in range(2 * COUNT):
        publisher.send(p.Publish(topic="t", payload=b"%d" % number, qos=qos, packet_id=1 + number))
    seen: list[bytes] = []
    for _ in range(2):
        first = receiver.publishes()
        receiver.take()
        seen += [packet.payload for packet in first]
        ids = [packet.packet_id for packet in first]
        assert len(ids) == COUNT
        if qos == 1:
            _send(receiver, _packets(K.PUBACK, ids, form), together=together)
            continue
        _send(receiver, _packets(K.PUBREC, ids, form), together=together)
        assert _answers(receiver, K.PUBREL) == ids
        _send(receiver, _packets(K.PUBCOMP, ids, form), together=together)
    assert seen == [b"%d" % number for number in range(2 * COUNT)]
    assert not receiver.connection.active_session.in_flight


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_publishes_are_released_by_any_form(make_world: type[World], form: bytes, together: bool) -> None:
    world = make_world()
    publisher = world.connect("p", p.V5)
    ids = list(range(7, 7 + COUNT))
    packets = [encode_packet(p.Publish(topic="t", payload=b"x", qos=2, packet_id=number), p.V5) for number in ids]
    _send(publisher, packets, together=together)
    assert _answers(publisher, K.PUBREC) == ids
    _send(publisher, _packets(K.PUBREL, ids, form), together=together)
    assert _answers(publisher, K.PUBCOMP) == ids
    assert not publisher.connection.active_session.inbound_qos2


@pytest.mark.parametrize(("version", "answer"), [(p.V311, b"\x62\x02\x00\x09"), (p.V5, b"\x62\x03\x00\x09\x92")])
def test_a_pubrec_of_nothing_is_released_with_the_reason_that_the_version_has(
    make_world: type[World], version: int, answer: bytes
) -> None:
    """5.0: 0x92, packet identifier not found (3.6.2.1); 3.1.1 has no place for it (MQTT-3.6.1-1)."""
    receiver = make_world().connect("r", version)
    receiver.take()
    receiver.send_bytes(b"\x50\x02\x00\x09")
    assert [encode_packet(each, version) for each in receiver.take()] == [answer]
