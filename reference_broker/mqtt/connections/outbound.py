"""PUBLISH to a client: the publish flow's sending half (5.0 section 4.3) on the session's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.batches.queue_deliveries import DeliveryEncoder
from assay.reference_broker.mqtt.batches.runs import AlikeRun, MixedRun
from assay.reference_broker.mqtt.sessions.session import RELEASED, WAIT_PUBACK, OutgoingRun, OutgoingState
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311, Acknowledgement, PacketType
from assay.reference_broker.mqtt.wire.publish_encoder import PublishEncoder
from assay.reference_broker.queues import Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.routing.message import HOLDER_BYTES, Message

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

_FINISHED_BY = {PacketType.PUBACK: WAIT_PUBACK, PacketType.PUBCOMP: OutgoingState.WAIT_PUBCOMP}
_PUBREL_START = b"\x62\x02"


def _held_bytes(run: AlikeRun | MixedRun) -> int:
    """What it takes in memory."""
    return run.size + run.count * HOLDER_BYTES


class Outbound:
    """What one client is sent."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._traffic = connection.broker.traffic
        self._encoder = PublishEncoder(V311)
        self._deliveries: DeliveryEncoder | None = None
        self.dropped = 0
        """QoS 0 messages this client was too slow for."""

    def speak(self, version: int) -> None:
        """The protocol version is known."""
        self._encoder = PublishEncoder(version)
        # Classes that change what is published (quirks, for example) are to see deliveries, too.
        if version == V5 and type(self).send_publish is Outbound.send_publish:
            self._deliveries = DeliveryEncoder()

    # -- deliveries ----------------------------------------------------------------------------------------------

    def drop(self, count: int) -> None:
        """The client is too slow for so many QoS 0 messages, and loses them."""
        self.dropped += count
        self._traffic.dropped += count

    def can_send_run(self, run: AlikeRun | MixedRun) -> int:
        """As :meth:`Session.can_send_run`."""
        return self._connection.active_session.can_send_run(run.count, _held_bytes(run))

    def send_run(self, run: AlikeRun | MixedRun, qos: int, first: int, publisher: str) -> None:
        """Send a run of QoS 1 or 2 packets under the packet ids from ``first``."""

        def make(packet_id: int) -> Message:
            return run.message(packet_id - first, qos, publisher)

        outgoing = OutgoingRun(qos, make, run.count, _held_bytes(run))
        self._connection.active_session.start_run(first, run.count, outgoing)
        self._connection.send(run.with_ids(runs.packet_id_bytes(first, run.count)))

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        """As :meth:`SessionConnection.send_publish`."""
        connection = self._connection
        if qos == 0:
            size = connection.out_bytes + len(message.payload)
            if size > connection.sure_room_bytes and not connection.has_room_for(size):
                self.drop(1)
                return False
        header = 0x30 | qos << 1
        if retain:
            header |= 0x01
        if dup:
            header |= 0x08
        data = self._encoder.encode(packet_id, message, header, identifiers, self._broker.now)
        if len(data) > connection.max_packet_out:
            self._traffic.dropped += not qos  # the session counts the others
            return False
        connection.send(data)
        traffic = self._traffic
        traffic.publishes_sent += 1
        traffic.payload_bytes_sent += len(message.payload)
        return True

    def send_delivery(self, packet_id: int, delivery: Delivery) -> bool | None:
        """As :meth:`SessionConnection.send_delivery`."""
        if self._deliveries is None:
            return None
        data = self._deliveries.encode(packet_id, delivery)
        if data is None:
            return None
        connection = self._connection
        if len(data) > connection.max_packet_out:
            return False
        connection.send(data)
        traffic = self._traffic
        traffic.publishes_sent += 1
        traffic.payload_bytes_sent += len(delivery.message.payload)
        return True

    def send_delivery_run(self, first_id: int, run: DeliveryRun) -> bool:
        """As :meth:`SessionConnection.send_delivery_run`."""
        if self._deliveries is None:
            return False
        connection = self._connection
        data = self._deliveries.encode_run(first_id, run, connection.max_packet_out)
        if data is None:
            return False
        connection.send(data)
        traffic = self._traffic
        traffic.publishes_sent += len(run.stored)
        traffic.payload_bytes_sent += sum([len(stored.message.payload) for stored in run.stored])
        return True

    def send_pubrel(self, packet_id: int) -> None:
        self._connection.send(_PUBREL_START + packet_id.to_bytes(2, "big"))

    # -- the client's acknowledgements -----------------------------------------------------------------------------

    def on_acknowledgement(self, packet: Acknowledgement, now: float) -> None:
        """PUBACK, PUBREC or PUBCOMP in any form. Raises :class:`ProtocolError`."""
        # It may be acknowledged without having been sent again: an earlier connection had brought it.
        self._connection.active_session.unsent.pop(packet.packet_id, None)
        if packet.type is PacketType.PUBREC and packet.reason >= 0x80:
            self._finish(packet.packet_id, OutgoingState.WAIT_PUBREC, packet.type, now)
        else:
            self._on_one(packet.type, packet.packet_id, now)
        self.go_on(now)

    def on_run(self, kind: PacketType, ids: bytes, now: float) -> None:
        """Acknowledgements in their short form, successful all. Raises :class:`ProtocolError`."""
        connection = self._connection
        session = connection.session
        assert session is not None
        in_flight = session.in_flight
        expected = _FINISHED_BY.get(kind)
        # To a 5.0 client without automatic commit, the acknowledgement of a delivery says nothing more than that of
        # any message: it settles on its own.
        settles = connection.version != V5 or bool(session.auto_consumers)
        finished_bytes = 0
        unsent = session.unsent
        if unsent:
            for packet_id in runs.numbers(ids):
                unsent.pop(packet_id, None)
        try:
            for packet_id in runs.numbers(ids):
                outgoing = in_flight.get(packet_id)
                if outgoing is not None and outgoing.state is expected and (not settles or outgoing.delivery is None):
                    del in_flight[packet_id]
                    outgoing.left -= 1
                    if not outgoing.left:
                        finished_bytes += outgoing.size
                else:
                    self._on_one(kind, packet_id, now)
        finally:
            session.let_go(finished_bytes)
        self.go_on(now)

    def _on_one(self, kind: PacketType, packet_id: int, now: float) -> None:
        state = _FINISHED_BY.get(kind)
        if state is None:
            self.on_pubrec(packet_id)
        else:
            self._finish(packet_id, state, kind, now)

    def go_on(self, now: float) -> None:
        """Room appeared: deliver what waits."""
        session = self._connection.active_session
        if session.queued or session.stalled_consumers or session.unsent or session.retained is not None:
            self._broker.room_appeared(session, now)

    def _finish(self, packet_id: int, state: OutgoingState, kind: PacketType, now: float) -> None:
        session = self._connection.active_session
        outgoing = session.in_flight.get(packet_id)
        if outgoing is None:
            self.check_packet_id(packet_id)
            return
        if outgoing.state is not state:
            raise self._unexpected(kind, outgoing.state)
        session.finish(packet_id)
        delivery = outgoing.delivery_for(packet_id)
        if delivery is not None:
            if self._connection.version != V5:
                # 3.1.1 has no properties to settle with, so the acknowledgement settles.
                self._broker.acknowledged(session, delivery, now)
            elif session.auto_consumers:
                self._broker.received(session, delivery, now)

    def on_pubrec(self, packet_id: int) -> None:
        session = self._connection.active_session
        outgoing = session.in_flight.get(packet_id)
        if outgoing is None:
            self.check_packet_id(packet_id)
            reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if self._connection.version == V5 else Reason.SUCCESS
            packet = Acknowledgement(type=PacketType.PUBREL, packet_id=packet_id, reason=reason)
            self._connection.send_packet(packet)
            return
        if outgoing.state is WAIT_PUBACK:
            raise self._unexpected(PacketType.PUBREC, outgoing.state)
        # The client has the message: only the packet id is still in flight, behind all others.
        in_flight = session.in_flight
        del in_flight[packet_id]
        in_flight[packet_id] = RELEASED
        outgoing.left -= 1
        if not outgoing.left:
            session.let_go(outgoing.size)
        self.send_pubrel(packet_id)

    def _unexpected(self, kind: PacketType, state: OutgoingState) -> ProtocolError:
        five = self._connection.version == V5
        if state is WAIT_PUBACK:
            statement = "MQTT-4.3.2-3" if five else "MQTT-4.3.2-1"
        else:
            statement = "MQTT-4.3.3-4" if five else "MQTT-4.3.3-1"
        return ProtocolError(f"{kind.name} for a delivery in state {state.name}", statement)

    def check_packet_id(self, packet_id: int) -> None:
        if packet_id == 0:
            statement = "MQTT-2.2.1-3" if self._connection.version == V5 else "MQTT-2.3.1-1"
            raise ProtocolError("packet identifier 0 is not allowed", statement)
