"""The engine: how a case ends decides its verdict, and a broker that is merely slow is not accused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from assay.conformance import case as case_module
from assay.conformance.case import Case, CaseContext
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.rules import Rule
from assay.conformance.stall import StallWatch, Stopwatch
from assay.conformance.targets import DEFAULT_CAPABILITIES, Endpoint, ExpectedFailure, RunningTarget, Target
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    encode,
)
from assay.reference_broker.trace.conformance import CaseVerdict

Answer = Callable[[Packet, asyncio.StreamWriter], Awaitable[None]]


class FakeBroker:
    """Answers CONNECT and PINGREQ, and whatever else ``answer`` says; ends connections that send malformed packets."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.connects: list[Connect] = []
        self.published: list[Publish] = []
        self.handshake_delay_s = 0.0
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(4)
        try:
            while data := await reader.read(65_536):
                for packet in decoder.feed(data):
                    if isinstance(packet, Disconnect):
                        return
                    await self.react(packet, writer)
        except (MalformedPacketError, ConnectionError):
            return
        finally:
            writer.close()

    async def react(self, packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Connect):
            self.connects.append(packet)
            await asyncio.sleep(self.handshake_delay_s)
            writer.write(encode(Connack(), packet.version))
        elif isinstance(packet, Pingreq):
            writer.write(encode(Pingresp(), 4))
        elif isinstance(packet, Publish):
            self.published.append(packet)
        if self.answer is not None:
            await self.answer(packet, writer)

    @asynccontextmanager
    async def running(self, target: Target | None = None) -> AsyncIterator[RunningTarget]:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        try:
            yield RunningTarget(target or Target(name="fake"), Endpoint(host=host, port=port))
        finally:
            self.server.close()


def a_case(run: Callable[[CaseContext], Awaitable[None]], **fields: object) -> Case:
    known: dict[str, object] = {
        "id": "mqtt311/area/rule",
        "title": "A rule.",
        "expectation": "It holds.",
        "clauses": ("MQTT-3.1.0-1",),
        "level": "MUST",
        "requires": (),
        "mutant": "",
        "near_miss": "",
        "limit_s": 5.0,
        "module": "none",
        "run": run,
    }
    return Case(**(known | fields))  # type: ignore[arg-type]


CAPABILITIES = {**DEFAULT_CAPABILITIES, "mqtt311": True, "mqtt5": False}


def outcome_of(
    case: Case, broker: FakeBroker | None = None, *, target: Target | None = None, patience_s: float | None = None
) -> Outcome:
    async def main() -> Outcome:
        async with (broker or FakeBroker()).running(target) as running:
            return await Engine(running, CAPABILITIES, RunOptions(patience_s=patience_s)).run(case)

    return asyncio.run(main())


async def passes(ctx: CaseContext) -> None:
    connection = await ctx.connect()
    await connection.expect_nothing()


async def fails(ctx: CaseContext) -> None:
    ctx.must(False, "expected this; seen that")


async def misses_a_should(ctx: CaseContext) -> None:
    ctx.should(False, "a nicety is missing")
    ctx.should(False, "so is another")


async def finds_no_support(ctx: CaseContext) -> None:
    ctx.unsupported("the broker states a limit of 0")


async def breaks(ctx: CaseContext) -> None:
    raise ZeroDivisionError("a bug of the case")


async def never_ends(ctx: CaseContext) -> None:
    await asyncio.Event().wait()


KNOWN = Target(
    name="fake", expect_fail=(ExpectedFailure(case="mqtt311/area/rule", reason="known", link="https://example.org/1"),)
)


@pytest.mark.parametrize(
    ("run", "target", "verdict", "detail"),
    [
        (passes, None, CaseVerdict.PASS, ""),
        (fails, None, CaseVerdict.FAIL, "expected this; seen that"),
        (misses_a_should, None, CaseVerdict.NON_STRICT, "a nicety is missing; so is another"),
        (finds_no_support, None, CaseVerdict.UNSUPPORTED, "a limit of 0"),
        (breaks, None, CaseVerdict.ERROR, "ZeroDivisionError: a bug of the case"),
        (fails, KNOWN, CaseVerdict.XFAIL, "known"),
        (passes, KNOWN, CaseVerdict.XPASS, "take the entry out"),
        (misses_a_should, KNOWN, CaseVerdict.XPASS, "take the entry out"),
        (breaks, KNOWN, CaseVerdict.ERROR, "ZeroDivisionError"),
        (finds_no_support, KNOWN, CaseVerdict.UNSUPPORTED, "a limit of 0"),
    ],
)
def test_verdicts(
    run: Callable[[CaseContext], Awaitable[None]], target: Target | None, verdict: CaseVerdict, detail: str
) -> None:
    result = outcome_of(a_case(run), target=target).result
    assert result.verdict is verdict
    assert detail in result.detail
    assert result.link == ("https://example.org/1" if verdict in (CaseVerdict.XFAIL, CaseVerdict.XPASS) else "")


def test_a_case_over_its_limit_is_an_error_of_the_harness() -> None:
    result = outcome_of(a_case(never_ends, limit_s=0.2)).result
    assert result.verdict is CaseVerdict.ERROR
    assert "limit of 0.4 s" in result.detail, "it is tried twice, the second time with twice the time"


def test_a_case_that_has_too_little_time_is_tried_again_with_more() -> None:
    """A case of three hundred writes took longer than its limit on a busy machine, and was an error of the harness."""
    attempts: list[CaseContext] = []

    async def ends_in_time(ctx: CaseContext) -> None:
        attempts.append(ctx)
        await (passes if len(attempts) > 1 else never_ends)(ctx)

    assert outcome_of(a_case(ends_in_time, limit_s=1.0)).result.verdict is CaseVerdict.PASS
    assert [ctx.limit_s for ctx in attempts] == [1.0, 2.0]


def test_a_case_that_its_own_interval_overtakes_is_tried_again_with_longer_ones() -> None:
    """A broker was accused of a will that came due before the case, on a busy machine, had brought its client back."""
    stretches: list[int] = []

    async def is_slow(ctx: CaseContext) -> None:
        stretches.append(ctx.stretch)
        watch = Stopwatch()
        with watch.judging_before(60.0):
            ctx.must(ctx.stretch == 9, "it came in time") if ctx.stretch > 3 else watch.demand_less_than(0.0)

    assert outcome_of(a_case(is_slow)).result.verdict is CaseVerdict.PASS
    assert stretches == [1, 3, 9]


def test_who_is_slow_each_time_is_not_judged_and_who_fails_in_time_is() -> None:
    async def fails(ctx: CaseContext, within_s: float) -> None:
        with Stopwatch().judging_before(within_s):
            ctx.fail("it never came")

    slow = outcome_of(a_case(lambda ctx: fails(ctx, 0.0))).result
    assert slow.verdict is CaseVerdict.UNSUPPORTED
    assert slow.detail.startswith("not judged: it took 0.0 s")
    assert outcome_of(a_case(lambda ctx: fails(ctx, 60.0))).result.verdict is CaseVerdict.FAIL


def test_lacking_capability_is_unsupported_without_a_connection() -> None:
    broker = FakeBroker()
    result = outcome_of(a_case(passes, requires=("queues",)), broker).result
    assert result.verdict is CaseVerdict.UNSUPPORTED
    assert "queues" in result.detail
    assert broker.connects == []


def test_a_case_may_need_that_a_capability_is_missing() -> None:
    assert outcome_of(a_case(passes, requires=("not queues",))).result.verdict is CaseVerdict.PASS
    result = outcome_of(a_case(passes, requires=("not qos1",))).result
    assert result.verdict is CaseVerdict.UNSUPPORTED
    assert "the target has: qos1" in result.detail


def test_a_case_of_a_version_that_the_target_does_not_speak_is_unsupported() -> None:
    result = outcome_of(a_case(passes, id="mqtt5/area/rule")).result
    assert result.verdict is CaseVerdict.UNSUPPORTED
    assert "mqtt5" in result.detail


def test_silence_fails_with_what_was_expected() -> None:
    async def run(ctx: CaseContext) -> None:
        connection = await ctx.connect(name="subscriber")
        await connection.subscribe("a")

    result = outcome_of(a_case(run), patience_s=0.1).result
    assert result.verdict is CaseVerdict.FAIL
    assert result.detail == "subscriber: expected SUBACK; nothing arrived within 0.1 s"


def test_the_wrong_packet_fails_with_what_was_seen() -> None:
    async def answer(packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Subscribe):
            writer.write(encode(Pingresp(), 4))

    async def run(ctx: CaseContext) -> None:
        await (await ctx.connect()).subscribe("a")

    result = outcome_of(a_case(run), FakeBroker(answer)).result
    assert result.verdict is CaseVerdict.FAIL
    assert result.detail == "c1: expected SUBACK; seen PINGRESP"


def test_malformed_output_fails_and_is_in_the_transcript() -> None:
    async def answer(packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Subscribe):
            writer.write(encode(Suback(packet_id=1, reason_codes=(3,)), 4))

    async def run(ctx: CaseContext) -> None:
        await (await ctx.connect()).subscribe("a")

    outcome = outcome_of(a_case(run), FakeBroker(answer))
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert "malformed packet: SUBACK: reason code 0x03" in outcome.result.detail
    assert any(line.decoded.startswith("MALFORMED") and line.hex == "9003000103" for line in outcome.transcript)


def test_every_byte_of_both_directions_is_in_the_transcript() -> None:
    outcome = outcome_of(a_case(passes))
    seen = [(line.direction, line.decoded.split()[0]) for line in outcome.transcript if line.direction != "event"]
    assert seen == [("send", "CONNECT"), ("recv", "CONNACK"), ("send", "PINGREQ"), ("recv", "PINGRESP")]
    assert [line.hex for line in outcome.transcript if line.direction == "recv"] == ["20020000", "d000"]
    assert [line.t_ns for line in outcome.transcript] == sorted(line.t_ns for line in outcome.transcript)


def test_what_a_case_may_leave_behind_is_cleaned_up() -> None:
    async def run(ctx: CaseContext) -> None:
        connection = await ctx.connect(client_id="keeper", clean=False)
        await connection.publish("kept", b"retained", retain=True)
        await connection.barrier()

    broker = FakeBroker()
    assert outcome_of(a_case(run), broker).result.verdict is CaseVerdict.PASS
    assert [(connect.client_id, connect.clean) for connect in broker.connects[:2]] == [
        ("keeper", False),
        ("keeper", True),
    ]
    assert [(packet.topic, packet.payload, packet.retain) for packet in broker.published] == [
        ("kept", b"retained", True),
        ("kept", b"", True),
    ]


def test_a_broker_killed_by_malformed_input_fails_the_case_and_stops_the_run() -> None:
    async def main() -> list[Outcome]:
        broker = FakeBroker()
        async with broker.running() as running:

            async def run(ctx: CaseContext) -> None:
                connection = await ctx.connect()
                assert broker.server is not None
                broker.server.close()
                connection.send_raw(b"\x00\x00")
                await connection.expect_close()

            engine = Engine(running, CAPABILITIES, RunOptions(concurrency=1))
            killer = await engine.run(a_case(run))
            return [killer, await engine.run(a_case(passes))]

    killer, later = asyncio.run(main())
    assert killer.result.verdict is CaseVerdict.FAIL
    assert "does not answer" in killer.result.detail
    assert later.result.verdict is CaseVerdict.NOT_RUN
    assert "mqtt311/area/rule" in later.result.detail


def test_an_unreachable_broker_is_no_failure_of_it() -> None:
    async def main() -> Outcome:
        broker = FakeBroker()
        async with broker.running() as running:
            assert broker.server is not None
            broker.server.close()
            return await Engine(running, CAPABILITIES, RunOptions()).run(a_case(passes))

    result = asyncio.run(main()).result
    assert result.verdict is CaseVerdict.NOT_RUN
    assert "cannot connect" in result.detail


def test_a_slow_broker_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes after the patience of the case, but handshakes are as slow: no accusation."""
    monkeypatch.setattr(case_module, "_SLOW_HANDSHAKE_S", 0.2)

    async def answer(packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Subscribe):
            await asyncio.sleep(0.5)
            writer.write(encode(Suback(packet_id=packet.packet_id, reason_codes=(0,)), 4))

    async def run(ctx: CaseContext) -> None:
        await (await ctx.connect()).subscribe("a")

    slow = FakeBroker(answer)
    slow.handshake_delay_s = 0.3
    outcome = outcome_of(a_case(run), slow, patience_s=0.35)
    assert outcome.result.verdict is CaseVerdict.PASS
    assert any("more time is given" in line.decoded for line in outcome.transcript)


@pytest.mark.parametrize("greeting_s", [0.0, 2.4])
def test_failures_of_a_stalled_harness_do_not_count(greeting_s: float) -> None:
    """Nor is a case left unjudged since the stalled harness took a CONNACK for late (the self-check accused that)."""
    attempts = []

    async def run(ctx: CaseContext) -> None:
        attempts.append(ctx)
        if len(attempts) == 1:
            # A blocked loop is what a starved process looks like from inside.
            import time

            time.sleep(0.4)  # noqa: ASYNC251
            await asyncio.sleep(0.05)
            ctx.greeting_s, ctx.is_timed = greeting_s, bool(greeting_s)
            ctx.fail("missed a deadline")

    outcome = outcome_of(a_case(run))
    assert outcome.result.verdict is CaseVerdict.PASS
    assert len(attempts) == 2
    assert any("attempt 2" in line.decoded for line in outcome.transcript)


def test_the_stall_watch_measures_late_wake_ups() -> None:
    async def main() -> tuple[float, float]:
        import time

        loop = asyncio.get_running_loop()
        watch = StallWatch()
        with watch:
            began = loop.time()
            await asyncio.sleep(0.05)
            time.sleep(0.3)  # noqa: ASYNC251
            await asyncio.sleep(0.05)
            return watch.longest_since(began), watch.longest_since(loop.time() + 1)

    stall_s, none_s = asyncio.run(main())
    assert stall_s >= 0.25
    assert none_s == 0.0


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    cases = [a_case(passes, id=f"mqtt311/area/rule-{number}") for number in range(20)]
    target = RunningTarget(Target(name="fake"), Endpoint())

    async def order(seed: int, given: list[Case]) -> list[str]:
        return [case.id for case in Engine(target, CAPABILITIES, RunOptions(seed=seed)).in_order(given)]

    first = asyncio.run(order(1, cases))
    assert asyncio.run(order(1, cases[::-1])) == first
    assert asyncio.run(order(2, cases)) != first


def test_names_of_a_case_are_its_own_and_fit_every_broker() -> None:
    names: list[str] = []

    async def run(ctx: CaseContext) -> None:
        names.extend(ctx.client_id() for _ in range(100))
        names.append(ctx.topic("x"))

    outcome_of(a_case(run))
    outcome_of(a_case(run, id="mqtt311/area/other"))
    assert len(set(names)) == 202
    assert all(len(name) <= 23 and name.isalnum() for name in names if "/" not in name)


def test_who_was_late_once_is_waited_for_as_long_again() -> None:
    """Artemis on a busy machine: SUBACK after 13 s, and the next SUBACK was missed after 5."""

    async def run(ctx: CaseContext) -> None:
        looks = [ctx.second_look()]
        for late_s in (0.0, 0.5, 1.5):
            ctx._look_until = 0.0
            ctx.give_back(late_s)
            looks.append(ctx.second_look())
        ctx.must(looks == [True, False, False, True], f"seen {looks}")

    assert outcome_of(a_case(run)).result.verdict is CaseVerdict.PASS


def test_a_lower_qos_that_was_granted_is_no_breach() -> None:
    """A server may grant less than it is asked for (3.1.1 3.9.3, 5.0 3.9.3)."""

    async def answer(packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Subscribe):
            granted = packet.subscriptions[0].filter == "granted"
            writer.write(encode(Suback(packet_id=packet.packet_id, reason_codes=(1 + granted,)), 4))
            writer.write(encode(Publish(topic=packet.subscriptions[0].filter, qos=1, packet_id=1), 4))

    async def run(ctx: CaseContext) -> None:
        client = await ctx.connect()
        for name in ("lower", "granted"):
            await client.subscribe(name, qos=2)
            await client.expect_publish(name, qos=2)

    outcome = outcome_of(a_case(run), FakeBroker(answer))
    assert [incident.rule for incident in outcome.incidents] == [Rule.QOS]
    assert "granted" in outcome.incidents[0].text
