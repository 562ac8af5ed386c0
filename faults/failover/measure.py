"""One measurement: publish without pause, hurt the leader, wait for the next confirm; as many rounds as asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import msgspec

STEADY_S: Final = (1.0, 2.0)
"""Publishing before the fault, so that it comes at any moment between heartbeats."""
CONFIRM_TIMEOUT_S: Final = 0.25
"""A publish that is not confirmed by then is given up, and the next one sent."""
PACE_S: Final = 0.004
GAP_TIMEOUT_S: Final = 60.0
WHOLE_TIMEOUT_S: Final = 120.0
MAX_ROUNDS: Final = 200


class FailoverError(Exception):
    """The cluster cannot be started, or did not come back; the text says which and what it wrote."""


class LeaderFault(StrEnum):
    """What happens to the node that leads the queue."""

    KILL = "kill"
    """SIGKILL; it is started again when the round is over."""
    PAUSE = "pause"
    """SIGSTOP; SIGCONT when the round is over. Its connections stay open, so nobody is told."""


class Publisher(Protocol):
    """A client of one node, which publishes to the replicated queue."""

    def publish(self, timeout_s: float) -> bool:
        """Publish a message; whether it was confirmed in time. Late confirms are ignored."""
        ...

    def close(self) -> None: ...


class ReplicatedBroker(Protocol):
    """Three nodes and a queue on all of them."""

    @property
    def nodes(self) -> int: ...

    def leader(self) -> int:
        """Index of the node that leads the queue. Raises :class:`FailoverError`."""
        ...

    def connect(self, node: int) -> Publisher: ...

    def hurt(self, node: int, fault: LeaderFault) -> None: ...

    def heal(self, node: int, fault: LeaderFault) -> None: ...

    def wait_until_whole(self, timeout_s: float) -> None:
        """Until every replica has everything. Raises :class:`FailoverError`."""
        ...

    def stored(self) -> int:
        """Messages in the queue."""
        ...


class Failovers(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    fault: LeaderFault
    gaps_s: list[float]
    """From the last confirm before the fault to the first of a message sent after it, a round each."""
    confirmed: int
    stored: int
    """In the queue at the end: at least as many as were confirmed, unless some were lost."""


def measure(
    broker: ReplicatedBroker,
    fault: LeaderFault,
    rounds: int,
    rng: random.Random,
    progress: Callable[[int, float | None], None] = lambda _round, _gap: None,
) -> Failovers:
    """Publish at a node that does not lead. ``progress`` gets the number of rounds done and the last gap.

    Raises :class:`FailoverError`.
    """
    before = broker.stored()
    gaps_s: list[float] = []
    confirmed = 0
    for number in range(min(rounds, MAX_ROUNDS)):
        broker.wait_until_whole(WHOLE_TIMEOUT_S)
        leader = broker.leader()
        publisher = broker.connect((leader + 1) % broker.nodes)
        try:
            hurt_at = time.monotonic() + rng.uniform(*STEADY_S)
            last = time.monotonic()
            while (begun := time.monotonic()) < hurt_at:
                if publisher.publish(CONFIRM_TIMEOUT_S):
                    last = time.monotonic()
                    confirmed += 1
                time.sleep(max(0.0, PACE_S - (time.monotonic() - begun)))
            broker.hurt(leader, fault)
            deadline = time.monotonic() + GAP_TIMEOUT_S
            while not publisher.publish(CONFIRM_TIMEOUT_S):
                if time.monotonic() > deadline:
                    message = f"nothing was confirmed for {GAP_TIMEOUT_S:g} s after {fault} of node {leader}"
                    raise FailoverError(message)
            gaps_s.append(time.monotonic() - last)
            confirmed += 1
        finally:
            publisher.close()
            broker.heal(leader, fault)
        progress(number + 1, gaps_s[-1])
    broker.wait_until_whole(WHOLE_TIMEOUT_S)
    return Failovers(fault=fault, gaps_s=gaps_s, confirmed=confirmed, stored=broker.stored() - before)
