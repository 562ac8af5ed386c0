"""What faults let a broker do, by the first word of their events: data that every judge of histories reads.

A fault that stands in none of these sets excuses nothing.
"""

from __future__ import annotations

from typing import Final

from assay.reference_broker.trace.file_kinds import FileKind
from assay.reference_broker.trace.schema import AckedMeans

CRASHING: Final = frozenset({"crash", "power_loss", "torn_write", "stop", "restart_storm"})
"""The broker process is gone, and with it whatever it only remembered."""
CUTTING: Final = CRASHING | {"reset", "partition", "clog", "takeover"}
"""The broker may have ended sessions that their clients still believe in."""
DELAYING: Final = frozenset({"latency", "loss", "bandwidth", "partition", "clog", "pause", "slow_node", "slow_disk"})
"""What a client sees may be arbitrarily older than when the broker did it, and differently so per connection."""

POWER: Final = frozenset({"power_loss", "torn_write"})
"""What was not synced is gone."""
LYING: Final = frozenset({"lying_sync"})
"""After it a loss of power may take what was synced."""
DAMAGING: Final = frozenset({"bit_rot", "lost_write", "misdirected_write"})
"""The disk does not hold what was written, and that may show at any time from then on. A broker may lose what it cannot
read, if it says so; it must not deliver what nobody sent."""
UNCERTAIN: Final = frozenset({"sync_error", "write_error"})
"""What the broker then refuses may be on the disk all the same, and come back with the next start."""
REFUSING: Final = UNCERTAIN | {"disk_full"}
"""What a broker refuses to settle then may be settled all the same, once it can be written."""
_FAILED_SYNC: Final = "sync_error"
STICKING: Final = frozenset({_FAILED_SYNC})
"""Only a start helps afterwards. Where a write failed the next is tried."""
_NOT_OF_SESSIONS: Final = frozenset(FileKind) - {FileKind.ALL, FileKind.SESSIONS}
WRONG_CLOCK: Final = frozenset({"clock_rate", "clock_jump"})
"""Timeouts of the broker are not those of who measures them."""
CLOCK_ERROR: Final = 2
"""By as much may a wrong clock be too fast."""

_DESTROYING: Final[dict[AckedMeans, frozenset[str]]] = {
    AckedMeans.MEMORY: CRASHING,
    AckedMeans.OS: POWER,
    AckedMeans.DISK: frozenset(),
}


def destroys(kind: str, acked_means: AckedMeans, *, lied: bool) -> bool:
    """Whether the contract lets a fault destroy what was acknowledged; ``lied``: syncs had lied before it."""
    return kind in _DESTROYING[acked_means] or kind in DAMAGING or (lied and kind in POWER)


def refuses_sessions(kind: str, detail: str) -> bool:
    """Whether a broker may refuse to keep something for sessions: not for a fault that names other files."""
    return kind in REFUSING and _NOT_OF_SESSIONS.isdisjoint(detail.split()[2:])


def timeout_of(delivery_timeout_s: float, kinds: frozenset[str]) -> float:
    """The shortest time after which a delivery may time out, in a history with faults of these kinds."""
    return delivery_timeout_s / CLOCK_ERROR if kinds & WRONG_CLOCK else delivery_timeout_s


class Lies:
    """Whether syncs may have lied so far: is shown the faults of a history in their order.

    After a sync that failed the system shows what is not on the disk and takes it for written. A broker that is started
    again then cannot know; one that goes on must not confirm anything.
    """

    def __init__(self) -> None:
        self._lied = self._failed = False

    def before(self, kind: str) -> bool:
        """Whether they may have before a fault of that kind, which comes next."""
        if kind in LYING or (self._failed and kind in CRASHING - POWER):
            self._lied = True
        self._failed |= kind == _FAILED_SYNC
        return self._lied
