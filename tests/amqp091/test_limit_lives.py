"""Drawn lives of queues with limits: what is counted as it changes is what is there, and not too much is ready."""

from __future__ import annotations

import random
from typing import Any

import pytest

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.support.amqp_client import AmqpClient, Said, make_node, table

_STEPS = 80
_HOW = ("publish", "many", "nack", "consume") * 4
_HOW_ELSE = (
    *_HOW,
    "get",
    "ack",
    "ack",
    "reject",
    "cancel",
    "recover",
    "wait",
    "close",
    "qos",
    "qos",
    "purge",
    "restart",
)


class Life:
    """Three clients and the queue ``q``."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.disk = MemoryDisk()
        self.is_stream = rng.random() < 0.2
        self.arguments: dict[str, Any] = {"x_queue_type": "stream"} if self.is_stream else self._drawn_arguments()
        self.clients: list[AmqpClient] = []
        self.held: list[list[int]] = []
        self.tags: list[list[str]] = []
        self.start(None)

    def _drawn_arguments(self) -> dict[str, Any]:
        rng = self.rng
        found: dict[str, Any] = {"x_overflow": rng.choice(["drop-head", "reject-publish", "reject-publish-dlx"])}
        for name, values in (
            ("x_max_length", (0, 1, 2, 5, 10)),
            ("x_max_length_bytes", (5, 20, 60)),
            ("x_message_ttl", (100, 1_000)),
            ("x_delivery_limit", (0, 2)),
            ("x_max_priority", (5,)),
            ("x_single_active_consumer", (True,)),
        ):
            if rng.random() < 0.4:
                found[name] = rng.choice(values)
        if rng.random() < 0.5:
            found |= {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "d"}
        return found

    def start(self, now: float | None) -> None:
        node = make_node(self.disk)
        self.node = node
        self.clients = [AmqpClient(node) for _ in range(3)]
        self.held, self.tags = [[], [], []], [[], [], []]
        for client in self.clients:
            client.now = client.now if now is None else now
            client.open()
        self.clients[0].declare("d")
        assert self.clients[0].declare("q", arguments=table(**self.arguments)).name == "queue.declare-ok"

    def hear(self, at: int, said: list[Said]) -> None:
        for each in said:
            if each.name in ("basic.deliver", "basic.get-ok"):
                self.held[at].append(each.values[each.name == "basic.deliver"])
            elif each.name == "channel.close":
                assert each.values[0] != 541, each
                self.clients[at].say(1, "channel.close-ok")
                self.clients[at].open()
                self.held[at], self.tags[at] = [], []
            assert each.name != "connection.close", each

    def step(self) -> None:
        rng = self.rng
        at = rng.randrange(3)
        for number, client in enumerate(self.clients):
            self.hear(number, client.hear())
        self.do(rng.choice(_HOW_ELSE), at, self.clients[at])
        for number, client in enumerate(self.clients):
            self.hear(number, client.hear())

    def do(self, how: str, at: int, c: AmqpClient) -> None:
        rng, held = self.rng, self.held[at]
        if how == "publish":
            expiration = rng.choice([None, None, "50"])
            properties = BasicProperties(priority=rng.randrange(6), expiration=expiration)
            self.hear(at, c.publish("q", b"x" * rng.choice([0, 1, 3, 8]), properties))
        elif how == "many":
            for _ in range(rng.randrange(2, 12)):
                self.hear(at, c.publish("q", b"x", syncs=False))
        elif how in ("ack", "nack", "reject") and held:
            tag = held.pop(rng.randrange(len(held)))
            several = how != "reject" and rng.random() < 0.3
            if several:
                self.held[at] = [each for each in held if each > tag]
            flags = {"ack": (several,), "nack": (several, rng.random() < 0.7), "reject": (rng.random() < 0.7,)}[how]
            self.hear(at, c.say(1, f"basic.{how}", tag, *flags))
        elif how == "consume":
            self._consume(at, c)
        elif how == "cancel" and self.tags[at]:
            self.hear(at, c.say(1, "basic.cancel", self.tags[at].pop(), False))
        elif how == "recover":
            held.clear()
            self.hear(at, c.say(1, "basic.recover", True))
        elif how == "wait":
            now = max(client.now for client in self.clients) + rng.choice([0.06, 0.5, 2, 12])
            for client in self.clients:
                client.now = now
        elif how == "close":
            c.say(1, "channel.close", 200, "", 0, 0)
            c.open()
            self.held[at], self.tags[at] = [], []
        elif how == "restart" and rng.random() < 0.4:
            self.disk.unlock()
            self.start(c.now)
        elif not self.is_stream and how == "get":
            self.hear(at, c.say(1, "basic.get", "q", rng.random() < 0.3))
        elif not self.is_stream and how == "purge":
            self.hear(at, c.say(1, "queue.purge", "q", False))
        elif not self.is_stream and how == "qos":
            self.hear(at, c.say(1, "basic.qos", 0, rng.choice([0, 1, 2, 5]), rng.random() < 0.3))

    def _consume(self, at: int, c: AmqpClient) -> None:
        rng = self.rng
        tag = f"t{rng.getrandbits(60)}"
        arguments = table(x_priority=rng.randrange(-2, 3)) if rng.random() < 0.5 else ()
        if self.is_stream:
            c.say(1, "basic.qos", 0, rng.choice([1, 3, 9]), False)
            arguments = (("x-stream-offset", Typed(Kind.TEXT, rng.choice(["first", "last", "next"]))),)
            if rng.random() < 0.4:
                arguments = (*arguments, ("x-consumer-group", Typed(Kind.TEXT, rng.choice("gh"))))
        said = c.consume("q", tag, no_ack=not self.is_stream and rng.random() < 0.3, arguments=arguments)
        self.tags[at].append(tag)
        self.hear(at, said)

    def check(self) -> None:
        queue = self.node.engine._queues["q"]
        for group in queue.groups.values():
            _check_counts(group)
        if self.is_stream or self.arguments["x_overflow"] != "drop-head":
            return
        group = queue.groups["amqp"]
        if not group.leaving:
            most = self.arguments.get("x_max_length")
            assert most is None or queue.contents.staying_of(group) <= most
            most = self.arguments.get("x_max_length_bytes")
            assert most is None or queue.limits._counted_bytes <= most


def _check_counts(group: ConsumerGroup) -> None:
    entries = [entry for place in group.every_place for entry in place.pending.values()]
    assert group.waiting_count == sum(entry.state is EntryState.WAITING for entry in entries)
    assert group.unsettled == len(entries)
    out = sum(group.bytes_of(entry) for entry in entries if entry.state is not EntryState.WAITING)
    assert group.out_bytes == out
    if group.config.max_bytes:
        unwritten = sum(place.partition.unwritten_bytes for place in group.places)
        assert group.held_bytes == unwritten + sum(place.unsettled_bytes() for place in group.every_place)


@pytest.mark.parametrize("seed", range(60))
def test_counts_and_limits_hold(seed: int) -> None:
    life = Life(seed)
    for _ in range(_STEPS):
        life.step()
        life.check()
