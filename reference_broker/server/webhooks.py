"""Sends what outboxes hold, alerts of dead letters and events: one POST each, guarded, since whoever may configure a
queue chooses where its alerts go.

The name is looked up once and the connection goes to the address that was checked, so a name cannot change in between.
Addresses that are not public are refused unless what is sent allows them (``allow_private``).
Redirects are not followed, the whole request has one time limit, and of an answer no more is read than is asked for.
Who is asked a question is asked the next one over the same connection, where the answer leaves it open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from assay.reference_broker.queues.jobs.outbox import OutboundRequest, Outbox

_MAX_LINE_BYTES: Final = 8 * 1024
_MAX_HEADERS: Final = 100
MAX_KEPT: Final = 32
"""Connections that are kept for the next question; the oldest makes room."""
KEPT_S: Final = 5.0
"""How long one is kept; many servers close theirs a little later."""
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: .*)?\r?\n")
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


Place = tuple[str, str, bool]
"""Scheme, host and port as the URL has them, and whether the address may be a private one."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Kept:
    """Connections between two questions."""

    def __init__(self) -> None:
        self._idle: deque[tuple[Place, Streams, asyncio.TimerHandle]] = deque()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, place: Place) -> Streams | None:
        """The one that was used last, as far as is known still open."""
        for at in reversed(range(len(self._idle))):
            if self._idle[at][0] == place:
                _, (reader, writer), timer = self._idle[at]
                del self._idle[at]
                timer.cancel()
                if not (writer.is_closing() or reader.at_eof()):
                    return reader, writer
                writer.transport.abort()
        return None

    def put(self, place: Place, streams: Streams) -> None:
        timer = asyncio.get_running_loop().call_later(KEPT_S, streams[1].transport.abort)
        self._idle.append((place, streams, timer))
        if len(self._idle) > MAX_KEPT:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, writer), timer = self._idle.popleft()
        timer.cancel()
        writer.transport.abort()

    def close(self) -> None:
        while self._idle:
            self._drop_oldest()


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
        self._kept = Kept()
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
                answer = await post(request, self._tls, self._kept)
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
        self._kept.close()


async def post(request: OutboundRequest, tls: Callable[[], ssl.SSLContext], kept: Kept) -> bytes:
    """Make one request; returns of its answer what is asked for. Raises :class:`WebhookError`, :class:`OSError`, or
    what reading an answer raises."""
    parts = urlsplit(request.url)
    place = parts.scheme, parts.netloc, request.allow_private
    again = kept.take(place) if request.most_answer_bytes else None
    if again is not None:
        try:
            return await _exchange(request, parts, again, kept, is_kept=True)
        except (EOFError, OSError):
            pass  # It ended meanwhile, which nobody could know.
    host = parts.hostname or ""
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    address = await _resolve(host, port, allow_private=request.allow_private)
    secure = parts.scheme == "https"
    streams = await asyncio.open_connection(
        address,
        port,
        limit=_MAX_LINE_BYTES,
        ssl=tls() if secure else None,
        server_hostname=host if secure else None,
    )
    return await _exchange(request, parts, streams, kept)


async def _exchange(
    request: OutboundRequest, parts: SplitResult, streams: Streams, kept: Kept, *, is_kept: bool = False
) -> bytes:
    """The request and its answer over a connection, which is kept or ended. Raises as :func:`post`, and
    :class:`EOFError` where on one that ``is_kept`` something came unasked: that answers no question."""
    reader, writer = streams
    is_open = False
    try:
        if is_kept and not await _is_silent(reader):
            raise EOFError
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(request.body)}\r\nUser-Agent: assay\r\n{headers}"
            f"Connection: {'keep-alive' if request.most_answer_bytes else 'close'}\r\n\r\n"
        )
        writer.write(head.encode("ascii") + request.body)
        await writer.drain()
        status = _STATUS.fullmatch(await reader.readuntil(b"\n"))
        if status is None:
            raise WebhookError("the answer is not HTTP")
        version, code = status.groups()
        if not code.startswith(b"2"):
            raise WebhookError(f"the answer is {code.decode()}")
        if not request.most_answer_bytes:
            return b""
        fields = await _fields(reader)
        if code == b"204":
            fields["content-length"] = "0"
        content, has_ended = await _body(reader, fields, request.most_answer_bytes)
        is_open = not has_ended and version == b"1" and "close" not in fields.get("connection", "")
        return content
    finally:
        if is_open:
            kept.put((parts.scheme, parts.netloc, request.allow_private), streams)
        else:
            writer.transport.abort()


async def _is_silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing has come since the last answer, nor the end."""
    try:
        async with asyncio.timeout(0):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def _fields(reader: asyncio.StreamReader) -> dict[str, str]:
    """Header or trailer fields: by names in small letters values likewise. Raises :class:`WebhookError`."""
    fields: dict[str, str] = {}
    for _ in range(_MAX_HEADERS):
        line = (await reader.readuntil(b"\n")).strip().decode("latin-1").lower()
        if not line:
            return fields
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    raise WebhookError(f"the answer has more than {_MAX_HEADERS} fields")


async def _body(reader: asyncio.StreamReader, fields: dict[str, str], most: int) -> tuple[bytes, bool]:
    """And whether the connection ended with it. Raises :class:`WebhookError` where it is too long, :class:`ValueError`
    and :class:`EOFError` where it is none."""
    content = bytearray()
    coding, length = fields.get("transfer-encoding"), fields.get("content-length")
    left = 0
    if coding is not None:
        while left := int((await reader.readuntil(b"\n")).partition(b";")[0], 16):
            if len(content) + left > most:
                break
            content += await reader.readexactly(left)
            if await reader.readexactly(2) != b"\r\n":
                raise WebhookError("a chunk of the answer is longer than it says")
        else:
            await _fields(reader)
    elif length is not None:
        content += await reader.readexactly(min(int(length), most + 1))
    else:
        while len(content) <= most and (part := await reader.read(most + 1 - len(content))):
            content += part
    if len(content) + left > most:
        raise WebhookError(f"the answer has more than {most} bytes")
    return bytes(content), coding is None and length is None


async def _resolve(host: str, port: int, *, allow_private: bool) -> str:
    """The first address of a host that may be connected to. Raises :class:`WebhookError`, :class:`OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, place in found:
        address = str(place[0])
        if allow_private or is_public(address):
            return address
    raise WebhookError("its addresses are not public, and allow_private (for alerts queues.alert_allow_private) is off")


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
