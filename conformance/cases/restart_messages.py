"""Messages over restarts: those that wait, those in flight in either direction, step by step, and their identifiers."""

from __future__ import annotations

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import pass_time, subscribe_at, under_way
from assay.conformance.cases.restart_support import come_back, gone_for_good, stay, survives, take
from assay.conformance.connection import Connection
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    describe,
)

_WAITING_311 = ("3.1.2-5", "4.1.0-1")
_WAITING_5 = ("3.1.2-5", "3.1.2-23")
_ID = 7
_IDS = (_ID, 255, 256, 40_000, 65_535)
_EXPIRY_S = 600


@survives(
    "messages-that-wait-in-order",
    in_311=(*_WAITING_311, "4.6.0-6"),
    in_5=(*_WAITING_5, "4.6.0-5"),
    requires=("qos2",),
    mutant="restart-overwrites-what-waits",
)
async def waiting(ctx: CaseContext) -> None:
    """What waits for a client outlives restarts, with what comes after them, each once and in order.

    Six messages at QoS 2 wait for a client that is away when the broker is killed. Four more come, and it is killed
    again. The client takes two; killed again, the broker has the rest for it in the order of publishing, and after one
    more restart nothing.
    """
    topic = ctx.topic("waiting")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=2)
    await client.disconnect()
    wanted = [b"%d" % number for number in range(10)]
    for some in (wanted[:6], wanted[6:]):
        publisher = await ctx.connect(name="publisher")
        for payload in some:
            await publisher.publish(topic, payload, qos=2)
        await ctx.restart()
    client = await come_back(ctx, client)
    for payload in wanted[:2]:
        await client.expect_publish(topic, payload, qos=2)
    await gone_for_good(ctx, client)
    client = await come_back(ctx, client)
    rest = [message.payload for message in await take(ctx, client, wanted[2:], "what waited")]
    ctx.must(rest == wanted[2:], f"client: expected {wanted[2:]} in order; seen {rest}")
    await gone_for_good(ctx, client)
    await (await come_back(ctx, client)).expect_nothing()


@survives(
    "acknowledged-messages-stay-away",
    in_311=("4.3.2-1", "4.4.0-1"),
    in_5=("4.3.2-3", "4.4.0-1"),
    requires=("qos1",),
    mutant="restart-repeats-what-was-acknowledged",
    level="SHOULD",
)
async def acknowledged(ctx: CaseContext) -> None:
    """A QoS 1 message that outlived a restart and was then acknowledged is not sent after the next ones.

    At least once is kept by a broker that lost a PUBACK with its process: reported, not failed.
    """
    ctx.forgives_pubacks = False
    topic = ctx.topic("acknowledged")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=1)
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    for payload in (b"1", b"2"):
        await publisher.publish(topic, payload, qos=1)
    await ctx.restart()
    client = await come_back(ctx, client)
    await take(ctx, client, {b"1", b"2"}, "what waited")
    for _ in range(2):
        await gone_for_good(ctx, client)
        client = await come_back(ctx, client)
        again = [packet for packet in await client.barrier() if isinstance(packet, Publish)]
        shown = "; ".join(map(describe, again))
        ctx.should(not again, f"client: expected nothing that it has acknowledged; seen {shown}")
        for packet in again:
            await client.acknowledge(packet)


@survives(
    "refused-deliveries-stay-away",
    in_5=("4.4.0-2", "4.1.0-1"),
    requires=("qos2",),
    mutant="restart-repeats-what-was-refused",
    level="SHOULD",
)
async def refused(ctx: CaseContext) -> None:
    """A QoS 2 message that its client has refused is not sent again after a restart.

    The client answers PUBREC 0x80, which ends the exchange; then the broker is killed, twice. One that lost the answer
    with its process is reported, not failed.
    """
    topic = ctx.topic("refused")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"no", qos=2)
    message = await client.expect_publish(topic, b"no", qos=2, ack=False)
    client.send(Pubrec(packet_id=message.packet_id, reason_code=0x80))
    await client.barrier()
    for _ in range(2):
        await gone_for_good(ctx, client)
        client = await come_back(ctx, client)
        again = await client.barrier()
        ctx.should(
            not again, f"client: expected nothing of what it has refused; seen {'; '.join(map(describe, again))}"
        )


@survives(
    "qos1-delivery-keeps-its-identifier",
    in_311=("4.4.0-1", "3.3.1-1"),
    in_5=("4.4.0-1", "3.3.1-1"),
    requires=("qos1",),
    mutant="restart-forgets-packet-identifiers",
)
async def identifier_kept(ctx: CaseContext) -> None:
    """A QoS 1 delivery without PUBACK comes again with DUP 1 under its identifier, after each of two restarts.

    Before it, deliveries were made and acknowledged, so that its identifier is not the first one. A message that is
    published later has another identifier while it is open.
    """
    topic = ctx.topic("open")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    for payload in (b"1", b"2"):
        await publisher.publish(topic, payload, qos=1)
        await client.expect_publish(topic, payload)
    await publisher.publish(topic, b"open", qos=1)
    first = await client.expect_publish(topic, b"open", ack=False)
    for _ in range(2):
        await ctx.restart()
        client = await come_back(ctx, client)
        again = await client.expect_publish(topic, b"open", dup=True, ack=False)
        same = again.packet_id == first.packet_id
        ctx.must(same, f"client: expected the identifier {first.packet_id} again; seen {describe(again)}")
    publisher = await ctx.connect(name="publisher again")
    publisher.send(Publish(topic=topic, payload=b"next", qos=1, packet_id=1))
    # A window of one is legal: then the next message comes after the PUBACK only.
    early = [packet for packet in await client.barrier() if isinstance(packet, Publish)]
    for packet in early:
        is_next = packet.payload == b"next" and not packet.dup and packet.packet_id != first.packet_id
        ctx.must(is_next, f"client: expected the next message under a free identifier; seen {describe(packet)}")
    client.send(Puback(packet_id=first.packet_id))
    following = early[0] if early else await client.expect_publish(topic, b"next", dup=False, ack=False)
    await client.acknowledge(following)
    await publisher.expect(Puback)
    await client.expect_nothing()


@survives(
    "qos2-delivery-step-by-step",
    in_311=("4.4.0-1", "4.3.3-1"),
    in_5=("4.4.0-1", "4.3.3-3", "4.3.3-5", "4.3.3-6"),
    requires=("qos2",),
    mutant="restart-forgets-pubrec",
)
async def qos2_delivery(ctx: CaseContext) -> None:
    """A QoS 2 delivery goes on where it was, whichever step the broker was killed at.

    Killed after PUBLISH, it sends PUBLISH with DUP 1 under the old identifier; killed after PUBREL, it sends PUBREL
    and never again PUBLISH; killed after PUBCOMP, nothing, or (that PUBCOMP may be lost) PUBREL.
    """
    topic = ctx.topic("exactly")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"before", qos=2)
    await client.expect_publish(topic, b"before")
    await publisher.publish(topic, b"open", qos=2)
    first = await client.expect_publish(topic, b"open", ack=False)
    await ctx.restart()
    client = await come_back(ctx, client, name="after PUBLISH")
    again = await client.expect_publish(topic, b"open", qos=2, dup=True, ack=False)
    same = again.packet_id == first.packet_id
    ctx.must(same, f"client: expected the identifier {first.packet_id} again; seen {describe(again)}")
    client.send(Pubrec(packet_id=first.packet_id))
    _expect_id(ctx, await client.expect(Pubrel), first.packet_id)
    for _ in range(2):
        await ctx.restart()
        client = await come_back(ctx, client, name="after PUBREL")
        _expect_id(ctx, await client.expect(Pubrel), first.packet_id)
    client.send(Pubcomp(packet_id=first.packet_id))
    await client.expect_nothing()
    await ctx.restart()
    client = await come_back(ctx, client, name="after PUBCOMP")
    for packet in await client.barrier():
        ctx.must(isinstance(packet, Pubrel), f"client: expected the exchange to be over; seen {describe(packet)}")
        ctx.should(False, f"client: the PUBCOMP is forgotten: {describe(packet)}")


def _expect_id(ctx: CaseContext, pubrel: Pubrel, packet_id: int) -> None:
    ctx.must(pubrel.packet_id == packet_id, f"expected PUBREL {packet_id}; seen {describe(pubrel)}")


async def _answered(
    ctx: CaseContext, publisher: Connection, packet: Publish | Pubrel, kind: type[Pubrec | Pubcomp]
) -> None:
    """An answer to the identifier; a broker that repeats PUBRECs to a client that is back may do so."""
    publisher.send(packet)
    while True:
        answer = await publisher.receive(kind.type.name)
        if isinstance(answer, Pubrec) and kind is Pubcomp:
            continue
        if not isinstance(answer, kind) or answer.packet_id != packet.packet_id or answer.reason_code >= 0x80:
            ctx.fail(f"publisher: expected {kind.type.name} {packet.packet_id}; seen {answer and describe(answer)}")
        return


async def _release_and_reuse(ctx: CaseContext, publisher: Connection, watcher: Connection, topic: str) -> None:
    """Release the message and, after one more restart, publish another one under its identifier; each comes once."""
    await _answered(ctx, publisher, Pubrel(packet_id=_ID), Pubcomp)
    await ctx.restart()
    publisher = await come_back(ctx, publisher, name="publisher after PUBCOMP")
    await _answered(ctx, publisher, Publish(topic=topic, payload=b"new", qos=2, packet_id=_ID), Pubrec)
    await _answered(ctx, publisher, Pubrel(packet_id=_ID), Pubcomp)
    watcher = await come_back(ctx, watcher)
    await take(ctx, watcher, {b"old", b"new"}, "one copy of each message")


@survives(
    "qos2-publish-step-by-step",
    in_311=("4.3.3-2", "4.4.0-1"),
    in_5=("4.3.3-10", "4.3.3-11", "4.3.3-12"),
    requires=("qos2",),
    mutant="restart-forgets-received-identifiers",
)
async def qos2_publish(ctx: CaseContext) -> None:
    """A QoS 2 publish goes on where it was: its message arrives once, however often the broker is killed on the way.

    Killed after PUBREC, the broker takes PUBLISH with DUP 1 for known, twice in a row. Killed after PUBCOMP, it takes
    the same identifier for a new message.
    """
    topic = ctx.topic("exactly")
    watcher = await stay(ctx, "watcher")
    await subscribe_at(ctx, watcher, topic, qos=2)
    await watcher.disconnect()
    publisher = await stay(ctx, "publisher")
    await _answered(ctx, publisher, Publish(topic=topic, payload=b"old", qos=2, packet_id=_ID), Pubrec)
    for _ in range(2):
        await ctx.restart()
        publisher = await come_back(ctx, publisher, name="publisher after PUBREC")
        await _answered(ctx, publisher, Publish(topic=topic, payload=b"old", qos=2, packet_id=_ID, dup=True), Pubrec)
    await _release_and_reuse(ctx, publisher, watcher, topic)


@survives(
    "qos2-publishes-side-by-side",
    in_311=("4.3.3-2", "4.4.0-1"),
    in_5=("4.3.3-10", "4.3.3-12"),
    requires=("qos2",),
    mutant="restart-forgets-all-but-two-received-identifiers",
    kills=("restart-forgets-large-received-identifiers",),
)
async def qos2_publishes(ctx: CaseContext) -> None:
    """Several QoS 2 publishes that were open together are all known after a restart, and each arrives once.

    Five with small and large identifiers, or as many as the broker takes at a time, have their PUBRECs. Killed, the
    broker takes each of them with DUP 1 for known; killed again, it completes each.
    """
    topic = ctx.topic("exactly")
    watcher = await stay(ctx, "watcher")
    await subscribe_at(ctx, watcher, topic, qos=2)
    await watcher.disconnect()
    publisher = await stay(ctx, "publisher")
    identifiers = _IDS[: publisher.connack.properties.receive_maximum]
    for is_known in (False, True):
        for packet_id in identifiers:
            packet = Publish(topic=topic, payload=b"%d" % packet_id, qos=2, packet_id=packet_id, dup=is_known)
            await _answered(ctx, publisher, packet, Pubrec)
        await ctx.restart()
        publisher = await come_back(ctx, publisher)
    for packet_id in identifiers:
        await _answered(ctx, publisher, Pubrel(packet_id=packet_id), Pubcomp)
    watcher = await come_back(ctx, watcher)
    await take(ctx, watcher, {b"%d" % packet_id for packet_id in identifiers}, "one copy of each message")


async def _releases(ctx: CaseContext) -> tuple[list[int], list[int]]:
    """Identifiers in the order of their PUBRECs, and of the PUBRELs that a client is sent after a restart."""
    topic = ctx.topic("exactly")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=2)
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    for number in range(3):
        await publisher.publish(topic, b"%d" % number, qos=2)
    client = await come_back(ctx, client)
    sent = [message.packet_id for message in await under_way(ctx, client, topic, 3)]
    for packet_id in sent:
        client.send(Pubrec(packet_id=packet_id))
        _expect_id(ctx, await client.expect(Pubrel, skipping=(Publish,)), packet_id)
    await ctx.restart()
    client = await come_back(ctx, client)
    seen = [(await client.expect(Pubrel, skipping=(Publish,))).packet_id for _ in sent]
    client.send(*(Pubcomp(packet_id=packet_id) for packet_id in sent))
    return sent, seen


@survives(
    "qos2-releases-side-by-side",
    in_311=("4.4.0-1", "4.3.3-1"),
    in_5=("4.4.0-1", "4.3.3-6"),
    requires=("qos2",),
    mutant="restart-forgets-all-but-one-release",
)
async def releases(ctx: CaseContext) -> None:
    """Several deliveries that were released, and not completed, are all released again after a restart.

    Up to three, whose PUBRELs the client had. Unsupported on a broker that has one message under way at a time.
    """
    sent, seen = await _releases(ctx)
    ctx.must(sorted(sent) == sorted(seen), f"client: expected PUBRELs {sent}; seen {seen}")


@survives(
    "qos2-releases-in-their-order",
    in_311=("4.6.0-4", "4.6.0-6"),
    requires=("qos2",),
    mutant="restart-reverses-releases",
)
async def releases_in_order(ctx: CaseContext) -> None:
    """What is released again after a restart comes in the order in which the PUBRECs came.

    Up to three deliveries. Unsupported on a broker that has one message under way at a time.
    """
    sent, seen = await _releases(ctx)
    ctx.must(sent == seen, f"client: expected PUBRELs in the order {sent}; seen {seen}")


@survives(
    "qos2-publish-of-an-earlier-connection",
    in_311=("4.3.3-2", "4.4.0-1"),
    in_5=("4.3.3-10", "4.3.3-12"),
    requires=("qos2",),
    mutant="restart-forgets-identifiers-of-earlier-connections",
)
async def qos2_earlier(ctx: CaseContext) -> None:
    """An identifier that was received on an earlier connection is still known after the restart that follows.

    A publisher has PUBREC, leaves, comes back and publishes something else; then the broker is killed. PUBLISH with
    DUP 1 brings no second copy, and after PUBCOMP and another restart the identifier is free.
    """
    topic = ctx.topic("exactly")
    watcher = await stay(ctx, "watcher")
    await subscribe_at(ctx, watcher, topic, qos=2)
    await watcher.disconnect()
    publisher = await stay(ctx, "publisher")
    await _answered(ctx, publisher, Publish(topic=topic, payload=b"old", qos=2, packet_id=_ID), Pubrec)
    await publisher.disconnect()
    publisher = await come_back(ctx, publisher)
    await publisher.publish(ctx.topic("else"), b"", qos=0)
    await publisher.barrier()
    await ctx.restart()
    publisher = await come_back(ctx, publisher, name="publisher after the restart")
    await _answered(ctx, publisher, Publish(topic=topic, payload=b"old", qos=2, packet_id=_ID, dup=True), Pubrec)
    await _release_and_reuse(ctx, publisher, watcher, topic)


@survives(
    "flags-and-identifiers-of-messages-that-wait",
    in_5=(*_WAITING_5, "3.3.1-13", "3.3.4-3"),
    requires=("qos1", "retain", "subscription_identifiers"),
    mutant="restart-forgets-flags-of-messages",
    kills=("restart-forgets-what-qos-was-granted",),
)
async def flags(ctx: CaseContext) -> None:
    """RETAIN, the QoS and the subscription identifier of a message that waits outlive the restart.

    A client with Retain As Published and an identifier is away, with a subscription at QoS 1. Of two messages at QoS 2,
    where that is taken, one is published with RETAIN 1: both come at QoS 1, with the flag they had and the identifier,
    although another restart has passed between them.
    """
    topic = ctx.topic("flags")
    client = await stay(ctx, "client")
    await client.subscribe(
        Subscription(filter=topic, qos=1, retain_as_published=True, retain_handling=2),
        properties=Properties(subscription_identifier=(300,)),
    )
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    qos = 2 if ctx.capabilities["qos2"] else 1
    await publisher.publish(topic, b"flagged", qos=qos, retain=True)
    await publisher.publish(topic, b"plain", qos=qos)
    await ctx.restart()
    client = await come_back(ctx, client)
    found = [await client.expect_publish(topic, b"flagged", ack=False)]
    await ctx.restart()
    client = await come_back(ctx, client)
    found += await take(ctx, client, {b"flagged", b"plain"}, "both messages")
    for message in found:
        seen = (message.qos, message.retain, message.properties.subscription_identifier)
        wanted = (1, message.payload == b"flagged", (300,))
        ctx.must(seen == wanted, f"client: expected QoS, RETAIN and identifier {wanted}; seen {describe(message)}")


_PROPERTIES = Properties(
    payload_format_indicator=1,
    content_type="text/plain; charset=utf-8",
    response_topic="answers/\u00e4",
    correlation_data=bytes(range(256)),
    user_property=(("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("a", "1")),
)
_PROPERTY_CLAUSES = ("3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20")


@survives(
    "properties-of-messages-that-wait",
    in_5=(*_WAITING_5, *_PROPERTY_CLAUSES),
    requires=("qos1",),
    mutant="restart-sorts-user-properties",
)
async def properties(ctx: CaseContext) -> None:
    """All properties of a message that waits, or is in flight, outlive two restarts unaltered and in order.

    Repeated names, empty texts and all bytes of correlation data are among them.
    """
    topic = ctx.topic("properties")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=1)
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"text", qos=1, properties=_PROPERTIES)
    for _ in range(2):
        await ctx.restart()
        client = await come_back(ctx, client)
        message = await client.expect_publish(topic, b"text", ack=False)
        same = message.properties == _PROPERTIES
        ctx.must(same, f"client: expected the properties as they were published; seen {describe(message)}")
    await client.acknowledge(message)
    await client.expect_nothing()


@survives(
    "expiry-of-messages-that-wait",
    in_5=(*_WAITING_5, "3.3.2-5", "3.3.2-6"),
    requires=("qos1",),
    mutant="restart-restarts-message-expiry",
)
async def expiry(ctx: CaseContext) -> None:
    """The time that a message has waited counts over a restart.

    One message may wait for 600 s, another one for 1 s. The broker is killed 3 s later, and again: the first comes,
    with what is left of its time; the second does not.
    """
    topic = ctx.topic("expiry")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=1)
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    watch = Stopwatch()
    await publisher.publish(topic, b"long", qos=1, properties=Properties(message_expiry_interval=_EXPIRY_S))
    await publisher.publish(topic, b"short", qos=1, properties=Properties(message_expiry_interval=1))
    published_s = watch.elapsed_s
    await pass_time(ctx, 3.0)
    await ctx.restart()
    await ctx.restart()
    client = await come_back(ctx, client)
    waited_s = watch.elapsed_s - published_s
    message = (await take(ctx, client, {b"long"}, "the message that has not expired"))[0]
    left_s = message.properties.message_expiry_interval
    highest = _EXPIRY_S - int(waited_s) + 1
    lowest = _EXPIRY_S - watch.elapsed_s - 2
    right = left_s is not None and lowest <= left_s <= highest
    ctx.must(right, f"client: expected about {_EXPIRY_S - waited_s:.0f} s to be left; seen {describe(message)}")


@survives(
    "one-message-for-many-sessions",
    in_311=_WAITING_311,
    in_5=_WAITING_5,
    requires=("qos1",),
    mutant="restart-loses-what-another-has-taken",
)
async def many_sessions(ctx: CaseContext) -> None:
    """A message that waits for several clients is there for each of them, also when others have taken theirs.

    Of three clients one takes it before the first restart, one between two, one after both.
    """
    topic = ctx.topic("many")
    clients = [await stay(ctx, f"client {number}") for number in range(3)]
    for client in clients:
        await subscribe_at(ctx, client, topic, qos=1)
        await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"for all", qos=1)
    for client in clients:
        back = await come_back(ctx, client)
        await take(ctx, back, {b"for all"}, "its copy")
        await gone_for_good(ctx, back)
