"""Payload of a workload message: value, key and a checksum over the whole, padded to size.

Layout, ASCII: ``assay1 <crc32 of the rest, 8 hex digits> <value> <key> <padding>``.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

_MAGIC: Final = b"assay1"
_PADDING: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"


class PayloadError(ValueError):
    """A delivered payload is not one that any producer of a workload sends."""


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What a delivered payload says of itself."""

    value: str
    key: str

    @property
    def producer(self) -> str:
        """Name of the producer's stream."""
        return self.value.rpartition("-")[0]

    @property
    def seq(self) -> int:
        """Position in the producer's stream, from 0."""
        return int(self.value.rpartition("-")[2])


def encode_payload(value: str, key: str, size_bytes: int) -> bytes:
    """Bytes of a message; longer than ``size_bytes`` only when value and key alone are."""
    body = b"%s %s " % (value.encode(), key.encode())
    missing = size_bytes - len(_MAGIC) - len(b" 01234567 ") - len(body)
    if missing > 0:
        body += (_PADDING * (missing // len(_PADDING) + 1))[:missing]
    return b"%s %08x %s" % (_MAGIC, zlib.crc32(body), body)


def decode_payload(data: bytes) -> Payload:
    """Check and read a payload. Raises :class:`PayloadError` for anything altered, cut or foreign."""
    magic, _, rest = data.partition(b" ")
    checksum, _, body = rest.partition(b" ")
    if magic != _MAGIC or checksum != b"%08x" % zlib.crc32(body):
        message = f"payload of {len(data)} bytes with crc32 {zlib.crc32(data):08x} is altered or foreign"
        raise PayloadError(message)
    value, key, _ = body.split(b" ", 2)
    payload = Payload(value=value.decode(), key=key.decode())
    if not payload.value.rpartition("-")[2].isdigit():
        message = f"value {payload.value!r} has no sequence number"
        raise PayloadError(message)
    return payload
