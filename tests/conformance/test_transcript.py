"""Transcripts: what a reader of them takes."""

from __future__ import annotations

import msgspec

from assay.conformance.transcript import Transcript
from assay.reference_broker.trace.files import MAX_LINE_BYTES


def test_of_large_packets_the_beginning_is_kept() -> None:
    transcript = Transcript()
    transcript.add("c", "send", b"\x30" * 100, "small")
    transcript.add("c", "recv", bytes(3_000_000), "large")
    small, large = transcript.lines
    assert (small.hex, small.decoded) == ("30" * 100, "small")
    assert large.hex.strip("0") == ""
    assert large.decoded == "large [the first 32768 of 3000000 bytes]"
    assert len(msgspec.json.encode(large)) < MAX_LINE_BYTES
