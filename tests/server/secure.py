"""Certificates made here, brokers that use them, and clients."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import trustme

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    ListenerConfig,
    MqttConfig,
    TlsConfig,
)

WAIT_S = 20.0
CONNECT_311 = bytes.fromhex("100d00044d5154540402003c000174")
CONNACK_311 = bytes.fromhex("20020000")


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


def read_all(client: socket.socket) -> bytes:
    data = b""
    while chunk := client.recv(65_536):
        data += chunk
    return data
