"""Who may do what: logins, access rules, hooks."""

from __future__ import annotations

from typing import Any

from assay.conformance.amqp091.client import AmqpConnection
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.wire.amqp091.values import encode_table
from assay.conformance.wire.scram import ScramClient

_GUEST = {
    "username": "guest",
    "password_hash": "scrypt$16$8$1$636f6e666f726d616e63652d73616c74"
    "$0f5f1503658de6e051adfc1b109b14f4592fea24e86baedc7e344b71ddf3bde5",
}
"""With the password "guest", cheap to check."""
_ANNABEL = _GUEST | {"username": "annabel"}
_AS_ANNABEL = b"\0annabel\0guest"
_MARIA = {
    "username": "maria",
    "scram_sha_256": "4096$AAECAwQFBgcICQoLDA0ODw==$DSORcG4dNUxAHTEo5BL20ymSoLgt8C8jLZ09S+VUVlM="
    "$9hLrfnf7zvCtDB9drkVXkMgUsd4vpHfg5YQJDrbaZ30=",
}
_SCRAM, _PASSWORD = "SCRAM-SHA-256", "correct horse battery"
_VALIDITY = "connection.start-ok.mechanism.validity"
_TAKEN = ("ok",)
_REFUSED, _DENIED = ("connection 403", "close"), "channel 403"


# Logins


async def _login(ctx: AmqpContext, mechanism: str, response: bytes) -> AmqpConnection:
    """A connection whose client has chosen how it logs in."""
    connection = await ctx.open_socket()
    await connection.start()
    connection.start_ok(mechanism=mechanism, response=response)
    return connection


async def _answer_to(connection: AmqpConnection, response: bytes | None = None) -> str | bytes:
    """What follows, or follows this response: a challenge, or how the login ended."""
    if response is not None:
        connection.send("connection.secure-ok", response=response)
    event = await connection.zero.receive("Secure, Tune or Close", ("connection.secure", "connection.tune"))
    if event is None:
        return "close"
    if event.name == "connection.secure":
        return bytes(event["challenge"])
    return "ok" if event.name == "connection.tune" else f"connection {event['reply-code']}"


async def _challenge(ctx: AmqpContext, connection: AmqpConnection, response: bytes | None = None) -> bytes:
    answer = await _answer_to(connection, response)
    ctx.must(isinstance(answer, bytes), f"{connection.name}: expected a challenge; seen {answer!r}")
    assert isinstance(answer, bytes)
    return answer


@amqp_case(
    "access/each-mechanism-lets-in-who-proves-it",
    clauses=(_VALIDITY,),
    settings={"auth": {"users": [_GUEST, _ANNABEL, _MARIA]}},
    mutant="amqp-anybody-acts-for-others",
    kills=("amqp-anything-ends-scram", "amqp-scram-needs-a-first-response"),
)
async def logins(ctx: AmqpContext) -> None:
    """PLAIN, AMQPLAIN and SCRAM-SHA-256 let in who proves who it is, and nobody else.

    By SCRAM with its first message in Start-Ok or behind an empty challenge; the server proves itself, too. Refused are
    a wrong password and an unknown user, responses that lack something, who acts for another, a last response that is
    not empty, and a mechanism that was not offered.
    """
    user, wrong = _PASSWORD, "correct horse"

    def exchange(name: str = "maria", password: str = user) -> ScramClient:
        return ScramClient(_SCRAM, name, password, f"{ctx.rng.getrandbits(64):x}")

    for initial in (True, False):
        scram = exchange()
        connection = await _login(ctx, _SCRAM, scram.first() if initial else b"")
        if not initial:
            ctx.must(await _challenge(ctx, connection) == b"", "expected an empty challenge before the first message")
        first = await _challenge(ctx, connection, None if initial else scram.first())
        scram.verify(await _challenge(ctx, connection, scram.final(first)))
        answer = await _answer_to(connection, b"")
        ctx.must(answer == "ok", f"expected Tune behind SCRAM; seen {answer!r}")
    for scram, last in ((exchange(password=wrong), b""), (exchange("nobody"), b""), (exchange(), b"more")):
        connection = await _login(ctx, _SCRAM, scram.first())
        answer = await _answer_to(connection, scram.final(await _challenge(ctx, connection)))
        if last:
            ctx.must(isinstance(answer, bytes), f"expected the server's proof; seen {answer!r}")
            answer = await _answer_to(connection, last)
        ctx.must(answer in _REFUSED, f"expected {' or '.join(_REFUSED)}; seen {answer!r}")
    connection = await _login(ctx, _SCRAM, b"no message of SCRAM")
    answer = await _answer_to(connection)
    ctx.must(answer in _REFUSED, f"expected {' or '.join(_REFUSED)} for what is none of SCRAM; seen {answer!r}")

    def table(*fields: Any) -> bytes:
        return encode_table(dict(zip(("LOGIN", "PASSWORD"), fields, strict=False)))[4:]

    for mechanism, response, wanted in (
        ("PLAIN", _AS_ANNABEL, _TAKEN),
        ("PLAIN", b"annabel" + _AS_ANNABEL, _TAKEN),
        ("PLAIN", b"guest" + _AS_ANNABEL, _REFUSED),
        ("PLAIN", b"\0annabel\0gues", _REFUSED),
        ("PLAIN", b"\0annabel\0guest\0", _REFUSED),
        ("PLAIN", b"\0\0guest", _REFUSED),
        ("PLAIN", b"annabel\0guest", _REFUSED),
        ("PLAIN", b"\0anna\xffbel\0guest", _REFUSED),
        ("PLAIN", b"", _REFUSED),
        ("AMQPLAIN", table("annabel", "guest"), _TAKEN),
        ("AMQPLAIN", table(b"annabel", b"guest"), _TAKEN),
        ("AMQPLAIN", table("annabel", "gues"), _REFUSED),
        ("AMQPLAIN", table("annabel"), _REFUSED),
        ("AMQPLAIN", encode_table({"PASSWORD": "guest"})[4:], _REFUSED),
        ("AMQPLAIN", table("", "guest"), _REFUSED),
        ("AMQPLAIN", table("annabel", 7), _REFUSED),
        ("AMQPLAIN", table(b"anna\xff", "guest"), _REFUSED),
        ("AMQPLAIN", b"\x05LOGIN", _REFUSED),
        ("EXTERNAL", b"annabel", ()),
        ("SCRAM-SHA-1", b"n,,n=maria,r=abc", ()),
    ):
        answer = await _answer_to(await _login(ctx, mechanism, response))
        if wanted:
            text = f"{mechanism} with {response!r}: expected {' or '.join(wanted)}; seen {answer!r}"
            ctx.must(answer in wanted, text)
        else:
            ctx.allow(_VALIDITY, str(answer), what=mechanism)


# Rules


def _rule(topic: str, access: str, user: str = "annabel") -> dict[str, str]:
    return {"topic": topic, "access": access, "user": user}


_RULES = {
    "auth": {"users": [_GUEST, _ANNABEL]},
    "queues": {"tenants": []},
    "acl": {
        "default": "deny",
        "rules": [
            *[_rule(topic, "readwrite", "guest") for topic in ("#", "$queue/#", "$dlq/#", "$exchange/#")],
            _rule("$queue/shown", "read"),
            _rule("$queue/fed", "write"),
            _rule("$exchange/shown", "read"),
            _rule("$exchange/fed", "write"),
            _rule("$exchange/amq.topic", "read"),
            _rule("news/+/a", "write"),
        ],
    },
}


@amqp_case(
    "access/rules-hold-for-each-method",
    clauses=("sec.2.3.6.exceptions",),
    settings=_RULES,
    mutant="amqp-exchanges-are-everybodys",
    kills=("amqp-further-keys-are-unchecked", "amqp-reads-are-writes"),
)
async def rules(ctx: AmqpContext) -> None:
    """What access rules give no right to ends the channel with 403, and nothing comes of it; the rest is done.

    A user may read one queue and one exchange, write another of each, and publish to some topics: each method that
    reads or writes is asked for on all of them. A queue is written by declaring, binding, publishing and deleting, and
    read by consuming, getting and purging; an exchange is read by binding to it. Further keys of CC count.
    """
    owner = await ctx.channel(name="owner")
    for name in ("shown", "fed", "closed"):
        await owner.call("queue.declare", queue=name, durable=True)
        await owner.call("exchange.declare", exchange=name, type_="direct")
    client = await ctx.client(name="annabel", response=_AS_ANNABEL)
    reads, writes = {"shown"}, {"fed"}
    binds_exchanges = client.server_properties.get("capabilities", {}).get("exchange_exchange_bindings") is True
    for name in ("shown", "fed", "closed"):
        may_read, may_write = name in reads, name in writes
        for method, fields, allowed in (
            ("queue.declare", {"queue": name, "durable": True}, may_write),
            ("queue.declare", {"queue": name, "passive": True}, True),
            ("queue.bind", {"queue": name, "exchange": "shown", "routing_key": "k"}, may_write),
            ("queue.bind", {"queue": "fed", "exchange": name, "routing_key": "k"}, may_read),
            ("queue.unbind", {"queue": name, "exchange": "shown", "routing_key": "k"}, may_write),
            ("queue.unbind", {"queue": "fed", "exchange": name, "routing_key": "k"}, may_read),
            ("queue.purge", {"queue": name}, may_read),
            ("basic.consume", {"queue": name, "no_ack": True}, may_read),
            ("basic.get", {"queue": name, "no_ack": True}, may_read),
            ("exchange.declare", {"exchange": name, "type_": "direct"}, may_write),
            ("exchange.declare", {"exchange": name, "type_": "direct", "passive": True}, True),
            ("exchange.bind", {"destination": name, "source": "shown", "routing_key": "k"}, may_write),
            ("exchange.bind", {"destination": "fed", "source": name, "routing_key": "k"}, may_read),
            ("exchange.unbind", {"destination": name, "source": "shown", "routing_key": "k"}, may_write),
            ("exchange.unbind", {"destination": "fed", "source": name, "routing_key": "k"}, may_read),
        ):
            if method in ("exchange.bind", "exchange.unbind") and not binds_exchanges:
                continue
            channel = await client.channel()
            outcome = await channel.outcome(method, **fields)
            wanted = "ok" if allowed else _DENIED
            ctx.must(outcome == wanted, f"{method} with {fields}: expected {wanted}; seen {outcome}")
    await owner.bind("closed", "amq.topic", "#")
    for exchange, key, also, allowed in (
        ("", "fed", "", True),
        ("", "shown", "", False),
        ("", "closed", "", False),
        ("", "fed", "closed", False),
        ("", "nowhere", "", False),
        ("fed", "k", "", True),
        ("shown", "k", "", False),
        ("closed", "k", "", False),
        ("amq.topic", "news.x.a", "", True),
        ("amq.topic", "news.x.b", "", False),
        ("amq.topic", "news.x.a", "news.x.b", False),
        ("amq.fanout", "news.x.a", "", False),
    ):
        channel = await client.channel()
        headers = {"headers": {"CC": [also]}} if also else {}
        channel.publish(exchange, key, f"{exchange}:{key}:{also}".encode(), properties=headers)
        outcome = await channel.outcome_of()
        wanted = "ok" if allowed else _DENIED
        text = f"publishing to {exchange!r} by {key!r} {also!r}: expected {wanted}; seen {outcome}"
        ctx.must(outcome == wanted, text)
    taken = await owner.get_soon("fed")
    ctx.must(taken.body == b":fed:", f"expected what was published to the queue; seen {taken.body!r}")
    topical = await owner.get_soon("closed")
    ctx.must(topical.body == b"amq.topic:news.x.a:", f"expected what was published to the topic; seen {topical.body!r}")
    for queue in ("shown", "fed", "closed"):
        ctx.must(await owner.count(queue) == 0, f"expected nothing of what was refused in {queue}; seen messages")
    for name in ("shown", "fed", "closed"):
        for kind in ("queue", "exchange"):
            channel = await client.channel()
            outcome = await channel.outcome(f"{kind}.delete", **{kind: name})
            wanted = "ok" if name in writes else _DENIED
            ctx.must(outcome == wanted, f"{kind}.delete of {name}: expected {wanted}; seen {outcome}")


@amqp_case(
    "access/what-hooks-cannot-be-asked-is-denied",
    clauses=("sec.2.3.6.exceptions",),
    settings={
        "hooks": {
            "url": "http://127.0.0.1:9/",
            "allow_private": True,
            "fail": "deny",
            "topics": ["hooked/#", "$queue/hooked", "$exchange/hooked"],
        }
    },
    mutant="amqp-hooks-asked-about-first-keys",
    kills=("amqp-reads-pass-by-hooks", "amqp-last-answer-of-hooks-counts"),
    limit_s=8.0,
)
async def hooks(ctx: AmqpContext) -> None:
    """Publishes, consumers and gets that a hook decides about end the channel with 403 where it cannot be asked.

    By default it denies. To a queue, an exchange and a topic, by the first key or a further one; what is behind a
    publish on its channel waits for the answer, and is passed over then. What no hook is asked about goes on, in order.
    """
    owner = await ctx.channel(name="owner")
    for name in ("hooked", "free"):
        await owner.call("queue.declare", queue=name, durable=True)
        await owner.call("exchange.declare", exchange=name, type_="fanout")
    for name in ("hooked", "free"):
        await owner.bind("free", name)
    connection = await ctx.client(name="client")
    for exchange, key, also in (
        ("", "hooked", ""),
        ("", "free", "hooked"),
        ("", "hooked", "free"),
        ("hooked", "k", ""),
        ("amq.topic", "hooked.a", ""),
    ):
        channel = await connection.channel()
        headers = {"headers": {"CC": [also]}} if also else {}
        channel.publish(exchange, key, b"denied", properties=headers)
        channel.publish("", "free", b"behind it")
        outcome = await channel.outcome_of()
        text = f"publishing to {exchange!r} by {key!r} {also!r}: expected {_DENIED}; seen {outcome}"
        ctx.must(outcome == _DENIED, text)
    for method in ("basic.consume", "basic.get"):
        outcome = await (await connection.channel()).outcome(method, queue="hooked", no_ack=True)
        ctx.must(outcome == _DENIED, f"{method}: expected {_DENIED}; seen {outcome}")
    channel = await connection.channel()
    await channel.confirms()
    for number in range(20):
        channel.publish("free" if number % 2 else "", "free", b"%d" % number, properties={"message-id": f"{number}"})
    await channel.consume("free", no_ack=True)
    for number in range(20):
        event = await channel.delivery(b"%d" % number)
        ctx.keeps({"message-id": f"{number}"}, event.properties)
    confirmed = set[int]()
    while len(confirmed) < 20:
        confirmed |= ctx.note_confirm(channel, await channel.expect("basic.ack"))
    for queue in ("hooked", "free"):
        ctx.must(await owner.count(queue) == 0, f"expected nothing of what was denied in {queue}; seen messages")
