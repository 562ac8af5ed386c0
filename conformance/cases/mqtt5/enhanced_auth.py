"""Enhanced authentication with a method that the target knows: SCRAM in AUTH packets (MQTT 5.0, 4.12)."""

from __future__ import annotations

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import expect_error, wire_size
from assay.conformance.cases.unconnected import UNCONNECTED_LIMIT_S, expect_end_unconnected
from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.wire import (
    Auth,
    Connack,
    Disconnect,
    Pingreq,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Will,
    describe,
)
from assay.conformance.wire.encode import raw_packet
from assay.conformance.wire.scram import HASHES, ScramClient, ScramFailureError

SUCCESS, CONTINUE, REAUTHENTICATE = 0x00, 0x18, 0x19
NOT_AUTHORIZED, BAD_CREDENTIALS, BAD_METHOD = 0x87, 0x86, 0x8C
_AUTH_BYTE = 0xF0
NEEDS = ("authentication_method", "authentication_username", "authentication_password")
_WRONG = "not the password"


class Exchange:
    """One authentication of one connection, on the client's side."""

    def __init__(self, ctx: CaseContext, connection: Connection, *, password: str | None = None) -> None:
        """``password``: in place of the right one."""
        self.ctx, self.connection = ctx, connection
        self.method = method_of(ctx)
        username = str(ctx.capabilities["authentication_username"])
        right = str(ctx.capabilities["authentication_password"])
        self._scram = ScramClient(self.method, username, password or right, ctx.rng.randbytes(12).hex())

    def first(self) -> Properties:
        """What CONNECT, or the AUTH that begins anew, carries."""
        return Properties(authentication_method=self.method, authentication_data=self._scram.first())

    def check(self, packet: Auth | Connack) -> None:
        """The server's packet must name the method of the CONNECT."""
        named = packet.properties.authentication_method
        self.ctx.must(
            named == self.method,
            f"{self.connection.name}: expected the authentication method {self.method!r}; seen {describe(packet)}",
        )

    async def challenge(self) -> Auth:
        """The AUTH by which the server asks for more."""
        packet = await self.connection.expect(Auth, skipping=(Publish,))
        self.ctx.must(
            packet.reason_code == CONTINUE,
            f"{self.connection.name}: expected AUTH with code 0x18; seen {describe(packet)}",
        )
        self.check(packet)
        return packet

    def answer(self, challenge: Auth) -> Auth:
        """The AUTH that answers the server's first message."""
        try:
            data = self._scram.final(challenge.properties.authentication_data or b"")
        except ScramFailureError as error:
            raise CaseFailureError(f"{self.connection.name}: {error}; seen {describe(challenge)}") from error
        properties = Properties(authentication_method=self.method, authentication_data=data)
        return Auth(reason_code=CONTINUE, properties=properties)

    def verify(self, last: Auth | Connack) -> None:
        """The server's last data must prove that it knows the user."""
        try:
            self._scram.verify(last.properties.authentication_data or b"")
        except ScramFailureError as error:
            raise CaseFailureError(f"{self.connection.name}: {error}; seen {describe(last)}") from error


def method_of(ctx: CaseContext) -> str:
    """The target's method, which the suite must be able to speak."""
    method = str(ctx.capabilities["authentication_method"])
    if method not in HASHES:
        ctx.unsupported(f"the suite does not speak the authentication method {method!r}, only {', '.join(HASHES)}")
    return method


async def begin(
    ctx: CaseContext,
    *,
    name: str = "client",
    client_id: str | None = None,
    password: str | None = None,
    will: Will | None = None,
    maximum_packet_size: int | None = None,
) -> Exchange:
    """Open a connection and send the CONNECT that begins an exchange."""
    connection = await ctx.open(name=name)
    exchange = Exchange(ctx, connection, password=password)
    properties = msgspec.structs.replace(exchange.first(), maximum_packet_size=maximum_packet_size)
    connection.client_id = client_id or ctx.client_id()
    connection.send(
        ctx.connect_packet(
            client_id=connection.client_id, username=None, password=None, will=will, properties=properties
        )
    )
    return exchange


async def accepted(exchange: Exchange) -> Connection:
    """Go through the exchange; the server must accept."""
    connection = exchange.connection
    connection.send(exchange.answer(await exchange.challenge()))
    connection.connack = await connection.expect(Connack)
    if connection.connack.reason_code != SUCCESS:
        exchange.ctx.fail(f"{connection.name}: expected to be accepted; seen {describe(connection.connack)}")
    exchange.check(connection.connack)
    exchange.verify(connection.connack)
    return connection


async def begin_anew(ctx: CaseContext, connection: Connection, *, password: str | None = None) -> Exchange:
    """Start to authenticate again on an accepted connection."""
    exchange = Exchange(ctx, connection, password=password)
    connection.send(Auth(reason_code=REAUTHENTICATE, properties=exchange.first()))
    return exchange


@case(
    "mqtt5/auth/server-asks-for-more-by-auth-0x18",
    clauses=("MQTT-4.12.0-2", "MQTT-3.15.2-1", "MQTT-3.2.0-1"),
    requires=NEEDS,
    mutant="v5-auth-asks-with-0x00",
    near_miss="v5-auth-says-more",
)
async def whole_exchange(ctx: CaseContext) -> None:
    """A server that needs more of the client sends AUTH with code 0x18, and CONNACK when it has all.

    A client names the target's method and sends its first message in CONNECT. The server's challenge comes in an AUTH
    with code 0x18, the client's proof is answered by CONNACK 0x00 that holds the server's proof, and the client then
    subscribes and gets a message.
    """
    topic = ctx.topic()
    connection = await accepted(await begin(ctx))
    await connection.subscribe(topic)
    await connection.publish(topic, b"authenticated")
    await connection.expect_publish(topic, b"authenticated")


@case(
    "mqtt5/auth/every-auth-and-connack-name-the-method",
    clauses=("MQTT-4.12.0-5",),
    requires=NEEDS,
    mutant="v5-connack-forgets-the-method",
    near_miss="v5-auth-says-more",
)
async def named_method(ctx: CaseContext) -> None:
    """The authentication method of the CONNECT stands in every AUTH and in the accepting CONNACK.

    The exchange is gone through, and begun anew on the accepted connection; each packet of the server names the
    method.
    """
    connection = await accepted(await begin(ctx))
    again = await begin_anew(ctx, connection)
    connection.send(again.answer(await again.challenge()))
    again.check(await connection.expect(Auth))


@case(
    "mqtt5/auth/another-method-within-the-exchange-refused",
    clauses=("MQTT-4.12.0-5", "MQTT-4.13.1-1"),
    requires=NEEDS,
    mutant="v5-auth-method-unchecked",
    near_miss="v5-closes-silently",
)
async def changed_method(ctx: CaseContext) -> None:
    """An AUTH that names another method than the CONNECT is a protocol error.

    The client's proof is right, but its AUTH names another method, or none. The connection ends, without an accepting
    CONNACK.
    """
    for name, method in (("another", "ASSAY-NO-SUCH-METHOD"), ("none", None)):
        exchange = await begin(ctx, name=name)
        answer = exchange.answer(await exchange.challenge())
        properties = msgspec.structs.replace(answer.properties, authentication_method=method)
        exchange.connection.send(msgspec.structs.replace(answer, properties=properties))
        await exchange.connection.expect_refusal()


@case(
    "mqtt5/auth/undefined-codes-refused",
    clauses=("MQTT-3.15.2-1", "MQTT-4.13.1-1"),
    requires=NEEDS,
    mutant="v5-auth-codes-unchecked",
    near_miss="v5-closes-silently",
)
async def undefined_codes(ctx: CaseContext) -> None:
    """An AUTH with a code that is not defined for it is an error.

    The client's proof is right, but its AUTH has code 0x01, 0x17 or 0x80. The connection ends, without an accepting
    CONNACK.
    """
    for code in (0x01, 0x17, 0x80):
        exchange = await begin(ctx, name=f"code {code:#04x}")
        answer = exchange.answer(await exchange.challenge())
        exchange.connection.ctx.sent_raw = True
        exchange.connection.send(msgspec.structs.replace(answer, reason_code=code))
        await exchange.connection.expect_refusal()


@case(
    "mqtt5/auth/wrong-password-refused",
    clauses=("MQTT-4.12.0-4", "MQTT-3.1.4-2", "MQTT-3.2.2-7"),
    requires=NEEDS,
    mutant="v5-scram-proof-unchecked",
    near_miss="v5-closes-silently",
)
async def wrong_password(ctx: CaseContext) -> None:
    """A client that proves nothing is refused.

    The exchange is gone through with a wrong password. The connection ends; a CONNACK before the end refuses, and
    should say 0x87 or 0x86. With the right password the same client is accepted.
    """
    exchange = await begin(ctx, name="wrong", password=_WRONG)
    exchange.connection.send(exchange.answer(await exchange.challenge()))
    code = await exchange.connection.expect_refusal()
    fitting = code in (None, NOT_AUTHORIZED, BAD_CREDENTIALS)
    ctx.should(fitting, f"wrong: expected CONNACK 0x87 or 0x86; seen {code if code is None else hex(code)}")
    await accepted(await begin(ctx, name="right", client_id=exchange.connection.client_id))


@case(
    "mqtt5/auth/session-is-kept-from-the-unproven",
    clauses=("MQTT-3.1.4-2", "MQTT-3.1.4-6"),
    requires=NEEDS,
    mutant="v5-taken-over-before-authentication",
    near_miss="v5-closes-silently",
)
async def no_early_takeover(ctx: CaseContext) -> None:
    """A client takes over nothing before it has proved who it is.

    An accepted client stays connected while another begins an exchange with the same client identifier, and fails.
    The first client is not disturbed, and keeps its subscription.
    """
    topic = ctx.topic()
    owner = await accepted(await begin(ctx, name="owner"))
    await owner.subscribe(topic)
    intruder = await begin(ctx, name="intruder", client_id=owner.client_id, password=_WRONG)
    intruder.connection.send(intruder.answer(await intruder.challenge()))
    await intruder.connection.expect_refusal()
    await owner.expect_nothing()
    await owner.publish(topic, b"still here")
    await owner.expect_publish(topic, b"still here")


@case(
    "mqtt5/auth/nothing-else-is-served-within-the-exchange",
    clauses=("MQTT-3.2.0-1", "MQTT-3.1.4-6"),
    requires=NEEDS,
    mutant="v5-served-while-authenticating",
    near_miss="v5-closes-silently",
)
async def served_early(ctx: CaseContext) -> None:
    """Between CONNECT and CONNACK a client may send only AUTH and DISCONNECT; nothing else is acted upon.

    Three clients send PUBLISH, SUBSCRIBE or PINGREQ in place of the proof. None is answered before a CONNACK, which is
    not to come, and the message reaches nobody. That the server ends the connection is a SHOULD.
    """
    topic = ctx.topic()
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    for packet in (
        Publish(topic=topic, payload=b"unproven", qos=0),
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=topic),)),
        Pingreq(),
    ):
        exchange = await begin(ctx, name=packet.type.name.lower())
        await exchange.challenge()
        exchange.connection.send(packet)
        try:
            seen = await exchange.connection.receive("the end of the connection", within_s=1.0)
        except CaseFailureError:
            ctx.should(False, f"{exchange.connection.name}: expected the end of the connection; it stays open")
            continue
        refused = seen is None or isinstance(seen, Disconnect) or (isinstance(seen, Connack) and seen.reason_code != 0)
        ctx.must(refused, f"{exchange.connection.name}: expected no answer but a refusal; seen {seen}")
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@case(
    "mqtt5/auth/auth-is-no-first-packet",
    clauses=("MQTT-3.1.0-1", "MQTT-4.13.1-1"),
    mutant="v5-auth-before-connect-answered",
    near_miss="closes-late-without-connect",
    limit_s=UNCONNECTED_LIMIT_S,
)
async def auth_first(ctx: CaseContext) -> None:
    """AUTH does not open a connection.

    AUTH with 0x18 and with 0x19 as the first packet. The broker ends the connection and answers nothing; one that only
    does so when its patience with the missing CONNECT ends is reported.
    """
    properties = Properties(authentication_method="SCRAM-SHA-256")
    codes = (CONTINUE, REAUTHENTICATE)
    await expect_end_unconnected(ctx, *(Auth(reason_code=code, properties=properties) for code in codes))


@case(
    "mqtt5/auth/authenticates-anew-on-request",
    clauses=("MQTT-4.12.1-1", "MQTT-4.12.0-5", "MQTT-3.15.2-1"),
    requires=NEEDS,
    mutant="v5-reauthentication-ends-with-0x18",
    near_miss="v5-auth-says-more",
)
async def anew(ctx: CaseContext) -> None:
    """AUTH 0x19 with the method of the CONNECT begins a new exchange, which ends with AUTH 0x00.

    The client authenticates anew twice. Each time it publishes between its first message and its proof, and gets the
    message. The server ends each exchange by AUTH 0x00 with its own proof, and the connection goes on.
    """
    topic = ctx.topic()
    connection = await accepted(await begin(ctx))
    await connection.subscribe(topic)
    for payload in (b"first", b"second"):
        exchange = await begin_anew(ctx, connection)
        challenge = await exchange.challenge()
        await connection.publish(topic, payload)
        await connection.expect_publish(topic, payload)
        connection.send(exchange.answer(challenge))
        last = await connection.expect(Auth)
        ctx.must(last.reason_code == SUCCESS, f"client: expected AUTH with code 0x00; seen {describe(last)}")
        exchange.check(last)
        exchange.verify(last)
    await connection.expect_nothing()


@case(
    "mqtt5/auth/anew-with-another-method-refused",
    clauses=("MQTT-4.12.1-1", "MQTT-4.13.1-1"),
    requires=NEEDS,
    mutant="v5-reauthentication-method-unchecked",
    near_miss="v5-closes-silently",
)
async def anew_otherwise(ctx: CaseContext) -> None:
    """A client authenticates anew with the method that it used at first, not with another.

    AUTH 0x19 with a method that differs from that of the CONNECT, even if only in case, ends the connection.
    """
    for name, other in (("another", "ASSAY-NO-SUCH-METHOD"), ("lower case", method_of(ctx).lower())):
        connection = await accepted(await begin(ctx, name=name))
        exchange = Exchange(ctx, connection)
        properties = msgspec.structs.replace(exchange.first(), authentication_method=other)
        connection.send(Auth(reason_code=REAUTHENTICATE, properties=properties))
        await expect_error(ctx, connection, BAD_METHOD)


@case(
    "mqtt5/auth/anew-only-by-0x19",
    clauses=("MQTT-4.12.1-1", "MQTT-4.13.1-1"),
    requires=NEEDS,
    mutant="v5-reauthentication-begins-with-any-code",
    near_miss="v5-closes-silently",
)
async def anew_by_continue(ctx: CaseContext) -> None:
    """A new exchange begins with AUTH 0x19; 0x18 continues one, and there is none to continue.

    An accepted client sends its first message in an AUTH with code 0x18, another in one with 0x00. Both connections
    end.
    """
    for code in (CONTINUE, SUCCESS):
        connection = await accepted(await begin(ctx, name=f"code {code:#04x}"))
        connection.send(Auth(reason_code=code, properties=Exchange(ctx, connection).first()))
        await expect_error(ctx, connection)


@case(
    "mqtt5/auth/failing-anew-ends-the-connection",
    clauses=("MQTT-4.12.1-2", "MQTT-3.1.2-8"),
    requires=NEEDS,
    mutant="v5-failed-reauthentication-forgiven",
    near_miss="v5-closes-silently",
)
async def anew_fails(ctx: CaseContext) -> None:
    """A client that fails to authenticate anew loses its connection.

    An accepted client with a will begins anew and proves a wrong password. The connection ends, best after DISCONNECT
    0x87, and the will is published, since this is no normal end.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    connection = await accepted(await begin(ctx, will=Will(topic=topic, payload=b"unproven")))
    exchange = await begin_anew(ctx, connection, password=_WRONG)
    connection.send(exchange.answer(await exchange.challenge()))
    await expect_error(ctx, connection, NOT_AUTHORIZED, BAD_CREDENTIALS)
    await watcher.expect_publish(topic, b"unproven")


async def _sizes_within_limit(ctx: CaseContext) -> None:
    """Find the size of the barest challenge, and allow the server exactly that in a second exchange."""
    exchange = await begin(ctx, name="roomy")
    challenge = await exchange.challenge()
    bare = Properties(
        authentication_method=challenge.properties.authentication_method,
        authentication_data=challenge.properties.authentication_data,
    )
    limit = wire_size(msgspec.structs.replace(challenge, properties=bare))
    limited = await begin(ctx, name="limited", maximum_packet_size=limit)
    seen = await limited.connection.receive("AUTH, or a refusal")
    if isinstance(seen, Auth):
        size = wire_size(seen)
        ctx.must(size <= limit, f"limited: expected at most {limit} bytes; seen {size}: {describe(seen)}")
        limited.check(seen)
    else:
        refused = seen is None or (isinstance(seen, Connack) and seen.reason_code != SUCCESS)
        ctx.must(refused, f"limited: expected AUTH or a refusal; seen {seen}")
        ctx.note("the server's challenge does not fit, and it refuses")


@case(
    "mqtt5/auth/reason-string-respects-packet-size",
    clauses=("MQTT-3.15.2-2", "MQTT-3.1.2-24"),
    requires=NEEDS,
    mutant="v5-auth-reason-string-ignores-packet-size",
    near_miss="v5-auth-says-more",
)
async def reason_string_fits(ctx: CaseContext) -> None:
    """A Reason String does not push AUTH over the client's Maximum Packet Size.

    The first exchange shows how large the challenge is without texts. A second client takes packets of exactly that
    size: its AUTH has no more, whatever the server would like to say besides.
    """
    await _sizes_within_limit(ctx)


@case(
    "mqtt5/auth/user-properties-respect-packet-size",
    clauses=("MQTT-3.15.2-3", "MQTT-3.1.2-24"),
    requires=NEEDS,
    mutant="v5-auth-user-properties-ignore-packet-size",
    near_miss="v5-auth-says-more",
)
async def user_properties_fit(ctx: CaseContext) -> None:
    """User Properties do not push AUTH over the client's Maximum Packet Size.

    The first exchange shows how large the challenge is without texts. A second client takes packets of exactly that
    size: its AUTH has no more, whatever the server would like to say besides.
    """
    await _sizes_within_limit(ctx)


@case(
    "mqtt5/auth/malformed-auth-refused",
    clauses=("MQTT-4.13.1-1",),
    requires=NEEDS,
    mutant="v5-unreadable-auth-ignored",
    near_miss="v5-closes-silently",
)
async def malformed_auth(ctx: CaseContext) -> None:
    """An AUTH that cannot be read ends the connection.

    In place of the proof comes an AUTH whose property length reaches beyond its end. The connection ends, without an
    accepting CONNACK.
    """
    exchange = await begin(ctx)
    await exchange.challenge()
    exchange.connection.send_raw(raw_packet(_AUTH_BYTE, bytes((CONTINUE, 0x7F)) + b"\x15\x00\x01m"))
    await exchange.connection.expect_refusal()
