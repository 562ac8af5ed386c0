"""Topic names and filters: what matches what (MQTT 3.1.1, 4.7)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import delivered, ends
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.rules import Rule
from assay.conformance.wire import Publish, Suback, Subscribe, Subscription, describe

_SINGLE_LEVEL = {
    "+": (["a", ""], ["a/b", "/", "a/"]),
    "a/+": (["a/b", "a/"], ["a", "a/b/c", "b/a"]),
    "+/b": (["a/b", "/b"], ["b", "a/b/c", "a/a/b"]),
    "a/+/c": (["a/b/c", "a//c"], ["a/c", "a/b/b/c"]),
    "+/+": (["a/b", "/", "/b", "a/"], ["a", "a/b/c"]),
}
"""Filter below the case's own level -> topics that it matches, topics that it does not."""

_MULTI_LEVEL = {
    "a/#": (["a", "a/b", "a/b/c", "a/"], ["ab", "b/a", "A/b"]),
    "a/b/#": (["a/b", "a/b/c"], ["a", "a/c"]),
    "#": (["a", "a/b/c", "/"], []),
    "+/b/#": (["a/b", "a/b/c"], ["a", "a/c/b"]),
}


async def _check_matches(ctx: CaseContext, table: dict[str, tuple[list[str], list[str]]]) -> None:
    publisher = await ctx.connect(name="publisher")
    for number, (filter_, (matching, others)) in enumerate(table.items()):
        subscriber = await ctx.connect(name=filter_)
        await subscriber.subscribe(ctx.topic(f"{number}/{filter_}"))
        for path in (*matching, *others):
            publisher.send(Publish(topic=ctx.topic(f"{number}/{path}")))
        wanted = sorted(ctx.topic(f"{number}/{path}") for path in matching)
        messages = await delivered(ctx, publisher, subscriber, at_least=len(wanted))
        found = sorted(message.topic for message in messages)
        ctx.must(found == wanted, f"filter {filter_}: expected messages of {wanted}; seen {found}")


@case(
    "mqtt311/topic/single-level-wildcard",
    clauses=("MQTT-4.7.1-3", "MQTT-3.3.2-3", "MQTT-4.5.0-1"),
    requires=("wildcards",),
    mutant="v3-plus-needs-a-character",
)
async def single_level(ctx: CaseContext) -> None:
    """The wildcard + matches exactly one level, at any place, an empty one too.

    Five filters are held against topics that they match and topics that they do not.
    """
    await _check_matches(ctx, _SINGLE_LEVEL)


@case(
    "mqtt311/topic/multi-level-wildcard",
    clauses=("MQTT-4.7.1-2", "MQTT-3.3.2-3", "MQTT-4.5.0-1"),
    requires=("wildcards",),
    mutant="v3-hash-misses-the-parent",
)
async def multi_level(ctx: CaseContext) -> None:
    """The wildcard # matches the level before it and everything below.

    Four filters are held against topics that they match and topics that they do not.
    """
    await _check_matches(ctx, _MULTI_LEVEL)


@case(
    "mqtt311/topic/dollar-topics-hide-from-leading-wildcards",
    clauses=("MQTT-4.7.2-1",),
    requires=("wildcards",),
    mutant="v3-wildcards-match-dollar-topics",
    kills=("cross-dollar-retained-by-wildcards",),
    near_miss="v3-dollar-topics-end-the-connection",
)
async def dollar(ctx: CaseContext) -> None:
    """A filter that starts with a wildcard matches no topic that starts with $.

    One client subscribes to #, one to +/ and the rest of the topic; a message is published below $assay, with RETAIN 1.
    A broker may refuse such a message, and end the connection on which it comes, but must hand it neither to them nor
    to one that subscribes to the latter filter behind it.
    """
    rest = ctx.topic("private")
    topic = f"$assay/{rest}"
    publisher = await ctx.connect(name="publisher")
    for name, filter_ in (("hash", "#"), ("plus", f"+/{rest}")):
        watcher = await ctx.connect(name=name)
        watcher.skip_malformed = True  # # brings what others publish, wrong topics among it
        await watcher.subscribe(filter_)
        outsider = await ctx.connect(name=f"outsider {name}")
        outsider.send(Publish(topic=topic, payload=b"private", retain=True))
        await ends(outsider)
        late = await ctx.connect(name="late")
        await late.subscribe(f"+/{rest}")
        for client in (watcher, late):
            for packet in await ctx.messages_before_marker(publisher, client):
                if isinstance(packet, Publish) and packet.topic == topic:
                    ctx.fail(f"{client.name}: expected nothing of {topic}; seen {describe(packet)}")


@case(
    "mqtt311/topic/names-are-compared-byte-by-byte",
    clauses=("MQTT-4.7.3-4", "MQTT-3.3.2-3"),
    mutant="v3-topic-names-normalised",
)
async def no_normalization(ctx: CaseContext) -> None:
    """Topics are compared as they are: no normal form, no case folding, no tidying of slashes.

    Pairs that look alike: composed and decomposed e-acute, upper and lower case, with and without final slash, doubled
    slash, with and without space. A subscriber of the first of each pair does not get the second. (Pairs whose
    subscription a broker refuses are left out; that it may not is judged by another case.)
    """
    pairs = [("caf\u00e9", "cafe\u0301"), ("Case", "case"), ("end", "end/"), ("two//x", "two/x"), ("sp ace", "space")]
    subscriber = await ctx.connect(name="subscriber")
    entries = tuple(Subscription(filter=ctx.topic(first)) for first, _ in pairs)
    subscriber.send(Subscribe(packet_id=subscriber.next_packet_id(), subscriptions=entries))
    codes = (await subscriber.expect(Suback)).reason_codes
    pairs = [pair for pair, code in zip(pairs, codes, strict=True) if code < FIRST_FAILURE_CODE]
    text = f"subscriber: expected to be granted these filters; seen {codes}"
    ctx.step(Rule.SUBACK, len(pairs) > 1, text, soft=True)
    publisher = await ctx.connect(name="publisher")
    for first, second in pairs:
        publisher.send(Publish(topic=ctx.topic(second), payload=b"other"))
        publisher.send(Publish(topic=ctx.topic(first), payload=b"same"))
    wanted = sorted(ctx.topic(first) for first, _ in pairs)
    messages = await delivered(ctx, publisher, subscriber, at_least=len(wanted))
    found = sorted(message.topic for message in messages)
    ctx.must(found == wanted, f"subscriber: expected messages of {wanted}; seen {found}")


@case(
    "mqtt311/topic/byte-order-mark-is-a-character",
    clauses=("MQTT-1.5.3-3",),
    mutant="v3-byte-order-mark-stripped",
)
async def byte_order_mark(ctx: CaseContext) -> None:
    """U+FEFF is a character like any other, also at the start of a topic.

    A message to a topic that begins with U+FEFF reaches the subscriber of that topic under its full name, and not the
    subscriber of the topic without it.
    """
    plain = ctx.topic("bom")
    marked = f"\ufeff{plain}"
    with_mark = await ctx.connect(name="with mark")
    await with_mark.subscribe(marked)
    without = await ctx.connect(name="without")
    await without.subscribe(plain)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(marked, b"marked")
    await with_mark.expect_publish(marked, b"marked")
    await ctx.expect_no_message(publisher, without)


@case(
    "mqtt311/topic/any-character-and-length",
    clauses=("MQTT-1.5.3-1", "MQTT-4.7.3-4"),
    mutant="v3-astral-characters-refused",
)
async def any_character(ctx: CaseContext) -> None:
    """Topics may hold any character but U+0000, and thousands of them.

    Spaces, dollar signs inside, characters beyond the basic plane, and a name of 4,000 characters (less where the
    server takes no packet that large).
    """
    for path in ("a b", "in$ide", "\U0001f4e8/\U00010348", "\u65e5\u672c\u8a9e", "x" * ctx.room_bytes(4_000)):
        topic = ctx.topic(path)
        client = await ctx.connect(name=path[:8])
        await client.subscribe(topic)
        client.send(Publish(topic=topic, payload=path[:8].encode()))
        await client.expect_publish(topic, path[:8].encode())
