"""The packets of MQTT 3.1.1 and 5.0 as values. Fields are named as the standards name them."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class PacketType(IntEnum):
    """Control packet types (section 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


V311 = 4
V5 = 5


class Properties(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """MQTT 5.0 properties (section 2.2.2.2). None = absent; durations in seconds."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()
"""Shared empty value; told apart by identity on the hot path."""


class WillFields(msgspec.Struct, frozen=True, kw_only=True):
    """The will of a CONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Connect(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.1."""

    version: int
    client_id: str
    clean_start: bool = True
    """Clean Session in 3.1.1."""
    keep_alive_s: int = 0
    will: WillFields | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES


class Connack(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.2. ``reason`` is the return code in 3.1.1."""

    session_present: bool = False
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.3. ``packet_id`` is 0 at QoS 0."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7)."""

    type: PacketType
    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


class SubscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One filter of a SUBSCRIBE with its options."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.8."""

    packet_id: int
    requests: tuple[SubscriptionRequest, ...]
    properties: Properties = NO_PROPERTIES
    beyond: int = 0
    """More filters than anybody may subscribe to, which were checked and counted, but not kept."""


class Suback(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.9."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.10."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


class Unsuback(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.11. ``reasons`` is empty in 3.1.1."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


class Pingreq(msgspec.Struct, frozen=True):
    """Section 3.12."""


class Pingresp(msgspec.Struct, frozen=True):
    """Section 3.13."""


class Disconnect(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.14."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """Section 3.15, 5.0 only."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | Acknowledgement
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
