"""The report of the demo's suites stays small enough to attach to a ticket and quick to copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reports.site import build_report

MAX_REPORT_BYTES = 15_000_000
LEFT_FOR_OTHER_RUNS_BYTES = 1_500_000
"""Simulation, faults, load, Spark and its notebook take about 1.3 MB."""
MAX_FILES = 400
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_a_report_of_all_cases_on_two_brokers_is_small(tmp_path: Path) -> None:
    """All suites on the reference broker, and the same once more as another broker's, which is more than the demo has:
    a peer without queues runs half of them."""
    reference = tmp_path / "reference"
    command = [sys.executable, "-m", "assay.cli", "conformance", "run", "--target", "reference", "--seed", "1"]
    subprocess.run([*command, "--out", str(reference)], cwd=ROOT, check=False, capture_output=True, timeout=240)
    report = (reference / "report.jsonl").read_bytes()
    assert report.count(b'"type":"result"') > 700
    shutil.copytree(reference, tmp_path / "peer")
    for name in ("report.jsonl", "result.json"):
        path = tmp_path / "peer" / name
        text = path.read_bytes().replace(b'"target":"reference"', b'"target":"peer"')
        path.write_bytes(text.replace(b'"target": "reference"', b'"target": "peer"'))
    build_report(tmp_path, tmp_path / "site")
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    assert size + LEFT_FOR_OTHER_RUNS_BYTES <= MAX_REPORT_BYTES, f"{size:,} bytes"
    assert len(files) <= MAX_FILES
