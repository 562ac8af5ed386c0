"""Damage to packets: bits, lengths, order, and where one packet ends and another begins."""

from __future__ import annotations

import random
from collections.abc import Callable

from assay.conformance.wire.encode import LARGEST_REMAINING_LENGTH, varint

_BYTES = (0x00, 0x01, 0x02, 0x03, 0x7F, 0x80, 0x81, 0xC0, 0xFE, 0xFF)
_PROPERTY_IDENTIFIERS = (
    0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x11, 0x12, 0x13, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1C, 0x1F, 0x21, 0x22,
    0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x7F,
)  # fmt: skip
_LENGTHS = (0, 1, 2, 3, 4, 127, 128, 129, 255, 256, 1_000, 16_383, 16_384, 65_535, 2_097_152, LARGEST_REMAINING_LENGTH)
_UTF8 = (b"\xc0\x80", b"\xed\xa0\x80", b"\xff", b"\0", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80", b"+", b"#", b"/", b"$")
_MAX_FRAME_BYTES = 65_536


def split(frame: bytes) -> tuple[int, bytes]:
    """First byte and body of a frame; one that was damaged before may have neither."""
    if not frame:
        return 0, b""
    position = 1
    while position < len(frame) and frame[position] & 0x80:
        position += 1
    return frame[0], frame[position + 1 :]


def join(header: int, body: bytes) -> bytes:
    """A frame whose length is true."""
    return bytes((header & 0xFF,)) + varint(len(body)) + body


# -- one body -----------------------------------------------------------------------------------------------------


def _flip(rng: random.Random, body: bytearray) -> None:
    if body:
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, body: bytearray) -> None:
    if body:
        body[rng.randrange(len(body))] = rng.choice(_BYTES)


def _insert(rng: random.Random, body: bytearray) -> None:
    at = rng.randint(0, len(body))
    body[at:at] = rng.randbytes(rng.randint(1, 6)) if rng.random() < 0.6 else rng.choice(_UTF8)


def _remove(rng: random.Random, body: bytearray) -> None:
    at = rng.randint(0, len(body))
    del body[at : at + rng.randint(1, 8)]


def _repeat(rng: random.Random, body: bytearray) -> None:
    at = rng.randint(0, len(body))
    piece = body[at : at + rng.randint(1, 40)]
    body[at:at] = piece * rng.choice((1, 1, 2, 20))


def _cut(rng: random.Random, body: bytearray) -> None:
    del body[rng.randint(0, len(body)) :]


def _field_length(rng: random.Random, body: bytearray) -> None:
    """A lie where a two-byte length may be."""
    if len(body) >= 2:
        at = rng.randrange(len(body) - 1)
        body[at : at + 2] = (rng.choice(_LENGTHS) & 0xFFFF).to_bytes(2, "big")


def _property(rng: random.Random, body: bytearray) -> None:
    """A property identifier, or a property with its value, somewhere."""
    at = rng.randint(0, len(body))
    if rng.random() < 0.5 and at < len(body):
        body[at] = rng.choice(_PROPERTY_IDENTIFIERS)
    else:
        body[at:at] = bytes((rng.choice(_PROPERTY_IDENTIFIERS),)) + rng.randbytes(rng.choice((1, 2, 4)))


_BODY_MUTATORS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _set, _insert, _remove, _repeat, _cut, _field_length, _property,
)  # fmt: skip


# -- one frame ----------------------------------------------------------------------------------------------------


def _reframed(rng: random.Random, frame: bytes) -> bytes:
    """A damaged body under a true length, which reaches deeper than a broken frame."""
    header, whole = split(frame)
    body = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_BODY_MUTATORS)(rng, body)
    return join(header, bytes(body))


def _raw(rng: random.Random, frame: bytes) -> bytes:
    """Damage that does not care about frames."""
    data = bytearray(frame)
    rng.choice(_BODY_MUTATORS)(rng, data)
    return bytes(data)


def _other_header(rng: random.Random, frame: bytes) -> bytes:
    header, body = split(frame)
    choice = rng.random()
    if choice < 0.4:
        header ^= 1 << rng.randrange(4)
    elif choice < 0.8:
        header = header & 0x0F | rng.randrange(16) << 4
    else:
        header = rng.randrange(256)
    return join(header, body)


def _false_length(rng: random.Random, frame: bytes) -> bytes:
    header, body = split(frame)
    choice = rng.random()
    if choice < 0.5:
        length = varint(min(max(0, len(body) + rng.choice((-3, -2, -1, 1, 2, 3, 10, 200))), LARGEST_REMAINING_LENGTH))
    elif choice < 0.7:
        length = varint(rng.choice(_LENGTHS))
    elif choice < 0.85:
        length = varint(len(body), width=rng.choice((2, 3, 4)))
    else:
        length = b"\xff\xff\xff\xff" + rng.choice((b"", b"\x7f", b"\x80"))
    return bytes((header,)) + length + body


_FRAME_MUTATORS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _reframed, _reframed, _reframed, _reframed, _raw, _other_header, _false_length,
)  # fmt: skip


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """The frame, damaged once; never more than 64 KiB."""
    return rng.choice(_FRAME_MUTATORS)(rng, frame)[:_MAX_FRAME_BYTES]


def splice(rng: random.Random, first: bytes, second: bytes) -> bytes:
    """The head of one frame and the tail of another, under a true or a false length."""
    header, head = split(first)
    _, tail = split(second)
    body = head[: rng.randint(0, len(head))] + tail[rng.randint(0, len(tail)) :]
    if rng.random() < 0.7:
        return join(header, body)
    return first[: rng.randint(1, len(first))] + second[rng.randint(0, len(second)) :]


def damage_body(rng: random.Random, body: bytearray) -> None:
    """Change it in one place."""
    rng.choice(_BODY_MUTATORS)(rng, body)


def mutate_frames(rng: random.Random, frames: list[bytes], probability: float) -> list[bytes]:
    """Frames of one send: each damaged with some probability; also repeated, dropped, swapped or spliced."""
    return mutate_with(rng, frames, probability, mutate, splice)


def mutate_with(
    rng: random.Random,
    frames: list[bytes],
    probability: float,
    mutate: Callable[[random.Random, bytes], bytes],
    splice: Callable[[random.Random, bytes, bytes], bytes],
) -> list[bytes]:
    """As :func:`mutate_frames`, for frames of any protocol."""
    out: list[bytes] = []
    for frame in frames:
        if rng.random() >= probability:
            out.append(frame)
            continue
        choice = rng.random()
        if choice < 0.75:
            out.append(mutate(rng, frame))
        elif choice < 0.83:
            out.extend((frame,) * rng.choice((2, 2, 3, 20)))
        elif choice < 0.88:
            continue
        elif choice < 0.94 and out:
            out.insert(rng.randrange(len(out)), frame)
        else:
            out.append(splice(rng, frame, rng.choice(frames)))
    return out


def chunks(rng: random.Random, data: bytes) -> tuple[bytes, ...]:
    """The stream, cut anywhere: mostly whole, at times byte by byte."""
    choice = rng.random()
    if choice < 0.6 or len(data) < 2:
        return (data,)
    if choice < 0.65 and len(data) < 200:
        return tuple(data[at : at + 1] for at in range(len(data)))
    cuts = sorted(rng.randint(1, len(data) - 1) for _ in range(rng.randint(1, 4)))
    return tuple(data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end)
