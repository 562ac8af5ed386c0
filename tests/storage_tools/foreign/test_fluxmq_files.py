"""FluxMQ's JSON files and directory layouts, as its two generations write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage_tools.foreign import fluxmq_files
from assay.reference_broker.storage_tools.foreign.fluxmq_files import (
    FluxMQFileError,
    OperationKind,
    decode_consumer_state,
    decode_group,
    decode_operations,
    decode_pending_shard,
    decode_queue_configurations,
    find_groups,
)
from assay.sim.disk import SimDisk

SEGMENT = "00000000000000000000.seg"


def test_queue_configurations_of_both_generations() -> None:
    later = b"""{"version": 2, "configs": [{"Name": "orders", "Topics": ["$queue/orders/#"], "Reserved": false,
        "Type": "stream", "Durable": false, "ExpiresAfter": 300000000000,
        "LastConsumerDisconnect": "0001-01-01T00:00:00Z",
        "RetryPolicy": {"MaxRetries": 10, "InitialBackoff": 5000000000, "MaxBackoff": 300000000000,
            "BackoffMultiplier": 2, "TotalTimeout": 86400000000000},
        "DLQConfig": {"Enabled": true, "Topic": "", "AlertWebhook": "http://localhost/x"},
        "Replication": {"Enabled": false, "Mode": "sync"},
        "Retention": {"RetentionTime": 3600000000000, "RetentionBytes": 5, "RetentionMessages": 6,
            "CompactionEnabled": true, "CompactionKey": "id"},
        "MaxMessageSize": 10485760, "MaxDepth": 100000, "MessageTTL": 604800000000000,
        "DeliveryTimeout": 30000000000, "BatchSize": 100, "HeartbeatTimeout": 120000000000}], "saved_at": 0}"""
    found = decode_queue_configurations(later)
    (queue,) = found.configs
    assert (found.version, queue.name, queue.topics, queue.queue_type) == (2, "orders", ["$queue/orders/#"], "stream")
    assert (queue.durable, queue.expires_after_ns, queue.message_ttl_ns) == (False, 300 * 10**9, 7 * 86_400 * 10**9)
    assert (queue.retry_policy.max_retries, queue.retry_policy.initial_backoff_ns) == (10, 5 * 10**9)
    assert (queue.retry_policy.backoff_multiplier, queue.dead_letters.alert_webhook) == (2.0, "http://localhost/x")
    assert (queue.retention.retention_time_ns, queue.retention.compaction_key) == (3_600 * 10**9, "id")
    assert (queue.max_message_bytes, queue.heartbeat_timeout_ns) == (10 * 2**20, 120 * 10**9)

    earlier = b'{"version": 1, "configs": [{"Name": "q", "Partitions": 10, "Ordering": "partition"}], "saved_at": 17}'
    found = decode_queue_configurations(earlier)
    assert (found.configs[0].partitions, found.configs[0].ordering, found.saved_at) == (10, "partition", 17)


def test_a_group_file() -> None:
    data = b"""{"version": 2, "state": {"ID": "workers@images/#", "QueueName": "orders", "Pattern": "images/#",
        "Mode": "queue", "AutoCommit": false, "Cursor": {"Cursor": 12, "Committed": 7},
        "PEL": {"c1": [{"Offset": 9, "ConsumerID": "c1", "ClaimedAt": "2026-08-01T10:00:00.5+02:00",
                        "DeliveryCount": 2}, null], "c2": null,
                "c3": [{"Offset": 7, "ConsumerID": "c3", "ClaimedAt": "0001-01-01T00:00:00Z", "DeliveryCount": 1}]},
        "Consumers": {"c1": {"ID": "c1", "ClientID": "c1", "ProxyNodeID": "n",
            "RegisteredAt": "2026-08-01T10:00:00Z", "LastHeartbeat": "2026-08-01T10:00:01Z"}},
        "CreatedAt": "2026-08-01T10:00:00Z", "UpdatedAt": "2026-08-01T10:00:02Z"}, "saved_at": 1785578400000}"""
    found = decode_group(data)
    state = found.state
    assert state is not None
    assert (state.group_id, state.queue_name, state.pattern, state.auto_commit) == (
        "workers@images/#", "orders", "images/#", False,
    )  # fmt: skip
    assert state.cursor is not None
    assert (state.cursor.cursor, state.cursor.committed) == (12, 7)
    assert [(entry.offset, entry.consumer_id, entry.delivery_count) for entry in state.entries()] == [
        (7, "c3", 1), (9, "c1", 2),
    ]  # fmt: skip
    assert state.entries()[1].claimed_at == datetime(2026, 8, 1, 10, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=2)))
    assert state.consumers is not None
    assert state.consumers["c1"] is not None
    assert state.consumers["c1"].last_heartbeat == datetime(2026, 8, 1, 10, 0, 1, tzinfo=UTC)
    assert found.saved_at == 1_785_578_400_000


def test_fields_that_older_versions_lack_have_fluxmqs_defaults() -> None:
    state = decode_group(b'{"version": 1, "state": {"ID": "g", "QueueName": "q", "PEL": null, "Cursor": null}}').state
    assert state is not None
    assert (state.mode, state.auto_commit, state.entries(), state.consumers) == ("queue", True, [], None)
    assert decode_group(b'{"version": 2, "state": null, "saved_at": 1}').state is None


def test_consumer_state_of_both_generations() -> None:
    progress = b'{"AckFloor": 4, "Cursor": 9, "Delivered": 12, "CreatedAt": 5, "UpdatedAt": 6}'
    later = decode_consumer_state(b'{"version": 3, "group_id": "g", "state": %s, "saved_at": 7}' % progress)
    assert later.state is not None
    assert (later.version, later.group_id, later.state.ack_floor, later.state.cursor) == (3, "g", 4, 9)
    earlier = decode_consumer_state(
        b'{"version": 3, "group_id": "g", "partitions": {"0": %s, "3": %s}, "saved_at": 7}' % (progress, progress)
    )
    assert earlier.partitions is not None
    assert earlier.partitions[3] == later.state
    assert earlier.state is None


def test_a_pending_shard() -> None:
    data = b'{"version": 1, "shard_id": 3, "entries": {"11": {"o": 11, "p": 2, "c": "c1", "d": 5, "n": 2, "l": 6}}}'
    found = decode_pending_shard(data)
    assert found.entries is not None
    entry = found.entries[11]
    assert entry is not None
    assert (found.shard_id, entry.offset, entry.partition, entry.consumer) == (3, 11, 2, "c1")
    assert (entry.delivered_at_ms, entry.delivery_count, entry.last_attempt_ms) == (5, 2, 6)
    assert decode_pending_shard(b'{"version": 1, "shard_id": 0, "entries": null, "saved_at": 1}').entries is None


LINES = (
    b'{"t":1,"o":7,"c":"c1","ts":100}\n{"t":1,"c":"c1","ts":100}\n'
    b'{"t":3,"os":[0,7],"ts":101}\n{"t":8,"p":4,"o":9,"ts":1}\n'
)


def test_an_operation_log() -> None:
    log = decode_operations(LINES)
    assert [
        (one.kind, one.partition, one.offset, one.offsets, one.consumer, one.timestamp_ms) for one in log.operations
    ] == [
        (OperationKind.DELIVER, 0, 7, (), "c1", 100),
        (OperationKind.DELIVER, 0, 0, (), "c1", 100),
        (OperationKind.ACK_BATCH, 0, 0, (0, 7), "", 101),
        (OperationKind.SET_CURSOR, 4, 9, (), "", 1),
    ]
    assert (log.sound_bytes, log.problem, log.is_torn_tail) == (len(LINES), "", False)
    assert decode_operations(LINES[:-1]).operations == log.operations, "the last newline may be missing"
    assert decode_operations(b"").operations == ()


def test_a_torn_last_line_is_told_from_damage_within() -> None:
    starts = [0] + [at + 1 for at, byte in enumerate(LINES) if byte == 10]
    for length in range(len(LINES)):
        log = decode_operations(LINES[:length])
        whole = sum(1 for start in starts if start and start <= length + 1)
        assert len(log.operations) == whole
        if length in starts or length + 1 in starts:
            assert (log.problem, log.is_torn_tail) == ("", False)
        else:
            assert log.problem
            assert (log.sound_bytes, log.is_torn_tail) == (starts[whole], True)
    damaged = LINES.replace(b'"t":3', b'"t":9')
    log = decode_operations(damaged)
    assert (len(log.operations), log.sound_bytes, log.is_torn_tail) == (2, starts[2], False)
    assert "9" in log.problem
    for line in (b"\xff\n", b"\n", b'{"t":2,"o":-1,"ts":1}\n', b'{"t":2}\n', b'{"t":3,"os":["x"],"ts":1}\n'):
        log = decode_operations(LINES + line + LINES)
        assert (len(log.operations), log.sound_bytes, log.is_torn_tail) == (4, len(LINES), False), line


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_queue_configurations, b'{"version": 3, "configs": []}'),
        (decode_queue_configurations, b'{"version": 1, "configs": [{"Name": ""}]}'),
        (decode_queue_configurations, b'{"version": 1, "configs": [{"Name": "q", "MaxDepth": "many"}]}'),
        (decode_queue_configurations, b'{"configs": []}'),
        (decode_group, b'{"version": 9, "state": null}'),
        (decode_group, b'{"version": 2, "state": {"ID": "g"}}'),
        (decode_group, b'{"version": 2, "state": {"ID": "g", "QueueName": "q", "Cursor": {"Cursor": -1}}}'),
        (decode_group, b'{"version": 2, "state": {"ID": "g", "QueueName": "q", "CreatedAt": "yesterday"}}'),
        (decode_consumer_state, b'{"version": 1, "group_id": "g", "state": {"AckFloor": -1}}'),
        (decode_consumer_state, b'{"version": 1, "group_id": "g", "partitions": {"0": {"Cursor": -4}}}'),
        (decode_consumer_state, b"[]"),
        (decode_pending_shard, b'{"version":1,"shard_id":0,"entries": {"1": {"o": 2, "c":"","d":0,"n":1,"l":0}}}'),
        (decode_pending_shard, b'{"version": 1, "shard_id": -1}'),
        (decode_pending_shard, b"\xff"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(FluxMQFileError, match=r"cannot be read|not known|out of bounds|contradict"):
        decode(data)


_ENTRY = '{"version":1,"shard_id":%s,"entries":{"7":null,"%s":{"o":%s,"p":%s,"c":"c","d":1,"n":%s,"l":1}}}'
_GROUP = (
    '{"version":2,"state":{"ID":"g","QueueName":"q","Cursor":{"Cursor":%s,"Committed":%s},'
    '"PEL":{"c":[{"ConsumerID":"c","ClaimedAt":"2024-05-06T07:08:09Z","Offset":%s,"DeliveryCount":%s}]}}}'
)


@pytest.mark.parametrize(
    ("decode", "form", "numbers"),
    [
        (decode_pending_shard, _ENTRY, [(0,), (1, 2), (3,), (4,)]),
        (decode_group, _GROUP, [(0,), (1,), (2,), (3,)]),
        (
            decode_consumer_state,
            '{"version":1,"group_id":"g","state":{"AckFloor":%s,"Cursor":%s,"Delivered":%s}}',
            [(0,), (1,), (2,)],
        ),
        (
            decode_consumer_state,
            '{"version":1,"group_id":"g","partitions":{"1":null,"0":{"AckFloor":%s,"Cursor":%s,"Delivered":%s}}}',
            [(0,), (1,), (2,)],
        ),
    ],
)
def test_every_number_that_go_has_without_sign_is_taken_and_no_other(
    decode: Callable[[bytes], object], form: str, numbers: list[tuple[int, ...]]
) -> None:
    for places in numbers:
        for number, is_taken in ((0, True), (2**64 - 1, True), (-1, False), (2**64, False)):
            values = [5] * form.count("%s")
            for place in places:
                values[place] = number
            data = (form % tuple(values)).encode()
            if is_taken:
                decode(data)
            else:
                with pytest.raises(FluxMQFileError, match=rf"{number} in the \w+ \w+ is out of bounds|cannot be read"):
                    decode(data)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60) | st.sampled_from([b"{}", b"null", b"[", b'{"version":1}', LINES]))
def test_any_bytes_give_an_answer_or_the_right_error(data: bytes) -> None:
    for decode in (decode_queue_configurations, decode_group, decode_consumer_state, decode_pending_shard):
        try:
            assert isinstance(decode(data).version, int)
        except FluxMQFileError as error:
            assert str(error)
    log = decode_operations(data)
    assert log.sound_bytes <= len(data)
    assert bool(log.problem) is (log.sound_bytes < len(data))


@pytest.fixture(params=["memory", "real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    disks: dict[str, Disk] = {
        "memory": MemoryDisk(),
        "real": RealDisk(tmp_path),
        "simulated": SimDisk(random.Random(1)),
    }
    return disks[request.param]


def make(disk: Disk, *paths: str) -> None:
    for path in paths:
        disk.make_folder(path.rpartition("/")[0])
        disk.open(path, create=True).close()


def _partition_folders(disk: Disk) -> list[str]:
    (folder,) = disk.list("queues")
    return [f"queues/{folder}/partitions/{number}" for number in range(2)]


def test_group_files_are_found(disk: Disk) -> None:
    make(
        disk,
        "groups/orders/workers.json",
        "groups/$dlq/orders/workers@images.json",
        "groups/orders/workers.json.tmp",
        "groups/stray.json",
    )
    assert find_groups(disk) == ["groups/$dlq/orders/workers@images.json", "groups/orders/workers.json"]


def test_walks_and_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    make(disk, "groups/" + "a/" * 40 + "b")
    with pytest.raises(FluxMQFileError, match="nested deeper"):
        find_groups(disk)
    monkeypatch.setattr(fluxmq_files, "_MAX_FOLDERS", 20)
    wide = MemoryDisk()
    make(wide, *(f"groups/q/{number}/x" for number in range(30)))
    with pytest.raises(FluxMQFileError, match="more than 20"):
        find_groups(wide)
