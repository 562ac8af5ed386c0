"""Options of queue messages over MQTT: what a publisher is told, and what 3.1.1 gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import World


@pytest.fixture
def world(make_world: type[World]) -> World:
    return make_world(BrokerConfig())


def acknowledged(client: object, topic: str, *pairs: tuple[str, str], qos: int = 1) -> p.Acknowledgement:
    packet = p.Publish(topic=topic, payload=b"m", qos=qos, packet_id=9, properties=Properties(user_property=pairs))
    (answer,) = client.send(packet)  # type: ignore[attr-defined]
    assert isinstance(answer, p.Acknowledgement)
    return answer


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_told_the_ids_that_it_asks_for(world: World, qos: int) -> None:
    client = world.connect("me")
    told = acknowledged(client, "$queue/q", ("receipt", "1"), ("partition", "3"), qos=qos)
    assert told.properties.user_property == (("message-id", "q:3:0"),)
    client.send(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=9))
    assert acknowledged(client, "$queue/q", ("receipt", "0"), qos=qos).properties.user_property == ()


def test_a_delay_is_confirmed_with_an_id_that_cancels_it(world: World) -> None:
    client = world.connect("me")
    told = acknowledged(client, "$queue/q", ("delay", "1h"))
    ((name, told_id),) = told.properties.user_property
    assert (name, told_id.rpartition(":")[0]) == ("delay-id", "q:delay")
    assert acknowledged(client, "$queue/q/$cancel", ("delay-id", told_id)).reason == 0
    assert acknowledged(client, "$queue/q/$cancel", ("delay-id", told_id)).reason == Reason.UNSPECIFIED_ERROR
    assert acknowledged(client, "$queue/q", ("delay", "soon")).reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR


def test_no_ids_for_clients_that_want_no_problem_information(world: World) -> None:
    """5.0 section 3.1.2.11.7: no user properties but on PUBLISH, CONNACK and DISCONNECT."""
    client = world.open(V5)
    client.send(p.Connect(version=V5, client_id="me", properties=Properties(request_problem_information=0)))
    assert acknowledged(client, "$queue/q", ("delay", "1h")).properties.user_property == ()
