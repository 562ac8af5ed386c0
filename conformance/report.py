"""Writes the report of a run as it goes: ``report.jsonl``, ``transcripts/``, and at the end ``result.json``.

A run that is cut leaves the lines written so far; a report without footer says by this that it was cut.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from assay.conformance.judged import Outcome
from assay.reference_broker.trace.conformance import (
    BrokerDeath,
    CaseResult,
    CaseVerdict,
    Clause,
    ClauseStatus,
    Footer,
    Header,
    Line,
    WireLine,
)
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.integrity import READ_ERRORS, why
from assay.reference_broker.trace.results import (
    Check,
    Finding,
    Machine,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    write_result,
)


class ExitCode(IntEnum):
    """Exit status of ``assay conformance run``."""

    OK = 0
    FAILED = 1
    """A conformance failure, an unexpected pass, or a required case that could not be run."""
    USAGE = 2
    UNREACHABLE = 3
    HARNESS = 4
    NOTHING_SELECTED = 5
    STOPPED = 6
    """By Ctrl-C, SIGTERM or the time limit, and no failure was seen until then."""


def exit_code(
    results: Sequence[CaseResult],
    required: Sequence[str] = (),
    optional: Sequence[str] = (),
    deaths: Iterable[BrokerDeath] = (),
    *,
    stopped: bool = False,
) -> ExitCode:
    """The exit status that these results deserve.

    ``required`` are patterns of cases that must have been run, ``optional`` are exceptions from them; nothing is asked
    of a run that was ``stopped``.
    """
    if not results:
        return ExitCode.NOTHING_SELECTED
    verdicts = {result.verdict for result in results}
    if verdicts & {CaseVerdict.FAIL, CaseVerdict.XPASS}:
        return ExitCode.FAILED
    if stopped:
        return ExitCode.STOPPED
    if missing_required(results, required, optional):
        return ExitCode.FAILED
    if CaseVerdict.ERROR in verdicts:
        return ExitCode.HARNESS
    if CaseVerdict.NOT_RUN in verdicts or not all(death.killers for death in deaths):
        return ExitCode.UNREACHABLE
    return ExitCode.OK


def missing_required(
    results: Iterable[CaseResult], required: Sequence[str], optional: Sequence[str] = ()
) -> list[CaseResult]:
    """Required cases that say nothing of the target."""
    return [
        result
        for result in results
        if result.verdict in (CaseVerdict.BLOCKED, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN)
        and any(fnmatchcase(result.case, pattern) for pattern in required)
        and not any(fnmatchcase(result.case, pattern) for pattern in optional)
    ]


def suite_version() -> str:
    """Version of the installed suite."""
    try:
        return version("assay-mq")
    except PackageNotFoundError:
        return "0"


def this_machine() -> Machine:
    return Machine(platform=platform.platform(), python=platform.python_version(), cpus=os.cpu_count() or 1)


def utc_now() -> str:
    """ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_transcript(path: Path, lines: Iterable[WireLine]) -> None:
    """One JSON line per row; creates the folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def read_transcript(path: Path) -> tuple[list[WireLine], str]:
    """Rows of a transcript up to the first that is none, and what is wrong with that; empty when all is right."""
    decoder = msgspec.json.Decoder(described(WireLine))
    lines: list[WireLine] = []
    number = 0
    try:
        for line in path.read_bytes().split(b"\n"):
            number += 1
            if line.strip():
                str(line, "utf-8")
                lines.append(decoder.decode(line))
    except READ_ERRORS as error:
        return lines, f"line {number}: {why(error)}" if number else why(error)
    return lines, "" if lines else "is empty"


class ReportWriter:
    """A context manager over one report file; :meth:`add` may be called from one thread at a time."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        """``folder`` gets the transcripts; without one, the folder of the report."""
        self.path = path
        self.folder = folder or path.parent
        self.results: list[CaseResult] = []
        self._began = time.monotonic()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, line: Line) -> None:
        if self._file is None:
            message = "the report is not open"
            raise ValueError(message)
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def begin(self, header: Header, clauses: Iterable[Clause]) -> None:
        """Header and clauses, before the first result."""
        self._write(header)
        for clause in clauses:
            self._write(clause)

    def add(self, outcome: Outcome) -> CaseResult:
        """Write one result and its transcript; returns the result as written."""
        result = outcome.result
        if outcome.transcript:
            path = self.folder / "transcripts" / f"{result.case}.jsonl"
            write_transcript(path, outcome.transcript)
            relative = Path(os.path.relpath(path, self.path.parent)).as_posix()
            result = msgspec.structs.replace(result, transcript=relative)
        self._write(result)
        self.results.append(result)
        return result

    def keep_log(self, name: str, data: bytes) -> str:
        """Keep what a broker wrote; returns the path relative to the report."""
        path = self.folder / "brokers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Path(os.path.relpath(path, self.path.parent)).as_posix()

    def finish(self, code: ExitCode, deaths: Sequence[BrokerDeath] = ()) -> Footer:
        """The footer: counts by verdict, and the brokers that died."""
        footer = Footer(
            counts=dict(sorted(Counter(result.verdict.value for result in self.results).items())),
            exit_code=int(code),
            duration_s=round(time.monotonic() - self._began, 3),
            deaths=list(deaths),
        )
        self._write(footer)
        return footer


_RUN_VERDICTS = {
    ExitCode.OK: Verdict.PASS,
    ExitCode.FAILED: Verdict.FAIL,
    ExitCode.HARNESS: Verdict.ERROR,
    ExitCode.USAGE: Verdict.ERROR,
    ExitCode.UNREACHABLE: Verdict.UNKNOWN,
    ExitCode.NOTHING_SELECTED: Verdict.UNKNOWN,
    ExitCode.STOPPED: Verdict.UNKNOWN,
}


def summarize(header: Header, results: Sequence[CaseResult], clauses: Sequence[Clause], code: ExitCode) -> str:
    """One sentence for people."""
    counts = Counter(result.verdict for result in results)
    parts = [f"{count} {verdict.value}" for verdict, count in sorted(counts.items())]
    failing = sorted({clause for result in results if result.verdict is CaseVerdict.FAIL for clause in result.clauses})
    tested = sum(clause.status is ClauseStatus.TESTED for clause in clauses)
    text = f"{header.target}: {len(results)} cases, {', '.join(parts) or 'none run'}; {tested} statements tested"
    return text + (f"; violated: {', '.join(failing)}" if failing else "")


def _as_finding(death: BrokerDeath) -> Finding:
    """A broker that died, with the cases that ran on it; it is the broker's fault where one of them repeats it."""
    killers = f"killed by {', '.join(death.killers)}" if death.killers else "none of the cases repeats that by itself"
    return Finding(
        checker="broker_alive",
        anomaly="G-L7",
        severity=Severity.SAFETY if death.killers else Severity.QUALITY,
        message=f"{death.status} while {len(death.during)} case(s) ran; {killers}",
        values=death.killers or death.during,
    )


def write_run_result(
    folder: Path,
    header: Header,
    results: Sequence[CaseResult],
    clauses: Sequence[Clause],
    footer: Footer,
    *,
    report: Path,
    command: str,
) -> Path:
    """``result.json`` of the run, for ``assay report`` and CI."""
    code = ExitCode(footer.exit_code)
    failures = sum(result.verdict in (CaseVerdict.FAIL, CaseVerdict.XPASS) for result in results)
    check = Check(
        name="failing cases",
        value=float(failures),
        unit="cases",
        bound=0.0,
        relation="==",
        verdict=Verdict.PASS if failures == 0 else Verdict.FAIL,
        source="every MUST that a case tests",
    )
    return write_result(
        folder,
        RunResult(
            kind=RunKind.CONFORMANCE,
            name=f"conformance of {header.target}",
            verdict=_RUN_VERDICTS[code],
            summary=summarize(header, results, clauses, code),
            target=header.target,
            seed=header.seed,
            started_at=header.started_at,
            duration_s=footer.duration_s,
            command=command,
            checks=[check],
            findings=[_as_finding(death) for death in footer.deaths],
            metrics={f"cases_{verdict}": count for verdict, count in footer.counts.items()},
            artefacts={
                "report": os.path.relpath(report, folder),
                "transcripts": "transcripts",
                **({"logs of brokers that died": "brokers"} if any(death.log for death in footer.deaths) else {}),
            },
            machine=header.machine,
        ),
    )
