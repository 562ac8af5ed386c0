"""FluxMQ's bridge: publishes to topics of MQTT, and so to queues by ``$queue/...``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import Query

from assay.reference_broker.api.publishing import check_carried
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import SLASH, Area, Asked, Call, body
from assay.reference_broker.http.routes.messages import PUBLISH_ERRORS
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, StoredAs
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import TopicError, validate_topic

AREA = Area("bridge", "FluxMQ's bridge: publishes to topics.", prefix="")
_Q = QueueErrorCode
_ERRORS = (*PUBLISH_ERRORS, _Q.NOT_PENDING, _Q.STALE_RECEIPT, _Q.AMBIGUOUS, _Q.UNKNOWN_GROUP, _Q.UNKNOWN_MEMBER)
Qos = Literal[0, 1, 2]


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a topic."""

    topic: str
    payload: bytes = b""
    """In base64."""
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


async def _publish(call: Call, wanted: Publication) -> Published:
    caller, service = call.caller, call.service
    try:
        validate_topic(wanted.topic)
        check_carried(wanted.topic, (), wanted.properties.items())
    except TopicError as error:
        raise QueueError(_Q.BAD_ADDRESS, str(error)) from error
    driver, now = service.turn()
    state = driver.node.state
    most = state.config.limits.max_payload_bytes
    if most and len(wanted.payload) > most:
        raise QueueError(_Q.TOO_LARGE, f"a payload has at most {most} bytes")
    caller.check_topic(wanted.topic, Scope.WRITE)
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

        await service.confirmed(lambda confirm: state.publish_to_queue(message, caller, now, confirm, stored))
        return Published(status="ok", matched=True, id=told[0] if told else None)
    if wanted.topic.startswith("$"):
        raise QueueError(_Q.NOT_ALLOWED, "topics that start with '$' are the broker's own")
    matched: list[bool] = []

    def start(confirm: Confirm) -> None:
        matched.append(state.publish(message, caller, now) or state.is_taken(wanted.topic))
        driver.node.when_written(confirm)

    await service.confirmed(start)
    return Published(status="ok", matched=matched[0])


@AREA.post("/publish", Published, Scope.WRITE, body=Publication, errors=_ERRORS)
async def publish_topic(call: Asked, wanted: Annotated[Publication, body(Publication)]) -> Published:
    """Publish to a topic; answered once it is as safe as the broker promises: in a queue, or written for sessions."""
    return await _publish(call, wanted)


@AREA.post("/m/{topic:path}", Published, Scope.WRITE, body=bytes, errors=_ERRORS)
async def publish_raw(
    call: Asked,
    topic: str,
    qos: Annotated[int, Query(ge=0, le=2)] = 0,
    retain: bool = False,
) -> Published:
    """Publish the body, as it is, to ``m/<topic>``."""
    payload = await call.request.body()
    wanted = msgspec.convert({"topic": f"m/{topic.replace(SLASH, '/')}", "qos": qos, "retain": retain}, Publication)
    return await _publish(call, msgspec.structs.replace(wanted, payload=payload))
