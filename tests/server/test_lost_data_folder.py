"""The data directory goes away under a running broker: nothing more is confirmed, and people are told."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.queues import QueueError

TIMEOUT_S = 30.0


def config(data_dir: Path, durability: str) -> BrokerConfig:
    queue = {"partitions": 1, "durability": durability}
    return msgspec.convert(
        {
            "data_dir": str(data_dir),
            "listeners": [{"port": 0}],
            "queues": {"sync_interval_s": 0.05, "configured": [{"name": "q", **queue}, {"name": "other", **queue}]},
        },
        BrokerConfig,
    )


def removed(data: Path) -> None:
    shutil.rmtree(data)


def emptied(data: Path) -> None:
    shutil.rmtree(data)
    data.mkdir()


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def replaced(data: Path) -> None:
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    moved(data)
    copy.rename(data)


def refuse(broker: Broker, queue: str) -> str:
    """Publish until that is refused; what is said then. With periodic syncs some are confirmed before."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            broker.queues.publish(queue, b"lost")
        except QueueError as error:
            return error.text
    raise AssertionError("publishes to nowhere are confirmed")


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("lose", [removed, emptied, moved, replaced])
def test_nothing_is_confirmed_without_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], None], durability: str
) -> None:
    data = tmp_path / "data"
    with Broker(config(data, durability)) as broker:
        broker.queues.publish("q", b"kept")
        broker.queues.publish("other", b"kept")
        lose(data)
        caplog.set_level(logging.WARNING)
        assert "data" in refuse(broker, "q")
        assert "data" in refuse(broker, "other")
        with pytest.raises(QueueError):
            broker.queues.publish("new", b"x")
        # Whoever publishes to no queue is served as before.
        assert broker.queues.stats("q").depth >= 1
    assert any("removed or replaced" in record.getMessage() for record in caplog.records)
    # Where one is there again, or is made, a broker starts as ever.
    with Broker(config(data, durability)) as broker:
        broker.queues.publish("q", b"again")


def test_one_folder_that_goes_costs_its_queue_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(config(data, "fsync")) as broker:
        broker.queues.publish("q", b"kept")
        shutil.rmtree(data / "queues" / "q")
        assert "somebody removed the file" in refuse(broker, "q")
        broker.queues.publish("other", b"fine")
    with Broker(config(data, "fsync")) as broker:
        assert broker.queues.stats("other").depth == 1
