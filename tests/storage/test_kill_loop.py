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

from reference_broker.core.queues.store import NewRecord
from reference_broker.storage.disk import RealDisk
from reference_broker.storage.queue_store import LogQueueStore

WORKER = Path(__file__).with_name("kill_worker.py")


def run_worker(folder: Path, *, lives: int, seed: int, fault: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(WORKER), str(folder), "--lives", str(lives), "--seed", str(seed)]
    return subprocess.run([*command, "--fault", fault], capture_output=True, text=True, check=False)


def check_lives(folder: Path, *, lives: int, seed: int) -> dict[str, int]:
    done = run_worker(folder, lives=lives, seed=seed)
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
@pytest.mark.timeout(300)
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    summary = check_lives(tmp_path, lives=200, seed=2)
    assert summary["confirmed"] > 5_000
    assert summary["settled"] > 5_000
    assert summary["removed"] > 2_000, "no segment was removed, so no kill can have met a removal"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("confirms_before_the_write", "confirmed messages are lost"),
        ("settles_before_the_write", "was confirmed and is lost|was settled, and was delivered again"),
    ],
)
def test_a_broker_that_confirms_too_early_is_found(tmp_path: Path, fault: str, text: str) -> None:
    done = run_worker(tmp_path, lives=60, seed=3, fault=fault)
    assert done.returncode == 1
    assert any(part in done.stderr for part in text.split("|")), done.stderr[-4_000:]


# -- the comparison itself -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_worker"] = module
    spec.loader.exec_module(module)
    return module


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
