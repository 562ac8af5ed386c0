"""The configuration of the MQTT protocols: limits, offered capabilities, and where else clients may go."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from assay.reference_broker.config_numbers import Count, Positive, Range

LARGEST_PACKET_BYTES = 268_435_460
"""What a remaining length of four bytes can frame: a limit from here on is none."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the configuration sections: unknown keys are refused."""


class MqttConfig(Section, frozen=True, kw_only=True):
    """Limits and offered capabilities of the MQTT protocols."""

    max_packet_bytes: Annotated[int, Range(64, LARGEST_PACKET_BYTES)] = 1_048_576 + 65_536
    receive_maximum: Annotated[int, Range(1, 65_535)] = 1_024
    """In-flight QoS 1 and 2 publishes the broker takes from a client."""
    max_inflight_out: Annotated[int, Range(1, 65_535)] = 1_024
    """In-flight QoS 1 and 2 deliveries to a client whose own Receive Maximum is higher."""
    topic_alias_maximum: Annotated[int, Range(0, 65_535)] = 64
    max_queued_messages: int = 10_000
    """Messages kept for a client that is offline or slow; over it the newest is dropped and counted."""
    max_queued_bytes: int = 128 * 1024 * 1024
    """What these take in memory, properties and all; over it likewise."""
    max_inflight_bytes: int = 64 * 1024 * 1024
    """What unfinished deliveries to a client may take; over it the next ones are queued."""
    max_held_bytes: int = 1024 * 1024 * 1024
    """What the messages of all sessions together may take, queued, in flight and wills. From half of it on a session
    gets no more than what is left; over that its newest message is dropped and counted."""
    max_session_expiry_s: Annotated[int, Range(0, 0xFFFFFFFF)] = 4_294_967_295
    """Longest life of a session without a connection; 4294967295 = for ever. MQTT 3.1.1 clients are not told."""
    max_sessions: Annotated[int, Range(1, 10_000_000)] = 100_000
    """Clients connected or remembered; over it new ones are refused (0x97, in 3.1.1 code 3)."""
    max_keep_alive_s: Annotated[int, Range(1, 65_535)] = 65_535
    """An MQTT 5.0 client that asks for more, or for none, is given this one (Server Keep Alive)."""
    keep_alive_progress_bytes: Annotated[int, Range(0, LARGEST_PACKET_BYTES)] = 1_024
    """A packet that is still arriving keeps its connection while so much more of it comes in 1.5 times the keep alive;
    0 = only whole packets do."""
    connect_timeout_s: Positive = 10.0
    """Time for the CONNECT packet to arrive."""
    maximum_qos: Annotated[int, Range(0, 2)] = 2
    retain_available: bool = True
    wildcard_subscription_available: bool = True
    subscription_identifier_available: bool = True
    shared_subscription_available: bool = True
    empty_client_id_available: bool = True
    """A client without an id is given one; False = it is refused (0x85, or code 2)."""
    max_client_id_bytes: Annotated[int, Range(23, 65_535, or_zero=True)] = 0
    """A longer client id is refused (0x85, or code 2); 0 = no limit. No less than 23, which every server takes."""
    response_information: str = ""
    """What an MQTT 5.0 client that asks for it is told to build response topics from; ``%c`` stands for its id."""
    max_connecting: Annotated[int, Range(1, 10_000_000)] = 5_000
    """Connections that have not completed CONNECT; over it the one that has waited longest ends, of those whose address
    has most of them. At most a third of the descriptors there are."""
    max_handshakes: Annotated[int, Range(1, 10_000_000)] = 1_000
    """TLS handshakes under way on all listeners, likewise."""
    max_partial_bytes: int = 256 * 1024 * 1024
    """Bytes of packets that have begun to come, on all connections; over it the connection that has brought no whole
    packet for the longest time ends."""
    max_filter_bytes: int = 1024 * 1024 * 1024
    """What the subscriptions of all clients together may take in memory, shared out like ``max_held_bytes``; over it
    SUBSCRIBE is refused (0x97, in 3.1.1 0x80)."""
    max_alias_bytes: int = 64 * 1024 * 1024
    """What the topic aliases that all clients set may take, shared out likewise; over it the connection ends."""
    max_retained_messages: int = 100_000
    max_retained_bytes: int = 256 * 1024 * 1024
    """What these and the levels of their topics take in memory; over it 0x97."""
    max_topic_levels: Count = 128
    max_subscriptions_per_client: Count = 10_000
    unread_high_water_bytes: Annotated[int, Range(1, 0xFFFFFFFF)] = 1024 * 1024
    """A client that leaves more outgoing bytes unread is given no further deliveries until it has read."""
    max_unread_bytes: Count = 64 * 1024 * 1024
    """Over so many of them, its QoS 0 messages are dropped and counted, and it is read from no more."""
    unread_timeout_s: Positive = 60.0
    """A client that takes none of its unread bytes for so long is disconnected (quota exceeded)."""
    max_total_unread_bytes: int = 512 * 1024 * 1024
    """Unread bytes of all clients; over it, those with any get no further deliveries, and lose QoS 0 messages."""
    turn_bytes: Annotated[int, Range(1, 0xFFFFFFFF)] = 4 * 1024 * 1024
    """Payload bytes sent in one turn of the event loop; large messages to further clients wait for the next one."""


class ServerReferenceMode(StrEnum):
    """Whether clients should go elsewhere for now, or for good (5.0 section 4.11)."""

    USE_ANOTHER_SERVER = "use_another_server"
    """0x9C."""
    SERVER_MOVED = "server_moved"
    """0x9D."""


class ServerReferenceConfig(Section, frozen=True, kw_only=True):
    """Where clients should go instead. MQTT 3.1.1 can only say that the server is unavailable."""

    address: str
    """As the Server Reference property has it: ``host``, ``host:port`` or several of them, separated by spaces."""
    mode: ServerReferenceMode = ServerReferenceMode.USE_ANOTHER_SERVER
    at_connect: bool = False
    """Refuse every CONNECT with it."""
    at_shutdown: bool = True
    """Tell clients so, in place of "server shutting down", when the broker stops."""


def mqtt_problems(mqtt: MqttConfig) -> list[str]:
    """What is wrong with the section ``mqtt``, each with its key."""
    if len(mqtt.response_information.encode()) > 1_024 or "\0" in mqtt.response_information:
        return ["mqtt.response_information may have at most 1024 bytes, and no U+0000"]
    return []


def server_reference_problems(reference: ServerReferenceConfig) -> list[str]:
    """What is wrong with the section ``server_reference``."""
    if not reference.address.strip():
        return ["server_reference.address must name a server, as in other.example:1883"]
    if len(reference.address.encode()) > 1_024 or "\0" in reference.address:
        return ["server_reference.address may have at most 1024 bytes, and no U+0000"]
    return []
