"""Connection storm: clients with a new id each connect with a clean session, wait for CONNACK, disconnect.

Once as many as the broker can take, with a fixed number under way; once at a fixed rate, where the latency of a CONNACK
counts from when its CONNECT was due.
"""

from __future__ import annotations

import gc
import select
import socket
import time

import numpy as np

from assay.conformance.targets import Endpoint
from assay.loadtests.bench.crowd import ANSWER_BYTES, check_connack, connect_packet, start_connect
from assay.loadtests.bench.pump import STALL_TIMEOUT_S
from assay.loadtests.bench.workload import BenchError, Figure, Meter, Workload

_DISCONNECT = b"\xe0\x00"
TICK_S = 0.001
LATE_NOTE = "the client itself was late"
LATE_S = 0.005
"""The client is late when the 99th percentile of its own delay is above this."""
MAX_UNDER_WAY = 1_000
"""A client that is so far behind the schedule waits: fewer than brokers' listen backlogs hold."""


class Storm(Workload):
    """New connections without end."""

    def measure(self, number: int) -> list[Figure]:
        seconds, rate = self.plan.seconds, self.plan.storm_rate_per_s
        meter = Meter(self.broker)
        closed = _Run(self.endpoint, f"c{number % 10}", 2 * number, at_once=self.plan.storm_at_once)
        figures = [meter.rate("storm_max", closed.run(seconds))]
        opened = _Run(self.endpoint, f"o{number % 10}", 2 * number + 1, at_once=MAX_UNDER_WAY, rate_per_s=rate)
        meter = Meter(self.broker)
        gc.disable()  # the client's own pauses are not the broker's
        try:
            done = opened.run(seconds)
        finally:
            gc.enable()
        note = LATE_NOTE if np.percentile(opened.lateness_s, 99) > LATE_S else ""
        p99_ms = float(np.percentile(opened.latencies_s, 99)) * 1_000
        figures.append(meter.rate("storm_open", done, note=note))
        figures.append(meter.figure("storm_p99", p99_ms, done, note=note))
        return figures


class _Run:
    """One measurement: with ``rate_per_s`` on a schedule, without as many as ``at_once`` under way allow."""

    def __init__(self, endpoint: Endpoint, label: str, source: int, *, at_once: int, rate_per_s: int = 0) -> None:
        """``label`` makes client ids unique, ``source`` counts source addresses: each has only so many ports."""
        self._endpoint, self._source, self._at_once, self._rate_per_s = endpoint, source, at_once, rate_per_s
        name = f"{label}{0:08}"
        self._head, self._tail = connect_packet(endpoint, name).split(name.encode())
        self._label = label.encode()
        self._poll = select.epoll()
        self._under_way: dict[int, tuple[socket.socket, bytes, float]] = {}
        """By file descriptor: the socket, its CONNECT, and when that was due."""
        self._begun = 0
        self._started = 0.0
        self._held_until_s = 0.0
        """Until then no more could be under way."""
        self.latencies_s: list[float] = []
        """Of each CONNACK, from when its CONNECT was due (without a schedule: begun)."""
        self.lateness_s: list[float] = []
        """Of each CONNECT, behind the schedule."""

    def run(self, seconds: float) -> int:
        """Connect for so long, then wait for the last answers; returns how many there were."""
        self._started = time.perf_counter()
        try:
            while True:
                passed_s = time.perf_counter() - self._started
                over = passed_s >= seconds
                if not over:
                    self._begin(passed_s)
                elif not self._under_way:
                    return self._begun
                waits = over or len(self._under_way) >= self._at_once
                events = self._poll.poll(STALL_TIMEOUT_S if waits else TICK_S)
                if waits and not events:
                    message = f"no CONNACK for {STALL_TIMEOUT_S:g} s, {len(self._under_way)} connections wait"
                    raise BenchError(message)
                for fd, event in events:
                    self._turn(fd, event)
        finally:
            self._poll.close()
            for connection, _, _ in self._under_way.values():
                connection.close()

    def _begin(self, passed_s: float) -> None:
        room = self._begun + self._at_once - len(self._under_way)
        if room == self._begun:
            self._held_until_s = passed_s  # the broker is the one that is late
        wanted = min(room, int(passed_s * self._rate_per_s)) if self._rate_per_s else room
        while self._begun < wanted:
            now_s = time.perf_counter() - self._started
            due_s = self._begun / self._rate_per_s if self._rate_per_s else now_s
            self.lateness_s.append(now_s - max(due_s, self._held_until_s))
            packet = b"%b%b%08d%b" % (self._head, self._label, self._begun, self._tail)
            connection = start_connect(self._endpoint, self._source)
            self._under_way[connection.fileno()] = (connection, packet, due_s)
            try:
                connection.send(packet)  # on loopback the connection is usually there already
            except BlockingIOError:
                self._poll.register(connection, select.EPOLLOUT)
            else:
                self._poll.register(connection, select.EPOLLIN)
            self._begun += 1

    def _turn(self, fd: int, event: int) -> None:
        connection, packet, due_s = self._under_way[fd]
        if event & select.EPOLLOUT:
            connection.send(packet)
            self._poll.modify(fd, select.EPOLLIN)
            return
        check_connack(connection.recv(ANSWER_BYTES))
        self.latencies_s.append(time.perf_counter() - self._started - due_s)
        del self._under_way[fd]
        connection.send(_DISCONNECT)
        connection.close()
