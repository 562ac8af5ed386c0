"""The server side of a WebSocket connection that carries MQTT (section 6), sans-IO: bytes in, MQTT bytes out.

The stream of a client's binary messages is its MQTT byte stream: packets may be cut by frames and share frames
(MQTT-6.0.0-2), so nothing here knows packets. Payload is passed on as it arrives; what is kept is an incomplete
handshake and an incomplete frame header.
"""

from __future__ import annotations

import base64
import binascii
import traceback
from enum import Enum
from http import HTTPStatus

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError as WsprotoError

from assay.reference_broker.config import WebSocketConfig

SUBPROTOCOL = "mqtt"
MAX_OUTGOING_MESSAGE_BYTES = 64 * 1024
"""Output is cut into messages of this size at most: clients, too, limit what they take."""
MAX_FRAMES = 256
"""Frames that are handled at once; small ones take much more time than their bytes."""
_END_OF_HEAD = b"\r\n\r\n"
_FORBIDDEN_HEADERS = {b"content-length", b"transfer-encoding"}


class WebSocketPhase(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"
    """A close frame was sent; the client's is awaited."""
    CLOSED = "closed"
    """Nothing more comes or goes: the transport is to be closed once the output is sent."""


class WebSocketServer:
    """One connection. After every call, :meth:`take_output` has what is to be sent besides framed MQTT bytes."""

    def __init__(self, config: WebSocketConfig) -> None:
        self.phase = WebSocketPhase.HANDSHAKE
        self.has_more = False
        """More frames have come than are handled at once: call :meth:`receive` again, with nothing if need be."""
        self.error = ""
        """Why the connection was refused or closed, when the client broke a rule; for the log."""
        self._path = config.path
        self._origins = frozenset(origin.lower() for origin in config.origins)
        self._max_handshake_bytes = config.max_handshake_bytes
        self._max_message_bytes = config.max_message_bytes
        self._message_bytes = 0
        self._head = bytearray()
        self._connection = WSConnection(ConnectionType.SERVER)
        self._out = bytearray()

    def take_output(self) -> bytes:
        """The handshake's answer, pongs and the close frame since the last call."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes) -> bytes:
        """Handle a chunk; returns the MQTT bytes in it. Never raises for bad input: see ``phase`` and ``error``."""
        if self.phase is WebSocketPhase.HANDSHAKE:
            return self._receive_head(data)
        if self.phase is WebSocketPhase.CLOSED:
            return b""
        return self.receive_frames(data)

    def frame(self, data: bytes) -> bytes:
        """MQTT bytes as binary messages; nothing unless open."""
        if self.phase is not WebSocketPhase.OPEN:
            return b""
        send = self._connection.send
        if len(data) <= MAX_OUTGOING_MESSAGE_BYTES:
            return send(BytesMessage(data=data))
        starts = range(0, len(data), MAX_OUTGOING_MESSAGE_BYTES)
        return b"".join(send(BytesMessage(data=data[at : at + MAX_OUTGOING_MESSAGE_BYTES])) for at in starts)

    def close(self, reason: CloseReason = CloseReason.NORMAL_CLOSURE) -> None:
        """Start the close handshake; before it is open, the connection just ends."""
        if self.phase is WebSocketPhase.OPEN:
            self._out += self._connection.send(CloseConnection(code=reason))
            self.phase = WebSocketPhase.CLOSING
        elif self.phase is WebSocketPhase.HANDSHAKE:
            self.phase = WebSocketPhase.CLOSED

    # -- the opening handshake -----------------------------------------------------------------------------------

    def _receive_head(self, data: bytes) -> bytes:
        """Collect the request up to its empty line, so that its size is bounded however it is cut."""
        searched = max(0, len(self._head) - len(_END_OF_HEAD) + 1)
        self._head += data
        end = self._head.find(_END_OF_HEAD, searched)
        head_bytes = len(self._head) if end < 0 else end + len(_END_OF_HEAD)
        if head_bytes > self._max_handshake_bytes:
            error = f"the handshake is over the limit of {self._max_handshake_bytes} bytes"
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)
        elif end >= 0:
            head, rest = bytes(self._head[:head_bytes]), bytes(self._head[head_bytes:])
            self._head = bytearray()
            self._open(head)
            if rest and self.phase is WebSocketPhase.OPEN:
                return self.receive_frames(rest)
        return b""

    def _open(self, head: bytes) -> None:
        if not head.partition(b"\r\n")[0].endswith(b" HTTP/1.1"):
            self.refuse(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
            return
        try:
            self._connection.receive_data(head)
            request = next(self._connection.events(), None)
        except WsprotoError as error:
            hint = getattr(error, "event_hint", None)
            if error.__context__ is not None:
                # The library raises it in a method of its own, whose frame holds it, and this one.
                traceback.clear_frames(error.__context__.__traceback__)
            if isinstance(hint, RejectConnection) and hint.status_code == HTTPStatus.UPGRADE_REQUIRED:
                self.refuse(HTTPStatus.UPGRADE_REQUIRED, str(error), b"Sec-WebSocket-Version: 13\r\n")
            else:
                self.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        except ValueError as error:  # a host or target that is not text
            self.refuse(HTTPStatus.BAD_REQUEST, f"bad handshake: {error}")
            return
        if not isinstance(request, Request):
            self.refuse(HTTPStatus.BAD_REQUEST, "not a WebSocket handshake")
            return
        refusal = self.refusal_of(request)
        if refusal is not None:
            self.refuse(*refusal)
            return
        self._out += self._connection.send(AcceptConnection(subprotocol=SUBPROTOCOL))
        self.phase = WebSocketPhase.OPEN

    def refusal_of(self, request: Request) -> tuple[HTTPStatus, str] | None:
        """Status and reason of a refusal."""
        headers = [(name.lower(), value) for name, value in request.extra_headers]
        if request.target.partition("?")[0] != self._path:
            return HTTPStatus.NOT_FOUND, f"the path is {self._path}"
        if any(name in _FORBIDDEN_HEADERS for name, _value in headers):
            return HTTPStatus.BAD_REQUEST, "a WebSocket handshake has no body"
        if not all(_is_key(value) for name, value in headers if name == b"sec-websocket-key"):
            return HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not 16 bytes in base64"
        if SUBPROTOCOL not in request.subprotocols:
            return HTTPStatus.BAD_REQUEST, f"the client must offer the sub-protocol {SUBPROTOCOL} [MQTT-6.0.0-3]"
        origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
        if self._origins and not self._origins.issuperset(origins):
            return HTTPStatus.FORBIDDEN, f"the origin {', '.join(origins)[:200]!r} may not connect"
        return None

    def refuse(self, status: HTTPStatus, error: str, header: bytes = b"") -> None:
        """Answer by hand: what was read need not be HTTP, and then the library's machine is in no state to answer."""
        self.error = error
        self.phase = WebSocketPhase.CLOSED
        self._head = bytearray()
        body = error.encode("utf-8", "replace") + b"\n"
        self._out += b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode())
        self._out += b"Connection: close\r\nContent-Type: text/plain; charset=utf-8\r\n" + header
        self._out += b"Content-Length: %d\r\n\r\n" % len(body) + body

    # -- frames --------------------------------------------------------------------------------------------------

    def receive_frames(self, data: bytes) -> bytes:
        payload: list[bytes] = []
        ping: Ping | None = None
        if data:
            self._connection.receive_data(data)
        self.has_more = False
        for count, event in enumerate(self._connection.events(), 1):
            self.has_more = count == MAX_FRAMES
            if isinstance(event, BytesMessage):
                if self.phase is WebSocketPhase.OPEN and self.fits_limit(event):
                    payload.append(bytes(event.data))
            elif isinstance(event, TextMessage):
                self.fail(CloseReason.UNSUPPORTED_DATA, "text frame: MQTT is sent in binary frames [MQTT-6.0.0-1]")
            elif isinstance(event, Ping):
                ping = event
            elif isinstance(event, CloseConnection):
                self.on_close(event)
            if self.phase is WebSocketPhase.CLOSED:
                self.has_more = False
            if self.has_more or self.phase is WebSocketPhase.CLOSED:
                break
        if ping is not None and self.phase is WebSocketPhase.OPEN:
            # One pong may answer several pings (RFC 6455, 5.5.3): a flood of them costs one answer per chunk.
            self._out += self._connection.send(ping.response())
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def fits_limit(self, event: BytesMessage) -> bool:
        """Whether a message stays within the limit with this part of it."""
        self._message_bytes += len(event.data)
        if self._message_bytes > self._max_message_bytes:
            self.fail(CloseReason.MESSAGE_TOO_BIG, f"a message is over the limit of {self._max_message_bytes} bytes")
            return False
        if event.message_finished:
            self._message_bytes = 0
        return True

    def on_close(self, event: CloseConnection) -> None:
        if self.phase is WebSocketPhase.CLOSING:
            self.phase = WebSocketPhase.CLOSED
        elif self._connection.state is ConnectionState.REMOTE_CLOSING:
            self._out += self._connection.send(event.response())
            self.phase = WebSocketPhase.CLOSED
        else:
            # wsproto reports a broken frame as a close whose code is the one to answer with.
            self.fail(CloseReason(event.code), f"bad WebSocket frame: {event.reason}")

    def fail(self, reason: CloseReason, error: str) -> None:
        """The client broke a rule: say why, and wait for nothing."""
        self.error = error
        self.close(reason)
        self.phase = WebSocketPhase.CLOSED


def _is_key(value: bytes) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == 16
    except binascii.Error:
        return False
