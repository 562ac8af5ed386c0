"""Publishes and consumers that hooks decide about: their requests wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.turns import Turns
from assay.reference_broker.config import HookKind, Scope
from assay.reference_broker.core.hooks import UNCHANGED, Change, Verdict
from assay.reference_broker.queues.messages.address import engine_name, topic_of

API: Final = "api"
_OF_PUBLISH: Final = frozenset(("payload", "properties"))
_OF_TOPIC: Final = frozenset(("topic", "payload", "retain", "properties"))
_AT_ONCE: Final = 16
"""Of a request's messages, those that are asked about at a time."""


class Asked(msgspec.Struct, frozen=True):
    """A message that is asked about, or a subscription by its filter."""

    topic: str
    payload: bytes
    headers: tuple[tuple[str, str], ...]
    qos: int = 1
    retain: bool = False


async def may_publish(turns: Turns, caller: Caller, message: Asked) -> Change:
    """What becomes of a message for a topic. Raises :class:`QueueError` (NOT_ALLOWED)."""
    verdict = await _decide(turns, caller, HookKind.PUBLISH, message, _OF_TOPIC)
    if verdict.error is not None:
        raise verdict.error
    return verdict.change


async def decide_all(turns: Turns, caller: Caller, messages: Sequence[Asked | None]) -> list[Verdict]:
    """What is decided about messages for queues; nobody is asked about None."""
    verdicts: list[Verdict] = []
    for at in range(0, len(messages), _AT_ONCE):
        some = [_decide(turns, caller, HookKind.PUBLISH, each, _OF_PUBLISH) for each in messages[at : at + _AT_ONCE]]
        verdicts += await asyncio.gather(*some)
    return verdicts


async def may_subscribe(turns: Turns, caller: Caller, topic_filter: str) -> None:
    """Raises :class:`QueueError` (NOT_ALLOWED)."""
    verdict = await _decide(turns, caller, HookKind.SUBSCRIBE, Asked(topic_filter, b"", ()), frozenset())
    if verdict.error is not None:
        raise verdict.error


async def may_consume(turns: Turns, caller: Caller, queues: Iterable[str], pattern: str = "") -> None:
    """Likewise, of queues as the caller knows them."""
    for queue in queues:
        caller.queue(queue, Scope.READ, pattern)
        await may_subscribe(turns, caller, topic_of(engine_name(queue), pattern))


async def _decide(
    turns: Turns, caller: Caller, kind: HookKind, asked: Asked | None, may_change: frozenset[str]
) -> Verdict:
    driver, _ = turns.turn()
    hooks = driver.node.state.hooks
    if hooks is None or asked is None:
        return UNCHANGED
    told: asyncio.Future[Verdict] = driver.loop.create_future()

    def tell(verdict: Verdict) -> None:
        if not told.done():
            told.set_result(verdict)

    verdict = hooks.ask(
        kind,
        caller,
        API,
        asked.topic,
        tell,
        payload=asked.payload,
        qos=asked.qos,
        retain=asked.retain,
        properties=asked.headers,
        may_change=may_change,
    )
    return await told if verdict is None else verdict
