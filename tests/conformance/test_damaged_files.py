"""Looking at the files of a broker that is at work."""

from __future__ import annotations

import random
from pathlib import Path

from assay.conformance.cases.damaged_files import Watch, files_below, flip


def test_a_file_that_goes_while_it_is_looked_at_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "stays").write_bytes(b"four")
    # It is listed, and cannot be found: as one that was removed in between.
    (tmp_path / "folder" / "goes").symlink_to(tmp_path / "nowhere")
    assert {path.name: status.st_size for path, status in files_below(tmp_path).items()} == {"stays": 4}


def _write(watch: Watch, path: Path, count: int) -> int:
    """A step that appends so many bytes."""
    watch.begin()
    with path.open("ab") as file:
        file.write(b"x" * count)
    return watch.step()


def test_bytes_are_found_behind_which_in_the_same_file_something_stands(tmp_path: Path) -> None:
    """One bit was flipped anywhere: whether a sound record followed it in the file was chance."""
    one, other = tmp_path / "one", tmp_path / "other"
    watch = Watch(tmp_path)
    _write(watch, one, 10)
    _write(watch, other, 20)
    wanted = _write(watch, one, 5)
    behind = _write(watch, one, 7)
    assert watch.with_steps_behind([wanted]) == [(one, range(10))]
    assert watch.with_steps_behind([wanted, behind]) == [(one, range(10)), (one, range(10, 15))]
    assert watch.with_steps_behind([]) == []
    for seed in range(50):
        hurt = flip(one, random.Random(seed), range(10, 15))
        assert 10 <= hurt.start < hurt.end <= 15, seed
        assert watch.is_hit(wanted, one, hurt), seed
        assert not watch.is_hit(behind, one, hurt), seed


def test_what_stood_in_a_file_that_is_gone_or_another_is_nowhere_certain(tmp_path: Path) -> None:
    path = tmp_path / "file"
    watch = Watch(tmp_path)
    first, second = _write(watch, path, 4), _write(watch, path, 4)
    assert watch.is_certain(first)
    path.write_bytes(b"")
    third = _write(watch, path, 4)
    assert [watch.is_certain(step) for step in (first, second, third)] == [False, False, True]
    assert watch.with_steps_behind([first, second, third]) == []
    path.unlink()
    assert not watch.is_certain(third)
