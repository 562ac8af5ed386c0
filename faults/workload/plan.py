"""All clients of a scenario, and the order of its phases: subscribe, produce, drain, stop."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from assay.faults.scenario import Scenario, ScenarioError, names_a_client
from assay.faults.workload.amqp import AmqpConsumer, AmqpMover, AmqpPublisher, Topology
from assay.faults.workload.amqp_passing import AmqpPassing
from assay.faults.workload.client import Coming, WorkloadClient
from assay.faults.workload.consumer import DLQ_GROUP, ConsumerClient, PassingConsumer
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import HistoryRecorder
from assay.faults.workload.mqtt import (
    MQTT_PREFIX,
    PublisherClient,
    RetainedReader,
    Session,
    SubscriberClient,
    WillClient,
)
from assay.faults.workload.producer import ProducerClient
from assay.faults.workload_kinds import AmqpWorkload, MqttWorkload, QueueWorkload, Workload
from assay.reference_broker.trace.schema import AckedMeans, OpKind, OpType

SUBSCRIBE_PATIENCE_S: Final = 5.0
"""Producers begin when every consumer is subscribed, or after this long whatever happened."""
MAX_LINGER_S: Final = 3.0
_LINGER_MARGIN_S: Final = 0.5


Talker = ProducerClient | PublisherClient | WillClient | AmqpPublisher


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


class _Part:
    """Clients and final read of one workload, whatever its kind."""

    def __init__(self, plan: WorkloadPlan, workload: Workload, *, dead_letters: bool) -> None:
        self.workload = workload
        self.talkers: list[Talker] = []
        """Those who publish, and those who leave wills."""
        self.readers: list[WorkloadClient] = []
        self.queues: list[str] = []
        """What the final read reads, as the history names it."""
        self.drained: OpType | None = None
        self.ledgers: list[Ledger] = []
        if isinstance(workload, QueueWorkload):
            self.ledger = self._ledger(workload.groups, dead_letters=dead_letters)
            self._build_queue(plan, workload, dead_letters=dead_letters)
        elif isinstance(workload, AmqpWorkload):
            topology = Topology(workload)
            groups = [queue.group for queue in topology.bound]
            self.ledger = self._ledger(groups, dead_letters=dead_letters)
            self._build_amqp(plan, topology, dead_letters=dead_letters)
        else:
            self.ledger = self._ledger((), dead_letters=False)
            self._build_mqtt(plan, workload)

    def _ledger(self, groups: Iterable[str], *, dead_letters: bool) -> Ledger:
        ledger = Ledger(groups, dead_letters=dead_letters)
        self.ledgers.append(ledger)
        return ledger

    def _build_queue(self, plan: WorkloadPlan, workload: QueueWorkload, *, dead_letters: bool) -> None:
        history, ledger = plan.history, self.ledger
        self.queues.append(workload.queue)
        for _ in range(workload.producers):
            name, rng = plan.name("p")
            choices = plan.stream(name, "choices")
            ids_last = plan.scenario.contract.acked_means is AckedMeans.DISK
            self.talkers.append(ProducerClient(name, workload, rng, history, ledger, choices, ids_last=ids_last))
        for group in workload.groups:
            for _ in range(workload.consumers_per_group):
                name, rng = plan.name("c")
                coming = plan.coming(name, workload)
                self.readers.append(ConsumerClient(name, workload, rng, history, ledger, group=group, coming=coming))
        for passing in workload.passing_groups:
            name, rng = plan.name("g")
            self.readers.append(PassingConsumer(name, workload, rng, history, ledger, passing))
        if dead_letters:
            name, rng = plan.name("d")
            watcher = ConsumerClient(name, workload, rng, history, ledger, group=DLQ_GROUP, dead_letters=True)
            self.readers.append(watcher)
            self.queues.append(watcher.queue)

    def _build_amqp(self, plan: WorkloadPlan, topology: Topology, *, dead_letters: bool) -> None:
        history, ledger, workload = plan.history, self.ledger, topology.workload
        self.queues.append(workload.name)
        for _ in range(workload.publishers):
            name, rng = plan.name("p")
            choices = plan.stream(name, "choices")
            self.talkers.append(AmqpPublisher(name, topology, rng, history, ledger, choices))
        for queue in topology.queues:
            for _ in range(workload.consumers_per_queue):
                name, rng = plan.name("c")
                coming, settlement = plan.coming(name, workload), workload.settlement
                self.readers.append(
                    AmqpConsumer(name, topology, queue, rng, history, ledger, settlement=settlement, coming=coming)
                )
        if workload.movers:
            moved = self._ledger([topology.moved.group], dead_letters=False)
            for _ in range(workload.movers):
                name, rng = plan.name("m")
                self.readers.append(AmqpMover(name, topology, rng, history, (ledger, moved)))
            name, rng = plan.name("c")
            self.readers.append(AmqpConsumer(name, topology, topology.moved, rng, history, moved))
            self.queues.append(topology.moved.space)
            if dead_letters:
                self.queues.append(f"$dlq/{topology.moved.space}")  # nothing is ever given up of it
        if dead_letters:
            name, rng = plan.name("d")
            self.readers.append(AmqpConsumer(name, topology, topology.dead, rng, history, ledger, dead_letters=True))
            self.queues.append(topology.dead.space)
        if (part := workload.passing_queues) is not None:
            for _ in range(part.number):
                name, rng = plan.name("g")
                self.readers.append(AmqpPassing(name, topology, part, rng, history, ledger))

    def _build_mqtt(self, plan: WorkloadPlan, workload: MqttWorkload) -> None:
        history, ledger = plan.history, self.ledger
        self.queues.append(MQTT_PREFIX + workload.name)
        for _ in range(workload.publishers):
            name, rng = plan.name("p")
            self.talkers.append(PublisherClient(name, workload, rng, history, ledger))
        kinds = (("s", workload.sessions), ("n", workload.clean_sessions), ("h", workload.share_members))
        for kind, count in kinds:
            for _ in range(count):
                name, _rng = plan.name(kind)
                coming = plan.coming(name, workload)
                share = f"{workload.name}-members" if kind == "h" else ""
                session = Session(name, ledger, history, workload.name, share)
                several = kind == "s" and workload.absences is not None and workload.absences.take_over > 0
                for device in (name, f"{name}b") if several else (name,):
                    self.readers.append(
                        SubscriberClient(device, workload, history, ledger, session, clean=kind == "n", coming=coming)
                    )
        if (retained := workload.retained) is not None:
            for _ in range(retained.writers):
                name, rng = plan.name("w")
                self.talkers.append(PublisherClient(name, workload, rng, history, ledger, retained))
            for _ in range(retained.readers):
                name, rng = plan.name("r")
                self.readers.append(RetainedReader(name, workload, retained, rng, history))
        if (wills := workload.wills) is not None:
            for _ in range(wills.clients):
                name, rng = plan.name("l")
                self.talkers.append(WillClient(name, workload, wills, rng, history, ledger))

    @property
    def open_count(self) -> int:
        """(value, group) pairs without end."""
        return sum(ledger.open_count for ledger in self.ledgers)

    @property
    def last_progress(self) -> float:
        """When something last happened."""
        return max(ledger.last_progress for ledger in self.ledgers)

    @property
    def lingers(self) -> bool:
        """Something may still come although nothing is owed."""
        return isinstance(self.workload, MqttWorkload) and self.workload.wills is not None


class WorkloadPlan:
    """Builds the clients of a scenario and steers them.

    The driver calls ``start(now)``, then ``update(now)`` after every turn in which a client did something and whenever
    ``next_deadline()`` is reached; it drives each of ``clients`` as :mod:`assay.faults.workload.client` says. When
    ``finished``, every client was told to stop and the ``DRAIN`` events are written.
    """

    def __init__(self, scenario: Scenario, history: HistoryRecorder, seed: int | None = None) -> None:
        """Raises :class:`ScenarioError` when a fault names a client that the scenario does not have."""
        self.scenario = scenario
        self._faults_end_s = scenario.faults_end_s
        self.seed = scenario.seed if seed is None else seed
        self.phase = PlanPhase.IDLE
        self.history = history
        self._started_at = 0.0
        self._production_deadline = math.inf
        self._drain_deadline = 0.0
        self._count: dict[str, int] = {}
        dead_letters = scenario.contract.dead_letters
        self._parts = [_Part(self, workload, dead_letters=dead_letters) for workload in scenario.workload]
        self.producers = tuple(client for part in self._parts for client in part.talkers)
        self.consumers = tuple(client for part in self._parts for client in part.readers)
        self.clients: tuple[WorkloadClient, ...] = (*self.consumers, *self.producers)
        names = [client.client_id for client in self.clients]
        unknown = [fault.target for fault in scenario.faults if names_a_client(fault) and fault.target not in names]
        if unknown:
            message = f"a fault is for the client {unknown[0]!r}; there are {', '.join(names)}"
            raise ScenarioError(message)

    def name(self, kind: str) -> tuple[str, random.Random]:
        """The next client's name, and its stream of chance."""
        number = self._count.get(kind, 0)
        self._count[kind] = number + 1
        name = f"{kind}{number}"
        return name, substream(self.seed, f"workload/{name}")

    def stream(self, name: str, use: str) -> random.Random:
        """A further stream of a client."""
        return substream(self.seed, f"workload/{name}/{use}")

    def coming(self, name: str, workload: Workload) -> Coming | None:
        """How a reader comes and goes; None: it stays."""
        if workload.absences is None:
            return None
        return Coming(absences=workload.absences, rng=self.stream(name, "absences"))

    @property
    def finished(self) -> bool:
        """The run is over; clients may still have to send DISCONNECT and close."""
        return self.phase is PlanPhase.FINISHED

    @property
    def drained(self) -> bool:
        """Everything was read until empty."""
        return all(part.drained is OpType.OK for part in self._parts)

    @property
    def open_count(self) -> int:
        """(value, group) pairs that still wait to be settled or dead-lettered."""
        return sum(part.open_count for part in self._parts)

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
            for client in self.clients:
                client.begin(now)
        if self.phase is PlanPhase.PRODUCING and self._may_drain(now):
            self.phase = PlanPhase.DRAINING
            for producer in self.producers:
                producer.cease(now)
            self._drain_deadline = now + self.scenario.drain_timeout_s
            for part in self._parts:
                for ledger in part.ledgers:
                    ledger.progress(now)
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
            return min(self._drain_deadline, *(self._silent_at(part) for part in self._parts))
        return None

    def _faults_end(self) -> float:
        return self._started_at + self._faults_end_s

    def _may_produce(self, now: float) -> bool:
        return all(client.prepared for client in self.consumers) or now >= self._started_at + SUBSCRIBE_PATIENCE_S

    def _may_drain(self, now: float) -> bool:
        return (now >= self._faults_end() and self._produced()) or now >= self._production_deadline

    def _produced(self) -> bool:
        for producer in self.producers:  # noqa: SIM110, after every turn
            if not producer.finished:
                return False
        return True

    def _silent_at(self, part: _Part) -> float:
        """When the final read of a part may end if nothing more happens.

        Never while a reader is not connected, or has something under way.
        """
        if part.drained is not None or not all(reader.at_rest for reader in part.readers):
            return math.inf
        return part.last_progress + self._silence_s(part)

    def _silence_s(self, part: _Part) -> float:
        """Silence that ends the final read: short when every value met its end, long enough for any redelivery else.

        The short one still waits for a delivery timeout (if that is short), so that a broker which delivers a settled
        message again is caught.
        """
        if part.open_count == 0 and not part.lingers:
            return min(self.scenario.contract.delivery_timeout_s + _LINGER_MARGIN_S, MAX_LINGER_S)
        return self.scenario.quiet_s

    def _drain(self, now: float) -> None:
        for part in self._parts:
            if part.drained is None:
                self._drain_part(part, now)
        if all(part.drained is not None for part in self._parts):
            self.phase = PlanPhase.FINISHED
            for client in self.clients:
                client.stop(now)

    def _drain_part(self, part: _Part, now: float) -> None:
        if now >= self._silent_at(part):
            part.drained = OpType.OK
            detail = f"{part.open_count} pairs of value and group without end"
        elif now >= self._drain_deadline:
            part.drained = OpType.INFO
            absent = [reader.client_id for reader in part.readers if not reader.prepared]
            detail = f"not empty after {self.scenario.drain_timeout_s:g} s"
            if absent:
                detail += f"; not connected: {', '.join(absent)}"
        else:
            return
        for name in part.queues:
            self.history.record(now, "drain", OpKind.DRAIN, part.drained, queue=name, detail=detail)


def client_names(scenario: Scenario) -> list[str]:
    """The names of all its clients."""
    healthy = msgspec.structs.replace(scenario, faults=())
    return [client.client_id for client in WorkloadPlan(healthy, HistoryRecorder(lambda event: None, 0.0)).clients]
