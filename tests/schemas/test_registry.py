"""Subjects, versions, ids, levels, modes: as Confluent's clients expect them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from assay.reference_broker.config_schemas import SchemasConfig
from assay.reference_broker.schemas.errors import SchemaError
from assay.reference_broker.schemas.errors import SchemaErrorCode as Code
from assay.reference_broker.schemas.registry import Changes, Found, Judged, Registry, version_in


def text(*required: str, **properties: str) -> str:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return msgspec.json.encode({"type": "object", "properties": kinds, "required": required}).decode()


A, A_NEEDED, B = text(a="integer"), text("a", a="integer"), text(b="string")


class Bench:
    """A registry whose changes are durable at once, and what was written of it."""

    def __init__(self, **config: Any) -> None:
        self.config = SchemasConfig(**config)
        self.registry = Registry(self.config)
        self.records: dict[bytes, bytes] = {}

    def do(self, wanted: Changes) -> Any:
        for key, value in wanted.changes:
            self.records.pop(key, None)
            if value is not None:
                self.records[key] = value
        self.registry.apply(wanted.changes)
        return wanted.answer

    def register(self, subject: str, schema: str) -> Found:
        answer = self.do(self.registry.register(subject, schema, 1.0))
        assert isinstance(answer, Found)
        return answer

    def problems(self, subject: str, schema: str, against: int | str | None) -> list[str]:
        return self.registry.comparison(subject, self.registry.read(schema), against).problems()

    def reopened(self) -> Registry:
        again = Registry(self.config)
        assert again.restore(self.records) == ([], [])
        return again


def test_versions_count_in_the_subject_and_ids_among_all() -> None:
    bench = Bench(compatibility="NONE")
    assert [bench.register(*each)[1:3] for each in (("s", A), ("s", B), ("t", A), ("s", A))] == [
        (1, 1),
        (2, 2),
        (1, 1),
        (1, 1),
    ]
    for registry in (bench.registry, bench.reopened()):
        assert registry.subjects() == ["s", "t"]
        assert registry.versions("s") == [1, 2]
        assert registry.find("s", None).id == 2
        assert registry.users(1) == [("s", 1), ("t", 1)]
        assert registry.look_up("s", " " + A).version == 1
        assert registry.latest_id("s") == 2
        assert registry.latest_id("u") is None


def test_what_is_deleted_is_found_by_its_id_until_it_is_deleted_for_good() -> None:
    bench = Bench(compatibility="NONE")
    registry = bench.registry
    bench.register("s", A)
    bench.register("s", B)
    assert refused(lambda: registry.delete_version("s", 1, permanent=True)) is Code.VERSION_NOT_SOFT_DELETED
    assert bench.do(registry.delete_version("s", None)) == 2
    assert refused(lambda: registry.delete_version("s", 2)) is Code.VERSION_SOFT_DELETED
    assert registry.schema(2) == B
    assert registry.belongs(2, "s")
    assert registry.latest_id("s") == 1
    assert bench.register("s", B).version == 3, "it is registered again"
    assert refused(lambda: registry.delete_subject("s", permanent=True)) is Code.SUBJECT_NOT_SOFT_DELETED
    assert bench.do(registry.delete_subject("s")) == [1, 3]
    assert refused(lambda: registry.delete_subject("s")) is Code.SUBJECT_SOFT_DELETED
    assert refused(lambda: registry.versions("s")) is Code.SUBJECT_NOT_FOUND
    assert registry.versions("s", deleted=True) == [1, 2, 3]
    assert bench.do(registry.delete_subject("s", permanent=True)) == [1, 2, 3]
    assert registry.subjects(deleted=True) == []
    assert refused(lambda: registry.schema(1)) is Code.SCHEMA_NOT_FOUND
    assert bench.records.keys() == {b"n"}
    assert bench.register("s", A).id == 3, "no id is given out twice"
    assert bench.reopened().find("s", 1).id == 3


def test_compatibility_is_asked_of_the_latest_or_of_all() -> None:
    bench = Bench()
    bench.register("s", A_NEEDED)
    bench.register("s", A)
    assert refused(lambda: bench.registry.register("s", A_NEEDED, 1.0)) is None, "it is there"
    narrower = text("a", "b", a="integer")
    problems = bench.problems("s", narrower, None)
    assert len(problems) == 1
    assert "version 2 allows" in problems[0]
    assert "REQUIRED_ADDED" in problems[0]
    with pytest.raises(SchemaError, match="REQUIRED_ADDED") as refusal:
        bench.registry.register("s", narrower, 1.0)
    assert refusal.value.code is Code.INCOMPATIBLE
    assert refusal.value.code.status == 409
    assert len(bench.problems("s", narrower, 1)) == 1
    bench.do(bench.registry.set_level("s", "FORWARD_TRANSITIVE"))
    assert bench.problems("s", narrower, "all") == []
    (only,) = bench.problems("s", text(a="string"), 2)
    assert "version 2 cannot read" in only
    bench.do(bench.registry.set_level("s", "FULL_TRANSITIVE"))
    assert len(bench.problems("s", narrower, "all")) == 2
    bench.do(bench.registry.set_level("s", "NONE"))
    assert bench.register("s", narrower).version == 3


def test_a_judgement_holds_as_long_as_nothing_changed() -> None:
    bench = Bench()
    registry = bench.registry
    bench.register("s", A)
    document = registry.read(B)
    comparison = registry.comparison("s", document)
    judged = Judged(comparison.key, ["it was judged before"])
    with pytest.raises(SchemaError, match="it was judged before"):
        registry.register("s", document, 1.0, judged)
    bench.do(registry.set_level("s", "NONE"))
    bench.do(registry.register("s", registry.read(A_NEEDED), 1.0))
    assert registry.register("s", document, 1.0, judged).answer.version == 3, "another level, another question"
    bench.do(registry.set_level("s", "BACKWARD"))
    with pytest.raises(SchemaError, match="PROPERTY_ADDED"):
        registry.register("s", document, 1.0, judged)


def test_levels_and_modes_are_of_a_subject_or_of_all() -> None:
    bench = Bench()
    registry = bench.registry
    assert registry.level("s") == "BACKWARD"
    assert refused(lambda: registry.level("s", or_global=False)) is Code.SUBJECT_COMPATIBILITY_NOT_FOUND
    assert refused(lambda: registry.mode("s", or_global=False)) is Code.SUBJECT_MODE_NOT_FOUND
    assert refused(lambda: registry.set_level("s", "SIDEWARD")) is Code.INVALID_COMPATIBILITY
    assert refused(lambda: registry.set_mode("s", "IMPORT")) is Code.INVALID_MODE
    bench.do(registry.set_level("", "FULL"))
    bench.do(registry.set_mode("s", "READONLY"))
    again = bench.reopened()
    assert (again.level("s"), again.mode("s"), again.mode("t")) == ("FULL", "READONLY", "READWRITE")
    assert refused(lambda: registry.register("s", A, 1.0)) is Code.NOT_PERMITTED
    assert bench.do(registry.delete_mode("s")) == "READONLY"
    assert bench.do(registry.delete_level("")) == "FULL"
    assert (registry.level("s"), registry.mode("s")) == ("BACKWARD", "READWRITE")


def test_everything_has_a_limit() -> None:
    bench = Bench(max_subjects=1, max_versions=2, max_schema_bytes=100, compatibility="NONE")
    bench.register("s", A)
    bench.register("s", B)
    assert refused(lambda: bench.registry.register("s", A_NEEDED, 1.0)) is Code.LIMIT
    assert refused(lambda: bench.registry.register("t", A, 1.0)) is Code.LIMIT
    assert refused(lambda: bench.registry.register("s", text(**{"x" * 90: "null"}), 1.0)) is Code.INVALID_SCHEMA
    assert refused(lambda: bench.registry.register("x" * 256, A, 1.0)) is Code.INVALID_SUBJECT
    assert refused(lambda: bench.registry.register("a\nb", A, 1.0)) is Code.INVALID_SUBJECT
    bench.do(bench.registry.set_level("a", "NONE"))
    bench.do(bench.registry.set_level("b", "NONE"))
    assert refused(lambda: bench.registry.set_level("c", "NONE")) is Code.LIMIT


def test_compiled_schemas_are_forgotten_when_they_take_too_much() -> None:
    bench = Bench(cache_bytes=1, compatibility="NONE")
    bench.register("s", A)
    bench.register("s", B)
    first = bench.registry.document(1)
    assert bench.registry.document(1) is first
    assert bench.registry.document(2) is not first
    assert bench.registry.document(1) is not first


def test_a_crash_between_two_records_leaves_nothing_that_counts() -> None:
    bench = Bench()
    wanted = bench.registry.register("s", A, 1.0)
    for cut in range(len(wanted.changes)):
        records = {key: value for key, value in wanted.changes[:cut] if value is not None}
        again = Registry(bench.config)
        drop, problems = again.restore(records)
        assert problems == []
        assert again.subjects(deleted=True) == []
        assert [key[:1] for key, _ in drop] == ([b"s"] if cut == 2 else [])
        assert again.register("s", B, 1.0).answer.id == (2 if cut else 1)
    damaged = dict(wanted.changes)
    damaged[b"x"] = b""
    del damaged[b"s" + (1).to_bytes(8, "big")]
    _, problems = Registry(bench.config).restore(damaged)  # type: ignore[arg-type]
    assert len(problems) == 2


@pytest.mark.parametrize("name", ["0", "-2", "x", "", "1.0", "99999999999", "٣x"])
def test_what_is_no_version_is_refused(name: str) -> None:
    assert refused(lambda: version_in(name)) is Code.INVALID_VERSION


def test_versions_are_numbers_or_the_latest() -> None:
    assert (version_in("7"), version_in("latest"), version_in("-1")) == (7, None, None)


def refused(ask: Any) -> Code | None:
    try:
        ask()
    except SchemaError as error:
        return error.code
    return None
