"""Data directories of earlier versions open, with every message, pending entry, cursor and session."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from assay.reference_broker.node import BrokerNode
from assay.reference_broker.storage.disk import RealDisk
from tests.storage.formats.fill import LATER, START, fill, found_in, open_node

FORMATS = Path(__file__).parent / "formats"
_LANES = {"high": 1, "normal": 2, "low": 3}
ARCHIVES = sorted(FORMATS.glob("*.tar.gz"))


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        # Python before 3.11.4 has no filters; the archives are ours.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    return folder


def turn(node: BrokerNode, now: float) -> None:
    for _ in range(6):
        node.tick(now)
        node.take_dirty(now)
        for job in node.take_jobs(now):
            job.run()
            node.job_done(job, None, now)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def archive(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_all_that_was_there_is_found(archive: Path, tmp_path: Path) -> None:
    expected = json.loads((FORMATS / archive.name.replace(".tar.gz", ".json")).read_text(encoding="utf-8"))
    node = open_node(RealDisk(unpacked(archive, tmp_path)), LATER)
    assert not node.recovery_notes
    found = found_in(node)
    for part in ("queues", "sessions", "retained", "transactions"):
        assert found[part] == expected[part], part
    node.close(LATER)
    # What this version wrote over it is read as well.
    again = found_in(open_node(RealDisk(tmp_path), LATER))
    assert again["retained"] == expected["retained"]
    assert again["sessions"] == expected["sessions"]


def test_delayed_messages_of_then_fire_as_they_were_asked_to(archive: Path, tmp_path: Path) -> None:
    node = open_node(RealDisk(unpacked(archive, tmp_path)), LATER)
    turn(node, START + 3 * 3_600)
    fired = {
        stored.message.payload.decode(): (name.split(":")[1], stored.lane)
        for name, stored in node.engine.browse("q", 1_000)
        if stored.message.payload.startswith(b"delayed")
    }
    assert fired["delayed high"] == ("2", 1), "partition and priority were user properties"
    assert fired["delayed plain"][1] == 2
    assert fired["delayed soon"][1] == 3


def test_dead_letters_of_then_go_back_as_they_were(archive: Path, tmp_path: Path) -> None:
    node = open_node(RealDisk(unpacked(archive, tmp_path)), LATER)
    letters = [stored.message for _, stored in node.engine.browse("$dlq/q", 1_000)]
    before = {letter.payload: _LANES[letter.user_property("priority") or "normal"] for letter in letters}
    told: list[object] = []
    node.engine.dead_letters.replay("q", None, LATER, told.append)
    for step in range(8):
        turn(node, LATER + step)
    assert told
    lanes = {
        stored.message.payload: stored.lane
        for _, stored in node.engine.browse("q", 1_000)
        if stored.message.payload in before and stored.enqueued_at >= LATER
    }
    assert lanes == before, "their priority was a user property"
    assert len(set(before.values())) == 3


def test_a_directory_of_today_holds_the_same(tmp_path: Path) -> None:
    """What the archives were filled with is still what :func:`fill` makes: they are no older than they have to be."""
    node = open_node(RealDisk(tmp_path), START)
    fill(node, START)
    node._store._disk.unlock()
    found = found_in(open_node(RealDisk(tmp_path), LATER))
    expected = json.loads((FORMATS / "2026-11-28.json").read_text(encoding="utf-8"))
    assert found["sessions"] == expected["sessions"]
    assert found["retained"] == expected["retained"]
    assert found["queues"].keys() == expected["queues"].keys()
    for name in expected["queues"]:
        assert found["queues"][name]["groups"] == expected["queues"][name]["groups"], name
