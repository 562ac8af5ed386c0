"""What is new against before: two reports compared, and files of failures that a later run accepts.

A baseline file is TOML, written by ``assay conformance run --write-baseline`` and read by people too::

    schema = "assay.baseline/1"
    target = "mine"

    [[known]]
    case = "mqtt5/will/published-on-takeover"
    detail = "expected PUBLISH; nothing arrived within 4.7 s"
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from assay.conformance.report import ExitCode
from assay.conformance.targets import ExpectedFailure, Target, TargetError, parse_target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import why

BASELINE_SCHEMA: Literal["assay.baseline/1"] = "assay.baseline/1"
MAX_DETAIL_CHARACTERS = 500
FAILING = (CaseVerdict.FAIL, CaseVerdict.XFAIL)
PASSING = (CaseVerdict.PASS, CaseVerdict.NON_STRICT, CaseVerdict.XPASS)


class BaselineError(ValueError):
    """A baseline file cannot be used; the text says why."""


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure that is accepted."""

    case: str
    detail: str = ""
    """What was seen when it was written down; for people."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a baseline file."""

    schema: Literal["assay.baseline/1"] = BASELINE_SCHEMA
    target: str = ""
    known: tuple[Known, ...] = ()

    def accepted_by(self, target: Target, source: str) -> Target:
        """The target that also expects these failures; its own entries go first. ``source`` is named in results."""
        own = {entry.case for entry in target.expect_fail}
        more = tuple(
            ExpectedFailure(case=entry.case, reason=f"it is in the baseline {source}", link=source)
            for entry in self.known
            if entry.case not in own
        )
        return msgspec.structs.replace(target, expect_fail=(*target.expect_fail, *more))

    def stale(self, results: Mapping[str, CaseResult], known_cases: Iterable[str]) -> list[str]:
        """What entries say that is no longer so: for people."""
        told = []
        cases = set(known_cases)
        for entry in self.known:
            result = results.get(entry.case)
            if entry.case not in cases:
                told.append(f"{entry.case}: there is no such case")
            elif result is not None and result.verdict in PASSING:
                told.append(f"{entry.case}: it passes")
            elif result is not None and result.verdict is CaseVerdict.UNSUPPORTED:
                told.append(f"{entry.case}: {result.detail}")
        return told

    def renewed(self, target: Target, results: Mapping[str, CaseResult]) -> Baseline:
        """The baseline after a run: what fails now, and what it knew of cases that got no verdict meanwhile."""
        own = {entry.case for entry in target.expect_fail}
        kept = {entry.case: entry for entry in self.known}
        for case_id, result in results.items():
            if result.verdict in PASSING or result.verdict is CaseVerdict.UNSUPPORTED:
                kept.pop(case_id, None)
            elif result.verdict is CaseVerdict.FAIL or (result.verdict is CaseVerdict.XFAIL and case_id not in own):
                detail = kept[case_id].detail if case_id in kept and kept[case_id].detail else _short(result.detail)
                kept[case_id] = Known(case=case_id, detail=detail)
        return Baseline(target=target.name, known=tuple(kept[case_id] for case_id in sorted(kept)))

    def text(self) -> str:
        """The file."""
        head = f"schema = {_quoted(self.schema)}\ntarget = {_quoted(self.target)}\n"
        entries = (
            f"\n[[known]]\ncase = {_quoted(entry.case)}\ndetail = {_quoted(entry.detail)}\n" for entry in self.known
        )
        return head + "".join(entries)


def _short(detail: str) -> str:
    line = detail.partition("\n")[0]
    return line if len(line) <= MAX_DETAIL_CHARACTERS else f"{line[: MAX_DETAIL_CHARACTERS - 3]}..."


def _quoted(text: str) -> str:
    """A basic string of TOML: that of JSON, but for the character DEL and halves of surrogate pairs."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_baseline(path: Path) -> Baseline:
    """Raises :class:`BaselineError`."""
    try:
        baseline = msgspec.toml.decode(path.read_text(encoding="utf-8"), type=described(Baseline))
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        message = f"{path} is no baseline: {why(error)}; --write-baseline writes one"
        raise BaselineError(message) from error
    return baseline


def write_baseline(path: Path, target: Target, results: Mapping[str, CaseResult]) -> int:
    """Write what fails, in place of what an older baseline says of these cases; returns the number of its entries.

    To a target file (one with ``name`` or ``[start]``) the new failures are appended as ``expect_fail``.
    Raises :class:`BaselineError`.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        own = parse_target(text, where=str(path)) if is_target(text) else None
        if own is not None:
            new = [
                known for known in Baseline().renewed(own, results).known if own.expected_failure(known.case) is None
            ]
            path.write_text(text.rstrip("\n") + "\n" + "".join(map(_as_expected_failure, new)), encoding="utf-8")
            return len(new)
        renewed = (read_baseline(path) if text.strip() else Baseline()).renewed(target, results)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(renewed.text(), encoding="utf-8")
        return len(renewed.known)
    except (OSError, UnicodeDecodeError, TargetError) as error:
        message = f"cannot write the baseline {path}: {why(error)}"
        raise BaselineError(message) from error


def is_target(text: str) -> bool:
    """Whether this is the text of a target file, and not of a baseline."""
    try:
        content = msgspec.toml.decode(text)
    except msgspec.MsgspecError:
        return False
    return (
        isinstance(content, dict) and not str(content.get("schema", "")).startswith("assay.baseline/") and bool(content)
    )


def _as_expected_failure(known: Known) -> str:
    reason, link = _quoted(known.detail or "not looked into yet"), _quoted("not reported yet")
    return f"\n[[expect_fail]]\ncase = {_quoted(known.case)}\nreason = {reason}\nlink = {link}\n"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A case on which two reports differ."""

    case: str
    before: CaseVerdict | None
    """None: the report has no result of it."""
    after: CaseVerdict | None
    detail: str = ""
    """Of the later result."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What a later report says otherwise than a former one."""

    newly_failing: list[Change]
    fixed: list[Change]
    lost: list[Change]
    """Cases that had a verdict before, and were run without getting one."""
    changed: list[Change]
    """Any other change, such as a SHOULD that is missed now, or a capability that is gone."""
    same: int

    @property
    def exit_code(self) -> ExitCode:
        if self.newly_failing:
            return ExitCode.FAILED
        return ExitCode.UNREACHABLE if self.lost else ExitCode.OK


def difference(before: Mapping[str, CaseResult], after: Mapping[str, CaseResult]) -> Difference:
    """Compare the results of two reports, by case."""
    found = Difference(newly_failing=[], fixed=[], lost=[], changed=[], same=0)
    same = 0
    for case_id in sorted({*before, *after}):
        old = before[case_id].verdict if case_id in before else None
        new = after[case_id].verdict if case_id in after else None
        if old is new:
            same += 1
            continue
        change = Change(case=case_id, before=old, after=new, detail=after[case_id].detail if case_id in after else "")
        _group(found, change).append(change)
    return msgspec.structs.replace(found, same=same)


def _group(found: Difference, change: Change) -> list[Change]:
    judged = (*FAILING, *PASSING)
    if change.after in FAILING and change.before not in FAILING:
        return found.newly_failing
    if change.before in FAILING and change.after in PASSING:
        return found.fixed
    if change.before in judged and change.after not in (*judged, CaseVerdict.UNSUPPORTED, None):
        return found.lost
    return found.changed


def as_rows(difference: Difference) -> Sequence[tuple[str, list[Change]]]:
    """The groups with their titles, the gravest first."""
    return (
        ("newly failing", difference.newly_failing),
        ("no verdict any more", difference.lost),
        ("fixed", difference.fixed),
        ("changed", difference.changed),
    )
