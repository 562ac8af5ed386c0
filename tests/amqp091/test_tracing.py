"""Traced messages over AMQP: headers in, headers out, and MQTT's user properties between."""

from __future__ import annotations

import msgspec
from amqp_client import NOW, AmqpClient, make_node, table

from assay.reference_broker.amqp091.wire.content import NONE
from assay.reference_broker.config import TracingConfig
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.trace.schema import TraceKind

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_headers_are_traced_and_go_out_as_they_came() -> None:
    node = make_node(tracing=TracingConfig(enabled=True))
    client = AmqpClient(node)
    client.open()
    client.declare("q")
    headers = (*table(a=1), *table(traceparent=f"00-{TRACE}-{PARENT}-01"), *table(tracestate="v=1", b="2"))
    for properties in (msgspec.structs.replace(NONE, headers=headers), NONE):
        client.publish("q", b"m", properties)
    (first, second) = [said for said in client.consume("q") if said.name == "basic.deliver"]
    assert node.tracing is not None
    trace = node.tracing.ring.get(TRACE)
    assert trace is not None
    (delivered,) = [span for span in trace.spans if span.kind is TraceKind.DELIVERED]
    told = f"00-{TRACE}-{delivered.span_id}-01"
    assert first.properties is not None
    assert first.properties.headers == (*headers, ("delivery-traceparent", Typed(Kind.TEXT, told)))
    assert second.properties is not None
    assert second.properties.headers is None
    assert trace.spans[0].trace_state == "v=1"
    assert trace.spans[0].time_ns == int(NOW * 1e9)
