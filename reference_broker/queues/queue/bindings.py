"""Bindings: queues that get the messages of topics that do not name them.

A queue's ``topics`` are filters. A publish to ``$queue/<name>/...`` that matches filters of other queues is stored once
in each of them as well, and confirmed when all have it. An ordinary publish that matches is *captured*: subscribers get
it as ever, and each queue gets a copy, for which the publisher neither waits nor fails. How many copies may wait for
the disk is bounded; what is over that, or what the queue refuses, is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from assay.reference_broker.queues.jobs.confirms import Confirm, JointConfirm, Stored, ignore
from assay.reference_broker.queues.jobs.errors import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import QUEUE_PREFIX, QueueAddress
from assay.reference_broker.queues.messages.publish_options import PublishOptions
from assay.reference_broker.routing.filter_tree import FilterTree
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.remembered import remember

SOURCE_TOPIC: Final = "source-topic"
"""User property of a copy: the topic that it was published to."""
MAX_WAITING: Final = 10_000
"""Captured messages of one queue that wait to be written and synced."""
_MAX_KNOWN: Final = 4_096
_MAX_TOPIC_BYTES: Final = 65_535
Publish = Callable[[QueueAddress, Message, float, Confirm | None, Stored | None, PublishOptions | None], None]
"""As :meth:`QueueEngine.publish`."""


class _Node:
    """One level of the filters."""

    __slots__ = ("children", "queues")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.queues: list[int] = []
        """Whose filter ends here, by their place among all."""


class Bindings(FilterTree[_Node]):
    """The filters of all queues. Never changes; other filters are another object."""

    def __init__(self, filters: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """``filters``: each queue with its topic filters, which are valid."""
        self._root = _Node()
        self._names: list[str] = []
        self._known: dict[str, tuple[str, ...]] = {}
        self.has_ordinary = False
        """Some filter reaches topics that are not of queues."""
        for place, (name, topics) in enumerate(filters):
            self._names.append(name)
            for topic_filter in topics:
                self.add(topic_filter, place)

    def add(self, topic_filter: str, place: int) -> None:
        """Bind the queue at ``place`` to a filter."""
        self.has_ordinary = self.has_ordinary or not topic_filter.startswith(QUEUE_PREFIX)
        node = self._root
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        node.queues.append(place)

    def match(self, topic: str) -> tuple[str, ...]:
        """Queues with a filter that matches a topic name, each once, in the order they were given."""
        known = self._known.get(topic)
        if known is None:
            places = sorted({place for node in self.walk(topic) for place in node.queues})
            known = tuple(self._names[place] for place in places)
            remember(self._known, topic, known, len(topic), _MAX_KNOWN)
        return known


class Captures:
    """What one queue captured of ordinary topics."""

    __slots__ = ("_publish", "_queue", "captured", "dropped", "failed", "waiting")

    def __init__(
        self, queue: str, publish: Callable[[str, Message, float, Confirm, None, PublishOptions | None], None]
    ) -> None:
        """``publish`` enqueues a message with a routing key in the queue of that name."""
        self._queue = queue
        self._publish = publish
        self.waiting = 0
        """Taken, and not yet as safe as the queue promises."""
        self.captured = 0
        self.failed = 0
        """Refused by the queue or the disk."""
        self.dropped = 0
        """Not taken, since too many waited."""

    def take(self, message: Message, now: float, options: PublishOptions | None) -> None:
        """Enqueue a copy. Never raises."""
        if self.waiting >= MAX_WAITING:
            self.dropped += 1
            return
        self.waiting += 1
        try:
            routing_key, copy = bound_copy(self._queue, message)
            self._publish(routing_key, copy, now, self._confirmed, None, options)
        except QueueError as error:
            self._confirmed(error)

    def refuse(self) -> None:
        """One that matched asks for what cannot be done."""
        self.failed += 1

    def _confirmed(self, error: QueueError | None) -> None:
        self.waiting -= 1
        if error is None:
            self.captured += 1
        else:
            self.failed += 1


def bound_copy(queue: str, message: Message) -> tuple[str, Message]:
    """Routing key and message as a queue gets them by a binding: the key is the topic, without ``$queue/``.

    Raises :class:`QueueError` (BAD_ADDRESS) for a topic that leaves no room for the queue's name.
    """
    topic = message.topic
    if len(topic.encode()) + len(queue.encode()) + len(QUEUE_PREFIX) >= _MAX_TOPIC_BYTES:
        text = f"the topic is too long to be delivered from the queue {queue[:80]!r}"
        raise QueueError(QueueErrorCode.BAD_ADDRESS, text)
    properties = message.user_properties
    if properties:
        properties = tuple(pair for pair in properties if pair[0] != SOURCE_TOPIC)
    copy = changed(message, user_properties=(*properties, (SOURCE_TOPIC, topic)))
    return topic.removeprefix(QUEUE_PREFIX), copy


def publish_to_all(
    publish: Publish,
    address: QueueAddress,
    message: Message,
    now: float,
    on_confirmed: Confirm | None,
    on_stored: Stored | None,
    options: PublishOptions | None,
) -> None:
    """Enqueue in the queue that the address names and in those bound to it, with one confirm; ``publish`` does it in
    one queue.

    Raises :class:`QueueError`, with nothing enqueued, when the queue itself refuses it. When another one does, the
    confirm fails although some have it: the publisher publishes again, and these have it twice.
    """
    joint = JointConfirm(on_confirmed or ignore)
    own = msgspec.structs.replace(address, bound=())
    try:
        publish(own, message, now, joint.part(), on_stored, options)
    except QueueError as error:
        if error.code is not QueueErrorCode.UNKNOWN_QUEUE:
            raise
        # It may not be created by use, but others want its messages. Its part of the confirm is forgotten.
        joint = JointConfirm(on_confirmed or ignore)
    for name in address.bound:
        part = joint.part()
        try:
            routing_key, copy = bound_copy(name, message)
            publish(QueueAddress(queue=name, routing_key=routing_key), copy, now, part, None, options)
        except QueueError as error:
            part(error)
    joint.close()
