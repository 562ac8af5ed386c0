"""The model finds planted bugs of the queue engine, and accuses no legal variation."""

from __future__ import annotations

import os

import pytest

from conformance.mutants import all_mutants
from sim.queue_model.campaign import run_chunk

SAMPLE = (
    "engine-call-not-logged",
    "engine-clock-not-watched",
    "engine-depth-off-by-one",
    "engine-dropped-in-silence",
    "engine-leaving-keeps-deliveries",
    "engine-nack-delay-ignored",
    "engine-nack-unanswered",
    "engine-new-group-starts-late",
    "engine-recovery-forgets-cursors",
    "engine-refused-delivery-is-lost",
    "engine-room-never-comes-back",
    "engine-shown-before-sync",
)
"""Found within a few examples; with ``ASSAY_QUEUE_MUTANTS=all`` all of them are looked for, which takes minutes."""
SEEDS = range(1, 9)
ALL = os.environ.get("ASSAY_QUEUE_MUTANTS") == "all"


def engine_mutants(*, legal: bool) -> list[str]:
    return [
        name
        for name, mutant in all_mutants().items()
        if mutant.apply.__module__.startswith("conformance.mutants.queue_engine") and mutant.legal is legal
    ]


def find(name: str, *, examples: int) -> str:
    for seed in SEEDS:
        chunk = run_chunk(seed, examples, mutants=(name,), shrink=False)
        if chunk.failure:
            return chunk.failure
    return ""


def test_there_are_enough_planted_bugs() -> None:
    assert len(engine_mutants(legal=False)) >= 40


@pytest.mark.parametrize("name", engine_mutants(legal=False) if ALL else SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    assert "ViolationError" in find(name, examples=250 if ALL else 100)


@pytest.mark.parametrize("name", engine_mutants(legal=True))
def test_a_legal_variation_is_not_accused(name: str) -> None:
    assert not run_chunk(1, 60, mutants=(name,), shrink=False).failure
