"""Bugs of the reference broker's AMQP 0.9.1 in what it reads and declares: handshake, frames, content, queues."""

from __future__ import annotations

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091 import channel as channel_module
from assay.reference_broker.amqp091 import connection as connection_module
from assay.reference_broker.amqp091 import consuming as consuming_module
from assay.reference_broker.amqp091 import declarations, runs
from assay.reference_broker.amqp091 import publishing as publishing_module
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import virtual_host
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost

_ROWS: dict[str, Row] = {
    # Connections
    "amqp-strange-headers-unanswered": (
        "a strange protocol header gets no other one, only the end",
        AmqpConnection,
        "on_header",
        "self.send(PROTOCOL_HEADER)",
        "pass",
    ),
    "amqp-other-locale": (
        "en_US is not offered",
        AmqpConnection,
        "on_header",
        'b"en_US"',
        'b"de_DE"',
    ),
    "amqp-any-tune-taken": (
        "a client may ask for more than was offered",
        AmqpConnection,
        "on_tune_ok",
        "if asked > most or (asked == 0 and most):",
        "if False:",
    ),
    "amqp-small-frames-agreed": (
        "frames smaller than 4096 bytes are agreed on",
        AmqpConnection,
        "on_tune_ok",
        "if frame_max < FRAME_MIN_BYTES:",
        "if False:",
    ),
    "amqp-close-unanswered": (
        "a Close of the connection is not answered",
        AmqpConnection,
        "on_connection_method",
        'self.send_method(0, "connection.close-ok")',
        "pass",
    ),
    "amqp-close-unanswered-while-closing": (
        "a Close of the connection that crosses one of the server is not answered",
        AmqpConnection,
        "on_frame_while_closing",
        'self.send_method(0, "connection.close-ok")',
        "pass",
    ),
    "amqp-steps-in-any-order": (
        "steps of the handshake out of order are passed over",
        AmqpConnection,
        "on_connection_method",
        "elif name != _NEXT.get(self.phase):",
        "elif name != _NEXT.get(self.phase):\n            return\n        elif False:",
    ),
    "amqp-impatient-heartbeats": (
        "a client that is silent for half an interval is cut off",
        AmqpConnection,
        "beat",
        "> 2 * self._heartbeat_s",
        "> 0.4 * self._heartbeat_s",
    ),
    # Frames
    "amqp-unopened-channels-pass": (
        "what comes on a channel that is not open is passed over",
        AmqpConnection,
        "on_new_channel",
        'raise AmqpError(Reply.CHANNEL_ERROR, f"channel {number} is not open", rule="channel.open.state")',
        "return",
    ),
    "amqp-content-on-channel-0": (
        "content on channel 0 is passed over",
        AmqpConnection,
        "on_frame",
        "elif kind != FrameType.HEARTBEAT:",
        "elif kind != FrameType.HEARTBEAT:\n            return\n        elif False:",
    ),
    "amqp-anything-on-channel-0": (
        "methods of other classes on channel 0 are passed over",
        AmqpConnection,
        "on_connection_method",
        "if method.class_id != _CONNECTION:",
        "if method.class_id != _CONNECTION:\n            return\n        if False:",
    ),
    "amqp-senseless-methods-pass": (
        "methods that no client sends on an open channel are passed over",
        Channel,
        "on_method",
        "if handler is None:",
        "if handler is None:\n            return\n        if False:",
    ),
    "amqp-heartbeats-anywhere": (
        "heartbeats are taken on any channel",
        Channel,
        "handle_frame",
        'raise AmqpError(Reply.FRAME_ERROR, f"a heartbeat on channel {self.number}", rule=HEARTBEAT_CHANNEL)',
        "return",
    ),
    "amqp-stray-content-passes": (
        "content without a method is passed over",
        Channel,
        "handle_frame",
        'raise AmqpError(Reply.UNEXPECTED_FRAME, "content without a method", rule="sec.4.2.6.bad-content")',
        "return",
    ),
    "amqp-frame-ends-unseen": (
        "the last byte of a frame is not looked at",
        connection_module,
        "read_frame",
        "if data[end] != FRAME_END:",
        "if False:",
    ),
    "amqp-frames-of-any-size": (
        "frames larger than agreed are taken",
        connection_module,
        "read_frame",
        "if size > max_bytes - FRAME_OVERHEAD_BYTES:",
        "if False:",
    ),
    "amqp-own-frames-too-large": (
        "body frames are eight bytes larger than agreed",
        consuming_module,
        "content_frames",
        "room = max_bytes - FRAME_OVERHEAD_BYTES",
        "room = max_bytes",
    ),
    "amqp-header-class-unseen": (
        "class and weight of a content header are not looked at",
        channel_module,
        "decode_header",
        "if class_id != BASIC or weight:",
        "if False:",
    ),
    "amqp-closes-name-nothing": (
        "a Close of a channel does not say which method had failed",
        Channel,
        "fail",
        "error.class_id, error.method_id",
        "0, 0",
    ),
    # Content
    "amqp-second-part-lost": (
        "of a body in several frames the first one is kept",
        Channel,
        "on_content",
        'b"".join(parts)',
        'b"".join(parts[:1])',
    ),
    "amqp-bcc-passed-on": (
        "the header BCC is passed on",
        publishing_module,
        "message_from",
        "headers=tuple([field for field in headers if field[0] != BCC])",
        "headers=tuple(headers)",
    ),
    "amqp-full-queues-confirm": (
        "what a full queue refuses is confirmed by an ack",
        Publishing,
        "flush",
        'channel.send("basic.nack", tag, False, False)',
        'channel.send("basic.ack", tag, False)',
    ),
    # Queues and exchanges
    "amqp-no-wait-answered": (
        "declarations with no-wait are answered",
        declarations,
        "answer_change",
        "if not no_wait:",
        "if True:",
    ),
    "amqp-auto-delete-with-any-consumer": (
        "an auto-delete queue ends with any consumer, not with its last",
        Amqp091,
        "left",
        "if record.auto_delete and not use.consumers:",
        "if record.auto_delete:",
    ),
    "amqp-queues-change-durability": (
        "a queue may be declared again with another durability",
        VirtualHost,
        "check_queue",
        '("durable", queue.durable, durable and not exclusive),',
        "",
    ),
    "amqp-queues-change-arguments": (
        "a queue may be declared again with other arguments",
        VirtualHost,
        "check_queue",
        "_check_same_arguments(what, rule, difference(queue.arguments, arguments, QUEUE_DEFAULTS))",
        "pass",
    ),
    "amqp-passive-makes-queues": (
        "a passive declaration makes a queue that is not there",
        VirtualHost,
        "check_queue",
        "if passive:",
        "if passive and name in self._queues:",
    ),
    "amqp-passive-makes-exchanges": (
        "a passive declaration makes an exchange that is not there",
        VirtualHost,
        "declare_exchange",
        "if passive:",
        "if passive and name in self._exchanges:",
    ),
    "amqp-bindings-count-twice": (
        "a binding that is made twice must be undone twice",
        VirtualHost,
        "bind",
        "if binding.identity in source.bindings:",
        "if binding.identity in source.bindings:\n        source.table.add(binding)\n        source.forget_routes()",
    ),
    "amqp-publishes-to-internal-exchanges": (
        "clients may publish to internal exchanges",
        VirtualHost,
        "route",
        "if entry.internal:",
        "if False:",
    ),
    "amqp-missing-exchanges-swallow": (
        "what is published to an exchange that does not exist is swallowed",
        VirtualHost,
        "route",
        "entry = self.find_exchange(exchange)",
        "entry = self._exchanges.get(exchange)\n    if entry is None:\n        return NOWHERE",
    ),
    "amqp-last-queue-forgotten": (
        "an empty queue name does not stand for the queue declared last",
        declarations,
        "declare_now",
        "channel.last_queue = name",
        "channel.last_queue = channel.last_queue or name",
    ),
    "amqp-consumers-not-counted": (
        "Declare-Ok counts no consumers",
        declarations,
        "declare_now",
        "consumers = service.consumer_count(vhost, name)",
        "consumers = 0",
    ),
    "amqp-no-alternates": (
        "alternate exchanges get nothing",
        virtual_host,
        "find_route",
        "if not found and exchange.alternate is not None:",
        "if False:",
    ),
}

register_rewrites(_ROWS)

_HANDLERS: dict[str, tuple[str, str, str, str]] = {
    "amqp-used-queues-deleted": (
        "a queue with consumers is deleted though if-unused is set",
        "queue.delete",
        "if if_unused and service.consumer_count(vhost, name):",
        "if False:",
    ),
    "amqp-full-queues-deleted": (
        "a queue with messages is deleted though if-empty is set",
        "queue.delete",
        "if if_empty and ready:",
        "if False:",
    ),
}


def _register_handler(name: str, row: tuple[str, str, str, str]) -> None:
    what, method, old, new = row

    @mutant(name, what)
    def apply(patch: Patch) -> None:
        patch.rewrite(declarations, channel_module.HANDLERS[method].__name__, old, new)


for _name, _row in _HANDLERS.items():
    _register_handler(_name, _row)


@mutant("amqp-message-ids-lost", "message-id is not passed on")
def message_ids_lost(patch: Patch) -> None:
    patch.replace(runs, "MOST_WRITTEN_BYTES", -1)
    patch.rewrite(consuming_module, "properties_of", "message_id=_text_of(kept.message_id)", "message_id=None")


@mutant("amqp-one-header-kept", "of several headers the first one is kept")
def one_header_kept(patch: Patch) -> None:
    patch.replace(runs, "MOST_WRITTEN_BYTES", -1)
    kept = "headers=tuple([field for field in headers if field[0] != BCC])"
    patch.rewrite(publishing_module, "message_from", kept, f"{kept[:-1]}[:1])")
