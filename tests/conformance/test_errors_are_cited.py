"""What the broker logs while the suite makes every mistake of a client: a statement of the right version."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from assay.conformance.adapter import reference_broker_endpoint
from assay.conformance.case import Case, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.registry import load_statements
from assay.conformance.targets import RunningTarget, load_target, probe
from assay.reference_broker.server import log_lines
from assay.reference_broker.trace.conformance import CaseVerdict

_FAULTS = re.compile(r"malformed|utf8|refused|reserved|must-be|protocol-error|twice")


def _cases(spec: str) -> list[Case]:
    return [
        case
        for case in load_cases().values()
        if case.spec == spec and not case.requires and case.judged_on == "reference" and _FAULTS.search(case.id)
    ]


@pytest.mark.parametrize("spec", ["mqtt311", "mqtt5"])
def test_the_log_cites_a_statement_for_every_connection_that_broke_a_rule(
    spec: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MOST_OF_A_KIND", 10_000)
    monkeypatch.setattr(log_lines, "MOST_LINES", 10_000)
    cases = _cases(spec)
    assert len(cases) > 15
    caplog.set_level(logging.INFO, logger="assay.broker")
    target = load_target("reference")
    with reference_broker_endpoint() as endpoint:
        engine = Engine(RunningTarget(target, endpoint), probe(target, endpoint), RunOptions())
        caplog.clear()
        outcomes = asyncio.run(engine.run_all(cases, lambda _outcome: None))
    wrong = [outcome.result.case for outcome in outcomes if outcome.result.verdict is CaseVerdict.FAIL]
    assert not wrong
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) >= len(cases)
    known = load_statements(spec)
    either = {*load_statements("mqtt311"), *load_statements("mqtt5")}
    cited = set()
    for line in lines:
        found = re.search(r"\[(MQTT-[\d.-]+)\]$", line)
        assert found is not None, line
        # Whoever breaks a rule before CONNECT has not said which version it speaks.
        versionless = "(no client id)" in line and "the remaining length" in line
        assert found.group(1) in (either if versionless else known), line
        cited.add(found.group(1))
    assert len(cited) >= 10, cited
