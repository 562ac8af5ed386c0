"""The way of a lone message, call by call: a PUBLISH at QoS 1 to a queue, its segment, its consumer, the PUBACK.

``python tests/support/call_path.py`` lists the calls of the broker's own functions, indented by who calls whom;
tests/mqtt/test_call_path.py holds how many they are. Calls of C are left out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from assay.conformance.wire import Connect, Packet, Properties, Puback, Publish, Subscribe, Subscription, encode
from assay.conformance.wire.decode import Decoder
from assay.reference_broker import node as node_module
from assay.reference_broker.config import parse_config
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.memory_disk import MemoryDisk

QUEUE = "$queue/orders"
_BROKER = str(Path(node_module.__file__).parent)
_WARM_UP = 50
_VERSION = 5


class Call(NamedTuple):
    """One call of a function of the broker; ``depth``: how many of them it stands within."""

    module: str
    function: str
    depth: int


class CallPath:
    """A broker in memory, a publisher, and a consumer that acknowledges what it is given. All is warm."""

    def __init__(self, durability: str = "interval") -> None:
        config = parse_config({"queues": {"defaults": {"partitions": 1, "durability": durability}}})
        self._now, self._packet_id = 1_700_000_000.0, 0
        self._node = BrokerNode(config, MemoryDisk(), random.Random(1), self._now)
        self._publisher, self._consumer = (self._connected(name) for name in ("publisher", "consumer"))
        filters = (Subscription(filter=f"{QUEUE}/#", qos=1),)
        self._send(self._consumer, Subscribe(packet_id=1, subscriptions=filters))
        self._turn()
        for _ in range(_WARM_UP):
            self.message()
            self.settlement()

    def message(self) -> list[Call]:
        """The calls that a PUBLISH takes until its consumer has it and its publisher the PUBACK."""
        self._packet_id = self._packet_id % 60_000 + 1
        packet = Publish(topic=f"{QUEUE}/eu", payload=b"payload", qos=1, packet_id=self._packet_id)
        data = encode(packet, _VERSION)
        calls = _traced(lambda: self._exchange(self._publisher, data))
        (answer,), (self._delivery,) = self._read(self._publisher), self._read(self._consumer)
        assert isinstance(answer, Puback) and isinstance(self._delivery, Publish)  # noqa: PT018
        return calls

    def settlement(self) -> list[Call]:
        """The calls that its consumer's PUBLISH to ``$ack`` takes until the group's log has it."""
        named = tuple(pair for pair in self._delivery.properties.user_property if pair[0] in ("message-id", "group-id"))
        packet = Publish(topic=f"{QUEUE}/$ack", qos=1, packet_id=1, properties=Properties(user_property=named))
        data = encode(Puback(packet_id=self._delivery.packet_id), _VERSION)
        self._exchange(self._consumer, data)
        data = encode(packet, _VERSION)
        calls = _traced(lambda: self._exchange(self._consumer, data))
        (answer,) = self._read(self._consumer)
        assert isinstance(answer, Puback)
        assert answer.reason_code == 0
        return calls

    def _connected(self, name: str) -> Connection:
        connection = self._node.accept(name, self._now)
        self._send(connection, Connect(version=_VERSION, client_id=name))
        self._turn()
        return connection

    def _send(self, connection: Connection, packet: Packet) -> None:
        self._node.receive(connection, encode(packet, _VERSION), self._now)

    def _exchange(self, connection: Connection, data: bytes) -> None:
        self._now += 0.01
        self._node.receive(connection, data, self._now)
        self._output = self._turn()

    def _turn(self) -> dict[Connection, bytes]:
        """The end of a turn as the server's, and another one where jobs end."""
        node, now = self._node, self._now
        output: dict[Connection, bytes] = {}
        while True:
            for connection in node.take_dirty(now):
                output[connection] = output.get(connection, b"") + connection.take_output()
            jobs = node.take_jobs(now)
            for job in jobs:
                job.run()
                node.job_done(job, None, now)
            if not jobs:
                return output

    def _read(self, connection: Connection) -> list[Packet]:
        return list(Decoder(_VERSION).feed(self._output[connection]))


def _traced(action: Callable[[], None]) -> list[Call]:
    calls: list[Call] = []
    depth = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal depth
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(_BROKER):
            if event == "call":
                module = code.co_filename[len(_BROKER) + 1 :].removesuffix(".py").replace("/", ".")
                calls.append(Call(module, code.co_qualname, depth))
            depth += 1 if event == "call" else -1

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def _print(title: str, calls: list[Call]) -> None:
    modules = {call.module for call in calls}
    print(f"{title}: {len(calls)} calls through {len(modules)} modules")
    for call in calls:
        print(f"{'  ' * call.depth}{call.function}  ({call.module})")


if __name__ == "__main__":
    path = CallPath(*sys.argv[1:])
    _print("message", path.message())
    _print("settlement", path.settlement())
