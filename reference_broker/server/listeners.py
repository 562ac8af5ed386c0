"""Listeners: what is stacked on a socket (TLS, WebSocket), and the addresses clients are told."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.config import ConfigError, ListenerConfig, ListenerProtocol, Transport, is_loopback
from assay.reference_broker.server.tcp import LINGER_S, NodeDriver, SocketProtocol
from assay.reference_broker.server.tls import certificate_common_name, server_context
from assay.reference_broker.server.websocket_layer import WebSocketLayer

if TYPE_CHECKING:
    from assay.reference_broker.api.callers import Arrival
    from assay.reference_broker.api.service import Service

_SCHEMES = {
    (Transport.TCP, False): "mqtt",
    (Transport.TCP, True): "mqtts",
    (Transport.WEBSOCKET, False): "ws",
    (Transport.WEBSOCKET, True): "wss",
}
_AMQP_SCHEMES = {False: "amqp", True: "amqps"}
_HTTP_SCHEMES = {False: "http", True: "https"}
_GRPC_SCHEMES = {False: "grpc", True: "grpcs"}


class ListenerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a listener listens."""

    scheme: str
    """``mqtt``, ``mqtts``, ``ws``, ``wss``, ``amqp``, ``amqps``, ``http``, ``https``, ``grpc``, ``grpcs`` or ``coap``:
    of the first protocol."""
    host: str
    port: int
    path: str = ""
    """Of a WebSocket."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        try:
            brackets = ipaddress.ip_address(self.host).version == 6
        except ValueError:
            brackets = False
        return f"[{self.host}]:{self.port}" if brackets else f"{self.host}:{self.port}"


async def start_listener(driver: NodeDriver, listener: ListenerConfig, where: str) -> ListenerAddress:
    """Listen. ``where`` is the listener's path in the configuration. Raises :class:`OSError`, ``ConfigError``."""
    tls = listener.tls
    context = server_context(tls, f"{where}.tls") if tls is not None else None
    loopback = is_loopback(listener.host)
    named = tls is not None and tls.use_certificate_name_as_username

    if listener.protocols[0] is ListenerProtocol.GRPC:
        host, port = await _start_grpc(driver, listener, where)
        return ListenerAddress(scheme=_GRPC_SCHEMES[tls is not None], host=host, port=port)
    if listener.protocols[0] is ListenerProtocol.COAP:
        host, port = await _start_coap(driver, listener)
        return ListenerAddress(scheme=ListenerProtocol.COAP.value, host=host, port=port)

    def plain() -> SocketProtocol:
        return SocketProtocol(
            driver,
            loopback=loopback,
            limit=listener.max_connections,
            name_from_certificate=named,
            protocols=tuple(each.value for each in listener.protocols),
        )

    def framed() -> asyncio.Protocol:
        unread_bytes = driver.node.config.mqtt.max_unread_bytes
        return WebSocketLayer(
            plain(), listener.websocket, driver.tell_of_client, max_unread_bytes=unread_bytes, linger_s=LINGER_S
        )

    websocket = listener.transport is Transport.WEBSOCKET
    speaks_http = listener.protocols[0] is ListenerProtocol.HTTP
    host, port = await driver.listen(
        _http(driver, listener, loopback, named) if speaks_http else framed if websocket else plain,
        listener.host,
        listener.port,
        context=context,
        # Handshakes run beside each other; one that stalls costs its socket until then.
        handshake_timeout_s=tls.handshake_timeout_s if tls is not None else None,
    )
    scheme = _SCHEMES[listener.transport, tls is not None]
    if listener.protocols[0] is ListenerProtocol.AMQP091:
        scheme = _AMQP_SCHEMES[tls is not None]
    elif speaks_http:
        scheme = _HTTP_SCHEMES[tls is not None]
    return ListenerAddress(scheme=scheme, host=host, port=port, path=listener.websocket.path if websocket else "")


def _http(driver: NodeDriver, listener: ListenerConfig, loopback: bool, named: bool) -> Callable[[], asyncio.Protocol]:
    """What makes the protocols of a listener that speaks HTTP. Raises ``ConfigError`` without the extra."""
    check_extras((ListenerProtocol.HTTP,))
    from assay.reference_broker.api.callers import Arrival
    from assay.reference_broker.http.server import HttpServer  # it takes long to import, and an extra

    if driver.http is None:
        driver.http = HttpServer(_service(driver))

    def arrival_of(transport: asyncio.Transport) -> Arrival | None:
        peer = transport.get_extra_info("peername")
        name = certificate_common_name(transport.get_extra_info("peercert")) if named else None
        if named and name is None:
            driver.warn("certificate", f"connection refused: the certificate of {peer} has no common name, or several")
            return None
        return Arrival(peer=str(peer), address=str(peer[0]) if peer else "", loopback=loopback, certificate_name=name)

    return driver.http.protocol(limit=listener.max_connections, arrival_of=arrival_of)


async def _start_grpc(driver: NodeDriver, listener: ListenerConfig, where: str) -> tuple[str, int]:
    """Listen for gRPC, whose library has sockets and TLS of its own. Raises ``ConfigError``, :class:`OSError`."""
    check_extras((ListenerProtocol.GRPC,))
    from assay.reference_broker.grpc_api.server import GrpcServer  # it takes long to import, and an extra

    if driver.grpc is None:
        driver.grpc = GrpcServer(_service(driver), driver.node.config.grpc)
    return await driver.grpc.listen(listener, where)


async def _start_coap(driver: NodeDriver, listener: ListenerConfig) -> tuple[str, int]:
    """Listen for CoAP, over UDP. Raises ``ConfigError``, :class:`OSError`."""
    check_extras((ListenerProtocol.COAP,))
    from assay.reference_broker.coap.server import CoapServer  # it takes long to import, and an extra

    if driver.coap is None:
        driver.coap = CoapServer(_service(driver))
    return await driver.coap.listen(listener)


def _service(driver: NodeDriver) -> Service:
    """What all faces of requests and answers ask; HTTP's limits hold for all of them together."""
    from assay.reference_broker.api.service import Service  # of no use to who speaks neither

    if driver.service is None:
        driver.service = Service(lambda: driver, driver.node.config.http)
    return driver.service


_EXTRAS = {
    ListenerProtocol.HTTP: ("fastapi", "uvicorn"),
    ListenerProtocol.GRPC: ("grpc", "grpc_tools", "grpc_health", "grpc_reflection"),
    ListenerProtocol.COAP: ("aiocoap",),
}


def check_extras(protocols: Iterable[ListenerProtocol]) -> None:
    """Raises ``ConfigError`` where an extra that one of the protocols needs is not installed."""
    for protocol in protocols:
        missing = [name for name in _EXTRAS.get(protocol, ()) if find_spec(name) is None]
        if missing:
            extra = protocol.value
            raise ConfigError(
                f"a listener speaks {extra}, but {' and '.join(missing)} is not installed; install what it needs: "
                f"pip install 'assay-mq[{extra}]', or from a checkout: pip install '.[{extra}]'"
            )
