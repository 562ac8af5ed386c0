"""A client of AMQP 0.9.1 in memory: methods in, methods out, one turn of the node each time."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties, decode_header, encode_header
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import PROTOCOL_HEADER, FrameType, content_frames, frame, read_frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, decode_method, encode_method
from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.memory_disk import MemoryDisk

NOW = 1_700_000_000.0
FRAME_MAX = 131_072
ALL_CAPABILITIES = ("basic.nack", "consumer_cancel_notify", "connection.blocked", "authentication_failure_close")


class Said(NamedTuple):
    """A method of the broker, with the content that came with it."""

    channel: int
    name: str
    values: tuple[Any, ...]
    properties: BasicProperties | None = None
    body: bytes = b""


def make_node(disk: Disk | None = None, now: float = NOW, seed: int = 1, **config: Any) -> BrokerNode:
    config.setdefault("queues", QueuesConfig())
    return BrokerNode(BrokerConfig(**config), disk or MemoryDisk(), random.Random(seed), now)


def turn(node: BrokerNode, now: float = NOW, *, syncs: bool = True) -> None:
    """Until nothing is left to do at once."""
    for _ in range(6):
        node.tick(now)
        node.take_dirty(now)
        jobs = node.take_jobs(now) if syncs else []
        for job in jobs:
            job.run()
            node.job_done(job, None, now)


def table(**fields: Any) -> Table:
    """A field table of plain values."""
    kinds = {bool: Kind.BOOL, int: Kind.I32, str: Kind.TEXT, float: Kind.F64}
    return tuple((name.replace("_", "-"), Typed(kinds[type(value)], value)) for name, value in fields.items())


class AmqpClient:
    """Says methods on a channel and hears what comes back."""

    def __init__(self, node: BrokerNode, *, now: float = NOW, connected: bool = True) -> None:
        self.node = node
        self.now = now
        end = node.accept("amqp-client", now, protocol="amqp091")
        assert isinstance(end, AmqpConnection)
        self.end = end
        self._pending = b""
        if connected:
            self.connect()

    def connect(self, user: str = "guest", vhost: str = "/", capabilities: tuple[str, ...] = ALL_CAPABILITIES) -> None:
        names = [(Typed(Kind.TEXT, name), Typed(Kind.BOOL, True)) for name in capabilities]
        can = Typed(Kind.MAP, tuple(part for pair in names for part in pair))
        self.send_raw(PROTOCOL_HEADER)
        assert [said.name for said in self.hear()] == ["connection.start"]
        plain = f"\0{user}\0{user}".encode()
        assert self.say(0, "connection.start-ok", (("capabilities", can),), "PLAIN", plain, "en_US")[0].name == (
            "connection.tune"
        )
        self.say(0, "connection.tune-ok", 2_047, FRAME_MAX, 0)
        assert [said.name for said in self.say(0, "connection.open", vhost)] == ["connection.open-ok"]

    def send_raw(self, data: bytes) -> None:
        self.node.receive(self.end, data, self.now)

    def hear(self, *, syncs: bool = True) -> list[Said]:
        """All that the broker has said since."""
        turn(self.node, self.now, syncs=syncs)
        data = self._pending + self.end.take_output()
        said: list[Said] = []
        at = 0
        if data.startswith(b"AMQP"):
            said.append(Said(0, "header", (data[:8],)))
            at = 8
        sizes: list[int] = []
        while at < len(data):
            found = read_frame(data, at, 1 << 24)
            assert found is not None
            part, at = found
            if part.kind == FrameType.METHOD:
                method, values = decode_method(part.payload)
                said.append(Said(part.channel, method.name, tuple(values)))
            elif part.kind == FrameType.HEARTBEAT:
                said.append(Said(0, "heartbeat", ()))
            elif part.kind == FrameType.HEADER:
                size, properties = decode_header(part.payload)
                sizes.append(size)
                said[-1] = said[-1]._replace(properties=properties)
            else:
                said[-1] = said[-1]._replace(body=said[-1].body + part.payload)
        return said

    def say(self, channel: int, name: str, *values: Any, syncs: bool = True) -> list[Said]:
        """One method, and what is heard of it."""
        self.send_raw(frame(FrameType.METHOD, channel, encode_method(BY_NAME[name], *values)))
        return self.hear(syncs=syncs)

    def open(self, channel: int = 1) -> None:
        assert [said.name for said in self.say(channel, "channel.open")] == ["channel.open-ok"]

    def declare(
        self, queue: str, *, channel: int = 1, durable: bool = True, arguments: Table = (), **flags: bool
    ) -> Said:
        values = [flags.get(name, False) for name in ("exclusive", "auto_delete")]
        return self.only(
            self.say(channel, "queue.declare", queue, flags.get("passive", False), durable, *values, False, arguments)
        )

    def publish(
        self,
        queue: str,
        body: bytes,
        properties: BasicProperties = NONE,
        *,
        exchange: str = "",
        channel: int = 1,
        mandatory: bool = False,
        immediate: bool = False,
        syncs: bool = True,
    ) -> list[Said]:
        method = encode_method(BY_NAME["basic.publish"], exchange, queue, mandatory, immediate)
        content = content_frames(channel, encode_header(len(body), properties), body, FRAME_MAX)
        self.send_raw(frame(FrameType.METHOD, channel, method) + content)
        return self.hear(syncs=syncs)

    def get(self, queue: str, *, channel: int = 1, no_ack: bool = False) -> Said:
        return self.only(self.say(channel, "basic.get", queue, no_ack))

    def consume(
        self,
        queue: str,
        tag: str = "t",
        *,
        channel: int = 1,
        no_ack: bool = False,
        arguments: Table = (),
        **flags: bool,
    ) -> list[Said]:
        values = (False, no_ack, flags.get("exclusive", False), False, arguments)
        return self.say(channel, "basic.consume", queue, tag, *values)

    @staticmethod
    def only(said: list[Said]) -> Said:
        assert len(said) == 1, said
        return said[0]
