"""What a restart has lost is booked once, on the plainest case about it; what is no matter of restarts, on none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest

from assay.conformance.booking import settle
from assay.conformance.case import Case, CaseContext, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.run import Run, RunPlan, expectation_of
from assay.conformance.targets import Endpoint, RunningTarget, TargetStartError, hosted_target, parse_target, probe
from assay.reference_broker.broker import Broker
from assay.reference_broker.trace.conformance import CaseVerdict

PATIENCE_S = 0.5
CASES = [
    case
    for case in load_cases().values()
    if case.area == "restart" and case.spec.startswith("mqtt") and not case.settings
]
PLAIN = "restart/sessions-without-anything"
RETAINED = "restart/retained-messages-are-replaced"


@contextmanager
def forgetful_broker(starts: int = 1_000) -> Iterator[RunningTarget]:
    """A broker whose every life begins with nothing; it starts so many times."""
    with ExitStack() as stack:
        lives = count(1)

        def begin() -> Endpoint:
            if next(lives) > starts:
                message = "the log is damaged"
                raise TargetStartError(message)
            stack.close()
            broker = stack.enter_context(Broker())
            return Endpoint(host=broker.host, port=broker.port)

        endpoint = begin()
        target = hosted_target(endpoint.host, endpoint.port)
        broker = RunningTarget(target, endpoint)
        broker.restart_by(lambda _damage: begin())
        yield broker


def _judge(broker: RunningTarget) -> dict[str, Outcome]:
    able = {**probe(broker.target, broker.endpoint), "restart": True, "persistence": True}
    options = RunOptions(patience_s=PATIENCE_S, concurrency=len(CASES))
    outcomes = settle(asyncio.run(Engine(broker, able, options).run_together(CASES)))
    return {outcome.result.case: outcome for outcome in outcomes}


def _with(outcomes: dict[str, Outcome], verdict: CaseVerdict) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.result.verdict is verdict}


def test_a_broker_that_keeps_nothing_fails_the_plainest_cases_and_the_others_are_blocked_by_them() -> None:
    with forgetful_broker() as broker:
        outcomes = _judge(broker)
    failed = _with(outcomes, CaseVerdict.FAIL)
    assert failed == {f"{spec}/{slug}" for spec in ("mqtt311", "mqtt5") for slug in (PLAIN, RETAINED)}, {
        name: outcomes[name].result.detail for name in failed
    }
    blocked = _with(outcomes, CaseVerdict.BLOCKED)
    assert {outcomes[name].result.blocked_by for name in blocked} == failed
    # A session that ends anyway, and topics that hold nothing, are all that such a broker can be right about.
    assert len(blocked) > 40
    assert len(failed | blocked) >= len(CASES) - 4


def test_a_broker_that_does_not_start_again_fails_the_plainest_case() -> None:
    with forgetful_broker(starts=1) as broker:
        outcomes = _judge(broker)
    failed = _with(outcomes, CaseVerdict.FAIL)
    assert failed == {f"{spec}/{PLAIN}" for spec in ("mqtt311", "mqtt5")}
    assert all("does not start again: the log is damaged" in outcomes[name].result.detail for name in failed)
    assert len(_with(outcomes, CaseVerdict.BLOCKED)) == len(CASES) - len(failed)


def _a_case(case_id: str, run: Callable[[CaseContext], Awaitable[None]], *requires: str) -> Case:
    return Case(
        id=case_id,
        title="A title.",
        expectation="Something.",
        clauses=("MQTT-3.8.4-3",),
        level="MUST",
        requires=requires,
        mutant="",
        near_miss="",
        together=bool(requires),
        limit_s=5.0,
        module=__name__,
        run=run,
    )


async def _wrong_anyway(ctx: CaseContext) -> None:
    await ctx.restart()
    ctx.fail(f"{ctx.topic()}: expected QoS 1; seen QoS 0")


async def _wrong_after_a_restart(ctx: CaseContext) -> None:
    client = await ctx.connect(clean=False)
    await ctx.restart()
    again = await ctx.connect(client_id=client.client_id, clean=False)
    ctx.must(again.connack.session_present, "expected the session; seen none")
    ctx.fail("expected something else")


async def _wrong_without_any(ctx: CaseContext) -> None:
    ctx.fail("expected the subscription to be replaced")


def _run(monkeypatch: pytest.MonkeyPatch, *cases: Case) -> dict[str, Outcome]:
    monkeypatch.setattr(Run, "_broker_for", lambda _run, _case: forgetful_broker())
    with forgetful_broker() as broker:
        target = parse_target(
            f"""
            schema = "assay.target/1"
            name = "forgetful"
            endpoint = {{port = {broker.endpoint.port}}}
            restart = {{command = ["true"]}}
            """
        )
        with Run(RunPlan(target=target)) as run:
            futures = run.submit_all(cases)
            return {name.split("/")[-1]: future.result(60) for name, future in futures.items()}


def test_what_fails_without_a_restart_too_is_blocked_by_the_case_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (
        _a_case("mqtt311/restart/anyway", _wrong_anyway, "restart"),
        _a_case("mqtt311/restart/lost", _wrong_after_a_restart, "restart"),
        _a_case("mqtt311/subscribe/replaced", _wrong_without_any),
    )
    outcomes = _run(monkeypatch, *cases)
    anyway, lost, root = (outcomes[name].result for name in ("anyway", "lost", "replaced"))
    assert (anyway.verdict, anyway.blocked_by) == (CaseVerdict.BLOCKED, cases[2].id)
    assert lost.verdict is root.verdict is CaseVerdict.FAIL, "without a restart it fails otherwise"
    alone = _run(monkeypatch, cases[0])["anyway"].result
    assert alone.verdict is CaseVerdict.FAIL, "nothing is hidden where no other case says it"
    assert alone.detail.startswith("without a restart as well: ")


def test_two_failures_are_the_same_if_they_expected_the_same() -> None:
    first = "client: expected topic assay/c2b700b56797804/t at QoS 1; nothing arrived within 10.0 s, and 12 s more"
    again = "client: expected topic assay/0d1f00c56797804/t at QoS 1; seen PUBLISH packet_id=3"
    other = "client: expected topic assay/0d1f00c56797804/t at QoS 2; seen PUBLISH packet_id=3"
    assert expectation_of(first) == expectation_of(again) != expectation_of(other)
