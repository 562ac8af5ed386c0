"""What becomes of what a channel holds: by several consumers and gets, multiple or not, with priorities and letters."""

from __future__ import annotations

from assay.conformance.amqp091.client import Channel
from assay.conformance.amqp091.context import AmqpContext, amqp_case
from assay.conformance.wire.amqp091 import Arrival


async def _letters(ctx: AmqpContext, channel: Channel, count: int) -> tuple[list[str], str]:
    """So many queues whose dead letters go to one that nobody reads; their names, and its."""
    await ctx.needs_argument("x-dead-letter-exchange", 5)
    letters = await channel.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    return [await ctx.queue_with(channel, arguments) for _ in range(count)], letters


async def _held(channel: Channel, queues: list[str], names: str) -> list[Arrival]:
    """What a channel is given, one after the other: by its consumers of the first queues, and by gets of the last."""
    events: list[Arrival] = []
    for name in names:
        *consumed, last = queues
        number = "ab".find(name[0])
        queue = last if number < 0 else consumed[number]
        body = f"{name}{len(events)}".encode()
        channel.publish("", queue, body)
        events.append(await (channel.get_soon(queue, no_ack=False) if number < 0 else channel.delivery(body)))
    return events


@amqp_case(
    "settling/a-nack-of-several-covers-all-consumers",
    mutant="amqp-nacks-of-several-spare-other-consumers",
    kills=("amqp-nacks-of-several-requeue", "amqp-nacks-of-all-drop"),
    clauses=("rmq.basic.nack.multiple", "rmq.dlx.reasons", "basic.nack.02"),
    requires=("basic_nack",),
)
async def several(ctx: AmqpContext) -> None:
    """A nack with multiple covers what all consumers of the channel hold, and what was got, up to its tag, and no more.

    Two consumers and gets of a third queue, in turn, all three with dead letters. Up to the fourth delivery without
    requeue: these become dead letters, each once. All others with requeue: they come again, and none is a letter.
    """
    channel = await ctx.channel()
    queues, letters = await _letters(ctx, channel, 3)
    for queue in queues[:2]:
        await channel.consume(queue)
    events = await _held(channel, queues, "abgabga")
    channel.send("basic.nack", delivery_tag=events[3].tag, multiple=True, requeue=False)
    with ctx.own_point():
        dead = sorted([(await channel.get_soon(letters)).body for _ in range(4)])
    wanted = sorted(event.body for event in events[:4])
    ctx.must(dead == wanted, f"expected the dead letters {wanted}; seen {dead}")
    channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
    with ctx.own_point():
        again = sorted([(await channel.delivery()).body for _ in range(2)])
        again.append((await channel.get_soon(queues[2], no_ack=False)).body)
    wanted = [event.body for event in (events[4], events[6], events[5])]
    ctx.must(again == [*sorted(wanted[:2]), wanted[2]], f"expected {wanted} again; seen {again}")
    ctx.must(await channel.count(letters) == 0, "expected no letter of what was requeued; seen one")


@amqp_case(
    "settling/what-comes-back-has-its-priority",
    level="SHOULD",
    mutant="amqp-requeued-last",
    clauses=("rmq.queue.max-priority", "basic.reject.02"),
)
async def priority(ctx: AmqpContext) -> None:
    """A message that is rejected with requeue is behind none of a lower priority.

    One of a high and two of a low priority. The first that is got is the high one; it is rejected, the queue counts
    three again, and it is the first one again. Where what comes back stands is left to the server.
    """
    channel = await ctx.channel()
    await ctx.needs_argument("x-max-priority", -1)
    queue = await ctx.queue_with(channel, {"x-max-priority": 5})
    for body, level in ((b"low", 1), (b"high", 4), (b"low too", 1)):
        channel.publish("", queue, body, properties={"priority": level})
    for _ in range(2):
        await channel.count_becomes(queue, 3)
        event = await channel.get_soon(queue, no_ack=False)
        ctx.should(event.body == b"high", f"{event.body!r} comes before a message of a higher priority")
        channel.send("basic.reject", delivery_tag=event.tag, requeue=True)


@amqp_case(
    "settling/a-get-is-no-delivery-of-a-prefetch",
    mutant="amqp-gets-need-room",
    clauses=("rmq.qos.global", "sync.basic.get"),
)
async def get(ctx: AmqpContext) -> None:
    """Get is answered with a message also when consumers of the channel hold all that a shared prefetch allows.

    A prefetch of one for the channel; its consumer holds one message, and two of another queue are got.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("basic.qos", prefetch_count=1, global_=True)
    if outcome != "ok":
        ctx.unsupported(f"a shared prefetch is answered by {outcome}")
    consumed, asked = await channel.queue(), await channel.queue()
    await channel.consume(consumed)
    channel.publish("", consumed, b"held")
    await channel.delivery(b"held")
    for body in (b"1", b"2"):
        channel.publish("", asked, body)
        with ctx.own_point():
            event = await channel.get_soon(asked, no_ack=False)
        ctx.must(event.body == body, f"expected {body!r}; seen {event.body!r}")


@amqp_case(
    "settling/what-was-got-takes-no-room",
    level="SHOULD",
    mutant="amqp-gets-count-in-a-shared-prefetch",
    clauses=("rmq.qos.global",),
)
async def got(ctx: AmqpContext) -> None:
    """What was got, and is not acknowledged, takes no room of the consumers of its channel.

    A prefetch of one for the channel, which holds a message that it got: its consumer is given one all the same. A
    server that counts what was got sends less than it may, which no clause forbids.
    """
    channel = await ctx.channel()
    outcome = await channel.outcome("basic.qos", prefetch_count=1, global_=True)
    if outcome != "ok":
        ctx.unsupported(f"a shared prefetch is answered by {outcome}")
    consumed, asked = await channel.queue(), await channel.queue()
    channel.publish("", asked, b"got")
    await channel.get_soon(asked, no_ack=False)
    await channel.consume(consumed)
    channel.publish("", consumed, b"delivered")
    soon = ctx.soon()
    while not (is_given := any(event.name == "basic.deliver" for event in channel.inbox)) and await soon():
        await channel.barrier()
    ctx.should(is_given, "what was got takes the room of a consumer")
