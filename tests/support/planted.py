"""What the hunt is measured by: the schedules that each planted bug takes, and how small what was found becomes.

    python tests/support/planted.py catch     from five starts each, until the first finding
    python tests/support/planted.py shrink    the first finding of each
    python tests/support/planted.py tables    both as Markdown, with median and p95

What is done is kept in ``--out``, a line each, and not done again; ``--jobs`` processes share the rest, and names of
bugs choose some. Times are those of the processor.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))
from assay.faults.scenario import Scenario, find_scenario
from assay.reference_broker.trace.results import Verdict
from assay.sim.hunt.explore import run_numbers, run_seed
from assay.sim.hunt.record import find_record, record_of, write_record
from assay.sim.hunt.schedule import ScheduleStyle
from assay.sim.hunt.shrink import shrink
from assay.sim.hunt.workload_kinds import operations
from tests.sim.hunt.test_windows import FOUND_BY, WINDOWS
from tests.sim.test_hunted_mutants import HUNTED, SMALL
from tests.sim.test_sim_mutants import CAUGHT, CAUGHT_ELSEWHERE

MOST: Final = 500
STARTS: Final = (1, 1001, 2001, 3001, 4001)
FEW_FAULTS: Final = 3
FEW_OPERATIONS: Final = 20
SOON_S: Final = 60.0


class Catch(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules from a start on until the first finding."""

    bug: str
    start: int
    schedules: int | None
    """None: more than :data:`MOST`."""
    anomalies: list[str] = []
    clean: bool = True
    """The same schedule finds nothing without the bug."""
    cpu_s: float


class Small(msgspec.Struct, frozen=True, kw_only=True):
    """What shrinking left of a finding, and what it was."""

    bug: str
    faults: tuple[int, int]
    operations: tuple[int, int]
    """Messages that were to be published; publishes and settlements that its clients invoke."""
    cpu_s: float

    @property
    def is_small(self) -> bool:
        return self.faults[1] <= FEW_FAULTS and self.operations[1] <= FEW_OPERATIONS and self.cpu_s <= SOON_S


def planted() -> dict[str, Scenario]:
    """Every planted bug that the simulator is to find, and the scenario that schedules are drawn for."""
    shipped = {bug: find_scenario(scenario) for bug, (scenario, _) in (CAUGHT | CAUGHT_ELSEWHERE).items()}
    return {**shipped, **dict.fromkeys(FOUND_BY, WINDOWS), **dict.fromkeys(HUNTED, SMALL)}


def record_path(out: Path, bug: str, start: int) -> Path:
    return out / "records" / f"{bug}-{start}.yaml"


def catch(out: Path, bug: str, start: int, most: int = MOST) -> Catch:
    """Look for a bug from a start on; the record of what was found is kept."""
    scenario, began = planted()[bug], time.process_time()
    for outcome in run_numbers(scenario, range(start, start + most), ScheduleStyle.SWARM, (bug,)):
        if outcome.verdict is Verdict.FAIL:
            break
    else:
        return Catch(bug=bug, start=start, schedules=None, cpu_s=time.process_time() - began)
    took_s = time.process_time() - began
    write_record(record_path(out, bug, start), record_of(outcome, (bug,)), "")
    return Catch(
        bug=bug,
        start=start,
        schedules=outcome.seed - start + 1,
        anomalies=sorted({each.anomaly for each in outcome.classes}),
        clean=run_seed(scenario, outcome.seed, style=ScheduleStyle.SWARM).verdict is Verdict.PASS,
        cpu_s=took_s,
    )


def smaller(out: Path, bug: str, start: int) -> Small:
    """Shrink what was found of a bug from a start on."""
    record, began = find_record(str(record_path(out, bug, start))), time.process_time()
    small = shrink(record, budget_s=SOON_S, clock=time.process_time)
    assert small is not None, "a record finds again what it found"
    write_record(out / "small" / f"{bug}.yaml", small.record, "")
    return Small(
        bug=bug,
        faults=(len(record.scenario.faults), len(small.scenario.faults)),
        operations=(operations(record.scenario.workload), small.operations),
        cpu_s=time.process_time() - began,
    )


def ranked(numbers: Iterable[int | None], share: float) -> str:
    """The number that a share of them do not exceed; None is more than :data:`MOST`."""
    ordered = sorted(MOST + 1 if number is None else number for number in numbers)
    return _number(ordered[math.ceil(share * len(ordered)) - 1])


def _number(number: int | None) -> str:
    return f"more than {MOST}" if number is None or number > MOST else str(number)


def catches_table(catches: list[Catch]) -> str:
    """A row a bug, those that take the most first, and a line over all."""
    by_bug: dict[str, list[Catch]] = {}
    for each in sorted(catches, key=lambda each: each.start):
        by_bug.setdefault(each.bug, []).append(each)
    numbers = {bug: [each.schedules for each in row] for bug, row in by_bug.items()}
    middle = {bug: statistics.median(MOST + 1 if n is None else n for n in row) for bug, row in numbers.items()}
    lines = ["| bug | schedules from each start | median | p95 |", "| --- | --- | --- | --- |"]
    for bug in sorted(numbers, key=lambda bug: (-middle[bug], bug)):
        row = numbers[bug]
        cells = ", ".join(map(_number, row)), ranked(row, 0.5), ranked(row, 0.95)
        lines.append(f"| `{bug}` | {' | '.join(cells)} |")
    every = [each.schedules for each in catches]
    found = sum(number is not None for number in every)
    accused = [f"{each.bug} from {each.start}" for each in catches if not each.clean]
    lines += [
        "",
        f"{len(by_bug)} bugs, {len(every)} starts, {found} of them with a finding within {MOST} schedules:",
        f"median {ranked(every, 0.5)}, p95 {ranked(every, 0.95)}.",
        f"The broker without the bug is accused in the same schedule: {', '.join(accused) or 'never'}.",
    ]
    return "\n".join(lines)


def small_table(found: list[Small]) -> str:
    """A row a bug, and a line over all."""
    lines = ["| bug | faults | operations | processor time, s |", "| --- | --- | --- | --- |"]
    for each in sorted(found, key=lambda each: (each.is_small, each.bug)):
        faults, done = (f"{before} -> {after}" for before, after in (each.faults, each.operations))
        lines.append(f"| `{each.bug}` | {faults} | {done} | {each.cpu_s:.1f} |")
    met, most = sum(each.is_small for each in found), f"{FEW_FAULTS} faults, {FEW_OPERATIONS} operations, {SOON_S:g} s"
    lines += ["", f"{met} of {len(found)} ({100 * met / max(1, len(found)):.0f} %) to {most} at most."]
    return "\n".join(lines)


def _kept(path: Path, kind: type) -> list:
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()] if path.exists() else []


def _work(path: Path, calls: list[Callable[[], msgspec.Struct]], jobs: int) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context) as executor, path.open("ab") as kept:
        for future in as_completed([executor.submit(call) for call in calls]):
            line = msgspec.json.encode(future.result())
            kept.write(line + b"\n")
            kept.flush()
            print(line.decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("catch", "shrink", "tables"))
    parser.add_argument("bugs", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("out/planted"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--starts", type=int, default=len(STARTS), help=f"of {STARTS}")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    catch_file, small_file = given.out / "catch.jsonl", given.out / "small.jsonl"
    catches, smalls = _kept(catch_file, Catch), _kept(small_file, Small)
    bugs = given.bugs or list(planted())
    if given.what == "catch":
        done = {(each.bug, each.start) for each in catches}
        cells = [(bug, start) for start in STARTS[: given.starts] for bug in bugs if (bug, start) not in done]
        _work(catch_file, [partial(catch, given.out, bug, start) for bug, start in cells], given.jobs)
    elif given.what == "shrink":
        firsts = {each.bug: each.start for each in sorted(catches, key=lambda each: -each.start) if each.schedules}
        left = [bug for bug in bugs if bug in firsts and bug not in {each.bug for each in smalls}]
        _work(small_file, [partial(smaller, given.out, bug, firsts[bug]) for bug in left], given.jobs)
    else:
        print(f"{catches_table(catches)}\n\n{small_table(smalls)}")


if __name__ == "__main__":
    main()
