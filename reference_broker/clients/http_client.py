"""Queues of a broker over HTTP: published to, consumed by long polls, settled, administered.

:meth:`HttpQueues.ask` sends any request of docs/openapi.json; the other methods are for what programs do most.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import ssl
import time
from collections.abc import Generator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from assay.reference_broker.clients.shared import Place, Received, RefusedError, UnreachableError, basic
from assay.reference_broker.trace.described import described

_PREFIX: Final = "/api/v1"
_JSON: Final = "application/json"
_PORTION: Final = 65_536
_TRIES: Final = 4
_SENT_AGAIN: Final = frozenset(("GET", "PUT", "DELETE"))
"""Methods that mean the same sent once or twice. After a lost connection a DELETE is not sent again: had the first one
been carried out, the second would find nothing, and say so."""
_NOT_LOOKED_AT: Final = frozenset(("rate_limit", "busy"))
"""Codes of requests that were refused before they did anything: any of them may be sent again."""


def path(template: str, **names: object) -> str:
    """A path below ``/api/v1``, with names in it quoted: ``path("/queues/{queue}", queue="a/b")``."""
    return template.format_map({name: quote(str(each), safe="") for name, each in names.items()})


class HttpQueues:
    """Use it by ``with``, in one thread. Every method may raise :class:`RefusedError`, :class:`UnreachableError`."""

    def __init__(
        self,
        target: str,
        *,
        username: str = "",
        password: str = "",
        token: str = "",
        authority: bytes | None = None,
        certificate: tuple[str, str] | None = None,
        client_id: str = "",
        timeout_s: float = 30.0,
        max_answer_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """``target``: a URL; with ``https`` its certificate is verified. ``token``, or user and password.

        ``authority``: whose certificates are trusted, as PEM; None = those that the system trusts. ``certificate``:
        files of one's own and its key. ``timeout_s``: of a request with all its repetitions, long polls apart. Raises
        :class:`ValueError`, :class:`OSError` for files that cannot be read.
        """
        parts = urlsplit(target if "://" in target else f"http://{target}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{target!r} is no address like http://127.0.0.1:8080")
        self._base = parts.path.rstrip("/")
        self.target = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._headers = {"accept": _JSON}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        elif username:
            self._headers["authorization"] = basic(username, password)
        if client_id:
            self._headers["x-client-id"] = client_id
        if parts.scheme == "https":
            context = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii"))
            if certificate is not None:
                context.load_cert_chain(*certificate)
            self._connection: HTTPConnection = HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """It may be used again all the same."""
        self._connection.close()

    # -- any request -----------------------------------------------------------------------------------------------

    def ask(
        self, method: str, where: str, *, query: Mapping[str, object] | None = None, body: Any = None, wait_s: float = 0
    ) -> Any:
        """The answer, from JSON; text, if it is none.

        ``where``: below ``/api/v1``, see :func:`path`. ``query``: None is left out. ``wait_s``: the broker may take so
        much longer. A request that means the same sent twice is repeated a few times where the broker says when to
        come again, or a connection was lost.
        """
        content = None if body is None else msgspec.json.encode(body)
        target = f"{self._base}{_PREFIX}{where}"
        if told := {name: _told(value) for name, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(told)
        until = time.monotonic() + self._timeout_s + wait_s
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._once(method, target, content, until)
            except _LostError as error:
                if method not in _SENT_AGAIN or method == "DELETE" or not tries_left:
                    raise UnreachableError(str(error)) from error
                pause_s = 0.05
            except RefusedError as error:
                may_again = method in _SENT_AGAIN or error.code in _NOT_LOOKED_AT
                if error.retry_after_s is None or not may_again or not tries_left:
                    raise
                pause_s = error.retry_after_s
                if time.monotonic() + pause_s >= until:
                    raise
            time.sleep(pause_s)
        raise AssertionError

    def _once(self, method: str, target: str, content: bytes | None, until: float) -> Any:
        connection = self._connection
        headers = self._headers if method == "GET" else {**self._headers, "content-type": _JSON}
        try:
            self._prepare(until)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered before it had all
                connection.request(method, target, content, headers)
            with connection.getresponse() as answer:
                found = self._read(answer, until)
        except TimeoutError:
            self.close()
            raise UnreachableError(f"the broker at {self.target} does not answer in time") from None
        except (OSError, HTTPException) as error:
            self.close()
            raise _LostError(self._said(error)) from error
        except BaseException:
            self.close()  # an answer may be on its way, which is not that of the next request
            raise
        return _answer(answer, found)

    def _prepare(self, until: float) -> None:
        """Be connected. What cannot be is not tried again: there is none, or it is not the one that is meant."""
        connection = self._connection
        if connection.sock is not None and _is_readable(connection.sock):
            connection.close()  # the other side did, while nothing was asked
        left_s = max(0.001, until - time.monotonic())
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
            return
        connection.timeout = left_s
        try:
            connection.connect()
        except TimeoutError:
            raise
        except OSError as error:
            connection.close()
            raise UnreachableError(self._said(error)) from error

    def _said(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            return f"TLS with {self.target} fails: {getattr(error, 'verify_message', '') or error.reason or error}"
        if isinstance(error, IncompleteRead):
            return f"the answer of {self.target} was cut"
        if isinstance(error, HTTPException) and not isinstance(error, OSError):
            return f"what answers at {self.target} is no HTTP"
        return f"no broker answers at {self.target}: {getattr(error, 'strerror', None) or error}"

    def _read(self, answer: HTTPResponse, until: float) -> bytes:
        parts: list[bytes] = []
        left = self._max_answer_bytes
        while part := answer.read1(_PORTION):
            parts.append(part)
            left -= len(part)
            if left < 0:
                self.close()
                raise RefusedError("answer_too_large", f"the answer has more than {self._max_answer_bytes} bytes")
            if time.monotonic() > until:
                raise TimeoutError
        if answer.length:
            raise IncompleteRead(b"", answer.length)  # which read1 does not say
        return b"".join(parts)

    # -- what programs do ------------------------------------------------------------------------------------------

    def create_queue(self, name: str, *, partitions: int = 1, topics: Sequence[str] = ()) -> None:
        """Create a queue; needs the scope ``admin``."""
        self.ask("POST", "/queues", body={"name": name, "settings": {"partitions": partitions, "topics": topics}})

    def delete_queue(self, name: str) -> None:
        """With all it holds; needs the scope ``admin``."""
        self.ask("DELETE", path("/queues/{queue}", queue=name))

    def publish(
        self,
        queue: str,
        payload: bytes,
        *,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> Place:
        """Returns once the message is as durable as its queue promises."""
        message = {**_message(payload), "key": key or None, "headers": headers or {}, "partition": partition}
        (became,) = self._publish(queue, [message])
        return msgspec.convert(became, described(Place))

    def publish_many(self, queue: str, payloads: Sequence[bytes]) -> int:
        """In one request; returns how many once all are durable. With some that are refused it raises, and
        ``details`` say how many are published all the same."""
        return len(self._publish(queue, [_message(each) for each in payloads]))

    def _publish(self, queue: str, messages: Sequence[object]) -> list[dict[str, Any]]:
        results = self.ask("POST", path("/queues/{queue}/messages", queue=queue), body={"messages": messages})[
            "results"
        ]
        errors = [each["error"] for each in results if "error" in each]
        if errors:
            published = str(len(results) - len(errors))
            details = {**errors[0].get("details", {}), "published": published}
            raise RefusedError(errors[0]["code"], errors[0]["detail"], details, status=errors[0]["status"])
        return list(results)

    def consume(
        self, queue: str, group: str, *, consumer: str = "default", max_in_flight: int = 100, wait_s: float = 20.0
    ) -> Generator[Received]:
        """What a group gets, until the loop over it ends; then what is not settled is ready again.

        ``max_in_flight``: unsettled messages at once. ``wait_s``: how long one request waits for a message.
        """
        body = {"group": group, "consumer": consumer, "wait_s": wait_s}
        wanted = {**body, "max_messages": max_in_flight, "prefetch": max_in_flight}
        try:
            while True:
                taken = self.ask("POST", path("/queues/{queue}/consume", queue=queue), body=wanted, wait_s=wait_s)
                for each in taken["messages"]:
                    yield _received(queue, each)
        finally:
            with contextlib.suppress(RefusedError):  # of a broker that is gone the consumer is, too
                self.ask(
                    "POST", path("/queues/{queue}/leave", queue=queue), body={"group": group, "consumer": consumer}
                )

    def ack(self, *messages: Received) -> None:
        """They are done: settled for good, on return. All of one queue."""
        self._settle("accept", messages)

    def nack(self, *messages: Received) -> None:
        """They failed: delivered again as the queue's retry policy says."""
        self._settle("fail", messages)

    def _settle(self, outcome: str, messages: Sequence[Received]) -> None:
        receipts = [each.receipt for each in messages]
        where = path("/queues/{queue}/settle", queue=messages[0].queue)
        self.ask("POST", where, body={"outcome": outcome, "receipts": receipts})


class _LostError(Exception):
    """The connection ended before an answer."""


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _told(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _message(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def payload_of(message: Mapping[str, Any]) -> bytes:
    """Of a message as the broker tells it: ``payload`` or ``payload_base64``."""
    if "payload_base64" in message:
        return base64.b64decode(message["payload_base64"])
    return str(message.get("payload", "")).encode()


def _received(queue: str, message: Mapping[str, Any]) -> Received:
    return msgspec.convert(
        {"queue": queue, "key": "", "headers": {}, **message, "payload": payload_of(message)}, described(Received)
    )


def _answer(answer: HTTPResponse, content: bytes) -> Any:
    """Raises :class:`RefusedError` for a problem, and for what is no answer of a broker."""
    text = content.decode(errors="replace")
    found: Any = text
    if "json" in (answer.getheader("content-type") or ""):
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            raise RefusedError("bad_answer", f"the answer is no JSON: {text[:80]!r}", status=answer.status) from None
    if answer.status < 300:
        return found
    if isinstance(found, dict) and "results" in found:
        return found  # one by one, and none was accepted
    problem = found if isinstance(found, dict) else {}
    retry_after = answer.getheader("retry-after", "")
    raise RefusedError(
        problem.get("code", f"http_{answer.status}"),
        problem.get("detail") or f"{answer.status} {answer.reason}",
        problem.get("details"),
        status=answer.status,
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
    )
