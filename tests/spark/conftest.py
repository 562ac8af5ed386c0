"""One Spark session for all tests of this folder; without Java 17 they are skipped, and say so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from assay.spark_analysis.session import SHORT_JOB, open_session, why_unavailable

sys.path.insert(0, str(Path(__file__).parent))  # spark_histories.py, the generator that several tests share

_UNAVAILABLE = why_unavailable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _UNAVAILABLE is None:
        return
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.skip(reason=_UNAVAILABLE))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_session(SHORT_JOB) as session:
        yield session
