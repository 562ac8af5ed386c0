"""WebSocket between a transport and an MQTT protocol, as TLS is: each side sees what it would see on plain TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from assay.reference_broker.config import WebSocketConfig
from assay.reference_broker.server.tls import unsent_bytes
from assay.reference_broker.server.websocket import WebSocketPhase, WebSocketServer


class WebSocketLayer(asyncio.Protocol):
    """Towards the network a protocol; ``inner`` gets MQTT bytes and a transport that frames what it is given."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        config: WebSocketConfig,
        tell: Callable[[object, object], None],
        *,
        max_unread_bytes: int,
        linger_s: float,
    ) -> None:
        """``tell`` hears whose connection ended and why; ``max_unread_bytes``: of answers to control frames;
        ``linger_s``: for a closing client to take its output."""
        self._inner = inner
        self._tell = tell
        self._websocket = WebSocketServer(config)
        self._max_unread_bytes = max_unread_bytes
        self._linger_s = linger_s
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._inner_reads = True
        self._going_on = False
        """More frames have come than are handled at once; others are served between."""
        self._lost: tuple[Exception | None] | None = None
        """The transport has ended, by this error; what came before is handled first."""

    # -- the network's side --------------------------------------------------------------------------------------

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, base)
        self._inner.connection_made(_FramingTransport(self, self._transport))

    def data_received(self, data: bytes) -> None:
        payload = self._websocket.receive(data)
        if payload:
            self._inner.data_received(payload)
        self._send_output()
        if self._websocket.has_more:
            if self._transport is not None:
                self._transport.pause_reading()
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on and self._inner_reads:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        if self._inner_reads:
            self.data_received(b"")
            self._caught_up()

    def _caught_up(self) -> None:
        if self._websocket.has_more:
            self._go_on_soon()
        elif self._lost is not None:
            (error,), self._lost = self._lost, None
            self._inner.connection_lost(error)
        elif self._inner_reads and self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._transport = None
        if self._websocket.has_more:
            self._lost = (error,)
        else:
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # -- the MQTT side -------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Pass nothing on for now."""
        self._inner_reads = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Pass on what comes, and first what has come."""
        self._inner_reads = True
        self._caught_up()

    def write(self, data: bytes) -> None:
        """Frame and send."""
        framed = self._websocket.frame(data)
        if framed and self._transport is not None:
            self._transport.write(framed)

    def close(self) -> None:
        """Start the close handshake; whoever closes cuts a client that does not answer it."""
        self._websocket.close()
        self._send_output()

    def _send_output(self) -> None:
        transport, websocket = self._transport, self._websocket
        if transport is None:
            return
        output = websocket.take_output()
        if output:
            transport.write(output)
            if unsent_bytes(transport) > self._max_unread_bytes:
                transport.abort()
                return
        if websocket.phase is WebSocketPhase.CLOSED and self._linger is None:
            if websocket.error:
                self._tell(transport.get_extra_info("peername"), websocket.error)
            transport.close()
            self._linger = asyncio.get_running_loop().call_later(self._linger_s, transport.abort)


class _FramingTransport(asyncio.Transport):
    """What the MQTT protocol writes to."""

    def __init__(self, layer: WebSocketLayer, below: asyncio.Transport) -> None:
        super().__init__()
        self._layer = layer
        self._below = below

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # the base class's signature
        return self._below.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return unsent_bytes(self._below)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._layer.write(bytes(data))

    def pause_reading(self) -> None:
        self._layer.pause_reading()

    def resume_reading(self) -> None:
        self._layer.resume_reading()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def close(self) -> None:
        self._layer.close()

    def abort(self) -> None:
        self._below.abort()
