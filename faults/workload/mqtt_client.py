"""The MQTT client that those of plain MQTT and of queues share: packets, publishes and their answers, resumption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec

from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    encode,
)
from assay.faults.workload.client import ClientPhase, Coming, Operation, Timing, WorkloadClient
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload_kinds import MAX_RECEIVE
from assay.reference_broker.trace.schema import OpKind, OpType

_MAX_PACKET_ID: Final = 65_535
_REFUSED: Final = 0x80
"""Reason codes from here on refuse (5.0, section 2.4)."""
MAX_PACKET_BYTES: Final = 2 * 1_048_576
"""Maximum Packet Size that a client asks for."""


class MqttClient(WorkloadClient):
    """A client of the broker over MQTT, of either version."""

    protocol: ClassVar[str] = "mqtt"

    def __init__(
        self,
        client_id: str,
        timing: Timing,
        history: HistoryRecorder,
        max_in_flight: int,
        *,
        coming: Coming | None = None,
        version: int = 5,
    ) -> None:
        super().__init__(client_id, timing, history, max_in_flight, coming=coming)
        self.version = version
        self._decoder = Decoder(version, max_packet_bytes=MAX_PACKET_BYTES)
        self._last_packet_id = 0
        self._takes_at_once = MAX_RECEIVE
        """Receive Maximum that it asks for."""

    # What the base asks for

    def _greet(self, now: float) -> None:
        self._decoder = Decoder(self.version, max_packet_bytes=MAX_PACKET_BYTES)
        self._connect(now, {})

    def _read(self, data: bytes, now: float) -> None:
        """A protocol error ends the connection."""
        try:
            packets: list[Packet] | tuple[Packet, ...] = self._decoder.feed(data)
        except MalformedPacketError as error:
            packets = error.packets_before
            self._take(packets, now)
            self._abort(f"malformed packet from the broker: {error}")
            return
        self._take(packets, now)

    def _say_goodbye(self) -> None:
        self._send(Disconnect())

    def _ping(self) -> None:
        self._send(Pingreq())

    # What clients of MQTT build on

    def _connect(self, now: float, fields: EventFields) -> None:
        """Send CONNECT and record it; ``fields`` go with the event."""
        self._send(self._connect_packet())
        self._begin_handshake(ClientPhase.CONNECTING, OpKind.CONNECT, now, fields)

    def _connect_packet(self) -> Connect:
        asked = Properties(receive_maximum=self._takes_at_once, maximum_packet_size=MAX_PACKET_BYTES)
        return Connect(
            client_id=self.client_id,
            version=self.version,
            keep_alive_s=self.timing.keep_alive_s,
            properties=asked if self.version == 5 else Properties(),
        )

    def _accepted(self, packet: Connack, now: float) -> None:
        """CONNACK said yes; called before :meth:`_connected`."""
        if self._handshake is not None:
            self._handshake.fields["reason"] = "present" if packet.session_present else "new"
        self._end_handshake(OpType.OK, now)

    def on_publish(self, packet: Publish, now: float) -> None:
        """A message arrived."""
        self._abort(f"unexpected message on {packet.topic!r}")

    def _on_suback(self, packet: Suback, now: float) -> None:
        """A SUBACK arrived."""
        self._abort("unexpected SUBACK")

    def _on_other(self, packet: Packet, now: float) -> None:
        """What only some clients expect."""
        self._abort(f"unexpected {packet.type.name} from the broker")

    def _publish(
        self,
        f: OpKind | None,
        topic: str,
        payload: bytes,
        properties: Properties,
        fields: EventFields,
        now: float,
        *,
        qos: int = 1,
        retain: bool = False,
    ) -> None:
        """Invoke an operation that a publish carries out; its PUBACK or PUBCOMP completes it, at QoS 0 nothing does."""
        index = -1 if f is None else self.history.record(now, self.process, f, OpType.INVOKE, **fields)
        packet_id = self._free_packet_id() if qos else 0
        packet = Publish(
            topic=topic, payload=payload, qos=qos, packet_id=packet_id, retain=retain, properties=properties
        )
        if qos:
            deadline = now + self.timing.operation_timeout_s
            self._in_flight[packet_id] = Operation(
                f=f, process=self.process, index=index, deadline=deadline, fields=fields, packet=packet
            )
        self._send(packet)

    def _send(self, packet: Packet) -> None:
        self._output += encode(packet, self.version)

    # Inside

    def _take(self, packets: Iterable[Packet], now: float) -> None:
        for packet in packets:
            self._packet(packet, now)
            if self.closing:
                return
        if self.ready:
            self._work(now)

    def _packet(self, packet: Packet, now: float) -> None:
        match packet:
            case Publish() if self._has_session:
                self.on_publish(packet, now)
            case Puback() | Pubcomp():
                self._on_answer(packet, now)
            case Pubrec():
                self._on_pubrec(packet, now)
            case Pubrel():
                self._on_pubrel(packet, now)
            case Pingresp():
                self._on_pingresp(now)
            case Connack() if self.phase is ClientPhase.CONNECTING:
                self._on_connack(packet, now)
            case Suback() if self.phase is ClientPhase.SUBSCRIBING:
                self._on_suback(packet, now)
            case Disconnect():
                self._abort(f"disconnected by the broker, reason 0x{packet.reason_code:02x}")
            case _:
                self._on_other(packet, now)

    def _on_connack(self, packet: Connack, now: float) -> None:
        if packet.reason_code:  # 3.1.1 counts refusals from 1 on
            detail = f"connection refused, reason 0x{packet.reason_code:02x}"
            self._end_handshake(OpType.FAIL, now, detail)
            self._abort(detail)
            return
        granted = packet.properties.receive_maximum
        self._receive_maximum = _MAX_PACKET_ID if granted is None else granted
        self._has_session = True
        # The broker may ask for more life signs than we offered (5.0, section 3.2.2.3.14); 0 turns its check off.
        self._ping_after_s = min(self.timing.keep_alive_s, packet.properties.server_keep_alive or _MAX_PACKET_ID) / 2
        self._accepted(packet, now)
        if self.closing:
            return
        if packet.session_present:
            self._resend(now)
        else:
            self._give_up_in_flight(now, "the session was gone")
        self._connected(now)

    def _resend(self, now: float) -> None:
        """What a connection before this one left unanswered (MQTT-4.4.0-1)."""
        for operation in self._in_flight.values():
            packet = operation.packet
            assert packet is not None
            operation.deadline = now + self.timing.operation_timeout_s
            if operation.released:
                self._send(Pubrel(packet_id=packet.packet_id))
                continue
            self._send(msgspec.structs.replace(packet, dup=True))
            if packet.qos == 1 and operation.f is not None:
                # Whatever became of the first one, this one makes another message of it.
                self.history.record(now, self.process, operation.f, OpType.INVOKE, **operation.fields)

    def _give_up_in_flight(self, now: float, detail: str) -> None:
        given_up = [*self._in_flight.values()]
        self._in_flight.clear()
        for operation in given_up:
            self._complete(operation, OpType.INFO, now, detail)

    def _on_pubrec(self, packet: Pubrec, now: float) -> None:
        operation = self._in_flight.get(packet.packet_id)
        if operation is None or operation.packet is None or operation.packet.qos != 2:
            self._abort(f"PUBREC for packet identifier {packet.packet_id}, which is not in use")
        elif packet.reason_code >= _REFUSED:
            self._on_answer(packet, now)
        else:
            operation.released = True
            self._send(Pubrel(packet_id=packet.packet_id))

    def _on_pubrel(self, packet: Pubrel, now: float) -> None:
        self._on_other(packet, now)

    def _on_pingresp(self, now: float) -> None:
        """A ping was answered."""

    def _on_answer(self, packet: Puback | Pubrec | Pubcomp, now: float) -> None:
        operation = self._in_flight.pop(packet.packet_id, None)
        if operation is None:
            if packet.packet_id not in self._abandoned:
                name = packet.type.name
                self._abort(f"{name} for packet identifier {packet.packet_id}, which is not in use")
            self._abandoned.discard(packet.packet_id)
            return
        operation.answer = packet.properties
        # PUBREC said that the broker has it; a PUBCOMP 0x92 then says that it completed it before (5.0, 3.7.2.1).
        if packet.reason_code < _REFUSED or operation.released:
            self._complete(operation, OpType.OK, now, "")
        else:
            reason = packet.properties.reason_string or ""
            self._complete(operation, OpType.FAIL, now, f"reason 0x{packet.reason_code:02x} {reason}".rstrip())

    def _free_packet_id(self) -> int:
        for _ in range(_MAX_PACKET_ID):
            self._last_packet_id = self._last_packet_id % _MAX_PACKET_ID + 1
            if self._last_packet_id not in self._in_flight and self._last_packet_id not in self._abandoned:
                return self._last_packet_id
        message = "every packet identifier is in use; the window should have prevented this"
        raise AssertionError(message)
