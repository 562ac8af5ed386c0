"""Where queues live: file names, descriptions, groups, and the disk in memory."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.config import Durability, QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord, StoredGroup, StoredQueue
from assay.reference_broker.storage.disk import DirectoryInUseError, RealDisk
from assay.reference_broker.storage.file_names import encode_name, parse_segment_name, segment_name
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage.queue_store import LogQueueStore


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_names_are_safe(name: str) -> None:
    encoded = encode_name(name)
    assert len(encoded) <= 180
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-%ABCDEF~")
    assert not encoded.startswith(".")


@given(st.lists(st.text("aA/.%~ü\n0", min_size=1, max_size=4), min_size=2, max_size=40, unique=True))
def test_different_names_never_meet_even_without_case(names: list[str]) -> None:
    assert len({encode_name(name).lower() for name in names}) == len(names)


def test_long_names_differ_by_their_hash() -> None:
    first, second = encode_name("x" * 400), encode_name("x" * 401)
    assert first != second
    assert len(first) == len(second) == 180
    with pytest.raises(ValueError, match="empty"):
        encode_name("")


def test_names_of_interest() -> None:
    assert encode_name("tasks/image-processing") == "tasks%2Fimage-processing"
    assert encode_name("..") == "%2E%2E"
    assert encode_name("$dlq/Q") == "%24dlq%2F%51"
    assert segment_name(67_108_864) == "00000000000067108864.seg"
    assert parse_segment_name("00000000000067108864.seg") == 67_108_864
    for other in ("67108864.seg", "00000000000067108864.idx", "0000000000006710886x.seg", "queue.json"):
        assert parse_segment_name(other) is None


def test_queues_and_groups_are_found_again(tmp_path: Path) -> None:
    store = LogQueueStore(RealDisk(tmp_path))
    for name in ("tasks/image", "$dlq/tasks/image", "ä"):
        files = store.open_queue(QueueConfig(name=name, partitions=2))
        log = files.open_partition(1)
        log.append([NewRecord(0, b"", name.encode(), ())])
        log.close()
        for group, pattern in (("workers", ""), ("audit@a/+", "a/+")):
            begins = files.open_group(group, pattern)
            begins.move_cursor(0, 0)
            begins.flush()
            begins.close()
    store.close()
    again = LogQueueStore(RealDisk(tmp_path))
    assert again.stored_queues() == [
        StoredQueue(name=name, partitions=2) for name in ("$dlq/tasks/image", "tasks/image", "ä")
    ]
    files = again.open_queue(QueueConfig(name="tasks/image", partitions=2))
    assert files.groups() == [
        StoredGroup(group="audit@a/+", pattern="a/+"),
        StoredGroup(group="workers", pattern=""),
    ]
    assert files.open_partition(1).read(0, 1)[0].value == b"tasks/image"
    assert (tmp_path / "queues/tasks%2Fimage/partitions/1/00000000000000000000.seg").exists()
    assert (tmp_path / "queues/tasks%2Fimage/consumers/workers/workers.pel.log").exists()
    again.close()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    store = LogQueueStore(RealDisk(tmp_path))
    with pytest.raises(DirectoryInUseError, match="another broker"):
        LogQueueStore(RealDisk(tmp_path))
    store.close()
    LogQueueStore(RealDisk(tmp_path)).close()


def test_memory_queues_leave_nothing_behind(tmp_path: Path) -> None:
    store = LogQueueStore(RealDisk(tmp_path))
    files = store.open_queue(QueueConfig(name="q", durability=Durability.MEMORY))
    assert files.volatile
    files.open_partition(0).append([NewRecord(0, b"", b"x", ())])
    store.close()
    assert LogQueueStore(RealDisk(tmp_path)).stored_queues() == []
    assert not (tmp_path / "queues").exists()


def description(disk: MemoryDisk, content: bytes) -> None:
    disk.make_folder("queues/q")
    disk.open("queues/q/queue.json", create=True).append(content)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1}', b'{"version":2,"name":"q","partitions":1}'])
def test_a_damaged_description_says_which_file(content: bytes) -> None:
    """And stops only its own queue: see tests/queues/test_set_aside.py."""
    disk = MemoryDisk()
    description(disk, content)
    store = LogQueueStore(disk)
    assert store.stored_queues() == []
    assert "queues/q/queue.json" in (store.unusable("q") or "")
    assert store.unusable("other") is None
    assert "queues/q/queue.json" in store.recovery_notes()[0].problem


def test_a_folder_moved_under_another_name_is_noted() -> None:
    disk = MemoryDisk()
    description(disk, msgspec.json.encode({"version": 1, "name": "other", "partitions": 1}))
    store = LogQueueStore(disk)
    assert store.stored_queues() == []
    assert "does not belong" in store.recovery_notes()[0].problem


def test_a_queue_that_was_being_created_is_passed_over() -> None:
    disk = MemoryDisk()
    disk.make_folder("queues/q/partitions")
    assert LogQueueStore(disk).stored_queues() == []


def test_a_deleted_queue_whose_empty_folders_stay_gives_its_name_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty folders were taken for a queue without a description, which nobody may use."""
    store = LogQueueStore(RealDisk(tmp_path))
    files = store.open_queue(QueueConfig(name="q", partitions=2))
    log = files.open_partition(0)
    log.append([NewRecord(0, b"", b"m", ())])
    log.close()

    def busy(_self: RealDisk, path: str) -> None:
        raise OSError(errno.EBUSY, "busy", path)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "remove_folder", busy)
        files.removal().run()
    assert (tmp_path / "queues/q/partitions/0").is_dir()
    store.close()
    again = LogQueueStore(RealDisk(tmp_path))
    assert (again.stored_queues(), again.unusable_queues()) == ([], [])
    assert again.open_queue(QueueConfig(name="q")).open_partition(0).next_offset == 0


def test_the_memory_disk_is_a_disk() -> None:
    disk = MemoryDisk()
    with pytest.raises(FileNotFoundError):
        disk.open("a/file", create=True)
    disk.make_folder("a/b")
    with pytest.raises(FileNotFoundError):
        disk.open("a/file")
    file = disk.open("a/file", create=True)
    assert file.append(b"hello") == 0
    file.write_at(7, b"x")
    file.write_at(0, b"J")
    assert file.read_at(0, 100) == b"Jello\0\0x"
    file.truncate(3)
    file.truncate(4)
    assert file.read_at(1, 100) == b"el\0"
    assert disk.list("a") == ["b", "file"]
    assert disk.list("nowhere") == []
    disk.rename("a/file", "a/b/moved")
    assert disk.list("a") == ["b"]
    assert disk.open("a/b/moved").size == 4
    disk.remove("a/b/moved")
    for action in (lambda: disk.remove("a/b/moved"), lambda: disk.rename("a/x", "a/y")):
        with pytest.raises(FileNotFoundError):
            action()
    assert not disk.exists("a/b/moved")
    assert disk.exists("a/b")
