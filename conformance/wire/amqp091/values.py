"""Values of AMQP 0.9.1: strings, integers and field tables, by the letters that brokers and clients really use.

The standard's letters and those in use differ: ``s`` is a 16-bit integer, ``l`` a signed 64-bit one, ``x`` are bytes
(RabbitMQ's and Qpid's set). Python's own values take the usual letter of their kind; :class:`Typed` names any other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MAX_DEPTH = 32
"""Of tables and arrays in each other, when decoding."""
_INT32 = range(-(2**31), 2**31)
_FIXED = {
    "b": ">b",
    "B": ">B",
    "s": ">h",
    "u": ">H",
    "I": ">i",
    "i": ">I",
    "l": ">q",
    "f": ">f",
    "d": ">d",
    "T": ">Q",
}
_PLAIN = "tIldSFAV"
"""Letters whose values are decoded as Python's own, unless exact letters are wanted."""


class ValueDecodeError(ValueError):
    """Bytes are no value; the text says what is wrong."""


class Typed(msgspec.Struct, frozen=True):
    """A value with its letter. ``D`` holds (scale, integer), ``S`` and ``x`` bytes; any other letter raw bytes."""

    letter: str
    value: Any


def encode_shortstr(text: str | bytes) -> bytes:
    """At most 255 bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    if len(data) > 255:
        message = f"a short string has at most 255 bytes, not {len(data)}"
        raise ValueError(message)
    return bytes([len(data)]) + data


def encode_longstr(text: str | bytes) -> bytes:
    """A four-byte length and the bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(data)) + data


def _letter_of(value: Any) -> Typed:
    if isinstance(value, Typed):
        return value
    if value is None:
        return Typed("V", None)
    if isinstance(value, bool):
        return Typed("t", value)
    if isinstance(value, int):
        return Typed("I" if value in _INT32 else "l", value)
    if isinstance(value, float):
        return Typed("d", value)
    if isinstance(value, str | bytes):
        return Typed("S", value)
    if isinstance(value, Mapping):
        return Typed("F", value)
    if isinstance(value, Sequence):
        return Typed("A", value)
    message = f"no letter for {type(value).__name__}"
    raise TypeError(message)


def encode_value(value: Any) -> bytes:
    """A letter and the value."""
    typed = _letter_of(value)
    letter, inner = typed.letter, typed.value
    head = letter.encode("latin-1")
    if letter in _FIXED:
        return head + struct.pack(_FIXED[letter], inner)
    if letter == "t":
        return head + bytes([bool(inner)])
    if letter == "D":
        scale, number = inner
        return head + struct.pack(">Bi", scale, number)
    if letter in "Sx":
        return head + encode_longstr(inner)
    if letter == "F":
        return head + encode_table(inner)
    if letter == "A":
        items = b"".join(map(encode_value, inner))
        return head + struct.pack(">I", len(items)) + items
    return head + (inner or b"")  # V, and letters that nobody knows


def encode_table(table: Mapping[str, Any] | bytes) -> bytes:
    """A four-byte length and the fields; ``bytes`` are taken for the fields as they are."""
    if isinstance(table, bytes):
        return struct.pack(">I", len(table)) + table
    fields = b"".join(encode_shortstr(name) + encode_value(value) for name, value in table.items())
    return struct.pack(">I", len(fields)) + fields


class Reader:
    """Reads values from bytes that end where they end."""

    def __init__(self, data: bytes, what: str = "the payload") -> None:
        self._data, self._at, self._what = data, 0, what

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            message = f"{self._what} ends in the middle: {size} bytes wanted, {self.left} left"
            raise ValueDecodeError(message)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> int:
        found: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def shortstr(self) -> str:
        data = self.take(self.number(">B"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            message = f"a short string of {self._what} is not UTF-8: {data[:40].hex()}"
            raise ValueDecodeError(message) from error

    def longstr(self) -> bytes:
        return self.take(self.number(">I"))

    def table(self, *, exact: bool = False, depth: int = 0) -> dict[str, Any]:
        inner = Reader(self.take(self.number(">I")), "a field table")
        found: dict[str, Any] = {}
        while inner.left:
            name = inner.shortstr()
            found[name] = inner.value(exact=exact, depth=depth)
        return found

    def value(self, *, exact: bool, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            message = f"more than {MAX_DEPTH} tables and arrays in each other"
            raise ValueDecodeError(message)
        letter = self.take(1).decode("latin-1")
        found = self._of(letter, exact, depth)
        if exact or letter not in _PLAIN:
            return Typed(letter, found)
        if letter == "S":
            try:
                return found.decode()
            except UnicodeDecodeError:
                return found
        return found

    def _of(self, letter: str, exact: bool, depth: int) -> Any:
        if letter in _FIXED:
            return struct.unpack(_FIXED[letter], self.take(struct.calcsize(_FIXED[letter])))[0]
        if letter == "t":
            return bool(self.number(">B"))
        if letter == "D":
            return self.number(">B"), self.number(">i")
        if letter in "Sx":
            return self.longstr()
        if letter == "F":
            return self.table(exact=exact, depth=depth + 1)
        if letter == "A":
            inner = Reader(self.longstr(), "a field array")
            items = []
            while inner.left:
                items.append(inner.value(exact=exact, depth=depth + 1))
            return items
        if letter == "V":
            return None
        message = f"a field table holds a value of unknown type {letter!r}"
        raise ValueDecodeError(message)


def decode_table(data: bytes, *, exact: bool = False) -> dict[str, Any]:
    """A table with its length in front. ``exact``: every value as :class:`Typed`. Raises :class:`ValueDecodeError`."""
    reader = Reader(data)
    found = reader.table(exact=exact)
    if reader.left:
        message = f"{reader.left} bytes behind the field table"
        raise ValueDecodeError(message)
    return found
