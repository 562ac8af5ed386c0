"""Books what went wrong on the rule that was broken, once: one root cause gives one failure, and blocks the rest.

A case that met the failure of a step it is not about ends as ``blocked`` (or goes on, where the step was a mere flag).
When all cases are done, each such incident gets a root:

- a case about that rule which failed, or
- where there is none, the first case that met the incident; it becomes a failure, on the clauses of the step.

A case over restarts that fails in the same way without any is blocked by a case without restarts that failed on one of
its clauses.

So nothing is hidden: a blocked case always names a failure of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from assay.conformance.case import load_cases
from assay.conformance.judged import Outcome
from assay.conformance.rules import VERSIONS, Incident, Rule, full_id
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict

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
            if _says_most(incident, result) if incident.soft else _is_about(incident.rule, result):
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


def _in_both(slug: str) -> frozenset[str]:
    return frozenset({f"mqtt311/{slug}", f"mqtt5/{slug}"})


PLAINEST: dict[Rule, frozenset[str]] = {
    Rule.DELIVERY: frozenset(
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
    | _in_both("publish/many-in-a-row-arrive-once"),
    Rule.CONTENT: frozenset({"mqtt311/publish/qos-0-arrives-unchanged", "mqtt5/publish/payload-and-topic-unchanged"})
    | _in_both("publish/many-in-a-row-arrive-once"),
    Rule.COPIES: _in_both("publish/many-in-a-row-arrive-once"),
    Rule.ORDER: frozenset({"mqtt311/order/messages-of-a-topic-keep-their-order", "mqtt5/qos/order-is-kept"}),
    Rule.STAYS_OPEN: _in_both("connect/many-in-a-row-are-served"),
    Rule.ONCE: frozenset(
        {
            "mqtt311/ping/every-pingreq-is-answered",
            "mqtt311/publish/qos-1-is-acknowledged-by-its-identifier",
            "mqtt311/publish/qos-2-takes-four-steps",
            "mqtt311/subscribe/suback-answers-each-filter-in-order",
            "mqtt311/unsubscribe/unknown-filter-is-acknowledged",
            "mqtt5/ping/every-pingreq-gets-one-pingresp",
            "mqtt5/qos/qos1-publish-gets-puback",
            "mqtt5/qos/qos2-publish-runs-to-pubcomp",
            "mqtt5/subscribe/suback-answers-filter-by-filter",
            "mqtt5/unsubscribe/unsuback-answers-filter-by-filter",
        }
    ),
    Rule.SESSION_NEW: frozenset(
        {"mqtt311/connect/session-present-0-without-a-session", "mqtt5/connack/clean-start-reports-no-session"}
    ),
    Rule.STARTS_AGAIN: _in_both("restart/sessions-without-anything"),
    Rule.SUBSCRIPTION_SURVIVES: _in_both("restart/removed-subscriptions"),
    Rule.SHARE_SURVIVES: frozenset({"mqtt5/restart/shared-subscriptions"}),
    Rule.MESSAGE_SURVIVES: _in_both("restart/one-message-for-many-sessions"),
    Rule.RETAINED_SURVIVES: _in_both("restart/retained-messages-are-replaced"),
}
"""Of each rule that many cases may well be about, the cases that are about nothing else: where they fail, no other case
can say more."""
_PLAINEST = frozenset[str]().union(*PLAINEST.values())


def _is_about(rule: Rule, result: CaseResult) -> bool:
    return rule.is_subject_of(result.case, result.clauses)


def _says_most(incident: Incident, result: CaseResult) -> bool:
    """Whether no other case can say more of a step that this one may be about."""
    plainest = PLAINEST.get(incident.rule)
    return _is_about(incident.rule, result) if plainest is None else result.case in plainest


def settle(
    outcomes: Iterable[Outcome], expected: Callable[[CaseResult], CaseResult] = lambda result: result
) -> list[Outcome]:
    """Give every incident its root. ``expected`` applies the target's known failures to a new one.

    Outcomes come back in the order in which they were given.
    """
    given = list(outcomes)
    for judges in (
        _in_both("connect/many-in-a-row-are-served"),
        _in_both("publish/many-in-a-row-arrive-once"),
        _PLAINEST,
    ):
        given = _excused(given, judges)
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
        if outcome.result.verdict in (*_SEEN, CaseVerdict.FAIL) and not outcome.result.blocked_by
        for index, incident in enumerate(outcome.incidents)
    ]
    for _size, name, index, outcome in sorted(pending, key=lambda entry: entry[:3]):
        outcome = settled.get(name, outcome)
        result, incident = outcome.result, outcome.incidents[index]
        root = ledger.root_of(incident, result)
        if incident.soft and result.verdict is not CaseVerdict.FAIL:
            continue  # it may have been the reason, no more
        if result.verdict is CaseVerdict.FAIL:
            # Failed on a step that it is about, or on one that it may be about, for which another may be the root.
            root = _end_of(root, settled)
            if root not in ("", name) and incident.soft and not _says_most(incident, result):
                settled[name] = msgspec.structs.replace(outcome, result=_blocked(result, incident, root))
            elif incident.rule is Rule.STARTS_AGAIN:
                settled[name] = msgspec.structs.replace(outcome, result=expected(_failed(result, incident)))
            continue
        if not root:
            ledger.add(incident.rule, result, incident.shape)
            settled[name] = msgspec.structs.replace(outcome, result=expected(_failed(result, incident)))
            continue
        ledger.add(incident.rule, result, incident.shape, root)
        if result.verdict is CaseVerdict.BLOCKED and not result.blocked_by:
            settled[name] = msgspec.structs.replace(outcome, result=_blocked(result, incident, root))
    booked = [settled.get(outcome.result.case, outcome) for outcome in given]
    booked = [_without_restarts(outcome, booked) for outcome in booked]
    by_case = {outcome.result.case: outcome for outcome in booked}
    for name, outcome in by_case.items():
        blocked_by = outcome.result.blocked_by
        if blocked_by and _end_of(blocked_by, by_case) != blocked_by:
            result = msgspec.structs.replace(outcome.result, blocked_by=_end_of(blocked_by, by_case))
            by_case[name] = msgspec.structs.replace(outcome, result=result)
    return list(by_case.values())


def _end_of(root: str, settled: Mapping[str, Outcome]) -> str:
    """The failure behind a root that is itself blocked by another."""
    while root in settled and settled[root].result.blocked_by:
        root = settled[root].result.blocked_by
    return root


def _excused(given: list[Outcome], judges: frozenset[str]) -> list[Outcome]:
    """What fails, or is blocked, may do so for what one of ``judges`` has failed on: it is blocked by that, then."""
    plain = _Ledger()
    sure = {
        outcome.result.case
        for outcome in given
        if outcome.result.case in judges and outcome.result.verdict in _FAILED
        if any(incident.soft and _says_most(incident, outcome.result) for incident in outcome.incidents)
    }
    for outcome in given:
        if outcome.result.case in sure:
            plain.add_failure(outcome)

    def excuse(outcome: Outcome) -> Outcome:
        result = outcome.result
        if result.verdict not in (CaseVerdict.FAIL, CaseVerdict.BLOCKED) or result.blocked_by or result.case in sure:
            return outcome
        reasons = [incident for incident in outcome.incidents if incident.soft and incident.rule in PLAINEST]
        roots = ((incident, plain.root_of(incident, result)) for incident in reasons)
        found = next(((incident, root) for incident, root in roots if root), None)
        return msgspec.structs.replace(outcome, result=_blocked(result, *found)) if found else outcome

    return [excuse(outcome) for outcome in given]


def _without_restarts(outcome: Outcome, booked: Iterable[Outcome]) -> Outcome:
    """Blocked, if it is no matter of restarts, by the failed case without any that shares the most clauses with it."""
    result = outcome.result
    if not outcome.is_no_matter_of_restarts or result.verdict is not CaseVerdict.FAIL:
        return outcome
    shared = {
        other.result.case: len({*other.result.clauses} & {*result.clauses})
        for other in booked
        if other.result.verdict in _FAILED and other.result.spec == result.spec
        if "restart" not in other.result.requires
    }
    root = max(sorted(shared), key=lambda name: shared[name], default="")
    if not root or not shared[root]:
        return outcome
    detail = f"{result.detail} (see {root})"
    blocked = msgspec.structs.replace(result, verdict=CaseVerdict.BLOCKED, detail=detail, blocked_by=root)
    return msgspec.structs.replace(outcome, result=blocked)


def step_of(result: CaseResult) -> Rule | None:
    """The rule on which a failure is booked, where it is that of a step which the case met first, and is not about."""
    return next((rule for rule in Rule if list(rule.clauses(version_of(result))) == result.clauses), None)


def is_told_by(rule: Rule, case_id: str, spec: str) -> bool:
    """Whether a failure of this case says that the rule is broken, in that version, whatever else was asked for."""
    known = load_cases().get(case_id)
    if known is None or known.spec != spec or rule.value.shaped:
        return False
    return rule.is_subject_of(case_id, known.clauses)


def _failed(result: CaseResult, incident: Incident) -> CaseResult:
    clauses = [full_id(name) for name in incident.statements] or list(incident.rule.clauses(version_of(result)))
    return msgspec.structs.replace(result, verdict=CaseVerdict.FAIL, detail=incident.text, clauses=clauses)


def _blocked(result: CaseResult, incident: Incident, root: str) -> CaseResult:
    detail = f"{incident.text} ({incident.rule.value.what}: see {root})"
    return msgspec.structs.replace(result, verdict=CaseVerdict.BLOCKED, detail=detail, blocked_by=root)
