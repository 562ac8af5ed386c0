"""How the command line reaches a broker: addresses replace, TLS is checked unless told otherwise, secrets are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from assay.conformance.cli import app
from assay.conformance.targets import (
    Access,
    Endpoint,
    ProbeError,
    TargetError,
    Tls,
    choose_target,
    handshake,
    load_target,
)
from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import AuthConfig, ListenerConfig, TlsConfig, Transport, UserConfig
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, read_report
from tests.server.secure import Pki, listening, secured

PASSWORD = "a secret of 21 letters"
PING = "mqtt311/ping/every-pingreq-is-answered"
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


def invoke(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@contextmanager
def secret_broker(pki: Pki, *, client_certificate: bool = False, **changes: object) -> Iterator[Broker]:
    """TLS on 127.0.0.1, and on another port WebSocket over TLS; maria has a password, others are refused."""
    certificate, key = pki.issue("127.0.0.1")
    tls = TlsConfig(certificate=certificate, key=key)
    if client_certificate:
        changes |= {"client_certificate_authority": pki.client_authority, "require_client_certificate": True}
    auth = AuthConfig(
        anonymous=False, users=(UserConfig(username="maria", password_hash=hash_password(PASSWORD.encode())),)
    )
    plain = secured(tls, **changes)
    web = msgspec.structs.replace(plain, transport=Transport.WEBSOCKET)
    with listening(plain, web, auth=auth) as broker:
        yield broker


@pytest.fixture
def ca(pki: Pki) -> str:
    path = pki.folder / "ca.pem"
    pki.authority.cert_pem.write_to_path(str(path))
    return str(path)


def test_all_ways_go_over_tls_with_a_password(pki: Pki, ca: str, tmp_path: Path) -> None:
    """Cases of both transports, one that speaks raw bytes, and one that would half-close, from a target file."""
    (tmp_path / "password").write_text(f"{PASSWORD}\nnot this line\n", encoding="utf-8")
    with secret_broker(pki) as broker:
        web = next(address for address in broker.addresses if address.scheme == "wss")
        (tmp_path / "mine.toml").write_text(
            f"""
name = "mine"
[endpoint]
port = {broker.port}
username = "maria"
password_file = "password"
tls = {{ca_file = "ca.pem"}}
[capabilities]
websocket_url = "wss://127.0.0.1:{web.port}/mqtt"
""",
            encoding="utf-8",
        )
        names = f"{PING},mqtt5/connect/unknown,first-packet,retained,websocket/a-frame,body-that-ends"
        out = tmp_path / "out"
        done = invoke("run", "--target", str(tmp_path / "mine.toml"), "-k", names, "--out", str(out))
    assert done.exit_code == 0, done.output
    results = [line for line in read_report(out / "report.jsonl") if isinstance(line, CaseResult)]
    assert {result.verdict for result in results} <= {
        CaseVerdict.PASS,
        CaseVerdict.UNSUPPORTED,
        CaseVerdict.NON_STRICT,
    }
    passed = {result.area for result in results if result.verdict is CaseVerdict.PASS}
    assert passed >= {"ping", "connect", "retained", "websocket"}
    kept = b"".join(path.read_bytes() for path in (out / "report.jsonl", out / "result.json"))
    assert PASSWORD.encode() not in kept
    assert PASSWORD not in done.output


def test_a_client_certificate_is_shown_where_it_is_wanted(pki: Pki, ca: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_TEST_PASSWORD", PASSWORD)
    certificate, key = pki.client_files("bench")
    with secret_broker(pki, client_certificate=True) as broker:
        common = ("run", "--host", "127.0.0.1", "--port", str(broker.port), "-k", PING, "--ca", ca)
        secrets = ("--username", "maria", "--password-env", "ASSAY_TEST_PASSWORD")
        assert invoke(*common, *secrets).exit_code == 3
        done = invoke(*common, *secrets, "--cert", certificate, "--key", key)
    assert done.exit_code == 0, done.output


def test_a_certificate_that_nobody_vouches_for_is_refused_unless_that_is_wanted(pki: Pki, ca: str) -> None:
    with secret_broker(pki) as broker:
        where = Endpoint(port=broker.port, username="maria", password=PASSWORD)

        def reached(tls: Tls) -> None:
            handshake(msgspec.structs.replace(where, tls=tls), 4)

        with pytest.raises(ProbeError, match=r"certificate of 127.0.0.1:\d+ is not trusted.*--ca FILE"):
            reached(Tls())
        with pytest.raises(ProbeError, match="is not trusted"):
            reached(Tls(ca_file=ca, server_name="other.example"))
        reached(Tls(ca_file=ca))
        reached(Tls(insecure=True))
    with listening(ListenerConfig(port=0)) as plain, pytest.raises(ProbeError, match="127"):
        handshake(Endpoint(port=plain.port, tls=Tls(insecure=True)), 4)


def test_an_address_replaces_that_of_the_target_and_the_rest_of_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
name = "mine"
required = ["mqtt5/*"]
[start]
command = ["broker", "{port}"]
[capabilities]
qos2 = false
websocket_url = "ws://127.0.0.1:{websocket_port}/mqtt"
[[expect_fail]]
case = "mqtt5/ping/x"
reason = "r"
link = "l"
""",
        encoding="utf-8",
    )
    moved = choose_target(Access(target=str(path), host="broker.example"))
    assert moved.start is None
    assert (moved.endpoint.host, moved.endpoint.port) == ("broker.example", 1_883)
    assert moved.capabilities == {"qos2": False}, "the port of its WebSocket is not known"
    assert (moved.required, len(moved.expect_fail), moved.name) == (("mqtt5/*",), 1, "mine")
    assert choose_target(Access(target=str(path), host="h", tls=True)).endpoint.port == 8_883
    there = choose_target(Access(target=str(path), port=1_884)).endpoint
    assert (there.host, there.port) == ("127.0.0.1", 1_884)
    untouched = choose_target(Access(target=str(path)))
    assert untouched == load_target(str(path))


def test_of_a_broker_that_runs_already_only_what_is_given_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("name = 'mine'\n[endpoint]\nhost = 'a.example'\nport = 1999\n", encoding="utf-8")
    assert choose_target(Access(target=str(path), host="b.example")).endpoint == Endpoint(host="b.example", port=1_999)
    assert choose_target(Access(target=str(path), port=2_000)).endpoint == Endpoint(host="a.example", port=2_000)


def test_the_reference_is_meant_only_where_nothing_is_named() -> None:
    assert choose_target(Access()).name == "reference"
    assert choose_target(Access(port=1_884)).endpoint == Endpoint(port=1_884)
    assert choose_target(Access(port=1_884)).start is None
    ours = choose_target(Access(target="reference", host="h"))
    assert not {"clock", "settings", "restart"} & set(ours.capabilities), "it is not ours to move"


def test_the_options_are_told_again_for_who_repeats_a_case() -> None:
    access = Access(target="a b.toml", host="h", port=1, ca="x.pem", insecure=True, password_env="P")
    assert access.arguments() == "--target 'a b.toml' --host h --port 1 --password-env P --ca x.pem --insecure"
    assert Access().arguments() == "--target reference"


@pytest.mark.parametrize(
    ("access", "text"),
    [
        (Access(host="h", username="u", password_env="ASSAY_NOT_SET"), "ASSAY_NOT_SET, which is not set"),
        (Access(host="h", username="u", password_file="/nowhere/at/all"), "cannot read the password file"),
        (Access(host="h", password_env="HOME"), "a password needs a user name"),
        (Access(host="h", username="u", password_env="HOME", password_file="x"), "exclude each other"),
        (Access(host="h", ca="/nowhere/ca.pem"), "TLS files"),
        (Access(host="h", key="/nowhere/k.pem"), "a key needs its certificate"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_runs(access: Access, text: str) -> None:
    with pytest.raises(TargetError, match=text):
        choose_target(access)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("password = 'p'", "a password needs a username"),
        ("username = 'u'\npassword = 'p'\npassword_env = 'P'", "exclude each other"),
        ("tls = {ca_file = 'absent.pem'}", "cannot be used"),
        ("tls = {verify = false}", "verify"),
    ],
)
def test_a_target_file_with_a_wrong_endpoint_is_refused(tmp_path: Path, lines: str, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"name = 'mine'\n[endpoint]\n{lines}\n", encoding="utf-8")
    with pytest.raises(TargetError, match=text):
        load_target(str(path))


def test_a_key_with_a_password_is_an_error_and_no_question_at_the_terminal(
    tmp_path: Path, pki: Pki, capfd: pytest.CaptureFixture[str], encrypted: Callable[[str], str]
) -> None:
    certificate, key = pki.client_files("bench")
    with pytest.raises(TargetError, match="TLS files"):
        choose_target(Access(host="h", cert=certificate, key=encrypted(key)))
    assert "pass phrase" not in "".join(capfd.readouterr())


@pytest.fixture
def encrypted(tmp_path: Path) -> Callable[[str], str]:
    from cryptography.hazmat.primitives import serialization

    def encrypt(path: str) -> str:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
        data = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"xyz"),
        )
        (tmp_path / "encrypted.key").write_bytes(data)
        return str(tmp_path / "encrypted.key")

    return encrypt
