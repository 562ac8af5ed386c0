"""Raft's leader election: five servers, one dead leader, timers, votes; the table of the paper (section 9.3)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta
from simpy import Environment

from assay.reference_broker.trace.results import Series
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.kernel import substream
from assay.sim.models.model import Floats, Latencies, Model, Outcome, Part, Progress, Row, between
from assay.sim.models.stations import Steps

Span = tuple[Annotated[float, Meta(ge=0, le=3_600)], Annotated[float, Meta(ge=0, le=3_600)]]
"""Uniform between the two, in seconds."""
LIMIT_S: Final = 10.0
"""An election that takes longer is given up, and counts as this."""
_FEW: Final = 60
"""Trials of a setting in which hardly any election ends before the limit."""
_EXTREME: Final = (150.0, 200.0)
"""The longest election of a run says little: it is taken of several runs."""
_PAPER: Final = "Ongaro and Ousterhout 2014, section 9.3"


class RaftParameters(Part, frozen=True, kw_only=True):
    """Settings are pairs of the shortest and the longest election timeout, in milliseconds."""

    servers: Annotated[int, Meta(ge=3, le=99)]
    request_s: Span
    """RequestVote on its way."""
    reply_s: Span
    """The vote, written to disk, on its way back."""
    trials: Annotated[int, Meta(ge=20, le=10_000)]
    settings_ms: tuple[tuple[Annotated[float, Meta(ge=1)], Annotated[float, Meta(ge=1)]], ...]


class _Server:
    """A follower, or a candidate, once its timer has run out."""

    __slots__ = ("deadline_s", "term", "voted_term", "votes")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.term = 0
        self.voted_term = 0
        self.votes = 0


class Election:
    """One election, from the death of the leader."""

    def __init__(self, parameters: RaftParameters, shortest_s: float, longest_s: float, rng: random.Random) -> None:
        self._parameters, self._rng = parameters, rng
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self._env = Environment()
        # The last heartbeat reached all at once; the leader died at any moment until the next, half a timeout later.
        age_s = rng.uniform(0, shortest_s / 2)
        self._servers = [_Server(self._timeout_s() - age_s) for _ in range(parameters.servers - 1)]
        self._won = self._env.event()

    def _timeout_s(self) -> float:
        return self._rng.uniform(self._shortest_s, self._longest_s)

    def run(self) -> float:
        """Seconds until somebody has won; :data:`LIMIT_S` when nobody has by then."""
        for server in self._servers:
            self._env.process(self._live(server))
        self._env.run(until=self._env.any_of([self._won, self._env.timeout(LIMIT_S)]))
        return float(self._env.now)

    def _live(self, server: _Server) -> Steps:
        env = self._env
        while not self._won.triggered:
            while env.now < server.deadline_s:
                yield env.timeout(server.deadline_s - env.now)
            server.term += 1
            server.voted_term = server.term
            server.votes = 1
            server.deadline_s = env.now + self._timeout_s()
            for other in self._servers:
                if other is not server:
                    env.process(self._ask(server, other, server.term))

    def grants(self, voter: _Server, term: int) -> bool:
        """A voter has one vote a term."""
        return term > voter.voted_term and term >= voter.term

    def _ask(self, candidate: _Server, voter: _Server, term: int) -> Steps:
        env, rng, parameters = self._env, self._rng, self._parameters
        yield env.timeout(rng.uniform(*parameters.request_s))
        granted = self.grants(voter, term)
        voter.term = max(voter.term, term)
        if granted:
            voter.voted_term = term
            voter.deadline_s = env.now + self._timeout_s()
        yield env.timeout(rng.uniform(*parameters.reply_s))
        candidate.term = max(candidate.term, voter.term)
        if granted and candidate.term == term and candidate.voted_term == term:
            candidate.votes += 1
            if candidate.votes > parameters.servers // 2 and not self._won.triggered:
                self._won.succeed()


def elections(parameters: RaftParameters, shortest_ms: float, longest_ms: float, trials: int, seed: int) -> Floats:
    """Times of so many elections, in seconds."""
    rng = substream(seed, f"models/raft/{shortest_ms:g}-{longest_ms:g}")
    return np.array(
        [Election(parameters, shortest_ms / 1e3, longest_ms / 1e3, rng).run() for _ in range(trials)], np.float64
    )


def _rows(found: dict[tuple[float, float], Floats], worst_s: list[float]) -> list[Row]:
    """Those of the paper's figures that a setting was run for."""
    bands: list[tuple[tuple[float, float], str, Callable[[Floats], Any], float, float, str]] = [
        ((150.0, 155.0), "median", np.median, 230, 345, "287 ms"),
        ((12.0, 24.0), "mean", np.mean, 30, 40, "35 ms"),
        ((150.0, 150.0), "median", np.median, 9_900, math.inf, "more than 10 s"),
    ]
    rows = []
    for setting, name, figure, low, high, paper in bands:
        if setting in found:
            what = f"{name} election with {setting[0]:g} to {setting[1]:g} ms"
            rows.append(between(what, float(figure(found[setting])) * 1e3, low, high, "ms", f"{_PAPER}: {paper}"))
    if _EXTREME in found:
        longest_ms = float(np.median([*worst_s, float(found[_EXTREME].max())])) * 1e3
        what = "longest of 1000 elections with 150 to 200 ms, median of five"
        rows.append(between(what, longest_ms, 400, 650, "ms", f"{_PAPER}: 513 ms"))
    if (150.0, 155.0) in found and (150.0, 300.0) in found:
        spread = float(np.quantile(found[150.0, 155.0], 0.99) - np.quantile(found[150.0, 300.0], 0.99)) * 1e3
        rows.append(between("p99 saved by 150 to 300 ms", spread, 0, math.inf, "ms", f"{_PAPER}: randomness"))
    return rows


def run(parameters: RaftParameters, seed: int, progress: Progress) -> Outcome:
    """Every setting of the table."""
    found: dict[tuple[float, float], Floats] = {}
    metrics: dict[str, float | int | str] = {}
    worst_s: list[float] = []
    for number, (shortest, longest) in enumerate(parameters.settings_ms):
        progress(f"{shortest:g} to {longest:g} ms", number / len(parameters.settings_ms))
        trials = min(_FEW, parameters.trials) if shortest == longest else parameters.trials
        if (shortest, longest) == _EXTREME:
            worst_s += [float(elections(parameters, *_EXTREME, trials, seed + more).max()) for more in range(1, 5)]
        times_s = found[shortest, longest] = elections(parameters, shortest, longest, trials, seed)
        name = f"{shortest:g}-{longest:g}"
        metrics |= {
            f"{name}.median_ms": round(float(np.median(times_s)) * 1e3, 1),
            f"{name}.mean_ms": round(float(times_s.mean()) * 1e3, 1),
            f"{name}.longest_ms": round(float(times_s.max()) * 1e3, 1),
        }
    shares = [1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9]
    return Outcome(
        rows=_rows(found, worst_s),
        samples=[
            Latencies(
                workload=f"raft {shortest:g}-{longest:g}",
                operation=LatencyOperation.PUBLISH_TO_ACK,
                intended_s=np.zeros(len(times_s)),
                completed_s=times_s,
            )
            for (shortest, longest), times_s in found.items()
        ],
        series=[
            Series(
                name=f"{shortest:g} to {longest:g} ms",
                unit="ms",
                x_s=list(shares),
                y=[float(value) * 1e3 for value in np.percentile(times_s, shares)],
                group="time without a leader",
            )
            for (shortest, longest), times_s in found.items()
            if shortest < longest
        ],
        x_axis="percentile",
        metrics=metrics,
    )


MODEL = Model(name="raft", what="Raft's election times by timeout", parameters=RaftParameters, run=run)
