"""What every request passes before it is routed: host, origin, path, who asks, how often, its body, its time.

No cookie is ever set or read. Where a browser adds who asks by itself (nobody on loopback, Basic, a certificate), a
page of another site must not be able to ask: ``Origin`` and ``Sec-Fetch-Site`` that tell of one are refused, a POST has
a content type that no form has, and a listener on loopback answers to its own names only, so that no page can pretend
to be at home there (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from assay.reference_broker.api.callers import Arrival, Credentials, read_authorization
from assay.reference_broker.api.problems import PROBLEMS, Code, RequestError, problem_of
from assay.reference_broker.api.service import Service
from assay.reference_broker.config import is_loopback
from assay.reference_broker.http.areas import JSON, PREFIX, SLASH
from assay.reference_broker.queues import QueueError, QueueErrorCode

log = logging.getLogger("assay.broker")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBLEM_JSON: Final = "application/problem+json"
OPEN_PATHS: Final = frozenset(("/health", "/healthz", "/livez", "/ready", "/readyz"))
"""Anybody may ask whether the broker is there."""
CONSOLE: Final = "/console"
"""A page that holds nothing of the broker's but itself: anybody may load it, by a link on another site, too."""
RAW_PREFIXES: Final = ("/m/",)
"""Their bodies are payloads, not JSON."""
REQUEST_ID: Final = b"x-request-id"
"""In every answer, and in what the log tells of a request."""
_PLAIN_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_GOQUEUE: Final = frozenset(
    (
        "topics",
        "groups",
        "messages",
        "producers",
        "transactions",
        "traces",
        "schemas",
        *("subjects", "config", "mode", "compatibility"),
        "admin",
        "delay",
        "priority",
        "reliability",
        "stats",
        "version",
    )
)
"""First segments of GoQueue's paths, and Confluent's, which stand at the root, under /v1 and here."""
_OWN_VERSION: Final = "v1"
_CLIENT_ID: Final = (b"x-client-id", b"x-fluxmq-client-id")
_USERNAME: Final = b"x-fluxmq-username"
_TARGET: Final = re.compile(rb"/[!-~]*")
_LOOPBACK_NAMES: Final = ("localhost",)


class Guard:
    """Wraps the application."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self._service = service
        config = service.config
        self._hosts = frozenset(name.lower() for name in config.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        exchange = _Exchange(scope, receive, send, self._service.config.body_timeout_s)
        began = time.perf_counter()
        try:
            with self._service.requests.take():
                await self._serve(scope, exchange)
        except (RequestError, QueueError) as error:
            await exchange.refuse(error)
        except ClientGoneError:
            exchange.abort()
        except Exception:
            await exchange.refuse(self._service.tell_of_bug(f"request {exchange.request_id}"))
        finally:
            if log.isEnabledFor(logging.DEBUG):
                self._tell(scope, exchange, time.perf_counter() - began)

    def _tell(self, scope: Scope, exchange: _Exchange, took_s: float) -> None:
        """A line for the log, which has no query: that may hold a secret."""
        caller = scope["state"].get("caller")
        named = caller.named if caller is not None else scope["state"]["arrival"].address
        asked = f"{scope.get('method', 'WebSocket')} {scope['path'].replace(SLASH, '%2F')}"
        log.debug("request %s of %s: %s: %s, %.1f ms", exchange.request_id, named, asked, exchange.status, took_s * 1e3)

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        headers = dict(reversed(scope["headers"]))
        arrival: Arrival = scope["state"]["arrival"]
        scope["path"] = path_of(scope["raw_path"])
        self._check_host(headers, arrival)
        method = scope.get("method", "GET")
        looks = method in ("GET", "HEAD") and scope["type"] == "http"
        if looks and is_console(scope["path"]):
            self._service.check_rate(arrival.address)
            await self._app(scope, exchange.receive, exchange.send)
            return
        check_origin(headers)
        if looks and scope["path"] in OPEN_PATHS:
            await self._app(scope, exchange.receive, exchange.send)
            return
        self._service.check_rate(arrival.address)
        client_id = next((headers[name].decode("latin-1") for name in _CLIENT_ID if name in headers), None)
        caller = await self._service.callers.find(credentials_of(headers), arrival, client_id)
        if caller.username is not None:
            self._service.check_rate(caller.username, is_user=True)
        if b"traceparent" in headers:
            caller.note_trace((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        scope["state"]["caller"] = caller
        if scope["type"] == "websocket":
            await self._app(scope, exchange.receive, exchange.send)
            return
        if method == "POST" and not scope["path"].startswith(RAW_PREFIXES) and not is_json(headers):
            raise RequestError(Code.MEDIA_TYPE, f"the content type of a POST is {JSON}")
        await self._with_body(scope, exchange, headers)

    async def _with_body(self, scope: Scope, exchange: _Exchange, headers: dict[bytes, bytes]) -> None:
        config = self._service.config
        length = _length_of(headers)
        if length is not None and length > config.max_body_bytes:
            raise _too_large(config.max_body_bytes)
        if length is None and b"transfer-encoding" not in headers:
            await self._app(scope, exchange.receive, exchange.send)
            return
        # Of one whose length is not told, as much as it may have.
        expected = config.max_body_bytes if length is None else length
        with self._service.held_bytes.take(min(expected, config.max_held_bytes)):
            await exchange.take_body(config.max_body_bytes)
            await self._app(scope, exchange.receive, exchange.send)

    def _check_host(self, headers: dict[bytes, bytes], arrival: Arrival) -> None:
        if not arrival.loopback:
            return
        host = _host_of(headers.get(b"host", b"").decode("latin-1"))
        if not (host in _LOOPBACK_NAMES or is_loopback(host) or host in self._hosts):
            text = f"this listener is on loopback, and answers to its names and to http.hosts, not to {host[:80]!r}"
            raise RequestError(Code.MISDIRECTED, text)


class ClientGoneError(Exception):
    """Nobody waits for the answer any more, or takes it."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What its client or a proxy calls a request, if that is short and plain, or else a name of ours."""
    for name, value in headers:
        if name == REQUEST_ID and _PLAIN_ID.fullmatch(value):
            return value.decode("ascii")
    return secrets.token_hex(8)


class _Exchange:
    """A request and its answer, with limits on their time."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, timeout_s: float) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._body: bytes | None = None
        self._begun = False
        self.request_id = request_id_of(scope["headers"])
        self.status: int | None = None
        """Of the answer, once it has begun."""

    def abort(self) -> None:
        """Cut the connection."""
        self._scope["state"]["abort"]()

    async def receive(self) -> Message:
        if self._body is not None:
            content, self._body = self._body, None
            return {"type": "http.request", "body": content, "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        self._begun = True
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, self.request_id.encode())]}
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGoneError from None

    async def take_body(self, most: int) -> None:
        """Have the body come, whole. Raises :class:`RequestError` (TOO_LARGE, TIMEOUT)."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise RequestError(Code.TIMEOUT, f"the body was not whole after {self._timeout_s:g} s") from None
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)

    async def refuse(self, error: QueueError | RequestError) -> None:
        """Answer with a problem, unless an answer has begun: then that is cut."""
        if self._begun:
            self.abort()
            return
        status, headers, content = refusal(error)
        if self._scope["type"] == "websocket":
            # Before it was accepted: uvicorn answers 403, or what this extension says.
            start, body = "websocket.http.response.start", "websocket.http.response.body"
        else:
            start, body = "http.response.start", "http.response.body"
        if error.code in (Code.TIMEOUT, QueueErrorCode.TOO_LARGE):
            headers.append((b"connection", b"close"))
        try:
            await self.send({"type": start, "status": status, "headers": headers})
            await self.send({"type": body, "body": content})
        except ClientGoneError:
            self.abort()


def refusal(error: QueueError | RequestError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of a problem."""
    row = PROBLEMS[error.code]
    content = msgspec.json.encode(problem_of(error))
    headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", b"%d" % len(content))]
    if row.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % row.retry_after_s))
    if row.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="assay", charset="UTF-8", Bearer realm="assay"'))
    return row.status, headers, content


def path_of(raw: bytes) -> str:
    """The path that is routed: decoded, %2F within a segment kept apart, GoQueue's other places led here.

    Raises :class:`RequestError`.
    """
    if not _TARGET.fullmatch(raw):
        raise RequestError(Code.BAD_REQUEST, "the path has characters that must be percent-encoded")
    try:
        segments = [unquote(segment, errors="strict") for segment in raw.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise RequestError(Code.BAD_REQUEST, "the path is not UTF-8") from None
    if any(SLASH in segment for segment in segments):
        raise RequestError(Code.BAD_REQUEST, "no path has a NUL")
    segments = [segment.replace("/", SLASH) for segment in segments]
    if segments[1] == _OWN_VERSION and len(segments) > 2:
        del segments[1]
    return (PREFIX if segments[1] in _GOQUEUE else "") + "/".join(segments)


def is_console(path: str) -> bool:
    """Whether a path is the console's, of which no part asks who asks."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Raises :class:`RequestError` (CROSS_SITE) for what a page of another site sent, whatever it asks for."""
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        raise RequestError(Code.CROSS_SITE, "a page of another site asks; CORS is off")
    origin, host = (headers.get(name, b"").decode("latin-1").lower() for name in (b"origin", b"host"))
    if origin and origin.partition("://")[2] != host:
        raise RequestError(Code.CROSS_SITE, f"a page of {origin[:80]!r} asks; CORS is off")


def credentials_of(headers: dict[bytes, bytes]) -> Credentials:
    """What a request says of who sends it; FluxMQ's clients may name themselves in a header of their own."""
    value = headers.get(b"authorization", b"").decode("latin-1").strip()
    named = headers.get(_USERNAME)
    if named is not None:
        scheme, _, secret = value.rpartition(" ")
        if scheme.lower() in ("", "bearer", "client") and secret:
            return Credentials(username=named.decode("latin-1"), password=secret.encode("latin-1"))
        raise RequestError(Code.UNAUTHENTICATED, "with X-FluxMQ-Username, Authorization holds the secret")
    return read_authorization(value) if value else Credentials()


def is_json(headers: dict[bytes, bytes]) -> bool:
    """Whether the content type says JSON, of whatever kind: no form of a page has such a type."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == JSON.encode() or (kind.startswith(b"application/") and kind.endswith(b"+json"))


def _host_of(text: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


def _length_of(headers: dict[bytes, bytes]) -> int | None:
    text = headers.get(b"content-length")
    # The protocol has refused what is no number.
    return None if text is None else int(text)


def _too_large(most: int) -> RequestError:
    return RequestError(QueueErrorCode.TOO_LARGE, f"a body has at most {most} bytes")
