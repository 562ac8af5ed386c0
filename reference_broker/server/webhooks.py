"""Sends what outboxes hold, alerts of dead letters and events: one POST each, guarded, since whoever may configure a
queue chooses where its alerts go.

The name is looked up once and the connection goes to the address that was checked, so a name cannot change in between.
Addresses that are not public are refused unless what is sent allows them (``allow_private``).
Redirects are not followed, the whole request has one time limit, and of an answer no more is read than is asked for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from assay.reference_broker.queues.jobs.outbox import OutboundRequest, Outbox

_MAX_LINE_BYTES: Final = 8 * 1024
_MAX_HEADERS: Final = 100
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: .*)?\r?\n")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NOT_PUBLIC_IPV4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
"""What IANA's registry of special-purpose IPv4 addresses does not call globally reachable, and multicast."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All that is given out as global unicast. Loopback, local (also site-local) and multicast addresses, those of the
discard and segment-routing blocks and IPv4-compatible ones lie outside."""
_NOT_PUBLIC_IPV6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID and others
            "2001:db8::/32",
            "2002::/16",  # 6to4: whatever IPv4 address is within
            "3fff::/20",
        ),
    )
)
"""Likewise, of the special-purpose IPv6 addresses within it."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Carries an IPv4 address to the public internet; 64:ff9b:1::/48 does so to anywhere, and is outside of the above."""


class WebhookError(Exception):
    """A request was not accepted."""


class WebhookSender:
    """Makes the requests that the outboxes of a broker ask for, in the event loop."""

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        clock: Callable[[], float],
        warn: Callable[[str, str], None],
        begin_turn: Callable[[float], None] = lambda _now: None,
    ) -> None:
        """``warn`` takes the kind of a problem and what to write to the log; ``begin_turn`` is called before somebody
        is told of an answer."""
        self._begin_turn = begin_turn
        self._outboxes = outboxes
        self._warn = warn
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def pump(self) -> None:
        """Start what is due; nothing once it is closed. Cheap when there is nothing."""
        if self._closed or self._next_deadline is None:
            return
        now = self._clock()
        for outbox in self._outboxes:
            for request in outbox.take(now):
                task = self._loop.create_task(self._run(outbox, request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        deadline = self._next_deadline
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - now), self.pump)

    @property
    def _next_deadline(self) -> float | None:
        found = [outbox.next_deadline for outbox in self._outboxes]
        return min((deadline for deadline in found if deadline is not None), default=None)

    async def _run(self, outbox: Outbox, request: OutboundRequest) -> None:
        accepted, answer = False, b""
        try:
            async with asyncio.timeout(request.timeout_s):
                answer = await post(request, self._tls)
            accepted = True
        except (OSError, ValueError, EOFError, WebhookError, asyncio.LimitOverrunError) as error:
            # Not the whole URL: its path or query may be a secret.
            reason = "it took too long" if isinstance(error, TimeoutError) else error
            self._warn("alerts", f"{outbox.what} to {urlsplit(request.url).hostname}: {reason}")
        finally:
            now = self._clock()
            if request.most_answer_bytes:
                self._begin_turn(now)
            outbox.done(request, accepted=accepted, now=now, answer=answer)
        self.pump()

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context

    async def close(self) -> None:
        """End what is under way. Turns of the broker may follow, and start nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def post(request: OutboundRequest, tls: Callable[[], ssl.SSLContext]) -> bytes:
    """Make one request; returns of its answer what is asked for. Raises :class:`WebhookError`, :class:`OSError`, or
    what reading an answer raises."""
    parts = urlsplit(request.url)
    host = parts.hostname or ""
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    address = await _resolve(host, port, allow_private=request.allow_private)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        address,
        port,
        limit=_MAX_LINE_BYTES,
        ssl=tls() if secure else None,
        server_hostname=host if secure else None,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        # An answer to 1.0 comes in one piece, and ends with its connection.
        version = "1.0" if request.most_answer_bytes else "1.1"
        head = (
            f"POST {path} HTTP/{version}\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(request.body)}\r\nUser-Agent: assay\r\n{headers}Connection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii") + request.body)
        await writer.drain()
        status = _STATUS.fullmatch(await reader.readuntil(b"\n"))
        if status is None:
            message = "the answer is not HTTP"
            raise WebhookError(message)
        if not status[1].startswith(b"2"):
            message = f"the answer is {status[1].decode()}"
            raise WebhookError(message)
        return await _body(reader, request.most_answer_bytes) if request.most_answer_bytes else b""
    finally:
        writer.transport.abort()


async def _body(reader: asyncio.StreamReader, most: int) -> bytes:
    """Raises :class:`WebhookError` where it is too long."""
    for _ in range(_MAX_HEADERS):
        if not (await reader.readuntil(b"\n")).strip():
            break
    content = bytearray()
    while len(content) <= most and (part := await reader.read(most + 1 - len(content))):
        content += part
    if len(content) > most:
        message = f"the answer has more than {most} bytes"
        raise WebhookError(message)
    return bytes(content)


async def _resolve(host: str, port: int, *, allow_private: bool) -> str:
    """The first address of a host that may be connected to. Raises :class:`WebhookError`, :class:`OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, place in found:
        address = str(place[0])
        if allow_private or is_public(address):
            return address
    message = "its addresses are not public, and allow_private (for alerts queues.alert_allow_private) is off"
    raise WebhookError(message)


def is_public(address: str) -> bool:
    """Whether an IP address, as a resolver writes it, is one of the public internet; an IPv4 address that an IPv6
    address carries is judged in its place."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False  # not as resolvers write it: octal, hexadecimal or short forms
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _NOT_PUBLIC_IPV4)
    if parsed.scope_id is not None:
        return False
    if parsed.ipv4_mapped is not None:
        return is_public(str(parsed.ipv4_mapped))
    if parsed in _NAT64:
        return is_public(str(ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)))
    return parsed in _UNICAST and not any(parsed in network for network in _NOT_PUBLIC_IPV6)
