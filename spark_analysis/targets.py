"""The figures that runs are judged by (``targets.yaml``): each with its source and the conditions of judgement.

Three answers exist: met, missed, and *not measured*. The last is :attr:`Verdict.UNKNOWN` with the reason, whatever the
figure looks like: a run that offered 500 messages a second says nothing about 100 000.

Every target says which samples it judges, and what at a time: a figure of one queue is the worst of all queues, never
their sum. A figure that is known within bounds is judged by both ends (:mod:`assay.reference_broker.trace.judgement`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Final, Literal

import msgspec

from assay.reference_broker.trace.integrity import why
from assay.reference_broker.trace.judgement import HOLDS, Bounds, explain, machine_delay, verdict_within, without_delay
from assay.reference_broker.trace.results import GRAVITY, Check, Verdict
from assay.reference_broker.trace.schema import LatencyOperation
from assay.reference_broker.trace.yaml_text import YamlError, parse_yaml

TARGETS_SCHEMA: Literal["assay.targets/1"] = "assay.targets/1"
SATURATED_BELOW: Final = 0.95
"""A run that completes less than this share of what was due has reached a ceiling, whoever's it is."""

Relation = Literal["<", "<=", ">", ">=", "=="]


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


class Selection(_Part, frozen=True, kw_only=True):
    """Which samples a target judges, and what has a figure of its own; the worst figure decides."""

    samples: Literal["any", "queue", "pubsub"] = "any"
    """``queue``: only what went through a durable queue; ``pubsub``: only what did not."""
    workloads: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    """Names; empty = all."""
    per: Literal["workload", "queue", "run"] = "workload"
    """``run``: all that was selected of one run together, which only rates may be."""

    def describe(self) -> str:
        """``of a queue, protocol mqtt5``."""
        kinds = {"any": "", "queue": "of a queue", "pubsub": "of plain publish and subscribe"}
        named = (("workload", self.workloads), ("queue", self.queues), ("protocol", self.protocols))
        parts = [kinds[self.samples], *(f"{name} {' or '.join(values)}" for name, values in named if values)]
        return ", ".join(part for part in parts if part)


class Target(_Part, frozen=True, kw_only=True):
    """One figure."""

    name: str
    metric: Metric
    operation: LatencyOperation | None = None
    judges: Selection = Selection()
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
    """What was measured of one operation of one subject in the steady phase."""

    operation: str
    run_id: str = ""
    workload: str = ""
    queue: str = ""
    protocol: str = ""
    count: int
    """Samples that were answered."""
    missing: int = 0
    """Samples that were due and never answered."""
    p99_us: float | None
    """Of the answered."""
    p99_low_us: float = 0.0
    p99_high_us: float | None = None
    """Of all that was due; None = no bound."""
    late_us: float | None = None
    """How much later than due the generator offered, 99th percentile."""
    offered_per_s: float | None
    completed_per_s: float | None

    def subject(self) -> str:
        """``workload tasks, queue q1, mqtt5 [load/smoke]``."""
        parts = (
            f"workload {self.workload}" if self.workload else "",
            f"queue {self.queue}" if self.queue else "",
            self.protocol,
        )
        return " ".join([", ".join(part for part in parts if part), f"[{self.run_id}]"]).strip()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run folder offers to be judged."""

    figures: dict[Selection, list[OperationFigures]] = {}
    """By what was selected; one for each subject."""
    generator_ceiling_per_s: float | None = None
    """What the load generator reaches with a broker that does nothing; the least of the folder's load runs."""
    null_p99_us: dict[tuple[str, str, str], float] = {}
    """By run, workload and operation: what that took with a broker that does nothing, in the same run."""
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
    mixed = [
        target.name
        for target in targets.targets
        if target.metric is Metric.LATENCY_P99_MS and target.judges.per == "run"
    ]
    nowhere = [
        target.name for target in targets.targets if target.judges.per == "queue" and target.judges.samples == "pubsub"
    ]
    if repeated or incomplete or mixed or nowhere:
        problems = [f"targets: {name!r} occurs twice" for name in repeated]
        problems += [
            f"targets: {name!r} judges a percentile per run: one of a mix of workloads says nothing of any of them"
            for name in mixed
        ]
        problems += [f"targets: {name!r} judges queues of what goes through no queue" for name in nowhere]
        problems += [f"targets: {name!r} needs an operation" for name in incomplete]
        message = f"{where}: " + "; ".join(problems)
        raise TargetsError(message)
    return targets


def load_targets(path: Path | None = None) -> Targets:
    """The targets of a file, or those of the seeds. Raises :class:`TargetsError`."""
    if path is None:
        bundled = resources.files("assay.spark_analysis") / "targets.yaml"
        return parse_targets(bundled.read_text(encoding="utf-8"), where="targets.yaml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the targets {path}: {why(error)}"
        raise TargetsError(message) from error
    return parse_targets(text, where=str(path))


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The figure, its verdict, why it is ``unknown`` where it is, and whose figure it is."""

    value: float | None
    verdict: Verdict
    reason: str = ""
    subject: str = ""


def judge(target: Target, measured: Measured) -> Check:
    """One figure against its target; of several subjects the gravest answer, among these the worst figure."""
    answers = _JUDGES[target.metric](target, measured)
    worst = max(answers, key=lambda answer: (GRAVITY.index(answer.verdict), _badness(target, answer.value)))
    among = f"worst of {len(answers)}: " if len(answers) > 1 else ""
    return Check(
        name=target.name,
        value=worst.value,
        unit=target.unit,
        bound=target.bound,
        relation=target.relation,
        verdict=worst.verdict,
        source=target.source,
        subject=among + worst.subject if worst.subject else "",
        reason=worst.reason if worst.verdict is Verdict.UNKNOWN else "",
    )


def judge_all(targets: Targets, measured: Measured) -> list[Check]:
    """Every target, in the order of the file."""
    return [judge(target, measured) for target in targets.targets]


def selections(targets: Targets) -> list[Selection]:
    """What must be measured, each once."""
    return list(dict.fromkeys(target.judges for target in targets.targets if target.operation is not None))


def _badness(target: Target, value: float | None) -> float:
    if value is None:
        return math.inf
    return -value if target.relation in {">", ">="} else value


def _unknown(reason: str, value: float | None = None, subject: str = "") -> _Answer:
    return _Answer(value=value, verdict=Verdict.UNKNOWN, reason=reason, subject=subject)


def _each(
    target: Target, measured: Measured, judge_one: Callable[[Target, OperationFigures, Measured], _Answer]
) -> list[_Answer]:
    figures = [one for one in measured.figures.get(target.judges, []) if one.operation == str(target.operation)]
    if not figures:
        return [_unknown(f"no {target.operation} samples {target.judges.describe()}".strip() + " in a steady phase")]
    return [_judge_known(target, one, measured, judge_one) for one in figures]


def _judge_known(
    target: Target,
    one: OperationFigures,
    measured: Measured,
    judge_one: Callable[[Target, OperationFigures, Measured], _Answer],
) -> _Answer:
    answer = judge_one(target, one, measured)
    if one.count < target.conditions.samples_min:
        few = f"{one.count} of {one.count + one.missing} due were answered, {target.conditions.samples_min} needed"
        return _unknown(few, answer.value, one.subject())
    return answer


def _judge_latency(target: Target, one: OperationFigures, measured: Measured) -> _Answer:
    if one.p99_us is None:
        return _unknown(f"none of {one.missing} due were answered", None, one.subject())
    late_ms = max(0.0, (one.late_us or 0.0) / 1000)
    high = math.inf if one.p99_high_us is None else one.p99_high_us / 1000
    null_ms = measured.null_p99_us.get((one.run_id, one.workload, one.operation), 0.0) / 1000
    bounds = without_delay(
        Bounds(low=one.p99_low_us / 1000, high=high), max(late_ms, machine_delay(null_ms, target.bound))
    )
    return _Answer(
        value=one.p99_us / 1000,
        verdict=verdict_within(target.relation, target.bound, bounds),
        reason=explain(bounds, "ms", count=one.count, missing=one.missing, delay=late_ms, null=null_ms),
        subject=one.subject(),
    )


def _judge_throughput(target: Target, one: OperationFigures, measured: Measured) -> _Answer:
    if one.completed_per_s is None or one.offered_per_s is None:
        return _unknown("all was due at one moment, or nothing was answered", one.completed_per_s, one.subject())
    value = one.completed_per_s
    held = HOLDS[target.relation](value, target.bound)
    if target.conditions.load == "saturating" and not held:
        if value >= SATURATED_BELOW * one.offered_per_s:
            reason = f"the run offered only {one.offered_per_s:.0f}/s and the broker kept up"
            return _unknown(reason, value, one.subject())
        ceiling = measured.generator_ceiling_per_s
        if ceiling is None or ceiling < target.bound:
            known = "unknown" if ceiling is None else f"{ceiling:.0f}/s"
            return _unknown(f"the ceiling of the load generator is {known}", value, one.subject())
    return _Answer(value=value, verdict=Verdict.PASS if held else Verdict.FAIL, subject=one.subject())


def _judge_loss(target: Target, measured: Measured) -> list[_Answer]:
    if measured.messages_lost is None:
        return [_unknown("no history")]
    # Losses that were seen stay seen; only "none" needs the proof that everything was read.
    if target.conditions.drained and not measured.histories_drained and measured.messages_lost == 0:
        return [_unknown("a history is damaged or was not drained to the end", 0.0)]
    value = float(measured.messages_lost)
    held = HOLDS[target.relation](value, target.bound)
    return [_Answer(value=value, verdict=Verdict.PASS if held else Verdict.FAIL)]


def _judge_none(target: Target, measured: Measured) -> list[_Answer]:
    del measured
    return [_unknown(target.note or "this bench does not measure it")]


_JUDGES: Final[dict[Metric, Callable[[Target, Measured], list[_Answer]]]] = {
    Metric.LATENCY_P99_MS: lambda target, measured: _each(target, measured, _judge_latency),
    Metric.THROUGHPUT_PER_S: lambda target, measured: _each(target, measured, _judge_throughput),
    Metric.MESSAGES_LOST: _judge_loss,
    Metric.NONE: _judge_none,
}
