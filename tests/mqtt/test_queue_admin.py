"""Administering queues over ``$admin/queue/...``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assay.reference_broker.config import parse_config
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.mqtt.wire import packets as p
from tests.mqtt.conftest import Client, World


def request(client: Client, operation: str, payload: object = None, packet_id: int = 9) -> tuple[int, Any]:
    """Reason code of the PUBACK and the JSON answer; the client must be subscribed to ``answers``."""
    properties = p.Properties(response_topic="answers", correlation_data=b"7")
    body = b"" if payload is None else json.dumps(payload).encode()
    packets = client.send(
        p.Publish(topic=f"$admin/queue/{operation}", payload=body, qos=1, packet_id=packet_id, properties=properties)
    )
    (puback,) = [packet for packet in packets if isinstance(packet, p.Acknowledgement)]
    answers = [packet for packet in packets if isinstance(packet, p.Publish)]
    for answer in answers:
        assert answer.properties.correlation_data == b"7"
    return puback.reason, json.loads(answers[0].payload) if answers else None


def admin_of(world: World) -> Client:
    return world.subscribed("answers", client_id="admin")


def test_stats_and_list_are_answered(world: World) -> None:
    admin = admin_of(world)
    admin.send(p.Publish(topic="$queue/q/a", payload=b"m", qos=1, packet_id=1))
    admin.take()
    reason, stats = request(admin, "q/stats")
    assert (reason, stats["queue"], stats["depth"]) == (0, "q", 1)
    assert request(admin, "list") == (0, {"queues": ["q"]})
    assert request(admin, "list", {"prefix": "x"}) == (0, {"queues": []})


def test_errors_are_told_twice(world: World) -> None:
    admin = admin_of(world)
    reason, answer = request(admin, "nowhere/stats")
    assert (reason, answer["error"]) == (0x90, "unknown_queue")
    reason, answer = request(admin, "q/paint")
    assert (reason, answer["error"]) == (0x90, "bad_address")
    reason, answer = request(admin, "list", {"prefix": 1})
    assert (reason, answer["error"]) == (0x83, "bad_option")


def test_only_loopback_without_access_rules(world: World) -> None:
    admin = admin_of(world)
    admin.connection.loopback = False
    assert request(admin, "list") == (0x87, None)
    refused = admin.send(
        p.Subscribe(packet_id=3, requests=(p.SubscriptionRequest(topic_filter="$admin/queue/q/stats"),))
    )
    assert isinstance(refused[0], p.Suback)
    assert refused[0].reasons == (0x87,)


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_an_access_rule_must_say_so(make_world: type[World], default: str) -> None:
    rules = [
        {"topic": "answers", "access": "readwrite"},
        {"topic": "$admin/queue/+/stats", "access": "readwrite", "client": "admin"},
    ]
    world = make_world(parse_config({"acl": {"default": default, "rules": rules}}))
    QueueTopics(world.node.engine).address("$queue/q")
    admin = admin_of(world)
    assert request(admin, "q/stats")[0] == 0x90, "no such queue, but it may ask"
    assert request(admin, "list")[0] == 0x87
    other = world.subscribed("answers", client_id="other")
    assert request(other, "q/stats")[0] == 0x87


def test_they_can_be_off(make_world: type[World]) -> None:
    world = make_world(parse_config({"queues": {"admin_topics": "off"}}))
    assert request(admin_of(world), "list")[0] == 0x87


@pytest.mark.parametrize("wanted", ["$admin/queue/q/stats", "$share/g/$admin/queue/q/stats"])
def test_a_stream_of_figures_for_subscribers(world: World, wanted: str) -> None:
    admin = world.subscribed(wanted)
    admin.send(p.Publish(topic="$queue/q/a", payload=b"m", qos=1, packet_id=1))
    admin.send(p.Publish(topic="$queue/q-other/a", payload=b"m", qos=1, packet_id=1))
    admin.take()
    world.wait(2.5)
    figures = [json.loads(packet.payload) for packet in admin.publishes()]
    assert [(each["queue"], each["depth"]) for each in figures] == [("q", 1)] * len(figures)
    assert 2 <= len(figures) <= 4
    admin.take()
    admin.send(p.Unsubscribe(packet_id=4, topic_filters=(wanted,)))
    world.wait(5)
    assert admin.publishes() == []
    assert world.node.next_deadline() is None or world.node.next_deadline() > world.now


def test_requests_are_not_routed(world: World) -> None:
    watcher = world.subscribed("$admin/#")
    admin = admin_of(world)
    request(admin, "q/stats")
    admin.send(p.Publish(topic="$admin/queue/q/stats", payload=b"{}"))
    assert watcher.publishes() == []


def test_the_answer_goes_where_the_client_may_publish(make_world: type[World]) -> None:
    rules = [{"topic": "$admin/queue/#", "access": "write"}, {"topic": "answers", "access": "read"}]
    world = make_world(parse_config({"acl": {"rules": rules}}))
    assert request(admin_of(world), "list") == (0x87, None)
