"""A whole run folder, and every way to damage one of its files: what each reader must name, and survive."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict, Footer, Header, WireLine
from assay.reference_broker.trace.files import HistoryWriter, TraceWriter
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Series, Verdict, write_result
from assay.reference_broker.trace.schema import (
    HistoryEvent,
    HistoryHeader,
    LatencySample,
    OpKind,
    OpType,
    TraceEvent,
    TraceHeader,
    TraceKind,
)

CASE = "mqtt5/connect/client-id-names-the-session"
HAS_PARQUET = find_spec("pyarrow") is not None


def _encode(record: object) -> bytes:
    import msgspec

    return msgspec.json.encode(record) + b"\n"


def _history(path: Path) -> None:
    events = []
    for seq in range(20):
        value, index = f"p-{seq}", 4 * seq
        common = {"queue": "q", "value": value, "producer": "p", "seq": seq}
        made = (
            HistoryEvent(index=index, time_ns=index, process="p", f=OpKind.PUBLISH, type=OpType.INVOKE, **common),
            HistoryEvent(
                index=index + 1, time_ns=index + 1, process="p", f=OpKind.PUBLISH, type=OpType.OK, op=index, **common
            ),
            HistoryEvent(
                index=index + 2,
                time_ns=index + 2,
                process="c",
                f=OpKind.DELIVER,
                type=OpType.OK,
                group="g",
                delivery_count=1,
                **common,
            ),
        )
        events += list(made)
    events.append(HistoryEvent(index=500, time_ns=500, process="c", f=OpKind.DRAIN, type=OpType.OK))
    with HistoryWriter(path, HistoryHeader(run_id="r")) as writer:
        for event in events:
            writer.write(event)


def _trace(path: Path) -> None:
    with TraceWriter(path, TraceHeader(run_id="r", node="n")) as writer:
        for seq in range(20):
            writer.write(TraceEvent(seq=seq, time_ns=seq, node="n", kind=TraceKind.PUBLISHED, message_id=f"m{seq}"))


def _samples(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        LatencySample(
            run_id="r",
            phase="steady",
            operation="publish_to_ack",  # type: ignore[arg-type]
            qos=1,
            client="c",
            seq=n,
            intended_ns=n,
            sent_ns=n,
            completed_ns=n + 5,
            workload="w",
            protocol="mqtt5",
            offered_ns=n,
        )
        for n in range(50)
    ]
    names = LatencySample.__struct_fields__
    pq.write_table(pa.table({name: [getattr(row, name) for row in rows] for name in names}), path)


def _report(path: Path) -> None:
    header = Header(target="reference", started_at="", suite_version="1", seed=1)
    case = CaseResult(
        case=CASE,
        title="t",
        spec="mqtt5",
        area="connect",
        clauses=[],
        level="MUST",
        verdict=CaseVerdict.PASS,
        transcript="transcripts/one.jsonl",
    )
    footer = Footer(counts={"pass": 1}, exit_code=0, duration_s=1.0)
    path.write_bytes(b"".join(map(_encode, (header, case, footer))))


def _transcript(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_encode(WireLine(t_ns=1, connection="c", direction="send", hex="10", decoded="CONNECT")) * 9)


def _result(path: Path) -> None:
    check = Check(name="c", value=1.0, unit="ms", bound=2.0, relation="<", verdict=Verdict.PASS)
    series = [Series(name="s", unit="ms", x_s=[0.0, 1.0], y=[1.0, None])]
    result = RunResult(
        kind=RunKind.LOAD, name="smoke", verdict=Verdict.PASS, summary="fine", checks=[check], series=series
    )
    write_result(path.parent, result)


GOOD: dict[str, Callable[[Path], None]] = {
    "result.json": _result,
    "report.jsonl": _report,
    "transcripts/one.jsonl": _transcript,
    "history.jsonl": _history,
    "history-2.jsonl.zst": _history,
    "trace.jsonl": _trace,
    "histograms.jsonl": lambda path: path.write_bytes(b'{"second":1,"count":2,"histogram":"x"}\n' * 3) and None,
    "latencies.json": lambda path: path.write_bytes(b'[{"failures":0}]') and None,
    "broker.yaml": lambda path: path.write_text("listeners: [1883]\n") and None,
} | ({"samples.parquet": _samples} if HAS_PARQUET else {})
"""Files of a run folder by their place in it."""


def make_run(folder: Path) -> None:
    """A folder with one sound file of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in GOOD.items():
        write(folder / name)


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3 - 5])  # within a line, whatever their length


def _bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def _not_utf_8(path: Path) -> None:
    data = path.read_bytes()
    middle = data.rfind(b"e", 0, len(data) * 3 // 4)
    path.write_bytes(data[:middle] + b"\xff\xfe" + data[middle:])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    """Nobody can open it, not even root, whom permissions do not keep out."""
    path.unlink()
    path.symlink_to(path.name)


def _repeated(path: Path) -> None:
    head, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([head, *lines, *lines[:1]]))


def _wrong_types(path: Path) -> None:
    text = path.read_text()
    changed = {
        "result.json": ('"unit": "ms"', '"unit": 7'),
        "report.jsonl": ('"seed":1', '"seed":"one"'),
        "history.jsonl": ('"index":8,', '"index":"eight",'),
        "trace.jsonl": ('"seq":8,', '"seq":"eight",'),
        "one.jsonl": ('"t_ns":1', '"t_ns":"one"'),
        "histograms.jsonl": ('"count":2', '"count":"two"'),
    }[path.name]
    assert changed[0] in text, path
    path.write_text(text.replace(*changed))


def _nan(path: Path) -> None:
    text = path.read_text()
    changed = {
        "result.json": ('"value": 1.0', '"value": NaN'),
        "history.jsonl": ('"time_ns":8,', '"time_ns":NaN,'),
        "trace.jsonl": ('"time_ns":8,', '"time_ns":NaN,'),
    }[path.name]
    assert changed[0] in text, path
    path.write_text(text.replace(*changed))


def _parquet(change: Callable[[dict[str, list[object]]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = pq.read_table(path).to_pydict()
        change(columns)
        pq.write_table(pa.table(columns), path)

    return damage


def _set(name: str, values: Callable[[int], list[object]]) -> Callable[[Path], None]:
    def change(columns: dict[str, list[object]]) -> None:
        columns[name] = values(len(columns["seq"]))

    return _parquet(change)


EVERY: dict[str, Callable[[Path], None]] = {
    "truncated": _truncated,
    "empty": _bytes(b""),
    "garbage": _bytes(bytes(range(256)) * 40),
    "nested without end": _bytes(b"[" * 200_000),
    "a folder": _folder,
    "unreadable": _loop,
}
"""Damage that any file may have."""
TEXT_ONLY: dict[str, Callable[[Path], None]] = {"not UTF-8": _not_utf_8, "of another kind": _bytes(b'{"a":1}\n')}
SOME: dict[str, dict[str, Callable[[Path], None]]] = {
    "result.json": {
        "wrong types": _wrong_types,
        "not a number": _nan,
        "lines of two lengths": lambda path: path.write_text(path.read_text().replace("null", "null, 3.0")) and None,
    },
    "report.jsonl": {"wrong types": _wrong_types, "a case twice": _repeated},
    "transcripts/one.jsonl": {"wrong types": _wrong_types},
    "history.jsonl": {"wrong types": _wrong_types, "not a number": _nan, "an index twice": _repeated},
    "trace.jsonl": {"wrong types": _wrong_types, "not a number": _nan, "a number twice": _repeated},
    "histograms.jsonl": {"wrong types": _wrong_types},
    "samples.parquet": {
        "missing columns": _parquet(lambda columns: columns.pop("completed_ns")),
        "not a number": _set("completed_ns", lambda count: [float("nan")] * count),
        "wrong types": _set("seq", lambda count: ["x"] * count),
        "missing values": _set("intended_ns", lambda count: [1, None] * (count // 2)),
    },
}


def damages() -> list[tuple[str, str, Callable[[Path], None]]]:
    """(file, kind of damage, what does it), for each that is damage at all."""
    found = []
    for name in GOOD:
        kinds = dict(EVERY)
        if not name.endswith((".zst", ".parquet")):
            kinds |= TEXT_ONLY
        kinds |= SOME.get(name, {})
        if name in ("broker.yaml", "latencies.json"):
            del kinds["of another kind"]  # it is JSON, and YAML
        if name == "broker.yaml":
            del kinds["truncated"]  # shorter, and still YAML
        found += [(name, kind, damage) for kind, damage in kinds.items()]
    return found


def undo(path: Path, sound: Path) -> None:
    """Put the sound file back."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    shutil.copyfile(sound, path)
