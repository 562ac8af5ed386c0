"""What several MQTT 5.0 cases need: judging the end of a connection, counting messages, letting time pass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence

from msgspec import structs

from assay.conformance.arrival import soon
from assay.conformance.case import CaseContext
from assay.conformance.connection import FIRST_FAILURE_CODE, Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import ANSWERS, Rule, StepFailureError
from assay.conformance.stall import Stopwatch
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    describe,
    encode,
)

MALFORMED_PACKET = 0x81
PROTOCOL_ERROR = 0x82
RECEIVE_MAXIMUM_EXCEEDED = 0x93
TOPIC_ALIAS_INVALID = 0x94
PACKET_TOO_LARGE = 0x95
SESSION_TAKEN_OVER = 0x8E
UNSPECIFIED_ERROR = 0x80

_RETAINED_WITHIN_S = 1.0
_GOODBYE_S = 2.0
BRIEF_S = 2
"""Expiry of a message that is to be sent before that is over, times ``ctx.stretch``."""
SILENCE_S = 1.0
"""After this a server has nothing more under way, or too little to tell."""

_CONNACK = 2
LASTING = Properties(session_expiry_interval=600)
"""A session that outlives its connection by far more than a case takes."""


async def expect_error(
    ctx: CaseContext, connection: Connection, *codes: int, before: tuple[type[Packet], ...] = ()
) -> None:
    """The broker must end the connection; that it says one of ``codes`` first is judged as a SHOULD.

    ``before`` are packets that may precede the end besides DISCONNECT. A malformed packet is a kind of protocol
    error, and brokers draw the line between 0x81 and 0x82 differently, so either is taken for both; so is 0x80, which
    tells nothing.
    """
    seen = await connection.expect_close(allowed=(Disconnect, *before))
    last = seen[-1] if seen else None
    if not isinstance(last, Disconnect):
        ctx.should(False, f"{connection.name}: the connection ended without a DISCONNECT that says why")
        return
    ctx.must(
        not any(isinstance(packet, Disconnect) for packet in seen[:-1]),
        f"{connection.name}: expected DISCONNECT to be the last packet; seen {'; '.join(map(describe, seen))}",
    )
    wanted = {*codes, MALFORMED_PACKET, PROTOCOL_ERROR, UNSPECIFIED_ERROR}
    shown = ", ".join(f"0x{code:02x}" for code in codes or (MALFORMED_PACKET, PROTOCOL_ERROR))
    ctx.should(last.reason_code in wanted, f"{connection.name}: expected {shown}; seen {describe(last)}")


async def ends(connection: Connection) -> bool:
    """Whether the broker ends the connection; False if it answers a PINGREQ instead. Other packets are passed over."""
    connection.send(Pingreq())
    while (packet := await connection.receive_or_end(Pingresp)) is not None:
        if isinstance(packet, Pingresp):
            return False
    return True


async def expect_failure_or_error(ctx: CaseContext, connection: Connection, kind: type[Packet]) -> Packet | None:
    """A broker may answer with a packet of ``kind`` or end the connection; returns the answer, None for the end.

    For reactions that the standard leaves open or that are argued over.
    """
    while True:
        packet = await connection.receive_or_end(kind)
        if packet is None or isinstance(packet, kind):
            return packet
        if not isinstance(packet, Disconnect):
            ctx.fail(
                f"{connection.name}: expected {kind.type.name} or the end of the connection; seen {describe(packet)}"
            )


async def delivered(
    ctx: CaseContext, publisher: Connection, subscriber: Connection, *, qos: int = 0, at_least: int = 0
) -> list[Publish]:
    """As :meth:`CaseContext.messages_before_marker`; nothing but messages may come."""
    found: list[Publish] = []
    for packet in await ctx.messages_before_marker(publisher, subscriber, qos=qos, at_least=at_least):
        if not isinstance(packet, Publish):
            ctx.fail(f"{subscriber.name}: expected only messages; seen {describe(packet)}")
        found.append(packet)
    return found


@contextlib.asynccontextmanager
async def meanwhile(work: Coroutine[None, None, None], *, head_start_s: float = 0.0) -> AsyncIterator[None]:
    """Do ``work`` while the block runs, and wait for its end after it; the block begins when the work is done, or
    after ``head_start_s``. The block and the work must not read the same connection."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait((task,), timeout=head_start_s)
        if task.done():
            task.result()
        yield
        await task
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def publishing(
    publisher: Connection, topic: str, *payloads: bytes, qos: int | Sequence[int]
) -> AsyncIterator[None]:
    """Publish what a subscriber is to have waiting; in the block all of it has been taken, as far as the server does.

    A server may withhold its acknowledgements until subscribers have taken what waits for them: what has not come
    within a second is awaited at the end of the block.
    """
    levels = [qos] * len(payloads) if isinstance(qos, int) else qos
    messages = [Publish(topic=topic, payload=each, qos=level) for each, level in zip(payloads, levels, strict=True)]
    async with meanwhile(publish_all(publisher, messages, at_once=1), head_start_s=SILENCE_S):
        yield


async def publish_all(publisher: Connection, messages: Sequence[Publish], *, at_once: int = 65_535) -> None:
    """So many at a time, or as many as the server takes, with the whole exchange of each."""
    window = min(at_once, publisher.connack.properties.receive_maximum or at_once)
    for start in range(0, len(messages), window):
        some = messages[start : start + window]
        identifiers = {publisher.next_packet_id(): message for message in some if message.qos}
        publisher.send(
            *(message for message in some if not message.qos),
            *(structs.replace(message, packet_id=number) for number, message in identifiers.items()),
        )
        for kind, qos in ((Puback, 1), (Pubrec, 2), (Pubcomp, 2)):
            for _ in range(sum(message.qos == qos for message in some)):
                answer = await publisher.expect(kind, skipping=(Puback, Pubrec, Pubcomp))
                if answer.packet_id not in identifiers or answer.reason_code >= FIRST_FAILURE_CODE:
                    text = f"expected {kind.type.name} of {sorted(identifiers)}; seen {describe(answer)}"
                    raise publisher.step_failed(ANSWERS[kind], text)
                if isinstance(answer, Pubrec):
                    publisher.send(Pubrel(packet_id=answer.packet_id))


async def messages_now(ctx: CaseContext, subscriber: Connection) -> list[Publish]:
    """The messages that the broker has sent by now: those before a PINGRESP, which may overtake more."""
    found: list[Publish] = []
    for packet in await subscriber.barrier():
        if not isinstance(packet, Publish):
            ctx.fail(f"{subscriber.name}: expected only messages; seen {describe(packet)}")
        found.append(packet)
    return found


async def taken(subscriber: Connection, count: int, *, ack: bool = True, silence_s: float = SILENCE_S) -> list[Publish]:
    """The messages that come, up to ``count``, until there is silence; for what a broker need not send."""
    found: list[Publish] = []
    while len(found) < count:
        try:
            # Nobody is silent who takes as long over each answer.
            packet = await subscriber.receive("a message", within_s=max(silence_s, 2 * subscriber.ctx.greeting_s))
        except CaseFailureError:
            break
        if not isinstance(packet, Publish):
            break
        found.append(packet)
        if ack:
            await subscriber.acknowledge(packet)
    return found


async def shares(consumers: Sequence[Connection], at_least: int) -> list[list[Publish]]:
    """Everything that came to each until now, acknowledged at QoS 1; together they must get so many.

    PINGRESP may overtake messages, and a server may have one under way at a time.
    """
    found: list[list[Publish]] = [[] for _ in consumers]
    # What must come is waited for like anything else: answers may be prompt, and messages late.
    more = soon(consumers[0].ctx)
    while True:
        came = 0
        for consumer, share in zip(consumers, found, strict=True):
            for packet in await consumer.barrier():
                if isinstance(packet, Publish):
                    await consumer.acknowledge(packet)
                    share.append(packet)
                    came += 1
        if came:
            more = soon(consumers[0].ctx)
        elif sum(map(len, found)) >= at_least or not await more():
            return found


async def expect_other_identifier(
    ctx: CaseContext, subscriber: Connection, in_use: int, topic: str, payload: bytes, *, qos: int
) -> None:
    """A new message must come under another identifier than one that is in use, and is acknowledged.

    Unsupported if it does not come while that one is.
    """
    found = await taken(subscriber, 1, ack=False)
    if not found:
        ctx.unsupported("the broker has one message under way at a time, and the case is about several")
    (new,) = found
    good = (new.topic, new.payload, new.qos) == (topic, payload, qos)
    ctx.must(good, f"{subscriber.name}: expected the new message {payload!r} at QoS {qos}; seen {describe(new)}")
    subscriber.check_flag(new, dup=False)
    other = new.packet_id != in_use
    ctx.must(other, f"{subscriber.name}: expected another identifier than {in_use}, which is in use; seen {new}")
    await subscriber.acknowledge(new)


async def under_way(ctx: CaseContext, subscriber: Connection, topic: str, count: int) -> list[Publish]:
    """Up to ``count`` messages, none of them acknowledged: as many as the server has under way at once.

    Receive Maximum is an upper limit, and one at a time is legal (5.0 section 4.9): a second of silence ends the list.
    Unsupported if there is never more than one.
    """
    found = [await subscriber.expect_publish(topic, ack=False)]
    found += await taken(subscriber, count - 1, ack=False)
    for message in found:
        if message.topic != topic:
            ctx.fail(f"{subscriber.name}: expected PUBLISH of {topic}; seen {describe(message)}")
    if len(found) == 1 < count:
        ctx.unsupported("the broker has one message under way at a time, and the case is about several")
    return found


async def resume(ctx: CaseContext, client_id: str, *, name: str = "", properties: Properties = LASTING) -> Connection:
    """Connect with Clean Start 0; the session must be there."""
    connection = await ctx.connect(client_id=client_id, clean=False, name=name, properties=properties)
    ctx.step(
        Rule.SESSION_KEPT,
        connection.connack.session_present,
        f"{connection.name}: expected Session Present 1; seen {describe(connection.connack)}",
    )
    return connection


async def arrives(connection: Connection, topic: str, *, within_s: float = 2.0) -> bool:
    """Whether a message for ``topic`` is the next packet; False when nothing comes. For what a broker need not send."""
    try:
        packet = await connection.receive(f"a message for {topic}", within_s=within_s)
    except CaseFailureError:
        return False
    return isinstance(packet, Publish) and packet.topic == topic


async def drained(connection: Connection, *, within_s: float = 0.5) -> None:
    """Wait until the broker ends the connection or is silent for a while, whatever it says before."""
    with contextlib.suppress(CaseFailureError):
        while await connection.receive("the end of the connection", within_s=within_s) is not None:
            pass


def qos_levels(ctx: CaseContext) -> tuple[int, ...]:
    """The QoS levels that the target takes, from 0."""
    return tuple(qos for qos in (0, 1, 2) if qos == 0 or ctx.capabilities[f"qos{qos}"])


async def completion(ctx: CaseContext, publisher: Connection) -> Pubcomp:
    """The PUBCOMP; a broker that says its PUBREC once more to a client that is back does more than it must."""
    while isinstance(packet := await publisher.receive("PUBCOMP"), Pubrec):
        ctx.should(False, f"{publisher.name}: the broker repeats its PUBREC: {describe(packet)}")
    if not isinstance(packet, Pubcomp):
        ctx.fail(f"{publisher.name}: expected PUBCOMP; seen {describe(packet) if packet else 'the end'}")
    return packet


async def comes(connection: Connection, kind: type[Packet], *, within_s: float = 2.0) -> bool:
    """Whether the next packet is of this kind; for what a broker need not send at once."""
    try:
        await connection.expect(kind, within_s=within_s)
    except CaseFailureError:
        return False
    return True


async def subscribe_at(ctx: CaseContext, connection: Connection, *filters: str, qos: int) -> None:
    """Subscribe and be granted ``qos``; a broker may grant less, and then what follows cannot be asked of it."""
    granted = min(await connection.subscribe(*filters, qos=qos))
    if granted < qos:
        ctx.unsupported(f"the broker grants QoS {granted} where QoS {qos} is asked for")


async def subscribe_to_many(
    ctx: CaseContext, connection: Connection, filters: Sequence[str], *, qos: int = 0, at_once: int = 50
) -> list[str]:
    """Those that were granted, the first one at least: how many a client may have is left to the broker (5.0 0x97)."""
    granted: list[str] = []
    for at in range(0, len(filters), at_once):
        some = filters[at : at + at_once]
        codes = await connection.subscribe(*some, qos=qos, at_least=not granted)
        if any(code < qos for code in codes):
            ctx.unsupported(f"the broker grants QoS {min(codes)} where QoS {qos} is asked for")
        granted += [filter_ for filter_, code in zip(some, codes, strict=True) if code == qos]
    return granted


async def pass_time(ctx: CaseContext, seconds: float) -> None:
    """Let time pass where a statement is about elapsed time. Never used to see whether something still arrives."""
    ctx.is_timed = True
    ctx.note(f"the case lets {seconds:g} s pass")
    ctx.remaining_s(seconds)
    await asyncio.sleep(seconds)
    ctx.give_back(seconds)


async def begin_a_brief_one(ctx: CaseContext, publisher: Connection, subscriber: Connection, topic: str) -> Publish:
    """A delivery at QoS 2, which the subscriber does not answer, of a message that expires in :data:`BRIEF_S`."""
    watch = Stopwatch()
    brief = Properties(message_expiry_interval=BRIEF_S * ctx.stretch)
    await publisher.publish(topic, b"begun", qos=2, properties=brief)
    watch.demand_less_than(BRIEF_S * ctx.stretch / 2)  # else it may have expired before anybody could send it on
    return await subscriber.expect_publish(topic, b"begun", qos=2, ack=False)


async def only_is_retained(
    ctx: CaseContext, watcher: Connection, topics: Sequence[str], one: str, payload: bytes
) -> None:
    """After wills: a new client that subscribes to the ``topics`` gets the retained message of ``one``, and no other.

    No clause says how soon a will that others have seen is retained, or has deleted: who asks too early asks again.
    """
    early = await ctx.connect(name="early")
    await early.subscribe(*topics, qos=1)
    seen = [packet for packet in await ctx.messages_before_marker(watcher, early) if isinstance(packet, Publish)]
    if [(message.topic, message.payload) for message in seen] != [(one, payload)]:
        await asyncio.sleep(_RETAINED_WITHIN_S)
    late = await ctx.connect(name="late")
    await late.subscribe(*topics, qos=1)
    await late.expect_publish(one, payload, retain=True)
    await ctx.expect_no_message(watcher, late)


def wire_size(packet: Packet) -> int:
    """Bytes of a packet from the broker on the wire, in its shortest form."""
    return len(encode(packet, 5))


def imposed_keep_alive(ctx: CaseContext, connack: Connack, asked_s: int) -> int:
    """The keep alive in force: the server's if it states one; unsupported if that is too long to wait for."""
    stated = connack.properties.server_keep_alive
    in_force_s = asked_s if stated is None else stated
    if not 0 < in_force_s <= asked_s + 1:
        ctx.unsupported(f"the broker imposes a keep alive of {in_force_s} s, too long to wait for")
    return in_force_s


async def exchange_raw(ctx: CaseContext, data: bytes, *, name: str) -> bytes:
    """Send bytes on a connection of their own and return all that comes until the broker ends it, unread.

    For an answer that may be in another protocol version. Fails if the broker keeps the connection.
    """
    endpoint = ctx.endpoint
    reader, writer = await asyncio.open_connection(
        endpoint.host, endpoint.port, ssl=endpoint.tls_context, server_hostname=endpoint.server_name
    )
    ctx.sent_raw = True
    ctx.transcript.add(name, "send", data, f"{len(data)} raw bytes")
    received = b""

    async def read_all() -> None:
        nonlocal received
        while chunk := await reader.read(65_536):
            received += chunk

    try:
        writer.write(data)
        await ctx.patiently(read_all)
    except TimeoutError:
        ctx.fail(
            f"{name}: expected the broker to end the connection; it is still open, after {received.hex() or 'nothing'}"
        )
    except ConnectionError as error:
        ctx.note(f"{name}: {error}")
    finally:
        writer.transport.abort()
        ctx.transcript.add(name, "recv", received, f"{len(received)} raw bytes, then the end")
    if received and received[0] >> 4 == _CONNACK and received[0] & 0x0F:
        text = f"{name}: a CONNACK with reserved flags; seen {received.hex()}"
        ctx.note_incident(Rule.FORM, text, frozenset({"CONNACK: reserved flags"}))
        received = bytes((_CONNACK << 4,)) + received[1:]
    return received


async def ends_without_complaint(ctx: CaseContext, connection: Connection, *, has_cause: bool = False) -> None:
    """What follows a client's DISCONNECT is the end, not a complaint.

    That the server closes the connection is a SHOULD, and so is that it does not say goodbye, too: DISCONNECT 0x00 is
    a code for clients (3.14.2.1), but no statement forbids a server to repeat it. It may complain of a client that went
    on to send (3.14.4-1, 4.13.1), which gives it ``has_cause``.
    """
    while True:
        try:
            packet = await connection.receive("the end of the connection", within_s=_GOODBYE_S)
        except StepFailureError:
            raise
        except CaseFailureError as error:
            ctx.should(False, str(error))
            return
        if packet is None:
            return
        is_goodbye = isinstance(packet, Disconnect) and (has_cause or packet.reason_code < UNSPECIFIED_ERROR)
        text = f"{connection.name}: expected the end without an answer; seen {describe(packet)}"
        ctx.must(is_goodbye, text)
        ctx.should(False, text)
