"""How the command line changes a target: another address, TLS, credentials. Secrets are read, never shown."""

from __future__ import annotations

import shlex

import msgspec

from assay.conformance.targets.model import (
    PRIVATE,
    Endpoint,
    Target,
    TargetError,
    Tls,
    hosted_target,
    load_target,
    read_password,
)

DEFAULT_PORT, DEFAULT_TLS_PORT = 1_883, 8_883
_OF_A_START = ("{port}", "{websocket_port}", "{http_port}", "{grpc_port}", "{dir}")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line; None, or empty, is what was not given."""

    target: str = ""
    host: str = ""
    port: int | None = None
    username: str = ""
    password_env: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    insecure: bool = False

    def arguments(self) -> str:
        """The options as they would be typed; they hold no secrets."""
        words: list[str] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is True:
                words.append(f"--{name.replace('_', '-')}")
            elif value:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words) or "--target reference"

    @property
    def wants_tls(self) -> bool:
        return any((self.tls, self.ca, self.cert, self.key, self.server_name, self.insecure))


def choose_target(access: Access) -> Target:
    """The target that the options mean: a host or port stands for a broker that runs already.

    Together with a target file they replace its address, and its other lines hold. Raises :class:`TargetError`.
    """
    elsewhere = bool(access.host) or access.port is not None
    default_port = DEFAULT_TLS_PORT if access.wants_tls else DEFAULT_PORT
    if access.target or not elsewhere:
        target = load_target(access.target or "reference")
        if elsewhere:
            target = _at(target, access, default_port)
    else:
        target = hosted_target(access.host or Endpoint().host, access.port or default_port)
    return msgspec.structs.replace(target, endpoint=_with_options(target.endpoint, access))


def _at(target: Target, access: Access, default_port: int) -> Target:
    """The target at another address; what is only true of a broker that the bench starts is dropped."""
    known = target.endpoint
    port = access.port or (known.port if target.start is None else default_port)
    endpoint = msgspec.structs.replace(known, host=access.host or known.host, port=port)
    capabilities = {
        name: value
        for name, value in target.capabilities.items()
        if not any(part in str(value) for part in _OF_A_START) and (target.start is None or name not in PRIVATE)
    }
    return msgspec.structs.replace(
        target,
        endpoint=endpoint,
        capabilities=capabilities,
        start=None,
        restart=target.restart if target.start is None else None,
        broker_per_case=False,
    )


def _with_options(endpoint: Endpoint, access: Access) -> Endpoint:
    if access.password_env and access.password_file:
        message = "--password-env and --password-file exclude each other"
        raise TargetError(message)
    if (access.password_env or access.password_file) and not (access.username or endpoint.username):
        message = "a password needs a user name: --username NAME"
        raise TargetError(message)
    if access.username:
        endpoint = msgspec.structs.replace(endpoint, username=access.username)
    password = read_password(access.password_env, access.password_file)
    if password is not None:
        endpoint = msgspec.structs.replace(endpoint, password=password)
    if access.wants_tls:
        known = endpoint.tls or Tls()
        tls = Tls(
            ca_file=access.ca or known.ca_file,
            certificate_file=access.cert or known.certificate_file,
            key_file=access.key or known.key_file,
            server_name=access.server_name or known.server_name,
            insecure=access.insecure or known.insecure,
        )
        tls.check("the command line")
        endpoint = msgspec.structs.replace(endpoint, tls=tls)
    return endpoint
