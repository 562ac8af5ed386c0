"""Kills at any operation of the disk, and a driver that does only what the engine asks for.

A broker that has nothing more to do at once has delivered all that its consumers have room for, and has answered
everybody: nothing waits for another publish, a consumer or a turn that nobody asked for. What a full disk or a lack of
descriptors refused for a while comes by itself, once there is room again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from assay.reference_broker.config import (
    Durability,
    GroupConfig,
    GroupStart,
    Ordering,
    QueueConfig,
    QueuesConfig,
    RetentionConfig,
    RetryConfig,
)
from assay.reference_broker.queues import (
    BackgroundJob,
    Delivery,
    Outcome,
    QueueAddress,
    QueueEngine,
    QueueError,
    SettleRequest,
)
from assay.reference_broker.queues.groups import group_state
from assay.reference_broker.queues.groups.group_state import GroupState
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile
from assay.reference_broker.storage.queue_store import LogQueueStore

LIVES: Final = 20
ROOM: Final = 60
"""Deliveries that a consumer holds at most: less than is left by most lives."""
AHEAD: Final = 150
"""Messages published and not settled at most."""
GROUPS: Final = 5
REST_S: Final = 12.0
"""Longer than anything waits here: writes and syncs are tried again after one or two seconds."""
PASSING: Final = (errno.EMFILE, errno.ENOSPC)
QUEUE: Final = QueueConfig(
    name="q",
    partitions=3,
    delivery_timeout_s=0.0,
    max_in_flight=ROOM,
    retention=RetentionConfig(max_age_s=5.0),
    retry=RetryConfig(max_retries=1_000_000, total_timeout_s=0.0),
)
Place = tuple[int, int]
"""Partition and offset."""


class KilledError(BaseException):
    """The process is dead: none of its code runs any more."""


class MortalDisk(MemoryDisk):
    """Keeps what was written, as an operating system does; kills whoever uses it before a certain change."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.changes_left: int | None = None
        """None = it kills nobody."""
        self.refuses = 0
        """With what number of an error it refuses every other time to open files, or to make them longer; 0 = never."""

    def change(self) -> bool:
        """One more; False when the process dies of it."""
        if self.changes_left is None:
            return True
        self.changes_left -= 1
        return self.changes_left >= 0

    def change_or_die(self, path: str = "") -> None:
        if not self.change():
            raise KilledError(path)

    def is_refused(self, error: int) -> bool:
        return self.refuses == error and self.rng.random() < 0.5

    def open(self, path: str, *, create: bool = False) -> MortalFile:
        if self.is_refused(errno.EMFILE):
            raise OSError(errno.EMFILE, "Too many open files")
        if create and path not in self._files:
            self.change_or_die(path)
        super().open(path, create=create)
        return MortalFile(self, self._files[path])

    def rename(self, source: str, destination: str) -> None:
        self.change_or_die(source)
        super().rename(source, destination)

    def remove(self, path: str) -> None:
        self.change_or_die(path)
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self.change_or_die(path)


class MortalFile(MemoryFile):
    def __init__(self, disk: MortalDisk, content: bytearray) -> None:
        super().__init__(content)
        self._disk = disk

    def append(self, data: bytes) -> int:
        if self._disk.is_refused(errno.ENOSPC):
            raise OSError(errno.ENOSPC, "No space left on device")
        if not self._disk.change():
            super().append(data[: self._disk.rng.randrange(len(data) + 1)])
            raise KilledError
        return super().append(data)

    def write_at(self, position: int, data: bytes) -> None:
        self._disk.change_or_die()
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        self._disk.change_or_die()
        super().truncate(size)

    def sync(self) -> None:
        self._disk.change_or_die()


class World:
    """A disk, and what publishers and consumers know over all lives."""

    def __init__(self, seed: int, queue: QueueConfig) -> None:
        self.rng = random.Random(seed)
        self.queue = queue
        self.disk = MortalDisk(self.rng)
        self.now = 1_700_000_000.0
        self.sent = 0
        self.confirmed: set[str] = set()
        self.tried: dict[str, set[str]] = {}
        """By group: messages that somebody tried to settle for good."""
        self.begun: set[str] = set()
        """Groups of which somebody was told that they are there: the others may begin anew after a kill."""
        self.rests = self.left = 0
        """How often a broker came to rest, and how many messages waited for room then."""


class Life:
    """A broker's engine, a publisher, and a consumer in each of some groups."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.held: dict[str, dict[Place, Delivery]] = {}
        self.running: list[BackgroundJob] = []
        self.waiting: set[object] = set()
        """Requests that nobody has answered."""
        store = LogQueueStore(world.disk, options=LogOptions(segment_bytes=8 * 1024))
        config = QueuesConfig(configured=(world.queue,), retention_interval_s=1.0)
        self.engine = QueueEngine(config, store, random.Random(1), world.now)
        for group in world.tried or ("g0",):
            self.subscribe(group)

    # -- clients -------------------------------------------------------------------------------------------------

    def answered(self, done: Callable[[], None] = lambda: None) -> Callable[[QueueError | None], None]:
        token = object()
        self.waiting.add(token)

        def on_done(error: QueueError | None) -> None:
            self.waiting.remove(token)
            if error is None:
                done()
            else:
                self.check_refusal(error)

        return on_done

    def check_refusal(self, error: QueueError) -> None:
        """Raises it where nothing was refused by the disk lately."""
        assert error.text.endswith(tuple(f"[{errno.errorcode[number]}]" for number in PASSING)) or (
            "try again later" in error.text
        ), error

    def publish(self) -> None:
        name = str(self.world.sent)
        self.world.sent += 1
        message = Message(topic="$queue/q", payload=f"{name}:{'x' * self.rng.randrange(300)}".encode(), qos=1)
        confirm = self.answered(partial(self.world.confirmed.add, name))
        self.engine.publish(QueueAddress(queue="q"), message, self.world.now, confirm)

    def subscribe(self, group: str) -> None:
        def deliver(delivery: Delivery) -> bool:
            place = delivery.partition, delivery.offset
            assert place not in self.held[group], "delivered twice to one consumer"
            self.held[group][place] = delivery
            return True

        try:
            consumer = self.engine.subscribe(
                "q", pattern="", group=group, consumer_id="c", deliver=deliver, now=self.world.now
            )
        except QueueError as error:
            self.check_refusal(error)
            return
        self.held[group] = {}
        if group not in self.world.begun:
            # What all others have settled may be gone.
            begins_late = self.world.queue.group.start is GroupStart.LATEST
            self.world.tried[group] = set(map(str, range(self.world.sent))) if begins_late else set(self.settled)
        self.engine.when_begun(consumer, self.answered(lambda: self.world.begun.add(group)))

    def settle(self, group: str) -> None:
        place = self.rng.choice(list(self.held[group]))
        delivery = self.held[group].pop(place)
        outcome = self.rng.choice((Outcome.ACCEPT, Outcome.ACCEPT, Outcome.ACCEPT, Outcome.FAIL, Outcome.RELEASE))
        on_done = self.answered()
        request = SettleRequest(outcome=outcome, message_ids=(delivery.message_id,), group=group)
        try:
            self.engine.settle("q", request, consumer_id="c", now=self.world.now, on_done=on_done)
        except QueueError as error:
            on_done(error)
            self.held[group][place] = delivery
            return
        if outcome is Outcome.ACCEPT:
            self.world.tried[group].add(name_of(delivery))

    @property
    def settled(self) -> set[str]:
        """By every group, as far as anybody knows."""
        tried = list(self.world.tried.values())
        return set.intersection(*tried) if tried else set()

    @property
    def ahead(self) -> int:
        return len(self.world.confirmed - self.settled) + len(self.waiting)

    # -- the driver ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """After commands, or what was due."""
        now = self.world.now
        deadline = self.engine.next_deadline()
        if deadline is not None and deadline <= now:
            self.engine.tick(now)
        self.engine.dispatch(now)
        self.running += self.engine.take_jobs(now)

    def end_jobs(self, share: float) -> None:
        """Some of those that run, whichever is first."""
        ended = [job for job in self.running if self.rng.random() < share]
        self.running = [job for job in self.running if job not in ended]
        for job in ended:
            error: OSError | None = None
            try:
                job.run()
            except OSError as failure:
                error = failure
            self.engine.job_done(job, error, self.world.now)

    def work(self) -> None:
        """A while in which all sorts of things happen; it ends by a kill, or by itself."""
        rng, world = self.rng, self.world
        share = rng.random()
        for _ in range(rng.randrange(1, 60)):
            if rng.random() < 0.1:
                world.disk.refuses = rng.choice((0, 0, *PASSING))
            if rng.random() < 0.05 and len(world.tried) < GROUPS:
                self.subscribe(f"g{len(world.tried)}")
            for _ in range(min(rng.randint(0, 10), AHEAD - self.ahead)):
                self.publish()
            for group, held in self.held.items():
                for _ in range(rng.randint(0, len(held))):
                    self.settle(group)
            world.now += rng.random() / 100
            self.turn()
            self.end_jobs(share)

    def rest(self) -> None:
        """Nobody asks for anything any more, and the disk refuses nothing: what is left is the engine's to do."""
        world = self.world
        world.disk.refuses = 0
        self.turn()
        until = world.now + REST_S
        while True:
            if self.running:
                self.end_jobs(1.0)
                self.turn()
            deadline = self.engine.next_deadline()
            if self.running:
                continue
            if deadline is None or deadline > until:
                break
            world.now = max(world.now, deadline)
            self.turn()
        world.rests += 1
        assert not self.waiting, f"{len(self.waiting)} requests are never answered"
        for group, held in self.held.items():
            came = {name_of(delivery) for delivery in held.values()}
            missing = world.confirmed - world.tried[group] - came
            world.left += len(missing)
            if len(held) < world.queue.max_in_flight:
                assert not missing, f"{group}: {len(missing)} messages wait, and nobody is asked to deliver them"


def name_of(delivery: Delivery) -> str:
    return delivery.message.payload.partition(b":")[0].decode()


@contextmanager
def killed(world: World, changes: int | None) -> Iterator[None]:
    world.disk.refuses = 0
    world.disk.changes_left = changes
    with suppress(KilledError):
        yield
    world.disk.changes_left = None
    world.now += world.rng.random() / 10


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 300)
    monkeypatch.setattr(group_state, "SETTLED_PER_TRIM", 64)


def live(world: World, lives: int) -> None:
    """Raises :class:`AssertionError` where a broker that rests owes anybody anything."""
    for _ in range(lives):
        changes = world.rng.randrange(int(10 ** world.rng.uniform(0.5, 3.2)))
        with killed(world, changes if world.rng.random() < 0.9 else None):
            life = Life(world)
            if world.rng.random() < 0.3:
                life.rest()
            life.work()
            life.rest()
    world.queue = msgspec.structs.replace(world.queue, max_in_flight=world.queue.max_depth)
    with killed(world, None):
        Life(world).rest()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ordering": Ordering.NONE, "group": GroupConfig(start=GroupStart.LATEST)},
        {"ordering": Ordering.PLACE, "durability": Durability.INTERVAL},
        {"durability": Durability.INTERVAL, "group": GroupConfig(start=GroupStart.LATEST)},
    ],
    ids=["in order", "shared", "interval", "interval, from the latest"],
)
def test_a_broker_that_rests_after_kills_has_delivered_what_it_can(fields: dict[str, Any]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    world = World(seed, msgspec.structs.replace(QUEUE, **fields))
    live(world, LIVES)
    print(f"{len(world.confirmed)} confirmed, {len(world.tried)} groups, {world.rests} rests, {world.left} had no room")
    assert len(world.confirmed) > 50
    assert world.rests > 1


def test_a_broker_that_does_not_look_after_a_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableQueue, "serve_groups", lambda self: None)
    with pytest.raises(AssertionError, match="nobody is asked to deliver them"):
        live(World(1, QUEUE), LIVES)


def test_a_group_that_rests_after_a_refused_write_and_asks_for_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stall(self: GroupState, now: float) -> None:
        self.stalled_until = now + group_state.WRITE_RETRY_S

    monkeypatch.setattr(GroupState, "stall", stall)
    with pytest.raises(AssertionError, match=r"nobody is asked to deliver them|never answered"):
        live(World(1, QUEUE), LIVES)
