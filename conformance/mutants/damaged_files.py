"""Bugs that show where files were damaged while the broker was dead, or where the disk takes no more of them."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.queue_engine import after
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.queues.partitions.partition import QueuePartition
from assay.reference_broker.storage import log_opening
from assay.reference_broker.storage.description import DESCRIPTION, ROOT
from assay.reference_broker.storage.pending_recovery import GroupRecovery
from assay.reference_broker.storage.queue_store import LogQueueFiles, LogQueueStore


def _refuses(*_args: object) -> None:
    message = "the end of the log is damaged"
    raise LogError(message)


@mutant("storage-torn-end-refused", "a queue whose log ends in the middle of a write cannot be opened")
def torn_end_refused(patch: Patch) -> None:
    patch.replace(log_opening, "cut_torn_tail", _refuses)


@mutant("storage-group-damage-refused", "a queue cannot be opened where the log of one of its groups is damaged")
def group_damage_refused(patch: Patch) -> None:
    patch.replace(GroupRecovery, "cut", _refuses)


@mutant("storage-unreadable-queue-tidied", "the description of a queue that cannot be read is removed")
def unreadable_queue_tidied(patch: Patch) -> None:
    def tidy(_result: object, self: LogQueueStore, folder: str, *_args: object) -> None:
        assert self._disk is not None
        self._disk.remove(f"{ROOT}/{folder}/{DESCRIPTION}")

    after(patch, LogQueueStore, "set_folder_aside", tidy)


@mutant("storage-group-without-a-log-is-deleted", "a group whose log is missing is taken for deleted")
def without_a_log_is_deleted(patch: Patch) -> None:
    patch.rewrite(LogQueueFiles, "groups", "+ MARK_SUFFIX)", "+ MARK_SUFFIX) and False")


@mutant("refused-write-is-confirmed", "messages whose write failed are confirmed")
def write_is_confirmed(patch: Patch) -> None:
    refusal = "self._refuse(unwritten, QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))"
    patch.rewrite(QueuePartition, "write", refusal, "call_all(confirms, None) or messages")


@mutant("refused-session-write-is-confirmed", "clients are told what could not be written of sessions")
def session_write_is_confirmed(patch: Patch) -> None:
    patch.rewrite(BrokerNode, "write_sessions", "connection.abandon_output(error, now)", "pass")
