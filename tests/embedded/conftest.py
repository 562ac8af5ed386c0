"""An embedded broker, and taking from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, QueuesConfig
from assay.reference_broker.embedded import Subscription
from assay.reference_broker.embedded.blocking import Received

TIMEOUT_S = 60.0


def embedded_config(data_dir: Path | None = None, **defaults: object) -> BrokerConfig:
    """One listener on a free port; ``defaults`` of every queue."""
    one = {"partitions": 1, "delivery_timeout_s": 30.0, **defaults}
    return BrokerConfig(
        listeners=(ListenerConfig(port=0),),
        data_dir="" if data_dir is None else str(data_dir),
        queues=QueuesConfig(defaults=one),
    )


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(embedded_config()) as running:
        yield running


def next_of(subscription: Subscription) -> Received:
    """The next delivery, which must come."""
    received = subscription.get(TIMEOUT_S)
    assert received is not None
    return received
