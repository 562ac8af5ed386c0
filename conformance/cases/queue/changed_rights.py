"""Rights that change while clients are connected or away: what was granted holds no longer than its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from assay.conformance.case import MARKER_PREFIX, CaseContext, case
from assay.conformance.cases.queue.access import GUEST
from assay.conformance.cases.queue.support import join, publish_with
from assay.conformance.connection import FIRST_FAILURE_CODE, Connection
from assay.conformance.targets import TargetStartError
from assay.conformance.wire import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Disconnect,
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
)

_REFUSED, _MOVED = 0x87, 0x98
_STAY, _SHUT = "stay", "shut"
_OTHER = "other"
"""A client that may read what others may not any more."""
_LASTING = Properties(session_expiry_interval=86_400)
_DELAY_S = 60
_OWN = ({"topic": f"{MARKER_PREFIX}#", "access": "readwrite"}, {"topic": "$admin/#", "access": "readwrite"})
_BEFORE = (*_OWN, {"topic": "#", "access": "readwrite"}, {"topic": "$queue/#", "access": "readwrite"})
_AFTER = (
    *_OWN,
    {"topic": "stay/#", "access": "readwrite"},
    {"topic": "shut/#", "access": "write"},
    {"topic": "mute/#", "access": "read"},
    {"topic": "both/#", "access": "readwrite"},
    {"topic": "both/secret", "access": "deny"},
    {"topic": "shut/#", "access": "read", "client": _OTHER},
    {"topic": "$queue/shut/#", "access": "write"},
    {"topic": "$queue/shut/#", "access": "read", "client": _OTHER},
)
_LAST = (*_OWN, {"topic": "#", "access": "read"}, {"topic": "stay/#", "access": "write"}, _BEFORE[-1])
"""No subscription ends by these."""
_FILTERS = (
    ("both/#", "both/open", False),
    ("both/open", "both/open", True),
    ("+/all", "stay/all", False),
    ("stay/deep/+", "stay/deep/one", True),
    ("$share/g/shut/part", "shut/part", False),
    ("$share/g/stay/part", "stay/part", True),
)
"""A filter, a topic below it, and whether the filter is still granted under the later rules."""
_STEPS = (("waits", 1), ("unacknowledged", 1), ("without PUBREC", 2), ("released", 2))


async def _change(ctx: CaseContext, settings: Mapping[str, Any], *, reload: bool = True) -> None:
    """As the broker's administrator would: it reads its configuration again, or is killed and starts with it."""
    if ctx.change is None:
        ctx.unsupported("the broker is not private to this case")
    try:
        await ctx.change(settings, reload)
    except TargetStartError as error:
        ctx.fail(str(error))
    if not reload:
        await ctx.restart()


def _rules(*rules: Mapping[str, str]) -> dict[str, Any]:
    return {"acl": {"default": "deny", "rules": list(rules)}}


class _Session(NamedTuple):
    """What a client has left, or has while it is connected."""

    connection: Connection
    topic: str
    owed: tuple[bytes, ...] = ()
    """What it gets when it is back."""
    may_read: bool = True


async def _lasting(ctx: CaseContext, version: int, name: str) -> Connection:
    properties = _LASTING if version == 5 else NO_PROPERTIES
    return await ctx.connect(version=version, name=name, client_id=name, clean=False, properties=properties)


async def _back(ctx: CaseContext, before: Connection) -> Connection:
    found = await _lasting(ctx, before.version, before.client_id)
    ctx.must(found.connack.session_present, f"{before.name}: expected its session to be there; seen none")
    return found


async def _left(ctx: CaseContext, writer: Connection, version: int, where: str) -> list[_Session]:
    """Clients are gone that have left a message at each step, or messages that wait."""
    found: list[_Session] = []
    for step, qos in _STEPS:
        client = await _lasting(ctx, version, f"{where} {step} {version}")
        topic, waits = f"{where}/{step}/{version}", step == "waits"
        await client.subscribe(Subscription(filter=topic, qos=qos))
        if waits:
            await client.disconnect()
        payloads = (b"1", b"2") if waits else (b"1",)
        for payload in payloads:
            await writer.publish(topic, payload, qos=qos)
        if not waits:
            packet = await client.expect_publish(topic, ack=False)
            if step == "released":
                client.send(Pubrec(packet_id=packet.packet_id))
                await client.expect(Pubrel)
            client.abort()
        owed = () if where == _SHUT or step == "released" else payloads
        found.append(_Session(client, topic, owed, where != _SHUT))
    return found


async def _gets(ctx: CaseContext, writer: Connection, client: Connection, wanted: tuple[bytes, ...]) -> None:
    came = await ctx.messages_before_marker(writer, client, at_least=len(wanted))
    seen = tuple(packet.payload for packet in came if isinstance(packet, Publish))
    ctx.must(seen == wanted, f"{client.name}: expected {wanted}; seen {seen}")


async def _code_of(client: Connection, topic: str, qos: int) -> int:
    packet_id = client.next_packet_id()
    client.send(Publish(topic=topic, payload=b"asked", qos=qos, packet_id=packet_id))
    if qos == 1:
        return (await client.expect(Puback)).reason_code
    code = (await client.expect(Pubrec)).reason_code
    if code < FIRST_FAILURE_CODE:
        client.send(Pubrel(packet_id=packet_id))
        await client.expect(Pubcomp)
    return code


async def _suback_code(client: Connection, topic_filter: str) -> int:
    entries = (Subscription(filter=topic_filter, qos=1),)
    client.send(Subscribe(packet_id=client.next_packet_id(), subscriptions=entries))
    return (await client.expect(Suback, skipping=(Publish,))).reason_codes[0]


async def _mortal(ctx: CaseContext, topic: str) -> None:
    """A client that is gone, and whose will is due later."""
    later = Properties(will_delay_interval=_DELAY_S)
    will = Will(topic=topic, payload=b"gone", qos=1, properties=later)
    client = await ctx.connect(version=5, name=f"mortal {topic}", clean=False, properties=_LASTING, will=will)
    client.abort()


async def _may_publish(ctx: CaseContext, watcher: Connection, writers: list[Connection]) -> None:
    """Under the later rules; the watcher reads what anybody publishes."""
    for writer in writers:
        for qos in (1, 2) if writer.version == 5 else ():
            for topic, code in (("mute/t", _REFUSED), ("stay/t", 0), ("shut/t", 0), ("both/secret", _REFUSED)):
                seen = await _code_of(writer, topic, qos)
                right = seen == code if code else seen < FIRST_FAILURE_CODE
                ctx.must(right, f"{writer.name}: expected {code:#x} for {topic} at QoS {qos}; seen {seen:#x}")
        writer.send(Publish(topic="mute/t", payload=b"not asked"))
        await writer.publish("stay/t", b"end", qos=1)
        if writer.version != 5:
            writer.send(Publish(topic="mute/t", payload=b"refused", qos=1, packet_id=writer.next_packet_id()))
            await writer.expect_close()
    last = await ctx.connect(version=5, name="last writer")
    came = await ctx.messages_before_marker(last, watcher, at_least=len(writers))
    topics = [packet.topic for packet in came if isinstance(packet, Publish)]
    ctx.must("mute/t" not in topics, f"watcher: expected nothing of mute/t; seen {topics}")


async def _shared(ctx: CaseContext, writer: Connection) -> Connection:
    """A member of a share is gone with messages that another may get, who is connected and returned."""
    share = Subscription(filter="$share/s/shut/shared", qos=1)
    away = await _lasting(ctx, 5, "away member")
    await away.subscribe(share)
    await writer.publish("shut/shared", b"1", qos=1)
    await away.expect_publish("shut/shared", b"1", ack=False)
    away.abort()
    await writer.publish("shut/shared", b"2", qos=1)
    other = await _lasting(ctx, 5, _OTHER)
    await other.subscribe(share)
    return other


async def _rights_change(ctx: CaseContext, *, reload: bool) -> None:
    watcher = await _lasting(ctx, 5, "watcher")
    await watcher.subscribe("mute/#", "stay/t", "stay/will", qos=1)
    writers = [await ctx.connect(version=version, name=f"writer {version}") for version in (5, 4)]
    for writing in writers:
        for qos in (0, 1, 2):
            for topic in ("mute/t", "stay/t"):
                await writing.publish(topic, b"before", qos=qos)
        await ctx.messages_before_marker(writing, watcher, at_least=4)
    writer = writers[0]
    await writer.publish("shut/kept", b"retained", qos=1, retain=True)
    for topic in ("mute/will", "stay/will"):
        await _mortal(ctx, topic)
    left = [each for version in (5, 4) for where in (_STAY, _SHUT) for each in await _left(ctx, writer, version, where)]
    here: list[_Session] = []
    for version in (5, 4):
        for number, (topic_filter, topic, stays) in enumerate(_FILTERS):
            if version == 5 or not topic_filter.startswith("$share/"):
                client = await _lasting(ctx, version, f"member {number} {version}")
                await client.subscribe(Subscription(filter=topic_filter, qos=1))
                here.append(_Session(client, topic, may_read=stays))
    begun: list[tuple[Connection, Publish]] = []
    for version, qos in ((5, 1), (4, 1), (5, 2), (4, 2)):
        client = await ctx.connect(version=version, name=f"slow {version} at QoS {qos}")
        await client.subscribe(Subscription(filter=f"shut/slow/{version}/{qos}", qos=qos))
        await writer.publish(f"shut/slow/{version}/{qos}", b"begun", qos=qos)
        begun.append((client, await client.expect_publish(payload=b"begun", ack=False)))
    other = await _shared(ctx, writer)
    worker = await ctx.connect(version=5, name="worker")
    await join(worker, "shut")
    await publish_with(writer, "shut", b"job")
    await worker.expect_publish("$queue/shut", b"job", ack=False)
    await _change(ctx, _rules(*_AFTER), reload=reload)
    if not reload:
        watcher, other = await _back(ctx, watcher), await _back(ctx, other)
        writers = [await ctx.connect(version=version, name=f"new writer {version}") for version in (5, 4)]
        here = [each._replace(connection=await _back(ctx, each.connection)) for each in here]
    else:
        for client, packet in begun:
            if packet.qos == 1:
                client.send(Puback(packet_id=packet.packet_id))
            else:
                client.send(Pubrec(packet_id=packet.packet_id))
                with ctx.own_point():
                    code = (await client.expect(Pubrel)).reason_code
                ctx.must(code == 0, f"{client.name}: expected a PUBREL of what was sent; seen {code:#x}")
                client.send(Pubcomp(packet_id=packet.packet_id))
            await client.barrier()
        ended = await worker.expect_publish("$queue/shut/$ended")
        ctx.must(b'"not_allowed"' in ended.payload, f"worker: expected the event not_allowed; seen {ended.payload!r}")
    writer = await ctx.connect(version=5, name="writer of the rest")
    await _gets(ctx, writer, other, (b"1", b"2"))
    await join(other, "shut")
    await other.expect_publish("$queue/shut", b"job")
    for each in here:
        await writer.publish(each.topic, each.connection.name.encode(), qos=1)
    for each in here:
        named = [one.connection.name.encode() for one in here if one.topic == each.topic]
        if "part" in each.topic:
            named = [each.connection.name.encode()]  # of a share it is the only member
        await _gets(ctx, writer, each.connection, tuple(named) if each.may_read else ())
    for each in left:
        client = await _back(ctx, each.connection)
        if "released" in client.client_id:
            with ctx.own_point():
                client.send(Pubcomp(packet_id=(await client.expect(Pubrel)).packet_id))
        await _gets(ctx, writer, client, each.owed)
        await writer.publish(each.topic, b"new", qos=1)
        await _gets(ctx, writer, client, (b"new",) if each.may_read else ())
    await _may_publish(ctx, watcher, writers)
    await ctx.advance(_DELAY_S + 1)
    await watcher.expect_publish("stay/will")
    await ctx.expect_no_message(writer, watcher)
    code = await _suback_code(watcher, "shut/kept")
    ctx.must(code == _REFUSED, f"watcher: expected a subscription to shut/kept to be refused; seen {code:#x}")
    await _change(ctx, _rules(*_BEFORE))
    for each in here:
        if not each.may_read:
            await writer.publish(each.topic, b"allowed again", qos=1)
            await _gets(ctx, writer, each.connection, ())
    code = await _suback_code(watcher, "shut/kept")
    ctx.must(code < FIRST_FAILURE_CODE, f"watcher: expected shut/kept to be granted again; seen {code:#x}")
    await watcher.expect_publish("shut/kept", b"retained")
    for last in (False, True):
        writer.send(*[Publish(topic=topic, payload=b"last") for topic in ("mute/t", "mute/t", "stay/t", "stay/t")])
        came = await ctx.messages_before_marker(writer, watcher, at_least=2 if last else 4)
        seen = {packet.topic for packet in came if isinstance(packet, Publish)}
        wanted = {"stay/t"} if last else {"mute/t", "stay/t"}
        ctx.must(seen == wanted, f"watcher: expected messages of {wanted}; seen {seen}")
        await _change(ctx, _rules(*_LAST))


@case(
    "queue/access/rights-that-change",
    clauses=("Q-ACCESS-08", "Q-ACCESS-09", "Q-ACCESS-10"),
    requires=("queues", "clock", "mqtt5", "mqtt311"),
    mutant="access-changed-rules-spare-sessions-away",
    kills=(
        "access-changed-rules-spare-messages",
        "access-changed-rules-forget-what-is-released",
        "access-changed-rules-forget-what-was-sent",
        "access-changed-rules-drop-shares",
        "access-changed-rules-spare-wills",
        "access-plans-outlive-rules",
        "access-grants-outlive-rules",
    ),
    settings=_rules(*_BEFORE),
    limit_s=20.0,
)
async def rights_change(ctx: CaseContext) -> None:
    """Once the broker reads other access rules, nothing goes on that those would not grant, and all else does.

    Clients of both versions have subscriptions, some as wide as a denial reaches, and deliveries at each step; some of
    them are gone, one is a member of a share, one consumes a queue, and wills are due. The broker reads rules that
    close some of the topics. Whoever is connected or comes back gets what it still may read, and nothing else; what
    was sent is acknowledged as ever; publishes and wills are judged anew. Then the first rules are back, and bring
    back no subscription.
    """
    await _rights_change(ctx, reload=True)


@case(
    "queue/access/rights-that-a-start-changes",
    clauses=("Q-ACCESS-08", "Q-ACCESS-09", "Q-ACCESS-10"),
    requires=("queues", "clock", "restart", "persistence", "mqtt5", "mqtt311"),
    mutant="access-rules-of-a-start-spare-sessions",
    kills=("access-changed-rules-spare-messages", "access-changed-rules-spare-wills"),
    settings=_rules(*_BEFORE),
    limit_s=20.0,
)
async def rights_change_by_a_start(ctx: CaseContext) -> None:
    """A broker that starts with other access rules holds what its last life has left against them.

    As in rights-that-change, but the broker is killed, and starts with the later rules.
    """
    await _rights_change(ctx, reload=False)


_HASHES = {
    "guest": "0f5f1503658de6e051adfc1b109b14f4592fea24e86baedc7e344b71ddf3bde5",
    "new": "c0abf2608ae1decaf4c4c7d275f892b854fbc097df41bfe10c7fb96abb277473",
}
"""Passwords as stored, cheap to check."""
_SCRAM = (
    "4096$AAECAwQFBgcICQoLDA0ODw==$DSORcG4dNUxAHTEo5BL20ymSoLgt8C8jLZ09S+VUVlM=$"
    "9hLrfnf7zvCtDB9drkVXkMgUsd4vpHfg5YQJDrbaZ30="
)


def _who(users: Mapping[str, str], *, anonymous: bool = True, **tenants: list[str]) -> dict[str, Any]:
    """User names with their passwords, and client ids of tenants."""
    start = "scrypt$16$8$1$636f6e666f726d616e63652d73616c74$"
    logins = [{"username": name, "password_hash": start + _HASHES[password]} for name, password in users.items()]
    belongs = [{"name": name, "clients": clients} for name, clients in tenants.items()]
    scram = {"username": "scrammed", "scram_sha_256": _SCRAM}
    return {"auth": {"anonymous": anonymous, "users": [*logins, scram]}, "queues": {"tenants": belongs}}


async def _is_sent_away(ctx: CaseContext, client: Connection, code: int) -> None:
    seen = await client.expect_close()
    codes = [packet.reason_code for packet in seen if isinstance(packet, Disconnect)]
    wanted = [code] if client.version == 5 else []
    ctx.must(codes == wanted, f"{client.name}: expected DISCONNECT {code:#x} before the end; seen {codes}")


async def _with_password(ctx: CaseContext, version: int, user: str, password: str) -> int:
    """The code of the CONNACK."""
    client = await ctx.open(version=version, name=f"{user} with {password}, {version}")
    properties = _LASTING if version == 5 else NO_PROPERTIES
    packet = ctx.connect_packet(
        version=version,
        client_id=f"{user}-{version}",
        clean=False,
        username=user,
        password=password.encode(),
        properties=properties,
    )
    client.send(packet)
    answer = await client.expect(Connack)
    if not answer.reason_code:
        ctx.must(answer.session_present, f"{client.name}: expected its session to be there; seen {describe(answer)}")
    client.close()
    return answer.reason_code


async def _begins_to_log_in(ctx: CaseContext) -> Connection:
    """A client is half way through its authentication."""
    client = await ctx.open(version=5, name="logging in")
    scram = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=scrammed,r=abcdefgh")
    client.send(ctx.connect_packet(version=5, username=None, password=None, properties=scram))
    await client.expect(Auth)
    return client


@case(
    "queue/access/users-and-tenants-that-change",
    clauses=("Q-ACCESS-11", "Q-ACCESS-12"),
    requires=("queues", "mqtt5", "mqtt311"),
    mutant="access-who-is-gone-stays",
    kills=(
        "access-logins-outlive-passwords",
        "access-logins-under-way-outlive-users",
        "access-tenants-keep-whom-they-lost",
    ),
    settings=_who({GUEST: "guest", "gone": "guest", "changed": "guest"}, acme=["acme-*"], bee=["bee-*"]),
    limit_s=20.0,
)
async def users_and_tenants_change(ctx: CaseContext) -> None:
    """Who could not be connected any more is sent away when users and tenants change, and nobody else is.

    Clients of both versions are connected as users of whom one is taken out, one has another password and one stays,
    without a user, and in tenants; one is logging in. Later anonymous clients may not be there any more. Wills of
    those who are sent away come; who moves to another tenant loses its session, and who stays in one keeps it.
    """
    watcher = await ctx.connect(version=5, name="watcher", username=GUEST, password=b"guest")
    await watcher.subscribe("wills/#", qos=1)
    clients: dict[tuple[str, int], Connection] = {}
    for version in (5, 4):
        properties = _LASTING if version == 5 else NO_PROPERTIES
        for user in (GUEST, "gone", "changed"):
            clients[user, version] = await ctx.connect(
                version=version,
                name=f"{user} {version}",
                client_id=f"{user}-{version}",
                clean=False,
                username=user,
                password=b"guest",
                properties=properties,
                will=Will(topic=f"wills/{user}/{version}", payload=b"gone", qos=1),
            )
        clients["anonymous", version] = await ctx.connect(
            version=version,
            name=f"anonymous {version}",
            will=Will(topic=f"wills/anonymous/{version}", payload=b"gone", qos=1),
        )
        for name in ("acme-here", "acme-away", "bee-here", "free-here"):
            clients[name, version] = await _lasting(ctx, version, f"{name}-{version}")
        await clients["acme-away", version].disconnect()
    begun = await _begins_to_log_in(ctx)
    await _change(ctx, _who({GUEST: "guest", "changed": "new"}, bee=["bee-*", "acme-*"], cat=["free-*"]))
    for version in (5, 4):
        for name in ("gone", "changed"):
            await _is_sent_away(ctx, clients[name, version], _REFUSED)
        for name in ("acme-here", "free-here"):
            await _is_sent_away(ctx, clients[name, version], _MOVED)
        for name in (GUEST, "anonymous", "bee-here"):
            await clients[name, version].barrier()
    code = await begun.expect_refusal()
    ctx.must(code is not None, f"{begun.name}: expected a CONNACK that says to begin anew; the connection just ended")
    await _wills_come(ctx, clients[GUEST, 5], watcher, ("gone", "changed"))
    for version, refused in ((5, 0x86), (4, 4)):
        for user, password, code in (
            ("gone", "guest", refused),
            ("changed", "guest", refused),
            ("changed", "new", 0),
        ):
            seen = await _with_password(ctx, version, user, password)
            ctx.must(
                seen == code, f"{user} with {password}: expected CONNACK {code:#x} in version {version}; seen {seen:#x}"
            )
        for name in ("acme-here", "acme-away", "free-here"):
            client = await _lasting(ctx, version, f"{name}-{version}")
            ctx.must(not client.connack.session_present, f"{client.name}: expected no session; seen one")
            clients[name, version] = client
    await _change(
        ctx, _who({GUEST: "guest", "changed": "new"}, anonymous=False, bee=["bee-*", "acme-*"], cat=["free-*"])
    )
    for version in (5, 4):
        for name in ("anonymous", "acme-here", "acme-away", "free-here", "bee-here"):
            await _is_sent_away(ctx, clients[name, version], _REFUSED)
        await clients[GUEST, version].barrier()
    await _wills_come(ctx, clients[GUEST, 5], watcher, ("anonymous",))


async def _wills_come(ctx: CaseContext, writer: Connection, watcher: Connection, names: tuple[str, ...]) -> None:
    wanted = sorted(f"wills/{name}/{version}" for name in names for version in (4, 5))
    came = await ctx.messages_before_marker(writer, watcher, at_least=len(wanted))
    seen = sorted(packet.topic for packet in came if isinstance(packet, Publish))
    ctx.must(seen == wanted, f"watcher: expected the wills {wanted}; seen {seen}")
