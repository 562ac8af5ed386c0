"""Who may ask what: users, tokens, access rules, tenants, pages of other sites."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import quote

from assay.conformance.http.client import HttpClient, basic
from assay.conformance.http.context import (
    API,
    BRIDGE,
    QUEUES,
    TOPICS,
    TRACES,
    VIEWS,
    HttpContext,
    http_case,
    payloads,
)
from assay.conformance.rules import Rule

_HASH = (
    "scrypt$16$8$1$636f6e666f726d616e63652d73616c74$0f5f1503658de6e051adfc1b109b14f4592fea24e86baedc7e344b71ddf3bde5"
)
"""Of the password "guest", cheap to check."""
_TOKENS = {
    "assay_r": ["read"],
    "assay_w": ["write"],
    "assay_rw": ["read", "write"],
    "assay_a": ["read", "write", "admin"],
}


def _kept(token: str) -> str:
    return f"sha256${hashlib.sha256(token.encode()).hexdigest()}"


_RIGHTS = {"annabel": "#", "gwen": "#", "sam": "#", "maria": "open"}
"""Of users beside guest: queues."""
_QUOTAS = {"max_queues": 1, "max_message_bytes": 500, "max_delay_hours": 1.0, "max_groups": 1}
_LISTENERS = [{"port": 0}, {"port": 0, "protocols": ["http"]}]
USERS: dict[str, Any] = {
    "listeners": _LISTENERS,
    "auth": {
        "anonymous": False,
        "users": [{"username": name, "password_hash": _HASH} for name in ("guest", *_RIGHTS)],
        "tokens": [
            {"name": text, "user": "guest", "scopes": scopes, "hash": _kept(text)} for text, scopes in _TOKENS.items()
        ]
        + [{"name": "old", "user": "guest", "hash": _kept("assay_old"), "expires_at": 1.0}],
    },
    "acl": {
        "default": "deny",
        "rules": [
            {"topic": "#", "access": "readwrite"},
            {"topic": "$queue/#", "access": "readwrite", "user": "guest"},
            {"topic": "$dlq/#", "access": "readwrite", "user": "guest"},
            {"topic": "$admin/#", "access": "readwrite", "user": "guest"},
            *(
                {"topic": f"{root}/{queues}", "access": "read" if user == "maria" else "readwrite", "user": user}
                for user, queues in _RIGHTS.items()
                for root in (("$queue",) if user == "maria" else ("$queue", "$dlq", "$admin"))
            ),
        ],
    },
    "queues": {
        "tenants": [
            {"name": "acme", "users": ["annabel"]},
            {"name": "acme2", "users": ["gwen"]},
            {"name": "small", "users": ["sam"], "quotas": _QUOTAS},
        ],
        "configured": [{"name": name, "partitions": 1} for name in ("open", "closed", "busy", "acme.own", "acme2.own")],
    },
    "tracing": {"enabled": True},
}
"""Guest may do everything, Maria read from one queue, the others are of a tenant each; tokens of guest's by what they
may do."""
BEYOND: dict[str, Any] = {
    "listeners": [{"port": 0}, {"port": 0, "host": "0.0.0.0", "protocols": ["http"]}],  # noqa: S104 - it is the point
    "testing": {"movable_clock": False},
}
"""Nobody has a name, and the listener is not on loopback."""


def _as(ctx: HttpContext, name: str) -> HttpClient:
    return ctx.client(name, basic(name, "guest"), anonymous=True)


def _with(ctx: HttpContext, token: str) -> HttpClient:
    return ctx.client(token, {"authorization": f"Bearer {token}"}, anonymous=True)


@http_case(
    "access/who-is-nobody-is-401",
    QUEUES,
    clauses=("H-AUTH-1", "H-AUTH-2", "H-HEALTH-1"),
    settings=USERS,
    mutant="http-anybody-asks",
    kills=("http-passwords-unchecked", "http-401-does-not-say-how"),
    together=True,
)
async def nobody(ctx: HttpContext) -> None:
    """Who does not say who it is, or says it wrongly, gets 401 and is told how to; only /health and /ready are open.

    A right password is taken by Basic and in FluxMQ's headers; a token that is unknown or has expired is not.
    """
    stranger = ctx.client("stranger", anonymous=True)
    for method, path, body in (
        ("GET", f"{API}/queues", None),
        ("POST", f"{API}/queues/open/messages", {"messages": [{"payload": "x"}]}),
        ("GET", f"{API}/no/such/route", None),
        ("GET", "/metrics", None),
        ("POST", "/publish", {"topic": "a"}),
        ("GET", "/topics", None),
    ):
        answer = await stranger.ask(method, path, body)
        ctx.step(Rule.HTTP_NOBODY, answer.status == 401, f"expected 401; seen {answer}", soft=True)
        ctx.must(bool(answer.header("www-authenticate")), f"expected WWW-Authenticate; seen {answer}")
    for path in ("/health", "/ready"):
        ctx.status(await stranger.get(path), 200)
    for headers in (
        basic("guest", "wrong"),
        basic("nobody", "guest"),
        {"authorization": "Basic !"},
        {"authorization": "Basic"},
        {"authorization": "Bearer assay_none"},
        {"authorization": "Bearer assay_old"},
        {"authorization": "Negotiate abc"},
        {"x-fluxmq-username": "guest", "authorization": "Bearer wrong"},
    ):
        ctx.refused(await stranger.get(f"{API}/queues", headers=headers), 401, "unauthenticated")
    ctx.status(await _as(ctx, "guest").get(f"{API}/queues"), 200)
    for secret in ("Bearer guest", "Client guest", "guest"):
        named = {"x-fluxmq-username": "guest", "authorization": secret}
        ctx.status(await stranger.get(f"{API}/queues", headers=named), 200)


@http_case(
    "access/a-token-does-what-its-scopes-say",
    QUEUES,
    clauses=("H-AUTH-3",),
    settings=USERS,
    mutant="http-scopes-unchecked",
    kills=("http-readers-write",),
    together=True,
)
async def scopes(ctx: HttpContext) -> None:
    """A token allows what its scopes say and nothing else: 403 for each route that needs another one.

    By reading, writing and administering a queue; nothing of what was refused has happened.
    """
    publish = ("POST", f"{API}/queues/closed/messages", {"messages": [{"payload": "x"}]})
    consume = ("POST", f"{API}/queues/closed/consume", {"group": "scopes"})
    looks = ("GET", f"{API}/queues/closed/stats", None)
    cancels = ("DELETE", f"{API}/queues/closed/delayed/x", None)
    topic = ("POST", "/topics/closed/messages", {"messages": [{"value": "x"}]})
    bridge = ("POST", "/publish", {"topic": "a/b"})
    produces: tuple[str, str, Any] = ("POST", "/producers/init", {})
    manages: tuple[tuple[str, str, Any], ...] = (
        ("POST", f"{API}/queues", {"name": "made"}),
        ("PATCH", f"{API}/queues/closed", {"max_depth": 1}),
        ("POST", f"{API}/queues/closed/purge", {}),
        ("POST", f"{API}/queues/closed/dlq/replay", {}),
        ("DELETE", f"{API}/queues/closed", None),
        ("GET", f"{API}/sessions", None),
        ("POST", f"{API}/reload", {}),
        ("POST", "/topics", {"name": "made"}),
        ("DELETE", "/topics/closed", None),
        ("POST", "/admin/topics/closed/partitions", {"count": 2}),
    )
    for token, refused in (
        ("assay_r", (publish, cancels, topic, bridge, produces, *manages)),
        ("assay_w", (consume, looks, *manages)),
        ("assay_rw", manages),
    ):
        client = _with(ctx, token)
        for method, path, body in refused:
            ctx.status(await client.ask(method, path, body), 403)
    await ctx_none(ctx, "closed")
    for token, (method, path, body) in (("assay_r", looks), ("assay_w", publish), ("assay_rw", consume)):
        ctx.status(await _with(ctx, token).ask(method, path, body), 200)
    names = (await _as(ctx, "guest").get(f"{API}/queues")).at("queues", kind=list)
    ctx.must("made" not in names and "closed" in names, f"expected nothing made or deleted; seen {names}")


async def ctx_none(ctx: HttpContext, queue: str) -> None:
    """Nothing was published to a queue."""
    stats = await _as(ctx, "guest").get(f"{API}/queues/{queue}/stats")
    ctx.same("what was taken", stats.at("enqueued"), 0)


@http_case(
    "access/rules-hold-by-http",
    QUEUES,
    BRIDGE,
    clauses=("H-AUTH-6",),
    settings=USERS,
    mutant="http-rules-not-asked",
    together=True,
)
async def rules(ctx: HttpContext) -> None:
    """Access rules are asked as over every protocol: who may read a queue only neither writes to it nor sees others.

    Nor does it administer, or publish to a queue by the topic of MQTT.
    """
    maria = _as(ctx, "maria")
    await _as(ctx, "guest").post(f"{API}/queues/open/messages", {"messages": [{"payload": "x"}]})
    taken = await maria.post(f"{API}/queues/open/consume", {"group": "maria", "wait_s": ctx.wait_s(5)})
    ctx.same("what it may read", payloads(taken.at("messages")), ["x"])
    ctx.same("the queues that it sees", (await maria.get(f"{API}/queues")).at("queues"), ["open"])
    for method, path, body in (
        ("POST", f"{API}/queues/open/messages", {"messages": [{"payload": "x"}]}),
        ("POST", f"{API}/queues/closed/consume", {"group": "maria"}),
        ("GET", f"{API}/queues/closed/stats", None),
        ("GET", f"{API}/queues/closed/messages", None),
        ("GET", "/topics/closed", None),
        ("POST", f"{API}/queues/open/purge", {}),
        ("POST", f"{API}/queues", {"name": "mine"}),
        ("POST", "/publish", {"topic": "$queue/open", "payload": "eA=="}),
    ):
        ctx.status(await maria.ask(method, path, body), 403)
    ctx.status(await maria.post("/publish", {"topic": ctx.topic()}), 200)


@http_case(
    "access/tenants-see-their-own",
    QUEUES,
    "http_topics",
    clauses=("H-AUTH-7", "H-AUTH-8"),
    settings=USERS,
    mutant="http-tenants-see-all",
    kills=("http-tenants-administer", "queue-tenant-name-in-refusals"),
    together=True,
)
async def tenants(ctx: HttpContext) -> None:
    """Users of a tenant see and use its queues by their own names, and nobody else's; they do not administer.

    What they publish and settle carries their names, too.
    """
    annabel = _as(ctx, "annabel")
    ctx.same("the queues", (await annabel.get(f"{API}/queues")).at("queues"), ["own"])
    ctx.same("the topics", (await annabel.get("/topics")).at("topics"), ["own"])
    answer = await annabel.post(f"{API}/queues/own/messages", {"messages": [{"payload": "hers"}]})
    ctx.same("the id", answer.at("results", 0, "message_id", kind=str).partition(":")[0], "own")
    taken = await annabel.post(f"{API}/queues/own/consume", {"group": "g", "wait_s": ctx.wait_s(5)})
    ctx.same("the message", payloads(taken.at("messages")), ["hers"])
    receipt = taken.at("messages", 0, "receipt", kind=str)
    settled = await annabel.post(f"{API}/queues/own/settle", {"outcome": "release", "receipts": [receipt]})
    ctx.status(settled, 200)
    joined = await annabel.post("/groups/g/join", {"client_id": "a", "topics": ["own"]})
    ctx.same("the topic of its partitions", list(joined.at("assignments", kind=dict)), ["own"])
    for path in ("closed", "acme.own", "open"):
        answer = await annabel.get(f"{API}/queues/{path}/stats")
        ctx.refused(answer, (403, 404))
        text = answer.body.decode().replace("acme.own", "")
        ctx.must("acme." not in text, f"expected no names but her own; seen {answer}")
    bridged = await annabel.post("/publish", {"topic": "$queue/own", "payload": "eA=="})
    ctx.must("acme" not in bridged.body.decode(), f"expected no names but her own; seen {bridged}")
    wrong = await annabel.post(f"{API}/queues/own/messages", {"messages": [{"payload": "x", "partition": 9}]})
    ctx.must("acme." not in wrong.body.decode(), f"expected no names but her own; seen {wrong}")
    for method, path, body in (
        ("POST", f"{API}/queues", {"name": "mine"}),
        ("DELETE", f"{API}/queues/own", None),
        ("POST", f"{API}/queues/own/purge", {}),
        ("GET", f"{API}/sessions", None),
        ("GET", f"{API}/tenants", None),
    ):
        ctx.status(await annabel.ask(method, path, body), 403)


@http_case(
    "access/beyond-loopback-nobody-writes",
    QUEUES,
    BRIDGE,
    clauses=("H-AUTH-4",),
    settings=BEYOND,
    mutant="http-beyond-loopback-writes",
    together=True,
)
async def beyond(ctx: HttpContext) -> None:
    """On a listener that is not on loopback, who has no user name may read, and neither writes nor administers.

    Whatever it calls itself.
    """
    for headers in ({}, basic("admin", "admin"), {"x-client-id": "admin"}):
        client = ctx.client("far", headers, anonymous=True)
        for method, path, body in (
            ("POST", f"{API}/queues/q/messages", {"messages": [{"payload": "x"}]}),
            ("POST", "/publish", {"topic": "a/b"}),
            ("POST", "/m/a/c/b", b"x"),
            ("POST", "/topics/q/messages", {"messages": [{"value": "x"}]}),
            ("POST", f"{API}/queues", {"name": "q"}),
            ("DELETE", f"{API}/queues/q", None),
            ("POST", "/topics", {"name": "q"}),
            ("PUT", "/config", {"compatibility": "NONE"}),
            ("POST", f"{API}/reload", {}),
            ("GET", f"{API}/sessions", None),
        ):
            answer = await client.ask(method, path, body)
            ctx.step(Rule.HTTP_NOBODY, answer.status in (401, 403), f"expected 401 or 403; seen {answer}", soft=True)
    ctx.status(await ctx.client("far", anonymous=True).get(f"{API}/queues"), 200)


@http_case(
    "access/pages-of-other-sites-are-403",
    QUEUES,
    clauses=("H-AUTH-5", "H-ERR-5"),
    mutant="http-any-origin-asks",
    kills=("http-forms-are-taken", "http-any-host-is-meant"),
)
async def other_sites(ctx: HttpContext) -> None:
    """What a page of another site sends is refused, whatever it asks; so is what is meant for another host.

    By its Origin or Sec-Fetch-Site; a POST of a form by its type; a name that leads here by its Host.
    """
    queue = await ctx.queue()
    path, body = f"{API}/queues/{queue}/messages", {"messages": [{"payload": "x"}]}
    for headers in (
        {"origin": "https://example.org"},
        {"origin": "null"},
        {"origin": f"http://{ctx.authority}.example.org"},
        {"sec-fetch-site": "cross-site"},
    ):
        ctx.refused(await ctx.me.post(path, body, headers=headers), 403, "cross_site")
        ctx.refused(await ctx.me.get(path, headers=headers), 403, "cross_site")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        ctx.refused(await ctx.me.post(path, body, headers={"content-type": kind}), 415, "media_type")
    ctx.refused(await ctx.me.post(path, body, headers={"host": "example.org"}), 421, "misdirected")
    await ctx.none_left(queue)
    ctx.status(await ctx.me.post(path, body, headers={"origin": f"http://{ctx.authority}"}), 200)
    answer = await ctx.me.get(path)
    ctx.must(not answer.header("access-control-allow-origin"), "expected no header that lets other sites read it")
    ctx.must(not answer.header("set-cookie"), "expected no cookie")


# Who one is, and what one's own is

_TRACE = "0af7651916cd43dd8448eb211c80319c"


@http_case(
    "access/who-one-is",
    QUEUES,
    VIEWS,
    clauses=("H-AUTH-9",),
    settings=USERS,
    mutant="http-everybody-is-guest",
    kills=("http-tenants-are-untold", "http-all-scopes-are-told"),
    near_miss="http-scopes-in-another-order",
    together=True,
)
async def who(ctx: HttpContext) -> None:
    """Whoever asks is told the user name, the tenant and the scopes that the broker takes it to have.

    Users, a user of a tenant, which never administers, and tokens; who is nobody is refused.
    """
    path = f"{API}/whoami"
    for client, username, tenant in (
        (_as(ctx, "guest"), "guest", None),
        (_as(ctx, "maria"), "maria", None),
        (_as(ctx, "annabel"), "annabel", "acme"),
        (_with(ctx, "assay_r"), "guest", None),
        (_with(ctx, "assay_w"), "guest", None),
        (_with(ctx, "assay_a"), "guest", None),
    ):
        # This route needs the scope to read.
        if client.name == "assay_w":
            ctx.refused(await client.get(path), 403, "not_allowed")
            continue
        answer = await client.get(path)
        ctx.status(answer, 200)
        ctx.same("user name and tenant", (answer.at("username"), answer.at("tenant")), (username, tenant))
        scopes = set(answer.at("scopes", kind=list))
        if client.name in _TOKENS:
            ctx.same(f"the scopes of {client.name}", scopes, set(_TOKENS[client.name]))
        ctx.must("read" in scopes, f"expected it to read; seen {answer}")
        ctx.must(tenant is None or "admin" not in scopes, f"expected no administrator; seen {answer}")
    ctx.refused(await ctx.client("stranger", anonymous=True).get(path), 401, "unauthenticated")


@http_case(
    "access/figures-are-of-ones-own",
    QUEUES,
    TOPICS,
    TRACES,
    VIEWS,
    clauses=("H-AUTH-7", "H-ADMIN-10", "H-ADMIN-14", "H-TRACE-5"),
    settings=USERS,
    mutant="http-everything-is-read",
    kills=("http-transactions-of-all", "http-members-are-anybodys", "http-totals-of-nothing"),
    together=True,
)
async def own_figures(ctx: HttpContext) -> None:
    """A user of a tenant is told figures, topics, groups, transactions and traces of its own queues, by its own names.

    Gwen's queue has four messages, each with another fate, and a delayed one; guest's have the same meanwhile.
    """
    gwen, guest = _as(ctx, "gwen"), _as(ctx, "guest")
    parent = {"traceparent": f"00-{_TRACE}-b7ad6b7169203331-01"}
    messages = [{"payload": each} for each in "abcd"] + [{"payload": "later", "delay": "1h"}]
    for client, queue in ((guest, "busy"), (gwen, "own")):
        path = f"{API}/queues/{queue}/messages"
        ctx.status(await client.post(path, {"messages": messages}, headers=parent), 200)
        started = await client.post("/producers/init", {"transactional_id": f"figures-{queue}"})
        who = {"producer_id": started.at("producer_id"), "epoch": started.at("epoch")}
        ctx.status(await client.post("/transactions/begin", who), 200)
    asked = {"group": "figures", "max_messages": 4, "wait_s": ctx.wait_s(5)}
    taken = (await gwen.post(f"{API}/queues/own/consume", asked)).at("messages", kind=list)
    ctx.same("the messages", payloads(taken), list("abcd"))
    for each, outcome in zip(taken, ("accept", "reject", "fail"), strict=False):
        settled = {"outcome": outcome, "receipts": [each["receipt"]], "delay_s": 600 if outcome == "fail" else None}
        ctx.status(await gwen.post(f"{API}/queues/own/settle", settled), 200)
    overview = await gwen.get(f"{API}/overview")
    totals = [(await gwen.get(f"{API}/stats")).at("queues"), overview.at("stats", "queues")]
    for told in (*totals, (await gwen.get("/reliability/stats")).json):
        wanted = {
            "acked": 1,
            "rejected": 1,
            "nacked": 1,
            "delivered": 4,
            "redelivered": 0,
            "delayed": 1,
            "in_flight": 1,
        }
        ctx.same("the figures", {name: told[name] for name in wanted}, wanted)
    ctx.same("the delayed ones", (await gwen.get("/delay/stats")).at("topics", "own", "pending"), 1)
    entries = await gwen.get(f"{API}/queues/own/groups/figures/pending")
    ids = {each["message_id"] for each in entries.at("entries", kind=list)}
    ctx.same("what is pending", ids, {"own:0:2", "own:0:3"})
    trace = await gwen.get(f"/traces/{_TRACE}")
    listed = (await gwen.get(f"{API}/stats/queues?dead_letters=true")).at("queues", kind=list)
    metrics = (await gwen.get("/metrics")).body.decode()
    for what, names in (
        ("topics", (await gwen.get("/topics")).at("topics", kind=list)),
        ("delays", (await gwen.get("/delay/stats")).at("topics", kind=dict)),
        ("priorities", (await gwen.get("/priority/stats")).at("topics", kind=dict)),
        ("figures", [each["queue"] for each in listed]),
        ("metrics", re.findall(r'mqtt_queue_depth\{queue="([^"]*)"', metrics)),
        ("steps of a trace", [trace.at("topic")] + [each["topic"] for each in trace.at("spans", kind=list)]),
        ("groups", [name for each in (await gwen.get("/groups")).at("groups") for name in each["topics"]]),
    ):
        ctx.must("own" in names, f"expected her queue in {what}; seen {sorted(names)}")
        ctx.must(set(names) <= {"own", "own.dlq", "$dlq/own"}, f"expected no others in {what}; seen {sorted(names)}")
    found = (await gwen.get("/transactions")).at("transactions", kind=list)
    ctx.same("the transactional ids", [each["transactional_id"] for each in found], ["figures-own"])
    ctx.same("how many are open", (await gwen.get("/transactions/stats")).at("open"), 1)
    joined = await guest.post("/groups/figures/join", {"client_id": "a", "topics": ["busy"]})
    member = quote(joined.at("member_id", kind=str), safe="")
    ctx.refused(await gwen.get(f"/groups/figures/poll?member_id={member}&timeout=0s"), (403, 404))
    ctx.refused(await _as(ctx, "maria").get(f"/traces/{'0' * 31}1"), 404, "unknown_trace")
    seen = await guest.get(f"/traces/{_TRACE}")
    ctx.must({"busy", "acme2.own"} <= {each["topic"] for each in seen.at("spans")}, f"expected both; seen {seen}")
    shown = await guest.get(f"{API}/tenants/acme")
    ctx.same("the queues of another tenant", shown.at("usage", "queues"), 1)


@http_case(
    "access/quotas-are-429",
    QUEUES,
    TOPICS,
    clauses=("H-AUTH-10", "H-ERR-8"),
    settings=USERS,
    mutant="http-quotas-are-500",
    kills=("http-quotas-are-not-asked",),
    together=True,
)
async def quotas(ctx: HttpContext) -> None:
    """What is over a quota of a tenant is refused with 429 and Retry-After, and nothing of it happens; the rest does.

    A large message, a long delay, a second queue and a second group of a tenant which may have one of each.
    """
    sam = _as(ctx, "sam")
    path = f"{API}/queues/only/messages"
    ctx.status(await sam.post(path, {"messages": [{"payload": "a"}]}), 200)
    asked = {"group": "g", "wait_s": ctx.wait_s(5)}
    ctx.same("the message", payloads((await sam.post(f"{API}/queues/only/consume", asked)).at("messages")), ["a"])
    for target, message in ((path, {"payload": "x" * 600}), (path, {"payload": "x", "delay": "2h"})):
        answer = await sam.post(target, {"messages": [message]})
        ctx.publish_refused(answer, 429, "quota")
        ctx.must(answer.header("retry-after").isdecimal(), f"expected Retry-After; seen {answer}")
    both = await sam.post(path, {"messages": [{"payload": "x" * 600}, {"payload": "b"}]})
    ctx.status(both, 207)
    second = await sam.post(f"{API}/queues/second/messages", {"messages": [{"payload": "a"}]})
    ctx.publish_refused(second, 429, "quota")
    ctx.refused(await sam.post(f"{API}/queues/only/consume", {"group": "second"}), 429, "quota")
    joined = await sam.post("/groups/third/join", {"client_id": "a", "topics": ["only"]})
    ctx.refused_as_goqueue(joined, 429)
    ctx.same("the queues", (await sam.get(f"{API}/queues")).at("queues"), ["only"])
    stats = await sam.get(f"{API}/queues/only/stats")
    ctx.same("what was taken, and waits", (stats.at("enqueued"), stats.at("delayed")), (2, 0))
    shown = await _as(ctx, "guest").get(f"{API}/tenants/small")
    ctx.same("its quotas", {name: shown.at("quotas", name) for name in _QUOTAS}, _QUOTAS)
    usage = [shown.at("usage", name) for name in ("queues", "partitions", "groups")]
    ctx.must(usage[0] == usage[2] == 1 and usage[1] >= 1, f"expected one queue and one group; seen {shown}")
