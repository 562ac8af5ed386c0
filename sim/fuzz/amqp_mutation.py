"""Damage to frames of AMQP 0.9.1: bits, types, channels, lengths, end octets, fields within."""

from __future__ import annotations

import random
import struct

from assay.sim.fuzz.mutation import damage_body, mutate_with

_HEAD = 7
_SIZES = (0, 1, 7, 8, 255, 4_088, 4_089, 8_184, 8_185, 65_535, 131_072, 2**31, 2**32 - 1)
_WORDS = (0, 1, 2, 10, 20, 40, 50, 60, 70, 80, 85, 90, 100, 110, 120, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF)


def _split(frame: bytes) -> tuple[int, int, bytes, bytes]:
    """Type, channel, payload and rest of the first frame in some bytes; what is none has no rest."""
    if len(frame) < _HEAD:
        return 1, 0, frame, b""
    kind, channel, size = struct.unpack_from(">BHI", frame)
    return kind, channel, frame[_HEAD : _HEAD + size], frame[_HEAD + size + 1 :]


def _join(kind: int, channel: int, payload: bytes, *, size: int | None = None, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload) if size is None else size) + payload + bytes((end,))


def mutate_frame(rng: random.Random, frame: bytes) -> bytes:
    """Bytes of one or more frames, damaged once."""
    kind, channel, payload, rest = _split(frame)
    choice = rng.random()
    if choice < 0.45:
        # Under a true length, which reaches deeper than a broken frame.
        body = bytearray(payload)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            damage_body(rng, body)
        return _join(kind, channel, bytes(body)) + rest
    if choice < 0.55 and len(payload) >= 4:
        # Another class or method, with these arguments.
        at = rng.choice((0, 2))
        word = struct.pack(">H", rng.choice(_WORDS))
        return _join(kind, channel, payload[:at] + word + payload[at + 2 :]) + rest
    if choice < 0.65:
        return _join(rng.choice((0, 1, 2, 3, 4, 8, 255)), channel, payload) + rest
    if choice < 0.72:
        return _join(kind, rng.choice((0, 1, 2, 6, 7, 255, 65_535)), payload) + rest
    if choice < 0.82:
        size = rng.choice(_SIZES) if rng.random() < 0.4 else max(0, len(payload) + rng.choice((-9, -1, 1, 8)))
        return _join(kind, channel, payload, size=size) + rest
    if choice < 0.86:
        return _join(kind, channel, payload, end=rng.choice((0, 0xCD, 0xCF, 0xFF))) + rest
    if choice < 0.92:
        return rest or frame[: rng.randint(0, len(frame))]
    data = bytearray(frame)
    damage_body(rng, data)
    return bytes(data)


def mutate_amqp(rng: random.Random, frames: list[bytes], probability: float) -> list[bytes]:
    """As :func:`assay.sim.fuzz.mutation.mutate_frames`."""
    return mutate_with(rng, frames, probability, mutate_frame, _splice)


def _splice(rng: random.Random, first: bytes, second: bytes) -> bytes:
    kind, channel, head, _ = _split(first)
    _, _, tail, rest = _split(second)
    return _join(kind, channel, head[: rng.randint(0, len(head))] + tail[rng.randint(0, len(tail)) :]) + rest
