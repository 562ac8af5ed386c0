"""What one run showed, and findings grouped by class and evidence: many seeds that found one bug are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from assay.conformance.checkers.excuses import DELAYING
from assay.reference_broker.trace.results import Finding, Severity

_MOST_TEXT: Final = 160
_OF_THE_NETWORK: Final = DELAYING | {"reset"}
"""Faults that are many and seldom to blame: with them each seed would tell a story of its own."""
_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")


class FindingClass(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Findings that are most likely one bug."""

    checker: str
    anomaly: str
    evidence: str
    """The story of the first message concerned, without names and times; or what was said, without numbers."""


def class_of(finding: Finding) -> FindingClass:
    """The class of a finding."""
    story = _story(finding) or _NUMBERS.sub("#", finding.message)[:_MOST_TEXT]
    return FindingClass(checker=finding.checker, anomaly=finding.anomaly, evidence=story)


def classes_of(findings: Iterable[Finding]) -> tuple[FindingClass, ...]:
    """The classes of the findings that make a run fail, each once."""
    return tuple(dict.fromkeys(class_of(each) for each in findings if each.severity is Severity.SAFETY))


def _story(finding: Finding) -> str:
    """``publish ok, deliver, ack ok, crash, deliver``: the first value, and faults of the node between."""
    if not finding.values:
        return ""
    value = finding.values[0]
    own = [position for position, event in enumerate(finding.evidence) if event.get("value") == value]
    if not own:
        return ""
    steps = [step for event in finding.evidence[own[0] : own[-1] + 1] if (step := _step(event, value))]
    # Each step where it came first, and the one that came last: how often something went round says little.
    story = list(dict.fromkeys(steps))
    return ", ".join(story if story[-1:] == steps[-1:] else [*story, steps[-1]])


def _step(event: Mapping[str, str | float | bool], value: str) -> str:
    kind, outcome = str(event.get("f", "")), str(event.get("type", ""))
    if kind == "fault":
        fault = str(event.get("detail", "")).split(" ")[0]
        return fault if outcome == "invoke" and fault not in _OF_THE_NETWORK else ""
    if event.get("value") != value or outcome == "invoke":
        return ""
    if kind == "deliver":
        return "dead letter" if str(event.get("queue", "")).startswith("$dlq/") else "delivery"
    return f"{kind} {outcome}"
