"""The Disk interface on the file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.reference_broker.storage.disk import DirectoryInUseError, RealDisk


def test_files(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        disk.open("file")
    disk.make_folder("a/b")
    disk.make_folder("a/b")
    file = disk.open("a/b/file", create=True)
    assert file.append(b"hello") == 0
    assert file.append(b" you") == 5
    file.write_at(0, b"J")
    assert (file.size, file.read_at(0, 100), file.read_at(100, 1)) == (9, b"Jello you", b"")
    file.truncate(5)
    file.sync()
    file.close()
    file.close()
    assert disk.open("a/b/file").size == 5
    disk.rename("a/b/file", "a/other")
    disk.sync_folder("a")
    assert (disk.list("a"), disk.list("a/b"), disk.list("nowhere")) == (["b", "other"], [], [])
    assert disk.exists("a/other")
    disk.remove("a/other")
    assert not disk.exists("a/other")


def test_a_write_the_system_takes_in_pieces_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk(tmp_path).open("file", create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: whole(descriptor, bytes(data[:3]), at))
    file.append(b"0123456789")
    assert (file.size, file.read_at(0, 100)) == (10, b"0123456789")


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    first.lock()
    with pytest.raises(DirectoryInUseError, match="another broker"):
        second.lock()
    first.unlock()
    first.unlock()
    second.lock()
    second.unlock()
