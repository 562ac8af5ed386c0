"""Whatever is asked of a queue while jobs of it are under way, which come back in any order and may fail: each who asks
is answered once, nothing is an error of the broker's, and it comes to rest."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.jobs.errors import QueueError
from tests.support.watched_disk import WatchedDisk

from .conftest import BenchConsumer, Outcome, QueueBench

SEEDS = (*range(60), 178, 284, 296, 486, 505, 571)
STEPS = 120
PROPERTIES = ((), (), (("priority", "high"),), (("ttl", "1s"),), (("delay", "2s"),))
SETTINGS: dict[str, tuple[Any, ...]] = {
    "durability": ("fsync", "interval", "memory"),
    "ordering": ("none", "partition", "strict", "place"),
    "limits_count": ("ready", "unsettled"),
    "overflow": ("reject", "drop_oldest"),
    "max_depth": (3, 10, 1_000),
    "max_bytes": (0, 30),
    "max_in_flight": (1, 5, 100),
    "dead_letters": (True, True, False),
    "expired_to_dead_letters": (True, False),
    "ephemeral": (False, False, True),
    "expires_after_s": (3.0,),
    "priority": (None, None, {"levels": 6}),
    "retention": (None, None, {"max_records": 5, "keep_settled": True}),
}


class Life:
    """One queue, those who use it, and jobs that have not come back."""

    def __init__(self, bench: QueueBench, disk: WatchedDisk, seed: int) -> None:
        self.bench, self.disk, self.rng = bench, disk, random.Random(seed)
        self.fails = seed % 3 == 0
        self.jobs: list[BackgroundJob] = []
        self.asked: list[tuple[str, Outcome]] = []
        self.consumers: list[BenchConsumer] = []
        self.ways: list[Callable[[], None]] = [
            *(self.publish,) * 4,
            *(self.join, self.leave, self.settle, self.settle),
            *(
                self.settings,
                self.partitions,
                self.delete_group,
                self.purge,
                self.reset,
                self.delete_queue,
                self.create,
            ),
            *(self.take, self.take, self.come_back, self.come_back, self.come_back, self.turn, self.turn, self.later),
        ]

    def play(self) -> None:
        for _ in range(STEPS):
            step = self.rng.choice(self.ways)
            before = len(self.asked)
            try:
                step()
            except QueueError:
                for what, outcome in self.asked[before:]:
                    assert not outcome.calls, f"{what} is refused twice"
                del self.asked[before:]
        self.fails = False
        while self.jobs:
            self.come_back()
        for _ in range(5):
            self.bench.advance(20.0)
        wrong = [(what, outcome.calls) for what, outcome in self.asked if len(outcome.calls) != 1]
        assert not wrong

    def ask(self, what: str) -> Outcome:
        outcome = Outcome()
        self.asked.append((what, outcome))
        return outcome

    # -- who uses it ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.asked.append(("publish", self.bench.publish("m", user_properties=self.rng.choice(PROPERTIES))))

    def join(self) -> None:
        group = self.rng.choice(("g", "h"))
        self.consumers.append(self.bench.consumer(f"c{len(self.consumers)}", group=group, room=3))

    def leave(self) -> None:
        if self.consumers:
            self.consumers.pop(self.rng.randrange(len(self.consumers))).leave()

    def settle(self) -> None:
        holding = [each for each in self.consumers if each.got]
        if holding:
            consumer = self.rng.choice(holding)
            way = self.rng.choice((consumer.ack, consumer.nack, consumer.reject))
            consumer.room += 1
            self.asked.append(("settle", way(consumer.got.pop(self.rng.randrange(len(consumer.got))))))

    # -- who looks after it --------------------------------------------------------------------------------------

    def settings(self) -> None:
        changes = self.rng.choice(({"max_depth": 50}, {"message_ttl_s": 3.0}, {"retry": {"max_retries": 1}}))
        self.bench.engine.update_queue("q", changes, self.bench.now, self.ask("settings"))

    def partitions(self) -> None:
        count = len(self.bench.engine.places("q", EARLIEST)) + self.rng.randrange(2)
        self.bench.engine.add_partitions("q", count, self.bench.now, self.ask("partitions"))

    def delete_group(self) -> None:
        group = self.rng.choice(("g", "h"))
        self.bench.engine.groups.delete("q", group, self.bench.now, self.ask("group"))

    def purge(self) -> None:
        outcome = self.ask("purge")
        self.bench.engine.purge_queue(
            "q", self.bench.now, lambda told: outcome(told if isinstance(told, QueueError) else None)
        )

    def reset(self) -> None:
        reset = self.bench.engine.groups.reset
        reset("q", "g", EARLIEST, partition=None, now=self.bench.now, on_done=self.ask("reset"))

    def delete_queue(self) -> None:
        if self.rng.random() < 0.3:
            self.bench.engine.delete_queue("q", self.bench.now, self.ask("deletion"), although_used=True)

    def create(self) -> None:
        self.bench.engine.create_queue("q", {}, self.bench.now, self.ask("creation"))

    # -- time ----------------------------------------------------------------------------------------------------

    def take(self) -> None:
        self.jobs += self.bench.engine.take_jobs(self.bench.now)

    def come_back(self) -> None:
        if self.jobs:
            job = self.jobs.pop(self.rng.randrange(len(self.jobs)))
            self.disk.fails = self.fails and self.rng.random() < 0.2
            error = job.failure()
            self.disk.fails = False
            self.bench.engine.job_done(job, error, self.bench.now)

    def turn(self) -> None:
        self.bench.engine.tick(self.bench.now)
        self.bench.engine.dispatch(self.bench.now)

    def later(self) -> None:
        self.bench.now += self.rng.choice((0.1, 1.0, 5.0))


def settings_of(seed: int) -> dict[str, Any]:
    """A queue of any kind."""
    rng = random.Random(f"queue {seed}")
    drawn = {name: rng.choice(choices) for name, choices in SETTINGS.items()}
    return {name: value for name, value in drawn.items() if value is not None}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_who_asks_is_answered_once(bench_with: Callable[..., QueueBench], seed: int) -> None:
    disk = WatchedDisk()
    bench = bench_with(disk, seed=seed, **settings_of(seed))
    Life(bench, disk, seed).play()
    bench.restart()
    bench.advance(30.0)
