"""Which consumer serves which partitions, and how they change hands."""

from __future__ import annotations

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.administration import create
from assay.conformance.cases.queue.group_support import assigned, fill, partitions, payloads
from assay.conformance.cases.queue.support import consume, count_of, new_queue, publish_with, refused_settlement, settle
from assay.conformance.connection import Connection


async def _consumers(ctx: CaseContext, queue: str, names: str) -> list[Connection]:
    """One after the other, with client ids in the order of ``names``."""
    base = ctx.client_id()
    return [await consume(ctx, queue, name=name, client_id=f"{name}{base}", notify="1") for name in names]


async def _partitions(ctx: CaseContext, consumers: list[Connection]) -> list[list[int]]:
    return [(await assigned(ctx, consumer))["partitions"] for consumer in consumers]


@case(
    "queue/assignment/range",
    clauses=("Q-ASSIGN-01", "Q-ASSIGN-02", "Q-ASSIGN-05"),
    requires=("queues",),
    settings=partitions(10, assignor="range"),
    mutant="queue-range-extra-first",
    kills=("queue-told-nothing-without-an-order",),
    near_miss="queue-generations-in-twos",
)
async def by_range(ctx: CaseContext) -> None:
    """Ranges of ten partitions for three consumers are 3, 3 and 4, by client id.

    Three consumers, joining in another order, are told so; each gets the messages of its partitions and no others.
    Where no order counts two consumers are told that each serves all.
    """
    queue = new_queue(ctx)
    second, third, first = await _consumers(ctx, queue, "bca")
    seen = await _partitions(ctx, [first, second, third])
    wanted = [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    ctx.must(seen == wanted, f"expected {wanted}; seen {seen}")
    publisher = await ctx.connect(version=5, name="publisher")
    await fill(publisher, queue, 10)
    for consumer, mine in zip((first, second, third), wanted, strict=True):
        found = sorted(await payloads(consumer, at_least=len(mine)))
        ctx.must(found == [str(index) for index in mine], f"{consumer.name}: expected {mine}; seen {found}")
    unordered = new_queue(ctx)
    await create(ctx, publisher, unordered, partitions=4, ordering="none")
    seen = await _partitions(ctx, await _consumers(ctx, unordered, "de"))
    ctx.must(seen == [[0, 1, 2, 3]] * 2, f"expected all four partitions twice; seen {seen}")


@case(
    "queue/assignment/round-robin",
    clauses=("Q-ASSIGN-03",),
    requires=("queues",),
    settings=partitions(7, assignor="round_robin"),
    mutant="queue-assignor-ignored",
    near_miss="queue-generations-in-twos",
)
async def round_robin(ctx: CaseContext) -> None:
    """The round-robin assignor deals seven partitions to three consumers in turn.

    They are told 0, 3, 6 and 1, 4 and 2, 5.
    """
    seen = await _partitions(ctx, await _consumers(ctx, new_queue(ctx), "abc"))
    wanted = [[0, 3, 6], [1, 4], [2, 5]]
    ctx.must(seen == wanted, f"expected {wanted}; seen {seen}")


@case(
    "queue/assignment/sticky",
    clauses=("Q-ASSIGN-04",),
    requires=("queues",),
    settings=partitions(6, assignor="sticky"),
    mutant="queue-assignor-ignored",
    near_miss="queue-generations-in-twos",
)
async def sticky(ctx: CaseContext) -> None:
    """The sticky assignor moves as little as it can, and shares differ by one at most.

    Two consumers have three of six partitions each; a third takes one of each. When the second is gone, the others keep
    what they have and get one more each.
    """
    queue = new_queue(ctx)
    first, second = await _consumers(ctx, queue, "ab")
    before = await _partitions(ctx, [first, second])
    ctx.must(sorted(map(len, before)) == [3, 3], f"expected three partitions each; seen {before}")
    (third,) = await _consumers(ctx, queue, "c")
    after = await _partitions(ctx, [first, second, third])
    ctx.must(sorted(map(len, after)) == [2, 2, 2], f"expected two partitions each; seen {after}")
    kept = all(set(now) <= set(then) for now, then in zip(after, before, strict=False))
    ctx.must(kept, f"expected the first two to keep theirs; seen {before}, then {after}")
    await second.disconnect()
    last = await _partitions(ctx, [first, third])
    ctx.must(sorted(map(len, last)) == [3, 3], f"expected three partitions each; seen {last}")
    kept = set(after[0]) <= set(last[0]) and set(after[2]) <= set(last[1])
    ctx.must(kept, f"expected the others to keep theirs; seen {after}, then {last}")


@case(
    "queue/assignment/cooperative-hand-over",
    clauses=("Q-ASSIGN-05", "Q-ASSIGN-06", "Q-ASSIGN-07"),
    requires=("queues",),
    settings=partitions(2, assignor="range", protocol="cooperative"),
    mutant="queue-cooperative-is-eager",
    near_miss="queue-generations-in-twos",
)
async def cooperative(ctx: CaseContext) -> None:
    """A partition that moves is handed over when its deliveries are settled; the other one goes on.

    A consumer holds a message of each of two partitions when a second one joins. It is told that partition 1 is
    revoked, the second that it has none yet. New messages of partition 0 are delivered, those of partition 1 to nobody.
    When the delivery of partition 1 is settled, the second consumer gets its new message.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    (first,) = await _consumers(ctx, queue, "a")
    await assigned(ctx, first)
    await fill(publisher, queue, 2, "old ")
    held = {packet.payload: packet for packet in [await first.expect_publish(), await first.expect_publish()]}
    (second,) = await _consumers(ctx, queue, "b")
    news = await assigned(ctx, first)
    ctx.must(news["partitions"] == [0] and news["revoked"] == [1], f"a: expected 1 to be revoked; seen {news}")
    waiting = (await assigned(ctx, second))["partitions"]
    ctx.must(waiting == [], f"b: expected no partition before it is handed over; seen {waiting}")
    await fill(publisher, queue, 2, "new ")
    ctx.must(await payloads(first, at_least=1) == ["new 0"], "a: expected the new message of partition 0 and no other")
    ctx.must(await payloads(second) == [], "b: expected nothing before partition 1 is handed over")
    await settle(ctx, first, queue, "ack", held[b"old 1"])
    ctx.must(await payloads(second, at_least=1) == ["new 1"], "b: expected the new message of partition 1")


@case(
    "queue/assignment/rebalance-timeout",
    clauses=("Q-ASSIGN-08",),
    requires=("queues", "clock"),
    settings={
        "queues": {
            "defaults": {
                "partitions": 2,
                "delivery_timeout_s": 600,
                "group": {"protocol": "cooperative", "rebalance_timeout_s": 20},
            }
        }
    },
    mutant="queue-rebalance-waits-for-ever",
    near_miss="queue-generations-in-twos",
)
async def timeout(ctx: CaseContext) -> None:
    """What is not settled when the rebalance timeout has passed goes to the new consumer.

    A consumer holds the message of a partition that moves, and says nothing. Before 20 s have passed nobody gets it;
    then the second consumer does, with delivery-count 2, and the first one's $ack is refused.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    base = ctx.client_id()
    first = await consume(ctx, queue, name="a", client_id=f"a{base}")
    await fill(publisher, queue, 2)
    held = {packet.payload: packet for packet in [await first.expect_publish(), await first.expect_publish()]}
    due = ctx.due_in(20)
    second = await consume(ctx, queue, name="b", client_id=f"b{base}")
    await ctx.advance(19)
    await second.expect_nothing(before=due)
    await ctx.advance(2)
    again = await second.expect_publish(payload=b"1")
    ctx.must(count_of(ctx, again) == 2, f"b: expected delivery-count 2; seen {count_of(ctx, again)}")
    await refused_settlement(ctx, first, queue, "ack", held[b"1"])
    await settle(ctx, first, queue, "ack", held[b"0"])


@case(
    "queue/assignment/eager-hand-over",
    clauses=("Q-ASSIGN-09",),
    requires=("queues",),
    settings=partitions(2, protocol="eager"),
    mutant="queue-eager-takes-back",
    near_miss="queue-generations-in-twos",
)
async def eager(ctx: CaseContext) -> None:
    """Eager: the new consumer gets new messages at once, and the old one settles what it holds.

    A consumer holds a message of each of two partitions when a second one joins, which gets the next message of its
    partition, and not the one in flight. The first one's acknowledgements are accepted.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    base = ctx.client_id()
    first = await consume(ctx, queue, name="a", client_id=f"a{base}")
    await fill(publisher, queue, 2, "old ")
    held = [await first.expect_publish(), await first.expect_publish()]
    second = await consume(ctx, queue, name="b", client_id=f"b{base}")
    await fill(publisher, queue, 2, "new ")
    found = await payloads(second, at_least=1)
    ctx.must(found == ["new 1"], f"b: expected the new message of partition 1; seen {found}")
    ctx.must(await payloads(first, at_least=1) == ["new 0"], "a: expected the new message of partition 0")
    for delivery in held:
        await settle(ctx, first, queue, "ack", delivery)


@case(
    "queue/assignment/bursts",
    clauses=("Q-ASSIGN-10", "Q-ASSIGN-11"),
    requires=("queues",),
    settings=partitions(6, protocol="cooperative"),
    mutant="queue-rebalance-dropped-while-moving",
    near_miss="queue-generations-in-twos",
)
async def bursts(ctx: CaseContext) -> None:
    """Joins and leaves during a rebalance end in the assignment of those that are left (P4).

    A consumer holds messages of six partitions, so that everything that moves waits. Meanwhile a second and a third
    consumer join and the second leaves again. When the first has settled what it held, it and the third have three
    partitions each. When the first leaves, the third has all six and gets what comes.
    """
    queue = new_queue(ctx)
    publisher = await ctx.connect(version=5, name="publisher")
    (first,) = await _consumers(ctx, queue, "a")
    await assigned(ctx, first)
    await fill(publisher, queue, 6)
    held = [await first.expect_publish() for _ in range(6)]
    (second,) = await _consumers(ctx, queue, "b")
    (third,) = await _consumers(ctx, queue, "c")
    await second.disconnect()
    for delivery in held:
        await settle(ctx, first, queue, "ack", delivery)
    seen = await _partitions(ctx, [first, third])
    ctx.must(seen == [[0, 1, 2], [3, 4, 5]], f"expected [0, 1, 2] and [3, 4, 5]; seen {seen}")
    await publish_with(publisher, queue, b"unsettled", partition="0")
    await first.expect_publish(payload=b"unsettled")
    await first.disconnect()
    await fill(publisher, queue, 6)
    found = sorted(await payloads(third, at_least=7))
    ctx.must(found == ["0", "1", "2", "3", "4", "5", "unsettled"], f"c: expected all that is there; seen {found}")
