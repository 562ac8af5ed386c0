"""What is sent again is what was sent: a repeated PUBLISH has all that the first had (MQTT 5.0, 3.3.2.3 and 4.4)."""

from __future__ import annotations

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import LASTING, resume, subscribe_at
from assay.conformance.wire import Properties

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
