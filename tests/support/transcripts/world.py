"""A node, its clients and its clock; everything that is said, and what is on the disk, becomes lines of text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from assay.conformance.wire import Decoder, Packet, Publish, decode_packet, describe, encode
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.batch import HEADER_BYTES, BatchError, decode_header
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind
from transcripts.audit import wrong_counts

START = 1_700_000_000.0
_TURNS = 10_000
_SHOWN_BYTES = 160


class Client:
    """One transport."""

    def __init__(self, name: str, connection: Connection, version: int) -> None:
        self.name, self.connection, self.version = name, connection, version
        self.decoder = Decoder(version, max_packet_bytes=1 << 28)
        self.inbox: list[Packet] = []
        self.is_open = True


class World:
    """``lines`` has what happened so far."""

    def __init__(self, config: BrokerConfig, seed: int, *, traced: bool = False) -> None:
        self.config, self.seed = config, seed
        self._tracer = self._on_trace if traced else None
        self.disk = MemoryDisk()
        self.now = START
        self.lines: list[str] = []
        self.trace: list[str] = []
        self.clients: dict[str, Client] = {}
        self._said: dict[str, list[str]] = {}
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self.disk.unlock()
        rng = random.Random(self.seed + self._starts)
        self.node = BrokerNode(self.config, self.disk, rng, self.now, self._tracer)
        self.lines += [f"note: {note.place}: {note.problem}" for note in self.node.recovery_notes]
        self.turn()

    def _on_trace(self, kind: TraceKind, fields: dict[str, str | int]) -> None:
        self.trace.append(f"trace: {kind.value} {json.dumps(fields, sort_keys=True)}")

    # -- what clients do -----------------------------------------------------------------------------------------

    def open(self, name: str, version: int) -> Client:
        client = Client(name, self.node.accept("127.0.0.1:1", self.now), version)
        self.clients[name] = client
        return client

    def send(self, client: Client, *packets: Packet) -> None:
        """In one chunk."""
        if not client.is_open:
            return
        self.lines += [f"{client.name} > {_shown(packet)}" for packet in packets]
        self.now += 0.001
        self.receive(client, b"".join(encode(packet, client.version) for packet in packets))
        self.turn()

    def receive(self, client: Client, data: bytes) -> None:
        """The broker gets what a client has sent."""
        self.node.receive(client.connection, data, self.now)

    def lose(self, client: Client) -> None:
        """The transport ends."""
        if client.is_open:
            client.is_open = False
            self.lines.append(f"{client.name} is gone")
            self.node.connection_lost(client.connection, self.now)
            self.turn()

    def advance(self, seconds: float) -> None:
        self.lines.append(f"{seconds:g} s pass")
        end = self.now + seconds
        for _ in range(_TURNS):
            deadline = self.node.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.node.tick(self.now)
            self.turn()
        self.now = end
        self.node.tick(self.now)
        self.turn()

    def restart(self, *, cleanly: bool, damage: Callable[[MemoryDisk, list[str]], str] | None = None) -> None:
        """Cleanly, or as kill -9 does: what was written stays, but for ``damage``, which tells what it did."""
        self.lines.append("the broker ends" if cleanly else "the broker is killed")
        if cleanly:
            self.node.close(self.now)
            self.turn()
        self.clients.clear()
        self.now += 1.0
        if damage is not None:
            self.lines.append(f"damage: {damage(self.disk, sorted(self._paths('')))}")
        self._start()
        self.lines += [f"disk: {line}" for line in self.on_disk()]

    # -- what the broker does ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Until nothing is left to do; then what each client was sent is written down, client by client."""
        for _ in range(_TURNS):
            dirty = self.node.take_dirty(self.now)
            jobs = self.node.take_jobs(self.now)
            for connection in dirty:
                self._take(connection)
            for job in jobs:
                job.run()
                self.node.job_done(job, None, self.now)
            if not dirty and not jobs and not self.node.state.sending.woken:
                break
        else:
            raise AssertionError(f"the broker is busy after {_TURNS} turns")
        for name in sorted(self._said):
            self.lines += self._said.pop(name)
        wrong = wrong_counts(self.node, [client.connection for client in self.clients.values() if client.is_open])
        self.lines += [f"count: {text}" for text in wrong]

    def take_output(self, connection: Connection) -> bytes:
        """What the broker has for a client, who takes it at once."""
        data = connection.take_output()
        if connection.noted_unread_bytes:
            connection.note_backlog(0, len(data), self.now)
        return data

    def _take(self, connection: Connection) -> None:
        data = self.take_output(connection)
        client = next((each for each in self.clients.values() if each.connection is connection), None)
        if client is None:
            return
        said = self._said.setdefault(client.name, [])
        for frame in client.decoder.feed_frames(data):
            packet = decode_packet(frame, client.version)
            client.inbox.append(packet)
            if not _depends_on_the_machine(packet):
                said.append(f"{client.name} < {_shown(packet)}")
        if connection.may_close and client.is_open:
            client.is_open = False
            said.append(f"{client.name} is closed")
            self.node.connection_lost(connection, self.now)

    # -- the disk ------------------------------------------------------------------------------------------------

    def on_disk(self) -> list[str]:
        """Each file; of segments the offsets they hold, however many batches those are in."""
        return [f"{path}{self._held(path)}" for path in sorted(self._paths(""))]

    def _paths(self, folder: str) -> Iterator[str]:
        for name in self.disk.list(folder):
            path = f"{folder}/{name}" if folder else name
            if self.disk.exists(path) and not self._is_folder(path):
                yield path
            else:
                yield from self._paths(path)

    def _is_folder(self, path: str) -> bool:
        try:
            self.disk.open(path)
        except OSError:
            return True
        return False

    def _held(self, path: str) -> str:
        file = self.disk.open(path)
        if path.endswith(".json"):
            return " " + file.read_at(0, file.size).decode()
        if not path.endswith(".seg"):
            return "" if file.size else " (empty)"
        ranges: list[list[int]] = []
        position = 0
        while position < file.size:
            try:
                header = decode_header(file.read_at(position, HEADER_BYTES))
            except BatchError as error:
                return f" {ranges} then {error}"
            first, end = header.base_offset, header.base_offset + header.record_count
            if ranges and ranges[-1][1] == first:
                ranges[-1][1] = end
            else:
                ranges.append([first, end])
            position += header.total_bytes
        return " " + " ".join(f"{first}-{end}" for first, end in ranges)


def _depends_on_the_machine(packet: Packet) -> bool:
    """A figure that is another one with another Python, or version of ours."""
    topic = packet.topic if isinstance(packet, Publish) else ""
    return topic.startswith("$SYS/") and topic.endswith(("bytes", "version"))


def _shown(packet: Packet) -> str:
    text = describe(packet)
    if isinstance(packet, Publish) and len(packet.payload) > _SHOWN_BYTES:
        answer = _json(packet.payload)
        text += f" = {answer}" if answer else f" of {len(packet.payload)} bytes"
    return text


def _json(payload: bytes) -> str:
    try:
        found: Any = json.loads(payload)
    except ValueError:
        return ""
    return json.dumps(found, sort_keys=True)
