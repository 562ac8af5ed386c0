"""A pytest plugin (``-p mutation.contexts``): tells the probes which test runs, and a file how each ended.

``ASSAY_TESTS`` names the file: one JSON line per test, ``{"test": ..., "ok": ..., "duration_s": ...}``. Once the
process and its children have used ``ASSAY_MOST_S`` seconds of a processor, the tests that are left do not run: their
lines say ``"ran": false``. Tests that are skipped for another reason have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from mutation import probes


def pytest_configure() -> None:
    """The same examples each time, and none made smaller: that it fails is enough."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
    settings.load_profile("mutation")


def _processor_s() -> float:
    """What this process and its children used so far; the clock says little on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _began_at[item.nodeid] = _processor_s()
    probes.begin(item.nodeid)
    try:
        return (yield)
    finally:
        probes.begin("")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _processor_s() > float(os.environ.get("ASSAY_MOST_S", "inf")):
        _write({"test": item.nodeid, "ran": False})
        pytest.skip("the file has had its time")


def _write(line: dict[str, object]) -> None:
    if "ASSAY_TESTS" in os.environ:
        with Path(os.environ["ASSAY_TESTS"]).open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(line) + "\n")


_began_at: dict[str, float] = {}
_failed: set[str] = set()
_skipped: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = report.nodeid
    if report.skipped:
        _skipped.add(test)
    if report.failed:
        _failed.add(test)
    if report.when == "teardown" and test not in _skipped:
        duration_s = round(_processor_s() - _began_at[test], 4)
        _write({"test": test, "ok": test not in _failed, "duration_s": duration_s})
