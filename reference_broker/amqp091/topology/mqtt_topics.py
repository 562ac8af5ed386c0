"""MQTT topics as routing keys of ``amq.topic``, as RabbitMQ translates them: ``/`` is ``.``, and ``+`` is ``*``.

What stands in a topic as it stands between its levels (``.``), or as a wildcard of the other (``*``), comes back as
another topic: ``a.b`` and ``a/b`` are one routing key.
"""

from __future__ import annotations

from typing import Final

from assay.reference_broker.amqp091.topology.arguments import MAX_NAME_BYTES

_TO_KEY: Final = str.maketrans("/+", ".*")
_TO_TOPIC: Final = str.maketrans(".*", "/+")
_NOT_IN_TOPICS: Final = frozenset("+#\0")


def routing_key_of(topic: str) -> str | None:
    """Of a message that was published to a topic. None = it is not for AMQP.

    That are topics that begin with ``$``, which are no client's, and those that no routing key is long enough for.
    """
    if topic[:1] == "$" or len(topic.encode()) > MAX_NAME_BYTES:
        return None
    return topic.translate(_TO_KEY)


def mqtt_topic_of(routing_key: str) -> str | None:
    """Of a message that was published to ``amq.topic``. None = it is not for MQTT.

    That are keys that make no topic (MQTT-3.3.2-2, MQTT-4.7.3-1), and those that begin with ``$``: nobody reaches
    queues or ``$SYS`` by a detour.
    """
    topic = routing_key.translate(_TO_TOPIC)
    if not topic or topic[0] == "$" or not _NOT_IN_TOPICS.isdisjoint(topic):
        return None
    return topic
