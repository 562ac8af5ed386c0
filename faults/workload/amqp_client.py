"""The AMQP 0.9.1 client that those of workloads share, with the bench's own bytes: login, channels, conversations.

What a client asks for one after the other is a *conversation*: a generator that sends, and yields what it waits for.
One runs on each channel at a time; what nobody waits for goes to :meth:`AmqpClient.on_arrival`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from assay.conformance.wire.amqp091 import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Heartbeat,
    MalformedFrameError,
    Method,
    encode_content,
    encode_frame,
    encode_method,
)
from assay.faults.workload.client import ClientPhase, Coming, Operation, Timing, WorkloadClient
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.reference_broker.trace.schema import OpKind, OpType

Awaited = tuple[int, tuple[str, ...]]
"""A channel, and the methods that end the wait."""
Conversation = Generator[Awaited, Arrival, None]
Answer = Generator[Awaited, Arrival, Arrival]
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
_CHANNEL_MAX: Final = 16
_FRAME_MAX_BYTES: Final = 131_072
_MAX_UNANSWERED: Final = 65_535
_LOGIN: Final = b"\0guest\0guest"
_CAPABILITIES: Final[Mapping[str, Any]] = {
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}


class RefusedError(Exception):
    """The broker closed the channel in place of an answer that the client cannot do without."""


class _Waiting(msgspec.Struct):
    """A conversation, and what it waits for."""

    conversation: Conversation
    answers: tuple[str, ...]
    deadline: float


class AmqpClient(WorkloadClient):
    """A client of the broker over AMQP 0.9.1."""

    protocol: ClassVar[str] = "amqp091"

    def __init__(
        self, client_id: str, timing: Timing, history: HistoryRecorder, max_in_flight: int, coming: Coming | None = None
    ) -> None:
        super().__init__(client_id, timing, history, max_in_flight, coming=coming)
        self._assembler = Assembler()
        self._waiting: dict[int, _Waiting] = {}
        self._now = 0.0
        self._part_bytes = 4_088

    # What the base asks for

    def _greet(self, now: float) -> None:
        self._now = now
        self._assembler = Assembler()
        self._waiting.clear()
        self._output += PROTOCOL_HEADER
        self._begin_handshake(ClientPhase.CONNECTING, OpKind.CONNECT, now, {})
        self._converse(self._log_in())

    def _read(self, data: bytes, now: float) -> None:
        self._now = now
        try:
            for frame in self._assembler.frames(data):
                event = self._assembler.take(frame)
                if isinstance(event, Heartbeat):
                    self._ping()
                elif isinstance(event, Arrival):
                    self._take(event)
                elif event is not None:
                    self._abort("a protocol header in place of an answer")
                if self.closing:
                    return
        except MalformedFrameError as error:
            self._abort(f"malformed frame from the broker: {error}")
            return
        if self.ready:
            self._work(now)

    def _say_goodbye(self) -> None:
        self._tell(0, "connection.close", reply_code=200, reply_text="bye")

    def _ping(self) -> None:
        self._output += encode_frame(HEARTBEAT.type, 0)

    def next_deadline(self) -> float | None:
        """As ever; and when an answer is overdue."""
        due = super().next_deadline()
        if self.closing or not self._waiting or self.phase in (ClientPhase.IDLE, ClientPhase.STOPPED):
            return due
        overdue = min(waiting.deadline for waiting in self._waiting.values())
        return overdue if due is None else min(due, overdue)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        late = [waiting for waiting in self._waiting.values() if now >= waiting.deadline]
        if late and not self.closing and self.phase not in (ClientPhase.IDLE, ClientPhase.STOPPED):
            self._abort(f"no {' or '.join(late[0].answers)} for {self.timing.operation_timeout_s:g} s")
            return
        super().tick(now)

    def drain(self, now: float) -> None:
        """As ever."""
        self._now = now
        super().drain(now)

    def connection_lost(self, now: float) -> None:
        """As ever; whoever waited waits in vain."""
        self._now = now
        self._waiting.clear()
        super().connection_lost(now)

    # What clients build on

    def prepare(self) -> Conversation:
        """After the login: channels, declarations, a subscription."""
        raise NotImplementedError

    def on_arrival(self, event: Arrival, now: float) -> None:
        """What no conversation waits for."""
        self._abort(f"unexpected {event.name} from the broker")

    @property
    def converses(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._waiting)

    def _converse(self, conversation: Conversation) -> None:
        """Begin a conversation. Its channel must have none."""
        self._go_on(conversation, None)

    def _go_on(self, conversation: Conversation, answer: Arrival | None) -> None:
        try:
            channel, answers = next(conversation) if answer is None else conversation.send(answer)
        except StopIteration:
            return
        except RefusedError as error:
            self._abort(str(error))
            return
        assert channel not in self._waiting, "two conversations on one channel"
        self._waiting[channel] = _Waiting(conversation, answers, self._now + self.timing.operation_timeout_s)

    def _tell(self, channel: int, name: str, **fields: Any) -> None:
        self._output += encode_method(channel, Method(name, **fields))

    def _ask(self, channel: int, name: str, **fields: Any) -> Answer:
        """A request, and its answer, or the Close of the channel."""
        method = Method(name, **fields)
        self._output += encode_method(channel, method)
        return (yield channel, (*method.spec.replies, "channel.close"))

    def _need(self, channel: int, name: str, **fields: Any) -> Answer:
        """A request that must be granted. Raises :class:`RefusedError`."""
        answer = yield from self._ask(channel, name, **fields)
        if answer.name == "channel.close":
            message = f"{name} was refused: {answer['reply-code']} {answer['reply-text']}"
            raise RefusedError(message)
        return answer

    def _open(self, channel: int) -> Conversation:
        yield from self._need(channel, "channel.open")

    def _put(self, channel: int, exchange: str, key: str, payload: bytes, properties: Mapping[str, Any]) -> None:
        """Publish a persistent message."""
        method = Method("basic.publish", exchange=exchange, routing_key=key)
        kept = {"delivery-mode": 2, **properties}
        self._output += encode_content(channel, method, payload, kept, part_bytes=self._part_bytes)

    # What is declared, deleted and looked at goes into the history

    def declare(self, channel: int, space: str, kind: str, name: str, **fields: Any) -> Conversation:
        """Declare a durable queue or exchange."""
        yield from self._told(OpKind.DECLARE, space, channel, kind, name, f"{kind}.declare", durable=True, **fields)

    def delete(self, channel: int, space: str, kind: str, name: str) -> Conversation:
        """Delete a queue or exchange that may be gone already."""
        yield from self._told(OpKind.DELETE, space, channel, kind, name, f"{kind}.delete")

    def _told(
        self, f: OpKind, space: str, channel: int, kind: str, name: str, method: str, **fields: Any
    ) -> Conversation:
        told: EventFields = {"queue": space, "key": f"{kind}/{name}"}
        index = self.history.record(self._now, self.process, f, OpType.INVOKE, **told)
        answer = yield from self._ask(channel, method, **{kind: name}, **fields)
        refused = answer.name == "channel.close"
        if refused and not (f is OpKind.DELETE and answer["reply-code"] == NOT_FOUND):
            detail = f"{answer['reply-code']} {answer['reply-text']}"
            self.history.record(self._now, self.process, f, OpType.FAIL, **told | {"op": index, "detail": detail})
            message = f"{method} was refused: {detail}"
            raise RefusedError(message)
        self.history.record(self._now, self.process, f, OpType.OK, **told | {"op": index})
        if refused:  # it was gone; the channel is, too
            yield from self._open(channel)

    def bind(self, channel: int, queue: str, exchange: str, key: str) -> Conversation:
        """Bind a queue."""
        yield from self._need(channel, "queue.bind", queue=queue, exchange=exchange, routing_key=key)

    def invoke(self, f: OpKind, fields: EventFields) -> Operation:
        """Record the beginning of an operation that nobody gives up after a while."""
        index = self.history.record(self._now, self.process, f, OpType.INVOKE, **fields)
        return Operation(f=f, process=self.process, index=index, deadline=math.inf, fields=fields)

    def look(self, channel: int, space: str, kind: str, name: str) -> Generator[Awaited, Arrival, bool]:
        """Whether a queue or exchange is there. The channel stays open."""
        told: EventFields = {"queue": space, "key": f"{kind}/{name}"}
        index = self.history.record(self._now, self.process, OpKind.LOOK, OpType.INVOKE, **told)
        answer = yield from self._ask(channel, f"{kind}.declare", passive=True, **{kind: name})
        there = answer.name != "channel.close"
        if there or answer["reply-code"] == NOT_FOUND:
            type_ = OpType.OK if there else OpType.FAIL
            self.history.record(self._now, self.process, OpKind.LOOK, type_, **told | {"op": index})
        if not there:
            yield from self._open(channel)
        return there

    # Inside

    def _log_in(self) -> Conversation:
        yield 0, ("connection.start",)
        properties = {"product": "assay faults", "capabilities": _CAPABILITIES}
        self._tell(
            0,
            "connection.start-ok",
            client_properties=properties,
            mechanism="PLAIN",
            response=_LOGIN,
            locale="en_US",
        )
        tune = yield 0, ("connection.tune",)
        frame_max = min(tune["frame-max"] or _FRAME_MAX_BYTES, _FRAME_MAX_BYTES)
        channel_max = min(tune["channel-max"] or _CHANNEL_MAX, _CHANNEL_MAX)
        self._part_bytes = frame_max - 8
        self._tell(
            0,
            "connection.tune-ok",
            channel_max=channel_max,
            frame_max=frame_max,
            heartbeat=self.timing.keep_alive_s,
        )
        # Both sides send a sign of life each half of it, and wait for two of it (4.2.7).
        self._ping_after_s = float(self.timing.keep_alive_s)
        yield from self._need(0, "connection.open", virtual_host="/")
        self._has_session = True
        self._receive_maximum = _MAX_UNANSWERED
        self._end_handshake(OpType.OK, self._now)
        self.phase = ClientPhase.SUBSCRIBING
        yield from self.prepare()
        self._become_ready(self._now)

    def _take(self, event: Arrival) -> None:
        if event.name == "connection.close":
            self._tell(0, "connection.close-ok")
            detail = f"closed by the broker: {event['reply-code']} {event['reply-text']}"
            if self._handshake is not None and not self._has_session:
                self._end_handshake(OpType.FAIL, self._now, detail)
            self._abort(detail)
            return
        if event.name == "channel.close":
            self._tell(event.channel, "channel.close-ok")
        waiting = self._waiting.get(event.channel)
        if waiting is not None and event.name in waiting.answers:
            del self._waiting[event.channel]
            self._go_on(waiting.conversation, event)
        elif event.name == "channel.close":
            self._abort(f"channel {event.channel} closed by the broker: {event['reply-code']} {event['reply-text']}")
        elif event.name == "channel.flow":
            self._tell(event.channel, "channel.flow-ok", active=event["active"])
        else:
            self.on_arrival(event, self._now)
