"""Whatever bytes lie in a directory: the commands say what is wrong, and a repair ends in a directory that passes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage_tools.dump import RecordFilter, read_places
from assay.reference_broker.storage_tools.inspect import inspect_directory
from assay.reference_broker.storage_tools.layout import find_layout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.repair import apply_repair, plan_for
from assay.reference_broker.storage_tools.verify import verify_directory

NOW = datetime(2026, 1, 26, 10, 0, tzinfo=UTC)


def spoil(path: Path, rng: random.Random) -> None:
    """Damage a file in one of the ways in which disks and people do."""
    data = bytearray(path.read_bytes())
    way = rng.randrange(6)
    at = rng.randrange(len(data) + 1)
    if way == 0:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    elif way == 1:
        del data[at:]
    elif way == 2:
        data[at : at + rng.randrange(1, 40)] = rng.randbytes(rng.randrange(40))
    elif way == 3:
        data[at:at] = data[: rng.randrange(1, 400)]
    elif way == 4:
        data[at : at + 16] = b"\xff" * 16
    else:
        data[at : at + 64] = bytes(64)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["assay", "flux_partitions", "flux_segments", "goqueue"])
def test_no_bytes_bring_the_commands_down(
    name: str, request: pytest.FixtureRequest, fingerprint: Callable[[Path], dict[str, str]]
) -> None:
    sound: Path = request.getfixturevalue(name)
    for seed in range(40):
        rng = random.Random(f"{name}-{seed}")
        root = sound.with_name(f"{name}-{seed}")
        shutil.copytree(sound, root)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
        for path in rng.sample(files, rng.randint(1, 3)):
            spoil(path, rng)
        before = fingerprint(root)
        disk = ReadOnlyDisk(root)
        layout = find_layout(disk)
        inspect_directory(disk, layout)
        found = read_places(disk, layout.select(None, None), RecordFilter(), lambda _, __: None)
        records = sum(1 for _ in found)
        report = verify_directory(disk, layout)
        assert records == report.records, f"seed {seed}"
        planned = plan_for(root, None)[1]
        assert fingerprint(root) == before, f"seed {seed}"
        try:
            done = apply_repair(root, None, now=NOW)
        except LogError as error:
            # Nothing is left that tells a group's name.
            assert "restore" in str(error), f"seed {seed}"
            continue
        assert done.actions == planned.actions, f"seed {seed}"
        after = verify_directory(disk, find_layout(disk))
        if not done.unrepairable:
            # Of FluxMQ's group logs a repair keeps off: nothing tells an unfinished write from damage there.
            strict = name != "flux_partitions"
            assert after.is_sound(strict=strict), f"seed {seed}: {after.findings}"
        assert after.records >= report.records, f"seed {seed}: a repair took sound records away"
        assert apply_repair(root, None, now=NOW).actions == [], f"seed {seed}"
        shutil.rmtree(root)
