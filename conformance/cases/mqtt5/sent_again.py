"""What is sent again is what was sent: a repeated PUBLISH has all that the first had (MQTT 5.0, 3.3.2.3 and 4.4)."""

from __future__ import annotations

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, meanwhile, publish_all, resume, subscribe_at, taken
from assay.conformance.wire import Properties, Publish

_SENT = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers",
    correlation_data=b"\x00\x01",
    user_property=(("z", "1"), ("a", "2"), ("z", "3")),
)
_KEPT = ("payload_format_indicator", "content_type", "response_topic", "correlation_data", "user_property")


@case(
    "mqtt5/session/properties-are-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-20"),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-resent-without-properties",
    near_miss="v5-connack-says-more",
)
async def properties_again(ctx: CaseContext) -> None:
    """A message that is sent again has the properties that it had, after a takeover and after a lost connection (O9).

    A subscriber receives a message with five kinds of properties and does not acknowledge it. Another connection takes
    its session over and gets the message with the same properties. That one is lost, and a third gets it so as well.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"open", qos=1, properties=_SENT)
    await first.expect_publish(topic, b"open", qos=1, ack=False)
    second = await resume(ctx, first.client_id, name="second")
    after_takeover = await second.expect_publish(topic, b"open", qos=1, dup=True, ack=False)
    second.abort()
    third = await resume(ctx, first.client_id, name="third")
    after_loss = await third.expect_publish(topic, b"open", qos=1, dup=True)
    for connection, again in ((second, after_takeover), (third, after_loss)):
        found = msgspec.structs.asdict(again.properties)
        wrong = {name: found[name] for name in _KEPT if found[name] != getattr(_SENT, name)}
        ctx.must(not wrong, f"{connection.name}: expected the properties of the publish; seen {wrong}")


@case(
    "mqtt5/session/bursts-are-sent-again-as-they-were",
    clauses=("MQTT-4.4.0-1", "MQTT-4.5.0-1"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="v5-a-burst-is-sent-again-as-its-first",
    near_miss="v5-writes-in-pieces",
)
async def bursts_again(ctx: CaseContext) -> None:
    """Of messages that came in one write, each is sent again with its own topic and payload.

    At QoS 1 and at QoS 2 nine messages of three sizes to two topics are published in one write, and nine of one size
    to one topic by another client. Their subscriber, whose connection is lost before it acknowledges any, gets all 18
    on the next.
    """
    publisher, other = [await ctx.connect(name=name) for name in ("publisher", "other")]
    for qos in (1, 2):
        topics = [ctx.topic(f"q{qos}/{name}") for name in ("a", "longer")]
        first = await ctx.connect(name=f"first at {qos}", properties=LASTING)
        await subscribe_at(ctx, first, *topics, qos=qos)
        texts = [b"%d" % number * (1, 40, 300)[number % 3] for number in range(1, 10)]
        mixed = [Publish(topic=topics[at % 2], payload=text, qos=qos) for at, text in enumerate(texts)]
        alike = [Publish(topic=topics[0], payload=b"like %d" % number, qos=qos) for number in range(1, 10)]
        async with meanwhile(publish_all(publisher, mixed)), meanwhile(publish_all(other, alike)):
            await taken(first, 18, ack=False)
            first.abort()
            second = await resume(ctx, first.client_id, name=f"second at {qos}")
            came = await taken(second, 18)
        sent, found = (sorted((each.topic, each.payload) for each in some) for some in (mixed + alike, came))
        missing, strange = [each for each in sent if each not in found], [each for each in found if each not in sent]
        ctx.must(found == sent, f"{second.name}: expected all 18 as they were; missing {missing}, seen {strange}")
