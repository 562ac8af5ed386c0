"""Real files and the disk in memory behave alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.storage.disk import Disk, RealDisk
from assay.reference_broker.storage.memory_disk import MemoryDisk

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "write_at", "truncate"]), st.integers(0, 20), st.binary(max_size=8)),
    max_size=12,
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RealDisk:
    return RealDisk(Path(tmp_path_factory.mktemp("disk")))


def replay(disk: Disk, operations: list[tuple[str, int, bytes]]) -> tuple[bytes, int, list[int]]:
    file = disk.open("f", create=True)
    file.truncate(0)
    positions: list[int] = []
    for name, number, data in operations:
        if name == "append":
            positions.append(file.append(data))
        elif name == "write_at":
            file.write_at(number, data)
        else:
            file.truncate(number)
        positions.append(file.size)
    content = file.read_at(0, 1_000)
    size = file.size
    file.close()
    return content, size, positions


@given(OPERATIONS)
def test_every_sequence_of_writes_has_the_same_outcome(
    real: RealDisk, operations: list[tuple[str, int, bytes]]
) -> None:
    on_disk = replay(real, operations)
    assert on_disk == replay(MemoryDisk(), operations)
    assert len(on_disk[0]) == on_disk[1]


def test_writing_nothing_past_the_end_makes_no_file_longer(real: RealDisk) -> None:
    assert replay(real, [("write_at", 5, b"")]) == (b"", 0, [0])
    assert replay(MemoryDisk(), [("write_at", 5, b"")]) == (b"", 0, [0])
