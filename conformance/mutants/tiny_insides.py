"""A legal variation whose insides are tiny: every cache overflows, every turn ends early, every log is renewed soon.

What a broker remembers, how much it does in one go and when it replaces its files is its own affair, so nobody may see
that these are small. Bugs hide where they are used up, which no suite reaches at their usual sizes: after thousands of
topics, or megabytes of a log. Left out are limits that clients see.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Final

from assay.conformance.mutants import Patch, variation
from assay.reference_broker.queues.limits import limits
from assay.reference_broker.queues.limits.limits import QueueLimits

BROKER: Final = "assay.reference_broker"
_A_MOMENT_S: Final = 0.05
_SMALLEST_UNIQUE: Final = 257
"""Smaller numbers are one object wherever they come from."""

TINY: Final[dict[str, dict[str, int]]] = {
    # What a turn does.
    "core.broker": {"MAX_WORK": 8, "MAX_SLICES": 1},
    "mqtt.connections.connection": {"MAX_PACKETS": 3, "SMALL_BYTES": 16, "MANY_FILTERS_BYTES": 8},
    "mqtt.connections.handlers": {"STEP_FILTERS": 2},
    "mqtt.sessions.sending": {"TURN_WORK": 16, "PORTION": 2},
    "mqtt.sessions.mqtt_broker": {"MAX_TAKEN_OUT": 2, "MAX_TIMERS": 2},
    "mqtt.sessions.access_review": {"PORTION": 2},
    "queues.jobs.agenda": {"MAX_WORK": 24, "MAX_WAKES": 2},
    "queues.engine": {"MAX_CONFIRMS": 1, "FEWEST": 2},
    "queues.delivery.dispatcher": {
        "QUANTUM": 1,
        "QUANTUM_ALONE": 3,
        "MIN_RUN": 2,
        "SKIPS_PER_TURN": 2,
        "MATCH_CACHE": 1,
    },
    "queues.limits.limits": {"LOOKED_AT": 2, "MORE_DROPS": 1},
    "queues.limits.time_to_live": {"STEPS": 50},
    "queues.operations.replay": {"REPLAY_PER_TURN": 1},
    "queues.groups.group_state": {"SETTLED_PER_TRIM": 1},
    "queues.groups.group": {"STALE_TIMEOUTS": 1},
    # Blocks, runs and batches.
    "mqtt.connections.inbound": {"MAX_PLANS": 2, "MAX_BLOCK": 5, "FEWEST_ALIKE": 2, "COMPARED_RECEIVERS": 1},
    "mqtt.connections.queue_batches": {"FEWEST": 2, "MAX_TOPICS": 2},
    "mqtt.batches.ack_runs": {"FEWEST_ALIKE": 2, "STEP": 2, "MAX_PATTERNS": 1},
    "mqtt.batches.publish_batches": {"FEWEST_ALIKE": 2, "FIRST_STEP": 2, "STEP": 2, "MOST": 4, "MAX_SECTIONS": 2},
    "mqtt.batches.queue_deliveries": {"FEW": 2, "MAX_TEMPLATES": 1},
    "queues.groups.delivery_run": {"MIN_RUN": 2},
    "queues.queue.enqueue_path": {"BLOCK_MESSAGES": 2},
    "storage.record": {"CACHED_HEADER_SETS": 1, "FEW": 2},
    "storage.record_decoder": {"LEAST_RUN": 2},
    "storage.record_runs": {"LEAST_RUN": 2},
    # What is remembered.
    "amqp091.runs": {"MOST_WRITTEN_BYTES": 3},
    "amqp091.topology.exchanges": {"MOST_ROUTES": 1},
    "core.access": {"MAX_CACHED_DECISIONS": 1},
    "core.filter_changes": {"MAX_FILTERS": 1},
    "core.rates": {"MAX_LOOKED_AT": 2},
    "core.routing": {"MAX_CACHED_ROUTES": 2, "MAX_RECEIVERS": 1},
    "mqtt.queue_topics.addresses": {"ADDRESS_CACHE": 1},
    "queues.messages.partitioner": {"MAX_KNOWN": 1},
    "queues.messages.stored_message": {"CACHE_LIMIT": 1},
    "queues.partitions.partition": {"READ_AHEAD": 1},
    "queues.registry.registry": {"CACHE_BYTES": 1_000},
    "storage.pending_operations": {"CACHED_LAYOUTS": 1},
    # Files.
    "queues.delays.delay_recovery": {"READ_RECORDS": 2},
    "queues.delays.delay_store": {
        "FIRED_PER_TURN": 1,
        "READ_RECORDS": 1,
        "TRIM_AFTER": 1,
        "TOLD_OFFSETS": 1,
        "TOLD_WAITING": 1,
        "TOLD_PER_TURN": 1,
    },
    "queues.delays.done_log": {"READ_RECORDS": 1, "RESTATE_ABOVE_BYTES": 100},
    "queues.delays.done_records": {"RANGES_PER_RECORD": 1},
    "queues.delays.timing_wheel": {"COMPACT_ABOVE": 2},
    "queues.partitions.departures": {"READ_RECORDS": 2, "INTERVALS_PER_RECORD": 1, "RESTATE_ABOVE_BYTES": 100},
    "queues.partitions.producers": {"SNAPSHOT_RECORDS": 3},
    "queues.transactions.coordinator": {"BLOCK": 1},
    "queues.transactions.transaction_recovery": {"READ_RECORDS": 2},
    "storage.durable_mark": {"SYNC_EVERY": 1},
    "storage.pending_codec": {"FRAME_OPERATIONS": 2, "MAX_RUN": 3, "MAX_RANGES": 2},
    "storage.pending_log": {"SNAPSHOT_OPERATIONS": 5, "SNAPSHOT_OPERATIONS_PER_ENTRY": 1},
    "storage.pending_snapshot": {"ENTRIES_PER_STEP": 1},
    "storage.queue_store": {
        "DONE_SEGMENT_BYTES": 200,
        "DEPARTURES_SEGMENT_BYTES": 200,
        "MEMORY_SEGMENT_BYTES": 2_000,
        "STATE_SNAPSHOT_RECORDS": 5,
    },
    "storage.snapshots": {"SNAPSHOT_RECORDS": 5},
    "storage.state_log": {"SEGMENT_BYTES": 1_000, "READ_RECORDS": 2},
}
"""Module of the broker -> its constants, and what they are."""


@variation(
    "any-tiny-insides",
    "caches hold next to nothing, turns do next to nothing, files are replaced every few records",
    freedom="none of them limits what a client may do or see",
)
def tiny_insides(patch: Patch) -> None:
    for place, constants in TINY.items():
        for name, value in constants.items():
            resize(patch, place, name, value)


@variation(
    "any-settled-is-gone",
    "what every group of a queue has settled is removed within a moment, however little it is",
    freedom="Q-DURA-08: nothing is deleted before every group there is has settled it; nothing says that it stays for "
    "a group to come",
)
def settled_is_gone(patch: Patch) -> None:
    resize(patch, "queues.groups.group_state", "SETTLED_PER_TRIM", 1)

    def make(original: Callable[[QueueLimits], None]) -> Callable[[QueueLimits], None]:
        def trim(self: QueueLimits) -> None:
            self.free_settled(self._agenda.now)
            original(self)

        return trim

    patch.wrap(QueueLimits, "trim", make)
    patch.replace(limits, "TRIM_INTERVAL_S", _A_MOMENT_S)


def usual_size(place: str, name: str) -> int:
    """What a constant of :data:`TINY` is."""
    return int(getattr(importlib.import_module(f"{BROKER}.{place}"), name))


def resize(patch: Patch, place: str, name: str, value: int) -> None:
    """Change a constant of :data:`TINY`, also where another module has it by its name."""
    home = importlib.import_module(f"{BROKER}.{place}")
    usual = getattr(home, name)
    patch.replace(home, name, value)
    for module in [*sys.modules.values()]:
        if usual >= _SMALLEST_UNIQUE and vars(module).get(name) is usual and _is_of_broker(module.__name__):
            patch.replace(module, name, value)


def _is_of_broker(module: str) -> bool:
    return module.startswith(f"{BROKER}.")
