"""GoQueue's messages as records and back: nothing that fits is lost, nobody poses as the broker, offsets are mapped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import Headers, LogRecord, NewRecord
from assay.reference_broker.queues.messages.control_records import Outcome, control_record
from assay.reference_broker.queues.messages.publish_options import Priority
from assay.reference_broker.queues.messages.stored_message import HIDDEN, MessageCodec
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.memory_disk import MemoryDisk
from assay.reference_broker.storage_tools.foreign.goqueue_log import SoundMessage
from assay.reference_broker.storage_tools.foreign.goqueue_message import (
    GoQueueFlag,
    GoQueueLayout,
    GoQueueMessage,
    decode_message,
    encode_message,
)
from assay.reference_broker.storage_tools.foreign.goqueue_records import (
    MAX_TEXT_BYTES,
    BrokerHeaders,
    ConversionError,
    _is_text,
    to_message,
    to_record,
)
from tests.storage_tools.foreign.goqueue_folders import walk_folder, write_folder

FLAG_BITS = st.sampled_from([0, 1, 4, 5, 8, 9, 12, 24, 25, 28, 29])
NAMES = st.sampled_from([b"a", b"_a", b"__a", b"_topic", b"_priority", b"_goqueue_flags", b"assay.x", b"assay._x", b""])
HEADERS = st.lists(st.tuples(NAMES | st.binary(max_size=6), st.binary(max_size=8) | st.just(b"3")), max_size=4).map(
    tuple
)


@st.composite
def messages(draw: st.DrawFn, layout: GoQueueLayout) -> GoQueueMessage:
    headers: Headers = draw(HEADERS) if layout is GoQueueLayout.V34 else ()
    has_headers_flag = bool(headers) or draw(st.booleans())
    return GoQueueMessage(
        offset=draw(st.integers(0, 2**62)),
        timestamp_ns=draw(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**12).map(lambda ms: ms * 10**6)),
        key=draw(st.binary(max_size=5)),
        value=draw(st.binary(max_size=5)),
        flags=GoQueueFlag(draw(FLAG_BITS) | (2 if has_headers_flag else 0)),
        priority=Priority.NORMAL if layout is GoQueueLayout.V30 else draw(st.sampled_from(Priority)),
        headers=headers,
    )


@st.composite
def own_records(draw: st.DrawFn) -> LogRecord:
    """Records as this broker writes them, or as an import did."""
    headers: list[tuple[bytes, bytes]] = []
    value = draw(st.none() | st.binary(max_size=8))
    if draw(st.booleans()):
        headers.append((b"_priority", draw(st.sampled_from([b"0", b"1", b"3", b"4"]))))
    if draw(st.booleans()):
        headers.append((b"_goqueue_flags", draw(st.sampled_from([b"1", b"8", b"24", b"25"]))))
    if draw(st.booleans()):
        headers.append((b"_goqueue_timestamp_ns", b"%d" % draw(st.integers(1, 999_999))))
    text = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=6).map(str.encode)
    broker_names = st.sampled_from([b"_topic", b"_publisher", b"_correlation_data", b"_priority", b"_"])
    names = broker_names | st.sampled_from([b"__a", b"___a", b"assay.x", b"assay.assay._x", b"__"])
    taken_values = st.sampled_from([b"2", b"7", b"x", b""])
    for name in draw(st.lists(names, max_size=3)):
        is_binary = name == b"_correlation_data"
        is_taken = name == b"_priority"
        headers.append((name, draw(st.binary(max_size=5) if is_binary else taken_values if is_taken else text)))
    headers += draw(st.lists(st.tuples(st.sampled_from([b"user", b"x-y", b""]), text), max_size=2))
    timestamp_ms = draw(st.integers(-(2**62) // 10**6, 2**62 // 10**6))
    return LogRecord(draw(st.integers(0, 2**62)), timestamp_ms, draw(st.binary(max_size=4)), value, tuple(headers))


@pytest.mark.parametrize("layout", list(GoQueueLayout))
def test_an_imported_message_is_exported_byte_for_byte(layout: GoQueueLayout) -> None:
    @settings(max_examples=300, deadline=None)
    @given(message=messages(layout))
    def check(message: GoQueueMessage) -> None:
        encoded = encode_message(message, layout=layout)
        record = to_record(decode_message(encoded, layout=layout))
        exported = to_message(LogRecord(message.offset, *record), layout=layout)
        assert encode_message(exported, layout=layout) == encoded

    check()


@settings(max_examples=400, deadline=None)
@given(record=own_records())
def test_an_exported_record_is_imported_as_it_was(record: LogRecord) -> None:
    encoded = encode_message(to_message(record, broker_headers=BrokerHeaders.KEEP))
    message = decode_message(encoded)
    assert LogRecord(message.offset, *to_record(message, broker_headers=BrokerHeaders.KEEP)) == record


def test_a_null_key_comes_back_empty_and_null_is_not_an_empty_value() -> None:
    def round_trip(key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        message = to_message(LogRecord(1, 1, key, value, ()))
        assert bool(message.flags & GoQueueFlag.TOMBSTONE) is (value is None)
        record = to_record(message)
        return record.key, record.value

    assert round_trip(None, None) == (b"", None)
    assert round_trip(None, b"") == (b"", b"")
    assert round_trip(b"k", b"v") == (b"k", b"v")


def test_times_keep_their_nanoseconds() -> None:
    whole = to_record(GoQueueMessage(offset=0, timestamp_ns=1_700_000_000_123_000_000))
    assert (whole.timestamp_ms, whole.headers) == (1_700_000_000_123, ())
    odd = to_record(GoQueueMessage(offset=0, timestamp_ns=1_700_000_000_123_000_001))
    assert (odd.timestamp_ms, odd.headers) == (1_700_000_000_123, ((b"_goqueue_timestamp_ns", b"1"),))
    before_the_epoch = to_record(GoQueueMessage(offset=0, timestamp_ns=-1))
    assert (before_the_epoch.timestamp_ms, before_the_epoch.headers) == (-1, ((b"_goqueue_timestamp_ns", b"999999"),))


def test_the_broker_delivers_imported_messages_and_nobody_poses_as_it() -> None:
    headers: Headers = (
        (b"trace", b"1"),
        (b"_publisher", b"mallory"),
        (b"_expires_at", b"not a number"),
        (b"assay._publisher", b"mallory"),
        (b"binary", b"\xff\xfe"),
    )
    message = GoQueueMessage(
        offset=4, timestamp_ns=2 * 10**9 + 5, key=b"k", value=b"payload", priority=Priority.LOW, headers=headers
    )
    record = LogRecord(0, *to_record(message))
    stored = MessageCodec("orders", 0.0, SharedMemory(1 << 20)).decode(record)
    assert stored.message.payload == b"payload"
    assert stored.message.publisher == ""
    assert stored.expires_at == float("inf")
    assert stored.topic == stored.message.topic == "$queue/orders"
    assert stored.enqueued_at == 2.0
    assert stored.lane == Priority.LOW
    assert stored.message.user_properties == (
        ("_goqueue_timestamp_ns", "5"),
        ("trace", "1"),
        ("_publisher", "mallory"),
        ("_expires_at", "not a number"),
        ("assay._publisher", "mallory"),
        ("_goqueue_header", "YmluYXJ5://4="),
    )


def test_an_export_for_goqueue_leaves_out_what_only_the_broker_may_write() -> None:
    record = LogRecord(9, 1, b"", b"v", ((b"_topic", b"$queue/q"), (b"_priority", b"1"), (b"__x", b"1"), (b"y", b"2")))
    dropped = to_message(record)
    assert (dropped.priority, dropped.headers) == (Priority.HIGH, ((b"_x", b"1"), (b"y", b"2")))
    kept = to_message(record, broker_headers=BrokerHeaders.KEEP)
    assert kept.headers == ((b"assay._topic", b"$queue/q"), (b"_x", b"1"), (b"y", b"2"))


@pytest.mark.parametrize(
    ("record", "layout", "reason"),
    [
        (LogRecord(77, 1, b"k" * 65_536, b"", ()), GoQueueLayout.V34, "key of 65536 bytes"),
        (LogRecord(77, 1, b"", b"v" * (16 * 2**20 + 1), ()), GoQueueLayout.V34, "value of 16777217 bytes"),
        (LogRecord(77, 1, b"", b"", ((b"n", b"v" * 65_529),)), GoQueueLayout.V34, "headers of 65536 bytes"),
        (LogRecord(77, 1, b"", b"", ((b"n", b"v"),)), GoQueueLayout.V32, "34-byte layout"),
        (LogRecord(77, 1, b"", b"", ((b"_priority", b"0"),)), GoQueueLayout.V30, "priority"),
        (LogRecord(77, 2**63 // 10**6 + 1, b"", b"", ()), GoQueueLayout.V34, "timestamp does not fit"),
    ],
)
def test_what_does_not_fit_names_the_record(record: LogRecord, layout: GoQueueLayout, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason) as caught:
        to_message(record, layout=layout)
    assert caught.value.offset == 77
    assert str(caught.value).startswith("offset 77: ")


def test_binary_headers_come_back_whatever_their_names() -> None:
    headers: Headers = ((b"a", b"\xff"), (b"_a", b"\xff"), (b"assay._a", b"\xff"), (b"\xfe", b"text"))
    imported = LogRecord(0, *to_record(GoQueueMessage(offset=0, timestamp_ns=0, headers=headers)))
    assert {name for name, _ in imported.headers} == {b"_goqueue_header"}
    assert to_message(imported).headers == headers
    kept = to_message(imported, broker_headers=BrokerHeaders.KEEP)
    assert LogRecord(0, *to_record(kept, broker_headers=BrokerHeaders.KEEP)) == imported
    for odd in (b"", b"YQ==", b"YQ==:/w", b"YQ==:YQ==", b"!:!"):
        record = LogRecord(0, 0, b"", b"", ((b"_goqueue_header", odd),))
        assert to_message(record).headers == (), "what no import wrote is a header of the broker like any other"


def test_a_binary_header_too_large_to_keep_is_refused() -> None:
    message = GoQueueMessage(offset=5, timestamp_ns=0, headers=((b"n", b"\xff" * 60_000),))
    with pytest.raises(ConversionError, match="offset 5: a binary header"):
        to_record(message)


def test_a_partition_goes_through_our_log_and_comes_out_byte_for_byte() -> None:
    disk = MemoryDisk()
    messages_in = [
        GoQueueMessage(
            offset=number,
            timestamp_ns=1_700_000_000_000_000_000 + number,
            key=b"key %d" % (number % 3),
            value=b"" if number % 7 == 0 else bytes([number]) * number,
            flags=GoQueueFlag.TOMBSTONE if number % 7 == 0 else GoQueueFlag(0),
            priority=Priority(number % 5),
            headers=((b"_trace", b"%d" % number), (b"raw", b"\xff")) if number % 2 else (),
        )
        for number in (*range(20), *range(25, 60))
    ]
    write_folder(disk, "logs/orders/0", messages_in)
    log = SegmentedLog(
        disk,
        "queues/orders/partitions/0",
        options=LogOptions(segment_bytes=700),
        encoder=BatchEncoder(Compression.ZSTD),
        volatile=True,
        note=lambda place, problem: None,
    )
    for part in walk_folder(disk, "logs/orders/0"):
        assert isinstance(part.found, SoundMessage)
        log.append([to_record(part.found.message)])
    ours = log.read(0, 1_000)
    # Exported from our log, with the offsets that they had.
    sources = [message.offset for message in messages_in]
    exported = [to_message(record._replace(offset=source)) for record, source in zip(ours, sources, strict=True)]
    write_folder(disk, "logs/again/0", exported)
    for name in disk.list("logs/orders/0"):
        original = disk.open(f"logs/orders/0/{name}").read_at(0, 100_000)
        assert disk.open(f"logs/again/0/{name}").read_at(0, 100_000) == original


@pytest.mark.parametrize("outcome", Outcome)
def test_the_end_of_a_transaction_is_exported_as_goqueue_writes_it(outcome: Outcome) -> None:
    record = LogRecord(7, *control_record(5, 2, "t-1", outcome, 1_000))
    message = to_message(record)
    commit = GoQueueFlag.COMMIT if outcome is Outcome.COMMITTED else GoQueueFlag(0)
    assert message.flags == GoQueueFlag.CONTROL | commit
    assert message.key == b"t-1"
    assert message.value == bytes.fromhex("000000000000000500020003") + b"t-1"
    assert MessageCodec("orders", 0.0, SharedMemory(1 << 20)).decode(record) is HIDDEN
    assert to_record(message) == NewRecord(*record[1:])


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\U0001f41d"])
@pytest.mark.parametrize("size", [0, 1, MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1])
@pytest.mark.parametrize("odd", [b"", b"\0", b"\xff"])
def test_what_mqtt_carries_as_text_is_what_fits_a_string_of_it(letter: str, size: int, odd: bytes) -> None:
    """Length, zero and UTF-8 are asked of ASCII and of other letters alike, right up to the limit."""
    encoded = letter.encode()
    data = encoded * (size // len(encoded))
    data = data + b"a" * (size - len(data) - len(odd)) + odd
    try:
        expected = "\0" not in data.decode() and len(data) <= MAX_TEXT_BYTES
    except UnicodeDecodeError:
        expected = False
    assert _is_text(data) == expected
