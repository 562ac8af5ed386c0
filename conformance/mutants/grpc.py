"""Bugs of the reference broker's gRPC, beside those of the faces' common part, which HTTP has as well; and what is left
to any broker that speaks it.

Modules are imported when a bug is planted: they need an extra, and take long.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.queues import Outcome, QueueError, QueueErrorCode, SettleRequest
from assay.reference_broker.queues.groups.contents import QueueContents

Serve = Callable[[Any, Any], Awaitable[Any]]
Make = Callable[[Serve, Any], Serve]
"""How a method is served, and the class of its answers, to how it is served instead."""
_Q = QueueErrorCode
FLUXMQ = r"fluxmq\..*"


def module(name: str) -> ModuleType:
    """Of the broker's gRPC."""
    return import_module(f"assay.reference_broker.grpc_api.{name}")


def plant(patch: Patch, methods: str, make: Make) -> None:
    """Serve methods, by a pattern of their whole names, in another way."""
    guard = module("guard")

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def handler(self: Any, method: Any, kind: Any, request: Any, response: Any) -> Any:
            if re.fullmatch(methods, kind.full_name):
                method = guard.Method(make(method.function, response), method.scope)
            return original(self, method, kind, request, response)

        return handler

    patch.wrap(guard.Guard, "handler", wrap)


def _serves(name: str, what: str, methods: str, make: Make) -> None:
    """Register a bug: methods, by a pattern of their whole names, are served in another way."""
    mutant(name, what)(lambda patch: plant(patch, methods, make))


def _writes(change: Callable[[Any], object]) -> Make:
    """What is sent is changed, or where ``change`` says False, not sent at all."""

    def make(function: Serve, _response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            write = call.write

            async def altered(message: Any) -> None:
                if change(message) is not False:
                    await write(message)

            call.write = altered
            return await function(call, asked)

        return serve

    return make


def _says(name: str, what: str, methods: str, **fields: Any) -> None:
    """Register a bug: answers have these values."""

    def change(message: Any) -> None:
        for field, value in fields.items():
            setattr(message, field, value)

    _serves(name, what, methods, _writes(change))


def _clears(name: str, what: str, methods: str, *fields: str) -> None:
    """Register a bug: answers lack these fields."""

    def change(message: Any) -> None:
        for field in fields:
            message.ClearField(field)

    _serves(name, what, methods, _writes(change))


def _asks(name: str, what: str, methods: str, **fields: Any) -> None:
    """Register a bug: requests are read as if they had these values."""

    def make(function: Serve, _response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            for field, value in fields.items():
                setattr(asked, field, value)
            return await function(call, asked)

        return serve

    _serves(name, what, methods, make)


def _skips(name: str, what: str, methods: str, answer: Callable[[Any], dict[str, Any]] = lambda _asked: {}) -> None:
    """Register a bug: nothing is done, and the answer says that it was."""

    def make(_function: Serve, response: Any) -> Serve:
        async def serve(_call: Any, asked: Any) -> Any:
            return response(**answer(asked))

        return serve

    _serves(name, what, methods, make)


def _messages_of(message: Any) -> list[Any]:
    """What consumers are told, in whatever answer."""
    if message.DESCRIPTOR.name == "Message":
        return [message]
    held = getattr(message, "messages", ())
    return list(getattr(held, "messages", held))


def _each(name: str, what: str, change: Callable[[Any], object]) -> None:
    """Register a bug: every message is told otherwise."""

    def altered(answer: Any) -> None:
        for each in _messages_of(answer):
            change(each)

    _serves(name, what, r".*\.(Read|ReadBatch|Consume|ConsumeQueue|Tail|Subscribe)", _writes(altered))


def _cut(message: Any) -> None:
    message.value = message.value[:1]


def _shift(message: Any) -> None:
    message.offset += 1


def _one_less(message: Any) -> None:
    message.next_offset -= 1


def _nowhere(message: Any) -> None:
    message.offset, message.exact_match = 0, False


def _nothing_committed(message: Any) -> None:
    message.committed.committed = 0


def _no_assignment(message: Any) -> bool:
    return not message.HasField("assignment")


def _settled_count(asked: Any) -> dict[str, Any]:
    return {"acked_count": len(asked.offsets) + len(asked.receipts)}


def _committed(asked: Any) -> dict[str, Any]:
    return {"results": [{"topic": each.topic, "partition": each.partition, "success": True} for each in asked.offsets]}


def _reset(asked: Any) -> dict[str, Any]:
    return {"results": [{"topic": each.topic, "partition": each.partition} for each in asked.partitions]}


_skips("grpc-delete-does-nothing", "a queue is said to be deleted", rf"{FLUXMQ}\.DeleteQueue")
_asks("grpc-list-forgets-prefix", "the list is whole whatever prefix is asked for", rf"{FLUXMQ}\.ListQueues", prefix="")
_says("grpc-purge-says-zero", "a purge does not say how many it took", rf"{FLUXMQ}\.Purge", messages_deleted=0)
_skips(
    "grpc-updates-do-nothing",
    "settings are said to be changed",
    rf"{FLUXMQ}\.UpdateQueue",
    lambda asked: {"config": asked.config},
)
_serves("grpc-offsets-shift", "an append is told the place behind its own", rf"{FLUXMQ}\.Append", _writes(_shift))
_each("grpc-values-cut", "consumers get the first byte of a value", _cut)
_each("grpc-headers-dropped", "consumers get no headers", lambda message: message.ClearField("headers"))
_serves(
    "grpc-next-offset-is-last", "reading goes on at the last message again", rf"{FLUXMQ}\.ReadBatch", _writes(_one_less)
)
_asks("grpc-tail-starts-at-zero", "a tail begins with the earliest", rf"{FLUXMQ}\.Tail", start_from=1)
_serves("grpc-seeks-find-nothing", "every place is the first", rf"{FLUXMQ}\.SeekTo.*", _writes(_nowhere))
_clears("grpc-groups-unlisted", "there are no groups", rf"{FLUXMQ}\.ListConsumerGroups", "groups")
_says("grpc-heartbeats-never-rejoin", "nobody has to join again", rf"{FLUXMQ}\.Heartbeat", should_rejoin=False)
_skips("grpc-acks-forgotten", "acknowledgements are told only", rf"{FLUXMQ}\.Ack", _settled_count)
_serves("grpc-committed-is-zero", "nothing is said to be committed", rf"{FLUXMQ}\.Ack", _writes(_nothing_committed))
_asks(
    "grpc-streams-hold-all",
    "a stream holds as many messages as there are",
    rf"{FLUXMQ}\.ConsumeQueue",
    max_in_flight=100,
)
_skips("grpc-claims-take-nothing", "nothing is claimed", rf"{FLUXMQ}\.Claim")
_clears("grpc-pending-is-empty", "nothing is pending", rf"{FLUXMQ}\.GetPending", "entries")
_skips("grpc-answers-before-the-disk", "an append is answered before its message is anywhere", rf"{FLUXMQ}\.Append")
_serves(
    "grpc-published-places-lie", "a publish is told the place behind its own", r"goqueue\..*\.Publish", _writes(_shift)
)
_asks("grpc-consume-starts-at-zero", "a consumer begins with the earliest", r"goqueue\..*\.Consume", start_position=0)
_says("grpc-correlation-lost", "answers say not what they are to", r"goqueue\..*\.PublishStream", correlation_id="")
_serves(
    "grpc-assignments-untold",
    "subscribers are not told their partitions",
    r"goqueue\..*\.Subscribe",
    _writes(_no_assignment),
)
_clears("grpc-batch-acks-all-succeed", "no ack of a batch fails", r"goqueue\..*\.BatchAck", "failures")
_skips("grpc-commits-forgotten", "offsets are said to be committed", r"goqueue\..*\.CommitOffsets", _committed)
_skips("grpc-resets-do-nothing", "offsets are said to be reset", r"goqueue\..*\.ResetOffsets", _reset)
_says("grpc-not-serving", "the broker says that it does not serve", r"goqueue\..*\.HealthService\.Check", status=2)


def _forgiving(_codes: tuple[QueueErrorCode, ...]) -> Make:
    def make(function: Serve, response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            try:
                return await function(call, asked)
            except QueueError as error:
                if _codes and error.code not in _codes:
                    raise
                return response()

        return serve

    return make


_serves(
    "grpc-refusals-are-ok", "what is refused is answered as if it were appended", rf"{FLUXMQ}\.Append.*", _forgiving(())
)
_serves(
    "grpc-fenced-go-on",
    "a producer that was fenced goes on",
    r"goqueue\..*\.BeginTransaction",
    _forgiving((_Q.FENCED,)),
)


def _instead(place: str, name: str) -> Make:
    """Another method's work is done."""

    def make(_function: Serve, response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            await getattr(module(place), name)(call, asked)
            return response()

        return serve

    return make


_serves("grpc-nacks-ack", "what is given back is done", rf"{FLUXMQ}\.Nack", _instead("fluxmq", "ack"))
_serves(
    "grpc-aborts-commit",
    "an abort commits",
    r"goqueue\..*\.AbortTransaction",
    _instead("goqueue_groups", "commit_transaction"),
)


@mutant("grpc-rejects-ack", "a reject settles for good")
def rejects_ack(patch: Patch) -> None:
    def make(settle: Any) -> Any:
        async def other(call: Any, held: Any, wanted: SettleRequest, **more: Any) -> None:
            done = Outcome.ACCEPT if wanted.outcome is Outcome.REJECT else wanted.outcome
            await settle(call, held, msgspec.structs.replace(wanted, outcome=done), **more)

        return other

    patch.wrap(module("goqueue_messages"), "settle_held", make)


def _told(patch: Patch, change: Callable[..., Any]) -> None:
    """Refusals are told otherwise: ``change(tell, error, is_goqueue)``."""

    def make(tell: Callable[..., Any]) -> Callable[..., Any]:
        return lambda error, *, is_goqueue=False: change(tell, error, is_goqueue)

    patch.wrap(module("guard"), "told", make)


@mutant("grpc-exists-is-internal", "a name that is taken is told as a bug")
def exists_is_internal(patch: Patch) -> None:
    def change(tell: Any, error: Any, is_goqueue: bool) -> Any:
        status, text, details = tell(error, is_goqueue=is_goqueue)
        return import_module("grpc").StatusCode.INTERNAL if error.code is _Q.EXISTS else status, text, details

    _told(patch, change)


@mutant("grpc-errors-without-numbers", "refusals have no numbers of GoQueue's")
def without_numbers(patch: Patch) -> None:
    _told(patch, lambda tell, error, _is_goqueue: tell(error, is_goqueue=False))


@mutant("grpc-anybody-asks", "who does not say who it is, is anybody")
def anybody_asks(patch: Patch) -> None:
    patch.wrap(
        module("guard"),
        "Credentials",
        lambda make: lambda **said: make(**said or {"username": "guest", "password": b"guest"}),
    )


# Pages, sizes, places and times

_asks("grpc-group-pages-repeat", "each page of groups is the first", rf"{FLUXMQ}\.ListConsumerGroups", page_token="")
_asks("grpc-pending-of-anybody", "what is pending is told of everybody", rf"{FLUXMQ}\.GetPending", consumer_id="")
_asks("grpc-claims-are-unlimited", "a claim takes all there is", rf"{FLUXMQ}\.Claim", limit=100)
_asks("grpc-patterns-are-dropped", "a group has no pattern", rf"{FLUXMQ}\.CreateConsumerGroup", pattern="")
_asks("grpc-reads-are-of-any-size", "a page is of any size", rf"{FLUXMQ}\.ReadBatch", max_bytes=0)
_asks("grpc-consumes-are-of-any-size", "a consumer is given any size", rf"{FLUXMQ}\.Consume", max_bytes=0)
_asks(
    "grpc-latest-is-earliest", "a reset to the latest is one to the earliest", r"goqueue\..*\.ResetOffsets", strategy=1
)
_asks("grpc-any-service-serves", "whatever service is asked for serves", r"goqueue\..*\.Check", service="")
_skips("grpc-added-partitions-are-dropped", "a partition is said to be added", r"goqueue\..*\.AddPartition")


def _reads_without(name: str, what: str, methods: str, *fields: str) -> None:
    """Register a bug: requests are read as if they lacked these fields."""

    def make(function: Serve, _response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            for field in fields:
                asked.ClearField(field)
            return await function(call, asked)

        return serve

    _serves(name, what, methods, make)


_reads_without("grpc-settings-are-dropped", "settings are not heeded", rf"{FLUXMQ}\.CreateQueue", "config")
_reads_without("grpc-delays-are-dropped", "a delay is not heeded", r"goqueue\..*\.Publish", "delay", "deliver_at")
_reads_without(
    "grpc-times-are-the-earliest",
    "every time is the earliest",
    r"goqueue\..*\.ConsumeService\.Consume",
    "start_position",
)
_reads_without(
    "grpc-nacks-come-at-once", "what is given back comes at once", r"goqueue\..*\.Nack", "visibility_timeout"
)
_each("grpc-tries-are-uncounted", "no message was tried before", lambda message: message.ClearField("retry_count"))


def _changed_results(name: str, what: str, method: str, change: Callable[[Any], object]) -> None:
    """Register a bug: each of the results of a call is told otherwise."""

    def altered(answer: Any) -> None:
        for each in getattr(answer, "results", None) or answer.offsets:
            change(each)

    _serves(name, what, rf"goqueue\..*\.{method}", _writes(altered))


_changed_results(
    "grpc-old-offsets-are-untold",
    "a reset tells not where the group was",
    "ResetOffsets",
    lambda each: each.ClearField("old_offset"),
)
_changed_results(
    "grpc-offsets-of-none",
    "a partition that there is not is told an offset",
    "FetchOffsets",
    lambda each: each.ClearField("error"),
)


@mutant("grpc-any-transaction-is-described", "whichever transaction is asked for, the one that began first is told")
def any_transaction_is_described(patch: Patch) -> None:
    producers = import_module("assay.reference_broker.api.producers")

    def make(visible: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        def first(asking: Any) -> list[Any]:
            found = visible(asking)
            return [msgspec.structs.replace(found[0], transaction_id=each.transaction_id) for each in found]

        return first

    patch.wrap(producers, "visible", make)


def _told_as(name: str, what: str, codes: tuple[Any, ...], status: str) -> None:
    """Register a bug: refusals have another status."""

    def apply(patch: Patch) -> None:
        def change(tell: Any, error: Any, is_goqueue: bool) -> Any:
            found, text, details = tell(error, is_goqueue=is_goqueue)
            is_meant = error.code in codes or str(error.code) in codes
            return (getattr(import_module("grpc").StatusCode, status) if is_meant else found), text, details

        _told(patch, change)

    mutant(name, what)(apply)


_UNKNOWN = (_Q.UNKNOWN_QUEUE, _Q.UNKNOWN_GROUP, _Q.UNKNOWN_MEMBER, _Q.UNKNOWN_PRODUCER, _Q.UNKNOWN_TRANSACTION)
_told_as("grpc-unknown-is-internal", "what is unknown is told as a bug", _UNKNOWN, "INTERNAL")
_told_as(
    "grpc-wrong-requests-are-internal",
    "what is no request is told as a bug",
    (_Q.BAD_OPTION, _Q.BAD_ADDRESS, "bad_request"),
    "INTERNAL",
)
_told_as("grpc-quotas-are-unavailable", "a quota is told as a broker that is not there", (_Q.QUOTA,), "UNAVAILABLE")


@mutant("grpc-unknown-has-no-number", "what is unknown has none of GoQueue's numbers")
def unknown_has_no_number(patch: Patch) -> None:
    _told(patch, lambda tell, error, is_goqueue: tell(error, is_goqueue=is_goqueue and error.code not in _UNKNOWN))


@mutant("grpc-readers-settle-for-all", "what a consumer without a group has read is removed before a first group comes")
def readers_settle_for_all(patch: Patch) -> None:
    patch.replace(QueueContents, "has_lasting_groups", property(lambda self: bool(self.groups)))


@variation("any-grpc-late", "every message takes a while", freedom="no rule says how soon a server answers")
def late(patch: Patch) -> None:
    def make(function: Serve, _response: Any) -> Serve:
        async def serve(call: Any, asked: Any) -> Any:
            await asyncio.sleep(0.05)
            return await function(call, asked)

        return serve

    plant(patch, ".*", make)


@variation("any-grpc-other-words", "texts of refusals are others", freedom="a status has its code for programs")
def other_words(patch: Patch) -> None:
    def change(tell: Any, error: Any, is_goqueue: bool) -> Any:
        status, _, details = tell(error, is_goqueue=is_goqueue)
        return status, "in other words", details

    _told(patch, change)
