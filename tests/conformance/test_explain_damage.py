"""``conformance explain`` names what is damaged in a report or its transcript, and explains what can be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_files import CASE, damages, make_run
from typer.testing import CliRunner

from assay.cli import build_app
from assay.conformance.report import ExitCode

READ = [entry for entry in damages() if entry[0] in ("report.jsonl", "transcripts/one.jsonl")]


def _explain(report: Path) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(build_app("conformance"), ["conformance", "explain", str(report), CASE])
    error = None if isinstance(done.exception, SystemExit) else done.exception
    return done.exit_code, done.output, error


def test_a_sound_report_is_explained(tmp_path: Path) -> None:
    make_run(tmp_path)
    code, output, error = _explain(tmp_path / "report.jsonl")
    assert (code, error) == (0, None)
    assert "damaged" not in output
    assert "CONNECT" in output


@pytest.mark.parametrize(("name", "kind", "damage"), READ, ids=[f"{name}: {kind}" for name, kind, _ in READ])
def test_damage_is_named(tmp_path: Path, name: str, kind: str, damage: Callable[[Path], None]) -> None:
    make_run(tmp_path)
    damage(tmp_path / name)
    code, output, error = _explain(tmp_path / "report.jsonl")
    assert error is None, "no traceback"
    assert name.rsplit("/", 1)[-1] in output
    if name == "report.jsonl":
        assert code in (0, ExitCode.USAGE)
        assert code == ExitCode.USAGE or "damaged:" in output
    else:
        assert code == 0
        assert "damaged:" in output or "is gone" in output
        assert "repeat:" in output, "the rest is explained"


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    code, output, error = _explain(tmp_path / "report.jsonl")
    assert (code, error) == (ExitCode.USAGE, None)
    assert "No such file" in output
