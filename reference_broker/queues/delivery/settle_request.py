"""What a settlement names and asks for."""

from __future__ import annotations

from enum import Enum

import msgspec

from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.properties import Table

MAX_DELIVERIES = 10_000
"""Deliveries that one settlement may name."""


class Outcome(Enum):
    """What is to become of a delivery."""

    ACCEPT = "accept"
    """It is done: settled for good."""
    FAIL = "fail"
    """It was tried in vain: delivered again when the queue's retry policy says, until that gives it up."""
    RELEASE = "release"
    """It was not tried: ready again at once, and the next delivery has the number of this one."""
    REJECT = "reject"
    """It can never be done: it goes to the dead-letter queue."""
    EXTEND = "extend"
    """None yet: it shall time out later."""


class SettleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One settlement of one or more deliveries of a queue.

    They are named by message ids, by receipts, or by a partition and ranges of offsets.
    """

    outcome: Outcome
    message_ids: tuple[str, ...] = ()
    receipts: tuple[str, ...] = ()
    partition: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    """Of offsets: first and end, which is exclusive."""
    group: str | None = None
    """Effective group id; needed when several groups have the delivery pending."""
    delay_s: float | None = None
    """Fail: deliver again no earlier than so long from now."""
    extend_s: float | None = None
    """Extend: the new deadline is so long from now; None = the queue's delivery timeout."""
    annotations: Table = ()
    """Fail, release, reject: the next deliveries and dead letters have these, too, instead of older ones of their
    names; with those :data:`MAX_ANNOTATIONS_BYTES` at most."""
    reason: str = ""
    generation: int | None = None
    """Refused unless it is the current one of the group."""
    within: TransactionKey | None = None
    """Accept: count when this transaction is committed."""


def format_ranges(offsets: list[int]) -> str:
    """Ascending offsets as text: ``1-2,5-9``."""
    parts: list[str] = []
    at = 0
    while at < len(offsets):
        first = at
        while at + 1 < len(offsets) and offsets[at + 1] == offsets[at] + 1:
            at += 1
        parts.append(str(offsets[first]) if first == at else f"{offsets[first]}-{offsets[at]}")
        at += 1
    return ",".join(parts)
