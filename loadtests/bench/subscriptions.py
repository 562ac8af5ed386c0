"""Subscriptions: what a publish costs beside 10, 1 000 and 100 000 filters with wildcards.

Filters come in groups of three, ``s/<area>/<group>/+``, ``s/<area>/<group>/#`` and ``s/+/<group>/#``, of three
different receivers. A topic ``s/<area>/<group>/<leaf>`` matches its group and nothing else, whatever the number of
filters, so every message is delivered three times. Known topics repeat; a cold topic has a leaf that is new.
"""

from __future__ import annotations

import select
import time

import numpy as np
import numpy.typing as npt

from assay.conformance.targets import Endpoint
from assay.conformance.wire import Unsubscribe, encode
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.cases import FILTER_COUNTS, filters_line
from assay.loadtests.bench.crowd import check_suback, close_all, subscribe_packet
from assay.loadtests.bench.frames import PublishFrames
from assay.loadtests.bench.handshake import connect
from assay.loadtests.bench.pump import COALESCE_S, COALESCE_SHARE, STALL_TIMEOUT_S, Stream
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Meter, Workload
from assay.loadtests.packets import split_frames

RECEIVERS = 10
COPIES = 3
TOPICS = 1_000
AREAS = 100
GROUP_DIGITS, LEAF_DIGITS = 6, 9
FILTERS_PER_PACKET = 50
PACKETS_UNDER_WAY = 20
CHURN_PER_S = 500
"""Subscriptions made, and as many ended, per second beside the publishes of the churn line."""
FIRST_MESSAGES = 10
BUSY_TARGET_S = 0.3
"""All messages under way should not take a broker longer."""
_TOPIC = f"s/00/{'0' * GROUP_DIGITS}/{'0' * LEAF_DIGITS}"
SUBACK_HEAD_BYTES = 4
_SUBACK, _UNSUBACK = 0x90, 0xB0

Numbers = npt.NDArray[np.int64]


def group_filters(group: int) -> tuple[str, str, str]:
    """The three filters of a group."""
    area, name = f"{group % AREAS:02}", f"{group:0{GROUP_DIGITS}}"
    return f"s/{area}/{name}/+", f"s/{area}/{name}/#", f"s/+/{name}/#"


class Subscriptions(Workload):
    """Ten receivers share all filters; the number of filters grows from stage to stage, a stage has all rounds."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess) -> None:
        super().__init__(endpoint, plan, broker)
        self._receivers: list[Stream] = []
        self._publisher: Stream | None = None
        self._guest: Stream | None = None
        self._stages = [count for count in FILTER_COUNTS if count <= max(plan.filters, FILTER_COUNTS[0])]
        self._groups = 0
        self._unused_leaf = TOPICS

    @property
    def measurements(self) -> int:
        return self.plan.rounds * len(self._stages)

    def prepare(self) -> None:
        super().prepare()
        self._receivers = [self._connect(f"bench-sub-{number}") for number in range(RECEIVERS)]
        self._publisher = self._connect("bench-sub-publisher")
        self._guest = self._connect("bench-sub-guest")

    def _connect(self, client_id: str) -> Stream:
        connection, _ = connect(self.endpoint, client_id)
        self.held.callback(close_all, [connection])
        return Stream(connection)

    def measure(self, number: int) -> list[Figure]:
        assert self._guest is not None
        stage = number // self.plan.rounds
        filters, last = self._stages[stage], stage == len(self._stages) - 1
        figures = []
        if number % self.plan.rounds == 0:
            grown = self._grow(max(1, filters // COPIES))
            if last:
                figures.append(grown)
        figures.append(self._figure(filters_line(filters)))
        if last:
            figures.append(self._figure("filters_cold", cold=True))
            figures.append(self._figure("filters_churn", guest=_Guest(self._guest)))
        return figures

    def _grow(self, groups: int) -> Figure:
        """Subscribe until there are so many groups; the figure is the rate."""
        wanted: list[list[str]] = [[] for _ in range(RECEIVERS)]
        for group in range(self._groups, groups):
            for copy, name in enumerate(group_filters(group)):
                wanted[_receiver(group, copy)].append(name)
        meter = Meter(self.broker)
        deadline = meter.started + self.plan.patience_s
        for receiver, names in zip(self._receivers, wanted, strict=True):
            _subscribe_all(receiver, names, deadline)
        count = COPIES * (groups - self._groups)
        self._groups = groups
        return meter.rate("subscribe", count)

    def _figure(self, line: str, *, cold: bool = False, guest: _Guest | None = None) -> Figure:
        probe = self._spread(FIRST_MESSAGES, cold, None)
        started = time.perf_counter()
        self._unused_leaf += probe.run(messages=FIRST_MESSAGES)
        once_s = (time.perf_counter() - started) / FIRST_MESSAGES
        window = min(self.plan.window, max(2, int(BUSY_TARGET_S / once_s)))
        spread = self._spread(window, cold, guest)
        meter = Meter(self.broker)
        messages = spread.run(seconds=self.plan.seconds, messages=self.plan.messages)
        self._unused_leaf += messages
        return meter.rate(line, messages)

    def _spread(self, window: int, cold: bool, guest: _Guest | None) -> _Spread:
        assert self._publisher is not None
        mix = _Mix(self._groups, self.plan.payload_bytes, self._unused_leaf if cold else None)
        return _Spread(self._publisher, self._receivers, mix, window, guest)


def _receiver(group: int, copy: int) -> int:
    return (COPIES * group + copy) % RECEIVERS


def _subscribe_all(receiver: Stream, names: list[str], deadline: float) -> None:
    """Subscribe one receiver at QoS 0, several filters in a packet. Raises :class:`BenchError` if too slow."""
    packets = [names[at : at + FILTERS_PER_PACKET] for at in range(0, len(names), FILTERS_PER_PACKET)]
    sent = answered = 0
    while answered < len(packets):
        while sent < len(packets) and sent - answered < PACKETS_UNDER_WAY:
            receiver.write(subscribe_packet(sent % 60_000 + 1, [(name, 0) for name in packets[sent]]))
            sent += 1
        writing = [receiver.socket] if receiver.writing else []
        select.select([receiver.socket], writing, [], max(0.0, deadline - time.perf_counter()))
        if time.perf_counter() > deadline:
            message = f"{answered * FILTERS_PER_PACKET} of {len(names)} filters of one client in the time allowed"
            raise BenchError(message)
        receiver.flush()
        chunk = receiver.read()
        data = bytes(chunk)
        chunk.release()
        used = 0
        while answered < sent:
            granted = bytes(len(packets[answered]))
            end = used + SUBACK_HEAD_BYTES + len(granted)
            if not check_suback(data[used:end], granted):
                break
            used, answered = end, answered + 1
        receiver.consume(used)


class _Mix:
    """The messages of one measurement by their sequence number: topic, frame, and who gets them."""

    def __init__(self, groups: int, payload_bytes: int, cold_from: int | None) -> None:
        """``cold_from``: the first leaf nobody used before; None = topics repeat."""
        self._groups, self._cold_from = groups, cold_from
        frames = PublishFrames(_TOPIC, 0, payload_bytes)
        self.dtype, self.size = frames.dtype, frames.size
        self._template = np.frombuffer(bytes(frames.block(0, 1)), frames.dtype)
        self._topic_at = len(frames.head) - len(_TOPIC)

    def _group(self, numbers: Numbers) -> Numbers:
        return (numbers if self._cold_from is not None else numbers % TOPICS) % self._groups

    def frames(self, numbers: Numbers) -> npt.NDArray[np.void]:
        """The frames of these messages."""
        group = self._group(numbers)
        leaf = numbers % TOPICS // self._groups if self._cold_from is None else numbers + self._cold_from
        frames = np.repeat(self._template, len(numbers))
        frames["seq"] = numbers.astype(np.uint64)
        raw = frames.view(np.uint8).reshape(-1, self.size)
        for value, start, digits in (
            (group % AREAS, 2, 2),
            (group, 5, GROUP_DIGITS),
            (leaf, 6 + GROUP_DIGITS, LEAF_DIGITS),
        ):
            rest = value
            for place in range(start + digits - 1, start - 1, -1):
                raw[:, self._topic_at + place] = rest % 10 + 48
                rest = rest // 10
        return frames

    def due(self, receiver: int, first: int, last: int) -> Numbers:
        """Messages ``first .. last`` that a receiver gets."""
        numbers = np.arange(first, last + 1)
        found: Numbers = numbers[(receiver - COPIES * self._group(numbers)) % RECEIVERS < COPIES]
        return found


class _Guest:
    """Another client, which subscribes and unsubscribes at a steady rate while messages flow."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        names = [f"s/+/guest{number}/+" for number in range(FILTERS_PER_PACKET)]
        self._pairs = [
            subscribe_packet(number + 1, [(name, 0)]) + encode(Unsubscribe(packet_id=number + 1, filters=(name,)), 4)
            for number, name in enumerate(names)
        ]
        self._sent = self._answers = 0

    def turn(self, passed_s: float) -> None:
        """Send what is due after so many seconds, unless the broker lags behind."""
        while self._sent < passed_s * CHURN_PER_S and 2 * self._sent - self._answers < 2 * len(self._pairs):
            self.stream.write(self._pairs[self._sent % len(self._pairs)])
            self._sent += 1

    def read(self) -> None:
        chunk = self.stream.read()
        data = bytes(chunk)
        chunk.release()
        frames, used = split_frames(data)
        for first, _, _ in frames:
            if first not in (_SUBACK, _UNSUBACK):
                message = f"SUBSCRIBE and UNSUBSCRIBE were answered with {data[:16].hex()}"
                raise BenchError(message)
        self._answers += len(frames)
        self.stream.consume(used)

    @property
    def settled(self) -> bool:
        return self._answers == 2 * self._sent


class _Spread:
    """One measurement: a window of messages from the publisher to the receivers they match."""

    def __init__(
        self, publisher: Stream, receivers: list[Stream], mix: _Mix, window: int, guest: _Guest | None
    ) -> None:
        self._publisher, self._receivers, self._mix, self._window, self._guest = (
            publisher,
            receivers,
            mix,
            window,
            guest,
        )
        self._next = [0] * len(receivers)
        """By receiver: the first message that has not come to it, or passed it by."""
        self._sent = self._deliveries = 0

    def run(self, *, seconds: float = 0.0, messages: int = 0) -> int:
        """Publish for some time or so many messages; returns how many have reached all they match."""
        started = time.perf_counter()
        deadline = float("inf") if messages else started + seconds
        limit = messages or 1 << 40
        by_fd = {stream.socket.fileno(): index for index, stream in enumerate(self._receivers)}
        guest = self._guest
        with select.epoll() as poll:
            for fd in by_fd:
                poll.register(fd, select.EPOLLIN)
            if guest is not None:
                poll.register(guest.stream.socket, select.EPOLLIN)
            while True:
                now = time.perf_counter()
                if now >= deadline:
                    limit = min(limit, self._sent)
                elif guest is not None and self._sent < limit:
                    guest.turn(now - started)
                self._publish(limit)
                if self._sent >= limit and self._deliveries == COPIES * limit and (guest is None or guest.settled):
                    return limit
                events = poll.poll(STALL_TIMEOUT_S)
                if not events:
                    message = f"nothing arrived for {STALL_TIMEOUT_S:g} s: {self._sent} sent, {self._deliveries} came"
                    raise BenchError(message)
                before = self._deliveries
                for fd, _ in events:
                    if fd in by_fd:
                        self._receive(by_fd[fd])
                    elif guest is not None:
                        guest.read()
                if self._deliveries - before < COPIES * self._window // COALESCE_SHARE:
                    time.sleep(COALESCE_S)

    def _publish(self, limit: int) -> None:
        self._publisher.flush()
        if self._publisher.writing:
            return
        allowed = min(self._window - self._sent + self._deliveries // COPIES, limit - self._sent)
        if allowed >= min(self._window // 8 + 1, limit - self._sent) > 0:
            frames = self._mix.frames(np.arange(self._sent, self._sent + allowed))
            self._sent += allowed
            self._publisher.write(frames.tobytes())

    def _receive(self, index: int) -> None:
        stream, mix = self._receivers[index], self._mix
        chunk = stream.read()
        whole = len(chunk) - len(chunk) % mix.size
        data = bytes(chunk[:whole])
        chunk.release()
        stream.consume(whole)
        if not whole:
            return
        numbers: Numbers = np.frombuffer(data, mix.dtype)["seq"].astype(np.int64)
        first, last = self._next[index], int(numbers[-1])
        if not first <= last < self._sent or not np.array_equal(mix.due(index, first, last), numbers):
            message = f"receiver {index} got other messages than its filters match, from message {first} on"
            raise BenchError(message)
        if mix.frames(numbers).tobytes() != data:
            message = f"receiver {index} got other bytes than were published, from message {first} on"
            raise BenchError(message)
        self._next[index] = last + 1
        self._deliveries += len(numbers)
