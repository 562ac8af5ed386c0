"""Faults as the checkers see them: which ones may destroy data, cut sessions, or delay what clients see."""

from __future__ import annotations

import msgspec

from assay.conformance.checkers.tables import END_IDX, FaultSpan, Send, Tables
from assay.reference_broker.trace.fault_classes import CRASHING as CRASHING
from assay.reference_broker.trace.fault_classes import CUTTING as CUTTING
from assay.reference_broker.trace.fault_classes import DAMAGING, Lies, destroys, timeout_of
from assay.reference_broker.trace.fault_classes import DELAYING as DELAYING
from assay.reference_broker.trace.fault_classes import POWER as POWER
from assay.reference_broker.trace.fault_classes import REFUSING as REFUSING
from assay.reference_broker.trace.fault_classes import STICKING as STICKING
from assay.reference_broker.trace.fault_classes import UNCERTAIN as UNCERTAIN
from assay.reference_broker.trace.fault_classes import WRONG_CLOCK as WRONG_CLOCK
from assay.reference_broker.trace.fault_classes import refuses_sessions as refuses_sessions
from assay.reference_broker.trace.schema import Contract

DISTURBING = CUTTING | DELAYING
"""What a client sees says little of what the broker did just then."""
TIMEOUT_SLACK_NS = 50_000_000
"""A timer may fire a little early."""


def timeouts_within(contract: Contract, elapsed_ns: int) -> int:
    """How many delivery timeouts fit, one after the other, into the time since a send; 0 when there is no timeout."""
    timeout_ns = int(contract.delivery_timeout_s * 1e9)
    return max(0, elapsed_ns + TIMEOUT_SLACK_NS) // timeout_ns if timeout_ns > 0 else 0


def active(tables: Tables, kinds: frozenset[str], from_idx: int, to_idx: int) -> bool:
    """Whether a fault of these kinds overlaps the open interval of indices."""
    return any(span.kind in kinds and span.overlaps(from_idx, to_idx) for span in tables.faults)


def disturbed(tables: Tables, kinds: frozenset[str], from_idx: int, to_idx: int, until_ns: int) -> bool:
    """As :func:`active`, faults that began until ``until_ns`` included."""
    return any(
        span.kind in kinds and (span.from_idx < to_idx or span.from_ns <= until_ns) and span.to_idx > from_idx
        for span in tables.faults
    )


def fired_again(tables: Tables, send: Send | None, seen_idx: int) -> bool:
    """Whether a delayed message may have fired a second time before it was seen: what says that it fired was lost with
    the power, or by a sync that failed (Q-DELAY-21)."""
    return send is not None and send.delay_ns >= 0 and active(tables, POWER | STICKING, send.inv_idx, seen_idx)


def with_its_clock(tables: Tables, contract: Contract) -> Contract:
    """The contract as a broker may keep it whose clock was as wrong as the faults say."""
    timeout_s = timeout_of(contract.delivery_timeout_s, frozenset(span.kind for span in tables.faults))
    return msgspec.structs.replace(contract, delivery_timeout_s=timeout_s)


class Destruction(msgspec.Struct, frozen=True):
    """What was acknowledged before ``to_idx`` may be lost from ``from_idx`` on."""

    from_idx: int
    to_idx: int
    over_idx: int
    """The broker is back."""

    def excuses(self, acknowledged_idx: int, seen_idx: int) -> bool:
        """Whether it may have undone what was acknowledged then, as was seen later."""
        return self.from_idx < seen_idx and acknowledged_idx < self.to_idx


def destruction_by(tables: Tables, contract: Contract) -> list[Destruction]:
    """The faults of this history that excuse the loss of what was acknowledged.

    Damage of the disk may show at any time, and take what is written beside it later.
    """
    lies = Lies()
    spans = [(span, lies.before(span.kind)) for span in sorted(tables.faults, key=_began)]
    return [
        Destruction(span.from_idx, END_IDX if span.kind in DAMAGING else span.from_idx, span.to_idx)
        for span, lied in spans
        if destroys(span.kind, contract.acked_means, lied=lied)
    ]


def destroyed(tables: Tables, contract: Contract, acknowledged_idx: int, seen_idx: int) -> bool:
    """Whether a fault may have undone what was acknowledged then, as was seen later."""
    return any(each.excuses(acknowledged_idx, seen_idx) for each in destruction_by(tables, contract))


def destroyed_to(tables: Tables, contract: Contract) -> int:
    """What was acknowledged before that index may be gone at the end; -1: nothing."""
    return max((each.to_idx for each in destruction_by(tables, contract)), default=-1)


def _began(span: FaultSpan) -> int:
    return span.from_idx
