"""The configuration of listeners: addresses, transports, TLS."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated

import msgspec

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Count, Range


class Transport(StrEnum):
    """What carries the bytes of a listener; ``tls`` may protect either."""

    TCP = "tcp"
    WEBSOCKET = "websocket"


class ListenerProtocol(StrEnum):
    """What clients of a listener speak."""

    MQTT = "mqtt"
    AMQP091 = "amqp091"
    HTTP = "http"
    """Needs the extra ``http``; see :class:`assay.reference_broker.config_http.HttpConfig`."""
    GRPC = "grpc"
    """Needs the extra ``grpc``; see :class:`assay.reference_broker.config_grpc.GrpcConfig`."""
    COAP = "coap"
    """Over UDP; needs the extra ``coap``. The limits of ``http`` hold for it."""


_PORTS = {
    ListenerProtocol.MQTT: 1_883,
    ListenerProtocol.AMQP091: 5_672,
    ListenerProtocol.HTTP: 8_080,
    ListenerProtocol.GRPC: 9_000,
    ListenerProtocol.COAP: 5_683,
}
_ALONE = (ListenerProtocol.HTTP, ListenerProtocol.GRPC, ListenerProtocol.COAP)
_USUAL_PORT = -1


class TlsVersion(StrEnum):
    """Oldest TLS version a listener speaks."""

    V1_2 = "TLSv1.2"
    V1_3 = "TLSv1.3"


class CertificateConfig(Section, frozen=True, kw_only=True):
    """A further certificate of a listener, for clients that ask for one of its names (SNI)."""

    server_names: tuple[str, ...]
    """``broker.example``, or ``*.example`` for any one label."""
    certificate: str
    key: str


class TlsConfig(Section, frozen=True, kw_only=True):
    """TLS of one listener. Files are PEM; the keys are not encrypted."""

    certificate: str
    """The certificate, then those that lead to its authority."""
    key: str
    certificates: tuple[CertificateConfig, ...] = ()
    """Chosen by server name; clients that ask for no or another name get ``certificate``."""
    minimum_version: TlsVersion = TlsVersion.V1_2
    client_certificate_authority: str = ""
    """Authorities whose client certificates are accepted; empty = clients are asked for none."""
    require_client_certificate: bool = False
    use_certificate_name_as_username: bool = False
    """The common name of the client's certificate is its user name and needs no password; otherwise it is ignored."""
    handshake_timeout_s: Annotated[float, Range(0, 300, above=True)] = 10.0


class WebSocketConfig(Section, frozen=True, kw_only=True):
    """WebSocket of one listener. Handshake and CONNECT together have ``mqtt.connect_timeout_s``."""

    path: str = "/mqtt"
    origins: tuple[str, ...] = ()
    """Origins of the web pages that may connect, as in ``https://app.example``; empty = any. Clients that are no
    browsers send no origin and may always connect."""
    max_handshake_bytes: Annotated[int, Range(256, 65_536)] = 8_192
    max_message_bytes: Count = 16 * 1024 * 1024
    """Largest WebSocket message of a client; it may hold many MQTT packets, or a part of one."""


class ListenerConfig(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = _USUAL_PORT
    """0 = any free port. Without one, that of the first protocol: 1883, 5672, 8080, 9000, 5683."""
    protocols: tuple[ListenerProtocol, ...] = (ListenerProtocol.MQTT,)
    """Among several, a client's first bytes say which it speaks."""
    max_connections: Count = 20_000
    transport: Transport = Transport.TCP
    websocket: WebSocketConfig = WebSocketConfig()
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        if self.port == _USUAL_PORT and self.protocols:
            msgspec.structs.force_setattr(self, "port", _PORTS[self.protocols[0]])


def listener_problems(listener: ListenerConfig) -> list[str]:
    """What is wrong with a listener, each with its key."""
    problems: list[str] = []
    websocket, tls = listener.websocket, listener.tls
    if not listener.protocols or len(set(listener.protocols)) != len(listener.protocols):
        problems.append("protocols needs at least one, each once")
    elif listener.transport is Transport.WEBSOCKET and listener.protocols != (ListenerProtocol.MQTT,):
        problems.append("transport: websocket carries mqtt alone")
    elif len(listener.protocols) > 1 and (alone := [each for each in _ALONE if each in listener.protocols]):
        problems.append(f"protocols: {alone[0].value} has a port of its own")
    if not websocket.path.startswith("/"):
        problems.append(f"websocket.path must start with '/', not be {websocket.path!r}")
    if listener.transport is Transport.TCP and websocket != WebSocketConfig():
        problems.append("websocket has settings, but transport is tcp: write transport: websocket")
    if tls is None:
        return problems
    if ListenerProtocol.COAP in listener.protocols:
        problems.append("tls: CoAP has DTLS in its place, which is not spoken here: put a proxy in front")
    if tls.minimum_version is not TlsVersion.V1_2 and ListenerProtocol.GRPC in listener.protocols:
        problems.append("tls.minimum_version: a listener for grpc always takes TLS 1.2, too")
    if tls.require_client_certificate and not tls.client_certificate_authority:
        problems.append("tls.require_client_certificate needs tls.client_certificate_authority")
    if tls.use_certificate_name_as_username and not tls.require_client_certificate:
        problems.append("tls.use_certificate_name_as_username needs tls.require_client_certificate")
    if not all(further.server_names for further in tls.certificates):
        problems.append("tls.certificates: every entry needs at least one of server_names")
    return problems


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
