"""Sessions: what outlives a connection and what is sent again (MQTT 3.1.1, 3.1.2.4, 4.1 and 4.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import completion, delivered, publishing, qos_levels, subscribe_at, under_way
from assay.conformance.connection import Connection
from assay.conformance.rules import Rule
from assay.conformance.wire import Pubcomp, Publish, Pubrec, Pubrel, describe


async def resume(ctx: CaseContext, client_id: str, *, name: str = "back") -> Connection:
    """Connect with Clean Session 0; the session must be there."""
    connection = await ctx.connect(client_id=client_id, clean=False, name=name)
    ctx.step(
        Rule.SESSION_KEPT,
        connection.connack.session_present,
        f"{name}: expected Session Present 1; seen {describe(connection.connack)}",
    )
    return connection


@case(
    "mqtt311/session/keeps-subscriptions-and-messages",
    clauses=("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-3.2.2-2", "MQTT-4.1.0-1", "MQTT-4.5.0-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="v3-offline-messages-dropped",
)
async def keeps_messages(ctx: CaseContext) -> None:
    """With Clean Session 0, subscriptions stay and QoS 1 and 2 messages wait for the client.

    A subscriber leaves; one message at QoS 1 and one at QoS 2 (if the broker takes it) are published. When it comes
    back, Session Present is 1 and each arrives once, at its QoS (or a lower one that was granted), not marked as
    repeated.
    """
    topics = {qos: ctx.topic(str(qos)) for qos in qos_levels(ctx) if qos}
    first = await ctx.connect(clean=False, name="first")
    codes = await first.subscribe(*topics.values(), qos=max(topics))
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    for qos, topic in topics.items():
        await publisher.publish(topic, b"waiting", qos=qos)
    back = await resume(ctx, first.client_id)
    wanted = {topic: min(qos, granted) for (qos, topic), granted in zip(topics.items(), codes, strict=True)}
    found = {}
    for _ in topics:
        message = await back.expect_publish(payload=b"waiting", dup=False)
        found[message.topic] = message.qos
    ctx.must(found == wanted, f"back: expected {wanted}; seen {found}")
    await back.expect_nothing()


@case(
    "mqtt311/session/kept-without-subscriptions",
    clauses=("MQTT-3.1.2-4", "MQTT-3.2.2-2"),
    requires=("persistent_sessions",),
    mutant="v3-sessions-without-subscriptions-forgotten",
)
async def kept_without_subscriptions(ctx: CaseContext) -> None:
    """A session is kept whether or not it holds a subscription.

    A client with Clean Session 0 that has not subscribed leaves; when it comes back, Session Present is 1.
    """
    first = await ctx.connect(clean=False, name="first")
    await first.disconnect()
    await resume(ctx, first.client_id)


@case(
    "mqtt311/session/keeps-subscriptions-at-qos-0",
    clauses=("MQTT-3.1.2-4", "MQTT-3.2.2-2"),
    requires=("persistent_sessions",),
    mutant="v3-sessions-with-qos-0-alone-forgotten",
)
async def keeps_qos_0_subscriptions(ctx: CaseContext) -> None:
    """Subscriptions at QoS 0 belong to the session like any other.

    A client with Clean Session 0 subscribes at QoS 0 and leaves. When it comes back, Session Present is 1, and without
    another SUBSCRIBE it gets what is published then.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=0)
    await first.disconnect()
    back = await resume(ctx, first.client_id)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"after the return")
    await back.expect_publish(topic, b"after the return")


@case(
    "mqtt311/session/clean-session-discards-the-old-one",
    clauses=("MQTT-3.1.2-6", "MQTT-3.2.2-1", "MQTT-3.1.4-3"),
    requires=("persistent_sessions", "qos1"),
    mutant="v3-clean-session-keeps-state",
)
async def clean_discards(ctx: CaseContext) -> None:
    """Clean Session 1 discards an existing session for good.

    A subscriber with a kept session leaves, a message waits for it. It connects with Clean Session 1: Session Present
    is 0, no message comes, and its subscription is gone. The session is not there with Clean Session 0 either.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=1)
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"waiting", qos=1)
    clean = await ctx.connect(client_id=first.client_id, clean=True, name="clean")
    clean.expect_new_session()
    await publisher.publish(topic, b"for no subscription", qos=1)
    await ctx.expect_no_message(publisher, clean)
    await clean.disconnect()
    last = await ctx.connect(client_id=first.client_id, clean=False, name="last")
    last.expect_new_session()


@case(
    "mqtt311/session/clean-session-ends-with-its-connection",
    clauses=("MQTT-3.1.2-6", "MQTT-3.2.2-3"),
    requires=("persistent_sessions",),
    mutant="v3-clean-session-outlives-connection",
)
async def clean_ends(ctx: CaseContext) -> None:
    """A session with Clean Session 1 lasts as long as its connection.

    A client subscribes with Clean Session 1 and leaves. Coming back with Clean Session 0 it finds no session.
    """
    first = await ctx.connect(name="first")
    await first.subscribe(ctx.topic(), qos=1)
    await first.disconnect()
    back = await ctx.connect(client_id=first.client_id, clean=False, name="back")
    back.expect_new_session()


@case(
    "mqtt311/session/takeover-keeps-the-session",
    clauses=("MQTT-3.1.2-4", "MQTT-3.2.2-2"),
    requires=("persistent_sessions", "qos1"),
    mutant="v3-takeover-starts-afresh",
)
async def takeover_keeps(ctx: CaseContext) -> None:
    """Taking over with Clean Session 0 goes on with the session of the older connection.

    The older connection is ended; the newer one has Session Present 1 and gets what the older subscribed to.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=1)
    second = await resume(ctx, first.client_id, name="second")
    await first.expect_close(step=Rule.TAKEN_OVER)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"for the newer", qos=1)
    await second.expect_publish(topic, b"for the newer")


@case(
    "mqtt311/session/unacknowledged-qos-1-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.2-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="v3-unacknowledged-not-resent",
)
async def resend_qos_1(ctx: CaseContext) -> None:
    """A QoS 1 delivery without PUBACK is sent again when the client comes back.

    Same packet identifier, DUP 1; after the PUBACK it is not sent a third time.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"again", qos=1)
    message = await first.expect_publish(topic, b"again", dup=False, ack=False)
    first.abort()
    back = await resume(ctx, first.client_id)
    repeated = await back.expect_publish(topic, b"again", qos=1, dup=True)
    ctx.must(
        repeated.packet_id == message.packet_id,
        f"back: expected packet identifier {message.packet_id} again; seen {repeated.packet_id}",
    )
    await back.expect_nothing()
    await back.disconnect()
    last = await resume(ctx, first.client_id, name="last")
    await last.expect_nothing()


@case(
    "mqtt311/session/unreceived-qos-2-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.3-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v3-unacknowledged-not-resent",
)
async def resend_qos_2(ctx: CaseContext) -> None:
    """A QoS 2 delivery without PUBREC is sent again when the client comes back.

    Same packet identifier, DUP 1; the exchange is then completed.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"again", qos=2)
    message = await first.expect_publish(topic, b"again", dup=False, ack=False)
    first.abort()
    back = await resume(ctx, first.client_id)
    repeated = await back.expect_publish(topic, b"again", qos=2, dup=True)
    ctx.must(
        repeated.packet_id == message.packet_id,
        f"back: expected packet identifier {message.packet_id} again; seen {repeated.packet_id}",
    )
    await back.expect_nothing()


@case(
    "mqtt311/session/owed-pubrel-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-4.3.3-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v3-owed-pubrel-not-resent",
)
async def resend_pubrel(ctx: CaseContext) -> None:
    """A delivery cut off between PUBREL and PUBCOMP goes on with the PUBREL.

    The subscriber has sent PUBREC and got PUBREL when its connection breaks. When it comes back, the PUBREL with the
    same identifier comes again, and no PUBLISH; 3.1.1 lets a server repeat it. (rmqtt/rmqtt issue 456.)
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"released", qos=2)
    message = await first.expect_publish(topic, ack=False)
    first.send(Pubrec(packet_id=message.packet_id))
    await first.expect(Pubrel)
    first.abort()
    back = await resume(ctx, first.client_id)
    pubrel = await back.expect(Pubrel)
    ctx.must(pubrel.packet_id == message.packet_id, f"back: expected PUBREL {message.packet_id}; seen {pubrel}")
    back.send(Pubcomp(packet_id=message.packet_id))
    for packet in await back.barrier():
        ctx.must(packet == pubrel, f"back: expected at most the same PUBREL again; seen {describe(packet)}")


async def _kept_publisher(ctx: CaseContext) -> Connection:
    """A client whose session every broker keeps: some forget a session without subscriptions (judged elsewhere)."""
    publisher = await ctx.connect(clean=False, name="first")
    await publisher.subscribe(ctx.topic("own"), qos=1)
    return publisher


@case(
    "mqtt311/session/received-qos-2-is-remembered",
    clauses=("MQTT-4.3.3-2", "MQTT-3.1.2-4", "MQTT-4.4.0-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v3-received-qos-2-forgotten",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def inbound_qos_2(ctx: CaseContext) -> None:
    """The broker remembers across connections which QoS 2 messages it has received.

    The publisher's connection breaks after PUBREC. Coming back it sends the PUBLISH again, with DUP, gets a PUBREC, and
    releases it. The subscriber gets one message, at QoS 2. (nats-io/nats-server issue 4849 is of this kind.)
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=2)
    first = await _kept_publisher(ctx)
    first.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=5))
    await first.expect(Pubrec)
    first.abort()
    back = await resume(ctx, first.client_id)
    back.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=5, dup=True))
    await back.expect(Pubrec)
    back.send(Pubrel(packet_id=5))
    pubcomp = await completion(ctx, back)
    ctx.must(pubcomp.packet_id == 5, f"back: expected PUBCOMP 5; seen {describe(pubcomp)}")
    await subscriber.expect_publish(topic, b"once", qos=2)
    await ctx.expect_no_message(back, subscriber)


@case(
    "mqtt311/session/owed-release-finishes-after-reconnect",
    clauses=("MQTT-4.3.3-2", "MQTT-3.1.2-5"),
    requires=("persistent_sessions", "qos2"),
    mutant="v3-message-lost-with-publisher-connection",
    near_miss="v3-pubrec-repeated-on-return",
)
async def release_after_reconnect(ctx: CaseContext) -> None:
    """A publisher that was cut off after PUBREC can release its message on the next connection.

    It comes back and sends PUBREL only. It gets PUBCOMP, and the message has reached the subscriber once.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic, qos=0)
    first = await _kept_publisher(ctx)
    first.send(Publish(topic=topic, payload=b"released later", qos=2, packet_id=6))
    await first.expect(Pubrec)
    first.abort()
    back = await resume(ctx, first.client_id)
    back.send(Pubrel(packet_id=6))
    pubcomp = await completion(ctx, back)
    ctx.must(pubcomp.packet_id == 6, f"back: expected PUBCOMP 6; seen {describe(pubcomp)}")
    messages = [message.payload for message in await delivered(ctx, back, subscriber, at_least=1)]
    ctx.must(messages == [b"released later"], f"subscriber: expected the message once; seen {messages}")


@case(
    "mqtt311/session/unacknowledged-deliveries-come-in-order",
    clauses=("MQTT-4.6.0-1", "MQTT-4.6.0-6", "MQTT-4.4.0-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="v3-resent-in-reverse",
)
async def resend_order(ctx: CaseContext) -> None:
    """Deliveries are sent again in the order in which they were sent first.

    Five QoS 1 messages are delivered and not acknowledged. When the subscriber comes back they come again, in order.
    Unsupported on a broker that has one message under way at a time.
    """
    topic = ctx.topic()
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    wanted = [str(number).encode() for number in range(5)]
    async with publishing(publisher, topic, *wanted, qos=1):
        sent = [message.payload for message in await under_way(ctx, first, topic, 5)]
        ctx.must(sent == wanted[: len(sent)], f"first: expected {wanted}; seen {sent}")
        first.abort()
        back = await resume(ctx, first.client_id)
        seen = [(await back.expect_publish(topic)).payload for _ in wanted]
        ctx.must(seen == wanted, f"back: expected {wanted}; seen {seen}")
    await back.expect_nothing()
