"""A client that takes no part in any case: whatever malformed bytes others send, it must go on being served."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

from assay.conformance.targets import Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    describe,
    encode,
)

_Came = TypeVar("_Came")
"""What a protocol's bytes are read into."""
_READ_BYTES = 65_536
_TRIES = 4
"""QoS 0 promises nothing for a single message."""


class BystanderError(Exception):
    """It is not served any more; the text says what happened."""


class Bystander(ABC, Generic[_Came]):
    """One connection, opened when first needed, that sends messages to itself."""

    malformed: ClassVar[type[Exception]]
    """Raised by :meth:`_feed` for bytes that are none of the protocol's."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        """``timeout_s`` is how long the broker may take to serve it once."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._came: list[_Came] = []
        self._turn = asyncio.Lock()
        self._sent = 0
        self._losses = 0

    @property
    def losses(self) -> int:
        """How often the broker has ended its connection, also where nobody has noticed yet."""
        return self._losses + self._is_cut

    @property
    def _is_cut(self) -> bool:
        return self._reader is not None and (self._reader.at_eof() or self._reader.exception() is not None)

    async def join(self, *, again: bool = False) -> None:
        """Connect and be served once, unless that has been done; ``again``: only if the broker has ended that since, so
        that one that does not answer is not waited for by every case.

        Raises :class:`BystanderError`.
        """
        async with self._turn:
            if again:
                if not self._is_cut:
                    return
                self._losses += 1
                self.close()
            if self._writer is None:
                await self._served(opens=True)

    async def prove_served(self) -> None:
        """Send a message and get it back. Raises :class:`BystanderError`; then the next :meth:`join` starts afresh."""
        async with self._turn:
            await self._served(opens=False)

    def close(self) -> None:
        """Drop the connection."""
        if self._writer is not None:
            with suppress(RuntimeError):  # of a loop that has ended
                self._writer.transport.abort()
        self._reader = self._writer = None

    async def _served(self, *, opens: bool) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                if opens:
                    await self._open()
                await self._round_trip()
        except TimeoutError as error:
            self.close()
            message = f"a client that had no part in it got no answer within {self._timeout_s:g} s"
            raise BystanderError(message) from error
        except (OSError, EOFError, self.malformed) as error:
            self._losses = self.losses
            self.close()
            message = f"a client that had no part in it lost its connection: {error or type(error).__name__}"
            raise BystanderError(message) from error

    async def _connect(self) -> asyncio.StreamWriter:
        endpoint, self._came = self._endpoint, []
        self._reader, self._writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=endpoint.tls_context, server_hostname=endpoint.server_name
        )
        return self._writer

    def _write(self, data: bytes) -> None:
        if self._writer is None:
            message = "it is not connected"
            raise EOFError(message)
        self._writer.write(data)

    async def _receive(self) -> _Came:
        while not self._came:
            data = await self._reader.read(_READ_BYTES) if self._reader is not None else b""
            if not data:
                message = "the broker ended it"
                raise EOFError(message)
            self._came += self._feed(data)
        return self._came.pop(0)

    @abstractmethod
    async def _open(self) -> None:
        """Connect and be ready for messages."""

    @abstractmethod
    async def _round_trip(self) -> None:
        """Send a message and get it back."""

    @abstractmethod
    def _feed(self, data: bytes) -> Iterable[_Came]:
        """What the bytes hold, but for what only keeps a connection alive."""


class MqttBystander(Bystander[Packet]):
    """Of MQTT: it subscribes to a topic of its own."""

    malformed = MalformedPacketError

    def __init__(self, endpoint: Endpoint, version: int, *, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s=timeout_s)
        self._version = version
        self._topic = f"assay-bystander/{secrets.token_hex(6)}"
        self._decoder = Decoder(version)
        self._pings: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._pings is not None:
            self._pings.cancel()
            self._pings = None
        super().close()

    async def _open(self) -> None:
        self._decoder = Decoder(self._version)
        writer = await self._connect()
        password = self._endpoint.password
        connect = Connect(
            version=self._version,
            client_id=f"bystander{secrets.token_hex(6)}",
            keep_alive_s=0,
            username=self._endpoint.username,
            password=password.encode() if password is not None else None,
        )
        self._send(connect)
        connack = await self._receive()
        self._check(connack, Connack)
        if isinstance(connack, Connack) and connack.properties.server_keep_alive:
            pause_s = connack.properties.server_keep_alive / 2
            self._pings = asyncio.get_running_loop().create_task(self._ping(writer, pause_s))
        self._send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=self._topic),)))
        answer = await self._receive()
        while isinstance(answer, Publish):
            answer = await self._receive()
        self._check(answer, Suback)

    async def _round_trip(self) -> None:
        """Whether each message comes, once and where it should, is for the cases to judge: any of these will do."""
        first = self._sent
        for _ in range(_TRIES):
            self._send(Publish(topic=self._topic, payload=str(self._sent).encode()))
            self._sent += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s / (_TRIES + 1)):
                    while not self._is_own(await self._receive(), first):
                        pass
                    return
        while not self._is_own(await self._receive(), first):
            pass

    def _is_own(self, packet: Packet, first: int) -> bool:
        """It is one of the messages sent from this number on."""
        if not isinstance(packet, Publish):
            message = f"it sent message {self._sent} and got {describe(packet)}"
            raise EOFError(message)
        return packet.topic == self._topic and packet.payload.isdigit() and int(packet.payload) >= first

    async def _ping(self, writer: asyncio.StreamWriter, pause_s: float) -> None:
        """Obey a Server Keep Alive for as long as the connection lasts."""
        while not writer.is_closing():
            await asyncio.sleep(pause_s)
            writer.write(encode(Pingreq(), self._version))

    def _send(self, packet: Packet) -> None:
        self._write(encode(packet, self._version))

    def _feed(self, data: bytes) -> Iterable[Packet]:
        return [packet for packet in self._decoder.feed(data) if not isinstance(packet, Pingresp)]

    def _check(self, packet: Packet, kind: type[Packet]) -> None:
        if not isinstance(packet, kind):
            message = f"it expected {kind.type.name} and got {describe(packet)}"
            raise EOFError(message)
