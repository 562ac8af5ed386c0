"""Direct replies: what answers a request goes to the channel that asked, through no queue (``amq.rabbitmq.reply-to``).

Who asks consumes from the name :data:`REPLY_TO` and puts it into ``reply-to``; whoever gets the request finds a name
there that leads to that channel while it consumes. A reply that cannot be given at once is gone, like the one that
comes too late: it is nobody's to keep.
"""

from __future__ import annotations

import base64
import random
from typing import Final, NamedTuple, Protocol

from assay.reference_broker.amqp091.wire.content import BasicProperties
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply

REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = REPLY_TO + "."
_NONCE_BYTES: Final = 24
_RULE: Final = "rmq.direct-reply-to"


class ReplyConsumer(NamedTuple):
    """Where the replies to what a channel asks go; each channel has one at most."""

    taker: ReplyTaker
    vhost: str
    tag: str
    name: str
    """What its requests carry. Who does not know it cannot reply."""


class ReplyTaker(Protocol):
    """Who asks, and gets what comes back."""

    replies: ReplyConsumer | None
    """Set while it waits for some."""

    def deliver_reply(self, consumer: ReplyConsumer, properties: BasicProperties, body: bytes) -> None:
        """One has come."""


class DirectReplies:
    """Who waits for replies, of one node."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], ReplyConsumer] = {}
        """By virtual host and name; as many as channels at most."""

    def open(self, taker: ReplyTaker, vhost: str, tag: str, rng: random.Random, *, no_ack: bool) -> ReplyConsumer:
        """Raises :class:`AmqpError` (406): they need no acknowledgements, and go to one consumer of a channel."""
        if not no_ack:
            raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer cannot acknowledge", rule=_RULE)
        if taker.replies is not None:
            raise AmqpError(Reply.PRECONDITION_FAILED, "reply consumer already set", rule=_RULE)
        name = PREFIX + base64.urlsafe_b64encode(rng.randbytes(_NONCE_BYTES)).decode()
        consumer = self._waiting[vhost, name] = ReplyConsumer(taker, vhost, tag, name)
        return consumer

    def close(self, consumer: ReplyConsumer) -> None:
        del self._waiting[consumer.vhost, consumer.name]

    def exists(self, vhost: str, name: str) -> bool:
        """Whether a reply to that name would go anywhere; it always does to the name that is consumed from."""
        return name == REPLY_TO or (vhost, name) in self._waiting

    def deliver(self, vhost: str, name: str, properties: BasicProperties, body: bytes) -> None:
        """To who waits there, if anybody does."""
        consumer = self._waiting.get((vhost, name))
        if consumer is not None:
            consumer.taker.deliver_reply(consumer, properties, body)


def is_reply_name(name: str) -> bool:
    """Whether it is no queue, though it is in the place of one."""
    return name.startswith(PREFIX)


def name_of(taker: ReplyTaker) -> str:
    """What a request carries in place of :data:`REPLY_TO`. Raises :class:`AmqpError` (406)."""
    consumer = taker.replies
    if consumer is None:
        raise AmqpError(Reply.PRECONDITION_FAILED, "fast reply consumer does not exist", rule=_RULE)
    return consumer.name
