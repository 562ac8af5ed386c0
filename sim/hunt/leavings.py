"""What an exploration leaves in its folder: a line per run, a record per class of findings, and a result to report."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from assay.faults.scenario import Scenario, ScenarioWorld
from assay.reference_broker.trace.results import (
    Finding,
    Machine,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    worst,
    write_result,
)
from assay.sim.hunt.explore import Exploration, FindingGroup, SeedOutcome
from assay.sim.hunt.record import record_of, write_record

SEEDS_NAME: Final = "seeds.jsonl"
RECORDS: Final = "findings"
MOST_RECORDS: Final = 50
"""Classes of findings of which the first run is recorded, the most frequent first."""
_MOST_NUMBERS: Final = 50


class SeedLines:
    """Writes a line of JSON for each run as it comes, so that one who is interrupted keeps them."""

    def __init__(self, folder: Path) -> None:
        """Raises :class:`OSError`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BufferedWriter = (folder / SEEDS_NAME).open("wb")

    def write(self, outcome: SeedOutcome) -> None:
        """One line; the schedule is in the record of its finding, and follows from the number."""
        self._file.write(msgspec.json.encode(msgspec.structs.replace(outcome, schedule=None)) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def record_path(folder: Path, number: int) -> Path:
    """Where the record of a class of findings is, the most frequent being number 1."""
    return folder / RECORDS / f"{number:02}.yaml"


def write_exploration(
    folder: Path, scenario: Scenario, found: Exploration, *, mutants: tuple[str, ...], command: str
) -> RunResult:
    """Write the records and ``result.json``. Raises :class:`OSError`."""
    for old in (folder / RECORDS).glob("*.yaml"):
        old.unlink()
    groups = found.groups()
    for number, group in enumerate(groups[:MOST_RECORDS], start=1):
        first = group.outcomes[0]
        write_record(record_path(folder, number), record_of(first, mutants), f"{told(group)}\n{first.message}")
    counts = {f"runs_{verdict.value}": len(found.having(verdict)) for verdict in Verdict}
    result = RunResult(
        kind=RunKind.SIM,
        name=f"explore {scenario.name}",
        verdict=_verdict(found),
        summary=summary(found),
        target="reference" + "".join(f"+{mutant}" for mutant in mutants),
        world=ScenarioWorld.SIM.value,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(found.wall_s, 3),
        command=command,
        findings=[_finding(group) for group in groups[:MOST_RECORDS]],
        metrics={
            "runs": len(found.outcomes),
            **{name: count for name, count in counts.items() if count},
            "finding_classes": len(groups),
            "runs_excused": sum(outcome.excused for outcome in found.outcomes),
            "seeds_per_hour": round(found.seeds_per_hour),
            "sim_real_ratio": round(found.sim_real_ratio, 1),
        },
        artefacts={"seeds": SEEDS_NAME},
        machine=Machine(
            platform=platform.platform(), python=platform.python_version(), cpus=len(os.sched_getaffinity(0))
        ),
    )
    write_result(folder, result)
    return result


def _verdict(found: Exploration) -> Verdict:
    """A run that proves nothing counts as what it is; those that were never made say nothing."""
    return worst([outcome.verdict for outcome in found.outcomes])


def summary(found: Exploration) -> str:
    """One sentence."""
    counts = {verdict: len(found.having(verdict)) for verdict in Verdict}
    text = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    excused = sum(outcome.excused for outcome in found.outcomes)
    lost = f", {excused} with losses that their faults and contract allow" if excused else ""
    early = " (out of time)" if found.out_of_time else ""
    return (
        f"{len(found.outcomes)} runs in {found.wall_s:.1f} s{early}: {text}{lost}; {found.seeds_per_hour:.0f} seeds/h, "
        f"{found.sim_real_ratio:.0f} simulated seconds per second"
    )


def told(group: FindingGroup) -> str:
    """A class of findings in one line."""
    runs = f"{len(group.outcomes)} run" + ("s" if len(group.outcomes) > 1 else "")
    return f"{group.of.anomaly} {group.of.checker}: {runs}, first {group.outcomes[0].seed}: {group.of.evidence}"


def _finding(group: FindingGroup) -> Finding:
    first = group.outcomes[0]
    return Finding(
        checker=group.of.checker,
        anomaly=group.of.anomaly,
        severity=Severity.SAFETY,
        message=f"{told(group)} ({first.message})",
        evidence=[
            {"seed": outcome.seed, "message": outcome.message, "trace_hash": outcome.trace_hash}
            for outcome in group.outcomes[:_MOST_NUMBERS]
        ],
    )
