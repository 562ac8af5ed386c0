"""How a route is declared: what it takes, answers and may refuse, by types, and the scope that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import AfterValidator

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.problems import AnyCode, Code, RequestError
from assay.reference_broker.api.service import Service
from assay.reference_broker.config import Scope
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.trace.described import described

PREFIX: Final = "/api/v1"
JSON: Final = "application/json"
SLASH: Final = "\0"
"""Stands for a slash within a segment of a path, which was sent as %2F. No name has a NUL."""
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Awaitable[Any]])
_T = TypeVar("_T")

Name = Annotated[str, AfterValidator(lambda text: text.replace(SLASH, "/")), Path(min_length=1, max_length=1_024)]
"""A segment of a path that names something; a slash within it is sent as %2F."""
Limit = Annotated[int, Query(ge=1, le=1_000)]
"""The most that is listed in one answer."""


class Call:
    """One request: who asks, and whom to ask."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.caller: Caller = request.state.caller
        self.service: Service = request.app.state.service


Asked = Annotated[Call, Depends(Call)]


_BODY: Final = object()
Body = Annotated[_T, _BODY]
"""A parameter that is the body of the request, as a struct of a kind."""


def _read_as(kind: Any) -> Any:
    async def read(request: Request) -> Any:
        content = await request.body()
        try:
            return msgspec.json.decode(content or b"{}", type=described(kind))
        except (ValueError, RecursionError) as error:
            raise RequestError(Code.BAD_REQUEST, f"the body is not what is expected: {error}") from error

    return Depends(read)


def answered(result: object, status: int = 200, retry_after_s: int | None = None) -> Response:
    """A struct as JSON; ``retry_after_s``: when the same may be asked again."""
    headers = None if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return Response(msgspec.json.encode(result), status, headers, media_type=JSON)


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What a route says of itself beside its parameters."""

    method: str
    path: str
    answer: Any
    """Type of what it answers."""
    body: Any
    """Type of its body, or None."""
    errors: tuple[AnyCode, ...]
    scope: Scope | None
    """None = open to everybody."""
    status: int
    media_type: str
    also: tuple[int, ...]
    """Other statuses that it answers with the same type."""


class Area:
    """Routes about one thing."""

    def __init__(self, tag: str, about: str, *, prefix: str = PREFIX) -> None:
        """``about``: a sentence for the document."""
        self.tag = tag
        self.about = about
        self.router = APIRouter(prefix=prefix, tags=[tag])
        self.declared: dict[str, Declared] = {}
        """By operation id: the name of the function that serves it."""

    def add(
        self,
        method: str,
        path: str,
        scope: Scope | None,
        *,
        answer: Any = None,
        body: Any = None,
        errors: Sequence[AnyCode] = (),
        status: int = 200,
        media_type: str = JSON,
        also: Sequence[int] = (),
    ) -> Callable[[_Endpoint], _Endpoint]:
        """Declare a route; the coroutine gives what is answered, of the type that it says, or a response.

        ``answer``: its type, where the coroutine does not say it. ``body``: likewise, of one without a parameter for
        it. ``errors``: what it may refuse with beside what any may. ``also``: statuses beside ``status`` with such an
        answer.
        """

        def declare(endpoint: _Endpoint) -> _Endpoint:
            typed, asked = _typed(endpoint)
            declared = Declared(
                method=method,
                path=path,
                answer=typed.return_annotation if answer is None else answer,
                body=asked if body is None else body,
                errors=tuple(errors),
                scope=scope,
                status=status,
                media_type=media_type,
                also=tuple(also),
            )
            vars(endpoint)["declared"] = declared
            self._route(endpoint, declared, path, endpoint.__name__)
            return endpoint

        return declare

    def twin(self, path: str, name: str) -> Callable[[_Endpoint], _Endpoint]:
        """Declare that what is declared below is served at another path as well, as the operation ``name``."""

        def declare(endpoint: _Endpoint) -> _Endpoint:
            declared: Declared = vars(endpoint)["declared"]
            self._route(endpoint, declared, path, name, f"As ``{declared.method} {declared.path}``.")
            return endpoint

        return declare

    def _route(
        self, endpoint: Callable[..., Awaitable[Any]], declared: Declared, path: str, name: str, about: str = ""
    ) -> None:
        assert name not in self.declared, name
        self.declared[name] = declared

        @wraps(endpoint)
        async def serve(*args: Any, **kwargs: Any) -> Any:
            result = await endpoint(*args, **kwargs)
            return result if isinstance(result, Response) else answered(result, declared.status)

        serve.__signature__ = _typed(endpoint)[0]  # type: ignore[attr-defined]
        self.router.add_api_route(
            path,
            serve,
            methods=[declared.method],
            response_model=None,
            status_code=declared.status,
            name=name,
            description=about or None,
            operation_id=name,
            dependencies=[] if declared.scope is None else [Depends(_needs(declared.scope))],
        )

    def get(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        """See :meth:`add`."""
        return self.add("GET", path, scope, **more)

    def post(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        """See :meth:`add`."""
        return self.add("POST", path, scope, **more)

    def delete(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        """See :meth:`add`."""
        return self.add("DELETE", path, scope, **more)

    def put(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        """See :meth:`add`."""
        return self.add("PUT", path, scope, **more)

    def patch(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        """See :meth:`add`."""
        return self.add("PATCH", path, scope, **more)


def _typed(endpoint: Callable[..., Any]) -> tuple[Signature, Any]:
    """Its signature as FastAPI is to read it, and the type of its body, or None."""
    hints, body = get_type_hints(endpoint, include_extras=True), None
    for name, hint in hints.items():
        if _BODY in getattr(hint, "__metadata__", ()):
            body = hint.__origin__
            hints[name] = Annotated[body, _read_as(body)]
    parameters = signature(endpoint).parameters.values()
    return Signature(
        [each.replace(annotation=hints[each.name]) for each in parameters], return_annotation=hints["return"]
    ), body


def _needs(scope: Scope) -> Callable[[Request], Awaitable[None]]:
    async def check(request: Request) -> None:
        request.state.caller.require(scope)

    return check


COMMON_ERRORS: Final[tuple[AnyCode, ...]] = (
    Code.BAD_REQUEST,
    QueueErrorCode.BAD_ADDRESS,
    QueueErrorCode.BAD_OPTION,
    Code.UNAUTHENTICATED,
    QueueErrorCode.NOT_ALLOWED,
    Code.CROSS_SITE,
    Code.TIMEOUT,
    QueueErrorCode.TOO_LARGE,
    Code.MEDIA_TYPE,
    Code.MISDIRECTED,
    Code.RATE_LIMIT,
    Code.INTERNAL,
    Code.BUSY,
    QueueErrorCode.CLOSED,
)
"""Any route may refuse with these."""
