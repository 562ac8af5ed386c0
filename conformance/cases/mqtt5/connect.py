"""CONNECT: what a server checks before it accepts a client (MQTT 5.0, 3.1)."""

from __future__ import annotations

import string

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import exchange_raw, expect_error, imposed_keep_alive, pass_time
from assay.conformance.cases.unconnected import UNCONNECTED_LIMIT_S, expect_end_unconnected
from assay.conformance.rules import Rule
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    Subscription,
    Will,
    describe,
    encode,
)
from assay.conformance.wire.encode import connect_flags, connect_raw, raw_packet
from assay.conformance.wire.encode import string as encoded_string

_CONNECT_BYTE = 0x10
_ALPHANUMERIC = string.digits + string.ascii_letters


async def _expect_refused(ctx: CaseContext, data: bytes, *, name: str) -> None:
    """The CONNECT in ``data`` must not be accepted: the connection ends, with or without a refusing CONNACK."""
    connection = await ctx.open(name=name)
    connection.send_raw(data)
    await connection.expect_refusal()


@case(
    "mqtt5/connect/first-packet-must-be-connect",
    clauses=("MQTT-3.1.0-1", "MQTT-3.2.0-1", "MQTT-4.13.1-1"),
    mutant="v5-answers-before-connect",
    near_miss="closes-late-without-connect",
    limit_s=UNCONNECTED_LIMIT_S,
)
async def first_packet(ctx: CaseContext) -> None:
    """A connection that does not begin with CONNECT is ended.

    Each of PINGREQ, PUBLISH and DISCONNECT is sent as the first packet of a connection. The broker ends it and
    answers nothing, above all no PINGRESP; one that only does so when its patience with the missing CONNECT ends is
    reported.
    """
    await expect_end_unconnected(ctx, Pingreq(), Publish(topic=ctx.topic()), Disconnect(), allowed=(Disconnect,))


@case(
    "mqtt5/connect/no-disconnect-before-connack",
    clauses=("MQTT-3.14.0-1", "MQTT-3.2.0-1"),
    mutant="v5-disconnect-before-connack",
    near_miss="closes-late-without-connect",
    limit_s=UNCONNECTED_LIMIT_S,
)
async def no_disconnect_before_connack(ctx: CaseContext) -> None:
    """A broker that never accepted the client sends it no DISCONNECT.

    PINGREQ as first packet, and a CONNECT with its reserved flag set. The connection ends; a CONNACK that refuses may
    come for the CONNECT, but a DISCONNECT may not, since no CONNACK below 0x80 went before it.
    """
    await expect_end_unconnected(ctx, Pingreq())
    refused = await ctx.open(name="refused")
    packet = ctx.connect_packet()
    refused.send_raw(connect_raw(packet, flags=connect_flags(packet) | 0x01))
    allowed = (Disconnect, type(refused.connack))
    before = await refused.expect_close(allowed=allowed, step=Rule.RESERVED_FLAG)
    for seen in before:
        ctx.must(not isinstance(seen, Disconnect), f"refused: expected no DISCONNECT; seen {describe(seen)}")


@case(
    "mqtt5/connect/second-connect-ends-the-connection",
    clauses=("MQTT-3.1.0-2", "MQTT-3.2.0-2"),
    mutant="v5-second-connect-accepted",
    near_miss="v5-closes-silently",
)
async def second_connect(ctx: CaseContext) -> None:
    """A second CONNECT is a protocol error.

    The same CONNECT is sent again on an accepted connection. The broker ends the connection, and a second CONNACK
    never comes.
    """
    connection = await ctx.connect()
    connection.send(ctx.connect_packet(client_id=connection.client_id))
    await expect_error(ctx, connection)


@case(
    "mqtt5/connect/reserved-connect-flag-refused",
    clauses=("MQTT-3.1.2-3", "MQTT-3.1.4-1"),
    mutant="v5-reserved-connect-flag-accepted",
    near_miss="v5-closes-silently",
)
async def reserved_flag(ctx: CaseContext) -> None:
    """The lowest connect flag is reserved and must be 0.

    A CONNECT that is legal except for this bit is refused; the same CONNECT without it is accepted.
    """
    packet = ctx.connect_packet()
    await _expect_refused(ctx, connect_raw(packet, flags=connect_flags(packet) | 0x01), name="flag set")
    await ctx.connect(name="control", client_id=packet.client_id)


@case(
    "mqtt5/connect/will-flags-without-will-refused",
    clauses=("MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.4-1"),
    mutant="v5-will-bits-without-will-accepted",
    near_miss="v5-closes-silently",
)
async def will_bits(ctx: CaseContext) -> None:
    """Will QoS and will retain are 0 in a CONNECT without a will.

    Two CONNECTs without the will flag, one with will QoS 1 and one with will retain, are refused.
    """
    packet = ctx.connect_packet()
    await _expect_refused(ctx, connect_raw(packet, flags=connect_flags(packet) | 0x08), name="will QoS 1")
    await _expect_refused(ctx, connect_raw(packet, flags=connect_flags(packet) | 0x20), name="will retain")


@case(
    "mqtt5/connect/will-qos-3-refused",
    clauses=("MQTT-3.1.2-12", "MQTT-3.1.4-1"),
    mutant="v5-will-qos-3-accepted",
    near_miss="v5-closes-silently",
)
async def will_qos_3(ctx: CaseContext) -> None:
    """There is no will QoS 3.

    A CONNECT with a will of QoS 3 is refused; the same with QoS 0 is accepted.
    """
    will = Will(topic=ctx.topic("will"), payload=b"w", qos=3)
    await _expect_refused(ctx, encode(ctx.connect_packet(will=will), 5), name="will QoS 3")
    control = await ctx.connect(will=Will(topic=will.topic, payload=b"w"), name="control")
    await control.disconnect()


@case(
    "mqtt5/connect/missing-payload-fields-refused",
    clauses=("MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.3-3", "MQTT-3.1.4-1"),
    mutant="v5-missing-fields-accepted",
    near_miss="v5-closes-silently",
)
async def missing_fields(ctx: CaseContext) -> None:
    """Every field that the connect flags announce must be in the payload.

    Four CONNECTs lack, in turn, the will fields, the user name, the password and even the client identifier, although
    the flags announce them. Each is refused.
    """
    bare = ctx.connect_packet(username=None, password=None)
    named = ctx.connect_packet(username="u", password=None)
    await _expect_refused(ctx, connect_raw(bare, flags=connect_flags(bare) | 0x04), name="no will fields")
    await _expect_refused(ctx, connect_raw(bare, flags=connect_flags(bare) | 0x80), name="no user name")
    await _expect_refused(ctx, connect_raw(named, flags=connect_flags(named) | 0x40), name="no password")
    await _expect_refused(ctx, connect_raw(bare, payload=b""), name="no client identifier")


@case(
    "mqtt5/connect/unannounced-payload-fields-refused",
    clauses=("MQTT-3.1.2-16", "MQTT-3.1.2-18", "MQTT-3.1.4-1"),
    mutant="v5-trailing-connect-bytes-accepted",
    near_miss="v5-closes-silently",
)
async def unannounced_fields(ctx: CaseContext) -> None:
    """A field that the connect flags do not announce must not be in the payload.

    A CONNECT carries a user name and another one a password, each with its flag cleared, so that bytes are left over
    behind the last announced field. Both are refused.
    """
    named = ctx.connect_packet(username="u", password=None)
    secret = ctx.connect_packet(username="u", password=b"p")
    await _expect_refused(ctx, connect_raw(named, flags=connect_flags(named) & ~0x80), name="user name unflagged")
    await _expect_refused(ctx, connect_raw(secret, flags=connect_flags(secret) & ~0x40), name="password unflagged")


@case(
    "mqtt5/connect/plain-client-ids-accepted",
    clauses=("MQTT-3.1.3-5", "MQTT-3.1.4-5"),
    mutant="v5-long-client-ids-refused",
    near_miss="v5-connack-says-more",
)
async def plain_client_ids(ctx: CaseContext) -> None:
    """Client identifiers of 1 to 23 ASCII letters and digits are accepted.

    Identifiers of 1, 23 and 16 characters connect, which use all 62 characters between them.
    """
    shuffled = "".join(ctx.rng.sample(_ALPHANUMERIC, len(_ALPHANUMERIC)))
    for client_id in (shuffled[:1], shuffled[:23], shuffled[23:46], shuffled[46:]):
        connection = await ctx.connect(client_id=client_id, name=f"{len(client_id)} characters")
        await connection.disconnect()


@case(
    "mqtt5/connect/unknown-protocol-version-refused",
    clauses=("MQTT-3.1.2-2",),
    mutant="v5-any-protocol-version-accepted",
    near_miss="v5-closes-silently",
)
async def unknown_version(ctx: CaseContext) -> None:
    """A protocol version that nobody has defined is refused.

    A CONNECT with protocol version 6. The broker ends the connection. It may send a CONNACK first, in the form of
    either version that it speaks, as long as that does not accept.
    """
    packet = Connect(client_id=ctx.client_id(), version=6)
    answer = await exchange_raw(ctx, encode(packet, 5), name="version 6")
    accepted = len(answer) >= 4 and answer[0] == 0x20 and answer[3] == 0
    ctx.must(not accepted, f"version 6: expected no accepting CONNACK; seen {answer.hex()}")


@case(
    "mqtt5/connect/foreign-protocol-name-refused",
    clauses=("MQTT-3.1.2-1",),
    mutant="v5-any-protocol-name-accepted",
    near_miss="v5-closes-silently",
)
async def foreign_name(ctx: CaseContext) -> None:
    """A protocol name other than MQTT is not served as MQTT 5.0.

    A CONNECT with the name "MQTX" and version 5. The broker ends the connection without accepting it.
    """
    packet = Connect(client_id=ctx.client_id(), version=5, protocol_name="MQTX")
    answer = await exchange_raw(ctx, encode(packet, 5), name="MQTX")
    accepted = len(answer) >= 4 and answer[0] == 0x20 and answer[3] == 0
    ctx.must(not accepted, f"MQTX: expected no accepting CONNACK; seen {answer.hex()}")


@case(
    "mqtt5/connect/nothing-behind-a-refused-connect-is-processed",
    clauses=("MQTT-3.1.4-6",),
    mutant="v5-publish-behind-refused-connect-routed",
    near_miss="v5-closes-silently",
)
async def pipelined_after_refusal(ctx: CaseContext) -> None:
    """Packets sent behind a refused CONNECT have no effect.

    A CONNECT with an authentication method that no broker knows and a PUBLISH are sent in one write. The broker
    refuses, and a subscriber of the topic gets nothing.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    intruder = await ctx.open(name="intruder")
    method = Properties(authentication_method="ASSAY-NO-SUCH-METHOD")
    intruder.send(ctx.connect_packet(properties=method), Publish(topic=topic, payload=b"smuggled"))
    await intruder.expect_refusal(step=Rule.UNKNOWN_METHOD)
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt5/connect/client-id-names-the-session",
    clauses=("MQTT-3.1.3-2", "MQTT-3.1.2-5", "MQTT-3.1.2-6"),
    requires=("persistent_sessions",),
    mutant="v5-client-id-case-folded",
    near_miss="v5-connack-says-more",
)
async def id_names_session(ctx: CaseContext) -> None:
    """Two client identifiers never share a session, even if they differ only in case.

    A session is left behind by one identifier. Another with one letter in upper case finds no session; the first one
    finds it.
    """
    lasting = Properties(session_expiry_interval=600)
    lower = ctx.client_id() + "a"
    upper = lower[:-1] + "A"
    first = await ctx.connect(client_id=lower, properties=lasting, name="first")
    await first.disconnect()
    other = await ctx.connect(client_id=upper, clean=False, properties=lasting, name="other")
    other.expect_new_session()
    again = await ctx.connect(client_id=lower, clean=False, properties=lasting, name="again")
    text = f"again: expected Session Present 1; seen {describe(again.connack)}"
    ctx.step(Rule.SESSION_KEPT, again.connack.session_present, text)


@case(
    "mqtt5/connect/zero-limits-are-protocol-errors",
    clauses=("MQTT-3.1.4-1", "MQTT-4.13.1-1"),
    mutant="v5-zero-limits-accepted",
    near_miss="v5-closes-silently",
)
async def zero_limits(ctx: CaseContext) -> None:
    """Receive Maximum 0 and Maximum Packet Size 0 are protocol errors.

    Two CONNECTs, each with one of these properties at 0, are refused; with 1 and 65535 they are accepted.
    """
    for name, bad, good in (
        ("receive maximum", Properties(receive_maximum=0), Properties(receive_maximum=1)),
        ("packet size", Properties(maximum_packet_size=0), Properties(maximum_packet_size=65_535)),
    ):
        await _expect_refused(ctx, encode(ctx.connect_packet(properties=bad), 5), name=f"{name} 0")
        await ctx.connect(properties=good, name=f"{name} legal")


@case(
    "mqtt5/connect/request-flags-other-than-0-and-1-refused",
    clauses=("MQTT-3.1.4-1", "MQTT-4.13.1-1"),
    mutant="v5-request-flags-unchecked",
    near_miss="v5-closes-silently",
)
async def request_flags(ctx: CaseContext) -> None:
    """Request Problem Information and Request Response Information are 0 or 1.

    Two CONNECTs, each with one of these properties at 2, are refused.
    """
    for name, properties in (
        ("problem", Properties(request_problem_information=2)),
        ("response", Properties(request_response_information=2)),
    ):
        await _expect_refused(ctx, encode(ctx.connect_packet(properties=properties), 5), name=f"{name} 2")


@case(
    "mqtt5/connect/will-topic-with-wildcard-refused",
    clauses=("MQTT-4.7.0-1",),
    level="SHOULD",
    mutant="v5-will-topic-unchecked",
    near_miss="v5-closes-silently",
)
async def will_topic_wildcard(ctx: CaseContext) -> None:
    """The will topic is a topic name, so it has no wildcard.

    A CONNECT whose will topic ends in a wildcard level should be refused. Nothing says that a server must look at it
    before the will is due, so a broker that accepts is reported and does not fail.
    """
    connection = await ctx.open()
    connection.send(ctx.connect_packet(will=Will(topic=ctx.topic("will/+"), payload=b"w")))
    answer = await connection.receive("CONNACK or the end of the connection")
    accepted = isinstance(answer, Connack) and answer.reason_code == 0
    ctx.should(not accepted, "expected the connection to be refused; it was accepted")


@case(
    "mqtt5/connect/property-length-is-required",
    clauses=("MQTT-2.2.2-1", "MQTT-3.1.4-1"),
    mutant="v5-missing-property-length-accepted",
    near_miss="v5-closes-silently",
)
async def property_length_required(ctx: CaseContext) -> None:
    """A CONNECT without properties still has a property length.

    The packet is built as in MQTT 3.1.1, whose payload follows the keep alive at once, so that the first byte of the
    client identifier's length stands in the place of the property length and the rest cannot be read. It is refused.
    """
    client_id = ctx.client_id()
    head = encoded_string("MQTT") + bytes((5, 0x02, 0, 60))
    await _expect_refused(ctx, raw_packet(_CONNECT_BYTE, head + encoded_string(client_id)), name="no length")
    await ctx.connect(name="control")


@case(
    "mqtt5/connect/silent-client-is-dropped",
    clauses=("MQTT-3.1.2-22", "MQTT-3.2.2-22"),
    mutant="v5-keep-alive-ignored",
    near_miss="v5-closes-silently",
    limit_s=14.0,
)
async def keep_alive(ctx: CaseContext) -> None:
    """A client that sends nothing for one and a half keep alive periods is disconnected, and its will published.

    A client with keep alive 1 s, or what the server imposes, and a will goes silent. The broker ends the connection,
    and publishes the will as for a broken network. Brokers that look at their timers only every few seconds get some
    seconds of grace.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(Subscription(filter=topic))
    silent = await ctx.connect(name="silent", keep_alive_s=1, will=Will(topic=topic, payload=b"gone"))
    in_force_s = imposed_keep_alive(ctx, silent.connack, 1)
    await silent.expect_close(within_s=1.5 * in_force_s + 6.0)
    await watcher.expect_publish(topic, b"gone")


@case(
    "mqtt5/connect/pinging-client-is-kept",
    clauses=("MQTT-3.1.2-22", "MQTT-3.12.4-1"),
    mutant="v5-keep-alive-counts-from-connect",
    near_miss="v5-connack-says-more",
    limit_s=12.0,
)
async def keep_alive_kept(ctx: CaseContext) -> None:
    """A client that pings within its keep alive is not disconnected.

    With keep alive 2 s, or what the server imposes, a PINGREQ is sent every 1.2 s for longer than the 3 s after which a
    silent client would be dropped; every one is answered.
    """
    connection = await ctx.connect(keep_alive_s=2 * ctx.stretch)
    in_force_s = imposed_keep_alive(ctx, connection.connack, 2 * ctx.stretch)
    watch = Stopwatch()
    for _ in range(4):
        with watch.judging_before(1.45 * in_force_s):
            await pass_time(ctx, 0.6 * in_force_s)
            pinged = Stopwatch()
            await connection.expect_nothing()
        watch = pinged
