"""The figures of docs/hunt.md are made by tests/support/planted.py; the long runs are asked for by hand."""

from __future__ import annotations

from pathlib import Path

from planted import Catch, Small, catch, catches_table, planted, ranked, record_path, small_table

from assay.conformance.mutants import all_mutants
from assay.sim.hunt.record import find_record


def test_what_is_found_at_once_is_kept_for_shrinking(tmp_path: Path) -> None:
    found = catch(tmp_path, "queue-delivers-to-two", 1, most=8)
    assert found.schedules == 1
    assert found.clean
    assert find_record(str(record_path(tmp_path, "queue-delivers-to-two", 1))).mutants == ("queue-delivers-to-two",)


def test_every_planted_bug_of_disks_moments_and_clocks_is_measured() -> None:
    assert {name for name, mutant in all_mutants().items() if name.startswith("hunt-") and not mutant.legal} <= set(
        planted()
    )


def test_the_tables_count_what_was_not_found() -> None:
    numbers = [1, 2, 3, None, 5]
    starts = [
        Catch(bug="a", start=start, schedules=number, cpu_s=0.1, clean=start != 3)
        for start, number in enumerate(numbers, 1)
    ]
    assert (ranked(numbers, 0.5), ranked(numbers, 0.95)) == ("3", "more than 500")
    table = catches_table(starts)
    assert "| `a` | 1, 2, 3, more than 500, 5 | 3 | more than 500 |" in table
    assert "5 starts, 4 of them with a finding within 500" in table
    assert "same schedule: a from 3." in table
    small = [
        Small(bug=bug, faults=(9, faults), operations=(80, done), cpu_s=cpu_s)
        for bug, faults, done, cpu_s in (("a", 3, 20, 60.0), ("b", 4, 1, 1.0), ("c", 0, 21, 1.0), ("d", 0, 1, 61.0))
    ]
    assert "1 of 4 (25 %)" in small_table(small)
