"""A broker whose every answer takes long is not accused: its timers go on while a case waits for what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import cast

import pytest
from meddling_proxy import MeddlingProxy, Slow

from assay.conformance import arrival
from assay.conformance.arrival import Patience, soon
from assay.conformance.case import Case, CaseContext
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.targets import DEFAULT_CAPABILITIES, Endpoint, RunningTarget, hosted_target
from assay.conformance.wire import Connack, encode
from assay.reference_broker.broker import Broker
from assay.reference_broker.trace.conformance import CaseVerdict

DELAY_S = 1.2
ABLE = {**DEFAULT_CAPABILITIES, "mqtt311": True, "mqtt5": True}


def a_case(case_id: str, run: Callable[[CaseContext], Awaitable[None]], *, limit_s: float = 5.0) -> Case:
    return Case(
        id=case_id,
        title="A title.",
        expectation="Something.",
        clauses=(),
        level="MUST",
        requires=(),
        mutant="",
        near_miss="",
        limit_s=limit_s,
        module=__name__,
        run=run,
    )


async def _judge(delay_s: float, *cases: Case) -> dict[str, Outcome]:
    async with Broker() as broker:
        behind = Endpoint(host=broker.host, port=broker.port)
        async with MeddlingProxy(behind, Slow(delay_s)).running() as place:
            engine = Engine(RunningTarget(hosted_target(place.host, place.port), place), ABLE, RunOptions())
            outcomes = await engine.run_all(cases, lambda _outcome: None)
    return {outcome.result.case.split("/")[-1]: outcome for outcome in outcomes}


async def _keeps_alive(ctx: CaseContext) -> None:
    await ctx.connect(keep_alive_s=10)
    ctx.fail("expected to be kept")


async def _plain(ctx: CaseContext) -> None:
    await ctx.connect()
    ctx.fail("expected something")


async def _has_little_time(ctx: CaseContext) -> None:
    """What is left for the last wait is shorter than this broker takes for anything."""
    client = await ctx.connect()
    ctx._to_give_s = 0.0
    ctx._look_until = 0.0
    ctx.time_limit(DELAY_S)
    await client.receive("what never comes")


CASES = (
    a_case("mqtt311/assay/timed", _keeps_alive),
    a_case("queue/assay/queue", _plain),
    a_case("mqtt311/assay/plain", _plain),
    a_case("mqtt311/assay/little-time", _has_little_time),
)


def test_a_verdict_that_hangs_on_timers_is_none_where_answers_lag() -> None:
    outcomes = asyncio.run(_judge(DELAY_S, *CASES))
    verdicts = {name: outcome.result.verdict for name, outcome in outcomes.items()}
    assert verdicts == {
        "timed": CaseVerdict.UNSUPPORTED,
        "queue": CaseVerdict.UNSUPPORTED,
        "plain": CaseVerdict.FAIL,
        "little-time": CaseVerdict.ERROR,
    }
    detail = outcomes["timed"].result.detail
    assert detail.startswith("not judged: a CONNACK took 1.")
    assert detail.endswith("expected to be kept")


def test_a_broker_in_time_is_judged() -> None:
    outcomes = asyncio.run(_judge(0.0, *CASES[:3]))
    assert {outcome.result.verdict for outcome in outcomes.values()} == {CaseVerdict.FAIL}


def test_whoever_refuses_or_answers_nonsense_is_alive() -> None:
    answers = {b"\x20\x02\x00\x05": "", b"\x21\x02\x00\x00": "", encode(Connack(), 4): "", b"": "closed the connection"}

    async def gone(answer: bytes) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            place = Endpoint(port=server.sockets[0].getsockname()[1])
            broker = RunningTarget(hosted_target(place.host, place.port), place)
            return await Engine(broker, ABLE, RunOptions())._why_gone(4)

    for answer, wanted in answers.items():
        seen = asyncio.run(gone(answer))
        assert (wanted in seen) if wanted else not seen, (answer, seen)


def a_context() -> CaseContext:
    nowhere = Endpoint(host="127.0.0.1", port=1)
    return CaseContext(a_case("mqtt311/assay/waits", _plain), nowhere, ABLE, run_token="t", seed=1)


async def _after_slow_waits(*waits_s: float) -> float:
    """Seconds that a case has left which had half a second, when these waits have brought what they were for."""
    ctx = a_context()
    async with ctx.time_limit(0.5):
        for wait_s in waits_s:
            ctx.give_back(wait_s)
        return ctx.remaining_s(within_s=1_000.0)


def test_behind_a_slow_wait_a_case_has_its_whole_time_again() -> None:
    """On a busy machine what was lost between the waits for a slow broker ended cases."""
    margin_s = 0.05 * 5.0
    assert asyncio.run(_after_slow_waits(0.2)) <= 0.7
    assert asyncio.run(_after_slow_waits(3.0)) > 4.0 - margin_s
    assert asyncio.run(_after_slow_waits(*[3.0] * 1_000)) <= 0.5 + 900.0 + 5.0, "what is given has an end"


def test_who_takes_long_over_each_look_is_looked_at_again() -> None:
    """A queue's messages were late, and so was each answer to a PINGREQ: nobody looked a second time."""

    async def looks() -> int:
        ctx = a_context()
        ctx.patience_s = 0.0  # over behind the first look
        more, count = soon(ctx), 0
        while await more():
            count += 1
        return count

    assert asyncio.run(looks()) == 5


class _Clock:
    """Time that goes on while somebody sleeps, and a millisecond with each question."""

    def __init__(self) -> None:
        self.now, self.given_s = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def remaining_s(self) -> float:
        return 30.0

    def give_back(self, seconds: float) -> None:
        self.given_s += seconds


def test_a_long_wait_costs_few_looks_and_a_short_one_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.4 million PINGREQs went to a broker that did not send what a case waited for."""
    clock, looks = _Clock(), []
    monkeypatch.setattr(arrival, "time", clock)
    monkeypatch.setattr(arrival, "asyncio", clock)

    async def wait() -> None:
        more = soon(cast(Patience, clock))
        while await more():
            looks.append(clock.now)
            clock.now += 0.001

    asyncio.run(wait())
    assert len(looks) < 300
    assert looks[-6] <= 30.0 <= clock.now, "until the patience is over"
    assert looks[9] < 0.025, "what comes at once is seen at once"
    assert all(then - before <= 0.002 + before / 8 for before, then in pairwise(looks))
    assert clock.given_s == pytest.approx(clock.now - 0.001 * len(looks)), "as for any wait"


async def _silence_of(wait_s: float) -> tuple[float, float]:
    """How long a case may wait so, of which a tenth of a second is left, and what is left of it behind that."""
    ctx = a_context()
    async with ctx.time_limit(0.1):
        may_s = ctx.remaining_s(within_s=wait_s)
        return may_s, ctx._deadline - asyncio.get_running_loop().time() - may_s


def test_silence_that_a_case_asks_for_does_not_end_it() -> None:
    may_s, left_s = asyncio.run(_silence_of(6.0))
    assert may_s == pytest.approx(6.0)
    assert left_s > 0.5, "the machine may take long to wake it"
    assert asyncio.run(_silence_of(1e6))[0] < 1.0, "there is an end to it"


async def _brought_by_the_second_wait() -> int:
    ctx = a_context()
    ctx.patience_s = 0.01
    waits = 0

    async def wait() -> int:
        nonlocal waits
        waits += 1
        if waits == 1:
            await asyncio.Event().wait()
        return waits

    async with ctx.time_limit(60.0):
        return await ctx.patiently(wait)


def test_whoever_reads_a_socket_by_itself_waits_as_long_as_any_other() -> None:
    """Bursts of queues were read with a patience of their own, and hung on late deliveries."""
    assert asyncio.run(_brought_by_the_second_wait()) == 2
