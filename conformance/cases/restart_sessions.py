"""Sessions over restarts: kept or ended, their expiry as it was said last, taken over, large; and wills with them."""

from __future__ import annotations

from functools import partial

from assay.conformance.case import CaseContext
from assay.conformance.cases.mqtt5.support import only_is_retained, pass_time, subscribe_at, subscribe_to_many
from assay.conformance.cases.restart_support import (
    V5,
    come_back,
    gone_for_good,
    lasting,
    publish_all,
    stay,
    survives,
    take,
)
from assay.conformance.connection import Connection
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import NO_PROPERTIES, Disconnect, Properties, Publish, Subscription, Will, describe

_SHORT_S = 1
_SURELY_OVER_S = 3.0
_DELAY_S = 2
_BETWEEN_TAKEOVERS_S = 1.5
_MANY_FILTERS = 300
_MANY_SESSIONS = 8


async def _again(ctx: CaseContext, before: Connection, *, name: str) -> Connection:
    """As :func:`come_back`, whether or not the session is there."""
    return await ctx.connect(client_id=before.client_id, clean=False, name=name, properties=lasting(ctx))


async def _expect_present(ctx: CaseContext, before: Connection, present: bool, *, name: str) -> Connection:
    client = await _again(ctx, before, name=name)
    if not present:
        client.expect_new_session()
    right = client.connack.session_present is present
    ctx.must(right, f"{client.name}: expected Session Present {int(present)}; seen {describe(client.connack)}")
    return client


async def _expect_gone(ctx: CaseContext, before: Connection, *, name: str) -> Connection:
    return await _expect_present(ctx, before, False, name=name)


@survives(
    "sessions-without-anything",
    in_311=("3.1.2-4", "3.2.2-2", "4.1.0-1"),
    in_5=("3.1.2-5", "3.2.2-3", "3.1.2-23"),
    mutant="restart-forgets-empty-sessions",
)
async def empty(ctx: CaseContext) -> None:
    """A lasting session outlives restarts, whether its client was connected or away, even if there is nothing in it.

    After each of two restarts CONNACK says Session Present 1.
    """
    connected, away = await stay(ctx, "connected"), await stay(ctx, "away")
    await away.disconnect()
    for number in range(2):
        await ctx.restart()
        connected = await come_back(ctx, connected, name=f"connected {number}")
        away = await come_back(ctx, away, name=f"away {number}")
        await away.disconnect()


@survives(
    "ended-sessions-leave-nothing",
    in_311=("3.1.2-6", "3.2.2-1"),
    in_5=("3.1.2-4", "3.2.2-2"),
    requires=("qos2",),
    mutant="restart-brings-filters-of-ended-sessions-back",
)
async def ended(ctx: CaseContext) -> None:
    """A clean start ends a session for good: nothing of it is in the next session of that client, after restarts too.

    A client has a subscription, a message that waits and a delivery in flight when, after a restart, it connects with a
    clean start, and then begins a lasting session. After two more restarts that one has nothing of the old one, and
    works.
    """
    topic, other = ctx.topic("old"), ctx.topic("qos2")
    client = await stay(ctx, "client")
    await subscribe_at(ctx, client, topic, qos=2)
    await client.disconnect()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"1", qos=2)
    await publisher.publish(topic, b"2", qos=1)
    await ctx.restart()
    client = await come_back(ctx, client)
    await client.expect_publish(topic, b"1", ack=False)
    clean = await ctx.connect(client_id=client.client_id, name="clean", clean=True)
    await clean.disconnect()
    client = await _expect_gone(ctx, client, name="anew")
    for number in range(2):
        await ctx.restart()
        client = await come_back(ctx, client, name=f"anew {number}")
        publisher = await ctx.connect(name=f"publisher {number}")
        await publisher.publish(topic, b"3", qos=1)
        await ctx.expect_no_message(publisher, client)
    watcher = await ctx.connect(name="watcher")
    await subscribe_at(ctx, watcher, other, qos=1)
    await client.publish(other, b"new", qos=2)
    await watcher.expect_publish(other, b"new")


@survives(
    "sessions-that-end-with-their-connection",
    in_311=("3.1.2-6", "3.2.2-1"),
    in_5=("4.1.0-2", "3.2.2-2"),
    requires=("qos1",),
    mutant="restart-keeps-sessions-without-expiry",
)
async def brief(ctx: CaseContext) -> None:
    """A session without expiry (3.1.1: Clean Session 1) is over when its broker was killed under the connection.

    Its client comes back without a clean start: no session is present, and nothing is subscribed.
    """
    topic = ctx.topic("brief")
    client = await ctx.connect(name="client", clean=True)
    await subscribe_at(ctx, client, topic, qos=1)
    await ctx.restart()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(topic, b"1", qos=1)
    client = await _expect_gone(ctx, client, name="client again")
    await publisher.publish(topic, b"2", qos=1)
    await ctx.expect_no_message(publisher, client)


@survives(
    "changed-expiry-of-sessions",
    in_5=("4.1.0-2", "3.1.2-23", "3.2.2-3"),
    mutant="restart-undoes-changed-session-expiry",
)
async def changed_expiry(ctx: CaseContext) -> None:
    """A session lasts as long as was said last, by CONNECT or DISCONNECT, also if the broker is killed afterwards.

    Sessions of 600 s that outlived a restart become ones of 1 s by DISCONNECT or by the next CONNECT, and others the
    other way round; one is ended by DISCONNECT with 0. The broker is killed, 3 s pass, and it is killed again: those of
    600 s are there.
    """
    made = {name: await stay(ctx, name, expiry_s=6_000) for name in ("cut", "cut later", "longer", "later", "ended")}
    await ctx.restart()
    for name, client in made.items():
        at_connect = {"longer": 6_000, "later": 600, "cut later": _SHORT_S}.get(name, 600)
        made[name] = await come_back(ctx, client, expiry_s=at_connect)
    for name, at_disconnect in (("cut", _SHORT_S), ("longer", 600), ("ended", 0)):
        properties = Properties(session_expiry_interval=at_disconnect)
        await made[name].disconnect(Disconnect(properties=properties))
    await ctx.restart()
    await _expect_gone(ctx, made.pop("ended"), name="ended")
    await pass_time(ctx, _SURELY_OVER_S)
    await ctx.restart()
    for name in ("longer", "later"):
        await _expect_present(ctx, made[name], True, name=name)
    for name in ("cut", "cut later"):
        await _expect_gone(ctx, made[name], name=name)


@survives(
    "intervals-go-on-over-restarts",
    in_5=("4.1.0-2", "3.1.2-23", "3.1.2-8"),
    requires=("qos1",),
    mutant="restart-begins-expiry-anew",
    kills=("restart-begins-will-delays-anew", "restart-begins-anew-for-the-connected"),
    near_miss="restart-counts-from-the-first-start",
    together=False,
    limit_s=20.0,
)
async def intervals(ctx: CaseContext) -> None:
    """The expiry of a session and the delay of a will count on from one start of the broker to the next.

    One client has left, another is connected when the broker is killed, a third has asked for a will with a delay as
    long as the others' expiry. Two thirds of that time pass, the broker is killed again, and two thirds pass once more:
    the first two have no session, one with a longer expiry has, and the will is there. Where the broker's clock can be
    moved the time is a minute, else three seconds.
    """
    interval_s = 60 if ctx.capabilities.get("clock", False) else 3
    topic = ctx.topic("will")
    watcher = await _watcher(ctx, topic)
    will = await stay(ctx, "will", will=_delayed(ctx, topic, b"late", interval_s))
    left, kept = await stay(ctx, "left", expiry_s=interval_s), await stay(ctx, "kept", expiry_s=100 * interval_s)
    connected = await stay(ctx, "connected", expiry_s=interval_s)
    granted_s = watcher.connack.properties.session_expiry_interval
    if granted_s is not None and granted_s < 2 * interval_s:
        ctx.unsupported(f"the broker lets no session last longer than {granted_s} s")
    await will.disconnect(Disconnect(reason_code=0x04))
    for client in (left, kept, watcher):
        await client.disconnect()
    for _ in range(2):
        await ctx.restart()
        await (ctx.advance if interval_s == 60 else partial(pass_time, ctx))(interval_s * 2 / 3)
    await come_back(ctx, kept)
    await _expect_gone(ctx, left, name="left")
    await _expect_gone(ctx, connected, name="connected")
    watcher = await come_back(ctx, watcher)
    await watcher.expect_publish(topic, b"late")


@survives(
    "sessions-that-were-taken-over",
    in_311=("3.1.2-4", "3.1.4-2", "4.1.0-1"),
    in_5=("3.1.2-5", "3.1.4-3", "3.1.2-23"),
    requires=("qos1",),
    mutant="takeover-is-forgotten-by-the-restart",
    near_miss="taken-over-once-a-second",
)
async def taken_over(ctx: CaseContext) -> None:
    """A session that another connection took over is one session after the restart, with what both have made.

    The first connection subscribes, the second takes it over and subscribes to something else and leaves the first
    filter; the third takes over once more, a while later: a broker may refuse who does so again and again (5.4.9 in
    5.0, 5.4.8 in 3.1.1). After two restarts the session has the second filter and not the first.
    """
    left, kept = ctx.topic("left"), ctx.topic("kept")
    client = await stay(ctx, "first")
    await subscribe_at(ctx, client, left, qos=1)
    client = await come_back(ctx, client, name="second")
    await subscribe_at(ctx, client, kept, qos=1)
    await client.unsubscribe(left)
    await pass_time(ctx, _BETWEEN_TAKEOVERS_S)
    client = await come_back(ctx, client, name="third")
    for number in range(2):
        await ctx.restart()
        publisher = await ctx.connect(name=f"publisher {number}")
        await publisher.publish(left, b"left", qos=1)
        await publisher.publish(kept, b"%d" % number, qos=1)
        client = await come_back(ctx, client, name=f"after restart {number + 1}")
        await take(ctx, client, {b"%d" % number}, "what its filter matches")


@survives(
    "many-filters-and-many-sessions",
    in_311=("3.1.2-4", "4.1.0-1"),
    in_5=("3.1.2-5", "3.1.2-23"),
    requires=("qos1",),
    mutant="restart-reads-few-subscriptions",
    near_miss="few-subscriptions-for-each-client",
    limit_s=20.0,
)
async def many(ctx: CaseContext) -> None:
    """Three hundred filters of one client, and one filter each of eight others, are there after the restarts.

    Of the three hundred, or as many as the broker grants, every third is removed between two restarts. A message for
    each topic then comes to whoever subscribes to it.
    """
    filters = [ctx.topic(f"many/{number}") for number in range(_MANY_FILTERS)]
    collector = await stay(ctx, "collector")
    granted = await subscribe_to_many(ctx, collector, filters, qos=1)
    others = [await stay(ctx, f"other {number}") for number in range(_MANY_SESSIONS)]
    for number, other in enumerate(others):
        await subscribe_at(ctx, other, filters[number], qos=1)
    await ctx.restart()
    collector = await come_back(ctx, collector)
    await collector.unsubscribe(*granted[::3])
    await ctx.restart()
    publisher = await ctx.connect(name="publisher")
    messages = (Publish(topic=topic, payload=b"%d" % number) for number, topic in enumerate(filters))
    await publish_all(ctx, publisher, messages)
    left = {b"%d" % filters.index(name) for number, name in enumerate(granted) if number % 3}
    await take(ctx, await come_back(ctx, collector), left, "the filters that are left")
    for number, other in enumerate(others):
        await take(ctx, await come_back(ctx, other), {b"%d" % number}, "its own filter")


@survives(
    "retain-handling-1-knows-old-subscriptions",
    in_5=("3.3.1-10", "3.1.2-23"),
    requires=("qos1", "retain"),
    mutant="restart-brings-unsubscribed-filters-back",
)
async def handling_1(ctx: CaseContext) -> None:
    """With Retain Handling 1, subscribing again after a restart brings retained messages only if nothing was left.

    Of two subscriptions that outlived a restart one is removed. After the next restart both are made again with Retain
    Handling 1: the retained message of the removed one comes, the other does not.
    """
    kept, removed = ctx.topic("kept"), ctx.topic("removed")
    client = await stay(ctx, "client")
    for topic in (kept, removed):
        await client.subscribe(Subscription(filter=topic, qos=1, retain_handling=2))
    await ctx.restart()
    client = await come_back(ctx, client)
    await client.unsubscribe(removed)
    await ctx.restart()
    publisher = await ctx.connect(name="publisher")
    await publisher.publish(removed, b"removed", qos=1, retain=True)
    client = await come_back(ctx, client)
    await publisher.publish(kept, b"kept", qos=1, retain=True)
    await client.expect_publish(kept, b"kept", retain=False)
    for topic in (kept, removed):
        await client.subscribe(Subscription(filter=topic, qos=1, retain_handling=1))
    await client.expect_publish(removed, b"removed", retain=True)
    await client.expect_nothing()


# -- wills -----------------------------------------------------------------------------------------------------------


async def _watcher(ctx: CaseContext, topic: str) -> Connection:
    """A client for which wills wait while the broker is down, and between its connections."""
    watcher = await stay(ctx, "watcher")
    await subscribe_at(ctx, watcher, topic, qos=1)
    return watcher


def _delayed(ctx: CaseContext, topic: str, payload: bytes, delay_s: int) -> Will:
    properties = Properties(will_delay_interval=delay_s) if ctx.case.version >= V5 else NO_PROPERTIES
    return Will(topic=topic, payload=payload, qos=1, properties=properties)


@survives(
    "a-will-is-sent-once",
    in_311=("3.1.2-8", "3.1.2-10"),
    in_5=("3.1.2-8", "3.1.2-10"),
    requires=("qos1",),
    mutant="restart-sends-wills-again",
)
async def will_once(ctx: CaseContext) -> None:
    """A will that was published is not published again, however often the broker is killed.

    A client with a lasting session is cut off and its will arrives. Its client stays away over two restarts and then
    comes back and leaves: no second will.
    """
    topic = ctx.topic("will")
    watcher = await _watcher(ctx, topic)
    client = await stay(ctx, "client", will=_delayed(ctx, topic, b"gone", 0))
    client.abort()
    await watcher.expect_publish(topic, b"gone")
    for _ in range(2):
        await watcher.barrier()
        await ctx.restart()
        watcher = await come_back(ctx, watcher)
        publisher = await ctx.connect(name="publisher")
        await ctx.expect_no_message(publisher, watcher)
    client = await come_back(ctx, client)
    await client.disconnect()
    await ctx.expect_no_message(publisher, watcher)


@survives(
    "a-delayed-will-outlives-restarts",
    in_5=("3.1.2-7", "3.1.2-8", "3.1.2-10", "3.1.2-15"),
    requires=("qos1",),
    mutant="restart-forgets-delayed-wills",
    kills=("restart-forgets-that-wills-are-retained",),
    limit_s=15.0,
)
async def delayed_will(ctx: CaseContext) -> None:
    """A will that waits for its delay when the broker is killed is published later, once, as it was deposited.

    The delay is 2 s; the broker is killed right after the client was cut off. The will comes with its properties, and
    is retained where the broker retains messages. Then the broker is killed again: it does not come twice.
    """
    topic = ctx.topic("will")
    watcher = await _watcher(ctx, topic)
    properties = Properties(will_delay_interval=_DELAY_S, content_type="a/b", user_property=(("k", "v"),))
    retain = bool(ctx.capabilities["retain"])
    will = Will(topic=topic, payload=b"late", qos=1, retain=retain, properties=properties)
    client = await stay(ctx, "client", will=will)
    await client.disconnect(Disconnect(reason_code=0x04))
    await ctx.restart()
    watcher = await come_back(ctx, watcher)
    message = await watcher.expect_publish(topic, b"late", retain=False)
    seen = (message.properties.content_type, message.properties.user_property)
    ctx.must(seen == ("a/b", (("k", "v"),)), f"watcher: expected the properties of the will; seen {describe(message)}")
    await watcher.barrier()
    if retain:
        await only_is_retained(ctx, await ctx.connect(name="control"), [topic], topic, b"late")
    await ctx.restart()
    watcher = await come_back(ctx, watcher)
    publisher = await ctx.connect(name="publisher")
    await ctx.expect_no_message(publisher, watcher)


@survives(
    "withdrawn-wills-stay-away",
    in_311=("3.1.2-10", "3.14.4-3"),
    in_5=("3.1.2-10", "3.14.4-3", "3.1.3-9"),
    requires=("qos1",),
    mutant="restart-brings-withdrawn-wills-back",
    limit_s=15.0,
)
async def withdrawn(ctx: CaseContext) -> None:
    """A will that a DISCONNECT or a new connection has deleted is not published, though the broker is killed.

    Two clients have wills. One leaves by DISCONNECT; the other one is cut off and comes back without a will. Over two
    more restarts no will is published. In 5.0 both were found by a restart, and the wills have a delay of 3 s, so that
    none was due before their clients were back; in 3.1.1 the will of the one that was cut off is published before.
    """
    topic = ctx.topic("will")
    watcher = await _watcher(ctx, topic)
    delay_s = 3 * ctx.stretch if ctx.case.version >= V5 else 0
    watch = Stopwatch()
    clients = [await stay(ctx, f"client {n}", will=_delayed(ctx, topic, b"%d" % n, delay_s)) for n in range(2)]
    if delay_s:
        await ctx.restart(watch.begin)
        clients[0] = await come_back(ctx, clients[0], will=_delayed(ctx, topic, b"0", delay_s))
        watcher = await come_back(ctx, watcher)
    else:
        clients[1].abort()
        await take(ctx, watcher, {b"1"}, "the will of a client that was cut off")
    clients[1] = await come_back(ctx, clients[1])
    if delay_s:
        watch.demand_less_than(delay_s - 1)  # a broker may count whole seconds
    await clients[0].disconnect()
    await clients[1].barrier()
    await ctx.restart()
    await pass_time(ctx, delay_s + 1.0)
    for _ in range(2):
        watcher = await come_back(ctx, watcher)
        publisher = await ctx.connect(name="publisher")
        await ctx.expect_no_message(publisher, watcher)
        await watcher.barrier()
        await ctx.restart()


@survives(
    "the-will-of-who-was-connected",
    in_311=("3.1.2-8",),
    in_5=("3.1.2-7", "3.1.2-8"),
    requires=("qos1",),
    mutant="restart-forgets-wills-of-the-connected",
    level="SHOULD",
    limit_s=15.0,
)
async def connected_will(ctx: CaseContext) -> None:
    """Who was connected when the broker was killed has lost its connection: its will is published after the start.

    The standards let a server that fails publish wills later. One that never does is reported, one that publishes a
    will at the next start, too, fails: it is published once.
    """
    topic = ctx.topic("will")
    watcher = await _watcher(ctx, topic)
    await stay(ctx, "client", will=_delayed(ctx, topic, b"was connected", 0))
    await ctx.restart()
    watcher = await come_back(ctx, watcher)
    found = False
    for number in range(4):
        await pass_time(ctx, 0.3 * number)
        for packet in await watcher.barrier():
            if found or not isinstance(packet, Publish):
                ctx.fail(f"watcher: expected the will once; seen {describe(packet)}")
            found = True
            await watcher.acknowledge(packet)
    ctx.should(found, "watcher: expected the will of the client that was connected")
    await gone_for_good(ctx, watcher)
    watcher = await come_back(ctx, watcher)
    publisher = await ctx.connect(name="publisher again")
    if found:
        await ctx.expect_no_message(publisher, watcher)
