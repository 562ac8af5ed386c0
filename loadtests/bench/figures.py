"""All readings of a bench run, and what they say: medians, ratios, and whether the client was the limit."""

from __future__ import annotations

import statistics

import msgspec

from assay.loadtests.bench.cases import LINES, Line
from assay.loadtests.bench.workload import BenchPlan, Figure

NULL = "null"
HEADROOM_MIN = 1.5
"""The null broker must be this much faster than a broker ..."""
CLIENT_LOAD_MAX = 1 / HEADROOM_MIN
"""... or the client must use less than this share of a core with it; else the client may be the limit."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one broker in one round."""

    peer: str
    round: int
    figure: Figure


class BenchRun(msgspec.Struct, kw_only=True):
    """All readings of a run, and the peers that could not take part with the reason."""

    plan: BenchPlan
    started_at: str = ""
    duration_s: float = 0.0
    versions: dict[str, str] = {}
    """Version by peer, in the order measured; the null broker is the last."""
    readings: list[Reading] = []
    skipped: dict[str, str] = {}

    @property
    def peers(self) -> list[str]:
        """Names of the brokers measured, without the null broker."""
        return [name for name in self.versions if name != NULL]

    @property
    def lines(self) -> list[Line]:
        """Lines with any reading, in the order of the table."""
        seen = {reading.figure.line for reading in self.readings}
        return [line for line in LINES if line.name in seen]

    def figures(self, peer: str, line: str) -> list[Figure]:
        """Readings of a line in order, those without a value included."""
        return [reading.figure for reading in self.readings if reading.peer == peer and reading.figure.line == line]

    def values(self, peer: str, line: str) -> list[float]:
        """The values measured, in order; empty when there are none."""
        return [figure.value for figure in self.figures(peer, line) if figure.value is not None]

    def median(self, peer: str, line: str) -> float | None:
        """The median value; None when not measured."""
        values = self.values(peer, line)
        return statistics.median(values) if values else None

    def note(self, peer: str, line: str) -> str:
        """Why there is no value, or why it may be the client's; empty when all is well."""
        return next((figure.note for figure in self.figures(peer, line) if figure.note), "")

    def client_load(self, peer: str, line: str) -> float | None:
        """Share of one core that the client used, median of the rounds; None when not measured."""
        loads = [figure.client_load for figure in self.figures(peer, line) if figure.client_load is not None]
        return statistics.median(loads) if loads else None

    def per_cpu_second(self, peer: str, line: str) -> float | None:
        """What was counted per second of the broker's processor time, all rounds; None where it cannot be read."""
        known = [figure for figure in self.figures(peer, line) if figure.broker_cpu_s is not None]
        cpu_s = sum(figure.broker_cpu_s or 0.0 for figure in known)
        return sum(figure.count for figure in known) / cpu_s if cpu_s else None

    def client_us(self, peer: str, line: str) -> float | None:
        """Processor time of the client for each that was counted, in microseconds; None where it was not measured.

        Only where the values are rates.
        """
        known = [each for each in self.figures(peer, line) if each.value and each.client_load is not None]
        counted = sum(each.count for each in known)
        spent_s = sum((each.client_load or 0.0) * each.count / (each.value or 1.0) for each in known)
        return spent_s / counted * 1e6 if counted else None

    def advantage(self, line: Line, peer: str, other: str) -> float | None:
        """How many times better ``peer`` is than ``other``; None when one was not measured."""
        mine, theirs = self.median(peer, line.name), self.median(other, line.name)
        if mine is None or theirs is None or mine <= 0 or theirs <= 0:
            return None
        return mine / theirs if line.higher_is_better else theirs / mine

    def headroom(self, line: Line, peer: str) -> float:
        """How many times more than measured the client could have shown at most: it has one core."""
        load = self.client_load(peer, line.name) if line.timed_client else None
        return 1.0 if not load else max(1.0, 1.0 / load)

    def client_limits(self, line: Line, peer: str) -> bool:
        """Whether the figure may be the client's rather than the broker's."""
        if not line.timed_client:
            # Measured against a schedule: a client that kept it was not the limit.
            return any(figure.note and figure.value is not None for figure in self.figures(peer, line.name))
        load = self.client_load(peer, line.name)
        headroom = self.advantage(line, NULL, peer)
        # The null broker is Python too: where it is slow, an idle client still proves that it is not the limit.
        return not (
            (headroom is not None and headroom >= HEADROOM_MIN) or (load is not None and load < CLIENT_LOAD_MAX)
        )
