"""W3C Trace Context, as it comes: what can be read, and that nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.trace.context import (
    MAX_STATE_CHARACTERS,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    parse_traceparent,
    parse_tracestate,
    read_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (GOOD, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-fe", False),  # of the other flags nothing is known
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01", True),  # a later version: what this one knows is read
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_what_can_be_read(text: str, sampled: bool) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        GOOD.upper(),
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01.more",
        f"00_{TRACE}_{SPAN}_01",
        f" {GOOD}",
        f"{GOOD}\n",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_what_says_nothing(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text(max_size=80))
def test_no_text_fails(text: str) -> None:
    context = parse_traceparent(text)
    assert context is None or f"{context.trace_id}-{context.span_id}" == text[3:52]
    parse_tracestate([text])


def test_two_of_them_say_nothing() -> None:
    assert read_context([(TRACEPARENT, GOOD), (TRACEPARENT, GOOD)]) is None
    assert read_context([("Traceparent", GOOD)]) is None


def test_states_are_joined_in_order() -> None:
    context = read_context([(TRACESTATE, "b=2, a=1"), ("other", "x"), (TRACEPARENT, GOOD), (TRACESTATE, " c@v=3,,")])
    assert context == TraceContext(TRACE, SPAN, True, "b=2,a=1,c@v=3")
    assert read_context([(TRACESTATE, "a=1")]) is None


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "A=1",
        "a=1,a=2",
        "a=b=c",
        "a=\tb",
        "=1",
        "a=",
        ",".join(f"k{at}=1" for at in range(33)),
        "a=" + "x" * 257,
        ",".join(f"k{at}={'x' * 100}" for at in range(6)),
    ],
)
def test_a_state_is_kept_whole_or_not_at_all(text: str) -> None:
    assert parse_tracestate([text]) == ""
    context = read_context([(TRACEPARENT, GOOD), (TRACESTATE, text)])
    assert context == TraceContext(TRACE, SPAN, True), "the parent holds all the same"
    longest = "a=" + "x" * 250
    assert parse_tracestate([longest]) == longest
    assert len(longest) <= MAX_STATE_CHARACTERS
