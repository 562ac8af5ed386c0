"""Bugs in settlements of many, delays, extensions, receipts, and in the limits on what is unsettled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.queue_topics import group_properties, settle_properties
from assay.reference_broker.mqtt.sessions import mqtt_broker
from assay.reference_broker.queues import Outcome
from assay.reference_broker.queues.delivery import claims, fair_turns, settlement
from assay.reference_broker.queues.delivery.fair_turns import FairTurns
from assay.reference_broker.queues.delivery.settle_request import MAX_DELIVERIES, SettleRequest
from assay.reference_broker.queues.groups.delivery import Delivery
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import Consumer, EntryState, PendingEntry
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.queues.messages.address import parse_receipt
from assay.reference_broker.storage.pending_log import PendingLogFile

_Wrapped = Callable[..., Any]


@mutant("queue-batch-settles-the-first", "of the deliveries that a settlement names only the first is settled")
def settles_the_first(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def apply(found: dict[PendingEntry, ConsumerGroup], *rest: object) -> None:
            original(dict(list(found.items())[:1]), *rest)

        return apply

    patch.wrap(settlement, "apply", make)


@mutant("queue-batch-hides-what-was-gone", "a settlement of several deliveries succeeds although some were not pending")
def hides_what_was_gone(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def settle_many(
            groups: object,
            queue: str,
            request: SettleRequest,
            consumer_id: str | None,
            now: float,
            done: Confirm,
            *rest: object,
        ) -> None:
            original(groups, queue, request, consumer_id, now, lambda error: done(None), *rest)

        return settle_many

    patch.wrap(settlement, "settle_request", make)


@mutant("queue-batch-is-cut-off", "of a settlement that names too many offsets the first ones are settled")
def cut_off(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def parse_ranges(text: str) -> object:
            try:
                return original(text)
            except QueueError:
                return ((0, MAX_DELIVERIES),)

        return parse_ranges

    patch.wrap(settle_properties, "parse_ranges", make)


@mutant("queue-nack-delay-ignored", "the delay of a nack is ignored")
def nack_delay_ignored(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def nack(
            group: ConsumerGroup, entry: PendingEntry, now: float, done: Confirm | None, delay_s: float | None = None
        ) -> None:
            original(group, entry, now, done)

        return nack

    patch.wrap(settlement, "nack", make)


@mutant("queue-restart-forgets-delays", "when a message may be delivered again is not written to the log")
def forgets_delays(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def expire(self: PendingLogFile, partition: int, offset: int, due_at_ms: int) -> None:
            original(self, partition, offset, 0)

        return expire

    patch.wrap(PendingLogFile, "expire", make)


@mutant("queue-extends-the-old-deadline", "an extension is added to the old deadline instead of counting from now")
def extends_the_old(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def extend(group: ConsumerGroup, entry: PendingEntry, extend_s: float | None, now: float) -> None:
            original(group, entry, extend_s, entry.deadline)

        return extend

    patch.wrap(settlement, "extend", make)


@mutant("queue-extends-several-by-the-timeout", "deliveries that are extended together get the timeout of their queue")
def extends_several(patch: Patch) -> None:
    asked = "request.extend_s"
    patch.rewrite(settlement, "apply", asked, f"{asked} if len(found) < 2 else None")


@mutant("queue-extensions-are-never-shorter", "an extension that ends before the deadline there was changes nothing")
def never_shorter(patch: Patch) -> None:
    now = "entry.deadline = deadline"
    patch.rewrite(ConsumerGroup, "extend", now, f"{now} = max(entry.deadline, deadline)")


@mutant("queue-nack-delay-is-of-the-first", "of messages that are refused together the first waits for the delay alone")
def delays_the_first(patch: Patch) -> None:
    asked = "request.delay_s"
    patch.rewrite(settlement, "apply", asked, f"{asked} if entry is next(iter(found)) else None")


@mutant("queue-extends-anything", "an extension of what is not pending is accepted")
def extends_anything(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def settle_many(
            groups: object,
            queue: str,
            request: SettleRequest,
            consumer_id: str | None,
            now: float,
            done: Confirm,
            *rest: object,
        ) -> None:
            try:
                original(groups, queue, request, consumer_id, now, done, *rest)
            except QueueError:
                if request.outcome is not Outcome.EXTEND:
                    raise
                done(None)

        return settle_many

    patch.wrap(settlement, "settle_request", make)


@mutant("queue-settles-despite-bad-options", "an option of a settlement that cannot be honoured is ignored")
def despite_bad_options(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def seconds(*args: object) -> object:
            try:
                return original(*args)
            except QueueError:
                return None

        return seconds

    patch.wrap(settle_properties, "parse_seconds", make)


@mutant("queue-claims-by-the-last-of-two", "of an option of a claim or commit that is there twice the last one counts")
def last_of_two(patch: Patch) -> None:
    last = "_single(tuple(dict(properties).items()))"
    patch.rewrite(group_properties, "request_of_group", "_single(properties)", last)


@mutant("queue-never-says-redelivered", "no delivery says that it is a repeat")
def never_redelivered(patch: Patch) -> None:
    def make(original: Callable[[Delivery], tuple[tuple[str, str], ...]]) -> _Wrapped:
        return lambda delivery: tuple(pair for pair in original(delivery) if pair[0] != "redelivered")

    patch.wrap(mqtt_broker, "delivery_properties", make)


@mutant("queue-batch-settles-in-one-group", "who holds messages for several groups settles those of the first of them")
def in_one_group(patch: Patch) -> None:
    rest = "[group for group in groups if _may_hold(group, consumer_id)]"
    patch.rewrite(settlement, "settle_request", rest, f"{rest}[:1]")


@mutant("queue-claims-beyond-what-one-may-hold", "whoever claims gets it, however much it holds")
def beyond_what_one_may_hold(patch: Patch) -> None:
    patch.rewrite(claims, "claim", "if not _has_room(consumer, entry):", "if not consumer.active:")


@mutant("queue-one-offset-hides-the-others", "of an offset and offsets in one settlement the one counts")
def one_hides_the_others(patch: Patch) -> None:
    parsed = "return _parse(verb, tuple(ids), tuple(receipts), single)"
    only = "single = {name: value for name, value in single.items() if name != OFFSETS or OFFSET not in single}"
    patch.rewrite(settle_properties, "parse_settlement", parsed, f"{only}\n    {parsed}")


@mutant("queue-receipts-in-a-circle", "a receipt of a partition that is not there is one of those that are, in turn")
def in_a_circle(patch: Patch) -> None:
    found = "group.unsettled_entry(partition % len(group.places), offset)"
    patch.rewrite(settlement, "find_by_receipt", "group.unsettled_entry(partition, offset)", found)


@mutant("queue-receipts-cut-at-the-first-colon", "receipts are read from the left, so a colon in a name breaks them")
def cut_at_the_first_colon(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def parse(receipt: str) -> object:
            parts = receipt.split(":")
            return original(":".join(parts[:5]))

        return parse

    patch.wrap(settlement, "parse_receipt", make)


def _by_receipt(patch: Patch, fits: Callable[[PendingEntry, int, int], bool]) -> None:
    """Find a delivery by its receipt in another way: ``fits(entry, delivery count, nonce)``."""

    def make(original: _Wrapped) -> _Wrapped:
        def find(groups: tuple[ConsumerGroup, ...], queue: str, receipt: str) -> object:
            _, partition, offset, count, nonce = parse_receipt(receipt)
            for group in groups:
                entry = group.unsettled_entry(partition, offset)
                if entry is not None and entry.state is EntryState.DELIVERED and fits(entry, count, nonce):
                    return group, entry
            return original(groups, queue, receipt)

        return find

    patch.wrap(settlement, "find_by_receipt", make)


@mutant("queue-stale-receipts-count", "the receipt of an earlier delivery settles the current one")
def stale_receipts(patch: Patch) -> None:
    _by_receipt(patch, lambda entry, count, nonce: count <= entry.delivery_count)


@mutant("queue-receipts-without-nonce", "the nonce of a receipt is not looked at")
def without_nonce(patch: Patch) -> None:
    _by_receipt(patch, lambda entry, count, nonce: count == entry.delivery_count)


@mutant("queue-prefetch-ignored", "the prefetch that a consumer asks for is ignored")
def prefetch_ignored(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def join(self: ConsumerGroup, *args: object, **kwargs: object) -> Consumer:
            consumer: Consumer = original(self, *args, **kwargs)
            consumer.limit = self.config.max_in_flight
            return consumer

        return join

    patch.wrap(ConsumerGroup, "join", make)


@mutant("queue-consumer-limit-ignored", "a consumer gets messages whatever it has not settled")
def consumer_limit_ignored(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def join(self: ConsumerGroup, *args: object, **kwargs: object) -> Consumer:
            consumer: Consumer = original(self, *args, **kwargs)
            consumer.limit = 1 << 30
            return consumer

        return join

    patch.wrap(ConsumerGroup, "join", make)


def _group_setting(patch: Patch, **setting: int) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def build(self: ConsumerGroup, owner: object, config: Any, *args: object, **kwargs: object) -> None:
            changed = msgspec.structs.replace(config, group=msgspec.structs.replace(config.group, **setting))
            original(self, owner, changed, *args, **kwargs)

        return build

    patch.wrap(ConsumerGroup, "__init__", make)


@mutant("queue-group-limit-ignored", "the limit on the deliveries of a group is not kept")
def group_limit_ignored(patch: Patch) -> None:
    _group_setting(patch, max_in_flight=0)


@mutant("queue-pending-unbounded", "a group gets new messages however many it has not settled")
def pending_unbounded(patch: Patch) -> None:
    _group_setting(patch, max_pending=1 << 30)


@mutant("queue-first-consumer-takes-all", "the first consumer of a group gets every message that it has room for")
def first_takes_all(patch: Patch) -> None:
    def next_(self: FairTurns) -> Consumer | None:
        return next((item[-1] for item in self._heap if fair_turns.has_room(item[-1])), None)

    patch.replace(FairTurns, "next", next_)


@variation("queue-turns-begin-with-the-last", "among consumers that are equal the one that joined last is served first")
def begin_with_the_last(patch: Patch) -> None:
    def make(original: _Wrapped) -> _Wrapped:
        def build(self: FairTurns, consumers: Any) -> None:
            original(self, list(consumers)[::-1])

        return build

    patch.wrap(FairTurns, "__init__", make)
