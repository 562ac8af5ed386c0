"""Random lives of a queue on a disk that loses what was not synced: the confirmed is not lost, the settled stays so."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import Durability, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import OUTCOMES
from assay.reference_broker.queues import (
    BackgroundJob,
    Consumer,
    Delivery,
    Outcome,
    QueueEngine,
    QueueError,
    SettleRequest,
)
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore

if TYPE_CHECKING:
    from tests.storage.conftest import LossyDisk

GROUPS = ("g", "h")
MAX_RETRIES = 3


class Life:
    """A broker, its clients, and what the clients may expect."""

    def __init__(self, disk: LossyDisk, durability: Durability, seed: int) -> None:
        self.disk = disk
        self.durability = durability
        self.rng = random.Random(seed)
        self.config = QueuesConfig(
            defaults={
                "partitions": 2,
                "durability": durability,
                "delivery_timeout_s": 20.0,
                "max_in_flight": 4,
                "retry": {"max_retries": MAX_RETRIES, "initial_backoff_s": 2.0},
            },
            segment_bytes=400,
        )
        self.now = 1e9
        self.sent = 0
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.settled: dict[str, set[str]] = {group: set() for group in GROUPS}
        """Per group, values whose ack or reject was confirmed: they must not come again."""
        self.let_go: dict[str, set[str]] = {group: set() for group in GROUPS}
        """Per group, values that a consumer tried to settle for good: they need not come again."""
        self.dead: set[tuple[str, str]] = set()
        """(group, value) that may be in the dead letters: rejected, or delivered so often."""
        self.start()

    def start(self) -> None:
        self.engine = QueueEngine(
            self.config,
            LogQueueStore(self.disk, options=LogOptions(segment_bytes=400)),
            random.Random(self.sent),
            self.now,
        )
        self.running: list[BackgroundJob] = []
        self.held: dict[str, list[Delivery]] = {}
        self.consumers: dict[str, Consumer] = {}

    def lose_power(self) -> None:
        self.disk = self.disk.after_power_loss(self.rng)
        if self.durability is Durability.INTERVAL:
            # Confirmed only meant written, so nothing from before is owed any more; what comes after is.
            self.confirmed.clear()
            for settled in self.settled.values():
                settled.clear()

    def deliver_to(self, name: str, group: str) -> Callable[[Delivery], bool]:
        def deliver(delivery: Delivery) -> bool:
            value = delivery.message.payload.decode()
            assert value not in self.refused, "a refused message is delivered"
            assert value not in self.settled[group], f"{value} is settled by {group} and delivered again"
            assert 1 <= delivery.delivery_count <= MAX_RETRIES + 1
            if delivery.delivery_count == MAX_RETRIES + 1:
                self.dead.add((group, value))
            self.held[name].append(delivery)
            return True

        return deliver

    def join(self, name: str) -> None:
        group = name[0]
        self.held[name] = []
        self.consumers[name] = self.engine.subscribe(
            "q", pattern="", group=group, consumer_id=name, deliver=self.deliver_to(name, group), now=self.now
        )

    def publish(self, count: int) -> None:
        for _ in range(count):
            value = str(self.sent)
            self.sent += 1
            message = Message(topic="$queue/q", payload=value.encode())
            QueueTopics(self.engine).publish(message, self.now, self.on_confirmed(value))

    def on_confirmed(self, value: str) -> Callable[[QueueError | None], None]:
        def confirmed(error: QueueError | None) -> None:
            (self.confirmed if error is None else self.refused).add(value)

        return confirmed

    def settle(self, name: str, verb: Verb) -> None:
        group = name[0]
        if not self.held.get(name):
            return
        delivery = self.held[name].pop(0)
        value = delivery.message.payload.decode()

        def settled(error: QueueError | None) -> None:
            if error is None and verb is not Verb.NACK:
                self.settled[group].add(value)

        try:
            self.engine.settle(
                "q",
                SettleRequest(outcome=OUTCOMES[verb], message_ids=(delivery.message_id,), group=group, reason="bad"),
                consumer_id=name,
                now=self.now,
                on_done=settled,
            )
        except QueueError:
            # It timed out meanwhile.
            return
        if verb is not Verb.NACK:
            self.let_go[group].add(value)
        if verb is Verb.REJECT:
            self.dead.add((group, value))

    def turn(self, share: float = 1.0) -> None:
        """A turn of the loop, in which the disk finishes about this share of the syncs it has to do."""
        self.engine.tick(self.now)
        self.engine.dispatch(self.now)
        self.running += self.engine.take_jobs(self.now)
        running, self.running = self.running, []
        for job in running:
            if self.rng.random() < share:
                job.run()
                self.engine.job_done(job, None, self.now)
            else:
                self.running.append(job)
        self.engine.dispatch(self.now)

    def settle_down(self) -> None:
        """Drain: every group takes and acks all it can get."""
        for consumer in self.consumers.values():
            self.engine.unsubscribe(consumer, self.now)
        for name in ("g1", "h1"):
            self.join(name)
        for _ in range(2_000):
            self.turn()
            self.now += 0.5
            for name in ("g1", "h1"):
                while self.held[name]:
                    self.settle(name, Verb.ACK)
            stats = self.engine.stats("q")
            if stats.depth == 0 and (self.engine.next_deadline() or self.now) >= self.now:
                self.turn()
                return
        raise AssertionError(f"the queue does not drain: {self.engine.stats('q')}")

    def dead_letters(self) -> set[tuple[str, str]]:
        got: list[Delivery] = []

        def deliver(delivery: Delivery) -> bool:
            got.append(delivery)
            return True

        self.engine.subscribe("$dlq/q", pattern="", group="all", consumer_id="x", deliver=deliver, now=self.now)
        self.turn()
        for delivery in got:
            self.engine.settle(
                delivery.queue,
                SettleRequest(outcome=Outcome.ACCEPT, message_ids=(delivery.message_id,), group="all"),
                consumer_id="x",
                now=self.now,
            )
            self.turn()
        assert self.engine.stats("$dlq/q").depth == 0
        return {
            (dict(delivery.message.user_properties)["_dlq_group"], delivery.message.payload.decode())
            for delivery in got
        }


WEIGHTS = {
    "publish": 25,
    "ack": 35,
    "nack": 4,
    "reject": 5,
    "join": 4,
    "leave": 3,
    "turn": 40,
    "wait": 2,
    "kill": 2,
    "power": 5,
}
NAMES = ("g1", "g2", "h1")


def live(life: Life, steps: int, *, power: bool) -> None:
    """Random commands, seeded by the life's own generator."""
    rng = life.rng
    life.join("g1")
    life.join("h1")
    for step in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
        name = rng.choice(NAMES)
        if step == "publish":
            life.publish(rng.randint(1, 3))
        elif step in ("ack", "nack", "reject"):
            life.settle(name, Verb(step))
        elif step == "join" and name not in life.consumers:
            life.join(name)
        elif step == "leave" and (consumer := life.consumers.pop(name, None)) is not None:
            life.engine.unsubscribe(consumer, life.now)
            life.held[name] = []
        elif step == "turn":
            life.now += 0.01
            life.turn(rng.choice((0.0, 0.5, 1.0)))
        elif step == "wait":
            life.now += rng.randint(1, 25)
            life.turn()
        elif step == "kill" or (step == "power" and power):
            if step == "power":
                life.lose_power()
            life.start()
            life.join("g1")
            life.join("h1")


@pytest.fixture(autouse=True, scope="module")
def _small_logs() -> object:
    """Snapshots happen within a short life too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 25)
        yield


@pytest.mark.parametrize("seed", range(60))
def test_nothing_confirmed_is_lost_and_nothing_settled_returns(lossy_disks: type[LossyDisk], seed: int) -> None:
    check(Life(lossy_disks(), Durability.FSYNC, seed), power=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_synced_by_interval_survives_kills(lossy_disks: type[LossyDisk], seed: int) -> None:
    check(Life(lossy_disks(), Durability.INTERVAL, seed), power=False)


@pytest.mark.parametrize("seed", range(40))
def test_after_power_loss_a_queue_synced_by_interval_passes_over_nothing_new(
    lossy_disks: type[LossyDisk], seed: int
) -> None:
    """Offsets whose records were lost are given out again; the groups' logs must not count them as settled."""
    check(Life(lossy_disks(), Durability.INTERVAL, seed), power=True)


def check(life: Life, *, power: bool) -> None:
    live(life, 250, power=power)
    life.settle_down()
    letters = life.dead_letters()
    assert letters <= life.dead, "in the dead letters without a reason"
    for group in GROUPS:
        gone = {value for letter_group, value in letters if letter_group == group}
        missing = life.confirmed - life.let_go[group] - gone
        assert not missing, f"group {group} never got {sorted(missing, key=int)}"
