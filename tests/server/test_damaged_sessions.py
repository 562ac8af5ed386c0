"""Sessions that cannot be read are kept under another name, and the broker starts without them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.storage_tools.findings import FindingKind, Severity
from assay.reference_broker.storage_tools.layout import find_layout, open_directory
from assay.reference_broker.storage_tools.verify import verify_directory


def config(data_dir: Path) -> BrokerConfig:
    queue = {"name": "q", "partitions": 1}
    fields = {"data_dir": str(data_dir), "listeners": [{"port": 0}], "queues": {"configured": [queue]}}
    return msgspec.convert(fields, BrokerConfig)


def test_the_broker_starts_without_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(config(tmp_path)) as broker:
        broker.queues.publish("q", b"kept")
    sessions = tmp_path / "sessions"
    for name in sessions.iterdir():
        name.unlink()
    # A compacted segment that cannot take its place: nobody can say what counts.
    (sessions / f"{0:020d}.seg").write_bytes((tmp_path / f"queues/q/partitions/0/{0:020d}.seg").read_bytes())
    (sessions / f"{0:020d}-{0:020d}.swap").mkdir()
    with Broker(config(tmp_path)) as broker:
        assert broker.queues.stats("q").depth == 1
    assert "kept as sessions.damaged-1" in caplog.text
    assert "missing" not in caplog.text
    assert (tmp_path / "sessions.damaged-1" / f"{0:020d}.seg").exists()
    assert not (sessions / f"{0:020d}-{0:020d}.swap").exists()
    with Broker(config(tmp_path)) as broker:
        broker.queues.publish("q", b"more")
    assert not (tmp_path / "sessions.damaged-2").exists()
    disk = open_directory(tmp_path)
    report = verify_directory(disk, find_layout(disk))
    assert [(one.severity, one.kind, one.path) for one in report.findings] == [
        (Severity.NOTE, FindingKind.QUARANTINE, "sessions.damaged-1")
    ]
