"""A table in a pipe is whole; in a narrow terminal it folds. Nothing is ever cut."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from narrow_pipe import output_of

from assay.reference_broker.trace.terminal import WholeConsole, WholeTable

ROOT = Path(__file__).resolve().parents[2]
LONG = "a-name-" + "x" * 200 + "-with-an-end"
PACKAGES = ("assay", "conformance", "faults", "sim", "loadtests", "spark_analysis", "reports", "reference_broker")


def _table() -> WholeTable:
    table = WholeTable("name", "what", title="a title")
    table.add_column("more")
    table.add_row(LONG, "word " * 100, LONG.upper())
    return table


def test_a_pipe_gets_every_row_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    sink = io.StringIO()
    WholeConsole(file=sink).print(_table())
    assert LONG in sink.getvalue()
    assert "word " * 99 in sink.getvalue()
    assert LONG.upper() in sink.getvalue()
    assert max(map(len, sink.getvalue().splitlines())) < 1_000, "no wider than its content"


def test_a_narrow_terminal_folds_and_loses_no_letter() -> None:
    sink = io.StringIO()
    console = WholeConsole(file=sink, force_terminal=True, width=60, color_system=None)
    console.print(_table())
    assert "…" not in sink.getvalue()
    assert sink.getvalue().count("x") == 200
    assert sink.getvalue().count("X") == 200
    assert max(map(len, sink.getvalue().splitlines())) <= 60


def test_every_command_writes_through_them() -> None:
    """Rich's own would cut in a pipe."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file.name != "terminal.py")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Console", "Table")
    ]
    assert found == []


def test_the_cases_are_all_named_in_a_narrow_pipe() -> None:
    listed = output_of("conformance", "list", "-k", "mqtt5/connect")
    assert "mqtt5/connect/client-id-names-the-session" in listed
    assert "…" not in listed
