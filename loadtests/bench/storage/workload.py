"""Records to store: of one shape, as most publishers send them, and of mixed sizes, as all publishers together do."""

from __future__ import annotations

import random

from assay.reference_broker.queues.jobs.store import Headers, NewRecord

START_MS = 1_700_000_000_000
_PER_MILLISECOND = 100
_FIRST_SEQUENCE = 1_000_000_000
_SIZE_RANGE = (20, 2_000)
_HEADERS: tuple[Headers, ...] = (
    (),
    ((b"content-type", b"application/json"),),
    ((b"trace", b"4bf92f3577b34da6"), (b"tenant", b"north")),
)

Batches = list[list[NewRecord]]


def reading(number: int, rng: random.Random, size: int) -> bytes:
    """A sensor's reading as JSON, ``size`` bytes long: some of it repeats from message to message, some does not."""
    text = (
        f'{{"device":"sensor-{number % 500:04d}","sequence":{_FIRST_SEQUENCE + number},'
        f'"celsius":{rng.uniform(10, 40):.2f},"signature":"{rng.randbytes(size // 4).hex()}'
    ).encode()
    return text[: size - 2].ljust(size - 2, b"0") + b'"}'


def uniform_record(number: int, rng: random.Random, size: int) -> NewRecord:
    """An 11-byte key and a value of ``size`` bytes; 100 records have the same millisecond."""
    key = b"sensor-%04d" % (number % 500)
    return NewRecord(START_MS + number // _PER_MILLISECOND, key, reading(number, rng, size), ())


def uniform_batches(count: int, batch_records: int, *, value_bytes: int = 100, seed: int = 1) -> Batches:
    """``count`` records of one shape, in batches."""
    rng = random.Random(seed)
    records = [uniform_record(number, rng, value_bytes) for number in range(count)]
    return [records[start : start + batch_records] for start in range(0, count, batch_records)]


def mixed_batches(count: int, batch_records: int, *, seed: int = 2) -> Batches:
    """Values of 20 to 2000 bytes (even on a logarithmic scale), keys and headers or none, clocks that step back."""
    rng = random.Random(seed)
    low, high = _SIZE_RANGE
    records = []
    for number in range(count):
        size = int(low * (high / low) ** rng.random())
        key = None if rng.random() < 0.3 else b"k" * rng.randint(0, 40)
        timestamp_ms = START_MS + number // _PER_MILLISECOND + rng.randint(-20, 20)
        records.append(NewRecord(timestamp_ms, key, reading(number, rng, size), rng.choice(_HEADERS)))
    return [records[start : start + batch_records] for start in range(0, count, batch_records)]
