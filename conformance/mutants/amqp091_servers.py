"""Legal variations as other servers are: each accused one of them falsely once, and every case must pass it since.

Qpid Broker-J and FluxMQ, as docs/findings/amqp091.md has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.amqp091_answers import wrap_handlers
from assay.reference_broker.amqp091 import messages, publishing, transactions
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.topology import tables
from assay.reference_broker.amqp091.topology.exchanges import Exchange
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost
from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.message import Message


@variation(
    "any-amqp-codes-of-others",
    "320 for an unknown mechanism, 502 for a frame-max that is none, 530 for the nameless exchange in bindings",
    freedom="2.2.4 and the tables of reply codes: which code fits is not said, and servers in use give these",
)
def codes_of_others(patch: Patch) -> None:
    def make_refuse(original: Callable[..., None]) -> Callable[..., None]:
        def refuse(self: AmqpConnection, error: AmqpError, now: float) -> None:
            if "is not offered" in error.text:
                error.code = Reply.CONNECTION_FORCED
                self.fail(error, now)
            else:
                original(self, error, now)

        return refuse

    def make_tune(original: Callable[..., None]) -> Callable[..., None]:
        def on_tune_ok(self: AmqpConnection, channels: int, frame_max: int, heartbeat_s: int, now: float) -> None:
            if 4_096 <= frame_max <= self.config.frame_max_bytes:
                original(self, channels, frame_max, heartbeat_s, now)
            else:
                self.fail(AmqpError(Reply.SYNTAX_ERROR, f"frame-max {frame_max}"), now)

        return on_tune_ok

    def make_bind(original: Callable[..., Any]) -> Callable[..., Any]:
        def bind(*arguments: Any, **named: Any) -> Any:
            try:
                return original(*arguments, **named)
            except AmqpError as error:
                if error.rule == "exchange.default-access":
                    error.code, error.hard = Reply.NOT_ALLOWED, True
                raise

        return bind

    patch.wrap(AmqpConnection, "refuse_login", make_refuse)
    patch.wrap(AmqpConnection, "on_tune_ok", make_tune)
    for name in ("bind_queue", "bind_exchange", "unbind_queue", "unbind_exchange"):
        patch.wrap(VirtualHost, name, make_bind)


@variation(
    "any-amqp-expirations-are-moments",
    "an expiration is a moment in Unix milliseconds, and what is no number is passed over",
    freedom="class basic: the expiration is for the implementation's use, with no formal behaviour",
    silences=(
        "amqp091/extensions/expiration-of-a-message",
        "amqp091/extensions/expirations-that-are-no-numbers",
        "amqp091/tx/time-to-live-begins-with-commit",
    ),
)
def expirations_are_moments(patch: Patch) -> None:
    def make(original: Callable[[BasicProperties], int | None]) -> Callable[[BasicProperties], int | None]:
        def expiration_ms(properties: BasicProperties) -> int | None:
            try:
                return original(properties)
            except AmqpError:
                return None

        return expiration_ms

    def make_message(original: Callable[..., Message]) -> Callable[..., Message]:
        def message_from(*arguments: Any) -> Message:
            message = original(*arguments)
            if message.properties is not None and message.properties.ttl_ms is not None:
                message.expires_at = message.properties.ttl_ms / 1_000
            return message

        return message_from

    patch.wrap(messages, "expiration_ms", make)
    patch.wrap(publishing, "message_from", make_message)
    patch.wrap(transactions, "begun", lambda original: lambda message, now: message)


@variation(
    "any-amqp-any-x-match",
    "whatever x-match says but any is all, and names that begin with x- never count",
    freedom="3.1.3.4: two values are named, and no error; those with -with-x are an extension",
    silences=("amqp091/exchange/headers-with-x",),
)
def any_x_match(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def match_of(fields: dict[str, Any]) -> Any:
            given = fields.get(tables.X_MATCH)
            return tables.Match.ANY if given is not None and given.value == "any" else tables.Match.ALL

        return match_of

    patch.wrap(tables, "match_of", make)


@variation(
    "any-amqp-headers-bound-by-key",
    "a binding to a headers exchange takes the place of one of the same queue and key, whatever its arguments are",
    freedom="queue.bind.duplicates: what makes two bindings the same is not said",
)
def headers_bound_by_key(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def bind(self: VirtualHost, source: Exchange, destination: Any, routing_key: str, arguments: Any) -> bool:
            if source.kind is tables.ExchangeKind.HEADERS:
                for known in list(source.bindings.values()):
                    if (known.destination, known.routing_key) == (destination, routing_key):
                        self.unlink(known, source)
            return original(self, source, destination, routing_key, arguments)

        return bind

    patch.wrap(VirtualHost, "bind", make)


@variation(
    "any-amqp-no-bindings-between-exchanges",
    "exchanges are not bound to exchanges, and the bit for internal ones is passed over",
    freedom="exchange.bind is an extension; the bit is reserved in the standard",
    silences=(
        "amqp091/exchange/alternates-behind-bindings",
        "amqp091/exchange/auto-delete-follows-the-bindings",
        "amqp091/exchange/bindings-between-them-are-answered",
        "amqp091/exchange/bindings-of-what-is-not-there",
        "amqp091/exchange/bound-in-a-circle",
        "amqp091/exchange/changes-behind-bindings-count",
        "amqp091/exchange/internal-ones-take-no-publishes",
        "amqp091/exchange/many-ways-one-copy",
        "amqp091/exchange/the-nameless-one-in-bindings",
        "amqp091/exchange/unbinding-what-is-not-there",
    ),
)
def no_bindings_between_exchanges(patch: Patch) -> None:
    def refuse(_name: str, _original: Any) -> Any:
        def handle(_channel: Channel, *_values: Any) -> None:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "exchanges are not bound to exchanges")

        return handle

    def make_declare(_name: str, original: Any) -> Any:
        def declare(channel: Channel, *values: Any) -> None:
            original(channel, *values[:5], False, *values[6:])

        return declare

    wrap_handlers(patch, ("exchange.bind", "exchange.unbind"), refuse)
    wrap_handlers(patch, ("exchange.declare",), make_declare)
    leave_out(patch, "exchange_exchange_bindings")


def leave_out(patch: Patch, capability: str) -> None:
    """The server does not announce it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def server_properties(self: AmqpConnection) -> Any:
            (name, table), *others = original(self)
            parts = table.value
            pairs = [pair for pair in zip(parts[::2], parts[1::2], strict=True) if pair[0].value != capability]
            left = tuple([part for pair in pairs for part in pair])
            return ((name, type(table)(table.kind, left)), *others)

        return server_properties

    patch.wrap(AmqpConnection, "server_properties", make)
