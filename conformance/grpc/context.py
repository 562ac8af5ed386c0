"""What a gRPC case works with, and its decorator."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from assay.conformance.arrival import soon
from assay.conformance.case import DEFAULT_LIMIT_S, CaseContext, CaseFunction, Level, case
from assay.conformance.outcome import CaseFailureError
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.targets import Damage, Endpoint, unharmed
from assay.conformance.targets.grpc import open_channel
from assay.conformance.wire.grpc import DETAILS, FLUXMQ, interface

GrpcCaseFunction = Callable[["GrpcContext"], Awaitable[None]]
FLUX, GO = "grpc_fluxmq", "grpc_goqueue"
"""The interfaces, as capabilities."""
OK = "OK"
_SHOWN_CHARACTERS = 300
_CALL_LIMIT_S = 60.0
Metadata = tuple[tuple[str, str], ...]


def grpc_case(
    case_id: str,
    *needs: str,
    clauses: tuple[str, ...],
    mutant: str,
    level: Level = "MUST",
    requires: tuple[str, ...] = (),
    kills: tuple[str, ...] = (),
    near_miss: str = "",
    settings: dict[str, Any] | None = None,
    together: bool = False,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Callable[[GrpcCaseFunction], GrpcCaseFunction]:
    """Register a case ``grpc/<case_id>``; ``needs``: the interfaces. See :func:`assay.conformance.case.case`."""
    register = case(
        f"grpc/{case_id}",
        clauses=clauses,
        level=level,
        requires=(*needs, *requires),
        mutant=mutant,
        kills=kills,
        near_miss=near_miss,
        settings=settings,
        together=together,
        limit_s=limit_s,
    )

    def decorate(function: GrpcCaseFunction) -> GrpcCaseFunction:
        register(cast(CaseFunction, function))
        return function

    return decorate


_STEPS = {
    "QueueService/CreateQueue": Rule.GRPC_QUEUE,
    "QueueService/Append": Rule.GRPC_APPEND,
    "QueueService/AppendBatch": Rule.GRPC_APPEND,
    "QueueService/Consume": Rule.GRPC_CONSUME,
    "QueueService/Ack": Rule.GRPC_ACK,
    "PublishService/Publish": Rule.GRPC_PUBLISH,
    "ConsumeService/Subscribe": Rule.GRPC_SUBSCRIBE,
    "AckService/Ack": Rule.GRPC_HANDLE,
}
"""By the ends of their paths: the rules that calls rest on which must succeed."""
_PLAIN = frozenset(
    {
        *("name", "config", "queue_name", "group_id", "consumer_id", "max_messages", "wait_time"),
        *("value", "messages", "receipts", "topic", "receipt_handle"),
    }
)
"""Fields that make no call special."""
_OF_ANY_CALL = ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "DATA_LOSS", "")
"""How a call ends that is no answer to what a case may be about; empty: it does not."""


def _failed_step(
    path: str, fields: Mapping[str, Any], text: str, code: str = "", *, refused: bool = False
) -> CaseFailureError:
    """A call was not done, or (``refused``) in no way that it may be refused in.

    A plain one that must be done, and fails as any other would, is what another case is about; of others the case may
    well be, unless plain ones fail, too.
    """
    rule = _STEPS.get(path.rpartition(".")[2])
    if rule is None or (refused and code not in _OF_ANY_CALL):
        return CaseFailureError(text)
    special = frozenset(fields) - _PLAIN
    waits = not code and "wait_time" in fields  # for a message, which may be what does not come
    is_soft = bool(special) or waits or code not in _OF_ANY_CALL or refused
    return StepFailureError(Incident(rule=rule, shape=special, text=text, soft=is_soft))


class Reply:
    """How a call ended."""

    def __init__(self, what: str, code: str, text: str, value: Any, details: bytes) -> None:
        self.what, self.code, self.text, self.value = what, code, text, value
        self._details = details

    def __str__(self) -> str:
        told = str(self.value).replace("\n", " ")[:_SHOWN_CHARACTERS] if self.code == OK else self.text
        return f"{self.code} to {self.what}: {told}"

    def detail(self, kind: Any) -> Any:
        """A message of this class in the details of a refusal; None = there is none."""
        from google.rpc import status_pb2

        for each in status_pb2.Status.FromString(self._details).details:
            if each.type_url.endswith(f"/{kind.DESCRIPTOR.full_name}"):
                return kind.FromString(each.value)
        return None


class Stream:
    """A call with any number of messages, both ways; read by a thread, since the library blocks."""

    def __init__(
        self, ctx: GrpcContext, path: str, channel: Any, metadata: Metadata, first: Any, *, more: bool
    ) -> None:
        self._ctx, self.what = ctx, path
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Queue[Any] = asyncio.Queue()
        self._sent: queue.Queue[Any] = queue.Queue()
        self._method = interface().method(path)
        if first is not None:
            self._sent.put(first)
        if not more:
            self._sent.put(None)
        call = channel.stream_stream(
            self._method.path,
            request_serializer=self._method.request.SerializeToString,
            response_deserializer=self._method.response.FromString,
        )
        self._call = call(iter(self._sent.get, None), timeout=_CALL_LIMIT_S, metadata=metadata)
        threading.Thread(target=self._read, name="grpc stream", daemon=True).start()

    def _read(self) -> None:
        import grpc

        try:
            for message in self._call:
                self._put(message)
            self._put(_reply(self.what, self._call, None))
        except grpc.RpcError:
            self._put(_reply(self.what, self._call, None))

    def _put(self, came: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the case is over
            self._loop.call_soon_threadsafe(self._came.put_nowait, came)

    def send(self, **fields: Any) -> None:
        """One more message."""
        self._sent.put(self._method.request(**fields))

    def done(self) -> None:
        """No more messages."""
        self._sent.put(None)

    async def next(self) -> Any:
        """The next message, which must come."""
        came = await self._next()
        if isinstance(came, Reply):
            raise _failed_step(self.what, {}, f"expected another message of {self.what}; seen {came}", came.code)
        self._ctx.transcript.add("c1", "recv", decoded=str(came).replace("\n", " ")[:_SHOWN_CHARACTERS])
        return came

    async def end(self) -> Reply:
        """How it ends, whatever comes before."""
        while not isinstance(came := await self._next(), Reply):
            pass
        return came

    async def _next(self) -> Any:
        try:
            return await self._ctx.patiently(self._came.get)
        except TimeoutError:
            self._ctx.fail(f"expected something of {self.what}; seen nothing{self._ctx.looked_on}")

    def cancel(self) -> None:
        """The client goes."""
        self._sent.put(None)
        self._call.cancel()


def _reply(what: str, call: Any, value: Any) -> Reply:
    details = next((each.value for each in call.trailing_metadata() or () if each.key == DETAILS), b"")
    return Reply(what, str(call.code().name), str(call.details() or ""), value, details)


class GrpcContext(CaseContext):
    """Calls, names nobody else uses, checks, and the transcript, for gRPC. Its ``endpoint`` is that of MQTT."""

    def __init__(self, *arguments: Any, where: Callable[[], Endpoint], **named: Any) -> None:
        """``where`` the broker speaks gRPC now: a restart may move it."""
        super().__init__(*arguments, **named)
        self.mqtt_version = 5
        self._where = where
        self._channel: Any = None
        self._streams: list[Stream] = []
        self._queues: dict[str, None] = {}

    @property
    def greeted(self) -> Endpoint:
        return self._where()

    @property
    def connected(self) -> bool:
        return self._channel is not None or super().connected

    @property
    def channel(self) -> Any:
        """Of the library; opened when it is first needed."""
        if self._channel is None:
            place = self._where()
            self._channel = open_channel(place.host, place.port)
        return self._channel

    def close(self) -> None:
        super().close()
        for stream in self._streams:
            stream.cancel()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def restart(self, damage: Damage = unharmed) -> None:
        """End the broker, and start it again on its data; what is under way is lost."""
        await super().restart(damage)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def delete_leftovers(self) -> None:
        """Delete the queues of the case, whatever became of it."""
        for name in self._queues:
            with contextlib.suppress(CaseFailureError):
                await self.call(f"{FLUXMQ}/DeleteQueue", name=name)

    def _metadata(self, more: Metadata) -> Metadata:
        return (*self._where().basic.items(), *more)

    async def call(self, path: str, *, metadata: Metadata | None = None, **fields: Any) -> Reply:
        """A call with one message each way. ``metadata`` in place of the target's credentials."""
        method = interface().method(path)
        self.transcript.add("c1", "send", decoded=f"{path} {str(fields)[:_SHOWN_CHARACTERS]}")
        ask = self.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        said = self._metadata(()) if metadata is None else metadata
        under_way = ask.future(method.request(**fields), timeout=_CALL_LIMIT_S, metadata=said)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(_call: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the case is over
                loop.call_soon_threadsafe(ended.set)

        under_way.add_done_callback(tell)
        try:
            await self.patiently(ended.wait)
        except TimeoutError:
            under_way.cancel()
            self.fail(f"expected an answer to {path}; seen none{self.looked_on}")
        value = under_way.result() if under_way.code().name == OK else None
        reply = _reply(path, under_way, value)
        self.transcript.add("c1", "recv", decoded=str(reply))
        return reply

    async def done(self, path: str, **fields: Any) -> Any:
        """A call that must succeed; the message of its answer."""
        try:
            reply = await self.call(path, **fields)
        except CaseFailureError as error:
            raise _failed_step(path, fields, str(error)) from error
        if reply.code != OK:
            raise _failed_step(path, fields, f"expected OK; seen {reply}", reply.code)
        return reply.value

    def stream(self, path: str, *, more: bool = False, metadata: Metadata | None = None, **fields: Any) -> Stream:
        """A call with any number of messages; ``more`` of them follow from the client."""
        first = interface().method(path).request(**fields) if fields or not more else None
        said = self._metadata(()) if metadata is None else metadata
        found = Stream(self, path, self.channel, said, first, more=more)
        self._streams.append(found)
        return found

    def name(self, what: str = "q") -> str:
        """A name that nobody else uses."""
        self._names += 1
        return f"assay-{self._token}-{what}{self._names}"

    async def queue(self, partitions: int = 1, **more: Any) -> str:
        """A new queue; its name."""
        name = self.name()
        self._queues[name] = None
        await self.done(f"{FLUXMQ}/CreateQueue", **{"name": name, "config": {"partitions": partitions}, **more})
        return name

    def refused(self, reply: Reply, *codes: str) -> None:
        """It must have one of these statuses."""
        if reply.code not in codes:
            raise _failed_step(reply.what, {}, f"expected {' or '.join(codes)}; seen {reply}", reply.code, refused=True)

    def same(self, what: str, seen: Any, wanted: Any) -> None:
        """A value must be this one."""
        self.must(seen == wanted, f"expected {what} to be {wanted!r}; seen {seen!r}")

    async def until(self, ask: Callable[[], Awaitable[Any]], what: str) -> Any:
        """What a question brings, once it brings anything."""
        more = soon(self)
        while await more():
            if found := await ask():
                return found
        message = f"expected {what}; seen none"
        raise CaseFailureError(message)
