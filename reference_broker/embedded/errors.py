"""What can go wrong, by name. All but :class:`BrokerClosedError` are a :class:`QueueError` with its code."""

from __future__ import annotations

from assay.reference_broker.queues import QueueError, QueueErrorCode


class BrokerClosedError(RuntimeError):
    """The broker is not running (any more)."""


class InvalidAddressError(QueueError):
    """The name of the queue, the filter, the message id or the partition is malformed."""


class InvalidOptionError(QueueError):
    """An option has a value that cannot be honoured: a delay that is too long, an unknown priority."""


class UnknownQueueError(QueueError):
    """There is no such queue, and it is not created by itself."""


class QueueExistsError(QueueError):
    """There is a queue of that name already."""


class MessageTooLargeError(QueueError):
    """The message is larger than the queue takes."""


class MessageMisfitError(QueueError):
    """The message does not fit the schema of its queue."""


class QueueFullError(QueueError):
    """The queue holds as much as it may."""


class NotPendingError(QueueError):
    """The delivery is settled, timed out, or was never made."""


class StaleReceiptError(QueueError):
    """The delivery was made again since."""


class AmbiguousSettlementError(QueueError):
    """Several groups hold the message: name one."""


class LimitReachedError(QueueError):
    """So many queues, groups or consumers there may be."""


class QuotaExceededError(QueueError):
    """A quota of the tenant is used up."""


class NotAllowedError(QueueError):
    """That is not allowed, whatever the state."""


class UnknownProducerError(QueueError):
    """No producer of that id was initialised, or it was forgotten."""


class FencedError(QueueError):
    """A newer producer of that name has begun."""


class OutOfSequenceError(QueueError):
    """Neither the producer's next message nor one of the last ones again."""


class UnknownTransactionError(QueueError):
    """The transaction never began, or was aborted when the broker stopped."""


class TransactionStateError(QueueError):
    """The transaction has ended, by its timeout for one, or another of that name is open; the text says which."""


class UnknownGroupError(QueueError):
    """The queue has no group of that name."""


class UnknownMemberError(QueueError):
    """The consumer is no member of the group, or its session has timed out."""


class StaleGenerationError(QueueError):
    """The group has been assigned anew since: ask for the current assignment."""


class InvalidCursorError(QueueError):
    """The cursor names no place that the group could go to."""


class NotIdleError(QueueError):
    """The delivery has not been idle for as long as was asked."""


class QueueInUseError(QueueError):
    """The queue, or the group, is in use."""


class StorageFailedError(QueueError):
    """The disk refused a write or a sync."""


NAMES: dict[QueueErrorCode, type[QueueError]] = {
    QueueErrorCode.BAD_ADDRESS: InvalidAddressError,
    QueueErrorCode.BAD_OPTION: InvalidOptionError,
    QueueErrorCode.UNKNOWN_QUEUE: UnknownQueueError,
    QueueErrorCode.EXISTS: QueueExistsError,
    QueueErrorCode.TOO_LARGE: MessageTooLargeError,
    QueueErrorCode.MISFIT: MessageMisfitError,
    QueueErrorCode.FULL: QueueFullError,
    QueueErrorCode.NOT_PENDING: NotPendingError,
    QueueErrorCode.STALE_RECEIPT: StaleReceiptError,
    QueueErrorCode.AMBIGUOUS: AmbiguousSettlementError,
    QueueErrorCode.LIMIT: LimitReachedError,
    QueueErrorCode.QUOTA: QuotaExceededError,
    QueueErrorCode.NOT_ALLOWED: NotAllowedError,
    QueueErrorCode.UNKNOWN_PRODUCER: UnknownProducerError,
    QueueErrorCode.FENCED: FencedError,
    QueueErrorCode.OUT_OF_SEQUENCE: OutOfSequenceError,
    QueueErrorCode.UNKNOWN_TRANSACTION: UnknownTransactionError,
    QueueErrorCode.TRANSACTION_STATE: TransactionStateError,
    QueueErrorCode.UNKNOWN_GROUP: UnknownGroupError,
    QueueErrorCode.UNKNOWN_MEMBER: UnknownMemberError,
    QueueErrorCode.STALE_GENERATION: StaleGenerationError,
    QueueErrorCode.BAD_CURSOR: InvalidCursorError,
    QueueErrorCode.NOT_IDLE: NotIdleError,
    QueueErrorCode.IN_USE: QueueInUseError,
    QueueErrorCode.STORAGE_FAILED: StorageFailedError,
}


def named(error: QueueError) -> Exception:
    """The error under its own name."""
    if error.code is QueueErrorCode.CLOSED:
        return BrokerClosedError(error.text)
    kind = NAMES.get(error.code, QueueError)
    return error if isinstance(error, kind) else kind(error.code, error.text, error.details)
