"""The figures that runs are judged by (``targets.yaml``): each with its source and the conditions of judgement.

Three answers exist: met, missed, and *not measured*. The last is :attr:`Verdict.UNKNOWN` with the reason, whatever the
figure looks like: a run that offered 500 messages a second says nothing about 100 000.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Final, Literal

import msgspec

from reference_broker.trace.results import Check, Verdict
from reference_broker.trace.schema import LatencyOperation
from reference_broker.trace.yaml_text import YamlError, parse_yaml

TARGETS_SCHEMA: Literal["assay.targets/1"] = "assay.targets/1"
SATURATED_BELOW: Final = 0.95
"""A run that completes less than this share of what was due has reached a ceiling, whoever's it is."""
LATENESS_P99_MAX_MS: Final = 1.0
"""A generator that sent later than this (99th percentile) cannot accuse a broker of latency."""
UNFINISHED_SHARE_MAX: Final = 0.01
"""With more samples than this lost or refused, the 99th percentile of the others says nothing."""

Relation = Literal["<", "<=", ">", ">=", "=="]

_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class TargetsError(ValueError):
    """A targets file is wrong; the text names the file and the key's path."""


class Metric(StrEnum):
    """What a target bounds."""

    LATENCY_P99_MS = "latency_p99_ms"
    THROUGHPUT_PER_S = "throughput_per_s"
    MESSAGES_LOST = "messages_lost"
    NONE = "none"
    """Nothing that this bench measures; ``note`` says what it would take."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Conditions(_Part, frozen=True, kw_only=True):
    """When a run may be judged."""

    samples_min: int = 1
    """Fewer samples than this prove nothing: a p99 needs at least a hundred, better a thousand."""
    load: Literal["any", "saturating"] = "any"
    """``saturating``: a miss counts only when the broker, and not the generator, could not keep up."""
    drained: bool = False
    """Every history must have been read until empty, without damage."""


class Target(_Part, frozen=True, kw_only=True):
    """One figure."""

    name: str
    metric: Metric
    operation: LatencyOperation | None = None
    relation: Relation
    bound: float
    unit: str
    source: str
    conditions: Conditions = Conditions()
    note: str = ""


class Targets(_Part, frozen=True, kw_only=True):
    """A targets file."""

    schema: Literal["assay.targets/1"]
    targets: tuple[Target, ...]


class OperationFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a load run measured of one operation in its steady phase."""

    count: int
    """Samples that are ok."""
    unfinished: int = 0
    """Samples that were lost or refused."""
    p99_us: float | None
    lateness_p99_ms: float | None = None
    """How much later than due the generator sent."""
    offered_per_s: float | None
    completed_per_s: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run folder offers to be judged."""

    operations: dict[str, OperationFigures] = {}
    """The worst of each operation over the load runs of the folder, by its name."""
    generator_ceiling_per_s: float | None = None
    """What the load generator reaches with a broker that does nothing; the least of the folder's load runs."""
    messages_lost: int | None = None
    """``None`` without a history."""
    histories_drained: bool = False


def parse_targets(text: str, *, where: str) -> Targets:
    """Check a targets file. Raises :class:`TargetsError`."""
    try:
        targets = msgspec.convert(parse_yaml(text), Targets)
    except (msgspec.ValidationError, YamlError) as error:
        message = f"{where}: {error}"
        raise TargetsError(message) from error
    names = [target.name for target in targets.targets]
    repeated = sorted({name for name in names if names.count(name) > 1})
    incomplete = [
        target.name
        for target in targets.targets
        if target.metric in {Metric.LATENCY_P99_MS, Metric.THROUGHPUT_PER_S} and target.operation is None
    ]
    if repeated or incomplete:
        problems = [f"targets: {name!r} occurs twice" for name in repeated]
        problems += [f"targets: {name!r} needs an operation" for name in incomplete]
        message = f"{where}: " + "; ".join(problems)
        raise TargetsError(message)
    return targets


def load_targets(path: Path | None = None) -> Targets:
    """The targets of a file, or those of the seeds. Raises :class:`TargetsError`."""
    if path is None:
        bundled = resources.files("spark_analysis") / "targets.yaml"
        return parse_targets(bundled.read_text(encoding="utf-8"), where="targets.yaml")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot read the targets {path}: {error.strerror}"
        raise TargetsError(message) from error
    return parse_targets(text, where=str(path))


def judge(target: Target, measured: Measured) -> Check:
    """One figure against its target."""
    value, why_not = _JUDGES[target.metric](target, measured)
    if why_not:
        verdict = Verdict.UNKNOWN
    else:
        assert value is not None
        verdict = Verdict.PASS if _HOLDS[target.relation](value, target.bound) else Verdict.FAIL
    return Check(
        name=target.name,
        value=value,
        unit=target.unit,
        bound=target.bound,
        relation=target.relation,
        verdict=verdict,
        source=f"{target.source}; not judged: {why_not}" if why_not else target.source,
    )


def judge_all(targets: Targets, measured: Measured) -> list[Check]:
    """Every target, in the order of the file."""
    return [judge(target, measured) for target in targets.targets]


_Answer = tuple[float | None, str]
"""The figure, and why it may not be judged (empty when it may)."""


def _figures(target: Target, measured: Measured) -> OperationFigures | None:
    return measured.operations.get(str(target.operation))


def _judge_latency(target: Target, measured: Measured) -> _Answer:
    figures = _figures(target, measured)
    if figures is None or figures.p99_us is None:
        return None, f"no {target.operation} samples of a steady phase"
    value = figures.p99_us / 1000
    total = figures.count + figures.unfinished
    if figures.unfinished > UNFINISHED_SHARE_MAX * total:
        return value, f"{figures.unfinished} of {total} samples never completed"
    if too_few := _too_few(target, figures):
        return value, too_few
    # A bound that is met stands: the generator's delay is part of the latency.
    late = figures.lateness_p99_ms is not None and figures.lateness_p99_ms > LATENESS_P99_MAX_MS
    if late and not _HOLDS[target.relation](value, target.bound):
        return value, f"the generator itself was {figures.lateness_p99_ms:.1f} ms late (p99)"
    return value, ""


def _judge_throughput(target: Target, measured: Measured) -> _Answer:
    figures = _figures(target, measured)
    if figures is None or figures.completed_per_s is None or figures.offered_per_s is None:
        return None, f"no {target.operation} samples of a steady phase"
    value = figures.completed_per_s
    if too_few := _too_few(target, figures):
        return value, too_few
    if target.conditions.load == "saturating" and value < target.bound:
        if value >= SATURATED_BELOW * figures.offered_per_s:
            return value, f"the run offered only {figures.offered_per_s:.0f}/s and the broker kept up"
        ceiling = measured.generator_ceiling_per_s
        if ceiling is None or ceiling < target.bound:
            known = "unknown" if ceiling is None else f"{ceiling:.0f}/s"
            return value, f"the ceiling of the load generator is {known}"
    return value, ""


def _judge_loss(target: Target, measured: Measured) -> _Answer:
    if measured.messages_lost is None:
        return None, "no history"
    # Losses that were seen stay seen; only "none" needs the proof that everything was read.
    if target.conditions.drained and not measured.histories_drained and measured.messages_lost == 0:
        return 0.0, "a history is damaged or was not drained to the end"
    return float(measured.messages_lost), ""


def _judge_none(target: Target, measured: Measured) -> _Answer:
    del measured
    return None, target.note or "this bench does not measure it"


def _too_few(target: Target, figures: OperationFigures) -> str:
    least = target.conditions.samples_min
    return f"{figures.count} samples, {least} needed" if figures.count < least else ""


_JUDGES: Final[dict[Metric, Callable[[Target, Measured], _Answer]]] = {
    Metric.LATENCY_P99_MS: _judge_latency,
    Metric.THROUGHPUT_PER_S: _judge_throughput,
    Metric.MESSAGES_LOST: _judge_loss,
    Metric.NONE: _judge_none,
}
