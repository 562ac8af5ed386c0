"""Bugs that brokers were reported to have, each with a control: the same without the trigger must work.

``docs/findings/real-bugs.md`` lists all of them; this module holds those that no other case shows with its control.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import (
    BRIEF_S,
    begin_a_brief_one,
    completion,
    pass_time,
    resume,
    subscribe_at,
)
from assay.conformance.cases.mqtt311.session import resume as resume_311
from assay.conformance.connection import FIRST_FAILURE_CODE
from assay.conformance.rules import Rule
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.encode import connect_flags, connect_raw, raw_packet

_V5 = 5
_USER_NAME, _WILL_RETAIN = 0x80, 0x20
"""Connect flags."""


def _both_versions(
    slug: str,
    *,
    in_311: tuple[str, ...],
    in_5: tuple[str, ...],
    mutant: str,
    near_miss: tuple[str, str],
    requires: tuple[str, ...] = (),
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses, variation in zip(("mqtt311", "mqtt5"), (in_311, in_5), near_miss, strict=True):
            case(
                f"{spec}/real-bugs/{slug}",
                clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                requires=requires,
                mutant=mutant,
                near_miss=variation,
            )(function)
        return function

    return register


_PUBLISH = 0x30
"""First byte, without flags."""


class _Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes with a fault, and the same bytes without it."""

    name: str
    bad: bytes
    good: bytes


def _openings(ctx: CaseContext) -> list[_Pair]:
    """What a client may begin with."""
    version = ctx.case.version

    def connect(*, flag: int = 0) -> bytes:
        packet = ctx.connect_packet()
        return connect_raw(packet, flags=connect_flags(packet) | flag)

    will = ctx.connect_packet(will=Will(topic=ctx.topic("will"), payload=b"w", retain=True))
    ctx.will_send(will)
    pairs = [
        _Pair(name="user name announced and missing", bad=connect(flag=_USER_NAME), good=connect()),
        _Pair(name="Will Retain without a will", bad=connect(flag=_WILL_RETAIN), good=encode(will, version)),
        _Pair(name="PINGREQ before CONNECT", bad=encode(Pingreq(), version) + connect(), good=connect()),
    ]
    if version < _V5:
        kept, nameless = ctx.connect_packet(clean=False), ctx.connect_packet(client_id="", clean=False)
        ctx.will_send(kept)
        name = "no client identifier, Clean Session 0"
        pairs.append(_Pair(name=name, bad=encode(nameless, version), good=encode(kept, version)))
    return pairs


def _requests(ctx: CaseContext) -> list[_Pair]:
    """What a connected client may ask."""
    version = ctx.case.version

    def subscribe(path: str, qos: int = 0, *, own: bool = True) -> bytes:
        entry = Subscription(filter=ctx.topic(path) if own else path, qos=qos)
        return encode(Subscribe(packet_id=1, subscriptions=(entry,)), version)

    def publish(topic: str) -> bytes:
        return encode(Publish(topic=topic, payload=b"x", qos=1, packet_id=1), version)

    whole = subscribe("whole")
    return [
        _Pair(name="SUBSCRIBE at QoS 3", bad=subscribe("qos", 3), good=subscribe("qos", 2)),
        _Pair(name="SUBSCRIBE without its last byte", bad=raw_packet(whole[0], whole[2:-1]), good=whole),
        _Pair(name="PUBLISH to an empty topic", bad=publish(""), good=publish(ctx.topic("x"))),
        _Pair(name="filter a+/b", bad=subscribe("a+/b"), good=subscribe("a/+/b")),
        _Pair(name="filter #abc", bad=subscribe("#abc", own=False), good=subscribe("abc/#")),
    ]


def _is_success(packet: Packet | None) -> bool:
    match packet:
        case Connack() | Puback():
            return packet.reason_code < FIRST_FAILURE_CODE and not (isinstance(packet, Connack) and packet.reason_code)
        case Suback():
            return min(packet.reason_codes) < FIRST_FAILURE_CODE
    return False


def _is_refusal(packet: Packet | None) -> bool:
    return packet is None or (isinstance(packet, Connack | Puback | Suback | Disconnect) and not _is_success(packet))


@_both_versions(
    "only-the-fault-is-refused",
    in_311=("3.1.2-15", "3.1.2-19", "3.1.3-8", "3.1.0-1", "3.8.3-4", "4.8.0-1", "4.7.3-1", "4.7.1-2", "4.7.1-3"),
    in_5=("3.1.2-13", "3.1.2-17", "3.1.0-1", "3.9.3-2", "4.13.1-1", "4.7.3-1", "4.7.1-1", "4.7.1-2"),
    requires=("qos1", "wildcards", "retain"),
    mutant="will-retain-always-refused",
    near_miss=("v3-bad-filters-get-code-80", "v5-closes-silently"),
)
async def only_the_fault(ctx: CaseContext) -> None:
    """Faults that brokers were reported to accept are refused, and the same packets without the fault are served.

    Each pair is sent on connections of its own: an announced user name that is missing, Will Retain without a will,
    PINGREQ before CONNECT, no client identifier with Clean Session 0 (3.1.1), SUBSCRIBE at QoS 3 and cut short, an
    empty topic, misplaced wildcards. The bad one gets no success, the good one gets it.
    """
    for pairs, opening in ((_openings(ctx), True), (_requests(ctx), False)):
        for pair in pairs:
            for faulty, data in ((True, pair.bad), (False, pair.good)):
                name = pair.name if faulty else f"{pair.name}: control"
                connection = await (ctx.open(name=name) if opening else ctx.connect(name=name))
                connection.send_raw(data)
                packet = await connection.receive("an answer, or the end of the connection")
                right = _is_refusal(packet) if faulty else _is_success(packet)
                seen = describe(packet) if packet is not None else "the end of the connection"
                text = f"{name}: expected {'a refusal' if faulty else 'success'}; seen {seen}"
                if not faulty:  # perhaps it serves nobody who asks so
                    answer = Rule.PUBACK if data[0] & 0xF0 == _PUBLISH else Rule.SUBACK
                    if opening and packet is not None:
                        ctx.step(Rule.FIRST, isinstance(packet, Connack), text)
                    ctx.step(Rule.ACCEPT if opening else answer, right, text, soft=True)
                ctx.must(right, text)


@_both_versions(
    "no-retained-message-for-a-refused-filter",
    in_311=("3.8.4-5", "3.3.1-6"),
    in_5=("3.8.4-6", "3.9.3-2", "3.3.1-9"),
    requires=("refused_topic", "retain", "qos1"),
    mutant="retained-for-refused-filters",
    near_miss=("v3-one-packet-at-a-time", "v5-retained-before-suback"),
)
async def refused_filter(ctx: CaseContext) -> None:
    """A filter that is refused brings no retained message.

    Messages are retained on the topic that the broker lets nobody subscribe to and on another. One SUBSCRIBE asks for
    both: the first is refused, and only the retained message of the second comes. A broker that does not let the case
    publish to the first topic cannot be asked. (moscajs/aedes issue 719.)
    """
    refused, allowed = str(ctx.capabilities["refused_topic"]), ctx.topic("allowed")
    publisher = await ctx.connect(name="publisher")
    publisher.send(Publish(topic=refused, payload=b"secret", qos=1, packet_id=1, retain=True))
    answer = await publisher.receive("PUBACK, or the end of the connection")
    if not _is_success(answer):
        ctx.unsupported("the broker lets nobody publish to the topic whose subscription it refuses")
    await publisher.publish(allowed, b"open", qos=1, retain=True)
    subscriber = await ctx.connect(name="subscriber")
    entries = tuple(Subscription(filter=topic, qos=1) for topic in (refused, allowed))
    subscriber.send(Subscribe(packet_id=1, subscriptions=entries))
    suback = await subscriber.expect(Suback, skipping=(Publish,))
    refused_code, allowed_code = suback.reason_codes
    ctx.must(
        refused_code >= FIRST_FAILURE_CODE > allowed_code,
        f"subscriber: expected the first filter to be refused and the second granted; seen {describe(suback)}",
    )
    await subscriber.expect_publish(allowed, b"open", retain=True)
    await ctx.expect_no_message(publisher, subscriber)


@case(
    "mqtt311/real-bugs/release-on-a-resumed-session-keeps-the-qos",
    clauses=("MQTT-4.3.3-2", "MQTT-3.8.4-6", "MQTT-3.1.2-5"),
    requires=("persistent_sessions", "qos2"),
    mutant="v3-released-on-resume-at-qos-0",
    near_miss="v3-qos-2-published-at-pubrel",
)
async def release_keeps_qos(ctx: CaseContext) -> None:
    """A QoS 2 message that is released on a resumed session is delivered at QoS 2.

    A publisher loses its connection after PUBREC, resumes its session and sends PUBREL. The subscriber at QoS 2 gets
    the message at QoS 2, once, like that of a publisher that did not lose its connection.
    (nats-io/nats-server issue 7643.)
    """
    topic = ctx.topic()
    subscriber = await ctx.connect(name="subscriber")
    await subscribe_at(ctx, subscriber, topic, qos=2)
    control = await ctx.connect(name="control")
    await control.publish(topic, b"control", qos=2)
    await subscriber.expect_publish(topic, b"control", qos=2)
    first = await ctx.connect(clean=False, name="first")
    await first.subscribe(ctx.topic("own"), qos=1)  # some brokers keep no session without a subscription
    first.send(Publish(topic=topic, payload=b"released later", qos=2, packet_id=6))
    await first.expect(Pubrec)
    first.abort()
    back = await resume_311(ctx, first.client_id)
    back.send(Pubrel(packet_id=6))
    await completion(ctx, back)
    await subscriber.expect_publish(topic, b"released later", qos=2)
    await ctx.expect_no_message(control, subscriber)


@case(
    "mqtt5/real-bugs/expiry-drops-what-waits-and-spares-what-has-begun",
    clauses=("MQTT-4.4.0-1", "MQTT-4.3.3-7", "MQTT-3.3.2-5"),
    requires=("persistent_sessions", "qos2"),
    mutant="v5-no-expiry-behind-a-full-window",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry(ctx: CaseContext) -> None:
    """Message expiry deletes messages that wait, not exchanges that have begun.

    A subscriber with Receive Maximum 1 has a QoS 2 exchange open after PUBREC when it is reset; behind it wait two
    messages. The first two expire after 2 s, the third, the control, does not. After 4 s the subscriber is back: it
    gets PUBREL for the first, nothing of the second, and the third. (eclipse-mosquitto/mosquitto issue 3744.)
    """
    topic = ctx.topic()
    brief = Properties(message_expiry_interval=BRIEF_S * ctx.stretch)
    narrow = Properties(session_expiry_interval=600, receive_maximum=1)
    first = await ctx.connect(properties=narrow, name="first")
    await subscribe_at(ctx, first, topic, qos=2)
    publisher = await ctx.connect(name="publisher")
    sent = await begin_a_brief_one(ctx, publisher, first, topic)
    first.send(Pubrec(packet_id=sent.packet_id))
    await first.expect(Pubrel)
    first.abort()
    for payload, properties in ((b"waiting", brief), (b"control", Properties())):
        await publisher.publish(topic, payload, qos=2, properties=properties)
    await pass_time(ctx, BRIEF_S * ctx.stretch + 2.0)
    back = await resume(ctx, first.client_id, name="back", properties=narrow)
    pubrel = await back.expect(Pubrel)
    ctx.must(pubrel.packet_id == sent.packet_id, f"back: expected identifier {sent.packet_id}; seen {describe(pubrel)}")
    back.send(Pubcomp(packet_id=pubrel.packet_id))
    await back.expect_publish(topic, b"control", qos=2)
    await ctx.expect_no_message(publisher, back)


@case(
    "mqtt5/real-bugs/retained-message-carries-the-identifier-of-its-subscription",
    clauses=("MQTT-3.3.4-3", "MQTT-3.3.1-9", "MQTT-3.8.4-3"),
    requires=("retain", "qos1", "subscription_identifiers"),
    mutant="v5-retained-with-the-first-identifier",
    near_miss="v5-retained-before-suback",
)
async def retained_identifier(ctx: CaseContext) -> None:
    """A retained message carries the identifier of the subscription that brings it, and none without one.

    A client subscribes to a topic with a retained message with identifier 7, with 8, and without identifier. The
    retained message comes each time, with just that identifier. (vernemq/vernemq issue 1287.)
    """
    topic = ctx.topic()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"kept", qos=1, retain=True)
    client = await ctx.connect(name="client")
    for identifiers in ((7,), (8,), ()):
        await client.subscribe(topic, properties=Properties(subscription_identifier=identifiers))
        message = await client.expect_publish(topic, b"kept", retain=True)
        found = message.properties.subscription_identifier
        ctx.must(found == identifiers, f"client: expected subscription identifiers {identifiers}; seen {found}")
