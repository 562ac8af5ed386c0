"""Bugs of the reference broker's HTTP: GoQueue's topics, groups, settlements, delays, producers and transactions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.http import QUEUE, answers, hides, module, routes, says, skips, tells
from assay.conformance.mutants.http_messages import drops_option
from assay.reference_broker.api.consumers import Member
from assay.reference_broker.queues import Outcome, QueueError, QueueErrorCode, SettleRequest

_Q = QueueErrorCode
TOPIC = "/api/v1/topics/[^/]+"
GROUP = "/api/v1/groups/[^/]+"
ACKS = "/api/v1/messages"
TRANSACTIONS = "/api/v1/transactions"

# Topics


@mutant("http-topics-have-one-partition", "a topic has one partition, whatever is asked for")
def one_partition(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def create(self: Any, name: str, settings: dict[str, Any], *rest: Any) -> Any:
            return original(self, name, {**settings, "partitions": 1}, *rest)

        return create

    patch.wrap(import_module("assay.reference_broker.queues.engine").QueueEngine, "create_queue", make)


@mutant("http-v1-not-served", "GoQueue's routes are not below /v1")
def v1_not_served(patch: Patch) -> None:
    def make(path_of: Callable[[bytes], str]) -> Callable[[bytes], str]:
        return lambda raw: "/v1/none" if raw.startswith(b"/v1/") else path_of(raw)

    patch.wrap(module("guard"), "path_of", make)


@mutant("http-topics-are-apart", "topics are queues of other names")
def topics_apart(patch: Patch) -> None:
    patch.wrap(routes("topics"), "queue_in", lambda find: lambda call, topic: f"topic-{find(call, topic)}")


def _without_leaders(told: Any) -> Any:
    return {**told, "partitions": [{**each, "isr": []} for each in told["partitions"]]}


def _offsets_behind(told: Any) -> Any:
    return {**told, "partition_offsets": {name: {"earliest": 0, "latest": 0} for name in told["partition_offsets"]}}


def _priority_lost(told: Any) -> Any:
    return {**told, "results": [{**each, "priority": "normal"} for each in told["results"]]}


def _cut(told: Any) -> Any:
    return {**told, "messages": [{**each, "value": each["value"][:4]} for each in told["messages"]]}


tells("http-partitions-without-leader", "no replica is in sync", "GET", f"{TOPIC}/partitions", _without_leaders)
tells("http-topic-offsets-lie", "every partition is said to be empty", "GET", TOPIC, _offsets_behind)
tells(
    "http-topic-results-lie",
    "every message is told to be of normal priority",
    "POST",
    f"{TOPIC}/messages",
    _priority_lost,
)
tells(
    "http-topic-values-cut",
    "a read shows the first characters of a value",
    "GET",
    f"{TOPIC}/partitions/[^/]+/messages",
    _cut,
)
skips("http-topics-stay", "a topic is said to be deleted", "DELETE", TOPIC, {"deleted": True, "name": "it"})

# Delayed messages

drops_option("http-delays-dropped", "a delay is not heeded", delay_ms=None)
drops_option("http-deliver-at-dropped", "a time of delivery is not heeded", deliver_at_ms=None)
DELAYED = f"({TOPIC}|{QUEUE})/delayed"
tells(
    "http-delayed-list-is-empty", "no message waits", "GET", DELAYED, lambda told: {**told, "messages": [], "count": 0}
)
tells(
    "http-delay-stats-are-zero",
    "figures of delays are empty",
    "GET",
    "/api/v1/delay/stats",
    lambda _told: {"topics": {}},
)
skips(
    "http-cancelling-does-nothing",
    "a delayed message is said to be cancelled",
    "DELETE",
    f"{DELAYED}/.*",
    {"canceled": True, "cancelled": True},
)


def _shifted(told: Any) -> Any:
    for topic in told["topics"].values():
        for place in topic["partitions"].values():
            place["ready"] = place["ready"][1:] + place["ready"][:1]
    return told


tells(
    "http-priority-figures-shift", "figures are those of the priority below", "GET", "/api/v1/priority/stats", _shifted
)


@mutant("http-no-delay-is-400", "a delay that is over already is refused")
def no_delay_refused(patch: Patch) -> None:
    def make(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def strict(message: Any) -> Any:
            found = read(message)
            if message.delay is not None and message.delay.startswith("-"):
                return msgspec.structs.replace(found, problem=QueueError(_Q.BAD_OPTION, "no delay"))
            return found

        return strict

    patch.wrap(routes("topics").TopicMessage, "read", make)


# Groups

says("http-join-without-partitions", "who joins is told no partitions", "POST", f"{GROUP}/join", partitions=[])
tells("http-group-list-empty", "no group is listed", "GET", "/api/v1/groups", lambda _told: {"groups": []})
answers("http-groups-with-members-go", "a group with members is said to be deleted", "DELETE", GROUP, 409, 200, {})
hides("http-unknown-members-are-500", "an unknown member is told as a bug", _Q.UNKNOWN_MEMBER, 500)
answers(
    "http-stale-generations-taken", "a heartbeat of any generation is fine", "POST", f"{GROUP}/heartbeat", 409, 200, {}
)
answers("http-foreign-commits-are-fine", "offsets of any topic are committed", "POST", f"{GROUP}/offsets", 403, 200, {})
skips("http-commits-forgotten", "offsets are said to be committed", "POST", f"{GROUP}/offsets", {"success": True})


def _without_handles(told: Any) -> Any:
    for some in told["messages"].values():
        for each in some:
            each["receipt_handle"] = ""
    return told


def _next_is_last(told: Any) -> Any:
    return {**told, "next_offset": {name: offset - 1 for name, offset in told["next_offset"].items()}}


tells("http-poll-without-handles", "polled messages have no receipt handles", "GET", f"{GROUP}/poll", _without_handles)
tells("http-poll-next-offset-lies", "a poll goes on at its last message", "GET", f"{GROUP}/poll", _next_is_last)


@mutant("http-only-first-topic-polled", "a member is polled for the first of its topics")
def only_first_topic(patch: Patch) -> None:
    def make(join: Callable[..., None]) -> Callable[..., None]:
        def only_first(self: Member, *arguments: Any) -> None:
            if not self.consumers:
                join(self, *arguments)

        return only_first

    patch.wrap(Member, "join", make)


@mutant("http-assignment-stands-still", "a member is told what it was assigned first")
def assignment_stands_still(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def heartbeat(self: Member, generation: int | None = None) -> None:
            original(self, generation)
            first = self.__dict__.setdefault("first_assigned", dict(self.assigned))
            self.assigned = dict(first)

        return heartbeat

    patch.wrap(Member, "heartbeat", make)


@mutant("http-cooperative-join-passes", "a cooperative join of a topic that rebalances eagerly is an eager one")
def cooperative_passes(patch: Patch) -> None:
    kinds = routes("groups").RebalanceProtocol

    class Both:
        COOPERATIVE = kinds.EAGER
        EAGER = kinds.COOPERATIVE

    patch.replace(routes("groups"), "RebalanceProtocol", Both)


# Settlements

says(
    "http-committed-offset-jumps",
    "the committed offset is what was settled last",
    "POST",
    f"{ACKS}/ack",
    committed_offset=3,
)
says("http-in-flight-not-counted", "nothing is in flight", "POST", f"{ACKS}/ack", in_flight_count=0)
hides("http-settled-handles-are-500", "what is settled already is told as a bug", _Q.NOT_PENDING, 500)
says(
    "http-last-nack-says-requeued",
    "a nack always says that the message comes again",
    "POST",
    f"{ACKS}/nack",
    action="requeued",
)
says(
    "http-nacks-tell-no-time",
    "a nack tells not when the message comes again",
    "POST",
    f"{ACKS}/nack",
    next_visible_at=None,
)


@mutant("http-nacks-of-what-is-gone-are-404", "a nack that leaves nothing of its message is told as one of nothing")
def nacks_of_what_is_gone(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        async def settle_held(
            asking: Any, held: Any, wanted: Any, look: Callable[[Any], None] = lambda _left: None
        ) -> None:
            left: list[Any] = []
            await original(asking, held, wanted, look=left.append)
            look(left[0])
            if left[0] is None and wanted.outcome is Outcome.FAIL:
                raise QueueError(QueueErrorCode.NOT_PENDING, "message not found or already processed")

        return settle_held

    patch.wrap(module("routes.settling"), "settle_held", make)


skips(
    "http-visibility-dropped",
    "an extension is told only",
    "POST",
    f"{ACKS}/visibility",
    {"new_deadline": "T", "extended_by": 200},
)
answers("http-reject-without-reason", "a reject needs no reason", "POST", f"{ACKS}/reject", 400, 200, {"success": True})


def _settles_as(name: str, what: str, before: Outcome, after: Outcome) -> None:
    def apply(patch: Patch) -> None:
        def make(settle: Any) -> Any:
            async def other(call: Any, held: Any, wanted: SettleRequest, **more: Any) -> None:
                done = after if wanted.outcome is before else wanted.outcome
                await settle(call, held, msgspec.structs.replace(wanted, outcome=done), **more)

            return other

        patch.wrap(routes("settling"), "settle_held", make)

    mutant(name, what)(apply)


_settles_as("http-nack-acks", "a nack settles for good", Outcome.FAIL, Outcome.ACCEPT)
_settles_as("http-goqueue-reject-acks", "a reject settles for good", Outcome.REJECT, Outcome.ACCEPT)


@mutant("http-colons-end-handles", "a handle is read up to the first colon of its topic")
def colons_end_handles(patch: Patch) -> None:
    def make(find: Callable[..., Any]) -> Callable[..., Any]:
        def find_held(call: Any, handle: str) -> Any:
            if handle.count(":") > 4:
                raise QueueError(_Q.NOT_PENDING, "message not found or already processed")
            return find(call, handle)

        return find_held

    patch.wrap(routes("settling"), "find_held", make)


# Producers and transactions

answers(
    "http-fenced-producers-go-on",
    "a producer that was fenced goes on",
    "POST",
    "/api/v1/producers/.*/heartbeat",
    409,
    200,
    {},
)
hides("http-unknown-producers-are-500", "an unknown producer is told as a bug", _Q.UNKNOWN_PRODUCER, 500)
hides("http-transaction-state-is-500", "a transaction in another state is told as a bug", _Q.TRANSACTION_STATE, 500)
hides("http-unknown-transactions-are-500", "an unknown transaction is told as a bug", _Q.UNKNOWN_TRANSACTION, 500)
hides("http-bad-cursors-are-500", "a place that there is not is told as a bug", _Q.BAD_CURSOR, 500)
tells(
    "http-states-are-uncounted",
    "open transactions are not counted by state",
    "GET",
    f"{TRANSACTIONS}/stats",
    lambda told: {**told, "by_state": {}},
)


@mutant("http-any-transaction-is-ended", "a transaction ends whichever is named")
def any_transaction_is_ended(patch: Patch) -> None:
    producers = import_module("assay.reference_broker.api.producers")
    patch.wrap(producers, "open_of", lambda find: lambda broker, producer_id, _named="": find(broker, producer_id))


@mutant("http-transactions-never-time-out", "the time of a transaction is not heeded")
def transactions_never_time_out(patch: Patch) -> None:
    producers = import_module("assay.reference_broker.api.producers")

    def make(begin: Any) -> Any:
        async def patient(asking: Any, producer_id: int, epoch: int, name: str, _timeout_ms: int = 0) -> Any:
            asking.service.timeouts.pop(producer_id, None)
            return await begin(asking, producer_id, epoch, name)

        return patient

    patch.wrap(producers, "begin", make)


says(
    "http-duplicates-untold", "a duplicate is told as a new message", "POST", f"{TRANSACTIONS}/publish", duplicate=False
)
says("http-transaction-list-empty", "no transaction is open", "GET", TRANSACTIONS, transactions=[])
skips(
    "http-commits-are-not-done",
    "a commit is told only",
    "POST",
    f"{TRANSACTIONS}/commit",
    {"transaction_id": "t", "state": "committed"},
)


def _produces_without(name: str, what: str, **fields: Any) -> None:
    def apply(patch: Patch) -> None:
        patch.wrap(routes("transactions"), "PublishOptions", lambda make: lambda **asked: make(**{**asked, **fields}))

    mutant(name, what)(apply)


_produces_without("http-sequences-dropped", "messages of a producer have no numbers", sequence=None)
_produces_without("http-transactions-show-at-once", "messages of a transaction are plain ones", transaction_id=None)


@mutant("http-abort-commits", "an abort commits")
def abort_commits(patch: Patch) -> None:
    producers = import_module("assay.reference_broker.api.producers")

    def make(end: Any) -> Any:
        async def other(*arguments: Any, **more: Any) -> Any:
            return await end(*arguments, **{**more, "commits": True})

        return other

    patch.wrap(producers, "end", make)
