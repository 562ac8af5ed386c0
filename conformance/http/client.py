"""An HTTP client of a case: requests and answers on one connection after the other, all of it in the transcript."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from assay.conformance.http.steps import failed_step
from assay.conformance.outcome import CaseFailureError
from assay.conformance.transcript import Transcript
from assay.conformance.wire.http import AnswerReader, HttpAnswer, MalformedHttpError, encode_request

JSON = "application/json"
_SHOWN_CHARACTERS = 400
"""Of a body, in transcripts and in what is said of a failure."""
Headers = Mapping[str, str]
_T = TypeVar("_T")


class Answer:
    """An answer and the request that it is for. What a case reads of it and is not there fails the case."""

    def __init__(self, what: str, answer: HttpAnswer, asked: Any = None) -> None:
        self.what, self.asked = what, asked
        """Method and target of the request, and its body."""
        self.status = answer.head.status
        self.header = answer.head.header
        self.body = answer.body
        self._json: Any = None

    def __str__(self) -> str:
        return f"{self.status} to {self.what}: {_shown(self.body)}"

    @property
    def json(self) -> Any:
        """The body as JSON."""
        if self._json is None:
            try:
                self._json = _told(msgspec.json.decode(self.body))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                message = f"expected JSON; seen {self}"
                raise CaseFailureError(message) from error
        return self._json

    def at(self, *path: str | int, kind: type | tuple[type, ...] = object) -> Any:
        """A member of the body by names and indexes, of one of these types."""
        place: Any = self.json
        for step in path:
            try:
                place = place[step]
            except (LookupError, TypeError) as error:
                message = f"expected {'.'.join(map(str, path))} in the body; seen {self}"
                raise CaseFailureError(message) from error
        # A bool is an int in Python, and no number in JSON.
        if not isinstance(place, kind) or (isinstance(place, bool) and kind in (int, float, (int, float))):
            message = f"expected {'.'.join(map(str, path))} to be of type {kind}; seen {self}"
            raise CaseFailureError(message)
        return place

    def with_more(self, name: str, answers: Iterable[Answer]) -> Answer:
        """This one, with what others have in the list of that name behind its own."""
        for each in answers:
            self.at(name, kind=list).extend(each.at(name, kind=list))
        return self


class Told(dict[str, Any]):
    """An object of a body: a member that is missing fails the case."""

    def __missing__(self, name: str) -> Any:
        message = f"expected the member {name!r}; seen {dict(self)}"
        raise CaseFailureError(message)


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return Told({name: _told(each) for name, each in value.items()})
    return [_told(each) for each in value] if isinstance(value, list) else value


def _shown(body: bytes) -> str:
    text = body.decode(errors="backslashreplace")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(body)} bytes)"


class HttpConnection(asyncio.Protocol):
    """One connection: bytes out, answers in."""

    def __init__(self) -> None:
        self.reader = AnswerReader()
        self.closed = False
        self.broken = ""
        """Why what came is no HTTP."""
        self.answers: asyncio.Queue[HttpAnswer | None] = asyncio.Queue()
        """None: the connection has ended."""
        self.came = asyncio.Event()
        """Something has; whoever reads a stream clears it."""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self.reader.feed(data):
                self.answers.put_nowait(answer)
        except MalformedHttpError as error:
            self.broken = str(error)
            self.abort()
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        try:
            last = None if self.broken else self.reader.end()
        except MalformedHttpError as error:
            self.broken, last = str(error), None
        if last is not None:
            self.answers.put_nowait(last)
        self.answers.put_nowait(None)
        self.came.set()

    def becomes_raw(self) -> None:
        """It speaks another protocol from now on."""
        self.reader.becomes_raw()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> bool:
        """No more will be said, and what comes is still read; False = its transport cannot say so, as that of TLS."""
        can = self._transport is not None and self._transport.can_write_eof()
        if self._transport is not None and can:
            self._transport.write_eof()
        return can

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Owner(Protocol):
    """What a client needs of the case that has made it."""

    transcript: Transcript
    sent_raw: bool

    @property
    def authority(self) -> str: ...

    @property
    def looked_on(self) -> str: ...

    def remaining_s(self, within_s: float | None = None) -> float: ...

    async def patiently(self, wait: Callable[[], Awaitable[_T]], *, looks_again: bool = True) -> _T: ...

    async def open_http(self) -> HttpConnection: ...


class HttpClient:
    """Made by ``HttpContext.client``."""

    def __init__(self, ctx: Owner, name: str, headers: Headers) -> None:
        self.ctx, self.name, self._headers = ctx, name, dict(headers)
        self._connection: HttpConnection | None = None

    async def get(self, target: str, **more: Any) -> Answer:
        """See :meth:`ask`."""
        return await self.ask("GET", target, **more)

    async def post(self, target: str, body: Any = None, **more: Any) -> Answer:
        """See :meth:`ask`; a POST without a body says that it is JSON nevertheless."""
        return await self.ask("POST", target, body, **more)

    async def put(self, target: str, body: Any = None, **more: Any) -> Answer:
        """See :meth:`ask`."""
        return await self.ask("PUT", target, body, **more)

    async def patch(self, target: str, body: Any = None, **more: Any) -> Answer:
        """See :meth:`ask`."""
        return await self.ask("PATCH", target, body, **more)

    async def delete(self, target: str, **more: Any) -> Answer:
        """See :meth:`ask`."""
        return await self.ask("DELETE", target, **more)

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        headers: Headers | None = None,
        within_s: float | None = None,
    ) -> Answer:
        """Ask, and have the whole answer. A body of bytes goes as it is, any other one as JSON.

        Raises :class:`CaseFailureError` where no answer comes, or one that is no HTTP.
        """
        connection = await self.send(method, target, body, headers=headers)
        what = f"{method} {target}"
        try:
            answer = await self._answer(connection, what, within_s)
        except CaseFailureError as error:
            raise failed_step(what, body, str(error)) from error
        if answer.head.header("connection").lower() == "close":
            self.close()
        told = Answer(what, answer, body)
        self.ctx.transcript.add(self.name, "recv", decoded=f"{told.status} {_shown(told.body)}")
        return told

    async def send(
        self, method: str, target: str, body: Any = None, *, headers: Headers | None = None
    ) -> HttpConnection:
        """Send a request alone; its answer comes to the connection."""
        connection = await self.connection()
        said = {"host": self.ctx.authority, **self._headers, **(headers or {})}
        content = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        if content is not None or method == "POST":
            said.setdefault("content-type", JSON)
            content = content or b""
        shown = "" if content is None else _shown(content)
        self.ctx.transcript.add(self.name, "send", decoded=f"{method} {target} {shown}".rstrip())
        connection.reader.expect(method)
        connection.write(encode_request(method, target, said, content))
        return connection

    async def send_raw(self, data: bytes, *, method: str = "GET") -> HttpConnection:
        """Send bytes that need not be HTTP, on a connection of their own."""
        self.close()
        self.ctx.sent_raw = True
        connection = await self.connection()
        self.ctx.transcript.add(self.name, "send", data, most_bytes=200)
        connection.reader.expect(method)
        connection.write(data)
        return connection

    async def answer_on(self, connection: HttpConnection, what: str, *, within_s: float | None = None) -> Answer:
        """The next answer on a connection."""
        told = Answer(what, await self._answer(connection, what, within_s))
        self.ctx.transcript.add(self.name, "recv", decoded=f"{told.status} {_shown(told.body)}")
        return told

    async def _answer(self, connection: HttpConnection, what: str, within_s: float | None) -> HttpAnswer:
        try:
            if within_s is None:
                answer = await self.ctx.patiently(connection.answers.get)
            else:
                async with asyncio.timeout(self.ctx.remaining_s(within_s)):
                    answer = await connection.answers.get()
        except TimeoutError as error:
            message = f"{self.name}: expected an answer to {what}; seen none{self.ctx.looked_on}"
            raise CaseFailureError(message) from error
        if answer is None:
            why = connection.broken or "the connection ended without one"
            message = f"{self.name}: expected an answer to {what}; {why}"
            raise CaseFailureError(message)
        return answer

    async def connection(self) -> HttpConnection:
        """The one that is open, or a new one. Raises :class:`assay.conformance.outcome.TargetUnreachableError`."""
        if self._connection is None or self._connection.closed:
            self._connection = await self.ctx.open_http()
        return self._connection

    async def parts(self, connection: HttpConnection) -> AsyncIterator[bytes]:
        """The parts of a body that has no end, as they come; ends with the connection, or where none comes in time."""
        while True:
            part = connection.reader.take_part()
            if part:
                yield part
                continue
            if connection.closed:
                return
            connection.came.clear()
            try:
                await self.ctx.patiently(connection.came.wait)
            except TimeoutError:
                return

    def close(self) -> None:
        """Drop the connection, whatever is under way on it."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


def basic(username: str, password: str) -> dict[str, str]:
    """The header of RFC 7617."""
    return {"authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}
