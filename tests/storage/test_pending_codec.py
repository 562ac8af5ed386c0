"""The bytes of the operation log under every cut, flip and replay, against a model that knows nothing of them."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import PendingRecord
from assay.reference_broker.storage import pending_codec
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.pending_codec import (
    LogDamage,
    LogFrame,
    decode_header,
    decode_operations,
    encode_frames,
    encode_header,
    walk_frames,
)
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.pending_state import PendingState
from assay.reference_broker.storage.record import RecordError

FOLDER = "queues/q/consumers/g"
PATH = f"{FOLDER}/g.pel.log"
HEADER = encode_header("g", "")

PLACES = st.tuples(st.integers(0, 2), st.integers(0, 11))
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), PLACES, st.sampled_from(["c", "d", "ü" * 70]), st.integers(0, 2), st.integers(1, 2)),
    st.tuples(st.just("ack"), PLACES),
    st.tuples(st.just("ack_many"), st.integers(0, 2), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 14)))),
    st.tuples(st.just("claim"), PLACES, st.sampled_from(["c", "e"]), st.integers(3, 2**63), st.integers(1, 70_000)),
    st.tuples(st.just("expire"), PLACES, st.integers(0, 2**63)),
    st.tuples(st.just("annotate"), PLACES, st.sampled_from([b"", b"1", bytes(200)])),
    st.tuples(st.just("cursor"), PLACES),
    st.tuples(st.just("rewind"), PLACES),
)
FLUSHES = st.lists(st.lists(OPERATIONS, min_size=1, max_size=8), max_size=8)
State = tuple[list[PendingRecord], dict[int, int]]


class Model:
    """What the operations mean, in a few lines of its own."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], PendingRecord] = {}
        self.cursors: dict[int, int] = {}

    def apply(self, operation: tuple[object, ...], log: PendingLogFile) -> None:
        match operation:
            case ("add", (int(partition), int(offset)), str(consumer), int(at_ms), int(count)):
                self.entries[partition, offset] = PendingRecord(partition, offset, consumer, at_ms, 0, count)
                self.cursors[partition] = max(self.cursors.get(partition, 0), offset + 1)
                log.add(partition, offset, consumer, at_ms, count)
            case ("ack", (int(partition), int(offset))):
                self.entries.pop((partition, offset), None)
                log.ack(partition, offset)
            case ("ack_many", int(partition), list(ranges)):
                for start, end in ranges:
                    for offset in range(start, end):
                        self.entries.pop((partition, offset), None)
                log.ack_many(partition, ranges)
            case ("claim", (int(partition), int(offset)), str(consumer), int(at_ms), int(count)):
                if (partition, offset) in self.entries:
                    noted = self.entries[partition, offset].annotations
                    self.entries[partition, offset] = PendingRecord(
                        partition, offset, consumer, at_ms, 0, min(count, 65_535), noted
                    )
                log.claim(partition, offset, consumer, at_ms, count)
            case ("expire", (int(partition), int(offset)), int(due_at_ms)):
                if (entry := self.entries.get((partition, offset))) is not None:
                    self.entries[partition, offset] = entry._replace(due_at_ms=due_at_ms)
                log.expire(partition, offset, due_at_ms)
            case ("annotate", (int(partition), int(offset)), bytes(noted)):
                if (entry := self.entries.get((partition, offset))) is not None:
                    self.entries[partition, offset] = entry._replace(annotations=noted)
                log.annotate(partition, offset, noted)
            case ("cursor", (int(partition), int(offset))):
                self.cursors[partition] = offset
                log.move_cursor(partition, offset)
            case ("rewind", (int(partition), int(offset))):
                if partition in self.cursors:
                    self.cursors[partition] = min(self.cursors[partition], offset)
                for place in [place for place in self.entries if place[0] == partition and place[1] >= offset]:
                    del self.entries[place]
                log._collect_rewind(partition, offset)
            case _:
                raise AssertionError(operation)

    def state(self) -> State:
        return [self.entries[place] for place in sorted(self.entries)], dict(self.cursors)


def open_log(disk: MemoryDisk, notes: list[str] | None = None) -> PendingLogFile:
    disk.make_folder(FOLDER)
    kept = notes if notes is not None else []
    return PendingLogFile(
        disk, PATH, group="g", pattern="", volatile=False, note=lambda place, problem: kept.append(problem)
    )


def written(flushes: list[list[tuple[object, ...]]]) -> tuple[bytes, list[int], list[State]]:
    """The log of these flushes; its size and the model's state after each, and before the first."""
    disk = MemoryDisk()
    log = open_log(disk)
    model = Model()
    sizes, states = [disk.open(PATH).size], [model.state()]
    for flush in flushes:
        for operation in flush:
            model.apply(operation, log)
        log.flush()
        sizes.append(disk.open(PATH).size)
        states.append(model.state())
    return disk.open(PATH).read_at(0, sizes[-1]), sizes, states


def replayed(log: bytes) -> State:
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    disk.open(PATH, create=True).append(log)
    opened = open_log(disk)
    return list(opened.recovered), opened.recovered_cursors


def payloads(log: bytes) -> list[bytes]:
    disk = MemoryDisk()
    disk.open("log", create=True).append(log)
    return [found.payload for found in walk_frames(disk.open("log"), len(HEADER)) if isinstance(found, LogFrame)]


@given(FLUSHES)
@settings(max_examples=150, deadline=None)
def test_replay_leads_to_the_state_that_the_operations_mean(flushes: list[list[tuple[object, ...]]]) -> None:
    log, _, states = written(flushes)
    assert replayed(log) == (states[-1][0], dict(sorted(states[-1][1].items())))


@given(FLUSHES)
@settings(max_examples=60, deadline=None)
def test_a_log_cut_at_every_byte_is_a_prefix_of_its_flushes(flushes: list[list[tuple[object, ...]]]) -> None:
    log, sizes, states = written(flushes)
    for cut in range(sizes[0], len(log) + 1, 1 + len(log) // 200):
        records, cursors = replayed(log[:cut])
        wanted = states[sum(size <= cut for size in sizes) - 1]
        assert (records, cursors) == (wanted[0], dict(sorted(wanted[1].items()))), cut


def live(rng: random.Random, steps: int) -> list[list[tuple[object, ...]]]:
    """Flushes as an engine makes them: offsets are given once, only what is pending is claimed."""
    flushes: list[list[tuple[object, ...]]] = []
    cursors, pending = [0, 0], set[tuple[int, int]]()
    for _ in range(steps):
        flush: list[tuple[object, ...]] = []
        for _ in range(rng.randint(1, 5)):
            partition = rng.randrange(2)
            if not pending or rng.random() < 0.4:
                flush.append(("add", (partition, cursors[partition]), "c", rng.randrange(3), 1))
                pending.add((partition, cursors[partition]))
                cursors[partition] += 1
            elif rng.random() < 0.1:
                cursors[partition] += rng.randrange(3)
                flush.append(("cursor", (partition, cursors[partition])))
            elif rng.random() < 0.05:
                cursors[partition] = max(0, cursors[partition] - 3)
                flush.append(("rewind", (partition, cursors[partition])))
                pending = {place for place in pending if place[0] != partition or place[1] < cursors[partition]}
            else:
                place = rng.choice(sorted(pending))
                kind = rng.randrange(3)
                if kind == 0:
                    flush.append(("ack", place))
                    pending.discard(place)
                elif kind == 1:
                    flush.append(("claim", place, "d", rng.randrange(9), rng.randint(2, 9)))
                else:
                    flush.append(("expire", place, rng.randrange(9)))
        flushes.append(flush)
    return flushes


@pytest.mark.parametrize("seed", range(25))
def test_a_whole_log_over_a_snapshot_of_any_index_is_the_same_state(seed: int) -> None:
    """Also when each entry of the snapshot is of another index, as when a snapshot is taken over several turns."""
    rng = random.Random(seed)
    log, _, states = written(live(rng, 30))
    frames = payloads(log)
    final = states[-1]
    for index in range(len(states)):
        tail = taken(states[index])
        for frame in frames[index:]:
            tail.apply(decode_operations(frame))
        assert (tail.records(), tail.cursors) == final, f"snapshot of index {index} and the tail"
        whole = taken(states[index])
        for frame in frames:
            whole.apply(decode_operations(frame))
        assert (whole.records(), whole.cursors) == final, f"snapshot of index {index} and the whole log"
        fuzzy = taken(states[index])
        for record in states[index][0]:
            later = rng.choice(states[index:])[0]
            same = [other for other in later if other[:2] == record[:2]]
            del fuzzy.shards[record.offset % 8][record[:2]]
            for other in same:
                fuzzy.put(other)
        for frame in frames:
            fuzzy.apply(decode_operations(frame))
        assert (fuzzy.records(), fuzzy.cursors) == final, f"entries of index {index} and later, and the whole log"


def taken(state: State) -> PendingState:
    """A snapshot of a state."""
    snapshot = PendingState()
    for record in state[0]:
        snapshot.put(record)
    snapshot.cursors.update(state[1])
    return snapshot


def test_every_flipped_bit_is_detected() -> None:
    log, sizes, states = written(live(random.Random(3), 12))
    sound = [state[0] for state in states]
    for bit in range(8 * len(log)):
        damaged = bytearray(log)
        damaged[bit // 8] ^= 1 << bit % 8
        disk = MemoryDisk()
        disk.make_folder(FOLDER)
        disk.open(PATH, create=True).append(bytes(damaged))
        notes: list[str] = []
        opened = open_log(disk, notes)
        assert notes, f"bit {bit} of byte {bit // 8}"
        frame = sum(size <= bit // 8 for size in sizes)
        assert list(opened.recovered) == (sound[frame - 1] if frame else []), f"byte {bit // 8}"


@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_no_crash(data: bytes, with_header: bool) -> None:
    records, _ = replayed(HEADER + data if with_header else data)
    assert records == []


@given(st.binary(max_size=300), st.sampled_from([1, 2, 3]))
@settings(max_examples=300, deadline=None)
def test_random_operations_behind_a_sound_checksum_are_no_crash(payload: bytes, version: int) -> None:
    try:
        operations = decode_operations(payload, version)
    except RecordError:
        return
    state = PendingState()
    state.apply(operations)
    assert len(state) <= pending_codec.MAX_RUN * max(1, len(payload) // 13)


def operation(code: int, *rest: bytes) -> bytes:
    return struct.pack("<BQI", code, 2**64 - 2, 0) + b"".join(rest)


@pytest.mark.parametrize(
    "payload",
    [
        operation(0),
        operation(10),
        operation(9),
        operation(9, b"\x05abcd"),
        operation(2)[:-1],
        operation(1, b"\x05abc"),
        operation(1, b"\x01\xff" + bytes(10)),
        operation(8, b"\x01c" + bytes(10) + b"\x00"),
        operation(8, b"\x01c" + bytes(10) + b"\x03"),
        operation(8, b"\x01c" + bytes(10) + b"\x81\x80\x04"),
        operation(6, b"\x00"),
        operation(6, b"\x01\x00\x00"),
        operation(6, b"\x01\x00\x02"),
        operation(6, b"\x81\x20" + b"\x00\x01" * 4_097),
        operation(4, bytes(7)),
    ],
)
def test_an_impossible_operation_is_refused(payload: bytes) -> None:
    with pytest.raises(RecordError):
        decode_operations(payload)


@pytest.mark.parametrize(("version", "code"), [(1, 6), (2, 9)])
def test_an_operation_of_a_later_version_is_refused(version: int, code: int) -> None:
    payload = operation(code, b"\x01\x00\x01")
    with pytest.raises(RecordError, match=f"unknown operation {code}"):
        decode_operations(payload.replace(struct.pack("<Q", 2**64 - 2), bytes(8)), version)


@pytest.mark.parametrize("seed", range(10))
def test_a_torn_tail_in_which_bytes_look_like_frames_is_a_tail(seed: int) -> None:
    """Lengths that may be right are in any numbers; without a sound frame behind it, nothing more was there."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    file = disk.open("log", create=True)
    tail = b"".join(struct.pack("<I", rng.choice([0, 9, 20, 33, 10**9])) for _ in range(40))
    file.append(struct.pack("<II", 2**32 - 1, 0) + tail)
    (damage,) = walk_frames(file, 0)
    assert isinstance(damage, LogDamage)
    assert damage.is_tail
    payload = rng.randbytes(30)
    file.append(struct.pack("<II", len(payload), crc32c(payload)) + payload)
    (damage,) = walk_frames(file, 0)
    assert isinstance(damage, LogDamage)
    assert not damage.is_tail, "now a sound frame is behind it"


def test_lengths_are_bounded_and_a_search_behind_damage_ends() -> None:
    disk = MemoryDisk()
    file = disk.open("log", create=True)
    file.append(struct.pack("<II", 2**32 - 1, 0) + bytes(100))
    (damage,) = walk_frames(file, 0)
    assert damage == LogDamage(0, 108, "its last frame is cut or damaged", is_tail=True)
    # Every position looks like a long frame: after so many wrong checksums, a copy is kept without further search.
    many = disk.open("many", create=True)
    many.append(b"\0" + struct.pack("<I", 0x00202020) * 1_000_000)
    (damage,) = walk_frames(many, 0)
    assert isinstance(damage, LogDamage)
    assert not damage.is_tail


def test_frames_of_all_sizes_are_found_across_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_codec, "_READ_BYTES", 64)
    monkeypatch.setattr(pending_codec, "MAX_FRAME_BYTES", 500)
    for seed in range(20):
        rng = random.Random(seed)
        wanted = [[rng.randbytes(rng.choice((1, 30, 200, 499, 500)))] for _ in range(30)]
        disk = MemoryDisk()
        file = disk.open("log", create=True)
        file.append(b"head" + b"".join(encode_frames(frame) for frame in wanted) + bytes(rng.randrange(3)))
        found = list(walk_frames(file, 4))
        frames = [frame for frame in found if isinstance(frame, LogFrame)]
        assert [[frame.payload] for frame in frames] == wanted
        assert [frame.end for frame in frames][:-1] == [frame.position for frame in frames][1:]
        assert len(found) - len(frames) == (file.size > frames[-1].end)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_header(data: bytes) -> None:
    assert decode_header(data) is None
    prefixed = struct.pack("<IHHI", 0x4C455046, 2, 0, len(data)) + data
    assert decode_header(prefixed) is None


def test_a_header_knows_its_place_in_the_chain() -> None:
    header = decode_header(encode_header("g", "a/#", sequence=7, previous_bytes=2**33) + b"frames")
    assert header is not None
    assert (header.version, header.group, header.pattern) == (3, "g", "a/#")
    assert (header.sequence, header.previous_bytes, header.size) == (7, 2**33, 16 + 6 + 6)
    with pytest.raises(LogError, match="version 9"):
        decode_header(_with_version(9))


def _with_version(version: int) -> bytes:
    start = struct.pack("<IHHI", 0x4C455046, version, 0, 4)
    return start + struct.pack("<I", crc32c(start + b"\0\0\0\0")) + b"\0\0\0\0"
