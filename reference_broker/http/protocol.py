"""uvicorn's HTTP/1.1 in the broker's event loop, with what it lacks: time for a head to come, a number of connections,
problems in one form, no lines in the log that a client can ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState

from assay.reference_broker.api.callers import Arrival
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.http.guard import refusal

_quiet = logging.Logger("assay.http", logging.CRITICAL + 1)
"""Whatever uvicorn would tell of a client; the guard tells of bugs."""


class WebSocketProtocol(WSProtocol):
    """A connection that has become a WebSocket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet


class HttpProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        limit: int,
        header_timeout_s: float,
        arrival_of: Callable[[asyncio.Transport], Arrival | None],
    ) -> None:
        """``limit``: of connections of the listener. ``arrival_of`` says who came; None = refused, and told of."""
        self.server_state = state
        super().__init__(config, state, {})
        self.logger = self.access_logger = _quiet
        self.access_log = False
        self._limit = limit
        self._header_timeout_s = header_timeout_s
        self._arrival_of = arrival_of
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        arrival = None if len(self.connections) >= self._limit else self._arrival_of(transport)
        super().connection_made(transport)
        if arrival is None:
            transport.abort()
            return
        self.app_state = {"arrival": arrival, "abort": transport.abort}
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        # The rest of it leads back here.
        self.app_state = {}

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def _watch_head(self) -> None:
        """A head that has begun to come has so long; between requests, uvicorn's keep-alive counts."""
        rests = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        waits = self.conn.their_state is h11.IDLE and not rests
        if not waits:
            self._stop_watching()
        elif self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self._header_timeout_s, self._head_is_late)

    def _stop_watching(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _head_is_late(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP, or too large a head."""
        error = RequestError(Code.BAD_REQUEST, "that is not HTTP/1.1, or its head is too large")
        status, headers, content = refusal(error)
        try:
            start = h11.Response(status_code=status, headers=[*headers, (b"connection", b"close")])
            for event in (start, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            # An answer is under way already.
            self.transport.abort()
            return
        self.transport.close()
