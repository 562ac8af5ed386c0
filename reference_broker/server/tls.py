"""TLS settings of a listener, checked when the broker starts: versions, certificates, server names, client names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

from assay.reference_broker.config import BrokerConfig, ConfigError, TlsConfig, TlsVersion

_MINIMUM = {TlsVersion.V1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.V1_3: ssl.TLSVersion.TLSv1_3}
_MAX_PEM_BYTES = 4 * 1024 * 1024


def check_listeners(config: BrokerConfig) -> None:
    """Load every certificate the listeners name. Raises :class:`ConfigError` naming the key and the file."""
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            server_context(listener.tls, f"listeners[{index}].tls")


def server_context(tls: TlsConfig, where: str) -> ssl.SSLContext:
    """The context of a listener. Raises :class:`ConfigError`; ``where`` is the path of the section, for its text."""
    context = _context(tls, tls.certificate, tls.key, where)
    if tls.certificates:
        named: dict[str, ssl.SSLContext] = {}
        for index, further in enumerate(tls.certificates):
            chosen = _context(tls, further.certificate, further.key, f"{where}.certificates[{index}]")
            named.update((name.lower(), chosen) for name in further.server_names)

        def choose(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _base: ssl.SSLContext) -> None:
            chosen = context_for(name, named)
            if chosen is not None:
                connection.context = chosen

        context.sni_callback = choose
    return context


def context_for(name: str | None, named: Mapping[str, ssl.SSLContext]) -> ssl.SSLContext | None:
    """What is configured for a server name a client asks for: the name itself, then ``*`` for its first label."""
    if name is None:
        return None
    name = name.lower()
    exact = named.get(name)
    return exact if exact is not None else named.get("*." + name.partition(".")[2])


def _context(tls: TlsConfig, certificate: str, key: str, where: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _MINIMUM[tls.minimum_version]
    # Renegotiation is work a client can ask for without end; compression leaks lengths.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_certificate(context, certificate, key, where)
    if tls.client_certificate_authority:
        _load_authority(context, tls.client_certificate_authority, f"{where}.client_certificate_authority")
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    _load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, f"{where}.certificate")
    _read(key, f"{where}.key")
    encrypted = False

    def no_password() -> str:
        # Without this the library would stop and ask on the terminal.
        nonlocal encrypted
        encrypted = True
        return ""

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (ssl.SSLError, ValueError) as error:
        if encrypted:
            message = f"{where}.key: {key} is encrypted; store it decrypted, readable by the broker only"
        elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            message = f"{where}.key: {key} is not the key of the certificate {certificate}"
        elif isinstance(error, ssl.SSLError) and error.reason is not None and error.reason.endswith(("SMALL", "WEAK")):
            message = f"{where}: {certificate} or its key is too weak: {_reason(error)}"
        else:
            message = f"{where}.key: {key} holds no usable PEM private key ({_reason(error)})"
        raise ConfigError(message) from error


def _load_authority(context: ssl.SSLContext, file: str, where: str) -> None:
    try:
        context.load_verify_locations(cadata=_read(file, where))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: {file} holds no PEM certificate, or a damaged one ({_reason(error)})") from error


def _read(file: str, where: str) -> str:
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(_MAX_PEM_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {file}: {error.strerror}") from error
    if len(data) > _MAX_PEM_BYTES:
        raise ConfigError(f"{where}: {file} is larger than {_MAX_PEM_BYTES} bytes, so it is no PEM file")
    # PEM is ASCII with comments in between; what is not is the library's to refuse.
    return data.decode("ascii", "replace").replace("\ufffd", "?")


def _reason(error: ssl.SSLError | ValueError) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def unsent_bytes(transport: asyncio.Transport) -> int:
    """What a transport has not sent yet. One with TLS counts only what it has not handed to the transport below.

    Of uvloop's TLS, that one cannot be seen.
    """
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport.get_write_buffer_size() + (below.get_write_buffer_size() if below is not None else 0)


def certificate_common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The common name of a verified peer certificate, in the form :meth:`ssl.SSLSocket.getpeercert` returns.

    None without a certificate, and without exactly one common name: which of several is meant would be a guess.
    """
    subject = (certificate or {}).get("subject", ())
    if not isinstance(subject, tuple):
        return None
    names = [value for attributes in subject for key, value in attributes if key == "commonName"]
    return names[0] if len(names) == 1 and isinstance(names[0], str) and names[0] else None
