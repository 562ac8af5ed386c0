"""Decoding against a decoder so simple that it can be trusted, on sound and on damaged bytes; and every flipped bit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import Headers, LogRecord, NewRecord
from assay.reference_broker.storage.batch import (
    HEADER,
    HEADER_BYTES,
    BatchEncoder,
    BatchError,
    BatchProblem,
    Wanted,
    decode_batch,
    decode_header,
    decode_verified,
    header_of,
    header_problem,
    verify_checksum,
)
from assay.reference_broker.storage.record import RecordEncoder, RecordError
from assay.reference_broker.storage.record_decoder import decode_records
from assay.reference_broker.storage.record_runs import LEAST_RUN

T0 = 1_700_000_000_000
ENCODER = RecordEncoder()


class Reference:
    """One record after the other, one byte after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def uvarint(self) -> int:
        number = 0
        for index in range(10):
            if self.at >= len(self.data):
                raise ValueError("short")
            byte = self.data[self.at]
            self.at += 1
            number += (byte % 128) << 7 * index
            if byte < 128:
                if number >= 1 << 64:
                    raise ValueError("more than 64 bits")
                return number
        raise ValueError("endless")

    def signed(self) -> int:
        number = self.uvarint()
        return -(number + 1) // 2 if number % 2 else number // 2

    def field(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise ValueError("short")
        self.at += size
        return self.data[self.at - size : self.at]

    def nullable(self) -> bytes | None:
        size = self.signed()
        if size < -1:
            raise ValueError("negative")
        return None if size == -1 else self.field(size)

    def headers(self) -> Headers:
        count = self.uvarint()
        if count > 65_535:
            raise ValueError("too many")
        return tuple((self.field(self.uvarint()), self.field(self.uvarint())) for _ in range(count))

    def records(self, count: int, base_offset: int, base_ms: int) -> list[LogRecord]:
        found = []
        for index in range(count):
            if self.uvarint() != index:
                raise ValueError("offset")
            ticks, key, value = self.signed(), self.nullable(), self.nullable()
            found.append(LogRecord(base_offset + index, base_ms + ticks, key, value, self.headers()))
        if self.at != len(self.data):
            raise ValueError("more")
        return found


def by_reference(data: bytes, count: int, base_offset: int = 0, base_ms: int = 0) -> list[LogRecord] | None:
    try:
        return Reference(data).records(count, base_offset, base_ms)
    except ValueError:
        return None


def by_codec(data: bytes, count: int, base_offset: int = 0, base_ms: int = 0) -> list[LogRecord] | None:
    try:
        return decode_records(data, count, base_offset, base_ms)
    except RecordError:
        return None


# -- batches with runs, breaks in runs, and everything between ---------------------------------------------------------

SIZES = st.sampled_from([None, 0, 1, 8, 63, 64, 100, 8_191, 8_192])
TEXTS = st.sampled_from([b"", b"a", b"_topic", b"_id", b"x" * 130])
HEADERS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple)


def content(size: int | None, seed: int) -> bytes | None:
    return None if size is None else (b"%08d" % seed * (size // 8 + 1))[:size]


AROUND = 77
"""A step that stands for times around that of the first record: whoever begins to read anywhere meets each of them."""


@st.composite
def stretches(draw: st.DrawFn) -> list[NewRecord]:
    """Stretches of records that are alike in some things and differ in others."""
    records: list[NewRecord] = []
    now = T0
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.sampled_from([1, 2, LEAST_RUN - 1, LEAST_RUN, LEAST_RUN + 1, 40, 128, 140]))
        key_size, value_size, headers = draw(SIZES), draw(SIZES), draw(HEADERS)
        if max(key_size or 0, value_size or 0) > 1_000:
            length = min(length, LEAST_RUN + 1)
        step, mixed, numbered = (
            draw(st.sampled_from([0, 0, 1, 70, -3, 9_000, AROUND, AROUND])),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for index in range(length):
            now = T0 + index * 5 % 4 - 1 if step == AROUND else now + step
            size = index * 37 % 200 if mixed else value_size
            own = ((b"_id", b"%05d" % index), *headers) if numbered else headers
            records.append(NewRecord(now, content(key_size, index), content(size, index + 7), own))
    return records


def section_of(records: list[NewRecord]) -> bytes:
    return ENCODER.encode(records)[0]


@given(stretches())
@settings(deadline=None)
def test_both_decoders_read_what_is_written(records: list[NewRecord]) -> None:
    data, base_ms = section_of(records), records[0].timestamp_ms
    expected = [LogRecord(5 + index, *record) for index, record in enumerate(records)]
    assert by_reference(data, len(records), 5, base_ms) == expected
    found = by_codec(data, len(records), 5, base_ms)
    assert found == expected
    assert all(type(record) is LogRecord for record in found)


@given(stretches(), st.data())
@settings(max_examples=300, deadline=None)
def test_both_decoders_agree_on_damaged_records(records: list[NewRecord], data: st.DataObject) -> None:
    section = bytearray(section_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(section) - 1))
        section[position] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255, section[position] ^ 1]))
    damaged = bytes(section)
    assert by_codec(damaged, len(records)) == by_reference(damaged, len(records))


@given(stretches(), st.data())
@settings(deadline=None)
def test_both_decoders_agree_on_records_cut_put_together_and_counted_wrongly(
    records: list[NewRecord], data: st.DataObject
) -> None:
    section = section_of(records)
    begin = data.draw(st.integers(0, len(section)))
    end = data.draw(st.integers(begin, len(section)))
    for changed in (section[:begin] + section[end:], section[:end] + section[begin:], section[:begin]):
        for count in {len(records), len(records) - 1, len(records) + 1} - {0}:
            assert by_codec(changed, count) == by_reference(changed, count)


RUNS = {
    "short": [NewRecord(T0, b"k", b"vv", ())] * 20,
    "null key": [NewRecord(T0, None, b"vv", ())] * 20,
    "long value": [NewRecord(T0, b"", b"v" * 64, ())] * 18,
    "ticking": [NewRecord(T0 + index, b"k", b"v", ()) for index in range(20)],
    "ticking in two bytes": [NewRecord(T0, b"k", b"v", ())]
    + [NewRecord(T0 + 70 + 9 * index, b"k", b"v", ()) for index in range(18)],
    "headers": [NewRecord(T0, b"", b"v", ((b"a", b"%02d" % index),)) for index in range(18)],
}


@pytest.mark.parametrize("name", RUNS)
def test_both_decoders_agree_on_a_run_with_any_one_byte_changed(name: str) -> None:
    section = section_of(RUNS[name])
    for position, byte in enumerate(section):
        for changed in {0, 1, 2, 3, 4, 127, 128, 129, 130, 255, byte ^ 1, byte ^ 2, byte ^ 128} - {byte}:
            damaged = section[:position] + bytes([changed]) + section[position + 1 :]
            assert by_codec(damaged, len(RUNS[name])) == by_reference(damaged, len(RUNS[name])), (position, changed)


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("record", ["00 03 6b 02 76 00", "00 02 6b 03 76 00", "00 8301 02 00", "80 80 00 03 6b 01 00"])
def test_a_whole_run_of_what_no_record_may_be_is_refused(record: str, count: int) -> None:
    """Lengths below -1, which FluxMQ never writes, in every record."""
    section = b"".join(bytes([index]) + bytes.fromhex(record) for index in range(count))
    assert by_reference(section, count) is None
    assert by_codec(section, count) is None


def test_every_timestamp_of_a_run_must_fit_64_bits() -> None:
    good, bad = b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02"
    ticks = [good] * 30 + [bad] + [good] * 9
    section = b"".join(bytes([index]) + tick + b"\x00\x00\x00" for index, tick in enumerate(ticks))
    assert by_codec(section, 40) is None
    assert by_reference(section, 40) is None
    sound = section.replace(bad, good)
    found = by_codec(sound, 40)
    assert found is not None
    assert found == by_reference(sound, 40)


@given(st.binary(max_size=120), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_both_decoders_agree_on_arbitrary_bytes(data: bytes, count: int) -> None:
    assert by_codec(data, count) == by_reference(data, count)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("at", [0, 20, 47])
def test_varints_longer_than_need_be_are_read(at: int, place: int) -> None:
    """Other writers may pad them; whatever the codec does with runs, it must read them as the reference does."""
    section = b""
    for index in range(48):
        parts = [bytes([index]), b"\x00", b"\x10", b"\x10", b"\x00"]
        if index == at:
            parts[place] = bytes([parts[place][0] | 0x80, 0x80, 0x00])
        section += parts[0] + parts[1] + parts[2] + b"01234567" + parts[3] + b"abcdefgh" + parts[4]
    expected = by_reference(section, 48)
    assert expected is not None
    assert by_codec(section, 48) == expected


def test_a_run_that_lies_about_one_offset_is_refused() -> None:
    record = bytes.fromhex("00 00 02 6b 02 76 00")
    for count, wrong in ((40, 0), (40, 20), (40, 39)):
        section = b"".join(bytes([index + (index == wrong)]) + record[1:] for index in range(count))
        with pytest.raises(RecordError, match=f"offset {100 + wrong + 1} does not follow {100 + wrong - 1}"):
            decode_records(section, count, 100, 0)


@pytest.mark.parametrize("size", [0, 1, 40])
def test_batches_of_three_byte_offset_deltas(size: int) -> None:
    records = [NewRecord(T0, None, content(size + (index % 2000 == 0), index), ()) for index in range(20_000)]
    expected = [LogRecord(index, *record) for index, record in enumerate(records)]
    section = section_of(records)
    assert decode_records(section, 20_000, 0, T0) == expected
    for index in (127, 128, 16_383, 16_384, 19_999):
        assert decode_records(section, 20_000, 0, T0, from_offset=index, limit=1) == [expected[index]]


# -- a part of a batch -------------------------------------------------------------------------------------------------


def as_wanted(record: LogRecord, wanted: Wanted) -> LogRecord:
    return LogRecord(
        record.offset,
        record.timestamp_ms,
        record.key if wanted & Wanted.KEY else None,
        record.value if wanted & Wanted.VALUE else None,
        record.headers if wanted & Wanted.HEADERS else (),
    )


@given(stretches(), st.sampled_from(Compression), st.integers(0, 7).map(Wanted), st.integers(0, 300), st.data())
@settings(deadline=None)
def test_a_part_is_the_part_of_the_whole(
    records: list[NewRecord], compression: Compression, wanted: Wanted, surplus: int, data: st.DataObject
) -> None:
    batch = BatchEncoder(compression).encode(1_000, records)
    header = decode_header(batch)
    whole = decode_verified(header, batch)
    start = data.draw(st.integers(990, 1_000 + len(records) + 10))
    limit = data.draw(st.none() | st.integers(0, len(records) + 10))
    expected = [as_wanted(record, wanted) for record in whole if record.offset >= start][:limit]
    around = bytes(surplus) + batch + bytes(surplus)
    verify_checksum(header, around, surplus)
    found = decode_verified(header, around, at=surplus, from_offset=start, limit=limit, wanted=wanted)
    assert found == expected


@given(stretches(), st.data())
@settings(deadline=None)
def test_a_part_of_a_buffer_never_reads_past_its_end(records: list[NewRecord], data: st.DataObject) -> None:
    section = section_of(records)
    end = data.draw(st.integers(0, len(section) - 1))
    with pytest.raises(RecordError):
        decode_records(section, len(records), 0, 0, end=end)
    with pytest.raises(RecordError):
        decode_records(section[:end], len(records), 0, 0, end=len(section))
    whole = decode_records(section, len(records), 0, 0)
    limit = data.draw(st.integers(1, len(records)))
    needed = len(section_of(records[:limit]))
    if needed <= end and limit < len(records):
        assert decode_records(section, len(records), 0, 0, end=end, limit=limit) == whole[:limit]
    else:
        with pytest.raises(RecordError):
            decode_records(section, len(records), 0, 0, end=end, limit=limit)


def test_what_is_not_wanted_is_checked_all_the_same() -> None:
    records = [NewRecord(T0, b"key", b"value", ((b"name", b"value"),))] * 40
    section = bytearray(section_of(records))
    section[-6] = 0x7F
    for wanted in (Wanted.ALL, Wanted.KEY, Wanted(0)):
        with pytest.raises(RecordError):
            decode_records(bytes(section), 40, 0, 0, wanted=wanted, from_offset=39)


# -- damage is noticed -------------------------------------------------------------------------------------------------

SMALL = [
    NewRecord(T0, b"k", b"value", ((b"_topic", b"$queue/q"),)),
    NewRecord(T0 - 5, None, b"", ()),
    NewRecord(T0 + 700, b"", b"z" * 300, ()),
]


@pytest.mark.parametrize("compression", Compression)
def test_every_flipped_bit_of_a_batch_is_noticed(compression: Compression) -> None:
    """Bytes 0 to 3 are compared with the magic; 4 to 7 are the checksum; all others it covers.

    A flip in the length fails in one of two ways: the header is out of bounds, or bytes are missing or too many for the
    checksum. What follows is another batch, as in a segment.
    """
    batch = BatchEncoder(compression).encode(9, SMALL)
    follower = BatchEncoder(compression).encode(12, SMALL)
    seen: dict[BatchProblem, set[int]] = {}
    for position in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            with pytest.raises(BatchError) as caught:
                decode_batch(bytes(damaged) + follower)
            seen.setdefault(caught.value.problem, set()).add(position)
    assert seen[BatchProblem.BAD_MAGIC] == {0, 1, 2, 3}
    assert {4, 5, 6, 7} <= seen[BatchProblem.BAD_CHECKSUM]
    assert set(range(HEADER_BYTES, len(batch))) <= seen[BatchProblem.BAD_CHECKSUM]
    assert seen.keys() == {
        BatchProblem.BAD_MAGIC,
        BatchProblem.BAD_CHECKSUM,
        BatchProblem.TRUNCATED,
        BatchProblem.BAD_HEADER,
        BatchProblem.BAD_VERSION,
    }


def test_the_cheap_header_check_agrees_with_the_whole_one() -> None:
    batch = BatchEncoder(Compression.NONE).encode(9, SMALL)
    for position in range(HEADER_BYTES):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            fields = HEADER.unpack_from(damaged)
            problem = header_problem(fields)
            if problem is None:
                assert header_of(fields) == decode_header(bytes(damaged))
            else:
                with pytest.raises(BatchError) as caught:
                    decode_header(bytes(damaged))
                assert caught.value.problem is problem


# -- what cannot be written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1_010, 1_015, 1_016, 1_017, 1_018, 1_030, 5_000])
def test_batches_around_the_size_that_is_copied_are_sound(size: int) -> None:
    record = NewRecord(1_000, None, bytes(size), ())
    for count in (1, 2):
        found = decode_batch(BatchEncoder(Compression.NONE).encode(7, [record] * count))
        assert [(each.offset, each.value) for each in found] == [(7 + at, bytes(size)) for at in range(count)]


@pytest.mark.parametrize("base_ms", [-(1 << 63), -1, 0, 1, (1 << 63) - 1])
@pytest.mark.parametrize("distance", [-(1 << 63) - 1, -(1 << 63), 1 - (1 << 63), (1 << 63) - 1, 1 << 63])
def test_times_as_far_apart_as_63_bits_hold_are_kept(base_ms: int, distance: int) -> None:
    """A delta is signed, so that one more fits to the past than to the future; both around their bounds."""
    times_ms = [base_ms, base_ms + distance, base_ms]
    if not -(1 << 63) <= times_ms[1] < 1 << 63:
        return
    records = [NewRecord(time_ms, None, b"v", ()) for time_ms in times_ms]
    for more in (0, 40):  # one by one, and in columns
        batch = records + records[:1] * more
        if -(1 << 63) <= distance < 1 << 63:
            found = decode_batch(BatchEncoder(Compression.NONE).encode(0, batch))
            assert [each.timestamp_ms for each in found] == times_ms + times_ms[:1] * more
        else:
            with pytest.raises(RecordError, match="63 bits"):
                BatchEncoder(Compression.NONE).encode(0, batch)


def test_times_and_offsets_beyond_64_bits_are_refused() -> None:
    encoder = BatchEncoder(Compression.NONE)
    with pytest.raises(BatchError, match="beyond 64 bits"):
        encoder.encode(0, [NewRecord(1 << 63, b"", b"", ())])
    with pytest.raises(BatchError, match="leaves no room"):
        encoder.encode(1 << 64, [NewRecord(0, b"", b"", ())])
    with pytest.raises(RecordError, match="63 bits"):
        encoder.encode(0, [NewRecord(-(1 << 62), b"", b"", ()), NewRecord(1 << 63, b"", b"", ())])
    with pytest.raises(RecordError, match="63 bits"):
        encoder.encode(0, [NewRecord((1 << 63) - 1, b"", b"", ()), NewRecord(-2, b"", b"", ())])
    extremes = [
        NewRecord(-1, b"", b"", ()),
        NewRecord((1 << 63) - 2, b"", b"", ()),
        NewRecord(-(1 << 63), b"", b"", ()),
    ]
    found = decode_batch(encoder.encode(0, extremes))
    assert [record.timestamp_ms for record in found] == [record.timestamp_ms for record in extremes]


def test_too_many_headers_are_refused() -> None:
    many: Headers = ((b"", b""),) * 65_536
    encoder = BatchEncoder(Compression.NONE)
    with pytest.raises(RecordError, match="at most 65535 headers"):
        encoder.encode(0, [NewRecord(0, b"", b"", many)])
    assert decode_batch(encoder.encode(0, [NewRecord(0, b"", b"", many[1:])]))[0].headers == many[1:]
