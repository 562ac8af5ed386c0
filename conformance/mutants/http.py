"""Bugs of the reference broker's HTTP: queues, topics, messages; and what other bugs of HTTP are made with.

Modules are imported when a bug is planted: they need an extra, and take long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from types import ModuleType
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.queues import QueueErrorCode

Scope = MutableMapping[str, Any]
App = Callable[..., Awaitable[None]]
Change = Callable[[Scope, int, Any], tuple[int, Any]]
"""Request, status and JSON of an answer, to what is answered in their place."""
QUEUE = "/api/v1/queues/[^/]+"


def module(name: str) -> ModuleType:
    """Of the broker's HTTP."""
    return import_module(f"assay.reference_broker.http.{name}")


def routes(name: str) -> ModuleType:
    """A module of routes."""
    return module(f"routes.{name}")


class Altered:
    """An application whose answers are altered."""

    def __init__(self, app: App, method: str, path: str, change: Change) -> None:
        self._app, self._method, self._path, self._change = app, method, re.compile(path), change

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        is_meant = scope["type"] == "http" and scope["method"] in self._method.split()
        if not is_meant or not self._path.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        start: dict[str, Any] = {}
        body = b""

        async def altered(message: dict[str, Any]) -> None:
            nonlocal body
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            status, told = self._change(scope, start["status"], json.loads(body or b"null"))
            content = told if isinstance(told, bytes) else json.dumps(told).encode()
            kept = [pair for pair in start["headers"] if pair[0] != b"content-length"]
            headers = [*kept, (b"content-length", b"%d" % len(content))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, altered)


def alters(name: str, what: str, method: str, path: str, change: Change) -> None:
    """Register a bug: answers to requests of these methods (spaces between) and paths (a pattern) are altered."""

    def apply(patch: Patch) -> None:
        patch.wrap(
            module("server"), "create_app", lambda make: lambda service: Altered(make(service), method, path, change)
        )

    mutant(name, what)(apply)


def says(name: str, what: str, method: str, path: str, **members: Any) -> None:
    """Register a bug: a successful answer has these members in place of what is so."""

    def change(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
        return status, {**told, **members} if status < 300 else told

    alters(name, what, method, path, change)


def tells(name: str, what: str, method: str, path: str, change: Callable[[Any], Any]) -> None:
    """Register a bug: the JSON of a successful answer is altered."""

    def altered(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
        return status, change(told) if status < 300 else told

    alters(name, what, method, path, altered)


def answers(name: str, what: str, method: str, path: str, before: int, after: int, told: Any = None) -> None:
    """Register a bug: one status in the place of another, and perhaps another body."""

    def change(_scope: Scope, status: int, body: Any) -> tuple[int, Any]:
        if status != before:
            return status, body
        return after, body if told is None else told

    alters(name, what, method, path, change)


def skips(name: str, what: str, method: str, path: str, told: Any, status: int = 200) -> None:
    """Register a bug: nothing is done, and the answer says that it was."""

    def apply(patch: Patch) -> None:
        def make(original: Callable[[Any], App]) -> Callable[[Any], App]:
            def create_app(service: Any) -> App:
                app = original(service)

                async def skipping(scope: Scope, receive: Any, send: Any) -> None:
                    is_meant = scope["type"] == "http" and scope["method"] == method
                    if not is_meant or not re.fullmatch(path, scope["path"]):
                        await app(scope, receive, send)
                        return
                    content = json.dumps(told).encode()
                    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
                    await send({"type": "http.response.start", "status": status, "headers": headers})
                    await send({"type": "http.response.body", "body": content})

                return skipping

            return create_app

        patch.wrap(module("server"), "create_app", make)

    mutant(name, what)(apply)


def asks(name: str, what: str, method: str, path: str, change: Callable[[Scope], None]) -> None:
    """Register a bug: requests are altered before they are routed."""

    def apply(patch: Patch) -> None:
        def make(original: Callable[[Any], App]) -> Callable[[Any], App]:
            def create_app(service: Any) -> App:
                app = original(service)

                async def changed(scope: Scope, receive: Any, send: Any) -> None:
                    if scope["type"] == "http" and scope["method"] == method and re.fullmatch(path, scope["path"]):
                        change(scope)
                    await app(scope, receive, send)

                return changed

            return create_app

        patch.wrap(module("server"), "create_app", make)

    mutant(name, what)(apply)


def without_query(scope: Scope) -> None:
    """Whatever parameters there were."""
    scope["query_string"] = b""


def row(patch: Patch, code: Any, status: int) -> None:
    """Have a refusal another status."""
    problems = import_module("assay.reference_broker.api.problems")
    patch.item(problems.PROBLEMS, code, problems.Row(status, "Something is wrong"))


def hides(name: str, what: str, code: Any, status: int) -> None:
    """Register a bug: a refusal is told by another status."""
    mutant(name, what)(lambda patch: row(patch, code, status))


_Q = QueueErrorCode

# Queues

answers("http-create-is-200", "creating a queue is answered with 200", "POST", "/api/v1/queues", 201, 202)
hides("http-exists-is-500", "a name that is taken is told as a bug", _Q.EXISTS, 500)
hides("http-bad-names-are-500", "a malformed name is told as a bug", _Q.BAD_ADDRESS, 500)
skips(
    "http-changes-not-made",
    "PATCH answers, and forgets",
    "PATCH",
    QUEUE,
    {"config": {}, "settings": {"max_message_bytes": 5_000}},
)
says("http-purge-says-zero", "a purge does not say how many it took", "POST", f"{QUEUE}/purge", purged=0)
says(
    "http-stats-of-nothing", "figures of a queue are those of an empty one", "GET", f"{QUEUE}/stats", depth=0, groups=[]
)
answers("http-unknown-stats-are-zero", "an unknown queue has figures", "GET", f"{QUEUE}/stats", 404, 200, {"depth": 0})
answers(
    "http-unknown-dlq-is-empty",
    "an unknown queue has no dead letters",
    "GET",
    f"{QUEUE}/dlq",
    404,
    200,
    {"dead_letters": 0},
)
skips("http-partitions-not-added", "more partitions are promised only", "PUT", f"{QUEUE}/partitions", {"count": 3})
skips(
    "http-wrong-settings-taken",
    "a queue is said to be made before its settings are read",
    "POST",
    "/api/v1/queues",
    {},
    201,
)
asks(
    "http-list-forgets-prefix",
    "the list of queues is whole whatever prefix is asked for",
    "GET",
    "/api/v1/queues",
    without_query,
)
skips("http-delete-keeps-messages", "a queue is said to be deleted", "DELETE", QUEUE, {"deleted": "it"})


@mutant("http-slash-ends-a-name", "a name ends at its first slash, though that is escaped")
def slash_ends_a_name(patch: Patch) -> None:
    patch.wrap(module("guard"), "path_of", lambda path_of: lambda raw: path_of(re.sub(b"%2F[^/]*", b"", raw)))
