"""Runs: consecutive packets of one shape, handled as one block of bytes.

A client that pipelines sends many PUBLISH packets that differ only in packet id and payload, and as many
acknowledgements. Slicing with a step reads or writes one field of all of them at once.
"""

from __future__ import annotations

from itertools import chain

_PACKET_IDS = bytes(chain.from_iterable((number >> 8, number & 0xFF) for number in range(65_536)))
_FIRST_WINDOW_BYTES = 32
_WINDOW_BYTES = 1_024
"""Acknowledgements are looked for in so many bytes at once, whatever is behind them; in fewer first, since types may
take turns."""
_MOST_BYTES = 16_384


def packet_id_bytes(first: int, count: int) -> bytes:
    """``count`` consecutive packet ids, two bytes each."""
    return _PACKET_IDS[2 * first : 2 * (first + count)]


def ids_of(run: bytes, stride: int, offset: int) -> bytes:
    """The packet ids of a run of equally long packets, two bytes each; ``offset`` is the id's place in a packet."""
    ids = bytearray(2 * (len(run) // stride))
    ids[0::2] = run[offset::stride]
    ids[1::2] = run[offset + 1 :: stride]
    return bytes(ids)


def with_ids(run: bytes, stride: int, offset: int, ids: bytes) -> bytes:
    """The run with other packet ids."""
    stamped = bytearray(run)
    stamped[offset::stride] = ids[0::2]
    stamped[offset + 1 :: stride] = ids[1::2]
    return bytes(stamped)


def numbers(ids: bytes) -> list[int]:
    """Packet ids as numbers."""
    if len(ids) == 2:
        return [ids[0] << 8 | ids[1]]
    return [high << 8 | low for high, low in zip(ids[0::2], ids[1::2], strict=True)]


def acknowledgements(start: bytes, ids: bytes) -> bytes:
    """Acknowledgements in their 4-byte form for these packet ids; ``start`` is their first two bytes."""
    count = len(ids) // 2
    run = bytearray(start + b"\0\0") * count
    run[2::4] = ids[0::2]
    run[3::4] = ids[1::2]
    return bytes(run)


def acknowledgement_run(data: bytes, position: int) -> bytes:
    """Packet ids of the 4-byte acknowledgements of one type that stand one behind the other at ``position``: of all,
    or of many."""
    if len(data) < position + 8:
        # No other one is behind it.
        return data[position + 2 : position + 4]
    kind, length = data[position : position + 1], data[position + 1 : position + 2]
    end = position
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        window = data[end : end + window_bytes]
        kinds, lengths = window[0::4], window[1::4]
        count = min(len(window) // 4, len(kinds) - len(kinds.lstrip(kind)), len(lengths) - len(lengths.lstrip(length)))
        end += 4 * count
        if 4 * count < window_bytes or end - position >= _MOST_BYTES:
            return ids_of(data[position:end], 4, 2)
        window_bytes = _WINDOW_BYTES
