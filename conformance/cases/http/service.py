"""What is too much, too often, too slow, or no HTTP at all; health, and what there is beside the APIs."""

from __future__ import annotations

import json
import re
from itertools import permutations
from typing import Any

from assay.conformance.http.context import API, QUEUES, TOPICS, VIEWS, HttpContext, http_case, payloads
from assay.conformance.wire.http import encode_request

_SMALL = {
    "http": {
        "max_body_bytes": 20_000,
        "max_batch": 3,
        "max_header_bytes": 4_096,
        "header_timeout_s": 1.0,
        "body_timeout_s": 1.0,
    }
}
_RARE = {"http": {"requests_per_s": 0.01, "request_burst": 30}}


@http_case(
    "service/too-large-a-body-is-413",
    QUEUES,
    clauses=("H-LIMIT-1", "H-PUB-8"),
    settings=_SMALL,
    mutant="http-too-large-is-500",
    kills=("http-empty-batch-taken",),
    together=True,
)
async def body(ctx: HttpContext) -> None:
    """A body over the limit is refused with 413, whether its length is told or not; more messages with 400.

    What is just below the limits is taken.
    """
    queue = await ctx.queue()
    path = f"{API}/queues/{queue}/messages"
    large = b'{"messages": [{"payload": "' + b"x" * 25_000 + b'"}]}'
    ctx.status(await ctx.client("large").post(path, large), 413)
    head = {"host": ctx.authority, "content-type": "application/json", "transfer-encoding": "chunked"}
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (large[:9_000], large[9_000:])) + b"0\r\n\r\n"
    client = ctx.client("chunks")
    connection = await client.send_raw(encode_request("POST", path, head) + chunks, method="POST")
    ctx.status(await client.answer_on(connection, f"POST {path}"), 413)
    small = b'{"messages": [{"payload": "in chunks"}]}'
    chunks = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in (small[:7], small[7:])) + b"0\r\n\r\n"
    connection = await client.send_raw(encode_request("POST", path, head) + chunks, method="POST")
    ctx.status(await client.answer_on(connection, f"POST {path}"), 200)
    ctx.refused(await ctx.me.post(path, {"messages": [{"payload": "a"}] * 4}), 400)
    await ctx.fill(queue, "x" * 10_000, "b", "c")
    ctx.same("the messages", len(await ctx.take_all(queue, 4, at_once=3)), 4)


@http_case(
    "service/what-is-slow-or-large-is-cut",
    QUEUES,
    clauses=("H-LIMIT-5", "H-LIMIT-3"),
    settings=_SMALL,
    mutant="http-heads-have-all-time",
    together=True,
)
async def slow(ctx: HttpContext) -> None:
    """A head that does not come whole in its time, or is too large, ends the connection; a slow body is refused.

    Others are served meanwhile.
    """
    begun = encode_request("GET", "/health", {"host": ctx.authority})[:-4]
    client = ctx.client("slow")
    connection = await client.send_raw(begun)
    ctx.status(await ctx.me.get("/health"), 200)
    await ctx.ends(connection, "a head that never ends")
    connection = await client.send_raw(begun + b"x: " + b"y" * 9_000)
    await ctx.ends(connection, "a head of 9 000 bytes")
    head = {"host": ctx.authority, "content-type": "application/json", "content-length": "10"}
    connection = await client.send_raw(encode_request("POST", f"{API}/queues", head) + b"{", method="POST")
    ctx.status(await client.answer_on(connection, "half a body"), 408)
    ctx.status(await ctx.me.get("/health"), 200)


@http_case(
    "service/too-often-is-429",
    QUEUES,
    clauses=("H-LIMIT-2", "H-ERR-8"),
    settings=_RARE,
    requires=("clock",),
    mutant="http-rates-unchecked",
)
async def rate(ctx: HttpContext) -> None:
    """Who asks more often than is allowed is refused with 429 and Retry-After, and is served again later.

    Whether the broker is there may be asked at any time. Probing has used some of the thirty requests.
    """
    seen = [await ctx.me.get(f"{API}/version") for _ in range(40)]
    ctx.status(seen[0], 200)
    ctx.refused(seen[-1], 429, "rate_limit")
    ctx.must(seen[-1].header("retry-after").isdecimal(), f"expected Retry-After; seen {seen[-1]}")
    ctx.status(await ctx.me.get("/health"), 200)
    await ctx.advance(200)
    ctx.status(await ctx.me.get(f"{API}/version"), 200)


@http_case("service/what-is-no-http-harms-nobody", QUEUES, clauses=("H-LIMIT-3",), mutant="http-nonsense-unanswered")
async def nonsense(ctx: HttpContext) -> None:
    """What is no HTTP is answered with 400, or the connection ends; others are served on.

    Bytes of MQTT, a head without end of line, two lengths, a target that is none.
    """
    for data in (
        b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST /publish HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /publish HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
    ):
        client = ctx.client("raw")
        connection = await client.send_raw(data)
        answer = await ctx.answer_or_end(connection, repr(data[:40]))
        ctx.must(
            answer is None or answer.head.status in (400, 421),
            f"expected 400, or the end, for {data[:40]!r}; seen {answer}",
        )
    ctx.status(await ctx.me.get("/health"), 200)


@http_case(
    "service/requests-in-a-row-in-order", QUEUES, clauses=("H-LIMIT-4",), mutant="http-connections-repeat-themselves"
)
async def in_a_row(ctx: HttpContext) -> None:
    """Requests that follow one another on a connection, without waiting for answers, are answered in their order.

    Five of them in one write, the last about what there is not. A server may end the connection behind any answer.
    """
    paths = ["/health", f"{API}/version", f"{API}/queues?prefix=none", "/ready", f"{API}/queues/{ctx.name('none')}"]
    requests = b"".join(encode_request("GET", path, {"host": ctx.authority}) for path in paths)
    client = ctx.client("row")
    connection = await client.send_raw(requests)
    for path in paths[1:]:
        connection.reader.expect(path)
    signs = [b"status", b'"version"', b"[]", b"checks", b"unknown_queue"]
    for number, (path, sign) in enumerate(zip(paths, signs, strict=True)):
        answer = await ctx.answer_or_end(connection, path)
        if answer is None and number:
            break
        ctx.must(answer is not None and sign in answer.body, f"expected the answer to {path}; seen {answer}")


@http_case(
    "service/unknown-routes-and-methods",
    QUEUES,
    clauses=("H-ERR-3", "H-ERR-6", "H-ERR-1"),
    mutant="http-no-route-is-500",
    kills=("http-any-method",),
)
async def routes(ctx: HttpContext) -> None:
    """A path that is no route is 404, a method that a route has not 405 with those it has, a bad parameter 400.

    Also paths with a slash too much, or that climb.
    """
    queue = await ctx.queue()
    for path in (
        "/no/such",
        f"{API}/queue",
        f"{API}/queues/{queue}/",
        f"{API}//queues",
        f"{API}/queues/../queues",
        "/v1/v1/topics",
    ):
        ctx.refused(await ctx.me.get(path), 404)
    for method, path in (("DELETE", f"{API}/queues"), ("PUT", f"{API}/queues/{queue}/messages"), ("PATCH", "/health")):
        answer = await ctx.me.ask(method, path)
        ctx.refused(answer, 405)
        ctx.must(bool(answer.header("allow")), f"expected Allow; seen {answer}")
    for query in ("limit=many", "limit=0", "limit=1e3", "limit=99999999"):
        ctx.refused(await ctx.me.get(f"{API}/queues/{queue}/messages?{query}"), 400)
    ctx.refused(await ctx.me.get(f"{API}/queues/{queue}/partitions/x/messages"), 400)
    for path in (
        f"{API}/queues/%00",
        f"{API}/queues/%ff",
        f"{API}/queues/a%23/stats",
        f"{API}/queues/{'x' * 5_000}/stats",
    ):
        ctx.status(await ctx.me.get(path), 400, 404)


@http_case(
    "service/health-is-anybodys", QUEUES, clauses=("H-HEALTH-1", "H-HEALTH-2"), mutant="http-ready-without-checks"
)
async def health(ctx: HttpContext) -> None:
    """/health tells that the broker is there, /ready that it takes work, with its mode and checks.

    Without credentials, and also by HEAD.
    """
    stranger = ctx.client("stranger", anonymous=True)
    answer = await stranger.get("/health")
    ctx.status(answer, 200)
    ctx.must(bool(answer.at("status", kind=str)), f"expected a status; seen {answer}")
    ready = await stranger.get("/ready")
    ctx.status(ready, 200)
    ctx.same("status and mode", (ready.at("status"), ready.at("mode")), ("ready", "nominal"))
    for name, check in ready.at("checks", kind=dict).items():
        ctx.same(f"the check of {name}", check["status"], "up")
    ctx.must(bool(ready.at("checks")), f"expected checks; seen {ready}")


@http_case(
    "service/health-as-goqueue-has-it", TOPICS, clauses=("H-HEALTH-3", "H-HEALTH-4"), mutant="http-healthz-missing"
)
async def goqueue_health(ctx: HttpContext) -> None:
    """GoQueue's /healthz, /livez and /readyz are answered with 200, and /version tells what runs here.

    The first three without credentials.
    """
    stranger = ctx.client("stranger", anonymous=True)
    for path in ("/healthz", "/livez", "/readyz"):
        answer = await stranger.get(path)
        ctx.status(answer, 200)
        ctx.must(bool(answer.at("status", kind=str)), f"expected a status; seen {answer}")
    ctx.must(bool((await ctx.me.get("/version")).at("version", kind=str)), "expected a version")
    ctx.status(await ctx.me.get("/stats"), 200)


@http_case(
    "service/metrics-are-those-of-the-queue",
    QUEUES,
    clauses=("H-METRIC-1",),
    mutant="http-metrics-of-nothing",
    kills=("http-metrics-renamed", "http-metrics-without-groups", "http-metrics-mix-refusals"),
)
async def metrics(ctx: HttpContext) -> None:
    """/metrics has the documented figures of a queue and its group, with names as labels, in Prometheus' format.

    Of eight messages one is accepted, two rejected, three have failed, one is held and one left; another is delayed.
    Each family has its type.
    """
    queue = await ctx.queue()
    ctx.leaves(f"{API}/queues/dlq%2F{queue}")
    await ctx.fill(queue, *"abcdefgh", {"payload": "later", "delay": "1h"})
    taken = await ctx.take_all(queue, 7)
    await ctx.done(queue, "accept", taken[0])
    await ctx.done(queue, "reject", *taken[1:3])
    await ctx.done(queue, "fail", *taken[3:6], delay_s=600)
    answer = await ctx.me.get("/metrics")
    ctx.status(answer, 200)
    ctx.must(answer.header("content-type").startswith("text/plain"), f"expected text/plain; seen {answer}")
    lines = answer.body.decode().splitlines()
    ctx.must(
        all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines if line), "a line is malformed"
    )
    figures = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    for name, wanted in (
        ("mqtt_queue_depth", 5),
        ("mqtt_queue_in_flight", 1),
        ("mqtt_queue_delayed", 1),
        ("mqtt_queue_enqueue_total", 8),
        ("mqtt_queue_dequeue_total", 7),
        ("mqtt_queue_redelivered_total", 0),
        ("mqtt_queue_ack_total", 1),
        ("mqtt_queue_nack_total", 3),
        ("mqtt_queue_reject_total", 2),
        ("mqtt_queue_dead_letters", 2),
    ):
        ctx.same(name, float(figures.get(f'{name}{{queue="{queue}"}}', "nan")), float(wanted))
    ctx.same(
        "goqueue_messages_published_total",
        float(figures.get(f'goqueue_messages_published_total{{topic="{queue}"}}', "nan")),
        8.0,
    )
    labels = (f'queue="{queue}"', 'group="g"')
    for name in ("mqtt_queue_active_consumers", "mqtt_queue_group_lag"):
        in_any_order = [f"{name}{{{first},{second}}}" for first, second in permutations(labels)]
        seen = next((float(figures[each]) for each in in_any_order if each in figures), float("nan"))
        ctx.same(name, seen, 1.0)
    ctx.must("# TYPE mqtt_queue_depth gauge" in lines, "expected the type of mqtt_queue_depth")


@http_case(
    "service/the-document-is-served",
    QUEUES,
    clauses=("H-DOC-1",),
    mutant="http-document-without-paths",
    kills=("http-document-without-what-it-names",),
)
async def document(ctx: HttpContext) -> None:
    """The document of the interface is served as JSON (OpenAPI 3), with the routes of every API that is there.

    Each operation has its answers, and what a reference within the document names is there.
    """
    answer = await ctx.me.get(f"{API}/openapi.json")
    ctx.status(answer, 200)
    ctx.must(answer.at("openapi", kind=str).startswith("3."), f"expected OpenAPI 3; seen {answer.at('openapi')}")
    paths = answer.at("paths", kind=dict)
    for path in (f"{API}/queues", f"{API}/queues/{{queue}}/messages", f"{API}/topics", "/publish"):
        ctx.must(path in paths, f"expected {path} among {len(paths)} paths")
    for path, operations in paths.items():
        for method, operation in operations.items():
            ctx.must(method == "parameters" or bool(operation["responses"]), f"expected answers of {method} {path}")
    named = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(paths)))
    missing = [name for name in sorted(named) if _at(answer.json, name) is None]
    ctx.must(not missing, f"expected what the document names; it has no {missing[:5]}")


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; None if it leads nowhere."""
    for step in pointer.split("/"):
        document = document.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(document, dict) else None
    return document


@http_case(
    "service/limits-are-told",
    QUEUES,
    TOPICS,
    clauses=("H-LIMIT-6", "H-ERR-8"),
    settings={
        "http": {"max_waiting": 1, "max_consumers": 2},
        "queues": {"max_queues": 3, "max_groups": 2, "max_partitions": 8},
    },
    mutant="http-limits-are-500",
    kills=("http-busy-tells-no-time", "http-any-number-waits"),
    limit_s=8.0,
)
async def limits(ctx: HttpContext) -> None:
    """What is over a limit of the broker is refused: another long poll, consumer, group, queue, topic or partition.

    Who waits meanwhile gets the message that comes. What was refused is there by nothing.
    """
    queues = [await ctx.queue() for _ in range(3)]
    full = (409, 429, 503)
    ctx.refused(await ctx.me.post(f"{API}/queues", {"name": ctx.name()}), full, "limit")
    ctx.refused_as_goqueue(await ctx.me.post("/topics", {"name": ctx.name(), "num_partitions": 1}), *full)
    ctx.refused(await ctx.me.put(f"{API}/queues/{queues[0]}/partitions", {"count": 9}), full, "limit")
    ctx.same("the queues", (await ctx.me.get(f"{API}/queues")).at("queues"), sorted(queues))
    path = f"{API}/queues/{queues[0]}/consume"
    other = f"{API}/queues/{queues[1]}/consume"
    async with ctx.long_poll(queues[0]) as poll:
        busy = await poll.beside(lambda: ctx.me.post(other, {"group": "g", "wait_s": ctx.wait_s()}))
        ctx.refused(busy, 503, "busy")
        ctx.must(busy.header("retry-after").isdecimal(), f"expected Retry-After; seen {busy}")
        ctx.refused(await ctx.me.post(path, {"group": "g", "consumer": "three"}), full, "limit")
        ctx.refused(await ctx.me.post(f"{API}/queues/{queues[2]}/groups", {"group": "g"}), full, "limit")
        await ctx.fill(queues[0], "late")
        ctx.same("the message", payloads((await poll.answer()).at("messages")), ["late"])


@http_case("service/the-log-is-said", QUEUES, VIEWS, clauses=("H-ERR-9", "H-ERR-4"), mutant="http-unsupported-is-500")
async def log(ctx: HttpContext) -> None:
    """How much is logged is told and set, or refused with 501 by a broker whose log is not its own.

    What is no level is refused in any case.
    """
    path = f"{API}/log"
    told = await ctx.me.get(path)
    ctx.status(told, 200, 501)
    if told.status == 200:
        level = told.at("level", kind=str)
        ctx.same("the level", (await ctx.me.put(path, {"level": level})).at("level"), level)
    else:
        ctx.refused(await ctx.me.put(path, {"level": "info"}), 501, "unsupported")
    ctx.refused(await ctx.me.put(path, {"level": "whisper"}), (400, 501))
