"""A broker with one fault fails the few cases about it; the others are blocked by those, or say nothing of it.

The faults are planted on the wire (``meddling_proxy``): neither the broker's code nor the suite's knows of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from meddling_proxy import (
    DupSet,
    Fault,
    KeptBack,
    MeddlingProxy,
    NoSessions5,
    RetainClear,
    ToldToAll,
)

from assay.conformance.case import Case, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.targets import Endpoint, RunningTarget, hosted_target, probe
from assay.conformance.wire import PacketType
from assay.reference_broker.broker import Broker
from assay.reference_broker.trace.conformance import CaseVerdict

AREAS = ("ping", "publish", "retained", "session", "subscribe")
PATIENCE_S = 1.0
LONGEST_S = 5.0
"""Cases with a longer limit let time pass, which a short patience would not bear."""
CASES = [
    case
    for case in load_cases().values()
    if case.area in AREAS and case.spec != "queue" and not case.is_private and case.limit_s <= LONGEST_S
]


async def _judge(fault: Fault, cases: list[Case] = CASES) -> list[Outcome]:
    async with (
        Broker() as broker,
        MeddlingProxy(Endpoint(host=broker.host, port=broker.port), fault).running() as place,
    ):
        target = hosted_target(place.host, place.port)
        capabilities = await asyncio.to_thread(probe, target, place)
        engine = Engine(RunningTarget(target, place), capabilities, RunOptions(patience_s=PATIENCE_S, concurrency=48))
        return await engine.run_all(cases, lambda _outcome: None)


def failed(outcomes: list[Outcome]) -> set[str]:
    return {outcome.result.case for outcome in outcomes if outcome.result.verdict is CaseVerdict.FAIL}


@pytest.mark.parametrize(
    ("fault", "most_failures", "least_blocked", "about"),
    [
        (NoSessions5(), 3, 8, {"MQTT-3.2.2-3"}),
        (RetainClear(), 7, 0, {"MQTT-3.3.1-8", "MQTT-3.3.1-9", "MQTT-3.3.1-13"}),
        (DupSet(), 4, 0, {"MQTT-3.3.1-2"}),
        (ToldToAll(), 9, 0, {"MQTT-3.3.2-3"}),
        (KeptBack(PacketType.SUBACK), 6, 80, {"MQTT-3.8.4-1"}),
        (KeptBack(PacketType.PUBLISH), 8, 50, {"MQTT-4.5.0-1"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fault) else "",
)
def test_one_fault_gives_few_failures(fault: Fault, most_failures: int, least_blocked: int, about: set[str]) -> None:
    outcomes = asyncio.run(_judge(fault))
    counts = Counter(outcome.result.verdict for outcome in outcomes)
    shown = {
        outcome.result.case: outcome.result.detail for outcome in outcomes if outcome.result.case in failed(outcomes)
    }
    assert counts[CaseVerdict.ERROR] == 0, [
        outcome.result for outcome in outcomes if outcome.result.verdict is CaseVerdict.ERROR
    ]
    assert len(shown) <= most_failures, (counts, shown)
    assert counts[CaseVerdict.BLOCKED] >= least_blocked, (counts, shown)
    cited = {clause for outcome in outcomes if outcome.result.case in shown for clause in outcome.result.clauses}
    assert cited & about, (cited, shown)
    roots = {outcome.result.blocked_by for outcome in outcomes if outcome.result.verdict is CaseVerdict.BLOCKED}
    assert roots <= set(shown)


@pytest.mark.parametrize("spec", ["mqtt311", "mqtt5"])
def test_who_takes_long_to_subscribe_to_thousands_of_filters_is_not_accused(spec: str) -> None:
    """Artemis took half a minute for each five hundred on a busy machine, and was failed for the SUBACK."""
    case = load_cases()[f"{spec}/slow-clients/overlapping-filters-of-one-client-delay-nobody"]
    (outcome,) = asyncio.run(_judge(KeptBack(PacketType.SUBACK), [case]))
    assert outcome.result.verdict is CaseVerdict.UNSUPPORTED, outcome.result.detail
    assert "0 of 4096 overlapping filters" in outcome.result.detail
