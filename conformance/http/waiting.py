"""A consumer that waits for a message, by one request after the other: servers end each in its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from assay.conformance.http.client import Answer, HttpClient

_SOON = 0.95
"""Of the time that it asked to wait, before which no request is answered in vain: clocks differ."""


class LongPoll:
    """Made by ``HttpContext.long_poll``. Requests that wait until one is answered otherwise than in vain."""

    def __init__(self, client: HttpClient, path: str, asked: dict[str, Any]) -> None:
        self._client, self._path, self._asked = client, path, asked
        self._ended = 0
        self._is_published = False
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> Answer:
        clock = asyncio.get_running_loop().time
        while True:
            knows, began = self._is_published, clock()
            answer = await self._client.post(self._path, self._asked)
            if answer.status != 200 or answer.at("messages") or knows:
                return answer
            if clock() - began < _SOON * self._asked["wait_s"]:
                return answer
            self._ended += 1

    async def beside(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to what is asked while a request waits."""
        while True:
            ended = self._ended
            answer = await ask()
            if self._ended == ended or self._task.done():
                return answer

    async def answer(self) -> Answer:
        """Of the request that gets what was published: one which is sent from now on must not wait in vain."""
        self._is_published = True
        return await self._task

    def cancel(self) -> None:
        self._task.cancel()
