"""The metadata of a call says of which trace its messages are, over both interfaces and in streams."""

from __future__ import annotations

from typing import Any

from tests.grpc_api.conftest import Served, Service

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def _service(served: Served, name: str, traceparent: str) -> Service:
    return Service(served.channel(), name, (("traceparent", traceparent), ("tracestate", "v=1")))


def _headers(served: Served, queue: str) -> list[dict[str, Any]]:
    read = served.fluxmq().ReadBatch(queue_name=queue, start_offset=0, limit=10)
    return [{name: value.decode() for name, value in message.headers.items()} for message in read.messages]


def test_messages_of_a_call_are_of_its_trace(served: Served) -> None:
    served.fluxmq().CreateQueue(name="traced")
    _service(served, "fluxmq.queue.v1.QueueService", PARENT).Append(queue_name="traced", value=b"m")
    own = {"traceparent": f"00-{TRACE}-00f067aa0ba90200-00"}
    _service(served, "goqueue.v1.PublishService", PARENT).Publish(topic="traced", value=b"m", headers=own)
    _service(served, "goqueue.v1.PublishService", "00-nothing").Publish(topic="traced", value=b"m")
    assert _headers(served, "traced") == [{"traceparent": PARENT, "tracestate": "v=1"}, own, {}]
