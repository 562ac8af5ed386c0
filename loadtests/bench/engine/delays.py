"""Delayed messages: the memory of many that wait, and how fast those that are due become ordinary messages."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import msgspec

from assay.reference_broker.config import Durability, QueuesConfig
from assay.reference_broker.queues import PublishOptions, QueueAddress, QueueEngine
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

START = 1_700_000_000.0
_BATCH = 1_000
_LONGEST_MS = 600_000_000


class DelayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one queue, in a process of its own."""

    pending: int
    payload_bytes: int
    on_disk: bool
    scheduled_per_s: float
    grown_bytes: int
    """Resident memory that all pending messages take, payloads and logs in memory included."""
    fired_per_s: float
    reopened_s: float
    """Opening the engine with all of them pending; 0 for a queue in memory."""
    reopened_bytes: int
    """Resident memory after that, beyond what the process had before."""


def measure_delays(pending: int, payload_bytes: int, *, on_disk: bool) -> DelayFigures:
    """In a fresh process, so that its memory is that of the messages."""
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(1) as pool:
        first = pool.apply(_measure, (pending, payload_bytes, folder if on_disk else ""))
        if not on_disk:
            return first
        with get_context("spawn").Pool(1) as second:
            reopened_s, reopened_bytes = second.apply(_reopen, (pending, payload_bytes, folder))
        return msgspec.structs.replace(first, reopened_s=reopened_s, reopened_bytes=reopened_bytes)


def _engine(folder: str, limit: int, now: float) -> QueueEngine:
    durability = Durability.INTERVAL if folder else Durability.MEMORY
    defaults = {"durability": durability, "max_delayed": limit, "max_depth": 2 * limit, "partitions": 1}
    store = LogQueueStore(RealDisk(Path(folder)) if folder else None)
    return QueueEngine(QueuesConfig(defaults=defaults), store, random.Random(1), now)


def _turn(engine: QueueEngine, now: float) -> None:
    engine.tick(now)
    engine.dispatch(now)
    for job in engine.take_jobs(now):
        job.run()
        engine.job_done(job, None, now)


def _schedule(engine: QueueEngine, pending: int, payload_bytes: int, first_ms: int) -> None:
    rng = random.Random(2)
    address = QueueAddress(queue="q")
    payload = bytes(payload_bytes)
    for start in range(0, pending, _BATCH):
        for _ in range(min(_BATCH, pending - start)):
            delay_ms = rng.randrange(first_ms, _LONGEST_MS)
            message = Message(topic="$queue/q", payload=payload, publisher="p")
            engine.publish(address, message, START, options=PublishOptions(delay_ms=delay_ms))
        _turn(engine, START)


def _measure(pending: int, payload_bytes: int, folder: str) -> DelayFigures:
    engine = _engine(folder, 2 * pending, START)
    gc.collect()
    before = resident_bytes()
    began = time.perf_counter()
    _schedule(engine, pending, payload_bytes, 1_000_000)
    scheduled_s = time.perf_counter() - began
    gc.collect()
    grown_bytes = resident_bytes() - before
    if folder:
        engine.close(START)
    return DelayFigures(
        pending=pending,
        payload_bytes=payload_bytes,
        on_disk=bool(folder),
        scheduled_per_s=pending / scheduled_s,
        grown_bytes=grown_bytes,
        fired_per_s=_fire(pending, payload_bytes, f"{folder}/firing" if folder else ""),
        reopened_s=0.0,
        reopened_bytes=0,
    )


def _fire(pending: int, payload_bytes: int, folder: str) -> float:
    """Messages per second when many are due at once, in random order."""
    if folder:
        Path(folder).mkdir()
    count = max(1, min(50_000, pending // 5))
    engine = _engine(folder, 2 * pending, START)
    _schedule(engine, count, payload_bytes, 0)
    now = START + _LONGEST_MS / 1000 + 1
    began = time.perf_counter()
    while engine.stats("q").delayed:
        _turn(engine, now)
    seconds = time.perf_counter() - began
    engine.close(now)
    return count / seconds


def _reopen(pending: int, payload_bytes: int, folder: str) -> tuple[float, int]:
    del payload_bytes
    gc.collect()
    before = resident_bytes()
    began = time.perf_counter()
    engine = _engine(folder, 2 * pending, START)
    seconds = time.perf_counter() - began
    assert engine.stats("q").delayed == pending
    gc.collect()
    grown_bytes = resident_bytes() - before
    engine.close(START)
    return seconds, grown_bytes


def resident_bytes() -> int:
    """Resident memory of this process, Linux only."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096
