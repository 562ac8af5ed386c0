"""Read a case's wire transcript, bounded: a report shows the beginning and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from assay.reference_broker.trace.conformance import WireLine
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import READ_ERRORS, why

MAX_LINES = 400
MAX_HEX_BYTES = 64
MAX_DECODED_CHARACTERS = 600
MAX_LINE_BYTES = 4 * 1024 * 1024


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """The first lines of a transcript."""

    lines: list[WireLine]
    total: int
    problem: str = ""
    """Why it could not be read to its end."""

    @property
    def left_out(self) -> int:
        return self.total - len(self.lines)

    @property
    def connections(self) -> list[str]:
        """In order of appearance; notes of the case belong to none."""
        return list(dict.fromkeys(line.connection for line in self.lines if line.connection))


def read_transcript(path: Path, max_lines: int = MAX_LINES) -> Transcript:
    """Never raises for a bad file: what was read before the fault is shown, and ``problem`` names the line."""
    decoder = msgspec.json.Decoder(described(WireLine))
    lines: list[WireLine] = []
    total = 0
    try:
        with path.open("rb") as file:
            while text := file.readline(MAX_LINE_BYTES):
                if not text.strip():
                    continue
                total += 1
                str(text, "utf-8")
                if total <= max_lines:
                    lines.append(decoder.decode(text))
    except READ_ERRORS as error:
        return Transcript(lines=lines, total=len(lines), problem=f"line {total}: {why(error)}")
    return Transcript(lines=lines, total=total)


def hex_bytes(text: str) -> list[str]:
    """Pairs of digits, at most ``MAX_HEX_BYTES`` of them: ``["10", "0c", ...]``."""
    shown = text[: 2 * MAX_HEX_BYTES]
    return [shown[index : index + 2] for index in range(0, len(shown), 2)]


def hex_left_out(text: str) -> int:
    """Bytes that :func:`hex_bytes` leaves out."""
    return max(0, (len(text) + 1) // 2 - MAX_HEX_BYTES)


def paragraphs(text: str) -> list[str]:
    """Prose that was wrapped for an editor, one string per paragraph, to be wrapped again by the page."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def shortened(text: str, limit: int = MAX_DECODED_CHARACTERS) -> str:
    """Text cut at ``limit`` characters with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
