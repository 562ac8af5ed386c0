"""What went over the wire in a case."""

from __future__ import annotations

import time
from typing import Literal

from assay.reference_broker.trace.conformance import WireLine

_STEP_NS = 100_000
"""Times are told in steps of so much: what is finer says nothing of a broker, and took much room."""
_SHOWN_BYTES = 32_768
"""Of a packet, or of what was read at once: readers of a transcript take no line of megabytes."""


class Transcript:
    """The wire lines of one case, in order of time."""

    def __init__(self) -> None:
        self.lines: list[WireLine] = []
        self._began_ns = time.perf_counter_ns()

    def add(
        self,
        connection: str,
        direction: Literal["send", "recv", "event"],
        data: bytes = b"",
        decoded: str = "",
        most_bytes: int = _SHOWN_BYTES,
    ) -> None:
        """``most_bytes`` of the data are kept."""
        elapsed_ns = (time.perf_counter_ns() - self._began_ns) // _STEP_NS * _STEP_NS
        shown = data[:most_bytes].hex()
        if len(data) > most_bytes:
            decoded += f" [the first {most_bytes} of {len(data)} bytes]"
        self.lines.append(
            WireLine(t_ns=elapsed_ns, connection=connection, direction=direction, hex=shown, decoded=decoded)
        )
