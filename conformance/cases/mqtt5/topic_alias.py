"""Topic aliases in both directions (MQTT 5.0, 3.3.2.3.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import TOPIC_ALIAS_INVALID, ends, expect_error
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Publish, describe

_LARGEST_ALIAS = 65_535


def _alias_maximum(connection: Connection) -> int:
    """How many aliases the broker takes on this connection."""
    return connection.connack.properties.topic_alias_maximum or 0


def _aliased(topic: str, alias: int, payload: bytes = b"m") -> Publish:
    """A QoS 0 PUBLISH with a topic alias; an empty topic uses it, another one sets it."""
    return Publish(topic=topic, payload=payload, properties=Properties(topic_alias=alias))


@case(
    "mqtt5/topic-alias/stands-for-its-topic",
    clauses=("MQTT-3.3.2-12",),
    requires=("topic_alias_maximum",),
    mutant="v5-largest-alias-refused",
    near_miss="v5-writes-in-pieces",
)
async def stands_for_topic(ctx: CaseContext) -> None:
    """Once set, an alias stands for its topic, from 1 up to the maximum that the server announced.

    The smallest and the largest alias are each set by a PUBLISH with a topic and used by one with an empty topic. The
    subscriber gets all four messages under the right topics.
    """
    publisher = await ctx.connect(name="publisher")
    aliases = sorted({1, _alias_maximum(publisher)})
    topics = {alias: ctx.topic(f"alias/{alias}") for alias in aliases}
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(*topics.values())
    for alias, topic in topics.items():
        publisher.send(_aliased(topic, alias, b"set"))
        await subscriber.expect_publish(topic, b"set")
    for alias, topic in topics.items():
        publisher.send(_aliased("", alias, b"used"))
        await subscriber.expect_publish(topic, b"used")


@case(
    "mqtt5/topic-alias/may-be-set-anew",
    clauses=("MQTT-3.3.2-12",),
    requires=("topic_alias_maximum",),
    mutant="v5-alias-never-changes",
    near_miss="v5-writes-in-pieces",
)
async def set_anew(ctx: CaseContext) -> None:
    """An alias that is set a second time stands for the new topic.

    Alias 1 is set to one topic, then to another, and used. The last message arrives under the second topic.
    """
    first, second = ctx.topic("first"), ctx.topic("second")
    of_first, of_second = await ctx.connect(name="of first"), await ctx.connect(name="of second")
    await of_first.subscribe(first)
    await of_second.subscribe(second)
    publisher = await ctx.connect(name="publisher")
    publisher.send(_aliased(first, 1, b"1"), _aliased(second, 1, b"2"), _aliased("", 1, b"3"))
    await of_first.expect_publish(first, b"1")
    await of_second.expect_publish(second, b"2")
    await of_second.expect_publish(second, b"3")


@case(
    "mqtt5/topic-alias/zero-refused",
    clauses=("MQTT-3.3.2-8", "MQTT-4.13.1-1"),
    mutant="v5-alias-0-accepted",
    near_miss="v5-closes-silently",
)
async def zero(ctx: CaseContext) -> None:
    """There is no topic alias 0.

    A PUBLISH with a topic and alias 0 ends the connection; DISCONNECT should say 0x94.
    """
    connection = await ctx.connect()
    connection.send(_aliased(ctx.topic(), 0))
    await expect_error(ctx, connection, TOPIC_ALIAS_INVALID)


@case(
    "mqtt5/topic-alias/above-the-maximum-refused",
    clauses=("MQTT-3.2.2-17", "MQTT-3.2.2-18", "MQTT-3.3.2-9"),
    mutant="v5-alias-above-maximum-accepted",
    near_miss="v5-closes-silently",
)
async def above_maximum(ctx: CaseContext) -> None:
    """An alias above the server's Topic Alias Maximum is not accepted; without a maximum, none is.

    A PUBLISH sets the alias that is one above the maximum. The connection ends; DISCONNECT should say 0x94.
    """
    connection = await ctx.connect()
    maximum = _alias_maximum(connection)
    if maximum == _LARGEST_ALIAS:
        ctx.unsupported("the broker takes every topic alias")
    connection.send(_aliased(ctx.topic(), maximum + 1))
    await expect_error(ctx, connection, TOPIC_ALIAS_INVALID)


@case(
    "mqtt5/topic-alias/unknown-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("topic_alias_maximum",),
    mutant="v5-unknown-alias-ignored",
    near_miss="v5-closes-silently",
)
async def unknown(ctx: CaseContext) -> None:
    """An alias that was never set stands for nothing.

    A PUBLISH with an empty topic and alias 1, on a connection that has not set it, ends the connection.
    """
    connection = await ctx.connect()
    connection.send(_aliased("", 1))
    await expect_error(ctx, connection, TOPIC_ALIAS_INVALID)


@case(
    "mqtt5/topic-alias/ends-with-its-connection",
    clauses=("MQTT-3.3.2-7",),
    requires=("topic_alias_maximum", "persistent_sessions"),
    mutant="v5-aliases-outlive-the-connection",
    kills=("v5-aliases-outlive-a-takeover",),
    near_miss="v5-closes-silently",
)
async def ends_with_connection(ctx: CaseContext) -> None:
    """Aliases belong to the connection and not to the session.

    A client sets alias 1, and resumes its session on another connection, once after it has left and once by taking
    itself over. There it uses the alias without setting it. That connection ends, and nothing is published.
    """
    topic = ctx.topic()
    lasting = Properties(session_expiry_interval=600)
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for leaves in (True, False):
        name = "back" if leaves else "taken over"
        first = await ctx.connect(properties=lasting, name="first")
        first.send(_aliased(topic, 1, b"set"))
        await watcher.expect_publish(topic, b"set")
        if leaves:
            await first.disconnect()
        second = await ctx.connect(client_id=first.client_id, clean=False, properties=lasting, name=name)
        second.send(_aliased("", 1, b"used"))
        ctx.must(await ends(second), f"{name}: expected the end of the connection; the alias was accepted")
    control = await ctx.connect(name="control")
    await ctx.expect_no_message(control, watcher)


@case(
    "mqtt5/topic-alias/not-sent-unless-allowed",
    clauses=("MQTT-3.1.2-27", "MQTT-3.3.2-11"),
    mutant="v5-server-aliases-unasked",
    near_miss="v5-writes-in-pieces",
)
async def not_sent(ctx: CaseContext) -> None:
    """A client that announced no Topic Alias Maximum gets no aliases.

    A publisher uses an alias, if the server takes one, and sends five messages to one topic. A subscriber without
    Topic Alias Maximum gets each with its topic and without alias.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    for _ in range(5):
        publisher.send(_aliased(topic, 1) if _alias_maximum(publisher) else Publish(topic=topic, payload=b"m"))
        message = await subscriber.expect_publish(topic, b"m")
        ctx.must(
            message.properties.topic_alias is None, f"subscriber: expected no topic alias; seen {describe(message)}"
        )


@case(
    "mqtt5/topic-alias/server-stays-within-the-maximum",
    clauses=("MQTT-3.1.2-26", "MQTT-3.3.2-11", "MQTT-3.3.2-8"),
    requires=("wildcards",),
    mutant="v5-server-aliases-unasked",
    near_miss="v5-server-uses-aliases",
)
async def server_within_maximum(ctx: CaseContext) -> None:
    """The aliases that a server uses are within the client's maximum and stand for the right topics.

    A subscriber allows two aliases. Four topics get three messages each. Every message has a topic, or an alias from
    1 to 2 that was set before; resolved, the topics are those that were published. A server need not use aliases.
    """
    subscriber = await ctx.connect(name="subscriber", properties=Properties(topic_alias_maximum=2))
    await subscriber.subscribe(ctx.topic("#"))
    publisher = await ctx.connect(name="publisher")
    known: dict[int, str] = {}
    for _ in range(3):
        for number in range(4):
            topic = ctx.topic(f"{number}")
            await publisher.publish(topic, f"{number}".encode())
            message = await subscriber.expect_publish(payload=f"{number}".encode())
            alias = message.properties.topic_alias
            if alias is not None:
                ctx.must(1 <= alias <= 2, f"subscriber: expected an alias of 1 or 2; seen {describe(message)}")
                if message.topic:
                    known[alias] = message.topic
            resolved = message.topic or known.get(alias or 0, "nothing")
            ctx.must(resolved == topic, f"subscriber: expected a message for {topic}; it stands for {resolved}")
