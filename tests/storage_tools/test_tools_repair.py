"""``assay storage repair``: a plan changes nothing; --apply keeps copies, and all that was sound."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import Compression
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog
from assay.reference_broker.storage.pending_log import PendingLogFile
from assay.reference_broker.storage_tools.findings import VerifyReport
from assay.reference_broker.storage_tools.repair_plan import ActionKind, RepairReport
from assay.reference_broker.storage_tools.repair_record import RepairRecord

Run = Callable[..., Any]
Fingerprint = Callable[[Path], dict[str, str]]
PARTITION = Path("queues/orders/partitions/0")


def batch_starts(data: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at + 16)
        found.append((at, at + 44 + length))
        at += 44 + length
    return found


def segments_of(root: Path, suffix: str = ".seg") -> list[Path]:
    found = sorted(path for folder in root.glob("queues") for path in folder.rglob(f"*{suffix}"))
    return [path for path in found if path.parent.name != "1"]


def offsets_in(storage: Run, root: Path, partition: int = 0) -> list[int]:
    lines = storage("dump", root, "--partition", partition).out.splitlines()
    return [json.loads(line)["offset"] for line in lines]


def repaired(storage: Run, root: Path) -> RepairReport:
    """Repair, and hold what every repair must hold."""
    done = storage("repair", root, "--apply", "--json")
    assert done.status == 0, done.out + done.errors
    report = msgspec.json.decode(done.out, type=RepairReport)
    assert report.applied
    check = msgspec.json.decode(storage("verify", root, "--strict", "--json").out, type=VerifyReport)
    assert check.is_sound(strict=True), check.findings
    again = msgspec.json.decode(storage("repair", root, "--apply", "--json").out, type=RepairReport)
    assert again.actions == []
    assert again.kept_in is None
    return report


def damage_middle(root: Path) -> tuple[Path, list[int]]:
    """Damage the second batch of the second segment; returns the file and the offsets lost."""
    segment = segments_of(root)[1]
    data = bytearray(segment.read_bytes())
    end = batch_starts(bytes(data))[1][1]
    data[end - 1] ^= 0xFF
    segment.write_bytes(bytes(data))
    return segment, [15, 16, 17]


def cut_tail(root: Path) -> tuple[Path, list[int]]:
    """Leave the start of a write behind the last segment."""
    segment = segments_of(root)[-1]
    segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:30])
    return segment, []


def damage_confirmed_tail(root: Path) -> tuple[Path, list[int]]:
    segment = segments_of(root)[-1]
    data = segment.read_bytes()
    segment.write_bytes(data[:-5])
    return segment, [33, 34, 35]


def cut_confirmed_batch(root: Path) -> tuple[Path, list[int]]:
    segment = segments_of(root)[-1]
    data = segment.read_bytes()
    segment.write_bytes(data[: batch_starts(data)[-1][0]])
    return segment, [33, 34, 35]


def damage_sealed_end(root: Path) -> tuple[Path, list[int]]:
    segment = segments_of(root)[0]
    data = segment.read_bytes()
    segment.write_bytes(data[:-1])
    return segment, [9, 10, 11]


def lose_segment(root: Path) -> tuple[Path, list[int]]:
    segment = segments_of(root)[1]
    segment.unlink()
    return segment, list(range(12, 24))


def damage_offset_index(root: Path) -> tuple[Path, list[int]]:
    index = segments_of(root, ".idx")[1]
    index.write_bytes(b"\xee" * 41)
    return index, []


def lose_time_index(root: Path) -> tuple[Path, list[int]]:
    index = segments_of(root, ".tix")[0]
    index.unlink()
    return index, []


def leave_temporaries(root: Path) -> tuple[Path, list[int]]:
    place = segments_of(root)[0].with_name("00000000000000000000.seg.compacting")
    place.write_bytes(b"half")
    (root / "queues/new.importing").mkdir()
    (root / "queues/new.importing/queue.json").write_bytes(b"{}")
    (root / "queues/orders/queue.json.tmp").write_bytes(b"{")
    (root / PARTITION / "00000000000000000099.tix").write_bytes(b"")
    return place, []


def damage_mark(root: Path) -> tuple[Path, list[int]]:
    mark = root / PARTITION / "durable.mark"
    mark.write_bytes(b"\x55" * len(mark.read_bytes()))
    return mark, []


def damage_half_mark(root: Path) -> tuple[Path, list[int]]:
    mark = root / PARTITION / "durable.mark"
    data = bytearray(mark.read_bytes())
    data[520] ^= 1
    mark.write_bytes(bytes(data))
    return mark, []


def damage_cleaner(root: Path) -> tuple[Path, list[int]]:
    state = root / PARTITION / "cleaner.json"
    state.write_bytes(b"{")
    segment = segments_of(root)[1]
    data = segment.read_bytes()
    start, end = batch_starts(data)[1]
    segment.write_bytes(data[:start] + data[end:])
    for suffix in (".idx", ".tix"):
        segment.with_suffix(suffix).unlink()
    return state, [15, 16, 17]


DAMAGES = (
    damage_middle,
    cut_tail,
    damage_confirmed_tail,
    cut_confirmed_batch,
    damage_sealed_end,
    lose_segment,
    damage_offset_index,
    lose_time_index,
    leave_temporaries,
    damage_mark,
    damage_half_mark,
    damage_cleaner,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_plan_changes_nothing_and_a_repair_keeps_all_that_is_sound(
    damage: Callable[[Path], tuple[Path, list[int]]], assay: Path, storage: Run, fingerprint: Fingerprint
) -> None:
    _, lost = damage(assay)
    before = fingerprint(assay)
    planned = storage("repair", assay, "--json")
    assert planned.status == 1
    assert fingerprint(assay) == before
    plan = msgspec.json.decode(planned.out, type=RepairReport)
    assert plan.actions
    assert not plan.applied
    shown = storage("repair", assay)
    assert "--apply" in shown.out
    report = repaired(storage, assay)
    assert report.actions == plan.actions
    assert offsets_in(storage, assay) == [offset for offset in range(36) if offset not in lost]
    assert offsets_in(storage, assay, 1) == [0, 1, 2]
    # Every file that changed or went has a copy as it was.
    after = fingerprint(assay)
    assert report.kept_in is not None
    kept = Path(report.kept_in)
    changed = [path for path, found in before.items() if after.get(path) != found and not path.endswith(".lock")]
    copies = fingerprint(kept)
    assert {path: copies.get(path) for path in changed} == {path: before[path] for path in changed}
    record = msgspec.json.decode((kept / "repair.json").read_bytes(), type=RepairRecord)
    assert set(changed) <= set(record.changed)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_log_goes_on_after_a_repair(
    damage: Callable[[Path], tuple[Path, list[int]]], assay: Path, storage: Run, expected_record: Run
) -> None:
    _, lost = damage(assay)
    repaired(storage, assay)
    log = SegmentedLog(
        RealDisk(assay),
        str(PARTITION),
        options=LogOptions(),
        encoder=BatchEncoder(Compression.NONE),
        volatile=False,
        note=lambda _, __: None,
    )
    found = {record.offset: record for record in log.read(0, 1_000)}
    assert sorted(found) == [offset for offset in range(36) if offset not in lost]
    assert all(found[offset][1:] == tuple(expected_record(offset)) for offset in found)
    # No offset that was ever confirmed is given out again.
    assert log.append([expected_record(36)]) == 36
    task = log.start_sync()
    assert task is not None
    task.run()
    log.finish_sync(None)
    log.close()
    assert storage("verify", assay).status == 0


@pytest.mark.parametrize("name", ["flux_partitions", "flux_segments"])
@pytest.mark.parametrize("damage", [damage_middle, cut_tail, damage_sealed_end, damage_offset_index, lose_time_index])
def test_fluxmq_directories_are_repaired_too(
    name: str, damage: Callable[[Path], tuple[Path, list[int]]], request: pytest.FixtureRequest, storage: Run
) -> None:
    root: Path = request.getfixturevalue(name)
    _, lost = damage(root)
    repaired(storage, root)
    assert not (root / ".lock").exists()
    lines = storage("dump", root).out.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [one for one in range(36) if one not in lost]


def test_goqueue_directories_are_repaired_too(goqueue: Path, storage: Run) -> None:
    first, last = sorted((goqueue / "logs/orders/0").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[40] ^= 1
    first.write_bytes(bytes(data))
    last.write_bytes(last.read_bytes() + b"GQ\x01")
    first.with_suffix(".timeindex").write_bytes(b"\x00" * 15)
    repaired(storage, goqueue)
    lines = storage("dump", goqueue).out.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == list(range(1, 16))


GROUP = Path("queues/orders/consumers/workers")


def pending_of(root: Path) -> list[int]:
    log = PendingLogFile(
        RealDisk(root),
        str(GROUP / "workers.pel.log"),
        group="workers",
        pattern="",
        volatile=False,
        note=lambda _, __: None,
    )
    found = [entry.offset for entry in log.recovered]
    log.close()
    return found


@pytest.mark.parametrize("damage", ["torn", "middle", "header"])
def test_a_damaged_group_is_recovered_as_a_broker_would(damage: str, assay: Path, storage: Run) -> None:
    path = assay / GROUP / "workers.pel.log"
    data = path.read_bytes()
    if damage == "torn":
        path.write_bytes(data + data[-9:-4])
    elif damage == "middle":
        path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    else:
        path.write_bytes(b"\x00" + data[1:])
    wanted = assay.with_name("as-a-broker")
    shutil.copytree(assay, wanted)
    expected = pending_of(wanted)
    assert storage("verify", assay).status == (0 if damage == "torn" else 1)
    report = repaired(storage, assay)
    assert [one.kind for one in report.actions] == [ActionKind.RECOVER_GROUP]
    assert report.kept_in is not None
    assert (Path(report.kept_in) / GROUP / "workers.pel.log").read_bytes() != data
    assert pending_of(assay) == expected
    if damage == "torn":
        assert expected == [1, 2, 3, 4, 5]


def test_a_directory_that_a_broker_has_open_is_not_repaired(
    assay: Path, storage: Run, fingerprint: Fingerprint
) -> None:
    cut_tail(assay)
    before = fingerprint(assay)
    disk = RealDisk(assay)
    disk.lock()
    try:
        done = storage("repair", assay, "--apply")
    finally:
        disk.unlock()
    assert done.status == 2
    assert "stop the broker" in done.errors
    assert fingerprint(assay) == before


def test_what_only_people_can_put_right_is_said(assay: Path, storage: Run) -> None:
    (assay / "queues/orders/queue.json").write_bytes(b"{")
    done = storage("repair", assay, "--apply", "--json")
    assert done.status == 1
    report = msgspec.json.decode(done.out, type=RepairReport)
    assert report.actions == []
    assert [finding.path for finding in report.unrepairable] == ["queues/orders/queue.json"]
    assert "Only you can put this right" in storage("repair", assay).out


def test_nothing_is_done_to_a_sound_directory(assay: Path, storage: Run, fingerprint: Fingerprint) -> None:
    before = fingerprint(assay)
    done = storage("repair", assay, "--apply")
    assert done.status == 0
    assert "Nothing to repair" in done.out
    assert fingerprint(assay) == before


class PowerCutError(Exception):
    """The machine stops here."""


@pytest.mark.parametrize("damage", [damage_middle, cut_tail, damage_confirmed_tail, lose_segment])
def test_a_repair_that_is_interrupted_anywhere_is_finished_by_the_next(
    damage: Callable[[Path], tuple[Path, list[int]]], assay: Path, storage: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call is the last one: what is sound stays, and a second repair ends where one alone would have."""
    _, lost = damage(assay)
    expected = [offset for offset in range(36) if offset not in lost]
    real = {name: getattr(os, name) for name in ("replace", "fsync", "ftruncate", "pwrite")}
    stop_at = 0
    while True:
        stop_at += 1
        root = assay.with_name(f"cut-{stop_at}")
        shutil.copytree(assay, root)
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
            try:
                storage("repair", root, "--apply")
            except PowerCutError:
                finished = False
            else:
                finished = True
        if finished:
            break
        done = storage("repair", root, "--apply")
        assert done.status == 0, f"cut at call {stop_at}: {done.errors}"
        assert storage("verify", root, "--strict").status == 0, f"cut at call {stop_at}"
        assert offsets_in(storage, root) == expected, f"cut at call {stop_at}"
        shutil.rmtree(root)
    assert stop_at > 10


def test_random_damage_is_always_repaired(assay: Path, storage: Run) -> None:
    """Whatever bytes are hit: afterwards the check passes, and what was in batches that were not hit is there."""
    sound = assay.with_name("sound")
    shutil.copytree(assay, sound)
    for seed in range(25):
        rng = random.Random(seed)
        root = assay.with_name(f"random-{seed}")
        shutil.copytree(sound, root)
        lost: set[int] = set()
        for _ in range(rng.randint(1, 4)):
            segment = rng.choice(segments_of(root))
            data = bytearray(segment.read_bytes())
            at = rng.randrange(len(data))
            data[at] ^= rng.randint(1, 255)
            segment.write_bytes(bytes(data))
            starts = batch_starts((sound / segment.relative_to(root)).read_bytes())
            number = max(index for index, (start, _) in enumerate(starts) if start <= at)
            base = int(segment.stem) + 3 * number
            lost.update(range(base, base + 3))
        if not storage("verify", root).status:
            continue
        repaired(storage, root)
        assert offsets_in(storage, root) == [offset for offset in range(36) if offset not in lost], f"seed {seed}"
        shutil.rmtree(root)
