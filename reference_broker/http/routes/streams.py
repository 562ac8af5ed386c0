"""Messages as they come: server-sent events and WebSocket, for browsers and whoever does not wish to poll."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, WebSocket
from fastapi.responses import Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect, WebSocketState

from assay.reference_broker.api.asking import may_subscribe
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.consumers import Member, Taken
from assay.reference_broker.api.problems import Code, Problem, RequestError, problem_of
from assay.reference_broker.api.service import Service
from assay.reference_broker.api.watching import Watcher
from assay.reference_broker.config import Scope
from assay.reference_broker.http import guard
from assay.reference_broker.http.areas import PREFIX, SLASH, Area, Asked, Limit, Name
from assay.reference_broker.http.routes.messages import SettleAsked, settle, told_of
from assay.reference_broker.http.shapes import Received, text_of
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.groups.subscribe_options import AckMode, SubscribeOptions
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import TopicError, validate_filter
from assay.reference_broker.trace.described import described

AREA = Area("streams", "Messages as they come.")
SOCKETS = APIRouter(prefix=PREFIX)
_Q = QueueErrorCode
_QUIET_S: Final = 15.0
"""A stream says that it is there at least so often; by then it has ended, too, when users or rules were read again."""
_MOST_AT_ONCE: Final = 100
_GOING_AWAY: Final = 1001
_ENDS_OF_LINES: Final = str.maketrans("\r\n", "  ")
"""Of an event stream: names of queues may have them, and would be told as other fields of an event."""


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the broker says over a WebSocket: one of these."""

    message: Received | None = None
    settled: int | None = None
    problem: Problem | None = None


class Heard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client says: so many more messages it takes, or how some are settled."""

    credit: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    settle: SettleAsked | None = None


async def _joined(
    service: Service, caller: Caller, queue: str, group: str, consumer: str, pattern: str, *, auto_ack: bool, most: int
) -> Member:
    """A consumer that is there as long as its stream. Raises :class:`QueueError`."""
    caller.queue(queue, Scope.READ, pattern)
    options = SubscribeOptions(ack_mode=AckMode.AUTO if auto_ack else AckMode.EXPLICIT, prefetch=most, receipts=True)
    if service.members.known(caller, queue, group, consumer, pattern) is not None:
        raise QueueError(_Q.IN_USE, f"there is a consumer {consumer[:80]!r} in group {group[:80]!r} already")
    return await service.members.one_of(caller, queue, group, consumer, pattern, options)


class Stream(StreamingResponse):
    """Server-sent events, and what is there as long as they are: taken before the answer begins, so that who comes to
    nothing is told, and given back even if its client has gone before the first of them."""

    def __init__(self, events: AsyncIterator[bytes], opened: contextlib.ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._opened = opened

    async def __call__(self, scope: guard.Scope, receive: guard.Receive, send: guard.Send) -> None:
        with self._opened:
            await super().__call__(scope, receive, send)


def _opened(service: Service, close: Callable[[], None]) -> contextlib.ExitStack:
    """A place among those who wait for messages, and what is done at the end. Raises :class:`RequestError` (BUSY)."""
    with contextlib.ExitStack() as stack:
        stack.callback(close)
        stack.enter_context(service.waiting.take())
        stack.enter_context(service.requests.leave())
        return stack.pop_all()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


@AREA.get(
    "/queues/{queue}/stream",
    Scope.READ,
    answer=str,
    errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.IN_USE, _Q.QUOTA),
    media_type="text/event-stream",
)
async def stream_messages(
    call: Asked,
    queue: Name,
    group: Annotated[str, Query(min_length=1, max_length=1_024)],
    consumer: Annotated[str, Query(max_length=256)] = "stream",
    pattern: Annotated[str, Query(max_length=1_024)] = "",
    prefetch: Limit = 100,
    auto_ack: bool = False,
) -> Response:
    """Server-sent events, each a message as JSON; at most ``prefetch`` of them unsettled. The consumer leaves with its
    stream."""
    service, caller = call.service, call.caller
    member = await _joined(service, caller, queue, group, consumer, pattern, auto_ack=auto_ack, most=prefetch)

    node = service.turn()[0].node
    reloads = node.reloads  # whoever is still allowed then comes again

    async def events() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        while not service.stopping and node.reloads == reloads:
            taken = await member.poll(_MOST_AT_ONCE, _QUIET_S, _never, counted=False)
            yield b"".join(_event(caller, each) for each in taken) or b": here\n\n"

    return Stream(events(), _opened(service, partial(service.members.remove, member)))


def _event(caller: Caller, taken: Taken) -> bytes:
    (message,) = told_of(caller, [taken]).messages
    return b"id: %s\nevent: message\ndata: %s\n\n" % (
        message.message_id.translate(_ENDS_OF_LINES).encode(),
        msgspec.json.encode(message),
    )


class Watched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a topic, or only how many were missed."""

    topic: str = ""
    payload: str | None = None
    """Text; a payload that is none is in ``payload_base64``."""
    payload_base64: str | None = None
    qos: int = 0
    """As it was published."""
    retain: bool = False
    headers: dict[str, str] = {}
    """User properties."""
    content_type: str | None = None
    missed: int = 0
    """Messages before this one that were not told, since too many waited for their reader."""


@AREA.get("/subscriptions/{topic_filter}/stream", Scope.READ, answer=str, media_type="text/event-stream")
async def watch_topics(call: Asked, topic_filter: Name) -> Response:
    """Server-sent events, each a message of an ordinary topic as JSON, from now on; nothing is kept for who watches."""
    service, caller = call.service, call.caller
    try:
        validate_filter(topic_filter)
    except TopicError as error:
        raise QueueError(_Q.BAD_ADDRESS, str(error)) from error
    if topic_filter.startswith("$"):
        raise QueueError(_Q.NOT_ALLOWED, "filters that start with '$' are the broker's own; queues have streams")
    caller.check_topic(topic_filter, Scope.READ)
    await may_subscribe(service, caller, topic_filter)
    node = service.turn()[0].node
    reloads = node.reloads  # whoever is still allowed then comes again

    watcher = Watcher(service.broker, topic_filter)

    async def events() -> AsyncIterator[bytes]:
        yield b": here\n\n"
        with service.until_stopped(watcher.wake):
            while not service.stopping and node.reloads == reloads:
                taken, missed = await watcher.take(_MOST_AT_ONCE, _QUIET_S)
                yield b"".join(_watched(taken, missed)) or b": here\n\n"

    return Stream(events(), _opened(service, watcher.end))


def _watched(taken: list[Message], missed: int) -> Iterator[bytes]:
    if missed and not taken:
        yield b"event: message\ndata: %s\n\n" % msgspec.json.encode(Watched(missed=missed))
    for message in taken:
        text, encoded = text_of(message.payload)
        told = Watched(
            topic=message.topic,
            payload=text,
            payload_base64=encoded,
            qos=message.qos,
            retain=message.retain,
            headers=dict(message.user_properties),
            content_type=message.content_type,
            missed=missed,
        )
        missed = 0
        yield b"event: message\ndata: %s\n\n" % msgspec.json.encode(told)


@SOCKETS.websocket("/queues/{queue}/socket")
async def socket(
    websocket: WebSocket,
    queue: str,
    group: str,
    consumer: str = "socket",
    pattern: str = "",
    auto_ack: bool = False,
) -> None:
    """Messages over a WebSocket, as many as the client has given credit for; it settles them there, too."""
    service: Service = websocket.app.state.service
    caller: Caller = websocket.state.caller
    caller.require(Scope.READ)
    queue = queue.replace(SLASH, "/")
    member = await _joined(service, caller, queue, group, consumer, pattern, auto_ack=auto_ack, most=0)
    try:
        await websocket.accept()
        with service.waiting.take(), service.requests.leave():
            await _Socket(websocket, service, caller, queue, member).run()
    except WebSocketDisconnect:
        pass
    finally:
        service.members.remove(member)


class _Socket:
    """Both directions of one WebSocket."""

    def __init__(self, websocket: WebSocket, service: Service, caller: Caller, queue: str, member: Member) -> None:
        self._websocket = websocket
        self._service = service
        self._caller = caller
        self._queue = queue
        self._member = member
        self._credit = 0
        self._has_credit = asyncio.Event()

    async def run(self) -> None:
        """Until the client goes, or the broker stops."""
        with self._service.until_stopped(self._has_credit.set):
            tasks = [asyncio.ensure_future(self._hear()), asyncio.ensure_future(self._deliver())]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
        if self._websocket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError):
                await self._websocket.close(_GOING_AWAY)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _say(self, said: Said) -> None:
        await self._websocket.send_text(msgspec.json.encode(said).decode())

    async def _hear(self) -> None:
        while True:
            text = await self._websocket.receive_text()
            try:
                heard = msgspec.json.decode(text, type=described(Heard))
                if heard.credit is not None:
                    self._credit += heard.credit
                    self._has_credit.set()
                if heard.settle is not None:
                    await self._say(Said(settled=await settle(self._service, self._caller, self._queue, heard.settle)))
            except (ValueError, RecursionError) as error:
                await self._say(Said(problem=problem_of(RequestError(Code.BAD_REQUEST, str(error)))))
            except (QueueError, RequestError) as error:
                await self._say(Said(problem=problem_of(self._caller.refusal(error))))

    async def _deliver(self) -> None:
        node = self._service.turn()[0].node
        reloads = node.reloads
        while not self._service.stopping and node.reloads == reloads:
            self._has_credit.clear()
            if not self._credit:
                try:
                    async with asyncio.timeout(_QUIET_S):
                        await self._has_credit.wait()
                except TimeoutError:
                    self._member.heartbeat()
                continue
            most = min(self._credit, _MOST_AT_ONCE)
            for each in await self._member.poll(most, _QUIET_S, _never, counted=False):
                self._credit -= 1
                (message,) = told_of(self._caller, [each]).messages
                await self._say(Said(message=message))
