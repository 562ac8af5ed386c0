"""What is left to any server that speaks HTTP, and to any broker behind it: no case may fail because of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.http import module

Send = Callable[[dict[str, Any]], Awaitable[None]]
PIECE_BYTES = 7


def _sends(name: str, what: str, freedom: str, make: Callable[[Send], Send]) -> None:
    """Register a variation: answers go out in another way."""

    def apply(patch: Patch) -> None:
        def wrap(original: Any) -> Any:
            async def call(self: Any, scope: Any, receive: Any, send: Send) -> None:
                await original(self, scope, receive, make(send) if scope["type"] == "http" else send)

            return call

        patch.wrap(module("guard").Guard, "__call__", wrap)

    variation(name, what, freedom=freedom)(apply)


def _late(send: Send) -> Send:
    async def later(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await asyncio.sleep(0.05)
        await send(message)

    return later


def _in_pieces(send: Send) -> Send:
    async def pieces(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message["headers"] if pair[0].lower() != b"content-length"]
            await send({**message, "headers": kept})
            return
        body = message.get("body", b"")
        size = max(PIECE_BYTES, len(body) // 20)
        for at in range(0, len(body), size):
            await send({"type": message["type"], "body": body[at : at + size], "more_body": True})
        await send({"type": message["type"], "body": b"", "more_body": message.get("more_body", False)})

    return pieces


def _closes(send: Send) -> Send:
    async def closing(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close"), (b"x-more", b"1")]}
        await send(message)

    return closing


def _other_words(send: Send) -> Send:
    """Of JSON in one piece."""
    start: dict[str, Any] = {}

    async def reworded(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        content = message.get("body", b"")
        is_json = any(b"json" in value for name, value in start.get("headers", ()) if name.lower() == b"content-type")
        if start and is_json and content and not message.get("more_body"):
            told = json.loads(content)
            if isinstance(told, dict):
                words = {"title", "detail", "error", "message"} if start["status"] >= 400 else set()
                told = {name: "in other words" if name in words and value else value for name, value in told.items()}
                told = {"one_more": [1, None], **dict(reversed(told.items()))}
            content = json.dumps(told, indent=1, ensure_ascii=True).encode()
            kept = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
            start["headers"] = [*kept, (b"content-length", b"%d" % len(content))]
        if start:
            await send(dict(start))
            start.clear()
        await send({**message, "body": content})

    return reworded


_sends("any-http-late", "every answer takes a while", "no rule says how soon a server answers", _late)
_sends("any-http-in-pieces", "answers come in chunks", "RFC 9112, 7.1: any answer may be chunked", _in_pieces)
_sends(
    "any-http-closes",
    "every answer ends its connection",
    "RFC 9112, 9.6: a server may close a connection after any answer",
    _closes,
)
_sends(
    "any-http-other-words",
    "texts for people, the order of members and further members are others",
    "RFC 8259, 4; RFC 9457, 3: members have no order, texts are for people, and there may be more",
    _other_words,
)
