"""Readiness: a listener counts as ready once a client of the broker's own was answered by it."""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, RejectConnection, Request

from assay.reference_broker.amqp091.wire.frames import PROTOCOL_HEADER, FrameType
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.packets import V5, Connect, Disconnect
from assay.reference_broker.server.listeners import ListenerAddress
from assay.reference_broker.server.websocket import SUBPROTOCOL

READY_TIMEOUT_S = 60.0
"""A machine that is busy takes some of it; nobody waits for it otherwise."""
_READ_BYTES = 65_536
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""And SETTINGS without any (RFC 9113, 3.4)."""
_HTTP2_SETTINGS = 4
_COAP_PING, _COAP_RESET = b"\x40\0\0\x01", b"\x70\0\0\x01"
_Event = TypeVar("_Event", bound=Event)


class NotReadyError(RuntimeError):
    """The broker started, but a client's handshake with it did not pass."""


async def check_handshake(
    address: ListenerAddress, *, certificate_required: bool = False, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """Connect as a client and see a CONNACK, whatever it says, the start of AMQP or HTTP/2, that HTTP is
    healthy, or CoAP's answer to a ping.

    Raises :class:`NotReadyError`.

    This client has no certificate: where one is required, its part of the TLS handshake has to do.
    """
    host = address.host
    target = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host  # noqa: S104 - compared, not bound
    if address.scheme == "coap":
        await _ping_coap(target, address, timeout_s)
        return
    context = None
    if address.scheme in ("mqtts", "wss", "amqps", "https", "grpcs"):
        # It talks to itself and sends no secret: whose certificate it is does not matter here.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if address.scheme == "grpcs":
            context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(target, address.port, ssl=context)
            try:
                if address.scheme in ("amqp", "amqps") and not certificate_required:
                    writer.write(PROTOCOL_HEADER)
                    if (await reader.readexactly(1))[0] != FrameType.METHOD:
                        message = f"the listener {address.url} answered with something other than connection.start"
                        raise NotReadyError(message)
                elif address.scheme in ("grpc", "grpcs") and not certificate_required:
                    writer.write(_HTTP2_PREFACE)
                    if (await reader.readexactly(9))[3] != _HTTP2_SETTINGS:
                        message = f"the listener {address.url} answered with something other than SETTINGS of HTTP/2"
                        raise NotReadyError(message)
                elif address.scheme in ("http", "https") and not certificate_required:
                    # In its own name, which need not be one of those that the listener answers to.
                    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                    if not (line := await reader.readline()).startswith(b"HTTP/1.1 200 "):
                        raise NotReadyError(f"the listener {address.url} answered {line[:40]!r} to GET /health")
                    await reader.read()
                elif not certificate_required:
                    await _exchange(reader, writer, address)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        raise NotReadyError(f"no handshake on {address.url}: {error or type(error).__name__}") from error


async def _ping_coap(target: str, address: ListenerAddress, timeout_s: float) -> None:
    """An empty message that asks for an answer has a reset as its answer (RFC 7252, 4.2)."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()

    class Ping(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, _place: object) -> None:
            if not answered.done():
                answered.set_result(data)

    try:
        transport, _ = await loop.create_datagram_endpoint(Ping, remote_addr=(target, address.port))
        try:
            async with asyncio.timeout(timeout_s):
                transport.sendto(_COAP_PING)
                if await answered != _COAP_RESET:
                    raise NotReadyError(f"the listener {address.url} answered a ping with something other than a reset")
        finally:
            transport.close()
    except (OSError, TimeoutError) as error:
        raise NotReadyError(f"no answer on {address.url}: {error or type(error).__name__}") from error


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: ListenerAddress) -> None:
    connect, disconnect = encode_packet(Connect(version=V5, client_id=""), V5), encode_packet(Disconnect(), V5)
    if not address.path:
        writer.write(connect)
        _expect_connack(await reader.readexactly(2), address)
        writer.write(disconnect)
    else:
        websocket = WSConnection(ConnectionType.CLIENT)
        writer.write(websocket.send(Request(host=address.authority, target=address.path, subprotocols=[SUBPROTOCOL])))
        await _next_event(websocket, reader, address, AcceptConnection)
        writer.write(websocket.send(BytesMessage(data=connect)))
        _expect_connack(bytes((await _next_event(websocket, reader, address, BytesMessage)).data), address)
        writer.write(websocket.send(BytesMessage(data=disconnect)))
        closing = await _next_event(websocket, reader, address, CloseConnection)
        writer.write(websocket.send(closing.response()))
    # The broker closes in answer: once it has, this client leaves no trace in its figures.
    await reader.read()


async def _next_event(
    websocket: WSConnection, reader: asyncio.StreamReader, address: ListenerAddress, kind: type[_Event]
) -> _Event:
    while True:
        for event in websocket.events():
            if isinstance(event, kind):
                return event
            if isinstance(event, RejectConnection):
                message = f"the listener {address.url} refused a WebSocket handshake with status {event.status_code}"
                raise NotReadyError(message)
        data = await reader.read(_READ_BYTES)
        if not data:
            raise EOFError("the connection was closed")
        websocket.receive_data(data)


def _expect_connack(data: bytes, address: ListenerAddress) -> None:
    if data[:1] != b"\x20":
        raise NotReadyError(f"the listener {address.url} answered {data[:16].hex()} to CONNECT")
