"""Wills and takeovers, wills and retained messages (MQTT 3.1.1, 3.1.2.5 and 3.1.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import only_is_retained
from assay.conformance.rules import Rule
from assay.conformance.wire import Will


@case(
    "mqtt311/will/published-on-takeover",
    clauses=("MQTT-3.1.2-8",),
    requires=("persistent_sessions",),
    mutant="v5-takeover-drops-the-will",
    near_miss="v3-one-packet-at-a-time",
)
async def takeover(ctx: CaseContext) -> None:
    """A takeover closes the older connection without DISCONNECT, so its will is published.

    Clients with and without Clean Session are taken over by connections with and without it. Each will is published;
    the will of the successor, which sends DISCONNECT then, is not.
    """
    watcher = await ctx.connect(name="watcher")
    for first_clean in (True, False):
        for second_clean in (True, False):
            name = f"{int(first_clean)} by {int(second_clean)}"
            topic = ctx.topic(f"will/{int(first_clean)}{int(second_clean)}")
            await watcher.subscribe(topic)
            first = await ctx.connect(clean=first_clean, will=Will(topic=topic, payload=b"older"), name=name)
            second = await ctx.connect(
                client_id=first.client_id,
                clean=second_clean,
                will=Will(topic=topic, payload=b"newer"),
                name=f"{name}, successor",
            )
            await first.expect_close(step=Rule.TAKEN_OVER)
            await watcher.expect_publish(topic, b"older")
            await second.disconnect()
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt311/will/empty-retained-will-deletes",
    clauses=("MQTT-3.1.2-17", "MQTT-3.3.1-10", "MQTT-3.3.1-11"),
    requires=("retain", "qos1"),
    mutant="empty-retained-will-deletes-nothing",
    near_miss="v3-one-packet-at-a-time",
)
async def empty_retained(ctx: CaseContext) -> None:
    """An empty will with Will Retain 1 deletes the retained message of its topic; with 0 it does not.

    Two topics have retained messages and are the topics of two empty wills, one of them retained. Both clients are
    reset. A new subscriber gets only the message of the other topic.
    """
    topics = {True: ctx.topic("deleted"), False: ctx.topic("kept")}
    watcher = await ctx.connect(name="watcher")
    for retain, topic in topics.items():
        await watcher.subscribe(topic, qos=1)
        await watcher.publish(topic, b"state", qos=1, retain=True)
        await watcher.expect_publish(topic, b"state")
        client = await ctx.connect(name=f"retain {int(retain)}", will=Will(topic=topic, qos=1, retain=retain))
        client.abort()
        await watcher.expect_publish(topic, b"")
    await only_is_retained(ctx, watcher, list(topics.values()), topics[False], b"state")
