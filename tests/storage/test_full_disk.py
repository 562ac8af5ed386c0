"""A disk that fills up: publishers are refused in time, consumers go on, and what they settle makes room."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from assay.reference_broker.config import QueueConfig, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import (
    Consumer,
    Delivery,
    Outcome,
    QueueEngine,
    QueueError,
    QueueErrorCode,
    SettleRequest,
)
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.sim.disk import DiskProfile, SimDisk

CAPACITY_BYTES = 6_000_000
RESERVE_BYTES = 2_000_000
OPTIONS = LogOptions(segment_bytes=200_000, reserve_bytes=RESERVE_BYTES)
ONE_SEGMENT = LogOptions(segment_bytes=10 * CAPACITY_BYTES, reserve_bytes=RESERVE_BYTES)
"""It is never full, so that nothing but want of room can seal it."""
CONFIG = QueuesConfig(defaults={"partitions": 1, "max_in_flight": 1_000_000})


class FullDisk:
    """An engine on a disk with little room, and one consumer that takes all it is given."""

    def __init__(self, options: LogOptions = OPTIONS) -> None:
        self.options = options
        self.disk = SimDisk(random.Random(3), DiskProfile(capacity_bytes=CAPACITY_BYTES, stall_rate=0))
        self.now = 1_700_000_000.0
        self.got: list[Delivery] = []
        self.errors: list[QueueError] = []
        self.confirmed = 0
        self.open()

    def open(self) -> None:
        self.engine = QueueEngine(CONFIG, LogQueueStore(self.disk, options=self.options), random.Random(1), self.now)

    def publish(self, size: int = 20_000) -> None:
        message = Message(topic="$queue/q", payload=bytes(size))
        QueueTopics(self.engine).publish(message, self.now, self.confirm)
        self.turn()

    def confirm(self, error: QueueError | None) -> None:
        if error is None:
            self.confirmed += 1
        else:
            self.errors.append(error)

    def subscribe(self) -> Consumer:
        def deliver(delivery: Delivery) -> bool:
            self.got.append(delivery)
            return True

        return self.engine.subscribe("q", pattern="", group="g", consumer_id="c", deliver=deliver, now=self.now)

    def ack(self, delivery: Delivery) -> list[QueueError | None]:
        outcome: list[QueueError | None] = []
        self.engine.settle(
            "q",
            SettleRequest(outcome=Outcome.ACCEPT, message_ids=(delivery.message_id,), group="g"),
            consumer_id="c",
            now=self.now,
            on_done=outcome.append,
        )
        return outcome

    def turn(self) -> None:
        for _ in range(6):
            self.now += 0.5
            self.engine.tick(self.now)
            self.engine.dispatch(self.now)
            for job in self.engine.take_jobs(self.now):
                job.run()
                self.engine.job_done(job, None, self.now)

    def fill(self) -> None:
        for _ in range(1_000):
            self.publish()
            if self.errors:
                return
        raise AssertionError("the disk never filled up")


def test_publishes_are_refused_with_the_reason_while_there_is_still_room() -> None:
    full = FullDisk()
    full.fill()
    assert full.errors[0].code is QueueErrorCode.STORAGE_FAILED
    assert "nearly full" in full.errors[0].text
    assert full.disk.free_bytes() > RESERVE_BYTES / 4
    assert full.confirmed > 100


def test_many_logs_together_leave_the_reserve_alone() -> None:
    """Each asked the disk once in a megabyte of its own, so that eight wrote past the reserve before any did again."""
    full = FullDisk()
    for _ in range(50):
        for queue in range(8):
            message = Message(topic=f"$queue/q{queue}", payload=bytes(20_000))
            QueueTopics(full.engine).publish(message, full.now, full.confirm)
        full.turn()
    assert full.errors
    assert full.disk.free_bytes() > RESERVE_BYTES / 2


@pytest.mark.parametrize("reserve_bytes", [0, 40_000])
def test_a_small_reserve_is_kept_as_well(reserve_bytes: int) -> None:
    disk = SimDisk(random.Random(3), DiskProfile(capacity_bytes=500_000, stall_rate=0))
    store = LogQueueStore(disk, options=LogOptions(reserve_bytes=reserve_bytes))
    log = store.open_queue(QueueConfig(name="q")).open_partition(0)

    def fill() -> None:
        for _ in range(1_000):
            log.append([NewRecord(0, b"", bytes(2_000), ())])

    with pytest.raises(LogError, match="nearly full" if reserve_bytes else "cannot write"):
        fill()
    assert disk.free_bytes() >= reserve_bytes / 2


def test_a_delayed_message_can_be_cancelled_on_a_full_disk() -> None:
    full = FullDisk()
    told: list[str] = []
    message = Message(topic="$queue/q", payload=b"", user_properties=(("delay", "1h"),))
    QueueTopics(full.engine).publish(message, full.now, full.confirm, lambda kind, name: told.append(name))
    full.turn()
    full.fill()
    outcome: list[QueueError | None] = []
    assert full.engine.cancel_delayed("q", told[0], full.now, outcome.append)
    full.turn()
    assert outcome == [None]


def test_delayed_messages_keep_the_reserve_and_one_that_waits_holds_no_room() -> None:
    """Those that were cancelled make room although an older one still waits, copies being made on a full disk."""
    full = FullDisk()
    told: list[str] = []
    while not full.errors:
        message = Message(topic="$queue/q", payload=bytes(20_000), user_properties=(("delay", "1h"),))
        QueueTopics(full.engine).publish(message, full.now, full.confirm, lambda kind, name: told.append(name))
        full.turn()
        assert len(told) < 1_000, "the disk never filled up"
    assert "nearly full" in full.errors[0].text
    assert full.disk.free_bytes() > RESERVE_BYTES / 2
    free_bytes = full.disk.free_bytes()
    for name in told[1:]:
        assert full.engine.cancel_delayed("q", name, full.now)
        full.turn()
    for _ in range(30):
        full.now += 1
        full.turn()
    assert full.disk.free_bytes() > free_bytes + CAPACITY_BYTES / 2
    assert [one.delay_id for one in full.engine.delayed("q")] == told[:1]
    full.errors.clear()
    full.publish()
    assert full.errors == []


def test_reads_and_settlements_go_on_and_make_room() -> None:
    full = FullDisk()
    full.fill()
    full.subscribe()
    full.turn()
    assert len(full.got) == full.confirmed, "everything confirmed is delivered"
    outcomes = [full.ack(delivery) for delivery in full.got]
    full.turn()
    assert outcomes == [[None]] * full.confirmed, "every ack is confirmed as durable"
    full.errors.clear()
    before = full.confirmed
    full.publish()
    assert (full.errors, full.confirmed) == ([], before + 1)


def settle_all(full: FullDisk) -> None:
    full.subscribe()
    full.turn()
    for delivery in full.got:
        full.ack(delivery)


def purge(full: FullDisk) -> None:
    full.engine.purge_queue("q", full.now, lambda *_: None)


@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize("leave", [settle_all, purge])
def test_what_was_written_last_makes_room_too(leave: Callable[[FullDisk], None], power_fails: bool) -> None:
    """A queue smaller than a segment was never sealed while publishes were refused, and never freed: for ever."""
    full = FullDisk(ONE_SEGMENT)
    full.fill()
    leave(full)
    full.turn()
    other = Message(topic="$queue/other", payload=bytes(20_000))
    for _ in range(5):
        QueueTopics(full.engine).publish(other, full.now)
        full.turn()
        if power_fails:
            full.disk.power_loss()
            full.open()
    full.errors.clear()
    full.got.clear()
    before = full.confirmed
    full.publish()
    assert (full.errors, full.confirmed) == ([], before + 1)
    assert full.disk.free_bytes() > CAPACITY_BYTES / 2
    if power_fails or leave is purge:
        full.subscribe()
        full.turn()
    assert len(full.got) == 1, "what left stays gone, and the new message is there"


def test_a_segment_of_which_something_is_needed_stays() -> None:
    full = FullDisk(ONE_SEGMENT)
    full.fill()
    full.subscribe()
    full.turn()
    for delivery in full.got[:-1]:
        full.ack(delivery)
    for _ in range(5):
        full.publish()
    assert full.errors[1:], "one message still waits in the only segment"
    full.disk.power_loss()
    last = full.got[-1].message_id
    full.got = []
    full.open()
    full.subscribe()
    full.turn()
    assert [delivery.message_id for delivery in full.got] == [last]


def test_delayed_messages_written_last_make_room_too() -> None:
    full = FullDisk(ONE_SEGMENT)
    told: list[str] = []
    message = Message(topic="$queue/q", payload=bytes(20_000), user_properties=(("delay", "1h"),))
    while not full.errors:
        QueueTopics(full.engine).publish(message, full.now, full.confirm, lambda kind, name: told.append(name))
        full.turn()
        assert len(told) < 1_000, "the disk never filled up"
    for name in told:
        full.engine.cancel_delayed("q", name, full.now)
        full.turn()
    for _ in range(5):
        full.publish()
    full.errors.clear()
    full.publish()
    assert full.errors == []
    assert full.disk.free_bytes() > CAPACITY_BYTES / 2
    assert full.engine.delayed("q") == []


def test_acks_made_on_a_full_disk_survive_power_loss() -> None:
    full = FullDisk()
    full.fill()
    full.subscribe()
    full.turn()
    settled = len(full.got) // 2
    outcomes = [full.ack(delivery) for delivery in full.got[:settled]]
    full.turn()
    assert outcomes == [[None]] * settled
    total = full.confirmed
    full.disk.power_loss()
    full.got = []
    full.open()
    full.subscribe()
    full.turn()
    assert len(full.got) == total - settled


def test_who_looks_at_the_room_takes_none_of_it_from_those_who_check() -> None:
    """The look of a turn made the next append count from there, so that small ones were never refused."""
    disk = SimDisk(random.Random(3), DiskProfile(capacity_bytes=500_000, stall_rate=0))
    store = LogQueueStore(disk, options=LogOptions(reserve_bytes=100_000))
    log = store.open_queue(QueueConfig(name="q")).open_partition(0)
    assert store.room is not None

    def fill() -> None:
        for _ in range(1_000):
            log.append([NewRecord(0, b"", bytes(1_000), ())])
            assert store.room is not None
            assert store.room.spare_bytes() <= disk.free_bytes() - 100_000 + 2_000

    with pytest.raises(LogError, match="nearly full"):
        fill()
    assert disk.free_bytes() >= 95_000
