"""Membership, cursors, commits, resets, claims and deletion of groups."""

from __future__ import annotations

from typing import Any

import pytest

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.group_properties import request_of_group
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import LATEST
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.storage.memory_disk import MemoryDisk
from tests.queues.conftest import Outcome, QueueBench
from tests.queues.group_bench import BenchWith, code_of, join, publish, reset

# -- members -----------------------------------------------------------------------------------------------------


def test_a_member_without_connection_is_removed_when_it_is_silent(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=600)
    quiet = join(bench, "quiet", heartbeats=True)
    publish(bench, "a")
    assert quiet.values == ["a"]
    other = join(bench, "other")
    bench.advance(29.9)
    assert bench.engine.stats("q").groups[0].consumers == 2
    bench.advance(0.2)
    group = bench.engine.groups.details("q", "g")
    assert [member.consumer for member in group.members] == ["other"]
    assert group.generation == 3
    assert other.counts == [2], "what it held goes to who is left"
    assert code_of(lambda: bench.engine.groups.heartbeat("q", "g", "quiet", 3, bench.now)) is (
        QueueErrorCode.UNKNOWN_MEMBER
    )


def test_heartbeats_keep_a_member_and_tell_its_partitions(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=4)
    join(bench, "m", heartbeats=True)
    for _ in range(10):
        bench.advance(25)
        event = bench.engine.groups.heartbeat("q", "g", "m", 1, bench.now)
    assert (event.generation, event.partitions) == (1, (0, 1, 2, 3))


def test_a_connected_consumer_needs_no_heartbeat(bench: QueueBench) -> None:
    """F32: an idle consumer stays for as long as it is connected."""
    join(bench, "idle")
    bench.advance(3 * 30)
    assert bench.engine.stats("q").groups[0].consumers == 1
    publish(bench, "m")
    assert bench.engine.stats("q").groups[0].in_flight == 1


def test_a_heartbeat_of_an_old_generation_is_refused_and_keeps_the_member(bench: QueueBench) -> None:
    join(bench, "m", heartbeats=True)
    join(bench, "n")
    bench.advance(20)
    assert code_of(lambda: bench.engine.groups.heartbeat("q", "g", "m", 1, bench.now)) is (
        QueueErrorCode.STALE_GENERATION
    )
    bench.advance(20)
    assert bench.engine.stats("q").groups[0].consumers == 2


def test_consumers_are_told_what_they_are_assigned(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=4)
    told: list[Any] = []
    join(bench, "a", notify=told.append)
    bench.turn()
    join(bench, "b")
    bench.turn()
    assert [(event.generation, event.partitions, event.assigned, event.revoked) for event in told] == [
        (1, (0, 1, 2, 3), (0, 1, 2, 3), ()),
        (2, (0, 1), (), (2, 3)),
    ]
    assert (told[0].queue, told[0].group, told[0].consumer) == ("q", "g", "a")


# -- claims ------------------------------------------------------------------------------------------------------


def claim(bench: QueueBench, consumer: str, **wanted: Any) -> int:
    return bench.engine.groups.claim("q", "g", Claim(**wanted), consumer_id=consumer, now=bench.now)


def test_a_claim_takes_what_was_idle_and_counts_once(durable: QueueBench) -> None:
    slow = join(durable, "a")
    publish(durable, "x", "y")
    fast = join(durable, "b")
    durable.advance(10)
    assert code_of(lambda: claim(durable, "b", min_idle_s=10.5)) is QueueErrorCode.NOT_PENDING
    assert code_of(lambda: claim(durable, "b", place=(0, 0), min_idle_s=10.5)) is QueueErrorCode.NOT_IDLE
    assert claim(durable, "b", place=(0, 0), min_idle_s=10) == 1
    assert [(delivery.offset, delivery.delivery_count) for delivery in fast.got] == [(0, 2)]
    assert code_of(lambda: slow.ack(slow.got[0])) is QueueErrorCode.NOT_PENDING, "one of them wins"
    fast.ack(fast.got[0])
    assert code_of(lambda: claim(durable, "a", place=(0, 0))) is QueueErrorCode.NOT_PENDING
    slow.ack(slow.got[1])
    durable.turn()
    assert durable.engine.stats("q").depth == 0
    assert slow.handle is not None
    assert fast.handle is not None
    assert (slow.handle.in_flight, fast.handle.in_flight) == (0, 0)


def test_a_claim_may_take_what_is_its_own(bench: QueueBench) -> None:
    """R1: the only consumer of a group gets its own entries, too."""
    only = join(bench, "a")
    publish(bench, "x")
    bench.advance(5)
    assert claim(bench, "a", min_idle_s=5) == 1
    assert only.counts == [1, 2]
    assert only.handle is not None
    assert only.handle.in_flight == 1
    bench.advance(26)
    assert bench.engine.stats("q").groups[0].timed_out == 0, "its time runs anew"
    only.ack(only.got[1])
    assert bench.engine.stats("q").depth == 0


def test_a_claim_of_its_own_needs_no_room(bench_with: BenchWith) -> None:
    """Found by lives of queues: who held all that it may could not claim any of it."""
    bench = bench_with(ordering="none", max_in_flight=2)
    only = join(bench, "a")
    publish(bench, "x", "y")
    bench.turn()
    assert claim(bench, "a", limit=1) == 1
    assert only.counts == [1, 1, 2]
    assert only.handle is not None
    assert only.handle.in_flight == 2
    other = join(bench, "b")
    publish(bench, "z", "zz")
    bench.turn()
    assert code_of(lambda: claim(bench, "b", place=(only.got[1].partition, only.got[1].offset))) is QueueErrorCode.LIMIT
    assert other.handle is not None
    assert other.handle.in_flight == 2


def test_claims_are_taken_by_offset_up_to_their_number(bench: QueueBench) -> None:
    join(bench, "a")
    publish(bench, *"vwxyz")
    fast = join(bench, "b")
    bench.turn()
    assert claim(bench, "b", limit=3) == 3
    assert [delivery.offset for delivery in fast.got] == [0, 1, 2]


def test_a_claim_without_room_changes_nothing(bench: QueueBench) -> None:
    slow = join(bench, "a")
    publish(bench, "x")
    full = join(bench, "b", room=0)
    bench.turn()
    assert code_of(lambda: claim(bench, "b")) is QueueErrorCode.LIMIT
    assert full.got == []
    assert slow.ack(slow.got[0]).failed is False
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_a_claim_of_what_used_up_its_deliveries_goes_to_the_dead_letters(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"max_retries": 1})
    first = join(bench, "a")
    publish(bench, "x")
    join(bench, "b")
    bench.turn()
    assert claim(bench, "b") == 1
    assert code_of(lambda: claim(bench, "a")) is QueueErrorCode.NOT_PENDING
    bench.turn()
    assert bench.engine.stats("q").dead_letters == 1
    assert len(first.got) == 1


def test_claims_survive_a_restart(durable: QueueBench) -> None:
    join(durable, "a")
    publish(durable, "x")
    join(durable, "b")
    assert claim(durable, "b") == 1
    durable.turn()
    durable.restart()
    again = join(durable)
    durable.turn()
    assert again.counts == [3]


# -- deletion ----------------------------------------------------------------------------------------------------


def test_a_group_is_deleted_for_good(durable: QueueBench) -> None:
    """R11: nothing that is left on the disk brings a deleted group back."""
    consumer = join(durable)
    publish(durable, "a", "b")
    consumer.ack(consumer.got[0])
    durable.turn()
    assert code_of(lambda: durable.engine.groups.delete("q", "g", durable.now)) is QueueErrorCode.IN_USE
    consumer.leave()
    durable.turn()
    told = Outcome()
    durable.engine.groups.delete("q", "g", durable.now, told)
    assert durable.engine.stats("q").groups
    assert not told.calls
    assert code_of(lambda: join(durable)) is QueueErrorCode.IN_USE
    durable.turn()
    assert told.confirmed
    assert durable.engine.stats("q").groups == ()
    assert code_of(lambda: durable.engine.groups.details("q", "g")) is QueueErrorCode.UNKNOWN_GROUP
    consumer.leave()
    durable.advance(100)
    durable.restart()
    assert durable.engine.stats("q").groups == ()
    again = join(durable, asks={"cursor": "earliest"})
    durable.turn()
    assert list(zip(again.values, again.counts, strict=True)) == [("a", 1), ("b", 1)]
    durable.restart()
    assert [group.group for group in durable.engine.stats("q").groups] == ["g"]


def test_operations_name_a_group_that_exists(bench: QueueBench) -> None:
    groups = bench.engine.groups
    assert code_of(lambda: groups.details("none", "g")) is QueueErrorCode.UNKNOWN_QUEUE
    publish(bench, "a")
    assert code_of(lambda: groups.reset("q", "g", LATEST, partition=None, now=bench.now)) is (
        QueueErrorCode.UNKNOWN_GROUP
    )


def test_lag_is_told_per_partition(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), partitions=3)
    consumer = join(bench, room=7)
    publish(bench, *map(str, range(30)))
    (details,) = bench.engine.groups.all_details("q")
    assert details.lag == sum(part.lag for part in details.partitions) == 30 - len(consumer.got)
    assert sum(part.end for part in details.partitions) == 30
    assert {part.consumer for part in details.partitions} == {"c"}
    assert sum(part.in_flight for part in details.partitions) == len(consumer.got)
    bench.advance(2)
    assert max(part.oldest_in_flight_s for part in bench.engine.groups.details("q", "g").partitions) == 2


# -- what consumers write ----------------------------------------------------------------------------------------


def request(
    bench: QueueBench, verb: Verb, consumer: str | None = "c", *more: tuple[str, str], **properties: str
) -> None:
    pairs = (*((name.replace("_", "-"), value) for name, value in properties.items()), *more)
    request_of_group(
        bench.engine.groups, verb, "q", pairs, consumer_id=consumer, now=bench.now, on_done=lambda error: None
    )


def test_commit_and_claim_as_consumers_write_them(bench: QueueBench) -> None:
    consumer = join(bench)
    publish(bench, *"abc")
    request(bench, Verb.COMMIT, offset="1")
    request(bench, Verb.COMMIT, partition="0", offset="2", group_id="g", generation="1")
    request(bench, Verb.CLAIM, message_id="q:0:2", min_idle="0")
    assert consumer.counts == [1, 1, 1, 2]
    bad = QueueErrorCode.BAD_ADDRESS
    assert code_of(lambda: request(bench, Verb.COMMIT)) is bad
    assert code_of(lambda: request(bench, Verb.COMMIT, offset="x")) is bad
    assert code_of(lambda: request(bench, Verb.CLAIM, message_id="other:0:2")) is bad
    assert code_of(lambda: request(bench, Verb.CLAIM, min_idle="soon")) is QueueErrorCode.BAD_OPTION
    assert code_of(lambda: request(bench, Verb.CLAIM, count="0")) is QueueErrorCode.BAD_OPTION
    for name in ("group-id", "message-id", "partition", "offset", "generation", "min-idle", "count"):
        twice = ((name, "g"), (name, "g"))
        assert code_of(lambda: request(bench, Verb.CLAIM, "c", *twice)) is QueueErrorCode.BAD_OPTION  # noqa: B023
    assert code_of(lambda: request(bench, Verb.CLAIM, "stranger")) is QueueErrorCode.UNKNOWN_MEMBER
    join(bench, "late")
    assert code_of(lambda: request(bench, Verb.COMMIT, offset="3", generation="1")) is (QueueErrorCode.STALE_GENERATION)


def test_there_is_nothing_in_partitions_that_are_not_there(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=2)
    consumer = join(bench)
    publish(bench, "a", "b", "c")
    assert len(consumer.got) == 3
    held = [bench.engine.groups.entry("q", "g", partition, 0) is not None for partition in range(4)]
    assert any(held[:2])
    assert held[2:] == [False, False]


def test_what_changes_nothing_is_confirmed_without_a_sync(durable: QueueBench) -> None:
    consumer = join(durable)
    publish(durable, "a")
    consumer.ack(consumer.got[0])
    durable.turn()
    told: list[QueueError | None] = []
    for _ in range(2):
        durable.engine.groups.commit("q", "g", 0, 1, consumer_id="c", now=durable.now, on_done=told.append)
        durable.turn()
    assert told == [None, None]


def test_what_changes_nothing_during_a_sync_is_confirmed_with_it(durable: QueueBench) -> None:
    consumer = join(durable)
    publish(durable, "a")
    consumer.ack(consumer.got[0])
    durable.engine.dispatch(durable.now)
    (job,) = durable.engine.take_jobs(durable.now)
    told: list[QueueError | None] = []
    durable.engine.groups.commit("q", "g", 0, 1, consumer_id="c", now=durable.now, on_done=told.append)
    durable.engine.dispatch(durable.now)
    durable.engine.take_jobs(durable.now)
    assert told == []
    job.run()
    durable.engine.job_done(job, None, durable.now)
    durable.turn()
    assert told == [None]


@pytest.mark.parametrize("cursor", ["earliest", "latest", "3"])
def test_a_reset_that_a_crash_cuts_anywhere_loses_nothing(cursor: str) -> None:
    """What the group had not settled is delivered, unless the whole reset set the group past it."""
    cut = 0
    while True:
        disk = MemoryDisk()
        bench = QueueBench(disk)
        consumer = join(bench)
        publish(bench, *"abcdef")
        for index in (0, 2):
            consumer.ack(consumer.got[index])
        consumer.nack(consumer.got[4])
        bench.turn()
        (path,) = [name for name in disk._files if name.endswith(".pel.log")]
        before = len(disk._files[path])
        consumer.room = 0
        reset(bench, cursor)
        bench.engine.dispatch(bench.now)
        whole = before + cut >= len(disk._files[path])
        del disk._files[path][before + cut :]
        bench.restart()
        again = join(bench)
        bench.turn()
        unsettled = ["b", "d", "e", "f"]
        if whole:
            wanted = {"earliest": list("abcdef"), "latest": [], "3": list("def")}[cursor]
            assert again.values == wanted
            assert cut > 0
            return
        assert set(again.values) >= set(unsettled), f"cut after {cut} bytes"
        cut += 1


def test_a_deletion_that_fails_anywhere_leaves_a_whole_group_or_none() -> None:
    class FailingDisk(MemoryDisk):
        """Fails from an operation on, as a disk that is pulled out."""

        left = 10**9

        def remove(self, path: str) -> None:
            self._step()
            super().remove(path)

        def sync_folder(self, path: str) -> None:
            self._step()
            super().sync_folder(path)

        def _step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "pulled out")

    for steps in range(12):
        disk = FailingDisk()
        bench = QueueBench(disk)
        consumer = join(bench)
        publish(bench, *"abc")
        consumer.ack(consumer.got[0])
        bench.turn()
        consumer.leave()
        bench.turn()
        disk.left = steps
        told = Outcome()
        bench.engine.groups.delete("q", "g", bench.now, told)
        bench.turn()
        disk.left = 10**9
        bench.restart()
        again = join(bench)
        bench.turn()
        assert again.values in (["a", "b", "c"], ["b", "c"])
        if told.confirmed:
            assert again.values == ["a", "b", "c"]
            return
    raise AssertionError("the deletion never came to its end")


def test_an_expired_message_that_is_claimed_becomes_a_dead_letter_when_asked() -> None:
    bench = QueueBench(expired_to_dead_letters=True)
    holder = bench.consumer("a")
    bench.publish("short", user_properties=(("ttl", "10s"),))
    bench.turn()
    assert holder.values == ["short"]
    thief = bench.consumer("b")
    bench.now += 11
    assert code_of(lambda: claim(bench, "b", place=(0, 0), min_idle_s=10)) is QueueErrorCode.NOT_PENDING
    bench.turn()
    assert thief.values == []
    stats = bench.engine.stats("q")
    assert (stats.dead_letters, stats.groups[0].dead_lettered, stats.groups[0].expired) == (1, 1, 0)
