"""A queue and an exchange that pass: declared and bound while messages are published, unbound, deleted, declared anew.

Each life of the queue is a group of its own in a history. What was confirmed before its binding was asked for is not
its own, nor is what was published after the binding was removed; what is deleted stays deleted, whatever happens to the
broker. A step whose answer is lost is asked for again.
"""

from __future__ import annotations

import random
from enum import Enum, StrEnum
from typing import Final

from assay.faults.workload.amqp import MAIN, AmqpConsumer, Queue, Topology
from assay.faults.workload.amqp_client import Conversation
from assay.faults.workload.client import ClientPhase
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload_kinds import PassingQueues
from assay.reference_broker.trace.schema import OpKind, OpType

TOPOLOGY: Final = 2
"""The channel of declarations and deletions."""
UNBOUND: Final = "unbound"
"""``reason`` of an UNSUBSCRIBE that removed a binding: nothing that is published later may come, as checkers hold."""
LATEST: Final = "latest"


class Step(Enum):
    """Where a passing queue stands."""

    ABSENT = "absent"
    COMING = "coming"
    """It is being declared and bound."""
    MEMBER = "member"
    LEAVING = "leaving"
    """A binding is being removed."""
    LINGERING = "lingering"
    DELETING = "deleting"


class Removal(StrEnum):
    """How messages cease to come."""

    UNBIND_QUEUE = "unbind the queue"
    UNBIND_EXCHANGE = "unbind the exchange"
    DELETE_EXCHANGE = "delete the exchange"
    CANCEL = "cancel the consumer"
    """They go on to come into the queue, and go with it."""


class AmqpPassing(AmqpConsumer):
    """The one consumer of a passing queue, which has it and its exchange declared and deleted."""

    def __init__(
        self,
        client_id: str,
        topology: Topology,
        part: PassingQueues,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
    ) -> None:
        self.name = f"{topology.workload.name}.{client_id}"
        """Of queue and exchange."""
        self._lives = 0
        queue = Queue(name=self.name, space=topology.workload.name, group=client_id)
        super().__init__(client_id, topology, queue, rng, history, ledger)
        self._part = part
        self._step = Step.ABSENT
        self._removal = Removal.CANCEL

    @property
    def life(self) -> str:
        """Each life has a name of its own."""
        return self.queue.group if self._lives <= 1 else f"{self.queue.group}~{self._lives}"

    def start(self, now: float) -> None:
        """It comes later."""

    @property
    def prepared(self) -> bool:
        """Nobody waits for who comes later."""
        return True

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, and nothing held."""
        return self.phase is ClientPhase.IDLE or super().at_rest

    def begin(self, now: float) -> None:
        """Come when it is time."""
        self.phase = ClientPhase.WAITING
        self._phase_deadline = now + self._part.at_s

    # -- steps ---------------------------------------------------------------------------------------------------

    def prepare(self) -> Conversation:
        """What was under way when the last connection ended, once more."""
        yield from self._open(MAIN)
        yield from self._open(TOPOLOGY)
        yield from self._need(MAIN, "basic.qos", prefetch_count=self._workload.prefetch)
        if self._step is Step.ABSENT:
            yield from self._look_for_both()
        elif self._step in (Step.MEMBER, Step.LINGERING):
            there = yield from self.look(TOPOLOGY, self.queue.space, "queue", self.name)
            if there and not (self._step is Step.LINGERING and self._removal is Removal.CANCEL):
                yield from self._consume(LATEST)
            if not there:
                self._step = Step.DELETING
        yield from self._do()
        self._plan_move()

    def _do(self) -> Conversation:
        """The step that is under way."""
        if self._step is Step.COMING:
            yield from self._come()
        elif self._step is Step.LEAVING:
            yield from self._leave()
        elif self._step is Step.DELETING:
            yield from self._delete()

    def _plan_move(self) -> None:
        spans = {Step.ABSENT: self._part.away_s, Step.MEMBER: self._part.stay_s, Step.LINGERING: self._part.linger_s}
        span = spans.get(self._step)
        self._move_at = None if span is None or self._draining else self._now + self._rng.uniform(*span)

    def _move(self, now: float) -> None:
        self._move_at = None
        if not self.ready or self.converses:
            return
        if self._step is Step.ABSENT:
            self._step = Step.COMING
            self._lives += 1
        elif self._step is Step.MEMBER:
            self._step = Step.LEAVING
            self._removal = self._rng.choice(tuple(Removal))
            self._ledger.leave(self.life)
            ended: EventFields = {"queue": self.queue.space, "group": self.life, "detail": self._removal.value}
            self.history.record(now, "drain", OpKind.DRAIN, OpType.FAIL, **ended)
        elif self._step is Step.LINGERING:
            self._step = Step.DELETING
        self._converse(self._step_by_step())

    def _step_by_step(self) -> Conversation:
        yield from self._do()
        if self.phase is ClientPhase.SUBSCRIBING:
            self._become_ready(self._now)
        self._plan_move()

    def _come(self) -> Conversation:
        space, exchange = self.queue.space, self._topology.exchange
        yield from self.declare(TOPOLOGY, space, "exchange", self.name, type="fanout")
        for key in self._topology.binding_keys():
            named = {"destination": self.name, "source": exchange, "routing_key": key}
            yield from self._need(TOPOLOGY, "exchange.bind", **named)
        yield from self.declare(TOPOLOGY, space, "queue", self.name)
        fields: EventFields = {"queue": space, "group": self.life, "reason": LATEST}
        self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.SUBSCRIBE, self._now, fields)
        yield from self.bind(TOPOLOGY, self.name, self.name, "")
        yield from self._consume()
        self._ledger.join(self.life)
        self._step = Step.MEMBER

    def _leave(self) -> Conversation:
        if self._removal is Removal.CANCEL:
            yield from self._need(MAIN, "basic.cancel", consumer_tag=self.client_id)
        else:
            fields: EventFields = {"queue": self.queue.space, "group": self.life, "reason": UNBOUND}
            self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.UNSUBSCRIBE, self._now, fields)
            yield from self._unbind()
            self._end_handshake(OpType.OK, self._now)
        self._step = Step.LINGERING

    def _unbind(self) -> Conversation:
        if self._removal is Removal.UNBIND_QUEUE:
            yield from self._need(TOPOLOGY, "queue.unbind", queue=self.name, exchange=self.name)
        elif self._removal is Removal.DELETE_EXCHANGE:
            yield from self.delete(TOPOLOGY, self.queue.space, "exchange", self.name)
        else:
            for key in self._topology.binding_keys():
                named = {"destination": self.name, "source": self._topology.exchange, "routing_key": key}
                yield from self._need(TOPOLOGY, "exchange.unbind", **named)

    def _delete(self) -> Conversation:
        self._held.clear()
        self._due.clear()
        if self._removal is not Removal.CANCEL:
            # Ours, so that the broker need not tell us that it is gone.
            yield from self._ask(MAIN, "basic.cancel", consumer_tag=self.client_id)
        yield from self.delete(TOPOLOGY, self.queue.space, "queue", self.name)
        yield from self.delete(TOPOLOGY, self.queue.space, "exchange", self.name)
        self._held.clear()
        self._step = Step.ABSENT
        yield from self._look_for_both()

    def _look_for_both(self) -> Conversation:
        if self._lives:
            for kind in ("queue", "exchange"):
                yield from self.look(TOPOLOGY, self.queue.space, kind, self.name)
