"""Tenants over MQTT: what their clients see, what others see, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.config import BrokerConfig, parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import World


def config(**quotas: float) -> BrokerConfig:
    tenants = [{"name": "acme", "clients": ["acme-*"], "quotas": quotas}, {"name": "bee", "clients": ["bee-*"]}]
    return parse_config({"queues": {"tenants": tenants, "defaults": {"partitions": 1}}})


def send(client: Any, topic: str, *pairs: tuple[str, str], payload: bytes = b"m") -> p.Acknowledgement:
    packet = p.Publish(topic=topic, payload=payload, qos=1, packet_id=9, properties=Properties(user_property=pairs))
    answers = [answer for answer in client.send(packet) if isinstance(answer, p.Acknowledgement)]
    (answer,) = answers
    return answer


def subscribe(client: Any, *filters: str) -> tuple[int, ...]:
    requests = tuple(p.SubscriptionRequest(topic_filter=one, qos=1) for one in filters)
    answers = client.send(p.Subscribe(packet_id=1, requests=requests))
    (suback,) = [answer for answer in answers if isinstance(answer, p.Suback)]
    return tuple(suback.reasons)


def test_a_tenant_sees_its_queues_without_its_name(make_world: type[World]) -> None:
    world = make_world(config())
    client, operator = world.connect("acme-1"), world.connect("operator")
    told = send(client, "$queue/q/key", ("receipt", "1"), ("queue", "acme.x"))
    assert told.properties.user_property == (("message-id", "q:0:0"),)
    assert world.node.engine.queues() == ["acme.q"]
    assert subscribe(client, "$queue/q") == (1,)
    (delivery,) = client.publishes()
    assert delivery.topic == "$queue/q/key"
    found = dict(delivery.properties.user_property)
    assert (found["queue"], found["message-id"]) == ("q", "q:0:0")
    pairs = tuple((name, found[name]) for name in ("message-id", "group-id"))
    client.take()
    rejected = send(client, "$queue/q/$reject", *pairs)
    assert rejected.reason == 0
    client.take()
    assert subscribe(client, "$dlq/q") == (1,)
    (dead,) = client.publishes()
    found = dict(dead.properties.user_property)
    assert dead.topic == "$dlq/q/key"
    assert (found["queue"], found["_dlq_original_queue"], found["_dlq_original_id"]) == ("$dlq/q", "q", "q:0:0")
    assert found["_dlq_original_topic"] == "$queue/q/key"
    client.take()
    assert subscribe(operator, "$queue/acme.q") == (1,), "who may administer reaches all"


def test_refusals_are_told_in_its_names(make_world: type[World]) -> None:
    """Found by lives of queues: what is not pending was told with the tenant's name in front."""
    client = make_world(config()).connect("acme-1")
    send(client, "$queue/q")
    send(client, "$queue/q")
    assert subscribe(client, "$queue/q") == (1,)
    client.take()
    refused = send(client, "$queue/q/$ack", ("message-id", "q:0:0"), ("message-id", "q:0:7"))
    assert refused.properties.user_property == (("settled", "1"), ("not-pending", "q:0:7"))
    assert refused.properties.reason_string == "1 settled; not pending for this consumer: q:0:7"
    refused = send(client, "$queue/q/$ack", ("message-id", "$dlq/q:0:1"))
    assert "acme" not in str(refused)
    assert "acme.x" in str(send(client, "$queue/q/$ack", ("message-id", "acme.x:0:1"))), "that is its own word"


def test_delays_are_told_and_cancelled_in_its_names(make_world: type[World]) -> None:
    client = make_world(config()).connect("acme-1")
    told = send(client, "$queue/q", ("delay", "1h"))
    ((name, told_id),) = told.properties.user_property
    assert (name, told_id.rpartition(":")[0]) == ("delay-id", "q:delay")
    assert send(client, "$queue/q/$cancel", ("delay-id", f"acme.{told_id}")).reason >= 0x80
    assert send(client, "$queue/q/$cancel", ("delay-id", told_id)).reason == 0


def test_nobody_reaches_the_queues_of_others(make_world: type[World]) -> None:
    tenants = [{"name": "acme", "clients": ["acme-*"]}, {"name": "bee", "clients": ["bee-*"]}]
    queues = {"admin_topics": "off", "tenants": tenants, "defaults": {"partitions": 1}}
    world = make_world(parse_config({"queues": queues}))
    acme, bee, stranger = (world.connect(name) for name in ("acme-1", "bee-1", "stranger"))
    assert send(acme, "$queue/q").reason == 0
    assert send(bee, "$queue/acme.q").reason == 0
    assert sorted(world.node.engine.queues()) == ["acme.q", "bee.acme.q"]
    assert send(stranger, "$queue/acme.q").reason == Reason.NOT_AUTHORIZED
    wanted = ("$queue/acme.q", "$dlq/acme.q", "$queue/dlq/acme.q", "$queue/free")
    assert subscribe(stranger, *wanted) == (0x87, 0x87, 0x87, 1)
    assert send(stranger, "$queue/acme.q/$ack", ("message-id", "acme.q:0:0")).reason == Reason.NOT_AUTHORIZED
    assert send(stranger, "$queue/free").reason == 0


def test_a_tenant_administers_nothing(make_world: type[World]) -> None:
    world = make_world(config())
    assert send(world.connect("acme-1"), "$admin/queue/list").reason == Reason.NOT_AUTHORIZED
    assert subscribe(world.connect("acme-2"), "$admin/queue/+/stats") == (0x87,)


def test_quotas_over_mqtt(make_world: type[World]) -> None:
    world = make_world(config(max_connections=2, max_message_bytes=10, max_groups=1, publish_messages_per_s=3))
    first, second = world.connect("acme-1"), world.connect("acme-2")
    third = world.open(V5)
    (connack,) = third.send(p.Connect(version=V5, client_id="acme-3"))
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.QUOTA_EXCEEDED
    again = world.connect("acme-2")
    assert second.closed, "taken over, which needs no further connection"
    assert send(first, "$queue/q", payload=bytes(11)).reason == Reason.QUOTA_EXCEEDED
    assert [send(first, "$queue/q").reason for _ in range(4)] == [0, 0, 0, Reason.QUOTA_EXCEEDED]
    assert subscribe(again, "$queue/q") == (1,)
    again.take()
    assert subscribe(again, "$queue/q/x") == (Reason.QUOTA_EXCEEDED,), "a filter makes a group of its own"


def test_deliveries_wait_for_the_quota(make_world: type[World]) -> None:
    world = make_world(config(consume_messages_per_s=2))
    client = world.connect("acme-1")
    for _ in range(5):
        send(client, "$queue/q")
    subscribe(client, "$queue/q")
    assert len(client.publishes()) == 2


@pytest.mark.parametrize("pause_s", [0.5, 1.0])
def test_and_go_on_when_time_has_passed(make_world: type[World], pause_s: float) -> None:
    world = make_world(config(consume_messages_per_s=2))
    client = world.connect("acme-1")
    for _ in range(5):
        send(client, "$queue/q")
    subscribe(client, "$queue/q")
    assert len(client.publishes()) == 2
    world.wait(pause_s)
    assert len(client.publishes()) == 2 + 2 * pause_s


def test_a_client_whose_tenant_was_taken_away_speaks_for_nobody(make_world: type[World]) -> None:
    """It is disconnected soon; what it says before that is taken by its own names."""
    world = make_world(config())
    client = world.connect("acme-1")
    assert send(client, "$queue/q").reason == 0
    world.node.state.tenants = None
    assert send(client, "$queue/q", ("receipt", "1")).properties.user_property == (("message-id", "q:0:0"),)
    assert world.node.engine.queues() == ["acme.q", "q"]


def test_what_is_refused_for_its_producer_is_not_charged(make_world: type[World]) -> None:
    world = make_world(config(publish_messages_per_s=2))
    other, client = world.connect("bee-1"), world.connect("acme-1")
    told = dict(send(other, "$txn/init", ("transactional-id", "x")).properties.user_property)
    foreign = tuple(told.items())
    for _ in range(5):
        assert send(client, "$queue/q", *foreign, ("sequence", "0")).reason == Reason.NOT_AUTHORIZED
    assert [send(client, "$queue/q").reason for _ in range(3)] == [0, 0, Reason.QUOTA_EXCEEDED]
