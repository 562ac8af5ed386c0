"""pytest plugin: a real broker for a test, on a free loopback port, gone afterwards.

Fixtures: ``broker`` (one per test), ``broker_session`` (one per session), ``mqtt_url``. Override ``broker_config`` in a
module or conftest to start brokers with another configuration. Imports are late, so that test runs which use none of
this pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from assay.reference_broker.broker import Broker
    from assay.reference_broker.config import BrokerConfig


@pytest.fixture
def broker_config() -> BrokerConfig | None:
    """Configuration of ``broker``; None = one listener on a free loopback port, queues in memory."""
    return None


@pytest.fixture
def broker(broker_config: BrokerConfig | None) -> Iterator[Broker]:
    """A running broker, ready for clients, fresh for each test."""
    from assay.reference_broker.broker import Broker

    with Broker(broker_config) as running:
        yield running


@pytest.fixture(scope="session")
def broker_session() -> Iterator[Broker]:
    """A running broker that the whole session shares: use client ids and topics of your own."""
    from assay.reference_broker.broker import Broker

    with Broker() as running:
        yield running


@pytest.fixture
def mqtt_url(broker: Broker) -> str:
    """``mqtt://127.0.0.1:<port>`` of ``broker``."""
    return broker.url
