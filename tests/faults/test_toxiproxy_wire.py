"""Toxics on the wire, of the embedded server and of a real one where there is one; and what only ours has."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from assay.faults.toxiproxy import ToxiproxyThread
from assay.faults.toxiproxy.server import MAX_BODY_BYTES
from tests.faults.toxiproxy_bench import Api, dial, ends


def test_latency_on_the_wire(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "latency", "attributes": {"latency": 60}})
    api("POST", "/proxies/p/toxics", {"type": "latency", "stream": "upstream", "attributes": {"latency": 60}})
    with dial(proxied) as client:
        began = time.monotonic()
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        elapsed_s = time.monotonic() - began
    assert 0.115 <= elapsed_s < 1.0


def test_bandwidth_on_the_wire(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "bandwidth", "attributes": {"rate": 200}})
    with dial(proxied) as client:
        began = time.monotonic()
        client.sendall(b"x" * 60_000)
        received = 0
        while received < 60_000:
            received += len(client.recv(65_536))
        elapsed_s = time.monotonic() - began
    assert 0.25 <= elapsed_s < 2.0


def test_limit_data_on_the_wire(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "limit_data", "attributes": {"bytes": 10}})
    with dial(proxied) as client:
        client.sendall(b"x" * 25)
        received = b""
        while data := client.recv(100):
            received += data
    assert received == b"x" * 10


def test_timeout_and_its_removal_on_the_wire(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "timeout", "attributes": {"timeout": 0}})
    with dial(proxied) as client:
        client.sendall(b"x")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(5)
        assert api("DELETE", "/proxies/p/toxics/timeout_downstream")[0] == 204
        assert ends(client)


def test_reset_peer_resets_new_connections(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "reset_peer", "attributes": {"timeout": 0}})
    with dial(proxied) as client:
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_large_transfer_survives_a_slow_reader(api: Api, proxied: str) -> None:
    """More than any buffer holds: reading the source must stop, and go on, without loss."""
    blob = os.urandom(12_000_000)
    with dial(proxied) as client:
        sender = threading.Thread(target=client.sendall, args=(blob,))
        sender.start()
        received = bytearray()
        while len(received) < len(blob):
            received += client.recv(65_536)
        sender.join()
    assert bytes(received) == blob


@pytest.fixture(scope="module")
def embedded() -> Iterator[Api]:
    with ToxiproxyThread(seed=1) as server:
        yield Api(server.url)


def test_only_loopback_is_listened_on(embedded: Api) -> None:
    for listen in ("0.0.0.0:0", ":0", "192.0.2.1:80"):
        status, answer = embedded("POST", "/proxies", {"name": "x", "upstream": "127.0.0.1:1", "listen": listen})
        assert (status, "loopback" in answer["error"]) == (400, True), listen


def test_a_huge_body_is_refused(embedded: Api) -> None:
    status, text, _ = embedded.call("POST", "/proxies", b" " * (MAX_BODY_BYTES + 1))
    assert status == 413
    assert b"above" in text


def test_garbage_gets_an_answer_and_an_end(embedded: Api) -> None:
    with socket.create_connection(embedded.address, timeout=60) as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
        while client.recv(1_000):
            pass


def test_one_connection_serves_many_requests(embedded: Api) -> None:
    connection = http.client.HTTPConnection(*embedded.address, timeout=60)
    for _ in range(3):
        connection.request("GET", "/version")
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
    connection.close()


def test_metrics_count_bytes(embedded: Api, echo: str) -> None:
    listen = embedded("POST", "/proxies", {"name": "m", "upstream": echo})[1]["listen"]
    with dial(listen) as client:
        client.sendall(b"12345")
        assert client.recv(5) == b"12345"
    _, text, response = embedded.call("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = [line for line in text.decode().splitlines() if 'proxy="m"' in line]
    assert len(lines) == 4
    assert all(line.endswith(" 5") for line in lines)


def test_our_own_toxics_on_the_wire(embedded: Api, echo: str) -> None:
    listen = embedded("POST", "/proxies", {"name": "own", "upstream": echo})[1]["listen"]
    with dial(listen) as client:
        assert embedded("POST", "/proxies/own/toxics", {"type": "blackhole"})[0] == 200
        client.sendall(b"held")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(5)
        embedded("DELETE", "/proxies/own/toxics/blackhole_downstream")
        assert client.recv(4) == b"held", "as after a partition, nothing is lost and nothing was closed"
        lossy = {"type": "loss_retx", "attributes": {"loss_rate": 0.999, "rto": 5}}
        embedded("POST", "/proxies/own/toxics", lossy)
        began = time.monotonic()
        client.sendall(b"late")
        assert client.recv(4) == b"late"
        assert time.monotonic() - began >= 0.005


def test_what_a_toxic_holds_is_bounded(embedded: Api, echo: str) -> None:
    listen = embedded("POST", "/proxies", {"name": "full", "upstream": echo})[1]["listen"]
    embedded("POST", "/proxies/full/toxics", {"type": "blackhole", "stream": "upstream"})
    most, sent, blob = 64_000_000, 0, bytes(1_000_000)
    with dial(listen) as client:
        client.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while sent < most:
                sent += client.send(blob)
    assert 4_000_000 < sent < most, "the proxy stops reading, and the sender feels it"
    assert embedded("DELETE", "/proxies/full")[0] == 204
