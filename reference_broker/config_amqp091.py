"""The configuration of AMQP 0.9.1."""

from __future__ import annotations

from assay.reference_broker.config_mqtt import Section


class Amqp091Config(Section, frozen=True, kw_only=True):
    """What is offered to clients in ``connection.tune``, and limits."""

    channel_max: int = 2_047
    """Highest channel number; also how many channels a connection may have."""
    frame_max_bytes: int = 131_072
    heartbeat_s: int = 60
    """0 = none is suggested."""
    max_message_bytes: int = 16 * 1024 * 1024
    max_consumers: int = 10_000
    """Of one connection, those that get one message at a time included."""


def amqp091_problems(config: Amqp091Config) -> list[str]:
    """What is wrong, each with its key."""
    problems: list[str] = []
    if not 1 <= config.channel_max <= 65_535:
        problems.append("amqp091.channel_max must be 1 to 65535")
    if not 4_096 <= config.frame_max_bytes <= 16 * 1024 * 1024:
        problems.append("amqp091.frame_max_bytes must be 4096 to 16777216")
    if not 0 <= config.heartbeat_s <= 65_535:
        problems.append("amqp091.heartbeat_s must be 0 to 65535")
    if config.max_message_bytes < 1 or config.max_consumers < 1:
        problems.append("amqp091.max_message_bytes and max_consumers must be at least 1")
    return problems
