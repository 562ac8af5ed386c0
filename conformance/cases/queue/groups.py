"""Consumer groups: membership, generations, claims, automatic commit, administration."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.mqtt5.support import shares
from assay.conformance.cases.queue.group_support import ONE_PARTITION, accepted, assigned, partitions, payloads, refused
from assay.conformance.cases.queue.support import (
    admin,
    consume,
    count_of,
    deliveries,
    new_queue,
    property_of,
    publish,
    refused_settlement,
    settle,
)
from assay.conformance.wire import Puback, Publish, Subscription


@case(
    "queue/groups/default-group-of-the-client-id",
    clauses=("Q-GROUP-01",),
    requires=("queues",),
    mutant="queue-default-group-whole-id",
    near_miss="queue-one-batch-per-message",
)
async def default_group(ctx: CaseContext) -> None:
    """Without a group a consumer joins that of its client id up to the first "-" (F31).

    Two clients whose ids differ behind the first "-" only get each message once between them. A client whose id begins
    otherwise gets all messages.
    """
    queue = new_queue(ctx)
    base = ctx.client_id().replace("-", "")
    for suffix in ("-1", "-2", "x"):
        consumer = await ctx.connect(version=5, client_id=f"{base}{suffix}", name=suffix)
        await consumer.subscribe(Subscription(filter=f"$queue/{queue}", qos=1))
        if suffix == "-1":
            first = consumer
        elif suffix == "-2":
            second = consumer
        else:
            other = consumer
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"a", b"b", b"c")
    shared = [packet.payload for share in await shares((first, second), 3) for packet in share]
    ctx.must(sorted(shared) == [b"a", b"b", b"c"], f"expected each message once in the shared group; seen {shared}")
    alone = [packet.payload for packet in await deliveries(other, at_least=3)]
    ctx.must(alone == [b"a", b"b", b"c"], f"x: expected every message; seen {alone}")


@case(
    "queue/groups/idle-consumers-stay",
    clauses=("Q-GROUP-02",),
    requires=("queues", "clock"),
    mutant="queue-connected-members-need-heartbeats",
    near_miss="queue-one-batch-per-message",
)
async def idle(ctx: CaseContext) -> None:
    """A connected consumer remains a member although nothing happens for long (F32).

    A consumer is connected and idle for ten minutes. Then it gets what is published.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    for _ in range(10):
        await ctx.advance(60)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    await consumer.expect_publish(payload=b"message")


@case(
    "queue/groups/generations-fence",
    clauses=("Q-GROUP-04", "Q-GROUP-05"),
    requires=("queues",),
    settings=ONE_PARTITION,
    mutant="queue-generations-ignored",
    near_miss="queue-generations-in-twos",
)
async def generations(ctx: CaseContext) -> None:
    """An acknowledgement, commit or claim that names an old generation is refused; the current one is accepted.

    A consumer is told its generation, then a second consumer joins. What the first does in the name of its old
    generation is refused and changes nothing; in the name of the new one it may acknowledge.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue, notify="1", client_id=f"a{ctx.client_id()}")
    old = (await assigned(ctx, consumer))["generation"]
    await consume(ctx, queue, name="second", client_id=f"0{ctx.client_id()}")
    new = (await assigned(ctx, consumer))["generation"]
    ctx.must(new > old, f"expected a higher generation than {old}; seen {new}")
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    delivery = await consumer.expect_publish(payload=b"message")
    await refused_settlement(ctx, consumer, queue, "ack", delivery, generation=str(old))
    await refused(ctx, consumer, queue, "commit", offset="1", generation=str(old))
    await refused(ctx, consumer, queue, "claim", generation=str(old))
    await settle(ctx, consumer, queue, "ack", delivery, generation=str(new))
    await consumer.expect_nothing()


@case(
    "queue/groups/claims-move-deliveries",
    clauses=("Q-GROUP-06", "Q-GROUP-07", "Q-GROUP-09"),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="queue-claim-leaves-the-owner",
    near_miss="queue-one-batch-per-message",
)
async def claims(ctx: CaseContext) -> None:
    """A claim takes over what its consumer has held for long enough, and only one of them can settle it (F29).

    A delivery is ten seconds old. A claim for twenty seconds is refused; one for ten is served: the claimant gets the
    message with delivery-count 2. The first consumer's $ack is refused, the claimant's is accepted, and a further claim
    is refused.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    slow = await consume(ctx, queue, name="slow")
    first = await slow.expect_publish(payload=b"message")
    fast = await consume(ctx, queue, name="fast")
    message_id = property_of(ctx, first, "message-id")
    await ctx.advance(10)
    await refused(ctx, fast, queue, "claim", message_id=message_id, min_idle="20s")
    await fast.expect_nothing()
    await accepted(ctx, fast, queue, "claim", message_id=message_id, min_idle="10s", group_id="workers")
    again = await fast.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"fast: expected delivery-count 2; seen {count_of(ctx, again)}")
    await refused_settlement(ctx, slow, queue, "ack", first)
    await settle(ctx, fast, queue, "ack", again)
    await refused(ctx, slow, queue, "claim", message_id=message_id)
    await slow.expect_nothing()


@case(
    "queue/groups/own-entries-can-be-claimed",
    clauses=("Q-GROUP-08",),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="queue-claim-skips-its-own",
    kills=("queue-own-claims-need-room",),
    near_miss="queue-one-batch-per-message",
)
async def own_claims(ctx: CaseContext) -> None:
    """The only consumer of a group may claim what it holds itself (R1).

    A consumer that holds as much as it may, a message, claims what has been idle for five seconds; it gets the message
    again, with delivery-count 2, and settles it.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue, prefetch="1")
    await consumer.expect_publish(payload=b"message")
    await ctx.advance(6)
    await accepted(ctx, consumer, queue, "claim", min_idle="5s")
    again = await consumer.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 2, f"consumer: expected delivery-count 2; seen {count_of(ctx, again)}")
    await settle(ctx, consumer, queue, "ack", again)


@case(
    "queue/groups/claims-begin-with-the-lowest",
    clauses=("Q-GROUP-10",),
    requires=("queues",),
    settings=ONE_PARTITION,
    mutant="queue-claims-newest-first",
    near_miss="queue-one-batch-per-message",
)
async def lowest_first(ctx: CaseContext) -> None:
    """A claim without a message takes the lowest offsets, as many as it asks for (R21).

    A consumer holds five messages. Another claims two: it gets the first two, in order.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, *(b"%d" % number for number in range(5)))
    slow = await consume(ctx, queue, name="slow")
    ctx.must(len(await deliveries(slow, at_least=5)) == 5, "slow: expected five messages")
    fast = await consume(ctx, queue, name="fast")
    await accepted(ctx, fast, queue, "claim", count="2")
    found = await payloads(fast, at_least=2)
    # A server that has one delivery under way at a time may claim no more than that.
    ctx.must(found in (["0", "1"], ["0"]), f"fast: expected the messages 0 and 1; seen {found}")


@case(
    "queue/groups/strangers-claim-and-commit-nothing",
    clauses=("Q-GROUP-11",),
    requires=("queues",),
    settings=ONE_PARTITION,
    mutant="queue-strangers-commit",
    near_miss="queue-one-batch-per-message",
)
async def strangers(ctx: CaseContext) -> None:
    """Who does not consume in a group can neither claim nor commit in it.

    Both are refused, and the message stays with its consumer, which settles it.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue)
    delivery = await consumer.expect_publish(payload=b"message")
    await refused(ctx, publisher, queue, "commit", offset="1", group_id="workers")
    await refused(ctx, publisher, queue, "claim", group_id="workers")
    await publisher.expect_nothing()
    await settle(ctx, consumer, queue, "ack", delivery)


@case(
    "queue/groups/automatic-commit",
    clauses=("Q-GROUP-12", "Q-GROUP-13"),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="queue-auto-commits-what-was-sent",
    near_miss="queue-auto-commit-at-once",
)
async def automatic(ctx: CaseContext) -> None:
    """With ack-mode auto, what was received is committed every five seconds; the rest comes again.

    A consumer acknowledges the first of two messages by PUBACK, and not the second. Six seconds later it is lost. The
    next consumer gets the second message alone, with delivery-count 2.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"received", b"sent")
    consumer = await consume(ctx, queue, name="first", ack_mode="auto")
    await consumer.expect_publish(payload=b"received")
    await consumer.expect_publish(payload=b"sent", ack=False)
    await consumer.expect_nothing()
    await ctx.advance(6)
    await consumer.expect_nothing()
    await consumer.disconnect()
    second = await consume(ctx, queue, name="second")
    again = await second.expect_publish(payload=b"sent")
    ctx.must(count_of(ctx, again) == 2, f"second: expected delivery-count 2; seen {count_of(ctx, again)}")
    await second.expect_nothing()


@case(
    "queue/groups/automatic-commit-settles",
    clauses=("Q-GROUP-12",),
    requires=("queues", "clock"),
    settings=ONE_PARTITION,
    mutant="queue-auto-commit-forgotten",
    near_miss="queue-auto-commit-at-once",
)
async def automatic_settles(ctx: CaseContext) -> None:
    """What was committed automatically neither times out nor comes again.

    A consumer with ack-mode auto receives a message and says nothing more for two minutes. It gets nothing more, and
    after it the next consumer gets nothing.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue, name="first", ack_mode="auto")
    await consumer.expect_publish(payload=b"message")
    await consumer.expect_nothing()
    for seconds in (6, 60, 60):
        await ctx.advance(seconds)
        await consumer.expect_nothing()
    await consumer.disconnect()
    second = await consume(ctx, queue, name="second")
    await second.expect_nothing()


@case(
    "queue/groups/administration-tells-of-groups",
    clauses=("Q-GROUP-14",),
    requires=("queues",),
    settings=partitions(2),
    mutant="queue-lag-counts-what-is-in-flight",
    near_miss="queue-one-batch-per-message",
)
async def told(ctx: CaseContext) -> None:
    """The administration tells who is in a group, where it stands, and its lag.

    A consumer with room for two holds two of three messages of one partition and has settled the first of four.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    consumer = await consume(ctx, queue, prefetch="2")
    for number in range(4):
        await publish(publisher, queue, b"%d" % number)
    got = await deliveries(consumer, at_least=2)
    ctx.must(len(got) == 2, f"consumer: expected 2 messages; seen {len(got)}")
    first = got[0]
    await settle(ctx, consumer, queue, "ack", first)
    ctx.must(len(await deliveries(consumer, at_least=1)) == 1, "consumer: expected the third message")
    found = await admin(ctx, publisher, f"queue/{queue}/groups", {"group": "workers"})
    (group,) = found["groups"]
    partition = int(property_of(ctx, first, "partition"))
    seen = next(part for part in group["partitions"] if part["partition"] == partition)
    wanted = {"consumer": consumer.client_id, "committed": 1, "cursor": 3, "end": 4, "lag": 1, "in_flight": 2}
    ctx.must(wanted.items() <= seen.items(), f"expected {wanted}; seen {seen}")
    ctx.must(group["lag"] == 1, f"expected a lag of 1; seen {group['lag']}")
    members = [member["consumer"] for member in group["members"]]
    ctx.must(members == [consumer.client_id], f"expected the consumer as the only member; seen {members}")


@case(
    "queue/groups/deleted-for-good",
    clauses=("Q-GROUP-15", "Q-GROUP-16"),
    requires=("queues", "restart"),
    settings=ONE_PARTITION,
    mutant="queue-deleted-group-comes-back",
    near_miss="queue-one-batch-per-message",
    limit_s=20.0,
)
async def deleted(ctx: CaseContext) -> None:
    """A deleted group is not back after a restart: one of its name begins anew (R11).

    A group with a consumer cannot be deleted. Without, it is; then the broker is killed. A group of the same name gets
    the message that the first one had settled, as a first delivery.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    await publish(publisher, queue, b"message")
    consumer = await consume(ctx, queue, name="first")
    delivery = await consumer.expect_publish(payload=b"message")
    await settle(ctx, consumer, queue, "ack", delivery)
    in_use = await admin_refused(ctx, queue)
    ctx.must(in_use, "expected the deletion of a group with a consumer to be refused")
    await consumer.disconnect()
    await admin(ctx, publisher, f"queue/{queue}/groups", {"group": "workers", "delete": True})
    await ctx.restart()
    second = await consume(ctx, queue, name="second")
    again = await second.expect_publish(payload=b"message")
    ctx.must(count_of(ctx, again) == 1, f"second: expected delivery-count 1; seen {count_of(ctx, again)}")


async def admin_refused(ctx: CaseContext, queue: str) -> bool:
    """Whether deleting the group is refused."""
    client = await ctx.connect(version=5, name="administrator")
    packet_id = client.next_packet_id()
    client.send(
        Publish(
            topic=f"$admin/queue/{queue}/groups",
            payload=b'{"group": "workers", "delete": true}',
            qos=1,
            packet_id=packet_id,
        )
    )
    return (await client.expect(Puback)).reason_code >= 0x80
