"""A data directory with something of everything, and what a broker that opens it is to find: for tests of old formats.

``python -m tests.storage.formats.fill FOLDER`` fills a folder and prints what is in it as JSON. ``2026-11-28.tar.gz``
and its JSON were made so by the last version before the engine took typed options.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

from assay.reference_broker.config import BrokerConfig, SessionsConfig, parse_config
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import Disk, RealDisk

START = 1_790_000_000.0
LATER = START + 60


def configuration() -> BrokerConfig:
    queues = {
        "defaults": {"partitions": 2, "durability": "interval", "retry": {"initial_backoff_s": 3_600.0}},
        "configured": [
            {"name": "q", "partitions": 3, "priority": {"enabled": True}},
            {"name": "bound", "partitions": 1, "topics": ["plain/#"]},
        ],
    }
    config = parse_config({"data_dir": "/unused", "queues": queues})
    return msgspec.structs.replace(config, sessions=SessionsConfig(), listeners=config.listeners)


def open_node(disk: Disk, now: float) -> BrokerNode:
    return BrokerNode(configuration(), disk, random.Random(7), now)


class Client:
    """An MQTT 5 client in memory."""

    def __init__(self, node: BrokerNode, name: str, now: float, **connect: Any) -> None:
        self.node, self.now = node, now
        self.end: MqttConnection = node.accept(name, now)  # type: ignore[assignment]
        self.packet_id = 0
        self.say(p.Connect(client_id=name, version=p.V5, **connect))

    def say(self, packet: p.Packet) -> bytes:
        self.node.receive(self.end, encode_packet(packet, p.V5), self.now)
        return self.turn()

    def turn(self) -> bytes:
        for _ in range(3):
            self.node.tick(self.now)
            self.node.take_dirty(self.now)
            for job in self.node.take_jobs(self.now):
                job.run()
                self.node.job_done(job, None, self.now)
        return self.end.take_output()

    def publish(self, topic: str, payload: str, qos: int = 1, *, retain: bool = False, **properties: str) -> bytes:
        self.packet_id += 1
        pairs = tuple((name.replace("_", "-"), value) for name, value in properties.items())
        return self.say(
            p.Publish(
                topic=topic,
                payload=payload.encode(),
                qos=qos,
                retain=retain,
                packet_id=self.packet_id if qos else 0,
                properties=p.Properties(user_property=pairs),
            )
        )

    def subscribe(self, *filters: p.SubscriptionRequest, **properties: Any) -> bytes:
        self.packet_id += 1
        return self.say(p.Subscribe(packet_id=self.packet_id, requests=filters, properties=p.Properties(**properties)))


def fill(node: BrokerNode, now: float) -> None:
    """Queues with priorities, delays, pending entries, letters and transactions; sessions with all that they keep."""
    lasting = p.Properties(session_expiry_interval=10_000)
    writer = Client(node, "writer", now, clean_start=True)
    for number in range(12):
        lane = {"priority": ("high", "normal", "low")[number % 3]} if number % 2 else {}
        writer.publish(
            f"$queue/q/k{number % 4}", f"m{number}", partition_key=f"key{number % 5}", mine=str(number), **lane
        )
    for number in range(6):
        writer.publish("$queue/other", f"o{number}", ttl="100h" if number % 2 else "200h")
    writer.publish("$queue/q", "delayed high", delay="1h", priority="high", partition="2")
    writer.publish("$queue/q", "delayed plain", delay="2h", partition_key="key1")
    writer.publish("$queue/q", "delayed soon", delay="10s", priority="low")
    writer.publish("$queue/q", "cancelled", delay="3h")
    writer.publish("$queue/q/$cancel", "", delay_id="q:delay:3")
    for number in range(3):
        writer.publish(f"plain/{number}", f"captured {number}", qos=number % 2)
    reader = Client(node, "reader-1", now, clean_start=True, properties=p.Properties(receive_maximum=200))
    reader.subscribe(p.SubscriptionRequest(topic_filter="$queue/q", qos=1))
    entries = [
        f"q:{place.index}:{offset}"
        for group in node.engine._queues["q"].groups.values()
        for place in group.places
        for offset in sorted({offset for lane in place.lanes or (place,) for offset in lane.pending})
    ]
    for number, name in enumerate(entries[:9]):
        verb = ("ack", "nack", "reject")[number % 3]
        reader.publish(f"$queue/q/${verb}", "", message_id=name, group_id="reader")
    other = Client(node, "late-1", now, clean_start=True)
    other.subscribe(
        p.SubscriptionRequest(topic_filter="$queue/other", qos=1), user_property=(("cursor", "3"), ("prefetch", "2"))
    )
    # A transaction that is committed, and one that is open when the broker dies.
    transact(writer, "done", ends=True)
    transact(writer, "open", ends=False)
    # Sessions.
    will = p.WillFields(
        topic="wills/x", payload=b"gone", qos=1, retain=False, properties=p.Properties(will_delay_interval=5_000)
    )
    keeper = Client(node, "keeper", now, clean_start=True, properties=lasting, will=will)
    keeper.subscribe(
        p.SubscriptionRequest(topic_filter="news/+", qos=1, no_local=True),
        p.SubscriptionRequest(topic_filter="deep/#", qos=2, retain_as_published=True),
        p.SubscriptionRequest(topic_filter="$share/s/work/#", qos=1),
        subscription_identifier=(7,),
    )
    keeper.subscribe(
        p.SubscriptionRequest(topic_filter="$queue/bound", qos=1),
        user_property=(("prefetch", "5"), ("ack-mode", "auto")),
    )
    for topic, qos in (("news/a", 1), ("deep/b", 2), ("work/c", 1)):
        writer.publish(topic, f"sent on {topic}", qos, x="y")
        if qos == 2:
            writer.say(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=writer.packet_id))
    keeper.turn()
    keeper.publish("nobody/listens", "received at QoS 2", 2)
    node.connection_lost(keeper.end, now)
    for topic, qos in (("news/d", 1), ("deep/e/f", 2), ("work/g", 1)):
        writer.publish(topic, f"queued on {topic}", qos, retain=topic == "deep/e/f")
        if qos == 2:
            writer.say(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=writer.packet_id))
    writer.publish("kept/1", "retained", 1, retain=True, a="b")
    writer.publish("kept/2", "dropped", 1, retain=True)
    writer.publish("kept/2", "", 1, retain=True)
    writer.now += 30
    writer.turn()


def transact(writer: Client, name: str, *, ends: bool) -> None:
    """A message in a transaction of a producer of its own."""
    transactions, now = writer.node.engine.transactions, writer.now
    identities: list[Any] = []
    begun: list[str] = []
    transactions.init_producer(f"tx-{name}", now, lambda _, found: identities.append(found))
    writer.turn()
    (identity,) = identities
    transactions.begin(*identity, now, lambda _, found: begun.append(found))
    writer.turn()
    ids = {"producer_id": str(identity[0]), "producer_epoch": str(identity[1]), "transaction_id": begun[0]}
    writer.publish("$queue/other", f"{name} in transaction", **ids)
    if ends:
        transactions.commit(*identity, begun[0], now, lambda _: None)
    writer.turn()


def found_in(node: BrokerNode) -> dict[str, Any]:
    """All that lasts, as JSON has it."""
    engine, found = node.engine, {}
    for name in engine.queues():
        queue = engine._queues[name]
        found[name] = {
            "messages": [
                [name, stored.routing_key, stored.lane, _message(stored.message)]
                for name, stored in engine.browse(name, 1_000)
            ],
            "groups": {
                group: {
                    "cursors": [[place.number, place.cursor] for place in one.every_place],
                    "pending": [
                        [place.number, offset, entry.delivery_count, entry.state.value, entry.last_consumer]
                        for place in one.every_place
                        for offset, entry in place.pending.items()
                    ],
                }
                for group, one in sorted(queue.groups.items())
            },
            "delayed": msgspec.to_builtins(engine.delayed(name)),
            "topics": list(queue.config.topics),
        }
    sessions = {}
    for name, session in sorted(node.state.sessions.items()):
        sessions[name] = {
            "expiry_s": session.expiry_s,
            "subscriptions": {each: msgspec.to_builtins(one) for each, one in sorted(session.subscriptions.items())},
            "groups": session.consumer_groups,
            "options": session.consumer_options,
            "in_flight": [
                [packet_id, one.is_released, None if one.is_released else one.message_for(packet_id).payload.decode()]
                for packet_id, one in session.in_flight.items()
            ],
            "queued": [[one.message.topic, one.message.payload.decode(), one.qos, one.share] for one in session.queued],
            "inbound": sorted(session.inbound_qos2),
            "will": None if session.will is None else [session.will.message.topic, session.will.delay_s],
        }
    retained = {
        topic: [message.payload.decode(), message.qos, message.user_properties]
        for topic in ("kept/1", "kept/2", "deep/e/f")
        if (message := node.state.retained.get(topic)) is not None
    }
    transactions = [[one.transactional_id, one.state] for one in engine.transactions.list()]
    whole = {"queues": found, "sessions": sessions, "retained": retained, "transactions": transactions}
    return json.loads(json.dumps(whole, default=_as_json))


def _message(message: Message) -> dict[str, Any]:
    fields = (
        "topic",
        "payload",
        "expires_at",
        "publisher",
        "payload_format",
        "content_type",
        "response_topic",
        "correlation_data",
        "user_properties",
    )
    return {name: getattr(message, name) for name in fields}


def _as_json(value: object) -> Any:
    return value.decode() if isinstance(value, bytes) else str(value)


def main() -> None:
    folder = Path(sys.argv[1])
    node = open_node(RealDisk(folder), START)
    fill(node, START)
    # It is killed: nothing is closed.
    node._store._disk.unlock()
    again = open_node(RealDisk(folder), LATER)
    print(json.dumps(found_in(again), indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
