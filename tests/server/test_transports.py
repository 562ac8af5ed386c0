"""MQTT and WebSocket, plain and over TLS, on real sockets with clients of others."""

from __future__ import annotations

import asyncio
import queue
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec
import paho.mqtt.client as paho
import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    ListenerConfig,
    MqttConfig,
    TlsConfig,
    Transport,
    WebSocketConfig,
)
from assay.reference_broker.server.listeners import ListenerAddress
from assay.reference_broker.server.tcp import LINGER_S
from tests.server.secure import (
    CONNACK_311,
    CONNECT_311,
    WAIT_S,
    Pki,
    listening,
    read_all,
)

# -- the four transports -------------------------------------------------------------------------------------------


def round_trip(index: int, broker: Broker, context: ssl.SSLContext, version: int) -> None:
    """paho publishes to itself, small and large, and is told when each has arrived."""
    address = broker.addresses[index]
    transport = "websockets" if address.path else "tcp"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=version, transport=transport)
    if address.path:
        client.ws_set_options(path=address.path)
    if address.scheme in ("mqtts", "wss"):
        client.tls_set_context(context)
    events: queue.Queue[object] = queue.Queue()
    client.on_connect = lambda *arguments: events.put(str(arguments[3]))
    client.on_subscribe = lambda *_: events.put("subscribed")
    client.on_message = lambda _client, _data, message: events.put(message.payload)
    client.connect(address.host, address.port)
    client.loop_start()
    try:
        assert events.get(timeout=WAIT_S) == "Success"
        client.subscribe("a/#", 2)
        assert events.get(timeout=WAIT_S) == "subscribed"
        payloads = [b"%d" % number for number in range(50)] + [b"x" * 300_000]
        for number, payload in enumerate(payloads):
            client.publish("a/b", payload, number % 3 if len(payload) < 100 else 1).wait_for_publish(WAIT_S)
        assert sorted(str(events.get(timeout=WAIT_S)) for _ in payloads) == sorted(map(str, payloads))
        client.disconnect()
    finally:
        client.loop_stop()


FOUR = ("mqtt", "mqtts", "ws", "wss")


def four(tls: TlsConfig, mqtt: MqttConfig | None = None, max_connections: int = 100) -> Broker:
    plain = ListenerConfig(port=0, max_connections=max_connections)
    websocket = msgspec.structs.replace(plain, transport=Transport.WEBSOCKET, websocket=WebSocketConfig(path="/broker"))
    secure, secure_websocket = (msgspec.structs.replace(listener, tls=tls) for listener in (plain, websocket))
    return listening(plain, secure, websocket, secure_websocket, mqtt=mqtt)


@pytest.fixture(scope="module")
def all_four(tls: TlsConfig) -> Iterator[Broker]:
    with four(tls) as broker:
        yield broker


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("index", range(4), ids=FOUR)
def test_paho_over_every_transport(all_four: Broker, pki: Pki, index: int, version: int) -> None:
    round_trip(index, all_four, pki.client_context(), version)


def test_the_addresses_say_what_is_where(all_four: Broker) -> None:
    assert tuple(address.scheme for address in all_four.addresses) == FOUR
    assert all_four.url == f"mqtt://127.0.0.1:{all_four.port}"
    assert all_four.addresses[3].url == f"wss://127.0.0.1:{all_four.addresses[3].port}/broker"
    assert all_four.snapshot().sessions == (), "the readiness clients left nothing behind"


def test_the_event_loop_of_the_standard_library_will_do(pki: Pki, tls: TlsConfig) -> None:
    """The broker's own thread runs uvloop where it is installed; an embedding program may run asyncio's."""

    async def main() -> None:
        async with four(tls) as broker:
            for index in range(4):
                await asyncio.to_thread(round_trip, index, broker, pki.client_context(), paho.MQTTv5)

    asyncio.run(main())


# -- WebSocket on a socket -----------------------------------------------------------------------------------------


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
NO_MASK = bytes(4)


def binary(data: bytes) -> bytes:
    return b"\x82" + bytes([0x80 | len(data)]) + NO_MASK + data


@pytest.fixture(scope="module")
def websocket_broker() -> Iterator[Broker]:
    with listening(ListenerConfig(port=0, transport=Transport.WEBSOCKET)) as broker:
        yield broker


@contextmanager
def upgraded(broker: Broker) -> Iterator[socket.socket]:
    """A client whose next byte to read is that of a frame."""
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
        client.sendall(UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        yield client


def test_a_text_frame_closes_the_connection_and_the_will_is_sent(websocket_broker: Broker) -> None:
    """MQTT-6.0.0-1; the connection ended without DISCONNECT."""
    subscribe = bytes.fromhex("8206000100017701")
    connect_with_will = bytes.fromhex("1013 0004 4d515454 04 06 003c 0001 75 0001 77 0001 21")
    with upgraded(websocket_broker) as watcher, upgraded(websocket_broker) as client:
        watcher.sendall(binary(CONNECT_311 + subscribe))
        # Both answers are of one turn, so they are in one frame.
        assert watcher.recv(11, socket.MSG_WAITALL) == b"\x82\x09" + CONNACK_311 + bytes.fromhex("9003000101")
        client.sendall(binary(connect_with_will))
        assert client.recv(6, socket.MSG_WAITALL) == b"\x82\x04" + CONNACK_311
        client.sendall(b"\x81\x82" + NO_MASK + b"no")
        closing = read_all(client)
        assert closing[:1] == b"\x88"
        assert closing[2:4] == (1003).to_bytes(2, "big")
        assert watcher.recv(8, socket.MSG_WAITALL) == b"\x82\x06" + bytes.fromhex("3004 0001 77 21")


def test_a_client_that_disconnects_sees_the_close_handshake(websocket_broker: Broker) -> None:
    with upgraded(websocket_broker) as client:
        client.sendall(binary(CONNECT_311))
        assert client.recv(6, socket.MSG_WAITALL) == b"\x82\x04" + CONNACK_311
        client.sendall(binary(bytes.fromhex("e000")))
        assert client.recv(4, socket.MSG_WAITALL) == b"\x88\x02" + (1000).to_bytes(2, "big")
        client.sendall(b"\x88\x82" + NO_MASK + (1000).to_bytes(2, "big"))
        assert client.recv(1) == b""


def test_a_wrong_path_is_answered_and_closed(websocket_broker: Broker) -> None:
    with socket.create_connection((websocket_broker.host, websocket_broker.port), timeout=WAIT_S) as client:
        client.sendall(UPGRADE.replace(b"/mqtt", b"/other"))
        assert read_all(client).startswith(b"HTTP/1.1 404 ")


def test_stopping_does_not_wait_for_a_client_that_closes_nothing() -> None:
    """F4: a close that waited for the other side, which waited for it."""
    with ExitStack() as stack:
        broker = stack.enter_context(listening(ListenerConfig(port=0, transport=Transport.WEBSOCKET)))
        clients = [stack.enter_context(upgraded(broker)) for _ in range(3)]
        for client in clients:
            client.sendall(binary(CONNECT_311))
            assert client.recv(6, socket.MSG_WAITALL) == b"\x82\x04" + CONNACK_311
        # One is within a frame.
        clients[0].sendall(b"\x82\xfe\x10")
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < WAIT_S
        for client in clients:
            assert read_all(client)[:1] in (b"\x88", b"")


def test_a_handshake_that_never_ends_is_cut() -> None:
    with (
        listening(
            ListenerConfig(port=0, transport=Transport.WEBSOCKET), mqtt=MqttConfig(connect_timeout_s=0.2)
        ) as broker,
        socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client,
    ):
        client.sendall(UPGRADE[:20])
        assert client.recv(10) == b""


def connected_to(address: ListenerAddress, context: ssl.SSLContext) -> socket.socket:
    """A client with a small receive buffer, its TLS and WebSocket handshakes done."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(WAIT_S)
    client.connect((address.host, address.port))
    if address.scheme in ("mqtts", "wss"):
        client = context.wrap_socket(client, server_hostname=address.host)
    if address.path:
        client.sendall(UPGRADE.replace(b"/mqtt", address.path.encode()))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = client.recv(1)
            if not byte:
                raise ConnectionResetError
            head += byte
    return client


def _read(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := client.recv(count - len(data))):
        data += chunk
    return data


@pytest.mark.parametrize("index", range(4), ids=FOUR)
def test_a_client_that_never_reads_is_cut_on_every_transport(pki: Pki, tls: TlsConfig, index: int) -> None:
    count, size = 400, 20_000
    with four(tls, MqttConfig(unread_timeout_s=0.5)) as broker:
        address = broker.addresses[index]
        context = pki.client_context()
        with connected_to(address, context) as deaf, connected_to(broker.addresses[0], context) as watcher:
            watcher.sendall(CONNECT_311 + bytes.fromhex("8206000200017700"))
            assert _read(watcher, 9).endswith(bytes.fromhex("9003000200"))
            # Its will tells that it was cut.
            hello = bytes.fromhex("101300044d5154540406003c 000164 000177 000167 8206000100016101")
            deaf.sendall(binary(hello) if address.path else hello)
            answer = b""
            while not answer.endswith(bytes.fromhex("9003000101")):
                answer += deaf.recv(100)
            for _ in range(count):
                broker.publish("a", b"x" * size, qos=1)
            started = time.monotonic()
            assert _read(watcher, 6) == bytes.fromhex("300400017767")
            assert time.monotonic() - started < LINGER_S, "its will did not wait for it to go"
            received = 0
            with suppress(ConnectionError, ssl.SSLError):
                while chunk := deaf.recv(65_536):
                    received += len(chunk)
            assert received < count * size, "it was cut before it had all"
            watcher.sendall(bytes.fromhex("e000"))
            assert watcher.recv(1) == b""
        assert broker.snapshot().sessions == (), "its clean session ended with it, and the broker goes on"


@pytest.mark.parametrize("index", range(4), ids=FOUR)
def test_a_connection_over_the_limit_is_closed(pki: Pki, tls: TlsConfig, index: int) -> None:
    listener = msgspec.structs.replace(four(tls).config.listeners[index], max_connections=2)
    with listening(listener) as broker, ExitStack() as stack:
        address, context = broker.addresses[0], pki.client_context()
        for client_id in (b"1", b"2"):
            client = stack.enter_context(connected_to(address, context))
            hello = CONNECT_311[:-1] + client_id
            client.sendall(binary(hello) if address.path else hello)
            answer = b""
            while not answer.endswith(CONNACK_311):
                answer += client.recv(100)
        with suppress(ConnectionError, ssl.SSLError), connected_to(address, context) as third:
            assert third.recv(1) == b""
        assert broker.snapshot().connections == 2


@pytest.mark.parametrize("index", range(4), ids=FOUR)
def test_large_messages_wait_for_a_slow_reader_and_a_quick_one_gets_them_meanwhile(
    pki: Pki, tls: TlsConfig, index: int
) -> None:
    count, size = 120, 100_000
    with four(tls, MqttConfig(unread_high_water_bytes=200_000, max_unread_bytes=1_000_000)) as broker:
        address = broker.addresses[index]
        context = pki.client_context()
        with connected_to(address, context) as slow, connected_to(address, context) as quick:
            for client, name in ((slow, b"s"), (quick, b"q")):
                hello = CONNECT_311[:-1] + name + bytes.fromhex("8206000100016101")
                client.sendall(binary(hello) if address.path else hello)
                answer = b""
                while not answer.endswith(bytes.fromhex("9003000101")):
                    answer += client.recv(1)
            for number in range(count):
                broker.publish("a", b"<%06d>" % number + b"x" * (size - 8), qos=1)
            for client in (quick, slow):
                data = bytearray()
                while len(data) < count * size:
                    chunk = client.recv(1 << 20)
                    assert chunk, f"cut after {len(data)} bytes"
                    data += chunk
                markers = [int(marker) for marker in re.findall(rb"<(\d{6})>", data)]
                assert markers == list(range(count)), "each once, in order"
