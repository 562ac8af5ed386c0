"""What every call passes: who asks, what they may, how much is under way, and what a failure is told as."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import grpc

from assay.reference_broker.api.callers import Arrival, Caller, Credentials, read_authorization
from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.service import Service
from assay.reference_broker.config import GrpcConfig, Scope
from assay.reference_broker.grpc_api.errors import DETAILS, told
from assay.reference_broker.queues import QueueError

CLIENT_ID: Final = "x-client-id"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Call:
    """One call: who asks, and whom to ask."""

    def __init__(self, service: Service, config: GrpcConfig, caller: Caller, context: Any) -> None:
        self.service = service
        self.config = config
        self.caller = caller
        self.context = context
        """The library's."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Whoever waits for its client within the block keeps no other call out."""
        with self.service.waiting.take(), self.service.requests.leave():
            yield

    async def read(self) -> Any | None:
        """The next message of the client; None when it has sent its last."""
        message = await self.context.read()
        return None if message is grpc.aio.EOF else message

    async def messages(self) -> AsyncIterator[Any]:
        """What the client sends, as it comes. Who sends slowly keeps nobody out."""
        while True:
            with self.aside():
                message = await self.read()
            if message is None:
                return
            yield message

    async def write(self, message: Any) -> None:
        """Send a message of a stream: returns when the client has room for more. Who reads slowly keeps nobody out."""
        with self.aside():
            await self.context.write(message)

    def check_goes_on(self) -> None:
        """Raises :class:`RequestError` when the broker stops."""
        if self.service.stopping:
            raise RequestError(Code.BUSY, "the broker is stopping")


class Method:
    """How one method is served: a coroutine that answers, or one that writes to a stream."""

    def __init__(self, function: Callable[..., Awaitable[Any]], scope: Scope | None) -> None:
        self.function = function
        self.scope = scope
        """None = open to everybody."""


def served(scope: Scope | None) -> Callable[[_Function], _Function]:
    """Mark a function that serves the method of its name, for callers with a scope."""

    def mark(function: _Function) -> _Function:
        function.method = Method(function, scope)  # type: ignore[attr-defined]
        return function

    return mark


class Guard:
    """Of one listener."""

    def __init__(self, service: Service, config: GrpcConfig, *, loopback: bool, named: bool) -> None:
        """``named``: callers are who their certificates say."""
        self._service = service
        self._config = config
        self._loopback = loopback
        self._named = named

    def handler(self, method: Method, kind: Any, request: Any, response: Any) -> Any:
        """Serve a method; ``kind``: its descriptor, ``request`` and ``response``: classes of its messages.

        A stream on both sides whatever it is, which looks the same on the wire: nothing is read before it is known who
        sends it.
        """

        is_goqueue = kind.full_name.startswith("goqueue.")

        async def serve(_requests: object, context: Any) -> None:
            call: Call | None = None
            try:
                with self._service.requests.take():
                    call = await self._admit(method.scope, context)
                    asked = call if kind.client_streaming else await self._only_message(call)
                    answer = await method.function(call, asked)
                    if not kind.server_streaming:
                        await self._answer(call, answer)
            except (RequestError, QueueError) as error:
                refused = error if call is None else call.caller.refusal(error)
                await refuse(context, refused, is_goqueue=is_goqueue)
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError:
                # The client has gone, and the library cannot write to it.
                return
            except Exception:
                await refuse(context, self._service.tell_of_bug("a call"))

        return grpc.stream_stream_rpc_method_handler(
            serve, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    async def _answer(self, call: Call, answer: Any) -> None:
        try:
            async with asyncio.timeout(self._service.config.body_timeout_s):
                await call.write(answer)
        except TimeoutError:
            raise RequestError(Code.TIMEOUT, "the client did not take the answer in time") from None

    async def _only_message(self, call: Call) -> Any:
        try:
            async with asyncio.timeout(self._service.config.body_timeout_s):
                message = await call.read()
        except TimeoutError:
            raise RequestError(Code.TIMEOUT, "the message of the call did not come in time") from None
        if message is None:
            raise RequestError(Code.BAD_REQUEST, "the call has no message")
        return message

    async def _admit(self, scope: Scope | None, context: Any) -> Call:
        peer = str(context.peer())
        headers = dict(context.invocation_metadata() or ())
        name = None
        if self._named and scope is not None:
            name = _certificate_name(context)
            if name is None:
                raise RequestError(Code.UNAUTHENTICATED, "the certificate has no common name, or several")
        address = peer.partition(":")[2].rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
        arrival = Arrival(peer=peer, address=address, loopback=self._loopback, certificate_name=name)
        client_id = headers.get(CLIENT_ID)
        if scope is None:
            return Call(self._service, self._config, _NOBODY, context)
        self._service.check_rate(arrival.address)
        value = headers.get("authorization", "")
        credentials = read_authorization(value) if value else Credentials()
        caller = await self._service.callers.find(credentials, arrival, client_id)
        if caller.username is not None:
            self._service.check_rate(caller.username, is_user=True)
        if "traceparent" in headers:
            caller.note_trace(context.invocation_metadata())
        caller.require(scope)
        return Call(self._service, self._config, caller, context)


_NOBODY: Final = Caller(username=None, client_id="", scopes=frozenset(), grants=None, tenant=None, may_administer=False)


async def refuse(context: Any, error: QueueError | RequestError, *, is_goqueue: bool = False) -> None:
    """End a call with what went wrong. Always raises."""
    status, text, details = told(error, is_goqueue=is_goqueue)
    await context.abort(status, text, ((DETAILS, details),))


def _certificate_name(context: Any) -> str | None:
    names = context.auth_context().get("x509_common_name", ())
    return names[0].decode(errors="replace") if len(names) == 1 else None
