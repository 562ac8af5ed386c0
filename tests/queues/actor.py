"""A producer at a bench of the queue engine."""

from __future__ import annotations

from typing import Any

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import parse_settlement
from assay.reference_broker.queues import Delivery
from assay.reference_broker.queues.transactions.producer_names import ProducerIdentity
from tests.queues.conftest import Outcome, QueueBench


class Actor:
    """One producer at a bench."""

    def __init__(self, bench: QueueBench, name: str | None = "app") -> None:
        self.bench = bench
        self.name = name
        self.identity = ProducerIdentity(-1, -1)
        self.sequence = 0
        self.init()

    def init(self) -> None:
        found: list[ProducerIdentity | None] = []
        self.bench.engine.transactions.init_producer(
            self.name, self.bench.now, lambda error, identity: found.append(identity)
        )
        self.bench.turn()
        assert len(found) == 1
        assert found[0] is not None
        self.identity = found[0]
        self.sequence = 0

    def begin(self, timeout_s: float | None = None) -> str:
        found: list[str] = []
        self.bench.engine.transactions.begin(
            *self.identity, self.bench.now, lambda error, name: found.append(name), timeout_s=timeout_s
        )
        self.bench.turn()
        assert len(found) == 1
        return found[0]

    def publish(
        self,
        value: str,
        transaction: str | None = None,
        *,
        topic: str = "$queue/q",
        sequence: int | None = None,
        **more: Any,
    ) -> Outcome:
        properties = [("producer-id", str(self.identity[0])), ("producer-epoch", str(self.identity[1]))]
        if sequence is not None:
            properties.append(("sequence", str(sequence)))
        if transaction is not None:
            properties.append(("transaction-id", transaction))
        return self.bench.publish(value, topic, user_properties=tuple(properties), **more)

    def commit(self, transaction: str) -> Outcome:
        outcome = Outcome()
        self.bench.engine.transactions.commit(*self.identity, transaction, self.bench.now, outcome)
        return outcome

    def abort(self, transaction: str) -> Outcome:
        outcome = Outcome()
        self.bench.engine.transactions.abort(*self.identity, transaction, self.bench.now, outcome)
        return outcome

    def ack(self, delivery: Delivery, consumer: str, transaction: str, verb: Verb = Verb.ACK) -> None:
        properties = (
            ("message-id", delivery.message_id),
            ("producer-id", str(self.identity.producer_id)),
            ("producer-epoch", str(self.identity.epoch)),
            ("transaction-id", transaction),
        )
        request = parse_settlement(verb, properties)
        self.bench.engine.settle(delivery.queue, request, consumer_id=consumer, now=self.bench.now)
