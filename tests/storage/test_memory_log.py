"""The log of a queue in memory against a log in files: the same answers, whatever is asked."""

from __future__ import annotations

import random
import sys

import msgspec
import pytest

from assay.reference_broker.queues.jobs.agenda import NEVER
from assay.reference_broker.queues.jobs.store import NewRecord, RetentionPolicy
from assay.reference_broker.queues.messages.lanes import NORMAL
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.queues.messages.stored_message import (
    PROPERTIES_BYTES,
    MessageCodec,
    StoredMessage,
    message_bytes,
)
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import MessageProperties
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.compression import Compression
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.memory_log import KEPT_BYTES, RECORD_BYTES, MemoryLog

FOLDER = "partition"


def open_log(kind: type[SegmentedLog], *, segment_bytes: int = 2_000) -> SegmentedLog:
    return kind(
        MemoryDisk(),
        FOLDER,
        options=LogOptions(segment_bytes=segment_bytes, segment_age_ms=60_000),
        encoder=BatchEncoder(Compression.NONE),
        volatile=True,
        note=lambda place, problem: pytest.fail(f"{place}: {problem}"),
    )


def drawn(rng: random.Random, now_ms: int) -> list[NewRecord]:
    return [
        NewRecord(now_ms + rng.choice((0, 0, 5)), rng.choice((b"", b"key")), rng.randbytes(rng.randrange(60)), ())
        for _ in range(rng.choice((1, 1, 3, 20)))
    ]


def size_of(records: list[NewRecord]) -> int:
    return sum(len(record.value or b"") for record in records)


@pytest.mark.parametrize("seed", range(20))
def test_it_answers_as_a_log_in_files(seed: int) -> None:
    rng = random.Random(seed)
    memory, files = open_log(MemoryLog, segment_bytes=1 << 30), open_log(SegmentedLog, segment_bytes=1 << 30)
    now_ms = 1_700_000_000_000
    for _ in range(30):
        now_ms += rng.choice((0, 1, 900, 5_000))
        records = drawn(rng, now_ms)
        base = memory.append(records, transactional=rng.random() < 0.2, size_bytes=size_of(records))
        assert base == files.append(records)
        if rng.random() < 0.1:
            memory.roll()
            files.roll()
        if rng.random() < 0.1:
            offset = rng.randrange(memory.next_offset + 1)
            memory.drop_before(offset)
            files.drop_before(offset)
        assert (memory.start_offset, memory.next_offset) == (files.start_offset, files.next_offset)
        assert memory.durable_offset == memory.next_offset
        assert not memory.needs_sync
        at = rng.randrange(memory.next_offset + 2)
        assert memory.get(at) == files.get(at)
        limit = rng.choice((1, 7, 1_000))
        assert memory.read(at, limit) == files.read(at, limit)[: len(memory.read(at, limit))]
        assert list(memory.read_range(0, memory.next_offset)) == list(files.read_range(0, files.next_offset))
        time_ms = now_ms - rng.randrange(-10, 40_000)
        assert memory.offset_at(time_ms) == files.offset_at(time_ms)
    memory.close()


def drawn_message(rng: random.Random, now: float) -> StoredMessage:
    pairs = ((PARTITION_KEY, "k"), ("_name", "ü"), ("", ""))
    message = Message(
        topic=rng.choice(("", "$queue/q", "$queue/q/key", "elsewhere")),
        payload=rng.randbytes(rng.randrange(60)),
        publisher=rng.choice(("", "amqp091:1")),
        expires_at=rng.choice((0.0, now + 1.234)),
        payload_format=rng.choice((None, 1)),
        content_type=rng.choice((None, "text")),
        response_topic=rng.choice((None, "r")),
        correlation_data=rng.choice((None, b"c")),
        user_properties=tuple(rng.sample(pairs, rng.randrange(4))),
        properties=rng.choice((None, MessageProperties(app_id="a", durable=False))),
    )
    key, lane = rng.choice(("", "key")), rng.choice((NORMAL, 0, 9))
    topic = f"$queue/q/{key}" if key else "$queue/q"
    return StoredMessage(message, topic, key, int(now * 1_000) / 1_000, NEVER, message_bytes(message), lane)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_read_as_if_it_were_written(seed: int) -> None:
    rng = random.Random(seed)
    kept, written = open_log(MemoryLog, segment_bytes=1 << 30), open_log(SegmentedLog, segment_bytes=1 << 30)
    codec, now = MessageCodec("q", 0.0, SharedMemory(1 << 20)), 1_700_000_000.0
    stored: list[StoredMessage] = []
    for _ in range(20):
        now += rng.choice((0.0, 0.001, 0.9, 5.0, -0.5))
        if rng.random() < 0.2:
            records = drawn(rng, int(now * 1_000))
            assert kept.append(records, size_bytes=size_of(records)) == written.append(records)
            stored += [codec.decode(record) for record in kept.read(len(stored), len(records))]
            continue
        messages = [drawn_message(rng, now + rng.random()) for _ in range(rng.choice((1, 1, 3, 20)))]
        before = kept.stored_bytes
        assert kept.keep(messages, 7) == written.keep(messages, 7)
        assert kept.stored_bytes == before + 7 + KEPT_BYTES * len(messages)
        stored += messages
        time_ms = int(now * 1_000) - rng.randrange(-1_000, 4_000)
        assert kept.offset_at(time_ms) == written.offset_at(time_ms), seed
        at = rng.randrange(len(stored) + 1)
        assert kept.get(at) == written.get(at), seed
    read = list(kept.read_range(0, kept.next_offset))
    assert read == list(written.read_range(0, written.next_offset)), seed
    for each, record in zip(stored, read, strict=True):
        decoded = codec.decode(record)
        was = msgspec.structs.replace(each.message, expires_at=int(each.message.expires_at * 1_000) / 1_000)
        assert msgspec.structs.asdict(decoded.message) == msgspec.structs.asdict(was), seed
        assert (decoded.topic, decoded.routing_key, decoded.lane) == (each.topic, each.routing_key, each.lane), seed
        assert (decoded.enqueued_at, decoded.size) == (each.enqueued_at, each.size), seed
    assert sum(map(sys.getsizeof, (each, each.message, b""))) <= KEPT_BYTES
    assert sys.getsizeof(MessageProperties()) <= PROPERTIES_BYTES


def test_segments_are_full_by_what_they_hold_and_go_as_a_whole() -> None:
    log = open_log(MemoryLog)
    for number in range(40):
        log.append([NewRecord(number, b"", bytes(72), ())], size_bytes=72)
    assert log.stored_bytes == 40 * (72 + RECORD_BYTES)
    assert [segment.base_offset for segment in log.segments] == [0, 10, 20, 30]
    log.drop_before(25)
    assert log.start_offset == 20
    assert log.stored_bytes == 20 * (72 + RECORD_BYTES)
    log.retain(RetentionPolicy(max_records=10), now_ms=50, needed_from=None)
    assert log.start_offset == 30
    assert [record.offset for record in log.read(0, 3)] == [30, 31, 32]


def test_a_segment_is_closed_when_its_first_record_is_old() -> None:
    log = open_log(MemoryLog)
    for time_ms in (0, 59_999, 60_000, 119_999, 120_000):
        log.append([NewRecord(time_ms, b"", b"x", ())], size_bytes=1)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
