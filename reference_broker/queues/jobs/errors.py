"""What can go wrong in a queue. Protocols map the code to their own reason codes."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Self

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_passing(error: OSError | None) -> bool:
    """The system had no means for the call, which says nothing of the disk: it counts as not tried."""
    return error is not None and error.errno in _PASSING


def may_pass(error: BaseException) -> bool:
    """Whether what failed at opening may be tried again while the broker runs: there was no room, no means for the
    call, or the disk failed it. After a failed sync nobody knows what is on disk, whatever is read."""
    if isinstance(error, LogError) and error.sticky:
        return False
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and (is_passing(cause) or cause.errno in (*_NO_ROOM, errno.EIO))


def raise_if_not_tried(error: BaseException) -> None:
    """At opening: what could not be read since the system had no means for it is there, so the broker must not start
    without it. Raises it again."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and is_passing(cause):
        raise error


def reason_of(error: OSError) -> str:
    """What the system said, with the name of its number."""
    name = errno.errorcode.get(error.errno or 0)
    return str(error.strerror or error) if name is None else f"{error.strerror or error} [{name}]"


class QueueErrorCode(StrEnum):
    """Why the engine refused or failed something."""

    BAD_ADDRESS = "bad_address"
    """The topic, pattern, message id or option is malformed."""
    BAD_OPTION = "bad_option"
    """An option of a publish, such as a delay or a priority, has a value that cannot be honoured."""
    UNKNOWN_QUEUE = "unknown_queue"
    EXISTS = "exists"
    """There is a queue of that name, configured otherwise."""
    TOO_LARGE = "too_large"
    """The message is larger than the queue's ``max_message_bytes``."""
    MISFIT = "misfit"
    """The message does not fit the schema of its queue."""
    FULL = "full"
    """The queue holds ``max_depth`` messages."""
    QUOTA = "quota"
    """A quota of the tenant is used up."""
    NOT_PENDING = "not_pending"
    """Nothing of that id is unsettled for that consumer: settled before, timed out meanwhile, or never delivered."""
    STALE_RECEIPT = "stale_receipt"
    """The receipt is of an earlier delivery of that message; it timed out or was given back since."""
    AMBIGUOUS = "ambiguous"
    """Several groups hold that message unsettled; the settlement must name its group."""
    UNKNOWN_GROUP = "unknown_group"
    UNKNOWN_MEMBER = "unknown_member"
    """The group has no such consumer: it never joined, left, or was removed since it sent no heartbeats."""
    STALE_GENERATION = "stale_generation"
    """The consumers of the group changed since; what was decided on the generation named does not hold any more."""
    BAD_CURSOR = "bad_cursor"
    """A commit lies below what is committed, or beyond what was delivered."""
    NOT_IDLE = "not_idle"
    """The delivery has not been with its consumer for as long as a claim asks."""
    IN_USE = "in_use"
    """It cannot be deleted while somebody uses it."""
    LIMIT = "limit"
    """A limit on queues, groups or consumers is reached."""
    NOT_ALLOWED = "not_allowed"
    """The client may not do that, whatever the state."""
    UNKNOWN_PRODUCER = "unknown_producer"
    """No producer of that id was initialised, or it was forgotten."""
    FENCED = "fenced"
    """A newer epoch of that producer exists: this one is a zombie."""
    OUT_OF_SEQUENCE = "out_of_sequence"
    """Neither the next sequence number of that producer and partition nor one of the last ones again."""
    UNKNOWN_TRANSACTION = "unknown_transaction"
    """No such transaction is known: it never began, or it was aborted when the broker stopped."""
    TRANSACTION_STATE = "transaction_state"
    """The transaction has ended, or another of the producer is open; the text says what happened to it."""
    STORAGE_FAILED = "storage_failed"
    """The disk refused a write or a sync."""
    CLOSED = "closed"
    """The engine is closing or closed."""


class QueueError(Exception):
    """A queue operation failed. ``text`` says what to do, for people."""

    def __init__(self, code: QueueErrorCode, text: str, details: tuple[tuple[str, str], ...] = ()) -> None:
        """``details``: names and values for programs, where the code does not say all."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.details = details

    def bare(self) -> Self:
        """Without the calls that raised it, for who keeps it: they hold the connection, and whatever holds this."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class LogError(Exception):
    """A log cannot do what was asked (raised by implementations of the store protocols).

    ``sticky``: the log refuses everything until it is reopened, since after a failed sync nobody knows what is on disk.
    """

    def __init__(self, text: str, *, sticky: bool = False) -> None:
        super().__init__(text)
        self.sticky = sticky


class QueueOpenError(Exception):
    """A stored queue cannot be opened: its files are of another format, or contradict the configuration."""
