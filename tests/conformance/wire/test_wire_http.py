"""HTTP/1.1 as the suites read it: every way to frame a body, however the bytes are cut."""

from __future__ import annotations

import pytest

from assay.conformance.wire import http
from assay.conformance.wire.http import AnswerReader, MalformedHttpError, encode_request

ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello", 200, b"hello"),
    "no reason": (b"HTTP/1.0 404\r\ncontent-length: 0\r\n\r\n", 404, b""),
    "chunks": (
        b"HTTP/1.1 207 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n",
        207,
        b"hello",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok", 201, b"ok"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_an_answer_is_read_however_it_is_cut(name: str, size: int) -> None:
    data, status, body = ANSWERS[name]
    reader = AnswerReader()
    found = [answer for at in range(0, 2 * len(data), size) for answer in reader.feed((data + data)[at : at + size])]
    assert [(answer.head.status, answer.body) for answer in found] == [(status, body)] * 2
    assert reader.end() is None


def test_headers_are_joined_whatever_their_case() -> None:
    (answer,) = AnswerReader().feed(ANSWERS["length"][0])
    assert answer.head.header("x-a") == "1, 2"
    assert answer.head.header("none") == ""


def test_a_body_may_end_with_its_connection_and_an_answer_to_head_has_none() -> None:
    reader = AnswerReader()
    assert list(reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel")) == []
    assert list(reader.feed(b"lo")) == []
    last = reader.end()
    assert last is not None
    assert last.body == b"hello"
    reader.expect("HEAD")
    (answer,) = reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    assert answer.body == b""


def test_parts_of_a_stream_are_passed_on_and_an_upgrade_is_raw() -> None:
    reader = AnswerReader()
    assert list(reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")) == []
    assert (reader.take_part(), reader.take_part()) == (b"abc", b"")
    raw = AnswerReader()
    (answer,) = raw.feed(b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x81\x01")
    raw.becomes_raw()
    assert answer.head.status == 101
    assert list(raw.feed(b"x")) == []
    assert raw.take_part() == b"\x81\x01x"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        b"x" * (http.MAX_HEAD_BYTES + 1),
    ],
)
def test_what_is_no_http_is_told(data: bytes) -> None:
    with pytest.raises(MalformedHttpError):
        list(AnswerReader().feed(data))


def test_an_answer_that_is_cut_off_is_told_and_a_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AnswerReader()
    list(reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel"))
    with pytest.raises(MalformedHttpError, match="middle"):
        reader.end()
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 10)
    with pytest.raises(MalformedHttpError, match="more than 10"):
        list(AnswerReader().feed(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11))


def test_a_request_has_its_length() -> None:
    assert (
        encode_request("POST", "/a", {"host": "h"}, b"xy")
        == b"POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nxy"
    )
    assert encode_request("GET", "/a", [("host", "h")]) == b"GET /a HTTP/1.1\r\nhost: h\r\n\r\n"
