"""What dead letters tell of their deaths. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.explore.amqp.state import Deaths


def with_death(deaths: Deaths, queue: str, reason: str) -> Deaths:
    """One more death comes first; the same reason in the same queue counts."""
    count = next((count for q, r, count in deaths if (q, r) == (queue, reason)), 0)
    return ((queue, reason, count + 1), *(each for each in deaths if each[:2] != (queue, reason)))


def is_cycle(queue: str, deaths: Deaths) -> bool:
    """Whether a letter comes to a queue where it died, and nobody rejected it since: it is dropped."""
    for at, (name, _, _) in enumerate(deaths):
        if name == queue:
            return all(reason != "rejected" for _, reason, _ in deaths[: at + 1])
    return False


def deaths_of(headers: Mapping[str, Any]) -> Deaths:
    """From x-death, as it came."""
    told = headers.get("x-death", [])
    return tuple((each.get("queue", ""), each.get("reason", ""), each.get("count", 0)) for each in told)
