"""Legal variations of the broker's AMQP 0.9.1 that every case of it must pass, whatever it is about.

Each uses what the standard, or the servers in use, leave to any server, and names the clause or the servers that do so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from inspect import getattr_static
from typing import Any
from weakref import WeakKeyDictionary

from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.amqp091_answers import Handler, wrap_handlers
from assay.conformance.mutants.amqp091_servers import leave_out
from assay.reference_broker.amqp091 import consuming, declarations, publishing, service
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection, Phase
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.topology.exchanges import DEFAULT_EXCHANGE
from assay.reference_broker.amqp091.wire.frames import FRAME_OVERHEAD_BYTES, HEARTBEAT
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry

_LATE_S = 0.08
_LATE_CLOSE_S = 0.5
_BACK_S = (0.02, 0.1)
_PARTS = 24
_SMALLEST_PART_BYTES = 7
_SKIPPED_TAGS = 2


def _frames_of(data: bytes) -> Iterator[bytes]:
    """The frames of what a connection sends, which are whole; a protocol header is one of them."""
    at = 0
    while at < len(data):
        size = 8 if data.startswith(b"AMQP", at) else int.from_bytes(data[at + 3 : at + 7], "big") + 8
        yield data[at : at + size]
        at += size


class _Outbox:
    """Frames of one connection that leave later: each channel's in their order."""

    def __init__(self) -> None:
        self.lanes: dict[bytes, list[tuple[float, bytes]]] = {}
        self.rest = b""
        """Of a frame that has left in part."""
        self.timed = False


@variation(
    "any-amqp-late-and-in-pieces",
    "each channel's frames leave up to 80 ms late, before or after those of others, cut anywhere",
    freedom="4.2.6 interleaves channels, 4.7 orders what is on one; no clause gives a server's frames a deadline",
)
def late_and_in_pieces(patch: Patch) -> None:
    outboxes: WeakKeyDictionary[AmqpConnection, _Outbox] = WeakKeyDictionary()
    rng = random.Random(91)

    def make(original: Callable[[AmqpConnection], bytes]) -> Callable[[AmqpConnection], bytes]:
        def take_output(self: AmqpConnection) -> bytes:
            data = original(self)
            outbox = outboxes.setdefault(self, _Outbox())
            now = self.broker.now
            for frame in _frames_of(data):
                lane = outbox.lanes.setdefault(frame[1:3], [])
                due = max(now + rng.uniform(0.0, _LATE_S), lane[-1][0] if lane else 0.0)
                if frame[1:3] == b"\0\0":
                    # What ends a connection comes behind what it was sent for.
                    due = max([due, *[each[-1][0] for each in outbox.lanes.values() if each]])
                lane.append((due, frame))
            leaving = [outbox.rest]
            for lane in outbox.lanes.values():
                while lane and lane[0][0] <= now:
                    leaving.append(lane.pop(0)[1])
            ready = b"".join(leaving)
            waiting = [lane[0][0] for lane in outbox.lanes.values() if lane]
            cut = rng.randrange(len(ready)) if ready and waiting else len(ready)
            outbox.rest = ready[cut:]
            if waiting and not outbox.timed:
                outbox.timed = True
                self.broker.timers.schedule(max(min(waiting), now + 0.001), lambda _now: look_again(self, outbox))
            return ready[:cut]

        return take_output

    def look_again(connection: AmqpConnection, outbox: _Outbox) -> None:
        outbox.timed = False
        connection.rouse()

    is_done = getattr_static(AmqpConnection, "may_close").fget

    def may_close(self: AmqpConnection) -> bool:
        outbox = outboxes.get(self)
        return bool(is_done(self)) and not (outbox and (outbox.rest or any(outbox.lanes.values())))

    patch.wrap(AmqpConnection, "take_output", make)
    patch.replace(AmqpConnection, "may_close", property(may_close))


@variation(
    "any-amqp-small-frames",
    "a body comes in two dozen frames, however small it is",
    freedom="4.2.6.2: a body is split into any number of frames of at most the agreed size",
)
def small_frames(patch: Patch) -> None:
    def make(original: Callable[..., bytes]) -> Callable[..., bytes]:
        def content_frames(channel: int, header: bytes, body: bytes, max_bytes: int) -> bytes:
            part = max(_SMALLEST_PART_BYTES, len(body) // _PARTS)
            return original(channel, header, body, min(max_bytes, part + FRAME_OVERHEAD_BYTES))

        return content_frames

    patch.wrap(consuming, "content_frames", make)
    patch.wrap(publishing, "content_frames", make)


@variation(
    "any-amqp-skipped-tags",
    "delivery tags have gaps",
    freedom="domains: a delivery tag is assigned by the server, and is unique on its channel and not zero",
)
def skipped_tags(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def deliver(self: Consuming, *values: Any) -> bool:
            taken = original(self, *values)
            if taken:
                self._next_tag += _SKIPPED_TAGS
            return taken

        return deliver

    patch.wrap(Consuming, "deliver", make)


@variation(
    "any-amqp-other-names",
    "names that the server gives to queues and consumers look otherwise, and those of consumers are short",
    freedom="queue.declare.queue.default-name and basic.consume: the server makes a name of any form",
)
def other_names(patch: Patch) -> None:
    patch.replace(declarations, "GENERATED", "server.named:")

    def make(_name: str, original: Handler) -> Handler:
        def consume(channel: Channel, queue: str, tag: str, *values: Any) -> None:
            number = channel.consuming.count
            original(channel, queue, tag or f"{channel.number}:{number}:{random.randrange(1 << 32)}", *values)

        return consume

    wrap_handlers(patch, ("basic.consume",), make)


@variation(
    "any-amqp-heartbeats-between",
    "heartbeats stand between all frames",
    freedom="4.2.7: heartbeats may come at any time; who does not support them passes them over",
)
def heartbeats_between(patch: Patch) -> None:
    def make(original: Callable[[AmqpConnection], bytes]) -> Callable[[AmqpConnection], bytes]:
        def take_output(self: AmqpConnection) -> bytes:
            data = original(self)
            if self.phase is not Phase.RUNNING or len(data) > 100_000:
                return data
            return b"".join([HEARTBEAT + frame for frame in _frames_of(data)])

        return take_output

    patch.wrap(AmqpConnection, "take_output", make)


@variation(
    "any-amqp-confirms-one-by-one",
    "every publish is confirmed by itself, the last one first",
    freedom="confirm: multiple is the server's choice, and so is the order in which messages are confirmed",
)
def confirms_one_by_one(patch: Patch) -> None:
    confirmed: WeakKeyDictionary[AmqpConnection, dict[int, set[int]]] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send_method(self: AmqpConnection, channel: int, name: str, *values: Any) -> None:
            known = confirmed.setdefault(self, {})
            if name == "channel.open-ok":
                known.pop(channel, None)
            if name not in ("basic.ack", "basic.nack"):
                original(self, channel, name, *values)
                return
            tag, multiple, *rest = values
            done = known.setdefault(channel, set())
            tags = [each for each in range(1, tag + 1) if each not in done] if multiple else [tag]
            done.update(tags)
            for each in reversed(tags):
                original(self, channel, name, each, False, *rest)

        return send_method

    patch.wrap(AmqpConnection, "send_method", make)


_OTHER_CODES: Mapping[str, tuple[Reply, bool]] = {
    "exchange.declare.type.typed": (Reply.NOT_ALLOWED, True),
    "exchange.declare.type.support": (Reply.PRECONDITION_FAILED, False),
    "basic.consume.consumer-tag.01": (Reply.PRECONDITION_FAILED, False),
    "rmq.qos.prefetch-size": (Reply.NOT_IMPLEMENTED, True),
    "channel.open.state": (Reply.UNEXPECTED_FRAME, True),
    "connection.open.virtual-host.security": (Reply.INVALID_PATH, True),
    "connection.tune-ok.channel-max.upper-limit": (Reply.COMMAND_INVALID, True),
    "queue.bind.queue.queue-known": (Reply.SYNTAX_ERROR, True),
    "sec.2.2.4.pre-open-error": (Reply.UNEXPECTED_FRAME, True),
    "grammar.connection": (Reply.UNEXPECTED_FRAME, True),
    "sec.4.2.3.nonconnection-on-zero": (Reply.UNEXPECTED_FRAME, True),
    "sec.4.2.4.unknown-method": (Reply.UNEXPECTED_FRAME, True),
    "sec.4.2.5.5.truncated-table": (Reply.FRAME_ERROR, True),
    "sec.4.2.6.interleave": (Reply.FRAME_ERROR, True),
    "sec.4.2.6.body-overflow": (Reply.COMMAND_INVALID, True),
    "sec.4.2.6.bad-content": (Reply.FRAME_ERROR, True),
    "sec.4.2.7.heartbeat-channel": (Reply.CHANNEL_ERROR, True),
}
"""By the rule that was broken: another code for it, and whether the connection ends."""


@variation(
    "any-amqp-other-codes",
    "where the standard and the servers in use name several codes, another one is given",
    freedom="facts of the specification: it names several codes for these, or servers in use do",
)
def other_codes(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: AmqpError, code: Reply, text: str, *, rule: str = "", hard: bool = False) -> None:
            if rule in _OTHER_CODES:
                code, hard = _OTHER_CODES[rule]
            original(self, code, text, rule=rule, hard=hard)

        return init

    patch.wrap(AmqpError, "__init__", make)


@variation(
    "any-amqp-late-closes",
    "the server leaves the network connection open for half a second behind Close-Ok",
    freedom="2.3.7: the peer that gets Close-Ok closes, and no clause gives the server a deadline; RabbitMQ waits",
)
def late_closes(patch: Patch) -> None:
    until: WeakKeyDictionary[AmqpConnection, float] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def end_output(self: AmqpConnection) -> None:
            original(self)
            if not self.cut:
                until[self] = self.broker.now + _LATE_CLOSE_S
                self.broker.timers.schedule(until[self], lambda _now: self.rouse())

        return end_output

    is_done = getattr_static(AmqpConnection, "may_close").fget

    def may_close(self: AmqpConnection) -> bool:
        return bool(is_done(self)) and self.broker.now >= until.get(self, 0.0)

    patch.wrap(AmqpConnection, "end_output", make)
    patch.replace(AmqpConnection, "may_close", property(may_close))


@variation(
    "any-amqp-missing-is-an-error",
    "deleting and unbinding what is not there is refused with 404",
    freedom="exchange.delete.exchange.exists, queue.delete.queue.must-exist, queue.unbind: what the specification says",
)
def missing_is_an_error(patch: Patch) -> None:
    kinds = {
        "exchange.delete": ("exchanges",),
        "exchange.unbind": ("exchanges", "exchanges"),
        "queue.delete": ("queues",),
        "queue.unbind": ("queues", "exchanges"),
    }

    def make(name: str, original: Handler) -> Handler:
        def handle(channel: Channel, *values: Any) -> None:
            for each, kind in zip(values, kinds[name], strict=False):
                if each not in ("", DEFAULT_EXCHANGE) and each not in getattr(channel.vhost, kind):
                    raise AmqpError(Reply.NOT_FOUND, f"no {each}")
            original(channel, *values)

        return handle

    wrap_handlers(patch, kinds, make)


@variation(
    "any-amqp-back-in-any-order",
    "what comes back to a queue does so up to a tenth of a second later, in any order, behind what is ready meanwhile",
    freedom="basic.reject and 4.7: what was rejected or recovered has no place; some servers put it at the end",
)
def back_in_any_order(patch: Patch) -> None:
    rng = random.Random(47)

    def make_settings(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        return lambda *arguments, **named: {**original(*arguments, **named), "ordering": "none"}

    def make_retry(original: Callable[..., None]) -> Callable[..., None]:
        def retry(self: ConsumerGroup, entry: PendingEntry, _due: float, now: float, *more: Any) -> None:
            original(self, entry, now + rng.uniform(*_BACK_S), now, *more)

        return retry

    patch.wrap(service, "settings_of", make_settings)
    patch.wrap(ConsumerGroup, "retry", make_retry)


@variation(
    "any-amqp-damage-without-a-word",
    "a frame that cannot be one ends the stream without Close",
    freedom="4.2.3: the connection is closed without sending any further data",
)
def damage_without_a_word(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def fail(self: AmqpConnection, error: AmqpError, now: float) -> None:
            if error.rule.startswith("sec.4.2.3.") and error.code is Reply.FRAME_ERROR:
                self.error = error
                self._end(now)
            else:
                original(self, error, now)

        return fail

    patch.wrap(AmqpConnection, "fail", make)


@variation(
    "any-amqp-logins-end-silently",
    "a wrong password ends the stream; that clients can be told of it is not announced",
    freedom="2.2.4: the server closes the socket; authentication_failure_close is an extension",
    silences=("amqp091/connection/bad-credentials-are-told",),
)
def logins_end_silently(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def refuse(self: AmqpConnection, error: AmqpError, now: float) -> None:
            self.capabilities = frozenset()
            original(self, error, now)

        return refuse

    patch.wrap(AmqpConnection, "refuse_login", make)
    leave_out(patch, "authentication_failure_close")
