"""A pytest plugin (``-p mutation.contexts``): tells coverage.py which test runs, and a file how each ended.

``ASSAY_TESTS`` names the file: one JSON line per test, ``{"test": ..., "ok": ..., "duration_s": ...}``. Once the
process has used ``ASSAY_MOST_S`` seconds of a processor, the tests that are left are skipped, and have no line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings


def pytest_configure() -> None:
    """The same examples each time, and none made smaller: that it fails is enough."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
    settings.load_profile("mutation")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if os.environ.get("COVERAGE_PROCESS_START"):
        import coverage

        current = coverage.Coverage.current()
        if current is not None:
            current.switch_context(item.nodeid)
            try:
                return (yield)
            finally:
                current.switch_context("")
    return (yield)


def pytest_runtest_setup() -> None:
    if time.process_time() > float(os.environ.get("ASSAY_MOST_S", "inf")):
        pytest.skip("the file has had its time")


_spent_s: dict[str, float] = {}
_failed: set[str] = set()
_skipped: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """With xdist the controller gets the reports of all workers, and only it writes them."""
    if "PYTEST_XDIST_WORKER" in os.environ or "ASSAY_TESTS" not in os.environ:
        return
    test = report.nodeid
    if report.skipped:
        _skipped.add(test)
    _spent_s[test] = _spent_s.get(test, 0.0) + report.duration
    if report.failed:
        _failed.add(test)
    if report.when == "teardown" and test not in _skipped:
        line = {"test": test, "ok": test not in _failed, "duration_s": round(_spent_s[test], 4)}
        with Path(os.environ["ASSAY_TESTS"]).open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(line) + "\n")
