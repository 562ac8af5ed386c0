"""Frames of one shape as numpy records: constant bytes with a few fields between, built and read by a few C loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from assay.loadtests.bench.workload import BenchError

Field = tuple[str, str]
"""A name and a numpy type, e.g. ``("tag", ">u8")``."""


class Shape:
    """What a kind of frame looks like. ``parts``: constant bytes and fields, in order."""

    def __init__(self, what: str, *parts: bytes | Field) -> None:
        self._what = what
        fields: list[tuple[str, str]] = []
        constants: list[tuple[int, bytes]] = []
        at = 0
        for part in parts:
            if isinstance(part, bytes):
                constants.append((at, part))
                fields.append((f"constant {at}", f"V{len(part)}"))
                at += len(part)
            else:
                fields.append(part)
                at += np.dtype(part[1]).itemsize
        self._dtype = np.dtype(fields)
        self.size = self._dtype.itemsize
        self._constants = [(start, start + len(part), np.frombuffer(part, np.uint8)) for start, part in constants]
        template = bytearray(self.size)
        for start, part in constants:
            template[start : start + len(part)] = part
        self._block: npt.NDArray[Any] = np.frombuffer(bytes(template), self._dtype).copy()

    def build(self, count: int, **columns: object) -> memoryview:
        """So many frames, with these fields. The buffer is reused: send it all before the next call."""
        if len(self._block) < count:
            self._block = np.repeat(self._block[:1], count)
        frames = self._block[:count]
        for name, column in columns.items():
            frames[name] = column
        return frames.data.cast("B")

    def read(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """The whole frames at the start of a buffer, as records. Raises :class:`BenchError` for any other bytes."""
        count = len(data) // self.size
        frames = np.frombuffer(data, self._dtype, count)
        rows = np.frombuffer(data, np.uint8, count * self.size).reshape(count, self.size)
        for start, end, constant in self._constants:
            if not bool((rows[:, start:end] == constant).all()):
                message = f"expected {self._what}, received {bytes(data[: self.size])[:80].hex()}"
                raise BenchError(message)
        return frames
