"""PUBLISH: what reaches a subscriber, and what a server refuses to take (MQTT 5.0, 3.3)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    BRIEF_S,
    LASTING,
    begin_a_brief_one,
    delivered,
    ends,
    expect_error,
    pass_time,
    qos_levels,
    resume,
    subscribe_at,
)
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Properties, Publish, Pubrec, Pubrel, describe

_TOPIC_NAME_INVALID = 0x90


async def _forwarded(ctx: CaseContext, properties: Properties, payload: bytes = b"payload") -> Properties:
    """Publish with ``properties`` to one subscriber and return those that it gets."""
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, payload, properties=properties)
    return (await subscriber.expect_publish(topic, payload)).properties


@case(
    "mqtt5/publish/payload-and-topic-unchanged",
    clauses=("MQTT-3.3.2-1", "MQTT-3.3.2-3", "MQTT-4.3.1-1", "MQTT-2.2.1-2"),
    mutant="v5-payload-ends-at-nul",
    near_miss="v5-writes-in-pieces",
)
async def payload_unchanged(ctx: CaseContext) -> None:
    """Topic and payload arrive as they were published, whatever the bytes.

    An empty payload, all 256 byte values, and 70000 bytes (more than two bytes of length can count) are published at
    QoS 0 and arrive unchanged, at QoS 0 and with DUP 0.
    """
    topic = ctx.topic("a topic/with spaces/ü/\U0001f600")
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    largest = publisher.connack.properties.maximum_packet_size or 1_000_000
    payloads = [b"", bytes(range(256)), b"\xa5" * min(70_000, largest // 2)]
    for payload in payloads:
        await publisher.publish(topic, payload)
        await subscriber.expect_publish(topic, payload, qos=0, dup=False, retain=False)


@case(
    "mqtt5/publish/user-properties-unchanged-and-in-order",
    clauses=("MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-1.5.7-1"),
    mutant="v5-user-properties-sorted",
    near_miss="v5-writes-in-pieces",
)
async def user_properties(ctx: CaseContext) -> None:
    """User properties are forwarded all, unchanged and in their order.

    A message has seven user properties, of which some share a name, some both name and value, and some are empty.
    They arrive as the same sequence.
    """
    sent = (("z", "1"), ("a", "2"), ("z", "3"), ("z", "1"), ("", "no name"), ("no value", ""), ("ü", "\U0001f600"))
    found = await _forwarded(ctx, Properties(user_property=sent))
    ctx.must(found.user_property == sent, f"expected user properties {sent}; seen {found.user_property}")


@case(
    "mqtt5/publish/payload-format-indicator-unchanged",
    clauses=("MQTT-3.3.2-4",),
    mutant="v5-payload-format-dropped",
    near_miss="v5-writes-in-pieces",
)
async def payload_format(ctx: CaseContext) -> None:
    """The Payload Format Indicator is forwarded unaltered.

    A message with indicator 1 and UTF-8 text arrives with 1. One without arrives without, or with 0, which means the
    same.
    """
    marked = await _forwarded(ctx, Properties(payload_format_indicator=1), b"text")
    ctx.must(marked.payload_format_indicator == 1, f"expected 1; seen {marked.payload_format_indicator}")
    plain = await _forwarded(ctx, Properties(), b"\xff\xfe")
    ctx.must(not plain.payload_format_indicator, f"expected none or 0; seen {plain.payload_format_indicator}")


@case(
    "mqtt5/publish/content-type-unchanged",
    clauses=("MQTT-3.3.2-20", "MQTT-3.3.2-19"),
    mutant="v5-content-type-lower-cased",
    near_miss="v5-writes-in-pieces",
)
async def content_type(ctx: CaseContext) -> None:
    """The Content Type is forwarded unaltered.

    A content type with capitals, spaces and non-ASCII characters arrives as it is.
    """
    sent = 'Application/JSON; charset="UTF-8"; ü'
    found = await _forwarded(ctx, Properties(content_type=sent))
    ctx.must(found.content_type == sent, f"expected content type {sent!r}; seen {found.content_type!r}")


@case(
    "mqtt5/publish/request-and-response",
    clauses=("MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-13"),
    mutant="v5-correlation-data-dropped",
    near_miss="v5-writes-in-pieces",
)
async def request_response(ctx: CaseContext) -> None:
    """Response Topic and Correlation Data reach the responder, who can answer by them.

    A requester publishes with a response topic and binary correlation data. The responder gets both unaltered,
    publishes to that topic with the same correlation data, and the requester gets them back.
    """
    request_topic, response_topic = ctx.topic("request"), ctx.topic("response/ü")
    correlation = b"\x00\xff\x80\n"
    requester = await ctx.connect(name="requester")
    await requester.subscribe(response_topic)
    responder = await ctx.connect(name="responder")
    await responder.subscribe(request_topic)
    asked = Properties(response_topic=response_topic, correlation_data=correlation)
    await requester.publish(request_topic, b"?", properties=asked)
    request = await responder.expect_publish(request_topic, b"?")
    ctx.must(
        (request.properties.response_topic, request.properties.correlation_data) == (response_topic, correlation),
        f"responder: expected {response_topic!r} and {correlation!r}; seen {describe(request)}",
    )
    await responder.publish(response_topic, b"!", properties=Properties(correlation_data=correlation))
    response = await requester.expect_publish(response_topic, b"!")
    ctx.must(
        response.properties.correlation_data == correlation,
        f"requester: expected correlation data {correlation!r}; seen {describe(response)}",
    )


@case(
    "mqtt5/publish/expiry-is-counted-down",
    clauses=("MQTT-3.3.2-6",),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-expiry-not-counted-down",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry_counted(ctx: CaseContext) -> None:
    """A subscriber sees the Message Expiry Interval less the time that the message waited.

    A message with expiry 100 s reaches one subscriber at once, with at most 100 s, and waits 1.3 s for another one,
    which gets it with at most 99 s. Neither value is lower than the time that has passed explains, give or take a
    second.
    """
    topic = ctx.topic()
    away = await ctx.connect(properties=LASTING, name="away")
    await subscribe_at(ctx, away, topic, qos=1)
    await away.disconnect()
    present = await ctx.connect(name="present")
    await present.subscribe(topic)
    publisher = await ctx.connect(name="publisher")
    watch = Stopwatch()
    await publisher.publish(topic, b"fresh", qos=1, properties=Properties(message_expiry_interval=100))
    fresh = await present.expect_publish(topic, b"fresh")
    _check_expiry(ctx, present, fresh, int(99 - watch.elapsed_s), 100)
    await pass_time(ctx, 1.3)
    back = await resume(ctx, away.client_id, name="back")
    waited = await back.expect_publish(topic, b"fresh")
    _check_expiry(ctx, back, waited, int(99 - watch.elapsed_s), 99)


def _check_expiry(ctx: CaseContext, subscriber: Connection, message: Publish, lowest: int, highest: int) -> None:
    seen = message.properties.message_expiry_interval
    ctx.must(
        seen is not None and lowest <= seen <= highest,
        f"{subscriber.name}: expected a message expiry of {lowest} to {highest} s; seen {seen}",
    )


@case(
    "mqtt5/publish/expired-message-is-not-delivered",
    clauses=("MQTT-3.3.2-5",),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-expired-messages-delivered",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expired(ctx: CaseContext) -> None:
    """A message that expired while it waited is not delivered.

    Three messages wait for a subscriber: without expiry, with 1 s and with 100 s. After 2.5 s the subscriber comes
    back. It gets the first and the third.
    """
    topic = ctx.topic()
    away = await ctx.connect(properties=LASTING, name="away")
    await subscribe_at(ctx, away, topic, qos=1)
    await away.disconnect()
    publisher = await ctx.connect(name="publisher")
    for expiry_s in (None, 1, 100):
        properties = Properties(message_expiry_interval=expiry_s)
        await publisher.publish(topic, f"{expiry_s}".encode(), qos=1, properties=properties)
    await pass_time(ctx, 2.5)
    back = await resume(ctx, away.client_id, name="back")
    seen = [(await back.expect_publish(topic)).payload for _ in range(2)]
    ctx.must(sorted(seen) == [b"100", b"None"], f"back: expected what has not expired, each once; seen {seen}")
    if seen[0] != b"None":
        ctx.breach(Rule.ORDER, f"back: expected the messages in the order of their publication; seen {seen}")
    await ctx.expect_no_message(publisher, back)


@case(
    "mqtt5/publish/expiry-does-not-touch-begun-deliveries",
    clauses=("MQTT-4.3.3-7", "MQTT-4.4.0-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-expiry-drops-begun-deliveries",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry_after_start(ctx: CaseContext) -> None:
    """A QoS 2 message that has been sent is not withdrawn when it expires.

    A subscriber receives a QoS 2 message with expiry 2 s, does not answer, and loses its connection. After 3.5 s it
    resumes its session and gets the message again, under the same packet identifier.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    sent = await begin_a_brief_one(ctx, publisher, first, topic)
    first.abort()
    await pass_time(ctx, BRIEF_S * ctx.stretch + 1.5)
    back = await resume(ctx, first.client_id, name="back")
    again = await back.expect_publish(topic, b"begun", qos=2, dup=True)
    ctx.must(again.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(again)}")


@case(
    "mqtt5/publish/expiry-does-not-touch-owed-pubrel",
    clauses=("MQTT-4.3.3-7", "MQTT-4.3.3-5", "MQTT-4.4.0-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-expiry-drops-begun-deliveries",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry_after_pubrec(ctx: CaseContext) -> None:
    """A QoS 2 exchange that has reached PUBREL is finished although its message has expired.

    A subscriber answers a QoS 2 message of expiry 2 s with PUBREC, receives PUBREL and loses its connection. After
    3.5 s it resumes its session and gets PUBREL again, under the same packet identifier.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    sent = await begin_a_brief_one(ctx, publisher, first, topic)
    first.send(Pubrec(packet_id=sent.packet_id))
    await first.expect(Pubrel)
    first.abort()
    await pass_time(ctx, BRIEF_S * ctx.stretch + 1.5)
    back = await resume(ctx, first.client_id, name="back")
    pubrel = await back.expect(Pubrel)
    ctx.must(pubrel.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(pubrel)}")


@case(
    "mqtt5/publish/topic-with-wildcard-refused",
    clauses=("MQTT-3.3.2-2", "MQTT-4.7.0-1"),
    mutant="v5-topic-wildcards-accepted",
    near_miss="v5-closes-silently",
)
async def wildcard_topic(ctx: CaseContext) -> None:
    """A topic name with a wildcard is not accepted.

    PUBLISH packets to a topic with + and to one with # end their connections, and a subscriber whose filter would
    match gets nothing.
    """
    watcher = await ctx.connect(name="watcher")
    if ctx.capabilities["wildcards"]:
        await watcher.subscribe(ctx.topic("w/#"))
    for path in ("w/+", "w/#", "w/a+b"):
        connection = await ctx.connect(name=path)
        connection.send(Publish(topic=ctx.topic(path), payload=b"wild"))
        await expect_error(ctx, connection, _TOPIC_NAME_INVALID)
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt5/publish/empty-topic-without-alias-refused",
    clauses=("MQTT-4.7.3-1", "MQTT-4.13.1-1"),
    mutant="v5-empty-topic-accepted",
    near_miss="v5-closes-silently",
)
async def empty_topic(ctx: CaseContext) -> None:
    """A topic name has at least one character, unless an alias stands for it.

    A PUBLISH with an empty topic name and no topic alias ends the connection.
    """
    connection = await ctx.connect()
    connection.send(Publish(topic="", payload=b"nowhere"))
    await expect_error(ctx, connection, _TOPIC_NAME_INVALID)


@case(
    "mqtt5/publish/qos-3-refused",
    clauses=("MQTT-3.3.1-4", "MQTT-4.13.1-1"),
    mutant="v5-qos-3-accepted",
    near_miss="v5-closes-silently",
)
async def qos_3(ctx: CaseContext) -> None:
    """There is no QoS 3.

    A PUBLISH with both QoS bits set ends the connection and is not delivered.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    connection.send(Publish(topic=topic, payload=b"3", qos=3, packet_id=1))
    await expect_error(ctx, connection)
    control = await ctx.connect(name="control")
    await ctx.expect_no_message(control, watcher)


@case(
    "mqtt5/publish/packet-identifier-0-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=("qos1",),
    mutant="v5-packet-identifier-0-accepted",
    near_miss="v5-closes-silently",
)
async def identifier_0(ctx: CaseContext) -> None:
    """A PUBLISH above QoS 0 has a packet identifier other than 0.

    PUBLISH packets at QoS 1 and 2 with identifier 0 end their connections, and are not acknowledged.
    """
    for qos in qos_levels(ctx)[1:]:
        connection = await ctx.connect(name=f"qos {qos}")
        connection.send(Publish(topic=ctx.topic(), payload=b"0", qos=qos, packet_id=0))
        await expect_error(ctx, connection)


@case(
    "mqtt5/publish/subscription-identifier-from-client-refused",
    clauses=("MQTT-3.3.4-6", "MQTT-4.13.1-1"),
    mutant="v5-client-subscription-identifier-forwarded",
    near_miss="v5-closes-silently",
)
async def subscription_identifier(ctx: CaseContext) -> None:
    """A Subscription Identifier in a client's PUBLISH is a protocol error.

    A publisher sends one to a topic whose subscriber has none. The connection ends, and nothing is delivered.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await ctx.connect(name="publisher")
    connection.send(Publish(topic=topic, payload=b"m", properties=Properties(subscription_identifier=(5,))))
    ctx.must(await ends(connection), "publisher: expected the end of the connection; the packet was taken")
    control = await ctx.connect(name="control")
    await ctx.expect_no_message(control, watcher)


@case(
    "mqtt5/publish/response-topic-with-wildcard-refused",
    clauses=("MQTT-3.3.2-14",),
    level="SHOULD",
    mutant="v5-response-topic-unchecked",
    near_miss="v5-closes-silently",
)
async def response_topic_wildcard(ctx: CaseContext) -> None:
    """A Response Topic has no wildcard.

    A PUBLISH whose response topic is a filter with # should end the connection. The standard forbids it to clients
    and does not say that servers must look, so a broker that takes it is reported and does not fail.
    """
    connection = await ctx.connect()
    connection.send(Publish(topic=ctx.topic(), properties=Properties(response_topic=ctx.topic("reply/#"))))
    ctx.should(await ends(connection), "expected the end of the connection; the packet was taken")


@case(
    "mqtt5/publish/payload-format-2-refused",
    clauses=("MQTT-3.3.2-4",),
    level="SHOULD",
    mutant="v5-payload-format-unchecked",
    near_miss="v5-closes-silently",
)
async def payload_format_2(ctx: CaseContext) -> None:
    """The Payload Format Indicator is 0 or 1.

    A PUBLISH with indicator 2 should end the connection. Nothing says what a server does with an undefined value, so
    a broker that takes it is reported and does not fail.
    """
    connection = await ctx.connect()
    connection.send(Publish(topic=ctx.topic(), payload=b"2", properties=Properties(payload_format_indicator=2)))
    ctx.should(await ends(connection), "expected the end of the connection; the packet was taken")


@case(
    "mqtt5/publish/dup-is-not-passed-on",
    clauses=("MQTT-3.3.1-3", "MQTT-3.3.1-2", "MQTT-4.3.2-2"),
    requires=("qos1",),
    mutant="v5-dup-passed-on",
    near_miss="v5-writes-in-pieces",
)
async def dup_not_passed_on(ctx: CaseContext) -> None:
    """A publisher's DUP flag says nothing to subscribers.

    A QoS 1 PUBLISH with DUP 1 is taken, acknowledged and delivered with DUP 0 to subscribers at QoS 0 and 1.
    """
    topic = ctx.topic()
    subscribers = []
    for qos in (0, 1):
        subscriber = await ctx.connect(name=f"subscriber {qos}")
        await subscriber.subscribe(topic, qos=qos)
        subscribers.append(subscriber)
    publisher = await ctx.connect(name="publisher")
    publisher.send(Publish(topic=topic, payload=b"again", qos=1, packet_id=3, dup=True))
    for subscriber in subscribers:
        await subscriber.expect_publish(topic, b"again", dup=False)


@case(
    "mqtt5/publish/only-matching-subscribers-get-it",
    clauses=("MQTT-3.3.2-3", "MQTT-4.5.0-1"),
    requires=("wildcards",),
    mutant="v5-filters-match-as-prefixes",
    near_miss="v5-writes-in-pieces",
)
async def only_matching(ctx: CaseContext) -> None:
    """A message goes to every subscriber whose filter matches, and to nobody else.

    Nine filters are tried, each by a client of its own, against one topic of three levels. Those that match get the
    message; the others get nothing before a marker.
    """
    topic = ctx.topic("a/b")
    matching = ("a/b", "a/+", "+/b", "+/+", "#", "a/#", "a/b/#")
    other = ("a", "a/b/c", "a/b/", "/a/b", "+", "A/b", "a/b/+", "b/a")
    publisher = await ctx.connect(name="publisher")
    for path in (*matching, *other):
        subscriber = await ctx.connect(name=path)
        await subscriber.subscribe(ctx.topic(path))
        await publisher.publish(topic, path.encode())
        wanted = [path.encode()] if path in matching else []
        messages = await delivered(ctx, publisher, subscriber, at_least=len(wanted))
        found = [message.payload for message in messages]
        ctx.must(found == wanted, f"{path}: expected {wanted}; seen {found}")
        await subscriber.disconnect()
