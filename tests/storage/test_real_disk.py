"""The Disk interface on the file system."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from assay.reference_broker.config import BrokerConfig, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.message import Message
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


def test_who_is_not_of_the_group_reads_no_file(tmp_path: Path) -> None:
    """What messages say is for the broker's user, and for its group to read: never more than the umask leaves."""
    for umask, mode in ((0, 0o640), (0o027, 0o640), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            config = BrokerConfig(queues=QueuesConfig(defaults={"partitions": 1}))
            node = BrokerNode(config, RealDisk(tmp_path / f"{umask}"), random.Random(1), 1.0)
            engine = node.engine
            engine.subscribe("q", pattern="", group="g", consumer_id="c", deliver=lambda _: True, now=1.0)
            QueueTopics(engine).publish(Message(topic="$queue/q", payload=b"x"), 1.0)
            engine.transactions.init_producer("app", 1.0, lambda error, identity: None)
            node.tick(1.0)
            for job in node.take_jobs(1.0):
                job.run()
                node.job_done(job, None, 1.0)
            node.close(1.0)
        finally:
            os.umask(before)
        files = [path for path in (tmp_path / f"{umask}").rglob("*") if path.is_file()]
        assert len(files) > 5
        assert {path.stat().st_mode & 0o777 for path in files} == {mode}


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
