"""What a broker of AMQP 0.9.1 can be accused of, with the rules of the registry behind it."""

from __future__ import annotations

from assay.conformance.explore.rules import StatedRule, ViolationError
from assay.conformance.wire.amqp091 import AMQP_091


class AmqpRule(StatedRule):
    """A kind of finding: its name in files, and rules; an accusation may name others that fit better."""

    DIED = ("broker-died", "sec.4.8.1.soft-error")
    MALFORMED = ("malformed", "sec.4.2.6.interleave")
    ENDED = ("connection-ended", "sec.4.8.1.soft-error")
    CLOSED = ("channel-closed", "sec.4.8.2.reply-code")
    UNANSWERED = ("request-unanswered", "sec.4.6.sync-effects")
    OUTCOME = ("request-ends-otherwise", "sec.4.6.sync-effects")
    UNASKED = ("method-unasked", "grammar.basic")
    UNDELIVERED = ("undelivered", "basic.consume.01", "sec.4.6.sync-effects")
    LOST = ("message-lost", "sec.4.6.sync-effects", "rmq.confirm.select")
    LOST_BY_RESTART = ("message-lost-by-a-restart", "rmq.confirm.persistent", "basic.01")
    UNROUTED = ("never-routed-there", "queue.bind.unique", "rmq.exchange.bind")
    TWICE = ("delivered-twice", "queue.bind.unique")
    HELD = ("delivered-while-held", "basic.qos.prefetch-count.01")
    AGAIN = ("settled-message-comes-again", "rmq.tx.semantics")
    CHANGED = ("message-changed", "sec.4.2.6.2.split-body")
    ADDRESS = ("exchange-or-key-changed", "sec.4.2.6.2.split-body")
    REDELIVERED = ("redelivered-flag", "redelivered.implementation")
    NOT_REDELIVERED = ("redelivered-flag-missing", "basic.recover.01")
    TAG = ("delivery-tag", "delivery-tag.non-zero", "delivery-tag.channel-local")
    ORDER = ("order", "sec.4.7.ordering")
    PRIORITY = ("priority", "rmq.queue.max-priority")
    EXPIRED = ("expired", "rmq.queue.ttl.message", "rmq.publish.expiration")
    PREFETCH = ("prefetch", "basic.qos.prefetch-count.01", "rmq.qos.global")
    CANCELLED = ("delivered-to-a-cancelled-consumer", "basic.cancel.01")
    NO_NOTICE = ("cancel-not-told", "rmq.consumer-cancel-notify")
    SINGLE = ("single-active-consumer", "rmq.queue.single-active")
    RETURN = ("return", "basic.publish.mandatory.01")
    NO_RETURN = ("return-missing", "basic.publish.mandatory.01")
    RETURN_LATE = ("return-after-its-confirm", "rmq.confirm.unroutable-order")
    CONFIRM = ("confirm", "rmq.confirm.select")
    UNCONFIRMED = ("confirm-missing", "rmq.confirm.select")
    REJECTED = ("limit-not-kept", "rmq.confirm.reject-publish", "rmq.queue.max-length")
    FIGURES = ("figures", "rmq.passive-declare-counts")
    EMPTY = ("empty-though-there-is-a-message", "sec.4.6.sync-effects")
    LETTER = ("dead-letter-tells-otherwise", "rmq.dlx.reasons")
    LETTER_LOST = ("dead-letter-lost", "rmq.dlx.reasons")
    LIMIT = ("delivery-limit", "rmq.quorum.delivery-limit")
    STAYS = ("stays-though-it-should-go", "rmq.auto-delete.queue", "sec.4.5.exclusive-delete")
    GONE = ("gone-though-it-should-stay", "queue.declare.durable.persistence", "queue.bind.durable-exchange")
    TRANSACTION = ("transaction", "rmq.tx.semantics")


def violation(rule: AmqpRule, text: str, *clauses: str, waited: bool = False) -> ViolationError:
    return ViolationError(rule, AMQP_091, text, clauses, waited=waited)
