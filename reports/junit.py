"""JUnit XML of a report, for the test pages of CI systems.

One suite per run. A conformance case is a test case; every other run gives one test case per check and one for its
verdict. What nobody may read as success is never a plain pass: a check that was not judged is skipped, with the reason;
a run without a claim, and a cut one, are errors.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict
from assay.reference_broker.trace.results import Check, Severity, Verdict
from assay.reports.attention import describe_check
from assay.reports.collect import Collection, Run
from assay.reports.verdicts import CASE_LOOKS, RUN_LOOKS

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CASE_TAGS: dict[CaseVerdict, str] = {
    CaseVerdict.FAIL: "failure",
    CaseVerdict.XPASS: "failure",
    CaseVerdict.ERROR: "error",
    CaseVerdict.BLOCKED: "skipped",
    CaseVerdict.XFAIL: "skipped",
    CaseVerdict.UNSUPPORTED: "skipped",
    CaseVerdict.NOT_RUN: "skipped",
}
_RUN_TAGS: dict[Verdict, str] = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.UNKNOWN: "error"}
_MAX_TEXT = 20_000
NOT_JUDGED = "not judged"


def junit_xml(collection: Collection) -> bytes:
    """The whole document, UTF-8."""
    root = ElementTree.Element("testsuites", name="assay")
    for run in collection.runs:
        root.append(_suite(run))
    if collection.problems:
        suite = ElementTree.SubElement(root, "testsuite", name="unreadable files")
        for problem in collection.problems:
            _test_case(suite, "files", problem.path, "error", "cannot be read", problem.message)
        _count(suite)
    totals = {
        key: sum(int(suite.get(key, "0")) for suite in root) for key in ("tests", "failures", "errors", "skipped")
    }
    for key, total in totals.items():
        root.set(key, str(total))
    ElementTree.indent(root, space=" ")
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(run: Run) -> ElementTree.Element:
    result = run.result
    suite = ElementTree.Element("testsuite", name=_text(run.slug), time=f"{result.duration_s:.3f}")
    if result.started_at:
        suite.set("timestamp", _text(result.started_at))
    properties = {"kind": result.kind.value, "target": result.target, "world": result.world, "command": result.command}
    holder = ElementTree.SubElement(suite, "properties")
    for name, value in properties.items():
        if value:
            ElementTree.SubElement(holder, "property", name=name, value=_text(value))
    place = ".".join(part for part in (result.kind.value, run.title, result.target, result.world) if part)
    for case in run.conformance.results if run.conformance else []:
        _conformance_case(suite, result.target, case)
    for check in result.checks:
        _check_case(suite, place, check)
    tag = _RUN_TAGS.get(run.verdict, "")
    findings = [f"{finding.checker} {finding.anomaly}: {finding.message}" for finding in result.findings]
    safe = [
        line for line, finding in zip(findings, result.findings, strict=True) if finding.severity is Severity.SAFETY
    ]
    _test_case(
        suite, place, "verdict", tag, RUN_LOOKS[run.verdict].label, "\n".join([result.summary, *run.notes, *safe])
    )
    if not run.decides:
        _set_aside(suite)
    _count(suite)
    return suite


def _set_aside(suite: ElementTree.Element) -> None:
    """A run for comparison fails nobody: what went wrong in it is told as skipped."""
    for case in suite.findall("testcase"):
        for outcome in [*case.findall("failure"), *case.findall("error")]:
            outcome.tag = "skipped"
            outcome.set("message", f"for comparison only: {outcome.get('message')}")


def _conformance_case(suite: ElementTree.Element, target: str, case: CaseResult) -> None:
    slug = case.case.rsplit("/", 1)[-1]
    body = "\n".join(
        part
        for part in (
            case.title,
            case.detail,
            f"clauses: {', '.join(case.clauses)}" if case.clauses else "",
            f"reproduce: {case.reproduce}" if case.reproduce else "",
            case.link,
        )
        if part
    )
    tag = _CASE_TAGS.get(case.verdict, "")
    label = CASE_LOOKS[case.verdict].label
    message = label if case.verdict in {CaseVerdict.PASS, CaseVerdict.FAIL} else f"{label}: {case.detail}"
    _test_case(suite, f"{target}.{case.spec}.{case.area}", slug, tag, message, body, case.duration_ms / 1_000)
    if case.verdict is CaseVerdict.NON_STRICT:
        ElementTree.SubElement(suite[-1], "system-out").text = _text(f"{message}\n{body}")


def _check_case(suite: ElementTree.Element, place: str, check: Check) -> None:
    tag = "skipped" if check.verdict is Verdict.UNKNOWN else _RUN_TAGS.get(check.verdict, "")
    label = RUN_LOOKS[check.verdict].label
    message = f"{NOT_JUDGED}: {check.reason or check.source or 'no reason given'}" if tag == "skipped" else label
    _test_case(suite, place, check.name, tag, message, describe_check(check))


def _test_case(
    suite: ElementTree.Element, classname: str, name: str, tag: str, message: str, body: str, time_s: float = 0.0
) -> None:
    """``tag`` is ``failure``, ``error``, ``skipped`` or empty for a pass."""
    case = ElementTree.SubElement(suite, "testcase", classname=_text(classname), name=_text(name), time=f"{time_s:.3f}")
    if tag:
        ElementTree.SubElement(case, tag, message=_text(message)).text = _text(body)


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(1 for case in cases if case.find(tag) is not None)))


def _text(text: str) -> str:
    """XML has no way to write most control characters, so they become the replacement character."""
    return _NOT_XML.sub("\ufffd", text)[:_MAX_TEXT]
