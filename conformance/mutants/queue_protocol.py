"""Bugs in how MQTT reaches the durable queues: addresses, settlements, what a delivery says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.batches import queue_deliveries
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopic, QueueTopics
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues import Outcome
from assay.reference_broker.queues.delivery import settlement
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.routing.message import Message

_Read = Callable[..., QueueTopic]


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
    for module in (mqtt_broker, queue_deliveries):
        patch.wrap(module, "delivery_properties", make)


@mutant("queue-ack-ignored", "an ack is confirmed and has no effect")
def ack_ignored(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle(
            group: ConsumerGroup, entry: PendingEntry, outcome: Outcome, reason: str, now: float, done: Confirm | None
        ) -> None:
            if outcome is Outcome.ACCEPT:
                group.confirm_when_written(done)
            else:
                original(group, entry, outcome, reason, now, done)

        return settle

    patch.wrap(settlement, "settle", make)
    patch.replace(settlement, "ack_many", lambda group, _entries, done: group.confirm_when_written(done))


@mutant("queue-311-puback-settles-nothing", "the PUBACK of an MQTT 3.1.1 consumer does not settle")
def puback_settles_nothing(patch: Patch) -> None:
    patch.replace(MqttBroker, "acknowledged", lambda _self, _session, _delivery, _now: None)


@mutant("queue-settlements-enqueued", "a settlement is also stored as a message of the queue")
def settlements_enqueued(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_to_queue(
            self: MqttBroker, message: Message, publisher: Session | None, now: float, *rest: object
        ) -> None:
            original(self, message, publisher, now, *rest)
            topic = self.topics.read(message.topic)
            if topic.verb is not None:
                self.engine.publish(topic.address, message, now, None)

        return publish_to_queue

    patch.wrap(MqttBroker, "publish_to_queue", make)


@mutant("queue-verbs-anywhere", "a settlement verb in the middle of a topic is taken for a routing key")
def verbs_anywhere(patch: Patch) -> None:
    def make(original: _Read) -> _Read:
        def read(self: QueueTopics, topic: str, *tenant: Any) -> QueueTopic:
            try:
                return original(self, topic, *tenant)
            except QueueError:
                _, queue, routing_key = topic.split("/", 2)
                return QueueTopic(address=QueueAddress(queue=queue, routing_key=routing_key))

        return read

    patch.wrap(QueueTopics, "read", make)
