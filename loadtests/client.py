"""One MQTT connection of the load generator: handshakes, then a hot path without tasks, objects or copies per packet.

A client is an :class:`asyncio.Protocol`. A chunk from the broker is taken apart at once, its arrival time read once,
the answers of the whole chunk leave by one write. Roles (publisher, subscriber, consumer) are subclasses that say what
a PUBLISH or an acknowledgement means to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    Subscription,
    decode_packet,
    describe,
    encode,
)
from assay.loadtests.capabilities import UnsupportedError
from assay.loadtests.packets import PUBCOMP, PUBREL, Frame, acknowledgement, split_frames

HANDSHAKE_TIMEOUT_S = 10.0
NS_PER_S = 1_000_000_000
RECEIVE_MAXIMUM = 65_535
FIRST_FAILURE_CODE = 0x80

Clock = Callable[[], int]
"""Nanoseconds since the start of the run, never stepping back."""

_P = TypeVar("_P", bound=Packet)


class LoadClientError(RuntimeError):
    """The broker refused or broke something the load needs; the text says what it answered."""


class LoadClient(asyncio.Protocol):
    """A connection. ``failure`` tells why it ended, when it ended before :meth:`close`."""

    def __init__(self, client_id: str, version: int, clock: Clock) -> None:
        self.client_id = client_id
        self.version = version
        self.clock = clock
        self.failure = ""
        self.receive_maximum = RECEIVE_MAXIMUM
        """QoS 1 and 2 publishes that the broker takes unacknowledged."""
        self.keep_alive_s = 0
        """What the broker imposes; 0 = nothing."""
        self.output: list[bytes] = []
        self._pings = 0
        """Pings that keep the connection alive, still to be answered."""
        self._pinged_ns = 0
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._closing = False
        self._answer: asyncio.Future[Packet] | None = None

    # Life of the connection

    async def open(self, endpoint: Endpoint) -> None:
        """Connect and wait for CONNACK. Raises :class:`LoadClientError`, :class:`OSError`."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, endpoint.host, endpoint.port)
        packet = Connect(
            client_id=self.client_id,
            version=self.version,
            keep_alive_s=0,
            username=endpoint.username,
            password=None if endpoint.password is None else endpoint.password.encode(),
            properties=Properties(receive_maximum=RECEIVE_MAXIMUM if self.version == 5 else None),
        )
        connack = await self._ask(packet, Connack)
        if connack.reason_code:
            message = f"{self.client_id}: CONNECT was refused: {describe(connack)}"
            raise LoadClientError(message)
        self.receive_maximum = connack.properties.receive_maximum or RECEIVE_MAXIMUM
        self.keep_alive_s = connack.properties.server_keep_alive or 0
        self._pinged_ns = self.clock()

    async def subscribe(self, topic: str, qos: int, *, group: str = "") -> None:
        """Subscribe and wait for SUBACK. Raises :class:`LoadClientError` unless ``qos`` itself is granted."""
        properties = Properties(user_property=(("consumer-group", group),) if group else ())
        subscription = Subscription(filter=topic, qos=qos)
        suback = await self._ask(Subscribe(packet_id=1, subscriptions=(subscription,), properties=properties), Suback)
        if suback.reason_codes == (qos,):
            return
        message = f"{self.client_id}: SUBSCRIBE to {topic} at QoS {qos} was answered with {describe(suback)}"
        if suback.reason_codes < (qos,):
            message = f"qos{qos} (takes and delivers QoS {qos}): {message}"
            raise UnsupportedError(message)
        if topic.startswith("$queue/"):
            message = f"queues (durable queues addressed as $queue/<name>): {message}"
            raise UnsupportedError(message)
        raise LoadClientError(message)

    def keep_alive(self) -> None:
        """Ping, where the broker wants to hear of its clients and half of that time has passed."""
        now_ns = self.clock()
        if self.keep_alive_s and now_ns - self._pinged_ns >= self.keep_alive_s * NS_PER_S // 2 and self._transport:
            self._pinged_ns = now_ns
            self._pings += 1
            self.output.append(encode(Pingreq(), self.version))
            self.flush()

    async def ping(self) -> None:
        """A barrier: what the broker sent before its answer has arrived. Raises :class:`LoadClientError`."""
        await self._ask(Pingreq(), Pingresp)

    async def _ask(self, packet: Packet, kind: type[_P]) -> _P:
        if self._transport is None or self.failure:
            message = f"{self.client_id}: {self.failure or 'not connected'}"
            raise LoadClientError(message)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(encode(packet, self.version))
        try:
            answer = await asyncio.wait_for(self._answer, HANDSHAKE_TIMEOUT_S)
        except TimeoutError as error:
            message = f"{self.client_id}: no {kind.__name__.upper()} within {HANDSHAKE_TIMEOUT_S:g} s"
            raise LoadClientError(message) from error
        finally:
            self._answer = None
        if not isinstance(answer, kind):
            message = f"{self.client_id}: expected {kind.__name__.upper()}, received {describe(answer)}"
            raise LoadClientError(message)
        return answer

    def close(self) -> None:
        """DISCONNECT and end."""
        self._closing = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(Disconnect(), self.version))
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, they only behave like them.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._fail(f"the connection ended: {exc or 'closed by the broker'}")

    def _fail(self, reason: str) -> None:
        if not self.failure:
            self.failure = reason
            self.on_failure()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LoadClientError(f"{self.client_id}: {self.failure}"))
        if self._transport is not None:
            self._transport.close()

    # Hot path

    def data_received(self, data: bytes) -> None:
        now_ns = self.clock()
        buffer = self._rest + data if self._rest else data
        try:
            frames, used = split_frames(buffer)
            begin = 0
            for frame in frames:
                first, _, end = frame
                kind = first >> 4
                if kind == 3:
                    self.on_publish(buffer, frame, now_ns)
                elif 4 <= kind <= 7:
                    self._acknowledgement(buffer, frame, now_ns)
                else:
                    self._control(buffer[begin:end])
                begin = end
        except ValueError as error:
            self._fail(f"malformed data from the broker: {error}")
            return
        self._rest = buffer[used:]
        self.flush()

    def _acknowledgement(self, buffer: bytes, frame: Frame, now_ns: int) -> None:
        first, start, end = frame
        kind = first >> 4
        reason = buffer[start + 2] if end - start > 2 else 0
        packet_id = buffer[start] << 8 | buffer[start + 1]
        if kind == 5 and reason < FIRST_FAILURE_CODE:  # PUBREC
            self.output.append(acknowledgement(PUBREL, buffer[start : start + 2]))
        elif kind == 6:  # PUBREL
            self.output.append(acknowledgement(PUBCOMP, buffer[start : start + 2]))
        else:
            self.on_completed(packet_id, reason, now_ns)

    def _control(self, frame: bytes) -> None:
        try:
            packet = decode_packet(frame, self.version)
        except MalformedPacketError as error:
            raise ValueError(str(error)) from error
        if isinstance(packet, Disconnect):
            self._fail(f"the broker disconnected: {describe(packet)}")
        elif isinstance(packet, Pingresp) and self._pings:
            self._pings -= 1
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(packet)

    def flush(self) -> None:
        """Send the collected output by one write."""
        if self.output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self.output))
        self.output.clear()

    # Roles

    def on_publish(self, buffer: bytes, frame: Frame, now_ns: int) -> None:
        """A PUBLISH arrived."""

    def on_completed(self, packet_id: int, reason: int, now_ns: int) -> None:
        """PUBACK or PUBCOMP arrived, or a PUBREC that refuses."""

    def on_failure(self) -> None:
        """The connection is lost; ``failure`` says why."""
