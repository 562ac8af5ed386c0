"""Lives until enough packets were sent, or one of them failed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from assay.sim.fuzz import inspection
from assay.sim.fuzz.actions import Replay
from assay.sim.fuzz.amqp_life import AmqpLife
from assay.sim.fuzz.corpus import Corpus
from assay.sim.fuzz.failure import FuzzFailureError
from assay.sim.fuzz.life import AnyLife, Life
from assay.sim.fuzz.setups import AMQP_SETUPS, SETUPS, Setup
from assay.sim.fuzz.shrink import shrink

PACKETS_OF_A_LIFE = 2_000
_TRACED_LIFE_EVERY = 25
_SURVIVORS_EVERY = 20
_WARM_LIVES = 20
_MAX_GROWTH_BYTES = 64 * 1024 * 1024
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4_096
Progress = Callable[["Outcome"], None]
PROTOCOLS: dict[str, tuple[dict[str, Setup], Callable[[str, int, Corpus], AnyLife[Any]]]] = {
    "mqtt": (SETUPS, Life),
    "amqp091": (AMQP_SETUPS, AmqpLife),
}
"""What is spoken -> setups, and what makes a life of one."""


class Outcome(msgspec.Struct, kw_only=True):
    """A campaign so far."""

    seed: int
    packets: int = 0
    lives: int = 0
    traced_lives: int = 0
    features: int = 0
    arcs: int = 0
    """Different jumps between lines of the broker's code, as the traced lives saw them."""
    scripts: int = 0
    wall_s: float = 0.0
    growth_bytes: int = 0
    """Resident memory at the end beyond what it was after the first lives; the corpus has its part in it."""
    failure: FuzzFailureError | None = None
    replay: Replay | None = None
    """The failing life, shrunk."""

    @property
    def packets_per_s(self) -> float:
        return self.packets / self.wall_s if self.wall_s else 0.0


def run(
    seed: int,
    packets: int,
    *,
    shrink_for_s: float = 30.0,
    on_progress: Progress | None = None,
    protocol: str = "mqtt",
) -> Outcome:
    """Fuzz a broker with at least so many packets, or frames; the same seed makes the same ones."""
    setups, make_life = PROTOCOLS[protocol]
    rng = random.Random(seed)
    corpus = Corpus()
    outcome = Outcome(seed=seed)
    started = time.monotonic()
    resident_at_start = 0
    strangers = inspection.survivors()
    names = [name for name, setup in setups.items() for _ in range(setup.weight)]
    while outcome.packets < packets and outcome.failure is None:
        life = make_life(rng.choice(names), rng.getrandbits(48), corpus)
        traced = outcome.lives % _TRACED_LIFE_EVERY == _TRACED_LIFE_EVERY - 1
        try:
            life.run(min(PACKETS_OF_A_LIFE, packets - outcome.packets), traced=traced)
        except FuzzFailureError as failure:
            _note_failure(outcome, life, failure, shrink_for_s)
        outcome.packets += life.packets
        outcome.lives += 1
        outcome.traced_lives += traced
        del life
        if outcome.failure is None and outcome.lives % _SURVIVORS_EVERY == 0:
            _check_survivors(outcome, strangers)
        if outcome.lives == _WARM_LIVES:
            resident_at_start = _resident_bytes()
        outcome.features, outcome.arcs, outcome.scripts = len(corpus.features), len(corpus.arcs), len(corpus.scripts)
        outcome.wall_s = time.monotonic() - started
        if on_progress is not None:
            on_progress(outcome)
    if resident_at_start:
        outcome.growth_bytes = _resident_bytes() - resident_at_start
        _check_growth(outcome)
    return outcome


def _note_failure(outcome: Outcome, life: AnyLife[Any], failure: FuzzFailureError, shrink_for_s: float) -> None:
    replay = Replay(setup=life.setup_name, seed=life.seed, failure=str(failure), actions=tuple(life.actions))
    outcome.failure = failure
    outcome.replay = shrink(replay, failure.signature, budget_s=shrink_for_s, clock=time.monotonic)


def _check_survivors(outcome: Outcome, strangers: int) -> None:
    """``strangers``: what was in memory before the first life."""
    left = inspection.survivors() - strangers
    if left > 0:
        text = f"{left} nodes, connections and sessions of finished lives are still in memory"
        outcome.failure = FuzzFailureError("leak: objects", text)


def _check_growth(outcome: Outcome) -> None:
    if outcome.failure is None and outcome.growth_bytes > _MAX_GROWTH_BYTES:
        text = f"resident memory grew by {outcome.growth_bytes >> 20} MiB after the first {_WARM_LIVES} lives"
        outcome.failure = FuzzFailureError("leak: memory", text)


def _resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
