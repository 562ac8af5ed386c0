"""Schemas survive: nobody is told of a change that power loss may take back, and no id means two schemas."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from assay.reference_broker.config import Durability, SchemasConfig
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.schemas import log as module
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode
from assay.reference_broker.schemas.log import SchemaLog
from assay.reference_broker.schemas.registry import Found
from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage_tools.layout import find_layout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.sim.power_cuts import WatchedDisk, power_cuts
from assay.sim.transaction_life import START, open_engine, turn
from tests.schemas.test_registry import A_NEEDED, A, B


class Life:
    """A registry on a disk, and what was told."""

    def __init__(self, disk: Disk, **config: Any) -> None:
        self.engine: QueueEngine = open_engine(disk, Durability.FSYNC)
        store = self.engine._store
        self.log = SchemaLog(SchemasConfig(compatibility="NONE", **config), store, self.engine.agenda)
        self.told: list[Any] = []
        self.ids: dict[int, str] = {}
        """As they were told."""

    def register(self, subject: str, schema: str) -> None:
        def done(error: SchemaError | None, found: Found | None) -> None:
            self.told.append(error or found)
            if found is not None:
                self.ids[found.id] = schema

        self.log.change(lambda: self.log.registry.register(subject, schema, START), done)

    def delete(self, subject: str, *, permanent: bool = False) -> None:
        registry = self.log.registry
        self.log.change(
            lambda: registry.delete_subject(subject, permanent=permanent),
            lambda error, answer: self.told.append(error or answer),
        )

    def turn(self) -> None:
        turn(self.engine)

    def close(self) -> None:
        self.engine.close(START)


def test_changes_go_one_after_the_other_and_hold_once_they_are_durable() -> None:
    life = Life(MemoryDisk())
    life.register("s", A)
    life.register("s", A)
    life.register("s", B)
    assert life.told == []
    assert life.log.registry.subjects() == [], "nobody sees what is not durable"
    life.turn()
    assert [(found.version, found.id) for found in life.told] == [(1, 1), (1, 1), (2, 2)]
    life.close()


def test_what_was_told_is_there_after_a_restart() -> None:
    disk = MemoryDisk()
    life = Life(disk)
    life.register("s", A)
    life.turn()
    life.register("s", B)
    life.close()
    assert len(life.told) == 2, "closing makes durable what was begun"
    again = Life(disk)
    assert again.log.registry.versions("s") == [1, 2]
    again.close()


def test_power_cut_at_every_operation() -> None:
    disk = WatchedDisk(random.Random(5))
    life = Life(disk)
    seen: set[tuple[bytes, int]] = set()
    found_subjects: set[int] = set()
    points = 0

    def before() -> None:
        nonlocal points
        points += 1
        for cut in power_cuts(disk, f"{points}"):
            if (cut.digest, len(life.told)) in seen:
                continue
            seen.add((cut.digest, len(life.told)))
            again = Life(cut.boot())
            registry = again.log.registry
            if points <= gone_from:
                assert {number: registry.schema(number) for number in life.ids} == life.ids, cut.what
                told = [each for each in life.told if isinstance(each, Found)]
                assert all(registry.find(each.subject, each.version).id == each.id for each in told), cut.what
            else:
                # What is being deleted may be there or not, and nothing else instead.
                assert all(registry._schemas.get(number, schema) == schema for number, schema in life.ids.items())
            found_subjects.add(len(registry.subjects(deleted=True)))
            again.register("u", A_NEEDED)
            again.turn()
            assert isinstance(again.told[0], Found), f"operation {points}, {cut.what}: {again.told}"
            assert again.told[0].id not in life.ids

    gone_from = 10**9
    disk.before = before
    for subject in ("s", "t"):
        life.register(subject, A)
        life.turn()
        life.register(subject, B)
        life.turn()
    gone_from = points
    life.delete("s")
    life.turn()
    life.delete("s", permanent=True)
    life.turn()
    before()
    disk.before = None
    assert points > 10
    assert found_subjects == {0, 1, 2}
    assert life.told[-2:] == [[1, 2], [1, 2]]


def test_a_disk_that_fails_refuses_changes_and_holds_to_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(MemoryDisk())
    life.register("s", A)
    life.turn()
    life.register("s", B)
    (job,) = life.engine.take_jobs(START)
    life.engine.job_done(job, OSError(5, "Input/output error"), START)
    life.register("s", B)
    assert [each.code for each in life.told[1:]] == [SchemaErrorCode.STORE_FAILED] * 2
    assert life.log.registry.versions("s") == [1]
    life.close()


def test_a_state_that_cannot_be_read_is_left_as_it_is_and_refused() -> None:
    disk = MemoryDisk()
    life = Life(disk)
    life.register("s", A)
    life.turn()
    life.close()
    folder = f"{module.FOLDER}/log"
    for name in disk.list(folder):
        disk.rename(f"{folder}/{name}", f"{folder}/x{name}" if name.endswith(".seg") else f"{folder}/{name}")
    (name,) = [name for name in disk.list(folder) if name.endswith(".seg")]
    disk.rename(f"{folder}/{name}", f"{folder}/{7:020d}.seg")
    again = Life(disk)
    again.register("s", A)
    again.turn()
    assert [each.code for each in again.told] == [SchemaErrorCode.STORE_FAILED]
    again.close()


def test_the_changes_that_wait_are_bounded() -> None:
    life = Life(MemoryDisk())
    for _ in range(module.MAX_WAITING + 2):
        life.register("s", A)
    assert [each.code for each in life.told] == [SchemaErrorCode.LIMIT]
    life.turn()
    assert len(life.told) == module.MAX_WAITING + 2
    life.close()


def test_setting_a_queue_aside_leaves_state_logs_alone() -> None:
    """A queue that could not be opened again took the coordinator's log with it, and closed it."""
    disk = MemoryDisk()
    life = Life(disk)
    life.register("s", A)
    assert life.engine.agenda.awaited_syncs
    life.engine._registry.set_aside("q", "it has no room")
    life.turn()
    assert [type(each) for each in life.told] == [Found]
    life.close()


def test_tools_know_the_log_of_schemas(tmp_path: Path) -> None:
    life = Life(RealDisk(tmp_path))
    life.engine.create_queue("q", {}, START)
    life.register("s", A)
    life.turn()
    life.close()
    layout = find_layout(ReadOnlyDisk(tmp_path))
    (place,) = [queue for queue in layout.queues if queue.name == "$schemas"]
    assert place.is_internal
    assert len(place.partitions[0].segments) == 1
