"""The header that every payload of a load run starts with, so that a delivery tells which message it is."""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">8sIQq")
HEADER_BYTES = _HEADER.size
RUN_ID_BYTES = 8


class PayloadError(ValueError):
    """A payload is not one of a load run."""


def check_size(payload_bytes: int) -> None:
    """Raises :class:`PayloadError` when a payload of this size cannot hold the header."""
    if payload_bytes < HEADER_BYTES:
        message = f"payload_bytes must be at least {HEADER_BYTES}, the size of the header, not {payload_bytes}"
        raise PayloadError(message)


def build(run_id: bytes, publisher: int, seq: int, intended_ns: int, filler: bytes) -> bytes:
    """Header and filler. ``run_id`` has 8 bytes, ``publisher`` is a number within the run, ``seq`` counts from 0."""
    return _HEADER.pack(run_id, publisher, seq, intended_ns) + filler


def parse(payload: bytes) -> tuple[bytes, int, int, int]:
    """Run id, publisher, sequence number, intended time in ns. Raises :class:`PayloadError` when it is too short."""
    if len(payload) < HEADER_BYTES:
        message = f"a payload of {len(payload)} bytes has no load header"
        raise PayloadError(message)
    run_id, publisher, seq, intended_ns = _HEADER.unpack_from(payload)
    return run_id, publisher, seq, intended_ns


def filler(payload_bytes: int) -> bytes:
    """What follows the header, so that the payload has ``payload_bytes``. Raises :class:`PayloadError`."""
    check_size(payload_bytes)
    return bytes(65 + index % 26 for index in range(payload_bytes - HEADER_BYTES))
