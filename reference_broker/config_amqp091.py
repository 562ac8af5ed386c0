"""The configuration of AMQP 0.9.1."""

from __future__ import annotations

from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Count, Range


class Amqp091Config(Section, frozen=True, kw_only=True):
    """What is offered to clients in ``connection.tune``, and limits."""

    channel_max: Annotated[int, Range(1, 65_535)] = 2_047
    """Highest channel number; also how many channels a connection may have."""
    frame_max_bytes: Annotated[int, Range(4_096, 16 * 1024 * 1024)] = 131_072
    heartbeat_s: Annotated[int, Range(0, 65_535)] = 60
    """0 = none is suggested."""
    max_message_bytes: Count = 16 * 1024 * 1024
    max_consumers: Count = 10_000
    """Of one connection, those that get one message at a time included."""
