"""Logs of groups share the bound on open files: they are closed when synced, and opened again when written to."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.queues.jobs.confirms import sync_now
from assay.reference_broker.storage import own_descriptors
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.open_files import OpenFiles
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage.reopened_file import ReopenedFile

if TYPE_CHECKING:
    from tests.storage.conftest import LossyDisk

GROUPS, LIMIT = 40, 4


def opened(disk: RealDisk, number: int, files: OpenFiles, *, volatile: bool = False) -> PendingLogFile:
    folder = f"g{number}"
    disk.make_folder(folder)
    path = f"{folder}/{folder}.pel.log"
    return PendingLogFile(
        disk, path, group=folder, pattern="", volatile=volatile, note=lambda *_: None, open_files=files
    )


@pytest.mark.parametrize("volatile", [True, False])
def test_many_groups_have_few_files_open(tmp_path: Path, volatile: bool) -> None:
    disk, files = RealDisk(tmp_path), OpenFiles(LIMIT)
    before = len(own_descriptors._own)
    logs = []
    for number in range(GROUPS):
        logs.append(opened(disk, number, files, volatile=volatile))
        if not volatile:
            assert sync_now(logs[-1]) is None
    for offset in (5, 6):
        for log in logs:
            log.move_cursor(0, offset)
            log.flush()
            assert volatile or sync_now(log) is None
            assert len(own_descriptors._own) - before <= LIMIT + 1
    for log in logs:
        log.close()
    assert len(own_descriptors._own) == before
    assert not files
    if volatile:
        return
    again = [opened(disk, number, files) for number in range(GROUPS)]
    assert [log.recovered_cursors for log in again] == [{0: 6}] * GROUPS
    assert len(own_descriptors._own) - before <= LIMIT, "also before anything of them is synced anew"
    assert [sync_now(log) for log in again] == [None] * GROUPS
    for log in again:
        log.close()


def test_what_is_not_synced_stays_open(tmp_path: Path) -> None:
    files = OpenFiles(1)
    file = ReopenedFile(RealDisk(tmp_path), "a", files, create=True)
    assert file.may_close
    file.append(b"123")
    assert not file.may_close
    file.begin_sync()
    file.append(b"4")
    file.sync()
    assert not file.may_close
    file.end_sync(synced=True)
    assert not file.may_close, "the last byte came after the sync had begun"
    file.begin_sync()
    file.end_sync(synced=False)
    assert not file.may_close
    file.begin_sync()
    assert not file.may_close
    file.sync()
    file.end_sync(synced=True)
    assert file.may_close
    file.close()
    assert (file.size, len(files)) == (4, 0)
    assert file.read_at(0, 9) == b"1234"
    file.close()
    file.begin_sync()
    file.sync()
    file.end_sync(synced=True)
    assert not files, "a sync in another thread opens it for itself"


@pytest.mark.parametrize("is_open", [False, True])
def test_a_sync_reaches_what_an_earlier_process_left(lossy_disk: LossyDisk, is_open: bool) -> None:
    """A process that was killed has synced nothing, and this one wrote nothing: who asks for a sync means all of it."""
    left = lossy_disk.open("a", create=True)
    left.append(b"123")
    file = ReopenedFile(lossy_disk, "a", OpenFiles(1))
    file.close()
    if is_open:
        file.read_at(0, 1)
    file.begin_sync()
    file.sync()
    file.end_sync(synced=True)
    assert lossy_disk.files["a"].synced == b"123"


def test_whoever_may_close_makes_room_when_the_system_has_no_descriptor(tmp_path: Path) -> None:
    class Disk(RealDisk):
        def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
            if len(files):
                raise OSError(errno.EMFILE, "planted")
            return super().open(path, create=create)

    files = OpenFiles(100)
    disk = Disk(tmp_path)
    first = ReopenedFile(disk, "a", files, create=True)
    second = ReopenedFile(disk, "b", files, create=True)
    assert len(files) == 1
    second.append(b"x")
    with pytest.raises(OSError, match="planted"):
        first.append(b"x")
