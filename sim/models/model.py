"""What a model is: parameters with their source, an outcome, and the rows that judge it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.results import Band, Check, Series, Verdict, worst
from assay.reference_broker.trace.schema import LatencyOperation
from assay.reference_broker.trace.yaml_text import YamlError, read_yaml
from assay.sim.kernel import substream

MODEL_SCHEMA: Literal["assay.model/1"] = "assay.model/1"
TOLERANCE_PERCENT = 2.0
"""How far a building block may be from its closed form."""
_SURE = 3.0
"""Standard errors beyond which a difference is none of chance."""
Floats = npt.NDArray[np.float64]


class ModelError(ValueError):
    """Parameters are wrong, or a limit was reached; the text says which and what to do."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of parameter sets and their parts."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a model's table: a figure, and the interval that it must lie in."""

    what: str
    value: float
    unit: str
    low: float
    high: float
    method: str
    """Where the expectation is from: closed form, exact method, measurement, published figure."""
    reference: float | None = None
    """The expectation, where it is one number."""
    standard_error: float | None = None
    """Of ``value``: how much another seed would change it."""
    doubt: str = ""
    """Why the expectation itself cannot be trusted; then nothing is claimed."""

    @property
    def error_percent(self) -> float | None:
        """How far the figure is from its reference."""
        if self.reference is None or not self.reference:
            return None
        return 100 * (self.value / self.reference - 1)

    @property
    def bound(self) -> str:
        """For people."""
        if self.reference is not None and self.reference:
            return f"within {100 * (self.high / self.reference - 1):g} %"
        if math.isinf(self.high):
            return f">= {self.low:g}"
        return f"<= {self.high:g}" if math.isinf(self.low) else f"{self.low:g} to {self.high:g}"

    @property
    def unclear(self) -> str:
        """Why no claim is made; empty when one is: chance alone may be what puts a figure out of its bounds."""
        if self.doubt or math.isnan(self.value):
            return self.doubt or "no figure"
        if self.low <= self.value <= self.high or not self.standard_error or self.reference is None:
            return ""
        if abs(self.value - self.reference) > _SURE * self.standard_error:
            return ""
        return f"known to {self.standard_error:.2g} {self.unit} only: ask for more customers"

    @property
    def verdict(self) -> Verdict:
        """``unknown`` when the figure is no number or too uncertain, or the expectation in doubt."""
        if self.unclear:
            return Verdict.UNKNOWN
        return Verdict.PASS if self.low <= self.value <= self.high else Verdict.FAIL

    def check(self, model: str) -> Check:
        """The row in the schema of all verdicts: the error against its bound, or the figure against the nearer end."""
        if (error := self.error_percent) is not None and self.reference:
            value, unit, bound = abs(error), "%", 100 * (self.high / self.reference - 1)
            subject = f"model {self.value:.6g} {self.unit}, expected {self.reference:.6g} {self.unit}"
            return Check(
                name=f"{model}: {self.what}",
                value=round(value, 4),
                unit=unit,
                bound=round(bound, 6),
                relation="<=",
                verdict=self.verdict,
                source=self.method,
                subject=subject,
                reason=self.unclear,
            )
        above = math.isinf(self.low) or abs(self.high - self.value) < abs(self.value - self.low)
        return Check(
            name=f"{model}: {self.what}",
            value=None if math.isnan(self.value) else self.value,
            unit=self.unit,
            bound=self.high if above else self.low,
            relation="<=" if above else ">=",
            verdict=self.verdict,
            source=self.method,
            subject=f"expected {self.bound} {self.unit}".rstrip(),
        )


def within(
    what: str,
    value: float,
    reference: float,
    unit: str,
    method: str,
    *,
    percent: float = TOLERANCE_PERCENT,
    standard_error: float | None = None,
) -> Row:
    """A figure that may differ from its reference by so many percent."""
    spread = abs(reference) * percent / 100
    return Row(
        what=what,
        value=value,
        unit=unit,
        low=reference - spread,
        high=reference + spread,
        method=method,
        reference=reference,
        standard_error=standard_error,
    )


def between(what: str, value: float, low: float, high: float, unit: str, method: str) -> Row:
    """A figure that must lie in an interval, ends included; ``math.inf`` leaves an end open."""
    return Row(what=what, value=value, unit=unit, low=low, high=high, method=method)


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind as columns: rows of ``samples.parquet``."""

    workload: str
    operation: LatencyOperation
    intended_s: Floats
    completed_s: Floats
    phase: str = "steady"
    status: str = "ok"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a model found."""

    rows: list[Row]
    samples: list[Latencies] = []
    series: list[Series] = []
    x_axis: str = ""
    """What ``x_s`` of the series is; empty: seconds."""
    bands: list[Band] = []
    metrics: dict[str, float | int | str] = {}
    answers: list[str] = []
    """Sentences for people: what follows from it."""

    @property
    def verdict(self) -> Verdict:
        return worst([row.verdict for row in self.rows])


Progress = Callable[[str, float], None]
"""Gets what is being computed and the share that is done, 0 to 1."""
P = TypeVar("P", bound=Part)


class Model(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """A model by its name."""

    name: str
    what: str
    parameters: type[P]
    run: Callable[[P, int, Progress], Outcome]
    """Parameters, seed, progress -> outcome. Raises :class:`ModelError`."""
    compare: Callable[[P, int, list[Path], Progress], Outcome] | None = None
    """Likewise, beside the measurements in these files or folders; None where there is nothing to measure."""


class Parameter(Part, frozen=True, kw_only=True):
    """A value of a parameter file."""

    value: Any
    source: str = msgspec.field(name="source")


class ParameterFile(Part, frozen=True, kw_only=True):
    """``parameters/<model>.yaml``."""

    schema: Literal["assay.model/1"]
    model: str
    parameters: dict[str, Parameter]


def shipped_parameters(model: str) -> Traversable:
    """The parameter file that comes with a model."""
    return files("assay.sim.models").joinpath("parameters", f"{model}.yaml")


def load_parameters(
    model: Model[P], path: Path | Traversable | None = None, overrides: Mapping[str, Any] | None = None
) -> tuple[P, dict[str, str]]:
    """Parameters of a model and the source of each. Raises :class:`ModelError` naming the key.

    A file needs to name only what differs from the shipped one; ``overrides`` go above both.
    """
    entries: dict[str, Parameter] = {}
    for place in (shipped_parameters(model.name), path):
        if place is None:
            continue
        try:
            found = msgspec.convert(read_yaml(place), described(ParameterFile))
        except (OSError, YamlError, msgspec.ValidationError) as error:
            message = f"{place}: {error}"
            raise ModelError(message) from error
        if found.model != model.name:
            message = f"{place}: holds parameters of {found.model!r}, not of {model.name!r}"
            raise ModelError(message)
        if unsourced := [name for name, entry in found.parameters.items() if not entry.source.strip()]:
            message = f"{place}: no source is given for {', '.join(unsourced)}"
            raise ModelError(message)
        entries |= found.parameters
    for name, value in (overrides or {}).items():
        entries[name] = Parameter(value=value, source="command line")
    values = {name: entry.value for name, entry in entries.items()}
    try:
        return msgspec.convert(values, described(model.parameters)), {
            name: entry.source for name, entry in entries.items()
        }
    except msgspec.ValidationError as error:
        message = f"parameters of {model.name}: {error}"
        raise ModelError(message) from error


def generator(seed: int, name: str) -> np.random.Generator:
    """A stream of numpy that depends on the seed and the name only; as :func:`assay.sim.kernel.substream`."""
    return np.random.default_rng(substream(seed, name).getrandbits(64))
