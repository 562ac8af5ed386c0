"""WebSocket between a transport and a protocol, both recorded, so that the order of calls can be set and seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Request, TextMessage

from assay.reference_broker.config import WebSocketConfig
from assay.reference_broker.server.websocket import MAX_FRAMES
from assay.reference_broker.server.websocket_layer import WebSocketLayer


class Below(asyncio.Transport):
    """The network: keeps what is written; ``stuck`` leaves it unsent, as with a client that does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.stuck = False
        self.calls: list[str] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return f"<{name}>"

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limits {high} {low}")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.sent) if self.stuck else 0

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Inner(asyncio.Protocol):
    """The MQTT side."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []
        self.resumed = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        assert isinstance(base, asyncio.Transport)
        self.transport = base
        base.set_write_buffer_limits(high=10)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def resume_writing(self) -> None:
        self.resumed += 1


class Case:
    """A layer with its handshake done, and the client."""

    def __init__(self, *, max_unread_bytes: int = 1_000, linger_s: float = 60.0) -> None:
        self.client = WSConnection(ConnectionType.CLIENT)
        self.inner, self.below = Inner(), Below()
        self.told: list[object] = []
        self.layer = WebSocketLayer(
            self.inner,
            WebSocketConfig(),
            lambda _peer, problem: self.told.append(problem),
            max_unread_bytes=max_unread_bytes,
            linger_s=linger_s,
        )
        self.layer.connection_made(self.below)
        self.send(Request(host="h", target="/mqtt", subprotocols=["mqtt"]))
        self.seen()
        assert self.inner.transport is not None
        self.transport = self.inner.transport

    def send(self, event: Event) -> None:
        self.layer.data_received(self.client.send(event))

    def seen(self) -> list[Event]:
        """What the client makes of what was sent since."""
        data, self.below.sent = self.below.sent, b""
        self.client.receive_data(data)
        return list(self.client.events())


def in_loop(check: Callable[[], None]) -> None:
    """The layer asks its loop for timers."""

    async def main() -> None:
        check()

    asyncio.run(main())


def test_bytes_pass_both_ways_and_flow_control_too() -> None:
    case = Case()
    case.send(BytesMessage(data=b"in"))
    assert case.inner.received == b"in"
    case.transport.write(b"out")
    assert case.seen() == [BytesMessage(data=b"out", message_finished=True)]
    case.transport.pause_reading()
    case.transport.resume_reading()
    case.layer.pause_writing()
    case.layer.resume_writing()
    assert case.inner.resumed == 1
    assert case.below.calls == ["limits 10 None", "pause", "resume"]
    assert case.transport.get_extra_info("peername") == "<peername>"
    error = ConnectionResetError()
    case.layer.connection_lost(error)
    assert case.inner.lost == [error]
    case.transport.write(b"late")
    case.transport.close()
    assert case.below.sent == b""


def test_the_backlog_is_the_one_of_the_network() -> None:
    case = Case()
    case.below.stuck = True
    case.transport.write(b"x" * 500)
    assert case.transport.get_write_buffer_size() > 500


def test_a_client_of_pings_that_reads_nothing_is_cut() -> None:
    case = Case(max_unread_bytes=1_000)
    case.below.stuck = True
    for _ in range(7):
        case.send(Ping(payload=b"p" * 125))
    assert "abort" not in case.below.calls
    case.send(Ping(payload=b"p" * 125))
    assert case.below.calls[-1] == "abort"


def test_closing_waits_for_the_clients_close_frame() -> None:
    def check() -> None:
        case = Case()
        case.transport.close()
        assert case.seen() == [CloseConnection(code=1000, reason="")]
        assert not case.transport.is_closing()
        case.transport.write(b"nothing goes out after the close frame")
        assert case.below.sent == b""
        case.send(CloseConnection(code=1000))
        assert case.below.calls[-1] == "close"

    in_loop(check)


def test_the_clients_close_is_answered_and_the_connection_closed() -> None:
    def check() -> None:
        case = Case()
        case.send(CloseConnection(code=1001))
        assert case.seen() == [CloseConnection(code=1001, reason="")]
        assert case.below.calls[-1] == "close"

    in_loop(check)


def test_a_closed_connection_that_does_not_end_is_cut() -> None:
    async def main() -> None:
        case = Case(linger_s=0.0)
        cut = asyncio.Event()
        case.below.abort = cut.set  # type: ignore[method-assign]
        case.send(CloseConnection(code=1000))
        async with asyncio.timeout(10):
            await cut.wait()

    asyncio.run(main())


def test_others_are_served_between_many_frames() -> None:
    async def main() -> None:
        case = Case()
        loop = asyncio.get_running_loop()
        chunk = b"".join(case.client.send(BytesMessage(data=b"%04d" % number)) for number in range(3 * MAX_FRAMES))
        seen: list[int] = []
        done = asyncio.Event()

        def other() -> None:
            seen.append(len(case.inner.received) // 4)
            if case.below.calls[-1] == "resume":
                done.set()
            else:
                loop.call_soon(other)

        case.layer.data_received(chunk)
        other()
        await done.wait()
        assert case.inner.received == b"".join(b"%04d" % number for number in range(3 * MAX_FRAMES))
        steps = [later - earlier for earlier, later in pairwise([0, *seen])]
        assert max(steps) == MAX_FRAMES
        assert case.below.calls[1] == "pause"

    asyncio.run(main())


def test_frames_wait_while_mqtt_does_not_read_and_a_lost_transport_loses_none_of_them() -> None:
    async def main() -> None:
        case = Case()
        chunk = b"".join(case.client.send(BytesMessage(data=b"%04d" % number)) for number in range(2 * MAX_FRAMES))
        case.layer.data_received(chunk)
        case.transport.pause_reading()
        case.layer.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(case.inner.received) == 4 * MAX_FRAMES
        assert not case.inner.lost
        case.transport.resume_reading()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(case.inner.received) == 4 * 2 * MAX_FRAMES
        assert case.inner.lost == [None]

    asyncio.run(main())


def test_why_a_connection_was_closed_is_told() -> None:
    async def scene() -> None:
        case = Case()
        case.send(TextMessage(data="MQTT is binary"))
        assert len(case.told) == 1
        assert "MQTT-6.0.0-1" in str(case.told[0])

    asyncio.run(scene())
