"""Size as a dimension: windows full of large messages, for readers that are fast, slow, or stop for a while.

Forty messages of 100 kB (less where the broker takes no such packet) are more than one window of bytes, and more than
the buffers of a connection, of most brokers. Whoever reads and acknowledges must get all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from assay.conformance.case import CaseContext, CaseFunction, case
from assay.conformance.cases.mqtt5.support import subscribe_at
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.support import consume, new_queue, publish_with, settle
from assay.conformance.cases.restart_support import SMALL_SEGMENTS, come_back, stay, survives
from assay.conformance.connection import Connection
from assay.conformance.wire import Packet, Properties, Publish, Pubrel, Subscription, describe

_LARGE_BYTES = 100_000
_COUNT = 40
_MANY_PROPERTIES = 300
_LONGEST_FILTER_BYTES = 65_535
_LIMIT_S = 20.0
_STOPPED_S = 1.0
"""How long a reader stops, at most."""


def _both_versions(
    slug: str, *, in_311: tuple[str, ...], in_5: tuple[str, ...], requires: tuple[str, ...], mutant: str, near_miss: str
) -> Callable[[CaseFunction], CaseFunction]:
    def register(function: CaseFunction) -> CaseFunction:
        for spec, clauses in (("mqtt311", in_311), ("mqtt5", in_5)):
            if clauses:
                case(
                    f"{spec}/size/{slug}",
                    clauses=tuple(f"MQTT-{clause}" for clause in clauses),
                    requires=requires,
                    mutant=mutant,
                    near_miss=near_miss,
                    limit_s=_LIMIT_S,
                )(function)
        return function

    return register


def _payload(ctx: CaseContext, number: int) -> bytes:
    start = b"%08d" % number
    return start + bytes([number % 251]) * (ctx.room_bytes(_LARGE_BYTES) - len(start))


async def _publish_all(ctx: CaseContext, topic: str, *, qos: int, count: int = _COUNT) -> None:
    publisher = await ctx.connect(name="publisher")
    for number in range(count):
        await publisher.publish(topic, _payload(ctx, number), qos=qos)


def _number(ctx: CaseContext, message: Packet | None, reader: Connection) -> int:
    """Which of the messages it is; it must be whole."""
    if not isinstance(message, Publish):
        ctx.fail(f"{reader.name}: expected a large message; seen {message and describe(message)}")
    number = int(message.payload[:8]) if message.payload[:8].isdigit() else -1
    whole = number >= 0 and message.payload == _payload(ctx, number)
    ctx.must(whole, f"{reader.name}: expected a message as it was published; seen {describe(message)}")
    return number


async def _take_all(ctx: CaseContext, reader: Connection, *, qos: int, first: int = 0) -> None:
    """Let the broker fill its window, then acknowledge all that came, and so on; each must come whole and in order."""
    wanted = first
    while wanted < _COUNT:
        batch = [await reader.receive(f"message {wanted} of {_COUNT}")]
        while more := await reader.barrier():
            batch += more
        for message in batch:
            if qos == 2 and isinstance(message, Pubrel):
                continue
            number = _number(ctx, message, reader)
            ctx.must(number == wanted, f"{reader.name}: expected message {wanted}; seen message {number}")
            wanted += 1
        for message in batch:
            if isinstance(message, Publish):
                await reader.acknowledge(message)
    await reader.expect_nothing()


@_both_versions(
    "full-windows-of-large-messages",
    in_311=("3.1.2-5", "4.3.2-1", "4.6.0-6"),
    in_5=("3.1.2-5", "4.3.2-3", "4.6.0-5"),
    requires=("persistent_sessions", "qos1"),
    mutant="a-window-full-of-bytes-never-opens",
    near_miss="deliveries-wait-for-readers-early",
)
async def full_windows(ctx: CaseContext) -> None:
    """A client that acknowledges only when nothing more comes gets all large messages that waited for it, in order.

    It lets the broker fill whatever window it has, acknowledges all at once, and again, until it has forty of 100 kB.
    """
    topic = ctx.topic("large")
    first = await stay(ctx, "first")
    await subscribe_at(ctx, first, topic, qos=1)
    await first.disconnect()
    await _publish_all(ctx, topic, qos=1)
    await _take_all(ctx, await come_back(ctx, first, name="reader"), qos=1)


@_both_versions(
    "a-reader-that-stops-and-goes-on",
    in_311=("4.3.2-1", "4.4.0-1"),
    in_5=("4.3.2-3", "4.4.0-1"),
    requires=("persistent_sessions", "qos1"),
    mutant="what-is-not-read-in-time-is-lost",
    near_miss="slow-readers-are-ended",
)
async def stopped(ctx: CaseContext) -> None:
    """A client that reads nothing while forty large messages are published, and then goes on, gets every one.

    A broker may end a connection that is not read from: then what is left comes on the next one.
    """
    topic = ctx.topic("large")
    reader = await stay(ctx, "reader")
    await subscribe_at(ctx, reader, topic, qos=1)
    reader.stop_reading(for_good=False)
    # A broker may let the publisher wait for the reader.
    publishing = asyncio.ensure_future(_publish_all(ctx, topic, qos=1))
    await asyncio.wait({publishing}, timeout=_STOPPED_S)
    reader.go_on_reading()
    try:
        await _take_over_connections(ctx, reader)
        await publishing
    finally:
        publishing.cancel()


async def _take_over_connections(ctx: CaseContext, reader: Connection) -> None:
    """Take and acknowledge every message, in any order, over as many connections as the broker needs."""
    missing = set(range(_COUNT))
    for _ in range(_COUNT):
        while missing:
            message = await reader.receive(f"{len(missing)} of {_COUNT} messages")
            if message is None:
                break
            missing.discard(_number(ctx, message, reader))
            if isinstance(message, Publish):
                await reader.acknowledge(message)
        if not missing:
            return
        reader = await come_back(ctx, reader, name="reader on its next connection")
    ctx.fail(f"reader: expected {_COUNT} messages over {_COUNT} connections; {len(missing)} never came")


@survives(
    "a-window-of-large-messages",
    in_311=("4.4.0-1", "3.1.2-5"),
    in_5=("4.4.0-1", "3.1.2-5"),
    requires=("qos1",),
    mutant="restart-reads-a-megabyte-a-session",
    limit_s=_LIMIT_S,
)
async def window_over_restarts(ctx: CaseContext) -> None:
    """Large messages in flight and behind it outlive restarts, whole and in order.

    Forty of 100 kB wait for a client that takes what comes without acknowledging when the broker is killed. It takes
    ten, and the broker is killed again; then it takes the others.
    """
    topic = ctx.topic("large")
    reader = await stay(ctx, "reader")
    await subscribe_at(ctx, reader, topic, qos=1)
    await reader.disconnect()
    await _publish_all(ctx, topic, qos=1)
    reader = await come_back(ctx, reader)
    await reader.receive("the first message")
    await ctx.restart()
    reader = await come_back(ctx, reader, name="reader after one restart")
    for number in range(10):
        message = await reader.expect_publish(topic)
        ctx.must(
            _number(ctx, message, reader) == number, f"reader: expected message {number}; seen {describe(message)}"
        )
    # An acknowledgement under way may be lost with the broker: this one is answered behind them.
    unread = [packet for packet in await reader.barrier() if isinstance(packet, Publish)]
    ctx.note(f"{len(unread)} messages were in flight")
    await ctx.restart()
    await _take_all(ctx, await come_back(ctx, reader, name="reader after two restarts"), qos=1, first=10)


@survives(
    "many-properties-and-long-filters",
    in_5=("3.1.2-5", "3.3.2-17", "3.3.2-18"),
    requires=("qos1",),
    mutant="restart-reads-short-filters",
    kills=("restart-reads-few-properties",),
)
async def many_properties(ctx: CaseContext) -> None:
    """A message with 300 user properties, for a filter as long as a filter can be, outlives two restarts.

    The client is away until after the second one. The topic has 65 535 bytes, or as many as the broker takes.
    """
    start = f"{ctx.topic('long')}/"
    longest = ctx.room_bytes(_LONGEST_FILTER_BYTES + 5_000) - 5_000
    topics = [start + "x" * (size - len(start)) for size in sorted({255, 256, longest})]
    client = await stay(ctx, "client")
    await client.subscribe(*(Subscription(filter=topic, qos=1) for topic in topics[:2]))
    await client.subscribe(Subscription(filter=topics[-1], qos=1))
    await client.disconnect()
    await ctx.restart()
    publisher = await ctx.connect(name="publisher")
    properties = Properties(user_property=tuple((f"n{n % 7}", str(n)) for n in range(_MANY_PROPERTIES)))
    for topic in topics:
        await publisher.publish(topic, topic[-4:].encode(), qos=1, properties=properties)
    await ctx.restart()
    client = await come_back(ctx, client)
    missing = set(topics)
    while missing:
        message = await client.expect_publish()
        ctx.must(
            message.topic in missing, f"client: expected each message once; seen one of {len(message.topic)} bytes"
        )
        same = message.properties.user_property == properties.user_property
        ctx.must(same, f"client: expected {_MANY_PROPERTIES} user properties in order")
        missing.discard(message.topic)


@case(
    "queue/restart/large-messages-are-consumed",
    clauses=("Q-DELIVER-04", "Q-DURA-05", "Q-ACK-1"),
    requires=("queues", "restart"),
    mutant="a-window-full-of-bytes-never-opens",
    near_miss="queue-one-batch-per-message",
    settings={**SMALL_SEGMENTS, "mqtt": {"max_inflight_bytes": 1_000_000, "max_queued_bytes": 1_000_000}},
    together=True,
    limit_s=_LIMIT_S,
)
async def queue_of_large(ctx: CaseContext) -> None:
    """A queue whose messages fill the window of bytes many times over is consumed to its end, over restarts.

    Of forty messages of 100 kB, on a broker that lets 1 MB be in flight, a consumer takes all that comes and then
    settles it, until twenty are settled. After a restart it gets the other twenty, in the same way, and nothing else.
    """
    publisher = await ctx.connect(version=5, name="publisher")
    queue = new_queue(ctx)
    await create(ctx, publisher, queue, partitions=1)
    for number in range(_COUNT):
        await publish_with(publisher, queue, _payload(ctx, number))
    settled = 0
    for end in (_COUNT // 2, _COUNT):
        consumer = await consume(ctx, queue, name=f"consumer of the first {end}")
        while settled < end:
            batch = [await consumer.receive(f"message {settled}")]
            while more := await consumer.barrier():
                batch += more
            for message in batch:
                if isinstance(message, Publish):
                    await consumer.acknowledge(message)
            for message in batch[: end - settled]:
                number = _number(ctx, message, consumer)
                ctx.must(number == settled, f"{consumer.name}: expected message {settled}; seen message {number}")
                if isinstance(message, Publish):
                    await settle(ctx, consumer, queue, "ack", message)
                settled += 1
        await ctx.restart()
    consumer = await consume(ctx, queue, name="consumer after all")
    await consumer.expect_nothing()
