"""The page of other queues' bugs has every row of the facts, and names cases and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.conformance.case import load_cases

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "findings" / "queue-bugs.md"
COUNTS = {"F": 39, "O": 12, "R": 21, "G": 18, "P": 11}
ROWS = {
    cells[1].strip(): cells[3].strip()
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| ([FORGP]\d+|4\.5 [a-l]) \|", line) and len(cells := line.split("|")) == 5
}
CASES = load_cases()
_EXCUSES = ("Not of queues: ", "Not testable here: ")


def test_no_row_is_missing() -> None:
    wanted = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert sorted(ROWS) == sorted([*wanted, *(f"4.5 {letter}" for letter in "abcdefghijkl")])


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_exists(row: str) -> None:
    text = ROWS[row]
    named = re.findall(r"`([^`]+)`", text)
    cases = [name for name in named if re.fullmatch(r"(mqtt311|mqtt5|queue)/[a-z0-9-]+/[a-z0-9-]+", name)]
    tests = [name for name in named if name.startswith("tests/")]
    assert cases or tests or text.startswith(_EXCUSES), row
    assert [name for name in cases if name not in CASES] == []
    for name in tests:
        path, _, function = name.partition("::")
        source = ROOT / path
        assert source.exists(), name
        assert not function or re.search(rf"^(async )?def {function}\(", source.read_text(encoding="utf-8"), re.M), name
