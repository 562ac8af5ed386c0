"""The state of a consumer group that lives on a simulated disk, and a model of what a power loss may leave of it.

For each message the model remembers what was said of it since the last sync: what was synced, or anything said later,
may be found; anything else must not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.jobs.store import CursorRecord, PendingRecord
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.pending_log import PendingLogFile

FOLDER: Final = "queues/q/consumers/g"
PATH: Final = f"{FOLDER}/g.pel.log"
FOLDERS: Final = ("", "queues", "queues/q", "queues/q/consumers")
"""They are durable before a group is opened; its own folder is not."""
PARTITIONS: Final = 2
Place = tuple[int, int]
"""Partition and offset."""


def open_group(disk: Disk, notes: list[str] | None = None) -> PendingLogFile:
    """Open or create the group. Raises :class:`LogError`."""
    disk.make_folder(FOLDER)
    return PendingLogFile(
        disk,
        PATH,
        group="g",
        pattern="#",
        volatile=False,
        note=lambda place, problem: notes.append(f"{place}: {problem}") if notes is not None else None,
    )


class FoundGroup(NamedTuple):
    """What a recovery found."""

    entries: dict[Place, PendingRecord]
    cursors: dict[int, int]
    problems: tuple[str, ...]


def examine_group(disk: Disk) -> FoundGroup:
    """Recover a group, write to it, and find the same and what was written again."""
    notes: list[str] = []
    try:
        group = open_group(disk, notes)
        entries = {(entry.partition, entry.offset): entry for entry in group.recovered}
        cursors = dict(group.recovered_cursors)
        offset = cursors.get(1, 0) + 1_000
        group.add(1, offset, "c", 5, 1)
        group.flush()
        sync_group(group)
        group.close()
        again = open_group(disk)
        expected = [*sorted(entries.values()), PendingRecord(1, offset, "c", 5, 0, 1)]
        problems = []
        if sorted(again.recovered) != sorted(expected) or again.recovered_cursors != cursors | {1: offset + 1}:
            problems.append(
                f"opened again, the group holds {again.recovered} {again.recovered_cursors}; notes: {notes}"
            )
        again.close()
    except LogError as error:
        return FoundGroup({}, {}, (f"the group cannot be used: {error}; notes: {notes}",))
    return FoundGroup(entries, cursors, tuple(problems))


def sync_group(group: PendingLogFile) -> None:
    """Sync until nothing is left to do; each sync takes a snapshot a step further."""
    while (task := group.start_sync()) is not None:
        task.run()
        group.finish_sync(None)


class GroupModel:
    """What may be found of each message and cursor: the synced version first, then all later ones."""

    def __init__(self) -> None:
        self.versions: dict[Place, list[PendingRecord | None]] = {}
        self.cursors: dict[int, list[int]] = {partition: [0] for partition in range(PARTITIONS)}

    def say(self, place: Place, entry: PendingRecord | None) -> None:
        """A message is pending like this, or settled (None)."""
        self.versions.setdefault(place, [None]).append(entry)

    def move(self, partition: int, offset: int) -> None:
        """The next first delivery."""
        self.cursors[partition].append(offset)

    @property
    def pending(self) -> dict[Place, PendingRecord]:
        """Latest version of what is not settled."""
        return {place: said[-1] for place, said in self.versions.items() if said[-1] is not None}

    def mark(self) -> tuple[dict[Place, int], dict[int, int]]:
        """How much was said so far; a sync that begins now covers it."""
        return (
            {place: len(said) - 1 for place, said in self.versions.items()},
            {partition: len(said) - 1 for partition, said in self.cursors.items()},
        )

    def synced(self, mark: tuple[dict[Place, int], dict[int, int]]) -> None:
        """A sync that began at a mark ended: older versions must not be found any more."""
        versions, cursors = mark
        for place, number in versions.items():
            self.versions[place] = self.versions[place][number:]
        for partition, number in cursors.items():
            self.cursors[partition] = self.cursors[partition][number:]

    def complaints(self, found: FoundGroup) -> Iterator[str]:
        """What is wrong with what a recovery found after a power loss now."""
        yield from found.problems
        for place, said in self.versions.items():
            if found.entries.get(place) not in said:
                yield f"{place} is {found.entries.get(place)}, and should be one of {said}"
        for place in found.entries:
            if place not in self.versions:
                yield f"{place} is pending again, or was never delivered: {found.entries[place]}"
        for partition, offsets in self.cursors.items():
            if found.cursors.get(partition, 0) not in offsets:
                yield f"the cursor of {partition} is {found.cursors.get(partition, 0)}, and should be in {offsets}"


class GroupLife:
    """Drives one group by a seed: deliveries, settlements, syncs, snapshots, restarts."""

    STEPS: Final = (
        *("deliver",) * 8,
        *("ack",) * 6,
        *("ack many",) * 3,
        *("claim",) * 3,
        *("expire",) * 2,
        "annotate",
        *("sync",) * 6,
        *("overlapping sync",) * 3,
        *("snapshot",) * 2,
        "reopen",
        "kill",
    )

    def __init__(self, disk: Disk, seed: int) -> None:
        self.disk = disk
        self.model = GroupModel()
        self._rng = random.Random(seed)
        self._now_ms = 1_000
        self.counts: dict[str, int] = {}
        self.group = open_group(disk)

    def live(self, steps: int) -> None:
        """Do so many steps. Raises :class:`AssertionError` when a restart finds something else."""
        for _ in range(steps):
            name = self._rng.choice(self.STEPS)
            self.counts[name] = self.counts.get(name, 0) + 1
            self._now_ms += 10
            match name:
                case "deliver" | "ack" | "ack many" | "claim" | "expire" | "annotate":
                    self._change(name)
                case "sync":
                    self._sync()
                case "overlapping sync":
                    self._sync(between=True)
                case "snapshot":
                    self._begin_snapshot()
                case "reopen":
                    self._sync()
                    self.group.close()
                    self._open()
                case "kill":
                    self._open()
            self.group.continue_snapshot()

    def _open(self) -> None:
        self.group = open_group(self.disk)
        assert {(entry.partition, entry.offset): entry for entry in self.group.recovered} == self.model.pending

    def _change(self, name: str) -> None:
        rng, group, model = self._rng, self.group, self.model
        partition = rng.randrange(PARTITIONS)
        if name == "deliver":
            start = model.cursors[partition][-1]
            for offset in range(start, start + rng.randint(1, 9)):
                self._say(PendingRecord(partition, offset, "c1", self._now_ms, 0, 1))
                model.move(partition, offset + 1)
                group.add(partition, offset, "c1", self._now_ms, 1)
        places = [place for place in sorted(model.pending) if place[0] == partition]
        chosen = rng.sample(places, min(len(places), rng.randint(1, 3)))
        if name == "ack":
            for place in chosen:
                model.say(place, None)
                group.ack(*place)
        elif name == "ack many" and places:
            first = rng.choice(places)[1]
            ranges = [(first, first + rng.randint(1, 4))]
            for place in places:
                if ranges[0][0] <= place[1] < ranges[0][1]:
                    model.say(place, None)
            group.ack_many(partition, ranges)
        elif name in ("claim", "expire", "annotate"):
            for place in chosen:
                entry = model.pending[place]
                if name == "claim":
                    self._say(
                        entry._replace(
                            consumer="c2",
                            claimed_at_ms=self._now_ms,
                            due_at_ms=0,
                            delivery_count=entry.delivery_count + 1,
                        )
                    )
                    group.claim(*place, "c2", self._now_ms, entry.delivery_count + 1)
                elif name == "annotate":
                    noted = b"%d" % self._now_ms
                    self._say(entry._replace(annotations=noted))
                    group.annotate(*place, noted)
                else:
                    self._say(entry._replace(due_at_ms=self._now_ms + 50))
                    group.expire(*place, self._now_ms + 50)
        group.flush()

    def _say(self, entry: PendingRecord) -> None:
        self.model.say((entry.partition, entry.offset), entry)

    def _sync(self, *, between: bool = False) -> None:
        mark = self.model.mark()
        task = self.group.start_sync()
        if between:
            self._change("ack")
        if task is not None:
            task.run()
            self.group.finish_sync(None)
        if not self.group.needs_sync or task is not None:
            self.model.synced(mark)

    def _begin_snapshot(self) -> None:
        """As a group does, which gives its live entries: they may change while the snapshot is taken."""
        cursors = {}
        for partition, offsets in self.model.cursors.items():
            pending = [offset for where, offset in self.model.pending if where == partition]
            cursors[partition] = CursorRecord(offsets[-1], min(pending, default=offsets[-1]))
        self.group.begin_snapshot(cursors, self._entries(sorted(self.model.pending)), self._now_ms)

    def _entries(self, places: list[Place]) -> Iterator[PendingRecord]:
        for place in places:
            entry = self.model.pending.get(place)
            if entry is not None:
                yield entry
