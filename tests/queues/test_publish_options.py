"""Options of a publish: every one is read, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.mqtt.queue_topics.publish_properties import OPTION_NAMES, parse_options
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.queues.messages.durations import parse_duration_ms, parse_time_ms
from assay.reference_broker.queues.messages.publish_options import Priority, PublishOptions
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench


def options_of(*pairs: tuple[str, str]) -> PublishOptions | None:
    return parse_options(pairs)


def test_a_message_without_options_has_none() -> None:
    assert options_of() is None
    assert options_of(("partition-key", "k"), ("Delay", "soon"), ("x", "y")) is None


def test_every_option_is_read() -> None:
    assert options_of(
        ("partition-key", "k"),
        ("partition", "3"),
        ("priority", "High"),
        ("delay", "1.5s"),
        ("ttl", "1h30m"),
        ("producer-id", "7"),
        ("producer-epoch", "1"),
        ("sequence", "0"),
        ("transaction-id", "t"),
        ("receipt", "1"),
    ) == PublishOptions(
        partition=3,
        priority=Priority.HIGH,
        delay_ms=1_500,
        ttl_ms=5_400_000,
        producer_id=7,
        producer_epoch=1,
        sequence=0,
        transaction_id="t",
        receipt=True,
    )
    assert options_of(("deliver-at", "1700000000000")) == PublishOptions(deliver_at_ms=1_700_000_000_000)


@pytest.mark.parametrize("lane", list(Priority))
def test_priorities_by_name_and_number(lane: Priority) -> None:
    for text in (lane.name, lane.name.lower(), lane.name.title(), str(lane.value)):
        assert options_of(("priority", text)) == PublishOptions(priority=lane)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", "-1"),
        ("partition", "x"),
        ("partition", "٣"),
        ("partition", "4294967296"),
        ("priority", "5"),
        ("priority", "urgent"),
        ("priority", ""),
        ("delay", ""),
        ("delay", "5"),
        ("delay", "-5s"),
        ("delay", "5 s"),
        ("delay", "5d"),
        ("delay", "1s2"),
        ("delay", ".5s"),
        ("delay", "1.s"),
        ("delay", "9" * 15 + "h"),
        ("delay", "1h" * 100),
        ("deliver-at", "tomorrow"),
        ("deliver-at", "2026-02-30T00:00:00Z"),
        ("deliver-at", "2026-01-31T12:00:00"),
        ("deliver-at", "2026-01-31 12:00:00Z"),
        ("deliver-at", "-1"),
        ("ttl", "soon"),
        ("producer-id", "1.0"),
        ("producer-epoch", "2147483648"),
        ("sequence", "9223372036854775808"),
        ("transaction-id", ""),
        ("transaction-id", "t" * 1_025),
        ("receipt", "yes"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(QueueError, match=name) as refused:
        options_of((name, value))
    assert refused.value.code is QueueErrorCode.BAD_OPTION


@pytest.mark.parametrize("name", sorted(OPTION_NAMES))
def test_an_option_twice_is_refused(name: str) -> None:
    value = {"priority": "low", "delay": "1s", "ttl": "1s", "deliver-at": "5"}.get(name, "1")
    assert options_of((name, value)) is not None
    with pytest.raises(QueueError, match="twice"):
        options_of((name, value), (name, value))


def test_delay_and_deliver_at_exclude_each_other() -> None:
    with pytest.raises(QueueError, match="not both"):
        options_of(("delay", "1s"), ("deliver-at", "5"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("1000000ns", 1),
        ("1000001ns", 2),
        ("999us", 1),
        ("1000µs", 1),
        ("1001μs", 2),
        ("250ms", 250),
        ("30s", 30_000),
        ("1h30m", 5_400_000),
        ("1h0.5m1s", 3_631_000),
        ("0.0000001ms", 1),
        ("186h24m48.64s", 671_088_640),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59Z", -1_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14t22:13:20.5z", 1_700_000_000_500),
        ("2023-11-14T22:13:20.000000001Z", 1_700_000_000_001),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
        ("2023-11-14T20:43:20-01:30", 1_700_000_000_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time_ms(text) == ms


@given(st.sampled_from(sorted(OPTION_NAMES)), st.text(max_size=40))
def test_any_text_is_read_or_refused(name: str, value: str) -> None:
    try:
        options = options_of((name, value))
    except QueueError as error:
        assert error.code is QueueErrorCode.BAD_OPTION
    else:
        assert options is not None


def test_an_explicit_partition_is_honoured_and_checked(bench_with: Callable[..., QueueBench]) -> None:
    bench = bench_with(partitions=3)
    for partition in ("2", "0", "2"):
        bench.publish(partition, key="k", user_properties=(("partition", partition),))
    with pytest.raises(QueueError, match="no partition 3") as refused:
        bench.publish("x", user_properties=(("partition", "3"),))
    assert refused.value.code is QueueErrorCode.BAD_OPTION
    consumer = bench.consumer()
    bench.turn()
    assert sorted((delivery.partition, delivery.message.payload.decode()) for delivery in consumer.got) == [
        (0, "0"),
        (2, "2"),
        (2, "2"),
    ]


def test_who_asks_is_told_the_message_id_before_the_confirm(durable: QueueBench) -> None:
    heard: list[object] = []
    message = Message(topic="$queue/q", payload=b"m")
    durable.publish("before")
    durable.turn()
    for number in range(2):
        QueueTopics(durable.engine).publish(
            message,
            durable.now,
            heard.append,
            lambda kind, stored_id: heard.append((kind, stored_id)),
        )
        durable.publish(f"between {number}")
    durable.engine.dispatch(durable.now)
    assert heard == [(StoredAs.MESSAGE, "q:0:1"), (StoredAs.MESSAGE, "q:0:3")]
    durable.turn()
    assert heard[2:] == [None, None]
