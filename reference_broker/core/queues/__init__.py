"""Durable queues: partitions, groups, settlement, retry and dead letters. Pure: no I/O, no clock, no randomness."""

from assay.reference_broker.core.queues.address import QueueAddress, Verb
from assay.reference_broker.core.queues.delivery import Delivery, GroupStats, QueueStats, delivery_properties
from assay.reference_broker.core.queues.engine import QueueEngine
from assay.reference_broker.core.queues.errors import LogError, QueueError, QueueErrorCode, QueueOpenError
from assay.reference_broker.core.queues.pending import Consumer
from assay.reference_broker.core.queues.store import QueueStore
from assay.reference_broker.core.queues.sync_job import SyncJob

__all__ = [
    "Consumer",
    "Delivery",
    "GroupStats",
    "LogError",
    "QueueAddress",
    "QueueEngine",
    "QueueError",
    "QueueErrorCode",
    "QueueOpenError",
    "QueueStats",
    "QueueStore",
    "SyncJob",
    "Verb",
    "delivery_properties",
]
