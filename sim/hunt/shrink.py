"""Makes a failing run small: fewer faults, operations, clients, shorter times, and then no chance in any delay.

The run is a function of data (scenario and seed), so shrinking edits the data. A candidate is kept when one of a few
seeds still shows an anomaly of the original kind; its seed then becomes the scenario's. A smaller workload is over
sooner, so that faults that are left where they were would miss it: they are moved in proportion, or aimed anew at what
happens in the smaller run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from assay.faults.scenario import Delays, Fault, Scenario, ScenarioError, parse_scenario
from assay.faults.workload import HistoryRecorder, WorkloadPlan
from assay.reference_broker.config import ConfigError
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType
from assay.sim.hunt.explore import run_schedule
from assay.sim.hunt.option_draws import promised
from assay.sim.hunt.record import FindingRecord
from assay.sim.hunt.schedule import Moment, Schedule, moment_of
from assay.sim.hunt.workload_kinds import WORKLOAD_KINDS, operations

Signature = frozenset[tuple[str, str]]
MAX_RUNS: Final = 4_000
_FEWEST_SEEDS: Final = 4
_MOST_SEEDS: Final = 20
_CANDIDATE_S: Final = 0.4
"""So long one candidate is tried, between so few and so many seeds: small runs are cheap, and depend on chance more."""
_AIMS_PER_CANDIDATE: Final = 12
_AIM_S: Final = 0.0005
"""How long after what it aims at a fault is put: within a turn and its sync."""
_TIMES: Final = frozenset({"delivery_timeout_s", "initial_backoff_s", "max_backoff_s", "rebalance_timeout_s"})
"""Settings that stay: their defaults make runs long."""
_FEW: Final = 20
"""So many operations people follow; of more than that fewer are looked for in workloads that are less plain, too."""
_INVOKED: Final = frozenset({OpKind.PUBLISH, OpKind.ACK, OpKind.NACK, OpKind.REJECT})
replace = msgspec.structs.replace


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest failing run found."""

    record: FindingRecord
    operations: int
    """Publishes and settlements that its clients invoke, those of the drain included."""
    runs: int
    took_s: float

    @property
    def scenario(self) -> Scenario:
        """With the seed that fails."""
        return self.record.scenario


class _Shrinker:
    def __init__(
        self,
        record: FindingRecord,
        signature: Signature,
        budget_s: float,
        on_step: Callable[[Scenario, int], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.record = record
        self.runs = 0
        self._signature = signature
        self._on_step = on_step
        self._clock = clock
        self._deadline = clock() + budget_s
        self._tried: set[bytes] = set()
        self._run_s = 0.0
        """What the smallest run takes."""
        self.operations = 0
        """Of the run that was kept last."""
        self.most: int | None = None
        """Only runs of fewer operations are kept."""

    @property
    def exhausted(self) -> bool:
        return self.runs >= MAX_RUNS or self._clock() >= self._deadline

    def fails(self, record: FindingRecord) -> tuple[FindingRecord, list[HistoryEvent]] | None:
        """One run: the record of it when it shows the anomaly, and its history."""
        self.runs += 1
        schedule = Schedule(number=record.scenario.seed, scenario=record.scenario, variations=record.variations)
        began = self._clock()
        outcome, events = run_schedule(schedule, record.mutants)
        if not outcome.signature & self._signature:
            return None
        self._run_s = self._clock() - began
        return replace(record, trace_hash=outcome.trace_hash, found=outcome.classes, message=outcome.message), events

    def keep(self, candidate: Scenario, *, seeds: int = 0, variations: bool = True) -> bool:
        """Take the candidate when the anomaly recurs in it."""
        identity = msgspec.json.encode(candidate) + bytes([variations])
        if identity in self._tried:
            return False
        self._tried.add(identity)
        if not _is_sound(candidate):
            return False
        seeds = seeds or max(_FEWEST_SEEDS, min(_MOST_SEEDS, round(_CANDIDATE_S / max(self._run_s, 0.001))))
        for seed in range(candidate.seed, candidate.seed + seeds):
            if self.exhausted:
                return False
            record = replace(
                self.record,
                scenario=replace(candidate, seed=seed),
                variations=self.record.variations if variations else (),
            )
            failed = self.fails(record)
            if failed is not None and (self.most is None or _invoked(failed[1]) < self.most):
                self.record, self.operations = failed[0], _invoked(failed[1])
                if self._on_step is not None:
                    self._on_step(self.record.scenario, self.runs)
                return True
        return False

    def keep_fewer(self, candidate: Scenario) -> bool:
        """As :meth:`keep_aimed`, where its run does with fewer operations."""
        self.most = self.operations
        kept = self.keep_aimed(candidate)
        self.most = None
        return kept

    def keep_aimed(self, candidate: Scenario) -> bool:
        """Take the candidate as it is, with its faults in proportion, or with them aimed at what happens in it."""
        if self.keep(candidate):
            return True
        if not _is_sound(candidate):
            return False
        share = operations(candidate.workload) / operations(self.record.scenario.workload)
        sooner = tuple(replace(fault, at_s=round(fault.at_s * share, 4)) for fault in candidate.faults)
        if sooner != candidate.faults and self.keep(replace(candidate, faults=sooner)):
            return True
        return any(self.keep(aimed, seeds=1) for aimed in islice(self._aimed(candidate), _AIMS_PER_CANDIDATE))

    def _aimed(self, candidate: Scenario) -> Iterator[Scenario]:
        """The candidate with one fault at a time moved to moments of the run without it."""
        for index, fault in enumerate(candidate.faults):
            if self.exhausted:
                return
            others = candidate.faults[:index] + candidate.faults[index + 1 :]
            _, events = self._history(replace(candidate, faults=others))
            by_moment: dict[Moment, list[float]] = {}
            for event in events:
                moment = moment_of(event)
                if moment not in (None, Moment.SESSION, Moment.FAULT, Moment.START):
                    by_moment.setdefault(moment, []).append(event.time_ns / 1e9)
            for times_s in by_moment.values():
                for at_s in dict.fromkeys((times_s[-1], times_s[len(times_s) // 2], times_s[0])):
                    moved = replace(fault, at_s=round(at_s + _AIM_S, 4))
                    faults = sorted((*others, moved), key=lambda each: each.at_s)
                    yield replace(candidate, faults=tuple(faults))

    def _history(self, scenario: Scenario) -> tuple[object, list[HistoryEvent]]:
        self.runs += 1
        schedule = Schedule(number=scenario.seed, scenario=scenario, variations=self.record.variations)
        return run_schedule(schedule, self.record.mutants)


def _invoked(events: list[HistoryEvent]) -> int:
    return sum(event.f in _INVOKED and event.type is OpType.INVOKE for event in events)


Reduce = Callable[[Scenario], Iterator[Scenario]]


def _is_sound(candidate: Scenario) -> bool:
    """It is a scenario, and those whom its faults name are there."""
    try:
        WorkloadPlan(parse_scenario(msgspec.to_builtins(candidate)), HistoryRecorder(lambda event: None, 0.0))
    except ScenarioError:
        return False
    return True


def shrink(
    record: FindingRecord,
    *,
    signature: Signature | None = None,
    budget_s: float = 60.0,
    on_step: Callable[[Scenario, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Shrunk | None:
    """Shrink until nothing smaller fails in the same way, or the budget of time or runs is used up.

    ``signature``: what must recur, at least one of it; by default what the record found, or what its run finds. None
    when the run as recorded finds nothing of it. ``clock``: by whose seconds the budget goes, those of the processor
    for whoever shares the machine.
    """
    started = clock()
    name = record.scenario.name.removesuffix("-shrunk")
    record = replace(record, scenario=replace(record.scenario, name=f"{name}-shrunk", targets=(), enough={}), aims=())
    wanted = record.signature if signature is None else signature
    if not wanted:
        schedule = Schedule(number=record.scenario.seed, scenario=record.scenario, variations=record.variations)
        wanted = run_schedule(schedule, record.mutants)[0].signature
    shrinker = _Shrinker(record, wanted, budget_s, on_step, clock)
    failed = shrinker.fails(record)
    if failed is None:
        return None
    shrinker.record, shrinker.operations = failed[0], _invoked(failed[1])
    # A shorter run makes every later candidate cheaper, so that is done before anything else.
    while any(shrinker.keep_aimed(smaller) for smaller in _a_quarter(shrinker.record.scenario)):
        pass
    _until_nothing_helps(shrinker)
    _calm(shrinker)
    # With less left to chance more of the smaller ones fail.
    _until_nothing_helps(shrinker)
    while shrinker.operations > _FEW and any(map(shrinker.keep_fewer, _going_round(shrinker.record.scenario))):
        shrinker.most = shrinker.operations + 1
        _until_nothing_helps(shrinker)
        shrinker.most = None
    return Shrunk(
        record=shrinker.record,
        operations=shrinker.operations,
        runs=shrinker.runs,
        took_s=clock() - started,
    )


def _until_nothing_helps(shrinker: _Shrinker) -> None:
    steps: tuple[tuple[Reduce, Callable[[Scenario], bool]], ...] = (
        (_fewer_faults, shrinker.keep),
        (_fewer_operations, shrinker.keep_aimed),
        (_simpler, shrinker.keep),
        (_plainer, shrinker.keep),
        (_shorter_faults, shrinker.keep),
    )
    progressing = True
    while progressing and not shrinker.exhausted:
        progressing = False
        for reduce, keep in steps:
            while any(keep(candidate) for candidate in reduce(shrinker.record.scenario)):
                progressing = True
        scenario = shrinker.record.scenario
        if shrinker.record.variations and shrinker.keep(scenario, variations=False):
            progressing = True


def _calm(shrinker: _Shrinker) -> None:
    """Delays that were drawn become constants, one kind after the other, as far as the anomaly stays."""
    for reduce in (_constant_delays, _constant_work):
        while any(shrinker.keep(candidate) for candidate in reduce(shrinker.record.scenario)):
            pass


def _a_quarter(scenario: Scenario) -> Iterator[Scenario]:
    quicker = tuple(WORKLOAD_KINDS[type(workload)].quicker(workload) for workload in scenario.workload)
    if quicker != scenario.workload:
        yield replace(scenario, workload=quicker)


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    """Without any, a half, a quarter, ... and finally without single faults."""
    faults = scenario.faults
    size = len(faults)
    while size >= 1:
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
        size //= 2


def _each_workload(scenario: Scenario, smaller: Callable[[Any], Iterator[Any]]) -> Iterator[Scenario]:
    for index, workload in enumerate(scenario.workload):
        for changed in smaller(workload):
            yield replace(scenario, workload=(*scenario.workload[:index], changed, *scenario.workload[index + 1 :]))


def _fewer_operations(scenario: Scenario) -> Iterator[Scenario]:
    if len(scenario.workload) > 1:
        for index in range(len(scenario.workload)):
            yield replace(scenario, workload=scenario.workload[:index] + scenario.workload[index + 1 :])
    yield from _each_workload(scenario, lambda workload: WORKLOAD_KINDS[type(workload)].fewer(workload))


def _going_round(scenario: Scenario) -> Iterator[Scenario]:
    yield from _each_workload(scenario, lambda workload: WORKLOAD_KINDS[type(workload)].going_round(workload))


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    yield from _each_workload(scenario, lambda workload: WORKLOAD_KINDS[type(workload)].simpler(workload))


def _plainer(scenario: Scenario) -> Iterator[Scenario]:
    """Without single settings of the broker, judged by what it promises then."""
    broker = scenario.topology.broker
    for path in _settings(broker, ()):
        if path[-1] in _TIMES:
            continue
        topology = replace(scenario.topology, broker=_without(broker, path))
        try:
            yield promised(scenario, replace(scenario, topology=topology))
        except ConfigError:
            continue


def _settings(section: object, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The paths of all settings; the names of queues are none."""
    if isinstance(section, dict):
        for key, value in section.items():
            if key != "name":
                yield from _settings(value, (*path, key))
    elif isinstance(section, list) and section and isinstance(section[0], dict):
        for index, value in enumerate(section):
            yield from _settings(value, (*path, index))
    elif path:
        yield path


def _without(section: Any, path: tuple[str | int, ...]) -> Any:
    if len(path) == 1:
        return {key: value for key, value in section.items() if key != path[0]}
    if isinstance(section, list):
        return [_without(part, path[1:]) if index == path[0] else part for index, part in enumerate(section)]
    return {key: _without(value, path[1:]) if key == path[0] else value for key, value in section.items()}


def _shorter_faults(scenario: Scenario) -> Iterator[Scenario]:
    for index, fault in enumerate(scenario.faults):
        for shorter in _shorter(fault):
            yield replace(scenario, faults=(*scenario.faults[:index], shorter, *scenario.faults[index + 1 :]))


def _shorter(fault: Fault) -> Iterator[Fault]:
    if fault.for_s > 0.1:
        yield replace(fault, for_s=round(fault.for_s / 2, 2))
    if fault.at_s > 0.1:
        yield replace(fault, at_s=round(fault.at_s / 2, 2))
    for digits in (1, 2, 3):
        rounded = replace(fault, at_s=round(fault.at_s, digits), for_s=round(fault.for_s, digits))
        if rounded != fault:
            yield rounded


def _constant_delays(scenario: Scenario) -> Iterator[Scenario]:
    delays = scenario.delays
    for constant in (
        replace(delays, network_s=(0.0005, 0.0005), sync_s=(0.002, 0.002), stall_rate=0.0),
        replace(delays, network_s=(0.0005, 0.0005)),
        replace(delays, sync_s=(0.002, 0.002), stall_rate=0.0),
        replace(delays, stall_rate=0.0),
    ):
        if _chances(constant) < _chances(delays):
            yield replace(scenario, delays=constant)


def _chances(delays: Delays) -> int:
    """How many of the delays are still drawn."""
    spans = (delays.network_s, delays.sync_s)
    return sum(span is None or span[0] < span[1] for span in spans) + (delays.stall_rate != 0.0)


def _constant_work(scenario: Scenario) -> Iterator[Scenario]:
    yield from _each_workload(scenario, lambda workload: WORKLOAD_KINDS[type(workload)].constant(workload))
