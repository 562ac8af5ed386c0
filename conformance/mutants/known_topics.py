"""Brokers that remember wrongly who gets a topic, or look retained messages up by other rules than new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.core.routing import Route, SharedGroup, Subscription, SubscriptionTree
from assay.reference_broker.mqtt.batches.runs import MixedRun
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.routing.message import Message


@mutant("retained-parent-of-a-hash-is-missed", "x/# does not bring the retained message of x")
def parent_missed(patch: Patch) -> None:
    def make(original: Callable[..., Iterator[Message | None]]) -> Callable[..., Iterator[Message | None]]:
        def walk(
            self: RetainedStore, topic_filter: str, clock: Callable[[], float], newest: int
        ) -> Iterator[Message | None]:
            depth = topic_filter.count("/")
            for message in original(self, topic_filter, clock, newest):
                is_parent = message is not None and message.topic.count("/") < depth
                yield None if is_parent else message

        return walk

    patch.wrap(RetainedStore, "walk", make)


@mutant("dots-separate-levels", "a full stop in a topic is taken for a slash, as a foreign broker's subjects have it")
def dots(patch: Patch) -> None:
    def make(original: Callable[..., Route]) -> Callable[..., Route]:
        return lambda self, topic: original(self, topic.replace(".", "/"))

    patch.wrap(SubscriptionTree, "route", make)


def _unseen(patch: Patch, concerned: Callable[[Subscription], bool]) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def add(self: SubscriptionTree, session: Any, subscription: Subscription) -> None:
            known = self._routes.get(subscription.topic_filter)
            original(self, session, subscription)
            if known is not None and concerned(subscription):
                self._routes[subscription.topic_filter] = known

        return add

    patch.wrap(SubscriptionTree, "add", make)


@mutant("new-filters-unseen-by-known-topics", "who gets a topic is remembered beyond a new filter without wildcards")
def filters_unseen(patch: Patch) -> None:
    _unseen(patch, lambda subscription: subscription.share_name is None)


@mutant("new-shares-unseen-by-known-topics", "who gets a topic is remembered beyond a new share without wildcards")
def shares_unseen(patch: Patch) -> None:
    _unseen(patch, lambda subscription: subscription.share_name is not None)


@mutant("shares-clear-the-retain-flag", "messages of shared subscriptions never have RETAIN 1")
def shares_clear_flag(patch: Patch) -> None:
    def share(self: MqttBroker, group: SharedGroup, message: Message) -> bool:
        chosen = group.choose()
        if chosen is None:
            return False
        member, subscription = chosen
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        member.deliver(message, min(message.qos, subscription.qos), False, identifiers, share=group.share)
        return True

    patch.replace(MqttBroker, "share", share)


@mutant("mixed-bursts-repeat-a-packet", "of packets that come together the last is passed on as the one before it")
def bursts_repeat(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: MixedRun, data: bytes, topic_ends: Sequence[int], ends: Sequence[int], skipped: int) -> None:
            if len(ends) > 2:
                start, end, topic_end, last = ends[-3], ends[-2], topic_ends[-2], topic_ends[-1]
                again = data[start:topic_end] + data[last : last + 2] + data[topic_end + 2 : end]
                data = data[:end] + again
                topic_ends = [*topic_ends[:-1], topic_end + end - start]
                ends = [*ends[:-1], 2 * end - start]
            original(self, data, topic_ends, ends, skipped)

        return init

    patch.wrap(MixedRun, "__init__", make)
