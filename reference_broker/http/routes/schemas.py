"""The schema registry: Confluent's routes, so that its clients work unchanged, and GoQueue's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query
from fastapi.responses import Response

from assay.reference_broker.api.problems import Code
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Call, Name, answered
from assay.reference_broker.queues import QueueErrorCode
from assay.reference_broker.queues.jobs.errors import QueueError
from assay.reference_broker.schemas.document import SchemaDocument
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode
from assay.reference_broker.schemas.registry import JSON_SCHEMA, Changes, Found, Judged, Registry, version_in

_Q = QueueErrorCode
AREA = Area("schemas", "Schemas as Confluent's registry has them: subjects, versions, ids, compatibility, modes.")
GOQUEUE = Area("schemas of GoQueue", "The same registry, as GoQueue's clients ask it.")
_MISSING = (Code.UNKNOWN_SCHEMA, _Q.STORAGE_FAILED)
_WRONG = (*_MISSING, Code.SCHEMA_REFUSED)
_REFUSED = (*_WRONG, Code.SCHEMA_INCOMPATIBLE, _Q.LIMIT)
_AVRO: Final = "AVRO"
"""What a schema is in Confluent's routes where nothing is said."""
_MAX_LISTED: Final = 1_000
Flag = Annotated[bool, Query()]
Prefix = Annotated[str, Query(alias="subjectPrefix", max_length=255)]
_S = "/schemas/subjects"


class SchemaText(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A schema that is asked about; other members are ignored."""

    schema: str
    schema_type: str | None = _AVRO
    references: list[Any] | None = None


class GoSchemaText(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The same, where JSON is the only type there is."""

    schema: str
    schema_type: str | None = JSON_SCHEMA
    references: list[Any] | None = None


class SchemaId(msgspec.Struct, frozen=True, kw_only=True):
    id: int


class GoSchemaId(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    version: int


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema_type: str = JSON_SCHEMA
    schema: str


class SchemaById(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    schema_type: str = JSON_SCHEMA
    schema: str
    max_id: int | msgspec.UnsetType = msgspec.UNSET


class SubjectVersion(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    version: int


class Level(msgspec.Struct, frozen=True, kw_only=True):
    compatibility: str


class LevelThatHolds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    compatibility_level: str


class ModeOf(msgspec.Struct, frozen=True, kw_only=True):
    mode: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    is_compatible: bool
    messages: list[str] = []


class SchemaStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures since the broker started, but for what there is."""

    subjects: int
    versions: int
    schemas: int
    validations: int
    validation_failures: int


def _registry(call: Call) -> Registry:
    """To read. Raises :class:`QueueError`, :class:`SchemaError`."""
    if call.caller.tenant is not None:
        raise QueueError(_Q.NOT_ALLOWED, "schemas are of all tenants: those of one have no part in them")
    log = call.service.turn()[0].node.schemas
    log.check_usable()
    return log.registry


async def _change(call: Call, about: str, decide: Callable[[Registry, float], Changes]) -> Any:
    """Once it is durable: what was answered. ``about``: what access rules are asked, below ``schemas/``."""
    call.caller.administer(f"schemas/{about}" if about else "schemas")
    outcome: list[SchemaError] = []

    def start(driver: Any, now: float, tell: Callable[[QueueError | None, Any], None]) -> None:
        def told(error: SchemaError | None, answer: Any) -> None:
            if error is not None:
                outcome.append(error)
            tell(None, answer)

        log = driver.node.schemas
        log.change(lambda: decide(log.registry, now), told)

    answer = await call.service.told(start)
    if outcome:
        raise outcome[0]
    return answer


def _text(wanted: SchemaText | GoSchemaText) -> str:
    """Raises :class:`SchemaError` (INVALID_SCHEMA) for what is no JSON Schema of its own."""
    if wanted.schema_type != JSON_SCHEMA:
        text = (
            f"Invalid schema: its type is {str(wanted.schema_type)[:20]!r}, and only {JSON_SCHEMA!r} is supported here"
        )
        raise SchemaError(SchemaErrorCode.INVALID_SCHEMA, text)
    if wanted.references:
        raise SchemaError(SchemaErrorCode.INVALID_SCHEMA, "Invalid schema: references are not supported")
    return wanted.schema


async def _document(call: Call, wanted: SchemaText | GoSchemaText) -> SchemaDocument:
    """In a thread, as every comparison is: both may take long, within bounds. Raises :class:`SchemaError`."""
    text = _text(wanted)
    return await asyncio.to_thread(_registry(call).read, text)


async def _register(call: Call, subject: str, wanted: SchemaText | GoSchemaText) -> Found:
    call.caller.administer(f"schemas/{subject}")
    document = await _document(call, wanted)
    comparison = _registry(call).comparison(subject, document)
    judged = Judged(comparison.key, await asyncio.to_thread(comparison.problems))
    found: Found = await _change(call, subject, lambda registry, now: registry.register(subject, document, now, judged))
    return found


async def _compare(
    call: Call, subject: str, wanted: SchemaText | GoSchemaText, against: int | str | None, *, verbose: bool
) -> Verdict:
    document = await _document(call, wanted)
    problems = await asyncio.to_thread(_registry(call).comparison(subject, document, against).problems)
    return Verdict(is_compatible=not problems, messages=problems if verbose else [])


def _version(found: Found) -> SchemaVersion:
    return SchemaVersion(subject=found.subject, version=found.version, id=found.id, schema=found.schema)


# -- schemas by id ---------------------------------------------------------------------------------------------------


@AREA.get("/schemas", Scope.READ)
async def list_schemas(
    call: Asked,
    prefix: Prefix = "",
    deleted: Flag = False,
    latest: Annotated[bool, Query(alias="latestOnly")] = False,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=-1, le=_MAX_LISTED)] = _MAX_LISTED,
) -> list[SchemaVersion]:
    """All versions, a thousand at a time."""
    found = _registry(call).everything(prefix=prefix, deleted=deleted, latest=latest)
    return [_version(each) for each in found[offset : offset + (limit if limit > 0 else _MAX_LISTED)]]


@AREA.get("/schemas/types", Scope.READ)
async def schema_types(call: Asked) -> list[str]:
    """What kinds of schemas there are."""
    _registry(call)
    return [JSON_SCHEMA]


@AREA.get("/schemas/ids/{number}", Scope.READ, errors=_MISSING)
async def schema_by_id(
    call: Asked, number: int, fetch: Annotated[bool, Query(alias="fetchMaxId")] = False
) -> SchemaById:
    """A schema, by the id that messages name."""
    registry = _registry(call)
    return SchemaById(schema=registry.schema(number), max_id=registry.last_id if fetch else msgspec.UNSET)


@AREA.get("/schemas/ids/{number}/schema", Scope.READ, answer=dict[str, Any], errors=_MISSING)
async def schema_text_by_id(call: Asked, number: int) -> Response:
    """Its text alone."""
    return answered(msgspec.Raw(_registry(call).schema(number).encode()))


@AREA.get("/schemas/ids/{number}/subjects", Scope.READ, errors=_MISSING)
async def schema_subjects(call: Asked, number: int, deleted: Flag = False) -> list[str]:
    """Subjects that use it."""
    return list(dict.fromkeys(subject for subject, _ in _registry(call).users(number, deleted=deleted)))


@AREA.get("/schemas/ids/{number}/versions", Scope.READ, errors=_MISSING)
async def schema_versions(call: Asked, number: int, deleted: Flag = False) -> list[SubjectVersion]:
    """Subjects and versions that use it."""
    users = _registry(call).users(number, deleted=deleted)
    return [SubjectVersion(subject=subject, version=version) for subject, version in users]


# -- subjects and versions -------------------------------------------------------------------------------------------


@AREA.get("/subjects", Scope.READ)
async def list_subjects(call: Asked, prefix: Prefix = "", deleted: Flag = False) -> list[str]:
    """Names of subjects; with ``deleted`` those that were deleted, too."""
    return _registry(call).subjects(deleted=deleted, prefix=prefix)


@AREA.post("/subjects/{subject}", Scope.READ, errors=_WRONG)
async def look_up_schema(call: Asked, subject: Name, wanted: Body[SchemaText], deleted: Flag = False) -> SchemaVersion:
    """Which version of a subject a schema is."""
    return _version(_registry(call).look_up(subject, _text(wanted), deleted=deleted))


@GOQUEUE.twin(f"{_S}/{{subject}}", "go_delete_subject")
@AREA.delete("/subjects/{subject}", Scope.ADMIN, answer=list[int], errors=_REFUSED)
async def delete_subject(call: Asked, subject: Name, permanent: Flag = False) -> Any:
    """Delete all versions: first so that they can still be read by their id, then for good."""
    return await _change(call, subject, lambda registry, _: registry.delete_subject(subject, permanent=permanent))


@AREA.get("/subjects/{subject}/versions", Scope.READ, errors=_MISSING)
async def list_versions(call: Asked, subject: Name, deleted: Flag = False) -> list[int]:
    """Numbers of its versions."""
    return _registry(call).versions(subject, deleted=deleted)


@AREA.post("/subjects/{subject}/versions", Scope.ADMIN, errors=_REFUSED)
async def register_schema(call: Asked, subject: Name, wanted: Body[SchemaText]) -> SchemaId:
    """Register a schema as the next version, unless it is one already."""
    found = await _register(call, subject, wanted)
    return SchemaId(id=found.id)


@AREA.get("/subjects/{subject}/versions/{version}", Scope.READ, errors=_WRONG)
async def get_version(call: Asked, subject: Name, version: str, deleted: Flag = False) -> SchemaVersion:
    """A version, by its number, or ``latest``."""
    return _version(_registry(call).find(subject, version_in(version), deleted=deleted))


@AREA.get("/subjects/{subject}/versions/{version}/schema", Scope.READ, answer=dict[str, Any], errors=_WRONG)
async def get_version_text(call: Asked, subject: Name, version: str, deleted: Flag = False) -> Response:
    """Its text alone."""
    found = _registry(call).find(subject, version_in(version), deleted=deleted)
    return answered(msgspec.Raw(found.schema.encode()))


@AREA.get("/subjects/{subject}/versions/{version}/referencedby", Scope.READ, errors=_WRONG)
async def referenced_by(call: Asked, subject: Name, version: str) -> list[int]:
    """None: no schema refers to another."""
    _registry(call).find(subject, version_in(version))
    return []


@GOQUEUE.twin(f"{_S}/{{subject}}/versions/{{version}}", "go_delete_version")
@AREA.delete("/subjects/{subject}/versions/{version}", Scope.ADMIN, answer=int, errors=_REFUSED)
async def delete_version(call: Asked, subject: Name, version: str, permanent: Flag = False) -> Any:
    """Delete a version: first so that it can still be read by its id, then for good."""
    number = version_in(version)
    return await _change(
        call, subject, lambda registry, _: registry.delete_version(subject, number, permanent=permanent)
    )


# -- compatibility ---------------------------------------------------------------------------------------------------


@AREA.post("/compatibility/subjects/{subject}/versions", Scope.READ, errors=_WRONG)
async def compare_with_versions(call: Asked, subject: Name, wanted: Body[SchemaText], verbose: Flag = False) -> Verdict:
    """Whether a schema could be registered as the next version."""
    return await _compare(call, subject, wanted, "all", verbose=verbose)


@AREA.post("/compatibility/subjects/{subject}/versions/{version}", Scope.READ, errors=_WRONG)
async def compare_with_version(
    call: Asked, subject: Name, version: str, wanted: Body[SchemaText], verbose: Flag = False
) -> Verdict:
    """Whether a schema could follow a version."""
    return await _compare(call, subject, wanted, version_in(version), verbose=verbose)


# -- levels and modes ------------------------------------------------------------------------------------------------


async def _set_level(call: Call, subject: str, wanted: Level) -> Level:
    await _change(call, subject, lambda registry, _: registry.set_level(subject, wanted.compatibility))
    return wanted


async def _set_mode(call: Call, subject: str, wanted: ModeOf) -> ModeOf:
    await _change(call, subject, lambda registry, _: registry.set_mode(subject, wanted.mode))
    return wanted


Default = Annotated[bool, Query(alias="defaultToGlobal")]


@AREA.get("/config", Scope.READ)
async def get_level(call: Asked) -> LevelThatHolds:
    """The level of subjects without one of their own."""
    return LevelThatHolds(compatibility_level=_registry(call).level(""))


@GOQUEUE.twin("/schemas/config", "go_set_level")
@AREA.put("/config", Scope.ADMIN, errors=_REFUSED)
async def set_level(call: Asked, wanted: Body[Level]) -> Level:
    """Set it."""
    return await _set_level(call, "", wanted)


@AREA.delete("/config", Scope.ADMIN, answer=str, errors=_REFUSED)
async def delete_level(call: Asked) -> Any:
    """Take it back to what the broker is configured with."""
    return await _change(call, "", lambda registry, _: registry.delete_level(""))


@AREA.get("/config/{subject}", Scope.READ, errors=_MISSING)
async def get_subject_level(call: Asked, subject: Name, default: Default = False) -> LevelThatHolds:
    """The level of a subject; with ``defaultToGlobal`` that which holds for it."""
    return LevelThatHolds(compatibility_level=_registry(call).level(subject, or_global=default))


@GOQUEUE.twin("/schemas/config/{subject}", "go_set_subject_level")
@AREA.put("/config/{subject}", Scope.ADMIN, errors=_REFUSED)
async def set_subject_level(call: Asked, subject: Name, wanted: Body[Level]) -> Level:
    """Set it."""
    return await _set_level(call, subject, wanted)


@AREA.delete("/config/{subject}", Scope.ADMIN, answer=str, errors=_REFUSED)
async def delete_subject_level(call: Asked, subject: Name) -> Any:
    """From now on the global one holds."""
    return await _change(call, subject, lambda registry, _: registry.delete_level(subject))


@AREA.get("/mode", Scope.READ)
async def get_mode(call: Asked) -> ModeOf:
    """Whether subjects without a mode of their own may change: ``READWRITE`` or ``READONLY``."""
    return ModeOf(mode=_registry(call).mode(""))


@AREA.put("/mode", Scope.ADMIN, errors=_REFUSED)
async def set_mode(call: Asked, wanted: Body[ModeOf]) -> ModeOf:
    """Set it."""
    return await _set_mode(call, "", wanted)


@AREA.get("/mode/{subject}", Scope.READ, errors=_MISSING)
async def get_subject_mode(call: Asked, subject: Name, default: Default = False) -> ModeOf:
    """The mode of a subject."""
    return ModeOf(mode=_registry(call).mode(subject, or_global=default))


@AREA.put("/mode/{subject}", Scope.ADMIN, errors=_REFUSED)
async def set_subject_mode(call: Asked, subject: Name, wanted: Body[ModeOf]) -> ModeOf:
    """Set it."""
    return await _set_mode(call, subject, wanted)


@AREA.delete("/mode/{subject}", Scope.ADMIN, errors=_REFUSED)
async def delete_subject_mode(call: Asked, subject: Name) -> ModeOf:
    """From now on the global one holds."""
    mode = await _change(call, subject, lambda registry, _: registry.delete_mode(subject))
    return ModeOf(mode=mode)


# -- as GoQueue has them ---------------------------------------------------------------------------------------------

_GoBody = Body[GoSchemaText]


@GOQUEUE.get(_S, Scope.READ)
async def go_list_subjects(call: Asked) -> list[str]:
    """Names of subjects."""
    return _registry(call).subjects()


@GOQUEUE.twin(f"{_S}/{{subject}}/versions", "go_list_versions")
@GOQUEUE.get(f"{_S}/{{subject}}", Scope.READ, errors=_MISSING)
async def go_get_subject(call: Asked, subject: Name) -> list[int]:
    """Numbers of its versions."""
    return _registry(call).versions(subject)


@GOQUEUE.post(f"{_S}/{{subject}}/versions", Scope.ADMIN, errors=_REFUSED)
async def go_register_schema(call: Asked, subject: Name, wanted: _GoBody) -> GoSchemaId:
    """Register a schema."""
    found = await _register(call, subject, wanted)
    return GoSchemaId(id=found.id, version=found.version)


@GOQUEUE.get(f"{_S}/{{subject}}/versions/{{version}}", Scope.READ, errors=_WRONG)
async def go_get_version(call: Asked, subject: Name, version: str) -> SchemaVersion:
    """A version, by its number, or ``latest``."""
    return _version(_registry(call).find(subject, version_in(version)))


_COMPATIBLE = "/schemas/compatibility/subjects/{subject}/versions/{version}"


@GOQUEUE.post(_COMPATIBLE, Scope.READ, errors=_WRONG)
async def go_compare(call: Asked, subject: Name, version: str, wanted: _GoBody) -> Verdict:
    """Whether a schema could follow a version."""
    return await _compare(call, subject, wanted, version_in(version), verbose=False)


@GOQUEUE.get("/schemas/config", Scope.READ)
async def go_get_level(call: Asked) -> Level:
    """The level of subjects without one of their own."""
    return Level(compatibility=_registry(call).level(""))


@GOQUEUE.get("/schemas/config/{subject}", Scope.READ, errors=_MISSING)
async def go_get_subject_level(call: Asked, subject: Name) -> Level:
    """The level that holds for a subject."""
    return Level(compatibility=_registry(call).level(subject))


@GOQUEUE.get("/schemas/stats", Scope.READ)
async def go_schema_stats(call: Asked) -> SchemaStats:
    """Figures."""
    registry = _registry(call)
    checks = call.service.turn()[0].node.schema_checks
    return SchemaStats(
        subjects=len(registry.subjects()),
        versions=registry.version_count,
        schemas=registry.schema_count,
        validations=0 if checks is None else checks.checked,
        validation_failures=0 if checks is None else checks.misfits,
    )
