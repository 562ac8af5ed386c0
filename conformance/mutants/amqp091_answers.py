"""Bugs of the reference broker's AMQP 0.9.1: how it opens, what it answers and refuses, and what damage does to it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.amqp091 import channel as channel_module
from assay.reference_broker.amqp091 import connection as connection_module
from assay.reference_broker.amqp091 import runs
from assay.reference_broker.amqp091.channel import HANDLERS, Channel
from assay.reference_broker.amqp091.connection import AmqpConnection, Phase
from assay.reference_broker.amqp091.login import READERS
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import virtual_host
from assay.reference_broker.amqp091.topology.exchanges import PREDECLARED
from assay.reference_broker.amqp091.wire import frames
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties
from assay.reference_broker.amqp091.wire.frames import PROTOCOL_HEADER, Frame, FrameType
from assay.reference_broker.amqp091.wire.methods import Method, decode_method, encode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.auth import Authenticator

Handler = Callable[..., None]


def wrap_handlers(patch: Patch, methods: Iterable[str], make: Callable[[str, Handler], Handler]) -> None:
    """Replace what carries out these methods by ``make(name, original)``."""
    for name in methods:
        patch.item(HANDLERS, name, make(name, HANDLERS[name]))


def _of_classes(*classes: str) -> list[str]:
    return [name for name in HANDLERS if name.partition(".")[0] in classes]


def _passive(name: str, values: tuple[Any, ...]) -> bool:
    """Whether a declaration asks only."""
    return bool(values[1] if name == "queue.declare" else values[2])


# What is asked wrongly

_ODD_NAME = re.compile(r"[^\w.:-]|.{101}", re.ASCII)
_EXPECTED: Mapping[str, tuple[str, ...]] = {
    "exchange.delete": ("exchanges",),
    "exchange.unbind": ("exchanges", "exchanges"),
    "queue.delete": ("queues",),
    "queue.unbind": ("queues", "exchanges"),
}
"""What must be there before it goes, by the first arguments of a method."""


def _is_unforeseen(channel: Channel, name: str, values: tuple[Any, ...]) -> bool:
    if name.endswith(".declare") and not _passive(name, values):
        return _ODD_NAME.search(values[0]) is not None
    kinds = _EXPECTED.get(name, ())
    return any(each not in getattr(channel.vhost, kind) for each, kind in zip(values, kinds, strict=False))


@mutant(
    "amqp-refusals-are-internal-errors",
    "what is asked wrongly of queues, exchanges and publishes was not thought of: it ends the connection with 541",
)
def refusals_are_internal_errors(patch: Patch) -> None:
    def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except AmqpError as error:
            raise AmqpError(Reply.INTERNAL_ERROR, str(error)) from error

    def make(name: str, original: Handler) -> Handler:
        def handle(channel: Channel, *values: Any) -> None:
            if _is_unforeseen(channel, name, values):
                raise AmqpError(Reply.INTERNAL_ERROR, f"KeyError in {name}")
            guarded(original, channel, *values)

        return handle

    wrap_handlers(patch, _of_classes("exchange", "queue"), make)
    patch.wrap(Publishing, "publish", lambda original: lambda *arguments: guarded(original, *arguments))


_UNANSWERED = frozenset(
    {
        "channel.close-ok",
        "channel.flow-ok",
        "confirm.select-ok",
        "connection.update-secret-ok",
        "exchange.bind-ok",
        "tx.commit-ok",
    }
)


@mutant("amqp-some-answers-missing", f"the server never sends {', '.join(sorted(_UNANSWERED))}")
def some_answers_missing(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send_method(self: AmqpConnection, channel: int, name: str, *values: Any) -> None:
            if name not in _UNANSWERED:
                original(self, channel, name, *values)

        return send_method

    patch.wrap(AmqpConnection, "send_method", make)


# Limits and kinds


def _most(limits: Mapping[str, int], subject: Callable[[str, Channel, tuple[Any, ...]], object]) -> Callable[..., None]:
    def apply(patch: Patch) -> None:
        seen: WeakKeyDictionary[object, Counter[object]] = WeakKeyDictionary()

        def make(name: str, original: Handler) -> Handler:
            def handle(channel: Channel, *values: Any) -> None:
                counts = seen.setdefault(channel.connection, Counter())
                if not (name.endswith(".declare") and _passive(name, values)):
                    counts[subject(name, channel, values)] += 1
                if counts[subject(name, channel, values)] > limits[name]:
                    raise AmqpError(Reply.PRECONDITION_FAILED, f"no more than {limits[name]} times {name}")
                original(channel, *values)

            return handle

        wrap_handlers(patch, limits, make)

    return apply


mutant("amqp-room-for-few", "a connection has room for 12 exchanges, 200 queues and 8 consumers")(
    _most({"exchange.declare": 12, "queue.declare": 200, "basic.consume": 8}, lambda name, _channel, _values: name)
)
mutant("amqp-few-bindings", "a queue may be bound three times")(
    _most({"queue.bind": 3}, lambda name, _channel, values: (name, values[0]))
)


@mutant("amqp-durable-or-nothing", "transient queues and exchanges are not implemented")
def durable_or_nothing(patch: Patch) -> None:
    def make(name: str, original: Handler) -> Handler:
        place = 2 if name == "queue.declare" else 3

        def handle(channel: Channel, *values: Any) -> None:
            if not _passive(name, values) and not values[place]:
                raise AmqpError(Reply.NOT_IMPLEMENTED, f"{name} without durable")
            original(channel, *values)

        return handle

    wrap_handlers(patch, ("exchange.declare", "queue.declare"), make)


@mutant("amqp-no-fanout", "of the types of exchanges fanout and headers are not known")
def no_fanout(patch: Patch) -> None:
    unknown = ("fanout", "headers")

    def make(_name: str, original: Handler) -> Handler:
        def declare(channel: Channel, exchange: str, kind: str, *values: Any) -> None:
            if kind in unknown and not values[0]:
                raise AmqpError(Reply.COMMAND_INVALID, f"unknown exchange type '{kind}'")
            original(channel, exchange, kind, *values)

        return declare

    wrap_handlers(patch, ("exchange.declare",), make)
    known = {name: kind for name, kind in PREDECLARED.items() if kind not in unknown}
    patch.replace(virtual_host, "PREDECLARED", known)


# Opening


@mutant("amqp-version-0-8", "Start says version 0-8")
def version_0_8(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send_method(self: AmqpConnection, channel: int, name: str, *values: Any) -> None:
            original(self, channel, name, *((0, 8, *values[2:]) if name == "connection.start" else values))

        return send_method

    patch.wrap(AmqpConnection, "send_method", make)


@mutant("amqp-nameless-server", "the server-properties are empty")
def nameless_server(patch: Patch) -> None:
    patch.wrap(AmqpConnection, "server_properties", lambda original: lambda self: ())


@mutant("amqp-header-in-one-piece", "a protocol header that does not come at once is none")
def header_in_one_piece(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def receive(self: AmqpConnection, data: bytes, now: float) -> None:
            if self.phase is Phase.HEADER and len(data) < len(PROTOCOL_HEADER):
                self.send(PROTOCOL_HEADER)
                self.give_way(now)
                return
            original(self, data, now)

        return receive

    patch.wrap(AmqpConnection, "receive", make)


@mutant("amqp-small-frames-before-tune", "before Tune-Ok no frame may have more than 2048 bytes")
def small_frames_before_tune(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: AmqpConnection, *arguments: Any) -> None:
            original(self, *arguments)
            self.frame_max_bytes = 2_048

        return init

    patch.wrap(AmqpConnection, "__init__", make)


@mutant("amqp-any-mechanism", "a mechanism that nobody knows is taken for PLAIN")
def any_mechanism(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_start_ok(self: AmqpConnection, properties: Any, mechanism: str, *values: Any) -> None:
            original(self, properties, mechanism if mechanism in READERS else "PLAIN", *values)

        return on_start_ok

    patch.wrap(AmqpConnection, "on_start_ok", make)


@mutant("amqp-no-channels-for-zero", "a client that names no most of channels may open none")
def no_channels_for_zero(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_tune_ok(self: AmqpConnection, channel_max: int, *values: Any) -> None:
            original(self, channel_max or self.config.channel_max, *values)
            self._channel_max = channel_max

        return on_tune_ok

    patch.wrap(AmqpConnection, "on_tune_ok", make)


@mutant("amqp-any-password", "no password is wrong")
def any_password(patch: Patch) -> None:
    patch.wrap(Authenticator, "decide", lambda original: lambda *arguments, **named: True)


@mutant("amqp-refusals-untold", "nobody is told of a wrong password, whatever the client understands")
def refusals_untold(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def refuse(self: AmqpConnection, error: AmqpError, now: float) -> None:
            self.capabilities = frozenset()
            original(self, error, now)

        return refuse

    patch.wrap(AmqpConnection, "refuse_login", make)


@mutant("amqp-one-vhost-for-all", "whatever virtual host is opened, it is the same one")
def one_vhost_for_all(patch: Patch) -> None:
    def make(_original: Callable[..., object]) -> Callable[..., object]:
        return lambda self, _name, _tenant: self.topology.vhost("/")

    patch.wrap(Amqp091, "vhost", make)


# Channels


@mutant("amqp-channels-in-sequence", "channels are opened one number after the other, or not at all")
def channels_in_sequence(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_new_channel(self: AmqpConnection, kind: int, number: int, payload: bytes, now: float) -> None:
            if number > len(self.channels) + 1:
                raise AmqpError(Reply.CHANNEL_ERROR, f"channel {number} is not the next one")
            original(self, kind, number, payload, now)

        return on_new_channel

    patch.wrap(AmqpConnection, "on_new_channel", make)


def _while_closing(name: str, then: Callable[[Channel], None]) -> Callable[[Patch], None]:
    """What a channel that waits for Close-Ok does at a method."""

    def apply(patch: Patch) -> None:
        def make(original: Callable[..., None]) -> Callable[..., None]:
            def on_frame(self: Channel, kind: int, payload: bytes, now: float) -> None:
                if self.is_closing and kind == FrameType.METHOD and decode_method(payload)[0].name == name:
                    then(self)
                else:
                    original(self, kind, payload, now)

            return on_frame

        patch.wrap(Channel, "on_frame", make)

    return apply


def _forget(channel: Channel) -> None:
    channel.connection.channels.pop(channel.number, None)


def _open_again(channel: Channel) -> None:
    connection = channel.connection
    connection.channels[channel.number] = Channel(connection, channel.number)
    connection.send_method(channel.number, "channel.open-ok")


mutant(
    "amqp-channel-closes-that-cross-unanswered", "a Close of a channel that crosses one of the server is not answered"
)(_while_closing("channel.close", _forget))
mutant("amqp-closing-channels-open-again", "a channel that was closed for an error opens again before Close-Ok")(
    _while_closing("channel.open", _open_again)
)


@mutant("amqp-content-of-one-channel-at-a-time", "frames of another channel may not stand within a content")
def content_of_one_channel(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_frame(self: Channel, kind: int, payload: bytes, now: float) -> None:
            others = [each for each in self.connection.channels.values() if each is not self]
            if any(each._content is not None for each in others):
                raise AmqpError(Reply.UNEXPECTED_FRAME, "content of another channel is not whole")
            original(self, kind, payload, now)

        return on_frame

    patch.wrap(Channel, "on_frame", make)


@mutant("amqp-greedy-deliveries", "a new consumer gets all that waits before anybody else's request is looked at")
def greedy_deliveries(patch: Patch) -> None:
    def make(_name: str, original: Handler) -> Handler:
        def consume(channel: Channel, *values: Any) -> None:
            original(channel, *values)
            connection = channel.connection
            for _ in range(100):
                connection.is_full = False
                channel.consuming.resume()
                connection.broker.engine.dispatch(connection.broker.now)

        return consume

    wrap_handlers(patch, ("basic.consume",), make)


# Damage

_DAMAGE = (
    Reply.FRAME_ERROR,
    Reply.SYNTAX_ERROR,
    Reply.COMMAND_INVALID,
    Reply.UNEXPECTED_FRAME,
    Reply.NOT_IMPLEMENTED,
)


@mutant("amqp-damage-passed-over", "frames and methods that cannot be read are passed over")
def damage_passed_over(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_frame(*arguments: Any) -> None:
            try:
                original(*arguments)
            except AmqpError as error:
                if error.code not in _DAMAGE:
                    raise

        return on_frame

    patch.wrap(Channel, "on_frame", make)
    patch.wrap(AmqpConnection, "on_frame", make)
    patch.replace(frames, "FRAME_TYPES", frozenset(range(256)))


@mutant("amqp-content-headers-internal-errors", "a content header that makes no sense is an internal error")
def content_headers_internal_errors(patch: Patch) -> None:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        def decode(payload: bytes) -> object:
            try:
                return original(payload)
            except AmqpError as error:
                raise AmqpError(Reply.INTERNAL_ERROR, str(error)) from error

        return decode

    patch.wrap(channel_module, "decode_header", make)


@mutant("amqp-content-cut-short", "a method within a content ends it: what has come so far is the message")
def content_cut_short(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_frame(self: Channel, kind: int, payload: bytes, now: float) -> None:
            content = self._content
            if kind == FrameType.METHOD and content is not None:
                content.properties = content.properties or NONE
                self.on_content(content, now)
            original(self, kind, payload, now)

        return on_frame

    patch.wrap(Channel, "on_frame", make)


@mutant("amqp-names-of-fields-of-64", "a field whose name has more than 64 letters cannot be read")
def names_of_fields_of_64(patch: Patch) -> None:
    def make(original: Callable[..., tuple[int, BasicProperties]]) -> Callable[..., tuple[int, BasicProperties]]:
        def decode(payload: bytes) -> tuple[int, BasicProperties]:
            size, properties = original(payload)
            if any(len(name) > 64 for name, _ in properties.headers or ()):
                raise AmqpError(Reply.SYNTAX_ERROR, "the name of a field is too long")
            return size, properties

        return decode

    patch.wrap(channel_module, "decode_header", make)
    patch.wrap(runs, "decode_header", make)


@mutant("amqp-unused-bits-refused", "a bit that no field has must not be set")
def unused_bits_refused(patch: Patch) -> None:
    def make(original: Callable[..., tuple[Method, list[Any]]]) -> Callable[..., tuple[Method, list[Any]]]:
        def decode(payload: bytes) -> tuple[Method, list[Any]]:
            method, values = original(payload)
            if encode_method(method, *values) != payload:
                raise AmqpError(Reply.SYNTAX_ERROR, f"{method.name} is not written as it should be")
            return method, values

        return decode

    patch.wrap(channel_module, "decode_method", make)


@mutant("amqp-deep-tables-take-long", "tables in tables take a time that doubles with each of them")
def deep_tables_take_long(patch: Patch) -> None:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        def decode(payload: bytes) -> object:
            if payload.count(b"F") > 100:
                time.sleep(6.0)
            return original(payload)

        return decode

    patch.wrap(channel_module, "decode_method", make)


@mutant("amqp-errors-end-everybody", "an error of one connection ends all of them")
def errors_end_everybody(patch: Patch) -> None:
    everybody: WeakSet[AmqpConnection] = WeakSet()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def fail(self: AmqpConnection, error: AmqpError, now: float) -> None:
            original(self, error, now)
            for each in list(everybody):
                if each is not self:
                    each.give_way(now)

        return fail

    def make_init(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: AmqpConnection, *arguments: Any) -> None:
            original(self, *arguments)
            everybody.add(self)

        return init

    patch.wrap(AmqpConnection, "__init__", make_init)
    patch.wrap(AmqpConnection, "fail", make)


@mutant("amqp-waits-for-a-huge-frame", "while a frame of gigabytes is awaited, nobody else is read")
def waits_for_a_huge_frame(patch: Patch) -> None:
    huge = 1 << 30
    waiting: list[AmqpConnection] = []

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def receive(self: AmqpConnection, data: bytes, now: float) -> None:
            if len(data) >= 7 and self.phase is Phase.RUNNING and int.from_bytes(data[3:7], "big") > huge:
                waiting.append(self)
            if not waiting:
                original(self, data, now)

        return receive

    patch.wrap(AmqpConnection, "receive", make)


# Heartbeats


@mutant("amqp-heartbeats-only-as-agreed", "a heartbeat where none was agreed on is an error")
def heartbeats_only_as_agreed(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def on_frame(self: AmqpConnection, part: Frame, now: float) -> None:
            if part.kind == FrameType.HEARTBEAT and not self._heartbeat_s:
                raise AmqpError(Reply.FRAME_ERROR, "no heartbeats were agreed on")
            original(self, part, now)

        return on_frame

    patch.wrap(AmqpConnection, "on_frame", make)


@mutant(
    "amqp-heartbeats-end-closing", "a connection that is asked to close takes a moment, and dies of a heartbeat in it"
)
def heartbeats_end_closing(patch: Patch) -> None:
    closing: WeakSet[AmqpConnection] = WeakSet()

    def make_method(original: Callable[..., None]) -> Callable[..., None]:
        def on_method(self: AmqpConnection, method: Method, values: list[Any], now: float) -> None:
            if method.name != "connection.close":
                original(self, method, values, now)
                return
            closing.add(self)

            def close(later: float) -> None:
                if not self.is_over:
                    original(self, method, values, later)

            self.broker.timers.schedule(now + 0.2, close)

        return on_method

    def make_frame(original: Callable[..., None]) -> Callable[..., None]:
        def on_frame(self: AmqpConnection, part: Frame, now: float) -> None:
            if self in closing and part.kind == FrameType.HEARTBEAT:
                self.give_way(now)
            else:
                original(self, part, now)

        return on_frame

    patch.wrap(AmqpConnection, "on_connection_method", make_method)
    patch.wrap(AmqpConnection, "on_frame", make_frame)


@mutant("amqp-no-heartbeats", "the server sends no heartbeats")
def no_heartbeats(patch: Patch) -> None:
    patch.replace(connection_module, "HEARTBEAT", b"")
