"""Broken and unusual WebSocket listeners."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from weakref import WeakKeyDictionary

from wsproto import WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong, Request, TextMessage

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.server import websocket
from assay.reference_broker.server.websocket import WebSocketPhase, WebSocketServer

_FINAL, _MASKED, _OPCODE = 0x80, 0x80, 0x0F
_TEXT, _BINARY, _RESERVED = 0x1, 0x2, 0x3
_END_OF_HEAD = b"\r\n\r\n"
_LONG_BYTES = 1_000
"""The broker greets itself when it starts: what is short must stay right."""
_FEW_BYTES = 65_536
"""As Netty takes them, and so Moquette."""
_ENOUGH = 2
"""A mutant that cuts messages up needs to see no longer frames than those of its cases: the length in one byte."""


def _change_sent(patch: Patch, change: Callable[[Event], Event]) -> None:
    """Change every event that the server sends."""

    def make(original: Callable[[WSConnection, Event], bytes]) -> Callable[[WSConnection, Event], bytes]:
        return lambda self, event: original(self, event if self.client else change(event))

    patch.wrap(WSConnection, "send", make)


def _change_frames(patch: Patch, change: Callable[[bytearray], None]) -> None:
    """Let ``change`` rewrite each short frame of a client, given as a whole, before the server sees it."""
    kept: WeakKeyDictionary[WebSocketServer, bytearray] = WeakKeyDictionary()
    original = WebSocketServer.receive_frames

    def receive_frames(self: WebSocketServer, data: bytes) -> bytes:
        waiting = kept.setdefault(self, bytearray())
        waiting += data
        ready = bytearray()
        while len(waiting) >= _ENOUGH:
            size = _ENOUGH + (4 if waiting[1] & _MASKED else 0) + (waiting[1] & 0x7F)
            if len(waiting) < size:
                break
            frame = waiting[:size]
            del waiting[:size]
            change(frame)
            ready += frame
        return original(self, bytes(ready))

    patch.replace(WebSocketServer, "receive_frames", receive_frames)


@mutant("ws-first-offer-selected", "the first sub-protocol that the client offers is selected")
def first_offer(patch: Patch) -> None:
    offered: list[str] = []
    judge = WebSocketServer.refusal_of

    def remember(self: WebSocketServer, request: Request) -> object:
        offered[:] = request.subprotocols
        return judge(self, request)

    def change(event: Event) -> Event:
        return AcceptConnection(subprotocol=offered[0]) if isinstance(event, AcceptConnection) else event

    patch.replace(WebSocketServer, "refusal_of", remember)
    _change_sent(patch, change)


@mutant("ws-any-offer-accepted", "whatever a client offers first is accepted and selected")
def any_offer(patch: Patch) -> None:
    offered: list[str] = []

    def judge(_self: WebSocketServer, request: Request) -> None:
        offered[:] = request.subprotocols

    def change(event: Event) -> Event:
        if isinstance(event, AcceptConnection):
            return AcceptConnection(subprotocol=offered[0] if offered else None)
        return event

    patch.replace(WebSocketServer, "refusal_of", judge)
    _change_sent(patch, change)


@variation("ws-handshake-without-offer-accepted", "a client that offers no sub-protocol is accepted without one")
def without_offer(patch: Patch) -> None:
    offered: list[str] = []

    def judge(_self: WebSocketServer, request: Request) -> None:
        offered[:] = request.subprotocols

    def change(event: Event) -> Event:
        if isinstance(event, AcceptConnection) and websocket.SUBPROTOCOL not in offered:
            return AcceptConnection(subprotocol=None)
        return event

    patch.replace(WebSocketServer, "refusal_of", judge)
    _change_sent(patch, change)


@variation("ws-handshake-says-more", "the answer to a handshake has further headers")
def says_more(patch: Patch) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, AcceptConnection):
            more = [(b"Server", b"assay"), (b"X-Request-Id", b"1")]
            return AcceptConnection(subprotocol=event.subprotocol, extra_headers=more)
        return event

    _change_sent(patch, change)


@mutant("ws-handshake-unchecked", "a request that is no good handshake is answered by 101, too")
def handshake_unchecked(patch: Patch) -> None:
    def refuse(self: WebSocketServer, _status: HTTPStatus, error: str, _header: bytes = b"") -> None:
        self.error = error
        self.phase = WebSocketPhase.CLOSED
        self._out += b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade" + _END_OF_HEAD

    patch.replace(WebSocketServer, "refuse", refuse)


@mutant("ws-text-frames-sent", "the server sends what is short in text frames")
def text_frames_sent(patch: Patch) -> None:
    def change(event: Event) -> Event:
        if isinstance(event, BytesMessage) and len(event.data) <= 4 and max(event.data) < 0x80:
            return TextMessage(data=bytes(event.data).decode())
        return event

    _change_sent(patch, change)


def _change_bytes(patch: Patch, change: Callable[[bytearray], bytes], kind: type[Event], least_bytes: int) -> None:
    """Change each frame that the server sends for events of this kind, if it has so many bytes."""

    def make(original: Callable[[WSConnection, Event], bytes]) -> Callable[[WSConnection, Event], bytes]:
        def send(self: WSConnection, event: Event) -> bytes:
            data = original(self, event)
            concerned = isinstance(event, kind) and len(data) >= least_bytes and not self.client
            return change(bytearray(data)) if concerned else data

        return send

    patch.wrap(WSConnection, "send", make)


def _with_first(data: bytearray, first: int) -> bytes:
    return bytes((first, *data[1:2])) + data[2:]


@mutant("ws-frames-masked", "the server masks long frames")
def frames_masked(patch: Patch) -> None:
    def change(data: bytearray) -> bytes:
        size = data[1]
        at = _ENOUGH + {126: 2, 127: 8}.get(size, 0)
        return bytes((data[0], size | _MASKED)) + data[2:at] + bytes(4) + data[at:]

    _change_bytes(patch, change, BytesMessage, _LONG_BYTES)


@mutant("ws-reserved-bit-sent", "long messages have a reserved bit, as if they were compressed")
def reserved_bit(patch: Patch) -> None:
    _change_bytes(patch, lambda data: _with_first(data, data[0] | 0x40), BytesMessage, _LONG_BYTES)


@mutant("ws-reserved-opcode-sent", "long messages are sent with opcode 3")
def reserved_opcode(patch: Patch) -> None:
    _change_bytes(patch, lambda data: _with_first(data, data[0] & ~_OPCODE | _RESERVED), BytesMessage, _LONG_BYTES)


@mutant("ws-stray-continuation-sent", "a long message begins by a continuation")
def stray_continuation(patch: Patch) -> None:
    _change_bytes(patch, lambda data: _with_first(data, data[0] & ~_OPCODE), BytesMessage, _LONG_BYTES)


@mutant("ws-control-frames-cut", "a pong says that more of it follows")
def control_frames_cut(patch: Patch) -> None:
    _change_bytes(patch, lambda data: _with_first(data, data[0] & ~_FINAL), Pong, _ENOUGH)


@mutant("ws-text-frames-taken", "text frames are read like binary ones")
def text_frames_taken(patch: Patch) -> None:
    def change(frame: bytearray) -> None:
        if frame[0] & _OPCODE == _TEXT:
            frame[0] = frame[0] & ~_OPCODE | _BINARY

    _change_frames(patch, change)


@mutant("ws-reserved-opcodes-taken", "frames with a reserved opcode are read like binary ones")
def reserved_opcodes(patch: Patch) -> None:
    def change(frame: bytearray) -> None:
        if frame[0] & _OPCODE == _RESERVED:
            frame[0] = frame[0] & ~_OPCODE | _BINARY

    _change_frames(patch, change)


@mutant("ws-unmasked-frames-taken", "frames without a mask are read all the same")
def unmasked_frames(patch: Patch) -> None:
    def change(frame: bytearray) -> None:
        if not frame[1] & _MASKED:
            frame[1] |= _MASKED
            frame[2:2] = bytes(4)

    _change_frames(patch, change)


@mutant("ws-message-is-whole-packets", "what is left at the end of a message is thrown away")
def whole_packets(patch: Patch) -> None:
    original = MqttConnection.receive

    def receive(self: MqttConnection, data: bytes, now: float) -> None:
        original(self, data, now)
        self._partial = bytearray()

    patch.replace(MqttConnection, "receive", receive)


@mutant("ws-one-packet-per-message", "only the first packet of a message is read")
def one_packet(patch: Patch) -> None:
    original = WebSocketServer.receive_frames

    def receive_frames(self: WebSocketServer, data: bytes) -> bytes:
        payload = original(self, data)
        # The packets of the cases are short: their length is in one byte.
        return payload[: 2 + payload[1]] if len(payload) > 2 else payload

    patch.replace(WebSocketServer, "receive_frames", receive_frames)


@mutant("ws-ping-payload-taken", "the payload of a ping is read like that of a binary frame")
def ping_payload(patch: Patch) -> None:
    original = WebSocketServer.receive_frames
    found: list[bytes] = []
    events = WSConnection.events

    def watch(self: WSConnection) -> object:
        for event in events(self):
            if isinstance(event, Ping):
                found.append(bytes(event.payload))
            yield event

    def receive_frames(self: WebSocketServer, data: bytes) -> bytes:
        found.clear()
        return original(self, data) + b"".join(found)

    patch.replace(WSConnection, "events", watch)
    patch.replace(WebSocketServer, "receive_frames", receive_frames)


@mutant("ws-pings-unanswered", "pings are not answered")
def pings_unanswered(patch: Patch) -> None:
    events = WSConnection.events
    patch.replace(WSConnection, "events", lambda self: (event for event in events(self) if not isinstance(event, Ping)))


@mutant("ws-close-frame-ignored", "a close frame of the client is ignored")
def close_ignored(patch: Patch) -> None:
    patch.replace(WebSocketServer, "on_close", lambda _self, _event: None)


@variation(
    "ws-frames-of-one-byte",
    "the server cuts what it sends into messages of one byte, and takes none of more than 64 KiB (RFC 6455 10.4)",
)
def frames_of_one_byte(patch: Patch) -> None:
    patch.replace(websocket, "MAX_OUTGOING_MESSAGE_BYTES", 1)
    counts = WebSocketServer.fits_limit

    def counts_few(self: WebSocketServer, event: BytesMessage) -> bool:
        self._max_message_bytes = _FEW_BYTES
        return counts(self, event)

    patch.replace(WebSocketServer, "fits_limit", counts_few)


@variation(
    "ws-ends-without-close-frame", "wrong frames and close frames are answered by the mere end of the connection"
)
def no_close_frame(patch: Patch) -> None:
    def fail(self: WebSocketServer, _reason: object, error: str) -> None:
        self.error = error
        self.phase = WebSocketPhase.CLOSED

    def on_close(self: WebSocketServer, _event: CloseConnection) -> None:
        self.phase = WebSocketPhase.CLOSED

    patch.replace(WebSocketServer, "fail", fail)
    patch.replace(WebSocketServer, "on_close", on_close)
