"""Requests of all kinds, sound ones and others: each is answered, and the queue goes on."""

from __future__ import annotations

import json
import random
from typing import Any

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, property_of, publish, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish

_REQUESTS = 400
_WINDOW = 20
_NAMED = ("message-id", "group-id", "partition", "offset", "offsets", "receipt", "generation", "producer-id")
_VERBS = {
    "ack": (*_NAMED, "producer-epoch", "transaction-id"),
    "nack": (*_NAMED, "delay", "reason"),
    "reject": (*_NAMED, "reason"),
    "extend": (*_NAMED, "extend"),
    "cancel": ("delay-id", "message-id"),
    "commit": ("group-id", "partition", "offset", "generation"),
    "claim": ("group-id", "message-id", "partition", "offset", "generation", "min-idle", "count"),
}
"""And what each may name."""
_NUMBERS = ("1", "0", "2", "99999", "-1", "18446744073709551616", "x", "")
_ADMIN = ("config", "groups", "reset", "partitions", "priority", "stats", "dead-letters", "delays", "replay", "nothing")
_TRANSACTIONS = ("begin", "add", "commit", "abort", "describe", "list", "nothing")
_FIELDS: dict[str, tuple[Any, ...]] = {
    "group": ("workers", "nobody", "", 7),
    "to": ("earliest", "latest", "3", "-1", "yesterday", 1),
    "partition": (0, 1, 2, -1, 2**70),
    "limit": (1, 0, 1_000, 1_001, "x"),
    "after": ("x", ""),
    "cancel": ("x", ""),
    "count": (2, 1, 0, -1),
    "message_id": ("x", "x:0:0"),
    "max_depth": (50, -1, "x"),
    "unknown": (None,),
}


def _settlement(rng: random.Random, queue: str) -> Publish:
    name = rng.choice((queue, queue, f"{queue}-missing-{rng.randrange(1_000)}"))
    values = {
        "message-id": (f"{name}:0:0", f"{name}:1:2", f"{name}:2:0", f"{queue}:0:1", "x", "", "x:y:z", f"{name}:0:-1"),
        "group-id": ("workers", "nobody", ""),
        "partition": _NUMBERS,
        "offset": _NUMBERS,
        "offsets": ("0", "0-1", "3-1", "0-", ",", "0-18446744073709551616"),
        "receipt": ("x", ""),
        "delay": ("1s", "0", "-1s", "999999d", "x"),
        "extend": ("1s", "0", "x"),
        "reason": ("bad", ""),
        "generation": _NUMBERS,
        "min-idle": ("0", "1s", "x"),
        "count": _NUMBERS,
        "delay-id": ("x", f"{name}:0", ""),
        "producer-id": _NUMBERS,
        "producer-epoch": _NUMBERS,
        "transaction-id": _NUMBERS,
    }
    verb, few = rng.choice((*_VERBS, "commit", "claim")), rng.choice((0.1, 0.5, 0.9))
    named = [each for each in _VERBS[verb] if rng.random() < few]
    # What comes first is sound; some are there twice.
    pairs = [(each, rng.choice((values[each][0], rng.choice(values[each])))) for each in named]
    pairs += rng.choices(pairs, k=rng.random() < 0.1 and len(pairs) > 0)
    return Publish(topic=f"$queue/{name}/${verb}", qos=1, properties=Properties(user_property=tuple(pairs)))


def _administration(rng: random.Random, queue: str) -> Publish:
    name = rng.choice((queue, queue, queue, f"{queue}-missing-{rng.randrange(1_000)}"))
    fields = rng.choices(list(_FIELDS), k=rng.randrange(3))
    request: object = {each: rng.choice(_FIELDS[each]) for each in fields}
    payload = rng.choice((json.dumps(request).encode(), json.dumps(request).encode(), b"", b"[]", b"{", b"\xff", b"7"))
    return Publish(topic=f"$admin/queue/{name}/{rng.choice(_ADMIN)}", payload=payload, qos=1)


def _transaction(rng: random.Random, queue: str) -> Publish:
    values = {
        "transactional-id": (queue, ""),
        "producer-id": _NUMBERS,
        "producer-epoch": _NUMBERS,
        "transaction-id": _NUMBERS,
        "timeout": ("1s", "0", "-1s", "x"),
        "queue": (queue, f"{queue}-missing-{rng.randrange(1_000)}", ""),
        "partition": _NUMBERS,
    }
    pairs = tuple((each, rng.choice(values[each])) for each in rng.choices(list(values), k=rng.randrange(6)))
    topic = f"$txn/{rng.choice(_TRANSACTIONS)}"
    return Publish(topic=topic, qos=1, properties=Properties(user_property=pairs))


def _with_id(packet: Publish, packet_id: int) -> Publish:
    return Publish(topic=packet.topic, payload=packet.payload, qos=1, packet_id=packet_id, properties=packet.properties)


async def _send(ctx: CaseContext, client: Connection, packets: list[Publish]) -> None:
    sent = {packet.packet_id: packet for packet in packets}
    client.send(*packets)
    while sent:
        puback = await client.expect(Puback, skipping=(Publish,))
        ctx.must(
            puback.packet_id in sent,
            f"{client.name}: expected one PUBACK for each of {sorted(sent)}; seen one for {puback.packet_id}",
        )
        del sent[puback.packet_id]


@case(
    "queue/admin/every-request-is-answered",
    clauses=("Q-ADMIN-01", "Q-ADMIN-06", "Q-ADMIN-10"),
    requires=("queues",),
    mutant="queue-refused-commits-unanswered",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def every_request(ctx: CaseContext) -> None:
    """Whatever a request of a client names, it gets one PUBACK, and everybody else is served as before.

    A client that holds two of three messages sends 400 settlements, requests to administer and requests about
    transactions, drawn from a seed: names, numbers and JSON that fit and that do not, properties that are missing or
    there twice. Each gets one PUBACK and the connection goes on. A message that is published then is delivered.
    """
    rng = ctx.rng
    queue = new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    await create(ctx, client, queue, partitions=2)
    await publish(client, queue, b"1", b"2", b"3")
    held = await consume(ctx, queue, prefetch="2")
    await deliveries(held, at_least=2)
    kinds = (_settlement, _settlement, _settlement, _administration, _transaction)
    window = min(_WINDOW, client.connack.properties.receive_maximum or _WINDOW)
    for first in range(0, _REQUESTS, window):
        some = [rng.choice(kinds)(rng, queue) for _ in range(min(window, _REQUESTS - first))]
        sender = rng.choice((client, held))
        await _send(ctx, sender, [_with_id(packet, sender.next_packet_id()) for packet in some])
    other = new_queue(ctx)
    consumer = await consume(ctx, other, name="another consumer")
    await publish(client, other, b"last")
    (last,) = await deliveries(consumer, at_least=1)
    ctx.must(property_of(ctx, last, "queue") == other, f"expected a delivery of {other}; seen {last}")
    await settle(ctx, consumer, other, "ack", last)
