"""Ordinary topics of MQTT and ``amq.topic``, both ways."""

from __future__ import annotations

import pytest

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.amqp091.wire.frames import FrameType, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import NOW, AmqpClient, make_node, table, turn


class Packets:
    """An MQTT 5 client in memory."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.end = node.accept("m", NOW)
        self.say(p.Connect(client_id="m", version=p.V5, clean_start=True))

    def say(self, packet: p.Packet) -> bytes:
        self.node.receive(self.end, encode_packet(packet, p.V5), NOW)
        return self.hear()

    def hear(self) -> bytes:
        turn(self.node)
        return self.end.take_output()


def both() -> tuple[AmqpClient, Packets]:
    node = make_node()
    c = AmqpClient(node)
    c.open()
    return c, Packets(node)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_of_mqtt_goes_to_queues_that_are_bound_to_its_topic(qos: int) -> None:
    c, mqtt = both()
    # Sent before anybody is bound: what is remembered of the topic must not outlive that.
    mqtt.say(p.Publish(topic="news/eu/rain", payload=b"early", qos=0))
    c.declare("q")
    c.say(1, "queue.bind", "q", "amq.topic", "news.*.rain", False, ())
    properties = p.Properties(user_property=(("colour", "red"),), content_type="text/plain")
    packet_id = 7 if qos else None
    mqtt.say(p.Publish(topic="news/eu/rain", payload=b"x", qos=qos, packet_id=packet_id, properties=properties))
    mqtt.say(p.Publish(topic="news/eu/sun", payload=b"y", qos=0))
    got = c.get("q")
    assert (got.body, got.values[2:4]) == (b"x", ("amq.topic", "news.eu.rain"))
    assert got.properties is not None
    assert (got.properties.content_type, got.properties.headers) == ("text/plain", table(colour="red"))
    assert got.properties.delivery_mode == (2 if qos else 1)
    assert c.get("q").name == "basic.get-empty"
    c.say(1, "queue.unbind", "q", "amq.topic", "news.*.rain", ())
    mqtt.say(p.Publish(topic="news/eu/rain", payload=b"late", qos=0))
    assert c.get("q").name == "basic.get-empty"


@pytest.mark.parametrize(("delivery_mode", "qos"), [(None, 0), (1, 0), (2, 1)])
def test_subscribers_get_at_qos_1_what_is_persistent(delivery_mode: int | None, qos: int) -> None:
    c, mqtt = both()
    mqtt.say(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="news/#", qos=1),)))
    c.publish("news.eu", b"hello", BasicProperties(delivery_mode=delivery_mode), exchange="amq.topic")
    assert mqtt.hear()[0] == 0x30 | qos << 1


def test_a_message_to_amq_topic_goes_to_subscribers_once() -> None:
    c, mqtt = both()
    mqtt.say(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="news/#", qos=1),)))
    c.declare("q")
    c.say(1, "queue.bind", "q", "amq.topic", "#", False, ())
    c.publish("news.eu", b"hello", BasicProperties(headers=table(colour="red")), exchange="amq.topic")
    heard = mqtt.hear()
    assert heard.count(b"news/eu") == 1
    assert b"hello" in heard
    assert b"red" in heard
    assert c.get("q").body == b"hello"
    assert c.get("q").name == "basic.get-empty"
    said = c.publish("elsewhere", b"x", exchange="amq.fanout", mandatory=True)
    assert [each.name for each in said] == ["basic.return"]
    c.say(1, "queue.delete", "q", False, False, False)
    assert c.publish("news.eu", b"again", exchange="amq.topic", mandatory=True) == [], "somebody has it"
    assert b"again" in mqtt.hear()
    assert [each.name for each in c.publish("old", b"x", exchange="amq.topic", mandatory=True)] == ["basic.return"]


def test_a_transaction_reaches_subscribers_at_its_commit() -> None:
    c, mqtt = both()
    mqtt.say(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="news", qos=0),)))
    c.say(1, "tx.select")
    c.publish("news", b"x", exchange="amq.topic")
    assert mqtt.hear() == b""
    c.say(1, "tx.rollback")
    c.publish("news", b"y", exchange="amq.topic")
    c.say(1, "tx.commit")
    assert mqtt.hear().count(b"news") == 1


def test_topics_that_are_the_brokers_own_are_out_of_reach() -> None:
    c, mqtt = both()
    c.declare("q")
    c.say(1, "queue.bind", "q", "amq.topic", "#", False, ())
    c.publish("$queue.r", b"x", exchange="amq.topic")
    c.publish("$SYS.broker.version", b"x", exchange="amq.topic")
    assert [c.get("q").body for _ in range(2)] == [b"x", b"x"]
    assert not c.node.engine.exists("r")
    mqtt.say(p.Publish(topic="$queue/r", payload=b"x", qos=0))
    assert c.get("q").name == "basic.get-empty"


@pytest.mark.parametrize("long", [b"n", b"v", b"c", b"r", b"many"])
def test_what_amqp_cannot_hold_of_a_message_of_mqtt_is_left_out(long: bytes) -> None:
    """A name of 300 bytes once ended the turn of everybody."""
    c, mqtt = both()
    c.declare("q")
    c.consume("q")
    text = "x" * 300
    properties = {
        b"n": p.Properties(user_property=((text, "v"), ("colour", "red"))),
        b"v": p.Properties(user_property=(("colour", text),)),
        b"c": p.Properties(content_type=text, user_property=(("colour", "red"),)),
        b"r": p.Properties(response_topic=text, user_property=(("colour", "red"),)),
        b"many": p.Properties(user_property=tuple((f"{number}", "y" * 60_000) for number in range(10))),
    }[long]
    mqtt.say(p.Publish(topic="$queue/q", payload=b"x", qos=1, packet_id=7, properties=properties))
    got = c.only(c.hear())
    assert got.body == b"x"
    assert got.properties is not None
    headers = {name: value.value for name, value in got.properties.headers or ()}
    assert headers == ({} if long == b"many" else {"colour": text if long == b"v" else "red"})
    assert got.properties.content_type is got.properties.reply_to is None


@pytest.mark.parametrize("way", ["topic", "queue"])
def test_texts_that_mqtt_must_not_carry_end_no_subscriber(way: str) -> None:
    """MQTT-1.5.4-2, MQTT-3.3.2-14"""
    c, mqtt = both()
    c.declare("q")
    topic_filter = "news" if way == "topic" else "$queue/q"
    mqtt.say(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter=topic_filter, qos=1),)))
    bad = BasicProperties(
        content_type="a\0b", reply_to="news/#", headers=(*table(colour="red"), *table(bad="a\0b")), message_id="m"
    )
    exchange, key = ("amq.topic", "news") if way == "topic" else ("", "q")
    c.publish(key, b"hello", bad, exchange=exchange)
    heard = mqtt.hear()
    assert b"hello" in heard
    assert b"a\0b" not in heard
    assert b"news/#" not in heard
    assert not mqtt.end.is_over
    if way == "queue":
        got = c.get("q")
        assert got.properties == bad


def test_a_get_whose_queue_goes_is_answered() -> None:
    c, _ = both()
    other = AmqpClient(c.node)
    other.open()
    c.declare("q")
    c.get("q")
    ask = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.get"], "q", False))
    c.send_raw(ask)
    other.say(1, "queue.delete", "q", False, False, False)
    assert [said.name for said in c.hear()] == ["basic.get-empty"]
    c.declare("q")
    assert other.say(1, "queue.delete", "q", False, False, False)[0].name == "queue.delete-ok"
    assert c.hear() == [], "nobody asked"


def test_a_channel_may_begin_anew_behind_a_get() -> None:
    c, _ = both()
    c.declare("q")
    said = (
        ("basic.get", ("q", True)),
        ("channel.close", (0, "", 0, 0)),
        ("channel.open", ()),
        ("basic.get", ("q", True)),
    )
    c.send_raw(b"".join(frame(FrameType.METHOD, 1, encode_method(BY_NAME[name], *values)) for name, values in said))
    names = [each.name for each in c.hear()]
    assert names == ["basic.get-empty", "channel.close-ok", "channel.open-ok", "basic.get-empty"]
    assert c.end.content_bytes == 0
    assert not c.end.wants_pause


def test_a_connection_that_is_closing_is_told_once() -> None:
    c, _ = both()
    c.send_raw(b"\x04")
    assert [said.name for said in c.hear()] == ["connection.close"]
    c.send_raw(b"\x04")
    assert c.hear() == []
    assert c.end.may_close


def test_a_queue_that_was_deleted_over_another_protocol_is_gone_for_amqp_too() -> None:
    c, _ = both()
    c.declare("q")
    c.declare("r")
    for queue in ("q", "r"):
        c.say(1, "queue.bind", queue, "amq.fanout", "", False, ())
    c.consume("q")
    c.node.engine.delete_queue("q", NOW)
    assert [(said.name, said.values[0]) for said in c.hear()] == [("basic.cancel", "t")]
    c.node.engine.delete_queue("r", NOW)
    c.say(1, "confirm.select", False)
    said = c.publish("", b"x", exchange="amq.fanout", mandatory=True)
    assert [each.name for each in said] == ["basic.return", "basic.ack"]
    said = c.publish("r", b"x", mandatory=True)
    assert [each.name for each in said] == ["basic.return", "basic.ack"]
    assert not c.node.engine.exists("q")
    assert not c.node.engine.exists("r"), "a message must not make it anew"
    assert c.declare("r", arguments=table(x_max_length=5)).name == "queue.declare-ok"


def test_a_stream_is_one_for_both_protocols() -> None:
    c, mqtt = both()
    c.declare("s", arguments=table(x_queue_type="stream"))
    for number in range(3):
        mqtt.say(p.Publish(topic="$queue/s/eu", payload=b"m%d" % number, qos=1, packet_id=number + 1))
    c.say(1, "basic.qos", 0, 10, False)
    arguments = (("x-stream-offset", Typed(Kind.TEXT, "first")), ("x-consumer-group", Typed(Kind.TEXT, "g")))
    said = c.consume("s", arguments=arguments)
    assert [each.body for each in said[1:]] == [b"m0", b"m1", b"m2"]
    c.say(1, "basic.ack", 1, False)
    c.say(1, "basic.cancel", "t", False)
    c.say(1, "basic.recover", True)
    # The same group goes on over MQTT, and another begins at the first message.
    for group, missing in (("g", b"m0"), ("h", b"none")):
        properties = p.Properties(user_property=(("consumer-group", group),))
        request = p.SubscriptionRequest(topic_filter="$queue/s", qos=1)
        heard = mqtt.say(p.Subscribe(packet_id=9, requests=(request,), properties=properties))
        assert [each for each in (b"m0", b"m1", b"m2") if each in heard] == [
            each for each in (b"m0", b"m1", b"m2") if each != missing
        ]
    assert c.declare("s", passive=True).values[1] == 3
