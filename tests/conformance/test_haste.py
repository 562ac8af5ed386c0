"""A case that took an acknowledgement for a delivery is tried again with pauses, and then accuses only who is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from assay.conformance.case import Case, CaseContext
from assay.conformance.haste import HASTY, may_be_late
from assay.conformance.judged import Outcome
from assay.conformance.nursery import Nursery
from assay.conformance.rules import Incident, Rule, StepFailureError
from assay.conformance.self_check import PATIENCE_S, _run_group
from assay.conformance.targets import load_target
from assay.reference_broker.trace.conformance import CaseVerdict

LATER = "any-forwarded-later"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Judged:
    """What came of a case on a broker, and which of its attempts paused."""

    def __init__(
        self,
        nursery: Nursery,
        broker: str,
        run: Callable[[CaseContext], Awaitable[None]],
        *,
        case_id: str = "mqtt311/assay/hasty",
        clauses: tuple[str, ...] = ("MQTT-3.3.1-6",),
        patience_s: float | None = None,
    ) -> None:
        self.paused: list[bool] = []

        async def noted(ctx: CaseContext) -> None:
            self.paused.append(ctx.haste.pauses)
            await run(ctx)

        case = Case(
            id=case_id,
            title="",
            expectation="",
            clauses=clauses,
            level="MUST",
            requires=(),
            mutant="",
            near_miss="",
            limit_s=5.0,
            module=__name__,
            run=noted,
        )
        outcomes, problem = _run_group(nursery, load_target("reference"), broker, (None, [case]), patience_s, 1)
        assert not problem
        self.outcome: Outcome = outcomes[0]
        self.verdict, self.detail = self.outcome.result.verdict, self.outcome.result.detail


async def takes_puback_for_retained(ctx: CaseContext) -> None:
    publisher, subscriber = await ctx.connect(name="publisher"), await ctx.connect(name="subscriber")
    await publisher.publish(ctx.topic(), b"kept", qos=1, retain=True)
    await subscriber.subscribe(ctx.topic())
    await subscriber.expect_publish(ctx.topic(), b"kept", retain=True)


async def takes_puback_for_forwarded(ctx: CaseContext) -> None:
    publisher, subscriber = await ctx.connect(name="publisher"), await ctx.connect(name="subscriber")
    await publisher.publish(ctx.topic(), b"earlier", qos=2)
    await subscriber.subscribe(ctx.topic())
    await ctx.expect_no_message(publisher, subscriber)


async def publishes_and_fails(ctx: CaseContext) -> None:
    client = await ctx.connect()
    await client.publish(ctx.topic(), b"1", qos=1)
    await client.subscribe(ctx.topic())
    ctx.fail("it is wrong")


@pytest.mark.parametrize("run", [takes_puback_for_retained, takes_puback_for_forwarded])
def test_who_forwards_later_than_it_acknowledges_is_not_accused(
    nursery: Nursery, run: Callable[[CaseContext], Awaitable[None]]
) -> None:
    """aedes answers PUBLISH first, and was accused of retained messages that came live."""
    judged = Judged(nursery, LATER, run)
    assert (judged.verdict, judged.paused) == (CaseVerdict.NON_STRICT, [False, True]), judged.detail
    assert judged.detail.startswith(HASTY)
    assert Judged(nursery, "", run).paused == [False], "who forwards at once is asked once"


def test_a_flag_that_another_case_is_about_is_not_booked_in_haste(nursery: Nursery) -> None:
    judged = Judged(nursery, LATER, takes_puback_for_retained, clauses=("MQTT-3.8.4-1",))
    assert (judged.verdict, judged.paused) == (CaseVerdict.NON_STRICT, [False, True])
    assert not judged.outcome.incidents


def test_what_fails_with_pauses_too_is_accused(nursery: Nursery) -> None:
    async def fails(ctx: CaseContext) -> None:
        await takes_puback_for_retained(ctx)
        ctx.fail("it is wrong")

    judged = Judged(nursery, LATER, fails)
    assert (judged.verdict, judged.detail, judged.paused) == (CaseVerdict.FAIL, "it is wrong", [False, True])


def test_a_case_without_haste_and_a_run_without_patience_are_not_tried_again(nursery: Nursery) -> None:
    async def publishes_last(ctx: CaseContext) -> None:
        client = await ctx.connect()
        await client.subscribe(ctx.topic())
        for payload in (b"1", b"2"):
            await client.publish(ctx.topic(), payload, qos=1)
        ctx.fail("it is wrong")

    assert Judged(nursery, LATER, publishes_last).paused == [False]
    assert Judged(nursery, LATER, takes_puback_for_retained, patience_s=PATIENCE_S).verdict is CaseVerdict.FAIL


@pytest.mark.parametrize("rule", [Rule.ACCEPT, Rule.STAYS_OPEN, Rule.FORM, Rule.SESSION_KEPT, Rule.SUBACK])
def test_no_late_message_is_the_reason_of_a_refused_or_ended_connection(nursery: Nursery, rule: Rule) -> None:
    """RabbitMQ ends a CONNECT without an answer now and then, Moquette a client that subscribes at once: that passed
    for a message that is forwarded later."""

    async def meets(ctx: CaseContext) -> None:
        await takes_puback_for_retained(ctx)
        raise StepFailureError(Incident(rule=rule, text="seen once"))

    judged = Judged(nursery, "", meets)
    assert (judged.verdict, judged.paused) == (CaseVerdict.FAIL, [False])
    assert "seen once" in judged.detail


def test_a_message_that_comes_before_an_answer_may_be_a_late_one() -> None:
    asked = Incident(rule=Rule.SUBACK, text="expected SUBACK; seen PUBLISH topic='t'")
    ended = Incident(rule=Rule.SUBACK, text="expected SUBACK; the broker ended the connection")
    assert (may_be_late(asked), may_be_late(ended)) == (True, False)
    other, perhaps = [Incident(rule=Rule.ORDER, text="4, 0, 1, 2", soft=soft) for soft in (False, True)]
    assert (may_be_late(other), may_be_late(perhaps)) == (False, True), "mochi, now and then"


def test_a_queue_has_what_it_has_confirmed(nursery: Nursery) -> None:
    judged = Judged(nursery, "", publishes_and_fails, case_id="queue/assay/hasty")
    assert (judged.verdict, judged.paused) == (CaseVerdict.FAIL, [False])
    assert Judged(nursery, "", publishes_and_fails).paused == [False, True]
