"""One broker with every kind of listener, for clients that were written without it in mind."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import AuthConfig, BrokerConfig, ListenerConfig, TlsConfig, Transport, UserConfig

sys.path.insert(0, str(Path(__file__).parent))  # python_clients is shared by the tests of this folder only


class InteropBroker(NamedTuple):
    """Where to reach it; clients may be anonymous, or ``ann`` with the password ``secret``."""

    ports: dict[str, int]
    """By transport: tcp, tls, websocket, secure websocket."""
    authority: str
    """File with the certificate to trust."""
    context: ssl.SSLContext
    broker: Broker


@pytest.fixture(scope="session")
def interop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteropBroker]:
    folder = tmp_path_factory.mktemp("interop")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key, trusted = folder / "server.pem", folder / "server.key", folder / "authority.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    tls = TlsConfig(certificate=str(certificate), key=str(key))
    transports = {
        "tcp": ListenerConfig(port=0),
        "tls": ListenerConfig(port=0, tls=tls),
        "websocket": ListenerConfig(port=0, transport=Transport.WEBSOCKET),
        "secure websocket": ListenerConfig(port=0, transport=Transport.WEBSOCKET, tls=tls),
    }
    users = (UserConfig(username="ann", password_hash=hash_password(b"secret")),)
    config = BrokerConfig(listeners=tuple(transports.values()), auth=AuthConfig(anonymous=True, users=users))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with Broker(config) as broker:
        ports = {name: address.port for name, address in zip(transports, broker.addresses, strict=True)}
        yield InteropBroker(ports, str(trusted), context, broker)
