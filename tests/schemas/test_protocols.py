"""What publishers of each protocol are told of a message that does not fit, and how they name a schema."""

from __future__ import annotations

import random
from typing import Any

from amqp_client import AmqpClient, table

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.config import BrokerConfig, QueueConfig, QueuesConfig, SchemaCheckConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.node import BrokerNode
from tests.mqtt.conftest import World
from tests.schemas.test_registry import A, B

CONFIG = BrokerConfig(
    queues=QueuesConfig(configured=(QueueConfig(name="q", partitions=1, schema=SchemaCheckConfig(subject="s")),))
)
GOOD, BAD = b'{"a": 1}', b'{"a": "x"}'
NOW = 1_700_000_000.0


def register(node: BrokerNode, *schemas: str) -> None:
    told: list[Any] = []
    registry = node.schemas.registry
    node.schemas.change(lambda: registry.set_level("", "NONE"), lambda error, _: told.append(error))
    for schema in schemas:
        node.schemas.change(lambda text=schema: registry.register("s", text, NOW), lambda error, _: told.append(error))
    for _ in range(4):
        node.take_dirty(NOW)
        for job in node.take_jobs(NOW):
            job.run()
            node.job_done(job, None, NOW)
    assert told == [None] * (1 + len(schemas))


def test_mqtt_5_is_told_that_the_payload_is_malformed() -> None:
    world = World(CONFIG)
    register(world.node, A, B)
    client = world.connect("c")

    def publish(payload: bytes, *properties: tuple[str, str], qos: int = 1) -> list[int]:
        named = p.Properties(user_property=properties)
        packet = p.Publish(topic="$queue/q", payload=payload, qos=qos, packet_id=7, properties=named)
        return [each.reason for each in client.send(packet) if isinstance(each, p.Acknowledgement)]

    assert publish(GOOD) == [0], "the latest version says nothing about a"
    assert publish(BAD) == [0]
    assert publish(b"{") == [Reason.PAYLOAD_FORMAT_INVALID]
    assert publish(b"{", qos=2) == [Reason.PAYLOAD_FORMAT_INVALID]
    assert publish(GOOD, ("schema-id", "1")) == [0]
    assert publish(BAD, ("schema-id", "1")) == [Reason.PAYLOAD_FORMAT_INVALID]
    assert publish(b"\0\0\0\0\1" + BAD) == [Reason.PAYLOAD_FORMAT_INVALID]


def test_many_publishes_in_one_chunk_are_judged_each() -> None:
    world = World(CONFIG)
    register(world.node, A)
    client = world.connect("c")
    packets = [
        p.Publish(topic="$queue/q", payload=BAD if number % 5 == 0 else GOOD, qos=1, packet_id=number)
        for number in range(1, 31)
    ]
    told = {each.packet_id: each.reason for each in client.send(*packets) if isinstance(each, p.Acknowledgement)}
    assert told == {number: Reason.PAYLOAD_FORMAT_INVALID * (number % 5 == 0) for number in range(1, 31)}


def test_an_older_client_is_disconnected() -> None:
    world = World(CONFIG)
    register(world.node, A)
    client = world.connect("c", p.V311)
    client.send(p.Publish(topic="$queue/q", payload=BAD, qos=1, packet_id=1))
    assert client.closed


def test_amqp_is_told_nack_and_names_a_schema_by_a_header() -> None:
    node = BrokerNode(CONFIG, None, random.Random(1), NOW)
    register(node, A, B)
    client = AmqpClient(node)
    client.open()
    client.say(1, "confirm.select", False)

    def publish(payload: bytes, number: int) -> str:
        headers = table(schema_id=number) if number else None
        return client.only(client.publish("q", payload, BasicProperties(headers=headers))).name

    told = [publish(GOOD, 0), publish(b"{", 0), publish(BAD, 1), publish(GOOD, 1), publish(GOOD, 9)]
    assert told == ["basic.ack", "basic.nack", "basic.nack", "basic.ack", "basic.nack"]
