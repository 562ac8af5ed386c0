"""Subjects, versions, ids, levels of compatibility, modes: what a request changes, and what it is answered.

Pure: :meth:`Registry.register` and its like return the :class:`Changes` that have to be written down, and change
nothing; once they are durable :meth:`Registry.apply` makes them so. A change is a key and a value, None deletes:

=============================  ==========================================================================
key                            value
=============================  ==========================================================================
``n``                          the last id that was given out, in decimal
``s`` and an id, 8 bytes       the text of a schema
``v``, subject, NUL, 4 bytes   a version: :class:`Version`, as MessagePack
``c`` and a subject            its :class:`Compatibility`; of the empty subject: of all others
``m`` and a subject            its :class:`Mode`, likewise
=============================  ==========================================================================

A schema is written before the versions that refer to it, so that a crash between them leaves one that nobody refers to;
it is dropped when the registry is opened again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from assay.reference_broker.config_schemas import SchemasConfig
from assay.reference_broker.schemas.compatibility import Budget, Compatibility, differences
from assay.reference_broker.schemas.document import SchemaDocument, fingerprint_of
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode
from assay.reference_broker.trace.described import described

JSON_SCHEMA: Final = "JSON"
MAX_SUBJECT_BYTES: Final = 255
MAX_VERSION: Final = 2**31 - 1
MAX_ID: Final = 2**31 - 1
_LAST_ID, _SCHEMA, _VERSION, _COMPATIBILITY, _MODE = b"n", b"s", b"v", b"c", b"m"
_encode = msgspec.msgpack.Encoder().encode


class Mode(StrEnum):
    """Whether a subject may change."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"


class Version(msgspec.Struct, frozen=True, array_like=True):
    """A version of a subject."""

    id: int
    """Of its schema, among all of the registry."""
    is_deleted: bool = False
    """It is found by its id, and where deleted ones are asked for."""
    registered_at_s: float = 0.0


class Found(NamedTuple):
    """A version, with what it is."""

    subject: str
    version: int
    id: int
    schema: str
    is_deleted: bool


Change = tuple[bytes, bytes | None]


class Changes(NamedTuple):
    """What a request does, once it is written down."""

    changes: tuple[Change, ...]
    answer: Any


class Comparison(NamedTuple):
    """A schema, and the versions that it may have to follow. What it takes is bounded, and may be run in any thread."""

    level: Compatibility
    versions: tuple[tuple[int, SchemaDocument], ...]
    document: SchemaDocument

    @property
    def key(self) -> tuple[str, tuple[tuple[int, str], ...], str]:
        """The same for the same question."""
        known = tuple((number, before.fingerprint) for number, before in self.versions)
        return self.level, known, self.document.fingerprint

    def problems(self) -> list[str]:
        """Why the schema may not follow them."""
        budget = Budget()
        found: list[str] = []
        for number, before in self.versions:
            if self.level.reads_old:
                problems = differences(before, self.document, budget)
                found += [f"the new schema cannot read all that version {number} allows: {each}" for each in problems]
            if self.level.is_read_by_old:
                problems = differences(self.document, before, budget)
                found += [f"version {number} cannot read all that the new schema allows: {each}" for each in problems]
        return found


class Judged(NamedTuple):
    """A comparison that was made before."""

    key: tuple[str, tuple[tuple[int, str], ...], str]
    problems: list[str]


class Registry:
    """The state, decoded. Requests raise :class:`SchemaError`."""

    def __init__(self, config: SchemasConfig) -> None:
        self.config = config
        self._latest: dict[str, int | None] = {}
        self._last_id = 0
        self._schemas: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        """By fingerprint."""
        self._fingerprints: dict[int, str] = {}
        self._subjects: dict[str, dict[int, Version]] = {}
        self._uses: dict[int, set[tuple[str, int]]] = {}
        """Id -> subject and version."""
        self._levels: dict[str, Compatibility] = {}
        self._modes: dict[str, Mode] = {}
        self._documents: dict[int, SchemaDocument] = {}

    # -- state ---------------------------------------------------------------------------------------------------

    def restore(self, records: Mapping[bytes, bytes]) -> tuple[list[Change], list[str]]:
        """Take what was written down; what to drop of it, and what could not be understood."""
        problems: list[str] = []
        drop: list[Change] = []
        for key in sorted(records, key=lambda key: _ORDER.find(key[:1])):
            try:
                self._take(key, records[key])
            except (ValueError, KeyError) as error:
                problems.append(f"the record {key[:40]!r} is not understood: {error}")
        for number in [each for each in self._schemas if each not in self._uses]:
            drop.append((_schema_key(number), None))
            self._forget_schema(number)
        return drop, problems

    def apply(self, changes: Iterable[Change]) -> None:
        """They are durable."""
        self._latest.clear()
        for key, value in changes:
            self._take(key, value)

    def _take(self, key: bytes, value: bytes | None) -> None:
        kind, rest = key[:1], key[1:]
        if kind == _LAST_ID:
            self._last_id = max(self._last_id, int(value or b"0"))
        elif kind == _SCHEMA:
            number = int.from_bytes(rest, "big")
            self._last_id = max(self._last_id, number)
            if value is None:
                self._forget_schema(number)
            else:
                self._take_schema(number, value.decode())
        elif kind == _VERSION:
            subject, version = rest[:-5].decode(), int.from_bytes(rest[-4:], "big")
            self._take_version(
                subject, version, None if value is None else msgspec.msgpack.decode(value, type=described(Version))
            )
        elif kind == _COMPATIBILITY:
            _set(self._levels, rest.decode(), None if value is None else Compatibility(value.decode()))
        elif kind == _MODE:
            _set(self._modes, rest.decode(), None if value is None else Mode(value.decode()))
        else:
            raise ValueError("no such kind")

    def _take_schema(self, number: int, text: str) -> None:
        fingerprint = fingerprint_of(text)
        self._schemas[number] = text
        self._ids[fingerprint] = number
        self._fingerprints[number] = fingerprint

    def _forget_schema(self, number: int) -> None:
        del self._schemas[number]
        self._documents.pop(number, None)
        self._ids.pop(self._fingerprints.pop(number), None)

    def _take_version(self, subject: str, number: int, version: Version | None) -> None:
        versions = self._subjects.setdefault(subject, {})
        before = versions.pop(number, None)
        if before is not None:
            users = self._uses[before.id]
            users.discard((subject, number))
            if not users:
                del self._uses[before.id]
        if version is not None:
            if version.id not in self._schemas:
                raise ValueError(f"there is no schema {version.id}")
            versions[number] = version
            self._uses.setdefault(version.id, set()).add((subject, number))
        if not versions:
            del self._subjects[subject]

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def last_id(self) -> int:
        """The last one that was given out; 0 = none."""
        return self._last_id

    @property
    def schema_count(self) -> int:
        return len(self._schemas)

    @property
    def version_count(self) -> int:
        """Of all subjects, deleted ones included."""
        return sum(map(len, self._subjects.values()))

    def subjects(self, *, deleted: bool = False, prefix: str = "") -> list[str]:
        """By name; ``deleted``: those of which nothing is left, too."""
        return sorted(
            name
            for name, versions in self._subjects.items()
            if name.startswith(prefix) and (deleted or any(not each.is_deleted for each in versions.values()))
        )

    def _versions(self, subject: str, *, deleted: bool) -> dict[int, Version]:
        """Not empty. Raises :class:`SchemaError` (SUBJECT_NOT_FOUND)."""
        versions = self._subjects.get(subject, {})
        found = {number: each for number, each in sorted(versions.items()) if deleted or not each.is_deleted}
        if not found:
            raise SchemaError(SchemaErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject[:80]}' not found.")
        return found

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        return list(self._versions(subject, deleted=deleted))

    def find(self, subject: str, version: int | None, *, deleted: bool = False) -> Found:
        """A version; None = the latest."""
        versions = self._versions(subject, deleted=deleted)
        number = max(versions) if version is None else version
        if number not in versions:
            raise SchemaError(SchemaErrorCode.VERSION_NOT_FOUND, f"Version {number} not found.")
        return self._found(subject, number, versions[number])

    def _found(self, subject: str, number: int, version: Version) -> Found:
        return Found(subject, number, version.id, self._schemas[version.id], version.is_deleted)

    def schema(self, number: int) -> str:
        """The text of a schema. Deleted versions have theirs, too."""
        text = self._schemas.get(number)
        if text is None:
            raise SchemaError(SchemaErrorCode.SCHEMA_NOT_FOUND, f"Schema {number} not found")
        return text

    def users(self, number: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """Subjects and versions with a schema."""
        self.schema(number)
        used = sorted(self._uses.get(number, ()))
        return [each for each in used if deleted or not self._subjects[each[0]][each[1]].is_deleted]

    def latest_id(self, subject: str) -> int | None:
        """Of the schema that messages are held against; None where the subject has none."""
        if subject not in self._latest:
            versions = self._subjects.get(subject, {})
            alive = [number for number, each in versions.items() if not each.is_deleted]
            if not alive:
                return None
            self._latest[subject] = versions[max(alive)].id
        return self._latest[subject]

    def belongs(self, number: int, subject: str) -> bool:
        """Whether a schema is, or was, a version of a subject."""
        return any(name == subject for name, _ in self._uses.get(number, ()))

    def everything(self, *, prefix: str = "", deleted: bool = False, latest: bool = False) -> list[Found]:
        """All versions of all subjects."""
        found: list[Found] = []
        for subject in self.subjects(deleted=deleted, prefix=prefix):
            versions = self._versions(subject, deleted=deleted)
            wanted = [max(versions)] if latest else list(versions)
            found += [self._found(subject, number, versions[number]) for number in wanted]
        return found

    def look_up(self, subject: str, text: str, *, deleted: bool = False) -> Found:
        """The version of a subject with that schema."""
        versions = self._versions(subject, deleted=deleted)
        number = self._ids.get(fingerprint_of(text))
        for version in sorted(versions, reverse=True):
            if versions[version].id == number:
                return self._found(subject, version, versions[version])
        raise SchemaError(SchemaErrorCode.SCHEMA_NOT_FOUND, "Schema not found")

    def document(self, number: int) -> SchemaDocument:
        """A schema, compiled; a few are remembered."""
        found = self._documents.get(number)
        if found is None:
            text = self.schema(number)
            found = SchemaDocument(text, max(len(text.encode()), self.config.max_schema_bytes), was_taken=True)
            weight = sum(each.weight_bytes for each in self._documents.values()) + found.weight_bytes
            while self._documents and weight > self.config.cache_bytes:
                weight -= self._documents.pop(next(iter(self._documents))).weight_bytes
        else:
            del self._documents[number]
        self._documents[number] = found
        return found

    # -- levels and modes ----------------------------------------------------------------------------------------

    def level(self, subject: str, *, or_global: bool = True) -> Compatibility:
        """Raises :class:`SchemaError` (SUBJECT_COMPATIBILITY_NOT_FOUND) for one that has none of its own."""
        if subject and subject not in self._levels and not or_global:
            text = f"Subject '{subject[:80]}' does not have subject-level compatibility configured"
            raise SchemaError(SchemaErrorCode.SUBJECT_COMPATIBILITY_NOT_FOUND, text)
        return self._levels.get(subject) or self._levels.get("") or Compatibility(self.config.compatibility)

    def mode(self, subject: str, *, or_global: bool = True) -> Mode:
        """Likewise (SUBJECT_MODE_NOT_FOUND)."""
        if subject and subject not in self._modes and not or_global:
            text = f"Subject '{subject[:80]}' does not have subject-level mode configured"
            raise SchemaError(SchemaErrorCode.SUBJECT_MODE_NOT_FOUND, text)
        return self._modes.get(subject) or self._modes.get("") or Mode.READWRITE

    def set_level(self, subject: str, level: str) -> Changes:
        """Of a subject, which need not be there, or with the empty name of all that have none of their own."""
        if level not in Compatibility.__members__:
            known = ", ".join(Compatibility)
            text = f"Invalid compatibility level. Valid values are {known}"
            raise SchemaError(SchemaErrorCode.INVALID_COMPATIBILITY, text)
        self._check_settable(subject, self._levels)
        return Changes(((_COMPATIBILITY + subject.encode(), level.encode()),), level)

    def set_mode(self, subject: str, mode: str) -> Changes:
        if mode not in Mode.__members__:
            raise SchemaError(SchemaErrorCode.INVALID_MODE, f"Invalid mode. Valid values are {', '.join(Mode)}")
        self._check_settable(subject, self._modes)
        return Changes(((_MODE + subject.encode(), mode.encode()),), mode)

    def _check_settable(self, subject: str, known: Mapping[str, object]) -> None:
        if subject:
            check_subject(subject)
        if subject not in known and len(known) > self.config.max_subjects:
            raise SchemaError(SchemaErrorCode.LIMIT, f"at most {self.config.max_subjects} subjects are configured")

    def delete_level(self, subject: str) -> Changes:
        """Answers with what held."""
        level = self.level(subject, or_global=False)
        return Changes(((_COMPATIBILITY + subject.encode(), None),), level)

    def delete_mode(self, subject: str) -> Changes:
        mode = self.mode(subject, or_global=False)
        return Changes(((_MODE + subject.encode(), None),), mode)

    def _check_writable(self, subject: str) -> None:
        if self.mode(subject) is Mode.READONLY:
            raise SchemaError(SchemaErrorCode.NOT_PERMITTED, f"Subject {subject[:80]} is in read-only mode")

    # -- registering ---------------------------------------------------------------------------------------------

    def register(self, subject: str, schema: SchemaDocument | str, now: float, judged: Judged | None = None) -> Changes:
        """A new version, unless it is there; answers with :class:`Found`. Raises :class:`SchemaError`.

        ``judged``: what a comparison said; it is made again where something changed since.
        """
        check_subject(subject)
        self._check_writable(subject)
        document = self.read(schema)
        number = self._ids.get(document.fingerprint)
        versions = self._subjects.get(subject, {})
        for version, each in sorted(versions.items(), reverse=True):
            if each.id == number and not each.is_deleted:
                return Changes((), self._found(subject, version, each))
        comparison = self.comparison(subject, document)
        is_known = judged is not None and judged.key == comparison.key
        problems = judged.problems if judged is not None and is_known else comparison.problems()
        if problems:
            against = f'Schema being registered is incompatible with an earlier schema for subject "{subject[:80]}"'
            raise SchemaError(SchemaErrorCode.INCOMPATIBLE, f"{against}: {problems[0]}", tuple(problems))
        self._check_room(versions)
        changes: list[Change] = []
        if number is None:
            number = self._last_id + 1
            changes += [(_LAST_ID, b"%d" % number), (_schema_key(number), document.text.encode())]
        version = max(versions, default=0) + 1
        changes.append((_version_key(subject, version), _encode(Version(number, False, now))))
        return Changes(
            tuple(changes), Found(subject, version, number, self._schemas.get(number, document.text), is_deleted=False)
        )

    def _check_room(self, versions: Mapping[int, Version]) -> None:
        config = self.config
        if not versions and len(self._subjects) >= config.max_subjects:
            raise SchemaError(SchemaErrorCode.LIMIT, f"there are {config.max_subjects} subjects, which is the limit")
        if len(versions) >= config.max_versions:
            text = f"the subject has {config.max_versions} versions, which is the limit; delete some for good"
            raise SchemaError(SchemaErrorCode.LIMIT, text)
        if self._last_id >= MAX_ID or max(versions, default=0) >= MAX_VERSION:
            raise SchemaError(SchemaErrorCode.LIMIT, "there are no numbers left")

    def read(self, schema: SchemaDocument | str) -> SchemaDocument:
        """Raises :class:`SchemaError` (INVALID_SCHEMA)."""
        return SchemaDocument(schema, self.config.max_schema_bytes) if isinstance(schema, str) else schema

    def comparison(self, subject: str, document: SchemaDocument, against: int | str | None = "all") -> Comparison:
        """With a version (None: the latest), or with ``all`` that the level of the subject asks about."""
        level = self.level(subject)
        alive = [number for number, each in sorted(self._subjects.get(subject, {}).items()) if not each.is_deleted]
        if against == "all":
            numbers = alive[::-1] if level.is_transitive else alive[-1:]
        else:
            assert not isinstance(against, str)
            numbers = [self.find(subject, against).version]
        if level is Compatibility.NONE:
            numbers = []
        versions = self._subjects.get(subject, {})
        return Comparison(level, tuple((number, self.document(versions[number].id)) for number in numbers), document)

    # -- deleting ------------------------------------------------------------------------------------------------

    def delete_subject(self, subject: str, *, permanent: bool = False) -> Changes:
        """Answers with the versions that are gone."""
        self._check_writable(subject)
        versions = self._versions(subject, deleted=True)
        alive = [number for number, each in versions.items() if not each.is_deleted]
        if permanent:
            if alive:
                text = f"Subject '{subject[:80]}' was not deleted first before being permanently deleted"
                raise SchemaError(SchemaErrorCode.SUBJECT_NOT_SOFT_DELETED, text)
            more = [(kind + subject.encode(), None) for kind in (_COMPATIBILITY, _MODE) if self._has(kind, subject)]
            return Changes((*self._removed(subject, list(versions)), *more), list(versions))
        if not alive:
            text = f"Subject '{subject[:80]}' was soft deleted. Set permanent=true to delete permanently"
            raise SchemaError(SchemaErrorCode.SUBJECT_SOFT_DELETED, text)
        return Changes(tuple(self._deleted(subject, number, versions[number]) for number in alive), alive)

    def _has(self, kind: bytes, subject: str) -> bool:
        return subject in (self._levels if kind == _COMPATIBILITY else self._modes)

    def delete_version(self, subject: str, version: int | None, *, permanent: bool = False) -> Changes:
        """Answers with its number."""
        self._check_writable(subject)
        found = self.find(subject, version, deleted=version is not None)
        if permanent:
            if not found.is_deleted:
                text = f"Subject '{subject[:80]}' Version {found.version} was not deleted first"
                raise SchemaError(SchemaErrorCode.VERSION_NOT_SOFT_DELETED, text)
            return Changes(self._removed(subject, [found.version]), found.version)
        if found.is_deleted:
            text = f"Subject '{subject[:80]}' Version {found.version} was soft deleted"
            raise SchemaError(SchemaErrorCode.VERSION_SOFT_DELETED, text)
        each = self._subjects[subject][found.version]
        return Changes((self._deleted(subject, found.version, each),), found.version)

    def _deleted(self, subject: str, number: int, version: Version) -> Change:
        return _version_key(subject, number), _encode(msgspec.structs.replace(version, is_deleted=True))

    def _removed(self, subject: str, numbers: list[int]) -> tuple[Change, ...]:
        """Versions go, and after them the schemas that nobody has any more."""
        gone = {(subject, number) for number in numbers}
        ids = {self._subjects[subject][number].id for number in numbers}
        unused = [each for each in sorted(ids) if self._uses[each] <= gone]
        versions = [(_version_key(subject, number), None) for number in numbers]
        return (*versions, *((_schema_key(each), None) for each in unused))


_ORDER: Final = _LAST_ID + _SCHEMA + _VERSION + _COMPATIBILITY + _MODE


def _set(values: dict[str, Any], subject: str, value: Any) -> None:
    if value is None:
        values.pop(subject, None)
    else:
        values[subject] = value


def _schema_key(number: int) -> bytes:
    return _SCHEMA + number.to_bytes(8, "big")


def _version_key(subject: str, version: int) -> bytes:
    return _VERSION + subject.encode() + b"\0" + version.to_bytes(4, "big")


def check_subject(subject: str) -> None:
    """Raises :class:`SchemaError` (INVALID_SUBJECT)."""
    size = len(subject.encode(errors="replace"))
    if not 1 <= size <= MAX_SUBJECT_BYTES or not subject.isprintable():
        text = f"The subject must be 1 to {MAX_SUBJECT_BYTES} bytes of printable characters"
        raise SchemaError(SchemaErrorCode.INVALID_SUBJECT, text)


def version_in(text: str) -> int | None:
    """A version as requests name it; None = the latest. Raises :class:`SchemaError` (INVALID_VERSION)."""
    if text in ("latest", "-1"):
        return None
    if not text.isdecimal() or not 1 <= int(text[:12]) <= MAX_VERSION:
        known = f'a number from 1 to {MAX_VERSION}, or "latest"'
        raise SchemaError(SchemaErrorCode.INVALID_VERSION, f"The specified version '{text[:40]}' is not {known}.")
    return int(text)
