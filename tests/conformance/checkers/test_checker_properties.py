"""The checkers on generated histories: right ones are never accused, planted anomalies are always found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.conformance.checkers import anomalies, build_tables, check_history
from assay.conformance.checkers.planting import PLANTERS, plant
from assay.conformance.checkers.specimens import CONTRACT, renumber, right_history
from assay.reference_broker.trace.results import Severity, Verdict
from assay.reference_broker.trace.schema import HistoryEvent, HistoryHeader

HEADER = HistoryHeader(contract=CONTRACT)


def make(seed: int, messages: int, groups: int, consumers: int, faults: bool) -> list[HistoryEvent]:
    return right_history(random.Random(seed), messages=messages, groups=groups, consumers=consumers, faults=faults)


histories = st.builds(
    make,
    seed=st.integers(0, 2**32),
    messages=st.integers(1, 60),
    groups=st.integers(1, 3),
    consumers=st.integers(1, 3),
    faults=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(events=histories)
def test_a_right_history_is_never_accused(events: list[HistoryEvent]) -> None:
    outcome = check_history(HEADER, events)
    assert [finding.message for finding in outcome.findings] == []
    if outcome.counts["sends_ok"] and outcome.counts["deliveries"]:
        assert outcome.verdict is Verdict.PASS, outcome.reasons
    else:
        assert outcome.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("anomaly", sorted(PLANTERS))
def test_a_planted_anomaly_is_always_found(anomaly: str) -> None:
    planted = 0
    for seed in range(60):
        rng = random.Random(f"{anomaly}/{seed}")
        events = right_history(rng, messages=40, groups=1 + seed % 2, consumers=1 + seed % 3, faults=seed % 4 == 0)
        broken = plant(anomaly, rng, events)
        if broken is None:
            continue
        planted += 1
        rows = anomalies(build_tables(broken), CONTRACT)
        assert anomaly in {row.anomaly for row in rows}, f"seed {anomaly}/{seed}: found only {rows}"
        severe = any(row.severity is Severity.SAFETY for row in rows)
        assert check_history(HEADER, broken).verdict is (Verdict.FAIL if severe else Verdict.PASS)
    assert planted >= 10, f"only {planted} histories had room for {anomaly}"


@settings(max_examples=50, deadline=None)
@given(events=histories, cut=st.floats(0, 1))
def test_a_cut_history_is_unknown_and_never_accused(events: list[HistoryEvent], cut: float) -> None:
    """Whoever stops looking before the drain can prove neither loss nor health."""
    shorter = events[: int(len(events) * cut)]
    if any(event.f == "drain" for event in shorter):
        return
    outcome = check_history(HEADER, shorter)
    assert outcome.findings == []
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reasons


@settings(max_examples=30, deadline=None)
@given(events=histories)
def test_renumbering_does_not_change_the_judgement(events: list[HistoryEvent]) -> None:
    assert renumber(events) == events


def test_an_empty_history_is_unknown() -> None:
    outcome = check_history(HEADER, [])
    assert outcome.verdict is Verdict.UNKNOWN
    assert "no publish was acknowledged" in outcome.reasons


def test_events_out_of_order_are_refused() -> None:
    events = make(3, 5, 1, 1, False)
    with pytest.raises(ValueError, match="out of order"):
        check_history(HEADER, [events[1], events[0]])
