"""How sessions and retained messages are written down: one record per thing that changes, by key.

========  ==========================================  =====================================================
key       value                                       what it is
========  ==========================================  =====================================================
``v``     format version                              first record of the log
``s`` c   :class:`StoredSession`                      a session, c = client id
``f`` c f :class:`StoredSubscription`                 its subscription to filter f
``e`` c n :class:`StoredEntry`                        its n-th outgoing message, queued or sent
``p`` c n :class:`StoredProgress`                     what became of the n-th message since
``i`` c p empty                                       packet id p was received as QoS 2 and not yet released
``m`` n   :class:`StoredMessage`                      a message that entries of several sessions share
``r`` t   :class:`StoredMessage`                      the retained message of topic t
``a`` ... of another protocol                         exchanges, queues and bindings of AMQP
``t``     offsets, the store's own                    a turn of several batches begins
========  ==========================================  =====================================================

A record without a value deletes its key. Client ids and filters are separated by a zero byte, which neither may hold
(MQTT-1.5.4-2; 3.1.1 MQTT-1.5.3-2); numbers are big-endian, 8 bytes, packet ids 2. Values are MessagePack arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain

import msgspec

from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import decode_properties, encode_properties
from assay.reference_broker.trace.described import described

FORMAT_VERSION = 1
VERSION_KEY = b"v"
SESSION = b"s"
SUBSCRIPTION = b"f"
ENTRY = b"e"
PROGRESS = b"p"
INBOUND = b"i"
SHARED_MESSAGE = b"m"
RETAINED = b"r"
OTHERS = b"a"
"""What other protocols write, and read themselves."""


class RecordError(ValueError):
    """A record that this version cannot read."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A :class:`Message`; the fields are its own."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    expires_at: float
    publisher: str
    payload_format: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    user_properties: tuple[tuple[str, str], ...]
    properties: bytes = b""
    """See :func:`encode_properties`; empty = it has none."""


class StoredSession(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    username: str | None
    expiry_s: float
    """``inf`` = for ever."""
    disconnected_at: float
    """Unix seconds; 0 = it was connected."""
    will: StoredMessage | None
    will_delay_s: int
    tenant: str | None = None
    """Whose names its queue subscriptions are; empty = no tenant's, None = not known."""


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    share_name: str | None
    group: str | None
    """Consumer group, for a filter that addresses a queue."""
    options: tuple[tuple[str, str], ...] = ()
    """What the consumer asked for beside it, as user properties."""
    retained_due: bool = False
    """Retained messages are still to be sent for it."""


class StoredEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    packet_id: int
    """0 = not sent yet."""
    shared: int
    """Number of the shared message; 0 = the message is in the record."""
    message: StoredMessage | None
    """None with ``shared`` 0: a QoS 2 exchange of which only the packet id is needed."""
    share: str = ""
    """The shared subscription that it came by, as its whole filter; empty = none."""


class StoredProgress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    packet_id: int
    released: bool
    """QoS 2: PUBREC came, PUBCOMP is due."""


encode = msgspec.msgpack.Encoder().encode
_SESSION_DECODER = msgspec.msgpack.Decoder(described(StoredSession))
_SUBSCRIPTION_DECODER = msgspec.msgpack.Decoder(described(StoredSubscription))
_ENTRY_DECODER = msgspec.msgpack.Decoder(described(StoredEntry))
_PROGRESS_DECODER = msgspec.msgpack.Decoder(described(StoredProgress))
_MESSAGE_DECODER = msgspec.msgpack.Decoder(described(StoredMessage))


def stored_message(message: Message) -> StoredMessage:
    return StoredMessage(
        topic=message.topic,
        payload=message.payload,
        qos=message.qos,
        retain=message.retain,
        expires_at=message.expires_at,
        publisher=message.publisher,
        payload_format=message.payload_format,
        content_type=message.content_type,
        response_topic=message.response_topic,
        correlation_data=message.correlation_data,
        user_properties=message.user_properties,
        properties=encode_properties(message.properties) if message.properties is not None else b"",
    )


def restored_message(stored: StoredMessage) -> Message:
    properties = decode_properties(stored.properties) if stored.properties else None
    return Message(**{**msgspec.structs.asdict(stored), "properties": properties})


def stored_subscription(
    subscription: Subscription,
    group: str | None,
    options: tuple[tuple[str, str], ...] = (),
    *,
    retained_due: bool = False,
) -> StoredSubscription:
    asked = msgspec.structs.asdict(subscription)
    return StoredSubscription(**asked, group=group, options=options, retained_due=retained_due)


def restored_subscription(stored: StoredSubscription) -> Subscription:
    return Subscription(**{name: getattr(stored, name) for name in Subscription.__struct_fields__})


class StoredState(msgspec.Struct, kw_only=True):
    """All records by what they are; the order within each is that of the last change."""

    sessions: dict[str, StoredSession] = {}
    subscriptions: dict[str, dict[str, StoredSubscription]] = {}
    """By client id, then by the filter as the client wrote it."""
    entries: dict[str, dict[int, StoredEntry]] = {}
    progress: dict[str, dict[int, StoredProgress]] = {}
    inbound: dict[str, list[int]] = {}
    shared: dict[int, StoredMessage] = {}
    retained: dict[str, StoredMessage] = {}
    retained_before: dict[tuple[str, str], int] = {}
    """Client id and filter of a subscription that retained messages are still to be sent for, to how many of these
    were written before it: what came later it has as it came."""

    # Damage that the log passes over may take a record and leave those that belong to it.

    def unowned(self) -> set[str]:
        """Clients with records, and without a session."""
        parts = (self.subscriptions, self.entries, self.progress, self.inbound)
        return {client_id for part in parts for client_id in part} - self.sessions.keys()

    def last_number(self, client_id: str) -> int:
        """The last number of a message that a session's records have; 0 = none."""
        numbers = (*self.entries.get(client_id, ()), *self.progress.get(client_id, ()))
        return max(numbers, default=0)

    def last_shared(self) -> int:
        """The last number of a shared message that there is, or that an entry refers to; 0 = none."""
        referred_to = (entry.shared for entries in self.entries.values() for entry in entries.values())
        return max(chain(self.shared, referred_to), default=0)

    def message_keys(self, client_id: str, besides: Collection[int] = ()) -> list[bytes]:
        """Keys of what there is of a session's messages, but for those with these numbers."""
        prefix = client_id.encode() + b"\0"
        return [
            kind + prefix + number_bytes(number)
            for kind, numbers in (
                (ENTRY, self.entries.get(client_id, ())),
                (PROGRESS, self.progress.get(client_id, ())),
            )
            for number in numbers
            if number not in besides
        ]

    def keys_of(self, client_id: str) -> list[bytes]:
        """Keys of all that there is of a client, its session apart."""
        prefix = client_id.encode() + b"\0"
        return [
            *self.message_keys(client_id),
            *(SUBSCRIPTION + prefix + name.encode() for name in self.subscriptions.get(client_id, ())),
            *(INBOUND + prefix + packet_id_bytes(packet_id) for packet_id in self.inbound.get(client_id, ())),
        ]


def number_bytes(number: int) -> bytes:
    """A number in a key."""
    return number.to_bytes(8, "big")


def packet_id_bytes(packet_id: int) -> bytes:
    """A packet id in a key."""
    return packet_id.to_bytes(2, "big")


def read_state(records: dict[bytes, bytes], on_problem: Callable[[str], None]) -> StoredState:
    """Sort records by what they are; ``on_problem`` is told of each that is not understood, and is left out.

    Raises :class:`RecordError` when all of them are of another format.
    """
    version = records.get(VERSION_KEY)
    if version is not None and version != str(FORMAT_VERSION).encode():
        raise RecordError(f"sessions were written in format {version!r}; this broker reads format {FORMAT_VERSION}")
    state = StoredState()
    for key, value in records.items():
        if key == VERSION_KEY or key[:1] == OTHERS:
            continue
        try:
            _read_record(state, key[:1], key[1:], value)
        except (ValueError, KeyError, IndexError) as error:
            on_problem(f"the record with key {key[:80]!r} is not understood, and is left out: {error}")
    return state


def _read_record(state: StoredState, kind: bytes, rest: bytes, value: bytes) -> None:
    if kind == SHARED_MESSAGE:
        state.shared[int.from_bytes(rest, "big")] = _MESSAGE_DECODER.decode(value)
        return
    if kind == RETAINED:
        state.retained[rest.decode()] = _MESSAGE_DECODER.decode(value)
        return
    raw_id, _, name = rest.partition(b"\0")
    client_id = raw_id.decode()
    if kind == SESSION:
        state.sessions[client_id] = _SESSION_DECODER.decode(value)
    elif kind == SUBSCRIPTION:
        topic_filter, subscription = name.decode(), _SUBSCRIPTION_DECODER.decode(value)
        state.subscriptions.setdefault(client_id, {})[topic_filter] = subscription
        if subscription.retained_due:
            state.retained_before[client_id, topic_filter] = len(state.retained)
    elif kind == ENTRY:
        state.entries.setdefault(client_id, {})[int.from_bytes(name, "big")] = _ENTRY_DECODER.decode(value)
    elif kind == PROGRESS:
        state.progress.setdefault(client_id, {})[int.from_bytes(name, "big")] = _PROGRESS_DECODER.decode(value)
    elif kind == INBOUND:
        state.inbound.setdefault(client_id, []).append(int.from_bytes(name, "big"))
    else:
        raise ValueError("unknown kind of record")
