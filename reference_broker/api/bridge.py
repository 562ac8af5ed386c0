"""Publishing to topics of MQTT, and so to queues by ``$queue/...``, for who is no client of MQTT: FluxMQ's bridge."""

from __future__ import annotations

from typing import Literal

import msgspec

from assay.reference_broker.api.asking import Asked, may_publish
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.publishing import check_carried
from assay.reference_broker.api.turns import Turns
from assay.reference_broker.config import Scope
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, StoredAs
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import TopicError, validate_topic

_Q = QueueErrorCode
Qos = Literal[0, 1, 2]


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a topic."""

    topic: str
    payload: bytes = b""
    """Where it is JSON, in base64."""
    qos: Qos = 0
    retain: bool = False
    properties: dict[str, str] = {}
    """User properties."""


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    matched: bool
    """Somebody gets it now, be it a queue that is bound to the topic."""
    id: str | None = None
    """Of a message of a queue, or what cancels a delayed one."""


async def _decided(turns: Turns, caller: Caller, wanted: Publication) -> Publication:
    """As hooks have it. Raises :class:`QueueError` (NOT_ALLOWED)."""
    told = tuple(wanted.properties.items())
    asked = Asked(wanted.topic, wanted.payload, told, wanted.qos, retain=wanted.retain)
    change = await may_publish(turns, caller, asked)
    found = msgspec.structs.replace(
        wanted,
        topic=wanted.topic if change.topic is None else change.topic,
        payload=wanted.payload if change.payload is None else change.payload,
        retain=wanted.retain if change.retain is None else change.retain,
        properties=wanted.properties if change.properties is None else dict(change.properties),
    )
    caller.check_topic(found.topic, Scope.WRITE)
    return found


async def publish_to_topic(turns: Turns, caller: Caller, wanted: Publication) -> Published:
    """Returns once it is as safe as the broker promises: in a queue, or written for sessions. Raises QueueError."""
    try:
        validate_topic(wanted.topic)
        check_carried(wanted.topic, (), wanted.properties.items())
    except TopicError as error:
        raise QueueError(_Q.BAD_ADDRESS, str(error)) from error
    driver, now = turns.turn()
    state = driver.node.state
    most = state.config.limits.max_payload_bytes
    if most and len(wanted.payload) > most:
        raise QueueError(_Q.TOO_LARGE, f"a payload has at most {most} bytes")
    caller.check_topic(wanted.topic, Scope.WRITE)
    if state.hooks is not None:
        wanted = await _decided(turns, caller, wanted)
        driver, now = turns.turn()
        state = driver.node.state
    message = Message(
        topic=wanted.topic,
        payload=wanted.payload,
        qos=wanted.qos,
        retain=wanted.retain,
        publisher=caller.client_id,
        user_properties=caller.traced(tuple(wanted.properties.items())),
    )
    if is_queue_topic(wanted.topic):
        if state.topics.read(wanted.topic, caller.tenant).verb is not None:
            # By the id of a client that anybody may call itself.
            raise QueueError(_Q.NOT_ALLOWED, "deliveries are settled by receipt, at /api/v1/queues/{queue}/settle")
        told: list[str] = []

        def stored(_kind: StoredAs, name: str) -> None:
            told.append(name)

        await turns.confirmed(lambda confirm: state.publish_to_queue(message, caller, now, confirm, stored))
        return Published(status="ok", matched=True, id=told[0] if told else None)
    if wanted.topic.startswith("$"):
        raise QueueError(_Q.NOT_ALLOWED, "topics that start with '$' are the broker's own")
    matched: list[bool] = []

    def start(confirm: Confirm) -> None:
        matched.append(state.publish(message, caller, now) or state.is_taken(wanted.topic))
        driver.node.when_written(confirm)

    await turns.confirmed(start)
    return Published(status="ok", matched=matched[0])
