"""What the queue cases share: queues of their own, consumers, deliveries and settlements."""

from __future__ import annotations

import json
from typing import Any

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Subscription

PARTITION_KEY = (("partition-key", "one"),)
"""Messages of one key share a partition, and so have an order."""


def new_queue(ctx: CaseContext) -> str:
    """A queue name that only this case uses."""
    return f"conformance-{ctx.client_id()}"


async def publish(publisher: Connection, queue: str, *payloads: bytes) -> None:
    """Publish messages of one key at QoS 1, each after the confirm of the one before."""
    for payload in payloads:
        properties = Properties(user_property=PARTITION_KEY if publisher.version >= 5 else ())
        await publisher.publish(f"$queue/{queue}", payload, qos=1, properties=properties)


async def join(consumer: Connection, queue: str, *, group: str = "workers", path: str = "", **options: str) -> None:
    """Subscribe to a queue, or to ``path`` below it; ``options`` are user properties (``_`` for ``-``)."""
    named = [("consumer-group", group)] if group else []
    named += [(name.replace("_", "-"), value) for name, value in options.items()]
    filter_ = f"$queue/{queue}" + (f"/{path}" if path else "")
    await consumer.subscribe(Subscription(filter=filter_, qos=1), properties=Properties(user_property=tuple(named)))


async def consume(
    ctx: CaseContext,
    queue: str,
    *,
    group: str = "workers",
    name: str = "consumer",
    client_id: str = "",
    receive_maximum: int | None = None,
    **options: str,
) -> Connection:
    """A consumer over MQTT 5.0 that has joined ``group`` of the queue; ``options`` as in :func:`join`."""
    properties = Properties(receive_maximum=receive_maximum)
    connection = await ctx.connect(version=5, name=name, client_id=client_id or ctx.client_id(), properties=properties)
    await join(connection, queue, group=group, **options)
    return connection


async def publish_with(publisher: Connection, queue: str, payload: bytes, path: str = "", **options: str) -> Puback:
    """Publish one message at QoS 1 with user properties (``_`` for ``-``); returns the PUBACK, whatever it says."""
    packet_id = publisher.next_packet_id()
    named = tuple((name.replace("_", "-"), value) for name, value in options.items())
    topic = f"$queue/{queue}" + (f"/{path}" if path else "")
    properties = Properties(user_property=named)
    publisher.send(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, properties=properties))
    return await publisher.expect(Puback, skipping=(Publish,))


async def deliveries(consumer: Connection, *, at_least: int = 0) -> list[Publish]:
    """Everything delivered so far and not yet looked at, acknowledged on the MQTT level; may be nothing.

    PINGRESP may overtake deliveries, and a server may have one under way at a time: of those that must come the case
    says how many (``at_least``).
    """
    (found,) = await shares([consumer], at_least)
    return found


async def expect_dead_letters(ctx: CaseContext, queue: str, *payloads: bytes) -> list[Publish]:
    """A consumer of ``$dlq/<queue>`` that must get these messages, in this order, and nothing else now."""
    consumer = await ctx.connect(version=5, name="dead letters")
    joining = Properties(user_property=(("consumer-group", "graveyard"),))
    await consumer.subscribe(Subscription(filter=f"$dlq/{queue}", qos=1), properties=joining)
    found = [await consumer.expect_publish(payload=payload) for payload in payloads]
    await consumer.expect_nothing()
    return found


async def admin(ctx: CaseContext, client: Connection, topic: str, request: object = None) -> dict[str, Any]:
    """Publish JSON to ``$admin/<topic>`` with a response topic; returns the JSON object of the answer.

    Fails the case unless both the request is accepted and the answer carries its correlation data.
    """
    response_topic = ctx.topic(f"admin/{client.client_id}/{client.next_packet_id()}")
    await client.subscribe(Subscription(filter=response_topic, qos=1))
    correlation = response_topic.encode()[-16:]
    properties = Properties(response_topic=response_topic, correlation_data=correlation)
    payload = b"" if request is None else json.dumps(request).encode()
    await client.publish(f"$admin/{topic}", payload, qos=1, properties=properties)
    answer = await client.expect(Publish)
    await client.acknowledge(answer)
    return json_answer(ctx, answer, response_topic, correlation)


def json_answer(ctx: CaseContext, answer: Publish, response_topic: str, correlation: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Fails the case unless it came there, with the correlation data of its request."""
    ctx.must(answer.topic == response_topic, f"expected an answer on {response_topic}; seen {answer.topic}")
    ctx.must(answer.properties.correlation_data == correlation, "expected the correlation data of the request")
    try:
        found = json.loads(answer.payload)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        ctx.fail(f"expected a JSON object; seen {answer.payload[:200]!r}")
    return found


def property_of(ctx: CaseContext, delivery: Publish, name: str) -> str:
    """A user property that a delivery must carry."""
    found = dict(reversed(delivery.properties.user_property)).get(name)
    if found is None:
        ctx.fail(f"expected a delivery with the user property {name}; seen {delivery.properties.user_property}")
    return found


def settlement(ctx: CaseContext, delivery: Publish, **more: str) -> Properties:
    """Properties that name a delivery to $ack, $nack or $reject."""
    named = [(name, property_of(ctx, delivery, name)) for name in ("message-id", "group-id")]
    return Properties(user_property=(*named, *more.items()))


async def settle(
    ctx: CaseContext, consumer: Connection, queue: str, verb: str, delivery: Publish, **more: str
) -> Puback:
    """Settle a delivery by ``verb`` (ack, nack, reject) and wait for the confirm; it must be accepted."""
    packet_id = consumer.next_packet_id()
    properties = settlement(ctx, delivery, **more)
    topic = f"$queue/{queue}/${verb}"
    consumer.send(Publish(topic=topic, qos=1, packet_id=packet_id, properties=properties))
    puback = await consumer.expect(Puback, skipping=(Publish,))
    ctx.must(puback.reason_code < 0x80, f"{consumer.name}: expected the settlement to be accepted; seen {puback}")
    return puback


async def refused_settlement(
    ctx: CaseContext, consumer: Connection, queue: str, verb: str, delivery: Publish, **more: str
) -> Puback:
    """A settlement that must be refused: a PUBACK with a failure code."""
    packet_id = consumer.next_packet_id()
    properties = settlement(ctx, delivery, **more)
    consumer.send(Publish(topic=f"$queue/{queue}/${verb}", qos=1, packet_id=packet_id, properties=properties))
    puback = await consumer.expect(Puback, skipping=(Publish,))
    ctx.must(puback.reason_code >= 0x80, f"{consumer.name}: expected ${verb} to be refused; seen {puback}")
    return puback


def count_of(ctx: CaseContext, delivery: Publish) -> int:
    """The delivery-count of a delivery."""
    text = property_of(ctx, delivery, "delivery-count")
    ctx.must(text.isdecimal(), f"expected delivery-count to be a number; seen {text!r}")
    return int(text)
