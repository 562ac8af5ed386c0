"""What a publisher is answered: acknowledgements in the order of its publishes, and what its quota is charged with."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.codec import encode_acknowledgement
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason, rule_id
from assay.reference_broker.mqtt.wire.packets import V5, Acknowledgement, PacketType
from assay.reference_broker.queues import QueueError

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

ACK_STARTS = {1: b"\x40\x02", 2: b"\x50\x02"}
_PUBCOMP_START = b"\x70\x02"


class PendingAck:
    """The place of acknowledgements that wait for the disk, or behind one that does.

    ``qos1``: how many of them are PUBACKs. QoS 2 publishes count by their packet ids instead.
    """

    __slots__ = ("data", "qos1")

    def __init__(self, data: bytes | None, qos1: int) -> None:
        self.data = data
        self.qos1 = qos1


_NONE_PENDING: Final[deque[PendingAck]] = deque(maxlen=0)
"""What a connection has until acknowledgements wait. An empty deque takes 600 bytes, and most connections are idle."""
_NONE_LEFT_OVER: Final[set[int]] = set()
"""Likewise; such sets only shrink."""


class PublishAcks:
    """The answering half of ``mqtt.connections.inbound.Inbound``: a base class, so that it costs no call."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._config = connection.broker.config.mqtt
        self._pending_acks = _NONE_PENDING
        self._pending_qos1 = 0
        self._left_over = _NONE_LEFT_OVER
        """QoS 2 ids from earlier connections: they do not count until they are used again (5.0 4.9)."""

    def begin(self) -> None:
        """The client has its session: its quota starts anew."""
        session = self._connection.active_session
        self._left_over = set(session.inbound_qos2) if session.inbound_qos2 else _NONE_LEFT_OVER
        session.recount_ids()

    @property
    def unconfirmed(self) -> int:
        """Acknowledgements that wait for the disk, or behind one that does."""
        return len(self._pending_acks)

    def forget_acks(self) -> None:
        """The connection is over."""
        self._pending_acks = _NONE_PENDING

    def _no_packet_id(self) -> ProtocolError:
        broken = rule_id(self._connection.version, "MQTT-2.3.1-1", "MQTT-2.2.1-3")
        return ProtocolError("packet identifier 0 is not allowed", broken)

    def is_repeated(self, packet_id: int) -> bool:
        """A QoS 2 PUBLISH received before is acknowledged, not published again (5.0 4.3.3-10, 3.1.1 4.3.3-2)."""
        known = self._connection.active_session.inbound_qos2.get(packet_id)
        self._left_over.discard(packet_id)
        if known:
            self.acknowledge(ACK_STARTS[2] + packet_id.to_bytes(2, "big"))
        return known is not None

    def _unfinished(self, session: Session) -> int:
        """Publishes of this connection that the client's quota is charged with."""
        # Should one of those left over have been refused since, after all, the quota is larger by it.
        return len(session.inbound_qos2) - len(self._left_over) + self._pending_qos1

    def check_receive_maximum(self, session: Session) -> None:
        if self._connection.version != V5:
            return
        limit = self._config.receive_maximum
        if self._unfinished(session) >= limit:
            message = f"more than {limit} unfinished publishes"
            raise ProtocolError(message, "MQTT-3.3.4-7", Reason.RECEIVE_MAXIMUM_EXCEEDED)

    def acknowledge(self, data: bytes, qos1: int = 0) -> None:
        """Send acknowledgements, in order behind those that wait for the disk; ``qos1`` of them are PUBACKs."""
        if self._pending_acks:
            self._wait(data, qos1)
        else:
            self._connection.send(data)

    def refuse(self, qos: int, packet_id: int, error: QueueError) -> None:
        """Answer a publish that is not taken. Raises :class:`ProtocolError`."""
        connection = self._connection
        if qos == 2 or self._pending_acks:
            self.check_receive_maximum(connection.active_session)
        data = handlers.acknowledgement(connection, qos, packet_id, error, matched=False)
        if data is None:
            connection.close_now(connection.broker.now)
        else:
            self.acknowledge(data, int(qos == 1))

    def room_for(self, count: int) -> bool:
        """Whether the client's quota allows so many more unfinished publishes."""
        session = self._connection.active_session
        return self._connection.version != V5 or self._unfinished(session) + count <= self._config.receive_maximum

    def wait_for_confirm(self, qos1: int) -> PendingAck:
        """The place of so many PUBACKs, which :meth:`answer` sends."""
        return self._wait(None, qos1)

    def answer(self, slot: PendingAck, data: bytes) -> None:
        """Send acknowledgements once those before them are sent."""
        slot.data = data
        if self._pending_acks[0] is slot:
            self._release_acks()

    def _wait(self, data: bytes | None, qos1: int) -> PendingAck:
        slot = PendingAck(data, qos1)
        if self._pending_acks is _NONE_PENDING:
            self._pending_acks = deque()
        self._pending_acks.append(slot)
        self._pending_qos1 += qos1
        return slot

    def _release_acks(self) -> None:
        pending = self._pending_acks
        while pending and (data := pending[0].data) is not None:
            self._pending_qos1 -= pending.popleft().qos1
            self._connection.send(data)

    def on_pubrel(self, packet_id: int) -> None:
        """The client gives a QoS 2 packet id back."""
        known = self._connection.active_session.inbound_qos2.pop(packet_id, None)
        self._left_over.discard(packet_id)
        if not packet_id:
            raise self._no_packet_id()
        if known is None and self._connection.version == V5:
            unknown = Acknowledgement(
                type=PacketType.PUBCOMP, packet_id=packet_id, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND
            )
            self.acknowledge(encode_acknowledgement(unknown, V5))
        else:
            self.acknowledge(_PUBCOMP_START + packet_id.to_bytes(2, "big"))

    def on_pubrel_run(self, ids: bytes) -> None:
        """Many at once."""
        known = self._connection.active_session.inbound_qos2
        packet_ids = runs.numbers(ids)
        if all(map(known.__contains__, packet_ids)) and len(set(packet_ids)) == len(packet_ids):
            for packet_id in packet_ids:
                del known[packet_id]
            self._left_over.difference_update(packet_ids)
            self.acknowledge(runs.acknowledgements(_PUBCOMP_START, ids))
        else:
            for packet_id in packet_ids:
                self.on_pubrel(packet_id)


def settle_inbound(session: Session, packet_id: int, error: QueueError | None) -> None:
    """The broker has, or refused, a QoS 2 message: its id may be acknowledged, or is free again."""
    if error is None:
        session.inbound_qos2[packet_id] = True
    else:
        session.inbound_qos2.pop(packet_id, None)
