"""Delayed messages: when they fire, what a restart keeps, cancelling, limits, and what a failing disk or queue does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.config import Durability
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.delays import delay_store as delay_store_module
from assay.reference_broker.queues.delays.delay_store import FIRED_PER_TURN
from assay.reference_broker.queues.delays.delay_thinning import DelayThinning
from assay.reference_broker.queues.delays.done_log import DoneLog
from assay.reference_broker.queues.delays.done_records import Ends
from assay.reference_broker.queues.delays.timing_wheel import MAX_DELAY_MS, TICK_MS
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.memory_disk import MemoryDisk, MemoryFile
from tests.queues.failing_disk import FailingDisk

if TYPE_CHECKING:
    from tests.queues.conftest import Outcome, QueueBench

BenchWith = Callable[..., "QueueBench"]
TICK_S = TICK_MS / 1000


def delayed(bench: QueueBench, value: str, delay: str, **fields: Any) -> Outcome:
    properties = (*fields.pop("user_properties", ()), ("delay", delay))
    return bench.publish(value, user_properties=properties, **fields)


def delay_id(bench: QueueBench, value: str, *properties: tuple[str, str]) -> str:
    """Publish and learn the id."""
    told: list[tuple[StoredAs, str]] = []
    message = Message(topic="$queue/q", payload=value.encode(), user_properties=properties)
    engine = bench.engine
    QueueTopics(engine).publish(message, bench.now, None, lambda kind, name: told.append((kind, name)))
    bench.turn()
    ((kind, name),) = told
    assert kind is StoredAs.DELAYED
    return name


def pending(bench: QueueBench) -> int:
    return bench.engine.stats("q").delayed


@pytest.fixture(params=["memory", "interval", "fsync"])
def any_bench(bench_with: BenchWith, request: pytest.FixtureRequest) -> QueueBench:
    return bench_with(MemoryDisk(), durability=Durability(request.param))


@pytest.mark.parametrize(
    "delay_ms",
    [1, TICK_MS - 1, TICK_MS, TICK_MS + 1, 2_559, 2_560, 2_561, 163_839, 163_840, 163_841, 10_485_760, MAX_DELAY_MS],
)
def test_a_delayed_message_comes_within_a_tick_of_its_time(any_bench: QueueBench, delay_ms: int) -> None:
    """G2: a delay below one tick came a revolution late."""
    bench = any_bench
    bench.now += 0.0037
    consumer = bench.consumer()
    outcome = delayed(bench, "later", f"{delay_ms}ms")
    bench.publish("now")
    published_at = bench.now
    bench.turn()
    assert outcome.confirmed, "as soon as it is kept"
    assert consumer.values == ["now"]
    consumer.ack(consumer.take()[0])
    bench.advance(delay_ms / 1000 + 1)
    assert consumer.values == ["later"]
    assert delay_ms / 1000 <= consumer.times[0] - published_at + 1e-6 <= delay_ms / 1000 + TICK_S + 1e-3
    stats = bench.engine.stats("q").delays
    assert (stats.scheduled, stats.fired, stats.pending) == (1, 1, 0)


def test_no_delay_and_times_that_are_past_mean_at_once(any_bench: QueueBench) -> None:
    bench = any_bench
    consumer = bench.consumer()
    delayed(bench, "zero", "0s")
    bench.publish("past", user_properties=(("deliver-at", "2001-01-01T00:00:00Z"),))
    bench.publish("now", user_properties=(("deliver-at", str(int(bench.now * 1000))),))
    bench.turn()
    assert consumer.values == ["zero", "past", "now"]
    assert pending(bench) == 0


def test_absolute_times(any_bench: QueueBench) -> None:
    bench = any_bench
    consumer = bench.consumer()
    due_ms = int(bench.now * 1000) + 5_000
    bench.publish("absolute", user_properties=(("deliver-at", str(due_ms)),))
    bench.advance(4.999)
    assert consumer.values == []
    bench.advance(0.012)
    assert consumer.values == ["absolute"]


def test_longer_than_the_wheel_is_refused(any_bench: QueueBench) -> None:
    bench = any_bench
    too_late = (f"{MAX_DELAY_MS + 1}ms", "187h")
    for delay in too_late:
        with pytest.raises(QueueError, match=str(MAX_DELAY_MS)) as refused:
            delayed(bench, "x", delay)
        assert refused.value.code is QueueErrorCode.BAD_OPTION
    with pytest.raises(QueueError, match="maximum"):
        bench.publish("x", user_properties=(("deliver-at", "2100-01-01T00:00:00Z"),))
    bench.turn()
    assert pending(bench) == 0


def test_key_partition_and_properties_are_kept(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), partitions=5)
    consumer = bench.consumer()
    bench.publish("plain", key="k")
    delayed(bench, "keyed", "1s", key="k", user_properties=(("color", "red"),))
    wanted = (("partition", "4"),)
    delayed(bench, "explicit", "1s", user_properties=wanted, content_type="text/x", correlation_data=b"c")
    bench.advance(1.1)
    plain, *others = sorted(consumer.got, key=lambda delivery: delivery.message.payload, reverse=True)
    keyed, explicit = others
    assert keyed.partition == plain.partition
    assert ("color", "red") in keyed.message.user_properties
    assert explicit.partition == 4
    assert (explicit.message.content_type, explicit.message.correlation_data) == ("text/x", b"c")
    with pytest.raises(QueueError, match="no partition 5"):
        delayed(bench, "x", "1s", user_properties=(("partition", "5"),))


def test_equal_times_fire_in_the_order_of_publishing(any_bench: QueueBench) -> None:
    bench = any_bench
    consumer = bench.consumer()
    for number in range(30):
        delayed(bench, str(number), "500ms")
    bench.advance(1)
    assert consumer.values == [str(number) for number in range(30)]


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.FSYNC])
def test_a_restart_keeps_them_and_they_fire_in_time(bench_with: BenchWith, durability: Durability) -> None:
    bench = bench_with(MemoryDisk(), durability=durability)
    bench.consumer()
    delayed(bench, "early", "10s")
    delayed(bench, "late", "60s")
    bench.turn()
    began = bench.now
    bench.now += 30
    bench.restart()
    consumer = bench.consumer()
    assert pending(bench) == 2
    bench.turn()
    assert consumer.values == ["early"], "what was due while the broker was down comes at once"
    consumer.ack(consumer.take()[0])
    bench.advance(31)
    assert consumer.values == ["late"]
    assert began + 60 <= consumer.times[0] <= began + 60 + TICK_S + 1e-3
    for delivery in consumer.take():
        consumer.ack(delivery)
    bench.advance(2)
    bench.restart()
    again = bench.consumer()
    bench.advance(100)
    assert (again.values, pending(bench)) == ([], 0), "fired once"


def test_a_cancelled_message_never_comes_also_after_a_restart(bench_with: BenchWith) -> None:
    """G1: cancel said true, and it fired all the same."""
    bench = bench_with(MemoryDisk())
    wanted = delay_id(bench, "wanted", ("delay", "5s"))
    gone = delay_id(bench, "gone", ("delay", "5s"))
    assert gone == "q:delay:1"
    heard: list[QueueError | None] = []
    assert bench.engine.cancel_delayed("q", gone, bench.now, heard.append)
    bench.engine.dispatch(bench.now)
    assert heard == [], "not before it is durable"
    bench.turn()
    assert heard == [None]
    assert not bench.engine.cancel_delayed("q", gone, bench.now)
    bench.restart()
    assert not bench.engine.cancel_delayed("q", gone, bench.now)
    consumer = bench.consumer()
    bench.advance(6)
    assert consumer.values == ["wanted"]
    assert not bench.engine.cancel_delayed("q", wanted, bench.now), "it fired"
    assert not bench.engine.cancel_delayed("q", "q:delay:77", bench.now)


def test_cancelling_in_memory_queues(bench: QueueBench) -> None:
    name = delay_id(bench, "gone", ("delay", "5s"))
    delay_id(bench, "kept", ("delay", "5s"))
    heard: list[QueueError | None] = []
    assert bench.engine.cancel_delayed("q", name, bench.now, heard.append)
    assert heard == [None]
    consumer = bench.consumer()
    bench.advance(6)
    assert consumer.values == ["kept"]
    assert bench.engine.stats("q").delays.cancelled == 1


def test_an_id_of_before_a_start_names_nothing_in_a_memory_queue(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), durability="memory")
    old = delay_id(bench, "lost", ("delay", "5s"))
    bench.advance(1)
    bench.restart()
    new = delay_id(bench, "kept", ("delay", "5s"))
    assert not bench.engine.cancel_delayed("q", old, bench.now)
    assert [each.delay_id for each in bench.engine.delayed("q")] == [new]
    assert [each.delay_id for each in bench.engine.delayed("q", after=old)] == [new]
    assert bench.engine.cancel_delayed("q", new, bench.now)


@pytest.mark.parametrize("name", ["", "q", "q:delay:", "q:delay:x", "q:0:1", "q:delay:٣", "q:delay:-1", "p:delay:0"])
def test_bad_delay_ids_are_refused(bench: QueueBench, name: str) -> None:
    delay_id(bench, "m", ("delay", "5s"))
    with pytest.raises(QueueError) as refused:
        bench.engine.cancel_delayed("q", name, bench.now)
    assert refused.value.code is QueueErrorCode.BAD_ADDRESS


def test_what_waits_is_listed_in_pages(any_bench: QueueBench) -> None:
    bench = any_bench
    names = [delay_id(bench, f"{number}", ("delay", f"{10 - number}s")) for number in range(5)]
    first = bench.engine.delayed("q", limit=2)
    assert [one.delay_id for one in first] == names[:2]
    assert (first[0].topic, first[0].payload_bytes, first[0].refused) == ("$queue/q", 1, False)
    assert first[1].deliver_at == pytest.approx(bench.now + 9, abs=0.002)
    assert [one.delay_id for one in bench.engine.delayed("q", limit=10, after=names[1])] == names[2:]
    bench.engine.cancel_delayed("q", names[2], bench.now)
    bench.advance(6.5)
    assert [one.delay_id for one in bench.engine.delayed("q")] == [names[0], names[1], names[3]]
    with pytest.raises(QueueError):
        bench.engine.delayed("nowhere")


def test_max_delayed_bounds_them(bench_with: BenchWith) -> None:
    bench = bench_with(max_delayed=3)
    names = [delay_id(bench, str(number), ("delay", "9s")) for number in range(3)]
    with pytest.raises(QueueError, match="max_delayed") as refused:
        delayed(bench, "x", "1s")
    assert refused.value.code is QueueErrorCode.FULL
    bench.publish("not delayed")
    assert bench.engine.cancel_delayed("q", names[0], bench.now)
    delayed(bench, "fits", "1s")
    assert bench.engine.stats("q").delayed == 3


def test_a_full_queue_gets_them_later(bench_with: BenchWith) -> None:
    """Refused when due: tried again each second, counted, never lost, and it can still be cancelled."""
    bench = bench_with(MemoryDisk(), max_depth=2)
    for number in range(2):
        bench.publish(f"first {number}")
    idle = bench.consumer("idle", room=0)
    names = [delay_id(bench, f"later {number}", ("delay", "1s")) for number in range(3)]
    bench.advance(3.5)
    stats = bench.engine.stats("q")
    assert (stats.depth, stats.delayed, stats.delays.fired) == (2, 3, 0)
    assert stats.delays.refused >= 3
    assert all(one.refused for one in bench.engine.delayed("q"))
    assert bench.engine.cancel_delayed("q", names[0], bench.now)
    idle.leave()
    consumer = bench.consumer()
    bench.turn()
    for _ in range(3):
        for delivery in consumer.take():
            consumer.ack(delivery)
        bench.advance(1.1)
    assert bench.engine.stats("q").delays.fired == 2
    assert pending(bench) == 0


def test_a_delayed_message_that_can_never_fit_is_refused(bench_with: BenchWith) -> None:
    """It was tried for ever, and what was due behind it did not come: lives of queues found it."""
    bench = bench_with(MemoryDisk(), max_bytes=600)
    consumer = bench.consumer()
    with pytest.raises(QueueError) as refused:
        delayed(bench, "." * 700, "1s")
    assert refused.value.code is QueueErrorCode.FULL
    assert delayed(bench, "fits", "1s").calls == []
    bench.advance(5)
    assert consumer.values == ["fits"]


@pytest.mark.parametrize("overflow", ["drop_oldest", "dead_letter_oldest"])
@pytest.mark.parametrize("limit", [{"max_depth": 6}, {"max_bytes": 600}], ids=["depth", "bytes"])
@pytest.mark.parametrize("has_group", [False, True], ids=["loose", "group"])
def test_what_is_dropped_for_those_that_fire_lets_none_fire_twice(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch, overflow: str, limit: dict[str, int], has_group: bool
) -> None:
    """To drop what is not written yet, the partitions got those that had fired before it was noted that they do."""
    noted: set[int] = set()
    note, write = DoneLog.note_firing, QueuePartition.write

    def note_firing(self: DoneLog, offsets: Sequence[int], ends: Ends, now: float) -> None:
        noted.update(offsets)
        note(self, offsets, ends, now)

    def write_noted(self: QueuePartition) -> object:
        unwritten = self._unwritten.records if self._unwritten is not None else []
        numbers = [int(value) for record in unwritten for name, value in record.headers if name == b"_delay"]
        assert noted >= set(numbers), "a broker that is killed now fires them twice"
        return write(self)

    monkeypatch.setattr(DoneLog, "note_firing", note_firing)
    monkeypatch.setattr(QueuePartition, "write", write_noted)
    bench = bench_with(MemoryDisk(), durability="interval", overflow=overflow, **limit)
    if has_group:
        bench.consumer().leave()
    for number in range(6):
        bench.publish(f"{number}" + "x" * 99)
    for number in range(8):
        delayed(bench, f"d{number}" + "x" * 98, "1s")
    bench.turn()
    bench.advance(1.1)
    refused = pending(bench)
    assert refused < 4
    bench.restart()
    assert pending(bench) == refused
    bench.advance(5.0)
    consumer = bench.consumer(room=100)
    bench.turn()
    got = [value[:2] for value in consumer.values]
    assert len(got) == len(set(got)) > 0


@pytest.mark.parametrize("places", [0, 1, 2, 3])
def test_what_is_due_behind_what_was_refused_waits_for_no_more_than_room(bench_with: BenchWith, places: int) -> None:
    """It waited for the second to pass after which the queue is asked again for what it refused."""
    bench = bench_with(MemoryDisk(), max_depth=3)
    for number in range(3):
        bench.publish(f"first {number}")
    consumer = bench.consumer()
    for number in range(2):
        delayed(bench, f"refused {number}", "1s")
    delayed(bench, "due", "1500ms")
    bench.advance(1.2)
    assert bench.engine.stats("q").delays.fired == 0
    for delivery in consumer.take()[:places]:
        consumer.ack(delivery)
    bench.advance(0.29)
    assert not consumer.values, "nothing is due"
    bench.advance(0.02)
    assert consumer.values == ["refused 0", "refused 1", "due"][:places]
    bench.advance(0.5)
    assert bench.engine.stats("q").delays.fired == places


def test_messages_of_a_partition_that_fails_hold_back_no_others(bench_with: BenchWith) -> None:
    """More of them than are tried at a time stood before all others for ever, and each try made these wait a second."""
    disk = FailingDisk()
    bench = bench_with(disk, partitions=2, durability=Durability.FSYNC)
    consumer = bench.consumer()
    fails, goes = (("partition", str(number)) for number in range(2))
    for number in range(FIRED_PER_TURN + 1):
        delay_id(bench, f"fails {number}", ("delay", "1s"), fails)
    delay_id(bench, "goes", ("delay", "1s"), goes)
    delay_id(bench, "goes, too", ("delay", "1500ms"), goes)
    disk.fail_sync = "partitions/0"
    broken = bench.publish("breaks it", user_properties=(fails,))
    bench.turn()
    assert broken.failed
    bench.advance(1.4)
    assert consumer.values == ["goes"]
    bench.advance(0.11)
    assert consumer.values == ["goes", "goes, too"]


def test_time_to_live_counts_from_the_due_time(bench_with: BenchWith) -> None:
    bench = bench_with(message_ttl_s=10.0)
    delayed(bench, "m", "60s")
    bench.advance(69)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == ["m"]


def test_a_message_that_expires_before_it_is_due_is_refused(bench: QueueBench) -> None:
    with pytest.raises(QueueError, match="expires before"):
        delayed(bench, "x", "60s", expires_at=bench.now + 60)
    delayed(bench, "m", "60s", expires_at=bench.now + 61)
    consumer = bench.consumer()
    bench.advance(60.5)
    assert consumer.values == ["m"]


def test_a_burst_is_spread_over_turns(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_store_module, "FIRED_PER_TURN", 10)
    for number in range(25):
        delayed(bench, str(number), "1s")
    consumer = bench.consumer()
    bench.turn()
    bench.now += 2
    for seen in (10, 20, 25):
        bench.engine.tick(bench.now)
        bench.engine.dispatch(bench.now)
        assert len(consumer.values) == seen
    assert consumer.values == [str(number) for number in range(25)]


def test_their_segments_are_freed(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, segment_bytes=20_000)
    consumer = bench.consumer()
    for _ in range(20):
        for number in range(100):
            delayed(bench, f"{number:0100d}", "1s")
        bench.advance(2)
        for delivery in consumer.take():
            consumer.ack(delivery)
    bench.advance(5)
    assert bench.engine.stats("q").delays.stored_bytes < 60_000
    assert len([name for name in disk.list("queues/q/delays") if name.endswith(".seg")]) <= 3


def test_one_long_delay_keeps_nothing_else_on_disk(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, segment_bytes=20_000)
    consumer = bench.consumer()
    long = [delay_id(bench, f"long {number}", ("delay", f"{100 + number}h")) for number in range(3)]
    for _ in range(20):
        for number in range(100):
            delayed(bench, f"{number:0100d}", "1s")
        bench.advance(2)
        for delivery in consumer.take():
            consumer.ack(delivery)
    bench.advance(10)
    assert bench.engine.stats("q").delays.stored_bytes < 60_000
    assert len([name for name in disk.list("queues/q/delays") if name.endswith(".seg")]) <= 4
    bench.restart()
    assert [one.delay_id for one in bench.engine.delayed("q")] == long
    assert bench.engine.cancel_delayed("q", long[1], bench.now)
    consumer = bench.consumer()
    bench.turn()
    assert consumer.values == []
    bench.advance(110 * 3_600)
    assert set(consumer.values) == {"long 0", "long 2"}


def test_a_queue_is_deleted_while_its_delays_are_thinned_out(bench_with: BenchWith) -> None:
    disk = MemoryDisk()
    bench = bench_with(disk, segment_bytes=5_000)
    delayed(bench, "long", "100h")
    for number in range(200):
        delayed(bench, f"{number:0100d}", "1s")
        if not number % 20:
            bench.turn()
    bench.turn()
    bench.now += 3
    thinning = None
    for _ in range(20):
        bench.engine.tick(bench.now)
        bench.engine.dispatch(bench.now)
        for job in bench.engine.take_jobs(bench.now):
            job.run()
            if isinstance(job.point, DelayThinning):
                thinning = job
            else:
                bench.engine.job_done(job, None, bench.now)
        bench.now += 0.5
        if thinning is not None:
            break
    assert thinning is not None
    bench.engine.delete_queue("q", bench.now)
    bench.turn()
    assert disk.list("queues/q") != [], "not while a job is running in its logs"
    bench.engine.job_done(thinning, None, bench.now)
    bench.turn()
    assert disk.list("queues/q") == []


def test_what_is_done_is_stated_anew_and_then_forgotten(bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.queues.delays.done_log.RESTATE_ABOVE_BYTES", 2_000)
    monkeypatch.setattr("assay.reference_broker.storage.queue_store.DONE_SEGMENT_BYTES", 1_000)
    disk = MemoryDisk()
    bench = bench_with(disk)
    keep = delay_id(bench, "keep", ("delay", "100h"))
    for number in range(300):
        name = delay_id(bench, str(number), ("delay", "1h"))
        bench.engine.cancel_delayed("q", name, bench.now)
        bench.advance(0.1)
    bench.advance(3)
    sizes = [disk.open(f"queues/q/delays_done/{name}").size for name in disk.list("queues/q/delays_done")]
    assert sum(sizes) < 6_000
    bench.restart()
    assert [one.delay_id for one in bench.engine.delayed("q")] == [keep]


class DiskWithoutFolderSyncs(MemoryDisk):
    """A loss of power brings back what was removed of the log of delayed messages."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: dict[str, bytes] = {}

    def remove(self, path: str) -> None:
        """See :meth:`Disk.remove`."""
        if "/delays/" in path:
            file = self.open(path)
            self.removed[path] = file.read_at(0, file.size)
        super().remove(path)

    def lose_power(self) -> None:
        for path, content in self.removed.items():
            self.open(path, create=True).append(content)


def test_segments_that_come_back_bring_no_message_that_was_cancelled(
    bench_with: BenchWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hunt found it: what was done of them had been stated anew without them (delays-priorities, loss of power)."""
    monkeypatch.setattr("assay.reference_broker.queues.delays.done_log.RESTATE_ABOVE_BYTES", 2_000)
    monkeypatch.setattr("assay.reference_broker.storage.queue_store.DONE_SEGMENT_BYTES", 1_000)
    disk = DiskWithoutFolderSyncs()
    bench = bench_with(disk, segment_bytes=1_000)
    for number in range(300):
        bench.engine.cancel_delayed("q", delay_id(bench, str(number), ("delay", "1h")), bench.now)
        bench.advance(0.1)
    bench.advance(3)
    assert disk.removed, "segments were freed"
    disk.lose_power()
    bench.restart()
    assert bench.engine.delayed("q") == []


def test_a_failed_write_refuses_the_publish_and_keeps_the_rest(
    durable: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed(durable, "kept", "1s")
    durable.turn()

    def full(self: MemoryFile, data: bytes) -> int:
        raise OSError(28, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFile, "append", full)
        outcome = delayed(durable, "lost", "1s")
        durable.turn()
        assert outcome.failed
        assert pending(durable) == 1
        durable.now += 1.5
        durable.engine.tick(durable.now)
        durable.engine.dispatch(durable.now)
        assert durable.engine.stats("q").delays.fired == 0
        assert pending(durable) == 1, "the partition could not take it"
    consumer = durable.consumer()
    durable.advance(5)
    assert consumer.values == ["kept"]


def test_a_cancel_that_cannot_be_written_is_answered_once_it_is(
    durable: QueueBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hunt found it: refused, and all the same never delivered (delays-priorities, a full disk)."""
    name = delay_id(durable, "m", ("delay", "100s"))
    heard: list[QueueError | None] = []

    def full(self: MemoryFile, data: bytes) -> int:
        raise OSError(28, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFile, "append", full)
        assert durable.engine.cancel_delayed("q", name, durable.now, heard.append)
        durable.engine.dispatch(durable.now)
        assert heard == [], "it is not delivered any more, so that a refusal would be wrong"
    durable.advance(3)
    assert heard == [None]
    durable.restart()
    consumer = durable.consumer()
    durable.advance(200)
    assert consumer.values == []


def test_the_memory_limit_counts_them(bench_with: BenchWith) -> None:
    bench = bench_with(max_memory_bytes=100_000)

    def fill() -> None:
        for _ in range(1_000):
            delayed(bench, "x" * 1_000, "1h")
            bench.engine.dispatch(bench.now)
            bench.now += 0.1

    with pytest.raises(QueueError, match="max_memory_bytes"):
        fill()
    assert 50 < pending(bench) < 150


def test_closing_syncs_what_fired(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), durability=Durability.INTERVAL)
    delayed(bench, "fired", "1s")
    delayed(bench, "waits", "1h")
    bench.turn()
    bench.now += 1.1
    bench.engine.tick(bench.now)
    bench.engine.close(bench.now)
    bench.restart()
    consumer = bench.consumer()
    bench.turn()
    assert (consumer.values, pending(bench)) == (["fired"], 1)
