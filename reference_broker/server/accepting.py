"""Accepts connections while there are descriptors for them; what the storage needs is never given to a client.

Python's own servers accept all that waits before they look at any of it, and with TLS look only once a handshake is
done. Here a connection whose descriptor lies in the reserve is closed before anything else is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial

from assay.reference_broker.core.newcomers import Newcomers
from assay.reference_broker.core.rates import arrival_key
from assay.reference_broker.server.file_limit import connection_descriptors

_BACKLOG = 1_024
_MOST_A_TURN = 64
_REST_S = 0.5
"""After an error of the system, such as no memory for another socket."""


class _Handshake:
    """A connection that is being opened, as :class:`Newcomer`."""

    def __init__(self, task: asyncio.Task[object], connection: socket.socket) -> None:
        self._task = task
        self.connection = connection

    def give_way(self, _now: float) -> None:
        self._task.cancel()


class Acceptor:
    """One listening socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        warn: Callable[[str, str], None],
        *,
        context: ssl.SSLContext | None,
        handshakes: Newcomers,
        handshake_timeout_s: float | None,
    ) -> None:
        """Starts at once. ``warn`` is told the kind of a problem and what to write to the log."""
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self._loop = loop
        self._listening = listening
        self._make_protocol = make_protocol
        self._warn = warn
        self._context = context
        self._handshakes = handshakes
        self._handshake_timeout_s = handshake_timeout_s
        self._opening: set[asyncio.Task[object]] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._listen()

    @property
    def descriptor(self) -> int:
        """Of its socket; below 0 once it is closed."""
        return self._listening.fileno()

    def _listen(self) -> None:
        self._rest = None
        self._most = connection_descriptors()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_MOST_A_TURN):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._warn("accept", f"connections cannot be accepted: {error.strerror or error}; tried again soon")
                self._loop.remove_reader(self._listening.fileno())
                self._rest = self._loop.call_later(_REST_S, self._listen)
                return
            # The system gives the lowest number that is free, so this many files are open at least.
            if self._most is not None and connection.fileno() >= self._most:
                connection.close()
                self._warn(
                    "descriptors",
                    f"connection refused: {self._most} files are open, and the rest of the limit is kept for storage; "
                    "raise it (ulimit -n), or lower max_connections",
                )
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            handshake = _Handshake(task, connection)
            task.add_done_callback(partial(self._opened, handshake))
            if self._context is not None:
                self._handshakes.add(handshake, arrival_key("", str(address[0])), 0.0)

    def _opened(self, handshake: _Handshake, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        self._handshakes.remove(handshake)
        if task.cancelled():
            # Perhaps before it began, and then nobody else has the socket.
            handshake.connection.close()

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_timeout_s,
            )
        except (OSError, ssl.SSLError):
            # A handshake that failed, or a client that has gone.
            connection.close()

    def close(self) -> None:
        """Stop listening, and give up handshakes that are under way. Twice is fine."""
        if self._rest is not None:
            self._rest.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        for task in list(self._opening):
            task.cancel()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address of the host. Raises :class:`OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = opened.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind(address)
            except OSError as error:
                message = f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0).lower()}"
                raise OSError(error.errno, message) from error
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            sockets.append(listening)
        opened.pop_all()
    return sockets
