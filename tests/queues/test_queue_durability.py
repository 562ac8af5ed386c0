"""When confirms leave, what survives a kill, and what a failing disk does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.config import Durability, Profile, QueueConfig
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.queues import Delivery, QueueError, QueueErrorCode, QueueOpenError
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.trace.schema import TraceKind

if TYPE_CHECKING:
    from tests.queues.failing_disk import FailingDisk
from tests.queues.conftest import QueueBench
from tests.queues.failing_disk import FailingDisk

BenchWith = Callable[..., "QueueBench"]


def test_fsync_confirms_and_delivers_after_the_sync_that_covers_it(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.turn()
    first = durable.publish("a")
    durable.engine.dispatch(durable.now)
    assert (first.calls, consumer.values) == ([], [])
    (job,) = durable.engine.take_jobs(durable.now)
    late = durable.publish("b")
    durable.engine.dispatch(durable.now)
    assert durable.engine.take_jobs(durable.now) == [], "one sync of a log at a time"
    job.run()
    assert first.calls == []
    durable.engine.job_done(job, None, durable.now)
    assert (first.confirmed, late.calls) == (True, [])
    durable.engine.dispatch(durable.now)
    assert consumer.values == ["a"]
    durable.turn()
    assert late.confirmed
    assert consumer.values == ["a", "b"]


def test_many_confirms_share_a_sync(durable: QueueBench) -> None:
    outcomes = [durable.publish(str(number)) for number in range(100)]
    durable.engine.dispatch(durable.now)
    assert len(durable.engine.take_jobs(durable.now)) == 1
    assert not any(outcome.calls for outcome in outcomes)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.MEMORY])
def test_weaker_queues_confirm_after_the_write(bench_with: BenchWith, durability: Durability) -> None:
    bench = bench_with(MemoryDisk(), durability=durability)
    consumer = bench.consumer()
    bench.turn()
    outcome = bench.publish("m")
    assert outcome.calls == [], "not before it is written"
    bench.engine.dispatch(bench.now)
    assert outcome.confirmed
    assert consumer.values == ["m"]
    settled = consumer.ack(consumer.got[0])
    bench.engine.dispatch(bench.now)
    assert settled.confirmed
    assert bench.engine.take_jobs(bench.now) == []


def test_interval_queues_sync_each_interval_while_there_is_something(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), durability=Durability.INTERVAL, message_ttl_s=0)
    bench.engine.create_queue("q", {}, bench.now)
    bench.turn()
    bench.publish("m")
    bench.engine.dispatch(bench.now)
    due = bench.engine.next_deadline()
    assert due == bench.now + 1.0
    bench.now = due
    bench.engine.tick(bench.now)
    jobs = bench.engine.take_jobs(bench.now)
    assert len(jobs) == 1
    for job in jobs:
        job.run()
        bench.engine.job_done(job, None, bench.now)
    bench.engine.dispatch(bench.now)
    assert bench.engine.next_deadline() is None


def test_what_is_written_during_a_periodic_sync_is_covered_by_the_next(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), durability=Durability.INTERVAL)
    bench.engine.create_queue("q", {}, bench.now)
    bench.turn()
    log = None
    running = []
    for value in "ab":
        bench.publish(value)
        bench.engine.dispatch(bench.now)
        log = bench.engine._queues["q"].partitions[0].log
        bench.now += 1.0
        bench.engine.tick(bench.now)
        running += bench.engine.take_jobs(bench.now)
    assert len(running) == 1, "the first is still running when the second is due"
    running[0].run()
    bench.engine.job_done(running[0], None, bench.now)
    assert log is not None
    assert log.durable_offset == 1
    bench.advance(1.0)
    assert log.durable_offset == 2


def test_a_settlement_is_confirmed_when_durable(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.publish("m")
    durable.turn()
    outcome = consumer.ack(consumer.got[0])
    durable.engine.dispatch(durable.now)
    assert outcome.calls == []
    (job,) = durable.engine.take_jobs(durable.now)
    job.run()
    durable.engine.job_done(job, None, durable.now)
    assert outcome.confirmed


def test_a_restart_keeps_settled_settled_and_counts_on(durable: QueueBench) -> None:
    consumer = durable.consumer()
    for number in range(5):
        durable.publish(str(number))
    durable.turn()
    for index in (0, 2, 3):
        consumer.ack(consumer.got[index])
    consumer.nack(consumer.got[4])
    durable.turn()
    assert consumer.counts == [1, 1, 1, 1, 1, 2]
    durable.restart()
    assert durable.engine.queues() == ["q"]
    again = durable.consumer()
    durable.publish("new")
    durable.turn()
    assert list(zip(again.values, again.counts, strict=True)) == [("1", 2), ("4", 3), ("new", 1)]
    assert [d.offset for d in again.got] == [1, 4, 5]


def test_a_backoff_outlives_a_restart(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), profile=Profile.GOQUEUE)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    start = bench.now
    consumer.nack(consumer.got[0])
    bench.turn()
    bench.restart()
    again = bench.consumer()
    bench.advance(5)
    assert [time - start for time in again.times] == [1.0]


def test_a_backoff_is_no_longer_after_a_restart_by_a_clock_that_was_set_back(bench_with: BenchWith) -> None:
    """Found by the hunt, with a jump of the clock: what waited for its retry would have waited for an hour."""
    bench = bench_with(MemoryDisk(), profile=Profile.GOQUEUE)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    consumer.nack(consumer.got[0])
    bench.turn()
    bench.now -= 3_600.0
    start = bench.now
    bench.restart()
    again = bench.consumer()
    bench.advance(5)
    assert [time - start for time in again.times] == [1.0]


@pytest.mark.parametrize("others", [0, 100], ids=["of a log", "of a snapshot"])
def test_a_letter_names_its_last_consumer_also_after_a_restart(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """What waited for a retry has no consumer by then, and has had one."""
    monkeypatch.setattr(pending_log, "SNAPSHOT_OPERATIONS", 50)
    retry = {"nack_immediately": False, "initial_backoff_s": 100.0, "max_backoff_s": 100.0}
    disk = MemoryDisk()
    bench = bench_with(disk, ordering="none", message_ttl_s=60.0, expired_to_dead_letters=True, retry=retry)
    consumer = bench.consumer("the-last")
    bench.publish("m")
    bench.turn()
    consumer.nack(consumer.take()[0])
    for number in range(others):
        bench.publish(str(number))
    bench.advance(2.0)
    for delivery in consumer.take():
        consumer.ack(delivery)
    bench.advance(2.0)
    assert disk.exists("queues/q/consumers/g/g.pel") == bool(others)
    bench.restart()
    bench.advance(61.0)
    reader = bench.consumer("reader", queue="$dlq/q", group="reader")
    bench.turn()
    assert [delivery.message.user_property("_dlq_consumer") for delivery in reader.got] == ["the-last"]


def test_filters_and_groups_survive(durable: QueueBench) -> None:
    consumer = durable.consumer(pattern="eu/#", group="filtered")
    consumer.leave()
    for topic in ("$queue/q/eu/1", "$queue/q/us/1"):
        durable.publish(topic, topic=topic)
    durable.turn()
    durable.restart()
    groups = durable.engine.stats("q").groups
    assert [(group.group, group.consumers, group.lag) for group in groups] == [("filtered@eu/#", 0, 2)]
    again = durable.consumer(pattern="eu/#", group="filtered")
    durable.turn()
    assert again.values == ["$queue/q/eu/1"]


def test_an_exhausted_message_is_dead_lettered_after_a_restart_not_delivered_again(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), retry={"max_retries": 0})
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    assert consumer.counts == [1]
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert again.values == []
    assert bench.engine.stats("q").dead_letters == 1


@pytest.mark.parametrize("served", [False, True])
def test_what_used_up_its_retries_before_a_restart_is_a_dead_letter_also_when_it_has_expired(
    bench_with: BenchWith, *, served: bool
) -> None:
    """It never just disappears (Q-RETRY-10)."""
    bench = bench_with(MemoryDisk(), retry={"max_retries": 0}, message_ttl_s=60.0)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    assert consumer.counts == [1]
    bench.restart()
    bench.now += 61.0 if served else 0.0
    if served:
        bench.consumer()
    bench.advance(61.0)
    assert bench.engine.stats("q").dead_letters == 1


def test_dead_letters_survive_and_are_found_by_name(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.publish("m")
    durable.turn()
    consumer.reject(consumer.got[0])
    durable.turn()
    durable.restart()
    assert durable.engine.queues() == ["$dlq/q", "q"]
    reader = durable.consumer(queue="$dlq/q")
    durable.turn()
    assert reader.values == ["m"]
    again = durable.consumer()
    durable.turn()
    assert again.values == []


def test_the_source_lets_go_only_when_the_dead_letter_is_durable(durable: QueueBench) -> None:
    """Whenever the broker is killed in between, the message is in the queue, in its dead letters, or in both."""
    consumer = durable.consumer()
    durable.publish("m")
    durable.turn()
    outcome = consumer.reject(consumer.got[0])
    places = []
    for _ in range(6):
        stats = durable.engine.stats("q")
        places.append((stats.depth, stats.dead_letters, outcome.confirmed))
        durable.engine.dispatch(durable.now)
        for job in durable.engine.take_jobs(durable.now):
            job.run()
            durable.engine.job_done(job, None, durable.now)
    assert (1, 1, False) in places, "for a while it is in both"
    assert all(depth + letters >= 1 for depth, letters, _ in places)
    assert places[-1] == (0, 1, True)


@pytest.mark.parametrize("turns", range(4))
def test_what_was_on_its_way_to_the_dead_letters_undelivered_comes_for_the_first_time(
    bench_with: BenchWith, turns: int
) -> None:
    """Found by lives of queues: after a kill its first delivery was told as the second."""
    bench = bench_with(MemoryDisk(), durability=Durability.FSYNC, max_depth=1, overflow="dead_letter_oldest")
    bench.consumer(room=0)
    bench.publish("old")
    bench.turn()
    bench.publish("new")
    for _ in range(turns):
        bench.engine.dispatch(bench.now)
        for job in bench.engine.take_jobs(bench.now):
            job.run()
            bench.engine.job_done(job, None, bench.now)
    bench.restart()
    assert [group.retrying for group in bench.engine.stats("q").groups] == [0], "nobody has tried it"
    again = bench.consumer()
    bench.turn()
    assert again.counts == [1] * len(again.values)
    assert not any(delivery.redelivered for delivery in again.got)


def test_nor_does_it_come_to_a_group_whose_filter_does_not_fit(bench_with: BenchWith) -> None:
    bench = bench_with(
        MemoryDisk(), durability=Durability.FSYNC, max_depth=2, max_in_flight=1, overflow="dead_letter_oldest"
    )
    bench.consumer(pattern="eu/#")
    for value, topic in (("held", "$queue/q/eu"), ("old", "$queue/q/us")):
        bench.publish(value, topic=topic)
        bench.turn()
    bench.publish("new", topic="$queue/q/eu")
    bench.engine.dispatch(bench.now)
    for job in bench.engine.take_jobs(bench.now):
        job.run()
        bench.engine.job_done(job, None, bench.now)
    bench.restart()
    again = bench.consumer(pattern="eu/#")
    bench.turn()
    again.ack(again.got[0])
    bench.turn()
    assert again.values == ["held", "new"]


def test_a_failed_sync_fails_every_waiting_publisher_and_all_later_ones(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    before = bench.publish("before")
    bench.turn()
    disk.fail_sync = ".seg"
    first = bench.publish("a")
    bench.engine.dispatch(bench.now)
    (job,) = bench.engine.take_jobs(bench.now)
    second = bench.publish("b")
    bench.engine.dispatch(bench.now)
    with pytest.raises(OSError, match="Input/output") as caught:
        job.run()
    bench.engine.job_done(job, caught.value, bench.now)
    assert (before.confirmed, first.failed, second.failed) == (True, True, True)
    disk.fail_sync = ""
    for _ in range(2):
        with pytest.raises(QueueError) as refused:
            bench.publish("c")
        assert refused.value.code is QueueErrorCode.STORAGE_FAILED
        bench.turn()
    assert consumer.values == ["before"], "what was refused is not delivered"
    assert bench.engine.stats("q").failed
    bench.restart()
    again = bench.consumer()
    assert bench.publish("after").calls == []
    bench.turn()
    assert again.values == ["before", "after"]


def test_a_full_disk_refuses_publishers_until_there_is_room(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    assert bench.publish("a") is not None
    bench.turn()
    disk.fail_write = ".seg"
    refused = [bench.publish(value) for value in "bc"]
    bench.turn()
    assert all(outcome.failed for outcome in refused)
    disk.fail_write = ""
    accepted = bench.publish("d")
    bench.turn()
    assert accepted.confirmed
    assert consumer.values == ["a", "d"]
    stats = bench.engine.stats("q")
    assert (stats.enqueued, stats.refused, stats.depth, stats.failed) == (2, 2, 2, False)


def test_a_group_that_cannot_write_its_state_rests_and_recovers(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    for value in "ab":
        bench.publish(value)
    bench.turn()
    disk.fail_write = ".pel.log"
    first = consumer.ack(consumer.got[0])
    bench.engine.dispatch(bench.now)
    assert first.failed
    with pytest.raises(QueueError) as caught:
        consumer.ack(consumer.got[1])
    assert caught.value.code is QueueErrorCode.STORAGE_FAILED
    bench.publish("c")
    bench.turn()
    assert consumer.values == ["a", "b"], "no delivery that could not be recorded"
    disk.fail_write = ""
    bench.advance(1.0)
    assert consumer.values == ["a", "b", "c"]
    second = consumer.ack(consumer.got[1])
    bench.turn()
    assert second.confirmed
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert again.values == ["c"], "the first ack was kept and written later"


def test_a_group_that_rests_goes_on_though_something_else_was_due_before(bench_with: BenchWith) -> None:
    """Found by the hunt, with a full disk: a timeout that fell into the rest took the end of the rest away."""
    disk = FailingDisk()
    bench = bench_with(disk, delivery_timeout_s=0.5)
    consumer = bench.consumer()
    bench.publish("a")
    bench.turn()
    bench.advance(0.2)
    disk.fail_write = ".pel.log"
    assert consumer.ack(consumer.got[0]) is not None
    bench.publish("b")
    bench.turn()
    assert consumer.values == ["a"]
    disk.fail_write = ""
    bench.advance(5.0)
    assert consumer.values == ["a", "b"], "and nobody but the clock called"


def test_a_failed_sync_of_group_state_stops_the_group_only(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    broken, healthy = bench.consumer(group="broken"), bench.consumer(group="healthy")
    bench.publish("a")
    bench.turn()
    disk.fail_sync = "broken.pel.log"
    outcome = broken.ack(broken.got[0])
    bench.turn()
    assert outcome.failed
    published = bench.publish("b")
    bench.turn()
    assert published.confirmed
    assert (broken.values, healthy.values) == (["a"], ["a", "b"])


@pytest.mark.parametrize("part", ["partitions/1", "g.pel.log", "delays"])
def test_the_figures_say_that_a_part_failed_whichever_it_is(bench_with: BenchWith, part: str) -> None:
    disk = FailingDisk()
    bench = bench_with(disk, partitions=2)
    consumer = bench.consumer()
    for place in "01":
        bench.publish(place, user_properties=(("partition", place),))
    bench.publish("later", user_properties=(("delay", "1s"),))
    bench.turn()
    assert not bench.engine.stats("q").failed
    disk.fail_sync = part
    outcomes = [
        bench.publish("more", user_properties=(("partition", "1"),)),
        bench.publish("later, too", user_properties=(("delay", "1s"),)),
        consumer.ack(consumer.got[0]),
    ]
    bench.turn()
    assert [outcome.failed for outcome in outcomes] == [
        name == part for name in ("partitions/1", "delays", "g.pel.log")
    ]
    assert bench.engine.stats("q").failed
    disk.fail_sync = ""
    bench.restart()
    assert not bench.engine.stats("q").failed


def test_a_dead_letter_that_cannot_be_written_leaves_the_message_pending(bench_with: BenchWith) -> None:
    disk = FailingDisk()
    bench = bench_with(disk)
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    disk.fail_write = "dlq"
    outcome = consumer.reject(consumer.got[0])
    bench.turn()
    assert outcome.failed
    assert bench.engine.stats("q").depth == 1
    disk.fail_write = ""
    bench.advance(5.0)
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.dead_letters) == (0, 1)


def test_damage_is_skipped_counted_and_traced(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    for value in "abc":
        bench.publish(value)
        bench.turn()
    path = "queues/q/partitions/0/00000000000000000000.seg"
    file = disk.open(path)
    file.write_at(file.size // 3 + 50, b"\xff")
    bench.restart()
    assert any("corrupt" in str(fields["detail"]) for kind, fields in bench.trace if kind is TraceKind.RECOVERED)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["a", "c"]
    assert bench.engine.stats("q").groups[0].unreadable == 1
    told = [fields for kind, fields in bench.trace if kind is TraceKind.DISCARDED]
    assert [(each["offset"], each["detail"]) for each in told] == [(1, "unreadable: 1 messages")]
    for delivery in consumer.got:
        consumer.ack(delivery)
    bench.turn()
    assert bench.engine.stats("q").depth == 0


def test_a_pending_message_whose_bytes_are_damaged_is_given_up_visibly(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk)
    bench.consumer()
    for value in "ab":
        bench.publish(value)
        bench.turn()
    disk.open("queues/q/partitions/0/00000000000000000000.seg").write_at(50, b"\xff")
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert again.values == ["b"]
    assert (TraceKind.DISCARDED, "unreadable") in [(kind, fields.get("detail")) for kind, fields in bench.trace]


def test_a_claim_of_messages_that_cannot_be_read_any_more_gives_each_up_once(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, max_in_flight=2)
    holder = bench.consumer("holder")
    for value in "abc":
        bench.publish(value)
        bench.turn()
    other = bench.consumer("other")
    assert holder.values == ["a", "b"]
    file = disk.open("queues/q/partitions/0/00000000000000000000.seg")
    file.write_at(50, b"\xff")
    bench.engine._queues["q"].partitions[0].cached.clear()
    bench.now += 60.0
    bench.engine.groups.claim("q", "g", Claim(min_idle_s=1.0), consumer_id="other", now=bench.now)
    bench.turn()
    assert sorted(other.values) == ["b", "c"]
    assert bench.engine.stats("q").groups[0].unreadable == 1


@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_a_message_that_cannot_be_read_any_more_becomes_no_dead_letter_but_is_counted(
    bench_with: BenchWith, verb: str
) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, retry={"max_retries": 0})
    consumer = bench.consumer()
    bench.publish("a")
    bench.turn()
    disk.open("queues/q/partitions/0/00000000000000000000.seg").write_at(50, b"\xff")
    partition = bench.engine._queues["q"].partitions[0]
    partition.cached.clear()
    outcome = getattr(consumer, verb)(consumer.got[0])
    bench.turn()
    assert outcome.confirmed
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.groups[0].unreadable, stats.groups[0].dead_lettered) == (0, 1, 0)
    assert (TraceKind.DISCARDED, "unreadable") in [(kind, fields.get("detail")) for kind, fields in bench.trace]


@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_a_message_that_cannot_be_read_for_a_while_becomes_a_dead_letter_later(
    bench_with: BenchWith, verb: str
) -> None:
    """Found by a mutant: what the disk refused to read once was given up for damaged."""
    disk = FailingDisk()
    bench = bench_with(disk, retry={"max_retries": 0})
    consumer = bench.consumer()
    bench.publish("a")
    bench.turn()
    disk.fail_read = "queues/q/partitions"
    bench.engine._queues["q"].partitions[0].cached.clear()
    outcome = getattr(consumer, verb)(consumer.got[0])
    bench.turn()
    assert outcome.failed
    disk.fail_read = ""
    bench.advance(60.0)
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.groups[0].unreadable, stats.groups[0].dead_lettered) == (0, 0, 1)
    assert (TraceKind.DISCARDED, "unreadable") not in [(kind, fields.get("detail")) for kind, fields in bench.trace]


def test_partitions_can_be_added_but_not_removed(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, partitions=3)
    bench.publish("m", key="k")
    bench.turn()
    more = bench_with(disk, configured=(QueueConfig(name="q", partitions=5),))
    assert more.engine.stats("q").partitions == 5
    assert more.engine.stats("q").depth == 1
    assert bench_with(disk, partitions=2).engine.stats("q").partitions == 5, "defaults do not change a stored queue"
    with pytest.raises(QueueOpenError, match="5 partitions"):
        bench_with(disk, configured=(QueueConfig(name="q", partitions=4),))


def test_close_confirms_what_waits_and_refuses_the_rest(durable: QueueBench) -> None:
    consumer = durable.consumer()
    durable.publish("a")
    durable.turn()
    settled = consumer.ack(consumer.got[0])
    published = durable.publish("b")
    durable.engine.close(durable.now)
    durable.engine.close(durable.now)
    assert (settled.confirmed, published.confirmed) == (True, True)
    for action in (lambda: durable.publish("c"), lambda: consumer.ack(consumer.got[0]), durable.consumer):
        with pytest.raises(QueueError) as caught:
            action()
        assert caught.value.code is QueueErrorCode.CLOSED
    durable.engine.dispatch(durable.now)
    durable.engine.tick(durable.now)
    assert durable.engine.next_deadline() is None
    consumer.leave()
    durable.restart()
    again = durable.consumer()
    durable.turn()
    assert again.values == ["b"]


def test_close_tells_those_it_cannot_confirm(durable: QueueBench) -> None:
    outcome = durable.publish("a")
    durable.engine.dispatch(durable.now)
    assert len(durable.engine.take_jobs(durable.now)) == 1
    durable.engine.close(durable.now)
    assert outcome.failed


def test_the_trace_tells_the_life_of_a_message(durable: QueueBench) -> None:
    consumer = durable.consumer("c")
    durable.publish("m", publisher="p")
    durable.turn()
    consumer.nack(consumer.got[0])
    durable.turn()
    consumer.ack(consumer.got[1])
    durable.turn()
    kinds = [kind for kind, _ in durable.trace]
    assert kinds == [
        TraceKind.ENQUEUED,
        TraceKind.CONFIRMED,
        TraceKind.DELIVERED,
        TraceKind.NACKED,
        TraceKind.RETRY_SCHEDULED,
        TraceKind.DELIVERED,
        TraceKind.ACKED,
    ]
    assert all((fields["queue"], fields["partition"], fields["offset"]) == ("q", 0, 0) for _, fields in durable.trace)
    assert durable.trace[0][1]["client_id"] == "p"
    assert durable.trace[2][1]["client_id"] == "c"
    assert durable.trace[5][1]["delivery_count"] == 2


def test_settlements_of_lost_records_do_not_settle_those_that_take_their_offsets(bench_with: BenchWith) -> None:
    """Power loss took the end of the partition's log, not that of the group's: the group knows too much."""
    disk = MemoryDisk()
    bench = bench_with(disk, durability=Durability.INTERVAL)
    consumer = bench.consumer()
    for number in range(10):
        bench.publish(str(number))
        bench.turn()
        if number == 2:
            kept = disk.open("queues/q/partitions/0/00000000000000000000.seg").size
    for delivery in consumer.got[:-1]:
        consumer.ack(delivery)
    bench.turn()
    disk.open("queues/q/partitions/0/00000000000000000000.seg").truncate(kept)
    bench.restart()
    for value in ("new-1", "new-2"):
        bench.publish(value)
    bench.turn()
    bench.restart()
    again = bench.consumer()
    bench.turn()
    assert list(zip(again.values, again.counts, strict=True)) == [("new-1", 1), ("new-2", 1)]


def test_a_nack_within_the_delivery_keeps_its_delay_over_a_restart(bench_with: BenchWith) -> None:
    """In the log the nack follows the delivery, or a restart would deliver the message again at once."""
    bench = bench_with(MemoryDisk(), retry={"nack_immediately": False, "initial_backoff_s": 5.0})

    def nack(delivery: Delivery) -> bool:
        bench.settle(Verb.NACK, delivery, "hasty")
        return True

    handle = bench.engine.subscribe("q", pattern="", group="g", consumer_id="hasty", deliver=nack, now=bench.now)
    bench.publish("a")
    bench.turn()
    bench.engine.unsubscribe(handle, bench.now)
    bench.turn()
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == []
    bench.advance(6.0)
    assert consumer.values == ["a"]
