"""``assay storage verify``: sound directories pass, and every damaged byte is named where it is."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage_tools.findings import Finding, FindingKind, Severity, VerifyReport
from assay.reference_broker.storage_tools.layout import StoreFormat, find_layout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.verify import verify_directory

Run = Callable[..., Any]
PARTITION = Path("queues/orders/partitions/0")
FORMATS = {
    "assay": StoreFormat.ASSAY,
    "flux_partitions": StoreFormat.FLUXMQ_PARTITIONS,
    "flux_segments": StoreFormat.FLUXMQ_SEGMENTS,
    "goqueue": StoreFormat.GOQUEUE,
}


def verify(root: Path) -> VerifyReport:
    disk = ReadOnlyDisk(root)
    return verify_directory(disk, find_layout(disk))


def flip(path: Path, position: int, bits: int = 0x01) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(bytes(data))


def bad(report: VerifyReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is not Severity.NOTE]


def batch_starts(data: bytes) -> list[tuple[int, int, int]]:
    """(position, end, base offset) of the batches of a sound segment."""
    found, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from("<QI", data, at + 8)
        found.append((at, at + 44 + length, base))
        at += 44 + length
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_directory_passes_and_stays_as_it_is(
    name: str, request: pytest.FixtureRequest, storage: Run, fingerprint: Callable[[Path], dict[str, str]]
) -> None:
    root: Path = request.getfixturevalue(name)
    before = fingerprint(root)
    done = storage("verify", root, "--strict", "--json")
    assert done.status == 0, done.out
    report = msgspec.json.decode(done.out, type=VerifyReport, strict=True)
    assert report.format is FORMATS[name]
    assert report.faults == report.warnings == 0
    assert report.records == {"assay": 39, "goqueue": 16}.get(name, 36)
    assert fingerprint(root) == before
    assert storage("verify", root).out.strip().endswith("SOUND: no faults")


@pytest.mark.parametrize("name", ["assay", "flux_partitions", "flux_segments"])
def test_every_damaged_byte_of_a_segment_is_found_in_its_batch(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    segments = [path for path in sorted(root.rglob("*.seg")) if "partitions/1" not in str(path)]
    assert len(segments) == 3
    # All bytes of a batch at the start, in the middle and at the end of the log.
    for segment, number in ((segments[0], 0), (segments[1], 2), (segments[2], 3)):
        start, end, base = batch_starts(segment.read_bytes())[number]
        for position in range(start, end):
            flip(segment, position, 1 << position % 8)
            report = verify(root)
            faults = [finding for finding in bad(report) if finding.path.endswith(".seg")]
            assert [(one.severity, one.path, one.position) for one in faults] == [
                (Severity.FAULT, str(segment.relative_to(root)), start)
            ], f"byte {position} of {segment}"
            assert faults[0].end_position == end
            assert faults[0].offset == base
            assert not report.is_sound()
            flip(segment, position, 1 << position % 8)
    assert verify(root).is_sound(strict=True)


def message_starts(data: bytes) -> list[tuple[int, int, int]]:
    """(position, end, offset) of the messages of a sound segment of GoQueue."""
    found, at = [], 0
    while at < len(data):
        offset, _, _, _, key, value, headers = struct.unpack_from(">qqBBHIH", data, at + 8)
        found.append((at, at + 34 + key + value + headers, offset))
        at = found[-1][1]
    return found


def test_every_damaged_byte_of_a_message_of_goqueue_is_found(goqueue: Path) -> None:
    segment = goqueue / "logs/orders/0/00000000000000000008.log"
    sound = segment.read_bytes()
    undetectable = set()
    for number in (0, 4, 7):
        start, end, offset = message_starts(sound)[number]
        for position in range(start, end):
            flip(segment, position)
            found = [finding for finding in bad(verify(goqueue)) if finding.path.endswith(".log")]
            segment.write_bytes(sound)
            if not found:
                undetectable.add(position - start)
                continue
            assert [one.severity for one in found] == [Severity.FAULT], position
            assert (found[0].position, found[0].end_position, found[0].offset) == (start, end, offset), position
    # Byte 3 holds flags, which GoQueue's checksum leaves out; "compressed" alone contradicts nothing.
    assert undetectable == {3}


@pytest.mark.parametrize(
    ("name", "suffixes"),
    [
        ("assay", (".idx", ".tix")),
        ("flux_segments", (".idx", ".tix")),
        ("goqueue", (".index", ".timeindex")),
    ],
)
def test_every_damaged_byte_of_an_index_is_found(
    name: str, suffixes: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(name)
    for suffix in suffixes:
        header, entry = {".idx": (32, 8), ".tix": (36, 12)}.get(suffix, (0, 16))
        index = min(root.rglob(f"*{suffix}"))
        for position in range(len(index.read_bytes())):
            flip(index, position, 0x40)
            found = bad(verify(root))
            flip(index, position, 0x40)
            assert found, f"byte {position} of {index}"
            assert {one.path for one in found} == {str(index.relative_to(root))}
            assert all(one.kind is FindingKind.INDEX_WRONG for one in found)
            start = 0 if position < header else header + (position - header) // entry * entry
            end = header if position < header else start + entry
            assert any(start <= (one.position or 0) < end for one in found), f"byte {position}: {found}"


def test_every_damaged_byte_of_a_durable_mark_is_found(assay: Path) -> None:
    mark = assay / PARTITION / "durable.mark"
    for position in range(len(mark.read_bytes())):
        if position % 512 >= 40:
            continue
        flip(mark, position)
        found = bad(verify(assay))
        flip(mark, position)
        assert [(one.kind, one.position) for one in found] == [(FindingKind.MARK_DAMAGED, position // 512 * 512)]
    mark.write_bytes(b"\xff" * len(mark.read_bytes()))
    assert verify(assay).faults


def test_every_damaged_byte_of_a_groups_log_is_found(assay: Path) -> None:
    log = assay / "queues/orders/consumers/workers/workers.pel.log"
    data = log.read_bytes()
    starts = [16 + int.from_bytes(data[8:12], "little")]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 8 + int.from_bytes(data[starts[-1] : starts[-1] + 4], "little"))
    for position in range(len(data)):
        flip(log, position, 0x04)
        report = verify(assay)
        flip(log, position, 0x04)
        found = [one for one in bad(report) if one.path.endswith(".pel.log")]
        frame = max((start for start in starts if start <= position), default=0)
        wanted = (4 if 4 <= position < 6 else 0, 0) if position < starts[0] else (frame,)
        assert found, position
        assert found[0].severity is Severity.FAULT, position
        assert found[0].position in wanted, position


def test_a_group_whose_log_is_missing_is_reported(assay: Path) -> None:
    """Its mark tells that there was one; without that it may have been on its way out."""
    log, mark = (assay / f"queues/orders/consumers/workers/workers{suffix}" for suffix in (".pel.log", ".group"))
    sound = bad(verify(assay))
    log.unlink()
    mark.touch()
    (fault,) = [one for one in bad(verify(assay)) if one not in sound]
    assert (fault.path.rpartition("/")[2], fault.severity) == (log.name, Severity.FAULT)
    mark.unlink()
    assert not [one for one in bad(verify(assay)) if one not in sound], "nothing is left of it"
    cursors = log.with_name("workers.cur")
    cursors.write_text('{"version":1,"group_id":"workers","cursors":{},"saved_at":0}')
    (warning,) = [one for one in bad(verify(assay)) if one not in sound]
    assert (warning.path.rpartition("/")[2], warning.severity) == (log.name, Severity.WARNING)


def test_a_description_that_is_damaged_or_of_another_queue_is_a_fault(assay: Path, storage: Run) -> None:
    path = assay / "queues/orders/queue.json"
    for content in (
        b"{",
        b'{"version":1,"name":"other","partitions":2}',
        b'{"version":1,"name":"orders","partitions":1}',
    ):
        path.write_bytes(content)
        done = storage("verify", assay, "--json")
        assert done.status == 1
        assert [one["path"] for one in done.document["findings"]] == ["queues/orders/queue.json"]
    path.unlink()
    assert storage("verify", assay).status == 1


@pytest.mark.parametrize("name", ["assay", "flux_segments", "goqueue"])
def test_a_torn_tail_is_a_warning(name: str, request: pytest.FixtureRequest, storage: Run) -> None:
    root: Path = request.getfixturevalue(name)
    segment = max(path for path in root.rglob("*") if path.suffix in (".log", ".seg") and path.parent.name != "1")
    size = segment.stat().st_size
    whole = segment.read_bytes()
    # The start of another batch: what a crash leaves of a write that was not confirmed.
    for cut in (1, 20, 43):
        segment.write_bytes(whole + whole[:cut])
        done = storage("verify", root, "--json")
        found = msgspec.json.decode(done.out, type=VerifyReport).findings
        assert [(one.kind, one.severity, one.position) for one in found] == [
            (FindingKind.TORN_TAIL, Severity.WARNING, size)
        ]
        assert done.status == 0
        assert storage("verify", root, "--strict").status == 1


def test_a_tail_below_the_durable_mark_is_no_torn_tail(assay: Path, storage: Run) -> None:
    segment = max((assay / PARTITION).glob("*.seg"))
    whole = segment.read_bytes()
    start, _, base = batch_starts(whole)[-1]
    segment.write_bytes(whole[:-1])
    found = storage("verify", assay, "--json").document["findings"]
    confirmed = [one for one in found if one["kind"] == "lost_confirmed"]
    assert [(one["position"], one["offset"]) for one in confirmed] == [(start, base)]
    # Cut cleanly between batches, only the mark tells that something is gone.
    segment.write_bytes(whole[:start])
    done = storage("verify", assay, "--json")
    assert done.status == 1
    lost = [one for one in done.document["findings"] if one["kind"] == "lost_confirmed"]
    assert [(one["position"], one["offset"], one["end_offset"]) for one in lost] == [(start, base, base + 3)]


def test_what_was_never_confirmed_is_no_fault_behind_a_roll_either(
    assay: Path, storage: Run, encode_flux_batch: Run, expected_record: Run
) -> None:
    """Power loss can keep the name of a new segment and lose the end of the one before it."""
    segment = max((assay / PARTITION).glob("*.seg"))
    size = segment.stat().st_size
    batches = [encode_flux_batch(offset, [expected_record(offset)]) for offset in (36, 37)]
    (segment.with_name("00000000000000000037.seg")).write_bytes(batches[1])
    for torn, kind in ((batches[0][:-1], "torn_tail"), (b"", "missing_offsets")):
        segment.write_bytes(segment.read_bytes()[:size] + torn)
        done = storage("verify", assay, "--json")
        found = [one for one in done.document["findings"] if one["severity"] != "note"]
        assert [(one["kind"], one["severity"], one["position"]) for one in found] == [(kind, "warning", size)]
        assert (found[0]["offset"], found[0]["end_offset"]) == (36, 37)
        assert done.status == 0
    segment.write_bytes(segment.read_bytes() + batches[0][:-1])
    assert storage("repair", assay, "--apply").status == 0
    assert storage("verify", assay, "--strict").status == 0
    assert "repaired_gap" in storage("verify", assay).out


def test_what_a_broker_is_writing_is_said_to_be_that(assay: Path, storage: Run) -> None:
    segment = max((assay / PARTITION).glob("*.seg"))
    segment.write_bytes(segment.read_bytes() + b"XULF")
    disk = RealDisk(assay)
    disk.lock()
    try:
        done = storage("verify", assay, "--strict", "--json")
    finally:
        disk.unlock()
    assert done.status == 0
    assert done.document["in_use"]
    assert [one["kind"] for one in done.document["findings"]] == ["being_written"]
    assert not storage("verify", assay, "--json").document["in_use"]


def test_a_missing_segment_shows_as_missing_offsets(assay: Path, storage: Run) -> None:
    names = sorted((assay / PARTITION).glob("*.seg"))
    names[1].unlink()
    done = storage("verify", assay, "--json")
    gaps = [one for one in done.document["findings"] if one["kind"] == "missing_offsets"]
    assert done.status == 1
    assert [(one["path"], one["offset"], one["end_offset"]) for one in gaps] == [
        (str(names[0].relative_to(assay)), 12, 24)
    ]


def test_segments_that_overlap_are_a_fault(assay: Path, storage: Run) -> None:
    first = min((assay / PARTITION).glob("*.seg"))
    shutil.copy(first, first.with_name("00000000000000000006.seg"))
    done = storage("verify", assay, "--json")
    assert done.status == 1
    assert {one["severity"] for one in done.document["findings"]} >= {"fault"}


def test_a_batch_whose_records_do_not_decode_is_a_fault(
    flux_segments: Path, storage: Run, encode_flux_batch: Run, expected_record: Run
) -> None:
    segment = max((flux_segments / "queues/orders/segments").glob("*.seg"))
    size = segment.stat().st_size
    batch = bytearray(encode_flux_batch(36, [expected_record(36)]))
    batch[44] = 0x85  # An offset delta that has no end within the record.
    from crc32c import crc32c

    batch[4:8] = struct.pack("<I", crc32c(bytes(batch[8:])))
    segment.write_bytes(segment.read_bytes() + bytes(batch))
    done = storage("verify", flux_segments, "--json")
    assert done.status == 1
    (found,) = done.document["findings"]
    assert (found["kind"], found["position"], found["offset"]) == ("bad_records", size, 36)


def test_leftovers_are_warnings_and_quarantined_bytes_are_notes(assay: Path, storage: Run) -> None:
    folder = assay / PARTITION
    for name in ("00000000000000000000.seg.compacting", "cleaner.json.tmp", "x.corrupt", "stranger"):
        (folder / name).write_bytes(b"x")
    (folder / "00000000000000000099.idx").write_bytes(b"")
    done = storage("verify", assay, "--json")
    kinds = sorted(one["kind"] for one in done.document["findings"])
    assert kinds == ["index_orphan", "leftover", "leftover", "quarantine", "unknown_file"]
    assert done.status == 0
    assert storage("verify", assay, "--strict").status == 1


@pytest.mark.parametrize("command", ["verify", "inspect", "dump", "repair"])
def test_what_cannot_be_read_is_a_usage_error(command: str, tmp_path: Path, storage: Run) -> None:
    for place, hint in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "holds no files of")):
        done = storage(command, place)
        assert done.status == 2
        assert hint in done.errors


def test_the_folder_above_or_below_is_suggested(assay: Path, storage: Run) -> None:
    assert f"name the folder above it: {assay}" in storage("verify", assay / "queues").errors
    assert f"{assay} looks like one" in storage("verify", assay.parent).errors
