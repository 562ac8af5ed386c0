"""Parameters of the broker model from benches of this machine.

What each figure says, in times of one message (all medians of a bench's rounds):

    append      1 / enqueue_batch                  batches of 1 000, so that turns cost nothing
    life        1 / life                           enqueue, deliver, ack in turns of 100
    turn        1 / life_single - 1 / life         the same, each message a turn of its own
    wire        1 / per_cpu_s of the sockets       the broker's own processor time, everything included
    fsync       raw sync of a group                assay bench storage, group_commit.handover.raw
    hand-over   to the thread and back             assay bench storage, group_commit.handover

What dispatch, encoding, parsing and settling take of the rest is divided as ``_SHARES`` says. Sockets, the event loop
and a processor that falls asleep are no part of the benches. Where open-loop runs are given, the time of a turn, what
waking up adds and how much turns differ are set so that the model comes nearest to the p50 and p99 of all of them; one
run alone tells the time of a turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import yaml

from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import RunResult, read_result
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.models.broker import MODEL, BrokerParameters, Durability, Measured, predicted, read_loads
from assay.sim.models.model import MODEL_SCHEMA, Floats, ModelError, load_parameters

_SHARES: Final = {"dispatch_s": 0.4, "settle_s": 0.6}
"""Of what an engine's message takes beyond its append."""
_WIRE_SHARES: Final = {"parse_s": 0.5, "encode_s": 0.5}
"""Of what sockets add to the engine's time."""
_PER_CPU: Final = {Durability.INTERVAL: "reference/interval", Durability.FSYNC: "reference/fsync"}
_ROUNDS: Final = 20
_FITTED_MESSAGES: Final = 4_000
_FROM_RUNS: Final = {"turn_s": 50e-6, "wake_s": 100e-6, "asleep_s": 2.5e-3, "spread": 0.6}
"""What several runs tell, and where the search begins."""
_FIRST_STEP: Final = 0.5
"""Of the search, in logarithms of the parameters."""
_LAST_STEP: Final = 0.03
_MAX_TRIES: Final = 100
_TAIL_WEIGHT: Final = 0.5
"""Of a p99 beside a p50: it is known from a hundredth of the messages."""


def _result(path: Path, name: str) -> RunResult:
    for place in (path / name / "result.json", path / "result.json", path):
        if place.is_file():
            try:
                return read_result(place)
            except READ_ERRORS as error:
                message = f"{place}: {error}"
                raise ModelError(message) from error
    message = f"{path} holds no result.json: run the bench with --out"
    raise ModelError(message)


def _figure(result: RunResult, key: str, where: str) -> float:
    value = result.metrics.get(key)
    if not isinstance(value, int | float) or value <= 0:
        message = f"{where} has no figure {key}"
        raise ModelError(message)
    return float(value)


def fit(storage: Path, queue: Path, loads: Sequence[Path], seed: int) -> dict[str, tuple[float, str]]:
    """Value and source of each parameter that the benches tell. Raises :class:`ModelError`."""
    engine, sockets = _result(queue, "engine"), _result(queue, "sockets")
    disk = _result(storage, "storage")
    if engine.name == sockets.name:
        message = f"{queue} is not a folder of assay bench queue, which holds engine and sockets"
        raise ModelError(message)
    append_s = 1 / _figure(engine, "enqueue_batch.messages_per_s", "the engine's bench")
    life_s = 1 / _figure(engine, "life.messages_per_s", "the engine's bench")
    single_s = 1 / _figure(engine, "life_single.messages_per_s", "the engine's bench")
    wire_s = 1 / _figure(sockets, f"{_PER_CPU[Durability.INTERVAL]}.queue.per_cpu_s", "the bench of sockets")
    synced_s = 1 / _figure(sockets, f"{_PER_CPU[Durability.FSYNC]}.queue.per_cpu_s", "the bench of sockets")
    date = f"{engine.started_at[:10] or sockets.started_at[:10]}".strip()
    when = f"assay bench queue{f', {date}' if date else ''}"
    # Over sockets the broker serves packets by column, which may be quicker than the engine's bench: then all shrinks.
    scale = min(1.0, wire_s / life_s)
    engine_s = (life_s - append_s) * scale
    found = {"append_s": (append_s * scale, f"{when}: enqueue_batch, not more than sockets leave")}
    for name, share in _SHARES.items():
        found[name] = (max(0.0, engine_s * share), f"{when}: {share:g} of life less enqueue_batch")
    for name, share in _WIRE_SHARES.items():
        found[name] = (max(0.0, wire_s - life_s * scale) * share, f"{when}: {share:g} of per_cpu_s beyond life")
    found["confirm_s"] = (max(0.0, synced_s - wire_s), f"{when}: per_cpu_s with fsync beyond interval")
    found["turn_s"] = (max(0.0, single_s - life_s), f"{when}: life_single beyond life")
    found["fsync_s"] = (
        _figure(disk, "group_commit.handover.raw", "the storage bench") / 1e6,
        "assay bench storage: group_commit.handover.raw",
    )
    found["handover_s"] = (
        _figure(disk, "group_commit.handover", "the storage bench") / 1e6,
        "assay bench storage: group_commit.handover",
    )
    if loads:
        values = {name: value for name, (value, _) in found.items()}
        base, _ = load_parameters(MODEL, None, {**values, "messages": _FITTED_MESSAGES})
        measured = _sound(loads)
        rates = sorted({each.rate_per_s for each in measured})
        if len(rates) == 1:
            told = {"turn_s": _turn_s(base, measured[0], seed)}
            source = "meets the median confirm, less the null broker's"
        else:
            told = _nearest(base, measured, seed)
            source = "nearest to p50 and p99 of confirms and deliveries"
        at = ", ".join(f"{rate:g}" for rate in rates)
        found |= {name: (value, f"assay load run at {at}/s: {source}") for name, value in told.items()}
    return found


def _sound(loads: Sequence[Path]) -> list[Measured]:
    """What the runs say, by rate, the confirms first."""
    measured = sorted(read_loads(loads), key=lambda each: each.operation is not LatencyOperation.PUBLISH_TO_ACK)
    for each in measured:
        if each.doubt:
            message = f"a run at {each.rate_per_s:g}/s says nothing of the broker: {each.doubt}"
            raise ModelError(message)
    return measured


def _turn_s(base: BrokerParameters, measured: Measured, seed: int) -> float:
    """The time of a turn with which the model's median is the measured one."""

    def median_s(turn_s: float) -> float:
        return float(np.median(predicted(msgspec.structs.replace(base, turn_s=turn_s), measured, seed)))

    return _bisected(median_s, measured.found.p50_us / 1e6, 0.0, 0.5 / measured.rate_per_s)


def _nearest(base: BrokerParameters, measured: list[Measured], seed: int) -> dict[str, float]:
    """The parameters with which the model is nearest to all that was measured, by squares of the errors' logarithms."""

    def distance(values: dict[str, float]) -> float:
        total = 0.0
        for each in measured:
            found_us = predicted(msgspec.structs.replace(base, **values), each, seed) * 1e6
            for share, value_us, weight in ((0.5, each.found.p50_us, 1.0), (0.99, each.found.p99_us, _TAIL_WEIGHT)):
                total += weight * math.log(float(np.quantile(found_us, share)) / value_us) ** 2
        return total

    names = list(_FROM_RUNS)
    nearest = _descend(
        lambda logs: distance(dict(zip(names, np.exp(logs), strict=True))), np.log([*_FROM_RUNS.values()])
    )
    return dict(zip(names, map(float, np.exp(nearest)), strict=True))


def _descend(distance: Callable[[Floats], float], start: Floats) -> Floats:
    """The simplex of Nelder and Mead (Computer Journal 7, 1965): a valley that runs askew is no hindrance to it."""
    corners = [start, *(start + step for step in np.eye(len(start)) * _FIRST_STEP)]
    simplex = sorted(((distance(corner), corner) for corner in corners), key=lambda pair: pair[0])
    for _ in range(_MAX_TRIES):
        *rest, (most, worst) = simplex
        middle = np.mean([corner for _, corner in rest], axis=0)
        if max(np.ptp([corner for _, corner in simplex], axis=0)) < _LAST_STEP:
            break
        mirrored = middle + (middle - worst)
        new = (distance(mirrored), mirrored)
        if new[0] < simplex[0][0] or new[0] >= rest[-1][0]:
            times = 2.0 if new[0] < simplex[0][0] else 0.5 if new[0] < most else -0.5
            other = middle + times * (middle - worst)
            new = min(new, (distance(other), other), key=lambda pair: pair[0])
        if new[0] < most:
            simplex[-1] = new
        else:
            least = simplex[0][1]
            simplex = [
                simplex[0],
                *((distance(near), near) for near in ((least + corner) / 2 for _, corner in simplex[1:])),
            ]
        simplex.sort(key=lambda pair: pair[0])
    nearest: Floats = simplex[0][1]
    return nearest


def _bisected(ascending: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if ascending(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def write_parameters(path: Path, found: dict[str, tuple[float, str]]) -> None:
    """A parameter file of what differs from the shipped one."""
    entries = {name: {"value": float(f"{value:.4g}"), "source": source} for name, (value, source) in found.items()}
    data = {"schema": MODEL_SCHEMA, "model": MODEL.name, "parameters": entries}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False, width=120), encoding="utf-8")
