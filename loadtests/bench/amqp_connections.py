"""Many connections over AMQP 0.9.1, each with an open channel: how fast they come and go, what an idle one takes."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack

from assay.conformance.targets import Endpoint
from assay.loadtests.bench import amqp
from assay.loadtests.bench.crowd import raise_file_limit, start_connect
from assay.loadtests.bench.idle import FIRST, IDLE_PATIENCE_S, PART, SETTLE_S
from assay.loadtests.bench.pump import STALL_TIMEOUT_S
from assay.loadtests.bench.workload import BenchError, Figure, Meter, Workload

_HEARTBEAT_S = 600
"""Real clients have one, and it costs the broker a timer; longer than a measurement, so that none is due."""
_AT_ONCE = 32
_READ_BYTES = 65_536


class _Client:
    """One connection on its way to an open channel, and back, step by step as a client that waits for each answer."""

    __slots__ = ("_buffer", "_step", "socket")

    def __init__(self, endpoint: Endpoint) -> None:
        self.socket = start_connect(endpoint)
        self._buffer = b""
        self._step = 0

    def begin(self) -> None:
        """It is connected."""
        self.socket.send(amqp.OPENING)

    @property
    def is_open(self) -> bool:
        """Its channel is."""
        return self._step == len(_ANSWERS) - 1

    @property
    def is_closed(self) -> bool:
        """Both have said goodbye."""
        return self._step == len(_ANSWERS)

    def read(self) -> None:
        """Take the next step with each answer. Raises :class:`BenchError` for any other."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise BenchError("the broker closed a connection before it was ready")
        self._buffer += data
        for found in amqp.frames(self._buffer):
            if found.kind != amqp.METHOD or amqp.name_of(self._buffer, found) != _ANSWERS[self._step]:
                message = f"expected method {_ANSWERS[self._step]}, received {self._buffer[:80]!r}"
                raise BenchError(message)
            arguments = self._buffer[found.start + 4 : found.end]
            self._buffer = self._buffer[found.end + 1 :]
            self._step += 1
            self._answer(arguments)
            break

    def _answer(self, arguments: bytes) -> None:
        if self._step == 1:
            self.socket.send(amqp.method(amqp.START_OK, amqp.LOGIN, channel=0))
        elif self._step == 2:
            answer = amqp.tune_answer(arguments, heartbeat_s=_HEARTBEAT_S)
            opening = amqp.method(amqp.OPEN, amqp.VHOST, channel=0)
            self.socket.send(amqp.method(amqp.TUNE_OK, answer, channel=0) + opening)
        elif self._step == 3:
            self.socket.send(amqp.method(amqp.CHANNEL_OPEN, b"\0"))

    def close(self) -> None:
        """Ask for the end of the connection."""
        self.socket.send(amqp.method(amqp.CLOSE, bytes(7), channel=0))


_ANSWERS = (amqp.START, amqp.TUNE, amqp.OPEN_OK, amqp.CHANNEL_OPEN_OK, amqp.CLOSE_OK)


class _Openings:
    """Connections on their way, so many at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}

    def begin(self) -> None:
        """One more."""
        client = _Client(self._endpoint)
        self._clients[client.socket.fileno()] = client
        self._poll.register(client.socket, select.EPOLLOUT)

    def __len__(self) -> int:
        return len(self._clients)

    def turn(self) -> list[_Client]:
        """Those that took a step now. Raises :class:`BenchError`."""
        events = self._poll.poll(STALL_TIMEOUT_S)
        if not events:
            message = f"no answer for {STALL_TIMEOUT_S:g} s, {len(self._clients)} connections wait"
            raise BenchError(message)
        moved = []
        for fd, event in events:
            client = self._clients[fd]
            if event & select.EPOLLOUT:
                client.begin()
                self._poll.modify(fd, select.EPOLLIN)
            else:
                client.read()
                moved.append(client)
        return moved

    def let_go(self, client: _Client) -> socket.socket:
        """It is the caller's."""
        fd = client.socket.fileno()
        self._poll.unregister(fd)
        return self._clients.pop(fd).socket

    def close(self) -> None:
        self._poll.close()
        for client in self._clients.values():
            client.socket.close()


class AmqpConnects(Workload):
    """Connections that open a channel, say goodbye and come anew, 32 at once."""

    def measure(self, number: int) -> list[Figure]:
        openings = _Openings(self.endpoint)
        meter = Meter(self.broker)
        deadline = time.perf_counter() + self.plan.seconds
        begun = done = 0
        try:
            while True:
                wanted = self.plan.messages or (1 << 40 if time.perf_counter() < deadline else 0)
                while begun < wanted and len(openings) < _AT_ONCE:
                    openings.begin()
                    begun += 1
                if not len(openings):
                    break
                for client in openings.turn():
                    if client.is_closed:
                        openings.let_go(client).close()
                        done += 1
                    elif client.is_open:
                        client.close()
        finally:
            openings.close()
        return [meter.rate("amqp_connects", done)]


def open_channels(endpoint: Endpoint, count: int, deadline: float) -> list[socket.socket]:
    """So many connections with an open channel each, or fewer if the time is over. Raises :class:`BenchError`."""
    openings = _Openings(endpoint)
    opened: list[socket.socket] = []
    begun = 0
    try:
        while len(opened) < count:
            while begun < count and len(openings) < _AT_ONCE and time.monotonic() < deadline:
                openings.begin()
                begun += 1
            if not len(openings):
                break
            opened += [openings.let_go(client) for client in openings.turn() if client.is_open]
    except BaseException:
        for each in opened:
            each.close()
        raise
    finally:
        openings.close()
    return opened


class AmqpIdle(Workload):
    """``plan.idle`` connections with an open channel, measured once: memory of the broker for each."""

    @property
    def measurements(self) -> int:
        return 1

    def measure(self, number: int) -> list[Figure]:
        wanted = raise_file_limit(FIRST + self.plan.idle) - FIRST
        meter = Meter(self.broker)
        with ExitStack() as stack:
            deadline = time.monotonic() + IDLE_PATIENCE_S
            self._open(stack, FIRST, deadline)
            before = self._settled_bytes()
            count = 0
            while count < wanted and time.monotonic() < deadline:
                count += self._open(stack, min(PART, wanted - count), deadline)
            after = self._settled_bytes()
        if before is None or after is None or not count:
            message = "the broker's memory cannot be read: it was not started by the bench, or /proc is missing"
            raise BenchError(message)
        note = f"only {count:,} connections in {IDLE_PATIENCE_S:g} s" if count < self.plan.idle else ""
        return [meter.figure("amqp_idle", (after - before) / count / 1_000, count, note=note)]

    def _open(self, stack: ExitStack, count: int, deadline: float) -> int:
        opened = open_channels(self.endpoint, count, deadline)
        stack.callback(_close_all, opened)
        return len(opened)

    def _settled_bytes(self) -> int | None:
        time.sleep(SETTLE_S)  # memory raises no event
        self.broker.settle(self.plan.patience_s)
        return self.broker.memory_bytes()


def _close_all(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
