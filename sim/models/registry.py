"""The models by name."""

from __future__ import annotations

from typing import Any

from assay.sim.models import (
    broker,
    cluster,
    failover,
    group_commit,
    mg1,
    mm1,
    mmc,
    planning,
    priority_lanes,
    raft_election,
    rebalance,
)
from assay.sim.models.model import Model, ModelError

MODELS: dict[str, Model[Any]] = {
    model.name: model
    for model in (
        mm1.MODEL,
        mmc.MODEL,
        mg1.MODEL,
        priority_lanes.MODEL,
        group_commit.MODEL,
        broker.MODEL,
        cluster.MODEL,
        planning.MODEL,
        raft_election.MODEL,
        failover.NATS,
        failover.RABBITMQ,
        failover.OWN,
        rebalance.MODEL,
    )
}


def find_model(name: str) -> Model[Any]:
    """Raises :class:`ModelError` with the names that there are."""
    if name not in MODELS:
        message = f"there is no model {name!r}: use {', '.join(MODELS)}"
        raise ModelError(message)
    return MODELS[name]
