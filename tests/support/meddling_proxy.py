"""A broker with one fault, made of a sound one and a proxy that meddles with its frames.

Independent of the broker's code: what it says is changed, delayed, kept back or repeated on the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from assay.conformance.targets import Endpoint
from assay.conformance.wire import Connect, MalformedPacketError, Publish, Subscribe, decode_packet, encode

_READ_BYTES = 65_536


class Fault:
    """What the proxy does; this one does nothing. Frames are whole packets as bytes."""

    swallows_ends = False
    """The client's connection stays open when the broker ends it."""
    delay_s = 0.0
    """How late each frame of the broker is."""

    def from_client(self, frame: bytes, version: int) -> bytes:
        """What the broker gets of a client's frame."""
        return frame

    def from_broker(self, frame: bytes, version: int) -> bytes:
        """What the client gets of a frame."""
        return frame


class _Link:
    """One client's connection and the one behind it."""

    def __init__(self, proxy: MeddlingProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy, self.reader, self.writer = proxy, reader, writer
        self.version = 4
        self.has_version = False
        self.filters: set[str] = set()
        self.is_connected = False
        """The client has been told that it is."""

    async def serve(self) -> None:
        behind = self.proxy.behind
        try:
            reader, writer = await asyncio.open_connection(behind.host, behind.port)
        except OSError:
            self.writer.transport.abort()
            return
        try:
            await asyncio.gather(self._upwards(writer), self._downwards(reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self.writer.transport.abort()

    async def _upwards(self, writer: asyncio.StreamWriter) -> None:
        data = b""
        while chunk := await self.reader.read(_READ_BYTES):
            frames, data = _cut(data + chunk)
            for frame in frames:
                self._note_version(frame)
                writer.write(self.proxy.fault.from_client(frame, self.version))
                self._note_filters(frame)
                self.proxy.tell_all(self, frame)
            if not frames and not _may_be_cut(data):
                # What is no packet goes on as it comes.
                writer.write(data)
                data = b""
        writer.write(data)
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    def _note_filters(self, frame: bytes) -> None:
        try:
            packet = decode_packet(frame, self.version) if frame[0] == 0x82 else None
        except MalformedPacketError:
            return
        if isinstance(packet, Subscribe):
            self.filters |= {entry.filter for entry in packet.subscriptions}

    def has_asked_for(self, topic: str) -> bool:
        """Whether it may get the topic anyway."""
        return any(name == topic or not {"+", "#", "$share"}.isdisjoint(name.split("/")) for name in self.filters)

    def _note_version(self, frame: bytes) -> None:
        if frame[0] == 0x10 and not self.has_version:
            self.has_version = True
            name_end = frame.find(b"MQTT") + 4
            self.version = frame[name_end] if 4 <= name_end < len(frame) and frame[name_end] in (4, 5) else 4

    async def _downwards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        loop = asyncio.get_running_loop()
        fault = self.proxy.fault
        while chunk := await reader.read(_READ_BYTES):
            frames, data = _cut(data + chunk)
            self.is_connected |= any(frame[0] == 0x20 for frame in frames)
            changed = b"".join(fault.from_broker(frame, self.version) for frame in frames)
            if fault.delay_s:
                loop.call_later(fault.delay_s, self.send, changed)
            else:
                self.send(changed)
        if fault.swallows_ends:
            await asyncio.Event().wait()
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        self.writer.close()

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)


def _length(data: bytes) -> tuple[int, int]:
    """Bytes of the whole packet, and 0 while that cannot be told; the second is 1 for what is no packet."""
    size = shift = 0
    for index, value in enumerate(data[1:5]):
        size |= (value & 0x7F) << shift
        if value < 0x80:
            return size + index + 2, 0
        shift += 7
    return 0, int(len(data) >= 5)


def _may_be_cut(data: bytes) -> bool:
    return not _length(data)[1]


def _cut(data: bytes) -> tuple[list[bytes], bytes]:
    frames = []
    while data:
        size, _ = _length(data)
        if not size or len(data) < size:
            break
        frames.append(data[:size])
        data = data[size:]
    return frames, data


class MeddlingProxy:
    """Listens on a free port in front of a broker."""

    def __init__(self, behind: Endpoint, fault: Fault) -> None:
        self.behind, self.fault = behind, fault
        self.links: set[_Link] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Endpoint]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            link = _Link(self, reader, writer)
            self.links.add(link)
            try:
                await link.serve()
            finally:
                self.links.discard(link)
                tasks.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield Endpoint(port=server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def tell_all(self, sender: _Link, frame: bytes) -> None:
        """Where the fault is that everybody gets everything."""
        if not isinstance(self.fault, ToldToAll):
            return
        topic = _topic_at_qos_0(frame, sender.version)
        for link in self.links if topic else ():
            if link.is_connected and link.version == sender.version and not link.has_asked_for(topic):
                link.send(bytes((frame[0] & 0xFE,)) + frame[1:])


def _topic_at_qos_0(frame: bytes, version: int) -> str:
    try:
        packet = decode_packet(frame, version) if frame[0] & 0xF6 == 0x30 else None
    except MalformedPacketError:
        return ""
    return packet.topic if isinstance(packet, Publish) and packet.properties.topic_alias is None else ""


def _connect(frame: bytes, version: int) -> Connect | None:
    try:
        packet = decode_packet(frame, version) if frame[0] == 0x10 else None
    except MalformedPacketError:
        return None
    return packet if isinstance(packet, Connect) else None


class NoSessions5(Fault):
    """No session of MQTT 5.0 outlives its connection."""

    def from_client(self, frame: bytes, version: int) -> bytes:
        packet = _connect(frame, version)
        return frame if packet is None or version != 5 else encode(without_expiry(packet), 5)


def without_expiry(packet: Connect) -> Connect:
    """The same CONNECT for a session that ends with its connection."""
    properties = msgspec.structs.replace(packet.properties, session_expiry_interval=None)
    return msgspec.structs.replace(packet, properties=properties)


class RetainClear(Fault):
    """RETAIN is 0 on whatever is delivered."""

    def from_broker(self, frame: bytes, version: int) -> bytes:
        return bytes((frame[0] & 0xFE,)) + frame[1:] if frame[0] >> 4 == 3 else frame


class DupSet(Fault):
    """DUP is 1 on whatever is delivered at QoS 1 and 2."""

    def from_broker(self, frame: bytes, version: int) -> bytes:
        return bytes((frame[0] | 0x08,)) + frame[1:] if frame[0] >> 4 == 3 and frame[0] & 0x06 else frame


class NothingPunished(Fault):
    """No connection is ended, and no DISCONNECT is sent."""

    swallows_ends = True

    def from_broker(self, frame: bytes, version: int) -> bytes:
        return b"" if frame[0] >> 4 == 14 else frame


class ToldToAll(Fault):
    """Each message at QoS 0 goes to all clients, though they never asked for it."""


class Slow(Fault):
    """Every answer comes after some seconds."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s


class KeptBack(Fault):
    """Packets of one type never leave the broker."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def from_broker(self, frame: bytes, version: int) -> bytes:
        return b"" if frame[0] >> 4 == self._kind else frame
