"""Which broker is asked, by whom, and what is said when that goes wrong."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
import trustme
import yaml

from assay.reference_broker.broker import Broker
from assay.reference_broker.commands import contexts
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    BrokerConfig,
    ListenerConfig,
    ListenerProtocol,
    Permission,
    TlsConfig,
)
from tests.commands.conftest import Assay


def test_contexts_are_kept_in_a_file_that_only_their_user_reads(guarded: str, tmp_path: Path) -> None:
    assay = Assay()
    assert assay.json("context", "list") == []
    assay("context", "set", "admin", "--server", guarded, "--token", "-", text="assay_admin\n")
    assay("context", "set", "ann", "--server", guarded, "-u", "ann", "--password", "secret")
    file = tmp_path / "config" / "assay" / "contexts.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert yaml.safe_load(file.read_text())["contexts"]["admin"] == {"server": guarded, "token": "assay_admin"}
    table = assay("context", "list", "-o", "wide")
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["*", "admin"], ["ann", guarded]]
    assert "assay_admin" not in table + assay("context", "list", "-o", "json")
    assay("queue", "create", "by-token")
    assay("context", "use", "ann")
    assert assay.json("queue", "list", "--names")["queues"]
    said = assay.fails(1, "queue", "create", "mine", "--token", "assay_reader")
    assert said.endswith("assay token makes one with --scope admin\n")
    assay("queue", "delete", "by-token", "-y", "-c", "admin")
    assay("queue", "list", ASSAY_CONTEXT="admin")
    assay("context", "set", "ann", "--password", "wrong")
    assert "(unauthenticated); say who you are" in assay.fails(1, "queue", "list")
    assay("queue", "list", ASSAY_PASSWORD="secret")
    assay("context", "delete", "ann")
    assert "there is no context 'ann'; there are: admin" in assay.fails(2, "context", "use", "ann")
    assert assay.json("context", "list") == [
        {"name": "admin", "current": False, "server": guarded, "user": "", "secrets": True, "ca": ""}
    ]


def test_credentials_of_a_context_go_to_its_server_only() -> None:
    contexts.save(contexts.Contexts(current="c", contexts={"c": contexts.Context(server="http://there", token="t")}))
    options = dict.fromkeys(("server", "context", "token", "user", "ca"))
    assert contexts.resolve(options).token == "t"
    assert contexts.resolve({**options, "server": "http://there"}).token == "t"
    assert contexts.resolve({**options, "server": "http://elsewhere"}).token == ""
    named = contexts.resolve({**options, "user": "u"})
    assert (named.token, named.user) == ("", "u")


def test_a_file_that_others_may_read_is_warned_of(guarded: str) -> None:
    assay = Assay()
    assay("context", "set", "admin", "--server", guarded, "--token", "assay_admin")
    contexts.file().chmod(0o644)
    result = assay.run("queue", "list")
    assert result.exit_code == 0
    assert f"chmod 600 {contexts.file()}" in result.stderr
    assay("context", "use", "admin")
    assert stat.S_IMODE(contexts.file().stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["[", "contexts: {a: {sever: x}}", "\x00", "12"])
def test_a_file_that_is_none_is_told(text: str) -> None:
    contexts.file().parent.mkdir(parents=True)
    contexts.file().write_text(text)
    assert "contexts.yaml cannot be read" in Assay().fails(2, "queue", "list")


def test_a_write_that_fails_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.save(contexts.Contexts(current="a", contexts={"a": contexts.Context()}))
    with monkeypatch.context() as patch:
        patch.setattr(yaml, "safe_dump", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            contexts.save(contexts.Contexts())
    assert contexts.load().current == "a"
    assert os.listdir(contexts.file().parent) == ["contexts.yaml"]


def test_nobody_there_says_how_a_broker_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
    said = Assay(ASSAY_SERVER=url).fails(3, "queue", "list")
    assert (
        said == f"error: no broker answers at {url}: Connection refused; start one with: assay serve --http-port 8080\n"
    )


def test_another_protocol_is_told() -> None:
    with Broker() as broker:
        said = Assay().fails(3, "status", "-s", f"http://{broker.host}:{broker.port}", "--timeout", "5")
    assert "no broker answers" in said or "is no HTTP" in said
    assert "is no address" in Assay().fails(2, "status", "-s", "mqtt://127.0.0.1:1883")


def test_tls_by_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    tls = TlsConfig(certificate=str(tmp_path / "server.pem"), key=str(tmp_path / "server.pem"))
    listener = ListenerConfig(port=0, tls=tls, protocols=(ListenerProtocol.HTTP,))
    with Broker(BrokerConfig(listeners=(listener,))) as broker:
        assay = Assay(ASSAY_SERVER=broker.addresses[0].url)
        assay("queue", "list", "--ca", str(tmp_path / "ca.pem"))
        assert "TLS with" in assay.fails(3, "queue", "list")
        assert "no certificates in PEM" in assay.fails(2, "queue", "list", "--ca", "/usr/bin/env")
        assert "No such file" in assay.fails(2, "queue", "list", "--ca", str(tmp_path / "none.pem"))


def test_a_certificate_of_ones_own_says_who_asks(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    own = authority.issue_cert(common_name="ann")
    own.cert_chain_pems[0].write_to_path(tmp_path / "ann.pem")
    own.private_key_pem.write_to_path(tmp_path / "ann.key")
    tls = TlsConfig(
        certificate=str(tmp_path / "server.pem"),
        key=str(tmp_path / "server.pem"),
        client_certificate_authority=str(tmp_path / "ca.pem"),
        require_client_certificate=True,
        use_certificate_name_as_username=True,
    )
    rules = (AclRuleConfig(topic="$queue/%u/#", access=Permission.READWRITE),)
    listener = ListenerConfig(port=0, tls=tls, protocols=(ListenerProtocol.HTTP,))
    with Broker(BrokerConfig(listeners=(listener,), acl=AclConfig(rules=rules))) as broker:
        assay, ca = Assay(), str(tmp_path / "ca.pem")
        files = ("--certificate", str(tmp_path / "ann.pem"), "--key", str(tmp_path / "ann.key"))
        assay("context", "set", "ann", "--server", broker.addresses[0].url, "--ca", ca, *files)
        assert assay("produce", "ann", "x").startswith("published ann:")
        assert "(not_allowed)" in assay.fails(1, "consume", "bob")
        assay("context", "set", "nobody", "--server", broker.addresses[0].url, "--ca", ca)
        assert broker.addresses[0].url in assay.fails(3, "status", "-c", "nobody")


def test_a_context_that_could_not_be_used_is_not_kept() -> None:
    assert "is no address" in Assay().fails(2, "context", "set", "x", "--server", "mqtt://there")
    assert contexts.load().contexts == {}
