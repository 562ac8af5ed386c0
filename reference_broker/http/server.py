"""HTTP of a running broker: one application, and a protocol for each of its listeners."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from uvicorn.config import Config
from uvicorn.server import ServerState

from assay.reference_broker.api.callers import Arrival
from assay.reference_broker.api.service import Service
from assay.reference_broker.http.app import create_app
from assay.reference_broker.http.guard import Guard
from assay.reference_broker.http.protocol import HttpProtocol, WebSocketProtocol

_GOODBYE_S = 5.0
"""For requests that are under way when the broker stops."""


class HttpServer:
    """Made once for a broker, when its first listener speaks HTTP."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self.service = service
        self._header_timeout_s = config.header_timeout_s
        self._max_connections: int | None = None
        self._states: list[ServerState] = []
        self._config = Config(
            Guard(create_app(self.service), self.service),
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=config.max_body_bytes,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            interface="asgi3",
            timeout_keep_alive=config.keep_alive_s,  # type: ignore[arg-type]  # it is given to call_later
            h11_max_incomplete_event_size=config.max_header_bytes,
        )
        self._config.load()

    def protocol(
        self, *, limit: int, arrival_of: Callable[[asyncio.Transport], Arrival | None]
    ) -> Callable[[], asyncio.Protocol]:
        """What makes the protocols of a listener; see :class:`HttpProtocol`."""
        state = ServerState()
        self._states.append(state)
        return lambda: HttpProtocol(
            self._config, state, limit=limit, header_timeout_s=self._header_timeout_s, arrival_of=arrival_of
        )

    def descriptors(self) -> list[int]:
        """Of the sockets of its connections."""
        transports = [each.transport for state in self._states for each in state.connections]
        sockets = [each.get_extra_info("socket") for each in transports if each is not None and not each.is_closing()]
        return [each.fileno() for each in sockets if each is not None]

    async def close(self) -> None:
        """Let requests that are under way end, and who waits for messages go without; then cut what is left."""
        self.service.stop()
        for state in self._states:
            for connection in list(state.connections):
                connection.shutdown()
        tasks = [task for state in self._states for task in state.tasks]
        if tasks:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await asyncio.wait(tasks)
            for task in tasks:
                task.cancel()
        for state in self._states:
            for connection in list(state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
