"""Faults as the checkers see them: which ones may destroy data, cut sessions, or delay what clients see."""

from __future__ import annotations

from assay.conformance.checkers.tables import FaultSpan, Send, Tables
from assay.reference_broker.trace.schema import AckedMeans, Contract

CRASHING = frozenset({"crash", "power_loss"})
"""The broker process is gone, and with it whatever it only remembered."""
CUTTING = frozenset({"crash", "power_loss", "reset", "partition"})
"""The broker may have ended sessions that their clients still believe in."""
DELAYING = frozenset({"latency", "loss", "bandwidth", "partition", "pause"})
"""What a client sees may be arbitrarily older than when the broker did it, and differently so per connection."""

DESTROYING: dict[AckedMeans, frozenset[str]] = {
    AckedMeans.MEMORY: CRASHING,
    AckedMeans.OS: frozenset({"power_loss"}),
    AckedMeans.DISK: frozenset(),
}
"""Faults that may destroy what was acknowledged, by what the contract says an acknowledgement means."""


TIMEOUT_SLACK_NS = 50_000_000
"""A timer may fire a little early."""


def timeouts_within(contract: Contract, elapsed_ns: int) -> int:
    """How many delivery timeouts fit, one after the other, into the time since a send; 0 when there is no timeout."""
    timeout_ns = int(contract.delivery_timeout_s * 1e9)
    return max(0, elapsed_ns + TIMEOUT_SLACK_NS) // timeout_ns if timeout_ns > 0 else 0


def active(tables: Tables, kinds: frozenset[str], from_idx: int, to_idx: int) -> bool:
    """Whether a fault of these kinds overlaps the open interval of indices."""
    return any(span.kind in kinds and span.overlaps(from_idx, to_idx) for span in tables.faults)


def destroying_faults(tables: Tables, contract: Contract) -> list[FaultSpan]:
    """The faults of this history that excuse the loss of what was acknowledged before they began."""
    kinds = DESTROYING[contract.acked_means]
    return [span for span in tables.faults if span.kind in kinds]


WRONG_CLOCK = frozenset({"clock_rate", "clock_jump"})
"""The broker's clock is not that of who measures it."""
POWER = frozenset({"power_loss", "torn_write"})
DISTURBING = CUTTING | DELAYING
"""What a client sees says little of what the broker did just then."""


def destroyed(tables: Tables, contract: Contract, acknowledged_idx: int, seen_idx: int) -> bool:
    """Whether a fault may have undone what was acknowledged then, as was seen later."""
    return any(acknowledged_idx < span.from_idx < seen_idx for span in destroying_faults(tables, contract))


def disturbed(tables: Tables, kinds: frozenset[str], from_idx: int, to_idx: int, until_ns: int) -> bool:
    """As :func:`active`, faults that began until ``until_ns`` included."""
    return any(
        span.kind in kinds and (span.from_idx < to_idx or span.from_ns <= until_ns) and span.to_idx > from_idx
        for span in tables.faults
    )


def fired_again(tables: Tables, send: Send | None, seen_idx: int) -> bool:
    """Whether a delayed message may have fired a second time before it was seen: over a loss of power (Q-DELAY-21)."""
    return send is not None and send.delay_ns >= 0 and active(tables, POWER, send.inv_idx, seen_idx)
