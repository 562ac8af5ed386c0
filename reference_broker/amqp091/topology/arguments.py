"""Tables of arguments: their limits, and when two values are the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

import msgspec

from assay.reference_broker.amqp091.topology.refusals import precondition_failed
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed, check_value, properties_bytes

Arguments = tuple[tuple[str, Typed], ...]
"""A table of arguments, or of headers. Of two fields with one name the first counts."""
MAX_NAME_BYTES: Final = 255
"""Of exchanges, queues and routing keys: a short string (sec.4.2.5.3.shortstr)."""

_NAME_RULE: Final = "sec.4.2.5.3.shortstr"
_TABLE_RULE: Final = "sec.4.2.1.field-types"
INTEGERS: Final = frozenset({Kind.I8, Kind.U8, Kind.I16, Kind.U16, Kind.I32, Kind.U32, Kind.I64, Kind.U64})
_FLOATS: Final = frozenset({Kind.F32, Kind.F64})
_TEXTS: Final = frozenset({Kind.TEXT, Kind.SYMBOL})
_LINE_FEEDS: Final = str.maketrans("", "", "\r\n")


class TopologyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of each virtual host, but for what routes that are remembered take."""

    max_exchanges: int = 10_000
    """Beside the predeclared ones."""
    max_bindings: int = 200_000
    """Beside those of the default exchange."""
    max_bytes: int = 512 * 1024 * 1024
    """Exchanges, bindings and what queues were declared as, as they take in memory, about."""
    max_arguments_bytes: int = 64 * 1024
    """Of one exchange, queue or binding, as they take in memory."""
    max_arguments_depth: int = 16
    """Tables in tables."""
    max_routing_keys: int = 1_000
    """Of one message, CC and BCC among them."""
    max_remembered_bytes: int = 16 * 1024 * 1024
    """Routes that are remembered, of all virtual hosts together."""


def stripped(name: str) -> str:
    """A name that a client sent for an exchange or a queue, without line feeds and carriage returns, as RabbitMQ."""
    return name.translate(_LINE_FEEDS)


def check_name(what: str, name: str) -> None:
    """Raises :class:`AmqpError` for what is no short string."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise precondition_failed(f"{what} is no text: {error.reason}", _NAME_RULE) from error
    if size > MAX_NAME_BYTES:
        raise precondition_failed(f"{what} '{name[:40]}...' has {size} bytes; {MAX_NAME_BYTES} are allowed", _NAME_RULE)
    if "\0" in name:
        raise precondition_failed(f"{what} '{name.replace(chr(0), '?')}' holds a zero byte", _NAME_RULE)


def arguments_bytes(arguments: Arguments) -> int:
    """As they take in memory."""
    return properties_bytes(MessageProperties(headers=arguments)) if arguments else 0


def check_arguments(what: str, arguments: Arguments, limits: TopologyLimits) -> None:
    """``what``: whose they are, in words. Raises :class:`AmqpError` when they are too many, too deep or no values."""
    if not arguments:
        return
    size = arguments_bytes(arguments)
    if size > limits.max_arguments_bytes:
        raise precondition_failed(
            f"the arguments of {what} take {size} bytes; {limits.max_arguments_bytes} are allowed", _TABLE_RULE
        )
    for name, value in arguments:
        if _is_deeper(value, limits.max_arguments_depth):
            raise precondition_failed(
                f"argument '{name[:40]}' of {what} has more than {limits.max_arguments_depth} tables in tables",
                _TABLE_RULE,
            )
        try:
            check_value(value)
        except ValueError as error:
            raise precondition_failed(f"argument '{name[:40]}' of {what}: {error}", _TABLE_RULE) from error


def _is_deeper(value: Typed, depth: int) -> bool:
    if not isinstance(value.value, tuple):
        return False
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in value.value)


def comparable(value: Typed) -> Hashable:
    """The same for values that are the same: of integers the width is no part of it, and of tables the order."""
    kind, content = value.kind, value.value
    if kind in INTEGERS:
        return "integer", content
    if kind in _TEXTS:
        return "text", content
    if kind in _FLOATS:
        # What is no number is no number each time.
        return "float", content if content == content else "nan"
    if kind is Kind.MAP:
        pairs = zip(content[::2], content[1::2], strict=True)
        return "map", frozenset([(comparable(name), comparable(each)) for name, each in pairs])
    if isinstance(content, tuple):
        return kind, tuple([comparable(each) for each in content])
    return kind, content


def first_fields(arguments: Iterable[tuple[str, Typed]]) -> dict[str, Typed]:
    """By name."""
    found: dict[str, Typed] = {}
    for name, value in arguments:
        found.setdefault(name, value)
    return found


def identity_of(arguments: Arguments) -> Hashable:
    """The same for tables that are the same."""
    if not arguments:
        return None
    return frozenset([(name, comparable(value)) for name, value in first_fields(arguments).items()])


_TYPE_NAMES: Final = {
    Kind.I8: "byte",
    Kind.U8: "unsignedbyte",
    Kind.I16: "short",
    Kind.U16: "unsignedshort",
    Kind.I32: "signedint",
    Kind.U32: "unsignedint",
    Kind.I64: "long",
    Kind.F32: "float",
    Kind.F64: "double",
    Kind.SECONDS: "timestamp",
    Kind.BYTES: "binary",
    Kind.TEXT: "longstr",
    Kind.LIST: "array",
    Kind.MAP: "table",
    Kind.NULL: "void",
}
"""As RabbitMQ calls them; others have the name of their kind."""


def type_name(value: Typed) -> str:
    return _TYPE_NAMES.get(value.kind, value.kind.value)


def in_words(value: Typed | None) -> str:
    return "none" if value is None else f"the value '{str(value.value)[:80]}' of type '{type_name(value)}'"


def difference(
    current: Arguments, received: Arguments, defaults: dict[str, Typed], only: Iterable[str] | None = None
) -> tuple[str, str, str] | None:
    """The first argument in which two tables differ: its name, and both values in words. None = they are equivalent.

    ``defaults``: what an argument is where it is not given. ``only``: the ones to compare; None = all.
    """
    ours, theirs = {**defaults, **first_fields(current)}, {**defaults, **first_fields(received)}
    for name in sorted(ours.keys() | theirs.keys()) if only is None else only:
        have, got = ours.get(name), theirs.get(name)
        if have is None and got is None:
            continue
        if have is None or got is None or comparable(have) != comparable(got):
            return name, in_words(got), in_words(have)
    return None
