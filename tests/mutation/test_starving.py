"""A mutant is not killed because a busy machine let it wait: that time is no part of its limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mutation import tree as trees
from mutation.starving import Starving
from mutation.tree import copied_tree
from mutation.warm import Preload

_LOOKS = 40
"""With so many looks, 10 ms apart, the time that the child has is over; only then it goes on."""


def _process(proc: Path, number: int, session: int, waits: dict[int, int]) -> None:
    """``waits``: thread to nanoseconds."""
    (folder := proc / str(number)).mkdir(exist_ok=True)
    (folder / "stat").write_text(f"{number} (odd) name) S 1 {number} {session} 0 -1 4194560\n")
    for thread, waited in waits.items():
        (folder / "task" / str(thread)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(thread) / "schedstat").write_text(f"7000 {waited} 12\n")


def test_all_threads_of_a_session_count_each_from_where_it_was(tmp_path: Path) -> None:
    _process(tmp_path, 10, 10, {10: 5_000_000_000, 11: 0})
    _process(tmp_path, 12, 10, {12: 1_000_000_000})
    _process(tmp_path, 13, 13, {13: 9_000_000_000})
    (tmp_path / "sys").mkdir()
    (tmp_path / "14").mkdir()  # it has just ended
    starving = Starving(10, tmp_path)
    assert starving.since_s() == 0.0
    _process(tmp_path, 10, 10, {10: 5_500_000_000, 11: 250_000_000})
    _process(tmp_path, 13, 13, {13: 19_000_000_000})
    _process(tmp_path, 15, 10, {15: 125_000_000})
    (tmp_path / "12" / "task" / "12" / "schedstat").unlink()
    assert starving.since_s() == 0.875
    assert starving.since_s() == 0.0


def test_this_process_is_found_in_its_session() -> None:
    Starving(os.getsid(0)).since_s()
    assert Starving(os.getsid(0))._known or not Path("/proc/self/schedstat").exists()


@pytest.mark.parametrize("forked", [False, True], ids=["anew", "forked"])
def test_who_waits_for_a_processor_is_given_time(monkeypatch: pytest.MonkeyPatch, forked: bool) -> None:
    looks: list[float] = []

    class Always(Starving):
        def since_s(self) -> float:
            looks.append(1e9)
            if len(looks) == _LOOKS:
                with release.open("wb"):  # the child waits for this
                    pass
            return looks[-1]

    with copied_tree() as tree:
        release = tree.root / "release"
        os.mkfifo(release)
        if forked:
            tree.warm_up(Preload())
        assert tree.run(["-c", "import signal; signal.pause()"], limit_s=0.05).timed_out, "it has all it needs"
        monkeypatch.setattr(trees, "Starving", Always)
        monkeypatch.setattr(trees, "_LOOK_S", 0.01)
        assert not tree.run(["-c", "open('release', 'rb').read()"], limit_s=0.05).timed_out
        assert len(looks) >= _LOOKS
