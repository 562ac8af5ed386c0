"""The figures of the queue engine by itself: what is measured, what is aimed at, and the verdicts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from assay.loadtests.bench.engine import measure
from assay.loadtests.bench.engine.delays import measure_delays
from assay.loadtests.bench.engine.queue_rebalance import measure_rebalance
from assay.loadtests.bench.lines import Line
from assay.reference_broker.config import RebalanceProtocol


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


def _cost(queued: int) -> Callable[[], float]:
    return lambda: measure.cost_us(queued)


def _cost_lines(plan: EnginePlan) -> list[Line]:
    first = f"cost_{plan.queued[0]}"
    return [
        Line(
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


def _rebalance_ms(protocol: RebalanceProtocol) -> Callable[[], float]:
    return lambda: measure_rebalance(protocol).join_ms


def _rebalance_lines() -> list[Line]:
    lines = [
        Line(
            name=f"rebalance_{protocol.value}",
            title=f"rebalance of 100 partitions, 10 consumers, {protocol.value}",
            unit="ms",
            measure=_rebalance_ms(protocol),
            bound=50.0,
            at_least=False,
        )
        for protocol in RebalanceProtocol
    ]
    pause = Line(
        name="rebalance_pause",
        title="pause of partitions that do not move, cooperative",
        unit="ms",
        measure=lambda: measure_rebalance(RebalanceProtocol.COOPERATIVE).longest_pause_of_unmoved_ms,
        bound=0.0,
        at_least=False,
    )
    return [*lines, pause]


def _delay_lines(plan: EnginePlan) -> list[Line]:
    pending = f"{plan.delayed:,} delayed messages"
    # Measured in a process of their own, all at once: the second line only reads what the first has measured.
    found = functools.cache(lambda: measure_delays(plan.delayed, measure.PAYLOAD_BYTES, on_disk=False))
    return [
        Line(
            name="delayed_memory",
            title=f"memory of {pending}",
            unit="MB",
            measure=lambda: found().grown_bytes / 1e6,
            bound=250,
            at_least=False,
            once=True,
        ),
        Line(
            name="delayed_scheduled",
            title=f"delay, {pending}",
            unit="messages/s",
            measure=lambda: found().scheduled_per_s,
            once=True,
        ),
        Line(
            name="delayed_fired",
            title=f"fire, {pending} in random order",
            unit="messages/s",
            measure=lambda: found().fired_per_s,
            once=True,
        ),
    ]


def engine_lines(plan: EnginePlan) -> list[Line]:
    """What is measured, in order."""
    return [
        Line(
            name="enqueue_batch",
            title=f"enqueue, batches of {measure.BATCH:,}",
            unit="messages/s",
            measure=lambda: measure.enqueue_batches(plan.batches),
            bound=812_000,
        ),
        Line(
            name="enqueue_single",
            title="enqueue, each a turn of its own",
            unit="messages/s",
            measure=lambda: measure.enqueue_singly(plan.singles),
            bound=150_000,
        ),
        Line(
            name="life",
            title=f"enqueue, deliver, ack; turns of {measure.TURN}",
            unit="messages/s",
            measure=lambda: measure.life(plan.turns),
            bound=100_000,
        ),
        Line(
            name="life_single",
            title="the same, each a turn of its own",
            unit="messages/s",
            measure=lambda: measure.life(plan.turns * 20, 1),
        ),
        Line(
            name="life_traced",
            title=f"turns of {measure.TURN} with 1 % of the messages traced",
            unit="messages/s",
            measure=lambda: measure.life(plan.turns, traced=0.01),
            bound=0.95,
            share_of="life",
        ),
        Line(
            name="p99",
            title=f"p99 publish to ack at {plan.rate_per_s:,}/s",
            unit="ms",
            measure=lambda: measure.latency_ms(plan.rate_per_s, plan.seconds),
            bound=1.0,
            at_least=False,
        ),
        *_cost_lines(plan),
        *_rebalance_lines(),
        *_delay_lines(plan),
        Line(
            name="consumer",
            title="memory of an idle consumer",
            unit="bytes",
            measure=lambda: measure.consumer_bytes(),
            bound=1_024,
            at_least=False,
            once=True,
        ),
        Line(
            name="partition",
            title="memory of an empty partition, with one group",
            unit="bytes",
            measure=lambda: measure.partition_bytes(),
            bound=2_048,
            at_least=False,
            once=True,
        ),
    ]
