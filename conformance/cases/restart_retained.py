"""Retained messages over restarts: stored, replaced, shortened, removed; with their properties and their expiry."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import pass_time, taken
from assay.conformance.cases.restart_messages import _PROPERTIES, _PROPERTY_CLAUSES
from assay.conformance.cases.restart_support import SMALL_SEGMENTS, a_step_of_restarts, come_back, stay, survives
from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Rule
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Properties, Publish, Suback, Subscribe, Subscription, describe

_LARGE_BYTES = 100_000
_DEEP_LEVELS = 100
_LONGEST_TOPIC_BYTES = 65_535
_MANY = 12


async def _kept(
    ctx: CaseContext, topic_filter: str, *, name: str, qos: int = 2, at_least: int = 0
) -> dict[str, Publish]:
    """The retained messages that a new subscription of a new client brings, by topic; so many must come."""
    client = await ctx.connect(name=name)
    client.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic_filter, qos=qos),)))
    found: dict[str, Publish] = {}
    answered = False
    while not answered:
        packet = await client.receive("SUBACK and retained messages")
        answered = isinstance(packet, Suback)
        if isinstance(packet, Publish):
            await _note(ctx, client, packet, found)
    # Retained messages may follow SUBACK; what follows two PINGRESPs without one is not part of the answer.
    quiet = 0
    while quiet < 2:
        packets = [packet for packet in await client.barrier() if isinstance(packet, Publish)]
        for packet in packets:
            await _note(ctx, client, packet, found)
        quiet = 0 if packets else quiet + 1
    if at_least and not found:  # one of them must come
        for packet in await taken(client, 1, ack=False, silence_s=ctx.patience_s):
            await _note(ctx, client, packet, found)
    for packet in await taken(client, at_least - len(found), ack=False):
        await _note(ctx, client, packet, found)
    with a_step_of_restarts(ctx, Rule.RETAINED_SURVIVES, found):
        ctx.must(bool(found or not at_least), f"{name}: expected {at_least} retained messages or more; seen none")
    await client.disconnect()
    return found


async def _note(ctx: CaseContext, client: Connection, packet: Publish, found: dict[str, Publish]) -> None:
    ctx.must(packet.topic not in found, f"{client.name}: expected each topic once; seen {describe(packet)} again")
    ctx.must(packet.retain, f"{client.name}: expected RETAIN 1; seen {describe(packet)}")
    await client.acknowledge(packet)
    found[packet.topic] = packet


async def _expect(ctx: CaseContext, root: str, wanted: Mapping[str, tuple[bytes, int]], when: str) -> None:
    """Below ``root`` these payloads are retained, by topic, at these QoS levels, and no others."""
    found = await _kept(ctx, f"{root}/#", name=f"reader {when}", at_least=len(wanted))
    seen = {topic: (message.payload, message.qos) for topic, message in found.items()}
    for topic in sorted(seen.keys() | wanted.keys()):
        shown = {
            side: f"{len(entry[0])} bytes {entry[0][:20]!r} at QoS {entry[1]}"
            if (entry := table.get(topic))
            else "none"
            for side, table in (("wanted", wanted), ("seen", seen))
        }
        same = seen.get(topic) == wanted.get(topic)
        ctx.must(same, f"{when}: retained on {topic}: expected {shown['wanted']}; seen {shown['seen']}")


@survives(
    "retained-messages-change",
    in_311=("3.3.1-5", "3.3.1-6", "3.3.1-10"),
    in_5=("3.3.1-5", "3.3.1-6", "3.3.1-9"),
    requires=("qos2", "retain", "wildcards"),
    mutant="restart-brings-cleared-retained-messages-back",
)
async def changes(ctx: CaseContext) -> None:
    """A retained message is what was stored last: kept, replaced, shortened, removed or set again between restarts.

    After each of three restarts a new subscriber gets for each topic what was last published there with RETAIN 1, at
    its QoS, and nothing for those that were cleared. What was 100 kB long and became one byte is one byte.
    """
    root = ctx.topic("kept")
    large = b"L" * ctx.room_bytes(_LARGE_BYTES)
    steps: dict[str, tuple[tuple[bytes, int], ...]] = {
        "same": ((b"same", 1),),
        "longer": ((b"short", 1), (b"much longer than before", 1)),
        "shortened": ((large, 1), (b"s", 1)),
        "qos": ((b"payload", 2), (b"payload", 1)),
        "cleared": ((b"gone", 1), (b"", 1)),
        "cleared/below": ((b"stays", 1),),
        "again": ((b"first", 1), (b"", 1), (b"third", 2)),
        "late": ((b"", 1), (b"set later", 1), (b"", 1)),
    }
    for step in range(3):
        publisher = await ctx.connect(name=f"publisher {step}")
        for name, values in steps.items():
            if step < len(values):
                payload, qos = values[step]
                await publisher.publish(f"{root}/{name}", payload, qos=qos, retain=True)
        await ctx.restart()
        last = {f"{root}/{name}": values[min(step, len(values) - 1)] for name, values in steps.items()}
        wanted = {topic: entry for topic, entry in last.items() if entry[0]}
        await _expect(ctx, root, wanted, f"after restart {step + 1}")


@survives(
    "retained-messages-are-replaced",
    in_311=("3.3.1-5",),
    in_5=("3.3.1-5",),
    requires=("qos1", "retain"),
    mutant="restart-undoes-replaced-retained-messages",
)
async def replaced(ctx: CaseContext) -> None:
    """The message that replaced a retained one is the one that outlives the restarts, also if it is shorter.

    After the first restart a message of 100 kB is replaced by one of two bytes, then the broker is killed twice.
    """
    root = ctx.topic("kept")
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(f"{root}/t", b"L" * ctx.room_bytes(_LARGE_BYTES), qos=1, retain=True)
    await ctx.restart()
    publisher = await ctx.connect(name="publisher 2")
    await publisher.publish(f"{root}/t", b"ab", qos=1, retain=True)
    for number in range(2):
        await ctx.restart()
        await _expect(ctx, root, {f"{root}/t": (b"ab", 1)}, f"after restart {number + 2}")


@survives(
    "properties-of-retained-messages",
    in_5=("3.3.1-5", *_PROPERTY_CLAUSES),
    requires=("qos1", "retain"),
    mutant="restart-forgets-correlation-data",
)
async def properties(ctx: CaseContext) -> None:
    """All properties of a retained message outlive two restarts unaltered and in order.

    Repeated names, empty texts and all bytes of correlation data are among them.
    """
    topic = ctx.topic("properties")
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"text", qos=1, retain=True, properties=_PROPERTIES)
    for number in range(2):
        await ctx.restart()
        message = (await _kept(ctx, topic, name=f"reader {number}", at_least=1)).get(topic)
        same = message is not None and message.properties == _PROPERTIES
        ctx.must(same, f"expected the message with its properties; seen {message and describe(message)}")


@survives(
    "expiry-of-retained-messages",
    in_5=("3.3.1-5", "3.3.2-5", "3.3.2-6"),
    requires=("qos1", "retain", "wildcards"),
    mutant="restart-restarts-message-expiry",
)
async def expiry(ctx: CaseContext) -> None:
    """The expiry of a retained message counts over restarts.

    Three seconds after it was stored, and after two restarts, one of 600 s is there with what is left; one of 1 s is
    gone, and so is one of 600 s that another of 1 s replaced.
    """
    root = ctx.topic("expiry")
    publisher = await ctx.connect(name="publisher")
    watch = Stopwatch()
    for name, expiry_s in (("long", 600), ("short", 1), ("shortened", 600), ("shortened", 1)):
        properties = Properties(message_expiry_interval=expiry_s)
        await publisher.publish(f"{root}/{name}", b"kept", qos=1, retain=True, properties=properties)
    published_s = watch.elapsed_s
    await pass_time(ctx, 3.0)
    await ctx.restart()
    await ctx.restart()
    waited_s = watch.elapsed_s - published_s
    found = await _kept(ctx, f"{root}/#", name="reader", at_least=1)
    seen = [topic.removeprefix(f"{root}/") for topic in found]
    ctx.must(seen == ["long"], f"expected the message of 600 s alone; seen {seen}")
    left_s = found[f"{root}/long"].properties.message_expiry_interval
    right = left_s is not None and 600 - watch.elapsed_s - 2 <= left_s <= 600 - int(waited_s) + 1
    ctx.must(right, f"expected about {600 - waited_s:.0f} s to be left; seen {left_s}")


@survives(
    "retained-messages-on-long-and-deep-topics",
    in_311=("3.3.1-5", "3.3.1-6"),
    in_5=("3.3.1-5", "3.3.1-9"),
    requires=("qos1", "retain"),
    mutant="restart-forgets-long-topics",
)
async def long_topics(ctx: CaseContext) -> None:
    """Topics up to the largest there can be, and of a hundred levels, keep their retained messages.

    Topics of 255, 256, 65 534 and 65 535 bytes (less where the broker takes no such packet), one of 100 levels and one
    with empty levels outlive two restarts; all but the last two are cleared between them.
    """
    start = f"{ctx.topic('long')}/"
    longest = ctx.room_bytes(_LONGEST_TOPIC_BYTES)
    sized = [start + "x" * (size - len(start)) for size in sorted({255, 256, longest - 1, longest})]
    lasting = [start + "/".join("l" * _DEEP_LEVELS), f"{start}/a//b//"]
    publisher = await ctx.connect(name="publisher")
    for topic in (*sized, *lasting):
        await publisher.publish(topic, topic[-8:].encode(), qos=1, retain=True)
    await ctx.restart()
    for topics in (sized, lasting):
        for topic in topics:
            await _is_retained(ctx, topic, True)
    publisher = await ctx.connect(name="publisher 2")
    for topic in sized:
        await publisher.publish(topic, b"", qos=1, retain=True)
    await ctx.restart()
    for topic in (*sized, *lasting):
        await _is_retained(ctx, topic, topic in lasting)


async def _is_retained(ctx: CaseContext, topic: str, wanted: bool) -> None:
    message = (await _kept(ctx, topic, name=f"reader of {len(topic)} bytes", at_least=int(wanted))).get(topic)
    right = (message is not None) is wanted and (message is None or message.payload == topic[-8:].encode())
    ctx.must(right, f"topic of {len(topic)} bytes: expected {'its message' if wanted else 'nothing'}; seen {message}")


@survives(
    "retained-messages-that-are-still-to-be-sent",
    in_5=("3.3.1-9", "3.1.2-23"),
    requires=("qos1", "retain", "wildcards"),
    mutant="restart-forgets-retained-messages-to-be-sent",
    kills=("restart-forgets-all-but-one-walk",),
    level="SHOULD",
)
async def still_to_be_sent(ctx: CaseContext) -> None:
    """What a subscription was to bring, and the client had no room for, it gets after a restart.

    A client that takes one message at a time subscribes to twelve retained ones by two filters, and acknowledges none.
    Killed and started again, the broker sends it all twelve. One that looks retained messages up only when somebody
    subscribes may have lost what it had not sent: reported, not failed.
    """
    root = ctx.topic("due")
    publisher = await ctx.connect(name="publisher")
    wanted = {b"%d" % number for number in range(_MANY)}
    for payload in wanted:
        await publisher.publish(f"{root}/{len(payload)}/{payload.decode()}", payload, qos=1, retain=True)
    client = await stay(ctx, "client", receive_maximum=1)
    await client.subscribe(f"{root}/1/#", f"{root}/2/#", qos=1)
    await client.receive("the first retained message")
    await ctx.restart()
    client = await come_back(ctx, client)
    missing = set(wanted)
    with contextlib.suppress(CaseFailureError):
        while missing:
            message = await client.expect_publish()
            missing.discard(message.payload)
    ctx.should(not missing, f"client: expected all {_MANY} retained messages; {len(missing)} did not come")


@case(
    "mqtt5/restart/many-changes-of-few-things",
    clauses=("MQTT-3.3.1-5", "MQTT-3.3.1-6"),
    requires=("restart", "persistence", "retain", "wildcards", "qos1"),
    mutant="storage-compaction-drops-newest",
    kills=("storage-tombstone-kills-newer",),
    near_miss="restart-record-by-record",
    settings=SMALL_SEGMENTS,
    together=True,
    limit_s=20.0,
)
async def many_changes(ctx: CaseContext) -> None:
    """However often something was replaced and removed, the last word counts after a restart.

    Sixteen topics get, lose and get again retained messages of 1 kB, up to five times over, and then rest while others
    change, so that the files of a broker with small segments are written anew meanwhile. After each of two restarts
    every topic has what it got last, or nothing.
    """
    root = ctx.topic("churn")
    topics = [f"{root}/{number}" for number in range(16)]
    filler = b"f" * ctx.room_bytes(12_000)
    for turn in range(2):
        publisher = await ctx.connect(name=f"publisher {turn}")
        wanted: dict[str, tuple[bytes, int]] = {}
        for step in range(6):
            for number, topic in enumerate(topics):
                if step > number % 5:
                    continue
                payload = f"{turn} {step} ".encode() + b"x" * 1_000
                if number % 3 == 1:
                    await publisher.publish(topic, b"", qos=1, retain=True)
                await publisher.publish(topic, payload, qos=1, retain=True)
                wanted[topic] = (payload, 1)
                if number % 3 == 2:
                    await publisher.publish(topic, b"", qos=1, retain=True)
                    del wanted[topic]
            await publisher.publish(f"{root}/filler", filler, qos=1, retain=True)
            wanted[f"{root}/filler"] = (filler, 1)
            if step in (2, 3):
                # A broker may tidy up only now and then.
                await pass_time(ctx, 1.3)
        await ctx.restart()
        await _expect(ctx, root, wanted, f"after restart {turn + 1}")
