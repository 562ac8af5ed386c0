"""Real clusters of three nodes, where they are installed; minutes, so only where it is asked for: tox -e failover."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from assay.conformance.targets.process import search_path
from assay.conformance.targets.rabbitmq_node import NotInstalledError, find_home
from assay.faults.failover.measure import LeaderFault, measure
from assay.faults.failover.nats import nats_cluster
from assay.faults.failover.rabbitmq import rabbitmq_cluster

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ASSAY_FAILOVER"), reason="set ASSAY_FAILOVER=1: takes minutes"),
    pytest.mark.peer,
    pytest.mark.timeout(600),
]


def _has_rabbitmq() -> bool:
    try:
        find_home()
    except NotInstalledError:
        return False
    return True


@pytest.mark.skipif(shutil.which("nats-server", path=search_path()) is None, reason="nats-server is not installed")
@pytest.mark.parametrize("fault", LeaderFault)
def test_nats_fails_over(fault: LeaderFault, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        found = measure(cluster, fault, 1, random.Random(1))
    assert 3.5 < found.gaps_s[0] < 30, "no sooner than the shortest election timeout"
    assert found.stored >= found.confirmed


@pytest.mark.skipif(not _has_rabbitmq(), reason="RabbitMQ is not installed")
@pytest.mark.parametrize("fault", LeaderFault)
def test_rabbitmq_fails_over(fault: LeaderFault, tmp_path: Path) -> None:
    with rabbitmq_cluster(tmp_path) as cluster:
        found = measure(cluster, fault, 1, random.Random(1))
    assert found.stored >= found.confirmed
    assert (found.gaps_s[0] > 4) == (fault is LeaderFault.PAUSE), (
        "a killed node is noticed at once, a paused one is not"
    )
