"""``assay storage dump``: every record, filtered, forwards and backwards, and back again byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.queues.jobs.store import LogRecord
from assay.reference_broker.storage_tools.cli import parse_time
from assay.reference_broker.storage_tools.json_lines import JsonLineError, decode_line, encode_line

Run = Callable[..., Any]
WAIT_S = 60.0
START_MS = 1_700_000_000_000


def lines_of(done: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def offsets(done: Any) -> list[int]:
    assert done.status == 0, done.errors
    return [line["offset"] for line in lines_of(done)]


@pytest.mark.parametrize("name", ["assay", "flux_partitions", "flux_segments", "goqueue"])
def test_every_record_is_printed(name: str, request: pytest.FixtureRequest, storage: Run, expected_record: Run) -> None:
    root: Path = request.getfixturevalue(name)
    count = 16 if name == "goqueue" else 36
    found = lines_of(storage("dump", root, "--partition", 0))
    assert [line["offset"] for line in found] == list(range(count))
    for line in found:
        record = expected_record(line["offset"])
        assert line["key"] == record.key.decode()
        assert line["value"] == record.value.decode()
        assert line["timestamp_ms"] == record.timestamp_ms
        assert line["queue"].endswith("orders")
    header = {"name": "trace", "value": "1"} if name == "goqueue" else {"name": "_topic", "value": "$queue/orders"}
    assert header in found[1]["headers"]


def test_filters(assay: Path, storage: Run) -> None:
    def wanted(*arguments: object) -> list[int]:
        return offsets(storage("dump", assay, "--queue", "orders", "--partition", 0, *arguments))

    assert wanted("--from", 11, "--to", 14) == [11, 12, 13]
    assert wanted("--from", 36) == []
    assert wanted("--limit", 2) == [0, 1]
    assert wanted("--key", "k2") == [2, 7, 12, 17, 22, 27, 32]
    assert wanted("--since", START_MS + 700 * 34) == [34, 35]
    assert wanted("--until", START_MS + 1) == [0]
    assert wanted("--since", "2023-11-14T22:13:43.800Z") == [34, 35]
    assert wanted("--reverse", "--limit", 3) == [35, 34, 33]
    assert wanted("--reverse") == list(reversed(range(36)))
    assert wanted("--reverse", "--from", 10, "--to", 13) == [12, 11, 10]
    assert len(offsets(storage("dump", assay))) == 39
    assert offsets(storage("dump", assay, "--limit", 37)) == [*range(36), 0]


def test_only_values(assay: Path, storage: Run) -> None:
    assert storage("dump", assay, "--values-only", "--limit", 2).out == "value 0\nvalue 1\n"


def test_reverse_over_another_brokers_files(goqueue: Path, flux_segments: Path, storage: Run) -> None:
    assert offsets(storage("dump", goqueue, "--reverse", "--limit", 2)) == [15, 14]
    assert offsets(storage("dump", flux_segments, "--reverse", "--limit", 2)) == [35, 34]


def test_what_cannot_be_read_is_skipped_and_said(assay: Path, storage: Run) -> None:
    segment = min((assay / "queues/orders/partitions/0").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(bytes(data))
    for arguments in ((), ("--reverse",)):
        done = storage("dump", assay, "--partition", 0, *arguments)
        assert done.status == 1
        assert sorted(line["offset"] for line in lines_of(done)) == list(range(3, 36))
        assert f"skipped {segment.relative_to(assay)} bytes 0 to" in done.errors


def test_a_reader_that_has_enough_is_no_error(make_assay: Run, tmp_path: Path) -> None:
    root = make_assay(tmp_path / "many", segments=300, with_group=False)
    command = [sys.executable, "-m", "assay.cli", "storage", "dump", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["offset"] == 0
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(WAIT_S) == 0
    assert errors == b""


def test_wrong_selections_are_usage_errors(assay: Path, storage: Run) -> None:
    assert storage("dump", assay, "--queue", "nothing").status == 2
    assert storage("dump", assay, "--partition", 9).status == 2
    done = storage("dump", assay, "--since", "yesterday")
    assert done.status == 2
    assert "2026-01-31T12:00:00Z" in done.errors.replace("\n", "")


def test_times() -> None:
    assert parse_time("1700000000000") == START_MS
    assert parse_time("2023-11-14T22:13:20") == parse_time("2023-11-14T23:13:20+01:00") == START_MS
    with pytest.raises(typer.BadParameter):
        parse_time("2023-13-01")


BYTES = st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
RECORDS = st.builds(
    LogRecord,
    st.integers(0, 2**63 - 1),
    st.integers(-(2**61), 2**61),
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(BYTES, BYTES), max_size=3).map(tuple),
)


@given(RECORDS, st.text(min_size=1, max_size=10), st.integers(0, 1_000))
def test_a_record_comes_back_from_its_line(record: LogRecord, queue: str, partition: int) -> None:
    line = encode_line(queue, partition, record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line, 1) == (queue, partition, record)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[1]",
        b'{"queue":"q","partition":0,"offset":-1,"timestamp_ms":0}',
        b'{"queue":"q","partition":-1,"offset":0,"timestamp_ms":0}',
        b'{"queue":"q","partition":0,"offset":0,"timestamp_ms":0,"value_base64":"%"}',
        b'{"queue":"q","partition":0,"offset":0,"timestamp_ms":0,"value":"a","value_base64":"YQ=="}',
        b'{"queue":"q","partition":0,"offset":9223372036854775808,"timestamp_ms":0}',
        b"\xff",
        b'{"queue":' + b"[" * 100_000,
        b'{"queue":"q","partition":0,"offset":0,"timestamp_ms":0,"x":' + b"[" * 100_000,
    ],
)
def test_lines_that_are_no_records_are_refused_by_number(line: bytes) -> None:
    with pytest.raises(JsonLineError, match="line 7"):
        decode_line(line, 7)
