"""Web hooks over real sockets: what is sent, and what a hostile or wrong address cannot do."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import msgspec
import pytest

from assay.reference_broker.queues.dead_letters.alerts import Alerts, DeadLetterAlert
from assay.reference_broker.queues.jobs.outbox import OutboundRequest
from assay.reference_broker.server.webhooks import MAX_KEPT, Kept, WebhookError, WebhookSender, is_public, post

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


def request(
    port: int, *, host: str = "127.0.0.1", allow_private: bool = True, timeout_s: float = 5.0
) -> OutboundRequest:
    return OutboundRequest(
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
        await post(request(hook.port), no_tls, Kept())
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
            await post(request(hook.port), no_tls, Kept())
        assert len(hook.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f000001"])
@in_loop
async def test_local_addresses_are_refused_however_they_are_written(host: str) -> None:
    async with Hook() as hook:
        with pytest.raises((WebhookError, OSError)):
            await post(request(hook.port, host=host, allow_private=False), no_tls, Kept())
        assert hook.requests == []


NOT_PUBLIC_IPV4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private use",
    "100.64.0.0/10": "shared by carriers",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link local",
    "172.16.0.0/12": "private use",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "relays of 6to4, deprecated",
    "192.168.0.0/16": "private use",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, and limited broadcast",
}
NOT_PUBLIC_IPV6 = {
    "::/96": "unspecified, loopback and IPv4-compatible",
    "64:ff9b:1::/48": "translation for local use",
    "100::/64": "discard only",
    "100:0:0:1::/64": "dummy prefix",
    "2001::/32": "Teredo",
    "2001:2::/48": "benchmarking",
    "2001:10::/28": "ORCHID, deprecated",
    "2001:20::/28": "ORCHIDv2",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "3fff::/20": "documentation",
    "5f00::/16": "segment routing",
    "fc00::/7": "unique local",
    "fe80::/10": "link local",
    "fec0::/10": "site local, deprecated",
    "ff00::/8": "multicast",
}
"""IANA's registries of special-purpose addresses: what they do not call globally reachable."""


@pytest.mark.parametrize("network", NOT_PUBLIC_IPV4 | NOT_PUBLIC_IPV6)
def test_networks_that_are_not_public(network: str) -> None:
    """The first and the last address of each, and one within."""
    addresses = ipaddress.ip_network(network)
    for index in (0, 1, addresses.num_addresses // 2, addresses.num_addresses - 1):
        assert not is_public(str(addresses[index])), addresses[index]


@pytest.mark.parametrize("network", NOT_PUBLIC_IPV4)
@pytest.mark.parametrize("prefix", ["::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::", "2002::"])
def test_an_ipv6_address_hides_no_ipv4_address(network: str, prefix: str) -> None:
    """Mapped, compatible, translated by NAT64, and in 6to4, where it stands in front."""
    for inner in (ipaddress.IPv4Network(network)[1], ipaddress.IPv4Network(network)[-1]):
        shift = 80 if prefix == "2002::" else 0
        address = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(inner) << shift)
        assert not is_public(str(address)), address


@pytest.mark.parametrize(
    "address",
    [
        "0177.0.0.1",
        "0x7f.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "8.8.8.8.",
        " 8.8.8.8",
        "8.8.8.8/32",
        "",
        "fe80::1%eth0",
        "2606:4700:4700::1111%1",
        "[::1]",
        "localhost",
        "\uff11.1.1.1",
    ],
)
def test_other_spellings_are_no_addresses(address: str) -> None:
    """A resolver writes them anew, and that is judged; what it does not write is refused, as is a zone."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.88.98.255",
        "192.88.100.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2000::1",
        "2001:200::1",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2003::1",
        "2620:fe::fe",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_addresses_that_are_public(address: str) -> None:
    """Also those next to what is not."""
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.1", "0177.0.0.1", "0x7f.1", "2130706433", "localhost", "[::1]", "[::ffff:127.0.0.1]", "127.0.0.1"],
)
@in_loop
async def test_spellings_of_loopback_are_judged_as_what_they_resolve_to(host: str) -> None:
    async with Hook() as hook:
        with pytest.raises((WebhookError, OSError)):
            await post(request(hook.port, host=host, allow_private=False), no_tls, Kept())
        assert not hook.requests


@pytest.mark.parametrize("status", ["301", "302", "307", "308"])
@in_loop
async def test_a_redirect_is_not_followed(status: str) -> None:
    async with Hook() as elsewhere:
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: http://127.0.0.1:{elsewhere.port}/\r\n\r\n"
        async with Hook(answer.encode()) as hook:
            with pytest.raises(WebhookError, match=status):
                await post(request(hook.port), no_tls, Kept())
        assert not elsewhere.requests


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
        await post(request(hook.port, host="hook.example"), no_tls, Kept())
        assert len(hook.requests) == 1
        with pytest.raises(WebhookError):
            await post(request(hook.port, host="hook.example", allow_private=False), no_tls, Kept())
    assert asked == ["hook.example"] * 2
    assert len(hook.requests) == 1


@in_loop
async def test_alerts_are_tried_again_until_they_are_accepted() -> None:
    moved = 0.0

    def clock() -> float:
        return asyncio.get_running_loop().time() + moved

    alerts = Alerts(allow_private=True)
    sender = WebhookSender([alerts], clock, lambda _kind, _text: None)
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
        await post(request(server.sockets[0].getsockname()[1]), no_tls, Kept())
        await ended.wait()
    server.close()


@in_loop
async def test_once_closed_nothing_is_sent_any_more() -> None:
    """O7: the last turns of a broker that stops still pump, and a retry may be waiting for its time."""
    alerts = Alerts(allow_private=True)
    sender = WebhookSender([alerts], asyncio.get_running_loop().time, lambda _kind, _text: None)
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
    sender = WebhookSender([alerts], asyncio.get_running_loop().time, lambda _kind, _text: None)
    async with Hook(b"") as hook:
        alerts.add(f"http://127.0.0.1:{hook.port}/", ALERT, attempts=5, timeout_s=60.0)
        sender.pump()
        await hook.got.wait()
        await sender.close()
        assert not sender._tasks


def test_an_answer_has_a_bounded_length() -> None:
    """And ends with its connection."""
    in_loop(_ask_for_answers)()


async def _ask_for_answers() -> None:
    asked = msgspec.structs.replace(request(0), most_answer_bytes=5)
    for content, expected in ((b"12345", b"12345"), (b"", b""), (b"123456", None)):
        async with Hook(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n" + content) as hook:
            wanted = msgspec.structs.replace(asked, url=f"http://127.0.0.1:{hook.port}/")
            if expected is None:
                with pytest.raises(WebhookError):
                    await post(wanted, no_tls, Kept())
            else:
                assert await post(wanted, no_tls, Kept()) == expected
            assert hook.requests[0].startswith(b"POST / HTTP/1.1\r\n")
    async with Hook(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n12345") as hook:
        with pytest.raises(WebhookError):
            await post(msgspec.structs.replace(asked, url=f"http://127.0.0.1:{hook.port}/"), no_tls, Kept())


class Patient:
    """Answers all that come over a connection, each as the next of its answers says, and counts connections."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.ended = asyncio.Event()

    async def __aenter__(self) -> Patient:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.asked = msgspec.structs.replace(request(port), most_answer_bytes=5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(self.answers.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended.set()
            writer.close()


@pytest.fixture
def long_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("assay.reference_broker.server.webhooks.KEPT_S", 600.0)


_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12345"
_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n12\r\n3\r\n345\r\n0\r\nA: b\r\n\r\n"
_NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
_CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n12345"
_OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n12345"


@pytest.mark.usefixtures("long_kept")
@pytest.mark.parametrize(
    ("answers", "connections"),
    [
        ((_LENGTH, _CHUNKS, _NOTHING, _LENGTH), 1),
        ((_CLOSED, _LENGTH), 2),
        ((_OLD, _LENGTH), 2),
        # A second answer that nobody asked for must not become that to the next question.
        ((_LENGTH + _LENGTH.replace(b"12345", b"67890"), _LENGTH), 2),
    ],
)
def test_a_question_goes_over_the_connection_of_the_last_one(answers: tuple[bytes, ...], connections: int) -> None:
    in_loop(_ask_again)(answers, connections)


async def _ask_again(answers: tuple[bytes, ...], connections: int) -> None:
    kept = Kept()
    async with Patient(*answers) as hook:
        for answer in answers:
            assert await post(hook.asked, no_tls, kept) == (b"" if answer is _NOTHING else b"12345")
        assert hook.connections == connections
        kept.close()
        assert not kept


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n123456",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n123456",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n123\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_a_bad_answer_ends_its_connection(answer: bytes) -> None:
    in_loop(_ask_badly)(answer)


async def _ask_badly(answer: bytes) -> None:
    kept = Kept()
    async with Patient(answer) as hook:
        with pytest.raises((WebhookError, ValueError)):
            await post(hook.asked, no_tls, kept)
    assert not kept


@in_loop
async def test_a_connection_that_ended_meanwhile_is_opened_again() -> None:
    kept = Kept()
    async with Hook(_LENGTH, _LENGTH) as hook:
        asked = msgspec.structs.replace(request(hook.port), most_answer_bytes=5)
        for _ in range(2):  # its listener closes after each
            assert await post(asked, no_tls, kept) == b"12345"
        assert len(hook.requests) == 2
    kept.close()


def test_a_connection_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.reference_broker.server.webhooks.KEPT_S", 0.0)
    in_loop(_ask_late)()


async def _ask_late() -> None:
    kept = Kept()
    async with Patient(_LENGTH, _LENGTH) as hook:
        assert await post(hook.asked, no_tls, kept) == b"12345"
        await asyncio.wait_for(hook.ended.wait(), 60)
        assert await post(hook.asked, no_tls, kept) == b"12345"
        assert hook.connections == 2
    kept.close()


@pytest.mark.usefixtures("long_kept")
def test_few_connections_are_kept() -> None:
    in_loop(_keep_few)()


async def _keep_few() -> None:
    kept = Kept()
    async with Patient(*[_LENGTH] * (MAX_KEPT + 8)) as hook:
        asking = [post(hook.asked, no_tls, kept) for _ in range(MAX_KEPT + 8)]
        assert await asyncio.gather(*asking) == [b"12345"] * len(asking)
        assert len(kept) == MAX_KEPT
        assert kept.take(("http", "elsewhere", True)) is None
    kept.close()
