"""What can go wrong for who asks, in one table: a stable code, and what each protocol makes of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from assay.reference_broker.queues import QueueError, QueueErrorCode


class Code(StrEnum):
    """Why a request was refused before the engine was asked; the engine's own codes stand beside them."""

    BAD_REQUEST = "bad_request"
    """A parameter or the body is not what is expected; the text names it."""
    UNAUTHENTICATED = "unauthenticated"
    CROSS_SITE = "cross_site"
    """A web page of another site sent it."""
    NO_SUCH_ROUTE = "no_such_route"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TIMEOUT = "timeout"
    """The request did not come whole in time."""
    MISDIRECTED = "misdirected"
    """It names a host that this is not."""
    MEDIA_TYPE = "media_type"
    RATE_LIMIT = "rate_limit"
    BUSY = "busy"
    """So many requests are under way that another must come later."""
    INTERNAL = "internal"
    """A bug of the broker; its log has more."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """There is no such subject, version or schema, or it has no setting of its own."""
    UNKNOWN_TRACE = "unknown_trace"
    """There is no such trace here: it was never sampled, or it is forgotten."""
    SCHEMA_INCOMPATIBLE = "schema_incompatible"
    SCHEMA_REFUSED = "schema_refused"
    """No schema, version, level or mode that the registry takes; the text says why."""
    UNSUPPORTED = "unsupported"
    """What this broker, as it is configured, does not do."""


AnyCode = Code | QueueErrorCode


class Row(msgspec.Struct, frozen=True):
    status: int
    """Of HTTP."""
    title: str
    retry_after_s: int | None = None
    """The same request may be taken then."""


_Q = QueueErrorCode
PROBLEMS: Final[dict[AnyCode, Row]] = {
    Code.BAD_REQUEST: Row(400, "The request is not what is expected"),
    _Q.BAD_ADDRESS: Row(400, "A name or an id is malformed"),
    _Q.BAD_OPTION: Row(400, "An option has a value that cannot be honoured"),
    _Q.BAD_CURSOR: Row(400, "No place that the group could go to"),
    Code.UNAUTHENTICATED: Row(401, "Say who you are"),
    _Q.NOT_ALLOWED: Row(403, "That is not allowed"),
    Code.CROSS_SITE: Row(403, "Pages of other sites may not ask"),
    Code.NO_SUCH_ROUTE: Row(404, "There is nothing here"),
    _Q.UNKNOWN_QUEUE: Row(404, "There is no such queue"),
    _Q.NOT_PENDING: Row(404, "Message not found or already processed"),
    _Q.UNKNOWN_GROUP: Row(404, "There is no such group"),
    _Q.UNKNOWN_MEMBER: Row(404, "There is no such member"),
    _Q.UNKNOWN_PRODUCER: Row(404, "There is no such producer"),
    _Q.UNKNOWN_TRANSACTION: Row(404, "There is no such transaction"),
    Code.UNKNOWN_SCHEMA: Row(404, "There is no such subject, version or schema"),
    Code.UNKNOWN_TRACE: Row(404, "There is no such trace"),
    Code.METHOD_NOT_ALLOWED: Row(405, "That cannot be done here"),
    Code.TIMEOUT: Row(408, "The request did not come in time"),
    Code.SCHEMA_INCOMPATIBLE: Row(409, "The schema may not follow those before it"),
    _Q.EXISTS: Row(409, "There is one of that name already"),
    _Q.STALE_RECEIPT: Row(409, "The delivery was made again since"),
    _Q.AMBIGUOUS: Row(409, "Several groups hold the message"),
    _Q.STALE_GENERATION: Row(409, "The group was assigned anew"),
    _Q.NOT_IDLE: Row(409, "The delivery has not been idle for long enough"),
    _Q.IN_USE: Row(409, "It is in use"),
    _Q.LIMIT: Row(409, "There may be no more of these"),
    _Q.FENCED: Row(409, "A newer producer of that name has begun"),
    _Q.OUT_OF_SEQUENCE: Row(409, "Not the producer's next message"),
    _Q.TRANSACTION_STATE: Row(409, "The transaction has ended, or another is open"),
    _Q.TOO_LARGE: Row(413, "Too large"),
    Code.SCHEMA_REFUSED: Row(422, "The registry does not take that"),
    _Q.MISFIT: Row(422, "The message does not fit its queue's schema"),
    Code.MEDIA_TYPE: Row(415, "Another type of content is expected"),
    Code.MISDIRECTED: Row(421, "Another host is meant"),
    _Q.FULL: Row(429, "The queue is full", 1),
    _Q.QUOTA: Row(429, "A quota is used up", 1),
    Code.RATE_LIMIT: Row(429, "Too many requests", 1),
    Code.INTERNAL: Row(500, "The broker has a bug"),
    Code.UNSUPPORTED: Row(501, "Not supported here"),
    _Q.STORAGE_FAILED: Row(503, "The disk refused", 5),
    _Q.CLOSED: Row(503, "The broker is closing", 5),
    Code.BUSY: Row(503, "Too much is under way", 1),
}
"""Every code has a row; a test asks."""


class RequestError(Exception):
    """A request is refused before the engine was asked. ``text`` says what to do, for people."""

    def __init__(self, code: AnyCode, text: str, number: int = 0) -> None:
        """``number``: what clients of Confluent's registry know it by."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.number = number


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is answered in place of what was asked for (RFC 9457)."""

    title: str
    status: int
    code: str
    """Stable, for programs."""
    detail: str
    """For people."""
    error: str
    """The same, where clients of GoQueue look for it."""
    error_code: int = 0
    """Where clients of Confluent's registry look for it, as the next."""
    message: str = ""
    details: dict[str, str] = {}
    """Further names and values for programs."""


def problem_of(error: QueueError | RequestError) -> Problem:
    """An error as it is told."""
    row = PROBLEMS[error.code]
    details = dict(error.details) if isinstance(error, QueueError) else {}
    number = 0 if isinstance(error, QueueError) else error.number
    return Problem(
        title=row.title,
        status=row.status,
        code=error.code.value,
        detail=error.text,
        error=error.text,
        error_code=number,
        message=error.text if number else "",
        details=details,
    )
