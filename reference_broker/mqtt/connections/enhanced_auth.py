"""Enhanced authentication (5.0 section 4.12): AUTH packets between CONNECT and CONNACK, and on a live connection.

The method's own messages are the business of :class:`assay.reference_broker.auth.ScramServer`; this module carries
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.auth import ScramError, ScramServer, ScramState
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, Auth, Connect, PacketType, Properties

if TYPE_CHECKING:
    from assay.reference_broker.core.timers import Timer
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

_NONCE_SOURCE_BYTES = 32


class Exchange:
    """An authentication under way. It has at most three steps: a start without data, and the two of SCRAM."""

    def __init__(self, scram: ScramServer, method: str, connect: Connect | None) -> None:
        self.scram = scram
        self.method = method
        self.connect = connect
        """What waits for the end of the exchange; None when the client is connected."""
        self.timer: Timer | None = None

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


def check_opening(header: int) -> None:
    """Between CONNECT and CONNACK a client sends AUTH or DISCONNECT only. Raises :class:`ProtocolError`."""
    if header >> 4 not in (PacketType.AUTH, PacketType.DISCONNECT):
        raise ProtocolError("only AUTH or DISCONNECT may follow before CONNACK", "MQTT-3.1.2-30")


def begin(connection: MqttConnection, packet: Connect) -> bytes | None:
    """Start with the method that CONNECT names. Returns what :func:`step` does. Raises :class:`ProtocolError`."""
    method = packet.properties.authentication_method
    assert method is not None
    connection.authentication_method = method
    connection.exchange = _open(connection, method, packet)
    return step(connection, packet.properties.authentication_data)


def on_auth_before_connack(connection: MqttConnection, packet: Auth) -> bytes | None:
    """AUTH during the exchange that CONNECT began. Returns what :func:`step` does. Raises :class:`ProtocolError`."""
    assert connection.exchange is not None
    check_method(connection, packet, "MQTT-4.12.0-5")
    if packet.reason != Reason.CONTINUE_AUTHENTICATION:
        raise ProtocolError("AUTH must say 0x18, Continue authentication, here", "MQTT-4.12.0-3")
    if packet.properties.authentication_data is None:
        raise ProtocolError("AUTH brings no authentication data", "MQTT-4.12.0-4", Reason.NOT_AUTHORIZED)
    return step(connection, packet.properties.authentication_data)


def step(connection: MqttConnection, data: bytes | None) -> bytes | None:
    """Hand the client's data to the method. Returns the server's last data at the end; until then AUTH is sent."""
    exchange = connection.exchange
    assert exchange is not None
    answer: bytes | None = None
    if data is not None:
        statement = "MQTT-4.12.0-4" if exchange.connect is not None else "MQTT-4.12.1-2"
        try:
            answer = exchange.scram.step(data)
        except ScramError as error:
            raise ProtocolError(f"authentication failed: {error}", statement, Reason.NOT_AUTHORIZED) from error
    if exchange.scram.state is ScramState.DONE:
        return answer
    send_auth(connection, Reason.CONTINUE_AUTHENTICATION, answer)
    return None


def on_auth_while_connected(connection: MqttConnection, packet: Auth, now: float) -> None:
    """Re-authentication (4.12.1). Other packets go on meanwhile. Raises :class:`ProtocolError`: the connection ends."""
    if not connection.authentication_method:
        raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
    check_method(connection, packet, "MQTT-4.12.1-1")
    data = packet.properties.authentication_data
    if connection.exchange is None:
        if packet.reason != Reason.REAUTHENTICATE:
            raise ProtocolError("a client starts to authenticate again with AUTH 0x19", "MQTT-4.12.1-1")
        exchange = connection.exchange = _open(connection, connection.authentication_method, None)
        time_limit_s = connection.broker.config.mqtt.connect_timeout_s
        exchange.timer = connection.broker.timers.schedule(
            now + time_limit_s, lambda later: connection.fail(timed_out("MQTT-4.12.1-2"), later)
        )
    elif packet.reason != Reason.CONTINUE_AUTHENTICATION:
        raise ProtocolError("AUTH must say 0x18, Continue authentication, here", "MQTT-4.12.0-3")
    elif data is None:
        raise ProtocolError("AUTH brings no authentication data", "MQTT-4.12.1-2", Reason.NOT_AUTHORIZED)
    final = step(connection, data)
    if final is None:
        return
    if finish(connection) != connection.username:
        raise ProtocolError("a client must remain the same user", "MQTT-4.12.1-2", Reason.NOT_AUTHORIZED)
    send_auth(connection, Reason.SUCCESS, final)


def finish(connection: MqttConnection) -> str:
    """The exchange succeeded: forget it. Returns the proven user name."""
    exchange, connection.exchange = connection.exchange, None
    assert exchange is not None
    assert exchange.scram.state is ScramState.DONE
    exchange.cancel()
    return exchange.scram.username


def timed_out(statement: str) -> ProtocolError:
    """The client took too long."""
    return ProtocolError("no end of the authentication within the time allowed", statement, Reason.NOT_AUTHORIZED)


def _open(connection: MqttConnection, method: str, connect: Connect | None) -> Exchange:
    scram = connection.authenticator.open_exchange(method, connection.broker.rng.randbytes(_NONCE_SOURCE_BYTES))
    if scram is None:
        message = f"authentication method {method[:40]!r} is not offered"
        raise ProtocolError(message, "MQTT-4.12.0-1", Reason.BAD_AUTHENTICATION_METHOD)
    return Exchange(scram, method, connect)


def check_method(connection: MqttConnection, packet: Auth, statement: str) -> None:
    method = packet.properties.authentication_method
    if method is None:
        raise ProtocolError("AUTH names no authentication method", "MQTT-4.12.0-5")
    if method != connection.authentication_method:
        raise ProtocolError("AUTH names another authentication method than CONNECT", statement)


def send_auth(connection: MqttConnection, reason: Reason, data: bytes | None) -> None:
    """Send AUTH. Raises :class:`ProtocolError` where it is larger than the client takes (MQTT-3.1.2-24)."""
    properties = Properties(authentication_method=connection.authentication_method, authentication_data=data)
    encoded = encode_packet(Auth(reason=reason, properties=properties), V5)
    if len(encoded) > connection.max_packet_out:
        message = f"authentication needs packets of {len(encoded)} bytes, more than the client takes"
        raise ProtocolError(message, "MQTT-3.1.2-24", Reason.PACKET_TOO_LARGE)
    connection.send(encoded)
