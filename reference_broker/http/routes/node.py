"""The broker as a whole: whether it is there, and what it is."""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Annotated, Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.config import LogLevel, Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Call, answered

OPEN = Area("health", "Whether the broker is there; open to everybody.", prefix="")
AREA = Area("node", "The broker as a whole.")
_LOGGER = logging.getLogger("assay")
"""Of all that this project logs."""
_LOOK_S = 1.0
"""Anybody may ask whether the broker is ready: it looks no more often than so."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """``up`` or ``down``."""
    details: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it can do its work."""

    status: str
    """``ready`` or ``not_ready``."""
    mode: str
    """``nominal``; ``degraded`` while some queues do not work."""
    checks: dict[str, Check]


class Version(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    node: str
    api: str = "v1"


@OPEN.get("/health", None)
async def health() -> Health:
    """The process answers."""
    return Health(status="healthy")


@OPEN.twin("/livez", "livez")
@OPEN.get("/healthz", None)
async def healthz() -> Health:
    """The process answers."""
    return Health(status="pass")


def _look(request: Request) -> Ready:
    """What is up; kept for a moment."""
    service = request.app.state.service
    driver, now = service.turn()
    looked_at, found = getattr(request.app.state, "ready", (0.0, None))
    if found is not None and now < looked_at + _LOOK_S:
        return found  # type: ignore[no-any-return]
    engine = driver.node.engine
    failed = [queue for queue in engine.queues() if engine.has_failed(queue)] + engine.unusable_queues()
    storage = Check(status="up")
    if failed:
        storage = Check(status="down", details=f"{len(failed)} queues do not work; the log says why")
    ready = Ready(
        status="not_ready" if service.stopping else "ready",
        mode="degraded" if failed else "nominal",
        checks={"broker": Check(status="down" if service.stopping else "up"), "storage": storage},
    )
    request.app.state.ready = (now, ready)
    return ready


@OPEN.twin("/readyz", "readyz")
@OPEN.get("/ready", None, answer=Ready)
async def ready(request: Request) -> Response:
    """Whether it takes work: 503 when it does not."""
    found = _look(request)
    return answered(found, 200 if found.status == "ready" else 503)


@AREA.get("/version", Scope.READ)
async def version(call: Asked) -> Version:
    """What runs here."""
    return Version(version=metadata.version("assay-mq"), node=call.service.turn()[0].node.config.node)


class Logging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the broker's process logs: this level, and what is worse."""

    level: LogLevel


def _own_log(call: Call) -> None:
    """Raises :class:`QueueError` for who may not, :class:`RequestError` where the log is of a program around."""
    call.caller.administer("log")
    if call.service.turn()[0].read_again is None:
        raise RequestError(Code.UNSUPPORTED, "the program that this broker is part of has its own log")


@AREA.get("/log", Scope.ADMIN, errors=(Code.UNSUPPORTED,))
async def log_level(call: Asked) -> Logging:
    """What is logged now."""
    _own_log(call)
    effective = logging.getLevelName(_LOGGER.getEffectiveLevel()).lower()
    return Logging(level=LogLevel(effective) if effective in list(LogLevel) else LogLevel.ERROR)


@AREA.put("/log", Scope.ADMIN, errors=(Code.UNSUPPORTED,))
async def set_log_level(call: Asked, wanted: Body[Logging]) -> Logging:
    """Log more or less from now on, until the process ends."""
    _own_log(call)
    _LOGGER.setLevel(wanted.level.upper())
    return wanted


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what may be asked for."""

    username: str | None
    tenant: str | None
    scopes: list[Scope]
    """What it may do at all; access rules may allow less."""


@AREA.get("/whoami", Scope.READ)
async def whoami(call: Asked) -> Identity:
    """Who the broker takes the caller for."""
    caller = call.caller
    never = caller.tenant is not None or (caller.grants is None and not caller.may_administer)
    return Identity(
        username=caller.username,
        tenant=None if caller.tenant is None else caller.tenant.name,
        scopes=sorted(caller.scopes - {Scope.ADMIN} if never else caller.scopes),
    )


@AREA.get("/openapi.json", Scope.READ, answer=Annotated[dict[str, Any], msgspec.Meta(description="The document")])
async def openapi(call: Asked) -> Any:
    """This document."""
    return call.request.app.state.document
