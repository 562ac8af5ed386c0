"""The administration of queues: operations on one queue, or on all, each with a JSON request and a JSON answer.

Protocols hand a request to :func:`perform` once they know that the client may administer. Each operation is a handler
in :data:`OPERATIONS`. A handler raises :class:`QueueError` when it refuses; otherwise it answers exactly once, when
what it did is as durable as the queue promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.admin import group_admin
from assay.reference_broker.queues.admin.admin_request import AdminRequest, Answer, Fields
from assay.reference_broker.queues.delays.delay_store import MAX_LISTED
from assay.reference_broker.queues.delays.delayed_message import DelayedMessage
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import engine_name

if TYPE_CHECKING:
    from assay.reference_broker.queues.engine import QueueEngine

Handler = Callable[["QueueEngine", AdminRequest], None]


class ListRequest(Fields, frozen=True, kw_only=True):
    """``$admin/queue/list``."""

    prefix: str = ""
    """Only names that start with it."""


class QueueNames(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    queues: list[str]
    """Sorted, dead-letter queues included."""
    unusable: list[str] = []
    """Found and not opened, since something of them is damaged; any operation on one says what."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue is configured."""

    config: QueueConfig
    settings: dict[str, Any]
    """What of it was set at run time."""


def settings_of(engine: QueueEngine, queue: str) -> QueueSettings:
    """Raises :class:`QueueError`."""
    config, settings = engine.queue_config(queue)
    return QueueSettings(config=config, settings=settings)


def _create(engine: QueueEngine, request: AdminRequest) -> None:
    """``{"name": "orders", "topics": ["shop/#"]}``: the name, and settings as in the configuration file."""
    settings = request.read(dict[str, Any])
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise QueueError(QueueErrorCode.BAD_OPTION, "the request must have the name of the queue")
    queue = engine_name(name)
    engine.create_queue(queue, settings, request.now)
    made = settings_of(engine, queue)
    engine.when_made(queue, request.once_done(lambda: made))


def _config(engine: QueueEngine, request: AdminRequest) -> None:
    """Tells the configuration; what the request holds is changed first, null = back to what the file says."""
    changes = request.read(dict[str, Any])
    done = request.once_done(lambda: settings_of(engine, request.queue))
    if changes:
        engine.update_queue(request.queue, changes, request.now, done)
    else:
        done(None)


class PartitionsRequest(Fields, frozen=True, kw_only=True):
    """``$admin/queue/<queue>/partitions``."""

    count: int
    """How many there are to be in all."""


class PurgeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    purged: int


class DeleteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    deleted: str


def _delete(engine: QueueEngine, request: AdminRequest) -> None:
    request.read(Fields)
    done = request.once_done(lambda: DeleteAnswer(deleted=request.queue))
    engine.delete_queue(request.queue, request.now, done)


def _purge(engine: QueueEngine, request: AdminRequest) -> None:
    request.read(Fields)

    def done(result: int | QueueError) -> None:
        request.answer(result if isinstance(result, QueueError) else PurgeAnswer(purged=result))

    engine.purge_queue(request.queue, request.now, done)


def _partitions(engine: QueueEngine, request: AdminRequest) -> None:
    wanted = request.read(PartitionsRequest)
    engine.add_partitions(request.queue, wanted.count, request.now, request.once_done(lambda: wanted))


def _list(engine: QueueEngine, request: AdminRequest) -> None:
    prefix = request.read(ListRequest).prefix
    names = [[name for name in each if name.startswith(prefix)] for each in (engine.queues(), engine.unusable_queues())]
    request.answer(QueueNames(queues=names[0], unusable=names[1]))


def _stats(engine: QueueEngine, request: AdminRequest) -> None:
    request.read(Fields)
    request.answer(engine.stats(request.queue))


class DelaysRequest(Fields, frozen=True, kw_only=True):
    """``$admin/queue/<queue>/delays``: list what waits for its time, or cancel one."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)] = 100
    after: str | None = None
    """Only what was published behind this delay id."""
    cancel: str | None = None
    """Cancel the message of this delay id instead."""


class DelayedMessages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[DelayedMessage]
    """In the order in which they were published."""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    cancelled: bool


def _delays(engine: QueueEngine, request: AdminRequest) -> None:
    wanted = request.read(DelaysRequest)
    if wanted.cancel is None:
        listed = engine.delayed(request.queue, limit=wanted.limit, after=wanted.after)
        request.answer(DelayedMessages(messages=listed))
        return
    done = request.once_done(lambda: Cancelled(cancelled=True))
    if not engine.cancel_delayed(request.queue, wanted.cancel, request.now, done):
        request.answer(Cancelled(cancelled=False))


class ReplayRequest(Fields, frozen=True, kw_only=True):
    """``$admin/queue/<queue>/replay``, of the queue or of its dead letters."""

    message_id: str | None = None
    """Only this dead letter; None = all that there are now."""


def _replay(engine: QueueEngine, request: AdminRequest) -> None:
    """Answered once every letter is decided."""
    message_id = request.read(ReplayRequest).message_id
    engine.dead_letters.replay(request.queue, message_id, request.now, request.answer)


def _dead_letters(engine: QueueEngine, request: AdminRequest) -> None:
    request.read(Fields)
    request.answer(engine.dead_letters.stats(request.queue))


def _priority(engine: QueueEngine, request: AdminRequest) -> None:
    """Figures per priority and partition."""
    request.read(Fields)
    request.answer(engine.priority_figures(request.queue, request.now))


OPERATIONS: Final[dict[str, Handler]] = {
    "config": _config,
    "groups": group_admin.groups,
    "reset": group_admin.reset,
    "delete": _delete,
    "partitions": _partitions,
    "purge": _purge,
    "priority": _priority,
    "stats": _stats,
    "replay": _replay,
    "dead-letters": _dead_letters,
    "delays": _delays,
}
"""Operation -> what serves it, for one queue."""
GENERAL_OPERATIONS: Final[dict[str, Handler]] = {
    "create": _create,
    "list": _list,
}
"""Operations that are not about a queue there is."""


def perform(engine: QueueEngine, queue: str, operation: str, payload: bytes, now: float, answer: Answer) -> None:
    """Serve a request about a queue, or about none. Raises :class:`QueueError` and then never answers."""
    handler = (OPERATIONS if queue else GENERAL_OPERATIONS).get(operation)
    if handler is None:
        known = ", ".join(sorted(OPERATIONS if queue else GENERAL_OPERATIONS))
        text = f"there is no operation {operation[:40]!r} here; there are {known}"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
    if queue:
        queue = engine_name(queue)
    handler(engine, AdminRequest(queue=queue, payload=payload, now=now, answer=answer))


def encode_answer(result: object) -> bytes:
    """The JSON of an answer; an error is ``{"error": <code>, "detail": <text>}``."""
    if isinstance(result, QueueError):
        return msgspec.json.encode({"error": result.code.value, "detail": result.text})
    return msgspec.json.encode(result)
