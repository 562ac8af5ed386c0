"""Topics of queues: ``$queue/<name>/<routing key>``, ``$dlq/<name>``, and the verbs as last level."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.mqtt.queue_topics import tenant_names
from assay.reference_broker.mqtt.queue_topics.publish_properties import parse_options
from assay.reference_broker.queues import QueueAddress, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, Stored
from assay.reference_broker.queues.messages.address import (
    DEAD_LETTER_ALIAS,
    DEAD_LETTER_PREFIX,
    QUEUE_PREFIX,
    check_queue_name,
    dead_letter_name,
)
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import remember

QUEUE_PREFIXES: Final = (QUEUE_PREFIX, DEAD_LETTER_PREFIX)
ADDRESS_CACHE = 4_096


class Verb(StrEnum):
    """What a publish to a queue asks for in place of a place in it."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    """Keep the delivery longer before it times out."""
    CANCEL = "cancel"
    """Not of a delivery: a delayed message shall never be published."""
    COMMIT = "commit"
    """Settle everything of a partition below an offset."""
    CLAIM = "claim"
    """Take over deliveries that another consumer has had for long."""


_VERB_LEVELS: Final = {f"${verb.value}": verb for verb in Verb}


class QueueTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic or filter of a queue says."""

    address: QueueAddress
    verb: Verb | None = None


def is_queue_topic(topic: str) -> bool:
    """Whether a topic name or filter addresses a durable queue."""
    return topic.startswith(QUEUE_PREFIXES)


class QueueTopics:
    """Reads topics, and remembers what they say until queues come or go."""

    def __init__(self, engine: QueueEngine) -> None:
        self._engine = engine
        self._known: dict[str, QueueTopic] = {}
        self._version = -1

    def read(self, topic: str, tenant: Tenant | None = None) -> QueueTopic:
        """What it says, to a client of this tenant. Raises :class:`QueueError` (BAD_ADDRESS)."""
        engine = self._engine
        if tenant is not None:
            topic = tenant_names.topic_in(tenant, topic)
        if self._version != engine.version:
            self._known.clear()
            self._version = engine.version
        known = self._known.get(topic)
        if known is None:
            known = parse_topic(topic, engine.exists)
            if known.verb is None and (bound := engine.bound_to(topic, known.address.queue)):
                known = QueueTopic(address=msgspec.structs.replace(known.address, bound=bound))
            remember(self._known, topic, known, len(topic), ADDRESS_CACHE)
        return known

    def address(self, topic: str) -> QueueAddress:
        """Of a topic without a verb. Raises :class:`QueueError` (BAD_ADDRESS)."""
        known = self.read(topic)
        if known.verb is not None:
            raise _bad(f"{topic[:80]!r} asks for something, and is no place in a queue")
        return known.address

    def publish(
        self, message: Message, now: float, on_confirmed: Confirm | None = None, on_stored: Stored | None = None
    ) -> None:
        """Enqueue a message where its topic says, as its user properties ask for; see :meth:`QueueEngine.publish`."""
        options = parse_options(message.user_properties) if message.user_properties else None
        self._engine.publish(self.address(message.topic), message, now, on_confirmed, on_stored, options)


def parse_topic(topic: str, exists: Callable[[str], bool]) -> QueueTopic:
    """Resolve a topic or filter. The queue is the longest existing name that is a prefix, else the first level.

    ``exists`` tells whether a plain queue name (without ``$dlq/``) is in use. Raises :class:`QueueError` (BAD_ADDRESS).
    """
    if topic.startswith(DEAD_LETTER_ALIAS):
        path, dead_letters = topic[len(DEAD_LETTER_ALIAS) :], True
    elif topic.startswith(DEAD_LETTER_PREFIX):
        path, dead_letters = topic[len(DEAD_LETTER_PREFIX) :], True
    elif topic.startswith(QUEUE_PREFIX):
        path, dead_letters = topic[len(QUEUE_PREFIX) :], False
    else:
        raise _bad(f"{topic[:80]!r} is not a queue topic: those start with $queue/ or $dlq/")
    levels = path.split("/")
    verb = _VERB_LEVELS.get(levels[-1])
    if verb is not None:
        del levels[-1]
    if any(level in _VERB_LEVELS for level in levels):
        raise _bad(f"{topic[:80]!r}: {', '.join(_VERB_LEVELS)} are only allowed as the last level")
    if not levels:
        raise _bad(f"{topic[:80]!r} names no queue before the settlement verb")
    used = queue_levels(levels, exists)
    name = "/".join(levels[:used])
    queue = dead_letter_name(name) if dead_letters else name
    check_queue_name(queue)
    return QueueTopic(address=QueueAddress(queue=queue, routing_key="/".join(levels[used:])), verb=verb)


def queue_levels(levels: list[str], exists: Callable[[str], bool]) -> int:
    for used in range(len(levels), 1, -1):
        if exists("/".join(levels[:used])):
            return used
    return 1


def _bad(text: str) -> QueueError:
    return QueueError(QueueErrorCode.BAD_ADDRESS, text)
