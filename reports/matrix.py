"""The conformance matrix and the coverage of clauses, as plain data for the pages."""

from __future__ import annotations

from collections import Counter

import msgspec

from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Clause, ClauseStatus
from assay.reference_broker.trace.results import RunKind
from assay.reports.collect import ConformanceReport, Run, slugify
from assay.reports.verdicts import CASE_LOOKS, worst_case

SPEC_TITLES = {
    "mqtt311": "MQTT 3.1.1",
    "mqtt5": "MQTT 5.0",
    "amqp091": "AMQP 0-9-1",
    "amqp10": "AMQP 1.0",
    "queue": "Durable queues",
    "rfc6455": "WebSocket",
    "http": "HTTP",
    "grpc": "gRPC",
}
LEVELS = ("MUST", "SHOULD", "MAY")
_SAYS_NOTHING = (CaseVerdict.BLOCKED, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN)


def spec_title(spec: str) -> str:
    """The name people use for a standard; its id when it has none here."""
    return SPEC_TITLES.get(spec, spec)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One target as one run saw it."""

    run: Run
    report: ConformanceReport
    label: str
    version: str

    @property
    def counts(self) -> dict[CaseVerdict, int]:
        return self.report.counts


class AreaCell(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of one area against one target."""

    verdict: CaseVerdict
    """The gravest, so a failure can never hide behind passes."""
    counts: dict[CaseVerdict, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def passed(self) -> int:
        return self.counts.get(CaseVerdict.PASS, 0)

    @property
    def asked(self) -> int:
        """Cases that say something of the target: what it lacks, and what was not run, is no part of the fraction."""
        return self.total - sum(self.counts.get(verdict, 0) for verdict in _SAYS_NOTHING)


class AreaRow(msgspec.Struct, frozen=True, kw_only=True):
    spec: str
    area: str
    cells: list[AreaCell | None]
    """One per column; ``None`` where the target's report has no case of the area."""


class CaseRow(msgspec.Struct, frozen=True, kw_only=True):
    case: str
    title: str
    spec: str
    area: str
    level: str
    clauses: list[str]
    cells: list[CaseResult | None]

    @property
    def verdicts(self) -> list[str]:
        """Verdicts that occur in the row, for the filter."""
        return sorted({cell.verdict.value for cell in self.cells if cell is not None})

    @property
    def differs(self) -> bool:
        """Whether the targets disagree."""
        return len({cell.verdict if cell else None for cell in self.cells}) > 1


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    columns: list[Column]
    absent: list[Run]
    """Conformance runs that judged nothing, as of a broker that is not installed; their summaries say why."""
    areas: list[AreaRow]
    cases: list[CaseRow]

    @property
    def specs(self) -> list[str]:
        return list(dict.fromkeys(row.spec for row in self.areas))

    def areas_of(self, spec: str) -> list[AreaRow]:
        return [row for row in self.areas if row.spec == spec]

    def cases_of(self, spec: str, area: str) -> list[CaseRow]:
        return [row for row in self.cases if row.spec == spec and row.area == area]


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A case that tests a clause, and its verdict per column (``None``: not in that report)."""

    case: str
    verdicts: list[CaseVerdict | None]


class ClauseRow(msgspec.Struct, frozen=True, kw_only=True):
    clause: Clause
    anchor: str
    outcomes: list[CaseOutcome]


class SpecCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Every clause of one standard."""

    spec: str
    rows: list[ClauseRow]

    @property
    def counts(self) -> dict[ClauseStatus, int]:
        counted = Counter(row.clause.status for row in self.rows)
        return {status: counted[status] for status in ClauseStatus}

    @property
    def levels(self) -> dict[str, dict[ClauseStatus, int]]:
        """Counts per level; the usual levels first, others as they come."""
        names = dict.fromkeys([*LEVELS, *(row.clause.level for row in self.rows)])
        counted = Counter((row.clause.level, row.clause.status) for row in self.rows)
        table = {name: {status: counted[name, status] for status in ClauseStatus} for name in names}
        return {name: counts for name, counts in table.items() if any(counts.values())}


def clause_anchor(clause: str) -> str:
    """The fragment that names a clause on its coverage page."""
    return f"clause-{slugify(clause)}"


def build_matrix(runs: list[Run]) -> Matrix:
    """Rows by standard, area and case; a case is there if any report has it."""
    columns = _columns(runs)
    by_column = [{result.case: result for result in column.report.results} for column in columns]
    first_seen: dict[str, CaseResult] = {}
    for cases in by_column:
        for case, result in cases.items():
            first_seen.setdefault(case, result)
    rows = [
        CaseRow(
            case=case,
            title=result.title,
            spec=result.spec,
            area=result.area,
            level=result.level,
            clauses=result.clauses,
            cells=[cases.get(case) for cases in by_column],
        )
        for case, result in first_seen.items()
    ]
    specs = list(dict.fromkeys([*SPEC_TITLES, *(row.spec for row in rows)]))
    rows.sort(key=lambda row: (specs.index(row.spec), row.area, row.case))
    keys = dict.fromkeys((row.spec, row.area) for row in rows)
    areas = [
        AreaRow(spec=spec, area=area, cells=[_area_cell(cases, spec, area) for cases in by_column])
        for spec, area in keys
    ]
    absent = [run for run in runs if run.conformance is None and run.result.kind is RunKind.CONFORMANCE]
    return Matrix(columns=columns, absent=absent, areas=areas, cases=rows)


def build_coverage(matrix: Matrix) -> list[SpecCoverage]:
    """Clauses of all reports, united: a case that only one target's report knows is still shown."""
    clauses: dict[tuple[str, str], Clause] = {}
    for column in matrix.columns:
        for clause in column.report.clauses:
            known = clauses.setdefault((clause.spec, clause.id), clause)
            added = [case for case in clause.cases if case not in known.cases]
            if added:
                clauses[clause.spec, clause.id] = msgspec.structs.replace(known, cases=[*known.cases, *added])
    verdicts = {row.case: [cell.verdict if cell else None for cell in row.cells] for row in matrix.cases}
    absent: list[CaseVerdict | None] = [None] * len(matrix.columns)
    by_spec: dict[str, list[ClauseRow]] = {}
    for clause in clauses.values():
        outcomes = [CaseOutcome(case=case, verdicts=verdicts.get(case, absent)) for case in clause.cases]
        row = ClauseRow(clause=clause, anchor=clause_anchor(clause.id), outcomes=outcomes)
        by_spec.setdefault(clause.spec, []).append(row)
    return [SpecCoverage(spec=spec, rows=rows) for spec, rows in by_spec.items()]


def _columns(runs: list[Run]) -> list[Column]:
    reports = [(run, run.conformance) for run in runs if run.conformance is not None]
    named = Counter(report.header.target for _, report in reports)
    return [
        Column(
            run=run,
            report=report,
            label=report.header.target if named[report.header.target] == 1 else f"{report.header.target} · {run.place}",
            version=report.header.target_version,
        )
        for run, report in reports
    ]


def _area_cell(cases: dict[str, CaseResult], spec: str, area: str) -> AreaCell | None:
    verdicts = [result.verdict for result in cases.values() if result.spec == spec and result.area == area]
    if not verdicts:
        return None
    counted = Counter(verdicts)
    counts = {verdict: counted[verdict] for verdict in CASE_LOOKS if counted[verdict]}
    return AreaCell(verdict=worst_case(verdicts), counts=counts)
