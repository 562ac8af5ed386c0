"""Bugs in how queues carry requests and replies."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.routing.message import Message

_DeliveryMessage = Callable[[MqttBroker, Delivery], Message]


@mutant("queue-response-topic-lost", "deliveries of a queue have no response topic")
def response_topic_lost(patch: Patch) -> None:
    def make(original: _DeliveryMessage) -> _DeliveryMessage:
        return lambda self, delivery: msgspec.structs.replace(original(self, delivery), response_topic=None)

    patch.wrap(MqttBroker, "delivery_message", make)


@mutant("queue-correlation-data-lost-at-redelivery", "only first deliveries have the correlation data of the publish")
def correlation_data_lost(patch: Patch) -> None:
    def make(original: _DeliveryMessage) -> _DeliveryMessage:
        def delivery_message(self: MqttBroker, delivery: Delivery) -> Message:
            message = original(self, delivery)
            return message if delivery.delivery_count == 1 else msgspec.structs.replace(message, correlation_data=None)

        return delivery_message

    patch.wrap(MqttBroker, "delivery_message", make)


@mutant("queue-replies-not-enqueued", "a message with correlation data and no response topic is confirmed and dropped")
def replies_not_enqueued(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish(
            self: QueueEngine, address: QueueAddress, message: Message, now: float, *rest: object, **named: object
        ) -> None:
            if message.correlation_data is None or message.response_topic is not None:
                original(self, address, message, now, *rest, **named)
            elif rest and callable(rest[0]):
                rest[0](None)

        return publish

    patch.wrap(QueueEngine, "publish", make)
