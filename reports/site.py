"""Write the report's static site: HTML that opens from a file, with its styles, scripts and raw files beside it.

The site is built in a temporary folder and then put in place whole. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import CodeType

import jinja2
import msgspec
from jinja2.bccache import Bucket
from plotly.offline import get_plotlyjs

from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Clause
from assay.reference_broker.trace.results import GRAVITY, Check, RunKind, Verdict
from assay.reports import humanise, transcripts
from assay.reports.attention import first_of_each_run, needs_attention
from assay.reports.badge import encode_badge
from assay.reports.bench import bench_cases
from assay.reports.charts import percentile_ladder, timeline
from assay.reports.collect import MARKER_FILE, RESULT_FILE, Collection, ReportError, Run, collect, slugify
from assay.reports.detail import split_detail
from assay.reports.headlines import headline, key_figures
from assay.reports.junit import junit_xml
from assay.reports.markdown import summary_markdown
from assay.reports.matrix import Column, Matrix, SpecCoverage, build_coverage, build_matrix, clause_anchor, spec_title
from assay.reports.raw_files import PLOTLY_FILE, RawFile, RawFiles, path_inside
from assay.reports.run_views import (
    check_gauge,
    checker_counts,
    compare_runs,
    evidence_table,
    plain_metrics,
    scenario_pairs,
)
from assay.reports.sequence import MAX_MESSAGES, layout
from assay.reports.sequence import Sequence as MessageSequence
from assay.reports.verdicts import (
    CASE_GRAVITY,
    CASE_LOOKS,
    CLAUSE_LOOKS,
    FAILING_CASES,
    KIND_LABELS,
    KIND_QUESTIONS,
    RUN_LOOKS,
    look_of,
)

REPORT_SCHEMA = "assay.report/1"
SCRIPTS = ("theme.js", "site.js", "filter.js", "charts.js", "cases.js")
PACKED_VERDICTS = frozenset(CaseVerdict) - FAILING_CASES
"""Cases that fail no run share a page per area, their details packed; the others have a page each."""
PACKED_MAX_LINES, PACKED_MAX_MESSAGES = 10, 4
"""What is shown of the transcript of such a case, in the table and in the drawing; the archive holds the rest."""
MAX_FINDINGS = 100
MAX_ATTENTION_PER_RUN = 4
MAX_ATTENTION_ON_INDEX = 24


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``assay-report.json``."""

    kind: RunKind
    name: str
    target: str
    verdict: Verdict
    decides: bool
    place: str
    notes: list[str] = []
    """Why the verdict is graver than the run's own."""


class ReportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``assay-report.json``: what a program needs to know of a report, and the mark of a generated site."""

    schema: str = REPORT_SCHEMA
    verdict: Verdict
    headline: str
    runs: list[ReportedRun]
    problems: list[str]


def build_report(run_folder: Path, out: Path, judged: Sequence[str] = ()) -> ReportSummary:
    """Read every run below ``run_folder``; write site, ``junit.xml``, ``summary.md`` and ``badge.json`` to ``out``.

    With ``judged``, only runs of these targets decide the verdict. Replaces a former report at ``out``. Raises
    :class:`ReportError` when there is nothing to report, or when ``out`` holds anything that is not a former report.
    """
    collection = collect(run_folder, judged)
    if out.exists() and not _replaceable(out):
        raise ReportError(
            f"{out} exists and is not a former report, so it is left alone. Name another folder with --out."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".assay-report-", dir=out.parent) as temporary:
            fresh = Path(temporary) / "site"
            summary = _write_all(collection, fresh)
            if out.exists():
                shutil.rmtree(out)
            fresh.rename(out)
    except OSError as error:
        raise ReportError(f"Cannot write the report to {out}: {error}. Name another folder with --out.") from error
    return summary


def _replaceable(out: Path) -> bool:
    return out.is_dir() and ((out / MARKER_FILE).is_file() or not any(out.iterdir()))


def _write_all(collection: Collection, site: Path) -> ReportSummary:
    summary = ReportSummary(
        verdict=collection.verdict,
        headline=headline(collection),
        runs=[
            ReportedRun(
                kind=run.result.kind,
                name=run.title,
                target=run.result.target,
                verdict=run.verdict,
                decides=run.decides,
                place=run.place,
                notes=run.notes,
            )
            for run in collection.runs
        ],
        problems=[f"{problem.path}: {problem.message}" for problem in collection.problems],
    )
    site.mkdir(parents=True)
    (site / MARKER_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    (site / "junit.xml").write_bytes(junit_xml(collection))
    (site / "summary.md").write_text(summary_markdown(collection), encoding="utf-8")
    (site / "badge.json").write_bytes(encode_badge(collection))
    _write_assets(site / "assets")
    SiteWriter(collection, site).write()
    return summary


def _write_assets(folder: Path) -> None:
    folder.mkdir()
    source = files("assay.reports") / "assets"
    for name in ("site.css", "icon.svg", *SCRIPTS):
        (folder / name).write_bytes((source / name).read_bytes())
    (folder / PLOTLY_FILE).write_text(get_plotlyjs(), encoding="utf-8")


class _CompiledTemplates(jinja2.BytecodeCache):
    """What templates were compiled to in this process: most of the time of a small report goes into that."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}
        """By template, and by the digest of its text."""

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


class SiteWriter:
    """Renders the pages of one collection. Links are relative, so the folder can be moved."""

    def __init__(self, collection: Collection, site: Path) -> None:
        self._collection = collection
        self._site = site
        self._raw = RawFiles(site)
        self._matrix: Matrix = build_matrix(collection.runs)
        self._coverage: list[SpecCoverage] = build_coverage(self._matrix)
        self._pairs = scenario_pairs(collection.runs)
        self._case_paths = {
            (column.run.slug, result.case): path
            for column in self._matrix.columns
            for result, path in _case_paths(column)
        }
        self._cells = {row.case: row.cells for row in self._matrix.cases}
        self._clauses = {
            (coverage.spec, row.clause.id): row.clause for coverage in self._coverage for row in coverage.rows
        }
        self._environment = self._make_environment()

    def write(self) -> None:
        """Every page."""
        raw = {run.slug: self._run_files(run) for run in self._collection.runs}
        items = first_of_each_run(needs_attention(self._collection), MAX_ATTENTION_PER_RUN)
        self._page("index.html", "index.html.j2", attention=items[:MAX_ATTENTION_ON_INDEX])
        for run in self._collection.runs:
            self._write_run(run, raw[run.slug])
        for name, runs in self._pairs.items():
            charts = {run.slug: timeline(run.result, f"timeline-{run.slug}") for run in runs}
            self._page(scenario_path(name), "scenario.html.j2", name=name, runs=runs, charts=charts, raw=raw)
        if self._matrix.columns:
            self._page("conformance/index.html", "matrix.html.j2")
            for coverage in self._coverage:
                self._page(coverage_path(coverage.spec), "coverage.html.j2", coverage=coverage)
            for column in self._matrix.columns:
                self._write_cases(column)
        self._raw.close()

    def _make_environment(self) -> jinja2.Environment:
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("assay.reports"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            bytecode_cache=_COMPILED,
        )
        environment.filters |= {
            "number": humanise.number,
            "quantity": humanise.quantity,
            "duration_us": humanise.duration_us,
            "words": humanise.words,
            "relation": humanise.relation,
            "plural": humanise.plural,
            "hex_bytes": transcripts.hex_bytes,
            "hex_left_out": transcripts.hex_left_out,
            "shortened": transcripts.shortened,
            "paragraphs": transcripts.paragraphs,
            "by_gravity": by_gravity,
            "gravest_first": gravest_first,
            "safe_link": safe_link,
        }
        environment.globals |= {
            "collection": self._collection,
            "headline": headline(self._collection),
            "matrix": self._matrix,
            "coverages": self._coverage,
            "pairs": self._pairs,
            "case_looks": CASE_LOOKS,
            "run_looks": RUN_LOOKS,
            "clause_looks": CLAUSE_LOOKS,
            "kind_labels": KIND_LABELS,
            "kind_questions": KIND_QUESTIONS,
            "look_of": look_of,
            "key_figures": key_figures,
            "metric": humanise.metric,
            "check_name": humanise.check_name,
            "plain_metrics": plain_metrics,
            "checker_counts": checker_counts,
            "bench_cases": bench_cases,
            "check_gauge": check_gauge,
            "evidence_table": evidence_table,
            "compare_runs": compare_runs,
            "spec_title": spec_title,
            "split_detail": split_detail,
            "run_path": run_path,
            "scenario_path": scenario_path,
            "coverage_path": coverage_path,
            "case_path": self._case_path,
            "clause_path": self._clause_path,
            "max_findings": MAX_FINDINGS,
            "not_measured": humanise.NOT_MEASURED,
        }
        return environment

    def _page(self, path: str, template: str, **context: object) -> None:
        target = self._site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * path.count("/")
        text = self._environment.get_template(template).render(root=root, here=path, **context)
        target.write_text(text, encoding="utf-8")

    def _case_path(self, run: Run, case: str) -> str:
        """Path of a case's page; empty when that run has no such case."""
        return self._case_paths.get((run.slug, case), "")

    def _clause(self, spec: str, clause_id: str) -> Clause | None:
        """The clause that a case of ``spec`` cites. Ids are unique within one standard only."""
        own = self._clauses.get((spec, clause_id))
        if own is not None:
            return own
        elsewhere = [clause for (_, known), clause in self._clauses.items() if known == clause_id]
        return elsewhere[0] if len(elsewhere) == 1 else None

    def _clause_path(self, spec: str, clause_id: str) -> str:
        """Path of a clause on its coverage page; empty when no report defines the clause."""
        clause = self._clause(spec, clause_id)
        return f"{coverage_path(clause.spec)}#{clause_anchor(clause.id)}" if clause else ""

    def _run_files(self, run: Run) -> list[RawFile]:
        named = dict(run.result.artefacts)
        own = {"result": RESULT_FILE, "conformance report": "report.jsonl"}
        named |= {
            name: path for name, path in own.items() if path not in named.values() and (run.folder / path).is_file()
        }
        return [self._raw.publish(run, name, path) for name, path in named.items()]

    def _write_run(self, run: Run, raw: list[RawFile]) -> None:
        column = next((column for column in self._matrix.columns if column.run.slug == run.slug), None)
        self._page(
            run_path(run),
            "run.html.j2",
            run=run,
            raw=raw,
            column=column,
            timeline=timeline(run.result),
            ladder=percentile_ladder(run.result.percentiles),
            sequence=_space_time(run),
            pair=run.result.name if run.result.name in self._pairs and run in self._pairs[run.result.name] else "",
        )

    def _write_cases(self, column: Column) -> None:
        bodies: dict[str, dict[str, str]] = {}
        results: dict[str, list[CaseResult]] = {}
        for before, result, after in _neighbours(column.report.results):
            context = self._case_context(column, before, result, after)
            path = self._case_path(column.run, result.case)
            if result.verdict not in PACKED_VERDICTS:
                self._page(path, "case.html.j2", **context, ids="")
                continue
            page, _, anchor = path.partition("#")
            template = self._environment.get_template("case_body.html.j2")
            body = template.render(root="../" * page.count("/"), here=page, ids=f"{anchor}-", **context)
            bodies.setdefault(page, {})[anchor] = body
            results.setdefault(page, []).append(result)
        for page, packed in bodies.items():
            data = zlib.compress(msgspec.json.encode(packed), 9)
            self._page(
                page,
                "area.html.j2",
                column=column,
                run=column.run,
                spec=results[page][0].spec,
                area=results[page][0].area,
                results=results[page],
                packed=base64.b64encode(data).decode("ascii"),
                transcripts=self._raw.archive_of(column.run),
                anchor_of=lambda result: self._case_path(column.run, result.case).partition("#")[2],
            )

    def _case_context(
        self, column: Column, before: CaseResult | None, result: CaseResult, after: CaseResult | None
    ) -> dict[str, object]:
        path = path_inside(column.run.folder, result.transcript)
        packed = result.verdict in PACKED_VERDICTS
        most = PACKED_MAX_LINES if packed else transcripts.MAX_LINES
        transcript = transcripts.read_transcript(path, most) if path is not None and path.is_file() else None
        drawn = PACKED_MAX_MESSAGES if packed else MAX_MESSAGES
        others = [
            (other, cell)
            for other, cell in zip(self._matrix.columns, self._cells[result.case], strict=True)
            if cell is not None and other is not column
        ]
        return {
            "column": column,
            "run": column.run,
            "result": result,
            "before": before,
            "after": after,
            "others": others,
            "clauses": [(clause_id, self._clause(result.spec, clause_id)) for clause_id in result.clauses],
            "transcript": transcript,
            "sequence": layout(transcript, drawn) if transcript is not None else None,
            "raw": self._raw.archive(column.run, result.transcript) if result.transcript else None,
        }


def area_path(column: Column, spec: str, area: str) -> str:
    """Site path of the cases of one area that nobody has to look at."""
    return f"conformance/{column.run.slug}/area-{slugify(spec)}-{slugify(area)}.html"


def run_path(run: Run) -> str:
    """Site path of a run's page."""
    return f"runs/{run.slug}.html"


def scenario_path(name: str) -> str:
    """Site path of the page that sets the worlds of one scenario side by side."""
    return f"scenarios/{slugify(name)}.html"


def coverage_path(spec: str) -> str:
    """Site path of a standard's clause coverage."""
    return f"conformance/coverage-{slugify(spec)}.html"


def safe_link(url: str) -> str:
    """The address if a reader may follow it from a report, else empty: no ``javascript:`` from a result file."""
    return url if url.startswith(("https://", "http://")) else ""


def by_gravity(results: list[CaseResult]) -> list[CaseResult]:
    """Gravest verdicts first, otherwise in the order of the cases."""
    return sorted(results, key=lambda result: -CASE_GRAVITY.index(result.verdict))


def gravest_first(checks: list[Check]) -> list[Check]:
    """Checks that missed their target before those that held, otherwise in the order of the run."""
    return sorted(checks, key=lambda check: -GRAVITY.index(check.verdict))


def _case_paths(column: Column) -> Iterable[tuple[CaseResult, str]]:
    taken: set[str] = set()
    for result in column.report.results:
        slug = slugify(result.case)
        number = 1
        while slug in taken:
            number += 1
            slug = f"{slugify(result.case)}-{number}"
        taken.add(slug)
        packed = result.verdict in PACKED_VERDICTS
        yield (
            result,
            f"{area_path(column, result.spec, result.area)}#{slug}"
            if packed
            else f"conformance/{column.run.slug}/{slug}.html",
        )


def _space_time(run: Run) -> MessageSequence | None:
    """The diagram of a run that left one; of a long run it holds what concerns the findings."""
    named = run.result.artefacts.get("space_time")
    path = path_inside(run.folder, named) if named else None
    return None if path is None or not path.is_file() else layout(transcripts.read_transcript(path))


def _neighbours(results: list[CaseResult]) -> Iterable[tuple[CaseResult | None, CaseResult, CaseResult | None]]:
    padded = [None, *results, None]
    for (before, result), (_, after) in pairwise(pairwise(padded)):
        if result is not None:
            yield before, result, after
