"""Producers and transactions over MQTT: what is answered where, and who is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reference_broker.config import parse_config
from reference_broker.mqtt import packets as p
from reference_broker.mqtt.errors import Reason
from reference_broker.mqtt.packets import Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World


def asked(client: Client, operation: str, qos: int = 1, **named: str) -> p.Acknowledgement:
    pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
    properties = Properties(user_property=pairs)
    client.take()
    found = client.send(p.Publish(topic=f"$txn/{operation}", payload=b"", qos=qos, packet_id=9, properties=properties))
    answer = found[-1]
    assert isinstance(answer, p.Acknowledgement)
    return answer


def told(answer: p.Acknowledgement) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in answer.properties.user_property}


@pytest.mark.parametrize("qos", [1, 2])
def test_the_acknowledgement_tells_the_answer(make_world: type[World], qos: int) -> None:
    world = make_world()
    client = world.connect("me")
    producer = told(asked(client, "init", qos, transactional_id="app"))
    assert producer.keys() == {"producer_id", "producer_epoch"}
    client.send(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=9))
    transaction = told(asked(client, "begin", **producer))
    assert told(asked(client, "add", **producer, **transaction, queue="q", partition="3")) == {"state": "open"}
    assert told(asked(client, "commit", **producer, **transaction)) == {"state": "committed"}


@pytest.mark.parametrize(
    ("operation", "named", "reason", "error"),
    [
        (
            "begin",
            {"producer_id": "7", "producer_epoch": "0"},
            Reason.IMPLEMENTATION_SPECIFIC_ERROR,
            "unknown_producer",
        ),
        ("begin", {"producer_id": "seven", "producer_epoch": "0"}, Reason.TOPIC_NAME_INVALID, None),
        ("begin", {}, Reason.IMPLEMENTATION_SPECIFIC_ERROR, None),
        ("nothing", {}, Reason.TOPIC_NAME_INVALID, None),
    ],
)
def test_a_refusal_has_a_reason_and_a_name(
    make_world: type[World], operation: str, named: dict[str, str], reason: Reason, error: str | None
) -> None:
    client = make_world().connect("me")
    answer = asked(client, operation, **named)
    assert answer.reason == reason
    assert told(answer).get("error") == error


def test_a_request_of_qos_0_is_answered_on_the_response_topic(make_world: type[World]) -> None:
    world = make_world()
    client = world.subscribed("answers/#", client_id="me")
    properties = Properties(response_topic="answers/1", correlation_data=b"c")
    (answer,) = client.send(p.Publish(topic="$txn/init", payload=b"", qos=0, properties=properties))
    assert isinstance(answer, p.Publish)
    assert answer.properties.correlation_data == b"c"
    assert json.loads(answer.payload).keys() == {"producer-id", "producer-epoch"}


def test_a_response_topic_must_be_ordinary(make_world: type[World]) -> None:
    client = make_world().connect("me")
    properties = Properties(response_topic="$queue/q")
    (answer,) = client.send(p.Publish(topic="$txn/init", payload=b"", qos=1, packet_id=9, properties=properties))
    assert isinstance(answer, p.Acknowledgement)
    assert answer.reason == Reason.NOT_AUTHORIZED


def test_tenants_do_not_reach_each_others_producers(make_world: type[World]) -> None:
    tenants = [{"name": name, "clients": [f"{name}-*"]} for name in ("red", "blue")]
    world = make_world(parse_config({"queues": {"tenants": tenants}}))
    red, blue = world.connect("red-1"), world.connect("blue-1")
    producers = [told(asked(client, "init", transactional_id="app")) for client in (red, blue)]
    assert producers[0]["producer_id"] != producers[1]["producer_id"]
    assert told(asked(blue, "begin", **producers[0])) == {"error": "unknown_producer"}
    assert asked(red, "list").reason == Reason.NOT_AUTHORIZED
    transaction = told(asked(red, "begin", **producers[0]))
    assert told(asked(red, "commit", **producers[0], **transaction)) == {"state": "committed"}
