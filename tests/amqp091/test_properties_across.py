"""What becomes of each property of a message on its way to the other protocol, as docs/interop-protocols.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from assay.reference_broker.amqp091.names import engine_name
from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.mqtt.queue_topics.delivery_properties import BROKER_PROPERTIES
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet
from assay.reference_broker.mqtt.wire.packets import PacketType
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import NOW, AmqpClient, make_node, table, turn

DOC = Path(__file__).parents[2] / "docs" / "interop-protocols.md"
WAYS = ("queue", "topic")
LONG = "x" * 256
HUGE = "x" * 65_536


class ToAmqp(NamedTuple):
    """A PUBLISH of MQTT 5.0, and what a consumer over AMQP is given beside what its way adds."""

    sent: p.Properties
    got: dict[str, Any] = {}


class ToMqtt(NamedTuple):
    """A ``basic.publish``, and what a client of MQTT 5.0 is given. Over AMQP it comes back as it was."""

    sent: BasicProperties
    got: p.Properties = p.Properties()


def header(value: Typed) -> BasicProperties:
    return BasicProperties(headers=(("h", value),))


def told(text: str) -> p.Properties:
    return p.Properties(user_property=(("h", text),))


def typed(kind: Kind, value: Any) -> Typed:
    return Typed(kind, value)


NESTED = typed(Kind.MAP, (typed(Kind.TEXT, "a"), typed(Kind.I32, 1)))

TO_AMQP = {
    "content type": ToAmqp(p.Properties(content_type="text/plain"), {"content_type": "text/plain"}),
    "response topic": ToAmqp(p.Properties(response_topic="replies/1"), {"reply_to": "replies/1"}),
    "correlation data, a text": ToAmqp(p.Properties(correlation_data="é1".encode()), {"correlation_id": "é1"}),
    "correlation data, no text": ToAmqp(p.Properties(correlation_data=b"\xff\0"), {"correlation_id": "/wA="}),
    "user properties": ToAmqp(p.Properties(user_property=(("a", "1"), ("b", ""))), {"headers": table(a="1", b="")}),
    "a user property that is there again": ToAmqp(
        p.Properties(user_property=(("a", "1"), ("b", "2"), ("a", "3"))), {"headers": table(a="1", b="2")}
    ),
    "message expiry interval": ToAmqp(p.Properties(message_expiry_interval=60), {"expiration": "60000"}),
    "payload format indicator": ToAmqp(
        p.Properties(payload_format_indicator=1), {"headers": table(payload_format="1")}
    ),
    "topic alias": ToAmqp(p.Properties(topic_alias=1)),
    "content type of more than 255 bytes": ToAmqp(p.Properties(content_type=LONG)),
    "response topic of more than 255 bytes": ToAmqp(p.Properties(response_topic=LONG)),
    "correlation data of more than 255 bytes": ToAmqp(p.Properties(correlation_data=LONG.encode())),
    "a user property whose name has more than 255 bytes": ToAmqp(
        p.Properties(user_property=((LONG, "1"), ("a", "2"))), {"headers": table(a="2")}
    ),
    "a user property whose value has more than 255 bytes": ToAmqp(
        p.Properties(user_property=(("a", LONG),)), {"headers": table(a=LONG)}
    ),
}
"""First column of the document's table -> what is sent and what comes out."""

TO_MQTT = {
    "content-type": ToMqtt(BasicProperties(content_type="text/plain"), p.Properties(content_type="text/plain")),
    "content-encoding": ToMqtt(BasicProperties(content_encoding="gzip")),
    "delivery-mode": ToMqtt(BasicProperties(delivery_mode=2)),
    "priority": ToMqtt(BasicProperties(priority=7)),
    "correlation-id": ToMqtt(BasicProperties(correlation_id="é1"), p.Properties(correlation_data="é1".encode())),
    "reply-to": ToMqtt(BasicProperties(reply_to="replies/1"), p.Properties(response_topic="replies/1")),
    "expiration": ToMqtt(BasicProperties(expiration="60000"), p.Properties(message_expiry_interval=60)),
    "message-id": ToMqtt(BasicProperties(message_id="m-1")),
    "timestamp": ToMqtt(BasicProperties(timestamp=1_700_000_000)),
    "type": ToMqtt(BasicProperties(kind="order")),
    "user-id": ToMqtt(BasicProperties(user_id="guest")),
    "app-id": ToMqtt(BasicProperties(app_id="shop")),
    "cluster-id": ToMqtt(BasicProperties(cluster_id="c")),
    "header, a long string (`S`)": ToMqtt(header(typed(Kind.TEXT, "v")), told("v")),
    "header, a boolean (`t`)": ToMqtt(header(typed(Kind.BOOL, True)), told("true")),
    "header, an integer of 8 bits (`b`, `B`)": ToMqtt(header(typed(Kind.I8, -8)), told("-8")),
    "header, an integer of 16 bits (`s`, `u`)": ToMqtt(header(typed(Kind.I16, -16)), told("-16")),
    "header, an integer of 32 bits (`I`, `i`)": ToMqtt(header(typed(Kind.I32, -32)), told("-32")),
    "header, an integer of 64 bits (`l`)": ToMqtt(header(typed(Kind.I64, 1 << 40)), told(str(1 << 40))),
    "header, a float (`f`)": ToMqtt(header(typed(Kind.F32, 0.5)), told("0.5")),
    "header, a double (`d`)": ToMqtt(header(typed(Kind.F64, -1.25)), told("-1.25")),
    "header, a decimal (`D`)": ToMqtt(
        header(typed(Kind.DECIMAL, (typed(Kind.U8, 2), typed(Kind.I32, -5)))), told("-0.05")
    ),
    "header, a timestamp (`T`)": ToMqtt(header(typed(Kind.SECONDS, 1_700_000_000)), told("1700000000")),
    "header, bytes (`x`)": ToMqtt(header(typed(Kind.BYTES, b"\xff\0"))),
    "header, a table (`F`)": ToMqtt(header(NESTED)),
    "header, an array (`A`)": ToMqtt(header(typed(Kind.LIST, (typed(Kind.I32, 1), NESTED)))),
    "header, nothing (`V`)": ToMqtt(header(typed(Kind.NULL, None))),
    "content-type with a NUL": ToMqtt(BasicProperties(content_type="a\0b")),
    "reply-to with a NUL": ToMqtt(BasicProperties(reply_to="a\0b")),
    "reply-to with a wildcard": ToMqtt(BasicProperties(reply_to="news/#")),
    "reply-to, empty": ToMqtt(BasicProperties(reply_to="")),
    "header with a NUL": ToMqtt(header(typed(Kind.TEXT, "a\0b"))),
    "header whose name has a NUL": ToMqtt(BasicProperties(headers=(("a\0b", typed(Kind.TEXT, "v")),))),
    "header of more than 65 535 bytes": ToMqtt(header(typed(Kind.TEXT, HUGE))),
}
ROUTES = (
    "topic",
    "exchange and routing key",
    "QoS",
    "retain",
    "subscription identifiers",
    "the queue's own properties",
)
"""Rows of the document's third table, each of which has a test below."""


class Mqtt:
    """An MQTT 5 client in memory."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.end = node.accept("m", NOW)
        self.heard: list[p.Publish] = []
        """Not asked for yet."""
        self.say(p.Connect(client_id="m", version=p.V5, clean_start=True))

    def say(self, packet: p.Packet) -> list[p.Packet]:
        self.node.receive(self.end, encode_packet(packet, p.V5), NOW)
        return self.hear()

    def hear(self) -> list[p.Packet]:
        turn(self.node)
        assert not self.end.is_over
        data, at, packets = self.end.take_output(), 0, []
        while at < len(data):
            length, shift, start = 0, 0, at + 1
            while True:
                octet = data[start]
                length |= (octet & 127) << shift
                shift, start = shift + 7, start + 1
                if octet < 128:
                    break
            packets.append(decode_packet(data[at], data, start, start + length, p.V5))
            at = start + length
        self.heard += [packet for packet in packets if isinstance(packet, p.Publish)]
        return [packet for packet in packets if not isinstance(packet, p.Publish)]

    def deliveries(self) -> list[p.Publish]:
        self.hear()
        heard, self.heard = self.heard, []
        return heard

    def delivery(self) -> p.Publish:
        (packet,) = self.deliveries()
        return packet

    def publish(
        self, topic: str, properties: p.Properties = p.NO_PROPERTIES, qos: int = 1, retain: bool = False
    ) -> None:
        packet_id = 7 if qos else 0
        said = self.say(
            p.Publish(topic=topic, payload=b"x", qos=qos, retain=retain, packet_id=packet_id, properties=properties)
        )
        if qos == 2:
            said = self.say(p.Acknowledgement(type=PacketType.PUBREL, packet_id=packet_id))
        assert len(said) == bool(qos)

    def subscribe(self, topic_filter: str, identifier: int = 0) -> None:
        properties = p.Properties(subscription_identifier=(identifier,) if identifier else ())
        request = p.SubscriptionRequest(topic_filter=topic_filter, qos=1)
        self.say(p.Subscribe(packet_id=1, requests=(request,), properties=properties))


def both() -> tuple[AmqpClient, Mqtt]:
    """A queue ``q``, which is bound to ``news/eu`` as well."""
    node = make_node()
    c = AmqpClient(node)
    c.open()
    c.declare("q")
    c.say(1, "queue.bind", "q", "amq.topic", "news.eu", False, ())
    return c, Mqtt(node)


def rows_of(heading: str) -> list[str]:
    """The first column of the table below a heading."""
    section = DOC.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [row.strip() for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE)][2:]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", list(TO_AMQP))
def test_from_mqtt_to_amqp(row: str, way: str) -> None:
    c, mqtt = both()
    sent, got = TO_AMQP[row]
    mqtt.publish("$queue/q/eu" if way == "queue" else "news/eu", sent)
    found = c.get("q")
    own: dict[str, Any] = {"message_id": "q:0:0"} if way == "queue" else {"delivery_mode": 2}
    assert found.properties == BasicProperties(**own, **got)
    assert found.body == b"x"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", list(TO_MQTT))
def test_from_amqp_to_mqtt_and_back(row: str, way: str) -> None:
    c, mqtt = both()
    sent, got = TO_MQTT[row]
    mqtt.subscribe("$queue/q" if way == "queue" else "news/eu")
    exchange, key = ("", "q") if way == "queue" else ("amq.topic", "news.eu")
    assert c.publish(key, b"x", sent, exchange=exchange) == []
    packet = mqtt.delivery()
    theirs = tuple([pair for pair in packet.properties.user_property if pair[0] not in BROKER_PROPERTIES])
    assert msgspec.structs.replace(packet.properties, user_property=theirs) == got
    assert packet.payload == b"x"
    found = c.get("q")
    assert found.properties == sent
    assert found.values[2:4] == (exchange, key)


def test_the_document_has_these_rows() -> None:
    assert rows_of("From MQTT to AMQP") == list(TO_AMQP)
    assert rows_of("From AMQP to MQTT") == list(TO_MQTT)
    assert rows_of("Where a message goes, and what says so") == list(ROUTES)


def test_topics_exchanges_and_routing_keys() -> None:
    c, mqtt = both()
    mqtt.publish("$queue/q/eu")
    assert c.get("q", no_ack=True).values[2:4] == ("$queue", "q/eu")
    mqtt.publish("news/eu")
    assert c.get("q", no_ack=True).values[2:4] == ("amq.topic", "news.eu")
    mqtt.subscribe("#")
    c.publish("news.eu", b"x", exchange="amq.topic")
    assert mqtt.delivery().topic == "news/eu"
    c, mqtt = both()
    mqtt.subscribe("$queue/q")
    c.publish("q", b"x")
    assert mqtt.delivery().topic == "$queue/q"


@pytest.mark.parametrize("name", ["a.b c", "a/b", "a+b", "ü#", "%2F"])
def test_names_of_queues_that_no_topic_can_hold(name: str) -> None:
    """They are escaped in topics, and name the same queue."""
    c, mqtt = both()
    c.declare(name)
    c.publish(name, b"x", BasicProperties(message_id="m"))
    topic = f"$queue/{engine_name(name)}"
    mqtt.subscribe(topic)
    assert mqtt.delivery().topic == topic
    mqtt.publish(topic)
    assert sum(c.get(name, no_ack=True).name == "basic.get-ok" for _ in range(2)) == 2


@pytest.mark.parametrize("key", ["", "a.#", "$SYS.x", "a\0b", "x" * 255])
def test_keys_that_are_no_topics_reach_no_subscriber(key: str) -> None:
    c, mqtt = both()
    mqtt.subscribe("#")
    c.say(1, "queue.bind", "q", "amq.topic", "#", False, ())
    c.publish(key, b"x", exchange="amq.topic")
    assert len(mqtt.deliveries()) == (key == "x" * 255)
    assert c.get("q").values[3] == key, "AMQP has it whatever its key"


def test_a_topic_longer_than_a_routing_key_is_for_mqtt_alone() -> None:
    c, mqtt = both()
    c.say(1, "queue.bind", "q", "amq.topic", "#", False, ())
    mqtt.subscribe("#")
    mqtt.publish("ä" * 128)
    assert mqtt.delivery().topic == "ä" * 128
    assert c.get("q").name == "basic.get-empty"


@pytest.mark.parametrize(("qos", "mode"), [(0, 1), (1, 2), (2, 2)])
def test_quality_of_service_and_delivery_mode(qos: int, mode: int) -> None:
    c, mqtt = both()
    mqtt.publish("news/eu", qos=qos)
    properties = c.get("q", no_ack=True).properties
    assert properties is not None
    assert properties.delivery_mode == mode
    mqtt.publish("$queue/q", qos=qos)
    properties = c.get("q", no_ack=True).properties
    assert properties is not None
    assert properties.delivery_mode is None, "the queue says how durable it is"
    mqtt.subscribe("news/eu")
    c.publish("news.eu", b"x", BasicProperties(delivery_mode=mode), exchange="amq.topic")
    assert mqtt.delivery().qos == min(qos, 1)


def test_retained_messages_stay_with_mqtt() -> None:
    c, mqtt = both()
    mqtt.publish("news/eu", retain=True)
    assert c.get("q", no_ack=True).body == b"x"
    c.declare("later")
    c.say(1, "queue.bind", "later", "amq.topic", "news.eu", False, ())
    assert c.get("later").name == "basic.get-empty", "a binding is no subscription"
    c.publish("other", b"x", exchange="amq.topic")
    mqtt.subscribe("other")
    assert mqtt.deliveries() == []


def test_subscription_identifiers_are_the_subscribers() -> None:
    c, mqtt = both()
    mqtt.subscribe("news/eu", identifier=5)
    c.publish("news.eu", b"x", exchange="amq.topic")
    assert mqtt.delivery().properties.subscription_identifier == (5,)
    c, mqtt = both()
    mqtt.subscribe("$queue/q", identifier=6)
    c.publish("q", b"x")
    assert mqtt.delivery().properties.subscription_identifier == (6,)


def test_the_queues_own_properties_name_a_message_to_both() -> None:
    c, mqtt = both()
    mqtt.subscribe("$queue/q")
    mqtt.publish("$queue/q/eu")
    c.publish("q", b"x", BasicProperties(headers=table(queue="mine", colour="red")))
    first, second = [dict(each.properties.user_property) for each in mqtt.deliveries()]
    named, own = [c.get("q", no_ack=True).properties for _ in range(2)]
    assert named is not None
    assert own is not None
    assert named.message_id == first["message-id"]
    assert own == BasicProperties(headers=table(queue="mine", colour="red"))
    assert (second["queue"], second["colour"]) == ("q", "red")
