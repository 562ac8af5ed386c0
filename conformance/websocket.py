"""An MQTT connection over WebSocket: what a case sends is framed, what comes is unframed."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from assay.conformance.connection import Connection
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.wire.websocket import (
    SUBPROTOCOL,
    Frame,
    FrameReader,
    Opcode,
    Response,
    ResponseReader,
    WebSocketError,
    accept_value,
    encode_frame,
    request,
)

if TYPE_CHECKING:
    from assay.conformance.case import CaseContext

DEFAULT_PORTS = {"ws": 80, "wss": 443}
_SWITCHING_PROTOCOLS = 101


class WebSocketConnection(Connection):
    """Made by :meth:`CaseContext.open_websocket`. MQTT packets go out as one binary frame per write.

    Pings of the broker are answered, and so is its close frame. The methods named after frames say what no client
    library would.
    """

    def __init__(self, ctx: CaseContext, name: str, version: int, url: str) -> None:
        super().__init__(ctx, name, version)
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
        self.is_secure = parts.scheme == "wss"
        self._authority = parts.netloc
        self._path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        self._key = ctx.rng.randbytes(16)
        self._head: ResponseReader | None = ResponseReader()
        self._response: Response | None = None
        self._frames = FrameReader()
        self.pongs: deque[bytes] = deque()
        """Payloads of the pongs that came."""
        self.close_code: int | None = None
        """Of the broker's close frame: 0 when it had none, None as long as none came."""
        self.text_frames = 0
        self.broken = ""
        """Why the broker's bytes are no WebSocket."""
        self._close_sent = False

    # The opening handshake

    def send_handshake(self, *, subprotocols: tuple[str, ...] = (SUBPROTOCOL,), more: tuple[str, ...] = ()) -> None:
        """Ask for the upgrade; ``more`` are further header lines."""
        data = request(self._authority, self._path, self._key, subprotocols=subprotocols, more=more)
        offered = ", ".join(subprotocols) or "none"
        self.send_bytes(data, f"HTTP GET {self._path}, {len(data)} bytes; sub-protocols offered: {offered}")

    async def response(self) -> Response | None:
        """The answer to the handshake; None when the broker ended the connection without one."""
        while self._response is None:
            if self.broken:
                raise self._no_upgrade(f"expected an HTTP response; {self.broken}")
            if self.closed:
                return None
            await self._arrival("the answer to the WebSocket handshake")
        return self._response

    async def response_or_silence(self, *, within_s: float) -> Response | None:
        """Like :meth:`response`, but None also when nothing comes in time: for a reaction that nothing demands."""
        with contextlib.suppress(CaseFailureError):
            while self._response is None and not self.closed:
                await self._arrival("the answer to the WebSocket handshake", within_s)
        return self._response

    async def expect_upgrade(self) -> Response:
        """The handshake must be accepted, with the right proof and nothing that was not offered."""
        response = await self.response()
        if response is None or response.status != _SWITCHING_PROTOCOLS:
            seen = "the end of the connection" if response is None else f"status {response.status}"
            raise self._no_upgrade(f"expected status 101; seen {seen}")
        accept = response.header("sec-websocket-accept")
        if accept != accept_value(self._key):
            raise self._no_upgrade(f"Sec-WebSocket-Accept is {accept!r} and does not answer the key")
        if response.header("sec-websocket-extensions"):
            raise self._no_upgrade("the broker uses an extension that was not offered")
        return response

    def _no_upgrade(self, text: str) -> StepFailureError:
        return StepFailureError(Incident(rule=Rule.UPGRADE, text=f"{self.name}: {text}"))

    # Frames

    def send_frame(
        self,
        opcode: int,
        payload: bytes = b"",
        *,
        final: bool = True,
        masked: bool = True,
        reserved: int = 0,
    ) -> None:
        """Send one frame as told; after a wrong one the runner checks that the broker is still alive."""
        self._in_pieces = True
        if not masked or reserved or opcode == Opcode.TEXT or opcode not in set(Opcode):
            self.ctx.sent_raw = True
        mask = self.ctx.rng.randbytes(4) if masked else None
        data = encode_frame(opcode, payload, mask=mask, final=final, reserved=reserved)
        name = Opcode(opcode).name if opcode in set(Opcode) else f"opcode 0x{opcode:x}"
        shown = f"{name} frame, {len(payload)} bytes{'' if final else ', more follow'}{'' if masked else ', unmasked'}"
        self.send_bytes(data, shown)

    def send_in_frames(self, *parts: bytes) -> None:
        """Send one binary message that is cut into these frames."""
        for index, part in enumerate(parts):
            opcode = Opcode.CONTINUATION if index else Opcode.BINARY
            self.send_frame(opcode, part, final=index == len(parts) - 1)

    def send_close(self, code: int = 1000) -> None:
        """Start (or answer) the close handshake."""
        if not self._close_sent:
            self._close_sent = True
            self.send_frame(Opcode.CLOSE, code.to_bytes(2, "big"))

    async def expect_pong(self, payload: bytes) -> None:
        """A pong with this payload must come; packets that come before stay in the inbox."""
        while not self.pongs:
            if self._carrier is not None:
                text = f"{self.name}: expected a pong; {self._carrier.text}"
                raise StepFailureError(msgspec.structs.replace(self._carrier, text=text))
            if self.closed:
                raise self._no_pong(f"{self.name}: expected a pong; the broker ended the connection")
            try:
                await self._arrival("a pong")
            except CaseFailureError as error:
                raise self._no_pong(str(error)) from error
        seen = self.pongs.popleft()
        if seen != payload:
            raise self._no_pong(f"{self.name}: expected a pong with {payload!r}; seen {seen!r}")

    @staticmethod
    def _no_pong(text: str) -> StepFailureError:
        return StepFailureError(Incident(rule=Rule.PONG, text=text))

    # Below: the two ends of Connection that differ

    def send_bytes(self, data: bytes, shown: str) -> None:
        """Send bytes that are in no frame; ``shown`` is what the transcript says of them."""
        self.ctx.transcript.add(self.name, "send", data, shown)
        super()._write(data)

    def _write(self, data: bytes) -> None:
        super()._write(encode_frame(Opcode.BINARY, data, mask=self.ctx.rng.randbytes(4)))

    def data_received(self, data: bytes) -> None:
        try:
            if self._head is not None:
                done = self._head.feed(data)
                if done is None:
                    return
                self._head = None
                self._response, data = done
                self.ctx.transcript.add(self.name, "recv", decoded=_shown(self._response))
                self._wake.set()
            if self._response is not None and self._response.status != _SWITCHING_PROTOCOLS:
                return
            for frame in self._frames.feed(data):
                self._frame_received(frame)
        except WebSocketError as error:
            self.broken = str(error)
            self.ctx.transcript.add(self.name, "recv", data, f"NO WEBSOCKET: {error}")
            self._refuse_bytes(self.broken, Rule.FRAMES, error.statement)
        if self.pongs or self._malformed is not None:
            self._wake.set()

    def _frame_received(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.BINARY | Opcode.CONTINUATION:
                super().data_received(frame.payload)
            case Opcode.TEXT:
                self.text_frames += 1
                self._refuse_bytes("a text frame, where MQTT is sent in binary frames", Rule.BINARY)
            case Opcode.PING:
                self.ctx.transcript.add(self.name, "recv", frame.payload, "PING frame")
                self.send_frame(Opcode.PONG, frame.payload)
            case Opcode.PONG:
                self.ctx.transcript.add(self.name, "recv", frame.payload, "PONG frame")
                self.pongs.append(frame.payload)
            case Opcode.CLOSE:
                self.close_code = int.from_bytes(frame.payload[:2], "big")
                reason = frame.payload[2:].decode(errors="replace")
                self.ctx.transcript.add(self.name, "recv", frame.payload, f"CLOSE frame {self.close_code} {reason}")
                self.send_close(self.close_code or 1000)


def _shown(response: Response) -> str:
    chosen = response.header("sec-websocket-protocol")
    return f"HTTP status {response.status}; sub-protocol selected: {chosen or 'none'}"
