"""Publishes, consumers and gets that hooks decide about: what is behind them on their channel waits for the answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.declarations import named_queue
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, is_reply_name
from assay.reference_broker.amqp091.handles import ChannelHandle
from assay.reference_broker.amqp091.names import AMQP091, engine_name
from assay.reference_broker.amqp091.runs import Head
from assay.reference_broker.amqp091.topology import TopologyLimits, routing_keys_of, stripped
from assay.reference_broker.config import HookKind
from assay.reference_broker.core.hooks import UNCHANGED, Hooks, Verdict
from assay.reference_broker.queues.messages.address import topic_of
from assay.reference_broker.routing.properties import Kind

READS: Final = frozenset(("basic.consume", "basic.get"))
_OF_PUBLISH: Final = frozenset(("payload",))
_MAX_KEYS: Final = TopologyLimits().max_routing_keys


def on_publish(
    channel: ChannelHandle, hooks: Hooks, head: Head, body: bytes, publish: Callable[[bytes, float], None]
) -> None:
    """Publish it once each of its topics is allowed; nobody is asked about what the client has no right to. Raises
    :class:`AmqpError`."""
    exchange, headers = stripped(head.way.exchange), head.properties.headers or ()
    channel.publishing.check_rights(exchange, head.way.routing_key, headers)
    keys = routing_keys_of(head.way.routing_key, headers, _MAX_KEYS) if headers else (head.way.routing_key,)
    topics = deque(
        rights.exchange_topic(exchange, key) if exchange else topic_of(engine_name(key), "")
        for key in keys
        if exchange or not is_reply_name(key)
    )
    properties = tuple([(name, field.value) for name, field in headers if field.kind is Kind.TEXT])
    begin = channel.later("basic.publish", lambda now: publish(body, now))

    def go_on(verdict: Verdict | None) -> None:
        nonlocal body
        while verdict is not None:
            if verdict.error is not None or not topics:
                begin(verdict.error)
                return
            verdict = hooks.ask(
                HookKind.PUBLISH,
                channel.connection,
                AMQP091,
                topics.popleft(),
                told,
                payload=body,
                qos=1,
                properties=properties,
                may_change=_OF_PUBLISH,
            )

    def told(verdict: Verdict) -> None:
        nonlocal body
        if verdict.change.payload is not None:
            body = verdict.change.payload
        go_on(verdict)

    go_on(UNCHANGED)


def on_read(channel: ChannelHandle, hooks: Hooks, name: str, values: list[Any], handler: Callable[..., None]) -> None:
    """Carry a method out that reads a queue, its first value, once that is allowed; likewise. Raises
    :class:`AmqpError`."""
    queue = named_queue(channel, values[0])
    begin = channel.later(name, lambda now: handler(channel, *values, now))
    verdict: Verdict | None = UNCHANGED
    if queue != REPLY_TO:
        rights.check_queue(channel.connection, queue, read=True)
        topic = topic_of(engine_name(queue), "")
        verdict = hooks.ask(
            HookKind.SUBSCRIBE, channel.connection, AMQP091, topic, lambda verdict: begin(verdict.error), qos=1
        )
    if verdict is not None:
        begin(verdict.error)
