"""User name and password of CONNECT. Passwords not seen before are checked outside the turn: that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.wire.packets import Connect

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection


def may_stay(connection: MqttConnection) -> bool:
    """Whether a client that is connected would be let in with what is configured now."""
    if connection.certificate_name is not None:
        return True
    authenticator = connection.authenticator
    if connection.username is None:
        return authenticator.decide(None, None, loopback=connection.loopback) is True
    return authenticator.user(connection.username) == connection.login


def log_in(connection: MqttConnection, packet: Connect) -> bool | None:
    """Whether a client is who it says; None: that is being found out, and the connection hears of it.

    Raises :class:`CheckQueueFullError`.
    """
    if connection.certificate_name is not None:
        connection.username = connection.certificate_name
        return True  # TLS has verified who it is; what CONNECT says of it is ignored
    authenticator = connection.authenticator
    known = authenticator.decide(packet.username, packet.password, loopback=connection.loopback)
    if known is None:
        assert packet.username is not None
        assert packet.password is not None

        def checked(allowed: bool | None) -> None:
            if connection.phase is Phase.VERIFYING:
                connection.go_on_connecting(packet, allowed)

        connection.password_check = authenticator.check(
            packet.username, packet.password, checked, client_id=packet.client_id, protocol="mqtt"
        )
        connection.phase = Phase.VERIFYING
        # It has done its part; how many wait for this is bounded by itself.
        connection.broker.connecting.remove(connection)
    elif known and authenticator.has_users:
        connection.username = packet.username
    return known
