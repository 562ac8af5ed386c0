"""Many examples, in chunks over several processes. Each chunk has a seed of its own, so that a failure repeats."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

import msgspec

from assay.conformance.mutants import applied
from assay.sim.queue_model.machine import STEPS, QueueMachine, run

CHUNK: Final = 250
"""Examples of a chunk: enough for Hypothesis to vary them, few enough for it to keep no long history."""
_SEEDS_APART: Final = 1_000_003


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk showed."""

    seed: int
    examples: int
    covered: dict[str, int]
    """Rule -> steps."""
    ends: dict[str, int]
    """What became of transactions -> how many."""
    seconds: float
    failure: str = ""
    """The shrunk counter-example, as a story."""

    @property
    def steps(self) -> int:
        return sum(self.covered.values())


class Campaign(msgspec.Struct, kw_only=True):
    """All chunks so far."""

    examples: int = 0
    covered: Counter[str] = msgspec.field(default_factory=Counter)
    ends: Counter[str] = msgspec.field(default_factory=Counter)
    failures: list[Chunk] = []
    wall_s: float = 0.0

    @property
    def steps(self) -> int:
        return self.covered.total()


def run_chunk(
    seed: int, examples: int, steps: int = STEPS, mutants: tuple[str, ...] = (), *, shrink: bool = True
) -> Chunk:
    """Run the examples of one seed in this process."""
    QueueMachine.covered.clear()
    QueueMachine.ends.clear()
    before, started, failure = QueueMachine.examples, time.perf_counter(), ""
    try:
        with applied(*mutants):
            run(examples, seed=seed, steps=steps, shrink=shrink)
    # Whatever the engine raises is a finding: an assertion of the oracle, or an error of its own.
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        failure = f"{type(error).__name__}: {error}\n{notes}"
    return Chunk(
        seed=seed,
        examples=QueueMachine.examples - before,
        covered=dict(QueueMachine.covered),
        ends=dict(QueueMachine.ends),
        seconds=time.perf_counter() - started,
        failure=failure,
    )


def campaign(
    examples: int,
    *,
    seed: int,
    workers: int = 1,
    steps: int = STEPS,
    mutants: tuple[str, ...] = (),
    on_chunk: Callable[[Campaign], None] | None = None,
) -> Campaign:
    """Run at least so many examples; the same seed runs the same ones, however many workers share them."""
    started = time.perf_counter()
    total = Campaign()
    sizes = [min(CHUNK, examples - first) for first in range(0, examples, CHUNK)]
    tasks = [(seed + _SEEDS_APART * number, size, steps, mutants) for number, size in enumerate(sizes)]
    for chunk in _chunks(tasks, workers):
        total.examples += chunk.examples
        total.covered.update(chunk.covered)
        total.ends.update(chunk.ends)
        if chunk.failure:
            total.failures.append(chunk)
        total.wall_s = time.perf_counter() - started
        if on_chunk is not None:
            on_chunk(total)
    return total


def _chunks(tasks: list[tuple[int, int, int, tuple[str, ...]]], workers: int) -> Iterator[Chunk]:
    if workers == 1:
        yield from (run_chunk(*task) for task in tasks)
        return
    with ProcessPoolExecutor(max_workers=workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        try:
            for future in as_completed([executor.submit(run_chunk, *task) for task in tasks]):
                yield future.result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
