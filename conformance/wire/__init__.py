"""The bench's own MQTT 3.1.1 and 5.0 packets: built and parsed without any code of the reference broker.

A suite that shared a codec with the broker it judges would share its mistakes. This package is sans-IO and knows no
clock, so the conformance cases, the workload clients of the fault runner and the simulator use it alike::

    data = encode(Connect(client_id="a", version=5), 5)
    decoder = Decoder(5)
    for packet in decoder.feed(data_from_the_broker):
        match packet:
            case Connack(reason_code=0): ...
"""

from assay.conformance.wire.decode import (
    Decoder,
    MalformedPacketError,
    decode_packet,
    frame_length,
)
from assay.conformance.wire.encode import EncodeError, encode
from assay.conformance.wire.packets import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    describe,
)

__all__ = [
    "NO_PROPERTIES",
    "Auth",
    "Connack",
    "Connect",
    "Decoder",
    "Disconnect",
    "EncodeError",
    "MalformedPacketError",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Properties",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode_packet",
    "describe",
    "encode",
    "frame_length",
]
