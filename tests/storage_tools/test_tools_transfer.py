"""``assay storage import`` and ``export``: ways there and back, refusals, nothing half done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import QueueConfig
from assay.reference_broker.queues.jobs.store import NewRecord
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.storage_tools import importing
from assay.reference_broker.storage_tools.export import ExportReport
from assay.reference_broker.storage_tools.importing import ImportReport

Run = Callable[..., Any]
Fingerprint = Callable[[Path], dict[str, str]]


def lines_of(storage: Run, root: Path, *arguments: object) -> list[dict[str, Any]]:
    done = storage("dump", root, *arguments)
    assert done.status == 0, done.errors
    return [json.loads(line) for line in done.out.splitlines()]


def imported(storage: Run, source: object, root: Path, *arguments: object, stdin: bytes | None = None) -> ImportReport:
    done = storage("import", source, root, "--json", *arguments, stdin=stdin)
    assert done.status == 0, done.errors
    assert storage("verify", root, "--strict").status == 0, storage("verify", root).out
    return msgspec.json.decode(done.out, type=ImportReport, strict=True)


def exported(storage: Run, root: Path, out: Path, *arguments: object) -> ExportReport:
    done = storage("export", root, out, "--json", *arguments)
    assert done.status == 0, done.errors
    return msgspec.json.decode(done.out, type=ExportReport, strict=True)


def without(lines: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: found for name, found in line.items() if name not in names} for line in lines]


def records_by_broker(root: Path, queue: str, partitions: int) -> list[list[tuple[Any, ...]]]:
    """What a broker reads of an imported queue."""
    store = LogQueueStore(RealDisk(root))
    assert [(one.name, one.partitions) for one in store.stored_queues()] == [(queue, partitions)]
    files = store.open_queue(QueueConfig(name=queue, partitions=partitions))
    logs = [files.open_partition(number) for number in range(partitions)]
    found = [[tuple(record) for record in log.read(0, 10_000)] for log in logs]
    for log in logs:
        log.close()
    assert store.recovery_notes() == []
    store.close()
    return found


@pytest.mark.parametrize(("name", "queue"), [("flux_partitions", "$queue/orders"), ("flux_segments", "orders")])
def test_a_fluxmq_queue_is_copied_byte_for_byte(
    name: str, queue: str, request: pytest.FixtureRequest, storage: Run, tmp_path: Path, expected_record: Run
) -> None:
    source: Path = request.getfixturevalue(name)
    report = imported(storage, source, tmp_path / "data", "--queue", "orders")
    assert (report.source_queue, report.records, len(report.partitions)) == (queue, 36, 1)
    whole = b"".join(path.read_bytes() for path in sorted(source.rglob("*.seg")))
    copied = b"".join(path.read_bytes() for path in sorted((tmp_path / "data").rglob("*.seg")))
    assert copied == whole
    (records,) = records_by_broker(tmp_path / "data", "orders", 1)
    assert records == [(offset, *expected_record(offset)) for offset in range(36)]


def test_a_fluxmq_log_that_starts_later_keeps_its_offsets(flux_segments: Path, storage: Run, tmp_path: Path) -> None:
    for suffix in ("seg", "idx", "tix"):
        (flux_segments / f"queues/orders/segments/00000000000000000000.{suffix}").unlink()
    report = imported(storage, flux_segments, tmp_path / "data", "--queue", "orders")
    assert (report.partitions[0].start_offset, report.partitions[0].next_offset) == (12, 36)
    assert [record[0] for record in records_by_broker(tmp_path / "data", "orders", 1)[0]] == list(range(12, 36))


def test_from_assay_to_fluxmq_and_back(assay: Path, storage: Run, tmp_path: Path) -> None:
    out = tmp_path / "flux"
    report = exported(storage, assay, out, "--queue", "orders", "--format", "fluxmq", "--as", "$queue/orders")
    assert (report.records, report.partitions) == (39, 2)
    assert storage("verify", out, "--strict").status == 0
    assert storage("inspect", out, "--json").document["format"] == "fluxmq-partitions"
    imported(storage, out, tmp_path / "back", "--queue", "orders", "--from-queue", "$queue/orders")
    assert lines_of(storage, tmp_path / "back") == lines_of(storage, assay)


def test_todays_fluxmq_has_one_log_for_a_queue(assay: Path, storage: Run, tmp_path: Path) -> None:
    done = storage("export", assay, tmp_path / "out", "--queue", "orders", "--format", "fluxmq-segments")
    assert done.status == 2
    assert "--partition" in done.errors
    assert not (tmp_path / "out").exists()
    options = ("--queue", "orders", "--format", "fluxmq-segments", "--partition", 0)
    exported(storage, assay, tmp_path / "out", *options)
    assert storage("inspect", tmp_path / "out", "--json").document["format"] == "fluxmq-segments"
    assert storage("verify", tmp_path / "out", "--strict").status == 0


def test_from_assay_to_goqueue_and_back(assay: Path, storage: Run, tmp_path: Path) -> None:
    out = tmp_path / "go"
    report = exported(storage, assay, out, "--queue", "orders", "--format", "goqueue", "--broker-headers")
    assert report.records == 39
    assert storage("verify", out, "--strict").status == 0
    imported(storage, out, tmp_path / "back", "--queue", "orders", "--broker-headers")
    assert lines_of(storage, tmp_path / "back") == lines_of(storage, assay)


def test_from_goqueue_to_assay_and_back(goqueue: Path, storage: Run, tmp_path: Path, fingerprint: Fingerprint) -> None:
    imported(storage, goqueue, tmp_path / "data", "--queue", "orders")
    exported(storage, tmp_path / "data", tmp_path / "back", "--queue", "orders", "--format", "goqueue")
    logs = (goqueue / "logs/orders/0", tmp_path / "back/logs/orders/0")
    whole, back = (b"".join(path.read_bytes() for path in sorted(log.glob("*.log"))) for log in logs)
    assert back == whole


def test_goqueues_priorities_tombstones_and_markers(
    storage: Run, tmp_path: Path, encode_go_message: Run, expected_record: Run
) -> None:
    folder = tmp_path / "go/logs/orders/0"
    folder.mkdir(parents=True)
    plain = expected_record(0)._replace(headers=())
    messages = (
        encode_go_message(3, plain, priority=0),
        encode_go_message(4, plain._replace(value=b""), flags=4),
        encode_go_message(5, plain._replace(key=b"tx"), flags=8 | 16, priority=0),
        encode_go_message(9, plain),
    )
    (folder / "00000000000000000003.log").write_bytes(b"".join(messages))
    report = imported(storage, tmp_path / "go", tmp_path / "new", "--queue", "orders")
    assert (report.partitions[0].records, report.partitions[0].left_out) == (3, 1)
    found = lines_of(storage, tmp_path / "new")
    assert [line["offset"] for line in found] == [0, 1, 2]
    assert {"name": "_priority", "value": "0"} in found[0]["headers"]
    assert "value" not in found[1]
    kept = imported(storage, tmp_path / "go", tmp_path / "kept", "--queue", "orders", "--keep-offsets")
    assert kept.partitions[0].gaps == 1
    assert [line["offset"] for line in lines_of(storage, tmp_path / "kept")] == [3, 4, 9]
    assert [record[0] for record in records_by_broker(tmp_path / "kept", "orders", 1)[0]] == [3, 4, 9]


@pytest.mark.parametrize("layout", [32, 30])
def test_older_layouts_of_goqueue_are_read_on_request(
    layout: int, make_goqueue: Run, storage: Run, tmp_path: Path
) -> None:
    source = make_goqueue(tmp_path / "go", layout=layout)
    assert storage("verify", source, "--strict").status == 0
    done = storage("import", source, tmp_path / "data", "--queue", "orders")
    assert done.status == 2
    assert f"--layout {layout}" in done.errors
    for asked in (layout, "auto"):
        target = tmp_path / f"data-{asked}"
        assert imported(storage, source, target, "--queue", "orders", "--layout", asked).records == 16
    options = ("--queue", "orders", "--format", "goqueue", "--layout", layout)
    exported(storage, tmp_path / "data-auto", tmp_path / "back", *options)
    logs = (source / "logs/orders/0", tmp_path / "back/logs/orders/0")
    whole, back = (b"".join(path.read_bytes() for path in sorted(log.glob("*.log"))) for log in logs)
    assert back == whole
    assert storage("import", source, tmp_path / "x", "--queue", "orders", "--layout", "33").status == 2


def test_from_json_lines_and_to_them(assay: Path, storage: Run, tmp_path: Path) -> None:
    out = tmp_path / "orders.jsonl"
    assert exported(storage, assay, out, "--queue", "orders").records == 39
    dumped = storage("dump", assay).out
    assert out.read_text(encoding="utf-8") == dumped
    report = imported(storage, out, tmp_path / "file", "--queue", "copy")
    assert (report.source_format, report.source_queue, report.records) == ("jsonl", "orders", 39)
    imported(storage, "-", tmp_path / "pipe", "--queue", "copy", stdin=dumped.encode())
    for root in ("file", "pipe"):
        assert without(lines_of(storage, tmp_path / root), "queue") == without(lines_of(storage, assay), "queue")
    assert storage("export", assay, "-", "--queue", "orders").out == dumped


def test_a_filtered_dump_is_counted_anew_or_keeps_its_offsets(assay: Path, storage: Run, tmp_path: Path) -> None:
    lines = storage("dump", assay, "--key", "k2", "--partition", 0).out.encode()
    imported(storage, "-", tmp_path / "new", "--queue", "orders", stdin=lines)
    assert [line["offset"] for line in lines_of(storage, tmp_path / "new")] == list(range(7))
    imported(storage, "-", tmp_path / "kept", "--queue", "orders", "--keep-offsets", stdin=lines)
    assert [line["offset"] for line in lines_of(storage, tmp_path / "kept")] == [2, 7, 12, 17, 22, 27, 32]
    backwards = storage("dump", assay, "--reverse", "--partition", 0).out.encode()
    done = storage("import", "-", tmp_path / "x", "--queue", "orders", "--keep-offsets", stdin=backwards)
    assert done.status == 2
    assert "goes back" in done.errors


def test_binary_records_come_through_everything(storage: Run, tmp_path: Path) -> None:
    store = LogQueueStore(RealDisk(tmp_path / "data"))
    log = store.open_queue(QueueConfig(name="b", partitions=1)).open_partition(0)
    log.append([NewRecord(-5, b"\xff\x00", b"\x80", ((b"n\xff", b"\x00v"),)), NewRecord(0, None, None, ())])
    log.close()
    store.close()
    lines = storage("dump", tmp_path / "data").out.encode()
    imported(storage, "-", tmp_path / "lines", "--queue", "b", stdin=lines)
    exported(storage, tmp_path / "data", tmp_path / "flux", "--queue", "b", "--format", "fluxmq")
    imported(storage, tmp_path / "flux", tmp_path / "back", "--queue", "b")
    for root in ("lines", "back"):
        assert storage("dump", tmp_path / root).out.encode() == lines


def test_an_import_adds_to_a_directory_and_never_replaces(
    assay: Path, goqueue: Path, storage: Run, tmp_path: Path, fingerprint: Fingerprint
) -> None:
    before = fingerprint(assay)
    done = storage("import", goqueue, assay, "--queue", "orders")
    assert done.status == 2
    assert "has a queue 'orders' already" in done.errors
    assert fingerprint(assay) == before
    imported(storage, goqueue, assay, "--queue", "more")
    assert {line["queue"] for line in lines_of(storage, assay)} == {"orders", "more"}
    assert {path: found for path, found in fingerprint(assay).items() if "more" not in path} == before


def test_only_an_assay_directory_is_imported_into(
    goqueue: Path, flux_segments: Path, storage: Run, tmp_path: Path, fingerprint: Fingerprint
) -> None:
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "precious.txt").write_text("mine", encoding="utf-8")
    before = fingerprint(tmp_path)
    for place in (strange, strange / "precious.txt", flux_segments):
        done = storage("import", goqueue, place, "--queue", "orders")
        assert done.status == 2
        assert done.errors.startswith("error: ")
    assert fingerprint(tmp_path) == before


def test_an_import_needs_the_directory_for_itself(assay: Path, goqueue: Path, storage: Run) -> None:
    disk = RealDisk(assay)
    disk.lock()
    try:
        done = storage("import", goqueue, assay, "--queue", "more")
    finally:
        disk.unlock()
    assert done.status == 2
    assert "another broker uses" in done.errors


def test_the_source_queue_must_be_clear(assay: Path, goqueue: Path, storage: Run, tmp_path: Path) -> None:
    imported(storage, goqueue, assay, "--queue", "more")
    done = storage("import", assay, tmp_path / "x", "--queue", "new")
    assert done.status == 2
    assert "--from-queue; there are: more, orders" in done.errors
    done = storage("import", "-", tmp_path / "y", "--queue", "new", stdin=storage("dump", assay).out.encode())
    assert done.status == 2
    assert "several queues" in done.errors
    report = imported(storage, assay, tmp_path / "z", "--queue", "new", "--from-queue", "more")
    assert report.records == 16


def test_damage_stops_a_transfer_unless_it_may_be_left_out(flux_segments: Path, storage: Run, tmp_path: Path) -> None:
    segment = min((flux_segments / "queues/orders/segments").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(bytes(data))
    for command, extra in (("import", ()), ("export", ("--format", "jsonl")), ("export", ("--format", "goqueue"))):
        arguments = (command, flux_segments, tmp_path / "out", "--queue", "orders", *extra)
        done = storage(*arguments)
        assert done.status == 2
        assert "--skip-damaged" in done.errors
        assert not list(tmp_path.glob("out/queues/*")) + list(tmp_path.glob("*exporting*"))
    report = imported(storage, flux_segments, tmp_path / "data", "--queue", "orders", "--skip-damaged")
    assert report.records == 33
    assert report.skipped == [
        "queues/orders/segments/00000000000000000000.seg bytes 0 to 151: the checksum does not match"
    ]
    assert report.partitions[0].start_offset == 3


def test_a_torn_tail_of_the_source_is_left_out_and_said(flux_segments: Path, storage: Run, tmp_path: Path) -> None:
    segment = max((flux_segments / "queues/orders/segments").glob("*.seg"))
    segment.write_bytes(segment.read_bytes() + b"XULF")
    report = imported(storage, flux_segments, tmp_path / "data", "--queue", "orders")
    assert report.records == 36
    assert len(report.skipped) == 1


def test_an_export_never_overwrites(assay: Path, storage: Run, tmp_path: Path, fingerprint: Fingerprint) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "precious.txt").write_text("mine", encoding="utf-8")
    before = fingerprint(tmp_path)
    for form, out in (("jsonl", taken / "precious.txt"), ("goqueue", taken), ("fluxmq", taken)):
        done = storage("export", assay, out, "--queue", "orders", "--format", form)
        assert done.status == 2
        assert "nothing is overwritten" in done.errors
    done = storage("export", assay, tmp_path / "no/such/out", "--queue", "orders")
    assert (done.status, "does not exist" in done.errors) == (2, True)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_names_that_would_leave_the_export_are_refused(assay: Path, name: str, storage: Run, tmp_path: Path) -> None:
    options = ("--queue", "orders", "--as", name, "--format")
    done = storage("export", assay, tmp_path / "go", *options, "goqueue")
    assert (done.status, "--as" in done.errors) == (2, True)
    if name == "..":
        assert storage("export", assay, tmp_path / "flux", *options, "fluxmq").status == 2
    assert not (tmp_path / "go").exists()


def test_partitions_of_the_new_queue(assay: Path, storage: Run, tmp_path: Path) -> None:
    imported(storage, assay, tmp_path / "data", "--queue", "orders", "--partitions", 5)
    assert len(records_by_broker(tmp_path / "data", "orders", 5)) == 5
    done = storage("import", assay, tmp_path / "x", "--queue", "orders", "--partitions", 1)
    assert done.status == 2
    assert "higher --partitions" in done.errors


def test_compression_applies_to_what_is_encoded_anew(goqueue: Path, storage: Run, tmp_path: Path) -> None:
    for codec in ("zstd", "s2"):
        imported(storage, goqueue, tmp_path / codec, "--queue", "orders", "--compression", codec)
        report = storage("inspect", tmp_path / codec, "--json").document
        assert report["queues"][0]["partitions"][0]["segments"][0]["compression"] == {codec: 1}
        assert without(lines_of(storage, tmp_path / codec), "headers") == without(lines_of(storage, goqueue), "headers")


class PowerCutError(Exception):
    """The machine stops here."""


def test_an_import_that_is_interrupted_anywhere_leaves_no_queue(
    goqueue: Path, storage: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what is left is a staging folder that no broker reads, and the next import succeeds."""
    real = {name: getattr(os, name) for name in ("replace", "fsync", "ftruncate", "pwrite")}
    stop_at = 0
    finished = False
    while not finished:
        stop_at += 1
        root = tmp_path / f"cut-{stop_at}"
        calls = [0]

        def counted(name: str, calls: list[int] = calls, stop_at: int = stop_at) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                calls[0] += 1
                if calls[0] >= stop_at:
                    raise PowerCutError
                return real[name](*arguments)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(os, name, counted(name))
            # The machine is gone, so nobody tidies up either.
            patch.setattr(importing.shutil, "rmtree", lambda _: None)
            try:
                storage("import", goqueue, root, "--queue", "orders")
                finished = True
            except PowerCutError:
                pass
        if not finished and not (root / "queues/orders").exists():
            leftover = storage("verify", root, "--json")
            assert leftover.status == 0
            assert imported(storage, goqueue, root, "--queue", "orders").records == 16
        assert len(lines_of(storage, root)) == 16
    assert stop_at > 5
