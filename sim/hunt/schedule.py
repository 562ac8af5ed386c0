"""Draws schedules: which faults, when, where and how long, and which options, from a number alone.

A schedule has phases: a safe start, chaos (some windows of time with faults, quiet between them), then everything heals
and the workload ends, and the drain must come to its end within its budget. The number of a schedule decides all of it:
which kinds take part at all (a swarm: many bugs need that others are absent), how many faults, their moments.

Schedules come in families of :data:`FAMILY`. The first member is drawn blindly. The others run in the same world (same
seed) and aim: they add faults at, just before or just after something that happened in the first member's run. What
comes before the added fault is the same in both, because every stream of chance is separate; so the aim holds, and a
window of milliseconds is hit as often as it opens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from assay.conformance.checkers.tables import DLQ_PREFIX
from assay.faults.fault_kinds import FORMS, names_a_client, why_only_simulated
from assay.faults.scenario import Fault, FaultKind, QueueWorkload, Scenario, ScenarioWorld
from assay.faults.workload import client_names
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.fault_classes import CRASHING
from assay.reference_broker.trace.file_kinds import FileKind
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType
from assay.sim.hunt.fault_draws import CLIENT, FAULT_DRAWS, NODE, FaultDraw
from assay.sim.hunt.option_draws import draw_options, patient, with_options
from assay.sim.hunt.ranges import Spread, Whole
from assay.sim.hunt.workload_kinds import files_of, lasts_s
from assay.sim.kernel import substream

FAMILY: Final = 8
"""Schedules in one world: a blind one, and those that aim at what happened in its run."""
TINY_INSIDES: Final = "any-tiny-insides"
"""The legal variation whose caches, turns and files are small."""
_TINY_CHANCE: Final = 0.25
_EVERY_KIND: Final = 0.1
"""Chance that no kind is left out."""
_ENABLED: Final = 0.4
"""Chance of each kind to take part."""
_BUGGIFIED: Final = 0.3
"""Chance of insides of drawn sizes, and of orders that are nobody's business."""
_FILE_FAULTS: Final = 0.15
"""Chance that the file's own faults take part, too."""
_MOST_FAULTS: Final = 8
_MOST_AIMS: Final = 4
_CLOSE: Final = 0.3
"""Chance that a fault comes right after another's end."""
_WITHIN: Final = 0.25
"""Chance that a fault comes while another lasts: what a slow or lying disk has not done, only an end then shows."""
_BACKLOG: Final = 0.3
"""Chance that messages pile up before the broker ends: of those that everybody had settled none can be missed."""
_ILL: Final = 0.3
"""Chance that the disk refuses calls of the start that follows, or what the broker asks of it first when it is up: what
it has in memory later it reads then."""
_ILL_KINDS: Final = (FaultKind.WRITE_ERROR, FaultKind.READ_ERROR, FaultKind.SYNC_ERROR, FaultKind.DISK_FULL)
_NEAR_START_S: Final = Spread(0.0001, 0.02)
_BACKLOG_S: Final = Spread(0.03, 0.6)
_VARIED: Final = 0.5
"""Chance to aim at the run that reached the most that its family had not, where that is not the first."""
_SOON_S: Final = Spread(0.0002, 0.2)
_AIM_S: Final = Spread(0.00001, 0.05)
"""How far a fault may lie from what it aims at."""
_NEXT: Final = 0.7
"""Chance that one that waits for a call of the disk takes one of the next few."""
_FEW: Final = Whole(1, 4)
_HEAL_S: Final = 2.0
"""Beyond the time of the workload, the latest end of a fault."""
_MOST_BACK_S: Final = 60.0
_TRIES: Final = 6
replace = msgspec.structs.replace


class ScheduleStyle(StrEnum):
    """Where the faults of a run come from."""

    FILE = "file"
    """As the scenario says, under many seeds."""
    SWARM = "swarm"
    """Drawn, with options of broker and clients."""
    BOTH = "both"
    """Odd numbers as the file says, even ones drawn."""


class Moment(StrEnum):
    """What a fault may aim at."""

    PUBLISH = "publish"
    CONFIRM = "confirm"
    DELIVERY = "delivery"
    REDELIVERY = "redelivery"
    DEAD_LETTER = "dead letter"
    SETTLEMENT = "settlement"
    SETTLED = "settled"
    REFUSAL = "refusal"
    """A consumer returns or rejects a message."""
    SESSION = "session"
    """A client connected, subscribed or lost its session."""
    FAULT = "fault"
    """Another fault began or ended."""
    START = "start"
    """The broker was started again."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be made: everything but the code."""

    number: int
    scenario: Scenario
    """With its seed, its faults and its contract."""
    options: dict[str, object] = {}
    """What was drawn of :mod:`.option_draws`; it is part of the scenario already."""
    variations: tuple[str, ...] = ()
    """Legal variations of the broker that take part."""
    aimed: bool = False
    """It is a later member of its family."""
    aims: tuple[str, ...] = ()
    """What the added faults aim at, for people."""
    varies: int = 0
    """Number of the schedule whose run they aim at."""


def moment_of(event: HistoryEvent) -> Moment | None:
    """What a history event is for those who aim."""
    match event.f:
        case OpKind.PUBLISH:
            return Moment.PUBLISH if event.type is OpType.INVOKE else Moment.CONFIRM
        case OpKind.DELIVER:
            if event.queue.startswith(DLQ_PREFIX):
                return Moment.DEAD_LETTER
            return Moment.REDELIVERY if event.redelivered else Moment.DELIVERY
        case OpKind.NACK | OpKind.REJECT if event.type is OpType.INVOKE:
            return Moment.REFUSAL
        case OpKind.ACK | OpKind.NACK | OpKind.REJECT:
            return Moment.SETTLEMENT if event.type is OpType.INVOKE else Moment.SETTLED
        case OpKind.CONNECT | OpKind.SUBSCRIBE | OpKind.SESSION_END:
            return Moment.SESSION
        case OpKind.FAULT:
            is_start = event.type is OpType.OK and event.detail.split(maxsplit=1)[0] in CRASHING
            return Moment.START if is_start else Moment.FAULT
        case _:
            return None


def family_of(number: int) -> int:
    """The number of the first member of a schedule's family."""
    return number - (number - 1) % FAMILY


def from_file(scenario: Scenario, number: int) -> Schedule:
    """The scenario as it is, with the number as its seed."""
    return Schedule(number=number, scenario=replace(scenario, seed=number))


def drawn_blindly(scenario: Scenario, number: int) -> Schedule:
    """The first member of the family of ``number``."""
    first = family_of(number)
    rng = substream(first, "hunt/schedule")
    options = draw_options(substream(first, "hunt/options"), scenario)
    varied = replace(with_options(scenario, options), seed=first, targets=(), enough={})
    if substream(first, "hunt/buggify").random() < _BUGGIFIED:
        varied = replace(varied, buggify=True)
    span_s = lasts_s(varied.workload)
    kinds = _kinds(rng, varied)
    own = [fault for fault in scenario.faults if fault.at_s < span_s] if rng.random() < _FILE_FAULTS else []
    if any(map(names_a_client, own)):
        names = client_names(varied)  # not all need be there
        own = [fault for fault in own if fault.target in names or not names_a_client(fault)]
    chaos = _Chaos(rng, varied, kinds, span_s, own)
    variations = (TINY_INSIDES,) if rng.random() < _TINY_CHANCE else ()
    return Schedule(
        number=first,
        scenario=_with_faults(varied, chaos.faults(), span_s),
        options=options,
        variations=variations,
    )


class Aim(msgspec.Struct, frozen=True):
    """A schedule that others of its family aim at, and what its run left."""

    schedule: Schedule
    events: Sequence[HistoryEvent]


def varied_of(number: int, blind: Aim, newest: Aim) -> Aim:
    """Which of two runs a later member of their family aims at; ``newest`` reached the most that none before it had."""
    return newest if substream(number, "hunt/guide").random() < _VARIED else blind


def aimed(blind: Schedule, number: int, events: Sequence[HistoryEvent]) -> Schedule:
    """A later member of the family of ``blind``, which is of that family, and whose run left ``events``."""
    rng = substream(number, "hunt/aim")
    scenario = blind.scenario
    span_s = lasts_s(scenario.workload)
    moments: dict[Moment, list[float]] = {}
    for event in events:
        moment = moment_of(event)
        if moment is not None and event.time_ns < (span_s + _HEAL_S) * 1e9:
            moments.setdefault(moment, []).append(event.time_ns / 1e9)
    faults = list(scenario.faults)
    aims = []
    count = 1
    while count < _MOST_AIMS and rng.random() < 0.5:
        count += 1
    for _ in range(count if moments else 0):
        moment = rng.choice(sorted(moments))
        at_s = rng.choice(moments[moment]) + rng.choice((-1, 1)) * _AIM_S.draw(rng, {})
        kind = _kind(rng, sorted(FAULT_DRAWS))
        if at_s > span_s + _HEAL_S / 2:
            continue
        if rng.random() < 0.5:  # what came later may hide what this one does
            faults = [fault for fault in faults if fault.at_s < at_s]
        fault = _next(rng, _fault(rng, kind, max(0.0, at_s), scenario, span_s + _HEAL_S))
        if _fits(fault, faults, FAULT_DRAWS[kind]):
            faults.append(fault)
            faults += _companions(rng, fault, faults, scenario, span_s + _HEAL_S)
            aims.append(f"{kind.value} at a {moment.value}")
    return Schedule(
        number=number,
        scenario=_with_faults(scenario, faults, span_s),
        options=blind.options,
        variations=blind.variations,
        aimed=True,
        aims=tuple(aims),
        varies=blind.number,
    )


def _kinds(rng: random.Random, scenario: Scenario) -> list[FaultKind]:
    """The kinds that take part, at least one."""
    every = sorted(FAULT_DRAWS)
    if rng.random() < _EVERY_KIND:
        return every
    return [kind for kind in every if rng.random() < _ENABLED * FAULT_DRAWS[kind].chance] or [rng.choice(every)]


def _kind(rng: random.Random, kinds: list[FaultKind]) -> FaultKind:
    return rng.choices(kinds, [FAULT_DRAWS[kind].weight for kind in kinds])[0]


class _Chaos:
    """Draws the faults of one schedule."""

    def __init__(
        self, rng: random.Random, scenario: Scenario, kinds: list[FaultKind], span_s: float, own: list[Fault]
    ) -> None:
        self._rng = rng
        self._scenario = scenario
        self._kinds = kinds
        self._span_s = span_s
        self._faults = own
        # A start that is not left alone is the exception: the bugs of the first moments are few.
        self._start_s = 0.0 if rng.random() < 0.1 else min(Spread(0.02, 0.5).draw(rng, {}), span_s / 2)

    def faults(self) -> list[Fault]:
        rng = self._rng
        windows = list(self._windows())
        count = 1
        while count < _MOST_FAULTS and rng.random() < 0.7:
            count += 1
        for _ in range(count):
            for _ in range(_TRIES):
                kind = _kind(rng, self._kinds)
                row = FAULT_DRAWS[kind]
                fault = _fault(rng, kind, self._moment_s(windows), self._scenario, self._span_s + _HEAL_S)
                if _fits(fault, self._faults, row):
                    self._faults.append(fault)
                    self._faults += _companions(rng, fault, self._faults, self._scenario, self._span_s + _HEAL_S)
                    break
        return self._faults

    def _windows(self) -> Iterator[tuple[float, float]]:
        """Times with faults; between them it is quiet."""
        rng = self._rng
        for _ in range(rng.randint(1, 3)):
            begin = rng.uniform(self._start_s, self._span_s)
            yield begin, min(begin + Spread(0.02, max(0.04, self._span_s)).draw(rng, {}), self._span_s)

    def _moment_s(self, windows: list[tuple[float, float]]) -> float:
        rng = self._rng
        if self._faults and rng.random() < _CLOSE:
            other = rng.choice(self._faults)
            return other.at_s + other.for_s + _SOON_S.draw(rng, {})
        if self._faults and rng.random() < _WITHIN:
            other = rng.choice(self._faults)
            return rng.uniform(other.at_s, other.at_s + other.for_s)
        return rng.uniform(*rng.choice(windows))


def _fault(rng: random.Random, kind: FaultKind, at_s: float, scenario: Scenario, healed_s: float) -> Fault:
    """A fault of a kind at a time, over when everything must be healed."""
    row = FAULT_DRAWS[kind]
    target = rng.choice(row.targets)
    if target in (NODE, CLIENT):
        target = rng.choice(scenario.topology.nodes if target == NODE else client_names(scenario))
    at_s = round(min(at_s, healed_s), 6)
    for_s = 0.0
    if row.for_s is not None:
        drawn = row.for_s.draw(rng, {})
        assert isinstance(drawn, float)
        for_s = min(drawn, max(0.001, round(healed_s - at_s, 6)))
    fields: dict[str, object] = {}
    for name, values in row.parameters.items():
        fields[name] = values.draw(rng, fields)
    if isinstance(drawn_files := fields.get("files"), FileKind):
        written = files_of(scenario.workload, drawn_files)
        fields["files"] = rng.choice(written) if len(written) > 1 else written[0]
    return msgspec.convert({"at_s": at_s, "kind": kind, "for_s": for_s, "target": target, **fields}, described(Fault))


def _companions(
    rng: random.Random, fault: Fault, others: list[Fault], scenario: Scenario, healed_s: float
) -> list[Fault]:
    """What a fault needs beside it to show."""
    found: list[Fault] = []
    end = fault
    row = FAULT_DRAWS[fault.kind]
    if row.shown_by is not None:
        wanted, share, down_s = rng.random() < row.shown, rng.random(), Spread(0.001, 0.5).draw(rng, {})
        at_s = round(fault.at_s + share * (fault.for_s + _SOON_S.high), 6)
        end = Fault(at_s=at_s, kind=row.shown_by, for_s=min(down_s, healed_s - at_s), target=fault.target)
        if not wanted or end.for_s <= 0 or not _fits(end, others, FAULT_DRAWS[end.kind]):
            return []
        found.append(end)
    if end.kind in FAULT_DRAWS[FaultKind.CRASH].apart_from:
        found += _backlog(rng, fault.at_s, end, [*others, *found], healed_s)
        found += _ill_start(rng, end, [*others, *found], scenario, healed_s)
    return found


def _backlog(rng: random.Random, since_s: float, end: Fault, others: list[Fault], healed_s: float) -> list[Fault]:
    """Perhaps a fault that keeps the consumers away from before the broker ends until after it is back."""
    wanted, before_s, after_s = rng.random() < _BACKLOG, _BACKLOG_S.draw(rng, {}), _BACKLOG_S.draw(rng, {})
    at_s = round(max(0.0, since_s - before_s), 6)
    for_s = round(min(end.at_s + end.for_s + after_s, healed_s) - at_s, 6)
    away = Fault(at_s=at_s, kind=FaultKind.PARTITION, for_s=for_s, target="consumers")
    return [away] if wanted and _fits(away, others, FAULT_DRAWS[away.kind]) else []


def _ill_start(rng: random.Random, end: Fault, others: list[Fault], scenario: Scenario, healed_s: float) -> list[Fault]:
    """Perhaps a fault of the disk that the next start of the broker runs into, or that comes just after it."""
    wanted, kind, near_s = rng.random() < _ILL, rng.choice(_ILL_KINDS), _NEAR_START_S.draw(rng, {})
    at_s = end.at_s + end.for_s + rng.choice((-1, 1)) * near_s
    ill = _next(rng, _fault(rng, kind, max(0.0, at_s), scenario, healed_s))
    return [ill] if wanted and _fits(ill, others, FAULT_DRAWS[kind]) else []


def _next(rng: random.Random, fault: Fault) -> Fault:
    """A fault that is meant for a moment mostly takes one of the next calls of the disk."""
    soon, nth = rng.random() < _NEXT, _FEW.draw(rng, {})
    return replace(fault, nth=nth) if soon and "nth" in FORMS[fault.kind].takes and fault.nth > nth else fault


def _fits(fault: Fault, others: list[Fault], row: FaultDraw) -> bool:
    """Whether a fault may stand beside others."""
    if sum(other.kind is fault.kind for other in others) >= row.most:
        return False
    return not any(
        (other.kind in row.apart_from or fault.kind in FAULT_DRAWS[other.kind].apart_from)
        and other.target == fault.target
        and fault.at_s <= other.at_s + other.for_s
        and other.at_s <= fault.at_s + fault.for_s
        for other in others
    )


def _with_faults(scenario: Scenario, faults: list[Fault], span_s: float) -> Scenario:
    """The scenario with these faults, in order of time; where one demands it a restart comes last.

    The drain outlasts clocks that are set back, so those that messages wait for are so by less than a day.
    """
    if any(isinstance(workload, QueueWorkload) and workload.delays for workload in scenario.workload):
        faults = [replace(fault, by_s=max(fault.by_s, -_MOST_BACK_S)) for fault in faults]
    rows = [FAULT_DRAWS[fault.kind] for fault in faults]
    if any(row.needs_restart or row.shows_without_power for row in rows):
        restart = FaultKind.POWER_LOSS if any(row.shows_without_power for row in rows) else FaultKind.CRASH
        last_s = max(span_s, *(fault.at_s + fault.for_s for fault in faults)) + 0.1
        faults = [
            *faults,
            *(Fault(at_s=round(last_s, 6), kind=restart, for_s=0.05, target=node) for node in scenario.topology.nodes),
        ]
    faults = sorted(faults, key=lambda fault: (fault.at_s, fault.kind))
    simulated = any(why_only_simulated(fault) for fault in faults)
    worlds = (ScenarioWorld.SIM,) if simulated else scenario.worlds
    return patient(replace(scenario, faults=tuple(faults), worlds=worlds))
