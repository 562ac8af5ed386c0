"""The console's files. They are the same for everybody: who may see what is asked by the page, of ``/api/v1``."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.http.guard import CONSOLE

ROUTER = APIRouter(prefix=CONSOLE, include_in_schema=False)
_PAGE: Final = "index.html"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}
"""No script but its own files, no markup made of text, in no frame of others."""


class _File(msgspec.Struct, frozen=True):
    content: bytes
    headers: dict[str, str]


@cache
def _files() -> dict[str, _File]:
    """By name; read once."""
    found: dict[str, _File] = {}
    for path in files("assay.reference_broker.http.console").iterdir():
        kind = _KINDS.get(f".{path.name.rpartition('.')[2]}")
        if kind is not None:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path.name] = _File(content, {**HEADERS, "content-type": kind, "etag": tag})
    return found


@ROUTER.api_route("", methods=["GET", "HEAD"])
async def console() -> Response:
    """Where the page is; relative, so that a proxy may serve the broker below a path."""
    return RedirectResponse("console/", 308)


@ROUTER.api_route("/", methods=["GET", "HEAD"])
async def console_page(request: Request) -> Response:
    """The page."""
    return await console_file(request, _PAGE)


@ROUTER.api_route("/{name}", methods=["GET", "HEAD"])
async def console_file(request: Request, name: str) -> Response:
    """One of its files."""
    found = _files().get(name)
    if found is None:
        raise RequestError(Code.NO_SUCH_ROUTE, f"the console has no file {name[:80]!r}")
    if request.headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers=found.headers)
    return Response(found.content, headers=found.headers)
