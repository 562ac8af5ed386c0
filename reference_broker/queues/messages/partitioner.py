"""Which partition a message goes to: by hash of its partition key, in turn, or at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import mmh3

from assay.reference_broker.config import PartitionerKind
from assay.reference_broker.routing.remembered import Known, SharedMemory, remember

PARTITION_KEY = "partition-key"
"""The user property that carries the key."""
_FNV_OFFSET_BASIS = 0x811C9DC5
_FNV_PRIME = 0x01000193
_UINT32 = 0xFFFFFFFF
MAX_KNOWN = 4_096
_KEY_BYTES = 192
"""What a key that is remembered takes beside its characters."""

_KNOWN_HASHES: dict[str, int] = {}


def fnv1a_32(key: str) -> int:
    """FNV-1a, 32 bits, of the key's UTF-8."""
    known = _KNOWN_HASHES.get(key)
    if known is not None:
        return known
    value = _FNV_OFFSET_BASIS
    for byte in key.encode():
        value = (value ^ byte) * _FNV_PRIME & _UINT32
    return remember(_KNOWN_HASHES, key, value, len(key), MAX_KNOWN)


def murmur3_32(key: str) -> int:
    """MurmurHash3 x86 32 bits, seed 0, of the key's UTF-8."""
    return mmh3.hash(key.encode(), 0, signed=False)


HASHES: dict[PartitionerKind, Callable[[str], int]] = {
    PartitionerKind.FNV1A: fnv1a_32,
    PartitionerKind.MURMUR3: murmur3_32,
}
"""Those that go by the key."""
_IN_TURN = (PartitionerKind.MURMUR3, PartitionerKind.ROUND_ROBIN)
"""Those that deal messages without a key out in turn."""


class Partitioner:
    """Chooses the partitions of one queue.

    Where keys count, equal keys always meet in one partition while the number of partitions stays the same.
    """

    __slots__ = ("_hash", "_in_turn", "_known", "_known_for", "_random", "_turn", "cache")

    def __init__(self, kind: PartitionerKind, rng: random.Random, memory: SharedMemory) -> None:
        self._hash = HASHES.get(kind)
        self._in_turn = kind in _IN_TURN
        self._turn = 0
        self.cache: Known[str | None, int | None] = Known(memory, MAX_KNOWN)
        self._known = self.cache.answers
        """Key -> its partition among so many ..."""
        self._known_for = 0
        """... as there were at the last look."""
        self._random = rng.random

    def of_keys(self, keys: Sequence[str | None], partitions: int) -> list[int | None]:
        """The partition of each key; None where there is no key, or keys do not count."""
        if self._hash is None:
            return [None] * len(keys)
        if partitions != self._known_for:
            self.cache.let_go()
            self._known_for = partitions
        known = self._known
        try:
            return [known[key] for key in keys]
        except KeyError:
            return [self._of_key(self._hash, key, partitions) for key in keys]

    def _of_key(self, hashed: Callable[[str], int], key: str | None, partitions: int) -> int | None:
        known = self._known
        if key is None:
            return known.setdefault(None, None)
        if key in known:
            return known[key]
        length = len(key)
        return self.cache.remember(key, hashed(key) % partitions, length, _KEY_BYTES + 4 * length)

    def choose(self, key: str | None, partitions: int) -> int:
        """A partition from 0 to ``partitions - 1``."""
        if key is not None and self._hash is not None:
            return self._hash(key) % partitions
        if self._in_turn:
            # GoQueue counts from 1: the first message goes to partition 1.
            self._turn += 1
            return self._turn % partitions
        return int(self._random() * partitions)
