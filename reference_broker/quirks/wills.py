"""Quirks of wills."""

from __future__ import annotations

from collections.abc import Callable

from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.sessions.mqtt_broker import ConnectRequest, MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session, SessionConnection, Will
from assay.reference_broker.mqtt.wire.codec import check_reason
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, Connect, Packet, PacketType
from assay.reference_broker.quirks.model import Quirk, reads

_MOSQUITTO = "docs/findings/mqtt.md#eclipse-mosquitto-2011-debian-12"
_KEEPS_THE_WILL = (Reason.SUCCESS, Reason.DISCONNECT_WITH_WILL)


def _normal_disconnect(applies: Callable[[int], bool]) -> type[MqttConnection]:
    """DISCONNECT in 5.0 with some of the codes is taken for a normal one."""

    def changed(connection: MqttConnection, _header: int, content: bytes) -> bytes:
        is_5 = connection.version == V5 and connection.phase is Phase.CONNECTED
        return bytes((Reason.SUCCESS,)) + content[1:] if is_5 and content and applies(content[0]) else content

    return reads((PacketType.DISCONNECT,), changed)


def _is_defined(reason: int) -> bool:
    try:
        check_reason(PacketType.DISCONNECT, reason)
    except ProtocolError:
        return False
    return True


class _SecondConnectLosesWill(MqttConnection):
    __slots__ = ()

    def handle(self, packet: Packet, now: float) -> None:
        if not isinstance(packet, Connect):
            super().handle(packet, now)
            return
        self.error = ProtocolError("a client must not send CONNECT twice", "MQTT-3.1.0-2")
        self.close_now(now, publish_will=False)


class _DelayOutlastsConnection(MqttBroker):
    def detach(self, session: Session, now: float, *, publish_will: bool) -> None:
        will = session.will
        if publish_will and will is not None and will.delay_s and session.expiry_s <= 0:
            session.will = None
            self.timers.schedule(now + will.delay_s, lambda later: self._send_late(session, will, later))
        super().detach(session, now, publish_will=publish_will)

    def _send_late(self, session: Session, will: Will, now: float) -> None:
        session.will = will
        self.send_will(session, now)


class _DelayedWillLost(MqttBroker):
    def detach(self, session: Session, now: float, *, publish_will: bool) -> None:
        will = session.will
        if will is not None and will.delay_s and session.expiry_s <= 0:
            publish_will = False
        super().detach(session, now, publish_will=publish_will)


class _TakeoverLosesWill(MqttBroker):
    def connect(self, connection: SessionConnection, request: ConnectRequest, now: float) -> tuple[Session, bool]:
        session = self.sessions.get(request.client_id)
        if session is not None and session.connection is not None:
            session.will = None
        return super().connect(connection, request, now)


QUIRKS = (
    Quirk(
        name="disconnect-with-error-deletes-will",
        what="DISCONNECT with a code of 0x80 or more deletes the will, which only 0x00 may.",
        statements=("5.0 MQTT-3.1.2-8", "5.0 MQTT-3.1.2-10"),
        citation=_MOSQUITTO,
        fails=("mqtt5/will/published-after-disconnect-with-error",),
        connection=_normal_disconnect(lambda reason: reason not in _KEEPS_THE_WILL and _is_defined(reason)),
    ),
    Quirk(
        name="undefined-disconnect-code-is-normal",
        what="DISCONNECT with an undefined code is taken for a normal one and deletes the will.",
        statements=("5.0 MQTT-3.14.2-1", "5.0 MQTT-3.1.2-8"),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3743",
        fails=("mqtt5/will/published-after-undefined-disconnect-code",),
        connection=_normal_disconnect(lambda reason: not _is_defined(reason)),
    ),
    Quirk(
        name="second-connect-loses-will",
        what="A second CONNECT ends the connection without a word, and the will is not published.",
        statements=("3.1.1 MQTT-3.1.2-8", "5.0 MQTT-3.1.2-8"),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/2553",
        fails=("mqtt5/will/second-connect-publishes-it",),
        reports=("mqtt5/connect/second-connect-ends-the-connection",),
        connection=_SecondConnectLosesWill,
    ),
    Quirk(
        name="will-delay-outlasts-connection",
        what="A will with a delay waits for it although its session ended with its connection.",
        statements=("5.0 MQTT-3.1.2-8",),
        citation="https://github.com/eclipse-mosquitto/mosquitto/issues/3505",
        fails=(
            "mqtt5/will/delay-ends-with-the-session",
            "mqtt5/will/disconnect-that-ends-the-session-publishes-it",
        ),
        state=_DelayOutlastsConnection,
    ),
    Quirk(
        name="delayed-will-lost",
        what="A will with a delay is never published when its session ended with its connection.",
        statements=("5.0 MQTT-3.1.2-8",),
        citation="https://github.com/emqx/emqx/issues/18565",
        fails=("mqtt5/will/delay-ends-with-the-session",),
        state=_DelayedWillLost,
    ),
    Quirk(
        name="takeover-loses-will",
        what="A connection that is taken over does not have its will published.",
        statements=("5.0 MQTT-3.1.2-8",),
        citation=_MOSQUITTO,
        fails=("mqtt311/will/published-on-takeover",),
        reports=(
            "mqtt5/will/takeover-publishes-a-will-without-delay",
            "mqtt5/session/clean-start-takeover-publishes-the-will",
        ),
        state=_TakeoverLosesWill,
    ),
)
