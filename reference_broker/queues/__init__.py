"""Durable queues: partitions, groups, settlement, retry and dead letters. Pure: no I/O, no clock, no randomness."""

from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.delivery import Delivery, GroupStats, QueueStats, delivery_properties
from assay.reference_broker.queues.groups.pending import Consumer
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, QueueOpenError
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.jobs.sync_job import SyncJob
from assay.reference_broker.queues.messages.address import QueueAddress, Verb

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
