"""A million queued messages in a process of their own: what they take of memory and disk, before and after a restart.

Run as ``python -m assay.loadtests.bench.storage.queued_messages FOLDER --count N --payload-bytes N [--reopen]``: the
whole queue engine on a real store, without network. Prints JSON lines: progress, then a :class:`QueuedFigures`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from assay.reference_broker.config import Durability, QueueConfig, QueuesConfig
from assay.reference_broker.queues import QueueAddress, QueueEngine, QueueError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

QUEUE = "bench"
PARTITIONS = 10
TURN_MESSAGES = 1_000
"""Published in a turn: a partition's share of them becomes one batch, and its sync one of the turn's."""
_PROGRESS_TURNS = 20
_KIB = 1_024


class QueuedProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far the child is."""

    count: int


class QueuedFigures(msgspec.Struct, frozen=True, kw_only=True, tag="figures"):
    """What a child found out about itself. Memory is resident memory, Python and all modules included."""

    depth: int
    """Messages in the queue."""
    took_s: float
    """To enqueue and confirm them all, or to open the store again."""
    raw_s: float
    """``os.pwrite`` and ``os.fsync`` of as many bytes in as many pieces; 0 when reopening."""
    peak_bytes: int
    resident_bytes: int
    before_bytes: int
    """Resident before the engine was made."""
    disk_bytes: int


Line = QueuedProgress | QueuedFigures


def memory_bytes(field: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident memory of this process, now or at most so far, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * _KIB
    message = f"/proc/self/status has no {field}"
    raise OSError(message)


def folder_bytes(folder: Path) -> int:
    """Sizes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _say(line: Line) -> None:
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def _engine(folder: Path, count: int) -> QueueEngine:
    """fsync, no compression: the strictest promise, the most bytes."""
    queue = QueueConfig(name=QUEUE, partitions=PARTITIONS, durability=Durability.FSYNC, max_depth=count)
    return QueueEngine(
        QueuesConfig(configured=(queue,)), LogQueueStore(RealDisk(folder)), random.Random(1), time.time()
    )


def _turn(engine: QueueEngine) -> None:
    """Write what was published and sync until every confirm is out."""
    now = time.time()
    engine.tick(now)
    engine.dispatch(now)
    while jobs := engine.take_jobs(now):
        for job in jobs:
            job.run()
            engine.job_done(job, None, now)
        engine.dispatch(now)


def enqueue(folder: Path, count: int, payload_bytes: int) -> QueuedFigures:
    """Publish and confirm ``count`` messages, each with a payload of its own. Raises what a publish raises."""
    before_bytes = memory_bytes("VmRSS")
    engine = _engine(folder / "store", count)
    address = QueueAddress(queue=QUEUE)
    filler = random.Random(7).randbytes(payload_bytes - 8)
    confirmed = 0

    def on_confirmed(error: QueueError | None) -> None:
        nonlocal confirmed
        if error is not None:
            raise error
        confirmed += 1

    began = time.perf_counter()
    for start in range(0, count, TURN_MESSAGES):
        now = time.time()
        for number in range(start, min(start + TURN_MESSAGES, count)):
            message = Message(topic=f"$queue/{QUEUE}", payload=number.to_bytes(8, "big") + filler, qos=1)
            engine.publish(address, message, now, on_confirmed)
        _turn(engine)
        if start // TURN_MESSAGES % _PROGRESS_TURNS == 0:
            _say(QueuedProgress(count=start))
    took_s = time.perf_counter() - began
    assert confirmed == count, f"{confirmed} of {count} messages were confirmed"
    depth = engine.stats(QUEUE).depth
    peak_bytes, resident_bytes = memory_bytes("VmHWM"), memory_bytes("VmRSS")
    engine.close(time.time())
    disk_bytes = folder_bytes(folder / "store")
    return QueuedFigures(
        depth=depth,
        took_s=took_s,
        raw_s=_raw_s(folder, disk_bytes, -(-count // TURN_MESSAGES)),
        peak_bytes=peak_bytes,
        resident_bytes=resident_bytes,
        before_bytes=before_bytes,
        disk_bytes=disk_bytes,
    )


def _raw_s(folder: Path, size: int, turns: int) -> float:
    """A tenth of the turns is written, to as many files as there are partitions, and the time multiplied."""
    written_turns = max(1, turns // 10)
    piece = random.Random(8).randbytes(size // turns // PARTITIONS)
    paths = [folder / f"raw-{number}" for number in range(PARTITIONS)]
    descriptors = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640) for path in paths]
    try:
        began = time.perf_counter()
        for turn in range(written_turns):
            for descriptor in descriptors:
                os.pwrite(descriptor, piece, turn * len(piece))
            for descriptor in descriptors:
                os.fsync(descriptor)
        return (time.perf_counter() - began) * turns / written_turns
    finally:
        for descriptor, path in zip(descriptors, paths, strict=True):
            os.close(descriptor)
            path.unlink()


def reopen(folder: Path, count: int) -> QueuedFigures:
    """Open the store of a run before, as a restarted broker does."""
    before_bytes = memory_bytes("VmRSS")
    began = time.perf_counter()
    engine = _engine(folder / "store", count)
    took_s = time.perf_counter() - began
    depth = engine.stats(QUEUE).depth
    peak_bytes, resident_bytes = memory_bytes("VmHWM"), memory_bytes("VmRSS")
    engine.close(time.time())
    return QueuedFigures(
        depth=depth,
        took_s=took_s,
        raw_s=0.0,
        peak_bytes=peak_bytes,
        resident_bytes=resident_bytes,
        before_bytes=before_bytes,
        disk_bytes=folder_bytes(folder / "store"),
    )


def main() -> None:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--payload-bytes", type=int, required=True)
    parser.add_argument("--reopen", action="store_true")
    asked = parser.parse_args()
    if asked.reopen:
        _say(reopen(asked.folder, asked.count))
    else:
        _say(enqueue(asked.folder, asked.count, asked.payload_bytes))


if __name__ == "__main__":
    main()
