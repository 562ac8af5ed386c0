"""Addresses, message ids, partitioning and assignment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.config import PartitionerKind
from assay.reference_broker.mqtt.queue_topics.addresses import Verb, parse_topic
from assay.reference_broker.queues.groups.assignment import assign_ranges
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import (
    QueueAddress,
    check_group_name,
    check_queue_name,
    message_id_of,
    parse_message_id,
    topic_of,
)
from assay.reference_broker.queues.messages.partitioner import Partitioner, fnv1a_32, murmur3_32
from assay.reference_broker.routing.remembered import SharedMemory

KNOWN = {"tasks/image", "tasks/image/large", "orders"}


@pytest.mark.parametrize(
    ("topic", "queue", "routing_key", "verb"),
    [
        ("$queue/orders", "orders", "", None),
        ("$queue/orders/eu/1", "orders", "eu/1", None),
        ("$queue/new/eu", "new", "eu", None),
        ("$queue/tasks/image", "tasks/image", "", None),
        ("$queue/tasks/image/a", "tasks/image", "a", None),
        ("$queue/tasks/image/large/a", "tasks/image/large", "a", None),
        ("$queue/tasks/images", "tasks", "images", None),
        ("$queue/tasks/image/#", "tasks/image", "#", None),
        ("$queue/orders/+/x", "orders", "+/x", None),
        ("$queue/orders/$ack", "orders", "", Verb.ACK),
        ("$queue/tasks/image/eu/$nack", "tasks/image", "eu", Verb.NACK),
        ("$queue/orders/$reject", "orders", "", Verb.REJECT),
        ("$queue/orders/$acks", "orders", "$acks", None),
        ("$dlq/orders", "$dlq/orders", "", None),
        ("$dlq/tasks/image/x", "$dlq/tasks/image", "x", None),
        ("$queue/dlq/orders/x", "$dlq/orders", "x", None),
        ("$dlq/orders/$ack", "$dlq/orders", "", Verb.ACK),
        ("$queue/orders/", "orders", "", None),
    ],
)
def test_addresses(topic: str, queue: str, routing_key: str, verb: Verb | None) -> None:
    found = parse_topic(topic, KNOWN.__contains__)
    assert (found.address, found.verb) == (QueueAddress(queue=queue, routing_key=routing_key), verb)


@pytest.mark.parametrize(
    "topic",
    [
        "orders",
        "$queue/",
        "$queue//x",
        "$queue/$ack",
        "$queue/orders/$ack/1",
        "$queue/orders/$ack/$ack",
        "$queue/+/x",
        "$queue/#",
        "$queue/dlq",
        "$queue/dlq/",
        "$queue/$x/y",
        "$dlq/",
        "$dlq/$dlq/x",
        "$queue/" + "x" * 600,
        "$queue/a\x00b",
        "$queue/\ud800",
    ],
)
def test_malformed_addresses(topic: str) -> None:
    with pytest.raises(QueueError) as caught:
        parse_topic(topic, KNOWN.__contains__)
    assert caught.value.code is QueueErrorCode.BAD_ADDRESS


@given(st.text(min_size=1), st.integers(0, 10**18), st.integers(0, 10**18))
def test_message_ids_are_read_from_the_right(queue: str, partition: int, offset: int) -> None:
    assert parse_message_id(message_id_of(queue, partition, offset)) == (queue, partition, offset)


@pytest.mark.parametrize(
    "text", ["", "q", "q:1", ":1:2", "q:1:", "q::2", "q:-1:2", "q:1:2.0", "q:1:²", "q:1:٣", "q:1:" + "9" * 20]
)
def test_malformed_message_ids(text: str) -> None:
    with pytest.raises(QueueError):
        parse_message_id(text)


def test_names_and_topics() -> None:
    assert topic_of("a/b", "c") == "$queue/a/b/c"
    assert topic_of("$dlq/a", "") == "$dlq/a"
    check_queue_name("a/b-ü")
    check_group_name("g" * 1_024)
    for group in ("", "g" * 1_025, "a\x00"):
        with pytest.raises(QueueError):
            check_group_name(group)


@pytest.mark.parametrize(("key", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_fnv1a_vectors(key: str, value: int) -> None:
    assert fnv1a_32(key) == value


@pytest.mark.parametrize(("key", "value"), [("", 0), ("hello", 0x248BFA47), ("hello, world", 0x149BBB7F)])
def test_murmur3_vectors(key: str, value: int) -> None:
    assert murmur3_32(key) == value


def test_keys_stay_and_keyless_messages_spread() -> None:
    first, second = (Partitioner(PartitionerKind.FNV1A, random.Random(seed), SharedMemory(1 << 20)) for seed in (1, 2))
    assert [first.choose(f"k{i}", 10) for i in range(50)] == [second.choose(f"k{i}", 10) for i in range(50)]
    assert first.choose("foobar", 10) == 0xBF9CF968 % 10
    goqueue = Partitioner(PartitionerKind.MURMUR3, random.Random(1), SharedMemory(1 << 20))
    assert goqueue.choose("hello", 1_000) == 0x248BFA47 % 1_000
    spread = [first.choose(None, 4) for _ in range(4_000)]
    assert all(800 < spread.count(partition) < 1_200 for partition in range(4))


def test_the_seeds_example_of_an_assignment() -> None:
    assigned = assign_ranges(10, ["worker-2", "worker-3", "worker-1"])
    assert assigned == {"worker-1": range(3), "worker-2": range(3, 6), "worker-3": range(6, 10)}


@given(st.integers(1, 40), st.sets(st.text(max_size=3), max_size=50))
def test_assignments_are_fair_and_complete(partitions: int, consumers: set[str]) -> None:
    assigned = assign_ranges(partitions, consumers)
    assert set(assigned) == consumers
    if consumers:
        assert sorted(index for span in assigned.values() for index in span) == list(range(partitions))
        sizes = [len(span) for span in assigned.values()]
        assert max(sizes) - min(sizes) <= 1
    assert assign_ranges(partitions, sorted(consumers, reverse=True)) == assigned


@pytest.mark.parametrize("kind", PartitionerKind)
def test_many_keys_at_once_go_where_each_goes_alone_however_many_partitions_there_are(kind: PartitionerKind) -> None:
    partitioner = Partitioner(kind, random.Random(1), SharedMemory(1 << 20))
    counted = kind in (PartitionerKind.FNV1A, PartitionerKind.MURMUR3)
    keys = [None, "", *(f"key-{number}" for number in range(5_000))]
    for partitions in (10, 12, 10, 1):
        for some in (keys[:50], keys[40:], keys[:50]):
            expected = [partitioner.choose(key, partitions) if counted and key is not None else None for key in some]
            assert partitioner.of_keys(some, partitions) == expected
            assert len(partitioner._known) <= 4_097
