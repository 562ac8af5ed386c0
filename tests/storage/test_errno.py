"""Any call of the disk may fail with any error: nothing confirmed is lost, the broker goes on, and it says so.

``python -m assay.sim.errno_life --all`` goes through every call; here each kind of call fails once with each error.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.queues.jobs.errors import is_passing
from assay.reference_broker.storage import disk as disk_module
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import Disk, DiskFile, RealDisk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.sim.errno_life import LASTING, PASSING, calls, complaints
from assay.sim.failing_disk import NEVER_FAIL, SEAM, FailingDisk, Fault, calls_of

SEED = random.SystemRandom().randrange(2**32)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives take snapshots early."""
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)


@pytest.fixture(scope="module")
def counts() -> Iterator[dict[Durability, dict[str, int]]]:
    before = pending_log.SNAPSHOT_OPERATIONS
    yield {durability: calls(durability) for durability in (Durability.FSYNC, Durability.INTERVAL)}
    pending_log.SNAPSHOT_OPERATIONS = before


def test_a_life_makes_every_call_that_there_is(counts: dict[Durability, dict[str, int]]) -> None:
    """A call that is added to the protocols has to be made to fail, too."""
    assert calls_of(Disk) | calls_of(DiskFile) == SEAM | NEVER_FAIL
    for made in counts.values():
        assert made.keys() == SEAM


def test_a_sync_that_is_tried_again_at_once_is_told_of(counts: dict[Durability, dict[str, int]]) -> None:
    """Where a group begins is synced before its SUBACK: an error that passed was not told of."""
    faults = [
        Fault("sync_folder", first + 1, errno.EMFILE, 1) for first in range(counts[Durability.FSYNC]["sync_folder"])
    ]
    assert [
        (fault, found) for fault in faults if (found := complaints(fault, Durability.FSYNC, power_lost=False))
    ] == []


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("call", sorted(SEAM))
def test_a_call_that_fails_costs_nothing_that_was_confirmed(
    counts: dict[Durability, dict[str, int]], call: str, *, power_lost: bool
) -> None:
    rng = random.Random(f"{SEED} {call} {power_lost}")
    for number in (*PASSING, *LASTING):
        durability = rng.choice((Durability.FSYNC, Durability.INTERVAL))
        fault = Fault(call, rng.randint(1, counts[durability][call]), number, rng.choice((1, 3)))
        wrong = complaints(fault, durability, power_lost=power_lost)
        assert wrong == [], f"seed {SEED}: {durability} {fault} {errno.errorcode[number]}"


@pytest.mark.parametrize("call", ["list", "exists", "make_folder", "remove"])
def test_each_of_the_rare_calls_may_fail(counts: dict[Durability, dict[str, int]], call: str) -> None:
    for first in range(1, counts[Durability.FSYNC][call] + 1):
        fault = Fault(call, first, errno.EIO)
        assert complaints(fault, Durability.FSYNC) == [], fault


class FailingOs:
    """The module ``os`` as the real disk sees it."""

    CALLS = ("open", "fstat", "pwrite", "pread", "ftruncate", "fsync", "listdir", "stat", "replace", "unlink")

    def __init__(self) -> None:
        self.disk: FailingDisk | None = None
        """Has the fault, which names a call with ``os.`` before it."""
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        member: Callable[..., Any] = getattr(os, name)
        if name not in self.CALLS:
            return member

        def call(*arguments: Any, **named: Any) -> Any:
            self.counts[name] += 1
            fault = self.disk.fault if self.disk is not None else None
            if fault is not None and fault.hits(f"os.{name}", self.counts[name]):
                if name == "pwrite" and self.counts[name] % 2:
                    # Some of it is written before the rest is refused.
                    os.pwrite(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
                raise OSError(fault.number, os.strerror(fault.number))
            return member(*arguments, **named)

        return call


class RealBase(RealDisk):
    """A real disk of a process that may be killed."""

    def crash(self) -> None:
        self.unlock()


@pytest.mark.parametrize("call", FailingOs.CALLS)
def test_a_system_call_that_fails_costs_nothing_either(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{SEED} {call}")
    failing = FailingOs()
    monkeypatch.setattr(disk_module, "os", failing)
    folder = 0

    def wrap(fault: Fault) -> FailingDisk:
        nonlocal folder
        folder += 1
        failing.disk = None
        failing.disk = FailingDisk(RealBase(tmp_path / str(folder)), fault)
        failing.counts.clear()
        return failing.disk

    assert complaints(Fault("none", 1, errno.EIO), Durability.FSYNC, wrap=wrap) == []
    most = failing.counts[call]
    assert most
    for number in rng.sample((*PASSING, *LASTING), 4):
        fault = Fault(f"os.{call}", rng.randint(1, most * 2 // 3), number)
        wrong = complaints(fault, rng.choice((Durability.FSYNC, Durability.INTERVAL)), wrap=wrap)
        assert wrong == [], f"seed {SEED}: {fault} {errno.errorcode[number]}"


def test_the_disk_in_memory_has_every_call() -> None:
    for name in calls_of(Disk):
        assert hasattr(MemoryDisk, name), name


def test_which_errors_pass() -> None:
    assert all(is_passing(OSError(number, "")) for number in PASSING)
    assert not any(is_passing(OSError(number, "")) for number in (*LASTING, errno.ENOENT))
    assert not is_passing(None)
