"""What many schedules reached together: rare states, faults at once, distinct states; and what they never did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from assay.faults.scenario import QueueWorkload, Scenario
from assay.sim.hunt.explore import SeedOutcome, explore
from assay.sim.hunt.fault_draws import FAULT_DRAWS
from assay.sim.hunt.states import STATES

COVERAGE_NAME: Final = "coverage.json"


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rare state and the runs that reached it."""

    name: str
    what: str
    runs: int
    first: int
    """Number of the first of them; 0 = none."""
    overdue: bool
    """Never reached, in more runs than it should take."""


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault and what it met."""

    kind: str
    runs: int
    together: tuple[str, ...]
    """Kinds that were active at the same time in some run."""
    never: tuple[str, ...]
    """Those that never were."""


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What an exploration reached."""

    scenario: str
    first_seed: int
    runs: int
    wall_s: float
    states: tuple[StateRow, ...]
    faults: tuple[FaultRow, ...]
    distinct_states: int
    """Abstract states: what happened, with which faults active, and how much was under way."""
    new_per_tenth: tuple[int, ...]
    """How many of them each tenth of the runs saw first: what falls to nothing has seen what it can."""

    @property
    def overdue(self) -> list[StateRow]:
        """States that should have been reached."""
        return [row for row in self.states if row.overdue]


def cover(scenario: Scenario, *, on_outcome: Callable[[SeedOutcome], None], **how: Any) -> Coverage:
    """Explore (``how``: see :func:`explore`) and say what was reached."""
    found = explore(scenario, on_outcome=on_outcome, watch=True, **how)
    first: dict[str, int] = {}
    runs: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    visited: dict[int, int] = {}
    for place, outcome in enumerate(found.outcomes):
        reached = outcome.coverage
        if reached is None:
            continue
        for name in reached.states:
            first.setdefault(name, outcome.seed)
        runs.update(reached.states)
        kinds.update(reached.kinds)
        pairs.update(reached.pairs)
        for state in reached.visited:
            visited.setdefault(state, place)
    count = len(found.outcomes)
    has_queues = any(isinstance(workload, QueueWorkload) for workload in scenario.workload)
    new = Counter(place * 10 // count for place in visited.values())
    every = sorted(kind.value for kind in FAULT_DRAWS)
    return Coverage(
        scenario=scenario.name,
        first_seed=int(how["first_seed"]),
        runs=count,
        wall_s=round(found.wall_s, 3),
        states=tuple(
            StateRow(
                name=state.name,
                what=state.what,
                runs=runs[state.name],
                first=first.get(state.name, 0),
                overdue=has_queues and not runs[state.name] and state.within <= count,
            )
            for state in STATES
        ),
        faults=tuple(_fault_row(kind, kinds[kind], pairs, every) for kind in every),
        distinct_states=len(visited),
        new_per_tenth=tuple(new[tenth] for tenth in range(10)),
    )


def _fault_row(kind: str, runs: int, pairs: set[tuple[str, str]], every: list[str]) -> FaultRow:
    met = {other for other in every if (min(kind, other), max(kind, other)) in pairs}
    return FaultRow(
        kind=kind,
        runs=runs,
        together=tuple(other for other in every if other in met),
        never=tuple(other for other in every if other not in met),
    )


def write_coverage(folder: Path, found: Coverage) -> Path:
    """Write ``coverage.json``; returns its path. Raises :class:`OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / COVERAGE_NAME
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return path
