"""One packet as the broker's codec says it and as the suite's does."""

from __future__ import annotations

import msgspec

from assay.conformance import wire as w
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet
from assay.reference_broker.mqtt.wire.wire_types import Reader

V311, V5 = p.V311, p.V5
VERSIONS = (V311, V5)


NOW = 1_700_000_000.0
NONE = p.NO_PROPERTIES
T = w.PacketType


# -- one packet as either codec says it ------------------------------------------------------------------------------


def properties_of(properties: w.Properties) -> p.Properties:
    """The suite's properties as the broker's: the standard gives both their names."""
    return msgspec.convert(msgspec.structs.asdict(properties), p.Properties) if properties != w.Properties() else NONE


def will_of(will: w.Will | None) -> p.WillFields | None:
    if will is None:
        return None
    return p.WillFields(
        topic=will.topic,
        payload=will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=properties_of(will.properties),
    )


def request_of(entry: w.Subscription) -> p.SubscriptionRequest:
    return p.SubscriptionRequest(
        topic_filter=entry.filter,
        qos=entry.qos,
        no_local=entry.no_local,
        retain_as_published=entry.retain_as_published,
        retain_handling=entry.retain_handling,
    )


def as_broker(packet: w.Packet) -> p.Packet:
    """The broker's value of what the suite calls ``packet``."""
    match packet:
        case w.Pingreq():
            return p.Pingreq()
        case w.Pingresp():
            return p.Pingresp()
    properties = properties_of(packet.properties)
    match packet:
        case w.Connect():
            return p.Connect(
                version=packet.version,
                client_id=packet.client_id,
                clean_start=packet.clean,
                keep_alive_s=packet.keep_alive_s,
                will=will_of(packet.will),
                username=packet.username,
                password=packet.password,
                properties=properties,
            )
        case w.Connack():
            return p.Connack(session_present=packet.session_present, reason=packet.reason_code, properties=properties)
        case w.Publish():
            return p.Publish(
                topic=packet.topic,
                payload=packet.payload,
                qos=packet.qos,
                retain=packet.retain,
                dup=packet.dup,
                packet_id=packet.packet_id,
                properties=properties,
            )
        case w.Puback() | w.Pubrec() | w.Pubrel() | w.Pubcomp():
            kind = p.PacketType(packet.type)
            return p.Acknowledgement(
                type=kind, packet_id=packet.packet_id, reason=packet.reason_code, properties=properties
            )
        case w.Subscribe():
            requests = tuple(map(request_of, packet.subscriptions))
            return p.Subscribe(packet_id=packet.packet_id, requests=requests, properties=properties)
        case w.Suback():
            return p.Suback(packet_id=packet.packet_id, reasons=packet.reason_codes, properties=properties)
        case w.Unsubscribe():
            return p.Unsubscribe(packet_id=packet.packet_id, topic_filters=packet.filters, properties=properties)
        case w.Unsuback():
            return p.Unsuback(packet_id=packet.packet_id, reasons=packet.reason_codes, properties=properties)
        case w.Disconnect():
            return p.Disconnect(reason=packet.reason_code, properties=properties)
        case w.Auth():
            return p.Auth(reason=packet.reason_code, properties=properties)
    raise AssertionError(packet)


def broker_decode(frame: bytes, version: int) -> p.Packet:
    """One whole packet, as the broker's connection frames it."""
    reader = Reader(frame, 1, len(frame), version)
    length = reader.variable_integer()
    assert reader.remaining == length
    return decode_packet(frame[0], frame, len(frame) - length, len(frame), version)


def assert_both_say(packet: w.Packet, version: int) -> None:
    """Each codec reads what either wrote, and both writers choose the same bytes."""
    theirs = w.encode(packet, version)
    ours = encode_packet(as_broker(packet), version)
    assert broker_decode(theirs, version) == as_broker(packet)
    assert w.decode_packet(ours, version) == packet
    assert ours == theirs
