"""Requests about producers and transactions, as the broker serves them: the answer, and where it goes.

A client publishes to ``$txn/...`` (see :mod:`assay.reference_broker.queues.admin.transaction_topics`). The answer's
texts come with the acknowledgement, where the protocol has user properties; all of it goes as JSON to the response
topic, if there is one, with the correlation data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.core.broker import owner_of
from assay.reference_broker.core.queue_rights import RULES
from assay.reference_broker.mqtt.queue_topics.publish_properties import PRODUCER_ID
from assay.reference_broker.mqtt.queue_topics.transaction_topics import QUEUE, TRANSACTIONAL_ID, perform
from assay.reference_broker.mqtt.sessions.queue_admin import check_response_topic
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import topic_of
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.core.tenant import Tenant
    from assay.reference_broker.core.tenants import Tenants
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
    from assay.reference_broker.mqtt.sessions.session import Session

OnAnswer = Callable[[QueueError | None, tuple[tuple[str, str], ...]], None]


def request(
    state: MqttBroker,
    message: Message,
    may_publish: Callable[[str], bool],
    session: Session,
    now: float,
    on_answer: OnAnswer,
) -> None:
    """Serve a request; ``on_answer`` is called once, now or later, with the error or with names and values.

    ``may_publish`` tells whether the client itself may publish to a topic: its response topic, or a queue that it names
    (see :mod:`assay.reference_broker.core.queue_rights`). The names of a tenant are its own: it reaches no producer
    and no transaction of others. Nor does a user those of another user.
    """
    tenant = session.tenant
    response_topic = message.response_topic
    try:
        check_response_topic(message, may_publish)
    except QueueError as refused:
        on_answer(refused, ())
        return

    def answer(error: QueueError | None, found: Mapping[str, object]) -> None:
        if response_topic is not None:
            told = found if error is None else {"error": error.code.value, "text": error.text}
            state.admin.send_answer(message, response_topic, msgspec.json.encode(told))
        texts = tuple((name, value) for name, value in found.items() if isinstance(value, str))
        on_answer(error, texts if error is None else ())

    try:
        properties = message.user_properties
        rule = RULES.get(message.topic)
        if tenant is not None:
            properties = _of_tenant(state, tenant, message)
        elif state.tenants is not None and not session.may_administer:
            _check_reach(state.tenants, properties)
        if rule is not None and rule.named_queue is not None:
            properties = tuple(
                (name, queue_of(state, session, value, may_publish) if name == QUEUE else value)
                for name, value in properties
            )
        owner = None if tenant is None and session.may_administer else owner_of(session)
        whose = owner_of(session)
        holder = whose if session.username else f"{whose}\0{session.client_id}"
        perform(state.engine, message.topic, properties, whose, now, answer, reader=owner, holder=holder)
    except QueueError as refused:
        answer(refused, {})


def _of_tenant(state: MqttBroker, tenant: Tenant, message: Message) -> tuple[tuple[str, str], ...]:
    """The request's properties with the engine's names. Raises :class:`QueueError`."""
    rule = RULES.get(message.topic)
    if rule is not None and not rule.tenants:
        raise QueueError(QueueErrorCode.NOT_ALLOWED, "a tenant's clients may not look at transactions")
    found: list[tuple[str, str]] = []
    for name, value in message.user_properties:
        if name == PRODUCER_ID:
            owner = state.engine.transactions.name_of(value)
            if owner is None or not tenant.owns(owner):
                raise QueueError(QueueErrorCode.UNKNOWN_PRODUCER, f"there is no producer {value[:40]}")
        found.append((name, tenant.name_in(value) if name == TRANSACTIONAL_ID and value else value))
    return tuple(found)


def queue_of(state: MqttBroker, session: Session, name: str, may_publish: Callable[[str], bool]) -> str:
    """The engine's name of a queue that a request names and the client may publish to. Raises :class:`QueueError`."""
    topic = topic_of(name, "")
    # As for a publish, so that a request leads to no queue that a publish would not lead to.
    read = state.topics.read(topic, session.tenant)
    address = read.address
    if read.verb is not None or address.routing_key:
        raise QueueError(QueueErrorCode.BAD_ADDRESS, f"{name[:80]!r} is not the name of a queue")
    if not may_publish(topic):
        raise QueueError(QueueErrorCode.NOT_ALLOWED, f"the access rules do not allow to publish to {name[:80]!r}")
    if state.tenants is not None:
        state.tenants.check_reach(session, address)
    return address.queue


def _check_reach(tenants: Tenants, properties: tuple[tuple[str, str], ...]) -> None:
    """Raises :class:`QueueError` (NOT_ALLOWED)."""
    if any(name == TRANSACTIONAL_ID and tenants.of_queue(value) is not None for name, value in properties):
        raise QueueError(QueueErrorCode.NOT_ALLOWED, "the transactional id belongs to a tenant")
