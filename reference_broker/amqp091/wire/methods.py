"""The methods of AMQP 0.9.1, and of RabbitMQ's extensions, as a table; how their arguments are read and written.

A test holds the table against the XML of the standard.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final

import msgspec

from assay.reference_broker.amqp091.wire.fields import Reader, bad_syntax, cut_shortstr, longstr, shortstr, table
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply

_IDS: Final = struct.Struct(">HH")


class Method(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One method: its numbers, name, and arguments. Reserved arguments have no name."""

    class_id: int
    method_id: int
    name: str
    """``queue.declare``"""
    arguments: tuple[tuple[str, str], ...]
    """Type and name, in their order."""
    has_content: bool
    is_reply: bool
    """A peer sends it only in answer."""
    ids: bytes
    reads: tuple[tuple[Callable[[Reader], Any] | None, tuple[bool, ...]], ...]
    """How its arguments are read, and whether each has a name; None = an octet of bits."""
    writes: tuple[tuple[Callable[[Any], bytes] | None, bytes, int], ...]
    """How they are written: each by a function, or bytes that are always the same, or so many bits."""

    @property
    def handler(self) -> str:
        """``queue_declare``"""
        return self.name.replace(".", "_").replace("-", "_")


BY_ID: Final[dict[tuple[int, int], Method]] = {}
BY_NAME: Final[dict[str, Method]] = {}
_CLASSES: Final = {
    "connection": 10,
    "channel": 20,
    "exchange": 40,
    "queue": 50,
    "basic": 60,
    "confirm": 85,
    "tx": 90,
}
_TABLE: Final = """
10 connection.start: octet version-major, octet version-minor, table server-properties, longstr mechanisms,
    longstr locales
11 connection.start-ok: table client-properties, shortstr mechanism, longstr response, shortstr locale
20 connection.secure: longstr challenge
21 connection.secure-ok: longstr response
30 connection.tune: short channel-max, long frame-max, short heartbeat
31 connection.tune-ok: short channel-max, long frame-max, short heartbeat
40 connection.open: shortstr virtual-host, shortstr, bit
41 connection.open-ok: shortstr
50 connection.close: short reply-code, shortstr reply-text, short class-id, short method-id
51 connection.close-ok
60 connection.blocked: shortstr reason
61 connection.unblocked
70 connection.update-secret: longstr new-secret, shortstr reason
71 connection.update-secret-ok
10 channel.open: shortstr
11 channel.open-ok: longstr
20 channel.flow: bit active
21 channel.flow-ok: bit active
40 channel.close: short reply-code, shortstr reply-text, short class-id, short method-id
41 channel.close-ok
10 exchange.declare: short, shortstr exchange, shortstr type, bit passive, bit durable, bit auto-delete,
    bit internal, bit no-wait, table arguments
11 exchange.declare-ok
20 exchange.delete: short, shortstr exchange, bit if-unused, bit no-wait
21 exchange.delete-ok
30 exchange.bind: short, shortstr destination, shortstr source, shortstr routing-key, bit no-wait,
    table arguments
31 exchange.bind-ok
40 exchange.unbind: short, shortstr destination, shortstr source, shortstr routing-key, bit no-wait,
    table arguments
51 exchange.unbind-ok
10 queue.declare: short, shortstr queue, bit passive, bit durable, bit exclusive, bit auto-delete, bit no-wait,
    table arguments
11 queue.declare-ok: shortstr queue, long message-count, long consumer-count
20 queue.bind: short, shortstr queue, shortstr exchange, shortstr routing-key, bit no-wait, table arguments
21 queue.bind-ok
30 queue.purge: short, shortstr queue, bit no-wait
31 queue.purge-ok: long message-count
40 queue.delete: short, shortstr queue, bit if-unused, bit if-empty, bit no-wait
41 queue.delete-ok: long message-count
50 queue.unbind: short, shortstr queue, shortstr exchange, shortstr routing-key, table arguments
51 queue.unbind-ok
10 basic.qos: long prefetch-size, short prefetch-count, bit global
11 basic.qos-ok
20 basic.consume: short, shortstr queue, shortstr consumer-tag, bit no-local, bit no-ack, bit exclusive,
    bit no-wait, table arguments
21 basic.consume-ok: shortstr consumer-tag
30 basic.cancel: shortstr consumer-tag, bit no-wait
31 basic.cancel-ok: shortstr consumer-tag
40 basic.publish: short, shortstr exchange, shortstr routing-key, bit mandatory, bit immediate
50 basic.return: short reply-code, shortstr reply-text, shortstr exchange, shortstr routing-key
60 basic.deliver: shortstr consumer-tag, longlong delivery-tag, bit redelivered, shortstr exchange,
    shortstr routing-key
70 basic.get: short, shortstr queue, bit no-ack
71 basic.get-ok: longlong delivery-tag, bit redelivered, shortstr exchange, shortstr routing-key,
    long message-count
72 basic.get-empty: shortstr
80 basic.ack: longlong delivery-tag, bit multiple
90 basic.reject: longlong delivery-tag, bit requeue
100 basic.recover-async: bit requeue
110 basic.recover: bit requeue
111 basic.recover-ok
120 basic.nack: longlong delivery-tag, bit multiple, bit requeue
10 confirm.select: bit nowait
11 confirm.select-ok
10 tx.select
11 tx.select-ok
20 tx.commit
21 tx.commit-ok
30 tx.rollback
31 tx.rollback-ok
"""
"""By line: number, name, arguments; of each its type, then its name unless it is reserved. Indented lines go on."""
_CONTENT: Final = frozenset({"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"})


_Arguments = list[tuple[str, str]]


def _by_octets(arguments: _Arguments) -> Iterator[tuple[str, _Arguments]]:
    """Each by itself, and bits that stand together as one; no method has more than eight of them."""
    for kind, some in groupby(arguments, lambda argument: argument[0]):
        if kind == "bit":
            yield kind, list(some)
        else:
            yield from [(kind, [each]) for each in some]


def _reads_of(arguments: _Arguments) -> Iterator[tuple[Callable[[Reader], Any] | None, tuple[bool, ...]]]:
    for kind, some in _by_octets(arguments):
        yield None if kind == "bit" else getattr(Reader, kind), tuple([bool(name) for _, name in some])


def _writes_of(ids: bytes, arguments: _Arguments) -> Iterator[tuple[Callable[[Any], bytes] | None, bytes, int]]:
    """A reserved argument is as if it was empty; of bits, no method has some with a name and some without."""
    yield None, ids, 0
    for kind, some in _by_octets(arguments):
        name = some[0][1]
        if kind == "bit":
            yield None, b"\0", len(some) if name else 0
        elif name:
            yield cut_shortstr if name == "reply-text" else _WRITERS[kind], b"", 1
        else:
            yield None, _WRITERS[kind](_RESERVED[kind]), 0


def _fill() -> None:
    for line in _TABLE.replace("\n    ", " ").strip().splitlines():
        head, _, listed = line.partition(": ")
        number, name = head.split(" ")
        method_id = int(number)
        class_id = _CLASSES[name.partition(".")[0]]
        arguments = []
        for argument in filter(None, listed.split(", ")):
            kind, _, argument_name = argument.partition(" ")
            arguments.append((kind, argument_name))
        is_reply = name.endswith(("-ok", "-empty")) or name in ("basic.deliver", "basic.return")
        ids = _IDS.pack(class_id, method_id)
        method = Method(
            class_id,
            method_id,
            name,
            tuple(arguments),
            name in _CONTENT,
            is_reply,
            ids,
            tuple(_reads_of(arguments)),
            tuple(_writes_of(ids, arguments)),
        )
        BY_ID[class_id, method_id] = BY_NAME[name] = method


def decode_method(payload: bytes) -> tuple[Method, list[Any]]:
    """The method of a method frame, and its arguments but for the reserved ones. Raises :class:`AmqpError`."""
    reader = Reader(payload)
    if len(payload) < _IDS.size:
        raise AmqpError(Reply.FRAME_ERROR, "a method frame without a method", rule="sec.4.2.4.unknown-method")
    class_id, method_id = _IDS.unpack_from(payload)
    reader.at = _IDS.size
    method = BY_ID.get((class_id, method_id))
    if method is None:
        text = f"there is no method {class_id}.{method_id}"
        code = Reply.COMMAND_INVALID if class_id in _CLASSES.values() else Reply.NOT_IMPLEMENTED
        raise AmqpError(code, text, rule="sec.4.2.4.unknown-method", hard=True)
    values: list[Any] = []
    try:
        for read, named in method.reads:
            if read is None:
                bits = reader.octet()
                values += [bits >> bit & 1 == 1 for bit, has_name in enumerate(named) if has_name]
                continue
            value = read(reader)
            if named[0]:
                values.append(value)
        reader.finish()
    except AmqpError as error:
        error.class_id, error.method_id = class_id, method_id
        raise
    return method, values


_WRITERS: Final[dict[str, Any]] = {
    "octet": lambda value: bytes((value,)),
    "short": struct.Struct(">H").pack,
    "long": struct.Struct(">I").pack,
    "longlong": struct.Struct(">Q").pack,
    "shortstr": shortstr,
    "longstr": longstr,
    "table": table,
}
_RESERVED: Final[dict[str, Any]] = {"octet": 0, "short": 0, "long": 0, "shortstr": "", "longstr": b"", "bit": False}


def encode_method(method: Method, *values: Any) -> bytes:
    """The payload of a method frame; ``values`` are those of its named arguments."""
    parts: list[bytes] = []
    at = 0
    for write, constant, count in method.writes:
        if write is not None:
            parts.append(write(values[at]))
        elif count:
            parts.append(bytes((sum([bool(value) << bit for bit, value in enumerate(values[at : at + count])]),)))
        else:
            parts.append(constant)
        at += count
    if at != len(values):
        raise bad_syntax(f"{method.name} has {at} arguments, and {len(values)} are given")
    return b"".join(parts)


_fill()
