"""Last words: CONNACK and DISCONNECT with a reason, within what the client takes (5.0 sections 3.2.2.3.9, 3.14.2.2)."""

from __future__ import annotations

from typing import Protocol

from assay.reference_broker.config import ServerReferenceConfig, ServerReferenceMode
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason
from assay.reference_broker.mqtt.wire.packets import NO_PROPERTIES, V5, Connack, Disconnect, Properties

MAX_REASON_CHARACTERS = 200
_REASONS = {
    ServerReferenceMode.USE_ANOTHER_SERVER: Reason.USE_ANOTHER_SERVER,
    ServerReferenceMode.SERVER_MOVED: Reason.SERVER_MOVED,
}


class Told(Protocol):
    """Who is told."""

    problem_information: bool
    """It wants to know why."""
    max_packet_out: int
    """Bytes of a packet that it takes."""

    def send(self, data: bytes) -> None: ...


def reference_reason(reference: ServerReferenceConfig) -> Reason:
    """The code that goes with a server reference (5.0 section 4.11)."""
    return _REASONS[reference.mode]


def explain(
    connection: Told, packet: type[Connack | Disconnect], error: ProtocolError, server_reference: str = ""
) -> None:
    """Send ``packet`` for an error, with the rule that was broken unless the client wants no problem information."""
    text = str(error)[:MAX_REASON_CHARACTERS] if connection.problem_information else None
    reference = server_reference or None
    offers = [Properties(reason_string=text, server_reference=reference)] if text is not None else []
    if reference is not None:
        offers.append(Properties(server_reference=reference))
    # What would make the packet larger than the client takes is left out, the explanation first (3.2.2-19, 3.14.2-3).
    for properties in (*offers, NO_PROPERTIES):
        data = encode_packet(packet(reason=error.reason, properties=properties), V5)
        if len(data) <= connection.max_packet_out:
            connection.send(data)
            return
