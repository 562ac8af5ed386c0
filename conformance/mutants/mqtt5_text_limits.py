"""Texts that are sent whatever the client's Maximum Packet Size, in one packet type and one property each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.wire import (
    Connack,
    Decoder,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    decode_packet,
    encode,
)
from assay.conformance.wire.packets import Properties
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire.packets import V5

_TEXT = "an explanation that is longer than the whole packet would otherwise be, and of no use to anybody"
_KINDS = (Connack, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Disconnect)


def _rewrite_output(patch: Patch, kind: type[Packet], change: Callable[[Properties], Properties]) -> None:
    """Change the properties of every packet of ``kind`` on its way out, however it was made."""
    original = MqttConnection.take_output

    def take_output(self: MqttConnection) -> bytes:
        data = original(self)
        if self.version != V5:
            return data
        frames = []
        for frame in Decoder(V5).feed_frames(data):
            packet = decode_packet(frame, V5)
            if isinstance(packet, kind):
                changed = change(getattr(packet, "properties", Properties()))
                frame = encode(msgspec.structs.replace(packet, properties=changed), V5)
            frames.append(frame)
        return b"".join(frames)

    patch.replace(MqttConnection, "take_output", take_output)


def _define(kind: type[Packet]) -> None:
    name = kind.type.name

    @mutant(f"v5-{name.lower()}-reason-string-too-large", f"{name} has a reason string even if it does not fit")
    def reason_string(patch: Patch) -> None:
        _rewrite_output(patch, kind, lambda properties: msgspec.structs.replace(properties, reason_string=_TEXT))

    @mutant(f"v5-{name.lower()}-user-properties-too-large", f"{name} has user properties even if they do not fit")
    def user_properties(patch: Patch) -> None:
        said = (("why", _TEXT),)
        _rewrite_output(patch, kind, lambda properties: msgspec.structs.replace(properties, user_property=said))


for _kind in _KINDS:
    _define(_kind)
