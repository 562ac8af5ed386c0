"""The Spark schemas are those of the records, and the session refuses to start with a sentence that helps."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType

from reference_broker.trace.schema import HistoryEvent, LatencySample, Record, TraceEvent
from spark_analysis import session
from spark_analysis.schemas import struct_type

SPARK_TYPE = {int: LongType, str: StringType, bool: BooleanType}


@pytest.mark.parametrize("record", [HistoryEvent, TraceEvent, LatencySample])
def test_schema_has_the_fields_types_and_defaults_of_the_record(record: type[Record]) -> None:
    schema = struct_type(record)
    fields = msgspec.structs.fields(record)
    assert schema.names == [field.name for field in fields]
    hints = get_type_hints(record)
    for field in fields:
        kind = hints[field.name]
        plain = str if issubclass(kind, StrEnum) else kind
        assert isinstance(schema[field.name].dataType, SPARK_TYPE[plain])
        assert schema[field.name].nullable is not field.required


def test_a_nested_field_is_refused() -> None:
    class Nested(Record, frozen=True, kw_only=True):
        inside: dict[str, int]

    with pytest.raises(TypeError, match=r"Nested\.inside"):
        struct_type(Nested)


def _java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("11.0.2", 11)], ids=["17", "21", "8", "11"]
)
def test_java_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, version)))
    assert session.java_version() == major
    reason = session.why_unavailable()
    assert (reason is None) is (major >= session.JAVA_MIN)
    if reason is not None:
        assert f"found Java {major}" in reason


def test_missing_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session.SparkSession, "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(session.SparkUnavailableError, match="install a JRE or set JAVA_HOME"), session.open_session():
        pass
