"""Field values and tables (AMQP 0.9.1 section 4.2.5), with the letters that RabbitMQ and Qpid agreed on (errata 3).

A value keeps its type: it is a :class:`Typed` of the broker's own kinds, the same for all protocols. A long string that
is no UTF-8 stays one: it is described as ``S``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.properties import MAX_DEPTH, Kind, Typed

Table = tuple[tuple[str, Typed], ...]
MAX_FIELDS: Final = 1_024
"""Values of one table, those in tables within included."""
_RULE = "sec.4.2.5.5.truncated-table"

_FIXED: Final[dict[int, tuple[Kind, struct.Struct]]] = {
    ord(letter): (kind, struct.Struct(layout))
    for letter, kind, layout in (
        ("b", Kind.I8, ">b"),
        ("B", Kind.U8, ">B"),
        ("s", Kind.I16, ">h"),
        ("u", Kind.U16, ">H"),
        ("I", Kind.I32, ">i"),
        ("i", Kind.U32, ">I"),
        ("l", Kind.I64, ">q"),
        ("L", Kind.U64, ">Q"),
        ("f", Kind.F32, ">f"),
        ("d", Kind.F64, ">d"),
        ("T", Kind.SECONDS, ">Q"),
    )
}
_LETTERS: Final = {kind: (bytes((letter,)), layout.pack) for letter, (kind, layout) in _FIXED.items()}
_DECIMAL: Final = struct.Struct(">Bi")
_LONG: Final = struct.Struct(">I")
_VOID: Final = Typed(Kind.NULL, None)


def bad_syntax(text: str, rule: str = _RULE) -> AmqpError:
    """What cannot be read as the bytes that it should be (502)."""
    return AmqpError(Reply.SYNTAX_ERROR, text, rule=rule)


class Reader:
    """Reads one payload from its front. Every method raises :class:`AmqpError` where the bytes end too soon."""

    __slots__ = ("_fields", "at", "data", "end")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self._fields = 0

    def take(self, size: int) -> bytes:
        at = self.at
        if size > self.end - at:
            raise bad_syntax(f"{size} bytes are announced where {self.end - at} are left", "sec.4.2.6.bad-content")
        self.at = at + size
        return self.data[at : at + size]

    def octet(self) -> int:
        # As by take(), without the call, here and below.
        at = self.at
        if at >= self.end:
            self.take(1)
        self.at = at + 1
        return self.data[at]

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def long(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def longlong(self) -> int:
        return int.from_bytes(self.take(8), "big")

    def shortstr(self) -> str:
        at = self.at + 1
        if at > self.end:
            self.take(1)
        end = at + self.data[at - 1]
        if end > self.end:
            self.at = at
            self.take(end - at)
        self.at = end
        try:
            return self.data[at:end].decode()
        except UnicodeDecodeError:
            raise bad_syntax("a short string is no UTF-8") from None

    def longstr(self) -> bytes:
        return self.take(self.long())

    def table(self, depth: int = 0) -> Table:
        """Names and values, in their order."""
        inner = self._part(depth)
        found = []
        while inner.at < inner.end:
            name = inner.shortstr()
            found.append((name, inner.value(depth)))
        self._fields = inner._fields
        return tuple(found)

    def _part(self, depth: int) -> Reader:
        """Of what a length says."""
        if depth > MAX_DEPTH:
            raise bad_syntax(f"more than {MAX_DEPTH} tables in tables")
        part = Reader(self.longstr())
        part._fields = self._fields
        return part

    def value(self, depth: int = 0) -> Typed:
        """A letter, and a value of the kind that it says."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise bad_syntax(f"a table of more than {MAX_FIELDS} values")
        letter = self.octet()
        fixed = _FIXED.get(letter)
        if fixed is not None:
            kind, layout = fixed
            return Typed(kind, layout.unpack(self.take(layout.size))[0])
        match letter:
            case 0x53:  # S
                raw = self.longstr()
                try:
                    return Typed(Kind.TEXT, raw.decode())
                except UnicodeDecodeError:
                    return Typed(Kind.DESCRIBED, (Typed(Kind.SYMBOL, "S"), Typed(Kind.BYTES, raw)))
            case 0x46:  # F
                pairs = [(Typed(Kind.TEXT, name), value) for name, value in self.table(depth + 1)]
                return Typed(Kind.MAP, tuple([part for pair in pairs for part in pair]))
            case 0x74:  # t
                return Typed(Kind.BOOL, self.octet() != 0)
            case 0x56:  # V
                return _VOID
            case 0x78:  # x
                return Typed(Kind.BYTES, self.longstr())
            case 0x41:  # A
                inner = self._part(depth + 1)
                found = []
                while inner.at < inner.end:
                    found.append(inner.value(depth + 1))
                self._fields = inner._fields
                return Typed(Kind.LIST, tuple(found))
            case 0x44:  # D
                scale, unscaled = _DECIMAL.unpack(self.take(_DECIMAL.size))
                return Typed(Kind.DECIMAL, (Typed(Kind.U8, scale), Typed(Kind.I32, unscaled)))
            case _:
                raise bad_syntax(f"there is no field type {letter:#04x}")

    def finish(self) -> None:
        """Nothing may be left."""
        if self.at != self.end:
            raise bad_syntax(f"{self.end - self.at} bytes are left over", "sec.4.2.6.bad-content")


def shortstr(text: str) -> bytes:
    """Raises :class:`AmqpError` where it has more than 255 bytes."""
    raw = text.encode()
    if len(raw) > 255:
        raise AmqpError(Reply.INTERNAL_ERROR, f"{text[:40]!r} is longer than 255 bytes")
    return bytes((len(raw),)) + raw


def cut_shortstr(text: str) -> bytes:
    """As much of a text for people as fits."""
    return shortstr(text.encode()[:255].decode(errors="ignore"))


def longstr(raw: bytes) -> bytes:
    return _LONG.pack(len(raw)) + raw


def table(fields: Table) -> bytes:
    """With its length in front."""
    return longstr(b"".join([shortstr(name) + value_bytes(value) for name, value in fields]))


def _map(content: tuple[Typed, ...]) -> bytes:
    return b"F" + table(
        tuple([(str(name.value), value) for name, value in zip(content[::2], content[1::2], strict=True)])
    )


def _described(content: tuple[Typed, ...]) -> bytes:
    descriptor, value = content
    if descriptor.value == "S" and value.kind is Kind.BYTES:
        return b"S" + longstr(value.value)
    return value_bytes(value)


def _decimal(content: tuple[Typed, ...]) -> bytes:
    scale, unscaled = content
    return b"D" + struct.pack(">BI", scale.value, unscaled.value & 0xFFFFFFFF)


def _text(content: object) -> bytes:
    return b"S" + longstr(str(content).encode())


def _uuid(content: bytes) -> bytes:
    digits = content.hex()
    return _text("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def _list(content: tuple[Typed, ...]) -> bytes:
    return b"A" + longstr(b"".join(map(value_bytes, content)))


def _bytes(content: bytes) -> bytes:
    return b"x" + longstr(content)


_OTHERS: Final[dict[Kind, Callable[[Any], bytes]]] = {
    Kind.NULL: lambda _: b"V",
    Kind.BOOL: lambda content: b"t\x01" if content else b"t\x00",
    Kind.TEXT: _text,
    Kind.SYMBOL: _text,
    Kind.CHAR: _text,
    Kind.UUID: _uuid,
    Kind.BYTES: _bytes,
    Kind.DECIMAL32: _bytes,
    Kind.DECIMAL64: _bytes,
    Kind.DECIMAL128: _bytes,
    Kind.DECIMAL: _decimal,
    Kind.MILLISECONDS: lambda content: b"T" + struct.pack(">Q", max(0, content // 1_000)),
    Kind.LIST: _list,
    Kind.ARRAY: _list,
    Kind.MAP: _map,
    Kind.DESCRIBED: _described,
}


def value_bytes(value: Typed) -> bytes:
    """A letter and a value. Kinds of other protocols become what comes nearest."""
    fixed = _LETTERS.get(value.kind)
    if fixed is not None:
        letter, pack = fixed
        return letter + pack(value.value)
    return _OTHERS[value.kind](value.value)
