"""Sessions: what outlives a connection, for how long, and what is sent again (MQTT 5.0, 3.1.2.11.2, 4.1 and 4.4)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    LASTING,
    SESSION_TAKEN_OVER,
    arrives,
    delivered,
    expect_error,
    expect_other_identifier,
    pass_time,
    publishing,
    resume,
    subscribe_at,
)
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    Disconnect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Will,
    describe,
)

_UNSPECIFIED = 0x80


@case(
    "mqtt5/session/keeps-messages-while-away",
    clauses=("MQTT-3.1.2-5", "MQTT-3.1.2-23", "MQTT-4.5.0-1", "MQTT-4.1.0-1"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="v5-offline-messages-dropped",
    near_miss="v5-connack-says-more",
)
async def offline_messages(ctx: CaseContext) -> None:
    """Messages at QoS 1 and 2 wait for a client with a lasting session.

    A subscriber leaves. One message at QoS 1 and one at QoS 2 are published. When the subscriber resumes its session,
    it gets both, each once, at their QoS and not marked as repeated.
    """
    topics = {1: ctx.topic("one"), 2: ctx.topic("two")}
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, *topics.values(), qos=2)
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    for qos, topic in topics.items():
        await publisher.publish(topic, b"waiting", qos=qos)
    back = await resume(ctx, first.client_id, name="back")
    found = {}
    for _ in topics:
        message = await back.expect_publish(payload=b"waiting", dup=False)
        found[message.qos] = message.topic
    ctx.must(found == topics, f"back: expected {topics}; seen {found}")
    await back.expect_nothing()


@case(
    "mqtt5/session/keeps-subscriptions",
    clauses=("MQTT-3.1.2-5", "MQTT-3.1.2-23", "MQTT-4.1.0-1"),
    requires=("persistent_sessions",),
    mutant="v5-subscriptions-lost-on-resume",
    near_miss="v5-connack-says-more",
)
async def keeps_subscriptions(ctx: CaseContext) -> None:
    """A resumed session still has its subscriptions.

    A subscriber leaves and resumes its session without subscribing again. A message published then is delivered.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await first.subscribe(topic)
    await first.disconnect()
    back = await resume(ctx, first.client_id, name="back")
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"still subscribed")
    await back.expect_publish(topic, b"still subscribed")


@case(
    "mqtt5/session/expiry-0-ends-with-the-connection",
    clauses=("MQTT-4.1.0-2", "MQTT-3.2.2-3"),
    mutant="v5-expiry-0-session-kept",
    near_miss="v5-connack-says-more",
)
async def expiry_zero(ctx: CaseContext) -> None:
    """Without a Session Expiry Interval the session ends with its connection.

    Once the property is 0 and once it is absent, which means 0. Each client subscribes and leaves; connecting with
    Clean Start 0 finds no session.
    """
    for name, properties in (("zero", Properties(session_expiry_interval=0)), ("absent", Properties())):
        first = await ctx.connect(properties=properties, name=name)
        await first.subscribe(ctx.topic())
        await first.disconnect()
        back = await ctx.connect(client_id=first.client_id, clean=False, name=f"{name} back")
        back.expect_new_session()


@case(
    "mqtt5/session/ends-when-its-expiry-has-passed",
    clauses=("MQTT-4.1.0-2",),
    requires=("persistent_sessions",),
    mutant="v5-session-never-expires",
    kills=("v5-session-expires-as-it-was-to-before",),
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry_passes(ctx: CaseContext) -> None:
    """A session is gone once its Session Expiry Interval has passed after the end of the connection.

    Two sessions of 1 s and 60 s are left behind, and one of 2 s, whose client is back at once and asks for 60 s. After
    3 s, which is enough for a broker that counts whole seconds, the first is gone and the second is there. So is the
    third, which was connected all the while.
    """
    brief = await ctx.connect(properties=Properties(session_expiry_interval=1), name="brief")
    long = await ctx.connect(properties=LASTING, name="long")
    renewed = await ctx.connect(properties=Properties(session_expiry_interval=2), name="renewed")
    for client in (brief, long, renewed):
        await client.disconnect()
    renewed = await ctx.connect(client_id=renewed.client_id, clean=False, properties=LASTING, name="renewed, connected")
    await pass_time(ctx, 3.0)
    back = await ctx.connect(client_id=brief.client_id, clean=False, name="brief back")
    back.expect_new_session()
    await resume(ctx, long.client_id, name="long back")
    await renewed.disconnect()
    back = await ctx.connect(client_id=renewed.client_id, clean=False, name="renewed back")
    seen = describe(back.connack)
    ctx.must(back.connack.session_present, f"renewed back: expected the session that was connected; seen {seen}")


@case(
    "mqtt5/session/disconnect-may-change-the-expiry",
    clauses=("MQTT-4.1.0-2", "MQTT-3.1.2-23"),
    requires=("persistent_sessions",),
    mutant="v5-disconnect-expiry-ignored",
    near_miss="v5-connack-says-more",
)
async def disconnect_changes_expiry(ctx: CaseContext) -> None:
    """DISCONNECT may shorten the Session Expiry Interval that CONNECT asked for, down to 0.

    A client with a lasting session says in DISCONNECT that its session ends now. Connecting with Clean Start 0 finds
    no session.
    """
    first = await ctx.connect(properties=LASTING, name="first")
    await first.disconnect(Disconnect(properties=Properties(session_expiry_interval=0)))
    back = await ctx.connect(client_id=first.client_id, clean=False, name="back")
    back.expect_new_session()


@case(
    "mqtt5/session/disconnect-cannot-revive-expiry-0",
    clauses=("MQTT-4.13.1-1", "MQTT-4.1.0-2"),
    mutant="v5-disconnect-revives-session",
    near_miss="v5-closes-silently",
)
async def disconnect_cannot_revive(ctx: CaseContext) -> None:
    """A session that CONNECT let end with the connection cannot be prolonged by DISCONNECT.

    After a CONNECT with session expiry 0, a DISCONNECT with expiry 60 is a protocol error. The connection ends, and
    no session is found afterwards.
    """
    first = await ctx.connect(name="first")
    first.send(Disconnect(properties=LASTING))
    await expect_error(ctx, first)
    back = await ctx.connect(client_id=first.client_id, clean=False, name="back")
    back.expect_new_session()


@case(
    "mqtt5/session/second-connection-takes-over",
    clauses=("MQTT-3.1.4-3",),
    mutant="v5-takeover-leaves-both",
    near_miss="v5-closes-silently",
)
async def takeover(ctx: CaseContext) -> None:
    """The older of two connections with one client identifier is ended.

    The first connection ends, and should be told 0x8E (session taken over) before; the second one works.
    """
    first = await ctx.connect(name="first")
    second = await ctx.connect(client_id=first.client_id, name="second")
    seen = await first.expect_close()
    ctx.should(
        any(isinstance(packet, Disconnect) and packet.reason_code == SESSION_TAKEN_OVER for packet in seen),
        f"first: expected DISCONNECT 0x8e before the end; seen {'; '.join(map(describe, seen)) or 'nothing'}",
    )
    await second.expect_nothing()


@case(
    "mqtt5/session/takeover-keeps-the-session",
    clauses=("MQTT-3.1.2-5", "MQTT-4.1.0-1"),
    mutant="v5-takeover-starts-clean",
    near_miss="v5-closes-silently",
)
async def takeover_keeps_session(ctx: CaseContext) -> None:
    """A connection that takes over with Clean Start 0 continues the session.

    The first connection subscribed. The second one finds the session present and gets a message for that
    subscription, once; the first gets nothing more.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await first.subscribe(topic)
    second = await resume(ctx, first.client_id, name="second")
    await first.expect_close(step=Rule.TAKEN_OVER)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"for the successor")
    await second.expect_publish(topic, b"for the successor")
    await second.expect_nothing()


@case(
    "mqtt5/session/qos1-unacknowledged-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.2-3"),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-unacknowledged-forgotten",
    near_miss="v5-connack-says-more",
)
async def resend_qos1(ctx: CaseContext) -> None:
    """A QoS 1 message without PUBACK is sent again when the session is resumed.

    The subscriber receives a message, does not acknowledge it and loses its connection. On resuming it gets the
    message with the same packet identifier and DUP 1. After PUBACK and another resuming it does not come again.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"open", qos=1)
    sent = await first.expect_publish(topic, b"open", qos=1, dup=False, ack=False)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    again = await back.expect_publish(topic, b"open", qos=1, dup=True)
    ctx.must(again.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(again)}")
    await back.expect_nothing()
    await back.disconnect()
    settled = await resume(ctx, first.client_id, name="settled")
    await ctx.expect_no_message(publisher, settled)


@case(
    "mqtt5/session/qos2-without-pubrec-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.3.3-3"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-unacknowledged-forgotten",
    near_miss="v5-connack-says-more",
)
async def resend_qos2(ctx: CaseContext) -> None:
    """A QoS 2 message without PUBREC is sent again when the session is resumed.

    The subscriber receives a message, does not answer it and loses its connection. On resuming it gets the message
    with the same packet identifier and DUP 1, and the exchange can be finished.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"open", qos=2)
    sent = await first.expect_publish(topic, b"open", qos=2, dup=False, ack=False)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    again = await back.expect_publish(topic, b"open", qos=2, dup=True)
    ctx.must(again.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(again)}")


@case(
    "mqtt5/session/owed-pubrel-is-sent-again",
    clauses=("MQTT-4.4.0-1", "MQTT-4.3.3-5", "MQTT-4.3.3-6"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-owed-pubrel-forgotten",
    near_miss="v5-connack-says-more",
)
async def resend_pubrel(ctx: CaseContext) -> None:
    """After PUBREC it is PUBREL, and never PUBLISH, that is sent again.

    The subscriber answers a QoS 2 message with PUBREC, receives PUBREL and loses its connection. On resuming it gets
    PUBREL with the same packet identifier, and no PUBLISH.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"half done", qos=2)
    sent = await first.expect_publish(topic, b"half done", qos=2, ack=False)
    first.send(Pubrec(packet_id=sent.packet_id))
    await first.expect(Pubrel)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    pubrel = await back.expect(Pubrel)
    ctx.must(pubrel.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(pubrel)}")
    back.send(Pubcomp(packet_id=pubrel.packet_id))
    await back.expect_nothing()


@case(
    "mqtt5/session/refused-message-is-not-sent-again",
    clauses=("MQTT-4.4.0-2",),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="v5-refusals-ignored",
    near_miss="v5-pubrel-after-refusal",
)
async def refused_not_resent(ctx: CaseContext) -> None:
    """A message that the client refused by PUBACK or PUBREC with a failure code is done with.

    The subscriber answers a QoS 1 message with PUBACK 0x80 and a QoS 2 message with PUBREC 0x80, and leaves by
    DISCONNECT. After resuming the session neither message comes again. A PUBREL is due only for a code below 0x80
    (4.3.3-4): one that comes all the same is reported.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"refused", qos=1)
    message = await first.expect_publish(topic, b"refused", qos=1, ack=False)
    refusal = Puback if message.qos == 1 else Pubrec
    first.send(refusal(packet_id=message.packet_id, reason_code=_UNSPECIFIED))
    await publisher.publish(topic, b"refused", qos=2)
    message = await first.expect(Publish, skipping=(Pubrel,))
    first.send(Pubrec(packet_id=message.packet_id, reason_code=_UNSPECIFIED))
    seen = await first.barrier()
    await first.disconnect()  # a lost connection may lose what PINGREQ has overtaken
    back = await resume(ctx, first.client_id, name="back")
    for packet in seen + await ctx.messages_before_marker(publisher, back):
        ctx.must(not isinstance(packet, Publish), f"expected no message; seen {describe(packet)}")
        ctx.should(False, f"expected nothing for a message that was refused; seen {describe(packet)}")


@case(
    "mqtt5/session/nothing-is-sent-again-while-connected",
    clauses=("MQTT-4.4.0-1",),
    requires=("qos1", "persistent_sessions"),
    mutant="v5-resends-while-connected",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def no_resend_while_connected(ctx: CaseContext) -> None:
    """An unacknowledged message is not sent again on the connection that it was sent on.

    A subscriber leaves a QoS 1 message unacknowledged for 2 s, and longer by what the target file says of how long the
    server waits before it sends again; PINGREQ and a second message then show that the first did not come again.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"open", qos=1)
    first = await subscriber.expect_publish(topic, b"open", ack=False)
    await pass_time(ctx, 2.0 + ctx.resends_after_s)
    await subscriber.expect_nothing()
    # A server may hold back even a message of QoS 0 until the one before is acknowledged.
    await subscriber.acknowledge(first)
    await publisher.publish(topic, b"next")
    await subscriber.expect_publish(topic, b"next", qos=0)
    await subscriber.expect_nothing()


@case(
    "mqtt5/session/received-qos2-state-is-kept",
    clauses=("MQTT-4.3.3-10", "MQTT-4.4.0-1", "MQTT-3.1.2-23"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-received-qos2-forgotten",
    near_miss="v5-closes-silently",
)
async def received_qos2_kept(ctx: CaseContext) -> None:
    """A server remembers across connections which QoS 2 messages it has taken.

    A publisher sends a QoS 2 message, gets PUBREC and loses its connection. It resumes, repeats the PUBLISH with DUP
    1 and finishes the exchange. The subscriber gets the message once.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscriber.subscribe(topic)
    first = await ctx.connect(properties=LASTING, name="first")
    message = Publish(topic=topic, payload=b"once", qos=2, packet_id=7)
    first.send(message)
    await first.expect(Pubrec)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    back.send(Publish(topic=topic, payload=b"once", qos=2, packet_id=7, dup=True))
    await back.expect(Pubrec)
    back.send(Pubrel(packet_id=7))
    await back.expect(Pubcomp, skipping=(Pubrec,))  # one may have come unasked
    found = await delivered(ctx, await ctx.connect(name="publisher"), subscriber, at_least=1)
    ctx.must(len(found) == 1, f"subscriber: expected the message once; seen {len(found)} times")


@case(
    "mqtt5/session/pubrel-after-resume-completes-the-publish",
    clauses=("MQTT-4.3.3-11", "MQTT-4.3.3-8", "MQTT-4.4.0-1"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-received-qos2-message-lost",
    near_miss="v5-pubcomp-0x00-for-unknown",
)
async def pubrel_after_resume(ctx: CaseContext) -> None:
    """A QoS 2 message answered by PUBREC is delivered, at its QoS, even if PUBREL comes on the next connection.

    A publisher sends a QoS 2 message, gets PUBREC, loses its connection, resumes and sends PUBREL. It gets PUBCOMP,
    and the subscriber has the message once at QoS 2.
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    first = await ctx.connect(properties=LASTING, name="first")
    first.send(Publish(topic=topic, payload=b"kept", qos=2, packet_id=9))
    await first.expect(Pubrec)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    back.send(Pubrel(packet_id=9))
    pubcomp = await back.expect(Pubcomp)
    ctx.must(pubcomp.packet_id == 9 and pubcomp.reason_code == 0, f"back: expected success; seen {describe(pubcomp)}")
    await subscriber.expect_publish(topic, b"kept", qos=2)
    await ctx.expect_no_message(back, subscriber)


@case(
    "mqtt5/session/order-of-waiting-messages",
    clauses=("MQTT-4.6.0-5", "MQTT-4.6.0-6", "MQTT-4.5.0-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="v5-offline-messages-reversed",
    near_miss="v5-connack-says-more",
)
async def order_of_waiting(ctx: CaseContext) -> None:
    """Messages that waited for a client are delivered in the order in which they were published.

    Twelve QoS 1 messages of one publisher on one topic wait for a subscriber that is away, and arrive in order when
    it is back.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=1)
    await first.disconnect()
    publisher = await ctx.connect(name="publisher")
    payloads = [f"{number}".encode() for number in range(12)]
    for payload in payloads:
        await publisher.publish(topic, payload, qos=1)
    back = await resume(ctx, first.client_id, name="back")
    for payload in payloads:
        await back.expect_publish(topic, payload, qos=1)


@case(
    "mqtt5/session/new-identifiers-spare-open-exchanges",
    clauses=("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1"),
    requires=("persistent_sessions", "qos1", "qos2"),
    mutant="v5-identifiers-restart-on-resume",
    near_miss="v5-connack-says-more",
)
async def identifiers_after_resume(ctx: CaseContext) -> None:
    """After resuming a session, new messages get identifiers that no open exchange has.

    A subscriber has one QoS 2 exchange open after PUBREC when its connection is lost. On resuming, a new QoS 2
    message comes under another identifier than the one of the owed PUBREL. Unsupported on a server that has one
    message under way at a time.
    """
    topic = ctx.topic()
    first = await ctx.connect(properties=LASTING, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"old", qos=2)
    old = await first.expect_publish(topic, b"old", ack=False)
    first.send(Pubrec(packet_id=old.packet_id))
    await first.expect(Pubrel)
    first.abort()
    back = await resume(ctx, first.client_id, name="back")
    await back.expect(Pubrel)
    async with publishing(publisher, topic, b"new", qos=2):
        await expect_other_identifier(ctx, back, old.packet_id, topic, b"new", qos=2)


@case(
    "mqtt5/session/clean-start-takeover-publishes-the-will",
    clauses=("MQTT-3.1.2-8",),
    level="SHOULD",
    mutant="v5-takeover-drops-the-will",
    near_miss="v5-closes-silently",
)
async def takeover_publishes_will(ctx: CaseContext) -> None:
    """A connection that is taken over with Clean Start 1 ends its session, and so publishes its will.

    A client with a will of delay 30 s and a lasting session is taken over by a connection with Clean Start 1. The old
    session ends with that, so the will is expected at once. The rule excepts a new connection within the delay, and
    only a comment in section 3.1.4 says that this does not cover Clean Start 1; so a missing will is reported and
    does not fail.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    will = Will(topic=topic, payload=b"session ended", properties=Properties(will_delay_interval=30))
    first = await ctx.connect(properties=LASTING, will=will, name="first")
    await ctx.connect(client_id=first.client_id, clean=True, name="second")
    await first.expect_close(step=Rule.TAKEN_OVER)
    seen = await arrives(watcher, topic)
    ctx.should(seen, "watcher: expected the will of the session that Clean Start 1 ended; seen nothing")
