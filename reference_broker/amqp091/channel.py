"""One channel: its methods in order, and the content that belongs to them (sec.2.3.5.2, 4.2.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from assay.reference_broker.amqp091 import asking, rights
from assay.reference_broker.amqp091.asking import READS
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.declarations import HANDLERS as DECLARATIONS
from assay.reference_broker.amqp091.handles import ConnectionHandle
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.refusals import reply_to
from assay.reference_broker.amqp091.runs import ACK, GET, PUBLISH, Head, PublishRun, Way
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import VirtualHost
from assay.reference_broker.amqp091.wire.content import SECTION_AT, BasicProperties, decode_header
from assay.reference_broker.amqp091.wire.frames import HEARTBEAT_CHANNEL, FrameType
from assay.reference_broker.amqp091.wire.methods import BY_NAME, Method, decode_method
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.queues import QueueError
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.trace.schema import TraceKind


class _Content:
    """What is coming of a publish."""

    __slots__ = ("left", "method", "parts", "properties", "size", "values", "written")

    def __init__(self, method: Method, values: list[Any]) -> None:
        self.method = method
        self.values = values
        self.properties: BasicProperties | None = None
        self.written = b""
        self.parts: list[bytes] = []
        self.size = self.left = 0


class Channel:
    """See the module's docstring."""

    def __init__(self, connection: ConnectionHandle, number: int) -> None:
        self.connection = connection
        self.number = number
        self.last_queue = ""
        """The queue that an empty name stands for: the last one declared on the channel."""
        self._last_get = b""
        self._get_values: list[Any] = []
        """What it says: mostly a client gets from one queue, again and again."""
        self.is_closing = False
        """``close`` was sent: all but ``close-ok`` is passed over (channel.close.stability)."""
        self.publishing = Publishing(self)
        self.consuming = Consuming(self)
        self._content: _Content | None = None
        self._waiting: deque[tuple[int, bytes]] | None = None
        """Frames that came while a method's answer waits for the engine."""
        self._is_in_line = False
        """The next turn handles them."""

    @property
    def vhost(self) -> VirtualHost:
        vhost = self.connection.vhost
        assert vhost is not None
        return vhost

    @property
    def service(self) -> Amqp091:
        return self.connection.service

    @property
    def is_open(self) -> bool:
        return not self.is_closing and self.connection.channels.get(self.number) is self

    # -- frames ----------------------------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: bytes, now: float) -> None:
        """Raises :class:`AmqpError` for what ends the connection; what ends the channel alone does."""
        if self._waiting is not None:
            self._waiting.append((kind, payload))
            self.connection.count_waiting(len(payload))
            return
        if self.is_closing:
            self._on_frame_while_closing(kind, payload)
            return
        try:
            self.handle_frame(kind, payload, now)
        except AmqpError as error:
            if error.hard:
                raise
            self.fail(error, now)

    def handle_frame(self, kind: int, payload: bytes, now: float) -> None:
        """One frame of the channel. Raises :class:`AmqpError`."""
        content = self._content
        if kind == FrameType.METHOD:
            if content is not None:
                raise AmqpError(Reply.UNEXPECTED_FRAME, "a method where content belongs", rule="sec.4.2.6.interleave")
            method, values = decode_method(payload)
            self.on_method(method, values, now)
        elif kind == FrameType.HEARTBEAT:
            raise AmqpError(Reply.FRAME_ERROR, f"a heartbeat on channel {self.number}", rule=HEARTBEAT_CHANNEL)
        elif content is None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "content without a method", rule="sec.4.2.6.bad-content")
        elif kind == FrameType.HEADER:
            self.on_header(content, payload, now)
        else:
            self.on_body(content, payload, now)

    def on_header(self, content: _Content, payload: bytes, now: float) -> None:
        """A content header. Raises :class:`AmqpError`."""
        if content.properties is not None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a second content header", rule="sec.4.2.6.bad-content")
        size, content.properties = decode_header(payload)
        content.written = payload[SECTION_AT:]
        most = self.connection.config.max_message_bytes
        if size > most:
            text = f"a message of {size} bytes, where {most} are the most"
            raise AmqpError(Reply.CONTENT_TOO_LARGE, text, rule="rmq.max-message-size")
        content.size = content.left = size
        if not size:
            self.on_content(content, now)

    def on_body(self, content: _Content, payload: bytes, now: float) -> None:
        """A body frame."""
        if content.properties is None:
            raise AmqpError(Reply.UNEXPECTED_FRAME, "a body without a content header", rule="sec.4.2.6.bad-content")
        if len(payload) > content.left:
            text = f"a body of more than the {content.size} bytes that its header announced"
            raise AmqpError(Reply.FRAME_ERROR, text, rule="sec.4.2.6.body-overflow")
        content.left -= len(payload)
        content.parts.append(payload)
        self.connection.content_bytes += len(payload)
        if not content.left:
            self.on_content(content, now)

    def _drop_content(self) -> None:
        if self._content is not None:
            self.connection.content_bytes -= self._content.size - self._content.left
            self._content = None

    def on_content(self, content: _Content, now: float) -> None:
        """A publish is whole."""
        self._drop_content()
        parts = content.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        assert content.properties is not None
        head = Head(Way(*content.values), content.properties, content.written)

        def publish(body: bytes, now: float) -> None:
            self.publishing.publish((head,), (body,), now)

        hooks = self.connection.broker.hooks
        with _Explained(content.method):
            if hooks is not None:
                asking.on_publish(self, hooks, head, body, publish)
            else:
                publish(body, now)

    # -- frames that stand together ----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """A method is to be answered before anything else is handled."""
        return self._waiting is not None

    @property
    def takes_runs(self) -> bool:
        """Nothing has begun that what comes next belongs to, or waits for."""
        is_free = self._content is None and not self.is_waiting and not self.is_closing
        return is_free and self.connection.broker.hooks is None and self.number not in self.connection.behind

    def on_publishes(self, run: PublishRun, now: float) -> int:
        """As their frames one by one; returns how many of the publishes are done with. Raises as :meth:`on_frame`."""
        try:
            with _Explained(PUBLISH):
                return self.publishing.publish(run.heads, run.bodies, now)
        except AmqpError as error:
            if error.hard:
                raise
            self.fail(error, now)
            # What is behind it is passed over.
            return len(run.bodies)

    def on_gets(self, payload: bytes, count: int, now: float) -> None:
        """As so many frames with this method. Raises as :meth:`on_frame`."""
        try:
            if payload != self._last_get:
                self._get_values = decode_method(payload)[1]
                self._last_get = payload
            with _Explained(GET):
                HANDLERS[GET.name](self, *self._get_values, now, count)
        except AmqpError as error:
            if error.hard:
                raise
            self.fail(error, now)

    def on_acks(self, acks: Sequence[tuple[int, int]], now: float) -> None:
        """As their frames one by one: tags, and whether each stands for those before it."""
        try:
            with _Explained(ACK):
                self.consuming.ack_all(acks, now)
        except AmqpError as error:
            if error.hard:
                raise
            self.fail(error, now)

    # -- methods -----------------------------------------------------------------------------------------------------

    def on_method(self, method: Method, values: list[Any], now: float) -> None:
        """A method: carried out, or the beginning of a publish. Raises :class:`AmqpError`."""
        if method.has_content and not method.is_reply:
            self._content = _Content(method, values)
            return
        handler = HANDLERS.get(method.name)
        with _Explained(method):
            if handler is None:
                code = Reply.CHANNEL_ERROR if method.name == "channel.open" else Reply.COMMAND_INVALID
                raise AmqpError(code, f"{method.name} on an open channel", rule="channel.open.state", hard=True)
            hooks = self.connection.broker.hooks
            if hooks is not None and method.name in READS:
                asking.on_read(self, hooks, method.name, values, handler)
            else:
                handler(self, *values, now)

    def fail(self, error: AmqpError, now: float) -> None:
        """Close the channel: the client is told why, and what comes until it answers is passed over."""
        connection = self.connection
        if connection.broker.tracer is not None:
            detail: dict[str, str | int] = {"client_id": connection.client_id, "detail": str(error)}
            connection.broker.tracer(TraceKind.PROTOCOL_ERROR, detail)
        self.publishing.flush()
        self.send("channel.close", int(error.code), error.reply_text, error.class_id, error.method_id)
        self.is_closing = True
        waiting, self._waiting = self._waiting, None
        self.end(now)
        if waiting is not None:
            # Passed over as well, but for a close and what follows it.
            self._waiting = waiting
            self._go_on()

    def _on_frame_while_closing(self, kind: int, payload: bytes) -> None:
        if kind != FrameType.METHOD:
            return
        try:
            method, _ = decode_method(payload)
        except AmqpError:
            return
        if method.name == "channel.close":
            self.send("channel.close-ok")
        if method.name in ("channel.close", "channel.close-ok"):
            self.connection.channels.pop(self.number, None)

    # -- answers that wait -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """It is answered. What waited is handled by the next turn: whoever answers may be in the middle of something
        that the next frame would change, as the deletion of a queue."""
        if not self._waiting:
            self._waiting = None
        elif not self._is_in_line:
            self._is_in_line = True
            self.connection.broker.unfinished.append(self)

    def go_on(self, now: float) -> None:
        """As :class:`Unfinished`: frames that waited for an answer, so many that a turn has room for them.

        Behind its end they are the connection's, where another channel may have begun with them.
        """
        self._is_in_line = False
        waiting, self._waiting = self._waiting or deque(), None
        connection = self.connection
        connection.behind.pop(self.number, None)
        broker = connection.broker
        broker.work = 0
        try:
            while waiting:
                is_over = connection.channels.get(self.number) is not self
                if broker.work >= MAX_WORK:
                    self._waiting = waiting
                    self._go_on()
                    if is_over:
                        connection.behind[self.number] = self
                    return
                kind, payload = waiting.popleft()
                connection.count_waiting(-len(payload))
                broker.work += 1
                if is_over:
                    connection.take_back(self.number, kind, payload, now)
                else:
                    self.on_frame(kind, payload, now)
                    self._wait_behind(waiting)
        except AmqpError as error:
            # Nobody handles the others any more.
            connection.count_waiting(-sum([len(payload) for _, payload in waiting]))
            connection.fail(error, now)

    def _wait_behind(self, frames: deque[tuple[int, bytes]]) -> None:
        """If the last one waits for the engine as well, the others wait behind it."""
        if self._waiting is not None:
            self._waiting.extend(frames)
            frames.clear()

    def answer_later(self) -> Callable[..., None]:
        """What to call with the answer, a method and its arguments; meanwhile no frame of the channel is handled.

        An answer of None sends nothing; an :class:`AmqpError` closes the channel, or the connection.
        """
        self._waiting = deque()

        def answered(name: str | AmqpError | None, *values: Any) -> None:
            if self.is_open:
                if isinstance(name, AmqpError):
                    ends = self.connection if name.hard else self
                    ends.fail(name, self.connection.broker.now)
                    return
                if name is not None:
                    self.send(name, *values)
            self._go_on()

        return answered

    def later(self, name: str, carry_out: Callable[[float], None]) -> Confirm:
        """What to call when a method can be carried out; meanwhile no frame of the channel is handled."""
        answer = self.answer_later()

        def begin(error: QueueError | None) -> None:
            refused: AmqpError | None = None
            frames, self._waiting = self._waiting or deque(), None
            if self.is_open:
                try:
                    with _Explained(BY_NAME[name]):
                        if error is not None:
                            raise error
                        carry_out(self.connection.broker.now)
                except AmqpError as told:
                    refused = told
            if self.is_waiting and refused is None:
                # Its own answer comes later, too.
                self._wait_behind(frames)
            else:
                self._waiting = frames
                answer(refused)

        return begin

    def rules_changed(self, now: float) -> None:
        """Whether its consumers may still read."""
        try:
            for queue in self.consuming.queues:
                rights.check_queue(self.connection, queue, read=True)
        except AmqpError as error:
            self.fail(error, now)

    # -- output and end ------------------------------------------------------------------------------------------------

    def send(self, name: str, *values: Any) -> None:
        self.connection.send_method(self.number, name, *values)

    def end(self, now: float) -> None:
        """Let go of consumers and of what they hold; what is not committed does not count."""
        self._drop_content()
        if self._waiting is not None:
            self.connection.count_waiting(-sum([len(payload) for _, payload in self._waiting]))
            self._waiting = None
        self.publishing.end()
        self.consuming.end(now)


class _Explained:
    """What goes wrong in a method names it; what the engine refuses becomes a reply."""

    __slots__ = ("_method",)

    def __init__(self, method: Method) -> None:
        self._method = method

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, QueueError):
            told = reply_to(error)
        elif isinstance(error, AmqpError):
            told = error
        else:
            return
        told.class_id, told.method_id = self._method.class_id, self._method.method_id
        if told is not error:
            raise told from error


def _close(channel: Channel, _code: int, _text: str, _class_id: int, _method_id: int, now: float) -> None:
    channel.publishing.flush()
    channel.end(now)
    channel.connection.channels.pop(channel.number, None)
    channel.send("channel.close-ok")


def _close_ok(_channel: Channel, _now: float) -> None:
    """An answer to nothing."""


def _flow(channel: Channel, active: bool, _now: float) -> None:
    channel.consuming.flow(active=active)
    channel.send("channel.flow-ok", active)


def _flow_ok(_channel: Channel, _active: bool, _now: float) -> None:
    """The broker asks for none."""


HANDLERS: Final[dict[str, Callable[..., None]]] = {
    "channel.close": _close,
    "channel.close-ok": _close_ok,
    "channel.flow": _flow,
    "channel.flow-ok": _flow_ok,
    **DECLARATIONS,
    "basic.qos": lambda channel, *values: channel.consuming.qos(*values),
    "basic.consume": lambda channel, *values: channel.consuming.consume(*values),
    "basic.cancel": lambda channel, *values: channel.consuming.cancel(*values),
    "basic.cancel-ok": lambda _channel, _tag, _now: None,
    "basic.get": lambda channel, *values: channel.consuming.get(*values),
    "basic.ack": lambda channel, *values: channel.consuming.ack(*values),
    "basic.nack": lambda channel, *values: channel.consuming.nack(*values),
    "basic.reject": lambda channel, *values: channel.consuming.reject(*values),
    "basic.recover": lambda channel, *values: channel.consuming.recover(*values),
    "basic.recover-async": lambda channel, *values: channel.consuming.recover_async(*values),
    "confirm.select": lambda channel, *values: channel.publishing.select_confirms(*values),
    "tx.select": lambda channel, *values: channel.publishing.select_tx(*values),
    "tx.commit": lambda channel, *values: channel.publishing.commit(*values),
    "tx.rollback": lambda channel, *values: channel.publishing.rollback(*values),
}
"""By method: what a client may ask for on an open channel."""
