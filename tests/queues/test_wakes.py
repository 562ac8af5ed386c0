"""Whatever the engine has still to do it asks for: nothing waits until something else happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from assay.reference_broker.queues.registry import registry
from assay.reference_broker.storage.memory_disk import MemoryFile
from tests.queues.conftest import Outcome, QueueBench
from tests.queues.failing_disk import FailingDisk, FailingFile

BenchWith = Callable[..., QueueBench]


def test_a_group_over_its_bound_gets_back_all_that_it_had(bench_with: BenchWith) -> None:
    """More than one quantum of a partition, after the bound was set lower."""
    bench = bench_with()
    for number in range(100):
        bench.publish(f"m{number}")
    first = bench.consumer("a")
    bench.turn()
    bench.engine.update_queue("q", {"group": {"max_pending": 10}}, bench.now)
    second = bench.consumer("b")
    first.leave()
    bench.turn()
    assert len(second.got) == 100


def test_a_group_whose_beginning_could_not_be_written_begins_once_it_can(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was told that it is there; but who has subscribed gets its messages all the same."""
    bench = bench_with(FailingDisk(), group={"start": "latest"})
    bench.publish("before")
    bench.turn()
    append = FailingFile.append

    def full(self: FailingFile, data: bytes) -> int:
        """There is room for the name of the group's log, and for its header."""
        if self.size and "consumers" in self.path:
            raise OSError(28, "No space left on device")
        return append(self, data)

    monkeypatch.setattr(FailingFile, "append", full)
    consumer = bench.consumer()
    told = Outcome()
    assert consumer.handle is not None
    bench.engine.when_begun(consumer.handle, told)
    bench.turn()
    assert told.failed
    monkeypatch.undo()
    bench.publish("m")
    bench.advance(5)
    assert consumer.values == ["m"]


def test_what_has_expired_leaves_though_it_could_not_be_read_when_that_was_due(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CACHE_BYTES", 0)
    bench = bench_with(FailingDisk(), message_ttl_s=10.0)
    bench.consumer().leave()
    bench.publish("m")
    bench.turn()
    bench.advance(5)
    with monkeypatch.context() as patch:

        def read_at(self: MemoryFile, position: int, length: int) -> bytes:
            raise OSError(5, "Input/output error")

        patch.setattr(MemoryFile, "read_at", read_at)
        bench.advance(6)
    assert bench.engine.stats("q").depth == 1
    bench.advance(5)
    assert bench.engine.stats("q").depth == 0


def test_what_waits_for_a_retry_and_has_expired_leaves_likewise(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CACHE_BYTES", 0)
    bench = bench_with(FailingDisk(), message_ttl_s=10.0)
    bench.publish("m")
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["m"]
    consumer.leave()
    bench.advance(5)
    with monkeypatch.context() as patch:

        def read_at(self: MemoryFile, position: int, length: int) -> bytes:
            raise OSError(5, "Input/output error")

        patch.setattr(MemoryFile, "read_at", read_at)
        bench.advance(6)
    assert bench.engine.stats("q").depth == 1
    bench.advance(5)
    assert bench.engine.stats("q").depth == 0
