"""Groups of several queues as one: the groups of a name, and members that joined for some of their queues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from assay.reference_broker.api.consumers import Member
from assay.reference_broker.api.topics import Asking
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.group_details import GroupDetails

MAX_TOPICS: Final = 100
"""Of one member."""


def in_queues(asking: Asking, group: str) -> dict[str, GroupDetails]:
    """The group in each queue that the caller may read and that has it, by engine name. Raises UNKNOWN_GROUP."""
    engine = asking.service.engine
    found = {
        queue: engine.groups.details(queue, group)
        for queue in engine.queues()
        if engine.members(queue, group) is not None and asking.caller.reads(queue)
    }
    if not found:
        raise QueueError(QueueErrorCode.UNKNOWN_GROUP, f"no topic has a group {group[:80]!r}")
    return found


async def commit(
    asking: Asking, group: str, places: Sequence[tuple[str, int, int]], member: Member | None
) -> list[QueueError | None]:
    """Settle what was delivered of partitions below offsets; tells what became of each.

    ``places``: queue, as the engine knows it, partition, next offset. ``member`` None stands for an administrator.
    """
    driver, now = asking.service.turn()
    consumer_id = None if member is None else member.client_id
    begin = partial(driver.node.engine.groups.commit, consumer_id=consumer_id, now=now)
    errors = await asking.service.each_confirmed(
        [
            lambda confirm, place=place: begin(place[0], group, place[1], place[2], on_done=confirm)  # type: ignore[misc]
            for place in places
        ]
    )
    return [None if error is None else asking.caller.refusal(error) for error in errors]
