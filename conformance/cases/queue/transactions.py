"""Transactions: all of it or nothing, for every consumer, through timeouts, zombies and restarts."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.bursts import accepted
from assay.conformance.cases.queue.producing import Producer, answer_of, must_fail, payloads, request, send
from assay.conformance.cases.queue.support import admin, consume, count_of, deliveries, new_queue, publish, settle
from assay.conformance.wire import Properties, Publish

_NEAR = "queue-one-batch-per-message"

_DURABLE = {"data_dir": "{dir}/data", "queues": {"defaults": {"durability": "fsync"}}}


@case(
    "queue/transactions/open-shows-nothing",
    clauses=("Q-TXN-01", "Q-TXN-02"),
    requires=("queues",),
    mutant="queue-open-transaction-shows",
    near_miss=_NEAR,
)
async def open_shows_nothing(ctx: CaseContext) -> None:
    """Nothing of an open transaction is delivered; after the commit everything is, once.

    Two messages in a transaction, confirmed: the group gets nothing. Then the commit: it gets both, in order.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    transaction = await producer.begin()
    for payload in (b"1", b"2"):
        await producer.put(queue, payload, transaction)
    await consumer.expect_nothing()
    await producer.commit(transaction)
    for payload in (b"1", b"2"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()


@case(
    "queue/transactions/commits-in-every-queue",
    clauses=("Q-TXN-02",),
    requires=("queues",),
    mutant="queue-commit-of-one-part",
    near_miss=_NEAR,
)
async def every_queue(ctx: CaseContext) -> None:
    """A commit is one for all queues and partitions, not one publish after the other (P11).

    One transaction over two partitions of one queue and one of another: each group gets what is its, after the commit.
    """
    first, second = new_queue(ctx), new_queue(ctx)
    producer = await Producer.make(ctx, ctx.client_id())
    await create(ctx, producer.client, first, partitions=2)
    one, two = await consume(ctx, first), await consume(ctx, second)
    transaction = await producer.begin()
    for partition in ("0", "1"):
        await producer.put(first, partition.encode(), transaction, partition=partition)
    await producer.put(second, b"2", transaction)
    ctx.must(not await payloads(one) and not await payloads(two), "consumers: expected nothing before the commit")
    await producer.commit(transaction)
    seen = [await one.expect_publish() for _ in range(2)]
    found = sorted(delivery.payload for delivery in seen)
    ctx.must(found == [b"0", b"1"], f"consumer: expected both partitions' messages; seen {found}")
    await two.expect_publish(payload=b"2")


@case(
    "queue/transactions/aborted-never-comes",
    clauses=("Q-TXN-03",),
    requires=("queues", "restart"),
    mutant="queue-abort-shows",
    near_miss=_NEAR,
    settings=_DURABLE,
)
async def aborted(ctx: CaseContext) -> None:
    """What was aborted comes to no group, not to a new one, and not after a restart.

    Two messages in a transaction, one outside, the abort. The group gets the one outside, after kill -9 a new one too.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    transaction = await producer.begin()
    for payload in (b"1", b"2"):
        await producer.put(queue, payload, transaction)
    await send(producer.client, f"$queue/{queue}", b"outside", partition="0")
    await producer.abort(transaction)
    await consumer.expect_publish(payload=b"outside")
    await consumer.expect_nothing()
    await ctx.restart()
    late = await consume(ctx, queue, group="late")
    await late.expect_publish(payload=b"outside")
    await late.expect_nothing()


@case(
    "queue/transactions/aborted-stays-hidden",
    clauses=("Q-TXN-03",),
    requires=("queues", "restart"),
    mutant="queue-aborts-forgotten",
    near_miss=_NEAR,
    settings=_DURABLE,
)
async def aborted_hidden(ctx: CaseContext) -> None:
    """A restart remembers which messages were aborted, among committed ones of the same partition.

    Three transactions in turn, the second aborted; after kill -9 a group gets the first and the third.
    """
    queue = new_queue(ctx)
    producer = await Producer.make(ctx, ctx.client_id())
    for payload in (b"1", b"2", b"3"):
        transaction = await producer.begin()
        await producer.put(queue, payload, transaction)
        await (producer.abort(transaction) if payload == b"2" else producer.commit(transaction))
    await ctx.restart()
    consumer = await consume(ctx, queue)
    for payload in (b"1", b"3"):
        await consumer.expect_publish(payload=payload)
    await consumer.expect_nothing()


@case(
    "queue/transactions/holds-back-what-is-behind",
    clauses=("Q-TXN-04",),
    requires=("queues",),
    mutant="queue-only-newest-holds-back",
    near_miss=_NEAR,
)
async def holds_back(ctx: CaseContext) -> None:
    """Messages behind an open transaction wait for it, and the order of the partition holds.

    Two transactions that overlap in one partition, and a message outside behind both. The second is committed: still
    nothing. The first is committed: all come in the order in which they were published.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    one, two = await Producer.make(ctx, ctx.client_id()), await Producer.make(ctx, ctx.client_id())
    first, second = await one.begin(), await two.begin()
    await one.put(queue, b"1", first, partition="0")
    await two.put(queue, b"2", second, partition="0")
    await one.put(queue, b"3", first, partition="0")
    await send(one.client, f"$queue/{queue}", b"4", partition="0")
    await two.commit(second)
    await consumer.expect_nothing()
    await one.commit(first)
    for payload in (b"1", b"2", b"3", b"4"):
        await consumer.expect_publish(payload=payload)


@case(
    "queue/transactions/acknowledges-with-the-commit",
    clauses=("Q-TXN-05",),
    requires=("queues",),
    mutant="queue-ack-before-the-commit",
    near_miss=_NEAR,
)
async def acknowledges(ctx: CaseContext) -> None:
    """An acknowledgement in a transaction is part of it: it counts with the commit, and not after an abort.

    A message is acknowledged in a transaction that is aborted: it comes again, with a higher count. Acknowledged in one
    that is committed, it comes no more, and a second acknowledgement is refused.
    """
    source, target = new_queue(ctx), new_queue(ctx)
    consumer, sink = await consume(ctx, source), await consume(ctx, target)
    producer = await Producer.make(ctx, ctx.client_id())
    await publish(producer.client, source, b"in")
    delivery = await consumer.expect_publish(payload=b"in")
    for how in ("abort", "commit"):
        transaction = await producer.begin()
        await producer.put(target, how.encode(), transaction)
        puback = await producer.ack(consumer, source, delivery, transaction)
        ctx.must(puback.reason_code < 0x80, f"consumer: expected the acknowledgement to be taken; seen {puback}")
        await (producer.abort(transaction) if how == "abort" else producer.commit(transaction))
        if how == "abort":
            delivery = await consumer.expect_publish(payload=b"in")
            ctx.must(count_of(ctx, delivery) == 2, f"consumer: expected the second delivery; seen {delivery}")
    await consumer.expect_nothing()
    await sink.expect_publish(payload=b"commit")
    must_fail(ctx, await producer.ack(consumer, source, delivery, await producer.begin()))


@case(
    "queue/transactions/acknowledged-waits-for-the-end",
    clauses=("Q-TXN-06",),
    requires=("queues", "clock"),
    mutant="queue-held-times-out",
    near_miss=_NEAR,
)
async def waits(ctx: CaseContext) -> None:
    """A delivery that an open transaction has acknowledged does not time out and goes to nobody else.

    Delivery timeout 30 s; 40 s after the acknowledgement nobody has got the message again. Then the commit.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    await publish(producer.client, queue, b"in")
    delivery = await consumer.expect_publish(payload=b"in")
    transaction = await producer.begin()
    await producer.ack(consumer, queue, delivery, transaction)
    await ctx.advance(30)
    other = await consume(ctx, queue, name="other")
    await ctx.advance(10)
    await consumer.expect_nothing()
    await other.expect_nothing()
    await producer.commit(transaction)
    await ctx.advance(400)
    await other.expect_nothing()


@case(
    "queue/transactions/second-end-is-told-the-first",
    clauses=("Q-TXN-07",),
    requires=("queues",),
    mutant="queue-ended-transactions-forgotten",
    near_miss=_NEAR,
)
async def second_end(ctx: CaseContext) -> None:
    """Whoever missed the answer and asks again is told what happened (P11).

    A commit twice succeeds and delivers once; an abort after it is refused as transaction_state. An abort twice
    succeeds; a commit after it is refused as transaction_state, as is a message.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    transaction = await producer.begin()
    await producer.put(queue, b"once", transaction)
    await producer.commit(transaction)
    await producer.commit(transaction)
    must_fail(ctx, await producer.end("abort", transaction), "transaction_state")
    await consumer.expect_publish(payload=b"once")
    transaction = await producer.begin()
    await producer.put(queue, b"never", transaction)
    await producer.abort(transaction)
    await producer.abort(transaction)
    must_fail(ctx, await producer.end("commit", transaction), "transaction_state")
    must_fail(ctx, await producer.publish(queue, b"late", transaction), "transaction_state")
    await consumer.expect_nothing()


@case(
    "queue/transactions/times-out",
    clauses=("Q-TXN-08",),
    requires=("queues", "clock"),
    mutant="queue-transactions-never-time-out",
    near_miss=_NEAR,
)
async def times_out(ctx: CaseContext) -> None:
    """A transaction that nobody ends is aborted after 60 s, or after the timeout that it asked for.

    One by default and one with timeout 10s, each with a message and one outside behind it. The messages outside come
    after 10 and after 60 s; the late commits are refused, and the next transaction works. A timeout of 16 min is not
    allowed.
    """
    for timeout, more in ((60, {}), (10, {"timeout": "10s"})):
        queue = new_queue(ctx)
        consumer = await consume(ctx, queue)
        producer = await Producer.make(ctx, ctx.client_id())
        due = ctx.due_in(timeout)
        transaction = await producer.begin(**more)
        await producer.put(queue, b"never", transaction, partition="0")
        await send(producer.client, f"$queue/{queue}", b"outside", partition="0")
        await ctx.advance(timeout - 1)
        await consumer.expect_nothing(before=due)
        await ctx.advance(1.1)
        await consumer.expect_publish(payload=b"outside")
        must_fail(ctx, await producer.end("commit", transaction), "transaction_state")
        await producer.commit(await producer.begin())
    must_fail(ctx, await request(producer.client, "begin", **producer.identity, timeout="16m"))


@case(
    "queue/transactions/restart-decides",
    clauses=("Q-TXN-09", "Q-TXN-03", "Q-TXN-07"),
    requires=("queues", "restart"),
    mutant="queue-restart-commits-what-is-open",
    kills=("queue-empty-commits-are-not-written",),
    near_miss=_NEAR,
    settings=_DURABLE,
)
async def restart(ctx: CaseContext) -> None:
    """kill -9 leaves committed transactions whole and aborts those that were open; none stays undecided.

    Over two queues one transaction is committed, and another open when the broker is killed. After the restart each
    queue has the committed message alone, a message behind them comes, and the list of transactions is empty. What was
    committed may be committed again, also what had no message; what was open may not.
    """
    queues = [new_queue(ctx), new_queue(ctx)]
    idle = await Producer.make(ctx, ctx.client_id())
    for queue in queues:
        await create(ctx, idle.client, queue, partitions=10)
    empty = await idle.begin()
    await idle.commit(empty)
    producer = await Producer.make(ctx, ctx.client_id())
    done = await producer.begin()
    for queue in queues:
        await producer.put(queue, b"committed", done)
    await producer.commit(done)
    left = await producer.begin()
    for queue in queues:
        await producer.put(queue, b"open", left)
    await ctx.restart()
    producer.client = await ctx.connect(version=5, name="producer")
    idle.client = await ctx.connect(version=5, name="idle producer")
    await idle.commit(empty)
    await producer.commit(done)
    must_fail(ctx, await producer.end("commit", left))
    for queue in queues:
        await send(producer.client, f"$queue/{queue}", b"behind", partition=str(int(producer.id) % 10))
        consumer = await consume(ctx, queue)
        for payload in (b"committed", b"behind"):
            await consumer.expect_publish(payload=payload)
        await consumer.expect_nothing()
    found = await answer_of(ctx, producer, "list")
    ctx.must(found == {"transactions": []}, f"producer: expected no transaction; seen {found}")


@case(
    "queue/transactions/new-epoch-aborts-the-old",
    clauses=("Q-TXN-10",),
    requires=("queues",),
    mutant="queue-zombie-goes-on",
    near_miss=_NEAR,
)
async def zombie(ctx: CaseContext) -> None:
    """A second instance of a producer aborts the transaction of the first, which can do nothing any more.

    The first has a message in an open transaction, with one outside behind it. The second initialises: the message
    outside comes. The first is refused as fenced when it publishes, commits, aborts and begins.
    """
    queue, name = new_queue(ctx), ctx.client_id()
    consumer = await consume(ctx, queue)
    old = await Producer.make(ctx, name)
    transaction = await old.begin()
    await old.put(queue, b"never", transaction, partition="0")
    await send(old.client, f"$queue/{queue}", b"outside", partition="0")
    new = await Producer.make(ctx, name)
    await consumer.expect_publish(payload=b"outside")
    must_fail(ctx, await old.publish(queue, b"zombie", transaction), "fenced")
    for how in ("commit", "abort"):
        must_fail(ctx, await old.end(how, transaction), "fenced")
    must_fail(ctx, await request(old.client, "begin", **old.identity), "fenced")
    await new.commit(await new.begin())
    await consumer.expect_nothing()


@case(
    "queue/transactions/counts-messages-only",
    clauses=("Q-TXN-17",),
    requires=("queues",),
    mutant="queue-markers-counted",
    near_miss=_NEAR,
)
async def counts(ctx: CaseContext) -> None:
    """The figures of a queue count messages, not the records that end transactions, and not what was aborted.

    One committed message, two aborted ones, with and without a group: depth 1, and after the acknowledgement depth 0.
    """
    queue = new_queue(ctx)
    producer = await Producer.make(ctx, ctx.client_id())
    for count, how in ((1, "commit"), (2, "abort")):
        transaction = await producer.begin()
        for _ in range(count):
            await producer.put(queue, how.encode(), transaction)
        await (producer.commit(transaction) if how == "commit" else producer.abort(transaction))
    await _expect_depth(ctx, producer, queue, 1)
    consumer = await consume(ctx, queue)
    await _expect_depth(ctx, producer, queue, 1)
    found = await deliveries(consumer, at_least=1)
    ctx.must([one.payload for one in found] == [b"commit"], f"consumer: expected the committed message; seen {found}")
    await settle(ctx, consumer, queue, "ack", found[0])
    await _expect_depth(ctx, producer, queue, 0)


async def _expect_depth(ctx: CaseContext, producer: Producer, queue: str, depth: int) -> None:
    found = await admin(ctx, producer.client, f"queue/{queue}/stats")
    ctx.must(found.get("depth") == depth, f"producer: expected the depth {depth}; seen {found}")


@case(
    "queue/transactions/open-of-one-client",
    clauses=("Q-TXN-23",),
    requires=("queues",),
    mutant="queue-open-transactions-of-all",
    near_miss=_NEAR,
    settings={"queues": {"transactions": {"max_open": 4, "max_open_per_user": 2}}},
)
async def open_of_one_client(ctx: CaseContext) -> None:
    """A client that has as many open transactions as one may have gets no further one; others begin theirs.

    Two are open, a third gets 0x97; another client begins two. Once one is committed the third begins.
    """
    client, other = await ctx.connect(version=5, name="client"), await ctx.connect(version=5, name="other")
    producers = [await Producer.make(ctx, ctx.client_id(), client) for _ in range(3)]
    first = await producers[0].begin()
    await producers[1].begin()
    puback = await request(client, "begin", **producers[2].identity)
    ctx.must(puback.reason_code == 0x97, f"client: expected a third transaction to be refused; seen {puback}")
    for _ in range(2):
        await (await Producer.make(ctx, ctx.client_id(), other)).begin()
    await producers[0].commit(first)
    await producers[2].begin()


@case(
    "queue/transactions/bursts-keep-their-order",
    clauses=("Q-TXN-02", "Q-TXN-03", "Q-PRIO-06"),
    requires=("queues",),
    mutant="queue-transactions-swap-neighbours",
    kills=("queue-aborted-bursts-leave-their-last",),
    near_miss=_NEAR,
    settings={"queues": {"defaults": {"partitions": 2}}},
)
async def bursts(ctx: CaseContext) -> None:
    """What a transaction publishes at once to two partitions comes whole and in its order, or not at all.

    Two transactions of 24 messages each, in one write, to two partitions in turn. The first is aborted, the second
    committed.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    for how in ("aborted", "committed"):
        transaction = await producer.begin()
        packets = []
        for number in range(24):
            named = {**producer.identity, "transaction-id": transaction, "partition": str(number % 2)}
            packet = Publish(
                topic=f"$queue/{queue}",
                payload=f"{how} {number:02}".encode(),
                qos=1,
                packet_id=producer.client.next_packet_id(),
                properties=Properties(user_property=tuple(named.items())),
            )
            packets.append(packet)
        await accepted(ctx, producer.client, packets)
        if how == "aborted":
            await producer.abort(transaction)
            continue
        await producer.commit(transaction)
        seen = await payloads(consumer, at_least=len(packets))
        for part in range(2):
            wanted = [packet.payload for packet in packets[part::2]]
            found = [payload for payload in seen if int(payload[-2:]) % 2 == part]
            ctx.must(found == wanted, f"consumer: partition {part}: expected {wanted}; seen {found}")


@case(
    "queue/transactions/time-runs-from-the-beginning",
    clauses=("Q-TXN-08",),
    requires=("queues", "clock"),
    mutant="queue-transactions-time-out-when-idle",
)
async def from_the_beginning(ctx: CaseContext) -> None:
    """A transaction times out so long after it began, however busy it is.

    It has 30 s, and gets a message after 20 s. After 31 s its commit is refused, and nothing of it comes.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    transaction = await producer.begin(timeout="30s")
    await producer.put(queue, b"early", transaction)
    await ctx.advance(20.0)
    await producer.put(queue, b"late", transaction)
    await ctx.advance(11.0)
    must_fail(ctx, await producer.end("commit", transaction))
    await consumer.expect_nothing()
