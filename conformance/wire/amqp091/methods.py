"""Classes, methods, properties and reply codes of AMQP 0.9.1 as data, with RabbitMQ's extensions.

A test compares the table with the machine-readable specification field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

CLASSES: Mapping[str, int] = MappingProxyType(
    {"connection": 10, "channel": 20, "exchange": 40, "queue": 50, "basic": 60, "confirm": 85, "tx": 90}
)

# name, method id, fields as name:type; "+" = it has a reply that the sender waits for, "*" = content follows.
_TABLE = """
connection.start 10 + version-major:octet version-minor:octet server-properties:table mechanisms:longstr
    locales:longstr
connection.start-ok 11 client-properties:table mechanism:shortstr response:longstr locale:shortstr
connection.secure 20 + challenge:longstr
connection.secure-ok 21 response:longstr
connection.tune 30 + channel-max:short frame-max:long heartbeat:short
connection.tune-ok 31 channel-max:short frame-max:long heartbeat:short
connection.open 40 + virtual-host:shortstr reserved-1:shortstr reserved-2:bit
connection.open-ok 41 reserved-1:shortstr
connection.close 50 + reply-code:short reply-text:shortstr class-id:short method-id:short
connection.close-ok 51
connection.blocked 60 reason:shortstr
connection.unblocked 61
connection.update-secret 70 + new-secret:longstr reason:shortstr
connection.update-secret-ok 71
channel.open 10 + reserved-1:shortstr
channel.open-ok 11 reserved-1:longstr
channel.flow 20 + active:bit
channel.flow-ok 21 active:bit
channel.close 40 + reply-code:short reply-text:shortstr class-id:short method-id:short
channel.close-ok 41
exchange.declare 10 + reserved-1:short exchange:shortstr type:shortstr passive:bit durable:bit auto-delete:bit
    internal:bit no-wait:bit arguments:table
exchange.declare-ok 11
exchange.delete 20 + reserved-1:short exchange:shortstr if-unused:bit no-wait:bit
exchange.delete-ok 21
exchange.bind 30 + reserved-1:short destination:shortstr source:shortstr routing-key:shortstr no-wait:bit
    arguments:table
exchange.bind-ok 31
exchange.unbind 40 + reserved-1:short destination:shortstr source:shortstr routing-key:shortstr no-wait:bit
    arguments:table
exchange.unbind-ok 51
queue.declare 10 + reserved-1:short queue:shortstr passive:bit durable:bit exclusive:bit auto-delete:bit
    no-wait:bit arguments:table
queue.declare-ok 11 queue:shortstr message-count:long consumer-count:long
queue.bind 20 + reserved-1:short queue:shortstr exchange:shortstr routing-key:shortstr no-wait:bit arguments:table
queue.bind-ok 21
queue.unbind 50 + reserved-1:short queue:shortstr exchange:shortstr routing-key:shortstr arguments:table
queue.unbind-ok 51
queue.purge 30 + reserved-1:short queue:shortstr no-wait:bit
queue.purge-ok 31 message-count:long
queue.delete 40 + reserved-1:short queue:shortstr if-unused:bit if-empty:bit no-wait:bit
queue.delete-ok 41 message-count:long
basic.qos 10 + prefetch-size:long prefetch-count:short global:bit
basic.qos-ok 11
basic.consume 20 + reserved-1:short queue:shortstr consumer-tag:shortstr no-local:bit no-ack:bit exclusive:bit
    no-wait:bit arguments:table
basic.consume-ok 21 consumer-tag:shortstr
basic.cancel 30 + consumer-tag:shortstr no-wait:bit
basic.cancel-ok 31 consumer-tag:shortstr
basic.publish 40 * reserved-1:short exchange:shortstr routing-key:shortstr mandatory:bit immediate:bit
basic.return 50 * reply-code:short reply-text:shortstr exchange:shortstr routing-key:shortstr
basic.deliver 60 * consumer-tag:shortstr delivery-tag:longlong redelivered:bit exchange:shortstr routing-key:shortstr
basic.get 70 + reserved-1:short queue:shortstr no-ack:bit
basic.get-ok 71 * delivery-tag:longlong redelivered:bit exchange:shortstr routing-key:shortstr message-count:long
basic.get-empty 72 reserved-1:shortstr
basic.ack 80 delivery-tag:longlong multiple:bit
basic.reject 90 delivery-tag:longlong requeue:bit
basic.recover-async 100 requeue:bit
basic.recover 110 requeue:bit
basic.recover-ok 111
basic.nack 120 delivery-tag:longlong multiple:bit requeue:bit
confirm.select 10 + nowait:bit
confirm.select-ok 11
tx.select 10 +
tx.select-ok 11
tx.commit 20 +
tx.commit-ok 21
tx.rollback 30 +
tx.rollback-ok 31
"""

PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "content-type": "shortstr",
        "content-encoding": "shortstr",
        "headers": "table",
        "delivery-mode": "octet",
        "priority": "octet",
        "correlation-id": "shortstr",
        "reply-to": "shortstr",
        "expiration": "shortstr",
        "message-id": "shortstr",
        "timestamp": "timestamp",
        "type": "shortstr",
        "user-id": "shortstr",
        "app-id": "shortstr",
        "reserved": "shortstr",
    }
)
"""Of class basic, in the order of their flags."""

CONSTANTS: Mapping[int, str] = MappingProxyType(
    {
        200: "reply-success",
        311: "content-too-large",
        312: "no-route",
        313: "no-consumers",
        320: "connection-forced",
        402: "invalid-path",
        403: "access-refused",
        404: "not-found",
        405: "resource-locked",
        406: "precondition-failed",
        501: "frame-error",
        502: "syntax-error",
        503: "command-invalid",
        504: "channel-error",
        505: "unexpected-frame",
        506: "resource-error",
        530: "not-allowed",
        540: "not-implemented",
        541: "internal-error",
    }
)
"""Reply codes."""
_SOFT = frozenset({311, 312, 313, 403, 404, 405, 406})


def is_hard_error(code: int) -> bool:
    """Whether a reply code is one of those that end the connection."""
    return code in CONSTANTS and code not in _SOFT and code != 200


class MethodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    class_id: int
    method_id: int
    fields: tuple[tuple[str, str], ...]
    """Name (with hyphens) and type."""
    waits: bool
    """Its sender waits for a reply."""
    content: bool

    @property
    def replies(self) -> tuple[str, ...]:
        """Names of the methods that answer it."""
        if self.name == "basic.get":
            return ("basic.get-ok", "basic.get-empty")
        if self.name == "connection.start":
            return ("connection.start-ok",)
        return (f"{self.name}-ok",) if self.waits or self.name == "basic.recover" else ()


def _parse(line: str) -> MethodSpec:
    name, number, *rest = line.split()
    signs = [part for part in rest if part in ("+", "*")]
    fields = tuple((field, kind) for field, _, kind in (part.partition(":") for part in rest if part not in ("+", "*")))
    return MethodSpec(
        name=name,
        class_id=CLASSES[name.partition(".")[0]],
        method_id=int(number),
        fields=fields,
        waits="+" in signs,
        content="*" in signs,
    )


METHODS: Mapping[str, MethodSpec] = MappingProxyType(
    {spec.name: spec for spec in map(_parse, filter(None, _TABLE.replace("\n    ", " ").splitlines()))}
)
BY_IDS: Mapping[tuple[int, int], MethodSpec] = MappingProxyType(
    {(spec.class_id, spec.method_id): spec for spec in METHODS.values()}
)
_EMPTY: Mapping[str, Any] = MappingProxyType({"shortstr": "", "longstr": b"", "table": {}, "bit": False})


class Method:
    """A method with its arguments: ``Method("queue.declare", queue="orders")["queue"]``.

    Names of fields are written with underscores (``type_`` and ``global_`` for the words of Python); what is not given
    is zero, empty or false. A value of type ``bytes`` may stand for any text.
    """

    __slots__ = ("spec", "values")

    def __init__(self, method_name: str, **values: Any) -> None:
        self.spec = METHODS[method_name]
        given = {name.rstrip("_").replace("_", "-"): value for name, value in values.items()}
        self.values = {name: given.pop(name, _EMPTY.get(kind, 0)) for name, kind in self.spec.fields}
        if given:
            message = f"{method_name} has no field {', '.join(given)}"
            raise TypeError(message)

    @property
    def name(self) -> str:
        return self.spec.name

    def __getitem__(self, field: str) -> Any:
        return self.values[field]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and (self.name, self.values) == (other.name, other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Method({self.name}, {self.values})"
