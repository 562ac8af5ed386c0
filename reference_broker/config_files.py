"""The files that a configuration names: users and access rules, read at start and at each reload; and certificates."""

from __future__ import annotations

from pathlib import Path

import msgspec

from assay.reference_broker.config import AclRuleConfig, BrokerConfig, ConfigError, TlsConfig, UserConfig, rule_problems
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.yaml_text import YamlError, parse_yaml, read_utf8


def read_named_files(config: BrokerConfig, folder: Path = Path()) -> BrokerConfig:
    """Put what the password file and the rules file hold in the place of their names, which are relative to ``folder``.
    So are the names of certificates and keys, which listeners read; they become names from here.

    Raises :class:`ConfigError` naming file and line. A configuration that names no file is returned as it is.
    """
    auth, acl = config.auth, config.acl
    if auth.password_file:
        users = _read_users(folder / auth.password_file)
        auth = msgspec.structs.replace(auth, users=(*auth.users, *users), password_file="")
    if acl is not None and acl.file:
        path = folder / acl.file
        rules = _read_rules(path)
        acl = msgspec.structs.replace(acl, rules=(*acl.rules, *rules), file="")
    listeners = config.listeners
    if folder != Path():
        listeners = tuple(
            msgspec.structs.replace(listener, tls=_tls_in(folder, listener.tls)) if listener.tls else listener
            for listener in listeners
        )
    if auth is config.auth and acl is config.acl and listeners == config.listeners:
        return config
    return msgspec.structs.replace(config, auth=auth, acl=acl, listeners=listeners)


def _tls_in(folder: Path, tls: TlsConfig) -> TlsConfig:
    def of(name: str) -> str:
        return name and str(folder / name)

    further = tuple(
        msgspec.structs.replace(each, certificate=of(each.certificate), key=of(each.key)) for each in tls.certificates
    )
    authority = of(tls.client_certificate_authority)
    return msgspec.structs.replace(
        tls,
        certificate=of(tls.certificate),
        key=of(tls.key),
        certificates=further,
        client_certificate_authority=authority,
    )


def _read_users(path: Path) -> tuple[UserConfig, ...]:
    """Users of a password file. A user may have two lines: a password hash and SCRAM credentials."""
    found: dict[str, dict[str, str]] = {}
    for number, line in enumerate(_read_text(path, "the password file").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        # A stored secret has no colon, a user name may have some.
        username, colon, stored = line.strip().rpartition(":")
        field = "password_hash" if stored.startswith("scrypt$") else "scram_sha_256"
        if not colon or not username or not stored:
            raise ConfigError(f"{path}, line {number}: write <user>:<what `assay hash-password` prints>")
        if field in found.setdefault(username, {}):
            raise ConfigError(f"{path}, line {number}: a second entry of the same kind for {username!r}; delete one")
        found[username][field] = stored
    return tuple(UserConfig(username=username, **fields) for username, fields in found.items())


def _read_text(path: Path, what: str) -> str:
    try:
        return read_utf8(path)
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror}") from error
    except YamlError as error:
        raise ConfigError(f"{what} {path}: {error}") from error


def _read_rules(path: Path) -> tuple[AclRuleConfig, ...]:
    try:
        rules = (
            msgspec.convert(
                parse_yaml(_read_text(path, "the access rules")), described(tuple[AclRuleConfig, ...] | None)
            )
            or ()
        )
    except (YamlError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} is not a list of access rules: {error}") from error
    if problems := rule_problems(rules, str(path)):
        raise ConfigError("; ".join(problems))
    return rules
