"""Lengths that have more bytes than they need."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.conformance.wire import Decoder
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire.packets import V5, PacketType

_LONGEST_IN_ONE_BYTE = 0x7F
_CAUTIOUS_FROM = 120


@mutant("v5-long-lengths-sent", "a remaining length is written in two bytes when it comes near to what one can hold")
def long_lengths(patch: Patch) -> None:
    original = MqttConnection.take_output

    def take_output(self: MqttConnection) -> bytes:
        data = original(self)
        if self.version != V5:
            return data
        frames = []
        for frame in Decoder(V5).feed_frames(data):
            if frame[0] >> 4 == PacketType.PUBLISH and _CAUTIOUS_FROM <= frame[1] <= _LONGEST_IN_ONE_BYTE:
                frame = bytes((frame[0], frame[1] | 0x80, 0)) + frame[2:]
            frames.append(frame)
        return b"".join(frames)

    patch.replace(MqttConnection, "take_output", take_output)
