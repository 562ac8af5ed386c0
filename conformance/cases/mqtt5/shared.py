"""Shared subscriptions (MQTT 5.0, 4.8.2)."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    BRIEF_S,
    LASTING,
    expect_error,
    pass_time,
    publishing,
    resume,
    shares,
    subscribe_at,
    taken,
)
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Puback, Publish, Suback, Subscribe, Subscription, describe

_FIRST_FAILURE = 0x80


def _share(name: str, filter_: str) -> str:
    return f"$share/{name}/{filter_}"


async def _members(ctx: CaseContext, filter_: str, names: tuple[str, ...], *, qos: int = 0) -> list[Connection]:
    """Clients that share one subscription."""
    members = []
    for name in names:
        member = await ctx.connect(name=name)
        await subscribe_at(ctx, member, filter_, qos=qos)
        members.append(member)
    return members


@case(
    "mqtt5/shared/each-message-goes-to-one-member",
    clauses=("MQTT-4.8.2-3", "MQTT-4.5.0-1"),
    requires=("shared", "qos1"),
    mutant="v5-shared-goes-to-all",
    near_miss="v5-shared-goes-to-first",
)
async def one_member(ctx: CaseContext) -> None:
    """Each message for a shared subscription goes to exactly one of its members.

    Ten QoS 1 messages are published for a share with two members. Together they get each message once; how they
    divide them is up to the server.
    """
    topic = ctx.topic()
    members = await _members(ctx, _share("g", topic), ("a", "b"), qos=1)
    publisher = await ctx.connect(name="publisher")
    payloads = [f"{number}".encode() for number in range(10)]
    found: list[bytes] = []
    async with publishing(publisher, topic, *payloads, qos=1):
        for messages in await shares(members, len(payloads)):
            found += [message.payload for message in messages]
    ctx.must(sorted(found) == payloads, f"expected each of 10 messages once; seen {sorted(found)}")


@case(
    "mqtt5/shared/groups-and-plain-subscribers-each-get-a-copy",
    clauses=("MQTT-4.5.0-1",),
    requires=("shared",),
    mutant="v5-share-names-mixed-up",
    near_miss="v5-shared-goes-to-first",
)
async def independent_groups(ctx: CaseContext) -> None:
    """Shares with different names, and plain subscriptions, do not take each other's messages.

    One topic has a member in share g, one in share h, and a plain subscriber. A message reaches all three.
    """
    topic = ctx.topic()
    (g,) = await _members(ctx, _share("g", topic), ("g",))
    (h,) = await _members(ctx, _share("h", topic), ("h",))
    (plain,) = await _members(ctx, topic, ("plain",))
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"m")
    for subscriber in (g, h, plain):
        await subscriber.expect_publish(topic, b"m")
        await subscriber.expect_nothing()


@case(
    "mqtt5/shared/no-local-is-a-protocol-error",
    clauses=("MQTT-3.8.3-4", "MQTT-4.13.1-1"),
    requires=("shared",),
    mutant="v5-no-local-on-share-accepted",
    near_miss="v5-closes-silently",
)
async def no_local(ctx: CaseContext) -> None:
    """No Local cannot be asked for on a shared subscription.

    A SUBSCRIBE to a shared filter with No Local ends the connection.
    """
    connection = await ctx.connect()
    entry = Subscription(filter=_share("g", ctx.topic()), no_local=True)
    connection.send(Subscribe(packet_id=1, subscriptions=(entry,)))
    await expect_error(ctx, connection)


@case(
    "mqtt5/shared/unsubscribe-leaves-the-share",
    clauses=("MQTT-3.10.4-1", "MQTT-3.10.4-2"),
    requires=("shared",),
    mutant="v5-share-survives-unsubscribe",
    near_miss="v5-shared-goes-to-first",
)
async def unsubscribe(ctx: CaseContext) -> None:
    """A client that unsubscribed from a shared filter gets no more of its messages.

    The only member of a share unsubscribes and joins another one. A message for the first share does not reach it,
    one for the second does.
    """
    first, second = ctx.topic("first"), ctx.topic("second")
    member = await ctx.connect(name="member")
    await member.subscribe(_share("g", first))
    ack = await member.unsubscribe(_share("g", first))
    ctx.must(ack.reason_codes == (0,), f"member: expected UNSUBACK with 0x00; seen {describe(ack)}")
    await member.subscribe(_share("g", second))
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(first, b"m")
    await publisher.publish(second, b"m")
    await member.expect_publish(second, b"m")


@case(
    "mqtt5/shared/remaining-members-get-all",
    clauses=("MQTT-4.5.0-1", "MQTT-3.10.4-2"),
    requires=("shared", "qos1"),
    mutant="v5-share-survives-unsubscribe",
    near_miss="v5-shared-goes-to-first",
)
async def remaining(ctx: CaseContext) -> None:
    """When a member leaves, those that remain get every message.

    Of two members one unsubscribes. Six messages published afterwards all reach the other.
    """
    topic = ctx.topic()
    leaving, staying = await _members(ctx, _share("g", topic), ("leaving", "staying"), qos=1)
    await leaving.unsubscribe(_share("g", topic))
    publisher = await ctx.connect(name="publisher")
    payloads = [b"%d" % number for number in range(6)]
    async with publishing(publisher, topic, *payloads, qos=1):
        missing = set(payloads)
        while missing:  # no order binds shared subscriptions (4.6.0-6)
            message = await staying.expect(Publish)
            ctx.must(message.payload in missing, f"expected one of {sorted(missing)}; seen {describe(message)}")
            missing.remove(message.payload)
            if message.qos:
                staying.send(Puback(packet_id=message.packet_id))
    await leaving.expect_nothing()


@case(
    "mqtt5/shared/granted-qos-is-respected",
    clauses=("MQTT-4.8.2-3", "MQTT-3.8.4-8"),
    requires=("shared", "qos1"),
    mutant="v5-shared-at-published-qos",
    near_miss="v5-shared-goes-to-first",
)
async def granted_qos(ctx: CaseContext) -> None:
    """A member gets shared messages at no more than the QoS that it was granted.

    A member at QoS 0 gets a QoS 1 message at QoS 0, and a member of another share at QoS 1 gets it at QoS 1.
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    members: list[tuple[Connection, int]] = []
    for qos in (0, 1):
        member = await ctx.connect(name=f"qos {qos}")
        (granted,) = await member.subscribe(_share(f"g{qos}", topic), qos=qos)
        members.append((member, granted))
    await publisher.publish(topic, b"m", qos=1)
    for member, granted in members:
        await member.expect_publish(topic, b"m", qos=granted)


@case(
    "mqtt5/shared/refused-message-goes-to-nobody-else",
    clauses=("MQTT-4.8.2-6",),
    requires=("shared", "qos1"),
    mutant="v5-refused-shared-message-sent-on",
    near_miss="v5-shared-goes-to-first",
)
async def refused(ctx: CaseContext) -> None:
    """A shared message that a member refused is dropped.

    The only member receives a QoS 1 message; then another joins. The first answers PUBACK 0x80 and leaves. The second
    does not get the message.
    """
    topic = ctx.topic()
    (first,) = await _members(ctx, _share("g", topic), ("first",), qos=1)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"refused", qos=1)
    message = await first.expect_publish(topic, b"refused", qos=1, ack=False)
    (second,) = await _members(ctx, _share("g", topic), ("second",), qos=1)
    first.send(Puback(packet_id=message.packet_id, reason_code=_FIRST_FAILURE))
    await first.expect_nothing()
    await first.disconnect()
    await ctx.expect_no_message(publisher, second)


@case(
    "mqtt5/shared/begun-qos2-delivery-waits-for-its-member",
    clauses=("MQTT-4.8.2-4",),
    requires=("shared", "qos2", "persistent_sessions"),
    mutant="v5-begun-shared-delivery-moved",
    near_miss="v5-shared-goes-to-first",
)
async def begun_waits(ctx: CaseContext) -> None:
    """A shared QoS 2 message that a member began to receive is finished with that member.

    A member with a lasting session receives a QoS 2 message and loses its connection before PUBREC. Another member
    does not get the message; the first gets it again when it is back.
    """
    topic = ctx.topic()
    first = await ctx.connect(name="first", properties=LASTING)
    await subscribe_at(ctx, first, _share("g", topic), qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"begun", qos=2)
    sent = await first.expect_publish(topic, b"begun", qos=2, ack=False)
    (second,) = await _members(ctx, _share("g", topic), ("second",), qos=2)
    first.abort()
    await ctx.expect_no_message(publisher, second)
    back = await resume(ctx, first.client_id, name="back")
    again = await back.expect_publish(topic, b"begun", qos=2, dup=True)
    ctx.must(again.packet_id == sent.packet_id, f"back: expected {sent.packet_id}; seen {describe(again)}")
    await ctx.expect_no_message(publisher, second)


@case(
    "mqtt5/shared/begun-qos2-delivery-ends-with-its-session",
    clauses=("MQTT-4.8.2-5",),
    requires=("shared", "qos2"),
    mutant="v5-begun-shared-delivery-moved",
    near_miss="v5-shared-goes-to-first",
)
async def begun_ends(ctx: CaseContext) -> None:
    """A shared QoS 2 message goes to nobody else when the session that began to receive it ends.

    A member without a lasting session receives a QoS 2 message and loses its connection, and with it its session,
    before PUBREC. Another member does not get the message.
    """
    topic = ctx.topic()
    (first,) = await _members(ctx, _share("g", topic), ("first",), qos=2)
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"begun", qos=2)
    await first.expect_publish(topic, b"begun", qos=2, ack=False)
    (second,) = await _members(ctx, _share("g", topic), ("second",), qos=2)
    first.abort()
    back = await ctx.connect(client_id=first.client_id, name="back")
    back.expect_new_session()
    await ctx.expect_no_message(publisher, second)


async def _left_behind(ctx: CaseContext, qos: int) -> tuple[set[bytes], set[bytes]]:
    """Twelve messages go to two members, each with a Receive Maximum of 2, so that most of them wait. One ends its
    session without having acknowledged any. Returns what that one was sent, and what the other one got in the end.
    """
    topic = ctx.topic()
    members: list[Connection] = []
    for name in ("leaving", "staying"):
        member = await ctx.connect(name=name, properties=Properties(receive_maximum=2))
        await subscribe_at(ctx, member, _share("g", topic), qos=qos)
        members.append(member)
    leaving, staying = members
    publisher = await ctx.connect(name="publisher")
    payloads = [b"%d" % number for number in range(12)]
    async with publishing(publisher, topic, *payloads, qos=qos):
        sent = {message.payload for message in await taken(leaving, 2, ack=False)}
        await leaving.disconnect()
        got = {message.payload for message in await taken(staying, len(payloads))}
    return sent, got


@case(
    "mqtt5/shared/unacknowledged-delivery-goes-to-another-member",
    clauses=("MQTT-4.5.0-1",),
    requires=("shared", "qos1"),
    level="SHOULD",
    mutant="v5-shared-messages-end-with-their-member",
    near_miss="v5-shared-moved-at-once",
)
async def unacknowledged(ctx: CaseContext) -> None:
    """A shared QoS 1 message whose member ends its session without acknowledging it should go to another member.

    Of two members with a Receive Maximum of 2 one acknowledges nothing of what it is sent and disconnects, which ends
    its session. The other should get what the first one was sent (4.8.2).
    """
    sent, got = await _left_behind(ctx, 1)
    lost = sorted(sent - got)
    ctx.should(not lost, f"staying: expected what the other member had not acknowledged; {lost} did not come")


@case(
    "mqtt5/shared/unsent-messages-go-to-another-member",
    clauses=("MQTT-4.5.0-1",),
    requires=("shared", "qos2"),
    level="SHOULD",
    mutant="v5-unsent-shared-messages-end-with-their-member",
    near_miss="v5-shared-goes-to-first",
)
async def unsent(ctx: CaseContext) -> None:
    """Shared messages that were not sent to anybody yet should not end with the session of a member.

    Of two members with a Receive Maximum of 2 one answers nothing of the QoS 2 messages it is sent and disconnects,
    which ends its session. The other gets none of those that the first one was sent (4.8.2-5), and should get all
    others.
    """
    sent, got = await _left_behind(ctx, 2)
    ctx.must(not sent & got, f"staying: expected nothing of what was begun elsewhere; {sorted(sent & got)} came")
    lost = sorted({f"{number}".encode() for number in range(12)} - sent - got)
    ctx.should(not lost, f"staying: expected all that nobody else was sent; {lost} did not come")


@case(
    "mqtt5/shared/expired-messages-go-to-nobody-else",
    clauses=("MQTT-3.3.2-5",),
    requires=("shared", "qos1"),
    mutant="v5-expired-shared-messages-move",
    near_miss="v5-shared-moved-at-once",
    limit_s=15.0,
)
async def expired(ctx: CaseContext) -> None:
    """A shared message that expired while it waited for a member does not come to another when that one leaves.

    The only member has a Receive Maximum of 1 and acknowledges nothing of a message. Behind that wait one that expires
    and one that does not. When the former has expired another member joins, and the first one's session ends.
    """
    topic = ctx.topic()
    leaving = await ctx.connect(name="leaving", properties=Properties(receive_maximum=1))
    await subscribe_at(ctx, leaving, _share("g", topic), qos=1)
    publisher = await ctx.connect(name="publisher")
    publisher.send(Publish(topic=topic, payload=b"held", qos=1, packet_id=1))
    await leaving.expect_publish(topic, b"held", ack=False)
    brief = Properties(message_expiry_interval=BRIEF_S * ctx.stretch)
    publisher.send(
        Publish(topic=topic, payload=b"brief", qos=1, packet_id=2, properties=brief),
        Publish(topic=topic, payload=b"lasting", qos=1, packet_id=3),
    )
    await pass_time(ctx, (BRIEF_S + 1) * ctx.stretch)
    (staying,) = await _members(ctx, _share("g", topic), ("staying",), qos=1)
    await leaving.disconnect()
    seen = [message.payload for message in await taken(staying, 3)]
    ctx.must(b"brief" not in seen, f"staying: expected nothing that had expired; seen {seen}")


@case(
    "mqtt5/shared/unsubscribe-spares-other-shares",
    clauses=("MQTT-4.5.0-1",),
    requires=("shared", "qos1"),
    mutant="v5-unsubscribe-takes-from-all-shares",
    near_miss="v5-shared-goes-to-first",
)
async def spares_other_shares(ctx: CaseContext) -> None:
    """Who unsubscribes from one share still gets what waits for it by another one.

    Two clients with a Receive Maximum of 1 share a topic, and acknowledge nothing; one of them is the only member of
    another share. Messages wait by both. It leaves the former: then it gets all that came by the latter.
    """
    left, kept = ctx.topic("left"), ctx.topic("kept")
    members: list[Connection] = []
    for name in ("staying", "leaving"):
        members.append(await ctx.connect(name=name, properties=Properties(receive_maximum=1)))
        await subscribe_at(ctx, members[-1], _share("g", left), qos=1)
    leaving = members[1]
    await subscribe_at(ctx, leaving, _share("h", kept), qos=1)
    publisher, other = await ctx.connect(name="publisher"), await ctx.connect(name="other publisher")
    async with (
        publishing(publisher, kept, b"first", b"second", qos=1),
        publishing(other, left, *(b"%d" % number for number in range(6)), qos=1),
    ):
        held = await leaving.expect_publish(ack=False)
        await leaving.unsubscribe(_share("g", left))
        await leaving.acknowledge(held)
        while (held.topic, held.payload) != (kept, b"second"):
            held = await leaving.expect_publish()
        await members[0].disconnect()


@case(
    "mqtt5/shared/malformed-share-names-not-granted",
    clauses=("MQTT-4.8.2-1", "MQTT-4.8.2-2"),
    requires=("shared",),
    mutant="v5-malformed-share-names-granted",
    near_miss="v5-closes-silently",
)
async def malformed_names(ctx: CaseContext) -> None:
    """A share name is not empty, has no wildcard, and is followed by a filter.

    Five filters that break this are tried, each on a connection of its own. The broker ends the connection or says a
    failure in SUBACK: both pass.
    """
    for filter_ in ("$share//t", "$share/g", "$share/g/", "$share/a+b/t", "$share/#/t"):
        connection = await ctx.connect(name=filter_)
        connection.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=filter_),)))
        answer = await connection.receive("SUBACK or the end of the connection")
        if isinstance(answer, Suback):
            ctx.must(
                min(answer.reason_codes) >= _FIRST_FAILURE, f"{filter_}: expected a failure; seen {describe(answer)}"
            )
        else:
            ctx.must(not isinstance(answer, Publish), f"{filter_}: expected no message; seen {answer}")
