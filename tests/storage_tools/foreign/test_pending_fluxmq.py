"""FluxMQ's operation log, from bytes that a few independent lines write."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reference_broker.storage_tools.foreign.pending_fluxmq import (
    FluxmqCode,
    FluxmqOperation,
    decode_fluxmq_pending_log,
)

U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)


def operations(*, with_partition: bool) -> st.SearchStrategy[list[FluxmqOperation]]:
    partitions = st.integers(0, 2**32 - 1) if with_partition else st.just(0)
    adds = st.tuples(st.just(FluxmqCode.ADD), U64, partitions, NAMES, U64, st.integers(0, 65_535))
    short = st.tuples(st.sampled_from([FluxmqCode.ACK, FluxmqCode.EXPIRE]), U64)
    claims = st.tuples(st.just(FluxmqCode.CLAIM), U64, st.just(0), NAMES)
    return st.lists(st.one_of(adds, short, claims).map(lambda fields: FluxmqOperation(*fields)), max_size=12)


def encode(operation: FluxmqOperation, *, with_partition: bool) -> bytes:
    code, offset, partition, consumer, claimed_at_ms, count = operation
    raw = consumer.encode()
    name = bytes([len(raw)] if len(raw) < 128 else [len(raw) & 127 | 128, len(raw) >> 7]) + raw
    written = struct.pack("<BQ", code, offset)
    if code == 1:
        written += struct.pack("<I", partition) if with_partition else b""
        return written + name + struct.pack("<QH", claimed_at_ms, count)
    return written + name if code == 3 else written


def test_the_bytes_are_these() -> None:
    add = "010500000000000000{}02632de8030000000000000300"
    rest = "0206000000000000000307000000000000000164040800000000000000"
    wanted = [
        FluxmqOperation(FluxmqCode.ACK, 6),
        FluxmqOperation(FluxmqCode.CLAIM, 7, consumer="d"),
        FluxmqOperation(FluxmqCode.EXPIRE, 8),
    ]
    with_partition = bytes.fromhex(add.format("02000000") + rest)
    assert decode_fluxmq_pending_log(with_partition, with_partition=True) == (
        [FluxmqOperation(FluxmqCode.ADD, 5, 2, "c-", 1_000, 3), *wanted],
        None,
    )
    without = bytes.fromhex(add.format("") + rest)
    assert decode_fluxmq_pending_log(without, with_partition=False) == (
        [FluxmqOperation(FluxmqCode.ADD, 5, 0, "c-", 1_000, 3), *wanted],
        None,
    )


@pytest.mark.parametrize("with_partition", [True, False])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_log_cut_at_every_byte_is_a_prefix_of_its_operations(with_partition: bool, data: st.DataObject) -> None:
    wanted = data.draw(operations(with_partition=with_partition))
    log, ends = b"", [0]
    for operation in wanted:
        log += encode(operation, with_partition=with_partition)
        ends.append(len(log))
    for cut in range(len(log) + 1):
        whole = sum(end <= cut for end in ends) - 1
        found = decode_fluxmq_pending_log(log[:cut], with_partition=with_partition)
        assert found == (wanted[:whole], None if ends[whole] == cut else ends[whole])


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_no_crash(data: bytes, with_partition: bool) -> None:
    found, torn_at = decode_fluxmq_pending_log(data, with_partition=with_partition)
    assert len(found) <= len(data) // 9
    assert torn_at is None or 0 <= torn_at < len(data)


@pytest.mark.parametrize(
    "tail", [b"\x00" * 40, b"\x05" + bytes(8), b"\x03" + bytes(8) + b"\xff" * 10, b"\x03" + bytes(8) + b"\x01\xff"]
)
def test_what_is_no_operation_ends_the_log(tail: bytes) -> None:
    assert decode_fluxmq_pending_log(b"\x02" + bytes(8) + tail, with_partition=True) == (
        [FluxmqOperation(FluxmqCode.ACK, 0)],
        9,
    )
