"""What can go wrong, by name. All but :class:`BrokerClosedError` are a :class:`QueueError` with its code."""

from __future__ import annotations

from assay.reference_broker.queues import QueueError, QueueErrorCode


class BrokerClosedError(RuntimeError):
    """The broker is not running (any more)."""


NAMES: dict[QueueErrorCode, type[QueueError]] = {}


class _NamedError(QueueError):
    """Has a name beside its code."""

    def __init_subclass__(cls, *, code: QueueErrorCode) -> None:
        NAMES[code] = cls


class InvalidAddressError(_NamedError, code=QueueErrorCode.BAD_ADDRESS):
    """The name of the queue, the filter, the message id or the partition is malformed."""


class InvalidOptionError(_NamedError, code=QueueErrorCode.BAD_OPTION):
    """An option has a value that cannot be honoured: a delay that is too long, an unknown priority."""


class UnknownQueueError(_NamedError, code=QueueErrorCode.UNKNOWN_QUEUE):
    """There is no such queue, and it is not created by itself."""


class QueueExistsError(_NamedError, code=QueueErrorCode.EXISTS):
    """There is a queue of that name already."""


class MessageTooLargeError(_NamedError, code=QueueErrorCode.TOO_LARGE):
    """The message is larger than the queue takes."""


class MessageMisfitError(_NamedError, code=QueueErrorCode.MISFIT):
    """The message does not fit the schema of its queue."""


class QueueFullError(_NamedError, code=QueueErrorCode.FULL):
    """The queue holds as much as it may."""


class NotPendingError(_NamedError, code=QueueErrorCode.NOT_PENDING):
    """The delivery is settled, timed out, or was never made."""


class StaleReceiptError(_NamedError, code=QueueErrorCode.STALE_RECEIPT):
    """The delivery was made again since."""


class AmbiguousSettlementError(_NamedError, code=QueueErrorCode.AMBIGUOUS):
    """Several groups hold the message: name one."""


class LimitReachedError(_NamedError, code=QueueErrorCode.LIMIT):
    """So many queues, groups or consumers there may be."""


class QuotaExceededError(_NamedError, code=QueueErrorCode.QUOTA):
    """A quota of the tenant is used up."""


class NotAllowedError(_NamedError, code=QueueErrorCode.NOT_ALLOWED):
    """That is not allowed, whatever the state."""


class UnknownProducerError(_NamedError, code=QueueErrorCode.UNKNOWN_PRODUCER):
    """No producer of that id was initialised, or it was forgotten."""


class FencedError(_NamedError, code=QueueErrorCode.FENCED):
    """A newer producer of that name has begun."""


class OutOfSequenceError(_NamedError, code=QueueErrorCode.OUT_OF_SEQUENCE):
    """Neither the producer's next message nor one of the last ones again."""


class UnknownTransactionError(_NamedError, code=QueueErrorCode.UNKNOWN_TRANSACTION):
    """The transaction never began, or was aborted when the broker stopped."""


class TransactionStateError(_NamedError, code=QueueErrorCode.TRANSACTION_STATE):
    """The transaction has ended, by its timeout for one, or another of that name is open; the text says which."""


class UnknownGroupError(_NamedError, code=QueueErrorCode.UNKNOWN_GROUP):
    """The queue has no group of that name."""


class UnknownMemberError(_NamedError, code=QueueErrorCode.UNKNOWN_MEMBER):
    """The consumer is no member of the group, or its session has timed out."""


class StaleGenerationError(_NamedError, code=QueueErrorCode.STALE_GENERATION):
    """The group has been assigned anew since: ask for the current assignment."""


class InvalidCursorError(_NamedError, code=QueueErrorCode.BAD_CURSOR):
    """The cursor names no place that the group could go to."""


class NotIdleError(_NamedError, code=QueueErrorCode.NOT_IDLE):
    """The delivery has not been idle for as long as was asked."""


class QueueInUseError(_NamedError, code=QueueErrorCode.IN_USE):
    """The queue, or the group, is in use."""


class StorageFailedError(_NamedError, code=QueueErrorCode.STORAGE_FAILED):
    """The disk refused a write or a sync."""


def named(error: QueueError) -> Exception:
    """The error under its own name."""
    if error.code is QueueErrorCode.CLOSED:
        return BrokerClosedError(error.text)
    kind = NAMES.get(error.code, QueueError)
    return error if isinstance(error, kind) else kind(error.code, error.text, error.details)
