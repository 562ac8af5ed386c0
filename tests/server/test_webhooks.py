"""Web hooks over real sockets: what is sent, and what a hostile or wrong address cannot do."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import pytest

from reference_broker.core.queues.alerts import AlertRequest, Alerts, DeadLetterAlert
from reference_broker.server.webhooks import WebhookError, WebhookSender, is_public, post

ALERT = DeadLetterAlert(
    queue_name="q",
    dlq_topic="$dlq/q",
    message_id="q:0:0",
    failure_reason="bad",
    retry_count=0,
    first_attempt=None,
    moved_to_dlq_at="2026-01-31T12:00:00.000Z",
    total_duration=0,
)
_P = ParamSpec("_P")


def in_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Hook:
    """A listener that answers as told and remembers what it got."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.got = asyncio.Event()

    async def __aenter__(self) -> Hook:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        self.got.set()
        answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 204 No Content\r\n\r\n"
        if answer:
            writer.write(answer)
        else:
            await reader.read()  # says nothing until the other side gives up
        writer.close()


def request(port: int, *, host: str = "127.0.0.1", allow_private: bool = True, timeout_s: float = 5.0) -> AlertRequest:
    return AlertRequest(
        number=1,
        url=f"http://{host}:{port}/hook?key=1",
        body=b"{}",
        timeout_s=timeout_s,
        allow_private=allow_private,
    )


def no_tls() -> ssl.SSLContext:
    raise AssertionError


@in_loop
async def test_a_hook_gets_one_post_of_json() -> None:
    async with Hook() as hook:
        await post(request(hook.port), no_tls)
    (got,) = hook.requests
    head, body = got.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /hook?key=1 HTTP/1.1"
    assert b"Content-Type: application/json" in lines
    assert f"Host: 127.0.0.1:{hook.port}".encode() in lines
    assert body == b"{}"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Oops\r\n\r\n",
        b"HTTP/1.1 404 No\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n",
        b"nonsense\r\n",
        b"x" * 100_000,
    ],
)
@in_loop
async def test_what_is_no_success_is_refused_and_no_redirect_followed(answer: bytes) -> None:
    async with Hook(answer) as hook:
        with pytest.raises((WebhookError, asyncio.LimitOverrunError)):
            await post(request(hook.port), no_tls)
        assert len(hook.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001"])
@in_loop
async def test_local_addresses_are_refused_however_they_are_written(host: str) -> None:
    async with Hook() as hook:
        with pytest.raises((WebhookError, OSError)):
            await post(request(hook.port, host=host, allow_private=False), no_tls)
        assert hook.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fc00::1",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "2001:db8::1",
        "nonsense",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


@in_loop
async def test_the_name_is_looked_up_once_and_the_address_that_was_checked_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that turns private after the check (rebinding) is not asked again."""
    loop = asyncio.get_running_loop()
    asked: list[str] = []
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: int) -> object:
        if host == "hook.example":
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return await real(host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with Hook() as hook:
        await post(request(hook.port, host="hook.example"), no_tls)
        assert len(hook.requests) == 1
        with pytest.raises(WebhookError):
            await post(request(hook.port, host="hook.example", allow_private=False), no_tls)
    assert asked == ["hook.example"] * 2
    assert len(hook.requests) == 1


@in_loop
async def test_alerts_are_tried_again_until_they_are_accepted() -> None:
    moved = 0.0

    def clock() -> float:
        return asyncio.get_running_loop().time() + moved

    alerts = Alerts(allow_private=True)
    sender = WebhookSender(alerts, clock)
    async with Hook(b"HTTP/1.1 503 Busy\r\n\r\n", b"") as hook:
        alerts.add(f"http://127.0.0.1:{hook.port}/", ALERT, attempts=5, timeout_s=0.2)
        for attempt in range(3):
            sender.pump()
            while sender._tasks:
                await asyncio.wait(set(sender._tasks))
            assert len(hook.requests) == attempt + 1
            moved += 30.0
        assert (alerts.sent, alerts.failed) == (1, 0)
        await sender.close()


@in_loop
async def test_of_an_answer_without_end_only_the_status_is_read() -> None:
    """O8: the answer had no bound, so a hook that never stops talking held the sender, and all that it said."""
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            ended.set()
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with asyncio.timeout(10):
        await post(request(server.sockets[0].getsockname()[1]), no_tls)
        await ended.wait()
    server.close()


@in_loop
async def test_once_closed_nothing_is_sent_any_more() -> None:
    """O7: the last turns of a broker that stops still pump, and a retry may be waiting for its time."""
    alerts = Alerts(allow_private=True)
    sender = WebhookSender(alerts, asyncio.get_running_loop().time)
    async with Hook(b"HTTP/1.1 503 Busy\r\n\r\n") as hook:
        url = f"http://127.0.0.1:{hook.port}/"
        alerts.add(url, ALERT, attempts=5, timeout_s=60.0)
        sender.pump()
        await asyncio.wait(set(sender._tasks))
        timer = sender._timer
        assert timer is not None, "it is to be tried again"
        await sender.close()
        assert timer.cancelled()
        alerts.add(url, ALERT, attempts=5, timeout_s=60.0)
        sender.pump()
        assert not sender._tasks
        assert len(hook.requests) == 1


@in_loop
async def test_closing_ends_what_is_under_way() -> None:
    alerts = Alerts(allow_private=True)
    sender = WebhookSender(alerts, asyncio.get_running_loop().time)
    async with Hook(b"") as hook:
        alerts.add(f"http://127.0.0.1:{hook.port}/", ALERT, attempts=5, timeout_s=60.0)
        sender.pump()
        await hook.got.wait()
        await sender.close()
        assert not sender._tasks
