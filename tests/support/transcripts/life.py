"""One life: clients of both versions, topics, queues and their administration, time and restarts, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from assay.conformance.wire import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from assay.reference_broker.config import BrokerConfig, Durability, MqttConfig, QueuesConfig, SessionsConfig
from assay.reference_broker.storage.memory_disk import MemoryDisk
from transcripts.world import Client, World

LIVES = 100
_STEPS = 80
_NAMES = ("ada", "bob", "cid", "dot", "eve")
_TOPICS = ("a", "a/b", "a/b/c", "a//c", "b/b", "/a", "$x/a", "ä/b")
_FILTERS = (*_TOPICS, "#", "a/#", "+/b", "a/+/c", "$share/s/a/#", "$share/s/+/b", "$share/t/a/b", "/+")
_QUEUES = ("q", "r")
_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"partitions": 1, "max_depth": 6, "overflow": "drop_oldest"},
    {"partitions": 2, "message_ttl_s": 20, "expired_to_dead_letters": True},
    {"partitions": 3, "ordering": "none", "max_in_flight": 3},
    {"partitions": 2, "priority": {"starvation_s": 1}, "max_bytes": 4_000},
    {"partitions": 2, "topics": ["a/#"], "compression": "zstd", "receipts": True},
    {"partitions": 1, "dead_letters": False, "retry": {"max_retries": 1}, "max_depth": 5},
    {"partitions": 4, "group": {"protocol": "cooperative"}, "delivery_timeout_s": 3},
)
_WAITS_S = (0.05, 0.5, 2.0, 11.0, 40.0, 700.0, 90_000.0)
_TIDY_SOON = {
    "storage.pending_log": {"SNAPSHOT_OPERATIONS": 30},
    "storage.queue_store": {"STATE_SNAPSHOT_RECORDS": 10},
    "queues.partitions.departures": {"RESTATE_ABOVE_BYTES": 200},
    "queues.delays.done_log": {"RESTATE_ABOVE_BYTES": 200},
}
"""From how much on snapshots replace logs, and logs are stated anew: no life is long enough for the real numbers."""
_OPERATIONS: tuple[tuple[str, Any], ...] = (
    *(("stats", None), ("groups", {}), ("config", {}), ("delays", {}), ("dead-letters", {}), ("priority", None)),
    *(("purge", {}), ("replay", {}), ("groups", {"group": "g", "delete": True})),
    *(("reset", {"group": "g", "to": "earliest"}), ("reset", {"group": "h", "to": "latest"})),
    *(("config", {"max_depth": 9}), ("config", {"delivery_timeout_s": 5}), ("partitions", {"partitions": 5})),
    *(
        ("replay", {"message_id": "$dlq/q:2:0"}),
        ("replay", {"message_id": "$dlq/r:0:1"}),
        ("replay", {"message_id": "q"}),
    ),
    *(("delete", {}), ("nothing", {}), ("stats", {"no": 1})),
)


class Life:
    """``run`` returns its lines."""

    def __init__(self, seed: int, *, traced: bool = False, world: type[World] = World) -> None:
        """``traced``: as well, which takes the general ways past the fast ones; the lines must be the same."""
        self.is_damaged = seed % 3 == 2
        rng = self.rng = random.Random(seed)
        self.has_aliases = rng.random() < 0.5
        profile = {"retry": {"initial_backoff_s": 0.5, "max_retries": 3}, "delivery_timeout_s": 8}
        config = BrokerConfig(
            mqtt=MqttConfig(
                receive_maximum=rng.choice((6, 1_024)),
                max_queued_messages=rng.choice((5, 1_000)),
                max_retained_messages=rng.choice((4, 1_000)),
                topic_alias_maximum=3 if self.has_aliases else 0,
            ),
            queues=QueuesConfig(
                defaults={**profile, "partitions": 2, "durability": rng.choice(("fsync", "interval"))},
                segment_bytes=rng.choice((900, 4_000)),
                segment_age_s=100.0,
            ),
            sessions=SessionsConfig(
                durability=rng.choice((Durability.FSYNC, Durability.INTERVAL)), segment_bytes=rng.choice((900, 4_000))
            ),
        )
        self.world = world(config, seed, traced=traced)
        self.settings = [_SETTINGS[seed % len(_SETTINGS)], rng.choice(_SETTINGS)]
        self.versions = {name: rng.choice((4, 5, 5)) for name in _NAMES}
        self.numbers = 0
        self.held: dict[str, list[Publish]] = {}
        """What a client has not settled."""
        self.transaction = ""
        self.producer: tuple[tuple[str, str], ...] = ()
        self.delays: list[str] = []
        self._choices: tuple[tuple[int, Callable[[Client], None]], ...] = (
            (14, self._publish),
            (20, self._publish_to_queue),
            (8, self._subscribe),
            (12, self._consume),
            (26, self._settle),
            (3, self._unsubscribe),
            (7, self._administrate),
            (5, self._transact),
            (3, self._cancel),
            (5, self._leave),
            (2, lambda client: self.world.send(client, Pingreq())),
        )

    def run(self) -> list[str]:
        """Its lines."""
        with ExitStack() as stack:
            for module, numbers in _TIDY_SOON.items():
                for name, number in numbers.items():
                    stack.enter_context(mock.patch(f"assay.reference_broker.{module}.{name}", number))
            return self._live()

    def _live(self) -> list[str]:
        self.versions["ada"] = 5
        for queue, settings in zip(_QUEUES, self.settings, strict=True):
            self._ask(self._client("ada"), "$admin/queue/create", {"name": queue, **settings})
        for _ in range(_STEPS):
            self._step()
        self.world.restart(cleanly=self.rng.random() < 0.5)
        self._look_around()
        return self.world.lines

    def _step(self) -> None:
        chance = self.rng.random()
        if chance < 0.07:
            self.world.advance(self.rng.choice(_WAITS_S))
        elif chance < 0.09:
            damage = self._damage if self.is_damaged and self.rng.random() < 0.7 else None
            self.world.restart(cleanly=self.rng.random() < 0.5, damage=damage)
            self.held.clear()
        else:
            client = self._client(self.rng.choice(_NAMES))
            weights = [weight for weight, _ in self._choices]
            self.rng.choices([choice for _, choice in self._choices], weights)[0](client)
        for client in list(self.world.clients.values()):
            self._answer(client)

    def _answer(self, client: Client) -> None:
        """What a client must say to what came, most of it at once."""
        for _ in range(20):
            inbox, client.inbox = client.inbox, []
            answers: list[Packet] = []
            for packet in inbox:
                if isinstance(packet, Publish):
                    if packet.topic.startswith(("$queue/", "$dlq/")):
                        self.held.setdefault(client.name, []).append(packet)
                    if packet.qos and self.rng.random() < 0.9:
                        kind = Puback if packet.qos == 1 else Pubrec
                        answers.append(kind(packet_id=packet.packet_id))
                elif isinstance(packet, Pubrec) and packet.reason_code < 0x80:
                    answers.append(Pubrel(packet_id=packet.packet_id))
                elif isinstance(packet, Pubrel):
                    answers.append(Pubcomp(packet_id=packet.packet_id))
                elif isinstance(packet, Puback):
                    self._learn(dict(packet.properties.user_property))
            if not answers:
                return
            self.world.send(client, *answers)

    def _learn(self, told: dict[str, str]) -> None:
        """What a PUBACK says of a delayed message, a producer or a transaction."""
        self.delays += [told["delay-id"]] if "delay-id" in told else []
        self.transaction = told.get("transaction-id", self.transaction)
        if "producer-epoch" in told:
            self.producer = tuple((name, told[name]) for name in ("producer-id", "producer-epoch"))

    def _damage(self, disk: MemoryDisk, paths: list[str]) -> str:
        """One file, of those that hold something; the newest of a folder more often than others."""
        rng = self.rng
        full = [path for path in paths if disk.open(path).size]
        path = rng.choice(full)
        path = rng.choice((path, max(each for each in full if each.rpartition("/")[0] == path.rpartition("/")[0])))
        file = disk.open(path)
        size, kind = file.size, rng.choice(("cut", "cut", "zeros", "garbage", "flip", "flip", "empty", "gone"))
        at = rng.randrange(size)
        if kind == "cut":
            file.truncate(at)
        elif kind == "zeros":
            file.append(bytes(at % 100 + 1))
        elif kind == "garbage":
            file.append(rng.randbytes(at % 100 + 1))
        elif kind == "flip":
            file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1 << rng.randrange(8)]))
        elif kind == "empty":
            file.truncate(0)
        else:
            disk.remove(path)
        return f"{path} of {size} bytes, {kind} at {at}"

    # -- steps ---------------------------------------------------------------------------------------------------

    def _client(self, name: str) -> Client:
        known = self.world.clients.get(name)
        if known is not None and (known.is_open and self.rng.random() < 0.98):
            return known
        rng, version = self.rng, self.versions[name]
        client = self.world.open(name, version)
        self.held.pop(name, None)
        properties = Properties(
            session_expiry_interval=rng.choice((None, 5, 1_000, 0xFFFFFFFF)),
            receive_maximum=rng.choice((None, 2, 100)),
            topic_alias_maximum=rng.choice((None, 2)),
            maximum_packet_size=rng.choice((None, None, 300)),
        )
        will = Will(
            topic=rng.choice(_TOPICS),
            payload=f"will of {name}".encode(),
            qos=rng.choice((0, 1, 2)),
            retain=rng.random() < 0.3,
            properties=Properties(will_delay_interval=rng.choice((None, 1, 30))) if version == 5 else Properties(),
        )
        connect = Connect(
            client_id=name,
            version=version,
            clean=rng.random() < 0.3,
            keep_alive_s=rng.choice((0, 0, 0, 30)),
            will=will if rng.random() < 0.3 else None,
            properties=properties if version == 5 else Properties(),
        )
        self.world.send(client, connect)
        if client.is_open and any(isinstance(packet, Connack) for packet in client.inbox):
            answers = Subscription(filter=f"answers/{name}", qos=1)
            self.world.send(client, Subscribe(packet_id=self._id(), subscriptions=(answers,)))
        return client

    def _id(self) -> int:
        self.numbers += 1
        return self.numbers

    def _payload(self) -> bytes:
        return f"{self._id()} ".encode() + b"x" * self.rng.choice((0, 0, 3, 60, 500))

    def _publish(self, client: Client) -> None:
        rng, packets = self.rng, []
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            qos = rng.choice((0, 1, 1, 2))
            properties = Properties(
                message_expiry_interval=rng.choice((None, None, 1, 100)),
                content_type=rng.choice((None, "text/plain")),
                response_topic=rng.choice((None, None, "answers/here")),
                topic_alias=rng.choice((None, None, None, 1)) if self.has_aliases or rng.random() < 0.02 else None,
                user_property=rng.choice(((), (("k", "v"), ("k", "w")))),
            )
            packets.append(
                Publish(
                    topic=rng.choice(_TOPICS),
                    payload=b"" if rng.random() < 0.1 else self._payload(),
                    qos=qos,
                    retain=rng.random() < 0.25,
                    packet_id=self._id() if qos else 0,
                    properties=properties if client.version == 5 else Properties(),
                )
            )
        self.world.send(client, *packets)

    def _publish_to_queue(self, client: Client) -> None:
        rng, packets = self.rng, []
        topic = f"$queue/{rng.choice(_QUEUES)}{rng.choice(('', '', '/key'))}"
        for _ in range(rng.choice((1, 1, 2, 8))):
            named: list[tuple[str, str]] = []
            for name, values in (
                ("partition-key", ("one", "two", "three")),
                ("priority", ("critical", "high", "low", "none such")),
                ("ttl", ("3s", "1h")),
                ("delay", ("2s", "1m", "1h")),
                ("receipt", ("1",)),
                ("x", ("1",)),
            ):
                if rng.random() < 0.15:
                    named.append((name, rng.choice(values)))
            if self.transaction and rng.random() < 0.4:
                named += [*self.producer, ("transaction-id", self.transaction)]
            elif self.producer and rng.random() < 0.1:
                named += [*self.producer, ("sequence", str(rng.randrange(4))), ("partition", "0")]
            qos = rng.choice((0, 1, 1, 1, 2))
            packets.append(
                Publish(
                    topic=topic,
                    payload=self._payload(),
                    qos=qos,
                    packet_id=self._id() if qos else 0,
                    properties=Properties(user_property=tuple(named)) if client.version == 5 else Properties(),
                )
            )
        self.world.send(client, *packets)

    def _subscribe(self, client: Client) -> None:
        rng = self.rng
        some = tuple(
            Subscription(
                filter=rng.choice(_FILTERS),
                qos=rng.choice((0, 1, 2)),
                no_local=client.version == 5 and rng.random() < 0.2,
                retain_as_published=client.version == 5 and rng.random() < 0.3,
                retain_handling=rng.choice((0, 0, 1, 2)) if client.version == 5 else 0,
            )
            for _ in range(rng.choice((1, 1, 2)))
        )
        identifier = (rng.randrange(1, 4),) if client.version == 5 and rng.random() < 0.4 else ()
        properties = Properties(subscription_identifier=identifier)
        self.world.send(client, Subscribe(packet_id=self._id(), subscriptions=some, properties=properties))

    def _consume(self, client: Client) -> None:
        rng = self.rng
        root = rng.choice(("$queue", "$queue", "$queue", "$dlq"))
        named = [("consumer-group", rng.choice(("g", "g", "h")))]
        for name, values in (
            ("prefetch", ("1", "3")),
            ("cursor", ("earliest", "latest")),
            ("ack-mode", ("auto",)),
            ("notify", ("1",)),
        ):
            if rng.random() < 0.15:
                named.append((name, rng.choice(values)))
        wanted = Subscription(
            filter=f"{root}/{rng.choice(_QUEUES)}{rng.choice(('', '', '/#'))}", qos=rng.choice((1, 1, 2))
        )
        properties = Properties(user_property=tuple(named)) if client.version == 5 else Properties()
        self.world.send(client, Subscribe(packet_id=self._id(), subscriptions=(wanted,), properties=properties))

    def _settle(self, client: Client) -> None:
        rng, held = self.rng, self.held.get(client.name, [])
        if not held or client.version != 5:
            return
        verb = rng.choice(("ack", "ack", "ack", "ack", "nack", "reject", "extend", "commit", "claim"))
        some = [held.pop(rng.randrange(len(held))) for _ in range(min(len(held), rng.choice((1, 1, 3))))]
        packets = []
        for delivery in some:
            told = dict(delivery.properties.user_property)
            names: tuple[str, ...] = ("message-id", "group-id", "partition")
            named = [(name, told[name]) for name in names if name in told]
            if rng.random() < 0.06:
                wild = f"{rng.choice(_QUEUES)}:{rng.choice((0, 2, 9))}:{rng.choice((0, 3, 10**18, 10**19))}"
                named = [("message-id", wild), *named[1:]]
            named += [("delay", "3s")] if verb == "nack" and rng.random() < 0.3 else []
            named += [("reason", "bad")] if verb == "reject" else []
            queue = "/".join(delivery.topic.split("/")[:2])
            packets.append(
                Publish(
                    topic=f"{queue}/${verb}",
                    qos=1,
                    packet_id=self._id(),
                    properties=Properties(user_property=tuple(named)),
                )
            )
        self.world.send(client, *packets)

    def _unsubscribe(self, client: Client) -> None:
        wanted = self.rng.choice((*_FILTERS, "$queue/q", "$queue/r", "$dlq/q"))
        self.world.send(client, Unsubscribe(packet_id=self._id(), filters=(wanted,)))

    def _ask(self, client: Client, topic: str, body: Any, named: tuple[tuple[str, str], ...] = ()) -> None:
        if client.version != 5:
            return
        properties = Properties(
            response_topic=f"answers/{client.name}", correlation_data=b"%d" % self._id(), user_property=named
        )
        payload = b"" if body is None else json.dumps(body).encode()
        self.world.send(
            client, Publish(topic=topic, payload=payload, qos=1, packet_id=self._id(), properties=properties)
        )

    def _administrate(self, client: Client) -> None:
        rng, queue = self.rng, self.rng.choice(_QUEUES)
        if rng.random() < 0.15:
            self._ask(client, "$admin/queue/create", {"name": queue, **rng.choice(_SETTINGS)})
            return
        operation, body = rng.choice(_OPERATIONS)
        self._ask(client, f"$admin/queue/{rng.choice(('', '', 'dlq/'))}{queue}/{operation}", body)

    def _transact(self, client: Client) -> None:
        kind = self.rng.random()
        if not self.producer or kind < 0.15:
            self._ask(client, "$txn/init", None, (("transactional-id", "t"),))
        elif not self.transaction or kind < 0.3:
            self._ask(client, "$txn/begin", None, (*self.producer, ("timeout", "30s")))
        else:
            verb = "commit" if kind < 0.8 else "abort"
            self._ask(client, f"$txn/{verb}", None, (*self.producer, ("transaction-id", self.transaction)))
            self.transaction = ""

    def _cancel(self, client: Client) -> None:
        if self.delays and client.version == 5:
            named = (("delay-id", self.delays.pop(self.rng.randrange(len(self.delays)))),)
            packet = Publish(
                topic="$queue/q/$cancel", qos=1, packet_id=self._id(), properties=Properties(user_property=named)
            )
            self.world.send(client, packet)

    def _leave(self, client: Client) -> None:
        if self.rng.random() < 0.6:
            self.world.send(client, Disconnect(reason_code=self.rng.choice((0, 0, 4)) if client.version == 5 else 0))
        self.world.lose(client)

    def _look_around(self) -> None:
        """What is left: of each queue, in ``$SYS``, and what is retained."""
        client = self.world.open("zoe", 5)
        self.world.send(client, Connect(client_id="zoe", version=5))
        filters = ("answers/zoe", "$SYS/#", "#")
        some = tuple(Subscription(filter=each, qos=0) for each in filters)
        self.world.send(client, Subscribe(packet_id=1, subscriptions=some))
        for queue in _QUEUES:
            for operation in ("stats", "groups", "delays", "dead-letters"):
                self._ask(client, f"$admin/queue/{queue}/{operation}", None)
        self.world.advance(11.0)
