"""GoQueue's producers and transactions: numbered messages, and messages that show together or not at all."""

from __future__ import annotations

from typing import Any

from assay.conformance.http.client import Answer
from assay.conformance.http.context import TOPICS, HttpContext, http_case, payloads


class _Producer:
    """One that has begun."""

    def __init__(self, ctx: HttpContext, name: str, answer: Answer) -> None:
        self._ctx, self.name = ctx, name
        self.id: int = answer.at("producer_id", kind=int)
        self.epoch: int = answer.at("epoch", kind=int)

    async def ask(self, what: str, **more: Any) -> Answer:
        """A request about its transaction."""
        said = {"producer_id": self.id, "epoch": self.epoch, "transactional_id": self.name, **more}
        return await self._ctx.me.post(f"/transactions/{what}", said)

    async def done(self, what: str, **more: Any) -> Answer:
        """Likewise, which must be answered with 200."""
        answer = await self.ask(what, **more)
        self._ctx.status(answer, 200, 201)
        return answer

    async def publish(self, topic: str, value: str, **more: Any) -> Answer:
        """A message of its own."""
        said = {"producer_id": self.id, "epoch": self.epoch, "topic": topic, "value": value, **more}
        return await self._ctx.me.post("/transactions/publish", said)


async def _begun(ctx: HttpContext, name: str = "") -> _Producer:
    answer = await ctx.me.post("/producers/init", {"transactional_id": name})
    ctx.status(answer, 200, 201)
    return _Producer(ctx, name, answer)


async def _polled(ctx: HttpContext, topic: str) -> list[Any]:
    """What a group of its own gets of a topic now."""
    group = ctx.name("g")
    member = (await ctx.join(group, topic)).at("member_id")
    found = (await ctx.poll(group, member)).at("messages", kind=dict)
    return sorted(value for part in found.values() for value in payloads(part))


@http_case(
    "transactions/a-second-producer-fences-the-first",
    TOPICS,
    clauses=("H-TXN-1", "H-TXN-5"),
    mutant="http-fenced-producers-go-on",
    kills=("http-unknown-producers-are-500",),
)
async def fencing(ctx: HttpContext) -> None:
    """A second producer of a name has the same id and a higher epoch; the first is refused with 409 from then on.

    Producers that there are not are refused with 404.
    """
    name, topic = ctx.name("p"), await ctx.topic_named()
    first = await _begun(ctx, name)
    heartbeat = {"transactional_id": name, "epoch": first.epoch}
    ctx.status(await ctx.me.post(f"/producers/{first.id}/heartbeat", heartbeat), 200)
    second = await _begun(ctx, name)
    ctx.must(
        second.id == first.id and second.epoch > first.epoch,
        f"expected a higher epoch of {first.id}; seen {vars(second)}",
    )
    ctx.refused_as_goqueue(await ctx.me.post(f"/producers/{first.id}/heartbeat", heartbeat), 409)
    ctx.refused_as_goqueue(await first.ask("begin"), 409)
    ctx.refused_as_goqueue(await first.publish(topic, "a", sequence=0), 409)
    nobody = {"transactional_id": "", "epoch": 0}
    ctx.refused_as_goqueue(await ctx.me.post("/producers/987654321/heartbeat", nobody), 404)
    ctx.refused_as_goqueue(await ctx.me.post("/transactions/begin", {"producer_id": 987654321, "epoch": 0}), 404)
    ctx.same("what is there", await _polled(ctx, topic), [])


@http_case(
    "transactions/a-number-is-taken-once",
    TOPICS,
    clauses=("H-TXN-2", "H-TXN-8"),
    mutant="http-sequences-dropped",
    kills=("http-duplicates-untold",),
)
async def sequences(ctx: HttpContext) -> None:
    """A message that is sent again under its number is taken once, and told as a duplicate with its place.

    A number that is ahead is refused with 409.
    """
    topic, producer = await ctx.topic_named(), await _begun(ctx)
    places = []
    for number in (0, 1, 1, 0):
        answer = await producer.publish(topic, f"m{number}", partition=0, sequence=number)
        ctx.status(answer, 200, 201)
        places.append((answer.at("partition"), answer.at("offset"), answer.at("duplicate")))
    ctx.same("partition, offset, duplicate", places, [(0, 0, False), (0, 1, False), (0, 1, True), (0, 0, True)])
    ctx.refused_as_goqueue(await producer.publish(topic, "gap", partition=0, sequence=7), 409)
    read = await ctx.me.get(f"/topics/{topic}/partitions/0/messages")
    ctx.same("what is there", payloads(read.at("messages")), ["m0", "m1"])


@http_case(
    "transactions/shown-together-when-committed",
    TOPICS,
    clauses=("H-TXN-3", "H-TXN-6", "H-TXN-7"),
    mutant="http-transactions-show-at-once",
    kills=("http-transaction-list-empty", "http-transaction-state-is-500"),
)
async def commit(ctx: HttpContext) -> None:
    """Messages of a transaction over two topics show when it is committed, all of them, and not before.

    It is listed while it is open; a second one is refused meanwhile, and so is a second commit.
    """
    first, second, producer = await ctx.topic_named(), await ctx.topic_named(), await _begun(ctx, ctx.name("p"))
    transaction = (await producer.done("begin")).at("transaction_id", kind=str)
    ctx.refused_as_goqueue(await producer.ask("begin"), 409)
    await producer.done("add-partition", topic=first, partition=0)
    for number, topic in enumerate((first, second)):
        ctx.status(await producer.publish(topic, f"m{number}", partition=0, sequence=0), 200, 201)
    listed = (await ctx.me.get("/transactions")).at("transactions", kind=list)
    mine = [each for each in listed if each["producer_id"] == producer.id]
    ctx.same("the open transactions of the producer", len(mine), 1)
    ctx.must((await ctx.me.get("/transactions/stats")).at("open", kind=int) >= 1, "expected at least one that is open")
    ctx.same("what is there before", [await _polled(ctx, first), await _polled(ctx, second)], [[], []])
    done = await producer.done("commit")
    ctx.same("the transaction", (done.at("transaction_id"), done.at("state")), (transaction, "committed"))
    ctx.same("what is there after", [await _polled(ctx, first), await _polled(ctx, second)], [["m0"], ["m1"]])
    ctx.refused_as_goqueue(await producer.ask("commit"), 409)


@http_case(
    "transactions/nothing-of-an-aborted-one", TOPICS, clauses=("H-TXN-4", "H-TXN-6"), mutant="http-abort-commits"
)
async def abort(ctx: HttpContext) -> None:
    """Nothing of a transaction that is aborted shows, also beside messages that came before and after it.

    Its producer begins another, which is committed.
    """
    topic, producer = await ctx.topic_named(), await _begun(ctx, ctx.name("p"))
    await ctx.publish_to(topic, "before")
    await producer.done("begin")
    ctx.status(await producer.publish(topic, "aborted", partition=0), 200, 201)
    ctx.same("the state", (await producer.done("abort")).at("state"), "aborted")
    ctx.refused_as_goqueue(await producer.ask("abort"), 409)
    await producer.done("begin")
    ctx.status(await producer.publish(topic, "committed", partition=0), 200, 201)
    await producer.done("commit")
    await ctx.publish_to(topic, "after")
    ctx.same("what is there", await _polled(ctx, topic), ["after", "before", "committed"])


@http_case(
    "transactions/unknown-and-timed-out",
    TOPICS,
    clauses=("H-TXN-5", "H-TXN-9", "H-TXN-7"),
    requires=("clock",),
    mutant="http-transactions-never-time-out",
    kills=("http-unknown-transactions-are-500", "http-any-transaction-is-ended", "http-states-are-uncounted"),
)
async def ends(ctx: HttpContext) -> None:
    """A transaction that there is not is 404, also to a producer that has another; one of too long a life is aborted.

    Its time is that of the producer, or its own; open ones are counted by state. A name of another is 404.
    """
    topic, producer = await ctx.topic_named(), await _begun(ctx, ctx.name("p"))
    name = (await producer.done("begin")).at("transaction_id", kind=str)
    for what, more in (("commit", {}), ("abort", {}), ("add-partition", {"topic": topic, "partition": 0})):
        ctx.refused_as_goqueue(await producer.ask(what, transaction_id=f"{name}-no", **more), 404)
    heartbeat = {"transactional_id": ctx.name("other"), "epoch": producer.epoch}
    ctx.refused_as_goqueue(await ctx.me.post(f"/producers/{producer.id}/heartbeat", heartbeat), 404)
    stats = await ctx.me.get("/transactions/stats")
    ctx.must(stats.at("open", kind=int) == sum(stats.at("by_state", kind=dict).values()), f"seen {stats}")
    await producer.done("commit", transaction_id=name)
    for init_ms, begin_ms in ((0, 2_000), (2_000, 0)):
        asked = {"transactional_id": producer.name, "transaction_timeout_ms": init_ms}
        short = _Producer(ctx, producer.name, await ctx.me.post("/producers/init", asked))
        await short.done("begin", **({"transaction_timeout_ms": begin_ms} if begin_ms else {}))
        ctx.status(await short.publish(topic, "late", partition=0), 200, 201)
        await ctx.advance(5)
        ctx.refused_as_goqueue(await short.ask("commit"), 409, 404)
    await ctx.publish_to(topic, "plain")
    ctx.same("what is there", await _polled(ctx, topic), ["plain"])


@http_case(
    "transactions/restart-keeps-what-was-committed",
    TOPICS,
    clauses=("H-DUR-1", "H-TXN-3"),
    requires=("restart",),
    mutant="http-commits-are-not-done",
    together=True,
    limit_s=10.0,
)
async def restart(ctx: HttpContext) -> None:
    """A transaction whose commit was answered shows after a kill, and one that was open does not.

    Both were published to one topic.
    """
    topic = await ctx.topic_named()
    committed, open_one = await _begun(ctx, ctx.name("p")), await _begun(ctx, ctx.name("p"))
    for producer in (committed, open_one):
        await producer.done("begin")
    ctx.status(await committed.publish(topic, "committed", partition=0), 200, 201)
    ctx.status(await open_one.publish(topic, "open", partition=0), 200, 201)
    await committed.done("commit")
    await ctx.restart()
    ctx.same("what is there", await _polled(ctx, topic), ["committed"])
