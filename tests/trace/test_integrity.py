"""Each kind of file with each kind of damage is named; a sound one is not; nothing raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_files import GOOD, damages, make_run

from assay.reference_broker.trace import integrity
from assay.reference_broker.trace.integrity import is_known, problems_of, walk


def test_sound_files_have_no_problem(tmp_path: Path) -> None:
    make_run(tmp_path)
    for name in GOOD:
        assert is_known(tmp_path / name)
        assert problems_of(tmp_path / name) == [], name
    assert list(walk(tmp_path, lambda folder: False)) == []


@pytest.mark.parametrize(("name", "kind", "damage"), damages(), ids=[f"{name}: {kind}" for name, kind, _ in damages()])
def test_every_damage_is_named(tmp_path: Path, name: str, kind: str, damage: Callable[[Path], None]) -> None:
    make_run(tmp_path)
    damage(tmp_path / name)
    problems = problems_of(tmp_path / name)
    assert problems, kind
    assert all(problem and "\n" not in problem and str(tmp_path) not in problem for problem in problems)
    found = dict(walk(tmp_path, lambda folder: False))
    assert list(found) == [tmp_path / name], "the others are sound"


def test_what_is_too_large_is_named_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    monkeypatch.setattr(integrity, "MAX_CHECKED_BYTES", 10)
    assert "larger than" in problems_of(tmp_path / "history.jsonl")[0]


def test_without_a_reader_a_parquet_file_is_known_by_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = tmp_path / "samples.parquet"
    path.write_bytes(b"PAR1 something PAR1")
    assert problems_of(path) == []
    for data in (b"PAR1 something PA", b"", b"garbage"):
        path.write_bytes(data)
        assert "not readable Parquet" in problems_of(path)[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not keep root out")
def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        assert list(walk(tmp_path, lambda folder: False)) == [(closed, "cannot be listed: Permission denied")]
    finally:
        closed.chmod(0o700)


def test_former_reports_are_not_looked_through(tmp_path: Path) -> None:
    make_run(tmp_path / "report")
    (tmp_path / "report" / "result.json").write_text("{")
    assert list(walk(tmp_path, lambda folder: folder.name == "report")) == []
