"""What a server may send, and when: the checks of a packet that need no broker."""

from __future__ import annotations

from assay.conformance.wire import Auth, Connack, Disconnect, Packet, PacketType, Publish

_FROM_SERVERS = frozenset(
    (
        PacketType.CONNACK,
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.SUBACK,
        PacketType.UNSUBACK,
        PacketType.PINGRESP,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    )
)
_NOT_FROM_SERVERS_DISCONNECT = frozenset((0x00, 0x04))
"""Disconnect codes that only clients say (5.0 table 3-10); the rest of that table the decoder knows."""


def check_server_packet(packet: Packet, version: int, *, first: bool, last: bool) -> str | None:
    """What is wrong with it; None = nothing.

    ``first``: nothing was sent on the connection before. ``last``: the connection closes behind it.
    """
    if packet.type not in _FROM_SERVERS:
        return "servers do not send this"
    if first and packet.type not in (PacketType.CONNACK, PacketType.AUTH):
        return "the first packet must be CONNACK or AUTH"
    match packet:
        case Connack():
            if packet.reason_code and not last:
                return "the connection goes on after a refusal"
        case Disconnect():
            if version < 5:
                return "there is no DISCONNECT from servers in 3.1.1"
            if packet.reason_code in _NOT_FROM_SERVERS_DISCONNECT:
                return f"servers do not disconnect with 0x{packet.reason_code:02x}"
            if not last:
                return "the connection goes on after DISCONNECT"
        case Auth():
            if version < 5:
                return "there is no AUTH in 3.1.1"
            if packet.properties.authentication_method is None:
                return "AUTH names no method"
        case Publish():
            if packet.properties.topic_alias is not None:
                return "a topic alias"
    return None
