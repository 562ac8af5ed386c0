"""A replicated cluster that is asked a question: does a latency hold at a rate, and what happens when a node dies?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from assay.reference_broker.trace.results import Band, Series
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.models import closed_forms
from assay.sim.models.cluster_world import Acks, ClusterParameters, ClusterWorld, Request
from assay.sim.models.model import Floats, Latencies, Model, Outcome, Progress, Row, between, within

_ENOUGH = 1e15
"""Bytes a second of what is not to matter."""
_FREE: dict[str, Any] = {
    "request_cpu_s": 0.0,
    "message_cpu_s": 0.0,
    "nic_bytes_per_s": _ENOUGH,
    "disk_bytes_per_s": _ENOUGH,
    "client_latency_s": 0.0,
    "consumer_groups": 0,
    "producers": 1,
    "linger_s": 0.0,
    "warm_up_s": 0.0,
    "kill_at_s": 0.0,
    "restart_at_s": 0.0,
    "message_bytes": 100,
}
_POLICY_MESSAGES_PER_S = 20_000.0


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests that were due in a part of the run."""

    name: str
    from_s: float
    to_s: float
    latencies_s: Floats
    due_s: Floats
    deliveries_s: Floats
    """From due to a consumer, of those that were delivered; none without consumer groups."""
    delivered_due_s: Floats
    unanswered: int
    messages_per_s: float
    """Acknowledged, of those that were due in it."""

    def quantile_ms(self, share: float) -> float:
        """Unanswered requests count as the worst; infinite if one of them is asked for."""
        whole = np.concatenate([self.latencies_s, np.full(self.unanswered, math.inf)])
        return float(np.quantile(whole, share, method="inverted_cdf")) * 1e3 if len(whole) else math.nan


def phase(world: ClusterWorld, name: str, from_s: float, to_s: float) -> Phase:
    """The requests due between two times."""
    chosen: list[Request] = [each for each in world.requests if from_s <= each.due_s < to_s]
    answered = [each for each in chosen if not math.isnan(each.completed_s)]
    delivered = [each for each in chosen if not math.isnan(each.delivered_s)]
    return Phase(
        name=name,
        from_s=from_s,
        to_s=to_s,
        latencies_s=np.array([each.completed_s - each.due_s for each in answered]),
        due_s=np.array([each.due_s for each in answered]),
        deliveries_s=np.array([each.delivered_s - each.due_s for each in delivered]),
        delivered_due_s=np.array([each.due_s for each in delivered]),
        unanswered=len(chosen) - len(answered),
        messages_per_s=sum(each.count for each in answered) / (to_s - from_s) if to_s > from_s else 0.0,
    )


def phases(world: ClusterWorld) -> list[Phase]:
    """Healthy, the outage, and after it; only the first if no node dies. What is due in the last moments is left out:
    it could not be answered any more."""
    parameters = world.parameters
    end_s = parameters.horizon_s - min(0.5, parameters.horizon_s / 10)
    if not parameters.kill_at_s:
        return [phase(world, "healthy", parameters.warm_up_s, end_s)]
    settled_s = min(end_s, world.recovered_s + parameters.settle_s) if world.recovered_s == world.recovered_s else end_s
    return [
        phase(world, "healthy", parameters.warm_up_s, max(parameters.warm_up_s, parameters.kill_at_s - 0.1)),
        phase(world, "outage", parameters.kill_at_s, settled_s),
        phase(world, "after", settled_s, end_s),
    ]


def simulate(base: ClusterParameters, seed: int, *changes: Mapping[str, Any]) -> ClusterWorld:
    """A whole run of a cluster that is changed, the last change counting."""
    merged = {name: value for change in changes for name, value in change.items()}
    world = ClusterWorld(msgspec.structs.replace(base, **merged), seed)
    world.run()
    return world


def unwritable_s(world: ClusterWorld) -> float:
    """How long not every partition took messages."""
    return float(sum(share < 1 for share in world.writable)) * 0.01


def _mean_ms(world: ClusterWorld) -> float:
    (healthy, *_) = phases(world)
    return float(healthy.latencies_s.mean()) * 1e3


def checks(base: ClusterParameters, seed: int) -> list[Row]:
    """Small clusters whose behaviour is known exactly."""
    plain: dict[str, Any] = {**_FREE, "racks": 1, "rack_latency_s": 0.0, "partitions": 3}
    alone: dict[str, Any] = {**plain, "nodes": 1, "replication_factor": 1, "min_isr": 1, "acks": Acks.LEADER}
    one = simulate(base, seed, alone, {"fsync_s": 0.002, "messages_per_s": 1_500.0, "horizon_s": 16.0})
    rows = [
        within(
            "one node: mean time until durable",
            _mean_ms(one),
            closed_forms.group_commit_mean_s(1_500.0, 0.002) * 1e3,
            "ms",
            "closed form: group commit",
        )
    ]
    three: dict[str, Any] = {**plain, "nodes": 3, "replication_factor": 3, "min_isr": 2, "acks": Acks.ALL}
    idle: dict[str, Any] = {
        **three,
        "fsync_s": 0.002,
        "messages_per_s": 5.0,
        "horizon_s": 60.0,
        "nic_bytes_per_s": 1e8,
        "disk_bytes_per_s": 2e8,
        "message_bytes": 20_000,
        "request_cpu_s": 1e-4,
        "client_latency_s": 3e-4,
        "node_latency_s": 2e-4,
        "lag_time_max_s": 30.0,
    }
    nic_s, disk_s = 20_000 / 1e8, 0.002 + 20_000 / 2e8
    # Client, NIC, processor; two answers leave the leader one after the other; way, NIC, processor, disk, way; client.
    expected_s = 3e-4 + nic_s + 1e-4 + 2 * nic_s + 2e-4 + nic_s + 1e-4 + disk_s + 2e-4 + 3e-4
    rows.append(
        within(
            "three idle nodes, all: time until acknowledged",
            float(np.median(phases(simulate(base, seed, idle))[0].latencies_s)) * 1e3,
            expected_s * 1e3,
            "ms",
            "closed form: sum of the stages",
            percent=0.1,
        )
    )
    overload = {"request_cpu_s": 4e-4, "fsync_s": 0.0, "cores": 2, "messages_per_s": 7_500.0, "horizon_s": 2.0}
    busy = simulate(base, seed, alone, overload)
    acknowledged = sum(each.count for each in busy.requests if each.completed_s < 2.0) / 2.0
    rows.append(
        within("one node overloaded: messages a second", acknowledged, 5_000.0, "", "closed form: cores / work")
    )
    far: dict[str, Any] = {
        **three,
        "node_latency_s": 0.04,
        "fsync_s": 0.0,
        "messages_per_s": 3_000.0,
        "kill_at_s": 1.0,
        "detection_s": (0.2, 0.3),
        "election_s": 0.01,
        "horizon_s": 2.0,
    }
    lost = {acks: simulate(base, seed, far, {"acks": acks}) for acks in (Acks.LEADER, Acks.ALL, Acks.QUORUM)}
    a_way = 1_000 * 0.04
    rows += [
        between(
            "a node dies, leader: messages lost",
            lost[Acks.LEADER].lost,
            0.7 * a_way,
            3 * 1.3 * a_way,
            "",
            "closed form: what came in one to three latencies between nodes",
        ),
        between("a node dies, all: messages lost", lost[Acks.ALL].lost, 0, 0, "", "by definition"),
        between("a node dies, quorum: messages lost", lost[Acks.QUORUM].lost, 0, 0, "", "by definition"),
        between(
            "a node dies: not all partitions writable",
            unwritable_s(lost[Acks.ALL]),
            0.2,
            0.3 + 0.01 + 0.02,
            "s",
            "closed form: detection and one election",
        ),
    ]
    back = simulate(base, seed, far, {"node_latency_s": 1e-4, "restart_at_s": 1.5})
    rows.append(
        between("in-sync replicas after a node left and came back", back.isr_sizes[-1], 3, 3, "", "by definition")
    )
    behind = {"node_latency_s": 0.3, "lag_time_max_s": 0.2, "fsync_s": 0.0, "messages_per_s": 500.0, "horizon_s": 2.0}
    slow = simulate(base, seed, three, behind)
    rows.append(
        between("in-sync replicas with followers behind the limit", min(slow.isr_sizes), 1, 1, "", "by definition")
    )
    return rows


def policies(base: ClusterParameters, seed: int) -> dict[str, float | int | str]:
    """The same cluster and failure at a small load, under each policy of acknowledgement."""
    found: dict[str, float | int | str] = {}
    small = {
        "messages_per_s": min(base.messages_per_s, _POLICY_MESSAGES_PER_S),
        "producers": 1,
        "partitions": base.nodes,
        "warm_up_s": 0.0,
        "kill_at_s": 1.0,
        "restart_at_s": 0.0,
        "horizon_s": 1.0 + base.detection_s[1] + base.nodes * base.election_s + 0.5,
        "settle_s": 0.1,
    }
    for acks in Acks:
        world = simulate(base, seed, small, {"acks": acks})
        healthy, outage, *_ = phases(world)
        found[f"{acks}.p99_ms"] = round(healthy.quantile_ms(0.99), 2)
        found[f"{acks}.outage_p99_ms"] = round(outage.quantile_ms(0.99), 1)
        found[f"{acks}.lost_messages"] = world.lost
        found[f"{acks}.unwritable_s"] = round(unwritable_s(world), 2)
    return found


def run(parameters: ClusterParameters, seed: int, progress: Progress) -> Outcome:
    """The question, every policy in small, and the checks."""
    progress(f"{parameters.nodes} nodes, {parameters.messages_per_s:,.0f} messages/s", 0.0)
    world = simulate(parameters, seed)
    progress("policies", 0.5)
    metrics = policies(parameters, seed)
    progress("checks", 0.75)
    rows = checks(parameters, seed)
    found = phases(world)
    for each in found:
        metrics |= {
            f"{each.name}.p50_ms": round(each.quantile_ms(0.5), 2),
            f"{each.name}.p99_ms": round(each.quantile_ms(0.99), 2),
            f"{each.name}.messages_per_s": round(each.messages_per_s),
            f"{each.name}.unanswered": each.unanswered,
        }
        if len(each.deliveries_s):
            metrics[f"{each.name}.deliver_p99_ms"] = round(float(np.quantile(each.deliveries_s, 0.99)) * 1e3, 2)
    metrics |= {f"utilisation.{name}": round(share, 3) for name, share in world.utilisations().items()}
    metrics |= {
        "lost_messages": world.lost,
        "unwritable_s": round(unwritable_s(world), 2),
        "availability": round(float(np.mean(world.writable)), 4),
        "replication_lag_messages": round(float(np.mean(world.lag_messages)), 1),
        "requests": len(world.requests),
    }
    series = [
        _series(world, "slowest in-sync follower is behind", "messages", world.lag_messages, "replication lag"),
        _series(world, "in-sync replicas, mean", "", world.isr_sizes, "in-sync replicas"),
        _series(world, "partitions that take messages", "", world.writable, "availability"),
    ]
    died = parameters.kill_at_s and world.recovered_s == world.recovered_s
    bands = [Band(label="a node died", from_s=parameters.kill_at_s, to_s=world.recovered_s)] if died else []
    return Outcome(
        rows=rows,
        samples=[
            Latencies(
                workload=f"cluster {each.name}",
                operation=operation,
                intended_s=due_s,
                completed_s=due_s + spent_s,
            )
            for each in found
            for operation, due_s, spent_s in (
                (LatencyOperation.PUBLISH_TO_ACK, each.due_s, each.latencies_s),
                (LatencyOperation.PUBLISH_TO_DELIVER, each.delivered_due_s, each.deliveries_s),
            )
        ],
        series=series,
        bands=bands,
        metrics=metrics,
        answers=[answer(world, found)],
    )


def answer(world: ClusterWorld, found: list[Phase]) -> str:
    """What the run says, in a sentence."""
    p = world.parameters
    told = [f"{each.name} p99 {each.quantile_ms(0.99):.3g} ms" for each in found]
    text = (
        f"{p.nodes} nodes, RF {p.replication_factor}, acks {p.acks}, fsync {p.fsync_s * 1e3:g} ms, "
        f"{p.messages_per_s:,.0f} messages/s: {', '.join(told)}"
    )
    if p.kill_at_s:
        text += f"; not all partitions writable for {unwritable_s(world):.2f} s, {world.lost:,} acknowledged lost"
    busiest = max(world.utilisations().items(), key=lambda item: item[1])
    return f"{text}; busiest: {busiest[0]} {busiest[1]:.0%}"


def _series(world: ClusterWorld, name: str, unit: str, values: list[float], group: str) -> Series:
    every = max(1, len(values) // 200)
    return Series(name=name, unit=unit, x_s=world.times_s[::every], y=list(values[::every]), group=group)


MODEL = Model(
    name="cluster",
    what="a replicated cluster under load, one node of which dies",
    parameters=ClusterParameters,
    run=run,
)
