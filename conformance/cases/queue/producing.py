"""What the cases of producers and transactions share."""

from __future__ import annotations

from typing import Any

from assay.conformance.case import CaseContext
from assay.conformance.cases.queue.support import deliveries, json_answer, settlement
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Subscription

REMEMBERED = 32
_ANN = (
    "scrypt$16384$8$1$f86f1b14d43a95466068d7bbdc85e51a$9a2118580171095bc5230d267b4227995cec585a5dcbf12534e35b2c6dd095d8\
32a58b13c4d1cb0b7d54370fa31d9fcbd3863873095f51b458c03494d4fbbf2a"
)
_BOB = (
    "scrypt$16384$8$1$fa94b315f00003c02fdc3a023039aec0$8c8031fc34554a8d9231adef2d7315bacf38b6f19efec7cb79eaa36ddf987977\
922e1c70acece1fc7c87be0999288d5836c342ccbf4c44b5a61647412d1da748"
)
TWO_USERS: dict[str, Any] = {
    "auth": {
        "anonymous": True,
        "users": [{"username": "ann", "password_hash": _ANN}, {"username": "bob", "password_hash": _BOB}],
    }
}
"""Two users, whose passwords are their names."""


class Producer:
    """A client with a producer id and an epoch."""

    def __init__(self, ctx: CaseContext, client: Connection, name: str | None) -> None:
        self.ctx = ctx
        self.client = client
        self.name = name
        self.id = self.epoch = ""

    @classmethod
    async def make(cls, ctx: CaseContext, name: str | None = None, client: Connection | None = None) -> Producer:
        """Initialised; without a transactional id when ``name`` is None."""
        producer = cls(ctx, client or await ctx.connect(version=5, name="producer"), name)
        await producer.init()
        return producer

    async def init(self) -> None:
        """A new epoch, or a new id."""
        named = {} if self.name is None else {"transactional-id": self.name}
        puback = await request(self.client, "init", **named)
        self.id = told(self.ctx, puback, "producer-id")
        self.epoch = told(self.ctx, puback, "producer-epoch")

    @property
    def identity(self) -> dict[str, str]:
        return {"producer-id": self.id, "producer-epoch": self.epoch}

    async def begin(self, **more: str) -> str:
        """The id of a new transaction."""
        return told(self.ctx, await request(self.client, "begin", **self.identity, **more), "transaction-id")

    async def publish(
        self, queue: str, payload: bytes, transaction: str | None = None, sequence: int | None = None, **more: str
    ) -> Puback:
        """A message at QoS 1, in a transaction, numbered, or both; whatever the PUBACK says."""
        named = {**self.identity, **more}
        if transaction is not None:
            named["transaction-id"] = transaction
        if sequence is not None:
            named["sequence"] = str(sequence)
        return await send(self.client, f"$queue/{queue}", payload, **named)

    async def put(
        self, queue: str, payload: bytes, transaction: str | None = None, sequence: int | None = None, **more: str
    ) -> None:
        """As :meth:`publish`, and it must be taken."""
        puback = await self.publish(queue, payload, transaction, sequence, **more)
        self.ctx.must(puback.reason_code < 0x80, f"producer: expected {payload!r} to be taken; seen {puback}")

    async def end(self, how: str, transaction: str) -> Puback:
        """``commit`` or ``abort``, whatever the PUBACK says."""
        return await request(self.client, how, **self.identity, **{"transaction-id": transaction})

    async def commit(self, transaction: str) -> None:
        """It must succeed."""
        puback = await self.end("commit", transaction)
        self.ctx.must(puback.reason_code < 0x80, f"producer: expected the commit to succeed; seen {puback}")

    async def abort(self, transaction: str) -> None:
        """It must succeed."""
        puback = await self.end("abort", transaction)
        self.ctx.must(puback.reason_code < 0x80, f"producer: expected the abort to succeed; seen {puback}")

    async def ack(
        self, consumer: Connection, queue: str, delivery: Publish, transaction: str, verb: str = "ack"
    ) -> Puback:
        """Settle a delivery of a consumer in a transaction."""
        named = {**self.identity, "transaction-id": transaction}
        properties = settlement(self.ctx, delivery, **named)
        packet_id = consumer.next_packet_id()
        consumer.send(Publish(topic=f"$queue/{queue}/${verb}", qos=1, packet_id=packet_id, properties=properties))
        return await consumer.expect(Puback, skipping=(Publish,))


async def send(client: Connection, topic: str, payload: bytes, **named: str) -> Puback:
    packet_id = client.next_packet_id()
    properties = Properties(user_property=tuple(named.items()))
    client.send(Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, properties=properties))
    return await client.expect(Puback, skipping=(Publish,))


async def request(client: Connection, operation: str, **named: str) -> Puback:
    """Publish to ``$txn/<operation>``."""
    return await send(client, f"$txn/{operation}", b"", **named)


def told(ctx: CaseContext, puback: Puback, name: str) -> str:
    """A user property that the PUBACK of a request must carry."""
    ctx.must(puback.reason_code < 0x80, f"producer: expected the request to succeed; seen {puback}")
    found = dict(puback.properties.user_property).get(name, "")
    ctx.must(bool(found), f"producer: expected {name} in the PUBACK; seen {puback}")
    return found


def must_fail(ctx: CaseContext, puback: Puback, error: str = "") -> None:
    """The PUBACK refuses; ``error`` is how its user property of that name must call it."""
    ctx.must(puback.reason_code >= 0x80, f"producer: expected a refusal; seen {puback}")
    if error:
        seen = dict(puback.properties.user_property).get("error")
        ctx.must(seen == error, f"producer: expected the user property error={error}; seen {puback}")


async def payloads(consumer: Connection, *, at_least: int = 0) -> list[bytes]:
    """What has been delivered so far, as :func:`deliveries`."""
    return [delivery.payload for delivery in await deliveries(consumer, at_least=at_least)]


async def answer_of(ctx: CaseContext, producer: Producer, operation: str, **named: str) -> dict[str, Any]:
    """The JSON answer of a request, whatever it says."""
    client = producer.client
    topic = ctx.topic(f"answers/{client.client_id}/{client.next_packet_id()}")
    await client.subscribe(Subscription(filter=topic, qos=1))
    correlation = topic.encode()[-16:]
    properties = Properties(response_topic=topic, correlation_data=correlation, user_property=tuple(named.items()))
    client.send(Publish(topic=f"$txn/{operation}", qos=1, packet_id=client.next_packet_id(), properties=properties))
    await client.expect(Puback, skipping=(Publish,))
    answer = await client.expect_publish()
    return json_answer(ctx, answer, topic, correlation)
