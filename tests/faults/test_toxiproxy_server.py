"""The contract of toxiproxy's HTTP API, held against the embedded server and against a real one where there is one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from assay.faults.toxiproxy import Endpoint, ToxiproxyClient, ToxiproxyError, toxiproxy_endpoint
from tests.faults.toxiproxy_bench import Api, dial, ends

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


def test_reset_removes_toxics_and_enables(api: Api, proxied: str) -> None:
    api("POST", "/proxies/p/toxics", {"type": "timeout"})
    api("POST", "/proxies/p", {"enabled": False})
    assert api("POST", "/reset")[0] == 204
    proxy = api("GET", "/proxies/p")[1]
    assert (proxy["enabled"], proxy["toxics"]) == (True, [])


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
