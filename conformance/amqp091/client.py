"""One AMQP connection of a case, and its channels: raw frames, a transcript, checks that name what was seen.

Every wait ends on an event (a method, the end of the channel or of the stream) or on the patience of the case. Nothing
sleeps to see whether something might still come: a :meth:`Channel.barrier` on the same channel proves that instead.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.conformance.arrival import arrival
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.targets.amqp import plain
from assay.conformance.wire.amqp091 import (
    AMQP_091,
    CONSTANTS,
    FRAME_MIN_BYTES,
    FRAME_OVERHEAD_BYTES,
    HEARTBEAT,
    METHODS,
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Heartbeat,
    MalformedFrameError,
    Method,
    ProtocolHeader,
    describe,
    describe_bytes,
    encode_content,
    encode_frame,
    encode_method,
    is_hard_error,
)

if TYPE_CHECKING:
    from assay.conformance.amqp091.context import AmqpContext

CAPABILITIES: Mapping[str, Any] = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
}
"""What our client says that it knows."""
MOST_FRAME_BYTES = 131_072
MOST_CHANNELS = 65_535
_SHOWN_BYTES = 512
"""In a transcript, of what was written at once and of a frame that was read: the rest of a body tells nothing."""
_MAX_INBOX = 100_000
UNASKED = frozenset({"basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel", "channel.flow"})
"""What a server sends on its own account, at any time."""
_RULES = {
    **{rule.clauses(AMQP_091)[0].removeprefix("sync."): rule for rule in Rule if rule.clauses(AMQP_091)},
    "basic.recover": Rule.AMQP_RECOVER,
}
"""By the method that must be answered."""
_NAMES = frozenset({"queue", "exchange", "routing-key", "destination", "source", "consumer-tag", "type", "reserved-1"})
"""Fields that differ from request to request and make none special."""


def shape(method: Method) -> frozenset[str]:
    """What is special about a request."""
    found = {name for name, value in method.values.items() if value and name not in _NAMES | {"arguments"}}
    arguments = method.values.get("arguments")
    return frozenset(found) | (frozenset(arguments) if isinstance(arguments, Mapping) else frozenset())


def _ends(close: Arrival, name: str) -> bool:
    """Whether a Close names a method as the one that failed."""
    spec = METHODS[name]
    return (close["class-id"], close["method-id"]) == (spec.class_id, spec.method_id)


def outcome_of(event: Arrival | ProtocolHeader | None, header: ProtocolHeader | None = None) -> str:
    """How a request ended, in the words of the registry's variants."""
    if event is None or isinstance(event, ProtocolHeader):
        return "header" if header is not None else "close"
    if event.name in ("channel.close", "connection.close"):
        return f"{event.name.partition('.')[0]} {event['reply-code']}"
    return "start" if event.name == "connection.start" else "ok"


class AmqpConnection(asyncio.Protocol):
    """A client connection. Made by :meth:`AmqpContext.connect` and :meth:`AmqpContext.open`."""

    def __init__(self, ctx: AmqpContext, name: str) -> None:
        self.ctx, self.name = ctx, name
        self.closed = False
        """The broker ended the stream (or we did)."""
        self.sent_raw = False
        self.left = False
        """The case has ended it, or asked for its end."""
        self.server_properties: Mapping[str, Any] = {}
        self.mechanisms: tuple[str, ...] = ()
        self.locales: tuple[str, ...] = ()
        self.tune = Method("connection.tune")
        self.frame_max_bytes = FRAME_MIN_BYTES
        self.channel_max = MOST_CHANNELS
        """As agreed."""
        self.heartbeats = 0
        """Received."""
        self.answers_closes = True
        """Close of the server is answered at once."""
        self.header: ProtocolHeader | None = None
        self.last_received_s = 0.0
        self.assembler = Assembler()
        self.channels: dict[int, Channel] = {}
        self.zero = Channel(self, 0)
        self._next_channel = 1
        self._wake = asyncio.Event()
        self._malformed: MalformedFrameError | None = None
        self._transport: asyncio.Transport | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.ctx.transcript.add(self.name, "event", decoded="connection opened")

    def data_received(self, data: bytes) -> None:
        self.last_received_s = time.monotonic()
        if self._malformed is not None:
            self.ctx.transcript.add(self.name, "recv", data, "after malformed bytes, not read")
            return
        try:
            for frame in self.assembler.frames(data):
                encoded = frame.data if isinstance(frame, ProtocolHeader) else _encoded(frame)
                self.ctx.transcript.add(self.name, "recv", encoded, describe(frame), _SHOWN_BYTES)
                event = self.assembler.take(frame)
                if event is not None:
                    self._take(event)
        except MalformedFrameError as error:
            self._malformed = error
            self.ctx.transcript.add(self.name, "recv", self.assembler.pending or data, f"MALFORMED: {error}")
        self._wake.set()

    def _take(self, event: Arrival | Heartbeat | ProtocolHeader) -> None:
        if isinstance(event, Heartbeat):
            self.heartbeats += 1
        elif isinstance(event, ProtocolHeader):
            self.header = event
        else:
            channel = self.channels.get(event.channel) if event.channel else self.zero
            if channel is None:
                message = f"{event.name} on channel {event.channel}, which was not opened"
                raise MalformedFrameError(message)
            channel.take(event)

    def eof_received(self) -> bool:
        self.ctx.transcript.add(self.name, "event", decoded="the broker ended the stream")
        self.closed = True
        self._wake.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            reason = f"connection reset ({exc})" if exc else "connection closed"
            self.ctx.transcript.add(self.name, "event", decoded=reason)
        self.closed = True
        self._transport = None
        self._wake.set()

    # Sending

    def write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            self.ctx.transcript.add(self.name, "event", decoded="not sent: the connection is closed")
            return
        self._transport.write(data)

    def send_bytes(self, data: bytes, text: str = "") -> None:
        """Whole, legal frames."""
        self.ctx.transcript.add(self.name, "send", data, text or describe_bytes(data), _SHOWN_BYTES)
        self.write(data)

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are; the runner then checks after the case that nobody else suffers."""
        self.ctx.sent_raw = self.sent_raw = True
        self.send_bytes(data)

    def send(self, name: str, **fields: Any) -> None:
        """A method on channel 0."""
        self.zero.send(name, **fields)

    def send_heartbeat(self) -> None:
        self.send_bytes(encode_frame(HEARTBEAT.type, 0))

    def stop_reading(self) -> None:
        """Take nothing more from the network, until :meth:`go_on_reading`."""
        self.ctx.transcript.add(self.name, "event", decoded="reads no more")
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on_reading(self) -> None:
        self.ctx.transcript.add(self.name, "event", decoded="reads again")
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the network connection without a word."""
        self.ctx.transcript.add(self.name, "event", decoded="dropped by the case")
        self.close()

    def close(self) -> None:
        """Drop the connection; used when the case is over."""
        self.left = True
        if self._transport is not None:
            self._transport.abort()

    # Receiving

    def check(self) -> None:
        """Raises :class:`StepFailureError` where what the broker sent cannot be read."""
        if self._malformed is not None:
            text = f"{self.name}: the broker sent what no server may send: {self._malformed}"
            raise StepFailureError(Incident(rule=Rule.AMQP_FORM, shape=frozenset({str(self._malformed)}), text=text))

    async def wait(self, expected: str, *, within_s: float | None = None, since: float | None = None) -> None:
        """Wait until something has come."""
        self.check()
        await arrival(self.ctx, self._wake, f"{self.name}: expected {expected}", within_s=within_s, since=since)

    def ended(self) -> Arrival | None:
        """The server's Close of the connection, if it has come."""
        return self.zero.closed_by

    async def end(self, expected: str = "the end of the connection") -> None:
        """Wait until the stream ends, whatever comes before."""
        since = time.monotonic()
        while not self.closed:
            await self.wait(expected, since=since)

    # Whole exchanges

    async def handshake(
        self,
        *,
        vhost: str = "/",
        client_capabilities: Mapping[str, Any] = CAPABILITIES,
        channel_max: int | None = None,
        frame_max: int | None = None,
        heartbeat_s: int = 0,
        response: bytes | None = None,
    ) -> None:
        """Header to Open-Ok; everything must go as it should. ``channel_max``: or what the server offers, if less."""
        await self.start()
        self.start_ok(client_capabilities=client_capabilities, response=response)
        await self.tuned(most_channels=channel_max, frame_max=frame_max, heartbeat_s=heartbeat_s)
        await self.zero.call("connection.open", virtual_host=vhost)

    async def start(self) -> None:
        """Header to Start."""
        self.send_bytes(PROTOCOL_HEADER)
        start = await self.zero.expect("connection.start", rule=Rule.AMQP_OPEN)
        self.server_properties = start["server-properties"]
        self.mechanisms = tuple(start["mechanisms"].decode().split())
        self.locales = tuple(start["locales"].decode().split())

    def start_ok(
        self,
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        client_capabilities: Mapping[str, Any] = CAPABILITIES,
    ) -> None:
        """Answer Start."""
        properties: dict[str, Any] = {"product": "assay conformance"}
        if client_capabilities:
            properties["capabilities"] = dict(client_capabilities)
        self.send(
            "connection.start-ok",
            client_properties=properties,
            mechanism=mechanism,
            response=plain(self.ctx.endpoint) if response is None else response,
            locale="en_US",
        )

    async def tuned(
        self,
        *,
        channel_max: int | None = None,
        most_channels: int | None = None,
        frame_max: int | None = None,
        heartbeat_s: int = 0,
    ) -> None:
        """Tune to Tune-Ok; by default what the server offers. ``most_channels``: or that, if it is less."""
        self.tune = (await self.zero.expect("connection.tune", rule=Rule.AMQP_OPEN)).method
        if most_channels is not None:
            channel_max = min(most_channels, self.tune["channel-max"] or MOST_CHANNELS)
        offered = self.tune["frame-max"] or MOST_FRAME_BYTES
        self.frame_max_bytes = frame_max or min(offered, MOST_FRAME_BYTES)
        said = self.tune["channel-max"] if channel_max is None else channel_max
        self.channel_max = said or MOST_CHANNELS
        self.send(
            "connection.tune-ok",
            channel_max=said,
            frame_max=self.frame_max_bytes,
            heartbeat=heartbeat_s,
        )

    def next_channel(self) -> Channel:
        """A channel with a number not used yet, not opened."""
        if self._next_channel > self.channel_max:
            self.ctx.unsupported(f"the broker allows {self.channel_max} channels on a connection")
        channel = self.channel_numbered(self._next_channel)
        self._next_channel += 1
        return channel

    def channel_numbered(self, number: int) -> Channel:
        """A channel that is not opened."""
        self.channels[number] = Channel(self, number)
        return self.channels[number]

    async def channel(self) -> Channel:
        """A new channel, opened."""
        channel = self.next_channel()
        await channel.call("channel.open")
        return channel

    async def disconnect(self) -> None:
        """Close to Close-Ok."""
        self.left = True
        await self.zero.call("connection.close", reply_code=200, reply_text="bye")
        self.close()


def _encoded(frame: Any) -> bytes:
    return encode_frame(frame.type, frame.channel, frame.payload)


class Channel:
    """A channel of a connection; channel 0 is the connection's own."""

    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection, self.number, self.ctx = connection, number, connection.ctx
        self.inbox: deque[Arrival] = deque()
        self.closed_by: Arrival | None = None
        """The server's Close."""
        self.published = 0
        """Since confirm.select: the tag of the last publish."""
        self._asked: dict[str, Method] = {}
        """The last request of each name."""

    @property
    def name(self) -> str:
        return f"{self.connection.name}, channel {self.number}"

    # Receiving

    def take(self, event: Arrival) -> None:
        """Called for what comes."""
        if len(self.inbox) >= _MAX_INBOX:
            message = f"more than {_MAX_INBOX} methods that the case did not ask for"
            raise MalformedFrameError(message)
        if event.name == "channel.flow" and self.connection.answers_closes:
            self.send("channel.flow-ok", active=event["active"])
            return
        if event.name in ("channel.close", "connection.close"):
            self.closed_by = event
            self._check_close(event)
            if self.connection.answers_closes:
                self.send(f"{event.name}-ok")
            return
        self.inbox.append(event)

    def _check_close(self, event: Arrival) -> None:
        code, level = event["reply-code"], event.name.partition(".")[0]
        asked = next((m for m in self._asked.values() if _ids(m) == (event["class-id"], event["method-id"])), None)
        known = code in CONSTANTS and (level == "connection" or not is_hard_error(code))
        # Which of several requests under way had failed, or that none had, is for the cases about that.
        if not known and (asked is not None or not event["class-id"]):
            text = f"{self.name}: {describe(event.method)}: no code of an error of the {level}"
            self.ctx.breach(Rule.AMQP_LEVEL, text)

    async def receive(
        self, expected: str, names: Sequence[str] = (), *, within_s: float | None = None
    ) -> Arrival | None:
        """The next method (of these names, others unasked for staying in the inbox), or the Close of channel or
        connection; None when the stream has ended.

        Raises :class:`CaseFailureError` when nothing comes in time, or another method that was not unasked for.
        """
        connection, since = self.connection, time.monotonic()
        while True:
            for event in self.inbox:
                if not names or event.name in names:
                    self.inbox.remove(event)
                    return event
                if event.name not in UNASKED:
                    raise CaseFailureError(f"{self.name}: expected {expected}; seen {describe(event.method)}")
            found = self.closed_by or connection.ended()
            if found is not None:
                return found
            if connection.closed:
                connection.check()
                return None
            await connection.wait(f"{expected} on channel {self.number}", within_s=within_s, since=since)

    async def closing(self) -> Arrival:
        """The server's Close of the channel, which must come; what else comes stays."""
        since = time.monotonic()
        while self.closed_by is None:
            if self.connection.closed or self.connection.ended() is not None:
                self.ctx.fail(f"{self.name}: expected channel.close; seen the end of the connection")
            await self.connection.wait(f"channel.close on channel {self.number}", since=since)
        found, self.closed_by = self.closed_by, None
        return found

    async def expect(self, *names: str, rule: Rule | None = None, within_s: float | None = None) -> Arrival:
        """One of these methods must come; ``rule`` is what is broken otherwise."""
        text = " or ".join(names)
        try:
            event = await self.receive(text, names, within_s=within_s)
        except StepFailureError:
            raise
        except CaseFailureError as error:
            raise self._failed(rule, str(error), names[0]) from error
        if event is not None and event.name in names:
            return event
        seen = "the end of the connection" if event is None else describe(event.method)
        raise self._failed(rule, f"{self.name}: expected {text}; seen {seen}", names[0])

    def _failed(self, rule: Rule | None, text: str, name: str) -> CaseFailureError:
        if rule is None:
            return CaseFailureError(text)
        request = self._asked.get(name.removesuffix("-ok").removesuffix("-empty"))
        asked = frozenset() if request is None else shape(request)
        return StepFailureError(Incident(rule=rule, shape=asked, text=text))

    # Sending

    def send(self, name: str, **fields: Any) -> None:
        """A method without content."""
        method = Method(name, **fields)
        self._asked[name] = method
        self.ctx.note_request(method)
        self.connection.send_bytes(encode_method(self.number, method), f"ch {self.number}: {describe(method)}")

    def publish(
        self,
        exchange: str = "",
        routing_key: str = "",
        body: bytes = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        properties: Mapping[str, Any] = {},
        part_bytes: int | None = None,
    ) -> int:
        """A message; returns its number on a channel with confirms."""
        method = Method(
            "basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
        )
        self._publish(method, [body], properties, part_bytes)
        return self.published

    def publish_together(self, exchange: str, routing_key: str, bodies: Sequence[bytes]) -> range:
        """Messages in one write; returns their numbers on a channel with confirms."""
        first = self.published + 1
        self._publish(Method("basic.publish", exchange=exchange, routing_key=routing_key), bodies, {}, None)
        return range(first, first + len(bodies))

    def _publish(
        self, method: Method, bodies: Sequence[bytes], properties: Mapping[str, Any], part_bytes: int | None
    ) -> None:
        self._asked[method.name] = method
        most = part_bytes or self.connection.frame_max_bytes - FRAME_OVERHEAD_BYTES
        parts = [encode_content(self.number, method, body, properties, part_bytes=most) for body in bodies]
        self.connection.send_bytes(b"".join(parts))
        self.published += len(bodies)

    async def call(self, name: str, **fields: Any) -> Arrival:
        """A request to its answer."""
        self.send(name, **fields)
        return await self.expect(*METHODS[name].replies, rule=_RULES.get(name))

    async def barrier(self) -> None:
        """Everything that was asked for on this channel has been seen by the server, and it had nothing against it."""
        await self.call("exchange.declare", exchange="amq.direct", type_="direct", passive=True)

    # How requests end

    async def outcome(self, name: str, **fields: Any) -> str:
        """How a request ends: ``ok``, ``channel 404``, ``connection 503``, ``close``."""
        self.send(name, **fields)
        return await self.outcome_of(*METHODS[name].replies)

    async def outcome_of(self, *replies: str) -> str:
        """How what was sent last ends; without ``replies``, the server is asked for something harmless behind it."""
        asks = not replies
        if asks:
            self.send("exchange.declare", exchange="amq.direct", type_="direct", passive=True)
            replies = ("exchange.declare-ok",)
        event = await self.receive(" or ".join(replies), replies)
        if asks and event is not None and event.name == "channel.close" and _ends(event, "exchange.declare"):
            # Nothing follows of what was sent before: the server has no amq.direct.
            text = f"{self.name}: expected amq.direct to be there; seen {describe(event.method)}"
            raise self._failed(_RULES.get("exchange.declare"), text, "exchange.declare")
        if event is None and self.connection.header is not None:
            return "header"
        return outcome_of(event)

    # Whole exchanges

    async def queue(self, name: str | None = None, *, shared: bool = False, **fields: Any) -> str:
        """Declare a queue, exclusive and gone with the connection unless ``shared`` (then it is durable, which every
        server takes); returns its name."""
        fields.setdefault("exclusive", not shared)
        fields.setdefault("durable", shared)
        answer = await self.call("queue.declare", queue=self.ctx.queue_name() if name is None else name, **fields)
        found: str = answer["queue"]
        return found

    async def exchange(self, type_: str = "direct", **fields: Any) -> str:
        """Declare an exchange; returns its name."""
        name = self.ctx.exchange_name()
        await self.call("exchange.declare", exchange=name, type_=type_, **fields)
        return name

    async def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        await self.call("queue.bind", queue=queue, exchange=exchange, routing_key=key, arguments=named)

    async def consume(self, queue: str, *, no_ack: bool = False, **fields: Any) -> str:
        """Returns the consumer tag."""
        answer = await self.call("basic.consume", queue=queue, no_ack=no_ack, **fields)
        tag: str = answer["consumer-tag"]
        return tag

    async def delivery(self, body: bytes | None = None) -> Arrival:
        """The next delivery; with ``body``, it must be that message."""
        event = await self.expect("basic.deliver", rule=Rule.AMQP_DELIVERY)
        if body is not None and event.body != body:
            text = f"{self.name}: expected the message {body[:40]!r}; seen {event.body[:40]!r}"
            raise StepFailureError(Incident(rule=Rule.AMQP_BODY, text=text, soft=True))
        return event

    async def get(self, queue: str, *, no_ack: bool = True) -> Arrival | None:
        """What is in the queue now; None if nothing is."""
        answer = await self.call("basic.get", queue=queue, no_ack=no_ack)
        return answer if answer.name == "basic.get-ok" else None

    async def get_soon(self, queue: str, *, no_ack: bool = True) -> Arrival:
        """A message that is, or will soon be, in the queue: nothing says that it is there as soon as it was sent."""
        soon = self.ctx.soon()
        while (found := await self.get(queue, no_ack=no_ack)) is None:
            if not await soon():
                raise self._failed(Rule.AMQP_DELIVERY, f"{self.name}: expected a message in {queue}", "basic.publish")
        return found

    async def count(self, queue: str) -> int:
        """Messages that are ready, by a passive declaration."""
        answer = await self.call("queue.declare", queue=queue, passive=True)
        found: int = answer["message-count"]
        return found

    async def count_becomes(self, queue: str, wanted: int) -> None:
        """So many messages must be ready soon."""
        soon = self.ctx.soon()
        while (seen := await self.count(queue)) != wanted:
            if not await soon():
                self.ctx.fail(f"{self.name}: expected {wanted} message(s) in {queue}; its count stays {seen}")

    async def confirms(self) -> None:
        """confirm.select"""
        await self.call("confirm.select")
        self.published = 0

    async def confirmed(self, tag: int | None = None) -> None:
        """Await the confirms of everything up to ``tag``, by default the last publish: all must be acks, none twice."""
        wanted = self.published if tag is None else tag
        open_tags = set(range(1, wanted + 1)) - self.ctx.confirmed_on(self)
        while open_tags:
            event = await self.expect("basic.ack", "basic.nack", rule=Rule.AMQP_CONFIRM)
            if event.name == "basic.nack":
                self.ctx.fail(f"{self.name}: expected every publish to be confirmed; seen {describe(event.method)}")
            open_tags -= self.ctx.note_confirm(self, event)

    async def delivered_until(self, marker: bytes) -> list[Arrival]:
        """The deliveries before the message ``marker``, which is awaited."""
        found: list[Arrival] = []
        while (event := await self.delivery()).body != marker:
            found.append(event)
        return found

    def ack(self, event: Arrival, *, multiple: bool = False) -> None:
        self.send("basic.ack", delivery_tag=event.tag, multiple=multiple)

    async def close(self) -> None:
        """Close to Close-Ok."""
        await self.call("channel.close", reply_code=200, reply_text="bye")
        self.connection.channels.pop(self.number, None)


def _ids(method: Method) -> tuple[int, int]:
    return method.spec.class_id, method.spec.method_id
