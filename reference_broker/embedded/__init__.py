"""The queues of an embedded broker, called from Python: blocking from any thread, or in the broker's event loop.

>>> with Broker() as broker:                                       # doctest: +SKIP
...     broker.queues.publish("orders", b"...", key="user-1", priority=Priority.HIGH)
...     with broker.queues.subscribe("orders", group="workers") as subscription:
...         for received in subscription:
...             received.ack()
"""

from assay.reference_broker.embedded.aio import AsyncQueues
from assay.reference_broker.embedded.blocking import BlockingTransaction, Queues, Subscription
from assay.reference_broker.embedded.errors import (
    AmbiguousSettlementError,
    BrokerClosedError,
    FencedError,
    InvalidAddressError,
    InvalidCursorError,
    InvalidOptionError,
    LimitReachedError,
    MessageTooLargeError,
    NotAllowedError,
    NotIdleError,
    NotPendingError,
    OutOfSequenceError,
    QueueExistsError,
    QueueFullError,
    QueueInUseError,
    QuotaExceededError,
    StaleGenerationError,
    StaleReceiptError,
    StorageFailedError,
    TransactionStateError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownProducerError,
    UnknownQueueError,
    UnknownTransactionError,
)
from assay.reference_broker.embedded.health import DeadLetterStats, HealthSnapshot, HealthStatus
from assay.reference_broker.embedded.messages import AckPolicy, NewMessage, Published, StoredCopy
from assay.reference_broker.embedded.replies import Reply
from assay.reference_broker.embedded.subscription import AsyncSubscription
from assay.reference_broker.embedded.transaction import AsyncTransaction
from assay.reference_broker.queues.messages.lanes import lane_of_level
from assay.reference_broker.queues.messages.publish_options import Priority

__all__ = [
    "AckPolicy",
    "AmbiguousSettlementError",
    "AsyncQueues",
    "AsyncSubscription",
    "AsyncTransaction",
    "BlockingTransaction",
    "BrokerClosedError",
    "DeadLetterStats",
    "FencedError",
    "HealthSnapshot",
    "HealthStatus",
    "InvalidAddressError",
    "InvalidCursorError",
    "InvalidOptionError",
    "LimitReachedError",
    "MessageTooLargeError",
    "NewMessage",
    "NotAllowedError",
    "NotIdleError",
    "NotPendingError",
    "OutOfSequenceError",
    "Priority",
    "Published",
    "QueueExistsError",
    "QueueFullError",
    "QueueInUseError",
    "Queues",
    "QuotaExceededError",
    "Reply",
    "StaleGenerationError",
    "StaleReceiptError",
    "StorageFailedError",
    "StoredCopy",
    "Subscription",
    "TransactionStateError",
    "UnknownGroupError",
    "UnknownMemberError",
    "UnknownProducerError",
    "UnknownQueueError",
    "UnknownTransactionError",
    "lane_of_level",
]
