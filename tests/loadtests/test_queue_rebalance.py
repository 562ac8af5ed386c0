"""A rebalance is cheap, and does not stop what it does not move."""

from __future__ import annotations

import pytest

from assay.loadtests.bench.engine.queue_rebalance import measure_rebalance
from assay.reference_broker.config import RebalanceProtocol

LIMIT_MS = 50


@pytest.mark.parametrize("protocol", RebalanceProtocol)
def test_a_hundred_partitions_over_ten_consumers(protocol: RebalanceProtocol) -> None:
    best = min((measure_rebalance(protocol) for _ in range(3)), key=lambda figures: figures.join_ms)
    assert best.join_ms < LIMIT_MS
    assert best.leave_ms < LIMIT_MS
    assert best.moved == 10, "the sticky assignor moves what the new consumer needs, and no more"
    assert best.longest_pause_of_unmoved_ms == 0
