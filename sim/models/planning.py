"""Capacity planning: the fewest nodes, partitions and consumers for a rate at a p99, and how sure that answer is.

Nodes are tried from the fewest that could do it, each number by a simulation in which one node dies at once: the bound
must hold without it. Consumers of a group each have partitions of their own, so each is a queue of its own. Then
each parameter is halved and doubled, and the nodes are counted again.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from assay.reference_broker.trace.results import Series
from assay.sim.models import closed_forms, cluster, statistics
from assay.sim.models.cluster_world import ClusterParameters
from assay.sim.models.customers import MAX_CUSTOMERS, Customers
from assay.sim.models.mm1 import P99, serve
from assay.sim.models.model import Model, ModelError, Outcome, Part, Progress, between, load_parameters, within

MAX_NODES: Final = 64
_DEATH: Final[dict[str, Any]] = {
    "kill_at_s": 0.02,
    "detection_s": (0.0, 0.0),
    "election_s": 0.0,
    "retry_s": 0.01,
    "restart_at_s": 0.0,
}
"""A node dies at once, and everybody knows: what is measured is the cluster without it."""
_NO_GAIN: Final = 0.97
"""Another node that leaves this share of p99 does not help: what is left does not depend on the number of nodes."""
_PLANNED = P99
_SPARE: Final = 0.9
"""No station is planned busier than this."""


class PlanningParameters(Part, frozen=True, kw_only=True):
    """What is wanted; the nodes themselves are those of ``cluster.yaml``, but for ``cluster``."""

    messages_per_s: Annotated[float, Meta(gt=0, le=1e8)]
    p99_ms: Annotated[float, Meta(gt=0, le=1e6)]
    """From when a message was due to its acknowledgement, with one node dead."""
    partition_messages_per_s: Annotated[float, Meta(gt=0)]
    """That one partition takes at most."""
    consumer_messages_per_s: Annotated[float, Meta(gt=0)]
    """That one consumer works off on average; its times are exponential."""
    consume_p99_ms: Annotated[float, Meta(gt=0, le=1e6)]
    """From the delivery to the settlement."""
    consumed: Annotated[int, Meta(ge=10_000, le=MAX_CUSTOMERS)]
    """Messages of the simulation of one consumer, which checks the number of consumers."""
    measured_s: Annotated[float, Meta(ge=0.2, le=10)]
    """Simulated time of each try."""
    varied: tuple[
        Literal[
            "messages_per_s",
            "message_bytes",
            "fsync_s",
            "linger_s",
            "message_cpu_s",
            "node_latency_s",
            "nic_bytes_per_s",
            "disk_bytes_per_s",
        ],
        ...,
    ]
    """What is halved and doubled."""
    cluster: dict[str, Any]
    """Parameters of the cluster that differ from ``cluster.yaml``."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest nodes, or 0 when no number holds; ``tried`` has p99 in ms by number of nodes."""

    nodes: int
    tried: dict[int, float]

    @property
    def best_ms(self) -> float:
        return min(self.tried.values())


class Planner:
    """Asks the cluster model, each question once."""

    def __init__(self, parameters: PlanningParameters, seed: int) -> None:
        self.parameters, self.seed = parameters, seed
        base, _ = load_parameters(cluster.MODEL, None, parameters.cluster)
        self.base: ClusterParameters = base

    def partitions(self, nodes: int, rate: float) -> int:
        """As many for each node, so that none leads more than another."""
        needed = max(self.consumers(rate), math.ceil(rate / self.parameters.partition_messages_per_s), 2 * nodes)
        return math.ceil(needed / nodes) * nodes

    def consumers(self, rate: float) -> int:
        """Fewest such that p99 of M/M/1 with an even share of the rate holds."""
        wanted = self.parameters
        spare = -math.log(1 - P99) / (wanted.consume_p99_ms / 1e3)
        each = wanted.consumer_messages_per_s - spare
        if each <= 0:
            message = (
                f"one consumer needs {-math.log(1 - P99) / wanted.consumer_messages_per_s * 1e3:.3g} ms for p99 alone"
            )
            raise ModelError(f"{message}: consume_p99_ms is below that")
        return max(1, math.ceil(rate / each))

    def p99_ms(self, nodes: int, changes: dict[str, float], seed: int) -> float:
        """With one of the nodes dead from the beginning; infinite when requests are left unanswered."""
        rate = changes.get("messages_per_s", self.parameters.messages_per_s)
        begin_s = self.base.warm_up_s
        world = cluster.simulate(
            self.base,
            seed,
            changes,
            {
                "messages_per_s": rate,
                "nodes": nodes,
                "partitions": self.partitions(nodes, rate),
                **_DEATH,
                "horizon_s": begin_s + self.parameters.measured_s + 0.1,
            },
        )
        measured = cluster.phase(world, "without a node", begin_s, begin_s + self.parameters.measured_s)
        return measured.quantile_ms(_PLANNED)

    def p99_after_a_death_ms(self, nodes: int, seed: int) -> float:
        """The same by the whole cluster model: healthy first, then a death that has to be noticed."""
        rate, begin_s = self.parameters.messages_per_s, self.base.warm_up_s
        world = cluster.simulate(
            self.base,
            seed,
            {
                "messages_per_s": rate,
                "nodes": nodes,
                "partitions": self.partitions(nodes, rate),
                "kill_at_s": begin_s,
                "detection_s": (0.05, 0.05),
                "election_s": 0.0,
                "retry_s": 0.01,
                "restart_at_s": 0.0,
                "settle_s": 0.15,
                "horizon_s": begin_s + self.parameters.measured_s + 0.3,
            },
        )
        return cluster.phases(world)[-1].quantile_ms(P99)

    def floor(self, changes: dict[str, float]) -> int:
        """Fewest nodes whose stations could carry the bytes and the work at all, with one of them dead."""
        base = msgspec.structs.replace(self.base, **changes)
        rate = changes.get("messages_per_s", self.parameters.messages_per_s)
        copies, size = base.replication_factor, base.message_bytes
        loads = (
            rate * size * (copies - 1 + base.consumer_groups) / base.nic_bytes_per_s,
            rate * size * copies / base.disk_bytes_per_s,
            rate * copies * base.message_cpu_s / base.cores,
        )
        return max(copies, 2, math.ceil(max(loads) / _SPARE) + 1)

    def plan(self, changes: dict[str, float], first: int = 0) -> Plan:
        """Try upwards from ``first``, or from the floor; when ``first`` holds already, downwards."""
        low = self.floor(changes)
        nodes = max(first, low)
        tried: dict[int, float] = {}
        bound, worse = self.parameters.p99_ms, 0
        while nodes <= MAX_NODES:
            tried[nodes] = self.p99_ms(nodes, changes, self.seed)
            if tried[nodes] <= bound:
                while nodes > low and nodes - 1 not in tried:
                    tried[nodes - 1] = self.p99_ms(nodes - 1, changes, self.seed)
                    if tried[nodes - 1] > bound:
                        break
                    nodes -= 1
                return Plan(nodes=nodes, tried=tried)
            before = tried.get(nodes - 1, math.inf)
            worse = worse + 1 if math.isfinite(tried[nodes]) and tried[nodes] > _NO_GAIN * before else 0
            if worse == 2:
                break
            nodes += 1
        return Plan(nodes=0, tried=tried)


def _told(nodes: int) -> str:
    return f"{nodes}" if nodes else "none"


def run(parameters: PlanningParameters, seed: int, progress: Progress) -> Outcome:
    """The plan, the proof that less does not do, and its sensitivity."""
    planner = Planner(parameters, seed)
    rate, bound = parameters.messages_per_s, parameters.p99_ms
    progress("fewest nodes", 0.0)
    plan = planner.plan({})
    consumers = planner.consumers(rate)
    metrics: dict[str, float | int | str] = {"nodes": plan.nodes, "consumers": consumers}
    rows = []
    if plan.nodes:
        metrics["partitions"] = planner.partitions(plan.nodes, rate)
        again = planner.p99_after_a_death_ms(plan.nodes, seed + 1)
        what = f"p99 with {plan.nodes} nodes after one died under load, another seed"
        rows.append(between(what, again, 0, 1.1 * bound, "ms", "the bound, +10 %"))
        if plan.nodes - 1 in plan.tried:
            fewer = plan.tried[plan.nodes - 1]
            rows.append(
                between(f"p99 with {plan.nodes - 1} nodes", fewer, bound, math.inf, "ms", "must miss the bound")
            )
    else:
        rows.append(between("best p99 of any number of nodes", plan.best_ms, bound, math.inf, "ms", "must miss it"))
    share = rate / consumers
    customers = Customers.poisson(parameters.consumed, share, seed).exponential(
        1 / parameters.consumer_messages_per_s, seed
    )
    p99 = statistics.quantile(statistics.settled(serve(customers, 1)[0]), P99)
    expected_ms = closed_forms.mm1_quantile_s(share, parameters.consumer_messages_per_s, P99) * 1e3
    rows.append(
        within(
            f"p99 of one of {consumers} consumers",
            p99.value * 1e3,
            expected_ms,
            "ms",
            "closed form: M/M/1",
            percent=10,
            standard_error=p99.standard_error * 1e3,
        )
    )
    answers = [
        f"{rate:,.0f} messages/s at p99 {bound:g} ms, one node dead: "
        + (
            f"{plan.nodes} nodes, {metrics['partitions']} partitions, {consumers} consumers"
            if plan.nodes
            else f"no number of nodes holds it, the best p99 is {plan.best_ms:.3g} ms"
        )
    ]
    moves = []
    for number, name in enumerate(parameters.varied):
        now = getattr(planner.base, name) if name != "messages_per_s" else rate
        for times in (0.5, 2.0):
            progress(f"{name} x {times:g}", 0.2 + 0.8 * (number + times / 4) / len(parameters.varied))
            value = now * times
            change: dict[str, float] = {name: int(value) if name == "message_bytes" else value}
            found = planner.plan(change, plan.nodes)
            metrics[f"nodes if {name} x {times:g}"] = found.nodes
            if found.nodes != plan.nodes:
                moves.append(f"{name} x {times:g}: {_told(found.nodes)}")
    answers.append(
        f"it changes with {', '.join(moves)}" if moves else "halving or doubling any parameter changes nothing"
    )
    metrics["sensitive_to"] = "; ".join(moves)
    series = [
        Series(
            name="p99 with one node dead",
            unit="ms",
            x_s=[float(nodes) for nodes in sorted(plan.tried)],
            y=[value if math.isfinite(value := plan.tried[nodes]) else None for nodes in sorted(plan.tried)],
            group="p99 by number of nodes",
        )
    ]
    return Outcome(rows=rows, series=series, x_axis="nodes", metrics=metrics, answers=answers)


MODEL = Model(
    name="planning",
    what="the fewest nodes, partitions and consumers for a rate at a p99",
    parameters=PlanningParameters,
    run=run,
)
