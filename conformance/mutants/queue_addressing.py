"""Bugs in how topics name queues, and in what a queue keeps of a publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import QueuesConfig
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.queue_topics import addresses
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopic, QueueTopics
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues.dead_letters import dead_letters
from assay.reference_broker.queues.delivery import dispatcher
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, QueueAddress, check_queue_name
from assay.reference_broker.queues.registry import registry
from assay.reference_broker.queues.registry.registry import QueueRegistry
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.topics import matches


@mutant("queue-routing-key-lost", "what follows the queue name in a topic is forgotten")
def routing_key_lost(patch: Patch) -> None:
    def make(original: Callable[..., QueueTopic]) -> Callable[..., QueueTopic]:
        def read(self: QueueTopics, topic: str, *tenant: Any) -> QueueTopic:
            found = original(self, topic, *tenant)
            address = msgspec.structs.replace(found.address, routing_key="")
            return QueueTopic(address=address, verb=found.verb)

        return read

    patch.wrap(QueueTopics, "read", make)


@mutant("queue-first-level-names-the-queue", "the queue is always the first level of the path")
def first_level(patch: Patch) -> None:
    patch.replace(addresses, "queue_levels", lambda _levels, _exists: 1)


@mutant("queue-parent-level-unmatched", "images/# does not match images itself")
def parent_level(patch: Patch) -> None:
    def strict(pattern: str, key: str) -> bool:
        return matches(pattern, key) and not (pattern.endswith("/#") and key == pattern[:-2])

    patch.replace(dispatcher, "matches", strict)


@mutant("queue-any-name", "queue names may hold wildcards, and levels that begin with $")
def any_name(patch: Patch) -> None:
    original = check_queue_name

    def lenient(name: str) -> None:
        if "" in name.split("/"):
            original(name)

    for module in (addresses, registry):
        patch.replace(module, "check_queue_name", lenient)


@mutant("queue-dead-letters-by-one-name", "$queue/dlq/<queue> is not known as a name of the dead letters")
def one_name(patch: Patch) -> None:
    patch.replace(addresses, "DEAD_LETTER_ALIAS", "$queue/dead/")


@mutant("queue-dead-letters-by-prefix", "queues whose names differ in the last part only share their dead letters")
def by_prefix(patch: Patch) -> None:
    def name(queue: str) -> str:
        return DEAD_LETTER_PREFIX + (queue.rpartition("-")[0] or queue)

    for module in (dead_letters, registry):
        patch.replace(module, "dead_letter_name", name)


@mutant("queue-retained-twice", "a retained publish to a queue is enqueued twice")
def retained_twice(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_to_queue(
            self: MqttBroker, message: Message, publisher: Session | None, now: float, *rest: object
        ) -> None:
            if message.retain:
                original(self, message, publisher, now, lambda _error: None)
            original(self, message, publisher, now, *rest)

        return publish_to_queue

    patch.wrap(MqttBroker, "publish_to_queue", make)


@mutant("queue-user-properties-reordered", "user properties of a publish are kept sorted")
def properties_reordered(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish(self: QueueEngine, address: QueueAddress, message: Message, *rest: object) -> None:
            changed = msgspec.structs.replace(message, user_properties=tuple(sorted(message.user_properties)))
            original(self, address, changed, *rest)

        return publish

    patch.wrap(QueueEngine, "publish", make)


@mutant("queue-qos-0-dropped", "a publish at QoS 0 does not reach the queue")
def qos_0_dropped(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def publish(self: MqttBroker, message: Message, publisher: Session | None, now: float) -> bool:
            return message.topic.startswith("$queue/") or original(self, message, publisher, now)

        return publish

    patch.wrap(MqttBroker, "publish", make)


@mutant("queue-qos-2-enqueued-twice", "a QoS 2 publish that is sent again is published again")
def qos_2_twice(patch: Patch) -> None:
    patch.replace(Inbound, "is_repeated", lambda _self, _packet_id: False)


@mutant("queue-messages-fan-out", "messages of queues are also offered to ordinary subscribers")
def fan_out(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_to_queue(
            self: MqttBroker, message: Message, publisher: Session | None, now: float, *rest: object
        ) -> None:
            original(self, message, publisher, now, *rest)
            self.publish(msgspec.structs.replace(message, topic=message.topic.removeprefix("$")), publisher, now)

        return publish_to_queue

    patch.wrap(MqttBroker, "publish_to_queue", make)


@mutant("queue-created-although-switched-off", "auto_create is read nowhere")
def created_anyway(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def build(self: QueueRegistry, config: QueuesConfig, *rest: object) -> None:
            original(self, msgspec.structs.replace(config, auto_create=True), *rest)

        return build

    patch.wrap(QueueRegistry, "__init__", make)


def _will_for_a_queue(patch: Patch, instead: Callable[[Message], Message | None]) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def send_will(self: MqttBroker, session: Session, now: float) -> None:
            will = session.will
            if will is not None and will.message.topic.startswith("$queue/"):
                message = instead(will.message)
                session.will = None if message is None else msgspec.structs.replace(will, message=message)
            original(self, session, now)

        return send_will

    patch.wrap(MqttBroker, "send_will", make)


@mutant("queue-wills-dropped", "a will for a queue is sent to nobody")
def wills_dropped(patch: Patch) -> None:
    _will_for_a_queue(patch, lambda _message: None)


@mutant("queue-wills-without-routing-key", "a will for a queue loses its routing key")
def wills_without_key(patch: Patch) -> None:
    _will_for_a_queue(patch, lambda message: changed(message, topic="/".join(message.topic.split("/")[:2])))
