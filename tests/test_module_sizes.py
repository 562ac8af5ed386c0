"""A module says one thing: none of ours is longer than a reader keeps in mind."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "assay",
    "reference_broker",
    "sim",
    "conformance",
    "loadtests",
    "faults",
    "spark_analysis",
    "reports",
    "mutation",
    "tests",
)
MOST_LINES = 800


def _lengths() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found[path.relative_to(ROOT).as_posix()] = path.read_bytes().count(b"\n")
    return found


def test_no_module_is_too_long() -> None:
    too_long = {name: length for name, length in _lengths().items() if length > MOST_LINES}
    assert not too_long, f"split by responsibility what has more than {MOST_LINES} lines: {too_long}"
