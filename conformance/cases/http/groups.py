"""GoQueue's consumer groups: members that join, poll, send heartbeats, commit and leave; and settlements by handle."""

from __future__ import annotations

import asyncio
from typing import Any

from assay.conformance.http.client import Answer
from assay.conformance.http.context import TOPICS, HttpContext, http_case, payloads


def _parts(answer: Answer) -> list[int]:
    """Partitions of the first topic that a member was told."""
    return sorted(answer.at("partitions", kind=list))


async def _partitions_of(ctx: HttpContext, group: str, member: str, topic: str) -> list[int]:
    answer = await ctx.me.get(f"/groups/{group}")
    ctx.status(answer, 200)
    for each in answer.at("members", kind=list):
        if each["id"] == member:
            return sorted(each["assigned_partitions"].get(topic, []))
    return []


@http_case(
    "groups/joining-tells-the-assignment",
    TOPICS,
    clauses=("H-GROUP-1", "H-GROUP-8"),
    mutant="http-join-without-partitions",
    kills=("http-group-list-empty", "http-groups-with-members-go"),
)
async def join(ctx: HttpContext) -> None:
    """Who joins is told its member id, generation, partitions, the leader and the members; the group shows it.

    It is alone, and has all three partitions. The group cannot be deleted before it has left.
    """
    topic, group = await ctx.topic_named(3), ctx.name("g")
    answer = await ctx.join(group, topic)
    member = answer.at("member_id", kind=str)
    ctx.same("its partitions", _parts(answer), [0, 1, 2])
    ctx.must(member in answer.at("members", kind=list), f"expected {member} among the members; seen {answer}")
    ctx.same("the leader", answer.at("leader_id"), member)
    ctx.must(answer.at("generation", kind=int) > 0, f"expected a generation; seen {answer}")
    listed = {each["id"]: each for each in (await ctx.me.get("/groups")).at("groups", kind=list)}
    ctx.must(group in listed, f"expected {group} in the list; seen {sorted(listed)}")
    ctx.same("members and topics", (listed[group]["members"], listed[group]["topics"]), (1, [topic]))
    ctx.same("its partitions", await _partitions_of(ctx, group, member, topic), [0, 1, 2])
    ctx.refused_as_goqueue(await ctx.me.delete(f"/groups/{group}"), 409)
    ctx.status(await ctx.me.post(f"/groups/{group}/leave", {"member_id": member}), 200)
    ctx.status(await ctx.me.delete(f"/groups/{group}"), 200)
    for path in ("", "/offsets", "/cooperative", "/rebalance/stats"):
        ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}{path}"), 404)
    ctx.refused_as_goqueue(await ctx.me.delete(f"/groups/{group}"), 404)


@http_case(
    "groups/unknown-topics-and-bodies", TOPICS, clauses=("H-ERR-2", "H-ERR-4"), mutant="http-malformed-bodies-are-500"
)
async def bodies(ctx: HttpContext) -> None:
    """What is no request is refused with 400 in GoQueue's form, on each route of groups and settlements.

    Members that are missing or of another type.
    """
    group = ctx.name("g")
    for path, body in (
        (f"/groups/{group}/join", b"{}"),
        (f"/groups/{group}/join", b'{"client_id": "a", "topics": []}'),
        (f"/groups/{group}/join", b'{"client_id": 1, "topics": ["t"]}'),
        (f"/groups/{group}/heartbeat", b'{"member_id": "a", "generation": "x"}'),
        (f"/groups/{group}/leave", b"[]"),
        (f"/groups/{group}/offsets", b'{"member_id": "a", "offsets": 1}'),
        ("/messages/ack", b"{}"),
        ("/messages/nack", b'{"receipt_handle": 1}'),
        ("/messages/visibility", b'{"receipt_handle": "a", "extension_seconds": -1}'),
        ("/topics", b'{"name": 1}'),
        ("/producers/init", b'{"transactional_id": 1}'),
        ("/transactions/begin", b"{}"),
    ):
        ctx.refused_as_goqueue(await ctx.me.post(path, body), 400)


@http_case(
    "groups/members-share-the-partitions",
    TOPICS,
    clauses=("H-GROUP-2", "H-GROUP-3", "H-GROUP-4"),
    mutant="http-stale-generations-taken",
    kills=("http-leaving-keeps", "http-unknown-members-are-500"),
)
async def share(ctx: HttpContext) -> None:
    """Two members share the partitions of a topic; when one leaves, the other has all of them again.

    A heartbeat of the generation before is refused with 409, and one of who is no member with 404.
    """
    topic, group = await ctx.topic_named(4), ctx.name("g")
    first = await ctx.join(group, topic, client="one")
    one, generation = first.at("member_id"), first.at("generation", kind=int)
    beat = {"member_id": one, "generation": generation}
    ctx.status(await ctx.me.post(f"/groups/{group}/heartbeat", beat), 200)
    two = (await ctx.join(group, topic, client="two")).at("member_id")
    ctx.refused_as_goqueue(await ctx.me.post(f"/groups/{group}/heartbeat", beat), 409)
    shares = [await _partitions_of(ctx, group, member, topic) for member in (one, two)]
    ctx.same("all partitions", sorted(shares[0] + shares[1]), [0, 1, 2, 3])
    ctx.must(all(shares), f"expected each to have some; seen {shares}")
    ctx.status(await ctx.me.post(f"/groups/{group}/leave", {"member_id": two}), 200)
    ctx.same("what the other has", await _partitions_of(ctx, group, one, topic), [0, 1, 2, 3])
    for path, body in (
        ("heartbeat", {"member_id": two, "generation": 1}),
        ("leave", {"member_id": two}),
        ("offsets", {"member_id": "nobody", "offsets": {}}),
    ):
        ctx.refused_as_goqueue(await ctx.me.post(f"/groups/{group}/{path}", body), 404)
    ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}/poll?member_id={two}&timeout=0s"), 404)


@http_case(
    "groups/poll-tells-messages-and-handles",
    TOPICS,
    clauses=("H-GROUP-5", "H-GROUP-6"),
    mutant="http-poll-without-handles",
    kills=("http-poll-next-offset-lies",),
)
async def poll(ctx: HttpContext) -> None:
    """A poll tells messages by partition with all of their parts, and where to go on; they are not polled again.

    Two partitions with two messages each, then one with another.
    """
    topic, group = await ctx.topic_named(2), ctx.name("g")
    member = (await ctx.join(group, topic)).at("member_id")
    sent = [{"value": f"{at}{number}", "key": "k", "partition": at} for at in (0, 1) for number in (0, 1)]
    await ctx.publish_to(topic, *sent)
    seen: dict[str, list[Any]] = {"0": [], "1": []}
    while sum(map(len, seen.values())) < 4:
        answer = await ctx.poll(group, member, "5s")
        found = answer.at("messages", kind=dict)
        ctx.must(any(found.values()), f"expected more messages; seen {answer}")
        for partition, some in found.items():
            seen[partition] += some
            if some:
                ctx.same("where to go on", answer.at("next_offset", partition), some[-1]["offset"] + 1)
    for partition, messages in seen.items():
        ctx.same("the messages", payloads(messages), [f"{partition}0", f"{partition}1"])
        for each in messages:
            ctx.same("the key", each["key"], "k")
            ctx.must(
                bool(each["receipt_handle"]) and "T" in each["timestamp"], f"expected a handle and a time; seen {each}"
            )
    again = await ctx.poll(group, member)
    ctx.must(not any(again.at("messages").values()), f"expected nothing that is in flight; seen {again}")


@http_case("groups/every-topic-is-polled", TOPICS, clauses=("H-GROUP-7",), mutant="http-only-first-topic-polled")
async def topics(ctx: HttpContext) -> None:
    """A member that joined for several topics gets the messages of each, by topic.

    GoQueue's own broker polled the first of them only.
    """
    first, second, group = await ctx.topic_named(), await ctx.topic_named(), ctx.name("g")
    member = (await ctx.join(group, first, second)).at("member_id")
    await ctx.publish_to(first, "a")
    await ctx.publish_to(second, "b")
    seen: dict[str, list[Any]] = {first: [], second: []}
    while not all(seen.values()):
        found = (await ctx.poll(group, member, "2s")).at("topics", kind=dict)
        ctx.must(
            any(part for parts in found.values() for part in parts.values()), f"expected both messages; seen {seen}"
        )
        for topic, parts in found.items():
            seen[topic] += [value for part in parts.values() for value in payloads(part)]
    ctx.same("the messages", seen, {first: ["a"], second: ["b"]})


@http_case(
    "groups/silent-members-are-out",
    TOPICS,
    clauses=("H-GROUP-10",),
    requires=("clock",),
    mutant="http-silent-consumers-stay",
)
async def silent(ctx: HttpContext) -> None:
    """A member that sends no heartbeat for longer than the session timeout is out, and its partitions go to others.

    What it held comes to the other one. The other sends heartbeats meanwhile.
    """
    topic, group = await ctx.topic_named(2), ctx.name("g")
    gone = (await ctx.join(group, topic, client="gone")).at("member_id")
    await ctx.publish_to(topic, {"value": "held", "partition": 0})
    await ctx.poll_until(group, gone, 1)
    stays = (await ctx.join(group, topic, client="stays")).at("member_id")
    for _ in range(3):
        await ctx.advance(25)
        ctx.status(await ctx.me.get(f"/groups/{group}/assignment?member_id={stays}"), 200)
    ctx.same("its partitions", await _partitions_of(ctx, group, stays, topic), [0, 1])
    ctx.same("the message", payloads(await ctx.poll_until(group, stays, 1)), ["held"])
    ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}/poll?member_id={gone}&timeout=0s"), 404)


@http_case(
    "groups/committed-offsets-settle",
    TOPICS,
    clauses=("H-GROUP-11", "H-GROUP-12"),
    mutant="http-commits-forgotten",
    kills=("http-foreign-commits-are-fine", "http-bad-cursors-are-500"),
)
async def offsets(ctx: HttpContext) -> None:
    """Offsets that a member commits settle what it got below them, and the group tells them.

    Who joins next goes on from there. A topic that the member has not joined for is refused with 403. An
    offset that nothing was delivered up to may be refused as well.
    """
    topic, other, group = await ctx.topic_named(), await ctx.topic_named(), ctx.name("g")
    member = (await ctx.join(group, topic)).at("member_id")
    await ctx.publish_to(topic, *"abc")
    await ctx.poll_until(group, member, 3)
    path = f"/groups/{group}/offsets"
    answer = await ctx.me.post(path, {"member_id": member, "offsets": {topic: {"0": 2}}})
    ctx.status(answer, 200)
    ctx.same("what is committed", (await ctx.me.get(path)).at("topics", topic, "0"), 2)
    for place, wrong in (("0", -1), ("7", 0), ("x", 0)):
        body = {"member_id": member, "offsets": {topic: {place: wrong}}}
        ctx.refused_as_goqueue(await ctx.me.post(path, body), 400, 403, 404)
    foreign = {"member_id": member, "offsets": {other: {"0": 1}}}
    ctx.refused_as_goqueue(await ctx.me.post(path, foreign), 403)
    ctx.status(await ctx.me.post(f"/groups/{group}/leave", {"member_id": member}), 200)
    following = (await ctx.join(group, topic)).at("member_id")
    ctx.same("what is left", payloads(await ctx.poll_until(group, following, 1)), ["c"])
    nothing = await ctx.poll(group, following)
    ctx.must(not any(nothing.at("messages").values()), f"expected no more; seen {nothing}")
    ahead = {"member_id": following, "offsets": {topic: {"0": 99}}}
    ctx.status(await ctx.me.post(path, ahead), 200, 400, 403, 404, 409)


@http_case(
    "groups/a-poll-ends-with-the-message",
    TOPICS,
    clauses=("H-GROUP-13", "H-ERR-6"),
    mutant="http-long-polls-return-at-once",
    kills=("http-consume-gives-all",),
    limit_s=8.0,
)
async def long_poll(ctx: HttpContext) -> None:
    """A poll that waits is answered with the message, up to its limit; in vain, when its time is over.

    What is no duration is refused.
    """
    if not ctx.wait_s():
        ctx.unsupported("the broker lets no request wait")
    topic, group = await ctx.topic_named(), ctx.name("g")
    member = (await ctx.join(group, topic)).at("member_id")
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await ctx.poll(group, member, "400ms")
    ctx.must(loop.time() - began >= 0.38, f"expected an answer after 400 ms; seen {answer}")
    waiter = ctx.client("waits")
    target = f"/groups/{group}/poll?member_id={member}&timeout=50s&limit=1"
    task = asyncio.create_task(waiter.get(target))
    try:
        await asyncio.sleep(0)
        await ctx.publish_to(topic, "a", "b")
        found = await task
    finally:
        task.cancel()
    ctx.same("the message", payloads(found.at("messages", "0")), ["a"])
    ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}/poll?member_id={member}&timeout=soon"), 400)
    ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}/poll"), 400)


@http_case("groups/assignment-is-told", TOPICS, clauses=("H-GROUP-14",), mutant="http-assignment-stands-still")
async def assignment(ctx: HttpContext) -> None:
    """What a member is assigned is told as it is now, and the number of assignments grows with each change.

    A second member joins.
    """
    topic, group = await ctx.topic_named(2), ctx.name("g")
    one = (await ctx.join(group, topic)).at("member_id")
    path = f"/groups/{group}/assignment?member_id={one}"
    ctx.same("what it has", (await ctx.me.get(path)).at("assignments", topic), [0, 1])
    before = (await ctx.me.get(f"/groups/{group}/rebalance/stats")).at("rebalances", kind=int)
    two = (await ctx.join(group, topic)).at("member_id")
    has = (await ctx.me.get(path)).at("assignments", topic, kind=list)
    other = (await ctx.me.get(f"/groups/{group}/assignment?member_id={two}")).at("assignments", topic, kind=list)
    ctx.same("what both have", sorted(has + other), [0, 1])
    after = (await ctx.me.get(f"/groups/{group}/rebalance/stats")).at("rebalances", kind=int)
    ctx.must(after > before, f"expected more than {before} assignments; seen {after}")
    ctx.refused_as_goqueue(await ctx.me.get(f"/groups/{group}/assignment?member_id=nobody"), 404)
    ctx.refused_as_goqueue(await ctx.me.post(f"/groups/{group}/revoke", {"member_id": "nobody"}), 404)


@http_case(
    "groups/cooperative-where-topics-are",
    TOPICS,
    clauses=("H-GROUP-9", "H-GROUP-15", "H-ERR-9"),
    requires=("http_queues",),
    mutant="http-cooperative-join-passes",
)
async def cooperative(ctx: HttpContext) -> None:
    """Topics that rebalance cooperatively are joined so, and what a member lets go is handed over; others say 501.

    The first member settles what it holds, and gives a partition up; nothing of it is delivered twice.
    """
    eager, group = await ctx.topic_named(2), ctx.name("g")
    body = {"client_id": "a", "topics": [eager]}
    ctx.refused_as_goqueue(await ctx.me.post(f"/groups/{group}/join/cooperative", body), 501)
    topic = await ctx.queue(partitions=2, group={"protocol": "cooperative"})
    body = {"client_id": "a", "topics": [topic]}
    one = await ctx.me.post(f"/groups/{group}/join/cooperative", body)
    ctx.status(one, 200)
    first = one.at("member_id")
    ctx.same("its partitions", _parts(one), [0, 1])
    await ctx.publish_to(topic, {"value": "0", "partition": 0}, {"value": "1", "partition": 1})
    held = await ctx.poll_until(group, first, 2)
    second = (await ctx.me.post(f"/groups/{group}/join/cooperative", {**body, "client_id": "b"})).at("member_id")
    for each in held:
        ctx.status(await ctx.me.post("/messages/ack", {"receipt_handle": each["receipt_handle"]}), 200)
    for member in (first, second):
        ctx.status(await ctx.me.post(f"/groups/{group}/revoke", {"member_id": member}), 200)
    shares = [
        (await ctx.me.get(f"/groups/{group}/assignment?member_id={member}")).at("assignments", topic, kind=list)
        for member in (first, second)
    ]
    ctx.same("what both have", sorted(shares[0] + shares[1]), [0, 1])
    ctx.must(all(shares), f"expected each to have one; seen {shares}")
    ctx.status(await ctx.me.get(f"/groups/{group}/cooperative"), 200)
    alive = {"member_id": second, "generation": (await ctx.me.get(f"/groups/{group}")).at("generation")}
    ctx.status(await ctx.me.post(f"/groups/{group}/heartbeat/cooperative", alive), 200)
    ctx.status(await ctx.me.post(f"/groups/{group}/leave/cooperative", {"member_id": second}), 200)
    ctx.same("its partitions", await _partitions_of(ctx, group, first, topic), [0, 1])


# Settlements by receipt handle


async def _held(ctx: HttpContext, *values: str, **settings: Any) -> tuple[str, str, str, list[dict[str, Any]]]:
    """A topic with these messages, all of them held by a member; topic, group, member, messages."""
    topic, group = await ctx.queue(**settings), ctx.name("g")
    member = (await ctx.join(group, topic)).at("member_id")
    await ctx.publish_to(topic, *values)
    return topic, group, member, await ctx.poll_until(group, member, len(values))


async def _settle(ctx: HttpContext, verb: str, message: dict[str, Any], **more: Any) -> Answer:
    return await ctx.me.post(f"/messages/{verb}", {"receipt_handle": message["receipt_handle"], **more})


@http_case(
    "groups/ack-tells-the-committed-offset",
    TOPICS,
    clauses=("H-ACK-1", "H-ACK-7"),
    requires=("http_queues",),
    mutant="http-committed-offset-jumps",
    kills=("http-in-flight-not-counted",),
)
async def ack(ctx: HttpContext) -> None:
    """The committed offset is the first that is not settled: acks behind it do not move it, the one of it does.

    Three messages are held; the second, the first and the third are acknowledged.
    """
    topic, group, member, held = await _held(ctx, "a", "b", "c")
    for index, committed, advanced, in_flight in ((1, 0, False, 2), (0, 2, True, 1), (2, 3, True, 0)):
        answer = await _settle(ctx, "ack", held[index])
        ctx.status(answer, 200)
        seen = [answer.at(name) for name in ("topic", "partition", "offset")]
        ctx.same("what was settled", seen, [topic, 0, held[index]["offset"]])
        seen = [answer.at(name) for name in ("committed_offset", "offset_advanced", "in_flight_count", "success")]
        ctx.same("committed offset, whether it advanced, in flight", seen, [committed, advanced, in_flight, True])
    nothing = await ctx.poll(group, member)
    ctx.must(not any(nothing.at("messages").values()), f"expected no more; seen {nothing}")


@http_case(
    "groups/what-is-settled-is-404",
    TOPICS,
    clauses=("H-ACK-2", "H-ACK-6"),
    requires=("http_queues",),
    mutant="http-settled-handles-are-500",
    kills=("http-bad-names-are-500",),
)
async def settled(ctx: HttpContext) -> None:
    """What is settled already is refused with 404 by ack, nack, reject and visibility, and no handle with 400.

    GoQueue's own broker told an extension of what is unknown as a bug of its own.
    """
    _, _, _, (held,) = await _held(ctx, "a")
    ctx.status(await _settle(ctx, "ack", held), 200)
    bad = {"receipt_handle": "garbage"}
    for verb, more in (
        ("ack", {}),
        ("nack", {}),
        ("reject", {"reason": "why"}),
        ("visibility", {"extension_seconds": 5}),
    ):
        ctx.refused_as_goqueue(await _settle(ctx, verb, held, **more), 404)
        ctx.refused_as_goqueue(await ctx.me.post(f"/messages/{verb}", {**bad, **more}), 400)


@http_case(
    "groups/nack-brings-it-again-and-at-last-not",
    TOPICS,
    clauses=("H-ACK-3", "H-ACK-4"),
    requires=("http_queues",),
    mutant="http-nack-acks",
    kills=("http-last-nack-says-requeued", "http-nacks-tell-no-time", "http-nacks-of-what-is-gone-are-404"),
)
async def nack(ctx: HttpContext) -> None:
    """A nack has the message delivered again, and tells so; the one of the last delivery tells of a dead letter.

    Two deliveries are allowed. Of a queue that keeps no dead letters the last nack is taken, too, and the message is
    gone.
    """
    topic, group, member, (held,) = await _held(ctx, "a", retry={"max_retries": 1})
    answer = await _settle(ctx, "nack", held, reason="not now")
    ctx.status(answer, 200)
    ctx.same("action and deliveries", (answer.at("action"), answer.at("delivery_count")), ("requeued", 1))
    ctx.must("T" in answer.at("next_visible_at", kind=str), f"expected a time in next_visible_at; seen {answer}")
    (again,) = await ctx.poll_until(group, member, 1)
    ctx.same("offset and value", (again["offset"], again["value"]), (held["offset"], "a"))
    answer = await _settle(ctx, "nack", again)
    ctx.same("action and deliveries", (answer.at("action"), answer.at("delivery_count")), ("dlq", 2))
    ctx.leaves(f"/topics/{topic}.dlq")
    read = await ctx.me.get(f"/topics/{topic}.dlq/messages")
    ctx.same("the dead letters", payloads(read.at("messages")), ["a"])
    topic, group, member, (held,) = await _held(ctx, "b", retry={"max_retries": 0}, dead_letters=False)
    answer = await _settle(ctx, "nack", held)
    ctx.status(answer, 200)
    ctx.must(answer.at("action") != "requeued", f"expected that it comes no more; seen {answer}")
    await ctx.publish_to(topic, "c")
    (other,) = await ctx.poll_until(group, member, 1)
    ctx.same("the next message", other["value"], "c")


@http_case(
    "groups/reject-needs-a-reason",
    TOPICS,
    clauses=("H-ACK-5",),
    requires=("http_queues",),
    mutant="http-reject-without-reason",
    kills=("http-goqueue-reject-acks",),
)
async def reject(ctx: HttpContext) -> None:
    """A reject without a reason is refused; one with a reason makes the message a dead letter, and says where.

    The topic of the dead letters is <topic>.dlq.
    """
    topic, group, member, (held,) = await _held(ctx, "a")
    ctx.refused_as_goqueue(await _settle(ctx, "reject", held), 400)
    ctx.refused_as_goqueue(await _settle(ctx, "reject", held, reason=""), 400)
    answer = await _settle(ctx, "reject", held, reason="no such customer")
    ctx.status(answer, 200)
    seen = [answer.at(name) for name in ("success", "topic", "offset", "dlq_topic", "reason")]
    ctx.same("what is told", seen, [True, topic, held["offset"], f"{topic}.dlq", "no such customer"])
    ctx.leaves(f"/topics/{topic}.dlq")
    read = await ctx.me.get(f"/topics/{topic}.dlq/messages")
    ctx.same("the dead letters", payloads(read.at("messages")), ["a"])
    nothing = await ctx.poll(group, member)
    ctx.must(not any(nothing.at("messages").values()), f"expected no more; seen {nothing}")


@http_case(
    "groups/visibility-moves-the-timeout",
    TOPICS,
    clauses=("H-ACK-6",),
    requires=("http_queues", "clock"),
    mutant="http-visibility-dropped",
)
async def visibility(ctx: HttpContext) -> None:
    """An extension moves the deadline of a delivery, and tells the new one; until then the message stays held.

    Without it, the other message comes again behind the delivery timeout.
    """
    settings = {"delivery_timeout_s": 30, "group": {"session_timeout_s": 3_000}, "retry": {"initial_backoff_s": 0.1}}
    _, group, member, held = await _held(ctx, "short", "long", **settings)
    answer = await _settle(ctx, "visibility", held[1], extension_seconds=200)
    ctx.status(answer, 200)
    ctx.same("extended_by", answer.at("extended_by"), 200)
    ctx.must("T" in answer.at("new_deadline", kind=str), f"expected a time in new_deadline; seen {answer}")
    await ctx.advance(31)
    await ctx.advance(5)
    ctx.same("what came again", payloads(await ctx.poll_until(group, member, 1)), ["short"])
    ctx.status(await _settle(ctx, "ack", held[1]), 200)


@http_case("groups/any-name-has-handles", TOPICS, clauses=("H-ACK-1",), mutant="http-colons-end-handles")
async def colons(ctx: HttpContext) -> None:
    """Messages of topics and groups with colons, dots and blanks in their names are settled by their handles.

    GoQueue's own broker split its handles at colons.
    """
    for more in (":a", ":0:1", ".x", "-é"):
        topic, group = ctx.name("t") + more, f"{ctx.name('g')}:1:2"
        ctx.leaves(f"/topics/{topic.replace('é', '%C3%A9')}")
        ctx.status(await ctx.me.post("/topics", {"name": topic, "num_partitions": 1}), 201)
        path = topic.replace("é", "%C3%A9")
        await ctx.publish_to(path, "a")
        member = (await ctx.join(group, topic)).at("member_id")
        (held,) = await ctx.poll_until(group, member.replace("é", "%C3%A9"), 1)
        answer = await _settle(ctx, "ack", held)
        ctx.status(answer, 200)
        ctx.same("what was settled", (answer.at("topic"), answer.at("committed_offset")), (topic, 1))
