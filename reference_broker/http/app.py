"""The application: every area, and what is answered where none of them is asked."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.service import Service
from assay.reference_broker.http.areas import Area
from assay.reference_broker.http.guard import refusal
from assay.reference_broker.http.openapi import make_document
from assay.reference_broker.http.routes import (
    administration,
    bridge,
    console,
    groups,
    messages,
    metrics,
    node,
    overview,
    queues,
    schemas,
    settling,
    streams,
    topics,
    traces,
    transactions,
)
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode

AREAS: Final[tuple[Area, ...]] = (
    node.OPEN,
    node.AREA,
    queues.AREA,
    messages.AREA,
    streams.AREA,
    administration.AREA,
    topics.AREA,
    settling.AREA,
    groups.AREA,
    transactions.AREA,
    overview.AREA,
    metrics.AREA,
    traces.AREA,
    bridge.AREA,
    schemas.AREA,
    schemas.GOQUEUE,
)
_OF_STATUS: Final = {404: Code.NO_SUCH_ROUTE, 405: Code.METHOD_NOT_ALLOWED}


def create_app(service: Service | None) -> FastAPI:
    """``service`` None: for its document alone."""
    app = FastAPI(title="Assay", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.service = service
    for area in AREAS:
        app.include_router(area.router)
    app.include_router(streams.SOCKETS)
    if service is not None and service.config.console:
        app.include_router(console.ROUTER)
    app.openapi = lambda: document  # type: ignore[method-assign]  # as FastAPI has it
    app.add_exception_handler(QueueError, _on_refused)
    app.add_exception_handler(RequestError, _on_refused)
    app.add_exception_handler(SchemaError, _on_schema)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    document = make_document(app, AREAS)
    app.state.document = document
    return app


def _answer(error: QueueError | RequestError) -> Response:
    status, headers, content = refusal(error)
    response = Response(content, status)
    response.raw_headers = headers
    return response


async def _on_refused(request: Request, error: Any) -> Response:
    caller: Caller | None = getattr(request.state, "caller", None)
    return _answer(error if caller is None else caller.refusal(error))


async def _on_schema(_request: Request, error: Any) -> Response:
    codes = {404: Code.UNKNOWN_SCHEMA, 409: Code.SCHEMA_INCOMPATIBLE, 422: Code.SCHEMA_REFUSED}
    code = QueueErrorCode.LIMIT if error.code is SchemaErrorCode.LIMIT else codes.get(error.code.status)
    return _answer(RequestError(code or QueueErrorCode.STORAGE_FAILED, error.text, error.code.value))


async def _on_invalid(_request: Request, error: Any) -> Response:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return _answer(RequestError(Code.BAD_REQUEST, f"{place}: {first['msg']}"))


async def _on_http(request: Request, error: Any) -> Response:
    code = _OF_STATUS.get(error.status_code)
    if code is None:
        return _answer(RequestError(Code.BAD_REQUEST, str(error.detail)))
    response = _answer(RequestError(code, f"{request.method} {request.url.path[:200]} is not served"))
    if allow := (error.headers or {}).get("Allow"):
        response.headers["allow"] = allow
    return response


__all__ = ["AREAS", "QueueErrorCode", "create_app"]
