"""Requests that travel through a queue, and their replies."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.support import consume, expect_dead_letters, new_queue, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Properties, Publish, Subscription

_CORRELATION = bytes(range(256))


def _request(response_topic: str) -> Properties:
    return Properties(response_topic=response_topic, correlation_data=_CORRELATION)


async def _reply(ctx: CaseContext, worker: Connection, request: Publish, payload: bytes) -> None:
    topic, correlation = request.properties.response_topic, request.properties.correlation_data
    ctx.must(topic is not None, f"{worker.name}: expected a response topic; seen {request.properties}")
    ctx.must(
        correlation == _CORRELATION, f"{worker.name}: expected the request's correlation data; seen {correlation!r}"
    )
    assert topic is not None
    await worker.publish(topic, payload, qos=1, properties=Properties(correlation_data=correlation))


@case(
    "queue/request/is-answered-on-its-response-topic",
    clauses=("Q-REQ-01",),
    requires=("queues",),
    mutant="queue-response-topic-lost",
    near_miss="queue-one-batch-per-message",
)
async def answered(ctx: CaseContext) -> None:
    """A request keeps its response topic and correlation data on the way through a queue.

    The worker gets both, the correlation data with all 256 byte values, and answers; the requester gets its reply.
    """
    queue, response_topic = new_queue(ctx), ctx.topic("reply")
    requester = await ctx.connect(version=5, name="requester")
    await requester.subscribe(Subscription(filter=response_topic, qos=1))
    await requester.publish(f"$queue/{queue}", b"request", qos=1, properties=_request(response_topic))
    worker = await consume(ctx, queue, name="worker")
    await _reply(ctx, worker, await worker.expect_publish(payload=b"request"), b"reply")
    reply = await requester.expect_publish(topic=response_topic, payload=b"reply")
    seen = reply.properties.correlation_data
    ctx.must(seen == _CORRELATION, f"requester: expected its correlation data; seen {seen!r}")


@case(
    "queue/request/stays-one-when-delivered-again",
    clauses=("Q-REQ-02",),
    requires=("queues",),
    mutant="queue-correlation-data-lost-at-redelivery",
)
async def delivered_again(ctx: CaseContext) -> None:
    """A request that is delivered again, or dead-lettered, is still one.

    A worker refuses a request, then rejects it. Response topic and correlation data are in the second delivery as in
    the first, and in the dead letter.
    """
    queue, response_topic = new_queue(ctx), ctx.topic("reply")
    requester = await ctx.connect(version=5, name="requester")
    await requester.publish(f"$queue/{queue}", b"request", qos=1, properties=_request(response_topic))
    worker = await consume(ctx, queue, name="worker")
    await settle(ctx, worker, queue, "nack", await worker.expect_publish(payload=b"request"))
    again = await worker.expect_publish(payload=b"request")
    await settle(ctx, worker, queue, "reject", again)
    [letter] = await expect_dead_letters(ctx, queue, b"request")
    for which, found in (("second delivery", again), ("dead letter", letter)):
        properties = found.properties
        ctx.must(
            (properties.response_topic, properties.correlation_data) == (response_topic, _CORRELATION),
            f"{which}: expected {response_topic} and the correlation data; seen {properties}",
        )


@case(
    "queue/request/reply-waits-in-a-queue",
    clauses=("Q-REQ-03",),
    requires=("queues",),
    mutant="queue-replies-not-enqueued",
)
async def reply_queue(ctx: CaseContext) -> None:
    """A reply to a queue waits there for the requester.

    The response topic addresses a queue. The requester consumes it only after the worker has answered, and gets the
    reply with its correlation data.
    """
    queue, replies = new_queue(ctx), new_queue(ctx)
    requester = await ctx.connect(version=5, name="requester")
    await requester.publish(f"$queue/{queue}", b"request", qos=1, properties=_request(f"$queue/{replies}/r"))
    worker = await consume(ctx, queue, name="worker")
    await _reply(ctx, worker, await worker.expect_publish(payload=b"request"), b"reply")
    late = await consume(ctx, replies, name="requester's replies")
    reply = await late.expect_publish(payload=b"reply")
    seen = reply.properties.correlation_data
    ctx.must(seen == _CORRELATION, f"requester's replies: expected the correlation data; seen {seen!r}")
