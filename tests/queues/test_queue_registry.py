"""How queues are configured, created and changed at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.config import ConfigError, Durability, PartitionerKind, QueueConfig, parse_config
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]


def refused(call: Callable[[], object]) -> QueueErrorCode:
    with pytest.raises(QueueError) as caught:
        call()
    return caught.value.code


def test_what_was_set_at_run_time_survives_and_wins_over_the_file(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), max_depth=50, configured=(QueueConfig(name="q", partitions=1, max_depth=40),))
    assert bench.engine.queue_config("q")[0].max_depth == 40
    bench.engine.update_queue("q", {"max_depth": 7, "retry": {"max_retries": 2}}, bench.now)
    bench.engine.create_queue("made", {"partitions": 3, "message_ttl_s": 60.0}, bench.now)
    bench.turn()
    bench.restart()
    config, settings = bench.engine.queue_config("q")
    assert (config.max_depth, config.retry.max_retries, config.retry.initial_backoff_s) == (7, 2, 5.0)
    assert settings == {"max_depth": 7, "retry": {"max_retries": 2}}
    made, _ = bench.engine.queue_config("made")
    assert (made.partitions, made.message_ttl_s, made.max_depth) == (3, 60.0, 50)
    bench.engine.update_queue("q", {"max_depth": None, "retry": {"max_retries": None}}, bench.now)
    bench.turn()
    bench.restart()
    assert bench.engine.queue_config("q")[0].max_depth == 40, "back to what the file says"


def test_templates_lie_between_the_defaults_and_the_entries() -> None:
    queues = {
        "defaults": {"max_depth": 10, "partitions": 2},
        "templates": {"log-*": {"max_depth": 20, "durability": "interval"}, "log-?": {"partitions": 1}},
        "configured": [{"name": "log-a", "max_depth": 30, "durability": "memory"}, {"name": "other"}],
    }
    config = parse_config({"queues": queues}).queues
    log_a, other = config.configured
    assert (log_a.max_depth, log_a.partitions, log_a.durability) == (30, 1, Durability.MEMORY)
    assert (other.max_depth, other.partitions) == (10, 2)


def test_templates_configure_what_is_created_by_use(bench_with: BenchWith) -> None:
    bench = bench_with(templates={"log-*": {"max_depth": 1}})
    bench.publish("a", "$queue/log-1")
    bench.turn()
    assert bench.engine.queue_config("log-1")[0].max_depth == 1
    assert refused(lambda: bench.publish("b", "$queue/log-1")) is QueueErrorCode.FULL
    bench.publish("b", "$queue/logs")


@pytest.mark.parametrize(
    "queues",
    [
        {"templates": {"a*": {"max_dept": 1}}},
        {"templates": {"a*": {"name": "b"}}},
        {"templates": {"a*": {"partitions": 0}}},
        {"defaults": {"topics": ["a/#/b"]}},
        {"configured": [{"name": "q", "topics": ["a+"]}]},
        {"configured": [{"name": "q", "topics": ["$SYS/#"]}]},
        {"configured": [{"name": "q", "topics": [""]}]},
        {"configured": [{"name": "q", "expires_after_s": 0}]},
    ],
)
def test_mistakes_are_found_at_start(queues: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_config({"queues": queues})


def test_creating_again_is_fine_unless_it_differs(bench: QueueBench) -> None:
    bench.engine.create_queue("x", {"max_depth": 5}, bench.now)
    bench.engine.create_queue("x", {"max_depth": 5}, bench.now)
    assert refused(lambda: bench.engine.create_queue("x", {"max_depth": 6}, bench.now)) is QueueErrorCode.EXISTS
    assert bench.engine.queue_config("x")[0].max_depth == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"durability": "memory"}, QueueErrorCode.NOT_ALLOWED),
        ({"ordering": "none"}, QueueErrorCode.NOT_ALLOWED),
        ({"ephemeral": True}, QueueErrorCode.NOT_ALLOWED),
        ({"partitions": 9}, QueueErrorCode.NOT_ALLOWED),
        ({"max_dept": 9}, QueueErrorCode.BAD_OPTION),
        ({"name": "y"}, QueueErrorCode.BAD_OPTION),
        ({"topics": ["a/#/b"]}, QueueErrorCode.BAD_OPTION),
        ({"topics": ["x" * 20_000]}, QueueErrorCode.BAD_OPTION),
    ],
)
def test_what_may_not_change_leaves_all_as_it_was(
    durable: QueueBench, changes: dict[str, Any], code: QueueErrorCode
) -> None:
    before = durable.engine.create_queue("x", {"max_depth": 5}, durable.now)
    assert refused(lambda: durable.engine.update_queue("x", {"max_depth": 6, **changes}, durable.now)) is code
    assert durable.engine.queue_config("x") == (before, {"max_depth": 5})


def test_changes_hold_for_a_queue_in_use(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=100.0, max_depth=2)
    consumer = bench.consumer(room=1)
    bench.publish("slow")
    bench.publish("more")
    bench.turn()
    assert refused(lambda: bench.publish("full")) is QueueErrorCode.FULL
    bench.engine.update_queue("q", {"delivery_timeout_s": 10.0, "max_depth": 4}, bench.now)
    consumer.room = 1
    assert consumer.handle is not None
    bench.engine.resume(consumer.handle, bench.now)
    bench.publish("late")
    bench.turn()
    assert consumer.values == ["slow", "more"]
    bench.advance(11.0)
    stats = bench.engine.stats("q").groups[0]
    assert stats.timed_out == 1, "what was out keeps its deadline, what follows has the new one"
    bench.advance(100.0)
    assert bench.engine.stats("q").groups[0].timed_out >= 2


def test_a_queue_needs_a_name_that_can_be_addressed(bench: QueueBench) -> None:
    for name in ("", "a//b", "a/#", "dlq/x"):
        with pytest.raises(QueueError) as caught:
            bench.engine.create_queue(name, {}, bench.now)
        assert caught.value.code is QueueErrorCode.BAD_ADDRESS


def test_stored_settings_that_nobody_understands_stop_only_their_queue(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.engine.create_queue("x", {"max_depth": 5}, bench.now)
    bench.turn()
    file = disk.open("queues/x/queue.json")
    changed = file.read_at(0, 10_000).replace(b"max_depth", b"min_depth")
    file.truncate(0)
    file.append(changed)
    bench.restart()
    with pytest.raises(QueueError, match="min_depth") as caught:
        bench.engine.stats("x")
    assert caught.value.code is QueueErrorCode.STORAGE_FAILED


def test_an_ephemeral_queue_is_in_memory(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk())
    config = bench.engine.create_queue("x", {"ephemeral": True}, bench.now)
    assert config.durability is Durability.MEMORY
    bench.restart()
    assert bench.engine.queues() == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (PartitionerKind.ROUND_ROBIN, [1, 2, 0, 1, 2, 0]),
        (PartitionerKind.MURMUR3, [1, 2, 0, 1, 2, 0]),
    ],
)
def test_in_turn_starts_at_partition_one(bench_with: BenchWith, kind: PartitionerKind, expected: list[int]) -> None:
    bench = bench_with(partitions=3, partitioner=kind)
    consumer = bench.consumer()
    for number in range(6):
        bench.publish(str(number))
        bench.turn()
    assert [delivery.partition for delivery in consumer.got] == expected


@pytest.mark.parametrize("kind", [PartitionerKind.ROUND_ROBIN, PartitionerKind.RANDOM])
def test_these_partitioners_ignore_the_key(bench_with: BenchWith, kind: PartitionerKind) -> None:
    bench = bench_with(partitions=3, partitioner=kind)
    consumer = bench.consumer()
    for number in range(30):
        bench.publish(str(number), key="one")
    bench.turn()
    assert {delivery.partition for delivery in consumer.got} == {0, 1, 2}


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_dead_letters_take_over_the_timeouts_of_their_queue(bench_with: BenchWith, durability: str) -> None:
    bench = bench_with(MemoryDisk(), durability=durability)
    own = {"delivery_timeout_s": 3.0, "retry": {"initial_backoff_s": 2.0}, "max_depth": 7}
    bench.engine.create_queue("q", own, bench.now)
    bench.publish("m")
    consumer = bench.consumer()
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    for restarts in (False, durability == "fsync"):
        if restarts:
            bench.restart()
        letters = bench.engine.config_of("$dlq/q")
        assert letters.delivery_timeout_s == 3.0
        assert letters.retry.initial_backoff_s != 2.0, "whoever looks at dead letters and gives one back has it at once"
        assert letters.max_depth != 7, "that is of what is to be delivered"
    bench.engine.create_queue("$dlq/q", {}, bench.now)
    bench.engine.update_queue("q", {"delivery_timeout_s": 5.0}, bench.now)
    bench.engine.create_queue("$dlq/q", {}, bench.now)


def test_dead_letters_are_known_after_a_restart_before_anybody_asks_for_them(bench_with: BenchWith) -> None:
    """R14: the queue of dead letters was not loaded at a start."""
    bench = bench_with(MemoryDisk())
    consumer = bench.consumer()
    bench.publish("bad")
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    bench.restart()
    assert bench.engine.queues() == ["$dlq/q", "q"]
    assert bench.engine.stats("q").dead_letters == 1
