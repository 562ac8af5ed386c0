"""All clients of a scenario, and the order of its phases: subscribe, produce, drain, stop."""

from __future__ import annotations

import math
import random
from enum import Enum
from typing import Final

from assay.faults.scenario import QueueWorkload, Scenario
from assay.faults.workload.client import WorkloadClient
from assay.faults.workload.consumer import DLQ_GROUP, ConsumerClient
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import HistoryRecorder
from assay.faults.workload.producer import ProducerClient
from assay.reference_broker.trace.schema import OpKind, OpType

SUBSCRIBE_PATIENCE_S: Final = 5.0
"""Producers begin when every consumer is subscribed, or after this long whatever happened."""
MAX_LINGER_S: Final = 3.0
_LINGER_MARGIN_S: Final = 0.5


class PlanPhase(Enum):
    """Where the run stands; it only moves forward."""

    IDLE = "idle"
    SUBSCRIBING = "subscribing"
    PRODUCING = "producing"
    DRAINING = "draining"
    FINISHED = "finished"


def substream(seed: int, name: str) -> random.Random:
    """A random stream of its own for each name: removing one user of chance does not shift the others."""
    return random.Random(f"{seed}/{name}")


class _QueuePlan:
    """Clients and final read of one queue."""

    def __init__(self, workload: QueueWorkload, scenario: Scenario) -> None:
        self.workload = workload
        self.ledger = Ledger(workload.groups, dead_letters=scenario.contract.dead_letters)
        self.producers: list[ProducerClient] = []
        self.consumers: list[ConsumerClient] = []
        self.watchers: list[ConsumerClient] = []
        self.drained: OpType | None = None

    @property
    def readers(self) -> tuple[ConsumerClient, ...]:
        """Consumers of the queue and of its dead-letter queue."""
        return (*self.consumers, *self.watchers)


class WorkloadPlan:
    """Builds the clients of a scenario and steers them.

    The driver calls ``start(now)``, then ``update(now)`` after every turn in which a client did something and whenever
    ``next_deadline()`` is reached; it drives each of ``clients`` as :mod:`assay.faults.workload.client` says. When
    ``finished``, every client was told to stop and the ``DRAIN`` events are written.
    """

    def __init__(self, scenario: Scenario, history: HistoryRecorder, seed: int | None = None) -> None:
        self.scenario = scenario
        self.seed = scenario.seed if seed is None else seed
        self.phase = PlanPhase.IDLE
        self._history = history
        self._queues = [_QueuePlan(workload, scenario) for workload in scenario.workload]
        self._started_at = 0.0
        self._production_deadline = math.inf
        self._drain_deadline = 0.0
        self._count = {"p": 0, "c": 0, "d": 0}
        for queue in self._queues:
            self._build(queue, dead_letters=scenario.contract.dead_letters)
        self.producers = tuple(client for queue in self._queues for client in queue.producers)
        self.consumers = tuple(client for queue in self._queues for client in queue.readers)
        self.clients: tuple[WorkloadClient, ...] = (*self.consumers, *self.producers)

    def _build(self, queue: _QueuePlan, *, dead_letters: bool) -> None:
        workload = queue.workload
        for _ in range(workload.producers):
            name = self._name("p")
            rng = substream(self.seed, f"workload/{name}")
            queue.producers.append(ProducerClient(name, workload, rng, self._history, queue.ledger))
        for group in workload.groups:
            for _ in range(workload.consumers_per_group):
                queue.consumers.append(self._consumer("c", queue, group=group))
        if dead_letters:
            queue.watchers.append(self._consumer("d", queue, group=DLQ_GROUP))

    def _consumer(self, kind: str, queue: _QueuePlan, *, group: str) -> ConsumerClient:
        name = self._name(kind)
        rng = substream(self.seed, f"workload/{name}")
        return ConsumerClient(
            name, queue.workload, rng, self._history, queue.ledger, group=group, dead_letters=kind == "d"
        )

    def _name(self, kind: str) -> str:
        name = f"{kind}{self._count[kind]}"
        self._count[kind] += 1
        return name

    @property
    def finished(self) -> bool:
        """The run is over; clients may still have to send DISCONNECT and close."""
        return self.phase is PlanPhase.FINISHED

    @property
    def drained(self) -> bool:
        """Every queue was read until empty."""
        return all(queue.drained is OpType.OK for queue in self._queues)

    @property
    def open_count(self) -> int:
        """(value, group) pairs that still wait to be settled or dead-lettered."""
        return sum(queue.ledger.open_count for queue in self._queues)

    def start(self, now: float) -> None:
        """Start every client."""
        self._started_at = now
        self._production_deadline = now + self.scenario.production_limit_s
        self.phase = PlanPhase.SUBSCRIBING
        for client in self.clients:
            client.start(now)

    def update(self, now: float) -> None:
        """Move to the next phase when its time has come."""
        if self.phase is PlanPhase.SUBSCRIBING and self._may_produce(now):
            self.phase = PlanPhase.PRODUCING
            for producer in self.producers:
                producer.begin(now)
        if self.phase is PlanPhase.PRODUCING and self._may_drain(now):
            self.phase = PlanPhase.DRAINING
            for producer in self.producers:
                producer.cease()
            self._drain_deadline = now + self.scenario.drain_timeout_s
            for queue in self._queues:
                queue.ledger.progress(now)
            for consumer in self.consumers:
                consumer.drain(now)
        if self.phase is PlanPhase.DRAINING:
            self._drain(now)

    def next_deadline(self) -> float | None:
        """When ``update`` is due next even if nothing arrives."""
        if self.phase is PlanPhase.SUBSCRIBING:
            return self._started_at + SUBSCRIBE_PATIENCE_S
        if self.phase is PlanPhase.PRODUCING:
            return self._faults_end() if self._produced() else self._production_deadline
        if self.phase is PlanPhase.DRAINING:
            return min(self._drain_deadline, *(self._silent_at(queue) for queue in self._queues))
        return None

    def _faults_end(self) -> float:
        return self._started_at + self.scenario.faults_end_s

    def _may_produce(self, now: float) -> bool:
        return all(consumer.ready for consumer in self.consumers) or now >= self._started_at + SUBSCRIBE_PATIENCE_S

    def _may_drain(self, now: float) -> bool:
        return (now >= self._faults_end() and self._produced()) or now >= self._production_deadline

    def _produced(self) -> bool:
        return all(producer.finished for producer in self.producers)

    def _silent_at(self, queue: _QueuePlan) -> float:
        """When the final read of a queue may end if nothing more happens.

        Never while a reader is not connected, or has deliveries left to settle.
        """
        if queue.drained is not None or any(reader.busy or not reader.ready for reader in queue.readers):
            return math.inf
        return queue.ledger.last_progress + self._silence_s(queue)

    def _silence_s(self, queue: _QueuePlan) -> float:
        """Silence that ends the final read: short when every value met its end, long enough for any redelivery else.

        The short one still waits for a delivery timeout (if that is short), so that a broker which delivers a settled
        message again is caught.
        """
        if queue.ledger.open_count == 0:
            return min(self.scenario.contract.delivery_timeout_s + _LINGER_MARGIN_S, MAX_LINGER_S)
        return self.scenario.quiet_s

    def _drain(self, now: float) -> None:
        for queue in self._queues:
            if queue.drained is None:
                self._drain_queue(queue, now)
        if all(queue.drained is not None for queue in self._queues):
            self.phase = PlanPhase.FINISHED
            for client in self.clients:
                client.stop(now)

    def _drain_queue(self, queue: _QueuePlan, now: float) -> None:
        if now >= self._silent_at(queue):
            queue.drained = OpType.OK
            detail = f"{queue.ledger.open_count} pairs of value and group without end"
        elif now >= self._drain_deadline:
            queue.drained = OpType.INFO
            absent = [reader.client_id for reader in queue.readers if not reader.ready]
            detail = f"not empty after {self.scenario.drain_timeout_s:g} s"
            if absent:
                detail += f"; not connected: {', '.join(absent)}"
        else:
            return
        names = [queue.workload.queue, *(watcher.queue for watcher in queue.watchers)]
        for name in names:
            self._history.record(now, "drain", OpKind.DRAIN, queue.drained, queue=name, detail=detail)
