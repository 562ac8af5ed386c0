"""The Spark schemas are those of the records, and the session refuses to start with a sentence that helps."""

from __future__ import annotations

import shutil
import subprocess
from enum import StrEnum
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType

from assay.reference_broker.trace.schema import HistoryEvent, LatencySample, Record, TraceEvent
from assay.spark_analysis import session
from assay.spark_analysis.schemas import struct_type

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
    java = session.find_java()
    assert java is not None
    assert java.version == major
    reason = session.why_unavailable()
    assert (reason is None) is (major >= session.JAVA_MIN)
    if reason is not None:
        assert f"JAVA_HOME points to {tmp_path}, which is Java {major}: " in reason


def test_a_wrong_java_home_is_named_although_java_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = _java(tmp_path / "good", "17.0.1")
    monkeypatch.setenv("PATH", str(good / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert session.why_unavailable() is None
    empty = tmp_path / "empty"
    monkeypatch.setenv("JAVA_HOME", str(empty))
    assert f"JAVA_HOME points to {empty}, which has no bin/java: correct JAVA_HOME, or unset" in _reason()
    broken = _java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("no program")
    monkeypatch.setenv("JAVA_HOME", str(broken))
    assert f"JAVA_HOME points to {broken}, whose bin/java does not run" in _reason()


def _reason() -> str:
    reason = session.why_unavailable()
    assert reason is not None
    return reason


def test_no_java_and_an_old_java_on_the_path_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java is on the PATH: install a JRE or set JAVA_HOME" in _reason()
    old = _java(tmp_path / "old", "11.0.2") / "bin"
    monkeypatch.setenv("PATH", f"{old}:/bin:/usr/bin")
    assert f"{old / 'java'} is Java 11: install a newer JRE" in _reason()


@pytest.mark.parametrize(
    ("home", "said"),
    [("empty", "has no bin/java"), ("old", "older than 17"), ("good", "")],
)
def test_toxw_names_a_wrong_java_home(tmp_path: Path, home: str, said: str) -> None:
    """Only its look for Java runs, as an ordinary user without a package manager would see it."""
    toxw = (Path(__file__).resolve().parents[2] / "toxw").read_text(encoding="utf-8")
    functions = toxw[toxw.index("java_works()") : toxw.index("ensure_spark_wheel()")]
    if home != "empty":
        _java(tmp_path / home, {"old": "11.0.2", "good": "21"}[home])
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("id", "echo 1000"), ("uname", "echo Other")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    for name in ("sed", "head"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    environment = {"PATH": str(tools), "JAVA_HOME": str(tmp_path / home)}
    script = f"set -eu\n{functions}\nensure_java"
    done = subprocess.run(["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if home == "good" else 1), done.stderr
    if said:
        assert f"JAVA_HOME points to {tmp_path / home}" in done.stderr
    assert said in done.stderr


def test_missing_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session.SparkSession, "getActiveSession", classmethod(lambda cls: None))
    with pytest.raises(session.SparkUnavailableError, match="has no bin/java"), session.open_session():
        pass
