"""Bugs of the reference broker's HTTP: what is told of traces, of who asks, and of what is one's own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.http import (
    QUEUE,
    Altered,
    Change,
    Scope,
    answers,
    asks,
    hides,
    module,
    routes,
    row,
    says,
    skips,
    tells,
    without_query,
)
from assay.conformance.mutants.http_goqueue import GROUP
from assay.conformance.mutants.http_messages import code
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.consumers import Members
from assay.reference_broker.api.waiting import Slots
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.queues import QueueEngine, QueueErrorCode
from assay.reference_broker.queues.operations.group_operations import GroupOperations

API = "/api/v1"
TRACES = f"{API}/traces(/search|/[0-9a-f]{{32}})?"


def _told(change: Callable[[Any], Any]) -> Change:
    def altered(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
        return status, change(told) if status < 300 else told

    return altered


def _may_tell(name: str, what: str, path: str, change: Callable[[Any], Any]) -> None:
    """Register a variation: a successful answer to a GET is told in another way."""

    def apply(patch: Patch) -> None:
        patch.wrap(
            module("server"),
            "create_app",
            lambda make: lambda service: Altered(make(service), "GET", path, _told(change)),
        )

    variation(name, what)(apply)


# Traces


def _each_trace(told: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    for trace in told.get("traces", [told]):
        trace["spans"] = change(trace["spans"])
    return told


def _without_groups(told: Any) -> Any:
    return _each_trace(told, lambda spans: [{**each, "consumer_group": ""} for each in spans])


def _one_more(told: Any) -> Any:
    """A further step, and other names of all of them."""
    return _each_trace(
        told,
        lambda spans: [
            *({**each, "event_type": f"our.{number}"} for number, each in enumerate(spans)),
            {**spans[0], "span_id": "0000000000000001", "event_type": "our.own"},
        ],
    )


says(
    "http-traces-stand-still",
    "every trace is in progress for ever",
    "GET",
    f"{API}/traces/[0-9a-f]{{32}}",
    status="in_progress",
)
tells("http-traces-without-groups", "no step tells its group", "GET", TRACES, _without_groups)
_may_tell("http-traces-say-more", "traces have further steps, and steps other names", TRACES, _one_more)
asks("http-traces-found-by-nothing", "a search finds all traces", "GET", f"{API}/traces/search", without_query)
tells(
    "http-traces-oldest-first",
    "the trace that began first is the first",
    "GET",
    f"{API}/traces(/search)?",
    lambda told: {**told, "traces": told["traces"][::-1]},
)
says("http-traces-uncounted", "traces are not counted", "GET", f"{API}/traces(/search)?", count=0)
hides("http-unsupported-is-500", "what the broker does not do is told as a bug", code("UNSUPPORTED"), 500)

# Who one is

says("http-everybody-is-guest", "everybody is told to be guest", "GET", f"{API}/whoami", username="guest")
says("http-tenants-are-untold", "nobody is told its tenant", "GET", f"{API}/whoami", tenant=None)
says(
    "http-all-scopes-are-told",
    "everybody is told to have all scopes",
    "GET",
    f"{API}/whoami",
    scopes=["admin", "read", "write"],
)
_may_tell(
    "http-scopes-in-another-order",
    "scopes come in another order",
    f"{API}/whoami",
    lambda told: {**told, "scopes": told["scopes"][::-1]},
)

# One's own

mutant("http-everything-is-read", "whoever looks is told of the queues of others")(
    lambda patch: patch.replace(Caller, "reads", lambda _self, _queue: True)
)
says("http-totals-of-nothing", "figures of all queues count no settlement", "GET", f"{API}/reliability/stats", acked=0)


@mutant("http-transactions-of-all", "whoever looks is told of the transactions of others")
def transactions_of_all(patch: Patch) -> None:
    producers = import_module("assay.reference_broker.api.producers")
    patch.replace(producers, "visible", lambda asking: asking.service.engine.transactions.list())


@mutant("http-members-are-anybodys", "whoever knows the id of a member may ask for it")
def members_are_anybodys(patch: Patch) -> None:
    patch.rewrite(Members, "find", "found is None or found.owner != caller.owner", "found is None")


hides("http-quotas-are-500", "a quota that is used up is told as a bug", QueueErrorCode.QUOTA, 500)
mutant("http-quotas-are-not-asked", "a tenant publishes whatever its quotas say")(
    lambda patch: patch.replace(Tenant, "check_publish", lambda *_arguments: 0)
)


# Page by page


def _without(parameter: bytes) -> Callable[[Scope], None]:
    """A request is read as if it did not have a parameter."""

    def change(scope: Scope) -> None:
        scope["query_string"] = re.sub(parameter + b"=[^&]*&?", b"", scope["query_string"])

    return change


def _each(name: str, **members: Any) -> Callable[[Any], Any]:
    """Members of what is listed are others."""
    return lambda told: {**told, name: [{**each, **members} for each in told[name]]}


asks(
    "http-sessions-of-any-state", "sessions are told whatever their state", "GET", f"{API}/sessions", _without(b"state")
)
asks(
    "http-session-pages-repeat", "each page of sessions is the first", "GET", f"{API}/sessions", _without(b"page_token")
)
tells(
    "http-subscribers-uncounted",
    "every filter has one subscriber",
    "GET",
    f"{API}/subscriptions",
    _each("subscriptions", subscriber_count=1),
)
asks(
    "http-many-figures-are-of-the-first-page",
    "each page of figures is the first",
    "GET",
    f"{API}/stats/queues",
    _without(b"page_token"),
)
tells(
    "http-many-figures-are-zero",
    "figures of many queues are zero",
    "GET",
    f"{API}/stats/queues",
    _each("queues", depth=0, enqueued=0),
)
asks(
    "http-dead-letters-are-untold",
    "figures of many queues leave out dead letters",
    "GET",
    f"{API}/stats/queues",
    _without(b"dead_letters"),
)
asks("http-delayed-pages-repeat", "each page of what waits is the first", "GET", f"{QUEUE}/delayed", _without(b"after"))


@mutant("http-resets-all-partitions", "a reset is of all partitions, whichever is named")
def resets_all(patch: Patch) -> None:
    def make(reset: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: reset(*arguments, **{**named, "partition": None})

    patch.wrap(GroupOperations, "reset", make)


@mutant("http-claims-are-unlimited", "a claim takes all there is, however few are asked for")
def claims_unlimited(patch: Patch) -> None:
    patch.wrap(routes("administration"), "Claim", lambda make: lambda **asked: make(**{**asked, "limit": 100}))


@mutant("http-consumers-are-one", "all consumers of a group are one")
def consumers_are_one(patch: Patch) -> None:
    def make(one_of: Any) -> Any:
        async def other(self: Members, caller: Any, queue: str, group: str, _consumer: str, *more: Any) -> Any:
            return await one_of(self, caller, queue, group, "default", *more)

        return other

    patch.wrap(Members, "one_of", make)


tells(
    "http-groups-lag-by-one-topic",
    "the lag of a group is that of its first topic",
    "GET",
    GROUP,
    lambda told: {**told, "lag": told["lag"] // 2},
)
tells(
    "http-members-count-by-topic",
    "a member counts once for each of its topics",
    "GET",
    f"{API}/groups",
    lambda told: {"groups": [{**each, "members": each["members"] * len(each["topics"])} for each in told["groups"]]},
)
answers(
    "http-polls-of-any-generation",
    "a poll of an old generation is fine",
    "GET",
    f"{GROUP}/poll",
    409,
    200,
    {"topics": {}},
)
skips("http-groups-stay-behind", "a group is said to be deleted", "DELETE", GROUP, {"deleted": True, "group": "g"})


# Schemas

asks(
    "http-schemas-are-listed-whole",
    "the list of schemas is whole whatever is asked for",
    "GET",
    f"{API}/schemas",
    without_query,
)
says(
    "http-differences-are-untold", "a comparison does not tell why not", "POST", f"{API}/compatibility/.*", messages=[]
)
tells(
    "http-bare-schemas-are-others",
    "a bare schema is that of anything",
    "GET",
    f"{API}/(schemas|subjects)/.*/schema",
    lambda _told: {},
)


def _registry() -> Any:
    return import_module("assay.reference_broker.schemas.registry").Registry


@mutant("http-deleted-users-are-told", "who used a schema before it was deleted is told as one who does")
def deleted_users_are_told(patch: Patch) -> None:
    def make(users: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, number, **_deleted: users(self, number, deleted=True)

    patch.wrap(_registry(), "users", make)


@mutant("http-the-level-of-all-is-not-asked", "a subject without a level of its own has that of the configuration")
def level_of_all(patch: Patch) -> None:
    patch.rewrite(
        _registry(), "level", 'self._levels.get(subject) or self._levels.get("")', "self._levels.get(subject)"
    )


@mutant("http-the-mode-of-all-is-not-asked", "a subject without a mode of its own may change")
def mode_of_all(patch: Patch) -> None:
    patch.rewrite(_registry(), "mode", 'self._modes.get(subject) or self._modes.get("")', "self._modes.get(subject)")


@mutant("http-goqueue-deletes-for-good", "subjects are deleted for good at once")
def goqueue_deletes_for_good(patch: Patch) -> None:
    def make(delete: Any) -> Any:
        def both(self: Any, subject: str, *, permanent: bool = False) -> Any:
            found = delete(self, subject, permanent=permanent)
            return found if permanent else found._replace(changes=self._removed(subject, list(self._subjects[subject])))

        return both

    patch.wrap(_registry(), "delete_subject", make)


# Parts of messages


def _shows(name: str, what: str, function: str, **members: Any) -> None:
    """Register a bug: messages are shown with other members where they are read, or where they are given out."""

    def apply(patch: Patch) -> None:
        def make(shape: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments: msgspec.structs.replace(shape(*arguments), **members)

        patch.wrap(routes("messages"), function, make)

    mutant(name, what)(apply)


_shows("http-reads-lose-routing-keys", "what is read has no routing key", "stored", routing_key="")
_shows("http-reads-lose-priorities", "what is read is of normal priority", "stored", priority=2)
_shows("http-deliveries-lose-times", "what is given out tells not when it was taken", "received", enqueued_at=0.0)


@mutant("http-retention-is-dropped", "what a topic is created with is heeded but for its retention")
def retention_is_dropped(patch: Patch) -> None:
    def make(create: Callable[..., Any]) -> Callable[..., Any]:
        def other(self: QueueEngine, name: str, settings: dict[str, Any], *rest: Any) -> Any:
            return create(self, name, {key: value for key, value in settings.items() if key != "retention"}, *rest)

        return other

    patch.wrap(QueueEngine, "create_queue", make)


# Limits, streams, the bridge

hides("http-limits-are-500", "a limit that is reached is told as a bug", QueueErrorCode.LIMIT, 500)
hides("http-disks-that-refuse-are-500", "what the disk refuses is told as a bug", QueueErrorCode.STORAGE_FAILED, 500)
mutant("http-busy-tells-no-time", "who may come back when less is under way is not told when")(
    lambda patch: row(patch, code("BUSY"), 503)
)


@mutant("http-any-number-waits", "any number of requests wait for messages")
def any_number_waits(patch: Patch) -> None:
    patch.replace(Slots, "take", lambda _self, *_arguments: contextlib.nullcontext())


says(
    "http-bridge-says-matched",
    "the bridge says that somebody gets whatever it publishes",
    "POST",
    "/publish",
    matched=True,
)
says("http-bridge-without-ids", "the bridge does not tell the id of a message of a queue", "POST", "/publish", id=None)
asks(
    "http-streams-ignore-patterns",
    "a stream has messages of any routing key",
    "GET",
    f"{QUEUE}/stream",
    _without(b"pattern"),
)
asks(
    "http-streams-ignore-prefetch",
    "a stream holds as many messages as there are",
    "GET",
    f"{QUEUE}/stream",
    _without(b"prefetch"),
)


@mutant("http-watchers-get-no-headers", "who watches topics is told no properties")
def watchers_get_no_headers(patch: Patch) -> None:
    streams = routes("streams")
    patch.wrap(streams, "Watched", lambda make: lambda **told: make(**{**told, "headers": {}}))
