"""Who may administer queues over MQTT, and the way in for requests: of administration, and about transactions."""

from __future__ import annotations

from typing import Protocol

from assay.reference_broker.core.access import Grants
from assay.reference_broker.mqtt.queue_topics.admin_topics import ADMIN_PREFIX
from assay.reference_broker.mqtt.sessions import transaction_requests
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.routing.message import Message


class Asking(Protocol):
    """Who asks: a connection."""

    broker: MqttBroker
    session: Session | None
    grants: Grants | None
    loopback: bool
    """It comes from this machine."""


def request(connection: Asking, message: Message, now: float, on_done: Confirm) -> None:
    """Serve a request, or refuse it; ``on_done`` is called once."""
    grants = connection.grants
    admin = connection.broker.admin
    if is_tenants(connection) or not admin.allows(message.topic, grants, loopback=connection.loopback, read=False):
        on_done(QueueError(QueueErrorCode.NOT_ALLOWED, "this client may not administer queues"))
        return
    admin.request(message, _anywhere if grants is None else grants.may_publish, now, on_done)


def request_transaction(
    connection: Asking, message: Message, now: float, told: list[tuple[str, str]], on_done: Confirm
) -> None:
    """Likewise, about producers and transactions; the texts of the answer are added to ``told`` before."""
    grants, session = connection.grants, connection.session
    assert session is not None

    def answered(error: QueueError | None, found: tuple[tuple[str, str], ...]) -> None:
        told.extend(found)
        on_done(error)

    may_publish = _anywhere if grants is None else grants.may_publish
    transaction_requests.request(connection.broker, message, may_publish, session, now, answered)


def may_subscribe(connection: Asking, topic_filter: str) -> bool:
    """Whether a client may see the figures that a filter of administration topics reaches."""
    if is_tenants(connection):
        return False
    return connection.broker.admin.allows(topic_filter, connection.grants, loopback=connection.loopback, read=True)


def is_operator(connection: Asking) -> bool:
    """Whether a client may administer all queues: then those of tenants are open to it, too."""
    topic = f"{ADMIN_PREFIX}list"
    return connection.broker.admin.allows(topic, connection.grants, loopback=connection.loopback, read=False)


def is_tenants(connection: Asking) -> bool:
    """The administration knows no tenants, so that theirs do not use it."""
    session = connection.session
    return session is not None and session.tenant is not None


def _anywhere(_topic: str) -> bool:
    return True
