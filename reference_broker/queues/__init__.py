"""Durable queues: partitions, groups, settlement, retry and dead letters. Pure: no I/O, no clock, no randomness.

The end of a turn. At the end of the turn ``node.take_dirty`` dispatches: each partition's new messages become one batch
in its log, each group's next messages go to consumers with room, and every connection that has output hands it over in
one piece. What is due in queues at one moment is done in parts (``Agenda.work``, ``MAX_WORK``): whoever finds no room
left asks for the next turn, which comes at once, and goes on where it stopped. What a command takes beside what it says
is charged to its sender (``Agenda.cost``). Not split are one message to all its receivers or capturing queues, one
settlement (10 000 deliveries), and the records of one session that ends.

``node.take_jobs`` gives the logs that confirms wait for; the server syncs them in threads, the simulator in
simulated disk time. ``node.job_done`` releases the confirms (PUBACK, PUBREC), in the order of the publishes. A failed
sync is sticky: the log refuses everything until it is reopened.
"""

from assay.reference_broker.queues.delivery.settle_request import Outcome, SettleRequest
from assay.reference_broker.queues.engine import QueueEngine
from assay.reference_broker.queues.groups.delivery import Delivery, GroupStats, QueueStats
from assay.reference_broker.queues.groups.pending import Consumer
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueErrorCode, QueueOpenError
from assay.reference_broker.queues.jobs.store import QueueStore
from assay.reference_broker.queues.messages.address import QueueAddress
from assay.reference_broker.queues.messages.publish_options import PublishOptions

__all__ = [
    "BackgroundJob",
    "Consumer",
    "Delivery",
    "GroupStats",
    "LogError",
    "Outcome",
    "PublishOptions",
    "QueueAddress",
    "QueueEngine",
    "QueueError",
    "QueueErrorCode",
    "QueueOpenError",
    "QueueStats",
    "QueueStore",
    "SettleRequest",
]
