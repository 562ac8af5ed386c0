"""What a client is told of what the queue engine refuses."""

from __future__ import annotations

from typing import Final

from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.queues import QueueError, QueueErrorCode

_REPLIES: Final = {
    QueueErrorCode.UNKNOWN_QUEUE: (Reply.NOT_FOUND, "queue.declare.passive.passive"),
    QueueErrorCode.BAD_ADDRESS: (Reply.PRECONDITION_FAILED, "queue.declare.queue.syntax"),
    QueueErrorCode.BAD_OPTION: (Reply.PRECONDITION_FAILED, "rmq.x-queue-type"),
    QueueErrorCode.EXISTS: (Reply.PRECONDITION_FAILED, "rmq.redeclare.equivalence"),
    QueueErrorCode.IN_USE: (Reply.PRECONDITION_FAILED, "queue.delete.if-unused.in-use"),
    QueueErrorCode.NOT_ALLOWED: (Reply.ACCESS_REFUSED, "sec.2.3.6.exceptions"),
    QueueErrorCode.TOO_LARGE: (Reply.CONTENT_TOO_LARGE, "rmq.max-message-size"),
    QueueErrorCode.MISFIT: (Reply.PRECONDITION_FAILED, "rmq.confirm.reject-publish"),
    QueueErrorCode.FULL: (Reply.PRECONDITION_FAILED, "rmq.confirm.reject-publish"),
    QueueErrorCode.QUOTA: (Reply.PRECONDITION_FAILED, "queue.declare.minimum-queues"),
    QueueErrorCode.LIMIT: (Reply.PRECONDITION_FAILED, "queue.declare.minimum-queues"),
    QueueErrorCode.NOT_PENDING: (Reply.PRECONDITION_FAILED, "delivery-tag.channel-local"),
    QueueErrorCode.BAD_CURSOR: (Reply.PRECONDITION_FAILED, "rmq.x-queue-type"),
}
"""What the engine refuses, as a reply with its rule; the rest is an internal error."""


def reply_to(error: QueueError) -> AmqpError:
    """A queue that somebody else deletes meanwhile is a 404 of the channel like one that never was."""
    code, rule = _REPLIES.get(error.code, (Reply.INTERNAL_ERROR, ""))
    return AmqpError(code, error.text, rule=rule)
