"""How each kind of fault is drawn: one row a kind. A new kind of fault is a row here, and nothing else in the hunt.

Moments are not in the table: :mod:`assay.sim.hunt.schedule` draws them alike for every kind, spread over the time of
the workload, close to each other, or aimed at something that happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from assay.faults.fault_kinds import CLIENT_TARGETS, Direction, DiskCall, FaultKind
from assay.reference_broker.trace.file_kinds import FileKind
from assay.sim.hunt.ranges import Among, Draw, PartOf, Spread, Unless, Whole

NODE: Final = "<node>"
"""Stands among ``targets`` for any node of the scenario's topology."""
CLIENT: Final = "<client>"
"""Likewise for any one client."""
_CLIENTS: Final = (*CLIENT_TARGETS, CLIENT)


class FaultDraw(msgspec.Struct, frozen=True, kw_only=True):
    """How faults of one kind are drawn."""

    for_s: Draw | None
    """None: over at once."""
    targets: tuple[str, ...] = (NODE,)
    parameters: Mapping[str, Draw] = {}
    """Further fields of :class:`assay.faults.scenario.Fault`, drawn in this order."""
    apart_from: frozenset[FaultKind] = frozenset()
    """Kinds that must not be active at the same time on the same target; itself, if it stands here."""
    weight: float = 1.0
    """How often it is drawn, beside the other kinds that take part."""
    most: int = 4
    """In one schedule."""
    chance: float = 1.0
    """Of taking part, as a share of the usual one: what excuses a broker much is rare."""
    needs_restart: bool = False
    """The broker may lawfully refuse its service afterwards until it is started again: such a schedule ends with a
    crash, so that the drain proves something."""
    shows_without_power: bool = False
    """What it did to the disk shows once the machine was off: such a schedule ends with a loss of power."""
    shown_by: FaultKind | None = None
    """What it did wrong shows only where the broker ends in this way meanwhile, or soon after."""
    shown: float = 0.4
    """Chance that it does."""


_REVEALING: Final = 4.0
"""Only a start shows what was not written: most bugs of the storage need one, whatever else went wrong before."""
_ERRING: Final = 2.0
"""A disk errs in three ways, of which each broker must know what to do; a network has seven, and no end of clients."""
_DOWN: Final = frozenset(
    {FaultKind.CRASH, FaultKind.POWER_LOSS, FaultKind.TORN_WRITE, FaultKind.STOP, FaultKind.RESTART_STORM}
)
_DOWN_S: Final = Spread(0.001, 1.5)
_FILES: Final = Among((FileKind.ALL, FileKind.ALL, FileKind.SEGMENTS, FileKind.GROUPS, FileKind.OTHERS))
_CALLS: Final = (DiskCall.WRITE, DiskCall.SYNC, DiskCall.RENAME, DiskCall.CREATE, DiskCall.REMOVE, DiskCall.CHANGE)
_IN_A_CALL: Final[dict[str, Draw]] = {
    "call": Among((DiskCall.ANY_TIME,) * len(_CALLS) + _CALLS),
    "nth": Unless("call", DiskCall.ANY_TIME, Whole(1, 30), 1),
    "files": Unless("call", DiskCall.ANY_TIME, _FILES, FileKind.ALL),
}
_DIRECTION: Final = Among((Direction.BOTH, Direction.BOTH, Direction.TO_BROKER, Direction.TO_CLIENTS))
_SOME: Final[dict[str, Draw]] = {
    "files": _FILES,
    "nth": Whole(1, 20),  # in a small scenario a window of half a second has seven writes, and hardly a read
    "times": Among((1, 1, 1, 2, 5, 30, 1_000)),  # once and never again, or whatever is tried
}
_TORN: Final[dict[str, Draw]] = {
    "files": Among((FileKind.ALL, FileKind.SEGMENTS, FileKind.SEGMENTS, FileKind.GROUPS, FileKind.OTHERS)),
    "nth": Whole(1, 60),
}
_BY_A_TIMEOUT_S: Final = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Beyond what a delivery may take, and not beyond a keep-alive, which would explain everything that follows."""
_DATA: Final = Among((FileKind.SEGMENTS, FileKind.GROUPS))
"""What is damaged of others may lawfully cost a whole queue, and then nothing is proved."""
_ONE_OF_DATA: Final[dict[str, Draw]] = {"files": _DATA, "nth": Whole(1, 60)}

FAULT_DRAWS: Final[dict[FaultKind, FaultDraw]] = {
    FaultKind.CRASH: FaultDraw(for_s=_DOWN_S, parameters=_IN_A_CALL, apart_from=_DOWN, weight=_REVEALING),
    FaultKind.POWER_LOSS: FaultDraw(for_s=_DOWN_S, parameters=_IN_A_CALL, apart_from=_DOWN, weight=_REVEALING),
    FaultKind.TORN_WRITE: FaultDraw(for_s=_DOWN_S, parameters=_TORN, apart_from=_DOWN, weight=2.0, needs_restart=True),
    FaultKind.STOP: FaultDraw(for_s=_DOWN_S, apart_from=_DOWN),
    FaultKind.RESTART_STORM: FaultDraw(for_s=_DOWN_S, parameters={"times": Whole(1, 4)}, apart_from=_DOWN),
    FaultKind.PAUSE: FaultDraw(for_s=Spread(0.005, 3.0), apart_from=_DOWN | {FaultKind.PAUSE}),
    FaultKind.SLOW_NODE: FaultDraw(for_s=Spread(0.05, 3.0), parameters={"factor": Spread(2, 100)}),
    FaultKind.LATENCY: FaultDraw(
        for_s=Spread(0.05, 3.0),
        targets=_CLIENTS,
        parameters={"latency_ms": Spread(1, 300), "jitter_ms": PartOf("latency_ms"), "direction": _DIRECTION},
    ),
    FaultKind.LOSS: FaultDraw(
        for_s=Spread(0.05, 3.0),
        targets=_CLIENTS,
        parameters={"rate": Spread(0.005, 0.4), "direction": _DIRECTION},
    ),
    FaultKind.RESET: FaultDraw(for_s=None, targets=_CLIENTS),
    FaultKind.PARTITION: FaultDraw(for_s=Spread(0.02, 4.0), targets=_CLIENTS, parameters={"direction": _DIRECTION}),
    FaultKind.CLOG: FaultDraw(for_s=Spread(0.02, 4.0), targets=_CLIENTS, parameters={"direction": _DIRECTION}),
    FaultKind.BANDWIDTH: FaultDraw(
        for_s=Spread(0.05, 3.0),
        targets=_CLIENTS,
        parameters={"rate": Spread(5, 500), "direction": _DIRECTION},
    ),
    FaultKind.TAKEOVER: FaultDraw(for_s=Spread(0.001, 0.5), targets=_CLIENTS),
    FaultKind.DISK_FULL: FaultDraw(
        for_s=Spread(0.05, 3.0), parameters={"free_bytes": Whole(1, 20_000)}, shown_by=FaultKind.CRASH
    ),
    FaultKind.WRITE_ERROR: FaultDraw(
        for_s=Spread(0.02, 2.0), parameters=_SOME, weight=_ERRING, shown_by=FaultKind.CRASH
    ),
    FaultKind.READ_ERROR: FaultDraw(
        for_s=Spread(0.02, 2.0), parameters=_SOME, weight=_ERRING, needs_restart=True, shown_by=FaultKind.CRASH
    ),
    FaultKind.SYNC_ERROR: FaultDraw(
        for_s=Spread(0.02, 2.0),
        parameters=_SOME,
        weight=_ERRING,
        shows_without_power=True,
        shown_by=FaultKind.POWER_LOSS,
    ),
    FaultKind.LYING_SYNC: FaultDraw(for_s=Spread(0.02, 2.0), most=1, chance=0.4, shown_by=FaultKind.POWER_LOSS),
    FaultKind.SLOW_DISK: FaultDraw(
        for_s=Spread(0.05, 3.0),
        parameters={"latency_ms": Spread(100, 2_000), "jitter_ms": PartOf("latency_ms")},
        weight=2.0,
        shown_by=FaultKind.POWER_LOSS,
        shown=0.8,  # slowness alone is no harm: what was taken for done too soon only an end shows
    ),
    FaultKind.LOST_WRITE: FaultDraw(
        for_s=Spread(0.05, 2.0), parameters=_ONE_OF_DATA, most=1, chance=0.5, shows_without_power=True
    ),
    FaultKind.MISDIRECTED_WRITE: FaultDraw(
        for_s=Spread(0.05, 2.0), parameters=_ONE_OF_DATA, most=1, chance=0.5, shows_without_power=True
    ),
    FaultKind.BIT_ROT: FaultDraw(
        for_s=None, parameters={"files": _DATA, "times": Whole(1, 10)}, most=1, chance=0.5, needs_restart=True
    ),
    FaultKind.CLOCK_JUMP: FaultDraw(
        for_s=None,
        parameters={"by_s": Among((-86_400.0, -60.0, -2.0, -0.5, *_BY_A_TIMEOUT_S, 60.0, 86_400.0))},
        weight=2.5,
        needs_restart=True,
    ),
    FaultKind.CLOCK_RATE: FaultDraw(
        for_s=Spread(0.1, 4.0),
        parameters={"factor": Among((0.5, 0.8, 1.25, 2.0))},
        apart_from=frozenset({FaultKind.CLOCK_RATE}),
    ),
}
"""By kind."""
