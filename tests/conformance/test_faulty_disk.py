"""A real disk that goes wrong on request does as it is told, and no more."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from assay.conformance.faulty_disk import FaultyDisk, Troubles
from assay.reference_broker.storage.disk import RealDisk

SEGMENT = "queues/q/partitions/0/0.seg"
GROUP = "queues/q/consumers/g/g.pel.log"


def wrong(*faults: dict[str, Any], seed: int = 1) -> str:
    return json.dumps({"disk_faults": faults, "seed": seed})


def disk_of(folder: Path, *faults: dict[str, Any]) -> tuple[FaultyDisk, Troubles]:
    troubles = Troubles(wrong(*faults))
    disk = FaultyDisk(RealDisk(folder), troubles)
    for path in (SEGMENT, GROUP):
        disk.make_folder(path.rpartition("/")[0])
    return disk, troubles


def failure(call: Any, *arguments: Any) -> int | None:
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def test_a_sound_disk_is_a_disk(tmp_path: Path) -> None:
    disk, _ = disk_of(tmp_path)
    file = disk.open(SEGMENT, create=True)
    assert file.append(b"abc") == 0
    file.sync()
    assert (file.size, file.read_at(1, 9)) == (3, b"bc")
    assert disk.list("queues") == ["q"]
    file.close()


def test_the_nth_calls_fail_on_files_of_the_kind_only(tmp_path: Path) -> None:
    disk, troubles = disk_of(tmp_path, {"kind": "write_error", "files": "segments", "nth": 2, "times": 2})
    segment, group = disk.open(SEGMENT, create=True), disk.open(GROUP, create=True)
    assert [failure(group.append, b"x") for _ in range(5)] == [None] * 5
    assert [failure(segment.append, b"x") for _ in range(5)] == [None, errno.EIO, errno.EIO, None, None]
    troubles.take(wrong())
    assert failure(segment.append, b"x") is None


def test_a_write_that_fails_may_be_done_in_part_and_never_whole_and_more(tmp_path: Path) -> None:
    sizes = set()
    for seed in range(30):
        disk, _ = disk_of(tmp_path / str(seed), {"kind": "write_error"})
        disk._troubles.take(wrong({"kind": "write_error"}, seed=seed))
        file = disk.open(SEGMENT, create=True)
        disk._troubles._rng.seed(seed)
        assert failure(file.append, b"0123456789") == errno.EIO
        sizes.add(file.size)
    assert 0 in sizes
    assert len(sizes) > 3
    assert max(sizes) <= 10


@pytest.mark.parametrize(("kind", "call"), [("read_error", "read_at"), ("sync_error", "sync")])
def test_reads_and_syncs_fail(tmp_path: Path, kind: str, call: str) -> None:
    disk, _ = disk_of(tmp_path, {"kind": kind})
    file = disk.open(SEGMENT, create=True)
    file.append(b"abc")
    arguments = (0, 1) if call == "read_at" else ()
    assert [failure(getattr(file, call), *arguments) for _ in range(2)] == [errno.EIO, None]


def test_a_full_disk_takes_what_fits_and_what_is_removed_makes_room(tmp_path: Path) -> None:
    disk, troubles = disk_of(tmp_path)
    file = disk.open(SEGMENT, create=True)
    file.append(bytes(100))
    other = disk.open(GROUP, create=True)
    other.append(bytes(50))
    troubles.take(wrong({"kind": "disk_full", "free_bytes": 10}))
    assert disk.free_bytes() == 10
    assert failure(file.append, bytes(30)) == errno.ENOSPC
    assert (file.size, disk.free_bytes()) == (110, 0)
    assert failure(file.write_at, 0, bytes(100)) is None, "it does not grow"
    file.truncate(100)
    assert disk.free_bytes() == 10
    disk.remove(GROUP)
    assert disk.free_bytes() == 60
    troubles.take(wrong())
    assert failure(file.append, bytes(1_000)) is None


def test_what_is_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="files"):
        Troubles(wrong({"kind": "write_error", "files": "photos"}))
