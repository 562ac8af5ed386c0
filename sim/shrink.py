"""Makes a failing scenario small: fewer faults and less workload, as long as the same anomaly comes back.

The run is a function of data (scenario and seed), so shrinking edits the data. A candidate is kept when one of a few
seeds still shows an anomaly of the original kind; its seed then becomes the scenario's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import yaml

from assay.faults.scenario import Fault, QueueWorkload, Scenario, ScenarioError, Settlement, parse_scenario
from assay.sim.explore import run_seed

Signature = frozenset[tuple[str, str]]
MAX_RUNS: Final = 400
SEEDS_PER_CANDIDATE: Final = 5
_FEW_MESSAGES: Final = 15
"""Fewer per producer would make an anomaly depend on chance before the faults are gone."""
replace = msgspec.structs.replace


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest failing scenario found; its ``seed`` is the one that fails."""

    scenario: Scenario
    signature: Signature
    runs: int
    wall_s: float


class _Shrinker:
    def __init__(
        self,
        signature: Signature,
        mutants: tuple[str, ...],
        budget_s: float,
        on_step: Callable[[Scenario, int], None] | None,
    ) -> None:
        self.signature = signature
        self.runs = 0
        self._mutants = mutants
        self._on_step = on_step
        self._deadline = time.perf_counter() + budget_s

    @property
    def exhausted(self) -> bool:
        return self.runs >= MAX_RUNS or time.perf_counter() >= self._deadline

    def accept(self, candidate: Scenario) -> Scenario | None:
        """The candidate with a seed under which the anomaly recurs; None when it does not."""
        try:
            parse_scenario(msgspec.to_builtins(candidate))
        except ScenarioError:
            return None
        for seed in range(candidate.seed, candidate.seed + SEEDS_PER_CANDIDATE):
            if self.exhausted:
                return None
            self.runs += 1
            outcome = run_seed(candidate, seed, self._mutants)
            if outcome.signature & self.signature:
                kept = replace(candidate, seed=seed)
                if self._on_step is not None:
                    self._on_step(kept, self.runs)
                return kept
        return None

    def first_accepted(self, candidates: Iterator[Scenario]) -> Scenario | None:
        for candidate in candidates:
            kept = self.accept(candidate)
            if kept is not None or self.exhausted:
                return kept
        return None


def shrink(
    scenario: Scenario,
    seed: int,
    signature: Signature,
    *,
    mutants: tuple[str, ...] = (),
    budget_s: float = 60.0,
    on_step: Callable[[Scenario, int], None] | None = None,
) -> Shrunk:
    """Shrink until nothing smaller fails in the same way, or the budget of time or runs is used up."""
    started = time.perf_counter()
    shrinker = _Shrinker(signature, mutants, budget_s, on_step)
    smallest = replace(scenario, seed=seed, name=f"{scenario.name}-shrunk", targets=())
    # A shorter run makes every later candidate cheaper, so the messages are cut down once before anything else.
    while (kept := shrinker.first_accepted(_a_quarter(smallest))) is not None:
        smallest = kept
    progressing = True
    while progressing and not shrinker.exhausted:
        progressing = False
        for reduce in (_fewer_faults, _less_workload, _shorter_faults):
            while (kept := shrinker.first_accepted(reduce(smallest))) is not None:
                smallest = kept
                progressing = True
    return Shrunk(scenario=smallest, signature=signature, runs=shrinker.runs, wall_s=time.perf_counter() - started)


def _a_quarter(scenario: Scenario) -> Iterator[Scenario]:
    fewer = tuple(
        replace(workload, messages_per_producer=max(workload.messages_per_producer // 4, _FEW_MESSAGES))
        for workload in scenario.workload
    )
    if all(workload.messages_per_producer > _FEW_MESSAGES for workload in scenario.workload):
        yield replace(scenario, workload=fewer)
        # With the faults in proportion, so that they still fall into the time of the workload.
        sooner = tuple(replace(fault, at_s=round(fault.at_s / 4, 3)) for fault in scenario.faults)
        yield replace(scenario, workload=fewer, faults=sooner)


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    """Without a half, a quarter, ... and finally without single faults."""
    faults = scenario.faults
    size = len(faults)
    while size >= 1:
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
        size //= 2


def _less_workload(scenario: Scenario) -> Iterator[Scenario]:
    if len(scenario.workload) > 1:
        for index in range(len(scenario.workload)):
            yield replace(scenario, workload=scenario.workload[:index] + scenario.workload[index + 1 :])
    for index, workload in enumerate(scenario.workload):
        for smaller in _smaller(workload):
            changed = (*scenario.workload[:index], smaller, *scenario.workload[index + 1 :])
            yield replace(scenario, workload=changed)


def _smaller(workload: QueueWorkload) -> Iterator[QueueWorkload]:
    messages = workload.messages_per_producer
    for smaller in (messages // 4, messages // 2, messages * 3 // 4, messages - 1):
        if 1 <= smaller < messages:
            yield replace(workload, messages_per_producer=smaller)
    for name in ("producers", "consumers_per_group", "keys"):
        if getattr(workload, name) > 1:
            yield replace(workload, **{name: 1})
    if len(workload.groups) > 1:
        yield replace(workload, groups=workload.groups[:1])
    settlement = workload.settlement
    for name in ("nack", "reject", "ignore"):
        if getattr(settlement, name) > 0:
            rest = replace(settlement, **{name: 0.0})
            if rest.ack + rest.nack + rest.reject + rest.ignore > 0:
                yield replace(workload, settlement=rest)
    if settlement != Settlement() and settlement.ack > 0:
        yield replace(workload, settlement=Settlement())
    if workload.process_s != (0.0, 0.0):
        yield replace(workload, process_s=(0.0, 0.0))
    if workload.payload_bytes > 0:
        yield replace(workload, payload_bytes=0)


def _shorter_faults(scenario: Scenario) -> Iterator[Scenario]:
    for index, fault in enumerate(scenario.faults):
        for shorter in _shorter(fault):
            yield replace(scenario, faults=(*scenario.faults[:index], shorter, *scenario.faults[index + 1 :]))


def _shorter(fault: Fault) -> Iterator[Fault]:
    if fault.for_s > 0.1:
        yield replace(fault, for_s=round(fault.for_s / 2, 1))
    if fault.at_s > 0.1:
        yield replace(fault, at_s=round(fault.at_s / 2, 1))


def to_yaml(scenario: Scenario, comment: str) -> str:
    """The scenario as a file: only what differs from the defaults, with a comment on top."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + yaml.safe_dump(_sparse(scenario), sort_keys=False, allow_unicode=True)


def write_scenario(path: Path, scenario: Scenario, comment: str) -> None:
    """Write :func:`to_yaml` to a file, and its folder if need be. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(scenario, comment), encoding="utf-8")


def _sparse(part: msgspec.Struct) -> dict[str, object]:
    """Plain data without what is at its default; the schema's name always stays."""
    plain: dict[str, object] = {}
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if value != field.default or field.name == "schema":
            plain[field.encode_name] = _plain(value)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return _sparse(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)
