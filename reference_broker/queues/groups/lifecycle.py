"""The life of a message within a consumer group, as a table, which docs/spec/lifecycle.md draws."""

from __future__ import annotations

from typing import NamedTuple

from assay.reference_broker.queues.groups.pending import EntryState

READY = "ready"
"""In the log, at or above the group's cursor: there is no entry for it yet."""
PASSED = "passed"
"""The cursor went over it without a delivery."""

DELIVERED = EntryState.DELIVERED.value
WAITING = EntryState.WAITING.value
COMMITTING = EntryState.COMMITTING.value
DEAD_LETTERING = EntryState.DEAD_LETTERING.value
SETTLED = EntryState.SETTLED.value


class Transition(NamedTuple):
    """What an event makes of a message. States are values of :class:`EntryState`, or READY, or PASSED."""

    source: str
    event: str
    target: str


TRANSITIONS = (
    Transition(READY, "delivered to a consumer", DELIVERED),
    Transition(READY, "expired, filtered out, or unreadable", PASSED),
    Transition(READY, "a dead letter behind it sent back", WAITING),
    Transition(DELIVERED, "ack", SETTLED),
    Transition(DELIVERED, "nack, timeout, or consumer gone", WAITING),
    Transition(DELIVERED, "reject, or retries used up", DEAD_LETTERING),
    Transition(WAITING, "due: delivered again", DELIVERED),
    Transition(WAITING, "expired, or unreadable", SETTLED),
    Transition(WAITING, "retries used up before a restart", DEAD_LETTERING),
    Transition(DELIVERED, "claimed", DELIVERED),
    Transition(DELIVERED, "commit of a higher offset", SETTLED),
    Transition(WAITING, "commit of a higher offset", SETTLED),
    Transition(WAITING, "a dead letter sent back", DEAD_LETTERING),
    Transition(DEAD_LETTERING, "its queue does not take it back", WAITING),
    Transition(DEAD_LETTERING, "the dead-letter queue has it", SETTLED),
    Transition(DELIVERED, "ack in a transaction", COMMITTING),
    Transition(COMMITTING, "transaction committed", SETTLED),
    Transition(COMMITTING, "transaction aborted", WAITING),
    Transition(COMMITTING, "transaction aborted, and retries used up", DEAD_LETTERING),
    Transition(DELIVERED, "restart", WAITING),
    Transition(COMMITTING, "restart", WAITING),
    Transition(DEAD_LETTERING, "restart", WAITING),
)
STEPS = frozenset((step.source, step.target) for step in TRANSITIONS)
"""What may follow what."""
