"""A small MQTT client for Locust users: assay.conformance.wire over sockets that gevent makes cooperative.

One greenlet per connection reads and hands every packet to whoever waits for it; the user's greenlet sends and waits.
Only Locust's own process imports this module, after Locust has patched the standard library.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from typing import TypeVar

import gevent
from gevent.event import AsyncResult
from gevent.queue import Empty, Queue

from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    describe,
    encode,
)

FIRST_FAILURE_CODE = 0x80
MAX_INBOX_MESSAGES = 10_000
PACKET_IDS = 65_535

_P = TypeVar("_P", bound=Packet)


class MqttError(Exception):
    """The broker refused, closed, or did not answer in time; the text says which."""


class GeventMqttClient:
    """One MQTT 5.0 connection. Every method that waits raises :class:`MqttError` after ``timeout_s``."""

    def __init__(self, endpoint: Endpoint, client_id: str, *, timeout_s: float = 5.0) -> None:
        self.client_id = client_id
        self.timeout_s = timeout_s
        self._version = 5
        self._waiting: deque[tuple[tuple[type[Packet], ...], int, AsyncResult]] = deque()
        self._inbox: Queue = Queue(maxsize=MAX_INBOX_MESSAGES)
        self._packet_id = 0
        self._error = ""
        self._pinger: gevent.Greenlet | None = None
        try:
            self._socket = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
        except OSError as error:
            message = f"{endpoint.host}:{endpoint.port}: {error}"
            raise MqttError(message) from error
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = gevent.spawn(self._read)
        connect = Connect(
            client_id=client_id,
            version=self._version,
            keep_alive_s=0,
            username=endpoint.username,
            password=None if endpoint.password is None else endpoint.password.encode(),
        )
        connack = self._ask(connect, (Connack,), 0)
        if isinstance(connack, Connack) and connack.reason_code:
            self.close()
            message = f"CONNECT was refused: {describe(connack)}"
            raise MqttError(message)
        if isinstance(connack, Connack) and connack.properties.server_keep_alive:
            self._pinger = gevent.spawn(self._ping, connack.properties.server_keep_alive / 2)

    def _ping(self, every_s: float) -> None:
        """The broker imposes a keep alive: it must hear of a subscriber that only listens."""
        with contextlib.suppress(MqttError):
            while True:
                gevent.sleep(every_s)
                self._send(Pingreq())

    # Reading

    def _read(self) -> None:
        decoder = Decoder(self._version)
        try:
            while data := self._socket.recv(65_536):
                for packet in decoder.feed(data):
                    self._received(packet)
            self._error = self._error or "the broker closed the connection"
        except (OSError, MalformedPacketError, MqttError) as error:
            self._error = self._error or str(error)
        for _, _, result in self._waiting:
            result.set_exception(MqttError(self._error))
        self._waiting.clear()

    def _received(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self._send(Puback(packet_id=packet.packet_id))
            elif packet.qos == 2:
                self._send(Pubrec(packet_id=packet.packet_id))
            if self._inbox.full():
                message = f"more than {MAX_INBOX_MESSAGES} deliveries that no task has read"
                raise MqttError(message)
            self._inbox.put(packet)
        elif isinstance(packet, Pubrel):
            self._send(Pubcomp(packet_id=packet.packet_id))
        elif isinstance(packet, Disconnect):
            self._error = f"the broker disconnected: {describe(packet)}"
        else:
            packet_id = int(getattr(packet, "packet_id", 0))
            for entry in self._waiting:
                kinds, wanted_id, result = entry
                if isinstance(packet, kinds) and wanted_id == packet_id:
                    self._waiting.remove(entry)
                    result.set(packet)
                    return

    # Sending

    def _send(self, packet: Packet) -> None:
        if self._error:
            raise MqttError(self._error)
        try:
            self._socket.sendall(encode(packet, self._version))
        except OSError as error:
            raise MqttError(str(error)) from error

    def _ask(self, packet: Packet, kinds: tuple[type[Packet], ...], packet_id: int) -> Packet:
        result = AsyncResult()
        entry = (kinds, packet_id, result)
        self._waiting.append(entry)
        self._send(packet)
        try:
            answer = result.get(timeout=self.timeout_s)
        except gevent.Timeout as error:
            self._waiting.remove(entry)
            message = f"no {' or '.join(kind.__name__.upper() for kind in kinds)} within {self.timeout_s:g} s"
            raise MqttError(message) from error
        if not isinstance(answer, Packet):
            message = f"{type(answer).__name__} is no packet"
            raise MqttError(message)
        return answer

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % PACKET_IDS + 1
        return self._packet_id

    def subscribe(self, topic: str, qos: int, *, group: str = "") -> None:
        """Subscribe; ``qos`` itself must be granted."""
        packet_id = self._next_id()
        properties = Properties(user_property=(("consumer-group", group),) if group else ())
        packet = Subscribe(
            packet_id=packet_id, subscriptions=(Subscription(filter=topic, qos=qos),), properties=properties
        )
        suback = self._ask(packet, (Suback,), packet_id)
        if isinstance(suback, Suback) and suback.reason_codes != (qos,):
            message = f"SUBSCRIBE to {topic} at QoS {qos} was answered with {describe(suback)}"
            raise MqttError(message)

    def publish(
        self, topic: str, payload: bytes, qos: int, *, user_properties: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Publish; above QoS 0 return once it is fully acknowledged."""
        packet_id = self._next_id() if qos else 0
        packet = Publish(
            topic=topic,
            payload=payload,
            qos=qos,
            packet_id=packet_id,
            properties=Properties(user_property=user_properties),
        )
        if not qos:
            self._send(packet)
            return
        answer = self._ask(packet, (Puback, Pubrec), packet_id)
        if isinstance(answer, Puback | Pubrec) and answer.reason_code >= FIRST_FAILURE_CODE:
            message = f"PUBLISH to {topic} was refused: {describe(answer)}"
            raise MqttError(message)
        if qos == 2:
            self._ask(Pubrel(packet_id=packet_id), (Pubcomp,), packet_id)

    def next_message(self, payload: bytes) -> Publish:
        """The delivery of ``payload``; earlier ones, which somebody stopped waiting for, are passed over."""
        deadline = time.perf_counter() + self.timeout_s
        while True:
            try:
                packet = self._inbox.get(timeout=max(0.0, deadline - time.perf_counter()))
            except Empty as error:
                message = f"not delivered within {self.timeout_s:g} s" + (f": {self._error}" if self._error else "")
                raise MqttError(message) from error
            if isinstance(packet, Publish) and packet.payload == payload:
                return packet

    def close(self) -> None:
        """DISCONNECT and end the reader."""
        if not self._error:
            self._error = "closed"
            with contextlib.suppress(OSError):
                self._socket.sendall(encode(Disconnect(), self._version))
        self._reader.kill()
        if self._pinger is not None:
            self._pinger.kill()
        self._socket.close()
