"""A life of a consumer group, cut off by power losses before every disk operation, whatever the disk keeps."""

from __future__ import annotations

import pytest

from assay.reference_broker.storage import pending_log, pending_snapshot
from assay.sim.group_life import FOLDERS, FoundGroup, GroupLife, GroupModel, examine_group, open_group
from assay.sim.power_cuts import PowerCut, WatchedDisk, power_cuts

STEPS = 500
SHARDS = 4
BLOCK = 25
AGAIN_EVERY = 12


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 12)
    monkeypatch.setattr(pending_snapshot, "ENTRIES_PER_STEP", 2)


class Examiner:
    """Recovers each different state once, and judges it each time."""

    def __init__(self) -> None:
        self.seen: dict[bytes, FoundGroup] = {}
        self.judged = 0

    def judge(self, cut: PowerCut, model: GroupModel, where: str) -> None:
        digest = cut.digest
        found = self.seen.get(digest)
        if found is None:
            found = self.seen[digest] = examine_group(cut.boot())
        self.judged += 1
        assert list(model.complaints(found)) == [], f"power lost {where}, leaving {cut.what}"

    def judge_cut_recovery(self, cut: PowerCut, model: GroupModel, where: str) -> None:
        """Lose power before each disk operation of the recovery, each time in another way."""
        disk = cut.boot()
        number = 0

        def look() -> None:
            nonlocal number
            number += 1
            ways = list(power_cuts(disk, f"{where} {number}"))
            self.judge(
                ways[number % len(ways)], model, f"{where}, leaving {cut.what}, then before operation {number} again"
            )

        disk.before = look
        open_group(disk)
        look()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_was_settled_and_synced_stays_settled(shard: int) -> None:
    examiner = Examiner()
    disk = WatchedDisk.holding({}, FOLDERS)
    life = GroupLife(disk, seed=5)
    point = 0

    def look() -> None:
        nonlocal point
        point += 1
        if point // BLOCK % SHARDS != shard:
            return
        where = f"before disk operation {point}"
        for number, cut in enumerate(power_cuts(disk, f"{point}")):
            examiner.judge(cut, life.model, where)
            if (point + number) % AGAIN_EVERY == 0:
                examiner.judge_cut_recovery(cut, life.model, where)

    disk.before = look
    life.live(STEPS)
    look()
    print(f"{point} points, {examiner.judged} power losses, {len(examiner.seen)} different states; steps {life.counts}")
    assert set(life.counts) == set(GroupLife.STEPS)
    assert examiner.judged > 500
