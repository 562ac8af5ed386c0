"""The loop of ``test_kill_loop.py``: one warm process forks a broker's engine, kills it, and looks at what is left.

``python kill_worker.py FOLDER --lives N --seed N [--fault NAME]`` runs N lives over one data directory and prints a
JSON summary; it ends with an error at the first thing that is wrong. A life is a forked process that runs the whole
queue engine on real files with real fsyncs (in threads, while the loop goes on): it publishes, takes deliveries,
settles them in another order, and says in a pipe what was confirmed to it and what it tries. In some lives no file can
be opened now and then: then something may be refused, and nothing else. The parent kills it with
SIGKILL at a moment drawn from the seed, opens the store itself, and compares.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import struct
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from kill_fork import Voice, WrongError, live_and_die

from assay.reference_broker.config import Durability, QueueConfig, QueuesConfig, RetentionConfig, RetryConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import (
    BackgroundJob,
    Delivery,
    Outcome,
    QueueEngine,
    QueueError,
    QueueErrorCode,
    SettleRequest,
)
from assay.reference_broker.queues.groups import group_state
from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore

QUEUE = QueueConfig(
    name="q",
    partitions=3,
    durability=Durability.FSYNC,
    max_depth=1_000_000,
    delivery_timeout_s=0.0,
    retention=RetentionConfig(max_age_s=0.03),
    retry=RetryConfig(max_retries=1_000_000, total_timeout_s=0.0),
)
"""Retention may remove even the last segment as soon as all in it is settled. Each death fails what was in flight, and
no message is to become a dead letter by it."""
GROUP = "g"
OPTIONS = LogOptions(segment_bytes=64 * 1024)
UNSETTLED = 400
"""Published and not settled at most: how far publishers run ahead of the consumer."""
FEW_FILES_SHARE = 0.4
"""Of the lives: now and then they may open no file."""
DRAIN_S = 5.0
"""What nothing holds up comes at once; this is longer than anything rests here."""
_EPOCH_S = time.time() - time.monotonic()
_VALUE = struct.Struct("<III")
_REPORT = struct.Struct("<BIQII")


def clock() -> float:
    """Unix seconds that never step back, over all lives: what a broker is told."""
    return _EPOCH_S + time.monotonic()


class Said(IntEnum):
    """What a life says in the pipe, with a place (partition and offset) and a message (life and number)."""

    CONFIRMED = 1
    """A publish; its place is not known."""
    DELIVERED = 2
    TRYING = 3
    """An acknowledgement is about to be made."""
    SETTLED = 4
    """The acknowledgement was confirmed."""


class Place(NamedTuple):
    partition: int
    offset: int


def value_of(life: int, number: int) -> bytes:
    """The payload of a message: who it is, bytes that follow from it, a checksum; up to 3 kB, now and then 100 kB."""
    rng = random.Random(life << 32 | number)
    size = 100_000 if rng.random() < 0.005 else int(16 * 2 ** (rng.random() * 7.5))
    body = _VALUE.pack(life, number, size) + rng.randbytes(size)
    return body + zlib.crc32(body).to_bytes(4, "little")


def identity_of(value: bytes) -> tuple[int, int]:
    """Life and number. Raises :class:`WrongError` when a byte of it is not as it was sent."""
    if len(value) < _VALUE.size + 4 or zlib.crc32(value[:-4]) != int.from_bytes(value[-4:], "little"):
        raise WrongError(f"a record's content is damaged: {value[:32]!r}...")
    life, number, _ = _VALUE.unpack_from(value)
    if value != value_of(life, number):
        raise WrongError(f"message {life}:{number} is not what was sent")
    return life, number


# -- the life that is killed -----------------------------------------------------------------------------------------


class Life:
    """A broker's engine with a publisher and a consumer in the same process. Never ends by itself."""

    def __init__(self, folder: Path, life: int, seed: int, voice: Voice, fault: str) -> None:
        self._life = life
        self._voice = voice
        self._fault = fault
        self._rng = random.Random(seed)
        self._number = 0
        self._held: deque[Delivery] = deque()
        self._has_few_files = self._rng.random() < FEW_FILES_SHARE
        store = LogQueueStore(RealDisk(folder), options=OPTIONS)
        config = QueuesConfig(configured=(QUEUE,), retention_interval_s=0.02)
        self._engine = QueueEngine(config, store, random.Random(seed), clock())
        # What earlier lives left counts, too: where it grew, each life died while it was given all of it once more.
        self._under_way = self._engine.stats(QUEUE.name).depth
        self._address = QueueTopics(self._engine).address("$queue/q")
        self._engine.subscribe(QUEUE.name, pattern="", group=GROUP, consumer_id="c", deliver=self._deliver, now=clock())

    def _say(self, said: Said, place: Place, life: int, number: int) -> None:
        self._voice.say(_REPORT.pack(said, *place, life, number))

    def _say_of(self, said: Said, delivery: Delivery) -> None:
        life, number, _ = _VALUE.unpack_from(delivery.message.payload)
        self._say(said, Place(delivery.partition, delivery.offset), life, number)

    def _deliver(self, delivery: Delivery) -> bool:
        self._held.append(delivery)
        self._say_of(Said.DELIVERED, delivery)
        return True

    def _publish(self) -> None:
        number = self._number
        self._number += 1
        self._voice.made(self._number)
        self._under_way += 1

        def on_confirmed(error: QueueError | None) -> None:
            if error is not None:
                self._check_refusal(error)
                self._under_way -= 1
                return
            self._say(Said.CONFIRMED, Place(0, 0), self._life, number)

        message = Message(topic="$queue/q", payload=value_of(self._life, number), qos=1)
        if self._fault == "confirms_before_the_write":
            on_confirmed(None)
        self._engine.publish(self._address, message, clock(), on_confirmed)

    def _settle(self, delivery: Delivery) -> None:
        self._under_way -= 1
        self._say_of(Said.TRYING, delivery)

        def on_done(error: QueueError | None) -> None:
            if error is not None:
                self._check_refusal(error)
                return
            self._say_of(Said.SETTLED, delivery)

        if self._fault == "settles_before_the_write":
            on_done(None)
        try:
            self._engine.settle(
                delivery.queue,
                SettleRequest(outcome=Outcome.ACCEPT, message_ids=(delivery.message_id,), group=delivery.group),
                consumer_id="c",
                now=clock(),
                on_done=on_done,
            )
        except QueueError as error:
            self._check_refusal(error)

    def _check_refusal(self, error: QueueError) -> None:
        """Raises it where nothing was to be refused."""
        if not self._has_few_files or error.code is not QueueErrorCode.STORAGE_FAILED or "restart" in error.text:
            raise error

    def _limit_files(self) -> None:
        """Now and then no file can be opened, for some turns."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard and self._rng.random() < 0.1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
        elif soft != hard and self._rng.random() < 0.3:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def run(self) -> None:
        """Turns of the loop, with syncs in threads meanwhile."""
        running: list[tuple[BackgroundJob, Future[None]]] = []
        with ThreadPoolExecutor(4) as threads:
            while True:
                if self._has_few_files:
                    self._limit_files()
                for _ in range(self._rng.randint(0, 20)):
                    if self._under_way < UNSETTLED:
                        self._publish()
                # Some are left for later, so that acknowledgements do not follow the order of the log.
                for _ in range(self._rng.randint(0, len(self._held))):
                    self._held.rotate(self._rng.randint(-3, 3))
                    self._settle(self._held.popleft())
                now = clock()
                self._engine.tick(now)
                self._engine.dispatch(now)
                running += [(job, threads.submit(job.run)) for job in self._engine.take_jobs(now)]
                done = [pair for pair in running if pair[1].done()]
                running = [pair for pair in running if pair not in done]
                for job, future in done:
                    error = future.exception()
                    if error is not None and not (self._has_few_files and isinstance(error, OSError)):
                        raise error
                    self._engine.job_done(job, error if isinstance(error, OSError) else None, now)


def live(folder: Path, life: int, seed: int, fault: str, voice: Voice) -> None:
    """The body of a life. Lives are short: let them remove segments and begin snapshots within their time too."""
    group_state.SETTLED_PER_TRIM = 64
    pending_log.SNAPSHOT_OPERATIONS = 300
    Life(folder, life, seed, voice, fault).run()


# -- what the parent knows, and how it compares ----------------------------------------------------------------------


class Ledger:
    """What the lives said so far."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        """Life -> how many messages it may have published."""
        self.confirmed: set[tuple[int, int]] = set()
        self.tried: set[Place] = set()
        self.settled: set[Place] = set()
        self.seen: dict[Place, tuple[int, int]] = {}
        """Messages that were delivered or found in a log, by place."""
        self.left = 0
        """Records found by the last comparison."""
        self.torn = 0
        """Writes that a kill had cut short."""
        self._rest = b""

    def hear(self, data: bytes) -> None:
        """Take up what came through the pipe."""
        data = self._rest + data
        whole = len(data) // _REPORT.size * _REPORT.size
        self._rest = data[whole:]
        for said, partition, offset, life, number in _REPORT.iter_unpack(data[:whole]):
            place = Place(partition, offset)
            if said == Said.CONFIRMED:
                self.confirmed.add((life, number))
            elif said == Said.TRYING:
                self.tried.add(place)
            elif said == Said.SETTLED:
                self.settled.add(place)
            else:
                if place in self.settled:
                    raise WrongError(f"{place} was settled, and was delivered again")
                self._see(place, (life, number))

    def _see(self, place: Place, identity: tuple[int, int]) -> None:
        if self.seen.setdefault(place, identity) != identity:
            raise WrongError(f"{place} held {self.seen[place]} and now holds {identity}")

    def compare(self, folder: Path) -> int:
        """Open the store as it is and compare; returns the number of records in it. Raises :class:`WrongError`."""
        store = LogQueueStore(RealDisk(folder), options=OPTIONS)
        try:
            files = store.open_queue(QUEUE)
            stored: dict[Place, tuple[int, int]] = {}
            starts: list[int] = []
            ends: list[int] = []
            for partition in range(QUEUE.partitions):
                log = files.open_partition(partition)
                starts.append(log.start_offset)
                ends.append(log.next_offset)
                self._read(partition, log.read, log.start_offset, log.next_offset, stored)
                log.close()
            self._compare_messages(stored, starts)
            group = files.open_group(GROUP, "")
            cursors = group.recovered_cursors
            pending = {Place(entry.partition, entry.offset) for entry in group.recovered}
            group.close()
            self._compare_settlements(stored, cursors, pending)
            for note in store.recovery_notes():
                if "torn tail" not in note.problem:
                    raise WrongError(f"recovery found damage where only a kill was: {note}")
                self.torn += 1
        finally:
            store.close()
        self.left = len(stored)
        return self.left

    @staticmethod
    def _read(
        partition: int,
        read: Callable[[int, int], list[LogRecord]],
        start: int,
        end: int,
        stored: dict[Place, tuple[int, int]],
    ) -> None:
        newest: tuple[int, int] = (-1, -1)
        offset = start
        while offset < end:
            records = read(offset, 500)
            if not records:
                raise WrongError(f"partition {partition} ends at {offset} in place of {end}")
            for record in records:
                if record.offset != offset:
                    raise WrongError(f"partition {partition}: offset {record.offset} in place of {offset}")
                identity = identity_of(record.value or b"")
                if identity <= newest:
                    raise WrongError(f"partition {partition}: message {identity} after {newest}")
                newest = identity
                stored[Place(partition, offset)] = identity
                offset += 1

    def _compare_messages(self, stored: dict[Place, tuple[int, int]], starts: list[int]) -> None:
        for place, identity in stored.items():
            self._see(place, identity)
        present = set(stored.values())
        if len(present) < len(stored):
            raise WrongError("a message is stored twice")
        for life, number in present:
            if number >= self.sent.get(life, 0):
                raise WrongError(f"message {life}:{number} was never sent")
        lost = self.confirmed - present
        for place, identity in self.seen.items():
            if place.offset < starts[place.partition] and place in self.tried:
                # Its segment was removed after all in it had been settled.
                lost.discard(identity)
        if lost:
            raise WrongError(f"{len(lost)} confirmed messages are lost, the first is {min(lost)}")

    def _compare_settlements(
        self,
        stored: dict[Place, tuple[int, int]],
        cursors: dict[int, int],
        pending: set[Place],
    ) -> None:
        for place in stored:
            is_settled = place.offset < cursors.get(place.partition, 0) and place not in pending
            if is_settled and place not in self.tried:
                raise WrongError(f"{place} counts as settled, and nobody settled it")
            if not is_settled and place in self.settled:
                raise WrongError(f"the settlement of {place} was confirmed and is lost")


# -- the loop --------------------------------------------------------------------------------------------------------


def drain(folder: Path, ledger: Ledger) -> int:
    """Deliver all that is left to the group; returns how many. Raises :class:`WrongError` when one is missing."""
    store = LogQueueStore(RealDisk(folder), options=OPTIONS)
    config = QueuesConfig(configured=(msgspec.structs.replace(QUEUE, max_in_flight=QUEUE.max_depth),))
    engine = QueueEngine(config, store, random.Random(1), clock())
    delivered: dict[Place, tuple[int, int]] = {}

    def deliver(delivery: Delivery) -> bool:
        place = Place(delivery.partition, delivery.offset)
        if place in delivered or place in ledger.settled:
            raise WrongError(f"{place} is delivered again")
        delivered[place] = identity_of(delivery.message.payload)
        return True

    begun = now = clock()
    engine.subscribe(QUEUE.name, pattern="", group=GROUP, consumer_id="c", deliver=deliver, now=now)
    engine.dispatch(now)
    turns = 1
    # Nothing is done but what the engine asks for.
    while (deadline := engine.next_deadline()) is not None and deadline <= begun + DRAIN_S:
        now = max(now, deadline)
        engine.tick(now)
        engine.dispatch(now)
        for job in engine.take_jobs(now):
            job.run()
            engine.job_done(job, None, now)
        turns += 1
    stats = engine.stats(QUEUE.name)
    engine.close(now)
    settled = {ledger.seen[place] for place in ledger.tried if place in ledger.seen}
    missing = ledger.confirmed - settled - set(delivered.values())
    if missing:
        raise WrongError(
            f"{len(missing)} confirmed messages that nobody settled never come, the first is {min(missing)}; "
            f"after {turns} turns in {now - begun} s the queue holds {stats}"
        )
    return len(delivered)


def run_lives(folder: Path, lives: int, seed: int, fault: str = "") -> dict[str, int]:
    """Returns what happened. Raises :class:`WrongError` at the first thing that is wrong."""
    ledger = Ledger()
    read = 0
    for life in range(lives):
        try:
            rng = random.Random(seed << 32 | life)
            run = partial(live, folder, life, rng.getrandbits(32), fault)
            ledger.sent[life] = live_and_die(f"life {life}", rng, run, ledger.hear)
            read += ledger.compare(folder)
        except WrongError as error:
            raise WrongError(f"seed {seed}, life {life}: {error}") from error
    return {
        "kills": lives,
        "confirmed": len(ledger.confirmed),
        "settled": len(ledger.settled),
        "removed": len(ledger.seen) - ledger.left,
        "torn": ledger.torn,
        "compared": read,
        "drained": drain(folder, ledger),
    }


def main() -> None:
    """Entry of the warm process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lives", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--fault", default="")
    asked = parser.parse_args()
    sys.stdout.write(json.dumps(run_lives(asked.folder, asked.lives, asked.seed, asked.fault)) + "\n")


if __name__ == "__main__":
    main()
