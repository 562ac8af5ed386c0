"""Quirks are proved by the suite: the cases they name fail, and the others pass as without them."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from assay.conformance.case import Case, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.targets import RunningTarget, load_target, probe, running
from assay.conformance.targets.model import Endpoint
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig
from assay.reference_broker.quirks import PROFILES, QUIRKS, Quirk, find_quirks
from assay.reference_broker.trace.conformance import CaseVerdict

ROOT = Path(__file__).resolve().parents[3]
CASES = load_cases()
PROVED = [quirk for quirk in QUIRKS.values() if quirk.fails or quirk.reports]
PATIENCE_S = 1.5
"""A quirky broker often says nothing where the case waits for something."""
BROKERS_AT_A_TIME = 12
SAMPLE = 12
SEED = 11
GOOD = (CaseVerdict.PASS, CaseVerdict.NON_STRICT)
Verdicts = dict[str, CaseVerdict]


def _plain_cases() -> list[str]:
    """Cases for any broker that take no time of their own."""
    return [
        case.id
        for case in CASES.values()
        if case.spec in ("mqtt311", "mqtt5")
        and not case.requires
        and case.judged_on == "reference"
        and case.limit_s <= 10
    ]


async def _judge(names: Sequence[str], case_ids: Iterable[str], *, patience_s: float | None) -> Verdicts:
    """The verdicts of cases on a reference broker with quirks, both in this event loop."""
    config = BrokerConfig(listeners=(ListenerConfig(port=0),), quirks=tuple(names))
    target = load_target("reference")
    async with Broker(config) as broker:
        endpoint = Endpoint(host=broker.host, port=broker.port)
        capabilities = await asyncio.to_thread(probe, target, endpoint)
        engine = Engine(RunningTarget(target, endpoint), capabilities, RunOptions(patience_s=patience_s))
        return await _each_by_itself(engine, [CASES[name] for name in case_ids])


async def _each_by_itself(engine: Engine, cases: Iterable[Case]) -> Verdicts:
    """A case that another one would block has seen the quirk as well."""
    outcomes = await asyncio.gather(*map(engine.run, cases))
    return {outcome.result.case: outcome.result.verdict for outcome in outcomes}


def _own(quirks: Iterable[Quirk]) -> set[str]:
    return {case for quirk in quirks for case in (*quirk.fails, *quirk.reports)}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdicts]:
    """Of every quirk by itself: its own cases."""
    slots = asyncio.Semaphore(BROKERS_AT_A_TIME)

    async def one(quirk: Quirk) -> Verdicts:
        async with slots:
            return await _judge([quirk.name], _own([quirk]), patience_s=PATIENCE_S)

    async def every() -> dict[str, Verdicts]:
        found = await asyncio.gather(*map(one, PROVED))
        return {quirk.name: judged for quirk, judged in zip(PROVED, found, strict=True)}

    return asyncio.run(every())


@pytest.mark.parametrize("quirk", PROVED, ids=lambda quirk: quirk.name)
def test_a_quirk_fails_the_cases_that_it_names(quirk: Quirk, verdicts: dict[str, Verdicts]) -> None:
    judged = verdicts[quirk.name]
    assert {case: judged[case] for case in quirk.fails} == dict.fromkeys(quirk.fails, CaseVerdict.FAIL)
    assert {case: judged[case] for case in quirk.reports} == dict.fromkeys(quirk.reports, CaseVerdict.NON_STRICT)


def test_the_reference_broker_itself_passes_all_of_them() -> None:
    judged = asyncio.run(_judge([], _own(PROVED), patience_s=None))
    assert {case: verdict for case, verdict in judged.items() if verdict not in GOOD} == {}


@pytest.mark.parametrize("quirk", PROVED[:: len(PROVED) // 4], ids=lambda quirk: quirk.name)
def test_a_quirk_leaves_other_cases_alone(quirk: Quirk) -> None:
    others = sorted(set(_plain_cases()) - _own([quirk]))
    sample = random.Random(SEED).sample(others, SAMPLE)
    judged = asyncio.run(_judge([quirk.name], sample, patience_s=None))
    assert {case: verdict for case, verdict in judged.items() if verdict not in GOOD} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_fails_what_its_quirks_name_and_nothing_of_a_sample(name: str) -> None:
    quirks = find_quirks([name])
    named = {case for quirk in quirks for case in quirk.fails}
    sample = set(random.Random(SEED).sample(sorted(set(_plain_cases()) - _own(quirks)), SAMPLE))

    async def both() -> Verdicts:
        broken, sound = await asyncio.gather(
            _judge([name], named, patience_s=PATIENCE_S), _judge([name], sample, patience_s=None)
        )
        return broken | sound

    judged = asyncio.run(both())
    assert {case for case, verdict in judged.items() if verdict is CaseVerdict.FAIL} == named


# -- against the brokers themselves ------------------------------------------------------------------------------------


def test_the_mosquitto_profile_has_every_reported_deviation_of_mosquitto() -> None:
    page = (ROOT / "docs" / "findings" / "mqtt.md").read_text(encoding="utf-8")
    section = page.split("## Eclipse Mosquitto", 1)[1].split("\n## ", 1)[0]
    known = set(re.findall(r"`(mqtt(?:311|5)/[\w/-]+)`", section))
    known |= {entry.case for entry in load_target("mosquitto").expect_fail}
    # What a restart loses is not imitated: the profile says so.
    known = {case for case in known if "/restart/" not in case}
    # Nor, so far, that all comes again at once to a client that is back with a smaller Receive Maximum.
    known -= {"mqtt5/flow-control/resume-uses-the-new-receive-maximum"}
    assert len(known) > 20
    assert known <= {case for quirk in find_quirks(["mosquitto-2.0"]) for case in quirk.fails}


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed (Debian: mosquitto)")
def test_mosquitto_and_its_imitation_get_the_same_verdicts() -> None:
    quirks = find_quirks(["mosquitto-2.0"])
    sample = random.Random(SEED).sample(sorted(set(_plain_cases()) - _own(quirks)), SAMPLE)
    chosen: list[Case] = [CASES[name] for name in sorted(_own(quirks) | set(sample))]
    target = msgspec.structs.replace(load_target("mosquitto"), expect_fail=())
    imitation = _judge(["mosquitto-2.0"], [case.id for case in chosen], patience_s=PATIENCE_S)
    with running(target) as broker:
        engine = Engine(broker, probe(target, broker.endpoint), RunOptions(patience_s=PATIENCE_S))

        async def both() -> tuple[Verdicts, Verdicts]:
            return await asyncio.gather(_each_by_itself(engine, chosen), imitation)

        real, imitated = asyncio.run(both())
    for case in _own(quirks):
        assert imitated[case] is real[case], case
    # What else it does against mere recommendations is not imitated.
    assert {case for case in sample if imitated[case] is CaseVerdict.FAIL or real[case] is CaseVerdict.FAIL} == set()
