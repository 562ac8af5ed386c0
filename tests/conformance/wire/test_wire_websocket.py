"""The suite's own WebSocket: examples of RFC 6455, frames however they are cut, and what a server must not send."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request

from assay.conformance.wire.websocket import (
    MAX_HEAD_BYTES,
    Frame,
    FrameReader,
    Opcode,
    ResponseReader,
    WebSocketError,
    accept_value,
    encode_frame,
    request,
)

RFC_KEY = base64.b64decode("dGhlIHNhbXBsZSBub25jZQ==")
MASK = bytes.fromhex("37fa213d")


def test_the_examples_of_the_rfc() -> None:
    assert accept_value(RFC_KEY) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert encode_frame(Opcode.TEXT, b"Hello", mask=MASK).hex() == "818537fa213d7f9f4d5158"
    assert encode_frame(Opcode.TEXT, b"Hello", mask=None).hex() == "810548656c6c6f"
    assert encode_frame(Opcode.BINARY, bytes(256), mask=None)[:4].hex() == "827e0100"
    assert encode_frame(Opcode.BINARY, bytes(65_536), mask=None)[:10].hex() == "827f0000000000010000"


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=5), st.integers(1, 50))
def test_frames_are_read_however_they_are_cut(payloads: list[bytes], piece_bytes: int) -> None:
    stream = b"".join(encode_frame(Opcode.BINARY, payload, mask=None) for payload in payloads)
    reader = FrameReader()
    found = [frame for at in range(0, len(stream), piece_bytes) for frame in reader.feed(stream[at : at + piece_bytes])]
    assert found == [Frame(opcode=Opcode.BINARY, payload=payload) for payload in payloads]


@given(st.binary(max_size=70_000), st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4))
def test_another_implementation_reads_what_is_written(payload: bytes, key: bytes, mask: bytes) -> None:
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(request("broker:80", "/mqtt", key))
    (asked,) = server.events()
    assert isinstance(asked, Request)
    assert asked.subprotocols == ["mqtt"]
    answer = server.send(AcceptConnection(subprotocol="mqtt"))
    done = ResponseReader().feed(answer + b"\x82\x01x")
    assert done is not None
    response, rest = done
    assert (response.status, response.header("Sec-WebSocket-Protocol"), rest) == (101, "mqtt", b"\x82\x01x")
    assert response.header("sec-websocket-accept") == accept_value(key)
    server.receive_data(encode_frame(Opcode.BINARY, payload, mask=mask))
    parts = [event.data for event in server.events() if isinstance(event, BytesMessage)]
    assert b"".join(parts) == payload


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ("8185" + "37fa213d7f9f4d5158", "not masked"),
        ("c20100", "reserved bit"),
        ("830100", "reserved"),
        ("0900", "PING frame is cut"),
        ("897e0080", "has 128 bytes"),
        ("8000", "outside a message"),
        ("02008200", "within a message"),
        ("827f0000000100000000", "a frame of 4294967296 bytes"),
    ],
)
def test_what_a_server_must_not_send_is_refused(frames: str, complaint: str) -> None:
    with pytest.raises(WebSocketError, match=complaint):
        FrameReader().feed(bytes.fromhex(frames))


def test_control_frames_may_stand_within_a_message() -> None:
    kinds = [frame.opcode for frame in FrameReader().feed(bytes.fromhex("0200" + "8900" + "8000"))]
    assert kinds == [Opcode.BINARY, Opcode.PING, Opcode.CONTINUATION]


def test_a_response_is_read_to_its_end_and_no_further_than_the_limit() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n") is None
    done = reader.feed(b"\r\n")
    assert done is not None
    assert done[0].status == 400
    with pytest.raises(WebSocketError, match="not an HTTP response"):
        ResponseReader().feed(b"\x20\x02\x00\x00\r\n\r\n")
    with pytest.raises(WebSocketError, match="no end"):
        ResponseReader().feed(b"x" * (MAX_HEAD_BYTES + 1))
