"""UNSUBSCRIBE and UNSUBACK (MQTT 5.0, 3.10 and 3.11)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, expect_error, resume, subscribe_at
from assay.conformance.wire import Pubcomp, Pubrec, Pubrel, Unsuback, Unsubscribe, describe

_SUCCESS = 0x00
_NO_SUBSCRIPTION = 0x11


@case(
    "mqtt5/unsubscribe/unsuback-answers-filter-by-filter",
    clauses=("MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2", "MQTT-2.2.1-6"),
    mutant="v5-unsuback-codes-reversed",
    near_miss="v5-writes-in-pieces",
)
async def unsuback(ctx: CaseContext) -> None:
    """UNSUBACK has the identifier of its UNSUBSCRIBE and one reason code for each filter, in their order.

    A client has one of the three filters that it unsubscribes from, the first. The answer is one UNSUBACK with that
    packet identifier and three codes: 0x00 first, and then twice 0x11, for which a server may also say something else.
    """
    topics = [ctx.topic(f"{number}") for number in range(3)]
    connection = await ctx.connect()
    await connection.subscribe(topics[0])
    connection.send(Unsubscribe(packet_id=40_001, filters=tuple(topics)))
    ack = await connection.expect(Unsuback)
    wanted = (_SUCCESS, _NO_SUBSCRIPTION, _NO_SUBSCRIPTION)
    ctx.must(
        ack.packet_id == 40_001 and len(ack.reason_codes) == len(wanted) and ack.reason_codes[0] == _SUCCESS,
        f"expected UNSUBACK 40001 with three codes, the first of them 0x00; seen {describe(ack)}",
    )
    ctx.should(ack.reason_codes == wanted, f"expected the codes 0x00, 0x11 and 0x11; seen {describe(ack)}")
    await connection.expect_nothing()


@case(
    "mqtt5/unsubscribe/stops-delivery",
    clauses=("MQTT-3.10.4-1", "MQTT-3.10.4-2"),
    mutant="v5-unsubscribe-ignored",
    near_miss="v5-writes-in-pieces",
)
async def stops(ctx: CaseContext) -> None:
    """After UNSUBACK no message comes for the filter that was removed; other filters go on.

    A client has two filters and unsubscribes from one. A message to each topic is published; only that of the other
    filter arrives.
    """
    gone, kept = ctx.topic("gone"), ctx.topic("kept")
    client = await ctx.connect(name="client")
    await client.subscribe(gone, kept)
    await client.unsubscribe(gone)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(gone, b"m")
    await publisher.publish(kept, b"m")
    await client.expect_publish(kept, b"m")


@case(
    "mqtt5/unsubscribe/compares-filters-character-by-character",
    clauses=("MQTT-3.10.4-1",),
    requires=("wildcards",),
    mutant="v5-unsubscribe-matches-wildcards",
    near_miss="v5-writes-in-pieces",
)
async def exact(ctx: CaseContext) -> None:
    """UNSUBSCRIBE removes only a subscription with the very same filter.

    A client is subscribed to a/b. UNSUBSCRIBE from a/+, a/#, A/b and a/b/ removes nothing and should say 0x11; a
    message to a/b still arrives.
    """
    topic = ctx.topic("a/b")
    client = await ctx.connect(name="client")
    await client.subscribe(topic)
    others = tuple(ctx.topic(path) for path in ("a/+", "a/#", "A/b", "a/b/"))
    ack = await client.unsubscribe(*others)
    ctx.must(len(ack.reason_codes) == len(others), f"client: expected a code for each filter; seen {describe(ack)}")
    wanted = (_NO_SUBSCRIPTION,) * len(others)
    ctx.should(ack.reason_codes == wanted, f"client: expected only 0x11; seen {describe(ack)}")
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"still here")
    await client.expect_publish(topic, b"still here")


@case(
    "mqtt5/unsubscribe/completes-begun-deliveries",
    clauses=("MQTT-3.10.4-3",),
    requires=("qos2",),
    mutant="v5-unsubscribe-drops-begun-deliveries",
    near_miss="v5-writes-in-pieces",
)
async def completes(ctx: CaseContext) -> None:
    """A QoS 2 delivery that has begun is finished after UNSUBSCRIBE.

    A client has received a QoS 2 message when it unsubscribes. Its PUBREC is answered by PUBREL all the same.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client")
    await subscribe_at(ctx, client, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"begun", qos=2)
    message = await client.expect_publish(topic, b"begun", qos=2, ack=False)
    await client.unsubscribe(topic)
    client.send(Pubrec(packet_id=message.packet_id))
    pubrel = await client.expect(Pubrel)
    ctx.must(
        pubrel.packet_id == message.packet_id and pubrel.reason_code == 0,
        f"client: expected PUBREL {message.packet_id}; seen {describe(pubrel)}",
    )
    client.send(Pubcomp(packet_id=message.packet_id))
    await client.expect_nothing()


@case(
    "mqtt5/unsubscribe/begun-deliveries-survive-a-resume",
    clauses=("MQTT-3.10.4-3", "MQTT-4.4.0-1"),
    requires=("qos1", "persistent_sessions"),
    mutant="v5-unsubscribe-drops-begun-deliveries",
    near_miss="v5-connack-says-more",
)
async def survives_resume(ctx: CaseContext) -> None:
    """A begun QoS 1 delivery is repeated on resuming, even if its subscription was removed meanwhile.

    A client has an unacknowledged QoS 1 message, unsubscribes and loses its connection. On resuming the session the
    message comes again.
    """
    topic = ctx.topic()
    client = await ctx.connect(name="client", properties=LASTING)
    await subscribe_at(ctx, client, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"begun", qos=1)
    await client.expect_publish(topic, b"begun", qos=1, ack=False)
    await client.unsubscribe(topic)
    client.abort()
    back = await resume(ctx, client.client_id, name="back")
    await back.expect_publish(topic, b"begun", qos=1, dup=True)


@case(
    "mqtt5/unsubscribe/without-filter-refused",
    clauses=("MQTT-3.10.3-2", "MQTT-4.13.1-1"),
    mutant="v5-empty-unsubscribe-accepted",
    near_miss="v5-closes-silently",
)
async def no_filter(ctx: CaseContext) -> None:
    """An UNSUBSCRIBE names at least one filter.

    An UNSUBSCRIBE that ends behind its properties ends the connection.
    """
    connection = await ctx.connect()
    connection.send(Unsubscribe(packet_id=1, filters=()))
    await expect_error(ctx, connection)
