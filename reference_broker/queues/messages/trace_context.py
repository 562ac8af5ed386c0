"""What messages say of traces, and what a traced delivery says to its consumer."""

from __future__ import annotations

from collections.abc import Sequence

from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.routing.carried import as_text
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.trace.context import (
    DELIVERY_TRACEPARENT,
    TRACEPARENT,
    TRACESTATE,
    TraceContext,
    read_context,
)
from assay.reference_broker.trace.tracing import Traced, Tracing


def context_of(message: Message) -> TraceContext | None:
    """The W3C Trace Context of a message's user properties, headers or application properties."""
    pairs = list(message.user_properties)
    if message.properties is not None:
        headers = message.properties.headers
        pairs += [(name, as_text(value) or "") for name, value in headers if name in (TRACEPARENT, TRACESTATE)]
    return read_context(pairs)


def sample(tracing: Tracing, message: Message, queue: str, now: float) -> Traced | None:
    """Whether a message that comes to a queue is traced. Its publisher's flag decides, where that says something."""
    carried = tracing.carried
    if carried is not None:
        return tracing.go_on(carried, queue, message.topic, now)
    context = context_of(message) if message.user_properties or message.properties is not None else None
    if not (tracing.wants() if context is None else context.sampled):
        return None
    return tracing.begin(context, queue, message.topic, message.publisher, now)


def sample_batch(tracing: Tracing, batch: MessageBatch, queue: str, now: float) -> dict[int, Traced]:
    """As :func:`sample`, of many: those that are traced, by position."""
    messages, origins = batch.messages, batch.origins
    contexts = {}
    if batch.properties is not None or any(
        origin.like is not None for origin in ((origins,) if isinstance(origins, Origin) else set(origins))
    ):
        contexts = _contexts_of(messages)
    chosen = [at for at in tracing.wanted_of(len(messages)) if at not in contexts]
    chosen += [at for at, context in contexts.items() if context.sampled]
    return {
        at: tracing.begin(contexts.get(at), queue, messages[at].topic, messages[at].publisher, now)
        for at in sorted(chosen)
    }


def _contexts_of(messages: Sequence[Message]) -> dict[int, TraceContext]:
    """By position."""
    contexts: dict[int, TraceContext] = {}
    for at, message in enumerate(messages):
        if message.user_properties:
            for name, _ in message.user_properties:
                if name == TRACEPARENT:
                    break
            else:
                if message.properties is None:
                    continue
        elif message.properties is None:
            continue
        context = context_of(message)
        if context is not None:
            contexts[at] = context
    return contexts


def with_delivery_context(message: Message, text: str) -> Message:
    """What a consumer gets of a message that is traced: what its publisher sent, and the span of the delivery."""
    own = message.user_properties
    if own:
        own = tuple([pair for pair in own if pair[0] != DELIVERY_TRACEPARENT])
    return changed(message, user_properties=(*own, (DELIVERY_TRACEPARENT, text)))
