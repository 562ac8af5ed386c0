"""The partitioners of docs/spec/partitions.md, for the suites and for lives."""

from __future__ import annotations

_UINT32 = 0xFFFFFFFF


def fnv1a(data: bytes) -> int:
    """32 bits."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _UINT32
    return value


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _UINT32


def murmur3(data: bytes) -> int:
    """x86, 32 bits, seed 0."""
    value = 0
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little")
        value ^= _rotated(part * 0xCC9E2D51 & _UINT32, 15) * 0x1B873593 & _UINT32
        value = (_rotated(value, 13) * 5 + 0xE6546B64) & _UINT32
    rest = int.from_bytes(data[whole:], "little")
    value ^= _rotated(rest * 0xCC9E2D51 & _UINT32, 15) * 0x1B873593 & _UINT32
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _UINT32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _UINT32
    return value ^ value >> 16
