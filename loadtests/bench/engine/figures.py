"""The figures of the queue engine by itself: what is measured, what is aimed at, and the verdicts."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import msgspec
from rich.table import Table

from assay.loadtests.bench.engine import measure
from assay.loadtests.bench.engine.delays import measure_delays
from assay.loadtests.bench.engine.queue_rebalance import measure_rebalance
from assay.loadtests.bench.report import MARKS
from assay.loadtests.machine import this_machine
from assay.reference_broker.config import RebalanceProtocol
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Verdict, worst
from assay.reference_broker.trace.terminal import WholeTable


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything. The defaults take about half a minute a round."""

    rounds: int = 3
    batches: int = 200
    singles: int = 50_000
    turns: int = 500
    rate_per_s: int = 10_000
    seconds: float = 2.0
    queued: tuple[int, ...] = (10, 10_000, 1_000_000)
    """Standing numbers of queued messages; the cost beside the others is compared with the first's."""
    delayed: int = 1_000_000


def quick_engine_plan() -> EnginePlan:
    """Small numbers: everything runs, nothing is worth judging."""
    return EnginePlan(rounds=1, batches=3, singles=500, turns=5, seconds=0.1, queued=(10, 1_000), delayed=1_000)


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, and the bound that it should keep; ``bound`` None: it only informs."""

    name: str
    title: str
    unit: str
    measure: Callable[[EnginePlan], float]
    bound: float | None = None
    at_least: bool = True
    share_of: str = ""
    """``bound`` is on the ratio to this other line."""
    once: bool = False
    """The same in every round."""


def _cost(queued: int) -> Callable[[EnginePlan], float]:
    return lambda _: measure.cost_us(queued)


def _cost_lines(plan: EnginePlan) -> list[EngineLine]:
    first = f"cost_{plan.queued[0]}"
    return [
        EngineLine(
            name=f"cost_{queued}",
            title=f"publish to ack with {queued:,} queued",
            unit="us",
            measure=_cost(queued),
            bound=None if number == 0 else 1.5,
            at_least=False,
            share_of="" if number == 0 else first,
        )
        for number, queued in enumerate(plan.queued)
    ]


def _rebalance_ms(protocol: RebalanceProtocol) -> Callable[[EnginePlan], float]:
    return lambda _: measure_rebalance(protocol).join_ms


def _rebalance_lines() -> list[EngineLine]:
    lines = [
        EngineLine(
            name=f"rebalance_{protocol.value}",
            title=f"rebalance of 100 partitions, 10 consumers, {protocol.value}",
            unit="ms",
            measure=_rebalance_ms(protocol),
            bound=50.0,
            at_least=False,
        )
        for protocol in RebalanceProtocol
    ]
    pause = EngineLine(
        name="rebalance_pause",
        title="pause of partitions that do not move, cooperative",
        unit="ms",
        measure=lambda _: measure_rebalance(RebalanceProtocol.COOPERATIVE).longest_pause_of_unmoved_ms,
        bound=0.0,
        at_least=False,
    )
    return [*lines, pause]


def _delay_lines(plan: EnginePlan) -> list[EngineLine]:
    pending = f"{plan.delayed:,} delayed messages"
    # Measured in a process of their own, all at once: the second line only reads what the first has measured.
    found = functools.cache(lambda: measure_delays(plan.delayed, measure.PAYLOAD_BYTES, on_disk=False))
    return [
        EngineLine(
            name="delayed_memory",
            title=f"memory of {pending}",
            unit="MB",
            measure=lambda _: found().grown_bytes / 1e6,
            bound=250,
            at_least=False,
            once=True,
        ),
        EngineLine(
            name="delayed_scheduled",
            title=f"delay, {pending}",
            unit="messages/s",
            measure=lambda _: found().scheduled_per_s,
            once=True,
        ),
        EngineLine(
            name="delayed_fired",
            title=f"fire, {pending} in random order",
            unit="messages/s",
            measure=lambda _: found().fired_per_s,
            once=True,
        ),
    ]


def engine_lines(plan: EnginePlan) -> list[EngineLine]:
    """What is measured, in order."""
    return [
        EngineLine(
            name="enqueue_batch",
            title=f"enqueue, batches of {measure.BATCH:,}",
            unit="messages/s",
            measure=lambda plan: measure.enqueue_batches(plan.batches),
            bound=812_000,
        ),
        EngineLine(
            name="enqueue_single",
            title="enqueue, each a turn of its own",
            unit="messages/s",
            measure=lambda plan: measure.enqueue_singly(plan.singles),
            bound=150_000,
        ),
        EngineLine(
            name="life",
            title=f"enqueue, deliver, ack; turns of {measure.TURN}",
            unit="messages/s",
            measure=lambda plan: measure.life(plan.turns),
            bound=100_000,
        ),
        EngineLine(
            name="life_single",
            title="the same, each a turn of its own",
            unit="messages/s",
            measure=lambda plan: measure.life(plan.turns * 20, 1),
        ),
        EngineLine(
            name="p99",
            title=f"p99 publish to ack at {plan.rate_per_s:,}/s",
            unit="ms",
            measure=lambda plan: measure.latency_ms(plan.rate_per_s, plan.seconds),
            bound=1.0,
            at_least=False,
        ),
        *_cost_lines(plan),
        *_rebalance_lines(),
        *_delay_lines(plan),
        EngineLine(
            name="consumer",
            title="memory of an idle consumer",
            unit="bytes",
            measure=lambda _: measure.consumer_bytes(),
            bound=1_024,
            at_least=False,
            once=True,
        ),
        EngineLine(
            name="partition",
            title="memory of an empty partition, with one group",
            unit="bytes",
            measure=lambda _: measure.partition_bytes(),
            bound=2_048,
            at_least=False,
            once=True,
        ),
    ]


class EngineRun(msgspec.Struct, frozen=True, kw_only=True):
    """The values of every line, by round."""

    lines: list[EngineLine]
    values: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])


def run_engine_bench(plan: EnginePlan, progress: Callable[[str, float], None]) -> EngineRun:
    """Measure every line in every round. ``progress`` gets what is measured, and the share that is done."""
    lines = engine_lines(plan)
    values: dict[str, list[float]] = {line.name: [] for line in lines}
    done = 0
    for number in range(plan.rounds):
        for line in lines:
            progress(f"engine, round {number + 1} of {plan.rounds}: {line.title}", done / (plan.rounds * len(lines)))
            done += 1
            if number == 0 or not line.once:
                values[line.name].append(line.measure(plan))
    return EngineRun(lines=lines, values=values)


def checks(run: EngineRun) -> dict[str, Check]:
    """The verdict on every line that has a bound."""
    found = {}
    for line in run.lines:
        if line.bound is None:
            continue
        value, unit = run.median(line.name), line.unit
        if line.share_of:
            value, unit = value / run.median(line.share_of), "x"
        met = value >= line.bound if line.at_least else value <= line.bound
        found[line.name] = Check(
            name=f"{line.title}{' against the first' if line.share_of else ''}",
            value=value,
            unit=unit,
            bound=line.bound,
            relation=">=" if line.at_least else "<=",
            verdict=Verdict.PASS if met else Verdict.FAIL,
            source="ratio in the same run" if line.share_of else "absolute",
        )
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def table(run: EngineRun) -> Table:
    """A row for each line."""
    found = WholeTable(title="The queue engine in one process, messages of 100 bytes in memory", title_justify="left")
    found.add_column("figure", no_wrap=True)
    for name in ("median", "range", "unit"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("aim")
    judged = checks(run)
    for line in run.lines:
        check = judged.get(line.name)
        values = run.values[line.name]
        aim = "" if check is None else f"{MARKS[check.verdict]} {check.relation} {check.bound:,g} {check.unit}"
        spread = f"{_number(min(values))} - {_number(max(values))}"
        found.add_row(line.title, _number(run.median(line.name)), spread, line.unit, aim)
    return found


def engine_result(run: EngineRun, *, command: str, judge: bool) -> RunResult:
    """The run in the schema of all verdicts; without ``judge`` nothing is judged."""
    judged = list(checks(run).values()) if judge else []
    met = sum(check.verdict is Verdict.PASS for check in judged)
    return RunResult(
        kind=RunKind.BENCH,
        name="bench queue engine",
        verdict=worst([check.verdict for check in judged]),
        summary=f"engine: {met} of {len(judged)} aims met" if judge else "engine: not judged",
        target="reference engine",
        world="real",
        command=command,
        checks=judged,
        metrics={f"{line.name}.{line.unit.replace('/', '_per_')}": run.median(line.name) for line in run.lines},
        machine=this_machine(),
    )
