"""HTTP/1.1 as a client says and reads it (RFC 9110, 9112): requests to bytes, bytes to answers. Sans-IO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

HTTP_11 = 110
"""Stands for the protocol where others have a number of their version, as the next does."""
GRPC = 200
MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 64 * 1024 * 1024
"""No answer that a case asks for is nearly as large."""
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_WITHOUT_BODY = (204, 304)


class MalformedHttpError(Exception):
    """What a server sent is no HTTP/1.1."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Status and header of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in the order in which they came."""

    def header(self, name: str) -> str:
        """The values of a header, joined by commas; empty if it has none."""
        return ", ".join(value for known, value in self.headers if known == name)


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    head: Head
    body: bytes


def encode_request(
    method: str, target: str, headers: Mapping[str, str] | Sequence[tuple[str, str]] = (), body: bytes | None = None
) -> bytes:
    """A request whose body, if it has one, is framed by Content-Length."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if body is not None:
        pairs.append(("content-length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


class AnswerReader:
    """Reads the answers of one connection, in their order."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._methods: list[str] = []
        self._head: Head | None = None
        self._body = bytearray()
        self._rest = 0
        """Bytes of the body, or of its chunk, that are still to come; -1 = up to the end of the connection."""
        self._chunked = self._in_trailer = False
        self._is_raw = False

    def expect(self, method: str) -> None:
        """A request was sent: whether its answer has a body depends on the method."""
        self._methods.append(method)

    @property
    def head(self) -> Head | None:
        """Of the answer that is coming, once it is there."""
        return self._head

    def take_part(self) -> bytes:
        """What has come of the body since the last time: of one that is long, or has no end."""
        part = bytes(self._body)
        self._body.clear()
        return part

    def becomes_raw(self) -> None:
        """The connection speaks another protocol from now on (101): :meth:`take_part` has its bytes."""
        self._is_raw = True
        self._body += self._unread
        self._unread.clear()

    def feed(self, data: bytes) -> Iterator[HttpAnswer]:
        """The answers that are whole now. Raises :class:`MalformedHttpError`."""
        if self._is_raw:
            self._body += data
            return
        self._unread += data
        while True:
            if self._head is None and not self._begin():
                return
            if not self._go_on():
                return
            yield self._take()

    def end(self) -> HttpAnswer | None:
        """The connection has ended: the answer whose body is framed by that. Raises :class:`MalformedHttpError`."""
        if self._is_raw or (self._head is None and not self._unread):
            return None
        if self._head is not None and self._rest == -1:
            return self._take()
        message = "the connection ended in the middle of an answer"
        raise MalformedHttpError(message)

    def _take(self) -> HttpAnswer:
        assert self._head is not None
        answer = HttpAnswer(head=self._head, body=bytes(self._body))
        self._head, self._rest, self._chunked, self._in_trailer = None, 0, False, False
        self._body.clear()
        return answer

    def _begin(self) -> bool:
        """Read a head; an interim answer (1xx) is passed over."""
        while True:
            end = self._unread.find(b"\r\n\r\n")
            if end < 0:
                if len(self._unread) > MAX_HEAD_BYTES:
                    message = f"a head of more than {MAX_HEAD_BYTES} bytes"
                    raise MalformedHttpError(message)
                return False
            head = _read_head(bytes(self._unread[:end]))
            del self._unread[: end + 4]
            if head.status >= 200 or head.status == 101:
                break
        method = self._methods.pop(0) if self._methods else "GET"
        self._head = head
        self._chunked = head.header("transfer-encoding").lower() == "chunked"
        if method == "HEAD" or head.status in _WITHOUT_BODY or head.status == 101:
            self._rest, self._chunked = 0, False
        elif self._chunked:
            self._rest = 0
        elif length := head.header("content-length"):
            if not length.isdecimal():
                message = f"Content-Length: {length[:40]}"
                raise MalformedHttpError(message)
            self._rest = int(length)
        else:
            self._rest = -1
        return True

    def _go_on(self) -> bool:
        """Whether the body is whole."""
        if not self._chunked:
            taken = len(self._unread) if self._rest == -1 else min(self._rest, len(self._unread))
            self._add(taken)
            self._rest -= taken if self._rest > 0 else 0
            return self._rest == 0
        while True:
            if self._rest > 2:
                taken = min(self._rest - 2, len(self._unread))
                self._add(taken)
                self._rest -= taken
                if self._rest > 2:
                    return False
            if self._rest == 2:
                if len(self._unread) < 2:
                    return False
                if self._unread[:2] != b"\r\n":
                    message = "a chunk does not end with CR LF"
                    raise MalformedHttpError(message)
                del self._unread[:2]
                self._rest = 0
            line = self._line()
            if line is None:
                return False
            if self._in_trailer:
                if not line:
                    return True
                continue
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                message = f"no size of a chunk: {line[:40]!r}"
                raise MalformedHttpError(message)
            size = int(match[1], 16)
            self._in_trailer = not size
            self._rest = size + 2 if size else 0

    def _line(self) -> bytes | None:
        end = self._unread.find(b"\r\n")
        if end < 0:
            return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 2]
        return line

    def _add(self, count: int) -> None:
        self._body += self._unread[:count]
        del self._unread[:count]
        if len(self._body) > MAX_BODY_BYTES:
            message = f"a body of more than {MAX_BODY_BYTES} bytes"
            raise MalformedHttpError(message)


def _read_head(text: bytes) -> Head:
    first, *lines = text.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        message = f"no status line: {first[:60]!r}"
        raise MalformedHttpError(message)
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            message = f"no header: {line[:60]!r}"
            raise MalformedHttpError(message)
        headers.append((name.decode("latin-1").lower(), value.strip().decode("latin-1")))
    return Head(status=int(match[1]), headers=tuple(headers))
