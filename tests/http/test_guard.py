"""What every request passes: host, origin, path, content type, sizes, time, and how many there are."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.waiting import Slots
from assay.reference_broker.http.guard import check_origin, path_of
from tests.http.conftest import Served, serve

WAIT_S = 20.0


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/health", "/health"),
        (b"/api/v1/queues/a%2Fb/stats", "/api/v1/queues/a\0b/stats"),
        (b"/topics/t", "/api/v1/topics/t"),
        (b"/v1/topics/t%C3%A9", "/api/v1/topics/té"),
        (b"/v1/health", "/health"),
        (b"/v1", "/v1"),
        (b"//topics", "//topics"),
    ],
)
def test_paths_lead_to_one_place(raw: bytes, path: str) -> None:
    assert path_of(raw) == path


@pytest.mark.parametrize("raw", [b"/a%00b", b"/%ff", b"/a b", b"*", b"", "/é".encode()])
def test_a_path_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        path_of(raw)
    assert caught.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({b"host": b"broker:8080"}, False),
        ({b"host": b"broker:8080", b"origin": b"http://broker:8080"}, False),
        ({b"host": b"broker:8080", b"origin": b"https://Broker:8080", b"sec-fetch-site": b"same-origin"}, False),
        ({b"host": b"broker:8080", b"origin": b"http://broker:9090"}, True),
        ({b"host": b"broker:8080", b"origin": b"null"}, True),
        ({b"host": b"broker:8080", b"sec-fetch-site": b"cross-site"}, True),
        ({b"host": b"broker:8080", b"sec-fetch-site": b"same-site"}, True),
        ({b"host": b"broker:8080", b"sec-fetch-site": b"none"}, False),
        ({b"host": b"", b"origin": b"http://[::1"}, True),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[bytes, bytes], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(RequestError) as caught:
            check_origin(headers)
        assert caught.value.code is Code.CROSS_SITE
    else:
        check_origin(headers)


def test_a_page_of_another_site_gets_nothing(served: Served) -> None:
    answer = served.client().get("/api/v1/version", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    assert answer.json()["code"] == "cross_site"
    assert "access-control-allow-origin" not in answer.headers


def test_a_listener_on_loopback_answers_to_its_own_names_only(served: Served) -> None:
    client = served.client()
    for host in ("localhost", "127.0.0.1:80", "[::1]", "LOCALHOST:1"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        answer = client.get("/health", headers={"host": host})
        assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")
    assert served.client(1).get("/health", headers={"host": "broker.example"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_can_send_is_refused(served: Served, kind: str) -> None:
    answer = served.client().post("/api/v1/queues", content=b'{"name": "q"}', headers={"content-type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "media_type")


def test_an_unknown_path_and_method_say_so(served: Served) -> None:
    client = served.client()
    answer = client.get("/nowhere")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    answer = client.put("/health")
    assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (405, "method_not_allowed", "GET")


def _raw(url: str, data: bytes) -> bytes:
    """What is answered to bytes, until the broker closes."""
    target = httpx.URL(url)
    with socket.create_connection((target.host, target.port or 80), WAIT_S) as connection:
        connection.sendall(data)
        answer = b""
        while more := connection.recv(65_536):
            answer += more
        return answer


def test_what_is_not_http_is_answered_once(served: Served) -> None:
    answer = _raw(served.urls[0], b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


@contextmanager
def _serving(**http: object) -> Iterator[Served]:
    with serve(**http) as broker:
        made = Served(broker)
        yield made
        made.close()


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A broker whose limits are reached soon."""
    with _serving(max_body_bytes=1_000, max_header_bytes=1_024) as served:
        yield served


@pytest.fixture(scope="module")
def hasty() -> Iterator[Served]:
    """A broker that does not wait long for the rest of a request; long enough for one that came whole to be read."""
    with _serving(header_timeout_s=0.3, body_timeout_s=0.3) as served:
        yield served


def test_a_body_over_the_limit_is_refused(small: Served) -> None:
    client = small.client()
    for content in (b"x" * 1_001, iter([b"x" * 600, b"x" * 600])):
        answer = client.post("/api/v1/queues", content=content, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    head = b"POST /api/v1/queues HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    assert _raw(small.urls[0], head + b"content-length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_head_over_the_limit_is_refused(small: Served) -> None:
    answer = _raw(small.urls[0], b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 2_000 + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer


def test_a_head_that_does_not_come_ends_the_connection(hasty: Served) -> None:
    assert _raw(hasty.urls[0], b"GET /health HTTP/1.1\r\nhost: loc") == b""
    answer = _raw(hasty.urls[0], b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /heal")
    assert answer.count(b"HTTP/1.1 200 ") == 1


def test_a_body_that_does_not_come_is_refused(hasty: Served) -> None:
    head = b"POST /api/v1/queues HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = _raw(hasty.urls[0], head + b"content-length: 10\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_requests_at_once_are_bounded() -> None:
    head = b"POST /api/v1/queues HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with _serving(max_requests=1) as served:
        target = httpx.URL(served.urls[0])
        with socket.create_connection((target.host, target.port or 80), WAIT_S) as first:
            first.sendall(head + b"content-length: 14\r\nexpect: 100-continue\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 100 ")
            answer = served.client().get("/health")
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "busy", "1")
            first.sendall(b'{"name":"one"}')
            assert first.recv(100).startswith(b"HTTP/1.1 201 ")
        assert served.client().get("/health").status_code == 200


def test_bodies_together_are_bounded() -> None:
    head = b"POST /api/v1/queues HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with _serving(max_held_bytes=20) as served:
        target = httpx.URL(served.urls[0])
        with socket.create_connection((target.host, target.port or 80), WAIT_S) as first:
            first.sendall(head + b"content-length: 14\r\nexpect: 100-continue\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 100 ")
            assert served.client().post("/api/v1/queues", json={"name": "two"}).status_code == 503
            empty = {"content-type": "application/json", "content-length": "0"}
            assert served.client().post("/api/v1/queues/none/purge", headers=empty).status_code == 404
            first.sendall(b'{"name":"one"}')
            assert first.recv(100).startswith(b"HTTP/1.1 201 ")
        assert served.client().post("/api/v1/queues", json={"name": "two"}).status_code == 201


def test_who_asks_too_often_waits() -> None:
    with _serving(requests_per_s=0.001, request_burst=3) as served:
        client = served.client()
        assert [client.get("/api/v1/version").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert client.get("/health").status_code == 200


def test_who_waits_leaves_room_to_others() -> None:
    slots = Slots(1, "requests")
    with slots.take():
        with pytest.raises(RequestError), slots.take():
            pass
        with slots.leave(), slots.take():
            pass
    assert slots.taken == 0


@pytest.mark.parametrize("path", ["/health", "/absent", "/api/v1/queues/absent/stats"])
def test_every_answer_has_the_id_of_its_request(served: Served, path: str) -> None:
    client = served.client()
    assert client.get(path, headers={"x-request-id": "proxy/1:a"}).headers["x-request-id"] == "proxy/1:a"
    made = [client.get(path, headers=headers).headers["x-request-id"] for headers in ({}, {"x-request-id": "a b"})]
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in made)
    assert made[0] != made[1]


def test_the_log_tells_of_requests_when_it_is_asked_to_and_of_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "assay.broker"), serve() as broker:
        url = next(each.url for each in broker.addresses if each.scheme == "http")
        headers = {"x-request-id": "r1", "authorization": "Bearer hidden"}
        assert httpx.get(f"{url}/api/v1/queues?token=hidden", headers=headers).status_code == 401
    (told,) = (record.getMessage() for record in caplog.records if "request r1 " in record.getMessage())
    assert re.fullmatch(r"request r1 of 127\.0\.0\.1: GET /api/v1/queues: 401, [0-9.]+ ms", told)
    assert "hidden" not in "".join(record.getMessage() for record in caplog.records)
    quiet = len(caplog.records)
    with caplog.at_level(logging.INFO, "assay.broker"), serve() as broker:
        httpx.get(next(each.url for each in broker.addresses if each.scheme == "http") + "/health")
    assert not any(record.getMessage().startswith("request ") for record in caplog.records[quiet:])
