"""One proxy: a listener, its upstream, and the connections between, each direction through its own chain of toxics."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, cast

from assay.faults.toxiproxy.errors import ApiError, bad_request, toxic_exists, toxic_not_found
from assay.faults.toxiproxy.stages import CLOSE, Chain, Chunk
from assay.faults.toxiproxy.toxics import Stream, Toxic

_LOG: Final = logging.getLogger("assay.toxiproxy")
MAX_HELD_BYTES: Final = 4 * 1_048_576
"""Bytes that one direction of one connection may hold before its source is no longer read."""
MAX_CONNECTIONS: Final = 4_096
MAX_TOXICS: Final = 64
DIAL_TIMEOUT_S: Final = 10.0
LOOPBACK: Final = ("127.", "localhost", "[::1]", "::1")
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` -> its parts. Raises :class:`ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon:
        message = f"address {address}: missing port in address"
        raise ValueError(message)
    if not port.isdigit() or int(port) > 65_535:
        message = f"address {address}: invalid port"
        raise ValueError(message)
    return host, int(port)


def listen_address(address: str) -> tuple[str, int]:
    """Where a proxy may listen: loopback only, since a proxy passes anybody on. Raises :class:`ApiError`."""
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise ApiError(500, f"listen tcp: {error}") from error
    if not host.startswith(LOOPBACK):
        raise bad_request(f"listen: {address!r} is not a loopback address; this server binds to 127.0.0.1 only")
    return host.strip("[]"), port


class _Side(asyncio.Protocol):
    """One socket of a connection: the source of one direction and the sink of the other."""

    def __init__(self, connection: _Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        """The direction that this socket is the source of."""
        self.transport: asyncio.Transport | None = None
        self.congested = False
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.opened(self)

    def data_received(self, data: bytes) -> None:
        self.connection.received(self.stream, data)

    def eof_received(self) -> bool:
        self.connection.ended(self.stream)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.connection.ended(self.stream)
        self.connection.side_gone()

    def pause_writing(self) -> None:
        self.congested = True
        self.connection.regulate()

    def resume_writing(self) -> None:
        self.congested = False
        self.connection.regulate()

    def read(self, wanted: bool) -> None:
        """Start or stop reading."""
        if self.transport is None or self._reading == wanted or self.transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def set_reset(self) -> None:
        """From now on closing sends a reset."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)

    def close(self) -> None:
        """Close after what was written is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


class _Connection:
    """A client's socket, the upstream's socket, and the two chains between them."""

    def __init__(self, proxy: Proxy, number: int) -> None:
        self.proxy = proxy
        self.client = _Side(self, Stream.UPSTREAM)
        self.server = _Side(self, Stream.DOWNSTREAM)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ended: set[Stream] = set()
        self._reset = False
        self._dial: asyncio.Task[None] | None = None
        self.chains = {stream: Chain(proxy.rng_of(number, stream)) for stream in Stream}
        for toxic in proxy.toxics.values():
            self.chains[toxic.stream].add(toxic, self._loop.time())
            self._reset = self._reset or toxic.type == "reset_peer"

    def opened(self, side: _Side) -> None:
        """A socket is ready; the client's is the first, and makes us dial."""
        if self._reset:
            side.set_reset()
        if side is self.client:
            side.read(wanted=False)
            self._dial = self._loop.create_task(self._connect())
        else:
            self.client.read(wanted=True)
            self._move()

    async def _connect(self) -> None:
        try:
            host, port = split_address(self.proxy.upstream)
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._loop.create_connection(lambda: self.server, host.strip("[]"), port)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            _LOG.info("proxy %s: upstream %s: %s", self.proxy.name, self.proxy.upstream, error)
            self.client.close()
        if self.client.transport is None:
            self.server.close()

    def received(self, stream: Stream, data: bytes) -> None:
        """Bytes from the source of a direction."""
        self.proxy.count(stream, received=len(data))
        now = self._loop.time()
        self.chains[stream].push(Chunk(data, now), now)
        self._move()

    def ended(self, stream: Stream) -> None:
        """The source of a direction sends no more."""
        if stream not in self._ended:
            self._ended.add(stream)
            self.chains[stream].push(CLOSE, self._loop.time())
            self._move()

    def side_gone(self) -> None:
        """A socket is closed; forget the connection when both are."""
        if self.client.transport is None and self.server.transport is None:
            if self._timer is not None:
                self._timer.cancel()
            self.proxy.forget(self)

    def change(self, action: Callable[[Chain, float], None], stream: Stream) -> None:
        """Add, update or remove a toxic on one direction."""
        action(self.chains[stream], self._loop.time())
        self._move()

    def abort(self) -> None:
        """Close both sockets: the proxy is disabled or deleted."""
        if self._dial is not None:
            self._dial.cancel()
        self.client.close()
        self.server.close()

    def regulate(self) -> None:
        """Read a source only while its chain has room and its sink keeps up."""
        for source, sink in ((self.client, self.server), (self.server, self.client)):
            if sink.transport is not None:
                source.read(wanted=not sink.congested and self.chains[source.stream].held_bytes < MAX_HELD_BYTES)

    def _move(self) -> None:
        if self.server.transport is None and Stream.DOWNSTREAM not in self._ended:
            return  # not connected to the upstream yet; `opened` moves what waits
        now = self._loop.time()
        for stream, sink in ((Stream.UPSTREAM, self.server), (Stream.DOWNSTREAM, self.client)):
            for item in self.chains[stream].run(now):
                if isinstance(item, Chunk):
                    if sink.transport is not None and not sink.transport.is_closing():
                        sink.transport.write(item.data)
                        self.proxy.count(stream, sent=len(item.data))
                else:
                    sink.close()
        self.regulate()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [deadline for chain in self.chains.values() if (deadline := chain.next_deadline()) is not None]
        if deadlines and not (self.client.transport is None and self.server.transport is None):
            self._timer = self._loop.call_at(min(deadlines), self._move)


class Proxy:
    """A named proxy. Every method runs in the server's event loop."""

    def __init__(self, name: str, listen: str, upstream: str, *, seed: int) -> None:
        listen_address(listen)
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.enabled = False
        self.toxics: dict[str, Toxic] = {}
        self.bytes: dict[tuple[str, Stream], int] = {}
        """Bytes so far by (``received`` or ``sent``, direction)."""
        self._seed = seed
        self._accepted = 0
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the API shows a proxy."""
        return {
            "name": self.name,
            "listen": self.listen,
            "upstream": self.upstream,
            "enabled": self.enabled,
            "toxics": [toxic.to_json() for toxic in self.toxics.values()],
        }

    def rng_of(self, connection: int, stream: Stream) -> Callable[[str], random.Random]:
        """Chance of one direction of one connection: the same traffic meets the same fate again."""

        def rng(toxic: str) -> random.Random:
            return random.Random(f"{self._seed}/{self.name}/{connection}/{stream.value}/{toxic}")

        return rng

    def count(self, stream: Stream, *, received: int = 0, sent: int = 0) -> None:
        """Add to the byte counters."""
        for kind, size in (("received", received), ("sent", sent)):
            if size:
                self.bytes[kind, stream] = self.bytes.get((kind, stream), 0) + size

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    async def start(self) -> None:
        """Listen. Raises :class:`ApiError` (500) when the address cannot be bound."""
        host, port = listen_address(self.listen)
        try:
            self._server = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=1_024)
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno is not None else str(error)
            raise ApiError(500, f"listen tcp {self.listen}: bind: {why}") from error
        if port == 0:
            bound = self._server.sockets[0].getsockname()[1]
            self.listen = f"{self.listen.rpartition(':')[0]}:{bound}"
        self.enabled = True

    def _accept(self) -> asyncio.Protocol:
        if len(self._connections) >= MAX_CONNECTIONS:
            _LOG.warning("proxy %s: refused a connection, %d are open", self.name, MAX_CONNECTIONS)
            return _Refused()
        connection = _Connection(self, self._accepted)
        self._accepted += 1
        self._connections.add(connection)
        return connection.client

    async def stop(self) -> None:
        """Close the listener and every connection."""
        self.enabled = False
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._connections):
            connection.abort()

    async def update(self, *, listen: str, upstream: str, enabled: bool) -> None:
        """Change address or state; a new address drops the connections. Raises :class:`ApiError`."""
        listen_address(listen)
        if (listen, upstream) != (self.listen, self.upstream):
            await self.stop()
            self.listen, self.upstream = listen, upstream
        if enabled and not self.enabled:
            await self.start()
        elif not enabled and self.enabled:
            await self.stop()

    def get_toxic(self, name: str) -> Toxic:
        """Raises :class:`ApiError` (404)."""
        if name not in self.toxics:
            raise toxic_not_found()
        return self.toxics[name]

    def add_toxic(self, toxic: Toxic) -> None:
        """Raises :class:`ApiError` (409 for a taken name)."""
        if toxic.name in self.toxics:
            raise toxic_exists()
        if len(self.toxics) >= MAX_TOXICS:
            raise ApiError(400, f"a proxy takes at most {MAX_TOXICS} toxics")
        self.toxics[toxic.name] = toxic
        self._change(lambda chain, now: chain.add(toxic, now), toxic.stream)

    def change_toxic(self, toxic: Toxic) -> None:
        """Replace the toxic of the same name."""
        self.toxics[toxic.name] = toxic
        self._change(lambda chain, now: chain.update(toxic, now), toxic.stream)

    def remove_toxic(self, name: str) -> None:
        """Raises :class:`ApiError` (404)."""
        toxic = self.get_toxic(name)
        del self.toxics[name]
        self._change(lambda chain, now: chain.remove(name, now), toxic.stream)

    def _change(self, action: Callable[[Chain, float], None], stream: Stream) -> None:
        for connection in list(self._connections):
            connection.change(action, stream)


class _Refused(asyncio.Protocol):
    """Closes what is accepted beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
