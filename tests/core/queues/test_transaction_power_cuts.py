"""A transaction over two queues, and power that fails before each of its disk operations: all or nothing, decided."""

from __future__ import annotations

import random

import pytest

from reference_broker.config import Durability
from sim.power_cuts import WatchedDisk, power_cuts
from sim.transaction_life import TransactionLife, examine


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
@pytest.mark.parametrize("commits", [True, False])
def test_power_cut_at_every_operation_of_a_transaction(durability: Durability, commits: bool) -> None:
    disk = WatchedDisk(random.Random(7))
    life = TransactionLife(disk, durability, commits=commits)
    life.prepare()
    seen: set[tuple[bytes, bool]] = set()
    points = 0
    outcomes: set[bool] = set()

    def before() -> None:
        nonlocal points
        points += 1
        for cut in power_cuts(disk, f"{points}"):
            if (cut.digest, bool(life.told)) in seen:
                continue
            seen.add((cut.digest, bool(life.told)))
            found = examine(cut.boot(), durability)
            outcomes.add(found.input_settled)
            complaints = list(life.complaints(found))
            assert not complaints, f"operation {points}, {cut.what}: {complaints}"

    disk.before = before
    life.live()
    before()
    assert life.told == [None]
    assert points > 15
    assert outcomes == ({True, False} if commits else {False})
