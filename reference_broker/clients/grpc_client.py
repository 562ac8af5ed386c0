"""Queues of a broker over gRPC, for asyncio: published to, consumed with flow control, settled."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from assay.reference_broker.clients.shared import Place, Received, RefusedError, basic
from assay.reference_broker.grpc_api import schema
from assay.reference_broker.grpc_api.errors import DETAILS

_SERVICE: Final = "fluxmq.queue.v1.QueueService"
_NS: Final = 1_000_000_000
_M: Final = schema.fluxmq()


class GrpcQueues:
    """Use it by ``async with``. Every method may raise :class:`RefusedError`."""

    def __init__(
        self,
        target: str,
        *,
        username: str = "",
        password: str = "",
        token: str = "",
        authority: bytes | None = None,
        client_id: str = "",
        timeout_s: float = 30.0,
    ) -> None:
        """``target``: host and port. ``token``, or user and password. ``authority``: whose certificates are trusted,
        as PEM; None = without TLS. ``timeout_s``: of every call but :meth:`consume`."""
        self._target = target
        self._authority = authority
        self._timeout_s = timeout_s
        metadata = {"x-client-id": client_id}
        if token:
            metadata["authorization"] = f"Bearer {token}"
        elif username:
            metadata["authorization"] = basic(username, password)
        self._metadata = tuple((name, value) for name, value in metadata.items() if value)
        self._channel: Any = None
        self._calls: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        if self._authority is None:
            self._channel = grpc.aio.insecure_channel(self._target)
        else:
            self._channel = grpc.aio.secure_channel(self._target, grpc.ssl_channel_credentials(self._authority))
        for service in schema.services():
            if service.full_name == _SERVICE:
                self._calls = {kind.name: self._call(kind) for kind in service.methods}
        return self

    def _call(self, kind: Any) -> Any:
        sides = ["stream" if streams else "unary" for streams in (kind.client_streaming, kind.server_streaming)]
        asked, answer = schema.message_class(kind.input_type), schema.message_class(kind.output_type)
        make = getattr(self._channel, "_".join(sides))
        return make(f"/{_SERVICE}/{kind.name}", asked.SerializeToString, answer.FromString)

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def _ask(self, method: str, request: Any) -> Any:
        with _refusals():
            return await self._calls[method](request, timeout=self._timeout_s, metadata=self._metadata)

    async def create_queue(self, name: str, *, partitions: int = 1, topics: Sequence[str] = ()) -> None:
        """Create a queue; needs the scope ``admin``."""
        await self._ask(
            "CreateQueue", _M.CreateQueueRequest(name=name, topics=topics, config={"partitions": partitions})
        )

    async def delete_queue(self, name: str) -> None:
        """With all it holds; needs the scope ``admin``."""
        await self._ask("DeleteQueue", _M.DeleteQueueRequest(name=name))

    async def publish(
        self,
        queue: str,
        payload: bytes,
        *,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> Place:
        """Returns once the message is as durable as its queue promises."""
        request = _append(queue, payload, key, headers)
        if partition is not None:
            request.partition = partition
        answer = await self._ask("Append", request)
        return Place(message_id=answer.message_id, partition=answer.partition, offset=answer.offset)

    async def publish_many(self, queue: str, payloads: Sequence[bytes]) -> int:
        """In one request; returns how many once all are durable. With some that are refused it raises, and
        ``details`` say how many are published all the same."""
        request = _M.AppendBatchRequest(queue_name=queue, messages=[{"value": each} for each in payloads])
        return int((await self._ask("AppendBatch", request)).count)

    async def publish_stream(self, queue: str, payloads: AsyncIterable[bytes]) -> int:
        """As they come, without waiting for one before the next; returns how many once all are durable."""

        async def requests() -> AsyncIterator[Any]:
            async for payload in payloads:
                yield _append(queue, payload, "", None)

        with _refusals():
            answer = await self._calls["AppendQueue"](requests(), metadata=self._metadata)
        return int(answer.count)

    async def consume(
        self, queue: str, group: str, *, consumer: str = "default", max_in_flight: int = 0
    ) -> AsyncIterator[Received]:
        """What a group gets, until the loop over it ends; then what is not settled is ready again.

        ``max_in_flight``: unsettled messages at once; 0 = as the broker has it.
        """
        request = _M.ConsumeQueueRequest(
            queue_name=queue, group_id=group, consumer_id=consumer, max_in_flight=max_in_flight
        )
        stream = self._calls["ConsumeQueue"](request, metadata=self._metadata)
        try:
            with _refusals():
                async for message in stream:
                    yield _received(queue, message)
        finally:
            stream.cancel()

    async def ack(self, *messages: Received) -> None:
        """They are done: settled for good, on return. All of one queue and group."""
        await self._settle("Ack", _M.AckRequest, messages)

    async def nack(self, *messages: Received) -> None:
        """They failed: delivered again as the queue's retry policy says."""
        await self._settle("Nack", _M.NackRequest, messages)

    async def _settle(self, method: str, kind: Any, messages: Sequence[Received]) -> None:
        queue, group = messages[0].queue, messages[0].group
        receipts = [each.receipt for each in messages]
        await self._ask(method, kind(queue_name=queue, group_id=group, receipts=receipts))


def _append(queue: str, payload: bytes, key: str, headers: Mapping[str, str] | None) -> Any:
    told = {name: value.encode() for name, value in (headers or {}).items()}
    return _M.AppendRequest(queue_name=queue, value=payload, key=key.encode(), headers=told)


def _received(queue: str, message: Any) -> Received:
    return Received(
        queue=queue,
        group=message.delivery_info.group_id,
        payload=message.value,
        key=message.key.decode(),
        headers={name: value.decode() for name, value in message.headers.items()},
        message_id=message.message_id,
        partition=message.partition,
        offset=message.offset,
        receipt=message.receipt,
        delivery_count=message.delivery_info.delivery_count,
        enqueued_at=message.timestamp.seconds + message.timestamp.nanos / _NS,
    )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _refused(error) from None


def _refused(error: Any) -> RefusedError:
    code, details = error.code().name, {}
    packed = dict(error.trailing_metadata() or ()).get(DETAILS)
    if packed:
        info = error_details_pb2.ErrorInfo()
        for each in status_pb2.Status.FromString(packed).details:
            if each.Unpack(info):
                code, details = info.reason, dict(info.metadata)
    return RefusedError(code, error.details() or "", details)
