"""When a will is published: its delay, the session's expiry and the end of the connection together (3.1.2.5, 3.1.3.2).

Each case walks a table at the same time, one client a row, and names the rows that went wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

import msgspec

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import (
    LASTING,
    SESSION_TAKEN_OVER,
    delivered,
    only_is_retained,
    pass_time,
    qos_levels,
)
from assay.conformance.connection import Connection
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import Disconnect, Packet, Properties, Puback, Publish, Will, describe

_WITH_WILL = 0x04
_DELAY_S = 30
_EXPIRY_S = 60


class End(Enum):
    """How the connection of the client with the will ends, and what its client does next."""

    RESET = "reset"
    WITH_WILL = "DISCONNECT 0x04"
    WITH_WILL_AND_SESSION = "DISCONNECT 0x04 with session expiry 0"
    NORMAL = "DISCONNECT 0x00"
    TAKEOVER = "takeover with Clean Start 0"
    CLEAN_TAKEOVER = "takeover with Clean Start 1"
    RETURN = "reset, and back with Clean Start 0"
    CLEAN_RETURN = "reset, and back with Clean Start 1"


class Expected(Enum):
    """What must have become of the will when the case looks."""

    PUBLISHED = "published"
    WITHHELD = "not published (yet)"
    PREFERABLY_PUBLISHED = "published, if the rule is read so"
    """The rule excepts a new connection within the delay; only comments in section 3.1.4 say that it is published."""
    ANY = "whatever"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One client."""

    end: End
    delay_s: int = 0
    expiry_s: int = 0
    expected: Expected

    @property
    def name(self) -> str:
        return f"{self.end.value}, will delay {self.delay_s} s, session expiry {self.expiry_s} s"


def _row(end: End, delay_s: int, expiry_s: int, expected: Expected) -> Row:
    return Row(end=end, delay_s=delay_s, expiry_s=expiry_s, expected=expected)


_E = Expected
_ENDS = (
    # Those that wait come first, so that the broker has dealt with them when the others' wills have arrived.
    _row(End.RESET, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.WITH_WILL, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.NORMAL, 0, 0, _E.WITHHELD),
    _row(End.NORMAL, 0, _EXPIRY_S, _E.WITHHELD),
    _row(End.NORMAL, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.RESET, 0, 0, _E.PUBLISHED),
    _row(End.RESET, 0, _EXPIRY_S, _E.PUBLISHED),
    _row(End.WITH_WILL, 0, 0, _E.PUBLISHED),
    _row(End.WITH_WILL, 0, _EXPIRY_S, _E.PUBLISHED),
)
_SESSION_ENDS = (
    _row(End.WITH_WILL, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.WITH_WILL, _DELAY_S, 0, _E.PUBLISHED),
    _row(End.WITH_WILL_AND_SESSION, 0, _EXPIRY_S, _E.PUBLISHED),
    _row(End.WITH_WILL_AND_SESSION, _DELAY_S, _EXPIRY_S, _E.PUBLISHED),
)
_TAKEOVERS = (
    _row(End.TAKEOVER, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.TAKEOVER, _DELAY_S, 0, _E.ANY),
    _row(End.TAKEOVER, 0, _EXPIRY_S, _E.PREFERABLY_PUBLISHED),
    _row(End.TAKEOVER, 0, 0, _E.PREFERABLY_PUBLISHED),
    _row(End.CLEAN_TAKEOVER, _DELAY_S, _EXPIRY_S, _E.PREFERABLY_PUBLISHED),
    _row(End.CLEAN_TAKEOVER, _DELAY_S, 0, _E.PREFERABLY_PUBLISHED),
    _row(End.CLEAN_TAKEOVER, 0, _EXPIRY_S, _E.PREFERABLY_PUBLISHED),
    _row(End.CLEAN_TAKEOVER, 0, 0, _E.PREFERABLY_PUBLISHED),
    _row(End.RESET, 0, 0, _E.PUBLISHED),
)
_RETURNS = (
    _row(End.RETURN, _DELAY_S, _EXPIRY_S, _E.WITHHELD),
    _row(End.CLEAN_RETURN, _DELAY_S, _EXPIRY_S, _E.PREFERABLY_PUBLISHED),
    _row(End.RETURN, 0, _EXPIRY_S, _E.PUBLISHED),
    _row(End.CLEAN_RETURN, 0, _EXPIRY_S, _E.PUBLISHED),
)


def _qos(ctx: CaseContext) -> int:
    """Of the wills: what comes at QoS 0 may be lost on its way."""
    return max(level for level in qos_levels(ctx) if level < 2)


class _Client:
    """A row while it is walked."""

    def __init__(self, ctx: CaseContext, row: Row, number: int) -> None:
        self.ctx, self.row = ctx, row
        self.topic = ctx.topic(f"will/{number}")
        self.name = f"{number}"
        self.connection: Connection
        self.told = True
        """What there was to say before the end was said."""

    async def connect(self) -> None:
        delay = Properties(will_delay_interval=self.row.delay_s or None)
        will = Will(topic=self.topic, payload=b"will", qos=_qos(self.ctx), properties=delay)
        properties = Properties(session_expiry_interval=self.row.expiry_s)
        self.connection = await self.ctx.connect(will=will, properties=properties, name=self.name)

    async def end(self) -> None:
        """End the connection, up to what another connection does."""
        match self.row.end:
            case End.RESET | End.RETURN | End.CLEAN_RETURN:
                self.connection.abort()
            case End.WITH_WILL:
                await self.connection.disconnect(Disconnect(reason_code=_WITH_WILL))
            case End.WITH_WILL_AND_SESSION:
                over = Properties(session_expiry_interval=0)
                await self.connection.disconnect(Disconnect(reason_code=_WITH_WILL, properties=over))
            case End.NORMAL:
                await self.connection.disconnect()
            case End.TAKEOVER | End.CLEAN_TAKEOVER:
                await self._successor(clean=self.row.end is End.CLEAN_TAKEOVER)
                seen = await self.connection.expect_close()
                told = any(
                    isinstance(packet, Disconnect) and packet.reason_code == SESSION_TAKEN_OVER for packet in seen
                )
                self.ctx.should(told, f"{self.row.name}: expected DISCONNECT 0x8e before the end")

    async def come_back(self) -> None:
        """The client connects again."""
        if self.row.end in (End.RETURN, End.CLEAN_RETURN):
            await self._successor(clean=self.row.end is End.CLEAN_RETURN)

    async def _successor(self, *, clean: bool) -> None:
        name, client_id = f"{self.name} successor", self.connection.client_id
        await self.ctx.connect(client_id=client_id, clean=clean, properties=LASTING, name=name)


async def _walk(ctx: CaseContext, rows: Sequence[Row]) -> None:
    """Walk the table and compare which wills have been published when the case looks."""
    clients = [_Client(ctx, row, number) for number, row in enumerate(rows)]
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(*(client.topic for client in clients), qos=_qos(ctx))
    for client in clients:
        await client.connect()
    for client in clients:
        await client.end()
    due = {client.topic for client in clients if client.row.expected is Expected.PUBLISHED}
    seen: list[Packet] = []
    while due:
        message = await watcher.receive(f"{len(due)} wills that are due")
        if not isinstance(message, Publish):
            ctx.fail(f"watcher: expected wills; seen {message and describe(message)}")
        due.discard(message.topic)
        seen.append(message)
        if message.qos:
            watcher.send(Puback(packet_id=message.packet_id))
    for client in clients:
        await client.come_back()
    publisher = await ctx.connect(name="publisher")
    seen += await delivered(ctx, publisher, watcher, qos=_qos(ctx))
    counts = Counter(message.topic for message in seen if isinstance(message, Publish))
    wrong: list[str] = []
    for client in clients:
        row, count = client.row, counts[client.topic]
        if count > 1 or (row.expected is Expected.WITHHELD and count):
            wrong.append(f"[{row.name}] expected {row.expected.value}; seen {count} times")
        if row.expected is Expected.PREFERABLY_PUBLISHED:
            ctx.should(count > 0, f"[{row.name}] expected the will; seen nothing")
    untold = sum(not client.told for client in clients)
    ctx.should(
        not untold, f"expected DISCONNECT 0x8e before the end of a taken over connection; missing {untold} times"
    )
    ctx.must(not wrong, "; ".join(wrong))


@case(
    "mqtt5/will/each-end-of-a-connection-by-delay-and-expiry",
    clauses=("MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3"),
    requires=("persistent_sessions",),
    mutant="v5-disconnect-with-will-ignores-delay",
    near_miss="v5-connack-says-more",
)
async def each_end(ctx: CaseContext) -> None:
    """A reset and DISCONNECT 0x04 publish a will at once or after its delay; DISCONNECT 0x00 never does.

    Clients with wills of delay 0 and 30 s and sessions of 0 and 60 s end by a reset, by DISCONNECT 0x04 and by
    DISCONNECT 0x00. The wills without delay are published, once; those with delay are not yet; those of normal
    disconnections are not.
    """
    await _walk(ctx, _ENDS)


@case(
    "mqtt5/will/disconnect-that-ends-the-session-publishes-it",
    clauses=("MQTT-3.1.2-8", "MQTT-4.1.0-2"),
    requires=("persistent_sessions",),
    mutant="v5-disconnect-expiry-0-leaves-the-will-waiting",
    near_miss="v5-connack-says-more",
)
async def session_ends(ctx: CaseContext) -> None:
    """DISCONNECT 0x04 that ends the session publishes the will at once, whatever its delay.

    The session ends because it has no expiry, or because DISCONNECT sets it to 0; the will has a delay of 30 s. It is
    published. The control is the same with a session that lasts: its will waits.
    """
    await _walk(ctx, _SESSION_ENDS)


@case(
    "mqtt5/will/takeover-by-delay-expiry-and-clean-start",
    clauses=("MQTT-3.1.3-9", "MQTT-3.1.2-8", "MQTT-3.1.4-3"),
    requires=("persistent_sessions",),
    mutant="v5-takeover-ignores-will-delay",
    near_miss="v5-closes-silently",
)
async def takeovers(ctx: CaseContext) -> None:
    """A takeover with Clean Start 0 within the delay of a will withholds it.

    Clients with wills of delay 0 and 30 s and sessions of 0 and 60 s are taken over, with and without Clean Start. The
    will that has a delay and a lasting session, taken over with Clean Start 0, is not published. Where there is no
    delay, or the session ends by Clean Start 1, the will is expected; a missing one is reported and does not fail, as
    is a takeover without DISCONNECT 0x8E. The control, a reset, publishes its will.
    """
    await _walk(ctx, _TAKEOVERS)


@case(
    "mqtt5/will/coming-back-by-clean-start",
    clauses=("MQTT-3.1.3-9", "MQTT-3.1.2-8"),
    requires=("persistent_sessions",),
    mutant="v5-coming-back-publishes-the-will",
    near_miss="v5-clean-start-cancels-the-will",
)
async def returns(ctx: CaseContext) -> None:
    """A client that is back with Clean Start 0 within the delay has no will published.

    Clients with a lasting session are reset and come back, with and without Clean Start. Within a delay of 30 s,
    Clean Start 0 withholds the will. Clean Start 1 ends the session, so that the will is expected; a missing one is
    reported and does not fail. The controls without delay have had their wills published before.
    """
    await _walk(ctx, _RETURNS)


@case(
    "mqtt5/will/empty-retained-will-deletes",
    clauses=("MQTT-3.1.2-15", "MQTT-3.3.1-6", "MQTT-3.3.1-7"),
    requires=("retain", "qos1"),
    mutant="empty-retained-will-deletes-nothing",
    near_miss="v5-retained-before-suback",
)
async def empty_retained(ctx: CaseContext) -> None:
    """An empty will with Will Retain 1 deletes the retained message of its topic; with 0 it does not.

    Two topics have retained messages and are the topics of two empty wills, one of them retained. Both clients are
    reset. A new subscriber gets only the message of the other topic.
    """
    topics = {True: ctx.topic("deleted"), False: ctx.topic("kept")}
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(*topics.values(), qos=1)
    for retain, topic in topics.items():
        await watcher.publish(topic, b"state", qos=1, retain=True)
        await watcher.expect_publish(topic, b"state")
        client = await ctx.connect(name=f"retain {int(retain)}", will=Will(topic=topic, qos=1, retain=retain))
        client.abort()
        await watcher.expect_publish(topic, b"")
    await only_is_retained(ctx, watcher, list(topics.values()), topics[False], b"state")


@case(
    "mqtt5/will/expiry-counts-from-its-publication",
    clauses=("MQTT-3.3.2-6", "MQTT-3.1.2-8"),
    requires=("persistent_sessions",),
    mutant="v5-will-expiry-counts-from-connect",
    near_miss="v5-connack-says-more",
    limit_s=10.0,
)
async def expiry_from_publication(ctx: CaseContext) -> None:
    """The Message Expiry Interval of a will begins when the will is published, not when it is deposited.

    A will has a delay of 3 s and a message expiry of 60 s. Its client is reset. The will arrives with a message
    expiry of at least 58 s, less what it comes late.
    """
    topic = ctx.topic("will")
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(topic)
    properties = Properties(will_delay_interval=3, message_expiry_interval=60)
    will = Will(topic=topic, payload=b"late", properties=properties)
    client = await ctx.connect(name="client", will=will, properties=LASTING)
    watch = Stopwatch()
    client.abort()
    message = await watcher.expect_publish(topic, b"late")
    left_s, lowest_s = message.properties.message_expiry_interval, min(58, int(62 - watch.elapsed_s))
    right = left_s is not None and lowest_s <= left_s <= 60
    ctx.must(right, f"expected a message expiry of {lowest_s} to 60 s; seen {left_s}")


@case(
    "mqtt5/will/retained-will-expires",
    clauses=("MQTT-3.3.2-5", "MQTT-3.1.2-15"),
    requires=("retain", "qos1"),
    mutant="v5-retained-will-never-expires",
    near_miss="v5-retained-before-suback",
    limit_s=10.0,
)
async def retained_expires(ctx: CaseContext) -> None:
    """A retained will is gone when its message expiry has passed.

    Two clients with retained wills are reset; the message expiry is 1 s and 60 s. A client that subscribes 3 s after
    the wills have been published gets the second one only.
    """
    topics = {1: ctx.topic("brief"), 60: ctx.topic("long")}
    watcher = await ctx.connect(name="watcher")
    await watcher.subscribe(*topics.values())
    for expiry_s, topic in topics.items():
        properties = Properties(message_expiry_interval=expiry_s)
        will = Will(topic=topic, payload=b"kept", qos=1, retain=True, properties=properties)
        client = await ctx.connect(name=f"expiry {expiry_s} s", will=will)
        client.abort()
        await watcher.expect_publish(topic, b"kept")
    await pass_time(ctx, 3.0)
    late = await ctx.connect(name="late")
    await late.subscribe(*topics.values())
    await late.expect_publish(topics[60], b"kept", retain=True)
    await ctx.expect_no_message(watcher, late)
