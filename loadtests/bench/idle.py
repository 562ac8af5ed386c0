"""Idle connections: how much memory of the broker's own each of them takes, the kernel's socket memory aside."""

from __future__ import annotations

import time
from contextlib import ExitStack

from assay.loadtests.bench.crowd import close_all, open_crowd, raise_file_limit
from assay.loadtests.bench.workload import BenchError, Figure, Meter, Workload

KEEP_ALIVE_S = 600
"""Real clients have one, and it costs the broker a timer."""
FIRST = 100
"""Connections before the first look: what a broker allocates once does not count."""
PART = 500
"""So many more at a time, as long as patience lasts."""
IDLE_PATIENCE_S = 15.0
SETTLE_S = 0.5
"""A broker may take that long to be done with the handshakes."""


class Idle(Workload):
    """``plan.idle`` connections, measured once."""

    @property
    def measurements(self) -> int:
        return 1

    def measure(self, number: int) -> list[Figure]:
        wanted = raise_file_limit(FIRST + self.plan.idle) - FIRST
        meter = Meter(self.broker)
        with ExitStack() as stack:
            self._open(stack, "first", FIRST)
            self._settle()
            before = self.broker.memory_bytes()
            deadline = time.monotonic() + IDLE_PATIENCE_S
            count = 0
            while count < wanted and time.monotonic() < deadline:
                part = min(PART, wanted - count)
                self._open(stack, str(count), part)
                count += part
            self._settle()
            after = self.broker.memory_bytes()
        if before is None or after is None:
            message = "the broker's memory cannot be read: it was not started by the bench, or /proc is missing"
            raise BenchError(message)
        note = f"only {count:,} connections in {IDLE_PATIENCE_S:g} s" if count < self.plan.idle else ""
        return [meter.figure("idle", (after - before) / count / 1_000, count, note=note)]

    def _open(self, stack: ExitStack, name: str, count: int) -> None:
        names = [f"bench-idle-{name}-{number:05}" for number in range(count)]
        crowd = open_crowd(self.endpoint, names, keep_alive_s=KEEP_ALIVE_S, timeout_s=IDLE_PATIENCE_S)
        stack.callback(close_all, crowd)

    def _settle(self) -> None:
        time.sleep(SETTLE_S)  # memory raises no event
        self.broker.settle(self.plan.patience_s)
