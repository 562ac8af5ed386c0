"""FluxMQ's bridge: publishes to topics of MQTT, and so to queues by ``$queue/...``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query

from assay.reference_broker.api.bridge import Publication, Published, publish_to_topic
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import SLASH, Area, Asked, Body
from assay.reference_broker.http.routes.messages import PUBLISH_ERRORS
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.trace.described import described

AREA = Area("bridge", "FluxMQ's bridge: publishes to topics.", prefix="")
_Q = QueueErrorCode
_ERRORS = (*PUBLISH_ERRORS, _Q.NOT_PENDING, _Q.STALE_RECEIPT, _Q.AMBIGUOUS, _Q.UNKNOWN_GROUP, _Q.UNKNOWN_MEMBER)


@AREA.post("/publish", Scope.WRITE, errors=_ERRORS)
async def publish_topic(call: Asked, wanted: Body[Publication]) -> Published:
    """Publish to a topic; answered once it is as safe as the broker promises: in a queue, or written for sessions."""
    return await publish_to_topic(call.service, call.caller, wanted)


@AREA.post("/m/{topic:path}", Scope.WRITE, body=bytes, errors=_ERRORS)
async def publish_raw(
    call: Asked,
    topic: str,
    qos: Annotated[int, Query(ge=0, le=2)] = 0,
    retain: bool = False,
) -> Published:
    """Publish the body, as it is, to ``m/<topic>``."""
    payload = await call.request.body()
    wanted = msgspec.convert(
        {"topic": f"m/{topic.replace(SLASH, '/')}", "qos": qos, "retain": retain}, described(Publication)
    )
    return await publish_to_topic(call.service, call.caller, msgspec.structs.replace(wanted, payload=payload))
