"""The measurement of delayed messages runs; its figures at full size are for a quiet machine."""

from __future__ import annotations

import pytest

from assay.loadtests.bench.engine.delays import measure_delays


@pytest.mark.parametrize("on_disk", [False, True])
def test_it_measures_memory_and_rates(on_disk: bool) -> None:
    figures = measure_delays(2_000, 100, on_disk=on_disk)
    assert figures.pending == 2_000
    assert figures.scheduled_per_s > 0
    assert figures.fired_per_s > 0
    assert (figures.reopened_s > 0) == on_disk
