"""The log of ``assay serve``."""

from __future__ import annotations

import logging

from reference_broker.server.log_lines import BoundedLines, OneLine


def record(message: str, *arguments: object, at: float = 0.0, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("assay.broker", level, "", 0, message, arguments, None)
    made.created = at
    return made


def test_a_flood_of_one_kind_leaves_few_lines_and_a_count() -> None:
    lines = BoundedLines(burst=3, window_s=10)
    passed = [lines.filter(record("%s is refused", number, at=number / 100)) for number in range(100)]
    assert passed == [True] * 3 + [False] * 97
    assert lines.filter(record("another kind", at=1.0))
    assert lines.filter(record("%s is refused", 5, at=2.0, level=logging.ERROR)), "errors always pass"
    later = record("%s is refused", 100, at=11.0)
    assert lines.filter(later)
    assert later.getMessage() == "100 is refused (97 more lines like it left out)"
    last = record("%s is refused", 101, at=30.0)
    assert lines.filter(last)
    assert last.getMessage() == "101 is refused"


def test_nobody_forges_a_line() -> None:
    shown = OneLine("%(levelname)s %(message)s").format(record("%s", "a\r\nWARNING forged\x1b[2J\u2028b"))
    assert shown == "INFO a\\u000d\\u000aWARNING forged\\u001b[2J\\u2028b"
    assert len(OneLine("%(message)s").format(record("%s", "x" * 65_535))) < 2_100
