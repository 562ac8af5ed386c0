"""Bugs of the reference broker's HTTP: what is told of traces, of who asks, and of what is one's own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from assay.conformance.mutants import Patch, mutant, variation
from assay.conformance.mutants.http import (
    Altered,
    Change,
    Scope,
    asks,
    hides,
    module,
    says,
    tells,
    without_query,
)
from assay.conformance.mutants.http_messages import code
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.consumers import Members
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.queues import QueueErrorCode

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
