"""One publisher and one consumer over AMQP 0.9.1: transient without acknowledgements, persistent with confirms and
acknowledgements, messages alike and mixed, and a topic exchange with many bindings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from assay.conformance.targets import Endpoint
from assay.loadtests.bench import amqp
from assay.loadtests.bench.amqp_messages import KEYS, Cycle, Message, alike_messages, mixed_messages
from assay.loadtests.bench.broker_process import BrokerProcess
from assay.loadtests.bench.pump import Stream
from assay.loadtests.bench.queue_flow import TURN_BYTES, QueueFlow
from assay.loadtests.bench.shape import Shape
from assay.loadtests.bench.workload import BenchError, BenchPlan, Figure, Workload

PREFETCH = 500
_TOPIC_MESSAGES = 4_096
_SEED = 11


class Acks(Enum):
    """How deliveries are settled."""

    NONE = "none"
    SINGLE = "single"
    """Each by an acknowledgement of its own."""
    MULTIPLE = "multiple"
    """All that were read together by one."""


class AmqpFlow(QueueFlow):
    """Moves the messages of a cycle. With ``confirms`` a message is done once it is confirmed and settled, else once it
    was delivered."""

    def __init__(
        self, publisher: Stream, consumer: Stream, cycle: Cycle, *, window: int, confirms: bool, acks: Acks
    ) -> None:
        super().__init__(publisher, consumer, window)
        self._cycle, self._has_confirms, self._acks = cycle, confirms, acks
        self._confirms = Shape("a confirm", *amqp.ack_parts())
        self._settlements = Shape("", *amqp.ack_parts())
        self._floor = amqp.ConfirmFloor()

    @property
    def _done(self) -> int:
        return min(self._confirmed, self._settled) if self._has_confirms else self._settled

    def _block(self, first: int, count: int) -> bytes:
        return self._cycle.publishes(first, count)

    def _on_confirms(self, data: bytes) -> int:
        found = self._confirms.read(data)
        for tag, multiple in zip(found["tag"].tolist(), found["multiple"].tolist(), strict=True):
            self._floor.confirm(tag, multiple=bool(multiple & 1))
        self._confirmed = self._floor.count
        return len(found) * self._confirms.size

    def _on_deliveries(self, data: bytes) -> int:
        tags, used = self._cycle.read(data, self._delivered)
        count = len(tags)
        if not count:
            return 0
        if self._delivered + count > self._sent:
            message = f"message {self._sent} was delivered though it was never sent"
            raise BenchError(message)
        self._seen[self._delivered : self._delivered + count] = 1
        self._delivered += count
        self._settled += count
        if self._acks is not Acks.NONE:
            wanted = tags[-1:] if self._acks is Acks.MULTIPLE else tags
            block = self._settlements.build(len(wanted), tag=wanted, multiple=int(self._acks is Acks.MULTIPLE))
            # A copy: what the socket does not take at once is sent later.
            self._consumer.write(bytes(block))
        return used


class Flow(NamedTuple):
    """One line of a case."""

    line: str
    persistent: bool = False
    mixed: bool = False
    acks: Acks = Acks.NONE


class OneToOne(Workload):
    """One publisher and one consumer, and a queue of its own, for each line."""

    def __init__(self, endpoint: Endpoint, plan: BenchPlan, broker: BrokerProcess, *, flows: Sequence[Flow]) -> None:
        super().__init__(endpoint, plan, broker)
        self._flows = flows
        self._moved: list[AmqpFlow] = []

    def _messages(self, flow: Flow, queue: str) -> Sequence[Message]:
        mode = amqp.PERSISTENT if flow.persistent else amqp.TRANSIENT
        if flow.mixed:
            return mixed_messages(_exchange_of(queue), mode)
        return alike_messages("", queue, self.plan.payload_bytes, mode)

    def _bind(self, flow: Flow, talk: amqp.Talk, queue: str) -> None:
        """Where its messages come from, beside the nameless exchange."""
        if flow.mixed:
            talk.declare_exchange(_exchange_of(queue), "direct")
            talk.bind(queue, _exchange_of(queue), [f"orders.{number}" for number in range(KEYS)])

    def prepare(self) -> None:
        super().prepare()
        for flow in self._flows:
            self._moved.append(self._connect(flow, f"bench-{flow.line}"))

    def _connect(self, flow: Flow, queue: str) -> AmqpFlow:
        plan, host, port = self.plan, self.endpoint.host, self.endpoint.port
        self.held.callback(self._delete, queue)
        consumer = self.held.enter_context(amqp.open_channel(host, port))
        publisher = self.held.enter_context(amqp.open_channel(host, port))
        talk = amqp.Talk(consumer)
        talk.declare(queue, durable=flow.persistent, exclusive=not flow.persistent)
        self._bind(flow, talk, queue)
        amqp.consume(consumer, queue, PREFETCH, no_ack=flow.acks is Acks.NONE)
        if flow.persistent:
            amqp.select_confirms(publisher)
        cycle = Cycle(self._messages(flow, queue), amqp.CONSUMER)
        return AmqpFlow(
            Stream(publisher, read_bytes=TURN_BYTES),
            Stream(consumer, read_bytes=TURN_BYTES + 2 * cycle.largest_bytes),
            cycle,
            window=plan.window_of(int(flow.persistent)),
            confirms=flow.persistent,
            acks=flow.acks,
        )

    def _delete(self, queue: str) -> None:
        """Leave nothing behind, where the broker is still there."""
        with suppress(OSError, BenchError), amqp.open_channel(self.endpoint.host, self.endpoint.port) as last:
            talk = amqp.Talk(last)
            talk.delete_exchange(_exchange_of(queue))
            talk.delete(queue)

    def measure(self, number: int) -> list[Figure]:
        return [self.pumped(flow.line, moved) for flow, moved in zip(self._flows, self._moved, strict=True)]


class TopicFlow(OneToOne):
    """A topic exchange with ``plan.bindings`` patterns, one of which matches each message."""

    def _messages(self, flow: Flow, queue: str) -> Sequence[Message]:
        rng = random.Random(_SEED)
        keys = [f"device.{rng.randrange(self.plan.bindings)}.kitchen.temperature" for _ in range(_TOPIC_MESSAGES)]
        return [Message(_exchange_of(queue), key, self.plan.payload_bytes) for key in keys]

    def _bind(self, flow: Flow, talk: amqp.Talk, queue: str) -> None:
        talk.declare_exchange(_exchange_of(queue), "topic")
        talk.bind(
            queue, _exchange_of(queue), [f"device.{number}.*.temperature" for number in range(self.plan.bindings)]
        )


def _exchange_of(queue: str) -> str:
    return f"{queue}-exchange"


TRANSIENT = (Flow("amqp_transient"), Flow("amqp_transient_mixed", mixed=True))
PERSISTENT = (
    Flow("amqp_persistent", persistent=True, acks=Acks.SINGLE),
    Flow("amqp_persistent_multiple", persistent=True, acks=Acks.MULTIPLE),
    Flow("amqp_persistent_mixed", persistent=True, mixed=True, acks=Acks.SINGLE),
)
TOPIC = (Flow("amqp_topic"),)
