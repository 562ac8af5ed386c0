"""``assay bench mqtt``, ``queue`` and ``amqp091``: several brokers, same client, same run, rounds interleaved.

A case is prepared on every broker, then each round measures it on each broker in turn (A B A B ...), so that a slow
minute of the machine hits all of them; the figure of a broker is the median of its rounds. The null broker takes part
where it can and shows the client's own ceiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import msgspec

from assay.conformance.targets import Endpoint, ProbeError, RunningTarget, TargetStartError, running
from assay.loadtests.bench.amqp_connections import AmqpConnects, AmqpIdle
from assay.loadtests.bench.amqp_fan_out import AmqpFanOut, AmqpGets
from assay.loadtests.bench.amqp_flow import PERSISTENT, TOPIC, TRANSIENT, OneToOne, TopicFlow
from assay.loadtests.bench.amqp_queue import AmqpQueueBatch, AmqpQueueKeyed, AmqpQueueLife
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.cases import PUB_SUB, Case, lines_of
from assay.loadtests.bench.crowd import raise_file_limit
from assay.loadtests.bench.fan_in import FanIn
from assay.loadtests.bench.fan_out import FanOut
from assay.loadtests.bench.figures import NULL, BenchRun, Reading
from assay.loadtests.bench.handshake import HandshakeError
from assay.loadtests.bench.idle import Idle
from assay.loadtests.bench.mixed import Mixed
from assay.loadtests.bench.open_loop import OpenLoop
from assay.loadtests.bench.peers import Peer, null_pipe, null_relay
from assay.loadtests.bench.pump import PubSub
from assay.loadtests.bench.queue import QueueBatch, QueueKeyed, QueueLife
from assay.loadtests.bench.storm import Storm
from assay.loadtests.bench.subscriptions import Subscriptions
from assay.loadtests.bench.workload import SETTLE_TIMEOUT_S, BenchError, BenchPlan, Figure, UnsupportedError, Workload

WORKLOADS: dict[Case, Callable[[Endpoint, BenchPlan, BrokerProcess], Workload]] = {
    Case.QOS_0: partial(PubSub, qos=0),
    Case.QOS_1: partial(PubSub, qos=1),
    Case.QOS_2: partial(PubSub, qos=2),
    Case.MIXED: Mixed,
    Case.FAN_OUT: FanOut,
    Case.FAN_IN: FanIn,
    Case.SUBSCRIPTIONS: Subscriptions,
    Case.OPEN_LOOP: OpenLoop,
    Case.IDLE: Idle,
    Case.STORM: Storm,
    Case.QUEUE: QueueLife,
    Case.QUEUE_BATCH: QueueBatch,
    Case.QUEUE_KEYED: QueueKeyed,
    Case.IDLE_CHANNELS: AmqpIdle,
    Case.TRANSIENT: partial(OneToOne, flows=TRANSIENT),
    Case.PERSISTENT: partial(OneToOne, flows=PERSISTENT),
    Case.FANOUT: AmqpFanOut,
    Case.TOPIC: partial(TopicFlow, flows=TOPIC),
    Case.GET: AmqpGets,
    Case.CONNECTS: AmqpConnects,
}
AMQP_WORKLOADS: dict[Case, Callable[[Endpoint, BenchPlan, BrokerProcess], Workload]] = {
    Case.QUEUE: AmqpQueueLife,
    Case.QUEUE_BATCH: AmqpQueueBatch,
    Case.QUEUE_KEYED: AmqpQueueKeyed,
}
RELAY_CASES = frozenset({Case.FAN_OUT, Case.FAN_IN, Case.OPEN_LOOP, Case.IDLE, Case.STORM})
"""Cases that the null broker serves packet by packet; those of ``PUB_SUB`` it serves as a pipe. Not those of queues:
packet by packet it is slower than a broker that serves blocks. There the client's load tells whether it is the limit.
"""

FAR_BEHIND = 5.0
SLOW_S = 4.0
"""A peer that is so many times slower in every respect, and takes longer than this, has one round only."""
FAILURES = (BenchError, UnsupportedError, HandshakeError, OSError)

Progress = Callable[[str], None]


class _Broker(NamedTuple):
    """A broker of the run."""

    name: str
    target: RunningTarget
    amqp: bool

    def workload(self, case: Case, plan: BenchPlan) -> Workload:
        """Not prepared yet."""
        process = BrokerProcess(self.target.pid)
        if not self.amqp:
            return WORKLOADS[case](self.target.endpoint, plan, process)
        endpoint = msgspec.structs.replace(self.target.endpoint, port=self.target.ports["websocket_port"])
        return AMQP_WORKLOADS[case](endpoint, plan, process)


def _start(stack: ExitStack, bench: BenchRun, peers: Sequence[Peer], progress: Progress) -> list[_Broker]:
    """Start those that are here; a peer that cannot be started is skipped where the peer says so."""
    brokers: list[_Broker] = []
    for peer in peers:
        if peer.missing:
            bench.skipped[peer.name] = peer.missing
            continue
        progress(f"starting {peer.name}")
        try:
            broker = stack.enter_context(running(peer.target))
        except (TargetStartError, ProbeError) as error:
            if not peer.optional:
                raise
            advice = peer.target.start.advice if peer.target.start is not None else ""
            bench.skipped[peer.name] = f"{error}; {advice}" if advice else str(error)
            continue
        brokers.append(_Broker(peer.name, broker, peer.amqp))
        bench.versions[peer.name] = broker.version
    return brokers


class _CaseRun:
    """One case on all brokers. A peer that fails leaves the case, with the reason on the lines it did not reach."""

    def __init__(self, bench: BenchRun, case: Case, brokers: Sequence[_Broker], progress: Progress) -> None:
        self._bench, self._case, self._brokers, self._progress = bench, case, brokers, progress

    def run(self) -> None:
        """Raises :class:`BenchError` when the first broker or the null broker fails: then the figures are void."""
        with ExitStack() as stack:
            workloads = self._prepare(stack)
            done: set[str] = set()
            measurements = max((workload.measurements for workload in workloads.values()), default=0)
            for number in range(measurements):
                if number % self._bench.plan.rounds == 0:
                    done.clear()  # a stage of its own
                for name, workload in list(workloads.items()):
                    if name in done or number >= workload.measurements:
                        continue
                    began = time.monotonic()
                    self._progress(f"{self._case}: measurement {number + 1} of {measurements}, {name}")
                    try:
                        figures = workload.measure(number)
                    except FAILURES as error:
                        self._leave(name, error)
                        workloads.pop(name).close()
                        continue
                    for figure in figures:
                        self._bench.readings.append(Reading(peer=name, round=number, figure=figure))
                    if name == NULL or (time.monotonic() - began > SLOW_S and self._is_far_behind(name)):
                        done.add(name)
        for broker in self._brokers:
            # The end of many connections must not weigh on the next case.
            BrokerProcess(broker.target.pid).settle(SETTLE_TIMEOUT_S)

    def _is_far_behind(self, name: str) -> bool:
        """One round says enough of a broker that takes long because it is so much slower."""
        first = self._brokers[0].name
        ratios = [self._bench.advantage(line, first, name) for line in lines_of(self._case)]
        return name != first and all(ratio is None or ratio >= FAR_BEHIND for ratio in ratios)

    def _prepare(self, stack: ExitStack) -> dict[str, Workload]:
        workloads = {}
        for broker in self._brokers:
            name = broker.name
            self._progress(f"{self._case}: preparing {name}")
            workload = stack.enter_context(broker.workload(self._case, self._bench.plan))
            try:
                workload.prepare()
            except FAILURES as error:
                self._leave(name, error)
                workload.close()
            else:
                workloads[name] = workload
        return workloads

    def _leave(self, name: str, error: Exception) -> None:
        unsupported = isinstance(error, UnsupportedError)
        if name in (self._brokers[0].name, NULL) and not unsupported:
            message = f"{name}, {self._case}: {error}"
            raise BenchError(message) from error
        note = f"{'unsupported' if unsupported else 'failed'}: {error}"
        for line in lines_of(self._case):
            if not self._bench.figures(name, line.name):
                figure = Figure(line=line.name, value=None, note=note)
                self._bench.readings.append(Reading(peer=name, round=0, figure=figure))


def run_bench(peers: Sequence[Peer], plan: BenchPlan, *, progress: Progress = lambda text: None) -> BenchRun:
    """Start every peer, and the null broker where it takes part, measure all cases, stop them.

    Raises :class:`BenchError`, ``TargetStartError``, ``ProbeError``.
    """
    began = time.monotonic()
    bench = BenchRun(plan=plan, started_at=datetime.now(UTC).isoformat(timespec="seconds"))
    raise_file_limit(4 * plan.crowd * (len(peers) + 1) + plan.idle)
    with ExitStack() as stack:
        brokers = _start(stack, bench, peers, progress)
        pipe = _start(stack, bench, [null_pipe()] if set(plan.cases) & set(PUB_SUB) else [], progress)
        relay = _start(stack, bench, [null_relay()] if set(plan.cases) & RELAY_CASES else [], progress)
        for case in sorted(plan.cases, key=list(Case).index):
            null = relay if case in RELAY_CASES else pipe if case in PUB_SUB else []
            _CaseRun(bench, case, [*brokers, *null], progress).run()
    bench.duration_s = time.monotonic() - began
    return bench
