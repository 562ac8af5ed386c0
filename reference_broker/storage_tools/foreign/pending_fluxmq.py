"""Reads FluxMQ's own ``<group>.pel.log``: operations one after the other, without lengths and without checksums.

Each is a code u8 and an offset u64, little-endian. An add (1) goes on with the partition u32 (in files of January 2026;
later ones have none), a uvarint length and the consumer id, the time of delivery u64 (Unix ms) and the delivery count
u16; a claim (3) with a uvarint length and the new consumer's id. An ack (2) and an expiry (4) have nothing more.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from assay.reference_broker.storage.record import RecordError, read_uvarint

_START = struct.Struct("<BQ")
_PARTITION = struct.Struct("<I")
_TIME_COUNT = struct.Struct("<QH")


class FluxmqCode(IntEnum):
    """First byte of an operation."""

    ADD = 1
    ACK = 2
    CLAIM = 3
    """The new consumer has it as of the replay, delivered once more."""
    EXPIRE = 4
    """Delivered once more as of the replay."""


class FluxmqOperation(NamedTuple):
    """One operation. Only an add names a partition, a time and a count."""

    code: FluxmqCode
    offset: int
    partition: int = 0
    consumer: str = ""
    claimed_at_ms: int = 0
    delivery_count: int = 0


def decode_fluxmq_pending_log(data: bytes, *, with_partition: bool) -> tuple[list[FluxmqOperation], int | None]:
    """The operations at the start of a log, and the byte position of what follows them; None when nothing does.

    What follows is a torn tail or damage, which this format cannot tell apart: the operations before it are the state.
    """
    operations: list[FluxmqOperation] = []
    at = 0
    while at < len(data):
        try:
            operation, at = _decode(data, at, with_partition=with_partition)
        except (struct.error, RecordError, ValueError):
            return operations, at
        operations.append(operation)
    return operations, None


def _decode(data: bytes, at: int, *, with_partition: bool) -> tuple[FluxmqOperation, int]:
    number, offset = _START.unpack_from(data, at)
    at += _START.size
    code = FluxmqCode(number)
    if code is FluxmqCode.CLAIM:
        consumer, at = _read_name(data, at)
        return FluxmqOperation(code, offset, consumer=consumer), at
    if code is not FluxmqCode.ADD:
        return FluxmqOperation(code, offset), at
    partition = 0
    if with_partition:
        (partition,) = _PARTITION.unpack_from(data, at)
        at += _PARTITION.size
    consumer, at = _read_name(data, at)
    claimed_at_ms, delivery_count = _TIME_COUNT.unpack_from(data, at)
    return FluxmqOperation(code, offset, partition, consumer, claimed_at_ms, delivery_count), at + _TIME_COUNT.size


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    size, at = read_uvarint(data, at)
    if size > len(data) - at:
        raise RecordError("a name reaches past the end")
    return data[at : at + size].decode(), at + size
