"""Delayed messages and kill -9 before each operation of the disk: everything that was written is there afterwards."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues.delays import delay_store, done_log
from assay.reference_broker.queues.delays.done_log import DoneLog
from assay.reference_broker.storage import queue_store
from assay.reference_broker.storage.disk import Disk
from assay.sim.power_cuts import WatchedDisk, power_cuts
from tests.queues.conftest import Outcome, QueueBench
from tests.queues.test_delays import delayed

FIELDS = {"partitions": 2, "segment_bytes": 600}


class Life:
    """Schedules, cancels and fires messages, and remembers which were confirmed and which may never come."""

    def __init__(self, disk: Disk, durability: Durability) -> None:
        self.bench = QueueBench(disk, durability=durability, **FIELDS)
        self.scheduled: dict[str, Outcome] = {}
        self.cancelled: dict[str, Outcome] = {}

    def schedule(self, value: str, delay: str) -> None:
        self.scheduled[value] = delayed(self.bench, value, delay)

    def live(self) -> None:
        bench = self.bench
        for number in range(6):
            self.schedule(f"burst {number}", "1s")
        self.schedule("late", "40s")
        bench.advance(0.2)
        bench.publish("plain")
        self.cancelled["burst 4"] = Outcome()
        assert bench.engine.cancel_delayed("q", "q:delay:4", bench.now, self.cancelled["burst 4"])
        bench.advance(0.9)
        self.schedule("soon", "300ms")
        bench.publish("between")
        bench.advance(0.4)
        for number in range(4):
            self.schedule(f"next {number}", f"{100 * number + 50}ms")
        bench.advance(3)


def came(disk: Disk, durability: Durability, now: float) -> Counter[str]:
    """How often each message gets into the queue, when the broker is started again and lives on."""
    bench = QueueBench(disk, durability=durability, **FIELDS)
    bench.now = now
    bench.advance(0.1)
    bench.restart()
    bench.advance(60)
    found: Counter[str] = Counter()
    queue = bench.engine._queues.get("q")
    for partition in queue.partitions if queue is not None else ():
        for record in partition.log.read(0, 1_000):
            found[(record.value or b"").decode()] += 1
    return found


def count_of_kills(durability: Durability) -> tuple[int, list[str]]:
    """Kills that were tried, and what was wrong after them."""
    disk = WatchedDisk(random.Random(1))
    life: Life | None = None
    wrong: list[str] = []
    kills = 0
    seen: set[bytes] = set()

    def kill() -> None:
        nonlocal kills
        if life is None:
            return
        cuts = {cut.what: cut for cut in power_cuts(disk, "kill")}
        cut = cuts.get("everything", cuts["nothing"])
        if cut.digest in seen:
            return
        seen.add(cut.digest)
        kills += 1
        found = came(cut.boot(), durability, life.bench.now)
        for value, outcome in life.scheduled.items():
            gone = life.cancelled.get(value)
            most = 0 if gone is not None and gone.confirmed else 1
            least = 1 if outcome.confirmed and gone is None else 0
            if not least <= found[value] <= most:
                wrong.append(f"kill {kills}: {value} came {found[value]} times, not {least} to {most}")

    begun = Life(disk, durability)
    life = begun
    disk.before = kill
    begun.live()
    disk.before = None
    kill()
    return kills, wrong


@pytest.mark.parametrize("few", [False, True], ids=["usual", "told at once"])
@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
def test_a_killed_broker_fires_each_message_once(
    durability: Durability, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(delay_store, "TOLD_OFFSETS", 3)
        monkeypatch.setattr(delay_store, "TOLD_WAITING", 2)
        monkeypatch.setattr(done_log, "RESTATE_ABOVE_BYTES", 300)
        monkeypatch.setattr(queue_store, "DONE_SEGMENT_BYTES", 200)
    kills, wrong = count_of_kills(durability)
    assert wrong == []
    assert kills > 30


def test_without_the_note_of_what_fires_it_would_fire_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DoneLog, "note_firing", lambda *_: None)
    assert any("came 2 times" in each for each in count_of_kills(Durability.INTERVAL)[1])
