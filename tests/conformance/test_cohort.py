"""Cases that share a broker and its restarts: one kill for all, and judged again alone; on any broker there is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from assay.conformance.case import Case, CaseContext, load_cases
from assay.conformance.cases.queue.support import consume, deliveries
from assay.conformance.cohort import MOST_TOGETHER, RestartGate, cohorts
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.nursery import Nursery
from assay.conformance.run import Run, RunPlan
from assay.conformance.stall import StallWatch
from assay.conformance.targets import (
    Damage,
    Endpoint,
    RunningTarget,
    TargetStartError,
    handshake,
    load_target,
    parse_target,
    probe,
    running,
)
from assay.reference_broker.trace.conformance import CaseVerdict

FOREIGN = """
schema = "assay.target/1"
name = "foreign"
[capabilities]
persistence = true
[restart]
signal = "KILL"
[start]
command = ["{python}", "{dir}/broker.py"]
[start.files]
"broker.py" = "from assay.conformance.adapter import main; main(['--config', '{dir}/broker.yaml', '--port', '{port}'])"
"broker.yaml" = "data_dir: '{dir}/data'"
"""


def a_case(slug: str, run: Callable[[CaseContext], Awaitable[None]], **fields: object) -> Case:
    values: dict[str, object] = {
        "title": "A title.",
        "expectation": "Something.",
        "clauses": (),
        "level": "MUST",
        "requires": ("restart",),
        "mutant": "",
        "near_miss": "",
        "together": True,
        "limit_s": 10.0,
        "module": __name__,
    }
    return Case(id=f"mqtt311/restart/{slug}", run=run, **{**values, **fields})  # type: ignore[arg-type]


def test_those_with_equal_settings_run_together_and_no_more_than_a_broker_bears() -> None:
    async def run(_ctx: CaseContext) -> None:
        return

    plain = [a_case(f"plain-{number}", run) for number in range(MOST_TOGETHER + 1)]
    other = [a_case(f"other-{number}", run, settings={"mqtt": {}}) for number in range(2)]
    alone = [a_case(f"alone-{number}", run, together=False) for number in range(2)]
    sizes = sorted(len(group) for group in cohorts([*plain, *other, *alone]))
    assert sizes == [1, 1, 1, 2, MOST_TOGETHER]


def test_the_broker_is_killed_once_all_that_still_run_have_asked() -> None:
    async def scene() -> list[str]:
        events: list[str] = []

        async def restart(ahead_s: float, damage: Damage) -> Endpoint:
            events.append(f"killed, {ahead_s:g} s ahead")
            damage()
            return Endpoint(port=len(events))

        gate = RestartGate(3, restart)

        async def member(name: str, times: int, ahead_s: float = 0.0) -> None:
            for _ in range(times):
                events.append(f"{name} asks")
                await gate.pass_through(ahead_s, lambda: events.append(f"{name} damages"))
            events.append(f"{name} is done")
            gate.leave()

        await asyncio.gather(member("a", 2), member("b", 1, 5.0), member("c", 0))
        return events

    first = ["a asks", "b asks", "c is done", "killed, 5 s ahead", "a damages", "b damages"]
    then = ["a asks", "b is done", "killed, 5 s ahead", "a damages", "a is done"]
    assert asyncio.run(scene()) == [*first, *then]


def test_a_broker_that_does_not_start_again_fails_the_case_that_had_it_killed() -> None:
    async def run(ctx: CaseContext) -> None:
        await ctx.restart()

    def restart(_damage: Damage) -> Endpoint:
        message = "the log is damaged"
        raise TargetStartError(message)

    async def scene() -> tuple[CaseVerdict, str]:
        with running(parse_target(FOREIGN)) as reached:
            broker = RunningTarget(reached.target, reached.endpoint)
            broker.restart_by(restart)
            engine = Engine(broker, {"mqtt311": True, "restart": True}, RunOptions(), solo=True)
            (outcome,) = await engine.run_together([a_case("one", run)])
        return outcome.result.verdict, outcome.result.detail

    verdict, detail = asyncio.run(scene())
    assert verdict is CaseVerdict.FAIL
    assert "the broker was killed, and does not start again: the log is damaged" in detail


def test_a_case_may_wait_for_others_longer_than_its_own_limit() -> None:
    async def quick(ctx: CaseContext) -> None:
        await ctx.restart()

    async def slow(ctx: CaseContext) -> None:
        await asyncio.sleep(0.5)
        await ctx.restart()

    async def scene() -> set[CaseVerdict]:
        broker = RunningTarget(parse_target(FOREIGN), Endpoint())
        broker.restart_by(lambda _damage: Endpoint())
        engine = Engine(broker, {"mqtt311": True, "restart": True}, RunOptions())
        cases = [a_case("quick", quick, limit_s=0.2), a_case("slow", slow)]
        return {outcome.result.verdict for outcome in await engine.run_together(cases)}

    assert asyncio.run(scene()) == {CaseVerdict.PASS}


def test_a_foreign_broker_is_killed_and_started_again_in_its_folder() -> None:
    with running(parse_target(FOREIGN)) as broker:
        before = (broker.pid, broker.endpoint)
        after = broker.restart(0.0)
        assert after == before[1]
        assert broker.pid != before[0]
        handshake(after, 4)


def test_what_fails_beside_others_is_judged_again_by_itself() -> None:
    runs: list[str] = []

    async def fails_beside_others(ctx: CaseContext) -> None:
        runs.append("once")
        await ctx.restart()
        ctx.must(len(runs) > 1, "expected to be alone")

    async def fails(ctx: CaseContext) -> None:
        await ctx.restart()
        ctx.fail("it always does")

    cases = [a_case("beside", fails_beside_others), a_case("fails", fails)]
    with Run(RunPlan(target=parse_target(FOREIGN))) as run:
        futures = run.submit_all(cases)
        verdicts = {name: future.result(60).result.verdict for name, future in futures.items()}
    assert verdicts == {cases[0].id: CaseVerdict.PASS, cases[1].id: CaseVerdict.FAIL}


def test_one_promise_of_a_foreign_broker_is_judged_by_real_cases() -> None:
    wanted = [case for case in load_cases().values() if case.id.endswith("/restart/removed-subscriptions")]
    with Run(RunPlan(target=parse_target(FOREIGN))) as run:
        futures = run.submit_all(wanted)
        assert {future.result(60).result.verdict for future in futures.values()} == {CaseVerdict.PASS}
    assert len(wanted) == 2


@pytest.mark.parametrize(("command", "complaint"), [("sys.exit('no such broker')", "no such broker"), ("0", "")])
def test_a_hosted_broker_is_restarted_by_its_command(command: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "restart.py").write_text(f"import sys\n{command}", encoding="utf-8")
    with running(parse_target(FOREIGN)) as broker:
        hosted = parse_target(
            f"""
            schema = "assay.target/1"
            name = "hosted"
            endpoint = {{port = {broker.endpoint.port}}}
            restart = {{command = ["{sys.executable}", "{tmp_path / "restart.py"}"]}}
            """
        )
        with running(hosted) as reached:
            if complaint:
                with pytest.raises(TargetStartError, match=complaint):
                    reached.restart(0.0)
            else:
                assert reached.restart(0.0) == broker.endpoint


def test_the_cases_of_a_hosted_broker_wait_until_nobody_else_uses_it(tmp_path: Path) -> None:
    (tmp_path / "restart.py").write_text("", encoding="utf-8")
    now_running: set[str] = set()

    async def restarts(ctx: CaseContext) -> None:
        assert not now_running
        await ctx.restart()
        assert not now_running

    async def talks(ctx: CaseContext) -> None:
        now_running.add(ctx.case.id)
        await (await ctx.connect()).barrier()
        now_running.discard(ctx.case.id)

    others = [a_case(f"talks-{number}", talks, requires=(), together=False) for number in range(6)]
    with running(parse_target(FOREIGN)) as broker:
        hosted = parse_target(
            f"""
            schema = "assay.target/1"
            name = "hosted"
            endpoint = {{port = {broker.endpoint.port}}}
            restart = {{command = ["{sys.executable}", "{tmp_path / "restart.py"}"]}}
            """
        )
        with Run(RunPlan(target=hosted, options=RunOptions(concurrency=2))) as run:
            futures = run.submit_all([*others, a_case("restarts", restarts)])
            verdicts = {future.result(60).result.verdict for future in futures.values()}
    assert verdicts == {CaseVerdict.PASS}


def test_an_attempt_that_does_not_count_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock was moved back and its queue held messages of before: two accusations of the reference broker."""
    monkeypatch.setattr(StallWatch, "longest_since", lambda *_: 1.0)
    seen: list[list[bytes]] = []

    async def run(ctx: CaseContext) -> None:
        client = await ctx.connect(version=5, name="client")
        await client.publish("$queue/fixed", b"one", qos=1)
        await ctx.advance(100)
        await ctx.restart()
        consumer = await consume(ctx, "fixed")
        seen.append([packet.payload for packet in await deliveries(consumer, at_least=1)])
        ctx.must(len(seen) > 2, "not this time")

    settings = {"queues": {"defaults": {"durability": "fsync"}}}
    case = a_case("anew", run, requires=("restart", "clock", "settings"), settings=settings)
    with Nursery() as nursery, nursery.broker(load_target("reference"), "", case) as broker:
        engine = Engine(broker, probe(broker.target, broker.endpoint), RunOptions(), solo=True)
        outcome = asyncio.run(engine.run(case))
    assert outcome.result.verdict is CaseVerdict.PASS, outcome.result.detail
    assert seen == [[b"one"]] * 3


def test_who_fails_each_time_keeps_no_others_waiting(tmp_path: Path) -> None:
    """Mosquitto: where one waited for what never comes, sixty others waited for the next restart."""
    looked: list[str] = []

    async def waits(ctx: CaseContext) -> None:
        looked.append(f"{ctx.case.id} {ctx._look_s if ctx.second_look() else 0:g}")
        ctx.fail("it never came")

    async def passes(ctx: CaseContext) -> None:
        await ctx.restart()

    cases = [a_case("known", waits), a_case("new", waits), a_case("passes", passes)]
    text = (
        FOREIGN
        + f"""
[[expect_fail]]
case = "{cases[0].id}"
reason = "it never does"
link = "docs/findings/x.md"
"""
    )
    target = parse_target(text.replace("{python}", sys.executable))
    with Run(RunPlan(target=target)) as run:
        futures = run.submit_all(cases)
        verdicts = [futures[case.id].result(60).result.verdict for case in cases]
    assert verdicts == [CaseVerdict.XFAIL, CaseVerdict.FAIL, CaseVerdict.PASS]
    known, new = (f"{case.id} " for case in cases[:2])
    # The new one is asked among others, then alone, and then without a restart.
    assert sorted(looked) == [f"{known}1", f"{new}0", f"{new}12", f"{new}12"]
