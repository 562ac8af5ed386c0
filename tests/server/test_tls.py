"""TLS and WebSocket listeners on real sockets, with certificates made here and clients of others."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import trustme

from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    CertificateConfig,
    ConfigError,
    ListenerConfig,
    TlsConfig,
    TlsVersion,
    UserConfig,
)
from assay.reference_broker.server.tls import certificate_common_name, check_listeners, context_for, server_context
from tests.server.secure import (
    CONNACK_311,
    CONNECT_311,
    WAIT_S,
    Pki,
    answer_to_connect,
    connected,
    listening,
    read_all,
    secured,
)

CLIENT_HELLO_1_1 = (
    bytes.fromhex("16 0301 0031 01 00002d 0302") + bytes(32) + bytes.fromhex("00 0004 c014 0035 01 00 0000")
)


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
