"""A broker's processes seen from outside: processor time and memory, which other processes disturb less than rates."""

from __future__ import annotations

import os
import time
from pathlib import Path

_UTIME, _STIME = 11, 12
"""Positions in /proc/<pid>/stat after the command name, which may hold spaces."""
_QUIET_SHARE = 0.05
_LOOK_EVERY_S = 0.05
_KIB = 1_024


def process_cpu_s(pid: int | None) -> float | None:
    """User and system time of a process so far, in steps of a clock tick (10 ms); None outside Linux or when gone."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def process_tree(pid: int) -> list[int]:
    """The process and all below it: some brokers are started by scripts."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in path.read_text(encoding="utf-8").split()]
            except OSError:
                continue  # the thread ended meanwhile
    return found


def _memory_kib(pid: int) -> int | None:
    """Proportional set size: pages shared with others count in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)


class BrokerProcess:
    """All processes of a broker. ``pid`` None: a broker that somebody else started, of which nothing is known."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._pids = [] if pid is None else process_tree(pid)

    def cpu_s(self) -> float | None:
        """Processor time so far; None where it cannot be read."""
        spent = [process_cpu_s(pid) for pid in self._pids]
        known = [seconds for seconds in spent if seconds is not None]
        return sum(known) if known else None

    def memory_bytes(self) -> int | None:
        """Memory now, without what the kernel holds for its sockets; None where it cannot be read."""
        if self._pid is None:
            return None
        sizes = [_memory_kib(pid) for pid in process_tree(self._pid)]
        known = [size for size in sizes if size is not None]
        return sum(known) * _KIB if known else None

    def settle(self, timeout_s: float) -> None:
        """Wait until the broker is all but idle, e.g. done with the end of many connections; at most so long."""
        deadline = time.monotonic() + timeout_s
        before, since = self.cpu_s(), time.monotonic()
        while before is not None and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)  # another process's idleness raises no event
            after, now = self.cpu_s(), time.monotonic()
            if after is None or after - before <= _QUIET_SHARE * (now - since):
                return
            before, since = after, now
