"""The page of reported bugs names cases that exist, at least one a row, and a tracker for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.conformance.case import load_cases

PAGE = Path(__file__).parents[2] / "docs" / "findings" / "real-bugs.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
CASES = load_cases()


def test_the_page_has_rows() -> None:
    assert len(ROWS) == 21


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[3:].partition("]")[0])
def test_every_row_has_cases_that_exist(row: str) -> None:
    named = re.findall(r"`(mqtt(?:311|5)/[a-z0-9-]+/[a-z0-9-]+)`", row)
    assert named
    assert [case_id for case_id in named if case_id not in CASES] == []
    assert "https://github.com/" in row


def test_every_case_about_a_reported_bug_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    own = [case_id for case_id in CASES if case_id.split("/")[1] == "real-bugs"]
    assert [case_id for case_id in own if case_id not in page] == []
