"""Books what went wrong on the rule that was broken, once: one root cause gives one failure, and blocks the rest.

A case that met the failure of a step it is not about ends as ``blocked`` (or goes on, where the step was a mere flag).
When all cases are done, each such incident gets a root:

- a case about that rule which failed, or
- where there is none, the first case that met the incident; it becomes a failure, on the clauses of the step.

So nothing is hidden: a blocked case always names a failure of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from conformance.rules import VERSIONS, Incident, Rule
from reference_broker.trace.conformance import CaseResult, CaseVerdict

if TYPE_CHECKING:
    from conformance.engine import Outcome

_FAILED = (CaseVerdict.FAIL, CaseVerdict.XFAIL)
_SEEN = (CaseVerdict.BLOCKED, CaseVerdict.PASS, CaseVerdict.NON_STRICT, CaseVerdict.XPASS)
"""Verdicts under which an incident is still to be booked; the others have said worse, or nothing, of the broker."""


class _Root(msgspec.Struct, frozen=True, kw_only=True):
    shape: frozenset[str]
    case: str

    def explains(self, incident: Incident) -> bool:
        """What fails when it is asked plainly fails in any form; a case about the rule may have asked in its own."""
        return self.shape <= incident.shape or incident.shape <= self.shape


def version_of(result: CaseResult) -> int:
    """The protocol version that the case speaks."""
    return VERSIONS[result.spec]


class _Ledger:
    """The failures of a run, by the rules they are about."""

    def __init__(self) -> None:
        self._roots: dict[tuple[Rule, int], list[_Root]] = {}

    def add(self, rule: Rule, result: CaseResult, shape: frozenset[str], case: str = "") -> None:
        """``result`` met it in this shape; the root is its case, or ``case``."""
        known = self._roots.setdefault((rule, version_of(result)), [])
        known.append(_Root(shape=shape, case=case or result.case))

    def add_failure(self, outcome: Outcome) -> None:
        """A case that failed on its own account."""
        result = outcome.result
        for incident in outcome.incidents:
            if result.case in BASIC_DELIVERIES if incident.soft else _is_about(incident.rule, result):
                self.add(incident.rule, result, incident.shape)

    def add_related(self, outcome: Outcome) -> None:
        """A case that failed and is about a rule, though it did not fail on a step: a root where there is no better."""
        for rule in Rule:
            if not rule.value.shaped and _is_about(rule, outcome.result):
                self.add(rule, outcome.result, frozenset())

    def root_of(self, incident: Incident, result: CaseResult) -> str:
        """The case that is the root of an incident; empty if there is none yet."""
        known = self._roots.get((incident.rule, version_of(result)), [])
        return next((root.case for root in known if root.explains(incident) and root.case != result.case), "")


BASIC_DELIVERIES = frozenset(
    {
        "mqtt311/publish/qos-0-arrives-unchanged",
        "mqtt311/retained/sent-to-a-new-subscriber",
        "mqtt311/session/keeps-subscriptions-and-messages",
        "mqtt311/will/published-when-the-connection-breaks",
        "mqtt5/publish/payload-and-topic-unchanged",
        "mqtt5/retained/new-subscriber-gets-the-last-one",
        "mqtt5/session/keeps-messages-while-away",
        "mqtt5/shared/each-message-goes-to-one-member",
        "mqtt5/will/published-when-the-connection-is-lost",
    }
)
"""Cases that are about nothing but that a message arrives: where they fail, no other case can say more."""


def _is_about(rule: Rule, result: CaseResult) -> bool:
    return rule.is_subject_of(result.case, result.clauses)


def settle(
    outcomes: Iterable[Outcome], expected: Callable[[CaseResult], CaseResult] = lambda result: result
) -> list[Outcome]:
    """Give every incident its root. ``expected`` applies the target's known failures to a new one.

    Outcomes come back in the order in which they were given.
    """
    given = list(outcomes)
    ledger = _Ledger()
    failed = [outcome for outcome in given if outcome.result.verdict in _FAILED]
    for outcome in failed:
        ledger.add_failure(outcome)
    for outcome in failed:
        ledger.add_related(outcome)
    settled: dict[str, Outcome] = {}
    # The plainest request first: it explains those that asked for more.
    pending = [
        (len(incident.shape), outcome.result.case, index, outcome)
        for outcome in given
        if outcome.result.verdict in (*_SEEN, CaseVerdict.FAIL)
        for index, incident in enumerate(outcome.incidents)
    ]
    for _size, name, index, outcome in sorted(pending, key=lambda entry: entry[:3]):
        outcome = settled.get(name, outcome)
        result, incident = outcome.result, outcome.incidents[index]
        root = ledger.root_of(incident, result)
        if result.verdict is CaseVerdict.FAIL:
            # Failed on a step that it is about, or on a delivery, for which another may be the root.
            if root and incident.soft and name not in BASIC_DELIVERIES:
                settled[name] = msgspec.structs.replace(outcome, result=_blocked(result, incident, root))
            continue
        if not root:
            ledger.add(incident.rule, result, incident.shape)
            settled[name] = msgspec.structs.replace(outcome, result=expected(_failed(result, incident)))
            continue
        ledger.add(incident.rule, result, incident.shape, root)
        if result.verdict is CaseVerdict.BLOCKED and not result.blocked_by:
            settled[name] = msgspec.structs.replace(outcome, result=_blocked(result, incident, root))
    return [settled.get(outcome.result.case, outcome) for outcome in given]


def _failed(result: CaseResult, incident: Incident) -> CaseResult:
    clauses = [f"MQTT-{name}" for name in incident.statements] or list(incident.rule.clauses(version_of(result)))
    return msgspec.structs.replace(result, verdict=CaseVerdict.FAIL, detail=incident.text, clauses=clauses)


def _blocked(result: CaseResult, incident: Incident, root: str) -> CaseResult:
    detail = f"{incident.text} ({incident.rule.value.what}: see {root})"
    return msgspec.structs.replace(result, verdict=CaseVerdict.BLOCKED, detail=detail, blocked_by=root)
