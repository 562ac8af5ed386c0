"""The cluster model and the plans that are made with it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from assay.reference_broker.trace.results import Verdict
from assay.sim.models import cluster, planning
from assay.sim.models.cluster_world import Acks, ClusterParameters, ClusterWorld
from assay.sim.models.mistakes import planted
from assay.sim.models.model import ModelError, Outcome, load_parameters
from assay.sim.models.registry import find_model

QUICK: dict[str, Any] = {"messages_per_s": 20_000, "producers": 1, "partitions": 6}
SMALL_PLAN: dict[str, Any] = {
    "messages_per_s": 60_000,
    "p99_ms": 9,
    "consumer_messages_per_s": 20_000,
    "measured_s": 0.3,
    "consumed": 60_000,
    "varied": ["fsync_s"],
    "cluster": {"fsync_s": 0.0005, "producers": 1, "disk_bytes_per_s": 15e6},
}


def base(**changes: Any) -> ClusterParameters:
    parameters, _ = load_parameters(cluster.MODEL, None, {**QUICK, **changes})
    return parameters


def run(name: str, settings: dict[str, Any]) -> Outcome:
    model = find_model(name)
    parameters, _ = load_parameters(model, None, settings)
    return model.run(parameters, 1, lambda _what, _share: None)


def test_the_question_of_three_nodes_is_answered_and_every_check_holds() -> None:
    outcome = run("cluster", {})
    assert outcome.verdict is Verdict.PASS, [row for row in outcome.rows if row.verdict is not Verdict.PASS]
    assert "300,000 messages/s" in outcome.answers[0]
    assert outcome.metrics["lost_messages"] == 0
    assert float(outcome.metrics["healthy.p99_ms"]) < float(outcome.metrics["after.p99_ms"])
    assert float(outcome.metrics["outage.p99_ms"]) > 500, "clients wait for detection and election"
    assert outcome.metrics["healthy.messages_per_s"] == pytest.approx(300_000, rel=0.03)
    # A consumer gets what is committed, soon after the producer is told.
    assert float(outcome.metrics["healthy.deliver_p99_ms"]) == pytest.approx(
        float(outcome.metrics["healthy.p99_ms"]), abs=1.0
    )
    # What a stronger policy costs, and what a weaker one loses.
    p99_ms = [float(outcome.metrics[f"{acks}.p99_ms"]) for acks in (Acks.NONE, Acks.LEADER, Acks.ALL)]
    assert p99_ms == sorted(p99_ms)
    assert int(outcome.metrics["none.lost_messages"]) > 0
    assert outcome.metrics["all.lost_messages"] == outcome.metrics["quorum.lost_messages"] == 0


@pytest.mark.parametrize("mistake", ["acknowledges-what-followers-lack", "slow-followers-stay-in-sync"])
def test_a_mistake_in_the_cluster_is_refused(mistake: str) -> None:
    with planted(mistake, "cluster"):
        assert any(row.verdict is Verdict.FAIL for row in cluster.checks(base(), 2))


def test_nothing_acknowledged_is_more_than_what_was_appended_and_a_run_repeats_itself() -> None:
    def play(seed: int) -> ClusterWorld:
        return cluster.simulate(base(horizon_s=3.2, restart_at_s=2.9), seed)

    first, again, other = play(1), play(1), play(2)
    assert [each.completed_s for each in first.requests] == pytest.approx(
        [each.completed_s for each in again.requests], nan_ok=True
    )
    assert len(first.requests) != len(other.requests)
    for partition in first.partitions:
        assert partition.acknowledged <= partition.end[partition.leader]
        assert all(partition.durable[each] <= partition.end[each] for each in partition.replicas)


def test_fewer_in_sync_replicas_than_the_minimum_take_nothing() -> None:
    world = cluster.simulate(base(min_isr=3, horizon_s=3.0, detection_s=(0.1, 0.1)), 1)
    after = cluster.phase(world, "after", 2.0, 2.7)
    assert len(after.latencies_s) == 0
    assert after.unanswered > 100
    assert after.quantile_ms(0.99) == float("inf")
    assert min(world.writable) == 0
    # A near miss: two of three suffice, and all is answered.
    enough = cluster.phase(cluster.simulate(base(horizon_s=3.0, detection_s=(0.1, 0.1)), 1), "after", 2.0, 2.7)
    assert enough.unanswered == 0


def test_racks_far_apart_are_paid_for_where_followers_are_waited_for() -> None:
    def p50_ms(acks: Acks, rack_latency_s: float) -> float:
        world = cluster.simulate(base(acks=acks, rack_latency_s=rack_latency_s, kill_at_s=0.0, horizon_s=1.0), 1)
        return cluster.phases(world)[0].quantile_ms(0.5)

    assert p50_ms(Acks.ALL, 0.02) > p50_ms(Acks.ALL, 0.0) + 35
    assert p50_ms(Acks.LEADER, 0.02) == pytest.approx(p50_ms(Acks.LEADER, 0.0), abs=1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replication_factor": 5}, "needs as many nodes"),
        ({"min_isr": 4, "nodes": 5}, "min_isr"),
        ({"horizon_s": 3000}, "at most 400,000"),
        ({"detection_s": [2, 1]}, "ascend"),
        ({"horizon_s": 2.0}, "horizon_s must be above 3.01"),
        ({"horizon_s": 0.2, "kill_at_s": 0}, "above warm_up_s"),
    ],
)
def test_contradictions_are_explained(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ClusterWorld(base(**changes), 1)


def test_a_plan_names_the_fewest_nodes_and_what_it_depends_on() -> None:
    outcome = run("planning", SMALL_PLAN)
    assert outcome.verdict is Verdict.PASS, outcome.rows
    assert int(outcome.metrics["nodes"]) == 5
    assert len(outcome.rows) == 3, "also that one node less does not do"
    assert int(outcome.metrics["partitions"]) >= int(outcome.metrics["consumers"])
    assert outcome.metrics["nodes if fsync_s x 2"] == 0 or int(outcome.metrics["nodes if fsync_s x 2"]) >= int(
        outcome.metrics["nodes"]
    )


def test_a_plan_for_the_median_is_refused() -> None:
    with planted("plans-for-the-median", "planning"):
        outcome = run("planning", {**SMALL_PLAN, "varied": []})
    assert outcome.verdict is Verdict.FAIL, outcome.rows


def test_what_no_number_of_nodes_can_do_is_said() -> None:
    outcome = run("planning", {**SMALL_PLAN, "p99_ms": 1.5, "varied": []})
    assert outcome.metrics["nodes"] == 0
    assert "no number of nodes" in outcome.answers[0]
    with pytest.raises(ModelError, match="consume_p99_ms"):
        run("planning", {**SMALL_PLAN, "consume_p99_ms": 0.01})


def test_unanswered_requests_are_the_worst() -> None:
    found = cluster.Phase(
        name="x",
        from_s=0,
        to_s=1,
        latencies_s=np.full(98, 0.001),
        due_s=np.zeros(98),
        deliveries_s=np.zeros(0),
        delivered_due_s=np.zeros(0),
        unanswered=2,
        messages_per_s=98.0,
    )
    assert found.quantile_ms(0.5) == 1.0
    assert found.quantile_ms(0.99) == float("inf")
    assert msgspec.structs.replace(found, unanswered=0).quantile_ms(0.99) == 1.0


def test_the_planner_gives_every_node_as_many_partitions() -> None:
    parameters, _ = load_parameters(planning.MODEL, None, SMALL_PLAN)
    planner = planning.Planner(parameters, 1)
    for nodes in (3, 4, 7):
        assert planner.partitions(nodes, 60_000.0) % nodes == 0
