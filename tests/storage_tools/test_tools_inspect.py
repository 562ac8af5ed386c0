"""``assay storage inspect``: what a directory is and holds, as tables and as JSON of a fixed shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.storage.snapshots import Snapshot, SnapshotEntry, SnapshotName, encode_snapshot
from assay.reference_broker.storage_tools.index_check import IndexState
from assay.reference_broker.storage_tools.inspect import InspectReport, SegmentReport
from assay.reference_broker.storage_tools.layout import StoreFormat

Run = Callable[..., Any]
PARTITION = Path("queues/orders/partitions/0")


def inspected(storage: Run, root: Path, *arguments: object) -> InspectReport:
    done = storage("inspect", root, "--json", *arguments)
    assert done.status == 0, done.errors
    return msgspec.json.decode(done.out, type=InspectReport, strict=True)


def test_an_assay_directory(assay: Path, storage: Run, fingerprint: Callable[[Path], dict[str, str]]) -> None:
    before = fingerprint(assay)
    report = inspected(storage, assay)
    assert fingerprint(assay) == before
    assert (report.format, report.in_use) == (StoreFormat.ASSAY, False)
    (queue,) = report.queues
    assert (queue.name, queue.records) == ("orders", 39)
    first, second = queue.partitions
    assert (first.start_offset, first.next_offset, first.records) == (0, 36, 36)
    assert first.durable is not None
    assert (first.durable.offset, first.durable.segment_base) == (36, 24)
    assert (second.next_offset, len(second.segments)) == (3, 1)
    assert [one.base_offset for one in first.segments] == [0, 12, 24]
    segment = first.segments[1]
    assert (segment.end_offset, segment.batches, segment.records) == (24, 4, 12)
    assert segment.bytes == (assay / segment.path).stat().st_size
    assert segment.compression == {"none": 4}
    assert (segment.first_timestamp_ms, segment.last_timestamp_ms) == (1_700_000_008_400, 1_700_000_016_100)
    assert (segment.offset_index, segment.time_index) == (IndexState.SOUND, IndexState.SOUND)
    (group,) = queue.groups
    assert (group.group, group.cursors, group.pending) == ("workers", {0: 6}, 5)
    assert group.pending_by_consumer == {"c0": 2, "c1": 3}
    assert group.problem == ""


@pytest.mark.parametrize(
    ("name", "store_format", "queue_name", "records", "cursor", "pending"),
    [
        ("flux_partitions", StoreFormat.FLUXMQ_PARTITIONS, "$queue/orders", 36, {0: 6}, 1),
        ("flux_segments", StoreFormat.FLUXMQ_SEGMENTS, "orders", 36, {0: 6}, 1),
        ("goqueue", StoreFormat.GOQUEUE, "orders", 16, {0: 5}, 0),
    ],
)
def test_directories_of_other_brokers_are_recognised(
    name: str,
    store_format: StoreFormat,
    queue_name: str,
    records: int,
    cursor: dict[int, int],
    pending: int,
    request: pytest.FixtureRequest,
    storage: Run,
) -> None:
    root: Path = request.getfixturevalue(name)
    report = inspected(storage, root)
    assert report.format is store_format
    (queue,) = report.queues
    assert (queue.name, queue.records) == (queue_name, records)
    (group,) = queue.groups
    assert (group.group, group.cursors, group.pending, group.problem) == ("workers", cursor, pending, "")
    assert {one.offset_index for one in queue.partitions[0].segments} == {IndexState.SOUND}
    assert {one.time_index for one in queue.partitions[0].segments} == {IndexState.SOUND}


def test_states_of_indexes_and_damaged_bytes_show(assay: Path, storage: Run) -> None:
    names = sorted((assay / PARTITION).glob("*.seg"))
    names[0].with_suffix(".idx").unlink()
    names[0].with_suffix(".tix").write_bytes(names[0].with_suffix(".tix").read_bytes()[:36])
    names[1].with_suffix(".idx").write_bytes(b"nonsense")
    names[2].write_bytes(names[2].read_bytes() + b"XULF and more")
    segments = inspected(storage, assay).queues[0].partitions[0].segments
    assert segments[0].offset_index is IndexState.MISSING
    assert segments[0].time_index is not IndexState.SOUND
    assert segments[1].offset_index is IndexState.DAMAGED
    assert segments[2].damaged_bytes == 13
    shown = storage("inspect", assay)
    assert "13 damaged" in shown.out
    assert "missing" in shown.out


def test_an_index_that_covers_only_the_start_is_stale(
    tmp_path: Path, storage: Run, encode_flux_batch: Run, expected_record: Run
) -> None:
    folder = tmp_path / "queues/orders/segments"
    folder.mkdir(parents=True)
    data = b"".join(encode_flux_batch(offset, [expected_record(offset)]) for offset in range(2_000))
    (folder / "00000000000000000000.seg").write_bytes(data)
    from assay.reference_broker.storage.index_files import encode_offset_index

    (folder / "00000000000000000000.idx").write_bytes(encode_offset_index(0, [(0, 0)]))
    (segment,) = inspected(storage, tmp_path).queues[0].partitions[0].segments
    assert segment.offset_index is IndexState.STALE
    assert segment.time_index is IndexState.MISSING


def test_one_queue_only(make_assay: Run, tmp_path: Path, storage: Run) -> None:
    root = make_assay(tmp_path / "data")
    assert [queue.name for queue in inspected(storage, root, "--queue", "orders").queues] == ["orders"]
    done = storage("inspect", root, "--queue", "other")
    assert done.status == 2
    assert "queues: orders" in done.errors


def test_one_segment_batch_by_batch(assay: Path, storage: Run) -> None:
    segment = min((assay / PARTITION).glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(bytes(data))
    # By a path below the directory as well as by one from here.
    for path in (segment.relative_to(assay), segment):
        done = storage("inspect", assay, "--segment", path, "--json")
        report = msgspec.json.decode(done.out, type=SegmentReport, strict=True)
        assert report.bytes == len(data)
        assert [one.base_offset for one in report.batches] == [None, 3, 6, 9]
        assert report.batches[0].problem == "the checksum does not match"
        assert report.batches[-1].end_position == len(data)
    assert "the checksum does not match" in storage("inspect", assay, "--segment", segment).out
    limited = storage("inspect", assay, "--segment", segment, "--limit", 1)
    assert "3 more batches" in limited.out
    assert storage("inspect", assay, "--segment", "queues/nothing.seg").status == 2


def test_snapshots_are_listed_and_checked(assay: Path, storage: Run) -> None:
    name = SnapshotName(1, 5, 1_700_000_000_000)
    entries = (SnapshotEntry(1, b"key", b"value"),)
    snapshot = Snapshot(kind=1, last_offset=5, timestamp_ms=1_700_000_000_000, entries=entries)
    path = assay / "coordinator" / name.file_name
    path.parent.mkdir()
    path.write_bytes(encode_snapshot(snapshot))
    (found,) = inspected(storage, assay).snapshots
    assert (found.kind, found.last_offset, found.entries, found.problem) == ("groups", 5, 1, "")
    assert name.file_name in storage("inspect", assay).out
    path.write_bytes(path.read_bytes()[:-1])
    assert inspected(storage, assay).snapshots[0].problem
    done = storage("verify", assay, "--json")
    assert (done.status, [one["kind"] for one in done.document["findings"]]) == (1, ["snapshot_damaged"])


def test_a_format_can_be_forced(flux_partitions: Path, storage: Run) -> None:
    report = inspected(storage, flux_partitions, "--format", "assay")
    assert report.format is StoreFormat.ASSAY
    assert storage("inspect", flux_partitions, "--format", "nonsense").status == 2


def test_an_empty_data_directory_is_assays(tmp_path: Path, storage: Run) -> None:
    (tmp_path / "queues").mkdir()
    assert inspected(storage, tmp_path).queues == []
    assert "no queues" in storage("inspect", tmp_path).out


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "repair", "import", "export"])
def test_help_teaches_with_examples(command: str, storage: Run) -> None:
    done = storage(command, "--help")
    assert done.status == 0
    assert "Examples" in done.out
    assert f"assay storage {command}" in done.out.replace("| assay storage import", "assay storage import")
    assert "Exit status" in done.out


def test_a_compacted_segment_that_waits_counts_in_place_of_the_old_ones(assay: Path, storage: Run) -> None:
    folder = assay / PARTITION
    first, second, _ = sorted(folder.glob("*.seg"))
    both = first.read_bytes() + second.read_bytes()
    (folder / "00000000000000000000-00000000000000000024.swap").write_bytes(both)
    second.unlink()
    segments = inspected(storage, assay).queues[0].partitions[0].segments
    assert [(one.base_offset, one.end_offset) for one in segments] == [(0, 24), (24, 36)]
    lines = storage("dump", assay, "--partition", 0).out.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(36))
    done = storage("verify", assay, "--json")
    assert done.status == 0
    assert "leftover" in {one["kind"] for one in done.document["findings"]}
    assert storage("repair", assay, "--apply").status == 0
    assert storage("verify", assay, "--strict").status == 0
    assert not list(folder.glob("*.swap"))
    assert first.read_bytes() == both
