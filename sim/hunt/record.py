"""The record of a finding: a file that holds the whole run, so that it can be made again and made smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec
import yaml

from assay.faults.scenario import Scenario, ScenarioError, find_scenario, parse_scenario
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.yaml_text import YamlError, parse_yaml
from assay.sim.hunt.explore import SeedOutcome
from assay.sim.hunt.findings import FindingClass

FINDING_SCHEMA: Final = "assay.finding/1"


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that found something, or that somebody wants to see again."""

    schema: Literal["assay.finding/1"] = FINDING_SCHEMA
    scenario: Scenario
    """With its seed: the run is a function of this, the variations, the mutants and the code."""
    mutants: tuple[str, ...] = ()
    variations: tuple[str, ...] = ()
    """Legal variations of the broker that took part."""
    trace_hash: str = ""
    """Of the run that was recorded; empty: of none."""
    found: tuple[FindingClass, ...] = ()
    message: str = ""
    aims: tuple[str, ...] = ()

    @property
    def applied(self) -> tuple[str, ...]:
        """All changes to the broker, planted or legal."""
        return (*self.mutants, *self.variations)

    @property
    def signature(self) -> frozenset[tuple[str, str]]:
        """(checker, anomaly) of what was found."""
        return frozenset((each.checker, each.anomaly) for each in self.found)


def record_of(outcome: SeedOutcome, mutants: tuple[str, ...]) -> FindingRecord:
    """The record of an outcome that carries its schedule."""
    schedule = outcome.schedule
    if schedule is None:
        message = f"the run of number {outcome.seed} found nothing"
        raise ValueError(message)
    return FindingRecord(
        scenario=schedule.scenario,
        mutants=mutants,
        variations=schedule.variations,
        trace_hash=outcome.trace_hash,
        found=outcome.classes,
        message=outcome.message,
        aims=schedule.aims,
    )


def write_record(path: Path, record: FindingRecord, comment: str) -> None:
    """Write it as YAML, without what is at its default. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(record, comment), encoding="utf-8")


def find_record(name_or_path: str) -> FindingRecord:
    """A record, or a scenario file or the name of a shipped scenario as one of no finding.

    Raises :class:`ScenarioError`.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        return FindingRecord(scenario=find_scenario(name_or_path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise ScenarioError(message) from error
    return parse_record(text, where=name_or_path)


def parse_record(text: str, *, where: str = "record") -> FindingRecord:
    """The text of a record, or of a scenario as one of no finding. Raises :class:`ScenarioError`."""
    try:
        data = parse_yaml(text)
    except YamlError as error:
        message = f"{where} is not YAML: {error}"
        raise ScenarioError(message) from error
    if not isinstance(data, dict) or data.get("schema") != FINDING_SCHEMA:
        return FindingRecord(scenario=parse_scenario(data, where=where))
    scenario = parse_scenario(data.get("scenario"), where=f"{where}: scenario")
    try:
        return msgspec.convert({**data, "scenario": msgspec.to_builtins(scenario)}, described(FindingRecord))
    except msgspec.ValidationError as error:
        message = f"{where}: {error}"
        raise ScenarioError(message) from error


def to_yaml(part: msgspec.Struct, comment: str) -> str:
    """A scenario or a record as a file: only what differs from the defaults, with a comment on top."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    return lines + yaml.safe_dump(_sparse(part), sort_keys=False, allow_unicode=True, width=120)


def write_scenario(path: Path, scenario: Scenario, comment: str) -> None:
    """Write a scenario file, and its folder if need be. Raises :class:`OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(scenario, comment), encoding="utf-8")


def _sparse(part: msgspec.Struct) -> dict[str, object]:
    """Plain data without what is at its default; the schema's name always stays."""
    plain: dict[str, object] = {}
    tag = part.__struct_config__.tag
    if tag is not None and part.__struct_config__.tag_field is not None:
        plain[part.__struct_config__.tag_field] = tag
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        usual = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if value != usual or field.name in ("schema", "kind"):
            plain[field.encode_name] = _plain(value)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return _sparse(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)
