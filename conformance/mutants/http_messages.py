"""Bugs of the reference broker's HTTP: messages published, read, consumed, settled by the queue routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.http import QUEUE, Scope, alters, answers, hides, module, routes, row, skips
from assay.reference_broker.api.consumers import Member, Members
from assay.reference_broker.api.publishing import Became, NewMessage
from assay.reference_broker.queues import Outcome, QueueErrorCode
from assay.reference_broker.queues.delivery.settle_request import SettleRequest
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.reference_broker.queues.groups.pending import PendingEntry
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, AckMode

_Q = QueueErrorCode
MESSAGES = f"{QUEUE}/messages"
PUBLISHES = f"({MESSAGES}|/api/v1/topics/[^/]+/messages)"


def code(name: str) -> Any:
    """Of a refusal before the engine is asked."""
    return import_module("assay.reference_broker.api.problems").Code[name]


def publishes(patch: Patch, make: Callable[[Any], Any]) -> None:
    """Replace how the routes publish, in each module that does."""
    for name in ("messages", "topics"):
        patch.wrap(routes(name), "publish", make)


def reads(name: str, what: str, change: Callable[[NewMessage], NewMessage]) -> None:
    """Register a bug: something of a message is not read as it was sent."""

    def apply(patch: Patch) -> None:
        def make(read: Callable[[Any], NewMessage]) -> Callable[[Any], NewMessage]:
            def altered(message: Any) -> NewMessage:
                found = read(message)
                return found if found.problem is not None else change(found)

            return altered

        patch.wrap(module("shapes").Publish, "read", make)

    mutant(name, what)(apply)


def drops(name: str, what: str, **fields: Any) -> None:
    """Register a bug: these fields of a message are not heeded."""
    reads(name, what, lambda found: msgspec.structs.replace(found, **fields))


def drops_option(name: str, what: str, **fields: Any) -> None:
    """Register a bug: these options of a publish are not heeded."""
    reads(
        name,
        what,
        lambda found: msgspec.structs.replace(found, options=msgspec.structs.replace(found.options, **fields)),
    )


# Publishing

drops("http-keys-dropped", "the key of a message is not heeded", key=None)
drops("http-headers-dropped", "headers do not come with their message", headers=())
drops_option("http-ttl-dropped", "no message expires", ttl_ms=None)
drops_option("http-priorities-dropped", "all messages are of one priority", priority=None)
reads(
    "http-binary-is-mended",
    "payloads are taken for text, and mended",
    lambda found: msgspec.structs.replace(found, payload=found.payload.decode(errors="replace").encode()),
)
answers(
    "http-partial-publish-is-200", "a publish is answered with 200 whatever became of it", "POST", PUBLISHES, 207, 200
)
answers(
    "http-refused-publish-is-200",
    "a publish of which nothing is taken is answered with 200",
    "POST",
    PUBLISHES,
    400,
    200,
)
hides("http-malformed-bodies-are-500", "what is not expected is told as a bug", code("BAD_REQUEST"), 500)
hides("http-full-is-400", "a queue that is full is told as a mistake of the client", _Q.FULL, 400)
hides("http-too-large-is-500", "a message that is too large is told as a bug", _Q.TOO_LARGE, 500)
mutant("http-no-retry-after", "who may come back is not told when")(lambda patch: row(patch, _Q.FULL, 429))


@mutant("http-empty-batch-taken", "a request without messages is fine")
def empty_batch_taken(patch: Patch) -> None:
    patch.replace(routes("messages"), "check_batch", lambda _service, _count: None)


def _shifted(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
    for each in told.get("results", ()):
        if "offset" in each:
            each["offset"] += 1
    return status, told


alters("http-places-of-publishes-lie", "a publish is told the place behind its own", "POST", MESSAGES, _shifted)


@mutant("http-last-of-a-batch-lost", "the last message of a batch is said to be where the one before it is")
def last_lost(patch: Patch) -> None:
    def make(original: Any) -> Any:
        async def publish(turns: Any, caller: Any, queue: str, messages: Sequence[Any]) -> list[Any]:
            found: list[Any] = await original(turns, caller, queue, messages[:-1] or messages)
            return found + found[-1:] * (len(messages) - len(found))

        return publish

    publishes(patch, make)


@mutant("http-partial-publish-stops-at-error", "what stands behind a message that is refused is not published")
def stops_at_error(patch: Patch) -> None:
    def make(original: Any) -> Any:
        async def publish(turns: Any, caller: Any, queue: str, messages: Sequence[Any]) -> list[Any]:
            found: list[Any] = []
            for message in messages:
                failed = next((each.error for each in found if each.error is not None), None)
                one = [Became(error=failed)] if failed else await original(turns, caller, queue, [message])
                found += one
            return found

        return publish

    publishes(patch, make)


# Reading


def _behind(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
    return status, {**told, "next_offset": told["next_offset"] - 1} if "next_offset" in told else told


def _reversed(_scope: Scope, status: int, told: Any) -> tuple[int, Any]:
    return status, {**told, "messages": told["messages"][::-1]} if "messages" in told else told


READS = f"({QUEUE}|/api/v1/topics/[^/]+)(/partitions/[^/]+)?/messages"
alters("http-next-offset-is-last", "reading goes on at the last message again", "GET", READS, _behind)
alters("http-browse-shows-newest", "browsing begins with the newest", "GET", MESSAGES, _reversed)


@mutant("http-cursors-dropped", "every place is the earliest")
def cursors_dropped(patch: Patch) -> None:
    patch.wrap(routes("messages"), "cursor_of", lambda cursor_of: lambda text: cursor_of(text) and EARLIEST)


@mutant("http-texts-unchecked", "texts that MQTT cannot carry are taken, unless they are too long")
def texts_unchecked(patch: Patch) -> None:
    owners = [import_module(f"assay.reference_broker.api.{name}") for name in ("publishing", "bridge")]

    def make(check: Callable[..., None]) -> Callable[..., None]:
        def only_lengths(topic: str, texts: Any, headers: Any) -> None:
            clean = str.maketrans("\0+#", "   ")
            pairs = [(name.translate(clean), value.translate(clean)) for name, value in headers]
            check(topic.translate(clean), [text and text.translate(clean) for text in texts], pairs)

        return only_lengths

    for owner in owners:
        patch.wrap(owner, "check_carried", make)


@mutant("http-letters-keep-nul", "dead letters say whatever was said of them")
def letters_keep_nul(patch: Patch) -> None:
    letters = import_module("assay.reference_broker.queues.dead_letters.dead_letters")
    patch.replace(letters, "carried", lambda text: text)


# Consuming


def polls(name: str, what: str, change: Callable[[int, float], tuple[int, float]]) -> None:
    """Register a bug: how many messages a poll takes, and how long it waits, is not as it was asked."""

    def apply(patch: Patch) -> None:
        def make(poll: Any) -> Any:
            async def altered(self: Member, most: int, wait_s: float, gone: Any, **more: Any) -> Any:
                return await poll(self, *change(most, wait_s), gone, **more)

            return altered

        patch.wrap(Member, "poll", make)

    mutant(name, what)(apply)


polls("http-consume-gives-all", "a request gets all that there is", lambda _most, wait_s: (1_000, wait_s))
polls("http-long-polls-return-at-once", "nobody waits for messages", lambda most, _wait_s: (most, 0.0))
hides("http-in-use-is-500", "what is in use is told as a bug", _Q.IN_USE, 500)
answers("http-leave-is-404", "who leaves is told that there is nothing here", "POST", f"{QUEUE}/leave", 200, 404)


@mutant("http-groups-are-one", "all groups are one")
def groups_are_one(patch: Patch) -> None:
    patch.wrap(
        Members,
        "one_of",
        lambda one_of: lambda self, caller, queue, _group, *rest: one_of(self, caller, queue, "g", *rest),
    )


@mutant("http-patterns-dropped", "a consumer gets messages of any routing key")
def patterns_dropped(patch: Patch) -> None:
    def make(one_of: Any) -> Any:
        def altered(
            self: Members, caller: Any, queue: str, group: str, consumer: str, _pattern: str, options: Any
        ) -> Any:
            return one_of(self, caller, queue, group, consumer, "", options)

        return altered

    patch.wrap(Members, "one_of", make)


@mutant("http-leaving-keeps", "who leaves keeps what it holds")
def leaving_keeps(patch: Patch) -> None:
    patch.replace(Member, "leave", lambda _self: None)


@mutant("http-silent-consumers-stay", "nobody is taken out for being silent")
def silent_stay(patch: Patch) -> None:
    patch.wrap(
        Members,
        "add",
        lambda add: lambda self, caller, group, member_id, **_: add(self, caller, group, member_id, bound=True),
    )


@mutant("http-gone-clients-keep", "whether the client of a request is still there is not looked at")
def gone_clients_keep(patch: Patch) -> None:
    def gone_of(_request: Any) -> Any:
        async def gone() -> None:
            await asyncio.get_running_loop().create_future()

        return gone

    for name in ("messages", "groups"):
        patch.replace(routes(name), "gone_of", gone_of)


def _subscribes_without(name: str, what: str, **fields: Any) -> None:
    def apply(patch: Patch) -> None:
        patch.wrap(routes("messages"), "SubscribeOptions", lambda make: lambda **asked: make(**{**asked, **fields}))

    mutant(name, what)(apply)


_subscribes_without("http-prefetch-dropped", "a consumer holds as many messages as there are", prefetch=0)
_subscribes_without("http-auto-ack-dropped", "every consumer must settle", ack_mode=AckMode.EXPLICIT)

# Settling


def _takes_for(name: str, what: str, **outcomes: str) -> None:
    def apply(patch: Patch) -> None:
        patch.replace(routes("messages"), "Outcome", lambda said: Outcome(outcomes.get(said, said)))

    mutant(name, what)(apply)


def _settles_without(name: str, what: str, **fields: Any) -> None:
    def apply(patch: Patch) -> None:
        patch.wrap(routes("messages"), "SettleRequest", lambda make: lambda **asked: make(**{**asked, **fields}))

    mutant(name, what)(apply)


SETTLE = f"{QUEUE}/settle"
skips("http-accept-settles-nothing", "settlements are answered, and forgotten", "POST", SETTLE, {"settled": 2})
answers(
    "http-settling-again-is-fine", "what is settled already is settled again", "POST", SETTLE, 404, 200, {"settled": 1}
)
answers(
    "http-old-receipts-settle", "a receipt of an earlier delivery is as good", "POST", SETTLE, 409, 200, {"settled": 1}
)
_takes_for("http-fail-is-accept", "what has failed is done", fail="accept")
_takes_for("http-release-is-fail", "what is given back untried has failed", release="fail")
_takes_for("http-reject-is-accept", "what is rejected is done", reject="accept")
_settles_without("http-delay-of-fail-dropped", "what has failed is tried again at once", delay_s=None)
_settles_without("http-extensions-dropped", "an extension is for as long as any delivery", extend_s=None)
_settles_without("http-reasons-dropped", "dead letters do not say why", reason="")


@mutant("http-release-of-several-is-fail", "of several messages that are given back untried each has failed")
def release_of_several_is_fail(patch: Patch) -> None:
    def make(original: Callable[..., SettleRequest]) -> Callable[..., SettleRequest]:
        def request(**asked: Any) -> SettleRequest:
            several = asked["outcome"] is Outcome.RELEASE and len(asked["receipts"]) > 1
            return original(**{**asked, "outcome": Outcome.FAIL if several else asked["outcome"]})

        return request

    patch.wrap(routes("messages"), "SettleRequest", make)


@mutant("http-release-begins-anew", "what is given back untried has no earlier deliveries any more")
def release_begins_anew(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def give_back(self: ConsumerGroup, entry: PendingEntry, *rest: Any) -> None:
            entry.delivery_count = 1
            original(self, entry, *rest)

        return give_back

    patch.wrap(ConsumerGroup, "give_back", make)
