from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # report_samples is shared by the tests of this folder only

from report_samples import write_sample_runs

from assay.reports.site import build_report


@pytest.fixture(scope="session")
def sample_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind; tests only read it."""
    return write_sample_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def sample_site(sample_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the sample runs; tests only read it."""
    site = tmp_path_factory.mktemp("site") / "report"
    build_report(sample_runs, site)
    return site
