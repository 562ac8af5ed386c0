"""What operators are told page by page, by name and by number: sessions, figures, groups, claims, what waits."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from assay.conformance.http.context import API, QUEUES, TOPICS, VIEWS, HttpContext, http_case, payloads
from assay.conformance.wire import Properties


async def _pages(ctx: HttpContext, path: str, name: str, *, most: int = 20) -> list[Any]:
    """All of a list, by the tokens of its pages; a last page may be empty."""
    found: list[Any] = []
    token = ""
    for _ in range(most):
        answer = await ctx.me.get(f"{path}&page_token={quote(token, safe='')}")
        ctx.status(answer, 200)
        found += answer.at(name, kind=list)
        token = answer.at("next_page_token", kind=str)
        if not token:
            break
    ctx.must(not token, f"expected {path} to end within {most} pages; seen {found}")
    return found


@http_case(
    "administration/sessions-page-by-page",
    QUEUES,
    clauses=("H-ADMIN-9",),
    requires=("mqtt5", "persistent_sessions"),
    mutant="http-sessions-of-any-state",
    kills=("http-session-pages-repeat", "http-subscribers-uncounted"),
)
async def sessions(ctx: HttpContext) -> None:
    """Sessions are told by state, and all lists page by page: each is there once; filters tell how many have them.

    Three clients, one of which has gone, with two filters between them, at different qualities of service.
    """
    kept = Properties(session_expiry_interval=600)
    prefix = ctx.client_id()
    one, two = ctx.topic("x"), ctx.topic("y")
    wanted: dict[str, int] = {}
    for number, qos in enumerate((0, 2, 1)):
        client = await ctx.connect(client_id=f"{prefix}{number}", properties=kept)
        await client.subscribe(one, qos=qos)
        wanted[client.client_id] = qos
    await client.subscribe(two, qos=1)
    await client.disconnect()
    names = list(wanted)
    base = f"{API}/sessions?prefix={prefix}"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ctx.remaining_s()
    while loop.time() < deadline:  # it may not have been seen to go yet
        if (await ctx.me.get(f"{base}&state=disconnected")).at("sessions", kind=list):
            break
    for more, expected in (("", names), ("&state=connected", names[:2]), ("&state=disconnected", names[2:])):
        for limit in (1, 2, 100):
            listed = await _pages(ctx, f"{base}{more}&limit={limit}", "sessions")
            ctx.same(f"the sessions with {more}", [each["client_id"] for each in listed], expected)
    root = one[: -len("x")]
    listed = await _pages(ctx, f"{API}/subscriptions?prefix={root}&limit=1", "subscriptions")
    seen = [(each["filter"], each["subscriber_count"], each["max_qos"]) for each in listed]
    ctx.same("filters, their subscribers and qualities", seen, [(one, 3, 2), (two, 1, 1)])
    path = f"{API}/subscriptions/{one.replace('/', '%2F')}/clients?limit=2"
    clients = [(each["client_id"], each["qos"]) for each in await _pages(ctx, path, "clients")]
    ctx.same("the clients of a filter", clients, list(wanted.items()))
    for path in ("sessions?limit=0", "subscriptions?limit=x", f"subscriptions/{root}%23/clients?limit=-1"):
        ctx.status(await ctx.me.get(f"{API}/{path}"), 400, 404)


@http_case(
    "administration/figures-of-many-queues",
    QUEUES,
    VIEWS,
    clauses=("H-ADMIN-14",),
    mutant="http-many-figures-are-of-the-first-page",
    kills=("http-many-figures-are-zero", "http-dead-letters-are-untold"),
)
async def many_queues(ctx: HttpContext) -> None:
    """Figures of all queues with a prefix are told page by page, each once, as those of one alone; others' are not.

    Two queues, one with dead letters, which are told where they are asked for.
    """
    first, second = await ctx.queue(), await ctx.queue()
    ctx.leaves(f"{API}/queues/dlq%2F{second}")
    await ctx.fill(first, "a", "b")
    await ctx.fill(second, "c")
    await ctx.done(second, "reject", *await ctx.take_all(second, 1), reason="why")
    prefix = first[: first.rindex("-")]
    found = await _pages(ctx, f"{API}/stats/queues?prefix={prefix}&limit=1", "queues")
    ctx.same("the queues", [each["queue"] for each in found], sorted((first, second)))
    for each in found:
        alone = (await ctx.me.get(f"{API}/queues/{each['queue']}/stats")).json
        for name in ("depth", "enqueued", "in_flight", "dead_letters"):
            ctx.same(f"{name} of {each['queue']}", each[name], alone[name])
    ctx.same("what was taken", [each["enqueued"] for each in found], [2, 1])
    letters = await ctx.me.get(f"{API}/stats/queues?dead_letters=true&limit=1000")
    names = {each["queue"] for each in letters.at("queues", kind=list)}
    ctx.must(f"$dlq/{second}" in names, f"expected the dead letters of {second}; seen {sorted(names)}")
    for query in ("limit=0", "limit=1001", "limit=many"):
        ctx.refused(await ctx.me.get(f"{API}/stats/queues?{query}"), 400)


@http_case(
    "administration/one-partition-is-reset",
    QUEUES,
    clauses=("H-ADMIN-6",),
    mutant="http-resets-all-partitions",
    kills=("http-reset-does-nothing",),
)
async def one_partition(ctx: HttpContext) -> None:
    """A reset that names a partition sets that one back, and leaves what was settled of the others.

    Two partitions, both of which were settled; another group keeps what it has not.
    """
    queue = await ctx.queue(partitions=2)
    await ctx.fill(queue, *({"payload": str(number), "partition": number} for number in (0, 1)))
    await ctx.take_all(queue, 2, group="keeps")
    ctx.status(await ctx.settle(queue, "accept", *await ctx.take_all(queue, 2)), 200)
    reset = await ctx.me.post(f"{API}/queues/{queue}/groups/g/reset", {"to": "earliest", "partition": 1})
    ctx.same("the cursor", reset.at("cursors", "1"), 0)
    ctx.same("what comes again", payloads(await ctx.take_all(queue, 1)), ["1"])
    await ctx.none_left(queue)


@http_case(
    "administration/claims-by-number-and-name",
    QUEUES,
    clauses=("H-ADMIN-7", "H-ADMIN-3"),
    mutant="http-claims-are-unlimited",
    kills=("http-consumers-are-one",),
)
async def claims(ctx: HttpContext) -> None:
    """A claim takes no more than it asks for, for the consumer that it names; one that is named by place is taken too.

    Three of one consumer's are claimed by another: two, then the third by its place, which it gives back as it leaves.
    """
    queue = await ctx.queue(delivery_timeout_s=3_000, group={"session_timeout_s": 3_000})
    await ctx.fill(queue, "a", "b", "c")
    held = await ctx.take_all(queue, 3, consumer="one")
    path, asked = f"{API}/queues/{queue}/claim", {"group": "g", "consumer": "two"}
    claimed = await ctx.me.post(path, {**asked, "limit": 2})
    ctx.same("what was claimed", payloads(claimed.at("messages")), ["a", "b"])

    async def shares() -> list[int]:
        told = (await ctx.me.get(f"{API}/queues/{queue}/consumers")).at("consumers", kind=list)
        return sorted(each["in_flight"] for each in told)

    ctx.same("what each of them holds", await shares(), [1, 2])
    third = await ctx.me.post(path, {**asked, "partition": 0, "offset": held[2]["offset"]})
    ctx.same("what was claimed", payloads(third.at("messages")), ["c"])
    ctx.same("what each of them holds", await shares(), [0, 3])
    await ctx.done(queue, "accept", *claimed.at("messages"))
    left = await ctx.me.post(f"{API}/queues/{queue}/leave", {"group": "g", "consumer": "two"})
    ctx.same("whether it is there by its name", left.at("left"), True)
    ctx.same("what it gave back", payloads(await ctx.take_all(queue, 1, consumer="one")), ["c"])


@http_case(
    "administration/what-waits-page-by-page",
    QUEUES,
    clauses=("H-DELAY-2",),
    mutant="http-delayed-pages-repeat",
)
async def delayed(ctx: HttpContext) -> None:
    """Delayed messages are listed up to a limit, and from behind a delay id on.

    Three of them, by ones and twos.
    """
    queue = await ctx.queue()
    told = await ctx.fill(queue, *({"payload": each, "delay": "1h"} for each in "abc"))
    ids = [each["delay_id"] for each in told.at("results", kind=list)]
    base = f"{API}/queues/{queue}/delayed"
    for query, wanted in (("limit=2", ids[:2]), (f"after={ids[0]}", ids[1:]), (f"after={ids[0]}&limit=1", ids[1:2])):
        page = (await ctx.me.get(f"{base}?{query}")).at("messages", kind=list)
        ctx.same(f"those of {query}", [each["delay_id"] for each in page], wanted)
    ctx.refused(await ctx.me.get(f"{base}?limit=0"), 400)


@http_case(
    "groups/over-two-topics-as-one",
    TOPICS,
    QUEUES,
    clauses=("H-GROUP-7", "H-GROUP-8", "H-GROUP-3"),
    mutant="http-groups-lag-by-one-topic",
    kills=("http-members-count-by-topic", "http-polls-of-any-generation", "http-groups-stay-behind"),
)
async def two_topics(ctx: HttpContext) -> None:
    """A group over two topics is one: its lag is that of both, a member counts once, a poll brings no more than asked.

    A poll or commit of an old generation is refused with 409; without members it is empty, and deleted from both.
    """
    first, second, group = await ctx.topic_named(), await ctx.topic_named(), ctx.name("g")
    joined = await ctx.join(group, first, second)
    member, generation = joined.at("member_id", kind=str), joined.at("generation", kind=int)
    for topic, count in ((first, 3), (second, 4)):
        await ctx.publish_to(topic, *("x" for _ in range(count)))
    path = f"/groups/{group}"
    shown = await ctx.me.get(path)
    ctx.same("its lag, its topics", (shown.at("lag"), shown.at("topics")), (7, sorted((first, second))))
    listed = next(each for each in (await ctx.me.get("/groups")).at("groups", kind=list) if each["id"] == group)
    ctx.same("members and topics", (listed["members"], listed["topics"]), (1, sorted((first, second))))
    count = 0
    while count < 7:
        told = await ctx.poll(group, member, "5s", 3)
        topics = told.at("topics", kind=dict).values()
        some = sum(len(found) for parts in topics for found in parts.values())
        ctx.must(1 <= some <= 3, f"expected 1 to 3 messages; seen {some} of {told}")
        count += some
    ctx.same("how many came", count, 7)
    other = (await ctx.join(group, first, second, client="other")).at("member_id")
    old = f"member_id={member}&generation={generation}&timeout=0s"
    ctx.refused_as_goqueue(await ctx.me.get(f"{path}/poll?{old}"), 409)
    commit = {"member_id": member, "generation": generation, "offsets": {first: {"0": 1}}}
    ctx.refused_as_goqueue(await ctx.me.post(f"{path}/offsets", commit), 409)
    for each in (member, other):
        ctx.status(await ctx.me.post(f"{path}/leave", {"member_id": each}), 200)
    shown = await ctx.me.get(path)
    ctx.same("its state and members", (shown.at("state"), shown.at("members")), ("Empty", []))
    ctx.status(await ctx.me.delete(path), 200)
    for topic in (first, second):
        left = (await ctx.me.get(f"{API}/queues/{topic}/groups")).at("groups", kind=list)
        ctx.must(
            group not in {each["group"] for each in left}, f"expected {group} to be gone from {topic}; seen {left}"
        )
