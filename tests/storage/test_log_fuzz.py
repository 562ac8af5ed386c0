"""Anything at all as the files of a log: opening and reading end, soon, in records or in a LogError."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.batch import HEADER, HEADER_BYTES, MAGIC, MAX_RECORDS_BYTES, VERSION
from assay.reference_broker.storage.compaction import Compactor
from assay.reference_broker.storage.durable_mark import DurableMark, encode_slot
from assay.reference_broker.storage.index_files import encode_offset_index, encode_time_index
from assay.reference_broker.storage.log import LogOptions
from assay.sim.disk import SimDisk
from assay.sim.log_life import FOLDER, POLICY, encoder, open_log, read_all, sync

OPTIONS = LogOptions(segment_bytes=2_000)
NAMES = (
    f"{0:020d}.seg",
    f"{3:020d}.seg",
    f"{2**63 - 1:020d}.seg",
    f"{10**20 - 1:020d}.seg",
    f"{0:020d}.idx",
    f"{0:020d}.tix",
    f"{3:020d}.idx",
    f"{3:020d}.tix",
    f"{0:020d}.seg.compacting",
    f"{0:020d}-{4:020d}.swap",
    f"{3:020d}-{3:020d}.swap",
    "durable.mark",
    "cleaner.json",
)
_BOUND_BYTES = 4 * 1024 * 1024
"""Far less than any length that the bytes claim, but for what compressed records may really have."""


def batch(
    base_offset: int, count: int, body: bytes, *, flags: int = 2, code: int = 0, length: int | None = None
) -> bytes:
    """A batch whose checksum is right, whatever is in it."""
    size = len(body) if length is None else length
    fields = (base_offset, size, count, flags, code, VERSION, 0, 1_000, 2_000)
    checked = HEADER.pack(MAGIC, 0, *fields)[8:] + body
    return HEADER.pack(MAGIC, crc32c(checked), *fields) + body


OFFSETS = st.one_of(st.integers(0, 8), st.sampled_from([2**32 - 1, 2**32, 2**63 - 1, 2**63]))
SOUND = st.builds(
    encoder().encode,
    st.integers(0, 8),
    st.lists(
        st.builds(
            NewRecord, st.integers(0, 5_000), st.binary(max_size=3), st.none() | st.binary(max_size=9), st.just(())
        ),
        min_size=1,
        max_size=4,
    ),
)
FORGED = st.builds(
    batch,
    OFFSETS,
    st.sampled_from([1, 3, 65_535]),
    st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: b"\xff" * 9 + b"\x7f" + data),
    flags=st.integers(0, 31),
    code=st.integers(0, 4),
    length=st.none() | st.sampled_from([0, 1, 70, MAX_RECORDS_BYTES, 2**31, 2**32 - 1]),
)
NUMBERS = st.integers(0, 2**32 - 1)
INDEX = st.builds(encode_offset_index, st.sampled_from([0, 3]), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
TIMES = st.builds(
    encode_time_index,
    st.sampled_from([0, 3]),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), NUMBERS), max_size=5),
    min_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    max_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
)
BIG = st.integers(0, 2**64 - 1)
MARK = st.builds(
    encode_slot, NUMBERS, st.builds(DurableMark, st.integers(0, 12) | BIG, st.sampled_from([0, 3]) | BIG, NUMBERS | BIG)
)
PIECES = st.one_of(SOUND, SOUND, FORGED, INDEX, TIMES, MARK, st.binary(max_size=80), st.just(b"[" * 3_000))
CONTENT = st.lists(PIECES, max_size=6).map(b"".join)
FILES = st.dictionaries(st.sampled_from(NAMES), CONTENT, min_size=1, max_size=5)


def use(files: dict[str, bytes]) -> None:
    """Open, read in every way, append, compact. Raises :class:`LogError`."""
    disk = SimDisk.holding({f"{FOLDER}/{name}": data for name, data in files.items()}, {"", FOLDER})
    log = open_log(disk, options=OPTIONS)
    records = read_all(log)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(offset < log.next_offset for offset in offsets)
    for offset in {*offsets, log.start_offset, log.next_offset}:
        log.get(offset)
    for time_ms in (-(2**63), 0, 1_500, 2**63 - 1):
        log.offset_at(time_ms)
    base = log.append([NewRecord(0, b"key", b"value", ())])
    found = log.get(base)
    assert found is not None
    assert found.value == b"value"
    log.roll()
    sync(log)
    compactor = Compactor(disk, FOLDER, log, encoder(), POLICY)
    task = compactor.start(0)
    if task is not None:
        error: Exception | None = None
        try:
            task.run()
        except (OSError, LogError) as failure:
            error = failure
        compactor.finish(task, error)
    assert read_all(log)[-1].value == b"value"
    log.close()
    assert read_all(open_log(disk, options=OPTIONS))[-1].value == b"value"


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
@example({NAMES[0]: encoder().encode(2**32 + 5, [NewRecord(0, None, b"far", ())])})
@example({NAMES[0]: encoder().encode(2**63 - 1, [NewRecord(0, None, b"last", ())])})
@example({NAMES[3]: b"", "durable.mark": b""})
@example({"cleaner.json": b"[" * 4_000, NAMES[0]: b""})
@example({"cleaner.json": b'{"version":1,"gaps_until":"\xff"}', NAMES[0]: b""})
def test_any_files_are_a_log_or_an_error(files: dict[str, bytes]) -> None:
    with suppress(LogError):
        use(files)


def zstd_bomb(claimed: int) -> bytes:
    """The header of a zstd frame that claims so many bytes, and nothing behind it."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + claimed.to_bytes(8, "little") + b"\x01\x00\x00"


def varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


CLAIMS = {
    "records of 4 GB": lambda: batch(0, 1, b"xx", length=2**32 - 1),
    "records of 64 MB": lambda: batch(0, 1, b"xx", length=MAX_RECORDS_BYTES),
    "a value of 2 GB": lambda: batch(0, 1, b"\x00\x00" + varint(0) + varint(2**31) + b"x", flags=2),
    "2 to the 40 headers": lambda: batch(0, 1, b"\x00\x00\x00\x00" + varint(2**40), flags=10),
    "65535 records in no bytes": lambda: batch(0, 65_535, b"", flags=2),
    "zstd of 1 GB": lambda: batch(0, 1, zstd_bomb(2**30), flags=3, code=2),
    "S2 of 1 GB": lambda: batch(0, 1, varint(2**30) + b"\x00", flags=3, code=1),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_memory_is_never_taken_because_of_a_length(claim: str) -> None:
    make: Callable[[], bytes] = CLAIMS[claim]
    sound = encoder().encode(70_000, [NewRecord(0, None, b"sound", ())])
    files = {f"{FOLDER}/{NAMES[0]}": make() + sound}
    disk = SimDisk.holding(files, {"", FOLDER})
    tracemalloc.start()
    try:
        log = open_log(disk, options=OPTIONS)
        records = log.read(0, 100)
        log.offset_at(0)
        log.get(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < _BOUND_BYTES, f"{peak} bytes for {len(make())}"
    assert [record.value for record in records if record.offset >= 70_000] == [b"sound"]


def test_an_index_of_any_size_costs_no_more_than_it_holds() -> None:
    data = encoder().encode(0, [NewRecord(0, None, b"x", ())])
    index = bytearray(encode_offset_index(0, [(0, 0)]))
    index[13:17] = (2**32 - 1).to_bytes(4, "little")
    disk = SimDisk.holding({f"{FOLDER}/{NAMES[0]}": data, f"{FOLDER}/{NAMES[4]}": bytes(index)}, {"", FOLDER})
    assert len(read_all(open_log(disk, options=OPTIONS))) == 1


@pytest.mark.timeout(20)
def test_headers_everywhere_are_searched_in_bounded_time() -> None:
    """A payload of batch headers, each claiming half a megabyte behind it, after a header that is broken."""
    forged = batch(10**6, 1, b"", length=500_000)[:HEADER_BYTES] * 24_000
    first = bytearray(encoder().encode(0, [NewRecord(0, None, forged, ())]))
    first[0] ^= 1
    tail = encoder().encode(1, [NewRecord(0, None, b"behind", ())])
    disk = SimDisk.holding({f"{FOLDER}/{NAMES[0]}": bytes(first) + tail}, {"", FOLDER})
    notes: list[str] = []
    log = open_log(disk, options=LogOptions(segment_bytes=10**7), notes=notes)
    assert [record.value for record in read_all(log)] == [b"behind"]
    assert {note.partition(":")[0] for note in notes} == {f"{FOLDER}/{NAMES[0]} bytes 0 to {len(first)}"}
