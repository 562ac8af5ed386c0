"""``summary.md``: what a CI job shows of a report, in GitHub's Markdown."""

from __future__ import annotations

import re

from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reports.attention import Attention, needs_attention
from assay.reports.collect import Collection
from assay.reports.headlines import headline, key_figures
from assay.reports.humanise import plural, quantity
from assay.reports.matrix import build_matrix, spec_title
from assay.reports.verdicts import CASE_LOOKS, KIND_LABELS, RUN_LOOKS

MAX_FAILURES = 50
_MAX_CELL = 300
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~&@-])")


def summary_markdown(collection: Collection) -> str:
    """Verdict, table of runs, matrix by standard, failures with clause and reproduce command."""
    look = RUN_LOOKS[collection.verdict]
    lines = [f"## {look.glyph} Assay: {look.label.lower()}", "", escape(headline(collection)), ""]
    lines += ["| verdict | run | target | summary | figures |", "| --- | --- | --- | --- | --- |"]
    for run in collection.runs:
        run_look = RUN_LOOKS[run.verdict]
        figures = "; ".join(f"{label} {value}" for label, value in key_figures(run))
        name = f"{KIND_LABELS[run.result.kind]}: {run.title}"
        target = " · ".join(part for part in (run.result.target, run.result.world) if part)
        aside = "" if run.decides else " (for comparison)"
        cells = [f"{run_look.glyph} {run_look.label}{aside}", name, target, run.result.summary, figures]
        lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
    lines += ["", *_matrix(collection), *_failures(needs_attention(collection))]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str, limit: int = _MAX_CELL) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    cut = flat if len(flat) <= limit else f"{flat[: limit - 1]}…"
    return _MARKUP.sub(r"\\\1", cut).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def _code(text: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    flat = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", flat)), default=0))
    return f"{fence} {flat} {fence}" if "`" in flat else f"{fence}{flat}{fence}"


def _matrix(collection: Collection) -> list[str]:
    matrix = build_matrix(collection.conformance_runs)
    if not matrix.columns:
        return []
    used = [verdict for verdict in CASE_LOOKS if any(column.counts.get(verdict) for column in matrix.columns)]
    head = ["target", "standard", *(f"{CASE_LOOKS[verdict].glyph} {CASE_LOOKS[verdict].label}" for verdict in used)]
    lines = ["### Conformance", "", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for column in matrix.columns:
        for spec in matrix.specs:
            verdicts: list[CaseVerdict] = [row.verdict for row in column.report.results if row.spec == spec]
            counts = [str(verdicts.count(verdict)) for verdict in used]
            lines.append(f"| {escape(column.label)} | {escape(spec_title(spec))} | {' | '.join(counts)} |")
    return [*lines, ""]


def _failures(items: list[Attention]) -> list[str]:
    if not items:
        return []
    lines = [f"### {plural(len(items), 'thing')} to look at", ""]
    for item in items[:MAX_FAILURES]:
        where = f" ({escape(item.run.result.target)})" if item.run is not None else ""
        lines.append(f"- **{item.look.glyph} {escape(item.title)}**{where}: {escape(item.detail, 600)}")
        if item.case:
            lines.append(f"  - case {_code(item.case)}")
        if item.clauses:
            lines.append(f"  - clauses: {', '.join(_code(clause) for clause in item.clauses[:12])}")
        if item.reproduce:
            lines.append(f"  - reproduce: {_code(item.reproduce)}")
    if len(items) > MAX_FAILURES:
        lines.append(f"- and {quantity(len(items) - MAX_FAILURES)} more in the full report")
    return lines
