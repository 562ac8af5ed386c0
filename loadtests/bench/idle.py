"""Idle connections: how much memory of the broker's own each of them takes, the kernel's socket memory aside."""

from __future__ import annotations

import socket
import time

from loadtests.bench.crowd import close_all, open_crowd, raise_file_limit
from loadtests.bench.workload import BenchError, Figure, Meter, Workload

KEEP_ALIVE_S = 600
"""Real clients have one, and it costs the broker a timer."""
FIRST = 100
"""Connections before the first look: what a broker allocates once does not count."""
SETTLE_S = 0.5
"""A broker may take that long to be done with the handshakes."""


class Idle(Workload):
    """``plan.idle`` connections, measured once."""

    @property
    def measurements(self) -> int:
        return 1

    def measure(self, number: int) -> list[Figure]:
        count = raise_file_limit(FIRST + self.plan.idle) - FIRST
        meter = Meter(self.broker)
        first = self._open("bench-first", FIRST)
        try:
            self._settle()
            before = self.broker.memory_bytes()
            crowd = self._open("bench-idle", count)
            try:
                self._settle()
                after = self.broker.memory_bytes()
            finally:
                close_all(crowd)
        finally:
            close_all(first)
        if before is None or after is None:
            message = "the broker's memory cannot be read: it was not started by the bench, or /proc is missing"
            raise BenchError(message)
        return [meter.figure("idle", (after - before) / count / 1_000, count)]

    def _open(self, name: str, count: int) -> list[socket.socket]:
        names = [f"{name}-{number:05}" for number in range(count)]
        return open_crowd(
            self.endpoint, names, keep_alive_s=KEEP_ALIVE_S, timeout_s=max(self.plan.patience_s, count / 250)
        )

    def _settle(self) -> None:
        time.sleep(SETTLE_S)  # memory raises no event
        self.broker.settle(self.plan.patience_s)
