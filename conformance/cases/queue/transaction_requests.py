"""Transactions: who may do what, bounds, and how requests are answered."""

from __future__ import annotations

from typing import Any

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.producing import TWO_USERS, Producer, answer_of, must_fail, request
from assay.conformance.cases.queue.support import consume, new_queue, publish, settle
from assay.conformance.wire import Puback

_SMALL = {"queues": {"transactions": {"max_messages": 3, "max_bytes": 100, "max_partitions": 2}}}
_NEAR = "queue-one-batch-per-message"


@case(
    "queue/transactions/one-at-a-time",
    clauses=("Q-TXN-11", "Q-TXN-14"),
    requires=("queues",),
    mutant="queue-two-transactions-at-once",
    near_miss=_NEAR,
)
async def one_at_a_time(ctx: CaseContext) -> None:
    """A producer has one open transaction, which can be looked at.

    A second begin is refused as transaction_state, and the first still works. $txn/describe and $txn/list show it with
    its producer, state, message count and partition.
    """
    queue = new_queue(ctx)
    producer = await Producer.make(ctx, ctx.client_id())
    await create(ctx, producer.client, queue, partitions=4)
    transaction = await producer.begin()
    must_fail(ctx, await request(producer.client, "begin", **producer.identity), "transaction_state")
    await producer.put(queue, b"1", transaction, partition="3")
    described = await answer_of(ctx, producer, "describe", **{"transaction-id": transaction})
    shown: dict[str, Any] = described.get("transaction") or {}
    listed = await answer_of(ctx, producer, "list")
    ctx.must(shown in listed.get("transactions", ()), f"producer: expected {shown} among the open ones; seen {listed}")
    seen = {name: shown.get(name) for name in ("transaction_id", "producer_id", "state", "messages", "partitions")}
    expected = {
        "transaction_id": transaction,
        "producer_id": int(producer.id),
        "state": "open",
        "messages": 1,
        "partitions": [f"{queue}:3"],
    }
    ctx.must(seen == expected, f"producer: expected {expected}; seen {seen}")
    await producer.commit(transaction)


@case(
    "queue/transactions/only-acknowledges",
    clauses=("Q-TXN-12",),
    requires=("queues",),
    mutant="queue-nack-in-a-transaction",
    near_miss=_NEAR,
)
async def only_acknowledges(ctx: CaseContext) -> None:
    """$nack and $reject with a transaction-id are refused, and the delivery stays with its consumer.

    After both it can still be acknowledged, outside of the transaction.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer = await Producer.make(ctx, ctx.client_id())
    await publish(producer.client, queue, b"in")
    delivery = await consumer.expect_publish(payload=b"in")
    transaction = await producer.begin()
    for verb in ("nack", "reject"):
        must_fail(ctx, await producer.ack(consumer, queue, delivery, transaction, verb))
    await consumer.expect_nothing()
    await settle(ctx, consumer, queue, "ack", delivery)


@case(
    "queue/transactions/is-bounded",
    clauses=("Q-TXN-13",),
    requires=("queues",),
    mutant="queue-transactions-unbounded",
    near_miss=_NEAR,
    settings=_SMALL,
)
async def bounded(ctx: CaseContext) -> None:
    """A message too many, too large or for one partition too many is refused; the transaction goes on.

    Limits of 3 messages, 100 bytes and 2 partitions. What was taken is delivered after the commit.
    """
    queue = new_queue(ctx)
    producer = await Producer.make(ctx, ctx.client_id())
    await create(ctx, producer.client, queue, partitions=3)
    consumer = await consume(ctx, queue)
    transaction = await producer.begin()
    for partition in ("0", "1"):
        await producer.put(queue, partition.encode(), transaction, partition=partition)
    for payload, partition in ((b"third", "2"), (b"x" * 99, "0")):
        puback = await producer.publish(queue, payload, transaction, partition=partition)
        ctx.must(puback.reason_code == 0x97, f"producer: expected quota exceeded; seen {puback}")
    await producer.put(queue, b"2", transaction, partition="0")
    puback = await producer.publish(queue, b"3", transaction, partition="0")
    ctx.must(puback.reason_code == 0x97, f"producer: expected quota exceeded; seen {puback}")
    await producer.commit(transaction)
    seen = sorted([(await consumer.expect_publish()).payload for _ in range(3)])
    ctx.must(seen == [b"0", b"1", b"2"], f"consumer: expected what was taken; seen {seen}")


@case(
    "queue/transactions/answers-on-the-response-topic",
    clauses=("Q-TXN-15",),
    requires=("queues",),
    mutant="queue-transaction-answer-uncorrelated",
    near_miss=_NEAR,
)
async def answers(ctx: CaseContext) -> None:
    """Each request with a response topic is answered there in JSON, with the correlation data; refusals as well.

    init, begin and commit, each named by what the answer before it says; then a commit that is refused.
    """
    producer = Producer(ctx, await ctx.connect(version=5, name="producer"), None)
    told = await answer_of(ctx, producer, "init", **{"transactional-id": ctx.client_id()})
    named = {name: told.get(name, "") for name in ("producer-id", "producer-epoch")}
    told = await answer_of(ctx, producer, "begin", **named)
    named["transaction-id"] = told.get("transaction-id", "")
    told = await answer_of(ctx, producer, "commit", **named)
    ctx.must(told == {"state": "committed"}, f"producer: expected the state committed; seen {told}")
    told = await answer_of(ctx, producer, "abort", **named)
    ctx.must(told.get("error") == "transaction_state", f"producer: expected the error transaction_state; seen {told}")


@case(
    "queue/transactions/bad-requests-are-refused",
    clauses=("Q-TXN-16",),
    requires=("queues",),
    mutant="queue-transaction-of-anybody",
    near_miss=_NEAR,
)
async def bad_requests(ctx: CaseContext) -> None:
    """Requests without what they need, for an unknown operation, or for another's transaction are refused.

    Another producer neither publishes in the transaction nor ends it, nor does one without a transactional id begin
    one; the owner still commits.
    """
    queue = new_queue(ctx)
    consumer = await consume(ctx, queue)
    producer, other = await Producer.make(ctx, ctx.client_id()), await Producer.make(ctx, ctx.client_id())
    plain = await Producer.make(ctx)
    transaction = await producer.begin()
    await producer.put(queue, b"mine", transaction)
    client = producer.client
    for operation, named in (
        ("nothing", {}),
        ("begin", {"producer-id": producer.id}),
        ("begin", plain.identity),
        ("begin", {**other.identity, "timeout": "soon"}),
        ("commit", producer.identity),
        ("commit", {**producer.identity, "transaction-id": "none"}),
        ("describe", {}),
        ("init", {"transactional-id": ""}),
    ):
        must_fail(ctx, await request(client, operation, **named))
    must_fail(ctx, await other.publish(queue, b"theirs", transaction), "unknown_transaction")
    for how in ("abort", "commit"):
        must_fail(ctx, await other.end(how, transaction), "unknown_transaction")
    must_fail(ctx, await producer.publish(queue, b"late", transaction, delay="1s"))
    await consumer.expect_nothing()
    await producer.commit(transaction)
    await consumer.expect_publish(payload=b"mine")


@case(
    "queue/transactions/belong-to-a-user",
    clauses=("Q-TXN-22",),
    requires=("queues",),
    mutant="queue-producers-of-anybody",
    near_miss=_NEAR,
    settings=TWO_USERS,
)
async def of_a_user(ctx: CaseContext) -> None:
    """What ann initialises and begins is hers: bob, and a client without a user, are refused with 0x87.

    They initialise her transactional id, begin, commit and abort in her name, and publish as her producer, numbered or
    in her transaction. It still commits; its message is the only one, and has the sequence 0.
    """
    queue = new_queue(ctx)
    ann = await ctx.connect(version=5, name="ann", username="ann", password=b"ann")
    others = [
        await ctx.connect(version=5, name="bob", username="bob", password=b"bob"),
        await ctx.connect(version=5, name="nobody"),
    ]
    producer = await Producer.make(ctx, ctx.client_id(), ann)
    transaction = await producer.begin()
    for other in others:
        _must_be_refused(ctx, await request(other, "init", **{"transactional-id": producer.name or ""}))
        thief = Producer(ctx, other, producer.name)
        thief.id, thief.epoch = producer.id, producer.epoch
        _must_be_refused(ctx, await request(other, "begin", **thief.identity))
        for how in ("commit", "abort"):
            _must_be_refused(ctx, await thief.end(how, transaction))
        _must_be_refused(ctx, await thief.publish(queue, b"stolen", transaction))
        _must_be_refused(ctx, await thief.publish(queue, b"stolen", sequence=0))
    await producer.put(queue, b"mine", transaction, sequence=0)
    await producer.commit(transaction)
    consumer = await consume(ctx, queue)
    await consumer.expect_publish(payload=b"mine")
    await consumer.expect_nothing()


def _must_be_refused(ctx: CaseContext, puback: Puback) -> None:
    ctx.must(puback.reason_code == 0x87, f"expected 0x87 (not authorized); seen {puback}")
