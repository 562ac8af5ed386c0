"""A life of a log, cut off by a power loss before every single disk operation, in every way a disk can lose data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from assay.reference_broker.storage import offset_index, time_index
from assay.reference_broker.storage.log import LogOptions
from assay.sim.log_life import Found, LogLife, LogModel, examine, open_log
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts

STEPS = {"plain": 320, "buffered": 200}
SHARDS = 8
"""The life is lived once in each, and each looks at its share of the points."""
BLOCK = 25
"""Points next to each other mostly leave the same states, so they go to the same shard."""
AGAIN_EVERY = 12
"""One of so many recoveries is itself cut off before each of its disk operations."""
OPTIONS = {
    "plain": LogOptions(segment_bytes=700, segment_age_ms=0),
    "buffered": LogOptions(segment_bytes=500, segment_age_ms=15_000, write_buffer_bytes=150),
}


@pytest.fixture(autouse=True)
def dense_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments whose indexes have many entries."""
    monkeypatch.setattr(offset_index, "INDEX_INTERVAL_BYTES", 100)
    monkeypatch.setattr(time_index, "TIME_INTERVAL_MS", 1_000)


class Examiner:
    """Recovers each different state once, and judges it each time."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self.seen: dict[bytes, Found] = {}
        self.points = 0
        self.judged = 0
        self.again = 0

    def judge(self, cut: PowerCut, model: LogModel, where: str) -> None:
        found = self._examine(cut)
        self.judged += 1
        assert list(model.complaints(found)) == [], f"power lost {where}, leaving {cut.what}"

    def _examine(self, cut: PowerCut) -> Found:
        digest = cut.digest
        found = self.seen.get(digest)
        if found is None:
            found = self.seen[digest] = examine(cut.boot(), options=self.options)
        return found

    def judge_cut_recovery(self, cut: PowerCut, model: LogModel, where: str) -> None:
        """Lose power before each disk operation of the recovery, each time in another way."""
        number = 0

        def look(recovering: WatchedDisk) -> None:
            nonlocal number
            number += 1
            ways = list(power_cuts(recovering, f"{where} {number}"))
            second = ways[number % len(ways)]
            self.again += 1
            self.judge(second, model, f"{where}, leaving {cut.what}, and again before operation {number} of recovery")

        with watched(cut.boot(), look) as disk:
            open_log(disk, options=self.options)


@contextmanager
def watched(disk: WatchedDisk, look: Callable[[WatchedDisk], None]) -> Iterator[WatchedDisk]:
    """Look at the disk before each of its operations, and after the last."""
    disk.before = lambda: look(disk)
    try:
        yield disk
    finally:
        disk.before = None
    look(disk)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", OPTIONS)
def test_nothing_confirmed_is_lost_and_nothing_invented(kind: str, shard: int) -> None:
    examiner = Examiner(OPTIONS[kind])
    disk = WatchedDisk(random.Random(0))
    life = LogLife(disk, seed=3, options=OPTIONS[kind])
    point = 0

    def look() -> None:
        nonlocal point
        point += 1
        if point // BLOCK % SHARDS != shard:
            return
        examiner.points += 1
        where = f"before disk operation {point}"
        for number, cut in enumerate(power_cuts(disk, f"{kind} {point}")):
            examiner.judge(cut, life.model, where)
            if (point + number) % AGAIN_EVERY == 0:
                examiner.judge_cut_recovery(cut, life.model, where)

    with watched(disk, lambda _: look()):
        life.live(STEPS[kind])
    print(
        f"{kind}: {point} points, of which this shard looked at {examiner.points}: {examiner.judged} power losses, "
        f"{len(examiner.seen)} different states recovered, {examiner.again} lost again in recovery"
    )
    assert examiner.judged > 500
    assert set(life.counts) == set(LogLife.STEPS)
