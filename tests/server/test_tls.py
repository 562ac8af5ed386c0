"""TLS and WebSocket listeners on real sockets, with certificates made here and clients of others."""

from __future__ import annotations

import asyncio
import queue
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import paho.mqtt.client as paho
import pytest
import trustme

from reference_broker.auth import hash_password
from reference_broker.broker import Broker
from reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    CertificateConfig,
    ConfigError,
    ListenerConfig,
    MqttConfig,
    TlsConfig,
    TlsVersion,
    Transport,
    UserConfig,
    WebSocketConfig,
)
from reference_broker.server.listeners import ListenerAddress
from reference_broker.server.tls import certificate_common_name, check_listeners, context_for, server_context

WAIT_S = 20.0
CONNECT_311 = bytes.fromhex("100d00044d5154540402003c000174")
CONNACK_311 = bytes.fromhex("20020000")
CLIENT_HELLO_1_1 = (
    bytes.fromhex("16 0301 0031 01 00002d 0302") + bytes(32) + bytes.fromhex("00 0004 c014 0035 01 00 0000")
)


class Pki:
    """An authority, files of certificates it issued, and what clients need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.client_authority = str(folder / "clients.pem")
        self.clients.cert_pem.write_to_path(self.client_authority)

    def issue(self, *names: str) -> tuple[str, str]:
        """Certificate file and key file of a server."""
        return self._write(self.authority.issue_cert(*names), names[0])

    def _write(self, issued: trustme.LeafCert, name: str) -> tuple[str, str]:
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return str(certificate), str(key)

    def client_context(self, name: str | None = None, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """For a client that trusts the authority and has, or has not, a certificate with this common name."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if name is not None:
            context.load_cert_chain(*self.client_files(name, issuer))
        return context

    def client_files(self, name: str, issuer: trustme.CA | None = None) -> tuple[str, str]:
        """Certificate file and key file of a client."""
        issued = (issuer or self.clients).issue_cert(f"{name}@client.example", common_name=name)
        return self._write(issued, f"client-{name}")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls(pki: Pki) -> TlsConfig:
    certificate, key = pki.issue("127.0.0.1", "localhost")
    return TlsConfig(certificate=certificate, key=key)


def listening(*listeners: ListenerConfig, auth: AuthConfig | None = None, mqtt: MqttConfig | None = None) -> Broker:
    return Broker(BrokerConfig(listeners=listeners, auth=auth or AuthConfig(), mqtt=mqtt or MqttConfig()))


def secured(tls: TlsConfig, **changes: object) -> ListenerConfig:
    return ListenerConfig(port=0, tls=msgspec.structs.replace(tls, **changes))


@contextmanager
def connected(broker: Broker, context: ssl.SSLContext, name: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as client,
    ):
        yield client


def answer_to_connect(broker: Broker, context: ssl.SSLContext) -> bytes:
    """CONNACK, or nothing where TLS or the broker refuses the client."""
    try:
        with connected(broker, context) as client:
            client.sendall(CONNECT_311)
            return client.recv(4)
    except (ssl.SSLError, ConnectionError):
        return b""


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


def read_all(client: socket.socket) -> bytes:
    data = b""
    while chunk := client.recv(65_536):
        data += chunk
    return data


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


@pytest.mark.parametrize("index", range(4), ids=FOUR)
def test_a_client_that_never_reads_is_cut_on_every_transport(pki: Pki, tls: TlsConfig, index: int) -> None:
    count, size = 400, 20_000
    with four(tls, MqttConfig(max_unread_bytes=1_000_000)) as broker:
        address = broker.addresses[index]
        with connected_to(address, pki.client_context()) as deaf:
            hello = CONNECT_311 + bytes.fromhex("8206000100016101")
            deaf.sendall(binary(hello) if address.path else hello)
            answer = b""
            while not answer.endswith(bytes.fromhex("9003000101")):
                answer += deaf.recv(100)
            for _ in range(count):
                broker.publish("a", b"x" * size, qos=1)
            received = 0
            with suppress(ConnectionError, ssl.SSLError):
                while chunk := deaf.recv(65_536):
                    received += len(chunk)
            assert received < count * size, "it was cut before it had all"
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


# -- TLS -----------------------------------------------------------------------------------------------------------


def test_a_client_certificate_is_required(pki: Pki, tls: TlsConfig) -> None:
    listener = secured(tls, client_certificate_authority=pki.client_authority, require_client_certificate=True)
    with listening(listener) as broker:
        assert answer_to_connect(broker, pki.client_context("alice")) == CONNACK_311
        assert answer_to_connect(broker, pki.client_context()) == b"", "none"
        assert answer_to_connect(broker, pki.client_context("mallory", trustme.CA())) == b"", "of a stranger"
        older = pki.client_context()
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)), connected(broker, older):
            pass
        assert answer_to_connect(broker, pki.client_context("bob")) == CONNACK_311


def test_a_client_certificate_may_be_optional_but_not_wrong(pki: Pki, tls: TlsConfig) -> None:
    with listening(secured(tls, client_certificate_authority=pki.client_authority)) as broker:
        assert answer_to_connect(broker, pki.client_context()) == CONNACK_311
        assert answer_to_connect(broker, pki.client_context("alice")) == CONNACK_311
        assert answer_to_connect(broker, pki.client_context("mallory", trustme.CA())) == b""


@pytest.mark.parametrize("by_certificate", [True, False])
def test_the_certificates_name_is_the_user_only_where_configured(
    pki: Pki, tls: TlsConfig, by_certificate: bool
) -> None:
    listener = secured(
        tls,
        client_certificate_authority=pki.client_authority,
        require_client_certificate=True,
        use_certificate_name_as_username=by_certificate,
    )
    users = (UserConfig(username="alice", password_hash=hash_password(b"secret")),)
    with listening(listener, auth=AuthConfig(users=users, anonymous=False)) as broker:
        answer = answer_to_connect(broker, pki.client_context("alice"))
        assert answer == (CONNACK_311 if by_certificate else bytes.fromhex("20020005"))


def test_a_certificate_without_a_common_name_names_nobody(pki: Pki, tls: TlsConfig) -> None:
    listener = secured(
        tls,
        client_certificate_authority=pki.client_authority,
        require_client_certificate=True,
        use_certificate_name_as_username=True,
    )
    nameless = pki.client_context()
    pki.clients.issue_cert("nobody.client.example").configure_cert(nameless)
    with listening(listener) as broker:
        assert answer_to_connect(broker, nameless) == b""
        assert answer_to_connect(broker, pki.client_context("alice")) == CONNACK_311


def test_common_names_of_peer_certificates() -> None:
    alice = (("commonName", "alice"),)
    assert certificate_common_name({"subject": ((("organizationName", "x"),), alice)}) == "alice"
    assert certificate_common_name({"subject": (alice, (("commonName", "bob"),))}) is None
    for nobody in (None, {}, {"subject": ()}, {"subject": ((("commonName", ""),),)}):
        assert certificate_common_name(nobody) is None


def test_tls_1_1_is_refused(tls: TlsConfig) -> None:
    """With a greeting made by hand: today's libraries do not even offer it."""
    with (
        listening(secured(tls)) as broker,
        socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client,
    ):
        client.sendall(CLIENT_HELLO_1_1)
        try:
            answer = read_all(client)
        except ConnectionResetError:
            answer = b""
        assert answer[:1] in (b"", b"\x15"), "closed, with or without an alert"
    incoming = ssl.MemoryBIO()
    incoming.write(CLIENT_HELLO_1_1)
    with pytest.raises(ssl.SSLError) as caught:
        server_context(tls, "tls").wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    assert caught.value.reason == "UNSUPPORTED_PROTOCOL", "the version is why"


def test_the_minimum_version_may_be_higher(pki: Pki, tls: TlsConfig) -> None:
    for minimum, accepted in ((TlsVersion.V1_2, True), (TlsVersion.V1_3, False)):
        older = pki.client_context()
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with listening(secured(tls, minimum_version=minimum)) as broker:
            assert answer_to_connect(broker, older) == (CONNACK_311 if accepted else b"")
            assert answer_to_connect(broker, pki.client_context()) == CONNACK_311


def test_the_server_name_picks_the_certificate(pki: Pki, tls: TlsConfig) -> None:
    further = []
    for names in (("broker.example",), ("*.farm.example",)):
        certificate, key = pki.issue(*names)
        further.append(CertificateConfig(server_names=names, certificate=certificate, key=key))
    with listening(secured(tls, certificates=tuple(further))) as broker:
        for asked, expected in (
            ("broker.example", "broker.example"),
            ("BROKER.example", "broker.example"),
            ("one.farm.example", "*.farm.example"),
            ("localhost", "localhost"),
        ):
            # The client verifies: a certificate of another name would fail the handshake.
            with connected(broker, pki.client_context(), asked) as client:
                shown = client.getpeercert()
                assert shown is not None
                assert ("DNS", expected) in shown["subjectAltName"]
                client.sendall(CONNECT_311)
                assert client.recv(4) == CONNACK_311
        with pytest.raises(ssl.SSLCertVerificationError), connected(broker, pki.client_context(), "other.example"):
            pass


def test_a_wildcard_stands_for_one_label() -> None:
    one, two = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    named = {"*.example": one, "a.example": two}
    assert context_for("b.example", named) is one
    assert context_for("A.Example", named) is two
    assert context_for("c.b.example", named) is None
    assert context_for(None, named) is None


def test_stalled_handshakes_block_nobody_and_end(pki: Pki, tls: TlsConfig) -> None:
    with listening(secured(tls, handshake_timeout_s=0.5)) as broker, ExitStack() as stack:
        stalled = []
        for number in range(50):
            client = stack.enter_context(socket.create_connection((broker.host, broker.port), timeout=WAIT_S))
            client.sendall(CLIENT_HELLO_1_1[: number % 20])
            stalled.append(client)
        assert answer_to_connect(broker, pki.client_context()) == CONNACK_311
        for client in stalled:
            try:
                assert client.recv(10) == b""
            except ConnectionResetError:
                continue
        assert answer_to_connect(broker, pki.client_context()) == CONNACK_311


def test_plain_bytes_on_a_tls_port_disturb_nobody(pki: Pki, tls: TlsConfig) -> None:
    with listening(secured(tls)) as broker:
        with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
            client.sendall(CONNECT_311)
            with suppress(ConnectionResetError):
                assert CONNACK_311 not in read_all(client)
        assert answer_to_connect(broker, pki.client_context()) == CONNACK_311


# -- files that are wrong ------------------------------------------------------------------------------------------


def absent(pki: Pki, tls: TlsConfig) -> TlsConfig:
    return msgspec.structs.replace(tls, certificate=str(pki.folder / "bad-absent.pem"))


def no_certificate(pki: Pki, tls: TlsConfig) -> TlsConfig:
    (pki.folder / "bad-text.pem").write_text("not PEM", encoding="ascii")
    return msgspec.structs.replace(tls, certificate=str(pki.folder / "bad-text.pem"))


def binary_certificate(pki: Pki, tls: TlsConfig) -> TlsConfig:
    (pki.folder / "bad-binary.pem").write_bytes(bytes(range(256)))
    return msgspec.structs.replace(tls, certificate=str(pki.folder / "bad-binary.pem"))


def no_key(pki: Pki, tls: TlsConfig) -> TlsConfig:
    (pki.folder / "bad.key").write_text("not PEM", encoding="ascii")
    return msgspec.structs.replace(tls, key=str(pki.folder / "bad.key"))


def anothers_key(pki: Pki, tls: TlsConfig) -> TlsConfig:
    _certificate, key = pki.issue("bad-other.example")
    return msgspec.structs.replace(tls, key=key)


def encrypted_key(pki: Pki, tls: TlsConfig) -> TlsConfig:
    file = pki.folder / "bad-encrypted.key"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", tls.key, "-out", str(file)]
    if "EC PRIVATE" in Path(tls.key).read_text(encoding="ascii"):
        command[1] = "ec"
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)
    return msgspec.structs.replace(tls, key=str(file))


def no_authority(pki: Pki, tls: TlsConfig) -> TlsConfig:
    (pki.folder / "bad-authority.pem").write_text("", encoding="ascii")
    return msgspec.structs.replace(tls, client_certificate_authority=str(pki.folder / "bad-authority.pem"))


def further_absent(pki: Pki, tls: TlsConfig) -> TlsConfig:
    further = CertificateConfig(server_names=("x",), certificate=tls.certificate, key=str(pki.folder / "bad-gone.key"))
    return msgspec.structs.replace(tls, certificates=(further,))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (absent, r"listeners\[0\]\.tls\.certificate: cannot read .*bad-absent\.pem: No such file"),
        (no_certificate, r"tls\.certificate: .*bad-text\.pem holds no PEM certificate"),
        (binary_certificate, r"tls\.certificate: .*bad-binary\.pem holds no PEM certificate"),
        (no_key, r"tls\.key: .*bad\.key holds no usable PEM private key"),
        (anothers_key, r"tls\.key: .*bad-other\.example\.key is not the key of the certificate"),
        (encrypted_key, r"tls\.key: .*bad-encrypted\.key is encrypted"),
        (no_authority, r"tls\.client_certificate_authority: .*bad-authority\.pem holds no PEM certificate"),
        (further_absent, r"tls\.certificates\[0\]\.key: cannot read .*bad-gone\.key"),
    ],
)
def test_an_unusable_file_is_named(
    pki: Pki, tls: TlsConfig, spoil: Callable[[Pki, TlsConfig], TlsConfig], words: str
) -> None:
    config = BrokerConfig(listeners=(ListenerConfig(port=0, tls=spoil(pki, tls)),))
    with pytest.raises(ConfigError, match=words):
        check_listeners(config)
    with pytest.raises(ConfigError, match=words), Broker(config):
        pass


def test_a_good_section_makes_a_context_that_asks_for_nothing_more(tls: TlsConfig) -> None:
    context = server_context(tls, "tls")
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


# -- assay serve ---------------------------------------------------------------------------------------------------


def serve_command(tmp_path: Path, text: str, *options: str) -> list[str]:
    config = tmp_path / "broker.yaml"
    config.write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "assay.cli", "serve", "--config", str(config), *options]


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_serve_ends_with_status_2_and_the_files_name(tmp_path: Path, options: tuple[str, ...]) -> None:
    text = f"listeners: [{{port: 0, tls: {{certificate: {tmp_path}/gone.pem, key: {tmp_path}/gone.key}}}}]\n"
    finished = subprocess.run(
        serve_command(tmp_path, text, *options), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert finished.returncode == 2
    assert "gone.pem" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed (mosquitto-clients)")
def test_mosquittos_clients_over_tls_with_a_certificate(pki: Pki, tls: TlsConfig) -> None:
    trusted = pki.folder / "authority.pem"
    pki.authority.cert_pem.write_to_path(str(trusted))
    certificate, key = pki.client_files("carol")
    listener = secured(tls, client_certificate_authority=pki.client_authority, require_client_certificate=True)
    with listening(listener) as broker:
        address = ["-h", "127.0.0.1", "-p", str(broker.port), "--cafile", str(trusted), "-t", "m"]
        with_certificate = [*address, "--cert", certificate, "--key", key]
        for options, succeeds in ((with_certificate, True), (address, False)):
            command = ["mosquitto_pub", *options, "-m", "kept", "-r", "-q", "1"]
            sent = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
            assert (sent.returncode == 0) is succeeds
        command = ["mosquitto_sub", *with_certificate, "-C", "1", "-W", str(int(WAIT_S))]
        got = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
        assert got.stdout == b"kept\n"


def test_serve_prints_the_address_of_every_listener(tmp_path: Path, pki: Pki, tls: TlsConfig) -> None:
    secure = f"tls: {{certificate: {tls.certificate}, key: {tls.key}}}"
    text = f"listeners:\n- {{port: 0}}\n- {{port: 0, {secure}}}\n- {{port: 0, transport: websocket, {secure}}}\n"
    process = subprocess.Popen(serve_command(tmp_path, text), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        urls = [process.stdout.readline().split()[1] for _ in range(3)]
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
    assert [url.split("://")[0] for url in urls] == ["mqtt", "mqtts", "wss"]
    assert urls[2].endswith("/mqtt")
