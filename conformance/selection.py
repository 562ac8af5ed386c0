"""Which cases a run takes: by specification, area, name, a former report, and what the target has at all."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from assay.conformance.case import Case
from assay.conformance.registry import SPECS
from assay.conformance.report import ExitCode
from assay.conformance.targets import Target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, read_report
from assay.reference_broker.trace.integrity import READ_ERRORS, why

AMQP = "amqp091"
"""The capability to speak AMQP 0.9.1, and the specification of that."""
QUEUES = "queues"
"""The capability to have durable queues of Assay's kind, which no other broker has; hundreds of cases need it."""
_ABOUT = {
    QUEUES: "durable queues of Assay's kind",
    AMQP: "AMQP 0.9.1",
    "mqtt311": "MQTT",
    "http": "HTTP",
    "grpc": "gRPC",
}
TO_BE_REPEATED = (
    CaseVerdict.FAIL,
    CaseVerdict.BLOCKED,
    CaseVerdict.XPASS,
    CaseVerdict.ERROR,
    CaseVerdict.NOT_RUN,
)


class SelectionError(ValueError):
    """Nothing can be selected so; the text says what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(text)
        self.code = code


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; empty fields select everything."""

    specs: tuple[str, ...] = ()
    areas: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Ids, patterns of ids (``mqtt5/*/will-*``), or texts that an id holds."""
    exclude: tuple[str, ...] = ()
    """Names, in the same forms, that are not wanted."""
    only: frozenset[str] | None = None
    """Ids beyond which nothing is wanted."""


def split(*texts: str) -> tuple[str, ...]:
    """The names in texts that hold several, separated by commas."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def is_named(name: str, case_id: str, known: Collection[str]) -> bool:
    """Whether a name means the case. The whole id of a case means no other that merely begins with it."""
    if name in known:
        return name == case_id
    return fnmatchcase(case_id, name) if any(sign in name for sign in "*?[") else name in case_id


def _advice(name: str, known: Collection[str]) -> str:
    slugs = {part: case_id for case_id in known for part in (case_id, case_id.rpartition("/")[2])}
    near = difflib.get_close_matches(name, slugs, n=1)
    return f"did you mean {slugs[near[0]]}?" if near else "see: assay conformance list"


def select(cases: Mapping[str, Case], selection: Selection) -> list[Case]:
    """The cases that are asked for, in order of their ids. Raises :class:`SelectionError`."""
    for spec in selection.specs:
        if spec not in SPECS:
            message = f"unknown specification {spec!r}: use {', '.join(SPECS)}"
            raise SelectionError(message)
    areas = sorted({case.area for case in cases.values()})
    for area in selection.areas:
        if area not in areas:
            message = f"unknown area {area!r}: use {', '.join(areas)}"
            raise SelectionError(message)
    for name in (*selection.names, *selection.exclude):
        if not any(is_named(name, case_id, cases) for case_id in cases):
            code = ExitCode.NOTHING_SELECTED if name in selection.names else ExitCode.USAGE
            message = f"no case is selected: none has {name!r} in its id; {_advice(name, cases)}"
            raise SelectionError(message, code)
    found = [
        case
        for case_id, case in cases.items()
        if (not selection.specs or case.spec in selection.specs)
        and (not selection.areas or case.area in selection.areas)
        and (not selection.names or any(is_named(name, case_id, cases) for name in selection.names))
        and not any(is_named(name, case_id, cases) for name in selection.exclude)
        and (selection.only is None or case_id in selection.only)
    ]
    if not found:
        message = "no case is selected: no case meets all of what was asked for; see: assay conformance list"
        raise SelectionError(message, ExitCode.NOTHING_SELECTED)
    return found


def is_required(case_id: str, target: Target) -> bool:
    """Whether the target says that this case must be run."""
    return any(fnmatchcase(case_id, pattern) for pattern in target.required) and not any(
        fnmatchcase(case_id, pattern) for pattern in target.optional
    )


def _lacks(case: Case, target: Target) -> str:
    """The capability without which a case is not even asked, where the target has none of it; empty if it has."""
    said = target.capabilities
    if QUEUES in case.requires:
        return "" if said.get(QUEUES, False) else QUEUES
    if case.spec == AMQP or case.is_about_a_face:
        return "" if said.get(case.spec) or said.get(f"{case.spec}_url") else case.spec
    return "mqtt311" if said.get("mqtt311") is False and said.get("mqtt5") is False else ""


def for_target(cases: Sequence[Case], target: Target) -> list[Case]:
    """The cases without those about what the target has not at all: Assay's own queues, or a whole protocol.

    Of a broker of which nothing is said, the cases of AMQP are left out unless nothing else is asked for.
    Raises :class:`SelectionError` if none is left.
    """
    left = [case for case in cases if not _lacks(case, target) or is_required(case.id, target)]
    if cases and not left and not target.capabilities and all(case.spec == AMQP for case in cases):
        return list(cases)
    if cases and not left:
        name = _lacks(cases[0], target)
        message = (
            f"no case is selected: all of them are about {_ABOUT[name]}, which {target.name} does not have; if it has, "
            f"say so by capabilities.{name} = true in a target file"
        )
        raise SelectionError(message, ExitCode.NOTHING_SELECTED)
    return left


def left_out(cases: Sequence[Case], target: Target) -> dict[str, int]:
    """How many cases :func:`for_target` leaves out, by the capability that they need."""
    kept = {case.id for case in for_target(cases, target)}
    return dict(sorted(Counter(_lacks(case, target) for case in cases if case.id not in kept).items()))


def check_target(target: Target, known: Collection[str]) -> None:
    """Each name of a case in the target must be one. Raises :class:`SelectionError` for those that mean nothing."""
    unknown = [entry.case for entry in target.expect_fail if entry.case not in known]
    if unknown:
        message = f"target {target.name}: expect_fail names unknown cases: {', '.join(unknown)}"
        raise SelectionError(message)
    for key, patterns in (("required", target.required), ("optional", target.optional)):
        for pattern in patterns:
            if not any(fnmatchcase(case_id, pattern) for case_id in known):
                message = f"target {target.name}: {key} {pattern!r} matches no case: write patterns such as 'mqtt5/*'"
                raise SelectionError(message)


def require(target: Target, patterns: Sequence[str], cases: Sequence[Case]) -> Target:
    """The target with more required cases; each pattern must match one of those selected."""
    for pattern in patterns:
        if not any(fnmatchcase(case.id, pattern) for case in cases):
            message = f"--required {pattern!r} matches no case that is selected: write patterns such as 'mqtt5/*'"
            raise SelectionError(message)
    return msgspec.structs.replace(target, required=(*target.required, *patterns))


def results_of(report: Path) -> dict[str, CaseResult]:
    """The results in a report (``report.jsonl``, or the folder that holds it). Raises :class:`SelectionError`."""
    path = report / "report.jsonl" if report.is_dir() else report
    try:
        return {line.case: line for line in read_report(path) if isinstance(line, CaseResult)}
    except READ_ERRORS as error:
        message = f"{path} is not a whole conformance report: {why(error)}"
        raise SelectionError(message) from error


def to_be_repeated(report: Path) -> frozenset[str]:
    """Cases that failed, or were not judged, according to a report. Raises :class:`SelectionError`, also for none."""
    found = frozenset(name for name, result in results_of(report).items() if result.verdict in TO_BE_REPEATED)
    if not found:
        message = f"no case is selected: in {report} none failed, and none was left without a verdict"
        raise SelectionError(message, ExitCode.NOTHING_SELECTED)
    return found
