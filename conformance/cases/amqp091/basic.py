"""Class basic: publishing, getting, consuming, acknowledging, recovering, prefetch."""

from __future__ import annotations

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case


@amqp_case(
    "basic/requests-are-answered",
    mutant="amqp-get-ok-counts-nothing",
    clauses=("sync.basic.qos", "sync.basic.consume", "sync.basic.cancel", "sync.basic.get", "grammar.basic"),
)
async def requests(ctx: AmqpContext) -> None:
    """Qos, Consume, Cancel and Get are answered once; Consume and Cancel with no-wait not at all.

    Get is answered by Get-Empty, and by Get-Ok with the number of messages left.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    with ctx.own_point():
        await channel.call("basic.qos", prefetch_count=10)
        answer = await channel.call("basic.get", queue=queue)
        ctx.must(answer.name == "basic.get-empty", f"expected Get-Empty of an empty queue; seen {answer.name}")
        for body in (b"1", b"2"):
            channel.publish("", queue, body)
        await channel.count_becomes(queue, 2)
        answer = await channel.call("basic.get", queue=queue, no_ack=True)
        ctx.must(answer.name == "basic.get-ok" and answer.body == b"1", "expected Get-Ok with the first message")
        ctx.must(answer["message-count"] == 1, f"expected one message to be left; seen {answer['message-count']}")
        answer = await channel.call("basic.consume", queue=queue, consumer_tag="mine", no_ack=True)
        ctx.must(answer["consumer-tag"] == "mine", f"expected the tag that was given; seen {answer['consumer-tag']!r}")
        await channel.delivery(b"2")
        answer = await channel.call("basic.cancel", consumer_tag="mine")
        ctx.must(answer["consumer-tag"] == "mine", f"expected the tag in Cancel-Ok; seen {answer['consumer-tag']!r}")
        channel.send("basic.consume", queue=queue, consumer_tag="silent", no_ack=True, no_wait=True)
        channel.publish("", queue, b"3")
        await channel.delivery(b"3")
        channel.send("basic.cancel", consumer_tag="silent", no_wait=True)
        await channel.barrier()
        channel.publish("", queue, b"4")
        await channel.get_soon(queue)


@amqp_case("basic/tags-begin-at-one", mutant="amqp-tags-from-zero", clauses=("delivery-tag.non-zero",))
async def tags(ctx: AmqpContext) -> None:
    """No delivery tag is zero, and none comes twice on a channel.

    By Get and by two consumers.
    """
    channel = await ctx.channel()
    first, second = await channel.queue(), await channel.queue()
    for queue in (first, first, second, second):
        channel.publish("", queue, b"x")
    seen = [(await channel.get_soon(queue, no_ack=False)).tag for queue in (first, second)]
    for queue in (first, second):
        await channel.consume(queue)
        seen.append((await channel.delivery()).tag)
    ctx.must(0 not in seen, f"expected no delivery tag to be 0; seen {seen}")
    ctx.must(len(set(seen)) == len(seen), f"expected each delivery tag once; seen {seen}")


@amqp_case(
    "basic/tags-belong-to-their-channel",
    mutant="amqp-unknown-tags-passed-over",
    clauses=("delivery-tag.channel-local",),
)
async def tags_channel_local(ctx: AmqpContext) -> None:
    """A delivery tag of one channel is unknown on another.

    The second channel has no deliveries; acknowledging there ends it, and the message still waits on the first.
    """
    connection = await ctx.client()
    channel, other = await connection.channel(), await connection.channel()
    queue = await channel.queue()
    channel.publish("", queue, b"mine")
    event = await channel.get_soon(queue, no_ack=False)
    other.send("basic.ack", delivery_tag=event.tag)
    ctx.allow("delivery-tag.channel-local", await other.outcome_of())
    with ctx.own_point():
        channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
        await channel.get_soon(queue)


@amqp_case(
    "basic/redelivered-says-so",
    mutant="amqp-always-redelivered",
    clauses=("redelivered.implementation", "basic.10"),
    level="SHOULD",
)
async def redelivered(ctx: AmqpContext) -> None:
    """What was delivered and not acknowledged comes again, with redelivered set, to a client that is back.

    Two of four messages are acknowledged, and the connection is dropped. The flag is a SHOULD, the messages are not;
    what was delivered for the first time must not have the flag.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.consume(queue)
    for body in (b"1", b"2", b"3", b"4"):
        channel.publish("", queue, body)
    events = [await channel.delivery(body) for body in (b"1", b"2", b"3", b"4")]
    first_time = [event.body for event in events if event["redelivered"]]
    ctx.must(not first_time, f"expected first deliveries without the redelivered flag; seen it on {first_time}")
    for event in (events[0], events[2]):
        channel.ack(event)
    await channel.barrier()
    channel.connection.abort()
    again = await ctx.channel()
    await again.consume(queue)
    back = [await again.delivery() for _ in range(2)]
    bodies = [event.body for event in back]
    ctx.must(sorted(bodies) == [b"2", b"4"], f"expected the second and the fourth again; seen {bodies}")
    for event in back:
        ctx.should(event["redelivered"], f"{event.body!r} comes again without the redelivered flag")


@amqp_case(
    "basic/acknowledged-is-gone", mutant="amqp-multiple-stops-short", clauses=("basic.10", "sec.3.1.4.single-delivery")
)
async def acknowledged(ctx: AmqpContext) -> None:
    """What was acknowledged, one by one or several at once, does not come again; the rest does.

    Six messages: the second alone, then up to the fourth with multiple; the connection is dropped.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.consume(queue)
    for number in range(6):
        channel.publish("", queue, str(number).encode())
    events = [await channel.delivery(str(number).encode()) for number in range(6)]
    channel.ack(events[1])
    channel.ack(events[3], multiple=True)
    await channel.barrier()
    channel.connection.abort()
    again = await ctx.channel()
    await again.consume(queue, no_ack=True)
    again.publish("", queue, b"marker")
    bodies = sorted(event.body for event in await again.delivered_until(b"marker"))
    ctx.must(set(bodies) <= {b"4", b"5"}, f"expected only what was not acknowledged; seen {bodies}")
    await ctx.all_of(again, {b"4", b"5"}, bodies)


@amqp_case(
    "basic/ack-of-tag-0-means-all",
    mutant="amqp-unknown-tags-passed-over",
    clauses=("delivery-tag.non-zero", "basic.10"),
)
async def ack_all(ctx: AmqpContext) -> None:
    """Tag 0 with multiple acknowledges everything that was delivered on the channel.

    Three messages; afterwards nothing is left to reject.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue)
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    events = [await channel.delivery(body) for body in (b"1", b"2", b"3")]
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    await channel.barrier()
    channel.ack(events[0])
    ctx.allow("basic.ack.multiple.exists", await channel.outcome_of())


@amqp_case(
    "basic/without-acknowledgements-it-is-gone", mutant="amqp-no-ack-kept", clauses=("basic.09", "sec.3.1.8.auto-ack")
)
async def no_ack(ctx: AmqpContext) -> None:
    """Deliveries to a consumer without acknowledgements, and Gets without them, are gone from the queue.

    Two messages, one each way; the connection is dropped, and the queue is empty.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
    with ctx.own_point():
        ctx.must((await channel.get_soon(queue)).body == b"1", "expected the first message by Get")
        await channel.consume(queue, no_ack=True)
        await channel.delivery(b"2")
    channel.connection.abort()
    again = await ctx.channel()
    again.publish("", queue, b"marker")
    event = await again.get_soon(queue)
    ctx.must(event.body == b"marker", f"expected nothing to come again; seen {event.body!r}")


@amqp_case(
    "basic/unknown-tags-are-refused", mutant="amqp-unknown-tags-passed-over", clauses=("basic.ack.multiple.exists",)
)
async def unknown_tags(ctx: AmqpContext) -> None:
    """Acknowledging what was not delivered, was acknowledged before, or needs none, ends the channel with 406.

    A tag that nobody had, one twice, and one of a Get without acknowledgements, each on a channel of its own.
    """
    connection = await ctx.client()
    queue = await (await connection.channel()).queue()
    channel = await connection.channel()
    channel.send("basic.ack", delivery_tag=17)
    ctx.allow("basic.ack.multiple.exists", await channel.outcome_of())
    for no_ack in (False, True):
        channel = await connection.channel()
        channel.publish("", queue, b"x")
        event = await channel.get_soon(queue, no_ack=no_ack)
        channel.ack(event)
        if not no_ack:
            await channel.barrier()
            channel.ack(event)
        ctx.allow("basic.ack.multiple.exists", await channel.outcome_of())


@amqp_case(
    "basic/reject-returns-or-drops", mutant="amqp-requeue-ignored", clauses=("basic.reject.02", "basic.reject.01")
)
async def reject(ctx: AmqpContext) -> None:
    """A rejected message is available again with requeue, and gone without.

    The first of two is got and rejected with requeue: both come, in either order, and it is redelivered; rejected
    without, it does not come again.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.reject", delivery_tag=event.tag, requeue=True)
    await channel.count_becomes(queue, 2)
    both = [await channel.get_soon(queue, no_ack=False) for _ in range(2)]
    bodies = [event.body for event in both]
    ctx.must(sorted(bodies) == [b"1", b"2"], f"expected the rejected message again, and the other one; seen {bodies}")
    for event in both:
        if event.body == b"1":
            ctx.should(event["redelivered"], "a rejected message comes again without the redelivered flag")
        channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    channel.publish("", queue, b"marker")
    event = await channel.get_soon(queue)
    ctx.must(event.body == b"marker", f"expected nothing of what was rejected for good; seen {event.body!r}")


@amqp_case(
    "basic/reject-among-large-deliveries",
    mutant="amqp-reject-forgotten",
    clauses=("basic.reject.01", "basic.nack.01"),
    level="SHOULD",
)
async def reject_while_sending(ctx: AmqpContext) -> None:
    """Rejections that a client sends while large messages come have their effect.

    Eight messages of 300 kB; each is rejected without requeue as soon as it has come. None of them is in the queue
    then, nor after the connection has ended.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.consume(queue)
    for _ in range(8):
        channel.publish("", queue, b"x" * 300_000)
    for _ in range(8):
        event = await channel.delivery()
        channel.send("basic.reject", delivery_tag=event.tag, requeue=False)
    answer = await channel.call("queue.purge", queue=queue)
    ctx.must(answer["message-count"] == 0, "expected rejected messages to be gone; seen them in the queue")
    channel.connection.abort()
    again = await ctx.channel()
    again.publish("", queue, b"marker")
    event = await again.get_soon(queue)
    ctx.must(event.body == b"marker", f"expected rejected messages to be gone; seen one of {len(event.body)} bytes")


async def _other_consumer(ctx: AmqpContext, refuse: str, rule: str) -> None:
    first, second = await ctx.channel(), await ctx.channel()
    queue = await first.queue(shared=True)
    await first.call("basic.qos", prefetch_count=1)
    await first.consume(queue)
    first.publish("", queue, b"hot")
    event = await first.delivery(b"hot")
    await second.consume(queue)
    first.send(refuse, delivery_tag=event.tag, requeue=True)
    channels: tuple[Channel, ...] = (first, second)
    with ctx.own_point():
        where = await ctx.either(*channels)
    ctx.should(where is second, f"{rule}: a message that was refused comes to the same consumer, beside another")


@amqp_case(
    "basic/rejected-goes-to-another",
    mutant="amqp-requeue-ignored",
    clauses=("basic.reject.requeue.01",),
    level="SHOULD",
)
async def reject_elsewhere(ctx: AmqpContext) -> None:
    """A message rejected with requeue goes to another consumer where there is one.

    The rule permits other strategies, so that the same consumer again is reported and not failed; it must come to one.
    """
    await _other_consumer(ctx, "basic.reject", "basic.reject.requeue.01")


@amqp_case(
    "basic/nacked-goes-to-another",
    mutant="amqp-nack-drops",
    clauses=("basic.nack.requeue.01",),
    level="SHOULD",
    requires=("basic_nack",),
)
async def nack_elsewhere(ctx: AmqpContext) -> None:
    """A message nacked with requeue goes to another consumer where there is one.

    The rule permits other strategies, so that the same consumer again is reported and not failed; it must come to one.
    """
    await _other_consumer(ctx, "basic.nack", "basic.nack.requeue.01")


@amqp_case(
    "basic/nack-takes-several",
    mutant="amqp-nack-always-requeues",
    clauses=("rmq.basic.nack.multiple", "basic.nack.02", "basic.nack.01"),
    requires=("basic_nack",),
)
async def nack(ctx: AmqpContext) -> None:
    """A nack with multiple covers everything up to its tag, with tag 0 all of the channel.

    Four messages: up to the second with requeue, which come again; then all, without, and the queue is empty.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    events = [await channel.get_soon(queue, no_ack=False) for _ in range(4)]
    channel.send("basic.nack", delivery_tag=events[1].tag, multiple=True, requeue=True)
    again = sorted([(await channel.get_soon(queue, no_ack=False)).body for _ in range(2)])
    ctx.must(again == [b"0", b"1"], f"expected the first two again; seen {again}")
    ctx.must(await channel.get(queue) is None, "expected the others still with the client; seen one again")
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=False)
    answer = await channel.call("queue.purge", queue=queue)
    ctx.must(answer["message-count"] == 0, "expected nacked messages to be gone; seen them")
    channel.ack(events[2])
    ctx.allow("rmq.basic.nack.multiple", await channel.outcome_of())


@amqp_case(
    "basic/nack-of-unknown-tags",
    mutant="amqp-unknown-tags-passed-over",
    clauses=("basic.nack.multiple.exists",),
    requires=("basic_nack",),
)
async def nack_unknown(ctx: AmqpContext) -> None:
    """Nacking what was not delivered, or was nacked before, ends the channel with 406.

    Each on a channel of its own.
    """
    connection = await ctx.client()
    queue = await (await connection.channel()).queue()
    channel = await connection.channel()
    channel.send("basic.nack", delivery_tag=17)
    ctx.allow("basic.nack.multiple.exists", await channel.outcome_of())
    channel = await connection.channel()
    channel.publish("", queue, b"x")
    event = await channel.get_soon(queue, no_ack=False)
    channel.send("basic.nack", delivery_tag=event.tag)
    channel.send("basic.nack", delivery_tag=event.tag)
    ctx.allow("basic.nack.multiple.exists", await channel.outcome_of())


# Recover


@amqp_case(
    "basic/recover-returns-all",
    mutant="amqp-recover-forgets",
    kills=("amqp-never-redelivered",),
    clauses=("basic.recover.01", "rmq.recover.requeue-true"),
)
async def recover(ctx: AmqpContext) -> None:
    """Recover with requeue returns all that was not acknowledged, also what was got, with redelivered set.

    Two deliveries, one of them acknowledged, and one Get.
    """
    channel = await ctx.channel()
    queue, other = await channel.queue(), await channel.queue()
    await channel.consume(queue)
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
    channel.publish("", other, b"got")
    events = [await channel.delivery(body) for body in (b"1", b"2")]
    channel.ack(events[0])
    await channel.get_soon(other, no_ack=False)
    with ctx.own_point():
        await channel.call("basic.recover", requeue=True)
        event = await channel.delivery(b"2")
        ctx.must(event["redelivered"], "expected a recovered delivery with the redelivered flag; seen it without")
        event = await channel.get_soon(other)
        ctx.must(event["redelivered"], "expected a recovered Get with the redelivered flag; seen it without")


@amqp_case("basic/recover-async-returns-all", mutant="amqp-never-redelivered", clauses=("basic.recover-async.01",))
async def recover_async(ctx: AmqpContext) -> None:
    """What comes again after Recover-Async has redelivered set.

    The method is deprecated: a server that refuses it ends as unsupported.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue)
    channel.publish("", queue, b"1")
    await channel.delivery(b"1")
    channel.send("basic.recover-async", requeue=True)
    outcome = await channel.outcome_of()
    if outcome in ("connection 540", "channel 540", "connection 503"):
        ctx.unsupported(f"basic.recover-async is answered by {outcome}")
    ctx.must(outcome == "ok", f"expected recover-async to be taken; seen {outcome}")
    event = await channel.delivery(b"1")
    ctx.must(event["redelivered"], "expected a recovered delivery with the redelivered flag; seen it without")


@amqp_case(
    "basic/recover-without-requeue", mutant="amqp-recover-without-requeue-is-internal", clauses=("basic.recover.01",)
)
async def recover_same(ctx: AmqpContext) -> None:
    """Recover without requeue sends again to the same consumer, or is refused with 540.

    It must not be taken for an internal error, and the message must not be lost: it comes again in either case, in the
    second to another connection.
    """
    channel = await ctx.channel()
    queue = await channel.queue(shared=True)
    await channel.consume(queue)
    channel.publish("", queue, b"1")
    await channel.delivery(b"1")
    outcome = await channel.outcome("basic.recover", requeue=False)
    ctx.must(
        outcome in ("ok", "connection 540", "channel 540"),
        f"expected Recover-Ok, or 540 for what is not implemented; seen {outcome}",
    )
    if outcome == "ok":
        event = await channel.delivery(b"1")
    else:
        channel.connection.abort()
        again = await ctx.channel()
        await again.consume(queue)
        event = await again.delivery(b"1")
    ctx.must(event["redelivered"], "expected the message with the redelivered flag; seen it without")


# Prefetch


async def _window(ctx: AmqpContext, channel: Channel, queue: str, wanted: int) -> None:
    """So many deliveries come, and no more as long as none is acknowledged."""
    events = [await channel.delivery() for _ in range(wanted)]
    await channel.barrier()
    more = sum(event.name == "basic.deliver" for event in channel.inbox)
    ctx.must(not more, f"expected {wanted} unacknowledged deliveries; seen {wanted + more}")
    if events:
        channel.ack(events[-1])
        await channel.delivery()
        await channel.barrier()
        more = sum(event.name == "basic.deliver" for event in channel.inbox)
        ctx.must(not more, f"expected one delivery for one acknowledgement; seen {1 + more}")


@amqp_case(
    "basic/prefetch-count-is-kept",
    mutant="amqp-prefetch-ignored",
    clauses=("basic.qos.prefetch-count.01", "sec.4.6.sync-effects"),
)
async def prefetch(ctx: AmqpContext) -> None:
    """No more deliveries are unacknowledged than the prefetch count allows.

    Ten messages wait; of three prefetches, each on a channel and a queue of its own, as many come, and one more for
    each acknowledgement.
    """
    connection = await ctx.client()
    with ctx.own_point():
        for count in (1, 2, 5):
            channel = await connection.channel()
            queue = await channel.queue()
            for number in range(10):
                channel.publish("", queue, str(number).encode())
            await channel.count_becomes(queue, 10)
            await channel.call("basic.qos", prefetch_count=count)
            await channel.consume(queue)
            await _window(ctx, channel, queue, count)


@amqp_case(
    "basic/prefetch-size-holds-back-no-single-message",
    mutant="amqp-prefetch-size-is-a-size-of-messages",
    clauses=("basic.qos.prefetch-size.01", "rmq.qos.prefetch-size"),
)
async def prefetch_size(ctx: AmqpContext) -> None:
    """A prefetch size never holds back a message from a client that has none; or it is refused with 540.

    A size of 100 and a message of 1000 bytes.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    outcome = await channel.outcome("basic.qos", prefetch_size=100)
    ctx.prefer("basic.qos.prefetch-size.01", outcome)
    if outcome == "ok":
        channel.publish("", queue, b"x" * 1_000)
        await channel.consume(queue)
        with ctx.own_point():
            await channel.delivery()


@amqp_case(
    "basic/prefetch-per-consumer-and-shared",
    mutant="amqp-shared-prefetch-off-by-one",
    kills=("amqp-shared-prefetch-counts-gets-for-ever",),
    clauses=("rmq.qos.global",),
    requires=("per_consumer_qos",),
)
async def qos_global(ctx: AmqpContext) -> None:
    """A prefetch without global counts for each new consumer, with global for all of the channel together.

    Two consumers of two queues: two deliveries each without global; with global, three for both. What was got and
    acknowledged before counts for nothing. A server that refuses global ends as unsupported.
    """
    connection = await ctx.client()
    for shared, count, wanted in ((False, 2, 4), (True, 3, 3)):
        channel = await connection.channel()
        outcome = await channel.outcome("basic.qos", prefetch_count=count, global_=shared)
        if outcome != "ok":
            ctx.unsupported(f"a prefetch with global {shared} is answered by {outcome}")
        for _ in range(2):
            queue = await channel.queue()
            channel.publish("", queue, b"got")
            channel.ack(await channel.get_soon(queue, no_ack=False))
            for number in range(5):
                channel.publish("", queue, str(number).encode())
            await channel.count_becomes(queue, 5)
            await channel.consume(queue)
        for _ in range(wanted):
            await channel.delivery()
        await channel.barrier()
        more = sum(event.name == "basic.deliver" for event in channel.inbox)
        ctx.must(not more, f"expected {wanted} deliveries with global {shared}; seen {wanted + more}")


@amqp_case(
    "basic/a-smaller-shared-prefetch-counts-at-once",
    mutant="amqp-shared-prefetch-only-grows",
    clauses=("basic.qos.prefetch-count.01", "rmq.qos.global"),
)
async def qos_lowered(ctx: AmqpContext) -> None:
    """A shared prefetch that is made smaller than what is unacknowledged lets nothing more come.

    Five with global, four messages taken, then three: a fifth message waits until two are acknowledged.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    outcome = await channel.outcome("basic.qos", prefetch_count=5, global_=True)
    if outcome != "ok":
        ctx.unsupported(f"a prefetch with global is answered by {outcome}")
    await channel.consume(queue)
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    events = [await channel.delivery() for _ in range(4)]
    await channel.call("basic.qos", prefetch_count=3, global_=True)
    channel.publish("", queue, b"4")
    await channel.count_becomes(queue, 1)
    await channel.barrier()
    ctx.must(not channel.inbox, "expected nothing beyond the smaller prefetch; seen a delivery")
    channel.ack(events[1], multiple=True)
    with ctx.own_point():
        await channel.delivery(b"4")


# Consumers


@amqp_case(
    "basic/sixteen-consumers-fit",
    mutant="amqp-room-for-few",
    clauses=("basic.consume.01", "sec.3.1.4.single-delivery"),
    level="SHOULD",
)
async def many_consumers(ctx: AmqpContext) -> None:
    """A queue takes sixteen consumers, and each message goes to one of them.

    Thirty-two messages come once each, whoever gets them.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    for number in range(16):
        outcome = await channel.outcome("basic.consume", queue=queue, no_ack=True)
        if outcome != "ok":
            ctx.should(False, f"a queue takes no more than {number} consumers: {outcome}")
            return
    for number in range(32):
        channel.publish("", queue, str(number).encode())
    bodies = sorted([int((await channel.delivery()).body) for _ in range(32)])
    ctx.must(bodies == list(range(32)), f"expected each message once; seen {bodies}")
    await channel.barrier()
    ctx.must(not channel.inbox, "expected each message once; seen more deliveries")


@amqp_case(
    "basic/consumer-tags-are-used-once", mutant="amqp-consumer-tags-twice", clauses=("basic.consume.consumer-tag.01",)
)
async def tag_twice(ctx: AmqpContext) -> None:
    """A consumer tag that is in use on the channel is refused.

    The second consumer is of the same queue.
    """
    channel = await ctx.channel()
    queue = await channel.queue()
    await channel.consume(queue, consumer_tag="same")
    outcome = await channel.outcome("basic.consume", queue=queue, consumer_tag="same")
    ctx.allow("basic.consume.consumer-tag.01", outcome)


@amqp_case(
    "basic/consumer-tags-belong-to-their-channel",
    mutant="amqp-consumer-tags-of-connections",
    clauses=("basic.consume.consumer-tag.02",),
)
async def tag_channel_local(ctx: AmqpContext) -> None:
    """The same consumer tag on another channel is another consumer, and cancelling it there stops that one alone.

    Two channels with a consumer ``same`` each, of two queues; a tag that only the first has, cancelled on the second,
    stops nothing.
    """
    connection = await ctx.client()
    first, second = await connection.channel(), await connection.channel()
    queues = [await first.queue(), await second.queue()]
    with ctx.own_point():
        await first.consume(queues[0], consumer_tag="same", no_ack=True)
        await second.consume(queues[1], consumer_tag="same", no_ack=True)
        await first.consume(queues[0], consumer_tag="only the first", no_ack=True)
        await second.call("basic.cancel", consumer_tag="same")
        outcome = await second.outcome("basic.cancel", consumer_tag="only the first")
        ctx.must(not outcome.startswith("connection"), f"expected the connection to go on; seen {outcome}")
        for number in range(2):  # one for each consumer of the first channel
            first.publish("", queues[0], str(number).encode())
        tags = {(await first.delivery())["consumer-tag"] for _ in range(2)}
        ctx.must(tags == {"same", "only the first"}, f"expected both consumers to go on; seen {tags}")


@amqp_case(
    "basic/exclusive-consumers-need-a-free-queue",
    mutant="amqp-consumers-never-exclusive",
    clauses=("basic.consume.exclusive.01",),
)
async def exclusive_consumer(ctx: AmqpContext) -> None:
    """Exclusive consumption is refused while there are consumers, and keeps others out while it lasts.

    403 on the channel each time; when the exclusive consumer has gone, another one is taken.
    """
    connection = await ctx.client()
    channel = await connection.channel()
    queue = await channel.queue(shared=True)
    tag = await channel.consume(queue)
    stranger = await ctx.client()
    outcome = await (await stranger.channel()).outcome("basic.consume", queue=queue, exclusive=True)
    ctx.allow("basic.consume.exclusive.01", outcome)
    await channel.call("basic.cancel", consumer_tag=tag)
    tag = await channel.consume(queue, exclusive=True)
    outcome = await (await stranger.channel()).outcome("basic.consume", queue=queue)
    ctx.allow("basic.consume.exclusive.01", outcome)
    await channel.call("basic.cancel", consumer_tag=tag)
    with ctx.own_point():
        await (await stranger.channel()).consume(queue)


@amqp_case("basic/cancelling-without-a-queue", mutant="amqp-cancel-needs-a-consumer", clauses=("basic.cancel.01",))
async def cancel_without_queue(ctx: AmqpContext) -> None:
    """Cancelling a consumer whose queue was deleted is no error.

    The client does not know of consumer_cancel_notify; Cancel is answered by Cancel-Ok.
    """
    connection = await ctx.client(client_capabilities={})
    channel = await connection.channel()
    queue = await channel.queue()
    tag = await channel.consume(queue)
    await (await connection.channel()).call("queue.delete", queue=queue)
    with ctx.own_point():
        await channel.call("basic.cancel", consumer_tag=tag)
        await channel.barrier()


@amqp_case(
    "basic/nothing-after-cancel-ok",
    mutant="amqp-cancelled-consumes-on",
    kills=("amqp-cancelled-with-deliveries-consumes-on",),
    clauses=("sec.4.6.sync-effects",),
)
async def nothing_after_cancel(ctx: AmqpContext) -> None:
    """No delivery comes before Consume-Ok and none after Cancel-Ok.

    With messages waiting, and more coming meanwhile; once without acknowledgements, and once with deliveries that are
    not acknowledged yet.
    """
    connection = await ctx.client()
    channel, publisher = await connection.channel(), await connection.channel()
    for no_ack in (True, False):
        queue = await channel.queue()
        for number in range(20):
            publisher.publish("", queue, str(number).encode())
        channel.send("basic.consume", queue=queue, consumer_tag="t", no_ack=no_ack)
        first = await channel.receive("consume-ok")
        with ctx.own_point():
            ctx.must(
                first is not None and first.name == "basic.consume-ok",
                f"expected Consume-Ok before any delivery; seen {'the end' if first is None else first.name}",
            )
        for number in range(20, 40):
            publisher.publish("", queue, str(number).encode())
        if not no_ack:
            await channel.delivery(b"0")
        await channel.call("basic.cancel", consumer_tag="t")
        channel.inbox.clear()
        publisher.publish("", queue, b"late")
        await publisher.barrier()
        await channel.barrier()
        late = [event for event in channel.inbox if event.name == "basic.deliver"]
        ctx.must(not late, f"expected no delivery after Cancel-Ok; seen {len(late)}")


@amqp_case(
    "basic/consumers-learn-that-their-queue-is-gone",
    mutant="amqp-nobody-told-of-ended-queues",
    kills=("amqp-everybody-told-of-ended-queues",),
    clauses=("rmq.consumer-cancel-notify",),
    requires=("consumer_cancel_notify",),
)
async def cancel_notify(ctx: AmqpContext) -> None:
    """When its queue is deleted, a consumer gets Cancel if its client has announced that it knows it.

    Another client, which has not, gets nothing.
    """
    knowing, other = await ctx.channel(), await ctx.channel(client_capabilities={})
    queue = await knowing.queue(shared=True)
    tag = await knowing.consume(queue)
    await other.consume(queue)
    await other.call("queue.delete", queue=queue)
    with ctx.own_point():
        event = await knowing.expect("basic.cancel")
    ctx.must(event["consumer-tag"] == tag, f"expected Cancel of {tag!r}; seen {event['consumer-tag']!r}")
    await other.barrier()
    ctx.must(not other.inbox, "expected no Cancel for a client that has not announced it; seen one")
