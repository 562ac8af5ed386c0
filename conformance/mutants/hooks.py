"""Bugs of hooks, of the figures of MQTT, and of which messages are traced."""

from __future__ import annotations

from assay.conformance.mutants.amqp091 import Row, register_rewrites
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.core.hooks import Hooks
from assay.reference_broker.mqtt.connections import asking
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.trace.tracing import Tracing

_REWRITES: dict[str, Row] = {
    "hooks-asked-about-what-is-sent-again": (
        "a PUBLISH of QoS 2 that is sent again is asked about again",
        asking,
        "on_publish",
        "if is_known or not (",
        "if not (",
    ),
    "hooks-asked-about-all-topics": (
        "hooks are asked about topics that are not theirs",
        Hooks,
        "asks",
        "return not self._topics or any(",
        "return True or any(",
    ),
    "hooks-that-fail-allow": (
        "what hooks cannot be asked about is allowed",
        Hooks,
        "failed",
        "if self._allows:",
        "if True:",
    ),
    "hooks-that-fail-deny": (
        "what hooks cannot be asked about is refused",
        Hooks,
        "failed",
        "if self._allows:",
        "if False:",
    ),
    "hooks-not-asked-about-subscriptions": (
        "hooks are not asked about subscriptions of MQTT",
        asking,
        "subscription",
        "if verdict.error is not None:",
        "if False:",
    ),
    "figures-of-lowered-bursts-without-payloads": (
        "of messages of QoS 1 that come together and go at QoS 0 no payload counts",
        Inbound,
        "forward_lowered",
        "payload_bytes += end - topic_end",
        "payload_bytes += 0",
    ),
    "figures-of-lowered-bursts-with-less": (
        "a byte less of each payload of QoS 1 counts that goes at QoS 0 with others",
        Inbound,
        "forward_lowered",
        "(2 + five) * count",
        "(3 + five) * count",
    ),
    "figures-of-bursts-that-nobody-gets": (
        "payloads of messages that come together count as often as they go",
        Inbound,
        "forward",
        "traffic.payload_bytes_received += payload_bytes",
        "traffic.payload_bytes_received += payload_bytes * len(targets)",
    ),
    "figures-of-what-amqp-began-without-it": (
        "what has begun to come over AMQP does not count",
        AmqpConnection,
        "receive",
        "self._count_partial(now)",
        "pass",
    ),
    "traces-of-bursts-begin-anew": (
        "which messages of a burst are traced depends on none before it",
        Tracing,
        "wanted_of",
        "self._skip = at - count",
        "pass",
    ),
    "traces-of-bursts-are-many": (
        "all are traced of a burst that come behind one that is",
        Tracing,
        "wanted_of",
        "at += 1 + self._draw()",
        "at += 1",
    ),
}

register_rewrites(_REWRITES)
