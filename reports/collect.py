"""Find and read every run below a folder; nothing here renders.

A folder that holds ``result.json`` (:class:`RunResult`) or ``report.jsonl`` (a conformance report) is a run. A file
that cannot be read becomes a :class:`Problem`, so one bad file neither hides the other runs nor passes in silence.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Clause, Footer, Header, Line
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import READ_ERRORS, walk, why
from assay.reference_broker.trace.results import GRAVITY, Machine, RunKind, RunResult, Verdict, worst
from assay.reports.humanise import bytes_size, plural
from assay.reports.verdicts import CASE_LOOKS, KIND_LABELS

RESULT_FILE = "result.json"
REPORT_FILE = "report.jsonl"
MARKER_FILE = "assay-report.json"
"""Stands in every generated site; a folder with it is never searched for runs."""

MAX_RUNS = 500
MAX_RESULT_BYTES = 64 * 1024 * 1024
MAX_REPORT_BYTES = 256 * 1024 * 1024
MAX_CASES = 20_000


class ReportError(Exception):
    """What stops a report from being made; the text says what to do about it."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be read, and why."""

    path: str
    """Relative to the run folder, with ``/``."""
    message: str


class ConformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole ``report.jsonl``; ``footer`` is ``None`` when the run was cut."""

    header: Header
    clauses: list[Clause]
    results: list[CaseResult]
    footer: Footer | None

    @property
    def counts(self) -> dict[CaseVerdict, int]:
        """Cases per verdict, counted from the lines rather than believed from the footer; zeros left out."""
        counted = Counter(result.verdict for result in self.results)
        return {verdict: counted[verdict] for verdict in CASE_LOOKS if counted[verdict]}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run, with the verdict that the report stands for."""

    slug: str
    """Unique within the collection; names pages and folders of the site."""
    folder: Path
    place: str
    """The folder relative to the run folder, with ``/``; ``.`` for the run folder itself."""
    result: RunResult
    verdict: Verdict
    """Never milder than ``result.verdict``; ``notes`` say why where it is graver."""
    notes: list[str]
    conformance: ConformanceReport | None = None
    decides: bool = True
    """Whether the run counts for the verdict of the report; others are shown beside it for comparison."""

    @property
    def title(self) -> str:
        return self.result.name or KIND_LABELS[self.result.kind]


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """All that one report shows."""

    root: Path
    runs: list[Run]
    problems: list[Problem]

    @property
    def verdict(self) -> Verdict:
        """The gravest of the runs that decide; an unreadable file counts as an error."""
        return worst([run.verdict for run in self.deciding] + [Verdict.ERROR for _ in self.problems])

    @property
    def deciding(self) -> list[Run]:
        return [run for run in self.runs if run.decides]

    @property
    def conformance_runs(self) -> list[Run]:
        return [run for run in self.runs if run.conformance is not None]

    @property
    def machines(self) -> list[Machine]:
        """Every machine named by a run, once each."""
        found: list[Machine] = []
        for run in self.runs:
            if run.result.machine is not None and run.result.machine not in found:
                found.append(run.result.machine)
        return found


def collect(root: Path, judged: Sequence[str] = ()) -> Collection:
    """Read every run below ``root``, in a stable order; with ``judged``, only runs of these targets decide.

    Raises :class:`ReportError` when the folder does not exist, holds no run or more than ``MAX_RUNS``, or when nothing
    below it is a run of a judged target.
    """
    if not root.is_dir():
        raise ReportError(f"{root} is not a folder. Name the folder that a run wrote, e.g. `assay report out/`.")
    folders = _run_folders(root)
    if not folders:
        raise ReportError(
            f"No {RESULT_FILE} or {REPORT_FILE} below {root}. Make a run first, "
            "e.g. `assay conformance run --target reference` or `assay demo`, and name its output folder."
        )
    if len(folders) > MAX_RUNS:
        raise ReportError(
            f"{len(folders)} runs below {root}; a report holds {MAX_RUNS} at most. Name a folder further down."
        )
    runs: list[Run] = []
    problems: list[Problem] = []
    damage = _damage(root)
    for folder in folders:
        run, found = _read_run(root, folder)
        own = [problem for problem in damage if folder in (root / problem.path).parents]
        problems += found
        if run is not None:
            runs.append(_with_damage(run, [*found, *own]))
    problems += damage
    kinds = list(KIND_LABELS)
    runs.sort(key=lambda run: (kinds.index(run.result.kind), run.title, run.result.target, run.result.world, run.place))
    if judged:
        # A run without a target, such as an analysis of several runs, speaks of the folder as a whole.
        runs = [
            msgspec.structs.replace(run, decides=not run.result.target or not _brokers(run).isdisjoint(judged))
            for run in runs
        ]
        runs.sort(key=lambda run: not run.decides)  # stable: what decides comes first
        if not any(run.decides for run in runs):
            known = sorted(set().union(*map(_brokers, runs))) if runs else []
            raise ReportError(
                f"No run below {root} is of the target {', '.join(judged)}; there are {', '.join(known) or 'none'}."
            )
    return Collection(root=root, runs=_with_unique_slugs(runs), problems=problems)


def _damage(root: Path) -> list[Problem]:
    """Damaged files of runs, in the order of their paths; former reports are no runs."""

    def is_report(folder: Path) -> bool:
        return (folder / MARKER_FILE).exists()

    # The two main files are read as far as they are whole, and what is wrong with them is told then.
    return [
        Problem(path=_place(root, path), message=message)
        for path, message in walk(root, is_report)
        if path.name not in (RESULT_FILE, REPORT_FILE)
    ]


def _place(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _with_damage(run: Run, damaged: list[Problem]) -> Run:
    """A run whose evidence is damaged is never green."""
    if not damaged:
        return run
    names = ", ".join(sorted({problem.path.rsplit("/", 1)[-1] for problem in damaged})[:5])
    note = f"Files of this run are damaged: {names}."
    return msgspec.structs.replace(run, verdict=worst([run.verdict, Verdict.UNKNOWN]), notes=[*run.notes, note])


def _brokers(run: Run) -> set[str]:
    """Targets of a run; a bench names several, and variants as ``broker/variant``."""
    return {name.strip().partition("/")[0] for name in run.result.target.split(",")}


def slugify(text: str) -> str:
    """Letters, digits, dot, dash and underscore only, so that no name can leave its folder."""
    kept = "".join(character if character.isascii() and character.isalnum() else "-" for character in text.lower())
    return "-".join(part for part in kept.split("-") if part)[:100] or "unnamed"


def _slug_of(result: RunResult) -> str:
    """Kind, name, target and world; a word that only repeats the one before it is said once."""
    words = slugify(f"{result.kind.value}-{result.name}-{result.target}-{result.world}").split("-")
    return "-".join(word for place, word in enumerate(words) if place == 0 or word != words[place - 1])


def _run_folders(root: Path) -> list[Path]:
    folders: list[Path] = []
    for current, children, files in os.walk(root, followlinks=False):
        if MARKER_FILE in files:
            children.clear()
            continue
        children.sort()
        if {RESULT_FILE, REPORT_FILE} & {*files, *children}:
            folders.append(Path(current))
    return folders


def _read_run(root: Path, folder: Path) -> tuple[Run | None, list[Problem]]:
    problems: list[Problem] = []
    result: RunResult | None = None
    conformance: ConformanceReport | None = None
    result_path, report_path = folder / RESULT_FILE, folder / REPORT_FILE
    if os.path.lexists(result_path):  # also a link to nowhere, which is damage
        result, problem = _read_result(root, result_path)
        problems += problem
    if os.path.lexists(report_path):
        conformance, problem = _read_conformance(root, report_path)
        problems += problem
    place = folder.relative_to(root).as_posix()
    if result is None and conformance is not None:
        result = _result_from_report(conformance, place)
    if result is None:
        return None, problems
    verdict, notes = _judge(result, conformance)
    run = Run(
        slug=_slug_of(result),
        folder=folder,
        place=place,
        result=result,
        verdict=verdict,
        notes=notes,
        conformance=conformance,
    )
    return run, problems


def _read_bounded(path: Path, limit: int) -> bytes:
    """Raises ``ValueError`` above the limit, ``OSError`` as the system does."""
    if path.is_dir():
        raise ValueError("is a folder, not a file")
    size = path.stat().st_size
    if size > limit:
        raise ValueError(f"{bytes_size(size)} is more than the {bytes_size(limit)} that a report reads")
    return path.read_bytes()


def _read_result(root: Path, path: Path) -> tuple[RunResult | None, list[Problem]]:
    try:
        result = msgspec.json.decode(_read_bounded(path, MAX_RESULT_BYTES), type=described(RunResult))
    except READ_ERRORS as error:  # msgspec's errors name the key, e.g. `$.checks[0].name`
        return None, [Problem(path=path.relative_to(root).as_posix(), message=why(error))]
    wrong = [line.name for line in result.series if len(line.x_s) != len(line.y)]
    if wrong:
        result = msgspec.structs.replace(result, series=[line for line in result.series if line.name not in wrong])
        message = f"series with more moments than values, or fewer: {', '.join(wrong[:5])}"
        return result, [Problem(path=path.relative_to(root).as_posix(), message=message)]
    return result, []


def _read_conformance(root: Path, path: Path) -> tuple[ConformanceReport | None, list[Problem]]:
    """Read what is readable: a run that was cut may end in the middle of a line."""
    place = path.relative_to(root).as_posix()
    try:
        lines = _read_bounded(path, MAX_REPORT_BYTES).split(b"\n")
    except READ_ERRORS as error:
        return None, [Problem(path=place, message=why(error))]
    header: Header | None = None
    footer: Footer | None = None
    clauses: list[Clause] = []
    results: list[CaseResult] = []
    seen: set[str] = set()
    problems: list[Problem] = []
    decoder = msgspec.json.Decoder(described(Line))
    for index, text in enumerate(lines):
        if not text.strip():
            continue
        try:
            line = decoder.decode(str(text, "utf-8"))
        except (ValueError, RecursionError) as error:
            if index < len(lines) - 1:  # an unfinished last line is what a cut run leaves, and shows as such
                problems.append(Problem(path=place, message=f"line {index + 1}: {why(error)}"))
                break
            continue
        match line:
            case Header():
                header = line
            case Clause():
                clauses.append(line)
            case CaseResult():
                if line.case in seen:
                    problems.append(Problem(path=place, message=f"line {index + 1}: case {line.case} appears twice"))
                else:
                    seen.add(line.case)
                    results.append(line)
            case Footer():
                footer = line
    if len(results) > MAX_CASES:
        message = f"{plural(len(results), 'case')}; the first {MAX_CASES:,} are shown"
        problems.append(Problem(path=place, message=message))
        del results[MAX_CASES:]
    results.sort(key=lambda result: result.case)  # cases end in any order; a reader looks for them by name
    if header is None:
        return None, [*problems, Problem(path=place, message="no header line, so the target is not known")]
    return ConformanceReport(header=header, clauses=clauses, results=results, footer=footer), problems


def _result_from_report(conformance: ConformanceReport, place: str) -> RunResult:
    """Stands in for the ``result.json`` of a run that left none; its verdict is left to the cases."""
    header = conformance.header
    return RunResult(
        kind=RunKind.CONFORMANCE,
        name=place.rsplit("/", 1)[-1] if place != "." else "conformance",
        verdict=Verdict.PASS,
        summary=f"{plural(len(conformance.results), 'case')} recorded; the run left no {RESULT_FILE}.",
        target=header.target,
        seed=header.seed,
        started_at=header.started_at,
        duration_s=conformance.footer.duration_s if conformance.footer else 0.0,
        machine=header.machine,
    )


def judge_cases(conformance: ConformanceReport) -> tuple[Verdict, list[str]]:
    """What the cases say by themselves, and why where that is not ``pass``."""
    counts = conformance.counts
    verdicts = [Verdict.PASS] if counts.get(CaseVerdict.PASS) else []
    notes: list[str] = []
    if conformance.footer is None:
        verdicts.append(Verdict.ERROR)
        notes.append(f"{REPORT_FILE} has no footer: the run was cut before its end, so later cases are missing.")
    if failed := counts.get(CaseVerdict.FAIL, 0):
        verdicts.append(Verdict.FAIL)
        notes.append(f"{plural(failed, 'case')} failed.")
    if unexpected := counts.get(CaseVerdict.XPASS, 0):
        verdicts.append(Verdict.FAIL)
        notes.append(f"{plural(unexpected, 'case')} passed against the target file's prediction: update the file.")
    if errors := counts.get(CaseVerdict.ERROR, 0):
        verdicts.append(Verdict.ERROR)
        notes.append(f"The bench failed on {plural(errors, 'case')}.")
    if not verdicts:
        notes.append("No case passed or failed, so nothing can be claimed.")
    return worst(verdicts), notes


def _judge(result: RunResult, conformance: ConformanceReport | None) -> tuple[Verdict, list[str]]:
    """The verdict a report may stand for: what the run says, unless its own data say worse."""
    verdicts, notes = [result.verdict], []
    if conformance is not None:
        found, case_notes = judge_cases(conformance)
        verdicts.append(found)
        notes += case_notes
    elif not _has_data(result):
        verdicts.append(Verdict.UNKNOWN)
        notes.append("The result holds no figures at all, so it can claim nothing.")
    failed = [check.name for check in result.checks if check.verdict is Verdict.FAIL]
    if failed and GRAVITY.index(result.verdict) < GRAVITY.index(Verdict.FAIL):
        verdicts.append(Verdict.FAIL)
        notes.append(f"The run says {result.verdict.value}, yet {plural(len(failed), 'check')} failed: {failed[0]}.")
    verdict = worst(verdicts)
    return verdict, notes if verdict is not result.verdict else []


def _has_data(result: RunResult) -> bool:
    return bool(result.checks or result.metrics or result.percentiles or result.series or result.findings)


def _with_unique_slugs(runs: list[Run]) -> list[Run]:
    seen: Counter[str] = Counter()
    unique: list[Run] = []
    taken: set[str] = set()
    for run in runs:
        seen[run.slug] += 1
        slug = run.slug
        while slug in taken:
            slug = f"{run.slug}-{seen[run.slug]}"
            seen[run.slug] += 1
        taken.add(slug)
        unique.append(msgspec.structs.replace(run, slug=slug))
    return unique
