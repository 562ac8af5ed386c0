"""Topic aliases and what they are used with: QoS, retained messages, other clients, another connection (3.3.2.3.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import resume
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Publish, describe

_ALIAS = Properties(topic_alias=1)


@case(
    "mqtt5/topic-alias/serves-every-qos-and-retained-messages",
    clauses=("MQTT-3.3.2-12", "MQTT-3.3.1-5"),
    requires=("topic_alias_maximum", "qos1", "qos2", "retain"),
    mutant="v5-alias-only-at-qos-0",
    near_miss="v5-writes-in-pieces",
)
async def every_qos(ctx: CaseContext) -> None:
    """An alias stands for its topic at every QoS, and a retained message is kept under the topic.

    An alias is set by a message at QoS 1 and used at QoS 0, 2 and 1, the last time with RETAIN 1. A subscriber gets
    them all under the topic; one that subscribes afterwards gets the retained one, with the topic and without alias.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"set", qos=1, properties=_ALIAS)
    await subscriber.expect_publish(topic, b"set")
    for qos, retain in ((0, False), (2, False), (1, True)):
        await publisher.publish("", f"{qos}".encode(), qos=qos, retain=retain, properties=_ALIAS)
        await subscriber.expect_publish(topic, f"{qos}".encode())
    ctx.retained_topics.add(topic)
    late = await ctx.connect(name="late")
    await late.subscribe(topic)
    message = await late.expect_publish(topic, b"1", retain=True)
    ctx.must(message.properties.topic_alias is None, f"late: expected no topic alias; seen {describe(message)}")


@case(
    "mqtt5/topic-alias/belongs-to-one-client",
    clauses=("MQTT-3.3.2-12", "MQTT-3.3.2-7"),
    requires=("topic_alias_maximum",),
    mutant="v5-aliases-shared-by-all",
    near_miss="v5-writes-in-pieces",
)
async def one_client(ctx: CaseContext) -> None:
    """Two clients use the same alias for different topics, and neither notices the other.

    Both set alias 1, each to a topic of its own, and then use it in turn. Each message arrives under the topic of its
    publisher.
    """
    topics = [ctx.topic("first"), ctx.topic("second")]
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(*topics)
    publishers = [await ctx.connect(name=f"publisher {number}") for number in range(2)]
    for publisher, topic in zip(publishers, topics, strict=True):
        await publisher.publish(topic, b"set", properties=_ALIAS)
        await subscriber.expect_publish(topic, b"set")
    for _ in range(2):
        for publisher, topic in zip(publishers, topics, strict=True):
            await publisher.publish("", b"used", properties=_ALIAS)
            await subscriber.expect_publish(topic, b"used")


@case(
    "mqtt5/topic-alias/server-sets-aliases-anew-on-each-connection",
    clauses=("MQTT-3.3.2-7", "MQTT-3.1.2-26"),
    requires=("persistent_sessions",),
    mutant="v5-server-aliases-outlive-the-connection",
    near_miss="v5-server-uses-aliases",
)
async def server_anew(ctx: CaseContext) -> None:
    """An alias that a server uses was set on the same connection.

    A subscriber that allows two aliases gets messages, leaves, resumes its session with as many aliases, and gets
    more. On both connections each message has its topic, or an alias that was set before on that connection; a server
    need not use aliases.
    """
    topic = ctx.topic()
    properties = Properties(session_expiry_interval=600, topic_alias_maximum=2)
    publisher = await ctx.connect(name="publisher")

    async def three_messages(connection: Connection) -> None:
        known: dict[int, str] = {}
        for number in range(3):
            await publisher.publish(topic, str(number).encode())
            message: Publish = await connection.expect_publish(payload=str(number).encode())
            alias = message.properties.topic_alias
            if alias is not None and message.topic:
                known[alias] = message.topic
            resolved = message.topic or known.get(alias or 0, "nothing")
            ctx.must(resolved == topic, f"{connection.name}: expected a message for {topic}; it stands for {resolved}")

    first = await ctx.connect(properties=properties, name="first")
    await first.subscribe(topic)
    await three_messages(first)
    await first.disconnect()
    await three_messages(await resume(ctx, first.client_id, name="back", properties=properties))
