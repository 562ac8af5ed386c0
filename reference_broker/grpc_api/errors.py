"""What a refusal is over gRPC: a status, with details that programs read."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from assay.reference_broker.api.problems import PROBLEMS, AnyCode, Code, RequestError, problem_of
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.queues import QueueError, QueueErrorCode

DOMAIN: Final = "assay"
DETAILS: Final = "grpc-status-details-bin"
_S: Final = grpc.StatusCode
_Q: Final = QueueErrorCode
_OF_HTTP: Final[dict[int, Any]] = {
    400: _S.INVALID_ARGUMENT,
    401: _S.UNAUTHENTICATED,
    403: _S.PERMISSION_DENIED,
    404: _S.NOT_FOUND,
    405: _S.UNIMPLEMENTED,
    408: _S.DEADLINE_EXCEEDED,
    409: _S.FAILED_PRECONDITION,
    413: _S.INVALID_ARGUMENT,
    415: _S.INVALID_ARGUMENT,
    421: _S.INVALID_ARGUMENT,
    422: _S.INVALID_ARGUMENT,
    429: _S.RESOURCE_EXHAUSTED,
    500: _S.INTERNAL,
    501: _S.UNIMPLEMENTED,
    503: _S.UNAVAILABLE,
}
_OTHERWISE: Final[dict[AnyCode, Any]] = {
    _Q.EXISTS: _S.ALREADY_EXISTS,
    _Q.LIMIT: _S.RESOURCE_EXHAUSTED,
    _Q.STALE_GENERATION: _S.ABORTED,
    _Q.FENCED: _S.ABORTED,
    _Q.OUT_OF_SEQUENCE: _S.ABORTED,
    _Q.BAD_CURSOR: _S.OUT_OF_RANGE,
    Code.BUSY: _S.RESOURCE_EXHAUSTED,
}


def status_of(code: AnyCode) -> Any:
    """The status of a problem: what HTTP makes of it, but where gRPC is more exact."""
    return _OTHERWISE.get(code) or _OF_HTTP.get(PROBLEMS[code].status, _S.UNKNOWN)


def told(error: QueueError | RequestError, *, is_goqueue: bool = False) -> tuple[Any, str, bytes]:
    """Status, text, and a serialized ``google.rpc.Status``: an ``ErrorInfo`` with the code in capitals as its reason,
    and a ``RetryInfo`` where the same request may be taken later. For GoQueue's clients, its ``Error``, too."""
    problem = problem_of(error)
    status = status_of(error.code)
    packed = [
        error_details_pb2.ErrorInfo(reason=problem.code.upper(), domain=DOMAIN, metadata=dict(problem.details)),
    ]
    if (wait_s := PROBLEMS[error.code].retry_after_s) is not None:
        packed.append(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=wait_s)))
    whole = status_pb2.Status(code=status.value[0], message=problem.detail)
    for detail in packed:
        held = any_pb2.Any()
        held.Pack(detail)
        whole.details.append(held)
    if is_goqueue:
        own = goqueue_error(error)
        whole.details.add(type_url=f"type.googleapis.com/{own.DESCRIPTOR.full_name}", value=own.SerializeToString())
    return status, problem.detail, whole.SerializeToString()


_GOQUEUE: Final[dict[AnyCode, int]] = {
    _Q.UNKNOWN_QUEUE: 100,
    _Q.EXISTS: 101,
    _Q.BAD_ADDRESS: 103,
    _Q.UNKNOWN_GROUP: 200,
    _Q.UNKNOWN_MEMBER: 201,
    _Q.STALE_GENERATION: 203,
    _Q.TOO_LARGE: 300,
    _Q.BAD_OPTION: 301,
    _Q.MISFIT: 301,
    _Q.OUT_OF_SEQUENCE: 301,
    Code.BAD_REQUEST: 301,
    _Q.STALE_RECEIPT: 303,
    _Q.NOT_PENDING: 304,
    _Q.UNKNOWN_TRANSACTION: 400,
    _Q.UNKNOWN_PRODUCER: 402,
    _Q.FENCED: 402,
    _Q.TRANSACTION_STATE: 403,
    _Q.STORAGE_FAILED: 502,
    _Q.CLOSED: 502,
    Code.BUSY: 502,
}
"""Numbers of ``goqueue.v1.ErrorCode``; what has none there is 0, with the code in ``details``."""
_RECEIPT_INVALID: Final = 302


def goqueue_error(error: QueueError | RequestError, *, about_receipt: bool = False) -> Any:
    """As GoQueue's ``Error``."""
    problem = problem_of(error)
    is_receipt = error.code is _Q.BAD_ADDRESS and (about_receipt or "receipt" in problem.detail)
    made = schema.goqueue().Error(
        code=_RECEIPT_INVALID if is_receipt else _GOQUEUE.get(error.code, 0),
        message=problem.detail,
        details={**problem.details, "code": problem.code},
    )
    if (wait_s := PROBLEMS[error.code].retry_after_s) is not None:
        made.retry_after.seconds = wait_s
    return made
