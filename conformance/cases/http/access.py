"""Who may ask what: users, tokens, access rules, tenants, pages of other sites."""

from __future__ import annotations

import hashlib
from typing import Any

from assay.conformance.http.client import HttpClient, basic
from assay.conformance.http.context import API, BRIDGE, QUEUES, HttpContext, http_case, payloads
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


_LISTENERS = [{"port": 0}, {"port": 0, "protocols": ["http"]}]
USERS: dict[str, Any] = {
    "listeners": _LISTENERS,
    "auth": {
        "anonymous": False,
        "users": [{"username": name, "password_hash": _HASH} for name in ("guest", "annabel", "maria")],
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
            {"topic": "$queue/open", "access": "read", "user": "maria"},
            {"topic": "$queue/#", "access": "readwrite", "user": "annabel"},
            {"topic": "$admin/#", "access": "readwrite", "user": "annabel"},
        ],
    },
    "queues": {
        "tenants": [{"name": "acme", "users": ["annabel"]}],
        "configured": [{"name": name, "partitions": 1} for name in ("open", "closed", "acme.own")],
    },
}
"""Guest may do everything, Maria read from one queue, Annabel is of a tenant; tokens of guest's by what they may do."""
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
    taken = await maria.post(f"{API}/queues/open/consume", {"group": "maria", "wait_s": 5})
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
    kills=("http-tenants-administer",),
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
    taken = await annabel.post(f"{API}/queues/own/consume", {"group": "g", "wait_s": 5})
    ctx.same("the message", payloads(taken.at("messages")), ["hers"])
    receipt = taken.at("messages", 0, "receipt", kind=str)
    settled = await annabel.post(f"{API}/queues/own/settle", {"outcome": "release", "receipts": [receipt]})
    ctx.status(settled, 200)
    joined = await annabel.post("/groups/g/join", {"client_id": "a", "topics": ["own"]})
    ctx.same("the topic of its partitions", list(joined.at("assignments", kind=dict)), ["own"])
    for path in ("closed", "acme.own", "open"):
        ctx.refused(await annabel.get(f"{API}/queues/{path}/stats"), (403, 404))
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
