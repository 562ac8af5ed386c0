"""Bugs of what RabbitMQ and its relatives add to AMQP 0.9.1, as the reference broker has it."""

from __future__ import annotations

from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091 import consumer_arguments, service, stream_commits
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.direct_replies import DirectReplies
from assay.reference_broker.queues.queue.queue import DurableQueue

_REWRITES: dict[str, Row] = {
    "amqp-limits-count-what-is-held": (
        "what is delivered and not acknowledged counts against the length of a queue",
        service,
        "settings_of",
        "LimitScope.READY.value",
        "LimitScope.UNSETTLED.value",
    ),
    "amqp-refused-publishes-lost": (
        "what a full queue refuses goes nowhere, though its overflow says to the dead letter exchange",
        DurableQueue,
        "bury",
        "if self.config.overflow is Overflow.REJECT_TO_DEAD_LETTERS and self.config.dead_letters:",
        "if False:",
    ),
    # Consumers and replies
    "amqp-consumer-priorities-ignored": (
        "all consumers share, whatever their priority",
        Consuming,
        "consume",
        "priority=asked.priority",
        "priority=0",
    ),
    "amqp-replies-to-nobody": (
        "a direct reply goes nowhere",
        DirectReplies,
        "deliver",
        "if consumer is not None:",
        "if False:",
    ),
    "amqp-replies-wait-for-ever": (
        "a name for direct replies stays when its consumer goes",
        DirectReplies,
        "exists",
        "return name == REPLY_TO or (vhost, name) in self._waiting",
        "return True",
    ),
    "amqp-reply-consumers-acknowledge": (
        "direct replies can be consumed with acknowledgements",
        DirectReplies,
        "open",
        "if not no_ack:",
        "if False:",
    ),
    # Streams
    "amqp-streams-are-consumed": (
        "consumers of a stream share its messages",
        Consuming,
        "consume",
        "group = asked.group or consumer.client_id",
        "group = asked.group or GROUP",
    ),
    "amqp-stream-offsets-not-told": (
        "deliveries of a stream do not say where they are from",
        Consuming,
        "deliver",
        "if consumer.is_stream:",
        "if False:",
    ),
    "amqp-stream-offsets-ignored": (
        "who asks for an offset of a stream gets all of it",
        consumer_arguments,
        "position_of",
        "value=max(0, value.value)",
        "value=0",
    ),
    "amqp-streams-without-prefetch": (
        "a stream can be consumed without a prefetch",
        Consuming,
        "check_stream",
        "if not self._prefetch:",
        "if False:",
    ),
    "amqp-streams-can-be-got": (
        "a get of a stream is answered",
        Consuming,
        "get",
        "if use.arguments.is_stream:",
        "if False:",
    ),
    "amqp-commits-of-streams-lost": (
        "the commit of a reader of a stream is confirmed and goes nowhere",
        stream_commits,
        "commit",
        """connection.broker.engine.groups.commit(
        name, group.value, 0, offset.value, consumer_id=consumer.client_id, now=now, on_done=on_done
    )""",
        "on_done(None)",
    ),
    "amqp-commits-of-streams-of-any-group": (
        "a commit of a stream whose group is no text is passed over, as if it had been done",
        stream_commits,
        "commit",
        "fields = dict(headers)",
        "fields = dict(headers)\n    if (g := fields.get(GROUP_ID)) and g.kind is not Kind.TEXT: return on_done(None)",
    ),
}

register_rewrites(_REWRITES)
