"""How long the threads of a command waited for a processor: what a busy machine costs it is no fault of the mutant."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_NANOSECONDS = 1e-9


def _is_of(process: Path, session: int) -> bool:
    try:
        # The name of the program, in brackets, may hold anything.
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]) == session
    except (OSError, IndexError):
        return False


class Starving:
    """Watches the processes of a session, from now on."""

    def __init__(self, session: int, proc: Path = _PROC) -> None:
        self._session, self._proc = session, proc
        self._known: dict[str, int] = {}
        """Thread to the nanoseconds that it could have run and did not, as it was last looked at."""
        self.since_s()

    def since_s(self) -> float:
        """Seconds that their threads waited since the last time, all together; 0 where the system does not tell."""
        now: dict[str, int] = {}
        for process in self._proc.glob("[0-9]*"):
            if not _is_of(process, self._session):
                continue
            for thread in process.glob("task/*/schedstat"):
                try:
                    now[thread.parent.name] = int(thread.read_text().split()[1])
                except (OSError, IndexError):  # it has ended, or nobody counts
                    continue
        waited = sum(max(0, each - self._known.get(name, 0)) for name, each in now.items())
        self._known = now
        return waited * _NANOSECONDS
