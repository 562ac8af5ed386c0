"""Bugs of the reference broker's HTTP: who may ask, operators, limits, schemas, the bridge, streams, figures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.http import (
    QUEUE,
    alters,
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
from assay.conformance.mutants.http_messages import code
from assay.reference_broker.api.callers import ALL_SCOPES, Caller, Callers
from assay.reference_broker.api.consumers import Member, Members
from assay.reference_broker.api.desk import Desk
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.routing.message import Message

_Q = QueueErrorCode
API = "/api/v1"

# Operators

skips(
    "http-replay-does-nothing", "dead letters are said to be replayed", "POST", f"{QUEUE}/dlq/replay", {"replayed": 1}
)
says("http-dead-letters-uncounted", "there are no dead letters", "GET", f"{QUEUE}/dlq", current=0)
skips("http-purge-spares-letters", "dead letters are said to be purged", "POST", f"{QUEUE}/dlq/purge", {"purged": 1})
asks("http-pending-pages-repeat", "each page is the first", "GET", f"{QUEUE}/groups/g/pending", without_query)
skips(
    "http-reset-does-nothing",
    "a reset is told only",
    "POST",
    f"{QUEUE}/groups/g/reset",
    {"group": "g", "cursors": {"0": 1}},
)
says("http-consumers-unlisted", "nobody consumes", "GET", f"{QUEUE}/consumers", consumers=[])
skips("http-groups-not-made", "a group is said to be made", "POST", f"{QUEUE}/groups", {"group": "later"}, 201)
answers(
    "http-groups-with-consumers-go",
    "a group with consumers is said to be deleted",
    "DELETE",
    f"{QUEUE}/groups/.*",
    409,
    200,
    {},
)
skips("http-claims-take-nothing", "nothing is claimed", "POST", f"{QUEUE}/claim", {"messages": []})
skips("http-bindings-forgotten", "bindings are told only", "PUT", f"{QUEUE}/bindings", {"topics": []})
says("http-sessions-unlisted", "there are no sessions", "GET", f"{API}/sessions", sessions=[])
tells(
    "http-messages-are-mixed",
    "messages that are sent are told as received",
    "GET",
    f"{API}/stats",
    lambda told: {**told, "messages": {"received": told["messages"]["sent"], "sent": told["messages"]["received"]}},
)
says(
    "http-overview-without-queues",
    "the overview counts no queues",
    "GET",
    f"{API}/overview",
    stats={"queues": {"enqueued": 0}},
)
skips(
    "http-scaling-is-told-only",
    "more partitions are told only",
    "POST",
    f"{API}/admin/topics/.*",
    {"success": True, "old_partition_count": 2, "new_partition_count": 5, "partitions_added": 3},
)
says("http-tenants-unlisted", "there are no tenants", "GET", f"{API}(/admin)?/tenants", tenants=[])


@mutant("http-claims-take-all", "what was delivered just now is claimed as well")
def claims_take_all(patch: Patch) -> None:
    patch.wrap(routes("administration"), "Claim", lambda make: lambda **asked: make(**{**asked, "min_idle_s": 0.0}))


# Who may

mutant("http-scopes-unchecked", "scopes are not asked")(
    lambda patch: patch.replace(Caller, "require", lambda _self, _scope: None)
)


@mutant("http-readers-write", "who may read may write")
def readers_write(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def require(self: Caller, scope: Any) -> None:
            if str(scope) != "write" or not self.scopes:
                original(self, scope)

        return require

    patch.wrap(Caller, "require", make)


@mutant("http-rules-not-asked", "access rules are not asked")
def rules_not_asked(patch: Patch) -> None:
    for name in ("may_read", "may_write"):
        patch.replace(Caller, name, lambda _self, _topic: True)


def _finds(name: str, what: str, change: Callable[[Caller], None]) -> None:
    """Register a bug: a caller is taken for another."""

    def apply(patch: Patch) -> None:
        def make(original: Any) -> Any:
            async def find(*arguments: Any) -> Caller:
                caller: Caller = await original(*arguments)
                change(caller)
                return caller

            return find

        patch.wrap(Callers, "find", make)

    mutant(name, what)(apply)


def _forget_tenant(caller: Caller) -> None:
    caller.tenant = None


def _all_scopes(caller: Caller) -> None:
    caller.scopes = ALL_SCOPES


_finds("http-tenants-see-all", "users of tenants are taken for nobody's", _forget_tenant)
_finds("http-beyond-loopback-writes", "who has no name may do everything", _all_scopes)


@mutant("http-tenants-administer", "users of a tenant administer")
def tenants_administer(patch: Patch) -> None:
    patch.replace(Caller, "administer", lambda _self, _operation: None)


@mutant("http-anybody-asks", "who does not say who it is, is anybody")
def anybody_asks(patch: Patch) -> None:
    api = import_module("assay.reference_broker.api.callers")

    def make(read: Callable[..., Any]) -> Callable[..., Any]:
        def guessed(headers: dict[bytes, bytes]) -> Any:
            found = read(headers)
            return api.Credentials(username="guest", password=b"guest") if found == api.Credentials() else found

        return guessed

    patch.wrap(module("guard"), "credentials_of", make)


@mutant("http-passwords-unchecked", "any password will do")
def passwords_unchecked(patch: Patch) -> None:
    def make(read: Callable[..., Any]) -> Callable[..., Any]:
        def trusting(headers: dict[bytes, bytes]) -> Any:
            found = read(headers)
            return found if found.password is None else msgspec.structs.replace(found, password=b"guest")

        return trusting

    patch.wrap(module("guard"), "credentials_of", make)


@mutant("http-401-does-not-say-how", "a 401 does not tell how to say who one is")
def silent_401(patch: Patch) -> None:
    def make(refusal: Callable[..., Any]) -> Callable[..., Any]:
        def silent(error: Any) -> Any:
            status, headers, content = refusal(error)
            return status, [pair for pair in headers if pair[0] != b"www-authenticate"], content

        return silent

    patch.wrap(module("guard"), "refusal", make)


mutant("http-any-origin-asks", "pages of any site may ask")(
    lambda patch: patch.replace(module("guard"), "check_origin", lambda _headers: None)
)
mutant("http-forms-are-taken", "a POST of any type is taken")(
    lambda patch: patch.replace(module("guard"), "is_json", lambda _headers: True)
)
mutant("http-any-host-is-meant", "whatever host is named is this one")(
    lambda patch: patch.replace(module("guard"), "is_loopback", lambda _name: True)
)

# Limits, routes, health, figures

hides("http-no-route-is-500", "a path that is no route is told as a bug", code("NO_SUCH_ROUTE"), 500)
mutant("http-any-method", "a method that a route has not is told as a path that is none")(
    lambda patch: row(patch, code("METHOD_NOT_ALLOWED"), 404)
)
mutant("http-rates-unchecked", "anybody asks as often as it likes")(
    lambda patch: patch.replace(Desk, "check_rate", lambda _self, _client, **_: None)
)


@mutant("http-heads-have-all-time", "a head may take as long as it likes")
def heads_have_all_time(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **{**named, "header_timeout_s": 3_600.0})

        return init

    patch.wrap(module("protocol").HttpProtocol, "__init__", make)


@mutant("http-nonsense-unanswered", "what is no HTTP is neither answered nor ends the connection")
def nonsense_unanswered(patch: Patch) -> None:
    patch.replace(module("protocol").HttpProtocol, "send_400_response", lambda _self, _text: None)


@mutant("http-connections-repeat-themselves", "each answer on a connection is its first")
def repeat_themselves(patch: Patch) -> None:
    def make(original: Any) -> Any:
        first: dict[Any, list[dict[str, Any]]] = {}

        async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
            said = first.setdefault(scope["client"], [])
            if said:
                for message in said:
                    await send(message)
                return

            async def noting(message: dict[str, Any]) -> None:
                said.append(message)
                await send(message)

            await original(self, scope, receive, noting)

        return call

    patch.wrap(module("guard").Guard, "__call__", make)


tells("http-ready-without-checks", "what is up is not told", "GET", "/ready", lambda told: {**told, "checks": {}})
answers("http-healthz-missing", "GoQueue's health is not there", "GET", "/healthz", 200, 404)
says("http-document-without-paths", "the document is empty", "GET", f"{API}/openapi.json", paths={})
says(
    "http-document-without-what-it-names",
    "what the routes of the document share is not in it",
    "GET",
    f"{API}/openapi.json",
    components={},
)


_MIXED = {b"nack": b"_queue_reject_", b"reject": b"_queue_nack_"}


def _figures(name: str, what: str, change: Callable[[bytes], bytes]) -> None:
    def apply(patch: Patch) -> None:
        def make(original: Any) -> Any:
            async def exposition(*arguments: Any) -> bytes:
                return change(await original(*arguments))

            return exposition

        patch.wrap(routes("metrics"), "exposition", make)

    mutant(name, what)(apply)


_figures("http-metrics-of-nothing", "there are no figures", lambda _text: b"")
_figures(
    "http-metrics-without-groups",
    "groups have no figures",
    lambda text: re.sub(rb'[^\n]*,group="[^\n]*\n', b"", text),
)
_figures(
    "http-metrics-mix-refusals",
    "what was given back is told as rejected, and the other way round",
    lambda text: re.sub(rb"_queue_(nack|reject)_", lambda found: _MIXED[found[1]], text),
)
_figures("http-metrics-renamed", "figures have other names", lambda text: text.replace(b"mqtt_queue_", b"queue_"))

# Schemas

SUBJECT = f"{API}/subjects/[^/]+"
_registered = f"({SUBJECT}|{API}/schemas/subjects/[^/]+)/versions"


_further = itertools.count(1)


def _next_id(told: Any) -> Any:
    return {**told, "id": told["id"] + next(_further)}


tells("http-schema-ids-shift", "each registration is told another id", "POST", _registered, _next_id)
tells("http-subjects-unlisted", "there are no subjects", "GET", f"{API}/subjects", lambda _told: [])
hides("http-bad-schemas-are-500", "what is no schema is told as a bug", code("SCHEMA_REFUSED"), 500)
hides("http-misfits-are-500", "a message that does not fit is told as a bug", _Q.MISFIT, 500)
CONFIG = f"{API}/config/[^/]+"
skips("http-levels-not-kept", "a level is told only", "PUT", CONFIG, {"compatibility": "FORWARD"})
answers("http-any-level-taken", "any level is taken", "PUT", CONFIG, 422, 200, {"compatibility": "ANY"})
skips("http-modes-not-kept", "a mode is told only", "PUT", f"{API}/mode/[^/]+", {"mode": "READONLY"})
skips("http-schemas-stay", "versions are said to be deleted", "DELETE", f"{SUBJECT}.*", 1)
answers("http-goqueue-schemas-apart", "GoQueue's routes know no subject", "GET", f"{API}/schemas/subjects/.*", 200, 404)


def _unnumbered(_scope: Any, status: int, told: Any) -> tuple[int, Any]:
    return status, {**told, "error_code": 0} if status >= 400 else told


alters(
    "http-schema-numbers-missing",
    "refusals of the registry have no numbers",
    "GET DELETE POST",
    f"{API}/(subjects|schemas|compatibility)/.*",
    _unnumbered,
)


@mutant("http-latest-is-first", "the latest version is the first")
def latest_is_first(patch: Patch) -> None:
    patch.wrap(routes("schemas"), "version_in", lambda read: lambda text: read("1" if text == "latest" else text))


def _compares(name: str, what: str, change: Callable[[Any], Any]) -> None:
    """Register a bug: a schema is held against other versions, or at another level."""
    registry = import_module("assay.reference_broker.schemas.registry")

    def apply(patch: Patch) -> None:
        def make(comparison: Callable[..., Any]) -> Callable[..., Any]:
            return lambda self, *arguments: change(comparison(self, *arguments))

        patch.wrap(registry.Registry, "comparison", make)

    mutant(name, what)(apply)


def _level(name: str) -> Any:
    return import_module("assay.reference_broker.schemas.compatibility").Compatibility(name)


_OTHER_WAY = {"BACKWARD": "FORWARD", "FORWARD": "BACKWARD"}
_compares("http-compatibility-unchecked", "any schema may follow", lambda found: found._replace(versions=()))
_compares(
    "http-compatibility-backwards",
    "who reads what is taken the other way round",
    lambda found: found._replace(level=_level(_OTHER_WAY.get(str(found.level), str(found.level)))),
)
_compares(
    "http-levels-are-not-transitive",
    "the latest version alone is asked",
    lambda found: found._replace(versions=tuple(sorted(found.versions, key=lambda each: each[0]))[-1:]),
)
answers("http-nothing-follows", "no schema may follow another", "POST", _registered, 200, 409)


@mutant("http-misfits-taken", "messages are not held against schemas")
def misfits_taken(patch: Patch) -> None:
    checks = import_module("assay.reference_broker.schemas.checks")
    patch.replace(checks.SchemaChecks, "problem", lambda *_: None)


@mutant("http-deleting-schemas-is-for-good", "a version is deleted for good at once")
def deleting_for_good(patch: Patch) -> None:
    registry = import_module("assay.reference_broker.schemas.registry").Registry
    soft = registry.delete_version
    patch.replace(
        registry, "delete_version", lambda self, subject, version, **_: soft(self, subject, version, permanent=True)
    )


@mutant("http-schemas-not-written", "the registry writes nothing down")
def schemas_not_written(patch: Patch) -> None:
    log = import_module("assay.reference_broker.schemas.log").SchemaLog

    def change(self: Any, decide: Callable[[], Any], on_done: Callable[..., None]) -> None:
        wanted = decide()
        self.registry.apply(wanted.changes)
        on_done(None, wanted.answer)

    patch.replace(log, "change", change)


# The bridge, streams, restarts


def _bridges(name: str, what: str, **fields: Any) -> None:
    def apply(patch: Patch) -> None:
        def make(original: Callable[..., Message]) -> Callable[..., Message]:
            return lambda **said: original(**{**said, **fields})

        patch.wrap(import_module("assay.reference_broker.api.bridge"), "Message", make)

    mutant(name, what)(apply)


_bridges("http-bridge-drops-retain", "the bridge retains nothing", retain=False)
_bridges("http-bridge-qos-0", "the bridge publishes at QoS 0", qos=0)
_bridges("http-bridge-drops-properties", "the bridge drops properties", user_properties=())
answers("http-bridge-takes-wildcards", "the bridge takes any topic", "POST", "/publish", 400, 200, {"status": "ok"})
answers(
    "http-bridge-writes-sys",
    "the bridge takes topics of the broker's own",
    "POST",
    "/publish",
    403,
    200,
    {"status": "ok"},
)


@mutant("http-raw-bodies-mended", "raw bodies are taken for text, and mended")
def raw_mended(patch: Patch) -> None:
    def make(original: Callable[..., Message]) -> Callable[..., Message]:
        def mended(**said: Any) -> Message:
            return original(**{**said, "payload": said["payload"].decode(errors="replace").encode()})

        return mended

    patch.wrap(import_module("assay.reference_broker.api.bridge"), "Message", make)


mutant("http-received-without-headers", "a consumer is told no headers")(
    lambda patch: patch.replace(module("shapes"), "headers_of", lambda _message: {})
)
mutant("http-streams-keep", "what a stream got and did not settle stays its own")(
    lambda patch: patch.replace(Members, "remove", lambda _self, _member: None)
)


@mutant("http-streams-are-empty", "a stream brings nothing")
def streams_are_empty(patch: Patch) -> None:
    def make(poll: Any) -> Any:
        async def nothing(self: Member, most: int, wait_s: float, gone: Any, **more: Any) -> Any:
            found = await poll(self, most, wait_s, gone, **more)
            return [] if more else found

        return nothing

    patch.wrap(Member, "poll", make)


@mutant("http-sockets-ignore-credit", "a WebSocket gets what there is, whatever its credit")
def sockets_ignore_credit(patch: Patch) -> None:
    def make(poll: Any) -> Any:
        async def all_there_is(self: Member, most: int, wait_s: float, gone: Any, **more: Any) -> Any:
            return await poll(self, 100 if more else most, wait_s, gone, **more)

        return all_there_is

    patch.wrap(Member, "poll", make)


@mutant("http-answers-before-the-disk", "a publish is answered before its message is anywhere")
def before_the_disk(patch: Patch) -> None:
    publishing = import_module("assay.reference_broker.api.publishing")
    for name in ("messages", "topics"):

        async def publish(_turns: Any, _caller: Any, queue: str, messages: Any) -> Any:
            return [
                publishing.Became(delay_id=f"{queue}:{index}")
                if message.options.delay_ms
                else publishing.Became(message_id=f"{queue}:0:{index}", partition=0, offset=index)
                for index, message in enumerate(messages)
            ]

        patch.replace(routes(name), "publish", publish)
