"""A broker that does as little as a broker can: it answers handshakes and acknowledgements, and forwards bytes.

Against it the load generator and the bench show their own ceiling; whatever a real broker adds is the broker's. It
keeps no sessions, matches topics by equality (or all but their last level, filter ``a/+``), and delivers at the QoS of
the publish or the subscription, whichever is lower. ``$queue/<name>`` topics go to one consumer of each group in turn.
It can also misbehave on purpose (lose, repeat, swap, stall), so that a test can prove that the load runner notices.

``python -m assay.loadtests.null_broker`` prints one JSON line with its host and port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from enum import StrEnum
from typing import cast

import msgspec
import typer
import uvloop

from assay.conformance.targets import StartHook, Target
from assay.conformance.wire import (
    Connack,
    Connect,
    MalformedPacketError,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    decode_packet,
    encode,
)
from assay.loadtests.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Frame,
    acknowledgement,
    property_section,
    publish_frame,
    read_publish,
    split_frames,
    user_property,
)

MAX_UNREAD_BYTES = 64 * 1024 * 1024
SYNTHETIC_RECEIVE_MAXIMUM = 65_535


class Mode(StrEnum):
    RELAY = "relay"
    """Reads every packet: acknowledges to the publisher, forwards to the subscribers."""
    PIPE = "pipe"
    """After the handshakes, bytes pass unread between one publisher and one subscriber, acknowledgements too."""


class Misbehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Planted faults. ``*_every`` counts forwarded messages; 0 = never."""

    lose_every: int = 0
    duplicate_every: int = 0
    swap_every: int = 0
    """The message is sent after its successor."""
    stall_at_s: float = 0.0
    """The whole broker stops this long after the first publish ..."""
    stall_for_s: float = 0.0
    """... for this long."""


class _Queue:
    """The consumers of one queue by group, and the next offset."""

    def __init__(self, topic: bytes) -> None:
        self.name = topic.removeprefix(b"$queue/")
        self.constant_properties = b"".join(
            user_property(name, value)
            for name, value in (
                (b"queue", self.name),
                (b"partition", b"0"),
                (b"partition-id", b"0"),
                (b"delivery-count", b"1"),
            )
        )
        self.groups: dict[bytes, list[_Link]] = {}
        self.offsets = itertools.count()


class NullBroker:
    """State shared by the connections of one process."""

    def __init__(self, mode: Mode, misbehaviour: Misbehaviour) -> None:
        self.mode = mode
        self.misbehaviour = misbehaviour
        self.subscribers: dict[bytes, list[tuple[_Link, int]]] = {}
        self.queues: dict[bytes, _Queue] = {}
        self.dirty: set[_Link] = set()
        self._forwarded = 0
        self._held: tuple[_Link, bytes] | None = None
        self._started = False

    def first_publish(self) -> None:
        """Start the clock of the planned stall."""
        if not self._started:
            self._started = True
            if self.misbehaviour.stall_for_s > 0:
                loop = asyncio.get_running_loop()
                # Blocking the loop is the point: a stalled broker neither reads nor answers.
                loop.call_later(self.misbehaviour.stall_at_s, time.sleep, self.misbehaviour.stall_for_s)

    def forward(self, link: _Link, frame: bytes) -> None:
        """Hand a delivery to a connection, unless a planted fault says otherwise."""
        self._forwarded += 1
        plan, number = self.misbehaviour, self._forwarded
        if plan.lose_every and number % plan.lose_every == 0:
            return
        if self._held is None and plan.swap_every and number % plan.swap_every == 0:
            self._held = (link, frame)
            return
        link.output.append(frame)
        if plan.duplicate_every and number % plan.duplicate_every == 0:
            link.output.append(frame)
        self.dirty.add(link)
        if self._held is not None and self._held[0] is link:
            link.output.append(self._held[1])
            self._held = None

    def flush(self) -> None:
        for link in self.dirty:
            link.flush()
        self.dirty.clear()


class _Link(asyncio.Protocol):
    """One client connection."""

    def __init__(self, broker: NullBroker) -> None:
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._version = 4
        self._peer: _Link | None = None
        self._packet_id = 0
        self.output: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes, they only behave like them.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        broker = self._broker
        for topic, links in list(broker.subscribers.items()):
            broker.subscribers[topic] = [entry for entry in links if entry[0] is not self]
        for queue in broker.queues.values():
            for members in queue.groups.values():
                with contextlib.suppress(ValueError):
                    members.remove(self)
        broker.dirty.discard(self)
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.close()

    def flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            self.output.clear()
            return
        if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            transport.abort()
            return
        transport.write(b"".join(self.output))
        self.output.clear()

    def data_received(self, data: bytes) -> None:
        if self._peer is not None:
            self._peer._pass_on(data)
            return
        buffer = self._rest + data if self._rest else data
        try:
            frames, used = split_frames(buffer)
            begin = 0
            for frame in frames:
                if frame[0] >> 4 == 3 and self._broker.mode is Mode.PIPE:
                    self._open_pipe(buffer, frame, begin)
                    return
                self._packet(buffer, frame, begin)
                begin = frame[2]
        except (MalformedPacketError, ValueError) as error:
            print(f"closing a connection: {error}", file=sys.stderr)
            if self._transport is not None:
                self._transport.close()
            return
        self._rest = buffer[used:]
        self._broker.flush()

    def _pass_on(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _open_pipe(self, buffer: bytes, frame: Frame, begin: int) -> None:
        topic = read_publish(buffer, frame, self._version)[0]
        links = self._broker.subscribers.get(topic, [])
        if len(links) != 1:
            message = f"pipe mode needs exactly one subscriber of {topic.decode()}, there are {len(links)}"
            raise ValueError(message)
        self._peer = links[0][0]
        self._peer._peer = self
        self._rest = b""
        self._broker.flush()
        self._peer._pass_on(buffer[begin:])

    def _packet(self, buffer: bytes, frame: Frame, begin: int) -> None:
        first, start, end = frame
        kind = first >> 4
        if kind == 3:
            self._publish(buffer, frame)
        elif kind == 5:  # PUBREC of a subscriber
            self._send(acknowledgement(PUBREL, buffer[start : start + 2]))
        elif kind == 6:  # PUBREL of a publisher
            self._send(acknowledgement(PUBCOMP, buffer[start : start + 2]))
        elif kind not in (4, 7, 14):
            self._control(buffer[begin:end])

    def _send(self, data: bytes) -> None:
        self.output.append(data)
        self._broker.dirty.add(self)

    def _control(self, frame: bytes) -> None:
        if frame[0] >> 4 == 1 and frame[frame.index(b"MQTT") + 4] == 5:
            self._version = 5
        packet = decode_packet(frame, self._version)
        if isinstance(packet, Connect):
            said = Properties(receive_maximum=SYNTHETIC_RECEIVE_MAXIMUM) if self._version == 5 else Properties()
            self._send(encode(Connack(properties=said), self._version))
        elif isinstance(packet, Subscribe):
            group = dict(packet.properties.user_property).get("consumer-group", "default")
            for subscription in packet.subscriptions:
                self._subscribe(subscription.filter.encode(), subscription.qos, group)
            granted = tuple(subscription.qos for subscription in packet.subscriptions)
            self._send(encode(Suback(packet_id=packet.packet_id, reason_codes=granted), self._version))
        elif isinstance(packet, Unsubscribe):
            codes = (0,) * len(packet.filters) if self._version == 5 else ()
            self._send(encode(Unsuback(packet_id=packet.packet_id, reason_codes=codes), self._version))
        elif isinstance(packet, Pingreq):
            self._send(encode(Pingresp(), self._version))

    def _subscribe(self, topic: bytes, qos: int, group: str) -> None:
        if topic.startswith(b"$queue/"):
            queue = self._broker.queues.setdefault(topic, _Queue(topic))
            queue.groups.setdefault(group.encode(), []).append(self)
        else:
            self._broker.subscribers.setdefault(topic, []).append((self, qos))

    def _publish(self, buffer: bytes, frame: Frame) -> None:
        self._broker.first_publish()
        topic, packet_id, properties, payload = read_publish(buffer, frame, self._version)
        qos = frame[0] >> 1 & 3
        if qos:
            self._send(acknowledgement(PUBACK if qos == 1 else PUBREC, packet_id))
        if topic.startswith(b"$queue/"):
            if not topic.endswith((b"/$ack", b"/$nack", b"/$reject")):
                self._enqueue(topic, properties, payload)
            return
        subscribers = self._broker.subscribers
        links = subscribers.get(topic)
        if links is None:
            links = subscribers.get(topic.rpartition(b"/")[0] + b"/+", [])
        for link, granted in links:
            link.deliver(min(qos, granted), topic, properties, payload)

    def _enqueue(self, topic: bytes, properties: bytes, payload: bytes) -> None:
        queue = self._broker.queues.setdefault(topic, _Queue(topic))
        offset = next(queue.offsets)
        for group, members in queue.groups.items():
            if members:
                number = str(offset).encode()
                own = (
                    user_property(b"message-id", queue.name + b":0:" + number)
                    + user_property(b"group-id", group)
                    + queue.constant_properties
                    + user_property(b"offset", number)
                )
                members[offset % len(members)].deliver(1, topic, own + properties, payload)

    def deliver(self, qos: int, topic: bytes, properties: bytes, payload: bytes) -> None:
        """Send a PUBLISH to this client."""
        self._packet_id = self._packet_id % 65_535 + 1
        section = property_section(properties, self._version)
        self._broker.forward(self, publish_frame(qos, topic, self._packet_id, section, payload))


def target(*arguments: str) -> Target:
    """A target that starts this broker; ``arguments`` are its command line, e.g. ``--lose-every 100``."""
    command = ("{python}", "-m", "assay.loadtests.null_broker", *arguments)
    return Target(
        name="null",
        description="answers and forwards, nothing else",
        capabilities={"queues": True},
        start=StartHook(command=command, port_from="stdout"),
    )


async def _serve(broker: NullBroker) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Link(broker), "127.0.0.1", 0, backlog=1_024)
    host, port = server.sockets[0].getsockname()[:2]
    print(msgspec.json.encode({"host": host, "port": port, "version": "null"}).decode(), flush=True)
    # Whoever started this process holds its standard input: when they are gone, so is the broker.
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


def main(
    mode: Mode = Mode.RELAY,
    lose_every: int = 0,
    duplicate_every: int = 0,
    swap_every: int = 0,
    stall_at_s: float = 0.0,
    stall_for_s: float = 0.0,
) -> None:
    """Serve until standard input ends."""
    misbehaviour = Misbehaviour(
        lose_every=lose_every,
        duplicate_every=duplicate_every,
        swap_every=swap_every,
        stall_at_s=stall_at_s,
        stall_for_s=stall_for_s,
    )
    uvloop.run(_serve(NullBroker(mode, misbehaviour)))


if __name__ == "__main__":
    typer.run(main)
