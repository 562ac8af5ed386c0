"""Directories to look at: Assay's by our own log, FluxMQ's and GoQueue's by independent encoders of a few lines."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from assay.cli import build_app
from assay.reference_broker.config import Durability, QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore

START_MS = 1_700_000_000_000
BATCHES = 4
"""Of each segment built here."""
RECORDS = 3
"""Of each batch."""
SEGMENTS = 3


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    out: str
    errors: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def record_of(offset: int) -> NewRecord:
    """The record that all directories here have at an offset."""
    return NewRecord(
        START_MS + 700 * offset, b"k%d" % (offset % 5), b"value %d" % offset, ((b"_topic", b"$queue/orders"),)
    )


@pytest.fixture(scope="session")
def expected_record() -> Callable[[int], NewRecord]:
    return record_of


@pytest.fixture
def storage() -> Callable[..., Outcome]:
    """Runs ``assay storage ...`` in this process."""
    app = build_app("storage")

    def run(*arguments: object, stdin: bytes | None = None) -> Outcome:
        done = CliRunner().invoke(app, ["storage", *map(str, arguments)], input=stdin, env={"COLUMNS": "200"})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Outcome(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def fingerprint() -> Callable[[Path], dict[str, str]]:
    """Relative path -> hash of every file below a folder."""

    def of(folder: Path) -> dict[str, str]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return of


# -- Assay ---------------------------------------------------------------------------------------------------------


def build_assay(root: Path, *, segments: int = SEGMENTS, with_group: bool = True) -> Path:
    """Queue ``orders`` with two partitions: partition 0 has segments, partition 1 one batch; group ``workers``."""
    store = LogQueueStore(RealDisk(root), options=LogOptions())
    files = store.open_queue(QueueConfig(name="orders", partitions=2, durability=Durability.FSYNC))
    for partition, batches in ((0, segments * BATCHES), (1, 1)):
        log = files.open_partition(partition)
        for batch in range(batches):
            log.append([record_of(batch * RECORDS + one) for one in range(RECORDS)])
            if batch % BATCHES == BATCHES - 1 and batch + 1 < batches:
                log.roll()
            task = log.start_sync()
            assert task is not None
            task.run()
            log.finish_sync(None)
        log.close()
    if with_group:
        group = files.open_group("workers", "")
        for offset in range(6):
            group.add(0, offset, f"c{offset % 2}", START_MS + offset, 1)
            group.flush()
        group.ack(0, 0)
        group.flush()
        while (sync := group.start_sync()) is not None:
            sync.run()
            group.finish_sync(None)
        group.close()
    store.close()
    return root


@pytest.fixture
def assay(tmp_path: Path) -> Path:
    return build_assay(tmp_path / "assay")


@pytest.fixture(scope="session")
def make_assay() -> Callable[..., Path]:
    return build_assay


# -- FluxMQ, from the tables -----------------------------------------------------------------------------------------


def _uvarint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _uvarint(number >> 7)


def _zigzag(number: int) -> bytes:
    return _uvarint(number * 2 if number >= 0 else -number * 2 - 1)


def flux_batch(base: int, records: list[NewRecord]) -> bytes:
    first_ms = records[0].timestamp_ms
    body = b""
    for delta, (time_ms, key, value, headers) in enumerate(records):
        body += _uvarint(delta) + _zigzag(time_ms - first_ms)
        for field in (key, value):
            body += b"\x01" if field is None else _zigzag(len(field)) + field
        body += _uvarint(len(headers))
        for pair in headers:
            body += b"".join(_uvarint(len(part)) + part for part in pair)
    last_ms = max(record.timestamp_ms for record in records)
    checked = struct.pack("<QIHHBBHqq", base, len(body), len(records), 14, 0, 1, 0, first_ms, last_ms) + body
    return struct.pack("<II", 0x464C5558, crc32c(checked)) + checked


def flux_segment(base: int, batches: int) -> tuple[bytes, bytes, bytes]:
    """Segment, offset index, time index."""
    data, times, last_ms = b"", b"", 0
    for number in range(batches):
        records = [record_of(base + number * RECORDS + one) for one in range(RECORDS)]
        if not times or records[-1].timestamp_ms - last_ms >= 1_000:
            last_ms = records[-1].timestamp_ms
            times += struct.pack("<qI", last_ms, number * RECORDS)
        data += flux_batch(base + number * RECORDS, records)
    index = struct.pack("<IBQII11x", 0x464C5849, 1, base, 1, 4096) + struct.pack("<II", 0, 0)
    bounds = (record_of(base).timestamp_ms, record_of(base + batches * RECORDS - 1).timestamp_ms)
    time_index = struct.pack("<IBQIqq3x", 0x464C5854, 1, base, len(times) // 12, *bounds) + times
    return data, index, time_index


def _write_flux_log(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(SEGMENTS):
        base = number * BATCHES * RECORDS
        for suffix, data in zip(("seg", "idx", "tix"), flux_segment(base, BATCHES), strict=True):
            (folder / f"{base:020d}.{suffix}").write_bytes(data)


@pytest.fixture
def flux_partitions(tmp_path: Path) -> Path:
    """As FluxMQ was at the seeds' time; queue ``$queue/orders`` with one partition and a group."""
    root = tmp_path / "flux-partitions"
    queue = root / "queues" / "$queue" / "orders"
    _write_flux_log(queue / "partitions" / "0")
    group = queue / "consumers" / "workers"
    group.mkdir(parents=True)
    cursors = {"0": {"Cursor": 6, "Committed": 1, "UpdatedAt": START_MS}}
    entry = {"Offset": 1, "PartitionID": 0, "ConsumerID": "c1", "ClaimedAt": START_MS, "DeliveryCount": 1}
    for suffix, content in (("cur", {"cursors": cursors}), ("pel", {"entries": {"c1": [entry]}})):
        document = {"version": 1, "group_id": "workers", **content, "saved_at": START_MS}
        (group / f"workers.{suffix}").write_text(json.dumps(document, indent=2), encoding="utf-8")
    added = struct.pack("<BQI", 1, 5, 0) + b"\x02c1" + struct.pack("<QH", START_MS, 1)
    (group / "workers.pel.log").write_bytes(added + struct.pack("<BQ", 2, 1))
    return root


@pytest.fixture
def flux_segments(tmp_path: Path) -> Path:
    """As FluxMQ is today; queue ``orders``."""
    root = tmp_path / "flux-segments"
    _write_flux_log(root / "queues" / "orders" / "segments")
    (root / "config").mkdir()
    configs = {"version": 1, "configs": [{"Name": "orders", "Topics": ["$queue/orders/#"]}]}
    (root / "config" / "queues.json").write_text(json.dumps(configs), encoding="utf-8")
    groups = root / "groups" / "orders"
    groups.mkdir(parents=True)
    pending = {"Offset": 2, "ConsumerID": "c1", "ClaimedAt": "2026-01-26T10:00:00Z", "DeliveryCount": 1}
    state = {
        "ID": "workers",
        "QueueName": "orders",
        "Pattern": "",
        "Mode": "queue",
        "Cursor": {"Cursor": 6, "Committed": 2},
        "PEL": {"c1": [pending]},
        "Consumers": None,
    }
    document = {"version": 2, "state": state, "saved_at": START_MS}
    (groups / "workers.json").write_text(json.dumps(document), encoding="utf-8")
    return root


# -- GoQueue, from the tables ----------------------------------------------------------------------------------------


def go_message(offset: int, record: NewRecord, *, layout: int = 34, priority: int = 2, flags: int = 0) -> bytes:
    key, value = record.key or b"", record.value or b""
    headers = b""
    if record.headers and layout == 34:
        pairs = [struct.pack(">H", len(part)) + part for header in record.headers for part in header]
        headers, flags = struct.pack(">H", len(record.headers)) + b"".join(pairs), flags | 2
    checked = struct.pack(">qq", offset, record.timestamp_ms * 1_000_000 + 123)
    if layout == 30:
        checked += struct.pack(">HI", len(key), len(value))
    else:
        checked += struct.pack(">BBHI", priority, 0, len(key), len(value))
        checked += struct.pack(">H", len(headers)) if layout == 34 else b""
    checked += key + value + headers
    return b"GQ" + bytes([1, flags]) + struct.pack(">I", crc32c(checked)) + checked


def build_goqueue(root: Path, *, layout: int = 34) -> Path:
    """Topic ``orders`` with one partition of two segments, and a group's committed offsets."""
    folder = root / "logs" / "orders" / "0"
    folder.mkdir(parents=True)
    for base in (0, 8):
        data = b"".join(
            go_message(offset, record_of(offset)._replace(headers=((b"trace", b"%d" % offset),)), layout=layout)
            for offset in range(base, base + 8)
        )
        (folder / f"{base:020d}.log").write_bytes(data)
        (folder / f"{base:020d}.index").write_bytes(struct.pack(">qq", base, 0))
        time_ns = record_of(base).timestamp_ms * 1_000_000 + 123
        (folder / f"{base:020d}.timeindex").write_bytes(struct.pack(">qq", time_ns, base))
    offsets = {"partition": 0, "offset": 5, "committed_at": "2026-01-26T10:00:00Z", "metadata": ""}
    topics = {"orders": {"topic": "orders", "partitions": {"0": offsets}}}
    group = root / "offsets" / "workers"
    group.mkdir(parents=True)
    document = {"group_id": "workers", "topics": topics, "generation": 1, "updated_at": "2026-01-26T10:00:00Z"}
    (group / "offsets.json").write_text(json.dumps(document), encoding="utf-8")
    return root


@pytest.fixture
def goqueue(tmp_path: Path) -> Path:
    return build_goqueue(tmp_path / "goqueue")


@pytest.fixture(scope="session")
def make_goqueue() -> Callable[..., Path]:
    return build_goqueue


@pytest.fixture(scope="session")
def encode_flux_batch() -> Callable[[int, list[NewRecord]], bytes]:
    return flux_batch


@pytest.fixture(scope="session")
def encode_go_message() -> Callable[..., bytes]:
    return go_message
