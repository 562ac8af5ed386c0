"""What the queue cases share: queues of their own, consumers, deliveries and settlements."""

from __future__ import annotations

from conformance.case import CaseContext
from conformance.connection import Connection
from conformance.wire import Properties, Puback, Publish, Subscription

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


async def consume(
    ctx: CaseContext, queue: str, *, group: str = "workers", name: str = "consumer", client_id: str = ""
) -> Connection:
    """A consumer over MQTT 5.0 that has joined ``group`` of the queue."""
    connection = await ctx.connect(version=5, name=name, client_id=client_id or ctx.client_id())
    joining = Properties(user_property=(("consumer-group", group),))
    await connection.subscribe(Subscription(filter=f"$queue/{queue}", qos=1), properties=joining)
    return connection


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
