"""Bugs in how MQTT reaches the durable queues: addresses, settlements, what a delivery says."""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.batches import queue_deliveries
from assay.reference_broker.mqtt.sessions.broker_state import BrokerState
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues import engine
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.messages.address import QueueAddress, Verb
from assay.reference_broker.routing.message import Message

_Address = Callable[[QueueEngine, str], QueueAddress]


@mutant("queue-new-groups-start-at-the-end", "a new consumer group gets only what is published after it joined")
def new_groups_start_at_the_end(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def start_at(self: ConsumerGroup, cursors: list[int]) -> None:
            original(self, [place.partition.visible_end for place in self.places])

        return start_at

    patch.wrap(ConsumerGroup, "start_at", make)


@mutant("queue-deliveries-without-group", "deliveries do not say which group they are for")
def deliveries_without_group(patch: Patch) -> None:
    def make(original: Callable[[Delivery], tuple[tuple[str, str], ...]]) -> Callable[..., object]:
        return lambda delivery: tuple(pair for pair in original(delivery) if pair[0] != "group-id")

    # Of one delivery, and of what deliveries have in common.
    for module in (engine, queue_deliveries):
        patch.wrap(module, "delivery_properties", make)


@mutant("queue-ack-ignored", "an ack is confirmed and has no effect")
def ack_ignored(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle(
            group: ConsumerGroup, entry: PendingEntry, verb: Verb, reason: str, now: float, done: Confirm | None
        ) -> None:
            if verb is Verb.ACK:
                group.confirm_when_written(done)
            else:
                original(group, entry, verb, reason, now, done)

        return settle

    patch.wrap(settlement, "settle", make)


@mutant("queue-311-puback-settles-nothing", "the PUBACK of an MQTT 3.1.1 consumer does not settle")
def puback_settles_nothing(patch: Patch) -> None:
    patch.replace(BrokerState, "settle_delivery", lambda _self, _session, _delivery, _now: None)


@mutant("queue-settlements-enqueued", "a settlement is also stored as a message of the queue")
def settlements_enqueued(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_to_queue(
            self: BrokerState, message: Message, publisher: Session | None, now: float, *rest: object
        ) -> None:
            original(self, message, publisher, now, *rest)
            address = self.engine.address(message.topic)
            if address.verb is not None:
                stored = QueueAddress(queue=address.queue, routing_key=address.routing_key, verb=None)
                self.engine.publish(stored, message, now, None)

        return publish_to_queue

    patch.wrap(BrokerState, "publish_to_queue", make)


@mutant("queue-verbs-anywhere", "a settlement verb in the middle of a topic is taken for a routing key")
def verbs_anywhere(patch: Patch) -> None:
    def make(original: _Address) -> _Address:
        def address(self: QueueEngine, topic: str) -> QueueAddress:
            try:
                return original(self, topic)
            except QueueError:
                _, queue, routing_key = topic.split("/", 2)
                return QueueAddress(queue=queue, routing_key=routing_key, verb=None)

        return address

    patch.wrap(QueueEngine, "address", make)
