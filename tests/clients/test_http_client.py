"""The client of HTTP: on a broker, and on a server that answers as it is told."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import trustme

from assay.reference_broker.broker import Broker
from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.clients.shared import RefusedError, UnreachableError
from assay.reference_broker.config import BrokerConfig, ListenerConfig, ListenerProtocol, TlsConfig
from tests.http.conftest import secured, serve

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def problem(status: int, code: str, retry_after: str = "") -> bytes:
    content = msgspec.json.encode({"code": code, "detail": f"it is {code}"})
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/problem+json\r\ncontent-length: {len(content)}\r\n"
    return (head + (f"retry-after: {retry_after}\r\n" if retry_after else "") + "\r\n").encode() + content


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a broker without users."""
    with serve() as broker:
        yield broker.addresses[1].url


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Of one with users."""
    with serve(secured()) as broker:
        yield broker.addresses[1].url


CUT = b""
"""In place of an answer the connection ends."""


class Script:
    """A server that gives each request the next answer; behind ``CUT`` and what says so, the connection ends."""

    def __init__(self, answers: list[bytes], *, closes: bool = False) -> None:
        self.requests: list[str] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self._answers = list(answers)
        self._closes = closes
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream:
                while self._answers and (line := stream.readline()):
                    head = line + b"".join(iter(stream.readline, b"\r\n"))
                    length = re.search(rb"(?i)content-length: (\d+)", head)
                    stream.read(int(length[1]) if length else 0)
                    self.requests.append(line.split()[0].decode())
                    self.heads.append(head)
                    answer = self._answers.pop(0)
                    connection.sendall(answer)
                    if answer == CUT or self._closes:
                        break

    def close(self) -> None:
        self._answers.clear()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


@contextmanager
def scripted(*answers: bytes, closes: bool = False) -> Iterator[Script]:
    script = Script(list(answers), closes=closes)
    try:
        yield script
    finally:
        script.close()


# -- a broker --------------------------------------------------------------------------------------------------------


def test_a_program_publishes_consumes_and_settles(url: str) -> None:
    got: list[bytes] = []
    with HttpQueues(url, client_id="program") as queues:
        queues.create_queue("jobs/a", partitions=1)
        place = queues.publish("jobs/a", b"first", key="k", headers={"a": "b"}, partition=0)
        assert (place.message_id, place.offset) == ("jobs/a:0:0", 0)
        assert queues.publish_many("jobs/a", [b"second", b"\xff"]) == 2
        for message in queues.consume("jobs/a", "workers", max_in_flight=2):
            if not got:
                assert (message.key, message.headers, message.delivery_count) == ("k", {"a": "b"}, 1)
            if message.payload == b"second" and message.delivery_count == 1:
                queues.nack(message)
                continue
            got.append(message.payload)
            queues.ack(message)
            if len(got) == 3:
                break
        with pytest.raises(RefusedError) as refused:
            queues.ack(message)
        assert (refused.value.code, refused.value.status) == ("not_pending", 404)
        stats = queues.ask("GET", path("/queues/{queue}/stats", queue="jobs/a"))
        assert (stats["depth"], stats["consumers"]) == (0, 0), "it left with its loop"
        queues.delete_queue("jobs/a")
    assert sorted(got) == [b"first", b"second", b"\xff"]


def test_what_is_refused_says_how_many_are_published_all_the_same(url: str) -> None:
    with HttpQueues(url) as queues:
        queues.ask("POST", "/queues", body={"name": "small", "settings": {"max_depth": 2, "partitions": 1}})
        with pytest.raises(RefusedError) as refused:
            queues.publish_many("small", [b"1", b"2", b"3"])
        assert (refused.value.code, refused.value.details["published"]) == ("full", "2")
        with pytest.raises(RefusedError) as refused:
            queues.publish("small", b"4")
        assert (refused.value.code, refused.value.details["published"]) == ("full", "0")
        queues.delete_queue("small")


def test_who_may_not_is_told_so(guarded: str) -> None:
    def code(**who: str) -> str:
        with HttpQueues(guarded, **who) as queues, pytest.raises(RefusedError) as refused:  # type: ignore[arg-type]
            queues.create_queue("mine")
        return refused.value.code

    assert code() == "unauthenticated"
    assert code(token="assay_reader") == "not_allowed"
    assert code(username="ann", password="wrong") == "unauthenticated"
    with HttpQueues(guarded, token="assay_admin") as queues:
        queues.create_queue("mine")
    with HttpQueues(guarded, username="ann", password="secret") as queues:
        assert queues.publish("mine", b"x").offset == 0


def test_certificates_are_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = TlsConfig(certificate=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))
    listener = ListenerConfig(port=0, tls=tls, protocols=(ListenerProtocol.HTTP,))
    with Broker(BrokerConfig(listeners=(listener,))) as broker:
        url = broker.addresses[0].url
        with HttpQueues(url, authority=authority.cert_pem.bytes()) as queues:
            assert queues.ask("GET", "/queues") == {"queues": []}
        with HttpQueues(url) as queues, pytest.raises(UnreachableError, match=r"TLS with .* fails"):
            queues.ask("GET", "/queues")


# -- whatever is answered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_means_the_same_twice_is_sent_again_when_the_broker_says_so(method: str) -> None:
    with scripted(problem(503, "storage_failed", "0"), OK) as script, HttpQueues(script.url) as queues:
        assert queues.ask(method, "/x") == {}
    assert script.requests == [method] * 2
    assert script.connections == 1


def test_a_post_is_sent_again_only_when_nothing_was_done_with_it() -> None:
    refusals = (problem(429, "rate_limit", "0"), problem(503, "busy", "0"))
    with scripted(*refusals, OK) as script, HttpQueues(script.url) as queues:
        assert queues.ask("POST", "/x", body={}) == {}
    assert script.requests == ["POST"] * 3
    with (
        scripted(problem(503, "storage_failed", "0"), OK) as script,
        HttpQueues(script.url) as queues,
        pytest.raises(RefusedError) as refused,
    ):
        queues.ask("POST", "/x", body={})
    assert (refused.value.code, refused.value.text, refused.value.status) == (
        "storage_failed",
        "it is storage_failed",
        503,
    )
    assert script.requests == ["POST"]


def test_it_does_not_go_on_for_ever_and_not_beyond_its_time() -> None:
    with (
        scripted(*[problem(503, "busy", "0")] * 9) as script,
        HttpQueues(script.url) as queues,
        pytest.raises(RefusedError, match="busy"),
    ):
        queues.ask("GET", "/x")
    assert len(script.requests) == 4
    with (
        scripted(problem(503, "busy", "60"), OK) as script,
        HttpQueues(script.url, timeout_s=5) as queues,
        pytest.raises(RefusedError) as refused,
    ):
        queues.ask("GET", "/x")
    assert refused.value.retry_after_s == 60
    assert len(script.requests) == 1
    with (
        scripted(problem(503, "busy", "Fri, 31 Dec 1999 23:59:59 GMT")) as script,
        HttpQueues(script.url) as queues,
        pytest.raises(RefusedError) as refused,
    ):
        queues.ask("GET", "/x")
    assert refused.value.retry_after_s is None


@pytest.mark.parametrize(("method", "again"), [("GET", True), ("PUT", True), ("POST", False), ("DELETE", False)])
def test_a_lost_connection_is_made_again_for_what_means_the_same(method: str, again: bool) -> None:
    with scripted(CUT, OK) as script, HttpQueues(script.url) as queues:
        if again:
            assert queues.ask(method, "/x") == {}
        else:
            with pytest.raises(UnreachableError, match="no broker answers"):
                queues.ask(method, "/x")
    assert script.requests == [method] * (2 if again else 1)


def test_a_connection_that_ended_while_nothing_was_asked_is_made_again_for_a_post_too() -> None:
    with scripted(OK, OK, closes=True) as script, HttpQueues(script.url) as queues:
        assert queues.ask("POST", "/x") == {}
        assert queues._connection.sock is not None
        queues._connection.sock.settimeout(5)
        assert queues._connection.sock.recv(1, socket.MSG_PEEK) == b"", "the end has come"
        assert queues.ask("POST", "/x") == {}
    assert script.connections == 2


def test_nobody_there_is_said_at_once_and_how_it_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with HttpQueues(f"127.0.0.1:{port}") as queues, pytest.raises(UnreachableError, match="no broker answers at http:"):
        queues.ask("GET", "/x")


def test_an_answer_that_does_not_come_or_drips_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with HttpQueues(url, timeout_s=0.05) as queues, pytest.raises(UnreachableError, match="in time"):
            queues.ask("GET", "/x")
    half = OK.replace(b"length: 2", b"length: 9")
    with (
        scripted(half, OK) as script,
        HttpQueues(script.url, timeout_s=0.05) as queues,
        pytest.raises(UnreachableError, match="in time"),
    ):
        queues.ask("POST", "/x")


def test_an_answer_that_was_cut_is_none() -> None:
    cut = OK.replace(b"length: 2", b"length: 9").replace(b"application/json", b"text/plain")
    with scripted(cut, OK, closes=True) as script, HttpQueues(script.url) as queues:
        assert queues.ask("GET", "/x") == {}
    with scripted(cut, OK, closes=True) as script, HttpQueues(script.url) as queues, pytest.raises(UnreachableError):
        queues.ask("POST", "/x")
    assert script.requests == ["POST"]


def test_an_answer_is_bounded() -> None:
    large = OK.replace(b"length: 2", b"length: 1000").replace(b"{}", b"x" * 1_000)
    with scripted(large, OK) as script, HttpQueues(script.url, max_answer_bytes=999) as queues:
        with pytest.raises(RefusedError) as refused:
            queues.ask("GET", "/x")
        assert refused.value.code == "answer_too_large"
        assert queues.ask("GET", "/x") == {}, "nothing of it is taken for the next answer"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (OK.replace(b"{}", b"{]"), "bad_answer"),
        (OK.replace(b"200 OK", b"302 Found"), "http_302"),
        (b"HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<a>", "http_502"),
        (b"\x20\x02\x00\x00\r\n\r\n", "unreachable"),
    ],
)
def test_what_is_no_answer_of_a_broker_is_an_error(answer: bytes, code: str) -> None:
    with (
        scripted(answer, closes=True) as script,
        HttpQueues(script.url) as queues,
        pytest.raises(RefusedError) as refused,
    ):
        queues.ask("POST", "/x")
    assert refused.value.code == code


def test_names_are_quoted_and_queries_written() -> None:
    assert path("/queues/{queue}/x", queue="a/b c?#%") == "/queues/a%2Fb%20c%3F%23%25/x"
    with scripted(OK) as script, HttpQueues(f"{script.url}/behind/a/proxy/", token="t") as queues:
        queues.ask("GET", "/x", query={"flag": True, "none": None, "text": "a&b"})
    assert script.heads[0].startswith(b"GET /behind/a/proxy/api/v1/x?flag=true&text=a%26b HTTP/1.1\r\n")
    assert b"authorization: Bearer t\r\n" in script.heads[0]


@pytest.mark.parametrize("target", ["ftp://x", "http://", "http://x?y=1", "mqtt://127.0.0.1:1883", "http://x:port"])
def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(ValueError):
        HttpQueues(target)


def test_an_address_is_told_without_the_password_in_it() -> None:
    assert HttpQueues("http://ann:secret@127.0.0.1:1/base/").target == "http://127.0.0.1:1/base"
