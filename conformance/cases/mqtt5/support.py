"""What several MQTT 5.0 cases need: judging the end of a connection, counting messages, letting time pass."""

from __future__ import annotations

import asyncio
import contextlib

from conformance.case import CaseContext
from conformance.connection import Connection
from conformance.outcome import CaseFailureError
from conformance.rules import Rule, StepFailureError
from conformance.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Pubcomp,
    Publish,
    Pubrec,
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

_GOODBYE_S = 2.0

LASTING = Properties(session_expiry_interval=60)
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


async def delivered(ctx: CaseContext, publisher: Connection, subscriber: Connection, *, qos: int = 0) -> list[Publish]:
    """The messages that ``subscriber`` gets before a marker from ``publisher``; nothing but messages may come."""
    found: list[Publish] = []
    for packet in await ctx.messages_before_marker(publisher, subscriber, qos=qos):
        if not isinstance(packet, Publish):
            ctx.fail(f"{subscriber.name}: expected only messages; seen {describe(packet)}")
        found.append(packet)
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


class Stopwatch:
    """Real time since it was made, so that a case can tell a slow machine from a wrong broker."""

    def __init__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    @property
    def elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    def demand_less_than(self, seconds: float) -> None:
        """Raises :class:`TimeoutError` when the machine was too slow for a case to say anything."""
        if self.elapsed_s >= seconds:
            message = f"this machine took {self.elapsed_s:.1f} s for what must take less than {seconds:g} s"
            raise TimeoutError(message)


async def pass_time(ctx: CaseContext, seconds: float) -> None:
    """Let time pass where a statement is about elapsed time. Never used to see whether something still arrives."""
    ctx.note(f"the case lets {seconds:g} s pass")
    await asyncio.sleep(seconds)


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
    try:
        writer.write(data)
        async with asyncio.timeout(ctx.remaining_s()):
            while chunk := await reader.read(65_536):
                received += chunk
    except TimeoutError:
        ctx.fail(
            f"{name}: expected the broker to end the connection; it is still open, after {received.hex() or 'nothing'}"
        )
    except ConnectionError as error:
        ctx.note(f"{name}: {error}")
    finally:
        writer.transport.abort()
        ctx.transcript.add(name, "recv", received, f"{len(received)} raw bytes, then the end")
    return received


async def ends_without_complaint(ctx: CaseContext, connection: Connection) -> None:
    """What follows a client's DISCONNECT is the end, not a complaint.

    That the server closes the connection is a SHOULD, and so is that it does not say goodbye, too: DISCONNECT 0x00 is
    a code for clients (3.14.2.1), but no statement forbids a server to repeat it.
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
        said = packet.reason_code if isinstance(packet, Disconnect) else UNSPECIFIED_ERROR
        text = f"{connection.name}: expected the end without an answer; seen {describe(packet)}"
        ctx.must(said < UNSPECIFIED_ERROR, text)
        ctx.should(False, text)
