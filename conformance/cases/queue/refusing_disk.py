"""A disk that takes no more while the broker runs: what it says then, and what is there later.

The files of the broker's process may not grow beyond a limit of the system (``RLIMIT_FSIZE``): its writes fail, as on a
full disk.
"""

from __future__ import annotations

import resource
import sys

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.damaged_files import files_below
from assay.conformance.cases.mqtt5.support import LASTING
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.support import consume, deliveries, new_queue, settle
from assay.conformance.cases.restart_support import come_back, stay
from assay.conformance.connection import FIRST_FAILURE_CODE, Connection
from assay.conformance.wire import Disconnect, Puback, Publish, Subscription, describe

_ROOM_BYTES = 30_000
"""What the largest file may still grow by."""
_PAYLOAD_BYTES = 2_000
_MANY = 40
_BEFORE = 5
_SETTINGS = {
    "queues": {"segment_bytes": 4_000_000, "defaults": {"durability": "fsync", "delivery_timeout_s": 3_600}},
    "sessions": {"segment_bytes": 4_000_000, "durability": "fsync"},
}


def limit_files(ctx: CaseContext, size: int) -> None:
    """Files of the broker's process may have so many bytes from now on."""
    pid = ctx.pid()
    if pid is None or sys.platform != "linux":
        ctx.unsupported("the broker's files cannot be limited: it is not a process of this run, or this is not Linux")
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def limit_near(ctx: CaseContext) -> None:
    """The largest file may grow by little more."""
    sizes = [status.st_size for status in files_below(ctx.data_dir).values()]
    limit_files(ctx, max(sizes, default=0) + _ROOM_BYTES)


def _payload(number: int) -> bytes:
    return b"%04d" % number + b"." * _PAYLOAD_BYTES


async def _publish_all(ctx: CaseContext, topic: str, numbers: range) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """What was confirmed, what was refused, and of what nobody knows: the broker ended the connection instead."""
    taken: list[bytes] = []
    refused: list[bytes] = []
    unknown: list[bytes] = []
    publisher: Connection | None = None
    for number in numbers:
        payload = _payload(number)
        if publisher is None or publisher.closed:
            publisher = await ctx.connect(version=5, name=f"publisher to {topic} from {number} on")
        publisher.send(Publish(topic=topic, payload=payload, qos=1, packet_id=publisher.next_packet_id()))
        answer = await publisher.receive_or_end(Puback)
        if isinstance(answer, Puback):
            (taken if answer.reason_code < FIRST_FAILURE_CODE else refused).append(payload)
            continue
        ctx.must(answer is None or isinstance(answer, Disconnect), f"expected PUBACK or the end; seen {answer}")
        unknown.append(payload)
        if answer is not None:
            await publisher.expect_close()
        publisher = None
    return taken, refused, unknown


def _shown(payloads: list[bytes]) -> str:
    return ", ".join(payload[:4].decode() for payload in payloads) or "none"


@case(
    "queue/durability/a-disk-that-takes-no-more",
    clauses=("Q-DURA-14", "Q-DURA-05"),
    requires=("queues", "restart", "data_dir"),
    mutant="refused-write-is-confirmed",
    near_miss="refused-notes-the-count",
    settings=_SETTINGS,
    limit_s=20.0,
)
async def queue_of_refused(ctx: CaseContext) -> None:
    """What the disk refuses is refused with 0x80 and never delivered; what was confirmed is there, also after kill -9.

    Five messages are in a queue when the broker's files reach a limit of the system. Of forty more, those that do not
    fit are refused, each by 0x80; another queue takes a message, and a settlement is taken. When the limit is gone, so
    is this queue's refusal. A consumer gets what was confirmed and nothing else, and so does one after a restart.
    """
    bad, good = new_queue(ctx), new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    for queue in (bad, good):
        await create(ctx, client, queue, partitions=1)
    taken, _, _ = await _publish_all(ctx, f"$queue/{bad}", range(_BEFORE))
    ctx.must(len(taken) == _BEFORE, f"expected {_BEFORE} messages to be taken; seen {len(taken)}")
    consumer = await consume(ctx, bad, prefetch="1")
    (first,) = await deliveries(consumer, at_least=1)
    limit_near(ctx)
    more, refused, unknown = await _publish_all(ctx, f"$queue/{bad}", range(_BEFORE, _BEFORE + _MANY))
    ctx.must(not unknown, f"expected an answer to each publish; the broker ended the connection at {_shown(unknown)}")
    taken += more
    elsewhere, _, _ = await _publish_all(ctx, f"$queue/{good}", range(1))
    ctx.must(len(elsewhere) == 1, "expected another queue to take a message")
    await settle(ctx, consumer, bad, "ack", first)
    taken.remove(first.payload)
    await consumer.disconnect()
    limit_files(ctx, resource.RLIM_INFINITY)
    again, _, _ = await _publish_all(ctx, f"$queue/{bad}", range(_BEFORE + _MANY, _BEFORE + _MANY + 1))
    ctx.must(len(again) == 1, "expected the queue to take messages again once the disk does")
    taken += again
    for when in ("now", "after a restart"):
        consumer = await consume(ctx, bad, name=f"consumer {when}")
        found = [each.payload for each in await deliveries(consumer, at_least=len(taken))]
        ctx.must(found == taken, f"{consumer.name}: expected {_shown(taken)}; seen {_shown(found)}")
        await ctx.restart()
    if not refused and not unknown:
        ctx.unsupported("the limit of the system has no effect on this broker")


@case(
    "queue/durability/sessions-on-a-disk-that-takes-no-more",
    clauses=("Q-DURA-21",),
    requires=("queues", "restart", "data_dir", "persistence"),
    mutant="refused-session-write-is-confirmed",
    near_miss="refused-notes-the-count",
    settings=_SETTINGS,
    limit_s=20.0,
)
async def sessions_of_refused(ctx: CaseContext) -> None:
    """What a broker has confirmed for sessions and as retained outlives kill -9, though its disk took no more.

    A client that is away has a subscription when the broker's files reach a limit of the system. Forty messages for it,
    and forty retained ones, are confirmed, refused, or cost the publisher its connection; new clients are served or
    refused. After kill -9 the client gets all that was confirmed, and the retained ones of these are there.
    """
    topic, kept = ctx.topic("away"), ctx.topic("kept")
    away = await stay(ctx, "away")
    await away.subscribe(Subscription(filter=topic, qos=1))
    await away.disconnect()
    taken, _, _ = await _publish_all(ctx, topic, range(_BEFORE))
    limit_near(ctx)
    more, refused, unknown = await _publish_all(ctx, topic, range(_BEFORE, _BEFORE + _MANY))
    publisher: Connection | None = None
    retained: dict[str, bytes] = {}
    for number in range(_MANY):
        if publisher is None or publisher.closed:
            publisher = await ctx.connect(version=5, name=f"publisher of retained messages from {number} on")
        message = Publish(
            topic=f"{kept}/{number}", payload=_payload(number), qos=1, packet_id=publisher.next_packet_id(), retain=True
        )
        publisher.send(message)
        answer = await publisher.receive_or_end(Puback)
        if isinstance(answer, Puback) and answer.reason_code < FIRST_FAILURE_CODE:
            retained[message.topic] = message.payload
        if not isinstance(answer, Puback):
            publisher = None
    await ctx.restart()
    away = await come_back(ctx, away, name="away, back")
    may_come = {*taken, *more, *unknown}
    missing = dict.fromkeys((*taken, *more))
    while missing:
        message = await away.expect_publish(topic)
        ctx.must(message.payload in may_come, f"{away.name}: expected no refused message; seen {describe(message)}")
        missing.pop(message.payload, None)
    reader = await ctx.connect(version=5, name="reader", properties=LASTING)
    await reader.subscribe(f"{kept}/#", qos=1)
    while retained:
        message = await reader.expect_publish()
        seen = retained.pop(message.topic, message.payload)
        ctx.must(seen == message.payload, f"reader: expected the payload of {message.topic}; seen {describe(message)}")
    if not refused and not unknown:
        ctx.unsupported("the limit of the system has no effect on this broker")


@case(
    "queue/durability/a-reserve-that-the-disk-has-not",
    clauses=("Q-DURA-15",),
    requires=("queues",),
    mutant="queue-reserve-is-used",
    kills=("refused-reserve-not-for-sessions",),
    settings={"data_dir": "{dir}", "queues": {"disk_reserve_bytes": 10**15}},
)
async def reserve(ctx: CaseContext) -> None:
    """While the disk has less room than the reserve, what would take some is refused, and the rest goes on.

    The broker is set to leave a petabyte. A message for a queue is refused, and so is a retained one, which reaches
    nobody who subscribes later; a message to a subscriber who is there arrives.
    """
    topic, queue = ctx.topic(), new_queue(ctx)
    client = await ctx.connect(version=5, name="client")
    subscriber = await ctx.connect(version=5, name="subscriber")
    await subscriber.subscribe(Subscription(filter=topic, qos=1))
    for where, retain in ((f"$queue/{queue}", False), (topic, True)):
        packet_id = client.next_packet_id()
        client.send(Publish(topic=where, payload=b"kept", qos=1, packet_id=packet_id, retain=retain))
        puback = await client.expect(Puback)
        is_refused = puback.reason_code >= FIRST_FAILURE_CODE
        ctx.must(is_refused, f"client: expected a publish to {where} to be refused; seen {describe(puback)}")
    await client.publish(topic, b"live", qos=1)
    await subscriber.expect_publish(topic, b"live")
    late = await ctx.connect(version=5, name="late")
    await late.subscribe(Subscription(filter=topic, qos=1))
    await ctx.expect_no_message(client, late)
