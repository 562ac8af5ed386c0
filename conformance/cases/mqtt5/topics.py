"""Topic names and filters: wildcards, dollar topics, empty levels (MQTT 5.0, 4.7)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, ends, expect_failure_or_error
from assay.conformance.rules import StepFailureError
from assay.conformance.wire import Suback, Subscribe, Subscription, Unsuback, Unsubscribe, describe

_FIRST_FAILURE = 0x80


@case(
    "mqtt5/topics/wildcards-match-by-level",
    clauses=("MQTT-3.3.2-3", "MQTT-4.5.0-1", "MQTT-4.7.1-1", "MQTT-4.7.1-2"),
    requires=("wildcards",),
    mutant="v5-hash-misses-parent",
    near_miss="v5-writes-in-pieces",
)
async def wildcards(ctx: CaseContext) -> None:
    """Wildcards match whole levels: + exactly one, # any number including none.

    Filters are tried against topics, empty levels included. Each subscriber gets exactly the topics that its filter
    matches.
    """
    table = {
        "sport/#": {"sport", "sport/a", "sport/a/b", "sport/"},
        "sport/+": {"sport/a", "sport/"},
        "+/a": {"sport/a", "sportive/a", "/a"},
        "sport/+/b": {"sport/a/b"},
        "/+": {"/a"},
        "+/+": {"sport/a", "sportive/a", "sport/", "/a"},
        "+/+/#": {"sport/a", "sportive/a", "sport/", "/a", "sport/a/b"},
    }
    topics = ("sport", "sport/a", "sport/a/b", "sport/", "/a", "sportive", "sportive/a")
    publisher = await ctx.connect(name="publisher")
    base = ctx.topic("w")
    subscribers = {}
    for filter_ in table:
        subscriber = await ctx.connect(name=filter_)
        await subscriber.subscribe(f"{base}/{filter_}")
        subscribers[filter_] = subscriber
    for topic in topics:
        await publisher.publish(f"{base}/{topic}", topic.encode())
    for filter_, wanted in table.items():
        messages = await delivered(ctx, publisher, subscribers[filter_], at_least=len(wanted))
        found = {message.payload.decode() for message in messages}
        ctx.must(found == wanted, f"{filter_}: expected {sorted(wanted)}; seen {sorted(found)}")


@case(
    "mqtt5/topics/wildcards-spare-dollar-topics",
    clauses=("MQTT-4.7.2-1",),
    requires=("wildcards",),
    mutant="v5-wildcards-match-dollar-topics",
    near_miss="v5-writes-in-pieces",
)
async def dollar_topics(ctx: CaseContext) -> None:
    """A filter that begins with a wildcard does not match topics that begin with $.

    Clients subscribe to # and to +/... and a message is published to a topic that begins with $. Neither gets it. A
    client whose filter begins with the same $ level shows whether the server delivers such topics at all; if not, or
    if it ends the connection of the publisher, the case is unsupported.
    """
    topic = "$assay/" + ctx.topic()
    everything = await ctx.connect(name="everything")
    await everything.subscribe("#")
    plus = await ctx.connect(name="plus")
    await plus.subscribe("+/" + ctx.topic())
    control = await ctx.connect(name="control")
    try:
        await control.subscribe(topic)
    except StepFailureError as error:
        ctx.unsupported(f"the broker keeps topics that begin with $ to itself (4.7.2): {error}")
    publisher = await ctx.connect(name="publisher")
    other = await ctx.connect(name="other")
    await publisher.publish(topic, b"dollar", qos=0)
    if await ends(publisher) or not await delivered(ctx, other, control, at_least=1):
        ctx.unsupported("the broker does not let clients publish to topics that begin with $")
    for subscriber in (everything, plus):
        for message in await delivered(ctx, other, subscriber):
            leaked = message.topic.startswith("$")
            ctx.must(not leaked, f"{subscriber.name}: expected no $ topic; seen {describe(message)}")


@case(
    "mqtt5/topics/empty-filter-not-granted",
    clauses=("MQTT-4.7.3-1",),
    mutant="v5-empty-filter-granted",
    near_miss="v5-closes-silently",
)
async def empty_filter(ctx: CaseContext) -> None:
    """A topic filter has at least one character.

    A SUBSCRIBE with an empty filter either ends its connection or is answered by a failure; so should an UNSUBSCRIBE,
    by which nothing can be granted.
    """
    subscriber = await ctx.connect(name="SUBSCRIBE")
    subscriber.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=""),)))
    answer = await expect_failure_or_error(ctx, subscriber, Suback)
    if isinstance(answer, Suback):
        ctx.must(min(answer.reason_codes) >= _FIRST_FAILURE, f"expected a failure; seen {describe(answer)}")
    other = await ctx.connect(name="UNSUBSCRIBE")
    other.send(Unsubscribe(packet_id=1, filters=("",)))
    answer = await expect_failure_or_error(ctx, other, Unsuback)
    if isinstance(answer, Unsuback):
        ctx.should(min(answer.reason_codes) > 0, f"expected a failure; seen {describe(answer)}")


@case(
    "mqtt5/topics/deep-and-long-topics",
    clauses=("MQTT-4.7.3-4", "MQTT-3.3.2-1"),
    mutant="v5-long-topics-cut",
    near_miss="v5-writes-in-pieces",
)
async def long_topics(ctx: CaseContext) -> None:
    """Topics may be long and have many levels.

    A topic of 1000 bytes in one level and one of 20 levels, of which some are empty, are subscribed to and published
    to; the messages arrive under the same topics.
    """
    client = await ctx.connect(name="client")
    deep = ctx.topic("/".join("a" if level % 3 else "" for level in range(18)))
    for topic in (ctx.topic("x" * ctx.room_bytes(1_000)), deep):
        await client.subscribe(topic)
        await client.publish(topic, b"m")
        await client.expect_publish(topic, b"m")
