"""What comes in datagrams, as whole requests, each once; and answers as datagrams. Sans-IO.

Answers ride on acknowledgements: a client that waits for one sends its request again meanwhile, and that is known by
its message id (RFC 7252, 4.2 and 5.2.1). Large bodies come in blocks (RFC 7959). All that is remembered has a limit:
beyond it the oldest is forgotten, which costs who sent it another try, at worst a message that comes twice.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiocoap.message import Message
from aiocoap.numbers.codes import Code
from aiocoap.numbers.optionnumbers import OptionNumber
from aiocoap.numbers.types import Type

MAX_BODY_BYTES: Final = 1024 * 1024
"""Of a request that comes in blocks."""
MAX_REMEMBERED: Final = 4_096
"""Requests that are known if they come again."""
MAX_ASSEMBLED_BYTES: Final = 4 * MAX_BODY_BYTES
"""Of bodies that are not whole yet, together."""
MAX_ASSEMBLIES: Final = 256
MAX_ASSEMBLIES_OF_ONE: Final = 4
"""Of one address."""
LIFETIME_S: Final = 247.0
"""EXCHANGE_LIFETIME (RFC 7252, 4.8.2): so long a message may come again, or its next block."""
_HEADER_BYTES: Final = 4
_MAX_TOKEN_BYTES: Final = 8
_PAYLOAD_MARKER: Final = 0xFF
_KNOWN_CRITICAL: Final = frozenset(
    (
        OptionNumber.URI_HOST,
        OptionNumber.URI_PORT,
        OptionNumber.URI_PATH,
        OptionNumber.URI_QUERY,
        OptionNumber.ACCEPT,
        OptionNumber.BLOCK1,
        OptionNumber.BLOCK2,
    )
)
_PROXY: Final = frozenset((OptionNumber.PROXY_URI, OptionNumber.PROXY_SCHEME))

Remote = tuple[Any, ...]
"""Address, port, and what else a socket says of who sends."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a request comes to."""

    code: int
    """As in the registry: 2.04 is 68."""
    payload: bytes = b""
    content_format: int | None = None
    max_age_s: int | None = None
    """The same request may be taken then."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request, for :meth:`Exchanges.answer`."""

    remote: Remote
    message_id: int
    confirmable: bool
    token: bytes
    code: int
    """GET 1, POST 2, PUT 3, and so on."""
    path: tuple[str, ...]
    query: tuple[str, ...]
    accept: int | None
    payload: bytes
    block: Any = None
    """The last one's number and size, to be told again."""


class _Known:
    """A request that came, and its answer."""

    __slots__ = ("answer", "over_at")

    def __init__(self, over_at: float) -> None:
        self.over_at = over_at
        self.answer: bytes | None = None


class _Assembly:
    __slots__ = ("body", "over_at")

    def __init__(self, over_at: float) -> None:
        self.over_at = over_at
        self.body = bytearray()


class Exchanges:
    """Those of one socket."""

    def __init__(self, rng: random.Random, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._message_id = rng.getrandbits(16)
        """Of messages of ours that acknowledge nothing."""
        self._most = min(max_body_bytes, MAX_BODY_BYTES)
        self._known: OrderedDict[tuple[Remote, int], _Known] = OrderedDict()
        self._assemblies: OrderedDict[tuple[object, ...], _Assembly] = OrderedDict()
        self._assembled_bytes = 0

    def receive(self, data: bytes, remote: Remote, now: float) -> tuple[bytes | None, Request | None]:
        """A datagram came: what is sent in return at once, and a request that is whole and has to be answered."""
        if len(data) < _HEADER_BYTES or data[0] >> 6 != 1:
            return None, None
        kind, message_id = Type((data[0] >> 4) & 3), int.from_bytes(data[2:4], "big")
        if kind in (Type.ACK, Type.RST):
            # Of what we send, nothing asks for them.
            return None, None
        confirmable = kind is Type.CON
        refusal = _reset(message_id) if confirmable else None
        if not 1 <= data[1] < 32 or (data[0] & 15) > _MAX_TOKEN_BYTES:
            # A ping, something of a server's, or no message.
            return refusal, None
        self._forget(now)
        known = self._known.get((remote, message_id))
        if known is not None:
            return (known.answer if confirmable else None), None
        message = _decoded(data)
        if message is None:
            return refusal, None
        request = _request(message, remote, confirmable)
        if request is None:
            return refusal, None
        self._remember(request, now)
        problem = _problem(message)
        if problem is not None:
            return (self.answer(request, problem) if confirmable else None), None
        if message.opt.block1 is None:
            return None, request
        return self._assemble(message, request, now)

    def answer(self, request: Request, answer: Answer) -> bytes:
        """The datagram that answers a request; it is remembered, should the request come again."""
        block = None if request.block is None else (request.block[0], False, request.block[2])
        data = self._encoded(request, answer, block)
        known = self._known.get((request.remote, request.message_id))
        if known is not None:
            known.answer = data
        return data

    # -- what is remembered --------------------------------------------------------------------------------------

    def _remember(self, request: Request, now: float) -> None:
        self._known[request.remote, request.message_id] = _Known(now + LIFETIME_S)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def _forget(self, now: float) -> None:
        """At most two of what is over, for each that comes: so it ends."""
        for _ in range(2):
            if self._known and next(iter(self._known.values())).over_at <= now:
                self._known.popitem(last=False)
            if self._assemblies and next(iter(self._assemblies.values())).over_at <= now:
                self._drop(next(iter(self._assemblies)))

    # -- blocks --------------------------------------------------------------------------------------------------

    def _assemble(self, message: Any, request: Request, now: float) -> tuple[bytes | None, Request | None]:
        number, more, size_exponent = message.opt.block1
        size = 1 << (size_exponent + 4)
        key = (request.remote, request.code, request.path, request.query, _tag_of(message))
        if size_exponent == 7 or (more and len(message.payload) != size) or len(message.payload) > size:
            return self._refused(request, key, Code.BAD_REQUEST, b"a block that is not of the size it tells")
        if not number:
            self._drop(key)
            self._make_room(request.remote[0])
            self._assemblies[key] = _Assembly(now + LIFETIME_S)
        assembly = self._assemblies.get(key)
        if assembly is None or len(assembly.body) != number * size:
            return self._refused(request, key, Code.REQUEST_ENTITY_INCOMPLETE, b"a block before this one is missing")
        if len(assembly.body) + len(message.payload) > self._most:
            text = b"a body has at most %d bytes" % self._most
            return self._refused(request, key, Code.REQUEST_ENTITY_TOO_LARGE, text)
        assembly.body += message.payload
        assembly.over_at = now + LIFETIME_S
        self._assemblies.move_to_end(key)
        self._assembled_bytes += len(message.payload)
        if more:
            while self._assembled_bytes > MAX_ASSEMBLED_BYTES:
                self._drop(next(iter(self._assemblies)))
            data = self._encoded(request, Answer(code=Code.CONTINUE), message.opt.block1)
            self._known[request.remote, request.message_id].answer = data
            return data, None
        body = bytes(assembly.body)
        self._drop(key)
        return None, msgspec.structs.replace(request, payload=body, block=tuple(message.opt.block1))

    def _refused(
        self, request: Request, key: tuple[object, ...], code: int, text: bytes
    ) -> tuple[bytes | None, Request | None]:
        self._drop(key)
        return self.answer(request, Answer(code=code, payload=text)), None

    def _drop(self, key: tuple[object, ...]) -> None:
        gone = self._assemblies.pop(key, None)
        self._assembled_bytes -= len(gone.body) if gone is not None else 0

    def _make_room(self, address: str) -> None:
        """For one more assembly of an address: of too many its own oldest goes, or else anybody's."""
        own = [key for key in self._assemblies if isinstance(key[0], tuple) and key[0][0] == address]
        if len(own) >= MAX_ASSEMBLIES_OF_ONE:
            self._drop(own[0])
        elif len(self._assemblies) >= MAX_ASSEMBLIES:
            self._drop(next(iter(self._assemblies)))

    # -- datagrams -----------------------------------------------------------------------------------------------

    def _encoded(self, request: Request, answer: Answer, block: Any) -> bytes:
        if request.confirmable:
            kind, message_id = Type.ACK, request.message_id
        else:
            self._message_id = (self._message_id + 1) & 0xFFFF
            kind, message_id = Type.NON, self._message_id
        options: Mapping[str, Any] = {
            "block1": block,
            "content_format": answer.content_format,
            "max_age": answer.max_age_s,
            "size1": self._most if answer.code == Code.REQUEST_ENTITY_TOO_LARGE else None,
        }
        told = {name: value for name, value in options.items() if value is not None}
        message = Message(
            code=Code(answer.code), payload=answer.payload, _mtype=kind, _mid=message_id, _token=request.token, **told
        )
        return bytes(message.encode())


def _reset(message_id: int) -> bytes:
    return bytes((0x40 | (Type.RST << 4), 0)) + message_id.to_bytes(2, "big")


def _decoded(data: bytes) -> Any:
    """None where it is no message: whatever the codec raises says so."""
    try:
        message = Message.decode(data)
        if not message.payload and data[-1] == _PAYLOAD_MARKER and Message.decode(data + b"0").payload:
            return None  # a payload is announced, and none follows (RFC 7252, 3)
    except Exception:
        return None
    return message


def _request(message: Any, remote: Remote, confirmable: bool) -> Request | None:
    """None where its options cannot be read."""
    try:
        return Request(
            remote=remote,
            message_id=message.mid,
            confirmable=confirmable,
            token=bytes(message.token),
            code=int(message.code),
            path=tuple(message.opt.uri_path),
            query=tuple(message.opt.uri_query),
            accept=None if message.opt.accept is None else int(message.opt.accept),
            payload=bytes(message.payload),
        )
    except (ValueError, TypeError, AttributeError):
        return None


def _problem(message: Any) -> Answer | None:
    """What keeps a request from being read, by its options alone (RFC 7252, 5.4.1, 5.7.2)."""
    numbers = {int(option.number) for option in message.opt.option_list()}
    if numbers & _PROXY:
        return Answer(code=Code.PROXYING_NOT_SUPPORTED)
    critical = sorted(number for number in numbers if number & 1 and number not in _KNOWN_CRITICAL)
    if critical:
        return Answer(code=Code.BAD_OPTION, payload=b"option %d is not known here" % critical[0])
    return None


def _tag_of(message: Any) -> tuple[bytes, ...]:
    """Which of several bodies a block belongs to (RFC 9175, 3)."""
    tags = (each for each in message.opt.option_list() if each.number == OptionNumber.REQUEST_TAG)
    return tuple(bytes(each.encode()) for each in tags)
