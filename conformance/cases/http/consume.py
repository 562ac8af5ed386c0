"""Messages consumed by the queue routes: long polls, and every way to settle what they brought."""

from __future__ import annotations

import asyncio

from assay.conformance.http.context import API, QUEUES, HttpContext, http_case, payloads

_WAIT_S = 0.4
_END_S = 8.0
"""So long a busy machine may take to end what its client has ended."""


@http_case(
    "consume/once-in-a-group-and-in-every-group",
    QUEUES,
    clauses=("H-CONS-1", "H-CONS-2", "H-CONS-5"),
    mutant="http-groups-are-one",
    kills=("http-consume-gives-all",),
)
async def groups(ctx: HttpContext) -> None:
    """A message is given once within a group, and to every group, never more at a time than was asked for.

    Two consumers of one group and one of another take six messages.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, *"abcdef")
    first = await ctx.take(queue, 2, consumer="one")
    ctx.must(len(first) <= 2, f"expected at most 2 messages; seen {len(first)}")
    rest = await ctx.take_all(queue, 6 - len(first), consumer="one")
    seen = payloads(first + rest) + payloads(await ctx.take(queue, 10, consumer="two"))
    ctx.same("what the group got", sorted(seen), list("abcdef"))
    for each in first + rest:
        ctx.must(bool(each.get("receipt")), f"expected a receipt; seen {each}")
        ctx.same("its deliveries", each.get("delivery_count"), 1)
    with ctx.own_point():
        other = await ctx.take_all(queue, 6, group="other")
    ctx.same("what the other group got", payloads(other), list("abcdef"))


@http_case(
    "consume/a-long-poll-ends-with-the-message",
    QUEUES,
    clauses=("H-CONS-3",),
    mutant="http-long-polls-return-at-once",
    limit_s=8.0,
)
async def long_poll(ctx: HttpContext) -> None:
    """A request that waits is answered as soon as a message is published.

    It is sent before there is any, and waits for up to 50 s, or less where the broker refuses that.
    """
    queue = await ctx.queue()
    async with ctx.long_poll(queue) as poll:
        await ctx.fill(queue, "late")
        answer = await poll.answer()
    ctx.status(answer, 200)
    ctx.same("the messages", payloads(answer.at("messages")), ["late"])


@http_case("consume/a-vain-poll-takes-its-time", QUEUES, clauses=("H-CONS-4",), mutant="http-long-polls-return-at-once")
async def vain(ctx: HttpContext) -> None:
    """A request that waits in vain is answered with no messages, and not before its time is over.

    One that does not wait is answered at once; one that would wait for longer than is allowed is refused.
    """
    queue = await ctx.queue()
    if not ctx.wait_s():
        ctx.unsupported("the broker lets no request wait")
    began = asyncio.get_running_loop().time()
    ctx.same("the messages", await ctx.take(queue, wait_s=_WAIT_S), [])
    took_s = asyncio.get_running_loop().time() - began
    ctx.must(took_s >= 0.95 * _WAIT_S, f"expected an answer after {_WAIT_S} s; seen one after {took_s:.3f} s")
    await ctx.none_left(queue)
    for asked in ({"wait_s": 1e9}, {"wait_s": -1}, {"max_messages": 0}, {"max_messages": 10**9}, {"group": 1}):
        answer = await ctx.me.post(f"{API}/queues/{queue}/consume", {"group": "g", **asked})
        ctx.refused(answer, 400)


@http_case(
    "consume/who-leaves-gives-back",
    QUEUES,
    clauses=("H-CONS-6",),
    mutant="http-leaving-keeps",
    kills=("http-leave-is-404",),
)
async def leave(ctx: HttpContext) -> None:
    """A consumer that leaves gives back what it holds at once; the answer says whether it was there.

    Another one of the group gets it.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    await ctx.take_all(queue, 1, consumer="one")
    await ctx.none_left(queue, consumer="two")
    path = f"{API}/queues/{queue}/leave"
    left = await ctx.me.post(path, {"group": "g", "consumer": "one"})
    ctx.status(left, 200)
    ctx.same("whether it was there", left.at("left"), True)
    ctx.same("the message", payloads(await ctx.take_all(queue, 1, consumer="two")), ["a"])
    ctx.same("whether it was there", (await ctx.me.post(path, {"group": "g", "consumer": "one"})).at("left"), False)


@http_case(
    "consume/who-stays-away-is-out",
    QUEUES,
    clauses=("H-CONS-7",),
    requires=("clock",),
    mutant="http-silent-consumers-stay",
)
async def session(ctx: HttpContext) -> None:
    """A consumer that has not come back within the session timeout is out: others get what it held.

    The delivery timeout is far longer.
    """
    queue = await ctx.queue(group={"session_timeout_s": 30}, delivery_timeout_s=3_000)
    await ctx.fill(queue, "a")
    await ctx.take_all(queue, 1, consumer="one")
    await ctx.advance(20)
    await ctx.none_left(queue, consumer="two")
    await ctx.advance(40)
    ctx.same("the message", payloads(await ctx.take_all(queue, 1, consumer="two")), ["a"])


@http_case(
    "consume/a-client-that-went-loses-nothing",
    QUEUES,
    clauses=("H-CONS-8",),
    mutant="http-gone-clients-keep",
    limit_s=20.0,
)
async def gone(ctx: HttpContext) -> None:
    """What comes once the client of a request that waits has gone is given to others, and was not lost with it.

    The client ends its side of the connection in the middle of a long poll, and a message is published when the broker
    has ended its own: it has seen the end then. One that goes on for a client which only listens says nothing here.
    """
    queue = await ctx.queue(delivery_timeout_s=3_000)
    waiter = ctx.client("goes")
    path = f"{API}/queues/{queue}/consume"
    connection = await waiter.send("POST", path, {"group": "g", "wait_s": ctx.wait_s(), "consumer": "one"})
    await ctx.consumer_is_there(queue, "g")
    if not connection.end():
        ctx.unsupported("over TLS no client can show that it has gone, and see that this was seen")
    try:
        async with asyncio.timeout(ctx.remaining_s(_END_S)):
            while await connection.answers.get() is not None:
                pass
    except TimeoutError:
        ctx.unsupported(f"a request is served on for {_END_S:g} s when its client has ended its side of the connection")
    await ctx.fill(queue, "a")
    ctx.same("the message", payloads(await ctx.take_all(queue, 1, consumer="two")), ["a"])


@http_case("consume/a-new-group-begins-where-it-says", QUEUES, clauses=("H-CONS-9",), mutant="http-cursors-dropped")
async def cursor(ctx: HttpContext) -> None:
    """A new group begins where its first consumer says: at an offset, at the latest, at the earliest.

    What is no place is refused.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b", "c")
    ctx.same("from 1 on", payloads(await ctx.take_all(queue, 2, group="offset", cursor="1")), ["b", "c"])
    ctx.same("from the end on", await ctx.take(queue, 5, group="latest", cursor="latest"), [])
    ctx.same("all", payloads(await ctx.take_all(queue, 3, group="earliest", cursor="earliest")), ["a", "b", "c"])
    await ctx.fill(queue, "d")
    ctx.same("what came since", payloads(await ctx.take_all(queue, 1, group="latest")), ["d"])
    answer = await ctx.me.post(f"{API}/queues/{queue}/consume", {"group": "x", "cursor": "middle"})
    ctx.refused(answer, 400)


@http_case("consume/no-more-than-the-prefetch", QUEUES, clauses=("H-CONS-10",), mutant="http-prefetch-dropped")
async def prefetch(ctx: HttpContext) -> None:
    """A consumer holds no more unsettled messages than its prefetch, however many it asks for.

    Once one is settled it gets another.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, *"abcd")
    held = await ctx.take_all(queue, 2, prefetch=2)
    ctx.same("what more it gets", await ctx.take(queue, 10), [])
    await ctx.done(queue, "accept", held[0])
    ctx.same("the next", payloads(await ctx.take_all(queue, 1)), ["c"])
    ctx.same("what more it gets", await ctx.take(queue, 10), [])


@http_case("consume/only-what-the-pattern-matches", QUEUES, clauses=("H-CONS-11",), mutant="http-patterns-dropped")
async def pattern(ctx: HttpContext) -> None:
    """A consumer with a pattern gets the messages whose routing keys match it, and no others.

    A filter of MQTT, whose last level stands for any number of levels.
    """
    queue = await ctx.queue()
    keys = ("eu/de", "us/ny", "eu", "eu/fr/paris")
    await ctx.fill(queue, *({"payload": key, "routing_key": key} for key in keys))
    found = await ctx.take_all(queue, 3, pattern="eu/#")
    ctx.same("the messages", payloads(found), ["eu/de", "eu", "eu/fr/paris"])
    ctx.same("what more it gets", await ctx.take(queue, 10, pattern="eu/#"), [])


@http_case(
    "consume/automatic-needs-no-settlement",
    QUEUES,
    clauses=("H-CONS-12",),
    requires=("clock",),
    mutant="http-auto-ack-dropped",
)
async def automatic(ctx: HttpContext) -> None:
    """What an automatic consumer got is settled by its next request, or soon: it comes to nobody again.

    The clock is moved behind the delivery timeout and the session.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b")
    ctx.same("the messages", payloads(await ctx.take_all(queue, 2, auto_ack=True)), ["a", "b"])
    await ctx.take(queue, auto_ack=True)
    await ctx.advance(15)
    await ctx.advance(600)
    await ctx.advance(600)
    await ctx.none_left(queue, consumer="other")


@http_case("consume/a-second-wait-is-409", QUEUES, clauses=("H-CONS-13",), mutant="http-in-use-is-500", limit_s=8.0)
async def twice(ctx: HttpContext) -> None:
    """A consumer that waits already is refused a second request with 409, and goes on waiting.

    The message that comes then is given to the first.
    """
    queue = await ctx.queue()
    path = f"{API}/queues/{queue}/consume"
    async with ctx.long_poll(queue) as poll:
        second = await poll.beside(lambda: ctx.me.post(path, {"group": "g", "wait_s": ctx.wait_s(1)}))
        ctx.refused(second, 409, "in_use")
        await ctx.fill(queue, "a")
        ctx.same("the messages", payloads((await poll.answer()).at("messages")), ["a"])


# Settlements


@http_case(
    "consume/accepted-is-gone",
    QUEUES,
    clauses=("H-SETTLE-1",),
    requires=("clock",),
    mutant="http-accept-settles-nothing",
)
async def accept(ctx: HttpContext) -> None:
    """What is accepted does not come again, not even behind the delivery timeout; the answer says how many.

    The other group that there is, which settles nothing, is not concerned.
    """
    queue = await ctx.queue(delivery_timeout_s=20)
    await ctx.fill(queue, "a", "b")
    await ctx.take_all(queue, 2, group="other")
    found = await ctx.take_all(queue, 2)
    ctx.same("settled", (await ctx.settle(queue, "accept", *found)).at("settled"), 2)
    await ctx.advance(100)
    await ctx.advance(600)
    await ctx.none_left(queue)
    ctx.same("another group's", payloads(await ctx.take_all(queue, 2, group="other")), ["a", "b"])


@http_case(
    "consume/failed-comes-again-and-counts",
    QUEUES,
    clauses=("H-SETTLE-2",),
    requires=("clock",),
    mutant="http-fail-is-accept",
    kills=("http-delay-of-fail-dropped",),
)
async def fail(ctx: HttpContext) -> None:
    """What has failed comes again, counted as one delivery more, and no earlier than asked for.

    First at once, then in a minute.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    await ctx.done(queue, "fail", *await ctx.take_all(queue, 1))
    again = await ctx.take_all(queue, 1)
    ctx.same("its deliveries", again[0]["delivery_count"], 2)
    await ctx.done(queue, "fail", *again, delay_s=60)
    await ctx.none_left(queue)
    await ctx.advance(20)
    await ctx.none_left(queue)
    await ctx.advance(41)
    ctx.same("its deliveries", (await ctx.take_all(queue, 1))[0]["delivery_count"], 3)


@http_case("consume/released-comes-again-uncounted", QUEUES, clauses=("H-SETTLE-3",), mutant="http-release-is-fail")
async def release(ctx: HttpContext) -> None:
    """What is released comes again at once, and was not tried: its count is as before.

    Ten times in a row, where the third failure would make it a dead letter.
    """
    queue = await ctx.queue(retry={"max_retries": 2})
    await ctx.fill(queue, "a")
    for _ in range(10):
        found = await ctx.take_all(queue, 1)
        ctx.same("its deliveries", found[0]["delivery_count"], 1)
        await ctx.done(queue, "release", *found)


@http_case(
    "consume/released-together-come-again-as-they-were",
    QUEUES,
    clauses=("H-SETTLE-3",),
    mutant="http-release-of-several-is-fail",
    kills=("http-release-begins-anew",),
)
async def release_together(ctx: HttpContext) -> None:
    """What one request releases comes again as it came, key and headers too, counted as before.

    Two messages, of which one had failed before; each is released together with the other, three times.
    """
    queue = await ctx.queue()
    told = [{"payload": each, "key": each * 2, "headers": {"of": each}} for each in ("failed", "new")]
    await ctx.fill(queue, told[0])
    await ctx.done(queue, "fail", *await ctx.take_all(queue, 1))
    await ctx.fill(queue, told[1])
    for _ in range(4):
        found = {each["payload"]: each for each in await ctx.take_all(queue, 2)}
        ctx.same("the messages", sorted(found), ["failed", "new"])
        ctx.same("their deliveries", [found[each]["delivery_count"] for each in ("failed", "new")], [2, 1])
        for each in told:
            seen = found[each["payload"]]
            ctx.same("key and headers", (seen.get("key"), seen["headers"].get("of")), (each["key"], each["payload"]))
        await ctx.done(queue, "release", *found.values())


@http_case(
    "consume/rejected-is-a-dead-letter",
    QUEUES,
    clauses=("H-SETTLE-4", "H-SETTLE-5"),
    mutant="http-reject-is-accept",
    kills=("http-reasons-dropped",),
)
async def reject(ctx: HttpContext) -> None:
    """What is rejected, and what fails for the last time, is among the dead letters, and comes no more.

    The reason of a rejection goes with it, in a header.
    """
    queue = await ctx.queue(retry={"max_retries": 1})
    await ctx.fill(queue, "rejected", "failing")
    first, second = await ctx.take_all(queue, 2)
    await ctx.done(queue, "reject", first, reason="no such customer")
    await ctx.done(queue, "fail", second)
    await ctx.done(queue, "fail", *await ctx.take_all(queue, 1))
    await ctx.none_left(queue)
    ctx.leaves(f"{API}/queues/dlq%2F{queue}")
    letters = {each["payload"]: each["headers"] for each in await ctx.take_all(f"dlq/{queue}", 2)}
    ctx.same("the dead letters", sorted(letters), ["failing", "rejected"])
    reasons = list(letters["rejected"].values())
    ctx.must("no such customer" in reasons, f"expected the reason among the headers; seen {letters['rejected']}")


@http_case(
    "consume/an-extension-moves-the-timeout",
    QUEUES,
    clauses=("H-SETTLE-6",),
    requires=("clock",),
    mutant="http-extensions-dropped",
)
async def extend(ctx: HttpContext) -> None:
    """An extension moves the end of the delivery timeout, from now on; then the message comes again.

    Of two deliveries one is extended. The session lasts longer than both.
    """
    queue = await ctx.queue(delivery_timeout_s=30, group={"session_timeout_s": 3_000}, retry={"initial_backoff_s": 0.1})
    await ctx.fill(queue, "short", "long")
    found = await ctx.take_all(queue, 2)
    await ctx.done(queue, "extend", found[1], extend_s=200)
    await ctx.advance(31)
    await ctx.advance(5)
    ctx.same("what timed out", payloads(await ctx.take_all(queue, 1)), ["short"])
    await ctx.none_left(queue)
    await ctx.done(queue, "accept", found[1])


@http_case(
    "consume/twice-is-404-and-spares-the-others",
    QUEUES,
    clauses=("H-SETTLE-7",),
    mutant="http-settling-again-is-fine",
)
async def again(ctx: HttpContext) -> None:
    """What is settled already is refused with 404; others that are named with it are settled all the same.

    Then all of them are settled, and refused.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a", "b")
    first, second = await ctx.take_all(queue, 2)
    await ctx.done(queue, "accept", first)
    ctx.refused(await ctx.settle(queue, "accept", first), 404, "not_pending")
    ctx.refused(await ctx.settle(queue, "fail", first, second), 404, "not_pending")
    ctx.same("what failed", payloads(await ctx.take_all(queue, 1)), ["b"])


@http_case("consume/an-old-receipt-settles-nothing", QUEUES, clauses=("H-SETTLE-8",), mutant="http-old-receipts-settle")
async def stale(ctx: HttpContext) -> None:
    """The receipt of an earlier delivery settles nothing, since its holder has lost the message.

    The message failed and was delivered again.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    old = await ctx.take_all(queue, 1)
    await ctx.done(queue, "fail", *old)
    new = await ctx.take_all(queue, 1)
    ctx.refused(await ctx.settle(queue, "accept", *old), (404, 409))
    await ctx.done(queue, "release", *new)
    ctx.same("the message", payloads(await ctx.take_all(queue, 1)), ["a"])


@http_case(
    "consume/no-receipt-is-400",
    QUEUES,
    clauses=("H-SETTLE-9", "H-ERR-4"),
    mutant="http-bad-names-are-500",
    kills=("http-malformed-bodies-are-500",),
)
async def malformed(ctx: HttpContext) -> None:
    """What is no receipt, no outcome, or no number of seconds is refused with 400; a delivery stays as it is.

    A request without receipts, too.
    """
    queue = await ctx.queue()
    await ctx.fill(queue, "a")
    (held,) = await ctx.take_all(queue, 1)
    for receipt in ("", "x", ":::", held["receipt"] + "x", "☃"):
        answer = await ctx.settle(queue, "accept", {"receipt": receipt})
        ctx.refused(answer, (400, 404))
    ctx.refused(await ctx.settle(queue, "accept", {"receipt": "garbage"}), 400)
    ctx.refused(await ctx.settle(queue, "finish", held), 400)
    ctx.refused(await ctx.settle(queue, "fail", held, delay_s=-1), 400)
    ctx.refused(await ctx.settle(queue, "accept"), 400)
    await ctx.done(queue, "accept", held)
