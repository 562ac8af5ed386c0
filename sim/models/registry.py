"""The models by name."""

from __future__ import annotations

from typing import Any

from assay.sim.models import cluster, group_commit, mg1, mm1, mmc, planning, priority_lanes
from assay.sim.models.model import Model, ModelError

MODELS: dict[str, Model[Any]] = {
    module.MODEL.name: module.MODEL for module in (mm1, mmc, mg1, priority_lanes, group_commit, cluster, planning)
}


def find_model(name: str) -> Model[Any]:
    """Raises :class:`ModelError` with the names that there are."""
    if name not in MODELS:
        message = f"there is no model {name!r}: use {', '.join(MODELS)}"
        raise ModelError(message)
    return MODELS[name]
