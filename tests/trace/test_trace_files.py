"""History and trace files: what is written is read back; what is wrong is named with its line."""

from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.trace.files import HistoryWriter, RecordFileError, TraceWriter, read_history, read_trace
from assay.reference_broker.trace.schema import (
    Contract,
    HistoryEvent,
    HistoryHeader,
    OpKind,
    OpType,
    TraceEvent,
    TraceHeader,
    TraceKind,
)

EVENTS = st.lists(
    st.builds(
        HistoryEvent,
        index=st.integers(0, 2**40),
        time_ns=st.integers(0, 2**62),
        process=st.text(max_size=8),
        f=st.sampled_from(OpKind),
        type=st.sampled_from(OpType),
        op=st.integers(-1, 2**40),
        queue=st.text(max_size=8),
        value=st.text(max_size=8),
        offset=st.integers(-1, 2**62),
        redelivered=st.booleans(),
        detail=st.text(max_size=20),
    ),
    max_size=20,
)


HEADER = b'{"schema":"assay.history/1"}\n'


@given(events=EVENTS, name=st.sampled_from(["h.jsonl", "h.jsonl.zst"]))
def test_history_round_trip(tmp_path_factory: pytest.TempPathFactory, events: list[HistoryEvent], name: str) -> None:
    path = tmp_path_factory.mktemp("history") / name
    header = HistoryHeader(run_id="r", scenario="s", world="sim", seed=7, contract=Contract(max_deliveries=3))
    with HistoryWriter(path, header) as writer:
        for event in events:
            writer.write(event)
    assert writer.count == len(events)
    found, read = read_history(path)
    assert found == header
    assert list(read) == events


def test_trace_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "trace.jsonl.zst"
    event = TraceEvent(seq=1, time_ns=2, node="broker", kind=TraceKind.ACKED, queue="q")
    with TraceWriter(path, TraceHeader(run_id="r", node="broker")) as writer:
        writer.write(event)
    header, events = read_trace(path)
    assert header.node == "broker"
    assert list(events) == [event]


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, TraceHeader()):
        pass
    with pytest.raises(RecordFileError, match=r"schema is 'assay.trace/1'"):
        read_history(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    with pytest.raises(RecordFileError, match="line 1"):
        read_history(path)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(HEADER + b'{"index":0,"time_ns":0,"process":"p","f":"publish","type":"ok"}\n{"index":\n')
    _, events = read_history(path)
    assert next(events).index == 0
    with pytest.raises(RecordFileError, match="line 3"):
        next(events)


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(HEADER + b" " * 3_000_000))
    _, events = read_history(path)
    with pytest.raises(RecordFileError, match="longer than"):
        list(events)


def test_a_cut_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl.zst"
    with HistoryWriter(path, HistoryHeader(run_id="x" * 100)) as writer:
        for index in range(5_000):
            writer.write(
                HistoryEvent(
                    index=index, time_ns=index * 7919, process=f"p{index * 31 % 977}", f=OpKind.PUBLISH, type=OpType.OK
                )
            )
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RecordFileError):
        list(read_history(path)[1])


def test_a_file_without_header_does_not_lose_its_first_event(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text('{"index":0,"time_ns":1,"process":"p","f":"connect","type":"invoke"}\n', encoding="utf-8")
    with pytest.raises(RecordFileError, match="no schema is named"):
        read_history(path)
