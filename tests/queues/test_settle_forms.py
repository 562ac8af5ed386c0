"""Settling many at once, extensions, delays and receipts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.delivery_properties import delivery_properties
from assay.reference_broker.mqtt.queue_topics.settle_properties import parse_ranges, parse_settlement, whole_number
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.delivery.settle_request import MAX_DELIVERIES, format_ranges
from assay.reference_broker.queues.messages.address import parse_receipt, receipt_of
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import BenchConsumer, QueueBench

BenchWith = Callable[..., "QueueBench"]
Pairs = tuple[tuple[str, str], ...]


class Outcome:
    """What a confirm said."""

    def __init__(self) -> None:
        self.calls: list[QueueError | None] = []

    def __call__(self, error: QueueError | None) -> None:
        self.calls.append(error)

    @property
    def confirmed(self) -> bool:
        return self.calls == [None]


def settle(bench: QueueBench, verb: Verb, *pairs: tuple[str, str], consumer_id: str | None = "c") -> Outcome:
    outcome = Outcome()
    bench.engine.settle("q", parse_settlement(verb, pairs), consumer_id=consumer_id, now=bench.now, on_done=outcome)
    return outcome


def refused(bench: QueueBench, verb: Verb, *pairs: tuple[str, str], consumer_id: str | None = "c") -> QueueErrorCode:
    with pytest.raises(QueueError) as caught:
        settle(bench, verb, *pairs, consumer_id=consumer_id)
    return caught.value.code


def delivered(bench: QueueBench, count: int) -> BenchConsumer:
    consumer = bench.consumer()
    for number in range(count):
        bench.publish(str(number))
    bench.turn()
    assert len(consumer.got) == count
    return consumer


# -- many at once ------------------------------------------------------------------------------------------------------


def test_ranges_of_offsets_are_acked_at_once(bench: QueueBench) -> None:
    delivered(bench, 10)
    outcome = settle(bench, Verb.ACK, ("partition", "0"), ("offsets", "1,2,5-9"))
    bench.turn()
    assert outcome.confirmed
    (stats,) = bench.engine.stats("q").groups
    assert (stats.acked, stats.in_flight, stats.ack_floors) == (7, 3, (0,)), "offset 0 is open: the floor stays there"
    settle(bench, Verb.ACK, ("partition", "0"), ("offset", "0"))
    assert bench.engine.stats("q").groups[0].ack_floors == (3,)
    settle(bench, Verb.ACK, ("partition", "0"), ("offsets", "3-4"))
    assert bench.engine.stats("q").groups[0].ack_floors == (10,)


def test_the_floor_of_a_partition_is_that_of_its_priorities_together(bench: QueueBench) -> None:
    consumer = bench.consumer()
    for priority in ("critical", "normal", "low"):
        bench.publish(priority, user_properties=(("priority", priority),))
    bench.turn()
    offsets = {delivery.message.payload.decode(): delivery.offset for delivery in consumer.got}
    assert offsets == {"critical": 0, "normal": 1, "low": 2}
    for priority, floor in (("normal", 0), ("critical", 2), ("low", 3)):
        settle(bench, Verb.ACK, ("partition", "0"), ("offset", str(offsets[priority])))
        assert bench.engine.stats("q").groups[0].ack_floors == (floor,)


def test_several_message_ids_of_several_partitions(bench_with: BenchWith) -> None:
    bench = bench_with(partitions=3)
    consumer = delivered(bench, 6)
    assert len({delivery.partition for delivery in consumer.got}) > 1
    ids = [("message-id", delivery.message_id) for delivery in consumer.got]
    outcome = settle(bench, Verb.ACK, *ids, ("group-id", "g"))
    bench.turn()
    assert outcome.confirmed
    assert bench.engine.stats("q").depth == 0


def test_a_batch_tells_what_was_not_pending_and_settles_the_rest(bench: QueueBench) -> None:
    consumer = delivered(bench, 10)
    consumer.ack(consumer.got[3])
    outcome = settle(bench, Verb.ACK, ("partition", "0"), ("offsets", "2-5,20,21"))
    bench.turn()
    (error,) = outcome.calls
    assert error is not None
    assert error.code is QueueErrorCode.NOT_PENDING
    assert error.details == (("settled", "3"), ("not-pending", "q:0:3,20-21"))
    assert bench.engine.stats("q").in_flight == 6


def test_a_batch_of_which_nothing_is_pending_is_refused(bench: QueueBench) -> None:
    delivered(bench, 3)
    assert refused(bench, Verb.ACK, ("partition", "0"), ("offsets", "5-9")) is QueueErrorCode.NOT_PENDING
    pairs = (("partition", "0"), ("offsets", "0-2"))
    assert refused(bench, Verb.ACK, *pairs, consumer_id="other") is QueueErrorCode.NOT_PENDING
    assert bench.engine.stats("q").in_flight == 3


def test_a_batch_that_is_ambiguous_or_malformed_settles_nothing(bench: QueueBench) -> None:
    for group in ("one", "two"):
        bench.consumer("c", group=group)
    bench.publish("m")
    bench.turn()
    assert refused(bench, Verb.ACK, ("partition", "0"), ("offsets", "0-1")) is QueueErrorCode.AMBIGUOUS
    ids = (("message-id", "q:0:0"), ("message-id", "other:0:0"), ("group-id", "one"))
    assert refused(bench, Verb.ACK, *ids) is QueueErrorCode.BAD_ADDRESS
    assert bench.engine.stats("q").in_flight == 2


def test_an_id_named_twice_is_settled_once(bench: QueueBench) -> None:
    delivered(bench, 2)
    outcome = settle(bench, Verb.ACK, ("message-id", "q:0:0"), ("message-id", "q:0:0"))
    bench.turn()
    assert outcome.confirmed
    assert bench.engine.stats("q").groups[0].acked == 1


def test_many_can_be_nacked_and_rejected(bench: QueueBench) -> None:
    consumer = delivered(bench, 4)
    assert not settle(bench, Verb.NACK, ("partition", "0"), ("offsets", "0-1"), ("delay", "3s")).calls
    rejected = settle(bench, Verb.REJECT, ("partition", "0"), ("offsets", "2-3"), ("reason", "bad"))
    consumer.take()
    bench.turn()
    assert rejected.confirmed
    assert bench.engine.stats("q").dead_letters == 2
    bench.advance(3)
    assert consumer.counts == [2, 2]


def test_a_batch_survives_a_restart(durable: QueueBench) -> None:
    delivered(durable, 10)
    outcome = settle(durable, Verb.ACK, ("partition", "0"), ("offsets", "1-8"))
    durable.turn()
    assert outcome.confirmed
    durable.restart()
    consumer = durable.consumer()
    durable.turn()
    assert consumer.values == ["0", "9"]


def test_a_batch_is_confirmed_by_one_sync(durable: QueueBench) -> None:
    delivered(durable, 10)
    outcome = settle(durable, Verb.ACK, ("partition", "0"), ("offsets", "0-9"))
    durable.engine.dispatch(durable.now)
    assert not outcome.calls
    durable.turn()
    assert outcome.confirmed


# -- the words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "pairs", "code"),
    [
        (Verb.ACK, (), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("offsets", "1-2"),), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"),), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offset", "0"), ("offsets", "1")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("message-id", "q:0:0"), ("partition", "0"), ("offsets", "1")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("message-id", "q:0:0"), ("message-id", "q:0:1"), ("offset", "0")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("message-id", "q:0:0"), ("receipt", "q:0:0:1:" + "0" * 16)), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offsets", "5-2")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offsets", "")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offsets", "1,,2")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offsets", "-1")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offset", "1" * 20)), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offset", "1" * 5_000)), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "٣"), ("offset", "0")), QueueErrorCode.BAD_ADDRESS),
        (Verb.ACK, (("partition", "0"), ("offsets", "0-10000")), QueueErrorCode.BAD_OPTION),
        (Verb.ACK, (("partition", "0"), ("offsets", f"0-{10**18}")), QueueErrorCode.BAD_OPTION),
        (Verb.ACK, (("message-id", "q:0:0"),) * (MAX_DELIVERIES + 1), QueueErrorCode.BAD_OPTION),
        (Verb.ACK, (("partition", "0"), ("partition", "0"), ("offset", "0")), QueueErrorCode.BAD_OPTION),
        (Verb.ACK, (("message-id", "q:0:0"), ("delay", "1s")), QueueErrorCode.BAD_OPTION),
        (Verb.NACK, (("message-id", "q:0:0"), ("extend", "1s")), QueueErrorCode.BAD_OPTION),
        (Verb.NACK, (("message-id", "q:0:0"), ("delay", "soon")), QueueErrorCode.BAD_OPTION),
        (Verb.NACK, (("message-id", "q:0:0"), ("delay", "169h")), QueueErrorCode.BAD_OPTION),
        (Verb.EXTEND, (("message-id", "q:0:0"), ("extend", "13h")), QueueErrorCode.BAD_OPTION),
        (Verb.EXTEND, (("message-id", "q:0:0"), ("extend", "-1s")), QueueErrorCode.BAD_OPTION),
    ],
)
def test_malformed_requests(bench: QueueBench, verb: Verb, pairs: Pairs, code: QueueErrorCode) -> None:
    delivered(bench, 3)
    assert refused(bench, verb, *pairs) is code
    assert bench.engine.stats("q").in_flight == 3


def test_which_names_may_stand_together() -> None:
    """Ids, or receipts, or a partition and what of it; a single id may say where it lies."""
    one_or_none = (False, True)
    for ids, *others in itertools.product((0, 1, 2), *[one_or_none] * 4):
        receipt, partition, offset, offsets = others
        pairs = [("message-id", "q:0:7")] * ids + [
            pair
            for pair, is_there in zip(
                (("receipt", "q:0:7:1:" + "0" * 16), ("partition", "0"), ("offset", "7"), ("offsets", "7-8")),
                others,
                strict=True,
            )
            if is_there
        ]
        is_right = (
            (ids == 1 and not receipt and not offsets)
            or (ids == 2 and not any(others))
            or (not ids and others == [True, False, False, False])
            or (not ids and not receipt and partition and offset != offsets)
        )
        try:
            request = parse_settlement(Verb.ACK, tuple(pairs))
        except QueueError as error:
            assert error.code is QueueErrorCode.BAD_ADDRESS, pairs
            assert not is_right, pairs
            continue
        assert is_right, pairs
        assert request.message_ids == ("q:0:7",) * ids
        assert request.ranges == (((7, 8),) if offset else ((7, 9),) if offsets else ()), pairs
        assert (request.partition, len(request.receipts)) == (0 if partition else None, int(receipt)), pairs


@given(st.sets(st.integers(0, 300), min_size=1))
def test_ranges_are_read_as_they_are_written(offsets: set[int]) -> None:
    ranges = parse_ranges(format_ranges(sorted(offsets)))
    assert {offset for first, end in ranges for offset in range(first, end)} == offsets
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("form", ["{0}-{1}", "{0}-{2},{3}-{1}", "{0}-{3},{2}-{1}", "{2},{0}-{1}"])
def test_as_many_offsets_as_are_allowed_and_one_more(form: str) -> None:
    """However they are written, ranges that overlap included."""
    middle = MAX_DELIVERIES // 2
    at_most = form.format(1, MAX_DELIVERIES, middle, middle + 1)
    assert sum(end - start for start, end in parse_ranges(at_most)) == MAX_DELIVERIES
    with pytest.raises(QueueError, match=f"{MAX_DELIVERIES + 1} offsets"):
        parse_ranges(form.format(1, MAX_DELIVERIES + 1, middle, middle + 1))


# -- delay and extension -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [0.0, 0.25, 90.0])
def test_a_nack_with_a_delay_comes_back_then_with_one_more_delivery(bench: QueueBench, delay_s: float) -> None:
    consumer = delivered(bench, 1)
    settle(bench, Verb.NACK, ("message-id", "q:0:0"), ("delay", f"{int(delay_s * 1000)}ms"))
    start = bench.now
    bench.advance(200)
    assert consumer.counts[:2] == [1, 2]
    assert consumer.times[1] - start == pytest.approx(delay_s, abs=0.001)


def test_k_nacks_make_the_count_k_plus_one(bench: QueueBench) -> None:
    consumer = delivered(bench, 1)
    for _ in range(5):
        consumer.nack(consumer.got[-1])
        bench.turn()
    assert consumer.counts == [1, 2, 3, 4, 5, 6]
    flags = [dict(delivery_properties(delivery)).get("redelivered") for delivery in consumer.got]
    assert flags == [None] + ["true"] * 5


def test_the_delay_of_a_nack_outlives_a_restart(durable: QueueBench) -> None:
    delivered(durable, 1)
    settle(durable, Verb.NACK, ("message-id", "q:0:0"), ("delay", "60s"))
    durable.turn()
    durable.restart()
    consumer = durable.consumer()
    durable.advance(59)
    assert consumer.got == []
    durable.advance(1.1)
    assert consumer.counts == [2]


def test_extended_deliveries_time_out_counted_from_the_extension(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=10.0, retry={"initial_backoff_s": 1.0})
    consumer = delivered(bench, 3)
    start = bench.now
    bench.advance(8)
    assert settle(bench, Verb.EXTEND, ("message-id", "q:0:1"), ("extend", "20s")).confirmed
    assert settle(bench, Verb.EXTEND, ("message-id", "q:0:2")).confirmed, "without a duration: the queue's timeout"
    consumer.take()
    bench.advance(40)
    first: dict[int, float] = {}
    for delivery, time in zip(consumer.got, consumer.times, strict=True):
        first.setdefault(delivery.offset, time - start)
    assert first[0] == 11
    assert first[2] >= 19
    assert first[1] >= 29


def test_an_extension_can_end_a_delivery_at_once(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"initial_backoff_s": 1.0})
    consumer = delivered(bench, 1)
    settle(bench, Verb.EXTEND, ("message-id", "q:0:0"), ("extend", "0"))
    bench.advance(1)
    assert consumer.counts == [1, 2]


def test_extending_what_is_not_pending_is_refused(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=10.0)
    delivered(bench, 1)
    unknown = (("message-id", "q:0:7"), ("extend", "1s"))
    assert refused(bench, Verb.EXTEND, *unknown) is QueueErrorCode.NOT_PENDING
    bench.advance(11)
    late = (("message-id", "q:0:0"), ("extend", "1s"))
    assert refused(bench, Verb.EXTEND, *late) is QueueErrorCode.NOT_PENDING


def test_extending_for_ever_keeps_memory_bounded(bench: QueueBench) -> None:
    delivered(bench, 1)
    for _ in range(5_000):
        settle(bench, Verb.EXTEND, ("message-id", "q:0:0"), ("extend", "1h"))
    (group,) = bench.engine._queues["q"].groups.values()
    assert len(group._extensions) < 2_000


def test_a_queue_without_timeout_keeps_it_so(bench_with: BenchWith) -> None:
    bench = bench_with(delivery_timeout_s=0.0)
    consumer = delivered(bench, 1)
    assert settle(bench, Verb.EXTEND, ("message-id", "q:0:0"), ("extend", "1s")).confirmed
    bench.advance(1_000)
    assert consumer.counts == [1]


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_a_receipt_settles_its_delivery_whoever_shows_it(bench_with: BenchWith) -> None:
    bench = bench_with(receipts=True)
    consumer = delivered(bench, 2)
    receipt = consumer.got[0].receipt
    assert re.fullmatch("q:0:0:1:[0-9a-f]{16}", receipt)
    assert dict(delivery_properties(consumer.got[0]))["receipt"] == receipt
    outcome = settle(bench, Verb.ACK, ("receipt", receipt), consumer_id="somebody else")
    bench.turn()
    assert outcome.confirmed
    assert refused(bench, Verb.ACK, ("receipt", receipt)) is QueueErrorCode.NOT_PENDING
    assert bench.engine.stats("q").in_flight == 1


def test_a_receipt_outlives_a_claim_that_found_no_room(bench_with: BenchWith) -> None:
    """The claimant was offered the message before it refused, with a receipt of its own: the old one went stale."""
    bench = bench_with(receipts=True)
    bench.publish("a")
    holder = bench.consumer("a")
    bench.turn()
    bench.consumer("b", room=0)
    with pytest.raises(QueueError):
        bench.engine.groups.claim("q", "g", Claim(), consumer_id="b", now=bench.now)
    settle(bench, Verb.ACK, ("receipt", holder.got[0].receipt))
    assert bench.engine.stats("q").depth == 0


def test_a_receipt_goes_stale_with_the_next_delivery(bench_with: BenchWith) -> None:
    bench = bench_with(receipts=True, delivery_timeout_s=10.0, retry={"initial_backoff_s": 5.0})
    consumer = delivered(bench, 1)
    old = ("receipt", consumer.got[0].receipt)
    bench.advance(12)
    assert refused(bench, Verb.ACK, old) is QueueErrorCode.STALE_RECEIPT, "timed out, not delivered again yet"
    bench.advance(4)
    assert consumer.counts == [1, 2]
    for verb in (Verb.ACK, Verb.NACK, Verb.REJECT, Verb.EXTEND):
        assert refused(bench, verb, old) is QueueErrorCode.STALE_RECEIPT
    new = consumer.got[1].receipt
    assert new.split(":")[3] == "2"
    assert not settle(bench, Verb.ACK, ("receipt", new)).calls


def test_a_guessed_nonce_settles_nothing(bench_with: BenchWith) -> None:
    bench = bench_with(receipts=True)
    consumer = delivered(bench, 1)
    nonce = int(consumer.got[0].receipt.rsplit(":", 1)[1], 16)
    wrong = receipt_of("q", 0, 0, 1, nonce ^ 1)
    assert refused(bench, Verb.ACK, ("receipt", wrong)) is QueueErrorCode.STALE_RECEIPT


def test_receipts_of_a_restart_are_stale(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), receipts=True)
    old = ("receipt", delivered(bench, 1).got[0].receipt)
    bench.restart()
    assert refused(bench, Verb.ACK, old) is QueueErrorCode.STALE_RECEIPT
    bench.seed = 2
    consumer = bench.consumer()
    bench.turn()
    assert consumer.counts == [2]
    assert refused(bench, Verb.ACK, old) is QueueErrorCode.STALE_RECEIPT


def test_a_queue_without_receipts_gives_and_takes_none(bench: QueueBench) -> None:
    consumer = delivered(bench, 1)
    assert consumer.got[0].receipt == ""
    made_up = ("receipt", receipt_of("q", 0, 0, 1, 0))
    assert refused(bench, Verb.ACK, made_up) is QueueErrorCode.STALE_RECEIPT


def test_many_receipts_settle_at_once(bench_with: BenchWith) -> None:
    bench = bench_with(receipts=True)
    consumer = delivered(bench, 3)
    outcome = settle(bench, Verb.ACK, *(("receipt", delivery.receipt) for delivery in consumer.got))
    bench.turn()
    assert outcome.confirmed
    assert bench.engine.stats("q").depth == 0


@given(
    st.text(min_size=1),
    st.integers(0, 2**31),
    st.integers(0, 2**62),
    st.integers(1, 2**16),
    st.integers(0, 2**64 - 1),
)
def test_receipts_are_read_from_the_right(queue: str, partition: int, offset: int, count: int, nonce: int) -> None:
    assert parse_receipt(receipt_of(queue, partition, offset, count, nonce)) == (queue, partition, offset, count, nonce)


@given(st.integers(0, 10**19 - 1))
def test_numbers_have_up_to_nineteen_digits(number: int) -> None:
    assert whole_number(str(number), "offset") == number
    with pytest.raises(QueueError):
        whole_number(f"{number:020}", "offset")


@pytest.mark.parametrize(
    "text", ["", "q:0:0:1", "q:0:0:1:00", "q:0:0:1:" + "G" * 16, ":0:0:1:" + "0" * 16, "q:0:-1:1:" + "0" * 16]
)
def test_malformed_receipts(text: str) -> None:
    with pytest.raises(QueueError) as caught:
        parse_receipt(text)
    assert caught.value.code is QueueErrorCode.BAD_ADDRESS
