"""Password file and rules file, and the commands around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from assay.reference_broker.auth import Authenticator, hash_password, scram_credentials
from assay.reference_broker.auth_scram import parse_credentials
from assay.reference_broker.cli import hash_password_command, serve
from assay.reference_broker.config import (
    AclRuleConfig,
    BrokerConfig,
    ConfigError,
    Permission,
    load_config,
    parse_config,
)
from assay.reference_broker.config_files import read_named_files
from assay.reference_broker.core.access import AccessControl


def test_a_password_file(tmp_path: Path) -> None:
    lines = [
        "# people",
        "",
        f"ann:{hash_password(b'one')}",
        f"ann:{scram_credentials('one')}",
        f"b:o:b:{hash_password(b'two')}",
    ]
    (tmp_path / "users").write_text("\n".join(lines), encoding="utf-8")
    config = parse_config(
        {"auth": {"password_file": "users", "users": [{"username": "c", "scram_sha_256": scram_credentials("3")}]}}
    )
    read = read_named_files(config, tmp_path)
    assert [user.username for user in read.auth.users] == ["c", "ann", "b:o:b"]
    assert read_named_files(read, Path("/nowhere")) is read, "what was read is not read again"
    authenticator = Authenticator(read.auth, b"key")
    logins = [("ann", b"one", True), ("b:o:b", b"two", True), ("b", b"two", False), ("c", b"3", False)]
    answers: list[bool] = []
    for username, password, _ in logins:
        assert authenticator.decide(username, password, loopback=True) is None
        authenticator.check(username, password, answers.append)
    while checks := authenticator.take_checks():
        for check in checks:
            check.run()
            authenticator.finish(check)
    assert answers == [right for _, _, right in logins], "a user with SCRAM only has no password login"
    assert authenticator.open_exchange("SCRAM-SHA-256", b"r" * 32) is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ann", "line 1"),
        ("# x\nann:", "line 2"),
        (":scrypt$1", "line 1"),
        ("ann:scrypt$x\nann:scrypt$y", "line 2"),
        ("ann:scrypt$x", "'ann'"),
        ("ann:plaintext", "'ann'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "users").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        Authenticator(read_named_files(parse_config({"auth": {"password_file": "users"}}), tmp_path).auth, b"key")


def test_a_user_may_not_be_in_both_places(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"ann:{hash_password(b'x')}", encoding="utf-8")
    data = {"auth": {"password_file": "users", "users": [{"username": "ann", "password_hash": hash_password(b"y")}]}}
    with pytest.raises(ConfigError, match="twice"):
        Authenticator(read_named_files(parse_config(data), tmp_path).auth, b"key")


def test_a_user_needs_something_to_log_in_with() -> None:
    with pytest.raises(ConfigError, match="'ann' needs"):
        Authenticator(parse_config({"auth": {"users": [{"username": "ann"}]}}).auth, b"key")


def test_a_rules_file(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text("- {topic: 'a/%c', access: read, user: ann}\n", encoding="utf-8")
    config = parse_config({"acl": {"file": "acl.yaml", "rules": [{"topic": "b", "access": "write"}]}})
    acl = read_named_files(config, tmp_path).acl
    assert acl is not None
    assert acl.rules[1] == AclRuleConfig(topic="a/%c", access=Permission.READ, user="ann")
    assert AccessControl(acl).grants("ann", "x").may_subscribe("a/x")


def test_an_empty_rules_file_allows_nothing(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text("", encoding="utf-8")
    acl = read_named_files(parse_config({"acl": {"file": "acl.yaml"}}), tmp_path).acl
    assert acl is not None
    assert not AccessControl(acl).grants(None, "x").may_publish("a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "acl.yaml"),
        ("topic: a", "list"),
        ("- {topic: a}", "access"),
        ("- {topic: 'a+', access: read}", r"\[0\]"),
        ("- {topic: a, acces: read}", "acces"),
        ("- !!python/object/apply:os.system ['true']", "acl.yaml"),
    ],
)
def test_bad_rules_files(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "acl.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        read_named_files(parse_config({"acl": {"file": "acl.yaml"}}), tmp_path)


@pytest.mark.parametrize("section", [{"auth": {"password_file": "absent"}}, {"acl": {"file": "absent"}}])
def test_missing_files_and_other_encodings(tmp_path: Path, section: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent"):
        read_named_files(parse_config(section), tmp_path)
    (tmp_path / "absent").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_named_files(parse_config(section), tmp_path)


def test_a_configuration_without_files_is_left_alone() -> None:
    config = BrokerConfig()
    assert read_named_files(config) is config


def test_serve_check_reads_the_files_beside_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("auth: {password_file: users}\nacl: {file: acl.yaml}\n", encoding="utf-8")
    app = Typer()
    app.command()(serve)
    missing = CliRunner().invoke(app, ["--config", str(path), "--check"])
    assert missing.exit_code == 2
    (tmp_path / "users").write_text("ann:nonsense", encoding="utf-8")
    (tmp_path / "acl.yaml").write_text("[]", encoding="utf-8")
    malformed = CliRunner().invoke(app, ["--config", str(path), "--check"])
    assert malformed.exit_code == 2
    assert "'ann'" in malformed.output
    (tmp_path / "users").write_text(f"ann:{scram_credentials('x')}", encoding="utf-8")
    assert CliRunner().invoke(app, ["--config", str(path), "--check"]).exit_code == 0
    assert load_config(path).auth.password_file == "users"


def test_hash_password_prints_what_the_configuration_takes() -> None:
    app = Typer()
    app.command()(hash_password_command)
    scram = CliRunner().invoke(app, ["--scram"], input="secret\nsecret\n")
    assert scram.exit_code == 0
    parse_credentials(scram.output.splitlines()[-1])
    plain = CliRunner().invoke(app, [], input="secret\nsecret\n")
    assert plain.output.splitlines()[-1].startswith("scrypt$")
    refused = CliRunner().invoke(app, ["--scram"], input="se\u0007cret\nse\u0007cret\n")
    assert refused.exit_code == 2


def test_certificates_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    further = {"server_names": ["b"], "certificate": "b.pem", "key": "/keys/b"}
    tls = {"certificate": "a.pem", "key": "keys/a", "client_certificate_authority": "c.pem", "certificates": [further]}
    config = parse_config(
        {"listeners": [{"port": 1}, {"port": 2, "tls": tls}, {"port": 3, "tls": {**tls, "key": "/k"}}]}
    )
    read = read_named_files(config, tmp_path)
    plain, second, third = read.listeners
    assert plain.tls is None
    assert second.tls is not None
    assert third.tls is not None
    assert (second.tls.certificate, second.tls.key) == (str(tmp_path / "a.pem"), str(tmp_path / "keys/a"))
    assert second.tls.client_certificate_authority == str(tmp_path / "c.pem")
    assert [(each.certificate, each.key) for each in second.tls.certificates] == [(str(tmp_path / "b.pem"), "/keys/b")]
    assert third.tls.key == "/k"
    assert read_named_files(read) is read, "the broker looks again, from where it is started"
    asked_for_none = parse_config({"listeners": [{"port": 1, "tls": {"certificate": "a", "key": "b"}}]})
    without = read_named_files(asked_for_none, tmp_path).listeners[0].tls
    assert without is not None
    assert not without.client_certificate_authority, "no authority stays none"
