"""The schema registry: Confluent's routes, GoQueue's, and messages that are held against a schema."""

from __future__ import annotations

import base64
import json
from typing import Any, cast
from urllib.parse import quote

from assay.conformance.http.client import Answer
from assay.conformance.http.context import API, QUEUES, SCHEMAS, HttpContext, http_case, payloads
from assay.conformance.rules import Rule

_ID = {"id": {"type": "integer"}}
_NAME = {"name": {"type": "string"}}


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


BASE = _object(_ID, "id", additionalProperties=False)
OPTIONAL_ADDED = _object({**_ID, **_NAME}, "id", additionalProperties=False)
REQUIRED_ADDED = _object({**_ID, **_NAME}, "id", "name", additionalProperties=False)
ID_OPTIONAL = _object(_ID, additionalProperties=False)
NUMBER = _object({"id": {"type": "number"}}, "id", additionalProperties=False)
TEXT = _object({"id": {"type": "string"}}, "id", additionalProperties=False)
BOUNDED = _object({"id": {"type": "integer", "minimum": 0}}, "id", additionalProperties=False)
COMPATIBILITY = (
    ("the same", BASE, True, True),
    ("an optional member more", OPTIONAL_ADDED, True, False),
    ("a required member more", REQUIRED_ADDED, False, False),
    ("a member that is optional now", ID_OPTIONAL, True, False),
    ("a wider type", NUMBER, True, False),
    ("another type", TEXT, False, False),
    ("a bound more", BOUNDED, False, True),
)
"""What follows :data:`BASE`: may it read what BASE allows (BACKWARD), and may BASE read what it allows (FORWARD)?"""
_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_INTEGER, _ARRAY, _TEXT, _OPEN = {"type": "integer"}, {"type": "array"}, {"type": "string"}, {"type": "object"}
_ONE = {"contains": _INTEGER}
WIDENED: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (_ARRAY | {"contains": {"const": 1}}, _ARRAY | _ONE),
    (_ARRAY | _ONE | {"minContains": 2}, _ARRAY | _ONE),
    (_ARRAY | _ONE | {"maxContains": 2}, _ARRAY | _ONE),
    (_ARRAY | {"items": _INTEGER}, _ARRAY | {"items": {"type": "number"}}),
    (_ARRAY | {"prefixItems": [_INTEGER]}, _ARRAY | {"prefixItems": [{"type": "number"}]}),
    (_ARRAY | {"uniqueItems": True}, _ARRAY),
    (_ARRAY | {"minItems": 2, "maxItems": 4}, _ARRAY | {"minItems": 1, "maxItems": 5}),
    ({"$ref": "#/$defs/a", "$defs": {"a": _INTEGER}}, {"type": "number"}),
    ({"allOf": [_INTEGER, {"minimum": 0}]}, _INTEGER),
    (_INTEGER, {"anyOf": [_INTEGER, _TEXT]}),
    (_INTEGER | {"not": {"const": 1}}, _INTEGER),
    (_INTEGER | {"multipleOf": 4}, _INTEGER | {"multipleOf": 2}),
    (_INTEGER | {"exclusiveMinimum": 5, "maximum": 9}, _INTEGER | {"exclusiveMinimum": 4, "exclusiveMaximum": 11}),
    ({"enum": [1, 2]}, {"enum": [1, 2, 3]}),
    ({"const": 1}, {"enum": [1, 2]}),
    (_TEXT | {"minLength": 2, "maxLength": 4}, _TEXT | {"minLength": 1, "maxLength": 5}),
    (_TEXT | {"pattern": "^a"}, _TEXT),
    (_OPEN | {"minProperties": 2, "maxProperties": 4}, _OPEN | {"minProperties": 1, "maxProperties": 5}),
    (_OPEN | {"propertyNames": {"maxLength": 4}}, _OPEN | {"propertyNames": {"maxLength": 5}}),
    (_OPEN | {"dependentRequired": {"a": ["b"]}}, _OPEN),
    (_OPEN | {"patternProperties": {"^a": _INTEGER}}, _OPEN | {"patternProperties": {"^a": {"type": "number"}}}),
)
"""Pairs of schemas: the second allows all that the first one does, and more."""


async def _register(ctx: HttpContext, subject: str, schema: Any, **more: Any) -> Answer:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    path = f"/subjects/{quote(subject, safe='')}/versions"
    ctx.leaves(f"/subjects/{quote(subject, safe='')}?permanent=true")
    ctx.leaves(f"/subjects/{quote(subject, safe='')}")
    return await ctx.me.post(path, {"schemaType": "JSON", "schema": text, **more})


async def _registered(ctx: HttpContext, subject: str, schema: Any) -> int:
    """The id of a schema that must be taken."""
    answer = await _register(ctx, subject, schema)
    ctx.status(answer, 200)
    return cast(int, answer.at("id", kind=int))


def _known(ctx: HttpContext, answer: Answer, status: int, number: int) -> None:
    """A refusal that clients of Confluent's registry know."""
    ctx.status(answer, status)
    with ctx.step_of(Rule.HTTP_NUMBER):
        seen = answer.at("error_code")
        ctx.must(bool(answer.at("message", kind=str)), f"expected a message; seen {answer}")
    ctx.same("error_code", seen, number)


@http_case(
    "schemas/registered-has-an-id-and-versions",
    SCHEMAS,
    clauses=("H-SCHEMA-1", "H-SCHEMA-2"),
    mutant="http-schema-ids-shift",
    kills=("http-latest-is-first", "http-subjects-unlisted"),
)
async def register(ctx: HttpContext) -> None:
    """A schema gets an id, the same again the same id and version, also of another subject; all of it is told.

    Members in another order make no other schema.
    """
    subject, other = ctx.name("s"), ctx.name("s/with/slash")
    base, more = BASE | {"title": subject}, OPTIONAL_ADDED | {"title": subject}  # nobody else's
    first = await _registered(ctx, subject, base)
    same = json.dumps(dict(reversed(base.items())), indent=2)
    ctx.same("the id of the same", await _registered(ctx, subject, same), first)
    ctx.same("the id for another subject", await _registered(ctx, other, base), first)
    second = await _registered(ctx, subject, more)
    ctx.must(second != first, f"expected another id than {first}")
    ctx.same("the versions", (await ctx.me.get(f"/subjects/{subject}/versions")).json, [1, 2])
    latest = await ctx.me.get(f"/subjects/{subject}/versions/latest")
    ctx.same("the latest", [latest.at(name) for name in ("subject", "version", "id")], [subject, 2, second])
    ctx.same("its schema", json.loads(latest.at("schema", kind=str)), more)
    ctx.same("version 1", (await ctx.me.get(f"/subjects/{subject}/versions/1")).at("id"), first)
    by_id = await ctx.me.get(f"/schemas/ids/{first}")
    ctx.same("the schema by its id", json.loads(by_id.at("schema", kind=str)), base)
    subjects = (await ctx.me.get("/subjects")).json
    ctx.must({subject, other} <= set(subjects), f"expected both subjects; seen {subjects}")
    users = (await ctx.me.get(f"/schemas/ids/{first}/versions")).json
    told = sorted((each["subject"], each["version"]) for each in users)
    ctx.same("who uses it", told, sorted([(subject, 1), (other, 1)]))
    looked_up = await ctx.me.post(f"/subjects/{subject}", {"schemaType": "JSON", "schema": same})
    ctx.same("the version that it is", looked_up.at("version"), 1)
    ctx.must("JSON" in (await ctx.me.get("/schemas/types")).json, "expected JSON among the types")


@http_case(
    "schemas/what-may-follow-is-decided",
    SCHEMAS,
    clauses=("H-SCHEMA-3", "H-SCHEMA-4"),
    mutant="http-compatibility-unchecked",
    kills=(
        "http-compatibility-backwards",
        "http-nothing-follows",
        "schemas-as-many-elements-are-too-few",
        "schemas-references-not-followed",
    ),
    limit_s=20.0,
)
async def compatibility(ctx: HttpContext) -> None:
    """Each level lets pass what it is for and nothing else: a table of changes, asked for and registered.

    Both say the same: the comparison, and the registration, which is refused with 409. Of each keyword that judges
    values, what allows more may follow by BACKWARD, and not by FORWARD.
    """
    for level, backward, forward in (
        ("BACKWARD", True, False),
        ("FORWARD", False, True),
        ("FULL", True, True),
        ("NONE", False, False),
    ):
        for what, schema, reads_old, read_by_old in COMPATIBILITY:
            subject = ctx.name("s")
            ctx.status(await _register(ctx, subject, BASE), 200)
            level_set = await ctx.me.put(f"/config/{subject}", {"compatibility": level})
            ctx.status(level_set, 200)
            allowed = (reads_old or not backward) and (read_by_old or not forward)
            asked = {"schemaType": "JSON", "schema": json.dumps(schema)}
            told = await ctx.me.post(f"/compatibility/subjects/{subject}/versions/latest", asked)
            ctx.same(f"{level}: whether {what} may follow", told.at("is_compatible"), allowed)
            answer = await _register(ctx, subject, schema)
            if allowed:
                ctx.status(answer, 200)
            else:
                _known(ctx, answer, 409, 409)
    for narrow, wide in WIDENED:
        subject = ctx.name("s")
        ctx.status(await _register(ctx, subject, _DRAFT | narrow), 200)
        for level, allowed in (("BACKWARD", True), ("FORWARD", False)):
            ctx.status(await ctx.me.put(f"/config/{subject}", {"compatibility": level}), 200)
            asked = {"schemaType": "JSON", "schema": json.dumps(_DRAFT | wide)}
            told = await ctx.me.post(f"/compatibility/subjects/{subject}/versions/latest", asked)
            ctx.same(f"{level}: whether {wide} may follow {narrow}", told.at("is_compatible"), allowed)


@http_case(
    "schemas/transitive-levels-ask-all-versions",
    SCHEMAS,
    clauses=("H-SCHEMA-4",),
    mutant="http-levels-are-not-transitive",
)
async def transitive(ctx: HttpContext) -> None:
    """A transitive level holds a schema against all versions, any other level against the latest alone.

    The third could follow the second and not the first.
    """
    for level, status in (("BACKWARD", 200), ("BACKWARD_TRANSITIVE", 409)):
        subject = ctx.name("s")
        await ctx.me.put(f"/config/{subject}", {"compatibility": "NONE"})
        for schema in (TEXT, BASE):
            ctx.status(await _register(ctx, subject, schema), 200)
        ctx.status(await ctx.me.put(f"/config/{subject}", {"compatibility": level}), 200)
        ctx.status(await _register(ctx, subject, NUMBER), status)


@http_case(
    "schemas/what-is-no-schema-is-422", SCHEMAS, clauses=("H-SCHEMA-5", "H-ERR-4"), mutant="http-bad-schemas-are-500"
)
async def invalid(ctx: HttpContext) -> None:
    """What is no JSON Schema is refused with 422 and 42201, and nothing is registered; so are other types.

    References lead within their document, below where they stand, and to no more than can be judged: 4,096 times the
    same place is more. Without a type, a schema is Avro in these routes.
    """
    subject = ctx.name("s")
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(12)}
    for schema in (
        *("{", '"text"', '{"type": "no such type"}', '{"minimum": "a"}', "[]"),
        *({"$ref": f"#{place}"} for place in ("/$defs/none", "a", "/prefixItems/2", "/prefixItems/a", "/minItems/0")),
        {"prefixItems": [True, {"$ref": "#/prefixItems/2"}]},
        {"$ref": "#/minItems", "minItems": 2},
        {"$ref": "https://assay.invalid/schema"},
        {"$ref": "#"},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}},
        {"not": {"$ref": "#"}},
        {"$schema": "https://assay.invalid/draft"},
        {"$schema": 7},
        {"items": {"$anchor": "a"}},
        {"prefixItems": [{"items": {"$id": "https://assay.invalid/a"}}]},
        {"$ref": "#/$defs/d0", "$defs": doubled | {"d12": True}},
    ):
        _known(ctx, await _register(ctx, subject, schema), 422, 42201)
    _known(ctx, await _register(ctx, subject, BASE, schemaType="AVRO"), 422, 42201)
    untyped = await ctx.me.post(f"/subjects/{subject}/versions", {"schema": json.dumps(BASE)})
    _known(ctx, untyped, 422, 42201)
    ctx.status(await ctx.me.post(f"/subjects/{subject}/versions", b"{"), 400)
    _known(ctx, await ctx.me.get(f"/subjects/{subject}/versions"), 404, 40401)


@http_case(
    "schemas/levels-are-set-and-taken-back",
    SCHEMAS,
    clauses=("H-SCHEMA-6",),
    mutant="http-levels-not-kept",
    kills=("http-any-level-taken",),
)
async def levels(ctx: HttpContext) -> None:
    """The level of a subject is set, told and taken back; before and after, the global one holds.

    What is no level is refused with 422.
    """
    subject = ctx.name("s")
    whole = (await ctx.me.get("/config")).at("compatibilityLevel", kind=str)
    path = f"/config/{subject}"
    _known(ctx, await ctx.me.get(path), 404, 40408)
    ctx.same("what holds", (await ctx.me.get(f"{path}?defaultToGlobal=true")).at("compatibilityLevel"), whole)
    ctx.same("what is set", (await ctx.me.put(path, {"compatibility": "FORWARD"})).at("compatibility"), "FORWARD")
    ctx.same("what holds", (await ctx.me.get(path)).at("compatibilityLevel"), "FORWARD")
    _known(ctx, await ctx.me.put(path, {"compatibility": "SIDEWAYS"}), 422, 42203)
    ctx.same("what holds", (await ctx.me.get(path)).at("compatibilityLevel"), "FORWARD")
    ctx.status(await ctx.me.delete(path), 200)
    _known(ctx, await ctx.me.get(path), 404, 40408)


@http_case(
    "schemas/unknown-has-its-number",
    SCHEMAS,
    clauses=("H-SCHEMA-7",),
    mutant="http-schema-numbers-missing",
)
async def unknown(ctx: HttpContext) -> None:
    """Unknown subjects, versions and schemas are refused with 404 and their numbers, a malformed version with 422.

    Also by comparison and look-up.
    """
    subject, none = ctx.name("s"), ctx.name("none")
    await _registered(ctx, subject, BASE)
    text = {"schemaType": "JSON", "schema": json.dumps(OPTIONAL_ADDED)}
    for method, path, body, status, number in (
        ("GET", f"/subjects/{none}/versions", None, 404, 40401),
        ("GET", f"/subjects/{none}/versions/1", None, 404, 40401),
        ("DELETE", f"/subjects/{none}", None, 404, 40401),
        ("POST", f"/subjects/{none}", text, 404, 40401),
        ("GET", f"/subjects/{subject}/versions/9", None, 404, 40402),
        ("DELETE", f"/subjects/{subject}/versions/9", None, 404, 40402),
        ("POST", f"/compatibility/subjects/{subject}/versions/9", text, 404, 40402),
        ("POST", f"/subjects/{subject}", text, 404, 40403),
        ("GET", "/schemas/ids/999999999", None, 404, 40403),
        ("GET", f"/subjects/{subject}/versions/first", None, 422, 42202),
        ("GET", f"/subjects/{subject}/versions/0", None, 422, 42202),
    ):
        _known(ctx, await ctx.me.ask(method, path, body), status, number)


@http_case(
    "schemas/deleted-twice-is-for-good",
    SCHEMAS,
    clauses=("H-SCHEMA-8",),
    mutant="http-deleting-schemas-is-for-good",
    kills=("http-schemas-stay",),
)
async def deleted(ctx: HttpContext) -> None:
    """A deleted version is gone from its subject and still told by its id; for good only when deleted once more.

    A version, then the whole subject.
    """
    subject = ctx.name("s")
    first = await _registered(ctx, subject, BASE | {"title": subject})
    await _registered(ctx, subject, OPTIONAL_ADDED)
    base = f"/subjects/{subject}"
    _known(ctx, await ctx.me.delete(f"{base}/versions/1?permanent=true"), 404, 40407)
    ctx.same("what was deleted", (await ctx.me.delete(f"{base}/versions/1")).json, 1)
    ctx.same("the versions", (await ctx.me.get(f"{base}/versions")).json, [2])
    ctx.same("with those deleted", (await ctx.me.get(f"{base}/versions?deleted=true")).json, [1, 2])
    ctx.status(await ctx.me.get(f"/schemas/ids/{first}"), 200)
    ctx.status(await ctx.me.delete(f"{base}/versions/1?permanent=true"), 200)
    _known(ctx, await ctx.me.get(f"/schemas/ids/{first}"), 404, 40403)
    ctx.same("what was deleted", (await ctx.me.delete(base)).json, [2])
    ctx.must(subject not in (await ctx.me.get("/subjects")).json, f"{subject} is still listed")
    ctx.status(await ctx.me.delete(f"{base}?permanent=true"), 200)
    _known(ctx, await ctx.me.get(f"{base}/versions?deleted=true"), 404, 40401)


@http_case("schemas/read-only-takes-none", SCHEMAS, clauses=("H-SCHEMA-9",), mutant="http-modes-not-kept")
async def read_only(ctx: HttpContext) -> None:
    """A subject that is read-only takes no schema, and takes them again afterwards; what is no mode is refused.

    The mode is told as it is.
    """
    subject = ctx.name("s")
    ctx.status(await ctx.me.put(f"/mode/{subject}", {"mode": "READONLY"}), 200)
    ctx.same("the mode", (await ctx.me.get(f"/mode/{subject}")).at("mode"), "READONLY")
    _known(ctx, await _register(ctx, subject, BASE), 422, 42205)
    _known(ctx, await ctx.me.put(f"/mode/{subject}", {"mode": "WRITEONLY"}), 422, 42204)
    ctx.status(await ctx.me.delete(f"/mode/{subject}"), 200)
    ctx.status(await _register(ctx, subject, BASE), 200)


@http_case(
    "schemas/messages-must-fit",
    SCHEMAS,
    QUEUES,
    clauses=("H-SCHEMA-10",),
    mutant="http-misfits-taken",
    kills=("http-misfits-are-500", "schemas-named-by-longer-prefixes"),
)
async def misfits(ctx: HttpContext) -> None:
    """A queue with a schema takes the messages that fit it, and refuses the others with 422, of a batch with 207.

    What is no JSON does not fit either. Messages may name another version of the subject, by the header schema-id or by
    what Confluent's clients begin a payload with: a zero byte and the id. They fit that version then.
    """
    subject = ctx.name("s")
    number = await _registered(ctx, subject, BASE)
    ctx.status(await ctx.me.put(f"/config/{subject}", {"compatibility": "NONE"}), 200)
    await _registered(ctx, subject, TEXT)
    queue = await ctx.queue(schema={"subject": subject, "mode": "reject"})
    for document, fits in (('{"id": 3}', True), ('{"id": "three"}', False)):
        named = base64.b64encode(b"\0" + number.to_bytes(4, "big") + document.encode()).decode()
        for message in ({"payload_base64": named}, {"payload": document, "headers": {"schema-id": str(number)}}):
            answer = await ctx.me.post(f"{API}/queues/{queue}/messages", {"messages": [message]})
            if fits:
                ctx.status(answer, 200)
            else:
                ctx.publish_refused(answer, 422)
    await ctx.done(queue, "accept", *await ctx.take_all(queue, 2))
    ctx.status(await _register(ctx, subject, BASE), 200)
    ctx.status(await ctx.me.delete(f"/subjects/{subject}/versions/2"), 200)
    await ctx.fill(queue, '{"id": 1}')
    path = f"{API}/queues/{queue}/messages"
    for payload in ('{"id": "one"}', "{}", '{"id": 1, "more": 2}', "no JSON", ""):
        ctx.publish_refused(await ctx.me.post(path, {"messages": [{"payload": payload}]}), 422)
    both = await ctx.me.post(path, {"messages": [{"payload": "{}"}, {"payload": '{"id": 2}'}]})
    ctx.status(both, 207)
    ctx.same("the messages", payloads(await ctx.take_all(queue, 2)), ['{"id": 1}', '{"id": 2}'])
    await ctx.none_left(queue)


@http_case(
    "schemas/goqueue-asks-the-same",
    SCHEMAS,
    "http_topics",
    clauses=("H-SCHEMA-11",),
    mutant="http-goqueue-schemas-apart",
)
async def goqueue(ctx: HttpContext) -> None:
    """GoQueue's routes below /schemas ask the same registry, and answer with id and version, 409 and 422.

    What is registered there is told by Confluent's routes.
    """
    subject = ctx.name("s")
    base = f"/schemas/subjects/{subject}/versions"
    ctx.leaves(f"/subjects/{subject}?permanent=true")
    ctx.leaves(f"/subjects/{subject}")
    answer = await ctx.me.post(base, {"schema": json.dumps(BASE)})
    ctx.status(answer, 200, 201)
    ctx.same("the version", answer.at("version"), 1)
    ctx.same(
        "the id by the other routes", (await ctx.me.get(f"/subjects/{subject}/versions/1")).at("id"), answer.at("id")
    )
    ctx.refused_as_goqueue(await ctx.me.post(base, {"schema": json.dumps(TEXT)}), 409)
    ctx.refused_as_goqueue(await ctx.me.post(base, {"schema": "{"}), 422)
    latest = await ctx.me.get(f"{base}/latest")
    ctx.status(latest, 200)
    ctx.same("the latest", (latest.at("version"), json.loads(latest.at("schema", kind=str))), (1, BASE))
    told = await ctx.me.post(f"/schemas/compatibility/subjects/{subject}/versions/1", {"schema": json.dumps(TEXT)})
    ctx.same("is_compatible", told.at("is_compatible"), False)
    ctx.status(await ctx.me.put(f"/schemas/config/{subject}", {"compatibility": "NONE"}), 200)
    ctx.same("the level", (await ctx.me.get(f"/config/{subject}")).at("compatibilityLevel"), "NONE")
    ctx.status(await ctx.me.post(base, {"schema": json.dumps(TEXT)}), 200, 201)
    ctx.same("the versions", (await ctx.me.get(base)).json, [1, 2])
    ctx.must(subject in (await ctx.me.get("/schemas/subjects")).json, f"expected {subject} in the list")
    ctx.must((await ctx.me.get("/schemas/stats")).at("subjects", kind=int) >= 1, "expected at least one subject")
    ctx.refused_as_goqueue(await ctx.me.get(f"/schemas/subjects/{ctx.name('none')}/versions"), 404)


@http_case(
    "schemas/restart-keeps-them",
    SCHEMAS,
    clauses=("H-DUR-1", "H-SCHEMA-1"),
    requires=("restart",),
    mutant="http-schemas-not-written",
    together=True,
    limit_s=10.0,
)
async def restart(ctx: HttpContext) -> None:
    """Schemas, ids, levels and deletions that were answered are there after a kill.

    The next schema gets an id that nobody had.
    """
    subject, gone = ctx.name("s"), ctx.name("s")
    first = await _registered(ctx, subject, BASE)
    await ctx.me.put(f"/config/{subject}", {"compatibility": "NONE"})
    last = await _registered(ctx, gone, TEXT)
    ctx.status(await ctx.me.delete(f"/subjects/{gone}"), 200)
    await ctx.restart()
    ctx.same("the version", (await ctx.me.get(f"/subjects/{subject}/versions/latest")).at("id"), first)
    ctx.same("the level", (await ctx.me.get(f"/config/{subject}")).at("compatibilityLevel"), "NONE")
    ctx.must(gone not in (await ctx.me.get("/subjects")).json, f"{gone} is there again")
    new = await _registered(ctx, subject, NUMBER)
    ctx.must(new not in (first, last), f"expected a new id; seen {new}")


@http_case(
    "schemas/told-in-every-way",
    SCHEMAS,
    clauses=("H-SCHEMA-2", "H-SCHEMA-8", "H-SCHEMA-3"),
    mutant="http-schemas-are-listed-whole",
    kills=("http-deleted-users-are-told", "http-differences-are-untold", "http-bare-schemas-are-others"),
)
async def told(ctx: HttpContext) -> None:
    """Schemas are listed by prefix, latest alone or page by page, and told bare; so are the subjects that use one.

    Of two versions one is deleted: it is told where deleted ones are asked for. A comparison tells what differs.
    """
    subject, other = ctx.name("s"), ctx.name("s")
    base, more = BASE | {"title": subject}, OPTIONAL_ADDED | {"title": subject}
    first, second = await _registered(ctx, subject, base), await _registered(ctx, subject, more)
    await _registered(ctx, other, base)
    prefix = f"/schemas?subjectPrefix={subject}"
    for query, wanted in (("", [1, 2]), ("&latestOnly=true", [2]), ("&offset=1&limit=1", [2]), ("&limit=1", [1])):
        listed = (await ctx.me.get(prefix + query)).at(kind=list)
        ctx.same(
            f"the versions of {query}",
            [(each["subject"], each["version"]) for each in listed],
            [(subject, number) for number in wanted],
        )
    for path, schema in (
        (f"/schemas/ids/{first}/schema", base),
        (f"/subjects/{subject}/versions/2/schema", more),
        (f"/subjects/{subject}/versions/latest/schema", more),
    ):
        ctx.same(f"the schema of {path}", (await ctx.me.get(path)).json, schema)
    ctx.same("what refers to it", (await ctx.me.get(f"/subjects/{subject}/versions/1/referencedby")).json, [])
    told = await ctx.me.get(f"/schemas/ids/{first}?fetchMaxId=true")
    ctx.must(told.at("maxId", kind=int) >= second, f"expected an id of at least {second}; seen {told}")
    ctx.same("who uses it", sorted((await ctx.me.get(f"/schemas/ids/{first}/subjects")).json), sorted((subject, other)))
    ctx.status(await ctx.me.delete(f"/subjects/{subject}/versions/1"), 200)
    for query, users in (("", [other]), ("?deleted=true", sorted((subject, other)))):
        found = (await ctx.me.get(f"/schemas/ids/{first}/subjects{query}")).json
        ctx.same(f"who uses it, {query}", sorted(found), users)
        versions = (await ctx.me.get(f"/schemas/ids/{first}/versions{query}")).json
        ctx.same(f"which versions are it, {query}", sorted(each["subject"] for each in versions), users)
    _known(ctx, await ctx.me.delete(f"/subjects/{subject}/versions/1"), 404, 40406)
    _known(ctx, await ctx.me.delete(f"/subjects/{other}?permanent=true"), 404, 40405)
    listed = (await ctx.me.get(f"{prefix}&deleted=true")).at(kind=list)
    ctx.same("the versions with those deleted", [each["version"] for each in listed], [1, 2])
    for schema, allowed in ((BASE | {"title": subject}, True), (TEXT, False)):
        asked = {"schemaType": "JSON", "schema": json.dumps(schema)}
        for path in (f"/compatibility/subjects/{other}/versions", f"/compatibility/subjects/{other}/versions/1"):
            answer = await ctx.me.post(f"{path}?verbose=true", asked)
            ctx.same("whether it may follow", answer.at("is_compatible"), allowed)
            ctx.must(allowed or bool(answer.at("messages", kind=list)), f"expected reasons; seen {answer}")


@http_case(
    "schemas/of-all-subjects",
    SCHEMAS,
    "http_topics",
    clauses=("H-SCHEMA-12", "H-SCHEMA-11", "H-SCHEMA-6", "H-SCHEMA-9"),
    settings={"schemas": {"compatibility": "FULL"}},
    mutant="http-the-level-of-all-is-not-asked",
    kills=("http-the-mode-of-all-is-not-asked", "http-goqueue-deletes-for-good"),
)
async def of_all(ctx: HttpContext) -> None:
    """Level and mode of all subjects hold for those without their own, by both families of routes, until taken back.

    The broker is configured with FULL. GoQueue's routes delete in two steps as well.
    """
    subject = ctx.name("s")
    go = f"/schemas/subjects/{subject}"
    ctx.same("the level", (await ctx.me.get("/config")).at("compatibilityLevel"), "FULL")
    ctx.status(await ctx.me.put("/config", {"compatibility": "NONE"}), 200)
    for path, name in (("/config", "compatibilityLevel"), ("/schemas/config", "compatibility")):
        ctx.same(f"the level by {path}", (await ctx.me.get(path)).at(name), "NONE")
    await _registered(ctx, subject, BASE)
    await _registered(ctx, subject, TEXT)
    ctx.status(await ctx.me.put("/schemas/config", {"compatibility": "BACKWARD"}), 200)
    ctx.same(
        "the level of the subject", (await ctx.me.get(f"/schemas/config/{subject}")).at("compatibility"), "BACKWARD"
    )
    _known(ctx, await _register(ctx, subject, NUMBER), 409, 409)
    ctx.status(await ctx.me.put(f"/schemas/config/{subject}", {"compatibility": "NONE"}), 200)
    ctx.same("its own level", (await ctx.me.get(f"/config/{subject}")).at("compatibilityLevel"), "NONE")
    ctx.status(await ctx.me.delete("/config"), 200)
    ctx.same("the level", (await ctx.me.get("/config")).at("compatibilityLevel"), "FULL")
    ctx.same("the mode", (await ctx.me.get("/mode")).at("mode"), "READWRITE")
    ctx.status(await ctx.me.put("/mode", {"mode": "READONLY"}), 200)
    _known(ctx, await _register(ctx, subject, NUMBER), 422, 42205)
    ctx.status(await ctx.me.put(f"/mode/{subject}", {"mode": "READWRITE"}), 200)
    await _registered(ctx, subject, NUMBER)
    _known(ctx, await ctx.me.put("/mode", {"mode": "WRITEONLY"}), 422, 42204)
    ctx.status(await ctx.me.put("/mode", {"mode": "READWRITE"}), 200)
    _known(ctx, await ctx.me.get(f"/mode/{ctx.name('none')}"), 404, 40409)
    ctx.same("the versions", (await ctx.me.get(go)).json, [1, 2, 3])
    ctx.same("what was deleted", (await ctx.me.delete(f"{go}/versions/3")).json, 3)
    ctx.same("the versions", (await ctx.me.get(f"{go}/versions")).json, [1, 2])
    ctx.same("what was deleted", (await ctx.me.delete(go)).json, [1, 2])
    ctx.same("those deleted", (await ctx.me.get(f"/subjects/{subject}/versions?deleted=true")).json, [1, 2, 3])
    ctx.must(subject not in (await ctx.me.get("/schemas/subjects")).json, f"{subject} is still listed")
    ctx.status(await ctx.me.delete(f"{go}?permanent=true"), 200)
    ctx.refused_as_goqueue(await ctx.me.get(go), 404)
