"""The WebSocket server side without a socket, against wsproto's client side."""

from __future__ import annotations

import base64
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong, RejectConnection, Request
from wsproto.frame_protocol import CloseReason

from assay.reference_broker.config import ConfigError, WebSocketConfig, parse_config
from assay.reference_broker.server.websocket import (
    MAX_FRAMES,
    MAX_OUTGOING_MESSAGE_BYTES,
    WebSocketPhase,
    WebSocketServer,
)

KEY = base64.b64encode(bytes(16)).decode()
HEAD = [
    "Host: broker.example",
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    f"Sec-WebSocket-Key: {KEY}",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: mqtt",
]


def request(*headers: str, line: str = "GET /mqtt HTTP/1.1", without: str = "") -> bytes:
    kept = [header for header in HEAD if not without or not header.startswith(without)]
    return "\r\n".join([line, *kept, *headers, "", ""]).encode("latin-1")


def frame(opcode: int, payload: bytes, *, fin: bool = True, mask: bytes | None = b"\x01\x02\x03\x04") -> bytes:
    """A client's frame, made by hand so that it may be wrong."""
    size = len(payload)
    flag = 0x80 if mask is not None else 0
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([flag | size])
    elif size < 65_536:
        head += bytes([flag | 126]) + struct.pack("!H", size)
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def opened(**settings: int) -> WebSocketServer:
    server = WebSocketServer(WebSocketConfig(**settings))  # type: ignore[arg-type]  # only numbers are set here
    assert server.receive(request()) == b""
    assert server.take_output().startswith(b"HTTP/1.1 101 ")
    assert server.phase is WebSocketPhase.OPEN
    return server


def refused(data: bytes, config: WebSocketConfig | None = None) -> int:
    """Status of the answer to a handshake that is refused."""
    server = WebSocketServer(config or WebSocketConfig())
    server.receive(data)
    assert server.phase is WebSocketPhase.CLOSED
    assert server.error
    answer = server.take_output()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert server.receive(frame(2, b"x")) == b""
    assert server.frame(b"x") == b""
    assert server.take_output() == b""
    return int(answer.split()[1])


def closed_with(server: WebSocketServer) -> int:
    """The code of the close frame that ends the output."""
    output = server.take_output()
    assert output[0] == 0x88
    return int(struct.unpack("!H", output[2:4])[0])


def client_events(client: WSConnection, data: bytes) -> list[Event]:
    client.receive_data(data)
    return list(client.events())


def test_a_library_client_and_the_server_understand_each_other() -> None:
    client, server = WSConnection(ConnectionType.CLIENT), WebSocketServer(WebSocketConfig(path="/x"))
    server.receive(client.send(Request(host="h", target="/x?token=1", subprotocols=["other", "mqtt"])))
    (accepted,) = client_events(client, server.take_output())
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == "mqtt"
    assert not accepted.extensions
    assert server.receive(client.send(BytesMessage(data=b"to the server"))) == b"to the server"
    (received,) = client_events(client, server.frame(b"to the client"))
    assert isinstance(received, BytesMessage)
    assert (received.data, received.message_finished) == (b"to the client", True)


# -- the handshake -------------------------------------------------------------------------------------------------


def test_the_answer_is_the_one_of_the_standards_example() -> None:
    """RFC 6455, section 1.3 gives the answer to this key."""
    server = WebSocketServer(WebSocketConfig())
    server.receive(request("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", without="Sec-WebSocket-Key"))
    answer = server.take_output()
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
    assert b"protocol: mqtt\r\n" in answer.lower(), "MQTT-6.0.0-4"


@pytest.mark.parametrize("offered", ["", "mqttv3.1", "MQTT", "mqtt5, chat", "xmqtt"])
def test_without_the_sub_protocol_mqtt_there_is_no_connection(offered: str) -> None:
    """MQTT-6.0.0-3. mqttv3.1 is of a version before 3.1.1, which this broker does not speak."""
    extra = [f"Sec-WebSocket-Protocol: {offered}"] if offered else []
    assert refused(request(*extra, without="Sec-WebSocket-Protocol")) == 400


def test_mqtt_is_chosen_among_several_whatever_their_order() -> None:
    server = WebSocketServer(WebSocketConfig())
    server.receive(request("Sec-WebSocket-Protocol: mqttv3.1, mqtt", without="Sec-WebSocket-Protocol"))
    assert b"protocol: mqtt\r\n" in server.take_output().lower()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(line="GET / HTTP/1.1"), 404),
        (request(line="GET /mqtt/ HTTP/1.1"), 404),
        (request(line="POST /mqtt HTTP/1.1"), 400),
        (request(line="HEAD /mqtt HTTP/1.1"), 400),
        (request(line="GET /mqtt HTTP/1.0"), 400),
        (request(line="GET /m\xe9 HTTP/1.1"), 400),
        (request(without="Upgrade"), 400),
        (request(without="Connection"), 400),
        (request(without="Host"), 400),
        (request(without="Sec-WebSocket-Key"), 400),
        (request("Sec-WebSocket-Key: c2hvcnQ=", without="Sec-WebSocket-Key"), 400),
        (request("Sec-WebSocket-Key: ????", without="Sec-WebSocket-Key"), 400),
        (request(without="Sec-WebSocket-Version"), 400),
        (request("Sec-WebSocket-Version: 8", without="Sec-WebSocket-Version"), 426),
        (request("Content-Length: 3") + b"abc", 400),
        (request("Transfer-Encoding: chunked"), 400),
        (request("Host: \xff\xfe", without="Host"), 400),
        (request("Sec-WebSocket-Protocol: \xff"), 400),
        (request("no colon"), 400),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(100) + b"\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x10\x0d\x00\x04MQTT\r\n\r\n", 400),
    ],
    ids=range(22),
)
def test_a_handshake_that_is_none_is_refused_with_a_status(data: bytes, status: int) -> None:
    assert refused(data) == status


def test_an_old_version_is_told_which_one_is_spoken() -> None:
    server = WebSocketServer(WebSocketConfig())
    server.receive(request("Sec-WebSocket-Version: 8", without="Sec-WebSocket-Version"))
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in server.take_output()


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_an_oversized_handshake_is_refused_however_it_is_cut(chunk: int) -> None:
    exact = request("X: ")
    config = WebSocketConfig(max_handshake_bytes=1_000)
    for size, status in ((1_000, 101), (1_001, 431)):
        data = exact.replace(b"X: ", b"X: " + b"x" * (size - len(exact)))
        assert len(data) == size
        server = WebSocketServer(config)
        for at in range(0, size, chunk):
            server.receive(data[at : at + chunk])
        assert server.take_output().split()[1] == b"%d" % status


def test_a_handshake_without_end_is_refused_at_the_limit() -> None:
    assert refused(b"GET /mqtt HTTP/1.1\r\n" + b"x" * 10_000) == 431


def test_origins() -> None:
    only = WebSocketConfig(origins=("https://app.example",))
    assert refused(request("Origin: https://evil.example"), only) == 403
    assert refused(request("Origin: null"), only) == 403
    assert refused(request("Origin: https://app.example", "Origin: https://evil.example"), only) == 403
    for config, headers in (
        (only, ["Origin: HTTPS://App.example"]),
        (only, []),
        (WebSocketConfig(), ["Origin: https://anything.example"]),
    ):
        server = WebSocketServer(config)
        server.receive(request(*headers))
        assert server.phase is WebSocketPhase.OPEN


# -- frames --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=8), st.randoms(use_true_random=False))
def test_the_stream_is_the_same_however_it_is_framed_and_cut(parts: list[bytes], rng: random.Random) -> None:
    """MQTT-6.0.0-2: parts are packets, or parts or groups of them; frames and chunks are cut anywhere."""
    wire = request()
    pings = 0
    for part in parts:
        cut = rng.randint(0, len(part))
        if rng.random() < 0.5:
            wire += frame(2, part, mask=rng.randbytes(4))
        else:
            wire += frame(2, part[:cut], fin=False, mask=rng.randbytes(4))
            if rng.random() < 0.5:  # control frames may come between the frames of a message
                wire += frame(9, b"ping")
                pings += 1
            wire += frame(0, part[cut:], mask=rng.randbytes(4))
    server = WebSocketServer(WebSocketConfig())
    received = b""
    while wire:
        size = rng.choice((1, 2, 3, 50, len(wire)))
        received += server.receive(wire[:size])
        wire = wire[size:]
    assert received == b"".join(parts)
    assert server.phase is WebSocketPhase.OPEN
    assert server.take_output().count(b"\x8a\x04ping") <= pings


def test_byte_by_byte_and_several_packets_in_a_frame() -> None:
    server = opened()
    packets = bytes.fromhex("c000 c000 30050001616869")
    wire = frame(2, packets) + frame(2, packets[:3]) + frame(2, packets[3:])
    assert b"".join(server.receive(bytes([byte])) for byte in wire) == packets * 2
    assert opened().receive(frame(2, packets)) == packets, "nothing waits for more"


def test_what_has_come_of_an_unfinished_frame_is_passed_on() -> None:
    """So that a message of any size takes no memory here."""
    assert opened().receive(frame(2, b"x" * 1_000)[:508]) == b"x" * 500


def test_a_text_frame_closes_the_connection() -> None:
    """MQTT-6.0.0-1."""
    server = opened()
    assert server.receive(frame(2, b"good") + frame(1, b"text") + frame(2, b"late")) == b"good"
    assert server.phase is WebSocketPhase.CLOSED
    assert "MQTT-6.0.0-1" in server.error
    assert closed_with(server) == CloseReason.UNSUPPORTED_DATA
    assert server.receive(frame(2, b"later")) == b""
    assert server.frame(b"x") == b""


@pytest.mark.parametrize(
    "wire",
    [
        frame(2, b"unmasked", mask=None),
        frame(3, b"reserved opcode"),
        frame(0, b"nothing to continue"),
        frame(2, b"a", fin=False) + frame(2, b"not a continuation"),
        frame(9, b"fragmented ping", fin=False),
        frame(9, b"x" * 126),
        frame(8, b"\x01"),
        frame(8, struct.pack("!H", 1005)),
        b"\xc2\x80\x01\x02\x03\x04",
        b"\x82\xff" + b"\xff" * 8 + b"\x01\x02\x03\x04",
    ],
    ids=[
        "unmasked",
        "opcode",
        "continuation",
        "interleaved",
        "fragmented control",
        "long control",
        "short close",
        "reserved close code",
        "reserved bit",
        "length",
    ],
)
def test_broken_frames_close_the_connection(wire: bytes) -> None:
    server = opened()
    server.receive(wire)
    assert server.phase is WebSocketPhase.CLOSED
    assert server.error
    assert closed_with(server) == CloseReason.PROTOCOL_ERROR


def test_a_message_over_the_limit_closes_the_connection() -> None:
    for wire in (
        frame(2, b"x" * 101),
        frame(2, b"x" * 60, fin=False) + frame(0, b"x" * 41),
    ):
        server = opened(max_message_bytes=100)
        assert len(server.receive(frame(2, b"x" * 100) + frame(2, b"x" * 100))) == 200, "the limit is of one message"
        server.receive(wire)
        assert server.phase is WebSocketPhase.CLOSED
        assert closed_with(server) == CloseReason.MESSAGE_TOO_BIG


def test_pings_are_answered_once_per_chunk_with_the_latest() -> None:
    server = opened()
    assert server.receive(frame(9, b"one") + frame(2, b"data") + frame(9, b"two") + frame(10, b"unasked")) == b"data"
    assert server.take_output() == b"\x8a\x03two"
    server.receive(frame(9, b""))
    assert server.take_output() == b"\x8a\x00"


def test_the_client_closes() -> None:
    server = opened()
    assert server.receive(frame(2, b"last") + frame(8, struct.pack("!H", 1000) + b"bye")) == b"last"
    assert server.phase is WebSocketPhase.CLOSED
    assert not server.error
    assert closed_with(server) == 1000
    without_code = opened()
    without_code.receive(frame(8, b""))
    assert without_code.take_output() == b"\x88\x00"


def test_the_server_closes_and_waits_for_the_client() -> None:
    server = opened()
    server.close()
    server.close()
    assert server.phase is WebSocketPhase.CLOSING
    assert closed_with(server) == 1000
    assert server.frame(b"x") == b""
    assert server.receive(frame(2, b"under way") + frame(9, b"")) == b""
    server.receive(frame(8, struct.pack("!H", 1000)))
    assert server.phase.value == "closed"
    assert server.take_output() == b""


def test_closing_before_the_handshake_is_done_just_ends_it() -> None:
    server = WebSocketServer(WebSocketConfig())
    server.receive(b"GET ")
    server.close()
    assert server.phase is WebSocketPhase.CLOSED
    assert server.take_output() == b""


def test_long_output_is_cut_into_messages_that_clients_take() -> None:
    client, server = WSConnection(ConnectionType.CLIENT), WebSocketServer(WebSocketConfig())
    server.receive(client.send(Request(host="h", target="/mqtt", subprotocols=["mqtt"])))
    client_events(client, server.take_output())
    data = random.Random(1).randbytes(3 * MAX_OUTGOING_MESSAGE_BYTES + 5)
    messages = [event for event in client_events(client, server.frame(data)) if isinstance(event, BytesMessage)]
    assert b"".join(message.data for message in messages) == data
    assert sum(message.message_finished for message in messages) == 4


def test_ping_and_close_of_a_library_client() -> None:
    client, server = WSConnection(ConnectionType.CLIENT), WebSocketServer(WebSocketConfig())
    server.receive(client.send(Request(host="h", target="/mqtt", subprotocols=["mqtt"])))
    client_events(client, server.take_output())
    server.receive(client.send(Ping(payload=b"p")))
    assert client_events(client, server.take_output()) == [Pong(payload=b"p")]
    server.receive(client.send(CloseConnection(code=1001)))
    assert client_events(client, server.take_output()) == [CloseConnection(code=1001, reason="")]


@given(st.binary(max_size=400), st.booleans(), st.integers(1, 50))
def test_no_input_raises(noise: bytes, after_handshake: bool, chunk: int) -> None:
    server = opened() if after_handshake else WebSocketServer(WebSocketConfig(max_handshake_bytes=256))
    for at in range(0, len(noise), chunk):
        server.receive(noise[at : at + chunk])
        server.take_output()


@given(st.data())
def test_no_change_to_a_handshake_raises(data: st.DataObject) -> None:
    wire = bytearray(request("Origin: https://a.example", "X: y"))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    server = WebSocketServer(WebSocketConfig())
    server.receive(bytes(wire) + frame(2, b"x"))
    assert server.phase in (WebSocketPhase.OPEN, WebSocketPhase.CLOSED, WebSocketPhase.HANDSHAKE)


def test_a_library_client_is_told_why_it_is_refused() -> None:
    client, server = WSConnection(ConnectionType.CLIENT), WebSocketServer(WebSocketConfig())
    server.receive(client.send(Request(host="h", target="/", subprotocols=["mqtt"])))
    events = client_events(client, server.take_output())
    assert isinstance(events[0], RejectConnection)
    assert events[0].status_code == 404


# -- the configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        ({"transport": "websocket", "websocket": {"path": "mqtt"}}, r"listeners\[0\]\.websocket\.path"),
        ({"transport": "websocket", "websocket": {"max_handshake_bytes": 10}}, "max_handshake_bytes"),
        ({"transport": "websocket", "websocket": {"max_message_bytes": 0}}, "max_message_bytes"),
        ({"websocket": {"path": "/x"}}, "transport: websocket"),
        ({"transport": "quic"}, "transport"),
        ({"tls": {"certificate": "c"}}, "key"),
        ({"tls": {"certificate": "c", "key": "k", "require_client_certificate": True}}, "client_certificate_authority"),
        ({"tls": {"certificate": "c", "key": "k", "use_certificate_name_as_username": True}}, "require_client"),
        ({"tls": {"certificate": "c", "key": "k", "minimum_version": "TLSv1.1"}}, "minimum_version"),
        ({"tls": {"certificate": "c", "key": "k", "handshake_timeout_s": 0}}, "handshake_timeout_s"),
        (
            {
                "tls": {
                    "certificate": "c",
                    "key": "k",
                    "certificates": [{"server_names": [], "certificate": "c", "key": "k"}],
                }
            },
            "server_names",
        ),
    ],
)
def test_wrong_listeners_are_refused_with_the_key(listener: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"listeners": [listener]})


@pytest.mark.parametrize("opcode", [0x2, 0x9, 0xA])
def test_many_small_frames_are_handled_some_at_a_time(opcode: int) -> None:
    server = opened()
    chunk = b"".join(frame(opcode, b"%03d" % (number % 1_000)) for number in range(3 * MAX_FRAMES))
    received, rounds = [server.receive(chunk)], 1
    while server.has_more:
        received.append(server.receive(b""))
        rounds += 1
    assert rounds == 4, "the last one finds nothing more"
    expected = b"".join(b"%03d" % (number % 1_000) for number in range(3 * MAX_FRAMES)) if opcode == 0x2 else b""
    assert b"".join(received) == expected
    assert max(map(len, received)) <= 3 * MAX_FRAMES
    assert server.take_output().count(b"\x8a\x03") == (3 if opcode == 0x9 else 0), "one pong for many pings"


def test_frames_behind_a_close_are_not_waited_for() -> None:
    server = opened()
    server.receive(frame(8, struct.pack("!H", 1000)) + frame(9, b"") * (2 * MAX_FRAMES))
    assert server.phase is WebSocketPhase.CLOSED
    assert not server.has_more
