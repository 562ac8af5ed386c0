"""A request about queues, with JSON in and out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.trace.described import described

MAX_REQUEST_BYTES: Final = 64 * 1024

_T = TypeVar("_T")
Answer = Callable[[object], None]
"""Takes the result, which becomes JSON, or the :class:`QueueError` that came of it."""


class AdminRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    queue: str
    """Engine name; empty for an operation on all queues. Whether there is such a queue is the handler's to check."""
    payload: bytes
    """JSON; empty = ``{}``."""
    now: float
    answer: Answer

    def read(self, kind: type[_T]) -> _T:
        """The payload as a struct. Raises :class:`QueueError` (BAD_OPTION) saying what is wrong."""
        if len(self.payload) > MAX_REQUEST_BYTES:
            raise QueueError(QueueErrorCode.TOO_LARGE, f"a request has at most {MAX_REQUEST_BYTES} bytes")
        try:
            return msgspec.json.decode(self.payload or b"{}", type=described(kind))
        except (ValueError, RecursionError) as error:
            raise QueueError(QueueErrorCode.BAD_OPTION, f"the request is not what is expected: {error}") from error

    def once_done(self, answer: Callable[[], object]) -> Confirm:
        """Answers with what there is to tell then, or with the error."""
        return lambda error: self.answer(answer() if error is None else error)


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the requests: a field that is not known is an error."""
