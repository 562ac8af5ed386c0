"""Topics of MQTT and routing keys of ``amq.topic``, as RabbitMQ translates them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.amqp091.topology import mqtt_topic_of, routing_key_of


@pytest.mark.parametrize(
    ("topic", "key"),
    [
        ("a", "a"),
        ("sensors/kitchen/temperature", "sensors.kitchen.temperature"),
        ("/a//b/", ".a..b."),
        ("ünï/cöde", "ünï.cöde"),
        ("a b", "a b"),
        ("x" * 255, "x" * 255),
    ],
)
def test_a_topic_and_its_key_say_the_same(topic: str, key: str) -> None:
    assert routing_key_of(topic) == key
    assert mqtt_topic_of(key) == topic


def test_what_the_other_side_separates_by_comes_back_as_a_separator() -> None:
    assert routing_key_of("a.b/c") == "a.b.c"
    assert mqtt_topic_of("a/b.c") == "a/b/c"


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$queue/orders", "$share/g/a", "x" * 256, "ü" * 128])
def test_some_topics_are_not_for_amqp(topic: str) -> None:
    assert routing_key_of(topic) is None


@pytest.mark.parametrize("key", ["", "a.*", "*", "a.#", "#", "a+b", "a\0b", "$queue.orders", "$SYS.x", "$queue/orders"])
def test_some_keys_are_not_for_mqtt(key: str) -> None:
    """MQTT-3.3.2-2, MQTT-4.7.3-1, MQTT-4.7.3-2; and no way around the rights of queues."""
    assert mqtt_topic_of(key) is None


@given(st.text("ab/ü $", min_size=1, max_size=40))
def test_a_topic_comes_back(topic: str) -> None:
    key = routing_key_of(topic)
    assert (None if key is None else mqtt_topic_of(key)) == (None if topic.startswith("$") else topic)
