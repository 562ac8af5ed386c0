"""CoAP of a running broker: a UDP socket for each address of its listeners."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from functools import partial
from typing import Any, Final, cast

from assay.reference_broker.api.callers import Arrival
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.service import Service
from assay.reference_broker.coap.bridge import refusal, respond
from assay.reference_broker.coap.exchanges import Exchanges, Remote, Request
from assay.reference_broker.config import ListenerConfig, is_loopback

_GOODBYE_S: Final = 5.0
"""For requests that are under way when the broker stops."""


class CoapServer:
    """Made once for a broker, when its first listener speaks CoAP."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._endpoints: list[_Endpoint] = []

    async def listen(self, listener: ListenerConfig) -> tuple[str, int]:
        """Start a listener; returns its address. Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            listener.host or None, listener.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
        started: list[_Endpoint] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            endpoint = _Endpoint(self._service, loopback=is_loopback(listener.host))
            bound = socket.socket(family, kind, protocol)
            try:
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind(address)
                bound.setblocking(False)
                await loop.create_datagram_endpoint(partial(_itself, endpoint), sock=bound)
            except OSError as error:
                bound.close()
                reason = os.strerror(error.errno or 0).lower()
                message = f"cannot listen on {listener.host}:{listener.port} (UDP): {reason}"
                raise OSError(error.errno, message) from error
            self._endpoints.append(endpoint)
            started.append(endpoint)
        return started[0].address

    def descriptors(self) -> list[int]:
        """Of its sockets."""
        return [endpoint.descriptor for endpoint in self._endpoints]

    async def close(self) -> None:
        """Let requests that are under way end."""
        self._service.stop()
        tasks = [task for endpoint in self._endpoints for task in endpoint.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=_GOODBYE_S)
        for endpoint in self._endpoints:
            endpoint.close()


def _itself(endpoint: _Endpoint) -> _Endpoint:
    return endpoint


class _Endpoint(asyncio.DatagramProtocol):
    """One socket."""

    def __init__(self, service: Service, *, loopback: bool) -> None:
        self._service = service
        self._loopback = loopback
        # Message ids should not be guessable by who is not on the way (RFC 7252, 11.4).
        self._exchanges = Exchanges(random.Random(secrets.randbits(256)), service.config.max_body_bytes)
        self._transport: asyncio.DatagramTransport | None = None
        self._is_full = False
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        return str(host), int(port)

    @property
    def descriptor(self) -> int:
        """Below 0 once it is closed."""
        if self._transport is None or self._transport.is_closing():
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        """Twice is fine."""
        for task in self.tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports by shape only.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def datagram_received(self, data: bytes, place: tuple[Any, ...]) -> None:
        _, now = self._service.turn()
        answer, request = self._exchanges.receive(data, place, now)
        if answer is not None:
            self._send(answer, place)
        if request is None:
            return
        if len(self.tasks) >= self._service.config.max_requests:
            busy = RequestError(Code.BUSY, "so many requests are under way that this one must come later")
            self._send(self._exchanges.answer(request, refusal(busy)), place)
            return
        task = asyncio.ensure_future(self._serve(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, request: Request) -> None:
        address = str(request.remote[0])
        arrival = Arrival(peer=str(request.remote), address=address, loopback=self._loopback)
        answer = await respond(self._service, request, arrival)
        self._send(self._exchanges.answer(request, answer), request.remote)

    def _send(self, data: bytes, remote: Remote) -> None:
        # What is left out is asked for again, as what is lost on its way.
        if self._transport is not None and not self._is_full and not self._transport.is_closing():
            self._transport.sendto(data, remote)
