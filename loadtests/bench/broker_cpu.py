"""Processor time of a broker's process: a figure that other processes of the machine disturb far less than a rate."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from loadtests.bench.pump import Throughput

_UTIME, _STIME = 11, 12
"""Positions in /proc/<pid>/stat after the command name, which may hold spaces."""


def process_cpu_s(pid: int | None) -> float | None:
    """User and system time of a process so far, in steps of a clock tick (10 ms); None outside Linux or when gone."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def with_broker_cpu(throughput: Throughput, before_s: float | None, after_s: float | None) -> Throughput:
    """The measurement with the processor time between two readings."""
    if before_s is None or after_s is None:
        return throughput
    return msgspec.structs.replace(throughput, broker_cpu_s=after_s - before_s)
