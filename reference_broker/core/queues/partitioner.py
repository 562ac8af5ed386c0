"""Which partition a message goes to: by hash of its partition key, or at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

import mmh3

from reference_broker.config import Profile

PARTITION_KEY = "partition-key"
"""The user property that carries the key."""
_FNV_OFFSET_BASIS = 0x811C9DC5
_FNV_PRIME = 0x01000193
_UINT32 = 0xFFFFFFFF


@lru_cache(maxsize=4_096)
def fnv1a_32(key: str) -> int:
    """FNV-1a, 32 bits, of the key's UTF-8."""
    value = _FNV_OFFSET_BASIS
    for byte in key.encode():
        value = (value ^ byte) * _FNV_PRIME & _UINT32
    return value


def murmur3_32(key: str) -> int:
    """MurmurHash3 x86 32 bits, seed 0, of the key's UTF-8."""
    return mmh3.hash(key.encode(), 0, signed=False)


HASHES: dict[Profile, Callable[[str], int]] = {Profile.FLUXMQ: fnv1a_32, Profile.GOQUEUE: murmur3_32}


class Partitioner:
    """Chooses partitions. Equal keys always meet in one partition while their number stays the same."""

    def __init__(self, profile: Profile, rng: random.Random) -> None:
        self._hash = HASHES[profile]
        self._random = rng.random

    def choose(self, key: str | None, partitions: int) -> int:
        """A partition from 0 to ``partitions - 1``; uniformly random without a key."""
        if key is None:
            return int(self._random() * partitions)
        return self._hash(key) % partitions
