"""What queueing theory says: closed forms and exact numeric methods, written without a simulation.

Rates are per second, times in seconds. W is the time in the queue, T the time until served.
"""

from __future__ import annotations

import math

import numpy as np

from assay.sim.models.model import Floats, ModelError

_TRUNCATED = 48
"""Most messages of a lane in the chain of two lanes; at half load more are rarer than one in a billion."""
_MAX_STEPS = 20_000


def mm1_mean_s(arrivals_per_s: float, served_per_s: float) -> float:
    """E[T] of M/M/1."""
    return 1 / (served_per_s - arrivals_per_s)


def mm1_quantile_s(arrivals_per_s: float, served_per_s: float, share: float) -> float:
    """Quantile of T of M/M/1 in order of arrival: exponential."""
    return -math.log(1 - share) / (served_per_s - arrivals_per_s)


def erlang_c(servers: int, load: float) -> float:
    """Probability of having to wait in M/M/c; ``load`` in Erlang. By Erlang B, whose recursion never overflows."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def mmc_wait_s(servers: int, arrivals_per_s: float, served_per_s: float) -> float:
    """E[W] of M/M/c; ``served_per_s`` of one server."""
    waits = erlang_c(servers, arrivals_per_s / served_per_s)
    return waits / (servers * served_per_s - arrivals_per_s)


def mmc_wait_quantile_s(servers: int, arrivals_per_s: float, served_per_s: float, share: float) -> float:
    """Quantile of W of M/M/c in order of arrival; 0 where fewer have to wait."""
    waits = erlang_c(servers, arrivals_per_s / served_per_s)
    if 1 - waits >= share:
        return 0.0
    return math.log(waits / (1 - share)) / (servers * served_per_s - arrivals_per_s)


def mg1_wait_s(arrivals_per_s: float, mean_s: float, second_moment: float) -> float:
    """E[W] of M/G/1: Pollaczek and Khinchine."""
    return arrivals_per_s * second_moment / (2 * (1 - arrivals_per_s * mean_s))


def mg1_wait_square(arrivals_per_s: float, mean_s: float, second_moment: float, third_moment: float) -> float:
    """E[W^2] of M/G/1 in order of arrival: Takacs."""
    wait_s = mg1_wait_s(arrivals_per_s, mean_s, second_moment)
    return 2 * wait_s**2 + arrivals_per_s * third_moment / (3 * (1 - arrivals_per_s * mean_s))


def group_commit_mean_s(arrivals_per_s: float, sync_s: float) -> float:
    """E[T] with syncs of constant length that take all who wait.

    Who comes during a sync waits for its rest, half of it on average, and for the next; who finds none under way waits
    for one. Of each cycle that are ``arrivals_per_s * sync_s`` and exp(-that) items.
    """
    during = arrivals_per_s * sync_s
    alone = math.exp(-during)
    return sync_s * (1.5 * during + alone) / (during + alone)


def group_commit_quantile_s(arrivals_per_s: float, sync_s: float, share: float) -> float:
    """Quantile of T as in :func:`group_commit_mean_s`: one sync exactly, or uniform between one and two."""
    during = arrivals_per_s * sync_s
    late = during / (during + math.exp(-during))
    return sync_s * (1 + max(0.0, share - (1 - late)) / late)


def bounded_commit_mean_s(arrivals_per_s: float, sync_s: float, max_batch: int) -> float:
    """E[T] when a sync takes at most ``max_batch``: the chain of those left behind at each sync, and Little's law.

    Raises :class:`ModelError` above its capacity.
    """
    expected = arrivals_per_s * sync_s
    if expected >= max_batch:
        raise ModelError("more arrive during a sync than it takes")
    states = int(8 * max_batch + 40 * max(1.0, 1 / (1 - expected / max_batch)))
    counts = np.arange(states + 1)
    logs = counts * math.log(expected) - expected - np.array([math.lgamma(count + 1) for count in counts])
    came = np.exp(logs)
    # waiting: at the end of a sync; an empty system starts the next with the first to come.
    step = np.zeros((states + 1, states + 1))
    for waiting in range(states + 1):
        left = max(0, max(1, waiting) - max_batch)
        step[waiting, left:] = came[: states + 1 - left]
        step[waiting, states] += max(0.0, 1 - step[waiting].sum())
    distribution = np.linalg.matrix_power(step, 4_096)[0]
    behind = np.maximum(0, np.maximum(1, counts) - max_batch)
    area = float((distribution * (behind * sync_s + arrivals_per_s * sync_s**2 / 2)).sum())
    cycle_s = sync_s + float(distribution[0]) / arrivals_per_s
    return area / cycle_s / arrivals_per_s + sync_s


def two_lanes_wait_s(arrivals_per_s: tuple[float, float], served_per_s: float, weights: tuple[int, int]) -> Floats:
    """E[W] of each of two lanes in deficit round robin, exponential service: the Markov chain, solved numerically.

    The rule is that of ``docs/spec/priority.md``: in a round each lane has its weight to spend, the more urgent first;
    a round ends when no lane that has messages has anything left. States are the lane in service, what is left of the
    round, and who waits; probabilities are iterated until they change by less than 1e-12.
    """
    first, second = arrivals_per_s
    size = _TRUNCATED
    leftovers = [(a, b) for a in range(weights[0] + 1) for b in range(weights[1] + 1)]
    place = {left: index for index, left in enumerate(leftovers)}

    def busy(lane: int, left: tuple[int, int], waiting: tuple[int, int]) -> int:
        index = (lane * len(leftovers) + place[left]) * size * size
        return len(leftovers) + index + waiting[0] * size + waiting[1]

    def chosen(left: tuple[int, int], waiting: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        for spendable in (left, weights):
            for lane in (0, 1):
                if spendable[lane] and waiting[lane]:
                    return lane, (spendable[0] - (lane == 0), spendable[1] - (lane == 1))
        raise AssertionError("somebody waits")

    sources: list[int] = []
    targets: list[int] = []
    rates: list[float] = []

    def arrow(source: int, target: int, rate: float) -> None:
        sources.append(source)
        targets.append(target)
        rates.append(rate)

    for left in leftovers:
        for lane, rate in ((0, first), (1, second)):
            one = (int(lane == 0), int(lane == 1))
            served, rest = chosen(left, one)
            arrow(place[left], busy(served, rest, (0, 0)), rate)
        for lane in (0, 1):
            for a in range(size):
                for b in range(size):
                    here = busy(lane, left, (a, b))
                    if a + 1 < size:
                        arrow(here, busy(lane, left, (a + 1, b)), first)
                    if b + 1 < size:
                        arrow(here, busy(lane, left, (a, b + 1)), second)
                    if not a and not b:
                        arrow(here, place[left], served_per_s)
                        continue
                    served, rest = chosen(left, (a, b))
                    gone = (a - (served == 0), b - (served == 1))
                    arrow(here, busy(served, rest, gone), served_per_s)
    total = len(leftovers) * (1 + 2 * size * size)
    pace = first + second + served_per_s
    source_index, target_index = np.array(sources), np.array(targets)
    share = np.array(rates) / pace
    stay = 1 - np.bincount(source_index, share, total)
    held = np.full(total, 1 / total)
    for _ in range(_MAX_STEPS):
        moved = held * stay + np.bincount(target_index, held[source_index] * share, total)
        if float(np.abs(moved - held).max()) < 1e-12:
            break
        held = moved
    else:
        raise ModelError("the chain of two lanes did not settle: too much load")
    waiting = held[len(leftovers) :].reshape(2 * len(leftovers), size, size).sum(axis=0)
    mean_first = float((waiting.sum(axis=1) * np.arange(size)).sum())
    mean_second = float((waiting.sum(axis=0) * np.arange(size)).sum())
    return np.array([mean_first / first, mean_second / second])
