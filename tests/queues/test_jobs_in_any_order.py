"""Whatever is asked of a queue while jobs of it are under way, which come back in any order and may fail: each who asks
is answered once, nothing is an error of the broker's, and it comes to rest."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import parse_settlement
from assay.reference_broker.queues import BackgroundJob, Delivery, SettleRequest
from assay.reference_broker.queues.delivery.settle_request import Outcome as SettledAs
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.watched_disk import WatchedDisk

from .conftest import BenchConsumer, Outcome, QueueBench

SEEDS = (*range(80), 114, 116, 187, 199, 210, 211, 303, 486)
STEPS = 150
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
        self.fails, self.notes = seed % 3 == 0, seed % 7 == 6
        self.jobs: list[BackgroundJob] = []
        self.asked: list[tuple[str, Outcome]] = []
        self.consumers: list[BenchConsumer] = []
        self.producers: list[ProducerIdentity] = []
        self.open: list[tuple[ProducerIdentity, str]] = []
        """Transactions."""
        using = (*(self.publish,) * 4, self.join, self.join_letters, self.leave, self.settle, self.settle, self.claim)
        producing = (self.produce, self.begin, *(self.publish_within,) * 3, self.settle_within, self.end)
        tending = (self.settings, self.partitions, self.delete_group, self.purge, self.reset, self.commit, self.replay)
        time = (*(self.take,) * 3, *(self.come_back,) * 4, *(self.turn,) * 3, self.later)
        self.ways = (*using, *producing, *tending, self.delete_queue, self.create, *time)

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
            ways = consumer.ack, consumer.nack, consumer.reject
            way = self.rng.choice((*ways, self.note) if self.notes else ways)
            consumer.room += 1
            self.asked.append(("settle", way(consumer.got.pop(self.rng.randrange(len(consumer.got))))))

    def note(self, delivery: Delivery) -> Outcome:
        outcome = Outcome()
        request = SettleRequest(
            outcome=self.rng.choice((SettledAs.FAIL, SettledAs.RELEASE, SettledAs.REJECT)),
            message_ids=(delivery.message_id,),
            group=delivery.group,
            annotations=(("seen", Typed(Kind.U32, len(self.asked))),),
        )
        self.bench.engine.settle(delivery.queue, request, consumer_id=None, now=self.bench.now, on_done=outcome)
        return outcome

    def claim(self) -> None:
        consumer = self.rng.choice(self.consumers or [None])
        if consumer is not None and consumer.handle is not None:
            self.bench.engine.groups.claim(
                consumer.handle.queue,
                self.rng.choice(("g", "h")),
                Claim(limit=3),
                consumer_id=consumer.consumer_id,
                now=self.bench.now,
                on_done=self.ask("claim"),
            )

    def join_letters(self) -> None:
        self.consumers.append(self.bench.consumer(f"c{len(self.consumers)}", queue="$dlq/q", group="l", room=3))

    # -- producers -----------------------------------------------------------------------------------------------

    def produce(self) -> None:
        outcome = self.ask("producer")

        def told(error: QueueError | None, identity: ProducerIdentity | None) -> None:
            outcome(error)
            self.producers += [] if identity is None else [identity]

        self.bench.engine.transactions.init_producer(self.rng.choice(("a", "b", None)), self.bench.now, told)

    def begin(self) -> None:
        if self.producers:
            producer, outcome = self.rng.choice(self.producers), self.ask("beginning")

            def told(error: QueueError | None, name: str) -> None:
                outcome(error)
                self.open += [] if error is not None else [(producer, name)]

            self.bench.engine.transactions.begin(
                *producer, self.bench.now, told, timeout_s=self.rng.choice((None, 1.0))
            )

    def within(self) -> tuple[tuple[str, str], ...]:
        (number, epoch), name = self.rng.choice(self.open)
        return ("producer-id", str(number)), ("producer-epoch", str(epoch)), ("transaction-id", name)

    def publish_within(self) -> None:
        if self.open:
            topic = self.rng.choice(("$queue/q", "$queue/r"))
            self.asked.append(("publish within", self.bench.publish("m", topic, user_properties=self.within())))

    def settle_within(self) -> None:
        holding = [each for each in self.consumers if each.got]
        if holding and self.open:
            consumer = self.rng.choice(holding)
            consumer.room += 1
            delivery = consumer.got.pop(self.rng.randrange(len(consumer.got)))
            self.bench.engine.settle(
                delivery.queue,
                parse_settlement(Verb.ACK, (("message-id", delivery.message_id), *self.within())),
                consumer_id=consumer.consumer_id,
                now=self.bench.now,
                on_done=self.ask("settle within"),
            )

    def end(self) -> None:
        if self.open:
            producer, name = self.open.pop(self.rng.randrange(len(self.open)))
            transactions = self.bench.engine.transactions
            end = self.rng.choice((transactions.commit, transactions.abort))
            end(*producer, name, self.bench.now, self.ask("end"))

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

    def commit(self) -> None:
        commit, offset = self.bench.engine.groups.commit, self.rng.randrange(5)
        commit("q", "g", 0, offset, consumer_id=None, now=self.bench.now, on_done=self.ask("commit"))

    def replay(self) -> None:
        outcome = self.ask("replay")
        self.bench.engine.dead_letters.replay(
            "q", None, self.bench.now, lambda told: outcome(told if isinstance(told, QueueError) else None)
        )

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
        for queue in self.bench.engine._queues.values():
            for group in queue.groups.values():
                entries = [entry for place in group.every_place for entry in place.pending.values()]
                waiting = sum(entry.state is EntryState.WAITING for entry in entries)
                assert (group.unsettled, group.waiting_count) == (len(entries), waiting)

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
