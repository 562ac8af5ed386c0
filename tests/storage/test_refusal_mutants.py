"""Planted bugs of what storage does when it is refused something, each caught by the check named here.

The checks are small editions of ``test_errno.py``, ``test_nearly_full_disk.py`` and ``test_descriptors.py``.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import cast

import pytest

from assay.conformance.mutants import all_mutants, applied
from assay.reference_broker.config import Durability, QueueConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.server import file_limit
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.sim.disk import DiskProfile, SimDisk
from assay.sim.errno_life import FOR_EVER, Driver, WrongError, complaints
from assay.sim.failing_disk import FailingDisk, Fault


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives take snapshots early."""
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)


def lives() -> None:
    """Descriptors run short, a sync fails for good, an append is refused: in lives of a whole broker."""
    faults = (
        Fault("sync_folder", 40, errno.EMFILE, 3),
        Fault("open", 60, errno.ENFILE, 3),
        *(Fault("sync", at, errno.EIO) for at in (60, 75, 90)),
        Fault("append", 50, errno.ENOSPC, 3),
    )
    for fault in faults:
        for durability in (Durability.FSYNC, Durability.INTERVAL):
            wrong = complaints(fault, durability)
            assert not wrong, f"{fault}: {wrong}"


def failed_sync() -> None:
    """It takes back what nobody was told of, and nothing else: ``interval`` confirms what is not synced yet."""
    for durability, found in ((Durability.INTERVAL, [b"confirmed"]), (Durability.FSYNC, [])):
        disk = SimDisk(random.Random(0), DiskProfile(stall_rate=0))
        config = QueueConfig(name="q", durability=durability)
        log = LogQueueStore(disk).open_queue(config).open_partition(0)
        log.append([NewRecord(0, b"", b"confirmed", ())])
        assert log.start_sync() is not None
        log.finish_sync(OSError(errno.EIO, "Input/output error"))
        disk.crash()
        again = LogQueueStore(disk).open_queue(config).open_partition(0)
        assert [record.value for record in again.read(0, 10)] == found


def back_off() -> None:
    """However long a sync finds no descriptor, a turn ends; and it succeeds when there are some."""
    failing = FailingDisk(SimDisk(random.Random(0), DiskProfile(stall_rate=0)))
    driver = Driver(failing, Durability.FSYNC)
    before = failing.counts["sync"]
    failing.fault = Fault("sync", before + 1, errno.EMFILE, 1_000_000)
    driver.most_rounds = 50
    client = driver.open()
    client.send(p.Connect(version=p.V5, client_id="c"))
    client.send(p.Publish(topic="$queue/f", payload=b"x", qos=1, packet_id=1))
    driver.wait(30.0)
    assert 5 < failing.counts["sync"] - before < 100
    assert not any(isinstance(each, p.Acknowledgement) for each in client.inbox)
    failing.fault = None
    driver.wait(5.0)
    assert any(isinstance(each, p.Acknowledgement) for each in client.inbox)


def reserve() -> None:
    """Messages for a session that is away leave the reserve alone."""
    disk = SimDisk(random.Random(0), DiskProfile(stall_rate=0, capacity_bytes=400_000))
    driver = Driver(cast(FailingDisk, disk), Durability.INTERVAL, reserve_bytes=100_000)
    away = driver.open()
    away.send(p.Connect(version=p.V5, client_id="away", clean_start=False, properties=FOR_EVER))
    away.send(p.Subscribe(packet_id=1, requests=(p.SubscriptionRequest(topic_filter="n", qos=1),)))
    away.lose()
    client = driver.open()
    client.send(p.Connect(version=p.V5, client_id="c"))
    for number in range(1_000):
        client.send(p.Publish(topic="n", payload=bytes(2_000), qos=1, packet_id=number + 1))
    assert disk.free_bytes() > 90_000


def reserve_of_all() -> None:
    """What one log writes without a check counts for another that checks."""
    disk = SimDisk(random.Random(0), DiskProfile(stall_rate=0, capacity_bytes=800_000))
    store = LogQueueStore(disk, options=LogOptions(reserve_bytes=200_000))
    files = store.open_queue(QueueConfig(name="q"))
    checked, unchecked = files.open_partition(0), files.open_delays_done()

    def fill() -> None:
        for _ in range(1_000):
            unchecked.append([NewRecord(0, b"", bytes(4_000), ())])
            checked.append([NewRecord(0, b"", bytes(10), ())])

    with pytest.raises(LogError, match="nearly full"):
        fill()
    assert disk.free_bytes() > 180_000


def descriptors() -> None:
    """Some of any limit is no connection's."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in (64, 1_024, 1_000_000):
            patch.setattr(file_limit, "file_limit", lambda limit=limit: limit)
            most = file_limit.connection_descriptors()
            assert most is not None
            assert most <= limit - 32


CAUGHT = {
    "queue-reserve-is-used": reserve_of_all,
    "refused-no-descriptor-is-for-good": lives,
    "refused-cuts-what-was-confirmed": failed_sync,
    "refused-failure-not-logged": lives,
    "refused-retries-at-once": back_off,
    "refused-reserve-not-for-sessions": reserve,
    "refused-reserve-forgets-others": reserve_of_all,
    "refused-no-descriptors-kept": descriptors,
}
"""Bug -> the check that must fail because of it."""
CHECKS = tuple(dict.fromkeys(CAUGHT.values()))


def mutants(*, legal: bool) -> list[str]:
    return [
        name
        for name, mutant in all_mutants().items()
        if mutant.apply.__module__ == "assay.conformance.mutants.refusing_disk" and mutant.legal is legal
    ]


def test_every_bug_has_a_check() -> None:
    assert sorted(CAUGHT) == mutants(legal=False)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_passes_without_bugs(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_caught(name: str) -> None:
    with applied(name), pytest.raises((AssertionError, WrongError, LogError)):
        CAUGHT[name]()


@pytest.mark.parametrize("name", mutants(legal=True))
def test_a_variation_passes(name: str) -> None:
    with applied(name):
        for check in CHECKS:
            check()
