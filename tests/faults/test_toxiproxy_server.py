"""The contract of toxiproxy's HTTP API, held against the embedded server and against a real one where there is one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from faults.toxiproxy import Endpoint, ToxiproxyClient, ToxiproxyError, ToxiproxyThread, toxiproxy_endpoint
from faults.toxiproxy.server import MAX_BODY_BYTES

REAL = bool(os.environ.get("TOXIPROXY_URL") or shutil.which("toxiproxy-server"))


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.request.sendall(data)
        except ConnectionError:
            return  # some toxics reset it


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(
    scope="module",
    params=["embedded", "real"] if REAL else ["embedded"],
)
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    if request.param == "real":
        with toxiproxy_endpoint() as found:
            yield found
    else:
        with ToxiproxyThread(seed=5) as server:
            yield Endpoint(url=server.url, kind="embedded", version=ToxiproxyClient(server.url).version())


class Api:
    """Bare HTTP, so that the bytes of the answers are seen."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        try:
            return answer.status, json.loads(text), answer
        except ValueError:
            return answer.status, text, answer

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call(method, path, body)[:2]


@pytest.fixture
def api(endpoint: Endpoint) -> Iterator[Api]:
    api = Api(endpoint.url)
    yield api
    for name in api("GET", "/proxies")[1]:
        assert api("DELETE", f"/proxies/{name}")[0] == 204


def dial(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ends(connection: socket.socket) -> bool:
    """Whether the peer ended the connection, in whatever way."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


# Proxies


def test_the_life_of_a_proxy(api: Api, echo: str) -> None:
    assert api("GET", "/proxies") == (200, {})
    status, proxy = api("POST", "/proxies", {"name": "p", "upstream": echo, "listen": "127.0.0.1:0"})
    assert status == 201
    assert {key: proxy[key] for key in ("name", "upstream", "enabled", "toxics")} == {
        "name": "p",
        "upstream": echo,
        "enabled": True,
        "toxics": [],
    }
    assert not proxy["listen"].endswith(":0"), "the real port comes back"
    status, listed = api("GET", "/proxies")
    assert status == 200
    assert listed["p"]["listen"] == proxy["listen"]
    with dial(proxy["listen"]) as client:
        client.sendall(b"hello")
        assert client.recv(5) == b"hello"
        assert api("DELETE", "/proxies/p")[0] == 204
        assert ends(client)
    assert api("GET", "/proxies/p") == (404, {"error": "proxy not found", "status": 404})


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"upstream": "127.0.0.1:1"}, 400, "missing required field: name"),
        ({"name": "x"}, 400, "missing required field: upstream"),
        (b"{", 400, "bad request body: "),
        ({"name": 5, "upstream": "127.0.0.1:1"}, 400, "bad request body: "),
        (b"null", 400, "missing required field: name"),
        (
            {"name": "x", "upstream": "127.0.0.1:1", "listen": "nonsense"},
            500,
            "listen tcp: address nonsense: missing port",
        ),
    ],
)
def test_bad_proxies(api: Api, body: Any, status: int, error: str) -> None:
    got, answer, response = api.call("POST", "/proxies", body)
    assert got == status
    assert answer["error"].startswith(error)
    assert answer["status"] == status
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_taken_name_and_a_taken_port(api: Api, echo: str) -> None:
    listen = api("POST", "/proxies", {"name": "a", "upstream": echo, "listen": "127.0.0.1:0"})[1]["listen"]
    assert api("POST", "/proxies", {"name": "a", "upstream": echo}) == (
        409,
        {"error": "proxy already exists", "status": 409},
    )
    status, answer = api("POST", "/proxies", {"name": "b", "upstream": echo, "listen": listen})
    assert status == 500
    assert answer["error"] == f"listen tcp {listen}: bind: address already in use"
    assert "b" not in api("GET", "/proxies")[1], "it is not kept"


def test_disable_refuses_and_drops_and_enable_listens_on_the_same_port(api: Api, echo: str) -> None:
    listen = api("POST", "/proxies", {"name": "p", "upstream": echo, "listen": "127.0.0.1:0"})[1]["listen"]
    client = dial(listen)
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    assert api("POST", "/proxies/p", {"enabled": False})[1]["enabled"] is False
    assert ends(client)
    client.close()
    with pytest.raises(ConnectionRefusedError):
        dial(listen)
    status, proxy = api("PATCH", "/proxies/p", {"enabled": True})
    assert (status, proxy["listen"]) == (200, listen)
    with dial(listen) as again:
        again.sendall(b"y")
        assert again.recv(1) == b"y"


def test_a_new_upstream_drops_connections_and_put_is_not_allowed(api: Api, echo: str) -> None:
    listen = api("POST", "/proxies", {"name": "p", "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0"})[1]["listen"]
    with dial(listen) as client:
        assert ends(client), "an upstream that refuses: accepted, then closed"
    status, proxy = api("PATCH", "/proxies/p", {"upstream": echo})
    assert (status, proxy["upstream"]) == (200, echo)
    with dial(proxy["listen"]) as client:
        client.sendall(b"z")
        assert client.recv(1) == b"z"
    assert api("PUT", "/proxies/p", {})[0] == 405
    assert api("PATCH", "/proxies/none", {})[0] == 404


def test_populate(api: Api, echo: str) -> None:
    wanted = [
        {"name": "a", "listen": "127.0.0.1:0", "upstream": echo},
        {"name": "off", "listen": "127.0.0.1:0", "upstream": echo, "enabled": False},
    ]
    status, answer = api("POST", "/populate", wanted)
    assert status == 201
    assert [proxy["name"] for proxy in answer["proxies"]] == ["a", "off"]
    assert answer["proxies"][1]["enabled"] is False
    assert answer["proxies"][1]["listen"] == "127.0.0.1:0"
    listen = answer["proxies"][0]["listen"]
    with dial(listen) as client:
        client.sendall(b"1")
        assert client.recv(1) == b"1"
        same = [{"name": "a", "listen": listen, "upstream": echo}]
        assert api("POST", "/populate", same)[0] == 201
        client.sendall(b"2")
        assert client.recv(1) == b"2", "the same proxy is left alone"
    status, answer = api("POST", "/populate", [{"name": "c", "upstream": echo, "listen": listen}])
    assert status == 500
    assert answer["proxies"] is None
    assert api("POST", "/populate", [{"upstream": echo}]) == (
        400,
        {"error": "missing required field: name at proxy 1", "status": 400, "proxies": None},
    )
    assert api("POST", "/populate", []) == (201, {"proxies": None})


# Toxics


@pytest.fixture
def proxied(api: Api, echo: str) -> str:
    return str(api("POST", "/proxies", {"name": "p", "upstream": echo, "listen": "127.0.0.1:0"})[1]["listen"])


def test_the_life_of_a_toxic(api: Api, proxied: str) -> None:
    status, toxic = api("POST", "/proxies/p/toxics", {"type": "latency", "attributes": {"latency": 40}})
    assert status == 200
    assert toxic == {
        "name": "latency_downstream",
        "type": "latency",
        "stream": "downstream",
        "toxicity": 1,
        "attributes": {"latency": 40, "jitter": 0},
    }
    assert api("GET", "/proxies/p/toxics") == (200, [toxic])
    assert api("GET", "/proxies/p/toxics/latency_downstream") == (200, toxic)
    status, changed = api("PATCH", "/proxies/p/toxics/latency_downstream", {"attributes": {"jitter": 5}})
    assert changed["attributes"] == {"latency": 40, "jitter": 5}, "what is not named keeps its value"
    status, changed = api("POST", "/proxies/p/toxics/latency_downstream", {"toxicity": 0.5, "name": "other"})
    assert (status, changed["toxicity"], changed["name"]) == (200, 0.5, "latency_downstream")
    assert api("GET", "/proxies/p")[1]["toxics"] == [changed]
    assert api("DELETE", "/proxies/p/toxics/latency_downstream")[0] == 204
    assert api("GET", "/proxies/p/toxics/latency_downstream") == (404, {"error": "toxic not found", "status": 404})


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"type": "nonsense"}, 400, "invalid toxic type"),
        ({}, 400, "invalid toxic type"),
        (None, 400, "bad request body: "),
        ({"type": "latency", "stream": ""}, 400, "stream was invalid, can be either upstream or downstream"),
        ({"type": "latency", "stream": "sideways"}, 400, "stream was invalid, can be either upstream or downstream"),
        ({"type": "latency", "attributes": {"latency": "much"}}, 400, "bad request body: "),
        (b"[", 400, "bad request body: "),
    ],
)
def test_bad_toxics(api: Api, proxied: str, body: Any, status: int, error: str) -> None:
    got, answer = api("POST", "/proxies/p/toxics", body)
    assert (got, answer["status"]) == (status, status)
    assert answer["error"].startswith(error)
    assert api("GET", "/proxies/p/toxics") == (200, [])


def test_odd_values_are_taken_as_toxiproxy_takes_them(api: Api, proxied: str) -> None:
    odd = {"type": "latency", "toxicity": 5, "attributes": {"latency": -5, "colour": "blue"}}
    status, toxic = api("POST", "/proxies/p/toxics", odd)
    assert (status, toxic["attributes"]) == (200, {"latency": -5, "jitter": 0})
    assert api("POST", "/proxies/p/toxics", {"type": "latency"}) == (
        409,
        {"error": "toxic already exists", "status": 409},
    )


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


def test_reset_removes_toxics_and_enables(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "timeout"})
    api("POST", "/proxies/p", {"enabled": False})
    assert api("POST", "/reset")[0] == 204
    proxy = api("GET", "/proxies/p")[1]
    assert (proxy["enabled"], proxy["toxics"]) == (True, [])


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


def test_version_unknown_paths_and_browsers(api: Api) -> None:
    status, version, response = api.call("GET", "/version")
    assert status == 200
    assert version["version"]
    assert response.headers["content-type"] == "application/json;charset=utf-8"
    assert response.headers["x-toxiproxy-request-id"]
    assert api("GET", "/nothing")[0] == 404
    status, text, _ = api.call("GET", "/proxies", None, user_agent="Mozilla/5.0")
    assert status == 403
    assert b"User agent not allowed" in text


# The embedded server alone


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
    with socket.create_connection(embedded.address, timeout=5) as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")
        while client.recv(1_000):
            pass


def test_one_connection_serves_many_requests(embedded: Api) -> None:
    connection = http.client.HTTPConnection(*embedded.address, timeout=5)
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


# Clients


def test_toxiproxy_python_works_unmodified(endpoint: Endpoint, api: Api, echo: str) -> None:
    server = toxiproxy.Toxiproxy()
    server.update_api_consumer(*api.address)
    assert server.running()
    assert b"version" in server.version()
    proxy = server.create(upstream=echo, name="drop-in")
    with pytest.raises(ProxyExists):
        server.create(upstream=echo, name="drop-in")
    assert server.get_proxy("drop-in").listen == proxy.listen
    proxy.add_toxic(type="latency", attributes={"latency": 30, "jitter": 1})
    proxy.add_toxic(name="cap", type="limit_data", stream="upstream", toxicity=0.0, attributes={"bytes": 9})
    assert {name: toxic.type for name, toxic in proxy.toxics().items()} == {
        "latency_downstream": "latency",
        "cap": "limit_data",
    }
    assert proxy.get_toxic("cap").toxicity == 0.0
    with pytest.raises(InvalidToxic):
        proxy.add_toxic(type="nonsense")
    with pytest.raises(NotFound):
        proxy.destroy_toxic("nothing")
    assert proxy.destroy_toxic("cap")
    with dial(proxy.listen) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    with proxy.down(), pytest.raises(ConnectionRefusedError):
        dial(proxy.listen)
    assert server.reset()
    assert proxy.toxics() == {}
    created = server.populate([{"name": "two", "upstream": echo, "listen": "127.0.0.1:0"}])
    assert [one.name for one in created] == ["two"]
    server.destroy_all()
    assert server.proxies() == {}


def test_our_client(endpoint: Endpoint, api: Api, echo: str) -> None:
    client = ToxiproxyClient(endpoint.url)
    assert client.version() == endpoint.version
    address = client.create("mine", echo)
    assert client.create("mine", echo) != ("", 0), "a stale proxy of that name is replaced"
    client.add_toxic("mine", "slow", "latency", "downstream", {"latency": 10_000})
    client.update_toxic("mine", "slow", {"latency": 1})
    assert api("GET", "/proxies/mine/toxics/slow")[1]["attributes"] == {"latency": 1, "jitter": 0}
    with pytest.raises(ToxiproxyError) as caught:
        client.add_toxic("mine", "bad", "nonsense", "upstream", {})
    assert caught.value.status == 400
    assert "invalid toxic type" in str(caught.value)
    with pytest.raises(ToxiproxyError) as caught:
        client.update_toxic("mine", "nothing", {})
    assert caught.value.status == 404
    client.remove_toxic("mine", "slow")
    host, port = client.create("mine", echo)
    assert address != (host, port)
    with dial(f"{host}:{port}") as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        client.cut_connections("mine")
        assert ends(connection)
    client.destroy("mine")
    assert api("GET", "/proxies")[1] == {}


def test_an_absent_server_is_an_error_that_names_it() -> None:
    with pytest.raises(ToxiproxyError, match=r"127\.0\.0\.1:1"), toxiproxy_endpoint("http://127.0.0.1:1"):
        pass


def test_an_address_that_is_none() -> None:
    with pytest.raises(ToxiproxyError, match="not the address"):
        ToxiproxyClient("127.0.0.1:8474")


def test_the_struct_of_an_endpoint_is_plain(endpoint: Endpoint) -> None:
    assert set(msgspec.to_builtins(endpoint)) == {"url", "kind", "version"}
