"""The log of sessions against dictionaries: a turn is there as a whole or not at all, wherever its bytes end."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import SessionsConfig
from assay.reference_broker.queues import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage import batching
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.session_store import FOLDER, SessionStore

Values = dict[bytes, bytes]
CONFIG = SessionsConfig(segment_bytes=100_000)
KEYS = [b"a", b"b", b"c", b"d"]


def _turn(rng: random.Random) -> list[NewRecord]:
    """What one turn changes: several records of a key, deletions, small ones and ones of many batches."""
    count = rng.choice([1, 2, 3, 8])
    return [
        NewRecord(1_000 + number, rng.choice(KEYS), rng.choice([None, rng.randbytes(20), rng.randbytes(60)]), ())
        for number in range(count)
    ]


def _after(values: Values, records: list[NewRecord]) -> Values:
    """In the order of the last change."""
    changed = dict(values)
    for record in records:
        assert record.key is not None
        changed.pop(record.key, None)
        if record.value is not None:
            changed[record.key] = record.value
    return changed


def _copy(disk: MemoryDisk) -> MemoryDisk:
    copied = MemoryDisk()
    copied.make_folder(FOLDER)
    for folder in ("", f"{FOLDER}/"):
        for name in disk.list(folder.rstrip("/")):
            if f"{folder}{name}" != FOLDER:
                file = disk.open(f"{folder}{name}")
                copied.open(f"{folder}{name}", create=True).append(file.read_at(0, file.size))
    return copied


def _segment(disk: MemoryDisk) -> str:
    (name,) = [name for name in disk.list(FOLDER) if name.endswith(".seg")]
    return f"{FOLDER}/{name}"


@pytest.mark.parametrize("seed", range(6))
def test_a_log_cut_at_any_byte_is_some_whole_turns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the start that undoes a torn turn is cut itself, and when the broker goes on behind it."""
    monkeypatch.setattr(batching, "TARGET_BATCH_BYTES", 60)
    monkeypatch.setattr(batching, "_MAX_WHOLE_BYTES", 120)
    rng = random.Random(seed)
    disk = MemoryDisk()
    store = SessionStore(disk, CONFIG)
    assert store.read_all() == {}
    first = [NewRecord(1, b"a", b"first", ())]
    store.write(first, 0.0)
    path = _segment(disk)
    sizes, states = [disk.open(path).size], [_after({}, first)]
    for now in range(7):
        records = _turn(rng)
        store.write(records, float(now))
        sizes.append(disk.open(path).size)
        states.append(_after(states[-1], records))
    torn = 0
    for cut in range(sizes[0], sizes[-1] + 1, 5):
        after = _copy(disk)
        after.open(path).truncate(cut)
        wanted = states[sum(size <= cut for size in sizes) - 1]
        reopened = SessionStore(after, CONFIG)
        before_bytes = after.open(path).size
        found = reopened.read_all()
        assert found == wanted, f"cut at {cut}"
        assert list(found) == list(wanted), "in the order of the last change"
        undone = after.open(path).size > before_bytes
        torn += undone
        assert bool([note for note in reopened.recovery_notes() if "undone" in note.problem]) == undone
        if undone:
            assert reopened.next_deadline() == 0.0, "it is made durable at once"
            again = _copy(after)
            again.open(path).truncate(rng.randrange(before_bytes, after.open(path).size))
            assert SessionStore(again, CONFIG).read_all() == wanted, f"cut at {cut}, and again while it was undone"
        more = _turn(rng)
        reopened.write(more, 9.0)
        last = SessionStore(after, CONFIG)
        assert last.read_all() == _after(wanted, more), f"cut at {cut}, and written on"
        assert not [note for note in last.recovery_notes() if "undone" in note.problem], "undone once"
    assert torn > 5, "turns of many batches were cut"


def test_what_could_not_be_written_is_written_with_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = SessionStore(disk, CONFIG)
    rng = random.Random(1)
    values = Values()
    append = store._log.append

    def fails(_records: object) -> None:
        raise LogError("full")

    for now in range(40):
        records = _turn(rng)
        full = rng.random() < 0.5
        monkeypatch.setattr(store._log, "append", fails if full else append)
        values = _after(values, records)
        if full:
            with pytest.raises(LogError):
                store.write(records, float(now))
            assert store.retry_at is not None
            assert store.next_deadline() == now + 1.0
        else:
            store.write(records, float(now))
            assert store.retry_at is None
            assert SessionStore(_copy(disk), CONFIG).read_all() == values
    monkeypatch.setattr(store._log, "append", append)
    store.write([], 99.0)
    found = SessionStore(_copy(disk), CONFIG).read_all()
    assert found == values
    assert list(found) == list(values)
