"""How a topology is written down: one record for each durable thing.

=======  ========================  =============================================================
key      value                     what it is
=======  ========================  =============================================================
``ae``   :class:`StoredExchange`   an exchange: virtual host, zero byte, its name
``aq``   :class:`StoredQueue`      a queue: virtual host, zero byte, its name
``ab``   :class:`StoredBinding`    a binding between durable things: its number, 8 bytes
=======  ========================  =============================================================

A queue keeps its own record, too (:func:`declaration_of`), since it and this log are not written as one.

A value is a byte with the version of its format, and MessagePack. Names hold no zero byte (sec.4.2.5.3.shortstr).
A record without a value deletes its key.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec

from assay.reference_broker.amqp091.topology.arguments import Arguments
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination, DestinationKind
from assay.reference_broker.amqp091.topology.tables import ExchangeKind
from assay.reference_broker.routing.properties import MessageProperties, decode_properties, encode_properties
from assay.reference_broker.trace.described import described

FORMAT_VERSION: Final = 1
RECORD_PREFIX: Final = b"a"
EXCHANGE: Final = b"ae"
QUEUE: Final = b"aq"
BINDING: Final = b"ab"
NUMBER_BYTES: Final = 8

Change = tuple[bytes, bytes | None]


class GoneError(Exception):
    """A record refers to something that is no more."""


class StoredExchange(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    kind: ExchangeKind
    auto_delete: bool
    internal: bool
    was_bound: bool
    arguments: bytes
    """As :func:`stored_arguments`."""


class StoredQueue(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    auto_delete: bool
    arguments: bytes


class StoredBinding(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: bytes


Stored = StoredExchange | StoredQueue | StoredBinding
StoredT = TypeVar("StoredT", StoredExchange, StoredQueue, StoredBinding)
_encode = msgspec.msgpack.Encoder().encode


def stored_arguments(arguments: Arguments) -> bytes:
    """Empty where there are none."""
    return encode_properties(MessageProperties(headers=arguments)) if arguments else b""


def restored_arguments(data: bytes) -> Arguments:
    """The opposite. Raises :class:`ValueError`."""
    return decode_properties(data).headers if data else ()


def name_key(kind: bytes, vhost: str, name: str) -> bytes:
    return kind + vhost.encode() + b"\0" + name.encode()


def names_of(key: bytes) -> tuple[str, str]:
    """Virtual host and name, of a key of :func:`name_key`. Raises :class:`ValueError`."""
    vhost, separator, name = key[2:].partition(b"\0")
    if not separator or b"\0" in name:
        raise ValueError("its key is no virtual host and name")
    return vhost.decode(), name.decode()


def declaration_of(vhost: str, queue: str, stored: StoredQueue) -> str:
    """A queue's record, as the queue itself keeps it: what it holds and what it is are one then."""
    return base64.b64encode(_encode((FORMAT_VERSION, vhost, queue, stored))).decode()


def declared_in(text: str) -> tuple[str, str, StoredQueue]:
    """The opposite: virtual host, name, record. Raises :class:`ValueError`, :class:`msgspec.MsgspecError`."""
    version, vhost, queue, stored = msgspec.msgpack.decode(
        base64.b64decode(text, validate=True), type=described(tuple[int, str, str, StoredQueue])
    )
    if version != FORMAT_VERSION:
        message = f"it is of format {version}; this version reads format {FORMAT_VERSION}"
        raise ValueError(message)
    return vhost, queue, stored


def binding_key(number: int) -> bytes:
    return BINDING + number.to_bytes(NUMBER_BYTES, "big")


def number_of(key: bytes) -> int:
    """Of a key of :func:`binding_key`. Raises :class:`ValueError`."""
    if len(key) != 2 + NUMBER_BYTES or not any(key[2:]):
        raise ValueError("its key is no number of a binding")
    return int.from_bytes(key[2:], "big")


def stored_binding(vhost: str, binding: Binding) -> StoredBinding:
    return StoredBinding(
        vhost=vhost,
        source=binding.source,
        kind=binding.destination.kind,
        destination=binding.destination.name,
        routing_key=binding.routing_key,
        arguments=stored_arguments(binding.arguments),
    )


def restored_binding(stored: StoredBinding, number: int) -> Binding:
    """Raises :class:`ValueError`."""
    return Binding(
        source=stored.source,
        destination=Destination(stored.kind, stored.destination),
        routing_key=stored.routing_key,
        arguments=restored_arguments(stored.arguments),
        number=number,
    )


def encode(stored: Stored) -> bytes:
    return bytes((FORMAT_VERSION,)) + _encode(stored)


def decode(data: bytes, kind: type[StoredT]) -> StoredT:
    """Raises :class:`ValueError`."""
    if data[:1] != bytes((FORMAT_VERSION,)):
        message = f"it is of format {data[:1].hex() or 'none'}; this version reads format {FORMAT_VERSION:02x}"
        raise ValueError(message)
    return msgspec.msgpack.decode(data[1:], type=described(kind))


class Held:
    """Keys that are to be deleted, and are not yet."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: list[bytes] = []


class Journal:
    """What changed since it was last asked, one change a key; and the numbers of bindings."""

    def __init__(self) -> None:
        self._changes: dict[bytes, bytes | None] = {}
        self._written: set[bytes] = set()
        """Keys that have a value in the log, once these changes are written."""
        self._holder: Held | None = None
        self._held: dict[bytes, Held] = {}
        self.newest_number = 0
        """Of a binding."""

    def restored(self, key: bytes) -> None:
        """The log has it."""
        self._written.add(key)

    def write(self, key: bytes, stored: Stored) -> None:
        self._held.pop(key, None)
        self._changes[key] = encode(stored)

    def delete(self, key: bytes) -> None:
        """What was never written leaves no trace."""
        if self._holder is not None:
            self._held[key] = self._holder
            self._holder.keys.append(key)
            return
        self._changes.pop(key, None)
        if key in self._written:
            self._changes[key] = None

    @contextmanager
    def holding_deletions(self) -> Iterator[Held]:
        """What is deleted meanwhile is that when :meth:`let_go` says so, unless it is written anew before that."""
        self._holder = Held()
        try:
            yield self._holder
        finally:
            self._holder = None

    def let_go(self, held: Held) -> None:
        """Delete what was held."""
        for key in held.keys:
            if self._held.get(key) is held:
                del self._held[key]
                self.delete(key)

    def next_number(self) -> int:
        self.newest_number += 1
        return self.newest_number

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def take_changes(self) -> list[Change]:
        """One a key; they are as good as written."""
        changes, self._changes = self._changes, {}
        for key, value in changes.items():
            if value is None:
                self._written.discard(key)
            else:
                self._written.add(key)
        return list(changes.items())
