"""Who may administer queues over MQTT, and the way in for their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference_broker.core.message import Message
from reference_broker.core.queue_admin import Confirm
from reference_broker.core.queues import QueueError, QueueErrorCode

if TYPE_CHECKING:
    from reference_broker.mqtt.connection import MqttConnection


def request(connection: MqttConnection, message: Message, now: float, on_done: Confirm) -> None:
    """Serve a request, or refuse it; ``on_done`` is called once."""
    grants = connection.grants
    admin = connection.broker.admin
    if not admin.allows(message.topic, grants, loopback=connection.loopback, read=False):
        on_done(QueueError(QueueErrorCode.NOT_ALLOWED, "this client may not administer queues"))
        return
    admin.request(message, _anywhere if grants is None else grants.may_publish, now, on_done)


def may_subscribe(connection: MqttConnection, topic_filter: str) -> bool:
    """Whether a client may see the figures that a filter of administration topics reaches."""
    return connection.broker.admin.allows(topic_filter, connection.grants, loopback=connection.loopback, read=True)


def _anywhere(_topic: str) -> bool:
    return True
