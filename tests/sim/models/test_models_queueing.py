"""Queueing models against theory, and the mistakes that theory refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from simpy import Environment

from assay.reference_broker.trace.results import Verdict
from assay.sim.models import closed_forms
from assay.sim.models.mistakes import MISTAKES, planted
from assay.sim.models.model import ModelError, Outcome, load_parameters
from assay.sim.models.registry import find_model
from assay.sim.models.stations import GroupCommit, run_until

QUEUEING = ("mm1", "mmc", "mg1", "priority-lanes", "group-commit")
FEW = 40_000
"""Enough for what a mistake does to a figure."""


def run(name: str, seed: int = 1, **settings: object) -> Outcome:
    model = find_model(name)
    parameters, _ = load_parameters(model, None, settings)
    return model.run(parameters, seed, lambda _what, _share: None)


@pytest.mark.parametrize("name", QUEUEING)
def test_a_queueing_model_is_within_two_percent_of_theory(name: str) -> None:
    outcome = run(name)
    assert len(outcome.rows) >= 2
    for row in outcome.rows:
        assert row.error_percent is not None
        assert abs(row.error_percent) <= 2.0, row
    assert outcome.verdict is Verdict.PASS


@pytest.mark.parametrize(
    "mistake", [each for each in MISTAKES.values() if each.model in QUEUEING], ids=lambda m: m.name
)
def test_a_mistake_is_refused_far_beyond_chance(mistake: object) -> None:
    with planted(mistake.name, mistake.model):
        outcome = run(mistake.model, customers=FEW)
    assert outcome.verdict is Verdict.FAIL
    assert max(abs(row.error_percent or 0.0) for row in outcome.rows) > 15, outcome.rows
    # A near miss: as few customers without the mistake are nowhere near as wrong.
    clean = run(mistake.model, customers=FEW)
    assert max(abs(row.error_percent or 0.0) for row in clean.rows) < 12, clean.rows


def test_the_same_seed_gives_the_same_figures_and_another_one_does_not() -> None:
    first, again, other = (run("mm1", seed, customers=2_000) for seed in (3, 3, 4))
    assert [row.value for row in first.rows] == [row.value for row in again.rows]
    assert [row.value for row in first.rows] != [row.value for row in other.rows]


def test_erlang_c_is_the_sum_of_its_definition() -> None:
    servers, load = 5, 3.7
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    assert closed_forms.erlang_c(servers, load) == pytest.approx(
        top / (sum(load**k / math.factorial(k) for k in range(servers)) + top)
    )
    assert closed_forms.erlang_c(1, 0.3) == pytest.approx(0.3)


def test_a_bound_on_the_batch_that_never_matters_gives_the_free_form() -> None:
    assert closed_forms.bounded_commit_mean_s(1_000, 0.002, 40) == pytest.approx(
        closed_forms.group_commit_mean_s(1_000, 0.002), rel=1e-9
    )


def test_the_chain_of_two_lanes_keeps_the_conservation_law_and_prefers_the_urgent() -> None:
    waits_s = closed_forms.two_lanes_wait_s((0.2, 0.3), 1.0, (2, 1))
    assert float(np.dot(waits_s, [0.2, 0.3])) == pytest.approx(0.5 * closed_forms.mmc_wait_s(1, 0.5, 1.0), rel=1e-6)
    assert waits_s[0] < waits_s[1]


def test_every_time_of_group_commit_is_that_of_a_plain_recursion() -> None:
    """Sample by sample: the sync that takes an item begins at the first end of a sync, or arrival, after it."""
    env = Environment()
    ended: dict[int, float] = {}
    station: GroupCommit[int] = GroupCommit(env, lambda _: 2.0, lambda item: ended.setdefault(item, env.now), 10)
    came = [0.0, 0.5, 1.9, 2.5, 9.0, 10.9, 11.5]

    def play():
        for number, (before, at) in enumerate(itertools.pairwise([0.0, *came])):
            yield env.timeout(at - before)
            station.put(number)

    env.process(play())
    env.run(until=30)
    assert list(ended.values()) == [2.0, 4.0, 4.0, 6.0, 11.0, 13.0, 15.0]
    assert (station.syncs, station.items, station.busy_s) == (6, 7, 12.0)


def test_a_model_that_does_not_end_is_stopped() -> None:
    env = Environment()
    with pytest.raises(ModelError, match="standstill"):
        run_until(env, env.event(), 100)

    def for_ever():
        while True:
            yield env.timeout(1)

    env.process(for_ever())
    with pytest.raises(ModelError, match="within 100 events"):
        run_until(env, env.event(), 100)
    with pytest.raises(ModelError, match="more arrive"):
        closed_forms.bounded_commit_mean_s(5_000, 0.002, 8)
