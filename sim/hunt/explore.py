"""Runs many schedules of one scenario, over several processes, until enough of them find something."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import groupby
from multiprocessing.synchronize import Event
from typing import Final

import msgspec

from assay.conformance.checkers.tables import DLQ_PREFIX
from assay.faults.scenario import AmqpWorkload, QueueWorkload, Scenario, Workload
from assay.reference_broker.storage.queue_store import REFUSED
from assay.reference_broker.trace.fault_classes import CRASHING, Lies, destroys
from assay.reference_broker.trace.results import Finding, Severity, Verdict
from assay.reference_broker.trace.schema import AckedMeans, HistoryEvent, OpKind, OpType
from assay.sim.guard import NondeterminismError
from assay.sim.hunt.findings import FindingClass, classes_of
from assay.sim.hunt.schedule import (
    FAMILY,
    Aim,
    Schedule,
    ScheduleStyle,
    aimed,
    drawn_blindly,
    family_of,
    from_file,
    varied_of,
)
from assay.sim.hunt.states import RunCoverage, Sightings, Step, coverage_of, steps_of
from assay.sim.runner import SimOutcome, simulate
from assay.sim.world import WorldError

MAX_SEEDS: Final = 1_000_000
LIVENESS: Final = "liveness"
_EXCUSED: Final = frozenset({"lost", "dlq_loss", "resurrection"})
"""Checkers whose findings of quality are losses that the contract allows."""


class SeedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one schedule showed."""

    seed: int
    """Its number in the exploration; the seed of its world is its scenario's."""
    verdict: Verdict
    classes: tuple[FindingClass, ...]
    message: str
    trace_hash: str
    simulated_s: float
    wall_s: float
    trace_count: int
    excused: bool = False
    """Something was lost or came again that a fault may take under this contract, or a queue was set aside for it."""
    schedule: Schedule | None = None
    """Of runs that do not pass."""
    coverage: RunCoverage | None = None
    """Of runs that were watched."""

    @property
    def signature(self) -> frozenset[tuple[str, str]]:
        """(checker, anomaly) of what makes it fail."""
        return frozenset((each.checker, each.anomaly) for each in self.classes)


class FindingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that found the same, in order of their numbers."""

    of: FindingClass
    outcomes: list[SeedOutcome]


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What all schedules showed, by number."""

    outcomes: list[SeedOutcome]
    wall_s: float
    out_of_time: bool = False

    def having(self, *verdicts: Verdict) -> list[SeedOutcome]:
        """The outcomes with one of these verdicts."""
        return [outcome for outcome in self.outcomes if outcome.verdict in verdicts]

    def groups(self) -> list[FindingGroup]:
        """What was found, the most frequent first."""
        by_class: dict[FindingClass, list[SeedOutcome]] = {}
        for outcome in self.outcomes:
            for each in outcome.classes:
                by_class.setdefault(each, []).append(outcome)
        groups = [FindingGroup(of=each, outcomes=outcomes) for each, outcomes in by_class.items()]
        return sorted(groups, key=lambda group: (-len(group.outcomes), group.of))

    @property
    def seeds_per_hour(self) -> float:
        return len(self.outcomes) / self.wall_s * 3600 if self.wall_s else 0.0

    @property
    def sim_real_ratio(self) -> float:
        """Simulated seconds per real second, all processes together."""
        return sum(outcome.simulated_s for outcome in self.outcomes) / self.wall_s if self.wall_s else 0.0


def run_schedule(
    schedule: Schedule, mutants: tuple[str, ...] = (), *, watch: bool = False
) -> tuple[SeedOutcome, list[HistoryEvent]]:
    """Simulate one schedule; with the history. A simulation that goes wrong itself has the verdict ``error``.

    ``watch``: look which rare states are reached.
    """
    scenario = schedule.scenario
    started = time.perf_counter()
    sightings = Sightings() if watch else None
    try:
        outcome = simulate(scenario, scenario.seed, mutants=(*mutants, *schedule.variations), watcher=sightings)
    except (WorldError, NondeterminismError) as error:
        broken = Finding(
            checker="simulation", anomaly="error", severity=Severity.SAFETY, message=f"{type(error).__name__}: {error}"
        )
        return (
            SeedOutcome(
                seed=schedule.number,
                verdict=Verdict.ERROR,
                classes=classes_of([broken]),
                message=broken.message,
                trace_hash="",
                simulated_s=0.0,
                wall_s=time.perf_counter() - started,
                trace_count=0,
                schedule=schedule,
            ),
            [],
        )
    verdict, unproved, set_aside = outcome.verdict, [], False
    if verdict is Verdict.UNKNOWN:
        undrained = outcome.judgement.undrained
        stuck = undrained.keys() - _set_aside_lawfully(scenario, outcome)
        set_aside = len(stuck) < len(undrained)
        unproved = [_unproved(reason, "F8") for reason in sorted(stuck)]
        if not scenario.faults:
            idle = (reason for reason in outcome.judgement.reasons if reason not in undrained)
            unproved += [_unproved(reason, "nothing happened") for reason in idle]
        if not unproved:
            verdict = Verdict.PASS
    findings = [*outcome.findings, *unproved]
    classes = classes_of(findings)
    return (
        SeedOutcome(
            seed=schedule.number,
            verdict=verdict,
            classes=classes,
            message="; ".join(finding.message for finding in findings if finding.severity is Severity.SAFETY),
            trace_hash=outcome.run.trace_hash,
            simulated_s=outcome.run.simulated_s,
            wall_s=time.perf_counter() - started,
            trace_count=outcome.run.trace_count,
            excused=set_aside
            or any(finding.severity is Severity.QUALITY and finding.checker in _EXCUSED for finding in findings),
            schedule=schedule if classes else None,
            coverage=None if sightings is None else coverage_of(scenario, outcome.run.events, sightings),
        ),
        outcome.run.events,
    )


def _set_aside_lawfully(scenario: Scenario, outcome: SimOutcome) -> set[str]:
    """Why nothing is known of queues that the broker refuses, and says so, since it was started after a fault that may
    take what it must know of them (Q-DURA-16). All that a workload has in queues is read to its end together."""
    lies, is_damaged, may_refuse = Lies(), False, False
    for event in outcome.run.events:
        if event.f is OpKind.FAULT:
            kind = event.detail.split(maxsplit=1)[0]
            if event.type is OpType.INVOKE:
                is_damaged |= destroys(kind, AckedMeans.DISK, lied=lies.before(kind))
            may_refuse |= is_damaged and kind in CRASHING and event.type is OpType.OK
    refused = {note.queue for note in outcome.run.storage_notes if note.problem.endswith(REFUSED) and may_refuse}
    unread = [workload for workload in scenario.workload if any(_is_of(workload, queue) for queue in refused)]
    undrained = outcome.judgement.undrained.items()
    return {reason for reason, queue in undrained if any(_is_of(workload, queue) for workload in unread)}


def _is_of(workload: Workload, queue: str) -> bool:
    """Whether a workload puts something into a queue, dead letters included."""
    name = queue.removeprefix(DLQ_PREFIX)
    match workload:
        case QueueWorkload():
            return name == workload.queue
        case AmqpWorkload():
            return name == workload.name or name.startswith(f"{workload.name}.")
    return False


def _unproved(reason: str, anomaly: str) -> Finding:
    """Everything had healed and there was time enough: a queue that cannot be read to its end is stuck.

    That nothing happened at all is something else: no smaller form of a stuck queue is to be so small. Faults may last
    as long as the workload.
    """
    return Finding(checker=LIVENESS, anomaly=anomaly, severity=Severity.SAFETY, message=reason)


def run_seed(
    scenario: Scenario, seed: int, mutants: tuple[str, ...] = (), style: ScheduleStyle = ScheduleStyle.FILE
) -> SeedOutcome:
    """One schedule of an exploration, by its number."""
    (outcome,) = run_numbers(scenario, [seed], style, mutants)
    return outcome


def run_numbers(
    scenario: Scenario,
    numbers: Iterable[int],
    style: ScheduleStyle,
    mutants: tuple[str, ...] = (),
    *,
    watch: bool = False,
) -> Iterator[SeedOutcome]:
    """Schedules of an exploration, by their numbers; those of one family one after the other cost the least."""
    drawing = _Drawing(scenario, style, mutants)
    for number in numbers:
        schedule = drawing.schedule(number)
        outcome, events = run_schedule(schedule, mutants, watch=watch)
        drawing.ran(schedule, events)
        yield outcome


def schedule_of(scenario: Scenario, number: int, style: ScheduleStyle, mutants: tuple[str, ...] = ()) -> Schedule:
    """A schedule of an exploration by its number; one that aims needs the runs of those of its family before it."""
    return _Drawing(scenario, style, mutants).schedule(number)


class _Drawing:
    """Draws schedules by their numbers, and remembers the runs that those of one family aim at.

    It is guided: who reached the most that nobody in the family had reached before is varied further. A family is run
    in order, so what its members are depends on their numbers alone.
    """

    def __init__(self, scenario: Scenario, style: ScheduleStyle, mutants: tuple[str, ...]) -> None:
        self._scenario = scenario
        self._style = style
        self._mutants = mutants
        self._blind: Aim | None = None
        self._newest: Aim | None = None
        self._most = 0
        """What the newest run reached and none before it in its family."""
        self._reached: set[Step] = set()
        self._ran_to = 0
        """The last drawn number that was run."""

    def schedule(self, number: int) -> Schedule:
        """The schedule of a number; what it depends on is run unless it was run just before."""
        drawn = _drawn_number(number, self._style)
        if not drawn:
            return from_file(self._scenario, number)
        first = family_of(drawn)
        for earlier in range(self._ran_to + 1 if first <= self._ran_to < drawn else first, drawn):
            schedule = self._member(earlier)
            self._note(earlier, schedule, run_schedule(schedule, self._mutants)[1])
        return msgspec.structs.replace(self._member(drawn), number=number)

    def _member(self, drawn: int) -> Schedule:
        if drawn == family_of(drawn):
            return drawn_blindly(self._scenario, drawn)
        assert self._blind is not None
        assert self._newest is not None
        at = varied_of(drawn, self._blind, self._newest)
        return aimed(at.schedule, drawn, at.events)

    def ran(self, schedule: Schedule, events: list[HistoryEvent]) -> None:
        """What the schedule left that was asked for last."""
        drawn = _drawn_number(schedule.number, self._style)
        if drawn:
            self._note(drawn, msgspec.structs.replace(schedule, number=drawn), events)

    def _note(self, drawn: int, schedule: Schedule, events: list[HistoryEvent]) -> None:
        self._ran_to = drawn
        steps = steps_of(events)
        if not schedule.aimed:
            self._blind = self._newest = Aim(schedule, events)
            self._most, self._reached = 0, steps
            return
        new = len(steps - self._reached)
        self._reached |= steps
        if new > self._most:
            self._newest, self._most = Aim(schedule, events), new


def _drawn_number(number: int, style: ScheduleStyle) -> int:
    """Which drawn schedule a number of the exploration is; 0: the file's own."""
    if style is ScheduleStyle.BOTH:
        return 0 if number % 2 else number // 2
    return number if style is ScheduleStyle.SWARM else 0


def explore(
    scenario: Scenario,
    *,
    first_seed: int,
    seeds: int,
    style: ScheduleStyle = ScheduleStyle.FILE,
    mutants: tuple[str, ...] = (),
    jobs: int = 1,
    stop_after: int = 0,
    time_limit_s: float = 0.0,
    watch: bool = False,
    on_outcome: Callable[[SeedOutcome], None] | None = None,
) -> Exploration:
    """Run ``seeds`` consecutive numbers; stop early after ``stop_after`` failing ones, or some time (0 = never).

    Raises as :func:`assay.sim.runner.simulate`, except for errors of single simulations.
    """
    if not 1 <= seeds <= MAX_SEEDS or jobs < 1 or first_seed < 1:
        message = f"seeds must be 1 to {MAX_SEEDS}, and the first seed and jobs at least 1"
        raise ValueError(message)
    started = time.perf_counter()
    outcomes: list[SeedOutcome] = []
    failing = 0
    out_of_time = False
    numbers = range(first_seed, first_seed + seeds)
    if jobs == 1:
        source = run_numbers(scenario, numbers, style, mutants, watch=watch)
    else:
        source = _in_parallel(scenario, numbers, style, mutants, jobs, watch=watch)
    for outcome in source:
        outcomes.append(outcome)
        failing += outcome.verdict is not Verdict.PASS
        if on_outcome is not None:
            on_outcome(outcome)
        out_of_time = 0 < time_limit_s <= time.perf_counter() - started
        if out_of_time or (stop_after and failing >= stop_after):
            break
    outcomes.sort(key=lambda outcome: outcome.seed)
    done = len(outcomes) == seeds
    return Exploration(outcomes=outcomes, wall_s=time.perf_counter() - started, out_of_time=out_of_time and not done)


_stopping: Event | None = None
"""In a worker process: nobody waits for more."""


def _prepare(stopping: Event) -> None:
    global _stopping
    _stopping = stopping


def _run_all(
    scenario: Scenario, numbers: list[int], style: ScheduleStyle, mutants: tuple[str, ...], watch: bool
) -> list[SeedOutcome]:
    outcomes = []
    for outcome in run_numbers(scenario, numbers, style, mutants, watch=watch):
        outcomes.append(outcome)
        if _stopping is not None and _stopping.is_set():
            break
    return outcomes


def _in_parallel(
    scenario: Scenario, numbers: range, style: ScheduleStyle, mutants: tuple[str, ...], jobs: int, *, watch: bool
) -> Iterator[SeedOutcome]:
    # Fresh interpreters: a forked one would inherit whatever threads and patches this process has.
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    executor = ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=_prepare, initargs=(stopping,))
    together = 2 * FAMILY if style is ScheduleStyle.BOTH else FAMILY if style is ScheduleStyle.SWARM else 1
    waiting = (list(members) for _, members in groupby(numbers, lambda number: (number - 1) // together))
    running: set[Future[list[SeedOutcome]]] = set()
    try:
        while True:
            while len(running) < 2 * jobs and (members := next(waiting, None)) is not None:
                running.add(executor.submit(_run_all, scenario, members, style, mutants, watch))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()
    finally:
        stopping.set()
        executor.shutdown(wait=True, cancel_futures=True)
