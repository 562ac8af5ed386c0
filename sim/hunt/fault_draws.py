"""How each kind of fault is drawn: one row a kind. A new kind of fault is a row here, and nothing else in the hunt.

Moments are not in the table: :mod:`assay.sim.hunt.schedule` draws them alike for every kind, spread over the time of
the workload, close to each other, or aimed at something that happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from assay.faults.scenario import CLIENT_TARGETS, FaultKind, ScenarioWorld
from assay.sim.hunt.ranges import Draw, PartOf, Spread

NODE: Final = "<node>"
"""Stands among ``targets`` for any node of the scenario's topology."""
_BOTH: Final = frozenset(ScenarioWorld)
_SIMULATED: Final = frozenset({ScenarioWorld.SIM})


class FaultDraw(msgspec.Struct, frozen=True, kw_only=True):
    """How faults of one kind are drawn."""

    for_s: Draw | None
    """None: over at once."""
    targets: tuple[str, ...] = (NODE,)
    parameters: Mapping[str, Draw] = {}
    """Further fields of :class:`assay.faults.scenario.Fault`, drawn in this order."""
    worlds: frozenset[ScenarioWorld] = _BOTH
    """Where the fault can be made; a schedule goes where all of its faults can."""
    apart_from: frozenset[FaultKind] = frozenset()
    """Kinds that must not be active at the same time on the same target; itself, if it stands here."""
    most: int = 4
    """In one schedule."""
    needs_restart: bool = False
    """The broker may lawfully refuse its service afterwards until it is started again: such a schedule ends with a
    crash, so that the drain proves something."""


_DOWN: Final = frozenset({FaultKind.CRASH, FaultKind.POWER_LOSS})

FAULT_DRAWS: Final[dict[FaultKind, FaultDraw]] = {
    FaultKind.CRASH: FaultDraw(for_s=Spread(0.001, 1.5), apart_from=_DOWN),
    FaultKind.POWER_LOSS: FaultDraw(for_s=Spread(0.001, 1.5), worlds=_SIMULATED, apart_from=_DOWN),
    FaultKind.PAUSE: FaultDraw(for_s=Spread(0.005, 3.0), apart_from=_DOWN | {FaultKind.PAUSE}),
    FaultKind.LATENCY: FaultDraw(
        for_s=Spread(0.05, 3.0),
        targets=CLIENT_TARGETS,
        parameters={"latency_ms": Spread(1, 300), "jitter_ms": PartOf("latency_ms")},
    ),
    FaultKind.LOSS: FaultDraw(for_s=Spread(0.05, 3.0), targets=CLIENT_TARGETS, parameters={"rate": Spread(0.005, 0.4)}),
    FaultKind.RESET: FaultDraw(for_s=None, targets=CLIENT_TARGETS),
    FaultKind.PARTITION: FaultDraw(for_s=Spread(0.02, 4.0), targets=CLIENT_TARGETS),
    FaultKind.BANDWIDTH: FaultDraw(
        for_s=Spread(0.05, 3.0), targets=CLIENT_TARGETS, parameters={"rate": Spread(5, 500)}
    ),
}
"""By kind."""
