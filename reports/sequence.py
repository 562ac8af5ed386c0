"""Lay out a wire transcript as a message-sequence chart; the template only draws what stands here.

Lifelines stand in a row: half of the connections, the broker, the other half, so that a publisher and a subscriber
face each other across the broker.
"""

from __future__ import annotations

import msgspec

from assay.reference_broker.trace.conformance import WireLine
from assay.reports.humanise import duration_us
from assay.reports.transcripts import Transcript, shortened

MAX_MESSAGES = 60
MAX_CONNECTIONS = 6
BROKER = "broker"

_TIME_WIDTH = 84
_GAPS = {1: 620, 2: 440}
_NARROW_GAP = 360
_HEAD = 52
_STEP = 40
_CHARACTER_WIDTH = 7.9


class Lifeline(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    x: int
    index: int
    """Position among the connections, for its colour; -1 for the broker."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One arrow, or a note on a lifeline where ``from_x == to_x``."""

    y: int
    from_x: int
    to_x: int
    index: int
    time: str
    label: str
    full: str

    @property
    def is_note(self) -> bool:
        return self.from_x == self.to_x

    @property
    def label_x(self) -> int:
        return (self.from_x + self.to_x) // 2


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes are in SVG user units."""

    width: int
    height: int
    lifelines: list[Lifeline]
    messages: list[Message]
    left_out: int
    """Lines of the transcript that are not drawn."""


def layout(transcript: Transcript, max_messages: int = MAX_MESSAGES) -> Sequence | None:
    """The chart of a transcript; ``None`` when there is nothing to draw."""
    connections = transcript.connections[:MAX_CONNECTIONS]
    drawn = [line for line in transcript.lines if line.connection in {*connections, ""}][:max_messages]
    if not drawn or not connections:
        return None
    gap = _GAPS.get(len(connections), _NARROW_GAP)
    lifelines = _lifelines(connections, gap)
    room = int((gap - 2 * _STEP) / _CHARACTER_WIDTH)
    by_name = {line.name: line for line in lifelines if line.index >= 0}
    broker_x = next(line.x for line in lifelines if line.index < 0)
    messages = [
        _message(line, by_name.get(line.connection), broker_x, _HEAD + _STEP * (row + 1), room)
        for row, line in enumerate(drawn)
    ]
    return Sequence(
        width=_TIME_WIDTH + gap * (len(lifelines) - 1) + 2 * 80,
        height=_HEAD + _STEP * (len(drawn) + 1),
        lifelines=lifelines,
        messages=messages,
        left_out=transcript.total - len(drawn),
    )


def _lifelines(connections: list[str], gap: int) -> list[Lifeline]:
    half = (len(connections) + 1) // 2
    names: list[tuple[str, int]] = [(name, index) for index, name in enumerate(connections)]
    names.insert(half, (BROKER, -1))
    return [
        Lifeline(name=name, index=index, x=_TIME_WIDTH + 80 + gap * place) for place, (name, index) in enumerate(names)
    ]


def _message(line: WireLine, own: Lifeline | None, broker_x: int, y: int, room: int) -> Message:
    full = line.decoded or (f"{(len(line.hex) + 1) // 2} bytes" if line.hex else "")
    own_x = own.x if own else broker_x  # a note of the case itself stands in the middle
    from_x, to_x = {"send": (own_x, broker_x), "recv": (broker_x, own_x)}.get(line.direction, (own_x, own_x))
    return Message(
        y=y,
        from_x=from_x,
        to_x=to_x,
        index=own.index if own else -1,
        time=duration_us(line.t_ns / 1_000),
        label=shortened(full, room),
        full=shortened(full),
    )
