"""What a tenant's clients write and read in topics and user properties: its queues without its name in front."""

from __future__ import annotations

from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.queues.jobs.confirms import Stored
from assay.reference_broker.queues.messages.address import (
    DEAD_LETTER_ALIAS,
    DEAD_LETTER_PREFIX,
    QUEUE_PREFIX,
    is_dead_letter,
)
from assay.reference_broker.routing.message import Message, changed

_IDS_IN = frozenset(("message-id", "receipt", "delay-id"))
_NAMES_OUT = frozenset(("message-id", "receipt", "queue"))
_DEAD_LETTER_NAMES_OUT = frozenset(("_dlq_original_queue", "_dlq_original_id"))
_DEAD_LETTER_TOPIC = "_dlq_original_topic"


def topic_in(tenant: Tenant, topic: str) -> str:
    """The engine's topic for what a client wrote. What names no queue stays as it is, and is refused as such."""
    for start in (DEAD_LETTER_ALIAS, DEAD_LETTER_PREFIX, QUEUE_PREFIX):
        if topic.startswith(start):
            path = topic[len(start) :]
            first = path.partition("/")[0]
            names_queue = bool(first) and first[0] != "$" and (start != QUEUE_PREFIX or first != "dlq")
            return f"{start}{tenant.prefix}{path}" if names_queue else topic
    return topic


def topic_out(tenant: Tenant, topic: str) -> str:
    """The opposite."""
    for start in (DEAD_LETTER_PREFIX, QUEUE_PREFIX):
        if topic.startswith(start + tenant.prefix):
            return start + topic[len(start) + len(tenant.prefix) :]
    return topic


def message_in(tenant: Tenant, message: Message, *, names_ids: bool) -> Message:
    """A client's message as the engine takes it. A settlement names what begins with a queue's name."""
    pairs = message.user_properties
    if names_ids:
        pairs = tuple((name, tenant.name_in(value) if name in _IDS_IN else value) for name, value in pairs)
    return changed(message, topic=topic_in(tenant, message.topic), user_properties=pairs)


def message_out(tenant: Tenant, message: Message, queue: str) -> Message:
    """A delivery as its client sees it."""
    dead = is_dead_letter(queue)
    names = _NAMES_OUT | _DEAD_LETTER_NAMES_OUT if dead else _NAMES_OUT

    def out(name: str, value: str) -> str:
        if name in names:
            return tenant.name_out(value)
        return topic_out(tenant, value) if dead and name == _DEAD_LETTER_TOPIC else value

    pairs = tuple((name, out(name, value)) for name, value in message.user_properties)
    return changed(message, topic=topic_out(tenant, message.topic), user_properties=pairs)


def told_out(tenant: Tenant, on_stored: Stored | None) -> Stored | None:
    """What a publisher is told, in its tenant's names."""
    if on_stored is None:
        return None
    tell = on_stored
    return lambda kind, stored_id: tell(kind, tenant.name_out(stored_id))
