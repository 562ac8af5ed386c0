"""The figures of the simulator: its kernel beside bare SimPy, the checkers of histories, seeds an hour.

Kernel and checkers only compute, so a second of theirs is one of processor time: others on the machine do not count.
"""

from __future__ import annotations

import functools
import random
import time
import tracemalloc

import msgspec
import simpy

from assay.conformance.checkers import anomalies, check_history, relations
from assay.conformance.checkers.specimens import CONTRACT, right_history
from assay.faults.scenario import find_scenario
from assay.loadtests.bench.lines import Line
from assay.loadtests.bench.workload import BenchError
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import Contract, HistoryEvent, HistoryHeader
from assay.sim.hunt.explore import explore
from assay.sim.kernel import Kernel
from assay.sim.runner import simulate

WAITING = 100
"""Calls that wait in the queue at any time."""
_STEP_S = 0.001
_SEED = 1


class SimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    rounds: int = 3
    jobs: int = 1
    calls: int = 300_000
    messages: int = 30_000
    """Of the history that the checkers judge: about nine events each."""
    seeds: int = 160
    """Enough that the start of processes does not count."""


def quick_sim_plan(jobs: int) -> SimPlan:
    """Small numbers: everything runs, nothing is worth judging."""
    return SimPlan(rounds=1, jobs=min(jobs, 1), calls=2_000, messages=50, seeds=1)


def kernel_calls_per_s(calls: int) -> float:
    """Through the simulator's kernel, whose order is drawn from the seed."""
    kernel, rng = Kernel(_SEED), random.Random(_SEED)
    left = calls

    def again() -> None:
        nonlocal left
        left -= 1
        if left >= WAITING:
            kernel.after(rng.random() * _STEP_S, again)

    for _ in range(WAITING):
        kernel.after(rng.random() * _STEP_S, again)
    began = time.process_time()
    kernel.env.run()
    return calls / (time.process_time() - began)


def simpy_calls_per_s(calls: int) -> float:
    """The same through SimPy's own timeouts."""
    env, rng = simpy.Environment(), random.Random(_SEED)
    left = calls

    def again(_event: simpy.Event) -> None:
        nonlocal left
        left -= 1
        if left >= WAITING:
            env.timeout(rng.random() * _STEP_S).callbacks.append(again)

    for _ in range(WAITING):
        env.timeout(rng.random() * _STEP_S).callbacks.append(again)
    began = time.process_time()
    env.run()
    return calls / (time.process_time() - began)


@functools.cache
def _queue_history(messages: int) -> tuple[list[HistoryEvent], Contract]:
    rng = random.Random(_SEED)
    return right_history(rng, messages=messages, groups=2, consumers=2, faults=False), CONTRACT


@functools.cache
def _mqtt_history() -> tuple[list[HistoryEvent], Contract]:
    scenario = find_scenario("mqtt-sessions")
    return simulate(scenario, _SEED).run.events, scenario.contract


def judged_per_s(events: list[HistoryEvent], contract: Contract) -> float:
    """All checkers on one history. Raises :class:`BenchError` when they accuse it."""
    began = time.process_time()
    outcome = check_history(HistoryHeader(contract=contract), events)
    took_s = time.process_time() - began
    if outcome.verdict is not Verdict.PASS:
        message = f"the checkers accuse a right history: {outcome.findings or outcome.reasons}"
        raise BenchError(message)
    return len(events) / took_s


def held_bytes(events: list[HistoryEvent], contract: Contract) -> float:
    """What tables and checkers hold at most for an event, the events themselves aside: what is settled is forgotten."""
    tracemalloc.start()
    try:
        anomalies(relations(events, contract, few=0)[0], contract)
        return tracemalloc.get_traced_memory()[1] / len(events)
    finally:
        tracemalloc.stop()


def seeds_per_hour(seeds: int, jobs: int) -> float:
    """The default scenario, simulated and judged. Raises :class:`BenchError` when a seed does not pass."""
    found = explore(find_scenario("crash-restart"), first_seed=1, seeds=seeds, jobs=jobs)
    if len(found.having(Verdict.PASS)) != seeds:
        raise BenchError("a seed of crash-restart did not pass")
    return found.seeds_per_hour


def sim_lines(plan: SimPlan) -> list[Line]:
    """What is measured, in order."""
    return [
        Line(
            name="simpy",
            title=f"SimPy's timeouts, {WAITING} waiting",
            unit="calls/s",
            measure=lambda: simpy_calls_per_s(plan.calls),
        ),
        Line(
            name="kernel",
            title=f"the simulator's kernel, {WAITING} waiting",
            unit="calls/s",
            measure=lambda: kernel_calls_per_s(plan.calls),
            bound=0.4,
            share_of="simpy",
        ),
        Line(
            name="checkers_queue",
            title="checkers, a history of queues",
            unit="events/s",
            measure=lambda: judged_per_s(*_queue_history(plan.messages)),
            bound=300_000,
        ),
        Line(
            name="checkers_mqtt",
            title="checkers, a history of plain MQTT",
            unit="events/s",
            measure=lambda: judged_per_s(*_mqtt_history()),
        ),
        Line(
            name="checkers_memory",
            title="held by the checkers for an event",
            unit="bytes",
            measure=lambda: held_bytes(*_queue_history(plan.messages)),
            bound=50,
            at_least=False,
            once=True,
        ),
        Line(
            name="seeds",
            title="crash-restart, simulated and judged",
            unit="seeds/h",
            measure=lambda: seeds_per_hour(plan.seeds, plan.jobs),
            bound=20_000,
        ),
    ]
