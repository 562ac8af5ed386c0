"""Runs one scenario under many seeds, over several processes, until enough of them find something."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

import msgspec

from assay.faults.scenario import Scenario
from assay.reference_broker.trace.results import Verdict
from assay.sim.guard import NondeterminismError
from assay.sim.runner import simulate
from assay.sim.world import WorldError

MAX_SEEDS = 1_000_000


class SeedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed showed."""

    seed: int
    verdict: Verdict
    signature: frozenset[tuple[str, str]]
    """(checker, anomaly) of the safety findings."""
    message: str
    trace_hash: str
    simulated_s: float
    wall_s: float
    trace_count: int


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What all seeds showed, by seed."""

    outcomes: list[SeedOutcome]
    wall_s: float

    def having(self, *verdicts: Verdict) -> list[SeedOutcome]:
        """The outcomes with one of these verdicts."""
        return [outcome for outcome in self.outcomes if outcome.verdict in verdicts]

    @property
    def seeds_per_hour(self) -> float:
        return len(self.outcomes) / self.wall_s * 3600 if self.wall_s else 0.0

    @property
    def sim_real_ratio(self) -> float:
        """Simulated seconds per real second, all processes together."""
        return sum(outcome.simulated_s for outcome in self.outcomes) / self.wall_s if self.wall_s else 0.0


def run_seed(scenario: Scenario, seed: int, mutants: tuple[str, ...]) -> SeedOutcome:
    """Simulate one seed. A simulation that goes wrong itself is an outcome too: verdict ``error``."""
    started = time.perf_counter()
    try:
        outcome = simulate(scenario, seed, mutants=mutants)
    except (WorldError, NondeterminismError) as error:
        return SeedOutcome(
            seed=seed,
            verdict=Verdict.ERROR,
            signature=frozenset(),
            message=str(error),
            trace_hash="",
            simulated_s=0.0,
            wall_s=time.perf_counter() - started,
            trace_count=0,
        )
    message = "; ".join(finding.message for finding in outcome.findings[:3])
    return SeedOutcome(
        seed=seed,
        verdict=outcome.verdict,
        signature=outcome.signature,
        message=message or "; ".join(outcome.judgement.reasons),
        trace_hash=outcome.run.trace_hash,
        simulated_s=outcome.run.simulated_s,
        wall_s=outcome.wall_s,
        trace_count=outcome.run.trace_count,
    )


def explore(
    scenario: Scenario,
    *,
    first_seed: int,
    seeds: int,
    mutants: tuple[str, ...] = (),
    jobs: int = 1,
    stop_after: int = 0,
    on_outcome: Callable[[SeedOutcome], None] | None = None,
) -> Exploration:
    """Run ``seeds`` consecutive seeds; stop early after ``stop_after`` failing ones (0 = never).

    Raises as :func:`assay.sim.runner.simulate`, except for errors of single simulations.
    """
    if not 1 <= seeds <= MAX_SEEDS or jobs < 1:
        message = f"seeds must be 1 to {MAX_SEEDS}, and jobs at least 1"
        raise ValueError(message)
    started = time.perf_counter()
    outcomes: list[SeedOutcome] = []
    failing = 0
    numbers = range(first_seed, first_seed + seeds)
    source = _in_turn(scenario, numbers, mutants) if jobs == 1 else _in_parallel(scenario, numbers, mutants, jobs)
    for outcome in source:
        outcomes.append(outcome)
        failing += outcome.verdict is Verdict.FAIL
        if on_outcome is not None:
            on_outcome(outcome)
        if stop_after and failing >= stop_after:
            break
    outcomes.sort(key=lambda outcome: outcome.seed)
    return Exploration(outcomes=outcomes, wall_s=time.perf_counter() - started)


def _in_turn(scenario: Scenario, numbers: range, mutants: tuple[str, ...]) -> Iterator[SeedOutcome]:
    for seed in numbers:
        yield run_seed(scenario, seed, mutants)


def _in_parallel(scenario: Scenario, numbers: range, mutants: tuple[str, ...], jobs: int) -> Iterator[SeedOutcome]:
    # Fresh interpreters: a forked one would inherit whatever threads and patches this process has.
    executor = ProcessPoolExecutor(max_workers=jobs, mp_context=multiprocessing.get_context("spawn"))
    waiting = iter(numbers)
    running: set[Future[SeedOutcome]] = set()
    try:
        while True:
            while len(running) < 2 * jobs and (seed := next(waiting, None)) is not None:
                running.add(executor.submit(run_seed, scenario, seed, mutants))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
