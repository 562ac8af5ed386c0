"""Bugs of the reference broker's AMQP 0.9.1, and near misses: channels, queues, exchanges, content, settlement."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.runs import PublishReader
from assay.reference_broker.amqp091.topology import virtual_host
from assay.reference_broker.amqp091.topology.tables import TopicTable
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost
from assay.reference_broker.amqp091.transactions import Commit
from assay.reference_broker.queues.operations.queue_operations import QueueOperations

Row = tuple[str, type | ModuleType, str, str, str]
"""What is broken, where (owner and function), and the text of the function that becomes another."""

_REWRITES: dict[str, Row] = {
    # Settlement
    "amqp-unknown-tags-passed-over": (
        "an acknowledgement of a tag that nobody has is passed over",
        Consuming,
        "taken",
        "if found is None:\n            raise self._unknown(tag)",
        "if found is None:\n            return []",
    ),
    "amqp-tags-from-zero": (
        "delivery tags begin at zero",
        Consuming,
        "__init__",
        "self._next_tag = 1",
        "self._next_tag = 0",
    ),
    "amqp-multiple-stops-short": (
        "an acknowledgement of several leaves the last one out",
        Consuming,
        "taken",
        "if each > tag:",
        "if each >= tag and taken:",
    ),
    "amqp-never-redelivered": (
        "nothing is ever marked as redelivered",
        Consuming,
        "deliver",
        "repeated = delivery.redelivered or delivery.delivery_count > 1",
        "repeated = False",
    ),
    "amqp-no-ack-kept": (
        "what needs no acknowledgement waits for one",
        Consuming,
        "consume",
        "consumer = self._new_consumer(record, tag, no_ack=no_ack)",
        "no_ack = False; consumer = self._new_consumer(record, tag, no_ack=no_ack)",
    ),
    "amqp-requeue-ignored": (
        "a rejected message is dropped though it should be available again",
        Consuming,
        "reject",
        "Outcome.FAIL if requeue else Outcome.REJECT",
        "Outcome.REJECT",
    ),
    "amqp-nack-always-requeues": (
        "a nacked message is available again though it should be dropped",
        Consuming,
        "nack",
        "Outcome.FAIL if requeue else Outcome.REJECT",
        "Outcome.FAIL",
    ),
    "amqp-recover-forgets": (
        "recover answers and returns nothing",
        Consuming,
        "recover_async",
        "taken, self._unsettled = list(self._unsettled.items()), {}",
        "taken = []",
    ),
    # Prefetch and consumers
    "amqp-prefetch-ignored": (
        "a prefetch of consumers is not looked at",
        Consuming,
        "consume",
        "prefetch = 0 if no_ack else self._prefetch",
        "prefetch = 0",
    ),
    "amqp-shared-prefetch-off-by-one": (
        "a shared prefetch lets one more delivery through",
        Consuming,
        "has_room",
        "self._counted >= limit",
        "self._counted > limit",
    ),
    "amqp-shared-prefetch-counts-gets-for-ever": (
        "what was got counts against a shared prefetch, also when it is acknowledged",
        Consuming,
        "deliver",
        "self._counted += bool(consumer.tag)",
        "self._counted += 1",
    ),
    "amqp-consumer-tags-twice": (
        "a consumer tag may be used twice",
        Consuming,
        "consume",
        "if tag in self._consumers or",
        "if (not tag and tag in self._consumers) or",
    ),
    "amqp-consumers-never-exclusive": (
        "exclusive consumption keeps nobody out",
        Consuming,
        "consume",
        "if use.is_exclusive or (exclusive and use.consumers):",
        "if False:",
    ),
    "amqp-cancelled-consumes-on": (
        "a cancelled consumer gets messages all the same",
        Consuming,
        "cancel",
        "self._leave(consumer, now)",
        "pass",
    ),
    "amqp-cancelled-with-deliveries-consumes-on": (
        "a consumer that is cancelled while it holds deliveries gets messages until it has settled them",
        Consuming,
        "cancel",
        "self._leave(consumer, now)",
        """self._leave(consumer, now)
        if consumer.held:
            self._channel.connection.broker.engine.grant(consumer.consumer, 1_000, now)""",
    ),
    "amqp-everybody-told-of-ended-queues": (
        "a client is told that its queue is gone though it has not announced that it understands",
        Consuming,
        "queue_ended",
        'if channel.is_open and "consumer_cancel_notify" in channel.connection.capabilities:',
        "if channel.is_open:",
    ),
    "amqp-nobody-told-of-ended-queues": (
        "no client is told that its queue is gone",
        Consuming,
        "queue_ended",
        'if channel.is_open and "consumer_cancel_notify" in channel.connection.capabilities:',
        "if False:",
    ),
    "amqp-flow-answered-and-ignored": (
        "a client that stops deliveries gets its answer, and deliveries",
        Consuming,
        "flow",
        "self._is_active = active",
        "self._is_active = True",
    ),
    # Publishing, confirms, transactions
    "amqp-mandatory-ignored": (
        "what reaches no queue never comes back",
        Publishing,
        "go_elsewhere",
        "if mandatory and not queues:",
        "if False:",
    ),
    "amqp-confirms-and-transactions": (
        "a channel may have confirms and transactions",
        Publishing,
        "select_confirms",
        "if self._transaction is not None:",
        "if False:",
    ),
    "amqp-confirms-count-all": (
        "tags of confirms count what was published before as well",
        Publishing,
        "publish",
        "if run.first_tag:",
        "if True:",
    ),
    "amqp-unroutable-not-confirmed": (
        "what reaches no queue is not confirmed, nor what comes with it",
        Publishing,
        "decided",
        "if not run.first_tag or not run.messages:",
        "if not run.first_tag or sum(map(len, run.by_route.values())) < len(run.messages):",
    ),
    "amqp-publishes-do-not-wait": (
        "what is published in a transaction is in its queue at once",
        Publishing,
        "take",
        "plan.is_plain and self._transaction is None and (",
        "plan.is_plain and (",
    ),
    "amqp-acknowledgements-do-not-wait": (
        "what is acknowledged in a transaction counts at once",
        Consuming,
        "settle",
        "if publishing.transaction is None:",
        "if True:",
    ),
    "amqp-commit-forgets-acknowledgements": (
        "a commit carries out no acknowledgement",
        Commit,
        "fill",
        "for settlement in self._transaction.settlements:",
        "for settlement in ():",
    ),
    "amqp-commit-makes-no-room": (
        "after a commit, nobody looks whether consumers may have more",
        Commit,
        "told",
        "self._channel.consuming.resume()",
        "pass",
    ),
    "amqp-going-queues-stay-away": (
        "a queue cannot be declared anew while what is left of it goes",
        QueueOperations,
        "is_going",
        "return name in self._registry.removals",
        "return False",
    ),
    "amqp-rollback-keeps-acknowledgements": (
        "what was acknowledged and rolled back cannot be acknowledged again",
        Publishing,
        "rollback",
        "self._channel.consuming.take_back(transaction.settlements)",
        "pass",
    ),
    "amqp-commit-without-select": (
        "a commit on a channel without transactions is answered",
        Publishing,
        "take_transaction",
        "if transaction is None:",
        "if transaction is None:\n        return Transaction()\n    if False:",
    ),
    "amqp-get-ok-counts-nothing": (
        "Get-Ok says that no message is left",
        Consuming,
        "deliver_run",
        'max(0, left).to_bytes(_SIZE_BYTES, "big")',
        "bytes(_SIZE_BYTES)",
    ),
    # Channels and frames
    "amqp-bodies-cut": (
        "what a body has too much is cut off",
        Channel,
        "on_body",
        "if len(payload) > content.left:",
        "if len(payload := payload[: content.left]) > content.left:",
    ),
    "amqp-closing-channels-serve": (
        "a channel that was closed for an error does what comes behind it",
        Channel,
        "on_frame",
        "if self.is_closing:",
        "if False:",
    ),
    "amqp-close-holds-messages": (
        "what a closed channel has not acknowledged stays away",
        Consuming,
        "end",
        "if consumer.consumer is not None:",
        "if consumer.consumer is not None and not consumer.held:",
    ),
    "amqp-any-channel-number": (
        "the agreed maximum of channels is not looked at",
        AmqpConnection,
        "on_new_channel",
        "if number > self._channel_max:",
        "if False:",
    ),
    "amqp-opened-twice": (
        "a second Open of the connection is passed over",
        AmqpConnection,
        "on_running_method",
        'elif name not in ("connection.blocked", "connection.unblocked"):',
        'elif name not in ("connection.blocked", "connection.unblocked", "connection.open"):',
    ),
    # Exchanges and queues
    "amqp-exchange-types-change": (
        "an exchange may be declared again in another way",
        VirtualHost,
        "declare_exchange",
        "if exchange is not None:",
        "if exchange is not None:\n        return exchange\n    if exchange is not None:",
    ),
    "amqp-used-exchanges-deleted": (
        "an exchange with bindings is deleted though if-unused is set",
        VirtualHost,
        "delete_exchange",
        "if if_unused and exchange.bindings:",
        "if False:",
    ),
    "amqp-reserved-names-taken": (
        "clients may declare names that begin with amq.",
        VirtualHost,
        "check_new_name",
        "if name.startswith(RESERVED_PREFIX):",
        "if False:",
    ),
    "amqp-default-exchange-declared": (
        "the nameless exchange can be declared and deleted",
        VirtualHost,
        "check_not_default",
        "if name == DEFAULT_EXCHANGE:",
        "if False:",
    ),
    "amqp-strangers-use-exclusive-queues": (
        "a queue that is exclusive to one connection is anybody's",
        VirtualHost,
        "find_queue",
        "if queue.exclusive_owner is not None and queue.exclusive_owner != owner:",
        "if False:",
    ),
    "amqp-topic-star-is-no-word": (
        "in topic patterns * does not match an empty word",
        TopicTable,
        "after",
        'if (any_word := node.children.get("*")) is not None:',
        'if word and (any_word := node.children.get("*")) is not None:',
    ),
    "amqp-topic-hash-needs-a-word": (
        "in topic patterns # matches one word or more, but not none",
        TopicTable,
        "find",
        "for node in places:\n            found |= node.ends.counts",
        "for node in places:\n            found |= {} if node.is_rest and '.' not in key else node.ends.counts",
    ),
    "amqp-bindings-end-after-one-step": (
        "a message passes one binding between exchanges, and no second one",
        virtual_host,
        "find_route",
        "elif name not in seen and (following := exchanges.get(name)) is not None:",
        "elif exchange is entry and name not in seen and (following := exchanges.get(name)) is not None:",
    ),
}


def register_rewrites(rows: Mapping[str, Row]) -> None:
    """Register a bug for each row, by its name."""
    for name, row in rows.items():
        _register(name, row)


def _register(name: str, row: Row) -> None:
    what, owner, function, old, new = row

    @mutant(name, what)
    def apply(patch: Patch) -> None:
        patch.rewrite(owner, function, old, new)


register_rewrites(_REWRITES)


@mutant("amqp-always-redelivered", "everything is marked as redelivered")
def always_redelivered(patch: Patch) -> None:
    once = "delivery.redelivered or delivery.delivery_count > 1"
    patch.rewrite(Consuming, "deliver", f"repeated = {once}", "repeated = True")
    patch.rewrite(
        Consuming, "find_way", "consumer.tag, 0, False, exchange, key", "consumer.tag, 0, True, exchange, key"
    )


@mutant("amqp-empty-content-waits", "content of no bytes waits for a body frame")
def empty_content_waits(patch: Patch) -> None:
    patch.rewrite(Channel, "on_header", "if not size:", "if False:")
    patch.rewrite(PublishReader, "read", "or body_size > largest_body", "or body_size > largest_body or not body_size")


@variation("amqp-content-given-up", "a method within a content gives it up, as sec.4.2.6.abort has it, and is served")
def content_given_up(patch: Patch) -> None:
    patch.rewrite(
        Channel,
        "handle_frame",
        'raise AmqpError(Reply.UNEXPECTED_FRAME, "a method where content belongs", rule="sec.4.2.6.interleave")',
        "self._content = None",
    )
