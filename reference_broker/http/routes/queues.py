"""Queues: created, changed, looked at, deleted; their dead letters and delayed messages."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query

from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Name
from assay.reference_broker.queues import QueueErrorCode, QueueStats
from assay.reference_broker.queues.admin.admin import (
    DeleteAnswer,
    PartitionsRequest,
    PurgeAnswer,
    QueueNames,
    QueueSettings,
    settings_of,
)
from assay.reference_broker.queues.messages.address import engine_name

AREA = Area("queues", "Queues: created, changed, looked at, deleted.")
_Q = QueueErrorCode
Settings = dict[str, Any]


class CreateQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue to be, with settings as in the configuration file."""

    name: str
    settings: dict[str, Any] = {}
    """Keys of ``queues.configured``: what is left out is as for a queue that is created by use."""


@AREA.get("/queues", Scope.READ)
async def list_queues(call: Asked, prefix: Annotated[str, Query(max_length=512)] = "") -> QueueNames:
    """Names of the queues that the caller may read, dead-letter queues included."""
    caller, engine = call.caller, call.service.engine
    names = [
        [told for name in each if caller.reads(name) and (told := caller.told(name)).startswith(prefix)]
        for each in (engine.queues(), engine.unusable_queues())
    ]
    return QueueNames(queues=names[0], unusable=names[1])


@AREA.post("/queues", Scope.ADMIN, status=201, errors=(_Q.EXISTS, _Q.LIMIT))
async def create_queue(call: Asked, wanted: Body[CreateQueue]) -> QueueSettings:
    """Create a queue."""
    call.caller.administer("create")
    name = engine_name(wanted.name)
    await call.service.created(name, dict(wanted.settings))
    return settings_of(call.service.engine, name)


@AREA.get("/queues/{queue}", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE,))
async def get_queue(call: Asked, queue: Name) -> QueueSettings:
    """How a queue is configured."""
    name = call.caller.administered(queue, "config")
    return settings_of(call.service.engine, name)


@AREA.patch("/queues/{queue}", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE,))
async def update_queue(call: Asked, queue: Name, changes: Body[Settings]) -> QueueSettings:
    """Change settings of a queue in use; null takes back what was set (RFC 7386)."""
    name = call.caller.administered(queue, "config")
    if changes:
        await call.service.updated(name, changes)
    return settings_of(call.service.engine, name)


@AREA.delete("/queues/{queue}", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE, _Q.IN_USE, _Q.STORAGE_FAILED))
async def delete_queue(call: Asked, queue: Name) -> DeleteAnswer:
    """Delete a queue with all it holds."""
    name = call.caller.administered(queue, "delete")
    await call.service.finished(lambda engine, now, confirm: engine.delete_queue(name, now, confirm))
    return DeleteAnswer(deleted=name)


@AREA.get("/queues/{queue}/stats", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def queue_stats(call: Asked, queue: Name) -> QueueStats:
    """Figures of a queue and its groups."""
    stats = call.service.engine.stats(call.caller.queue(queue, Scope.READ))
    return msgspec.structs.replace(stats, queue=call.caller.told(stats.queue))


@AREA.post("/queues/{queue}/purge", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def purge_queue(call: Asked, queue: Name) -> PurgeAnswer:
    """Take away what is ready; what consumers hold stays theirs to settle."""
    name = call.caller.administered(queue, "purge")
    return PurgeAnswer(purged=await call.service.purged(name))


@AREA.put("/queues/{queue}/partitions", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE,))
async def set_partitions(call: Asked, queue: Name, wanted: Body[PartitionsRequest]) -> PartitionsRequest:
    """Let a queue in use have more partitions."""
    name = call.caller.administered(queue, "partitions")
    await call.service.finished(lambda engine, now, confirm: engine.add_partitions(name, wanted.count, now, confirm))
    return wanted
