"""W3C Trace Context (Recommendation of 2021, Level 1): who traces a message, as its publisher says it.

A context that cannot be read is none: the trace begins anew, and nothing fails (section 3.2.2). It is read from names
and texts, whatever protocol they came by: user properties, headers, application properties, metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
DELIVERY_TRACEPARENT: Final = "delivery-traceparent"
"""What the broker adds to a delivery that it traces: its own span, for the consumer's to be a child of."""
MAX_STATE_CHARACTERS: Final = 512
"""Of a tracestate; a longer one is left out (3.3.1.5 asks for at least these to be kept)."""
_MAX_MEMBERS = 32
_SAMPLED = 1
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER = re.compile(rf"{_KEY}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class TraceContext(NamedTuple):
    """Whose child the next span is."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool
    """Its sender has traced it, and asks others to."""
    state: str = ""
    """What vendors add; passed on."""


def parse_traceparent(text: str) -> TraceContext | None:
    """A ``traceparent`` (3.2.2). None for one that says nothing: a version ``ff``, ids of zeros, capitals, a wrong
    length. Of a later version what this one knows is read (4.3)."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def parse_tracestate(texts: Iterable[str]) -> str:
    """Values of ``tracestate``, joined in their order (3.3.1); empty for what is no list of at most 32 members."""
    members = [member.strip(" \t") for text in texts for member in text.split(",")]
    members = [member for member in members if member]
    keys = {member.partition("=")[0] for member in members}
    state = ",".join(members)
    if len(members) > _MAX_MEMBERS or len(keys) < len(members) or len(state) > MAX_STATE_CHARACTERS:
        return ""
    return state if all(map(_MEMBER.fullmatch, members)) else ""


def read_context(pairs: Iterable[tuple[str, str]]) -> TraceContext | None:
    """What names and texts say; two values of ``traceparent`` say nothing."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in pairs:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    context = parse_traceparent(parents[0]) if len(parents) == 1 else None
    return context._replace(state=parse_tracestate(states)) if context is not None and states else context
