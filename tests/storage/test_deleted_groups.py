"""What tells a group that was deleted from one whose files are lost."""

from __future__ import annotations

import errno
from contextlib import suppress
from unittest import mock

import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueFiles, LogQueueStore

FOLDER = "queues/q/consumers/g"


def opened(disk: MemoryDisk) -> tuple[LogQueueStore, LogQueueFiles]:
    disk.unlock()
    store = LogQueueStore(disk)
    return store, store.open_queue(QueueConfig(name="q"))


def groups(files: LogQueueFiles) -> list[str]:
    return [group.group for group in files.groups()]


@pytest.mark.parametrize("removals", range(4))
def test_a_group_whose_removal_was_cut_short_is_whole_or_gone(removals: int) -> None:
    """However far it came: there is its log, or there is no such group. Nobody is told of a loss, and the next removal
    ends it."""
    disk = MemoryDisk()
    _, files = opened(disk)
    files.open_group("g", "").close()
    disk.open(f"{FOLDER}/g.cur", create=True).close()
    done: list[str] = []

    def remove(path: str) -> None:
        if len(done) == removals:
            raise OSError(errno.EIO, "no more")
        done.append(path)
        MemoryDisk.remove(disk, path)

    with mock.patch.object(disk, "remove", remove), suppress(LogError):
        files.remove_group("g")
    store, files = opened(disk)
    has_log = disk.exists(f"{FOLDER}/g.pel.log")
    assert has_log == (removals < 2)
    assert groups(files) == ["g"] * has_log
    assert not [note for note in store.recovery_notes() if "missing; what" in note.problem]
    files.remove_group("g")
    assert disk.list(FOLDER) == []
    store, files = opened(disk)
    assert not groups(files)
    assert not store.recovery_notes()


def test_a_group_of_an_older_broker_is_known_from_its_next_start_on() -> None:
    """Its folder has no mark: that it was deleted cannot be told from a lost log until the group was opened once."""
    disk = MemoryDisk()
    _, files = opened(disk)
    files.open_group("g", "").close()
    disk.remove(f"{FOLDER}/g.group")
    _, files = opened(disk)
    assert groups(files) == ["g"]
    files.open_group("g", "").close()
    disk.remove(f"{FOLDER}/g.pel.log")
    store, files = opened(disk)
    assert groups(files) == ["g"]
    assert [note.problem.partition(";")[0] for note in store.recovery_notes()] == ["it is missing"]
