"""Listeners: what is stacked on a socket (TLS, WebSocket), and the addresses clients are told."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from importlib.util import find_spec

import msgspec

from assay.reference_broker.api.callers import Arrival
from assay.reference_broker.config import ConfigError, ListenerConfig, ListenerProtocol, Transport, is_loopback
from assay.reference_broker.server.tcp import LINGER_S, NodeDriver, SocketProtocol
from assay.reference_broker.server.tls import certificate_common_name, server_context
from assay.reference_broker.server.websocket_layer import WebSocketLayer

_SCHEMES = {
    (Transport.TCP, False): "mqtt",
    (Transport.TCP, True): "mqtts",
    (Transport.WEBSOCKET, False): "ws",
    (Transport.WEBSOCKET, True): "wss",
}
_AMQP_SCHEMES = {False: "amqp", True: "amqps"}
_HTTP_SCHEMES = {False: "http", True: "https"}


class ListenerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a listener listens."""

    scheme: str
    """``mqtt``, ``mqtts``, ``ws``, ``wss``, ``amqp``, ``amqps``, ``http`` or ``https``: of the first protocol."""
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
    check_http()
    from assay.reference_broker.http.server import HttpServer  # it takes long to import, and an extra

    if driver.http is None:
        driver.http = HttpServer(driver)

    def arrival_of(transport: asyncio.Transport) -> Arrival | None:
        peer = transport.get_extra_info("peername")
        name = certificate_common_name(transport.get_extra_info("peercert")) if named else None
        if named and name is None:
            driver.warn("certificate", f"connection refused: the certificate of {peer} has no common name, or several")
            return None
        return Arrival(peer=str(peer), address=str(peer[0]) if peer else "", loopback=loopback, certificate_name=name)

    return driver.http.protocol(limit=listener.max_connections, arrival_of=arrival_of)


def check_http() -> None:
    """Raises ``ConfigError`` where the extra that HTTP needs is not installed."""
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        message = (
            f"a listener speaks http, but {' and '.join(missing)} is not installed; install what it needs: "
            "pip install 'assay-mq[http]', or from a checkout: pip install '.[http]'"
        )
        raise ConfigError(message)
