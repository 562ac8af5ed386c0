"""A finding as a test that fails while the bug is there."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from assay.reference_broker.trace.schema import HistoryEvent
from assay.sim.hunt.explore import SeedOutcome, run_schedule
from assay.sim.hunt.record import FindingRecord, parse_record, to_yaml
from assay.sim.hunt.schedule import Schedule

_TEST: Final = '''"""{message}

Found by `assay sim explore`, shrunk to {faults} faults and {operations} operations.
It fails while the bug is there.{planted}
"""

from assay.sim.hunt.repro import outcome_of

RUN = """\\
{record}"""


def test_{name}() -> None:
    outcome = outcome_of(RUN)
    assert not outcome.classes, outcome.message
'''
_PLANTED: Final = "\nThe bug is planted: without `mutants` the test passes."


def outcome_of(text: str) -> SeedOutcome:
    """Make the run of a record's text again. Raises :class:`ScenarioError`."""
    return rerun(parse_record(text))[0]


def rerun(record: FindingRecord) -> tuple[SeedOutcome, list[HistoryEvent]]:
    """Make the run of a record again; with its history."""
    scenario = record.scenario
    return run_schedule(Schedule(number=scenario.seed, scenario=scenario, variations=record.variations), record.mutants)


def pytest_file(record: FindingRecord, operations: int) -> str:
    """A test file of its own. It needs nothing but an installed Assay."""
    name = re.sub(r"\W+", "_", record.scenario.name).strip("_").lower()
    return _TEST.format(
        message=_quoted(record.message.split("\n")[0]).rstrip(".") + ".",
        faults=len(record.scenario.faults),
        operations=operations,
        planted=_PLANTED if record.mutants else "",
        record=_quoted(to_yaml(msgspec.structs.replace(record, trace_hash=""), "")),
        name=name,
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
