"""Parameters of the broker model from benches of this machine.

What each figure says, in times of one message (all medians of a bench's rounds):

    append      1 / enqueue_batch                  batches of 1 000, so that turns cost nothing
    life        1 / life                           enqueue, deliver, ack in turns of 100
    turn        1 / life_single - 1 / life         the same, each message a turn of its own
    wire        1 / per_cpu_s of the sockets       the broker's own processor time, everything included
    fsync       raw sync of a group                assay bench storage, group_commit.handover.raw
    hand-over   to the thread and back             assay bench storage, group_commit.handover

What dispatch, encoding, parsing and settling take of the rest is divided as ``_SHARES`` says. Where an open-loop run at
a low rate is given, the time of a turn is set so that the model meets its median: sockets are no part of the benches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import yaml

from assay.reference_broker.trace.integrity import READ_ERRORS
from assay.reference_broker.trace.results import RunResult, read_result
from assay.reference_broker.trace.schema import LatencyOperation
from assay.sim.models.broker import MODEL, BrokerParameters, Durability, predicted, read_load
from assay.sim.models.model import MODEL_SCHEMA, ModelError, load_parameters

_SHARES: Final = {"dispatch_s": 0.4, "settle_s": 0.6}
"""Of what an engine's message takes beyond its append."""
_WIRE_SHARES: Final = {"parse_s": 0.5, "encode_s": 0.5}
"""Of what sockets add to the engine's time."""
_PER_CPU: Final = {Durability.INTERVAL: "reference/interval", Durability.FSYNC: "reference/fsync"}
_ROUNDS: Final = 20
_FITTED_MESSAGES: Final = 4_000


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


def fit(storage: Path, queue: Path, load: Path | None, seed: int) -> dict[str, tuple[float, str]]:
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
    if load is not None:
        values = {name: value for name, (value, _) in found.items()}
        base, _ = load_parameters(MODEL, None, {**values, "messages": _FITTED_MESSAGES})
        turn_s, rate = _turn_s(base, load, seed)
        found["turn_s"] = (turn_s, f"assay load run at {rate:g}/s: meets its median, less the null broker's")
    return found


def _turn_s(base: BrokerParameters, load: Path, seed: int) -> tuple[float, float]:
    """The time of a turn with which the model's median confirm is the measured one; and the rate of that run."""
    measured = next(each for each in read_load(load) if each.operation is LatencyOperation.PUBLISH_TO_ACK)
    if measured.doubt:
        message = f"{load} says nothing of the broker: {measured.doubt}"
        raise ModelError(message)

    def median_s(turn_s: float) -> float:
        return float(np.median(predicted(msgspec.structs.replace(base, turn_s=turn_s), measured, seed)))

    return _bisected(median_s, measured.found.p50_us / 1e6, 0.0, 0.5 / measured.rate_per_s), measured.rate_per_s


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
