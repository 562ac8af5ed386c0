"""kill -9 under load, on real files with real fsyncs: nothing confirmed is lost, invented, reordered or changed.

SIGKILL leaves the page cache alone: what was written is there afterwards, synced or not. So this shows that a broker
may die between any two instructions, in the middle of a large write, of a roll, of a removal, of recovery itself. It
does not show that confirms wait for the sync: that needs a loss of power, which the simulated disk and
``test_queue_power_loss.py`` play.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.compaction import CompactionTask
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.queue_store import LogQueueStore

WORKER = Path(__file__).with_name("kill_worker.py")
COMPACTION_WORKER = Path(__file__).with_name("kill_compaction_worker.py")


def run_worker(
    folder: Path, *options: str, lives: int, seed: int, worker: Path = WORKER
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(worker), str(folder), "--lives", str(lives), "--seed", str(seed), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_lives(folder: Path, *, lives: int, seed: int, worker: Path = WORKER) -> dict[str, int]:
    done = run_worker(folder, lives=lives, seed=seed, worker=worker)
    assert done.returncode == 0, done.stderr[-4_000:]
    summary: dict[str, int] = json.loads(done.stdout)
    print(f"seed {seed}: {summary}")
    assert summary["kills"] == lives
    return summary


def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    summary = check_lives(tmp_path, lives=20, seed=1)
    assert summary["confirmed"] > 20
    assert summary["settled"] > 20


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute where nothing else goes on
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    summary = check_lives(tmp_path, lives=200, seed=2)
    assert summary["confirmed"] > 5_000
    assert summary["settled"] > 5_000
    assert summary["removed"] > 500, "no segment was removed, so no kill can have met a removal"


def test_kills_amid_compaction_lose_no_key_and_bring_nothing_back(tmp_path: Path) -> None:
    summary = check_lives(tmp_path, lives=60, seed=4, worker=COMPACTION_WORKER)
    # Kills met appends and compactions.
    assert summary["confirmed"] > 200
    assert summary["compacted"] > 200, "compaction removed too little for kills to meet it"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("confirms_before_the_write", "confirmed messages are lost"),
        ("settles_before_the_write", "was confirmed and is lost|was settled, and was delivered again"),
    ],
)
def test_a_broker_that_confirms_too_early_is_found(tmp_path: Path, fault: str, text: str) -> None:
    done = run_worker(tmp_path, "--fault", fault, lives=60, seed=3)
    assert done.returncode == 1
    assert any(part in done.stderr for part in text.split("|")), done.stderr[-4_000:]


# -- the comparison itself -------------------------------------------------------------------------------------------


def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(WORKER, monkeypatch)


@pytest.fixture
def compaction_worker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(COMPACTION_WORKER, monkeypatch)


def store_values(folder: Path, worker: ModuleType, values: Sequence[bytes], *, settled: Sequence[int] = ()) -> None:
    """A queue whose first partition holds these values, and whose group has settled these offsets."""
    store = LogQueueStore(RealDisk(folder), options=worker.OPTIONS)
    files = store.open_queue(worker.QUEUE)
    log = files.open_partition(0)
    log.append([NewRecord(1, b"", value, ()) for value in values])
    log.close()
    group = files.open_group(worker.GROUP, "")
    for offset in settled:
        group.add(0, offset, "c", 1, 1)
        group.ack(0, offset)
    group.flush()
    group.close()
    store.close()


def compare(folder: Path, worker: ModuleType, *, confirmed: int = 3) -> None:
    """As after life 0, which sent three messages."""
    ledger = worker.Ledger()
    ledger.sent = {0: 3}
    ledger.confirmed = {(0, number) for number in range(confirmed)}
    ledger.compare(folder)


def test_a_sound_store_passes(tmp_path: Path, worker: ModuleType) -> None:
    store_values(tmp_path, worker, [worker.value_of(0, number) for number in range(3)])
    compare(tmp_path, worker)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 1), "1 confirmed messages are lost, the first is \\(0, 2\\)"),
        ((0, 2), "the first is \\(0, 1\\)"),
        ((0, 1, 2, 3), "message 0:3 was never sent"),
        ((0, 2, 1), "message \\(0, 1\\) after \\(0, 2\\)"),
        ((0, 1, 1, 2), "message \\(0, 1\\) after \\(0, 1\\)"),
    ],
)
def test_a_wrong_message_is_found(tmp_path: Path, worker: ModuleType, numbers: Sequence[int], text: str) -> None:
    store_values(tmp_path, worker, [worker.value_of(0, number) for number in numbers])
    with pytest.raises(worker.WrongError, match=text):
        compare(tmp_path, worker)


def test_changed_content_is_found(tmp_path: Path, worker: ModuleType) -> None:
    value = bytearray(worker.value_of(0, 0))
    value[20] ^= 1
    store_values(tmp_path, worker, [bytes(value)])
    with pytest.raises(worker.WrongError, match="content is damaged"):
        compare(tmp_path, worker)


def test_an_invented_settlement_is_found(tmp_path: Path, worker: ModuleType) -> None:
    store_values(tmp_path, worker, [worker.value_of(0, number) for number in range(3)], settled=[0])
    with pytest.raises(worker.WrongError, match="counts as settled, and nobody settled it"):
        compare(tmp_path, worker)


# -- the comparison of compacted logs --------------------------------------------------------------------------------


def compact_and_compare(folder: Path, worker: ModuleType, *, made: int = 600) -> dict[bytes, int]:
    """Append 600 records, confirm them, compact what is sealed, and compare; returns the newest offset of each key."""
    log, compactor = worker.open_log(folder)
    ledger = worker.Ledger()
    ledger.made = {0: made}
    for number in range(600):
        offset = log.append([worker.record_of(0, number, 1)])
        ledger.hear(worker._REPORT.pack(worker._APPENDED, offset, 0, number))
        task = log.start_sync()
        task.run()
        log.finish_sync(None)
    ledger.hear(worker._REPORT.pack(worker._DURABLE, log.durable_offset, 0, 0))
    compaction = compactor.start(worker.TOMBSTONE_AGE_MS + 2)
    compaction.run()
    compactor.finish(compaction, None)
    log.close()
    ledger.compare(folder)
    assert ledger.compacted > 50
    return {key: offset for key, (offset, _) in ledger.newest.items()}


def test_a_sound_compaction_passes(tmp_path: Path, compaction_worker: ModuleType) -> None:
    assert len(compact_and_compare(tmp_path, compaction_worker)) == compaction_worker.KEYS


def test_a_record_that_nobody_made_is_found(tmp_path: Path, compaction_worker: ModuleType) -> None:
    with pytest.raises(compaction_worker.WrongError, match="was never made"):
        compact_and_compare(tmp_path, compaction_worker, made=599)


def test_a_compaction_that_drops_the_newest_is_found(
    tmp_path: Path, compaction_worker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_kept(self: CompactionTask, record: LogRecord, latest: dict[bytes, int]) -> bool:
        return latest.get(record.key or b"", -1) > record.offset

    monkeypatch.setattr(CompactionTask, "is_kept", is_kept)
    with pytest.raises(compaction_worker.WrongError, match=r"the confirmed record of .* is lost"):
        compact_and_compare(tmp_path, compaction_worker)


def test_a_compaction_that_forgets_deletions_is_found(
    tmp_path: Path, compaction_worker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_kept(self: CompactionTask, record: LogRecord, latest: dict[bytes, int]) -> bool:
        return record.value is not None

    monkeypatch.setattr(CompactionTask, "is_kept", is_kept)
    with pytest.raises(compaction_worker.WrongError, match=r"was deleted at .* came back"):
        compact_and_compare(tmp_path, compaction_worker)
