"""GoQueue's traces: the steps of messages whose publishers ask for it, by trace, listed and searched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from assay.conformance.http.client import Answer
from assay.conformance.http.context import API, QUEUES, TOPICS, TRACES, HttpContext, http_case, payloads
from assay.conformance.wire import Properties, Puback, Publish

TRACED: dict[str, Any] = {"tracing": {"enabled": True}}
"""Nothing is traced but what its publisher says."""
_LONG: dict[str, Any] = {"delivery_timeout_s": 3_000, "group": {"session_timeout_s": 3_000}}


async def _send(ctx: HttpContext, topic: str, *messages: dict[str, Any], flag: str = "01") -> str:
    """Publish as parts of a new trace of W3C; its id."""
    trace = f"{ctx.rng.getrandbits(127) + 1:032x}"
    parent = {"traceparent": f"00-{trace}-{ctx.rng.getrandbits(63) + 1:016x}-{flag}"}
    told = [{"value": "x", **each} for each in messages or ({},)]
    ctx.status(await ctx.me.post(f"/topics/{topic}/messages", {"messages": told}, headers=parent), 200)
    return trace


async def _trace(ctx: HttpContext, trace: str) -> Answer:
    answer = await ctx.me.get(f"/traces/{trace}")
    ctx.status(answer, 200)
    ctx.same("its id", answer.at("trace_id"), trace)
    return answer


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@http_case(
    "traces/steps-of-a-message",
    TOPICS,
    QUEUES,
    TRACES,
    clauses=("H-TRACE-1", "H-TRACE-2"),
    settings=TRACED,
    mutant="http-traces-stand-still",
    kills=("http-traces-without-groups",),
    near_miss="http-traces-say-more",
    together=True,
)
async def steps(ctx: HttpContext) -> None:
    """A trace tells where its first message is, its steps with their times and groups, and how it stands now.

    One message is consumed and settled; others are delayed, given back, rejected. What is not sampled has no trace.
    """
    topic, group = await ctx.queue(partitions=2, **_LONG), ctx.name("g")
    ctx.leaves(f"/topics/{topic}.dlq")
    trace = await _send(ctx, topic, {"partition": 1})
    member = (await ctx.join(group, topic)).at("member_id")
    told = await _trace(ctx, trace)
    seen = [told.at(name) for name in ("topic", "partition", "offset", "status")]
    ctx.same("topic, partition, offset, status", seen, [topic, 1, 0, "in_progress"])
    published = told.at("spans", kind=list)
    ctx.must(not any(each.get("consumer_group") for each in published), f"expected no consumer yet; seen {told}")
    (held,) = await ctx.poll_until(group, member, 1)
    ctx.status(await ctx.me.post("/messages/ack", {"receipt_handle": held["receipt_handle"]}), 200)
    told = await _trace(ctx, trace)
    ctx.same("its status", told.at("status"), "completed")
    spans = told.at("spans", kind=list)
    groups = {each["consumer_group"] for each in spans if each.get("consumer_group")}
    ctx.must(groups == {group}, f"expected the group {group} alone; seen {told}")
    ctx.must(len({each["span_id"] for each in spans}) == len(spans), f"expected spans of their own ids; seen {told}")
    ctx.must(len(spans) >= len(published) + 2, f"expected a delivery and a settlement more; seen {told}")
    begins, ends = _at(told.at("start_time", kind=str)), _at(told.at("end_time", kind=str))
    for each in spans:
        ctx.must(bool(each["event_type"]), f"expected an event_type; seen {each}")
        ctx.must(begins <= _at(each["timestamp"]) <= ends, f"expected a time within the trace; seen {each} of {told}")
    for verb, more, status in (("nack", {}, "retrying"), ("reject", {"reason": "why"}, "failed")):
        other = await _send(ctx, topic, {"partition": 0})
        (held,) = await ctx.poll_until(group, member, 1)
        ctx.status(await ctx.me.post(f"/messages/{verb}", {"receipt_handle": held["receipt_handle"], **more}), 200)
        ctx.same(f"the status after {verb}", (await _trace(ctx, other)).at("status"), status)
        if verb == "nack":
            (held,) = await ctx.poll_until(group, member, 1)
            ctx.status(await ctx.me.post("/messages/ack", {"receipt_handle": held["receipt_handle"]}), 200)
            ctx.same("the status at last", (await _trace(ctx, other)).at("status"), "completed")
    later = await _send(ctx, topic, {"delay": "1h"})
    ctx.same("the status of one that waits", (await _trace(ctx, later)).at("status"), "delayed")
    silent = await _send(ctx, topic, flag="00")
    for unknown in (silent, "0" * 31 + "1", "none"):
        ctx.refused_as_goqueue(await ctx.me.get(f"/traces/{unknown}"), 404, 400)


@http_case(
    "traces/each-of-a-burst",
    TOPICS,
    QUEUES,
    TRACES,
    clauses=("H-TRACE-1", "H-TRACE-2", "H-CROSS-2"),
    requires=("mqtt5", "queues"),
    settings=TRACED,
    mutant="wire-bursts-are-not-traced",
    near_miss="http-traces-say-more",
    together=True,
)
async def burst(ctx: HttpContext) -> None:
    """Of messages that come over MQTT in one write each that asks for a trace has its own, at its place.

    Five of twelve ask for it. They have a key, so that a partition holds them all.
    """
    topic = await ctx.queue(partitions=2)
    client = await ctx.connect()
    traces = {number: f"{ctx.rng.getrandbits(127) + 1:032x}" for number in (0, 1, 5, 10, 11)}
    packets = []
    for number in range(12):
        asks = (("traceparent", f"00-{traces[number]}-{number + 1:016x}-01"),) if number in traces else ()
        said = Properties(user_property=(("partition-key", "k"), *asks))
        packets.append(
            Publish(
                topic=f"$queue/{topic}",
                payload=b"%d" % number,
                qos=1,
                packet_id=client.next_packet_id(),
                properties=said,
            )
        )
    window = client.connack.properties.receive_maximum or len(packets)
    for start in range(0, len(packets), window):
        client.send(*packets[start : start + window])
        for _ in packets[start : start + window]:
            ctx.must((await client.expect(Puback)).reason_code < 0x80, "expected each publish to be accepted")
    places = []
    for number, trace in traces.items():
        told = await _trace(ctx, trace)
        ctx.same("its topic", told.at("topic"), topic)
        partition, offset = told.at("partition", kind=int), told.at("offset", kind=int)
        path = f"{API}/queues/{topic}/partitions/{partition}/messages?from={offset}&limit=1"
        read = await ctx.me.get(path)
        ctx.same("the message at its place", payloads(read.at("messages")), [str(number)])
        places.append((partition, offset))
        ctx.must(bool(told.at("spans", kind=list)), f"expected a step of {number}; seen {told}")
    ctx.must(len(set(places)) == len(traces), f"expected places of their own; seen {places}")


@http_case(
    "traces/a-share-of-bursts",
    QUEUES,
    TRACES,
    clauses=("H-TRACE-6",),
    requires=("mqtt5", "queues"),
    settings={"tracing": {"enabled": True, "ratio": 0.01}},
    mutant="traces-of-bursts-begin-anew",
    kills=("traces-of-bursts-are-many",),
    limit_s=20.0,
)
async def share(ctx: HttpContext) -> None:
    """Of messages that say nothing of a trace as many are traced as is configured, also of those that come in bursts.

    A hundredth of 1,800, in writes of 30: 18 on average, and 1 to 50 are allowed, which all but one of ten million
    brokers keep to.
    """
    topic = await ctx.queue()
    client = await ctx.connect()
    many = min(30, client.connack.properties.receive_maximum or 30)
    for _ in range(1_800 // many):
        client.send(
            *(
                Publish(topic=f"$queue/{topic}", payload=b"x", qos=1, packet_id=client.next_packet_id())
                for _ in range(many)
            )
        )
        for _ in range(many):
            ctx.must((await client.expect(Puback)).reason_code < 0x80, "expected each publish to be accepted")
    seen = (await ctx.me.get("/traces/stats")).at("traces", kind=int)
    ctx.must(1 <= seen <= 50, f"expected about 18 messages to be traced; seen {seen}")


@http_case(
    "traces/listed-and-searched",
    TOPICS,
    QUEUES,
    TRACES,
    clauses=("H-TRACE-3", "H-TRACE-4", "H-ERR-6"),
    settings=TRACED,
    mutant="http-traces-found-by-nothing",
    kills=("http-traces-oldest-first", "http-traces-uncounted"),
    near_miss="http-traces-say-more",
    together=True,
)
async def search(ctx: HttpContext) -> None:
    """Traces are listed, the latest first, and searched by topic, partition, group, status and time, up to a limit.

    Four of them over two topics; a parameter that is not what is expected is refused.
    """
    one, two, group = await ctx.queue(partitions=2, **_LONG), await ctx.queue(**_LONG), ctx.name("g")
    ctx.leaves(f"/topics/{two}.dlq")
    member = (await ctx.join(group, two)).at("member_id")
    first = await _send(ctx, one, {"partition": 0})
    second = await _send(ctx, one, {"partition": 1})
    third = await _send(ctx, two)
    (held,) = await ctx.poll_until(group, member, 1)
    reject = {"receipt_handle": held["receipt_handle"], "reason": "why"}
    ctx.status(await ctx.me.post("/messages/reject", reject), 200)
    fourth = await _send(ctx, two)
    (held,) = await ctx.poll_until(group, member, 1)
    ctx.status(await ctx.me.post("/messages/ack", {"receipt_handle": held["receipt_handle"]}), 200)
    names = {first: "first", second: "second", third: "third", fourth: "fourth"}
    began = _at((await _trace(ctx, second)).at("start_time", kind=str)).astimezone(UTC)

    def when(seconds: int) -> str:
        return (began + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def found(query: str) -> list[str]:
        answer = await ctx.me.get(query)
        ctx.status(answer, 200)
        listed = [each["trace_id"] for each in answer.at("traces", kind=list)]
        ctx.same("count", answer.at("count", kind=int), len(listed))
        return [names[each] for each in listed if each in names]

    ctx.same("the traces", await found("/traces?limit=1000"), ["fourth", "third", "second", "first"])
    for query, wanted in (
        (f"topic={one}", ["second", "first"]),
        (f"topic={one}&partition=1", ["second"]),
        (f"topic={one}&partition=7", []),
        (f"topic={two}&limit=1", ["fourth"]),
        (f"consumer_group={group}", ["fourth", "third"]),
        (f"consumer_group={group}&status=completed", ["fourth"]),
        (f"topic={two}&status=failed", ["third"]),
        (f"topic={one}&status=completed", []),
        (f"topic={one}&start={when(-60)}&end={when(3_600)}", ["second", "first"]),
        (f"topic={one}&end={when(-60)}", []),
        (f"topic={one}&start={when(3_600)}", []),
        (f"topic={ctx.name('none')}", []),
    ):
        ctx.same(f"what {query} finds", await found(f"/traces/search?{query}"), wanted)
    for query in ("limit=0", "limit=x", "partition=-1", "start=soon", "status=sleeping"):
        ctx.refused_as_goqueue(await ctx.me.get(f"/traces/search?{query}"), 400)
    stats = await ctx.me.get("/traces/stats")
    ctx.same("enabled", stats.at("enabled"), True)
    ctx.must(stats.at("traces", kind=int) >= 4 and stats.at("spans", kind=int) >= 4, f"expected four; seen {stats}")


@http_case("traces/off-is-said", TRACES, clauses=("H-ERR-9", "H-TRACE-4"), mutant="http-unsupported-is-500")
async def off(ctx: HttpContext) -> None:
    """A broker that traces nothing says so rather than that there are no traces, and its figures tell that it is off.

    One that does trace passes as well.
    """
    stats = await ctx.me.get("/traces/stats")
    ctx.status(stats, 200)
    is_on = stats.at("enabled", kind=bool)
    for path in ("/traces", "/traces/search", f"/traces/{'0' * 31}1"):
        answer = await ctx.me.get(path)
        if is_on:
            ctx.status(answer, 200, 404)
        else:
            ctx.refused_as_goqueue(answer, 501)
