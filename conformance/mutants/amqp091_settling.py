"""Slips in what a channel does with what it holds, in times, and in what ends by itself after a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091 import consumer_arguments, messages
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.handles import Settlement
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.topology import records, virtual_host
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost
from assay.reference_broker.amqp091.transactions import Commit
from assay.reference_broker.queues import Outcome
from assay.reference_broker.queues.delivery.dispatcher import Dispatcher
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import GroupPartition

_OUTCOME = "Outcome.FAIL if requeue else Outcome.REJECT"
_ROWS: dict[str, Row] = {
    # Settlement
    "amqp-nacks-of-several-spare-other-consumers": (
        "a nack of several is for the consumer of its tag alone; what others were given is forgotten",
        Consuming,
        "nack",
        "self._refuse(self.taken(tag, multiple)",
        (
            "taken = self.taken(tag, multiple)\n"
            "    self._refuse([each for each in taken if each[1].consumer is taken[-1][1].consumer]"
        ),
    ),
    "amqp-nacks-of-several-requeue": (
        "a nack of several up to a tag requeues them",
        Consuming,
        "nack",
        _OUTCOME,
        "Outcome.FAIL if requeue or (multiple and tag) else Outcome.REJECT",
    ),
    "amqp-nacks-of-all-drop": (
        "a nack of all that a channel holds requeues nothing",
        Consuming,
        "nack",
        _OUTCOME,
        "Outcome.FAIL if requeue and tag else Outcome.REJECT",
    ),
    "amqp-gets-need-room": (
        "a get finds nothing while consumers hold what their shared prefetch allows",
        Consuming,
        "deliver",
        "if consumer.tag and not self.has_room(consumer):",
        "if not self.has_room(consumer):",
    ),
    # Transactions
    "amqp-refusals-in-a-transaction-accept": (
        "what is refused in a transaction is acknowledged by its commit",
        Consuming,
        "settle",
        "Settlement(tag, held, outcome)",
        "Settlement(tag, held, Outcome.ACCEPT)",
    ),
    "amqp-requeues-in-a-transaction-drop": (
        "what is to be requeued by a transaction is dropped by its commit",
        Consuming,
        "settle",
        "Settlement(tag, held, outcome)",
        "Settlement(tag, held, outcome if outcome is Outcome.ACCEPT else Outcome.REJECT)",
    ),
    "amqp-drops-in-a-transaction-requeue": (
        "what is to be dropped by a transaction is requeued by its commit",
        Consuming,
        "settle",
        "Settlement(tag, held, outcome)",
        "Settlement(tag, held, outcome if outcome is Outcome.ACCEPT else Outcome.FAIL)",
    ),
    "amqp-rolled-back-is-behind-the-rest": (
        "an acknowledgement of several stops short of what was rolled back before",
        Consuming,
        "take_back",
        "dict(sorted({**self._unsettled, **back}.items()))",
        "{**self._unsettled, **back}",
    ),
    # Times
    "amqp-tx-lives-from-its-publish": (
        "what a transaction publishes beside others expires as if it had come to its queue at once",
        Commit,
        "fill",
        "message = begun(published.message, broker.now)",
        "message = published.message",
    ),
    "amqp-tx-of-one-lives-from-its-publish": (
        "the only thing in a transaction expires as if it had come to its queue at once",
        Commit,
        "begin",
        "begun(published.message, now)",
        "published.message",
    ),
    "amqp-stream-ages-too-long": (
        "an age in a stream is in minutes where seconds are given",
        consumer_arguments,
        "position_of",
        "now - interval_s(text)",
        "now - 60 * interval_s(text)",
    ),
    "amqp-stream-ages-too-short": (
        "an age in a stream is a hundredth of what is given",
        consumer_arguments,
        "position_of",
        "now - interval_s(text)",
        "now - interval_s(text) / 100",
    ),
    "amqp-stream-times-of-another-unit": (
        "the seconds of a time in a stream are taken for milliseconds",
        consumer_arguments,
        "position_of",
        "value=value.value * 1_000",
        "value=value.value",
    ),
    # Restarts
    "amqp-exchange-arguments-lost-by-restart": (
        "an exchange has no arguments any more after a restart",
        VirtualHost,
        "restore_exchange",
        "arguments=restored_arguments(stored.arguments)",
        "arguments=()",
    ),
    "amqp-internal-exchanges-open-to-all-after-a-restart": (
        "an exchange is not internal any more after a restart",
        VirtualHost,
        "restore_exchange",
        "internal=stored.internal",
        "internal=False",
    ),
    "amqp-binding-arguments-lost-by-restart": (
        "a binding has no arguments any more after a restart",
        records,
        "restored_binding",
        "arguments=restored_arguments(stored.arguments)",
        "arguments=()",
    ),
    "amqp-queue-arguments-lost-by-restart": (
        "a queue has no arguments any more after a restart",
        virtual_host,
        "restored_queue",
        "arguments = restored_arguments(stored.arguments)",
        "arguments: Arguments = ()",
    ),
    "amqp-expirations-count-down": (
        "a message that is read from disk has what is left of its expiration",
        messages,
        "properties_of",
        "expiration=_expiration(message, kept, now)",
        "expiration=_expiration(message, msgspec.structs.replace(kept, ttl_ms=None), now)",
    ),
    "amqp-priorities-of-messages-lost": (
        "a message that is read from disk has no priority",
        messages,
        "properties_of",
        "priority=kept.priority",
        "priority=None",
    ),
    # What ends by itself
    "amqp-auto-delete-queues-are-plain-after-a-restart": (
        "a queue is not auto-delete any more after a restart",
        virtual_host,
        "restored_queue",
        "auto_delete=stored.auto_delete",
        "auto_delete=False",
    ),
    "amqp-auto-delete-exchanges-are-plain-after-a-restart": (
        "an exchange is not auto-delete any more after a restart",
        VirtualHost,
        "restore_exchange",
        "auto_delete=stored.auto_delete",
        "auto_delete=False",
    ),
    "amqp-unbound-exchanges-go-at-the-start": (
        "an exchange that is auto-delete goes with a restart although nothing was bound to it yet",
        VirtualHost,
        "remove_unused",
        "each.auto_delete and each.was_bound and not each.bindings",
        "each.auto_delete and not each.bindings",
    ),
}
register_rewrites(_ROWS)


@mutant("amqp-uncommitted-refusals-are-written", "what an open transaction rejects is written down as settled at once")
def refusals_are_written(patch: Patch) -> None:
    groups: list[ConsumerGroup] = []

    def make_group(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: ConsumerGroup, *given: Any, **more: Any) -> None:
            original(self, *given, **more)
            groups.append(self)

        return init

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def settle_later(self: Publishing, settlement: Settlement) -> None:
            original(self, settlement)
            held = settlement.held
            for group in groups:
                if settlement.outcome is Outcome.REJECT and held.consumer.consumer in group.consumers.values():
                    group.log.ack(group.places[held.partition].number, held.offset)
                    group.agenda.groups_to_write[group] = None

        return settle_later

    patch.wrap(ConsumerGroup, "__init__", make_group)
    patch.wrap(Publishing, "settle_later", make)


@mutant("amqp-gets-count-in-a-shared-prefetch", "what was got takes the room of the channel's consumers")
def gets_count(patch: Patch) -> None:
    patch.rewrite(Consuming, "deliver", "self._counted += bool(consumer.tag)", "self._counted += 1")
    patch.rewrite(
        Consuming, "deliver_run", "if consumer_tag:\n            self._counted", "if True:\n            self._counted"
    )
    patch.rewrite(Consuming, "let_go", "if consumer.tag:", "if True:")


@mutant("amqp-requeued-last", "what comes back waits until nothing that nobody had yet is left, of any priority")
def requeued_last(patch: Patch) -> None:
    def make(original: Callable[..., list[bool]]) -> Callable[..., list[bool]]:
        def dry(self: Dispatcher, lanes: Sequence[Sequence[GroupPartition]]) -> list[bool]:
            nothing_new = [not any(map(_has_new, places)) for places in lanes]
            return original(self, lanes) if all(nothing_new) else nothing_new

        return dry

    patch.wrap(Dispatcher, "dry_lanes", make)


def _has_new(place: GroupPartition) -> bool:
    lanes = place.partition.lanes
    first = place.cursor if lanes is None else lanes.next_in(place.lane, place.cursor)
    return first < place.partition.visible_end
