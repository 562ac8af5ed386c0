"""Administration of consumer groups: the requests and answers of ``$admin/queue/<queue>/groups`` and ``.../reset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.queues.groups.group_details import GroupDetails
from assay.reference_broker.queues.groups.subscribe_options import parse_cursor
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode

if TYPE_CHECKING:
    from assay.reference_broker.queues.admin.admin_request import AdminRequest
    from assay.reference_broker.queues.engine import QueueEngine


class GroupsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``{}`` tells of all groups, ``{"group": "g"}`` of one; with ``"delete": true`` that one is deleted."""

    group: str | None = None
    delete: bool = False


class GroupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupDetails]


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``{"group": "g", "to": "earliest"}``; ``to`` as the ``cursor`` of a subscription."""

    group: str
    to: str
    partition: int | None = None
    """None = all."""


class ResetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    cursors: dict[int, int]
    """Partition -> next offset to deliver."""


def groups(engine: QueueEngine, request: AdminRequest) -> None:
    """Tell of groups, or delete one."""
    asked = request.read(GroupsRequest)
    if asked.group is None:
        if asked.delete:
            raise QueueError(QueueErrorCode.BAD_OPTION, "name the group to delete")
        request.answer(GroupsAnswer(groups=engine.groups.all_details(request.queue)))
        return
    details = engine.groups.details(request.queue, asked.group)
    done = request.once_done(lambda: GroupsAnswer(groups=[details]))
    if asked.delete:
        engine.groups.delete(request.queue, asked.group, request.now, done)
    else:
        done(None)


def reset(engine: QueueEngine, request: AdminRequest) -> None:
    """Set a group back or forth."""
    asked = request.read(ResetRequest)
    try:
        position = parse_cursor(asked.to)
    except ValueError as error:
        raise QueueError(QueueErrorCode.BAD_OPTION, str(error)) from error
    if asked.partition is not None and asked.partition < 0:
        raise QueueError(QueueErrorCode.BAD_OPTION, "a partition is 0 or more")
    cursors: dict[int, int] = {}
    done = request.once_done(lambda: ResetAnswer(group=asked.group, cursors=cursors))
    cursors.update(
        engine.groups.reset(
            request.queue, asked.group, position, partition=asked.partition, now=request.now, on_done=done
        )
    )
