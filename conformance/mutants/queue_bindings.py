"""Bugs of bindings, and a way of capturing that is as good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker import config as config_module
from assay.reference_broker.config import QueueConfig
from assay.reference_broker.core.clients import Client
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopic, QueueTopics
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.queues import PublishOptions, engine
from assay.reference_broker.queues.engine import Asked, QueueEngine
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored, ignore
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.queues.queue import bindings
from assay.reference_broker.queues.queue.bindings import Bindings, Captures, Publish
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueFiles, LogQueueStore


@variation("queue-captured-before-subscribers", "queues get a captured message before subscribers do")
def before_subscribers(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def fan_out(self: MqttBroker, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
            self.engine.capture(message, self.now, asked)
            captures, self.engine.captures = self.engine.captures, None
            try:
                return original(self, message, publisher, asked)
            finally:
                self.engine.captures = captures

        return fan_out

    patch.wrap(MqttBroker, "fan_out", make)


@mutant("queue-captured-per-filter", "a queue gets a message once for each of its filters that matches")
def per_filter(patch: Patch) -> None:
    def match(self: Bindings, topic: str) -> tuple[str, ...]:
        return tuple(self._names[place] for node in self.walk(topic) for place in node.queues)

    patch.replace(Bindings, "match", match)


@mutant("queue-captured-by-the-first", "only the first of the queues that match gets a captured message")
def by_the_first(patch: Patch) -> None:
    patch.wrap(Bindings, "match", lambda original: lambda self, topic: original(self, topic)[:1])


@mutant("queue-capture-swallows", "a message that a queue captures does not reach subscribers")
def swallows(patch: Patch) -> None:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def fan_out(self: MqttBroker, message: Message, publisher: Client | None, asked: Asked = None) -> bool:
            if self.engine.is_captured(message.topic):
                self.engine.capture(message, self.now, asked)
                return True
            return original(self, message, publisher, asked)

        return fan_out

    patch.wrap(MqttBroker, "fan_out", make)


@mutant("queue-topics-reach-their-own-only", "a publish to $queue/<name> goes to that queue alone")
def own_only(patch: Patch) -> None:
    def make(original: Callable[..., QueueTopic]) -> Callable[..., QueueTopic]:
        def read(self: QueueTopics, topic: str, *tenant: Any) -> QueueTopic:
            found = original(self, topic, *tenant)
            address = msgspec.structs.replace(found.address, bound=())
            return QueueTopic(address=address, verb=found.verb)

        return read

    patch.wrap(QueueTopics, "read", make)


@mutant("queue-confirms-for-one-of-all", "a publish to several queues is confirmed when the first has it")
def for_one(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish_to_all(
            publish: Publish,
            address: QueueAddress,
            message: Message,
            now: float,
            on_confirmed: Confirm | None,
            on_stored: Stored | None,
            options: PublishOptions | None,
        ) -> None:
            publish(msgspec.structs.replace(address, bound=()), message, now, on_confirmed, on_stored, options)
            for name in address.bound:
                routing_key, copy = bindings.bound_copy(name, message)
                try:
                    publish(QueueAddress(queue=name, routing_key=routing_key), copy, now, ignore, None, options)
                except QueueError:
                    continue

        return publish_to_all

    patch.wrap(engine, "publish_to_all", make)


@mutant("queue-capture-fails-the-publish", "a publish fails when a queue refuses to capture it")
def fails_the_publish(patch: Patch) -> None:
    def take(self: Captures, message: Message, now: float, options: PublishOptions | None) -> None:
        self.waiting += 1
        routing_key, copy = bindings.bound_copy(self._queue, message)
        try:
            self._publish(routing_key, copy, now, self._confirmed, None, options)
        except QueueError as error:
            self._confirmed(error)
            raise

    patch.replace(Captures, "take", take)


@mutant("queue-wildcards-bind-dollar", "a filter that begins with a wildcard also binds topics that begin with $")
def bind_dollar(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def walk(self: Bindings, topic: str) -> Any:
            found = original(self, topic)
            return found + original(self, topic[1:]) if topic.startswith("$") else found

        return walk

    patch.wrap(Bindings, "walk", make)


@mutant("queue-parent-level-not-bound", "the filter a/# does not bind a")
def parent_level(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(self: Bindings, topic_filter: str, place: int) -> None:
            original(
                self, topic_filter.removesuffix("#") + "+/#" if topic_filter.endswith("/#") else topic_filter, place
            )
            if topic_filter.endswith("/#"):
                original(self, topic_filter.removesuffix("#") + "+", place)

        return add

    patch.wrap(Bindings, "add", make)


@mutant("queue-misplaced-wildcards-accepted", "topic filters of queues are not checked")
def misplaced(patch: Patch) -> None:
    def make(original: Callable[[QueueConfig], list[str]]) -> Callable[[QueueConfig], list[str]]:
        return lambda queue: original(msgspec.structs.replace(queue, topics=()))

    patch.wrap(config_module, "binding_problems", make)


@mutant("queue-captured-without-routing-key", "captured messages have no routing key")
def without_routing_key(patch: Patch) -> None:
    def make(original: Callable[..., tuple[str, Message]]) -> Callable[..., tuple[str, Message]]:
        def copy(queue: str, message: Message) -> tuple[str, Message]:
            routing_key, copied = original(queue, message)
            return ("" if not message.topic.startswith("$") else routing_key), copied

        return copy

    patch.wrap(bindings, "bound_copy", make)


@mutant("queue-ack-by-the-whole-topic", "a settlement looks for a queue named like the whole topic in front of $ack")
def whole_topic(patch: Patch) -> None:
    def make(original: Callable[..., QueueTopic]) -> Callable[..., QueueTopic]:
        def read(self: QueueTopics, topic: str, *tenant: Any) -> QueueTopic:
            found = original(self, topic, *tenant)
            if found.verb is not None and found.address.routing_key:
                raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {topic!r}")
            return found

        return read

    patch.wrap(QueueTopics, "read", make)


@mutant("queue-plans-outlive-bindings", "who gets a topic is remembered although a queue has begun to capture it")
def plans_outlive(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def changed(self: QueueEngine) -> None:
            told, self.on_bindings_changed = self.on_bindings_changed, None
            try:
                original(self)
            finally:
                self.on_bindings_changed = told

        return changed

    patch.wrap(QueueEngine, "queues_changed", make)


@mutant("queue-settings-not-stored", "what is configured at run time is not written down")
def not_stored(patch: Patch) -> None:
    def make_open(original: Callable[..., LogQueueFiles]) -> Callable[..., LogQueueFiles]:
        return lambda self, config, settings=None, **how: original(
            self, config, {} if settings is not None else None, **how
        )

    def make_update(original: Callable[..., None]) -> Callable[..., None]:
        def update(self: LogQueueFiles, *, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
            original(self, **more)

        return update

    patch.wrap(LogQueueStore, "open_queue", make_open)
    patch.wrap(LogQueueFiles, "update_description", make_update)
