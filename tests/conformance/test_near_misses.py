"""The legal variations that every case must pass: complete, legal, and able to accuse a case that asks too much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from assay.conformance import mutants
from assay.conformance.case import Case, CaseContext, load_cases
from assay.conformance.mutants.output_order import _Outbox, frames_of, topic_of
from assay.conformance.nursery import Nursery
from assay.conformance.registry import unproven_case_ids
from assay.conformance.self_check import BASELINE, EVERYONE, PATIENCE_S, Check, _check_all, work_of
from assay.conformance.wire import (
    Connack,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscription,
    encode,
)
from assay.reference_broker.trace.conformance import CaseVerdict

FREE = {name: entry for name, entry in mutants.all_mutants().items() if entry.freedom and not entry.minutes}
GROUPED = [name for group in EVERYONE for name in group.split("+")]


def _case(run: Any) -> Case:
    return Case(
        id="mqtt5/assay/too-much",
        title="",
        expectation="",
        clauses=(),
        level="MUST",
        requires=(),
        mutant="",
        near_miss="",
        limit_s=2.0,
        module=__name__,
        run=run,
    )


async def _needs_two_under_way(ctx: CaseContext) -> None:
    topic = ctx.topic()
    subscriber, publisher = await ctx.connect(name="subscriber"), await ctx.connect(name="publisher")
    await subscriber.subscribe(topic, qos=1)
    for payload in (b"1", b"2"):
        await publisher.publish(topic, payload, qos=1)
    for _ in range(2):
        await subscriber.expect_publish(topic, ack=False)


async def _trusts_pingresp(ctx: CaseContext) -> None:
    client = await ctx.connect()
    client.send(Publish(topic=ctx.topic(), qos=1, packet_id=1))
    ctx.must(len(await client.barrier()) == 1, "expected the PUBACK before PINGRESP")


async def _orders_topics(ctx: CaseContext) -> None:
    client = await ctx.connect()
    topics = [ctx.topic(f"{number}") for number in range(8)]
    await client.subscribe(*topics)
    client.send(*(Publish(topic=topic) for topic in topics))
    for topic in topics:
        await client.expect_publish(topic)


async def _orders_levels(ctx: CaseContext) -> None:
    client = await ctx.connect()
    await client.subscribe(Subscription(filter=ctx.topic(), qos=1))
    client.send(Publish(topic=ctx.topic(), qos=1, packet_id=1), Publish(topic=ctx.topic()))
    for qos in (1, 0):
        seen = await client.expect(Publish, skipping=(Puback,))
        ctx.must(seen.qos == qos, f"expected QoS {qos}")


async def _orders_confirmed_levels(ctx: CaseContext) -> None:
    client = await ctx.connect()
    await client.subscribe(Subscription(filter=ctx.topic(), qos=2))
    client.send(Publish(topic=ctx.topic(), qos=1, packet_id=1), Publish(topic=ctx.topic(), qos=2, packet_id=2))
    client.send(Pubrel(packet_id=2))
    for qos in (1, 2):
        seen = await client.expect(Publish, skipping=(Puback, Pubrec, Pubcomp))
        ctx.must(seen.qos == qos, f"expected QoS {qos}")


async def _has_no_time(ctx: CaseContext) -> None:
    client = await ctx.connect()
    client.send(Publish(topic=ctx.topic(), qos=1, packet_id=1))
    await client.expect(Puback, within_s=0.1)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def _check(nursery: Nursery, name: str, case: Case) -> Check:
    (check,) = asyncio.run(_check_all(nursery, {("reference", name): [case]}, jobs=1))
    return check


@pytest.mark.parametrize("name", ["v3-every-second-ping-lost", "any-window-of-one"])
def test_a_bug_that_is_not_noticed_in_haste_is_looked_for_again_with_the_whole_time(
    nursery: Nursery, name: str
) -> None:
    patience_s: list[float] = []

    async def notices_late(ctx: CaseContext) -> None:
        patience_s.append(ctx.patience_s)
        ctx.must(ctx.patience_s < ctx.limit_s, "noticed")

    async def notices_nothing(ctx: CaseContext) -> None:
        patience_s.append(ctx.patience_s)

    check = _check(nursery, name, _case(notices_late))
    assert check.ok is (not check.legal), "a mutant is killed, a near miss is accused twice"
    assert patience_s == ([PATIENCE_S] if not check.legal else [2.0]) + [2.0]
    assert _check(nursery, name, _case(notices_nothing)).ok is check.legal


def test_who_is_accused_once_in_two_runs_is_told_of(nursery: Nursery) -> None:
    runs: list[str] = []

    async def accuses_once(ctx: CaseContext) -> None:
        runs.append("")
        ctx.must(len(runs) > 1, "too early")

    check = _check(nursery, "any-window-of-one", _case(accuses_once))
    assert check.ok
    assert [line.split()[1] for line in check.unsteady] == [CaseVerdict.FAIL.value], check


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("any-window-of-one", _needs_two_under_way),
        ("any-pingresp-first", _trusts_pingresp),
        ("any-topics-apart", _orders_topics),
        ("any-qos-0-first", _orders_levels),
        ("any-qos-apart", _orders_confirmed_levels),
        ("any-late-acknowledgements", _has_no_time),
    ],
)
def test_a_case_that_asks_too_much_is_accused(nursery: Nursery, name: str, run: Any) -> None:
    case = _case(run)
    sound = _check(nursery, BASELINE, case)
    assert sound.ok, sound
    check = _check(nursery, name, case)
    assert check.legal
    assert [line.split()[1] for line in check.wrong] == [CaseVerdict.FAIL.value], check


def test_every_free_variation_is_run_over_every_suite() -> None:
    assert set(GROUPED) == set(FREE), "each in a group"
    assert all(entry.legal for entry in FREE.values())
    unproven = set(unproven_case_ids())
    cases = [case for case in load_cases().values() if case.id not in unproven]
    work = work_of(cases)
    for group, specs in EVERYONE.items():
        checked = {case.id for (_, name), some in work.items() if name == group for case in some}
        wanted = {case.id for case in cases if case.spec in specs and not case.is_private}
        assert wanted <= checked, group
    private = {case.id for case in cases if case.is_private}
    run = {case.id for (_, name), some in work.items() if name in EVERYONE for case in some}
    assert private <= run, "each private case on one of them"


def test_only_named_cases_may_find_nothing_to_judge() -> None:
    known = set(load_cases())
    for name, entry in FREE.items():
        assert known.issuperset(entry.silences), name


def test_one_variation_is_run_alone_on_all_cases() -> None:
    cases = [case for case in load_cases().values() if case.spec == "mqtt5"]
    work = work_of(cases, "any-window-of-one")
    assert {name for _, name in work} == {"any-window-of-one"}
    assert sum(map(len, work.values())) == len(cases)


def test_lanes_keep_their_order_and_connack_comes_first() -> None:
    outbox = _Outbox()
    outbox.add(b"\x20\x00", "slow", 5.0)
    outbox.add(b"\xd0\x00", "first", -1.0)
    outbox.add(b"\x40\x02\x00\x01", "slow", 7.0)
    outbox.add(b"\x40\x02\x00\x02", "slow", 6.0)
    outbox.add(b"\xe0\x00", "first", -1.0)
    assert outbox.take(4.9, lambda _frame: False) == b""
    assert outbox.take(5.0, lambda _frame: False) == b"\x20\x00\xd0\x00"
    held = outbox.take(7.0, lambda frame: frame.endswith(b"\x01"))
    assert held == b"\xe0\x00", "what is behind a held frame waits, other lanes do not"
    assert outbox.take(8.0, lambda _frame: False) == b"\x40\x02\x00\x01\x40\x02\x00\x02"


def test_frames_and_topics_are_found() -> None:
    packets = (Connack(), Publish(topic="a/b", payload=b"x" * 300), Pingresp())
    frames = [encode(packet, 5) for packet in packets]
    assert list(frames_of(b"".join(frames))) == frames
    assert [topic_of(frame) for frame in frames] == [b"", b"a/b", b""]


@pytest.mark.parametrize(("wait_s", "is_early"), [(60.0, True), (-1.0, False)])
def test_what_comes_when_it_is_due_is_no_fault_of_a_slow_machine(
    nursery: Nursery, wait_s: float, is_early: bool
) -> None:
    async def waits(ctx: CaseContext) -> None:
        client = await ctx.connect()
        await client.subscribe(ctx.topic())
        client.send(Publish(topic=ctx.topic(), payload=b"due"))
        await client.expect_nothing(before=ctx.due_in(wait_s))
        await client.expect_publish(ctx.topic(), b"due")

    check = _check(nursery, BASELINE, _case(waits))
    assert bool(check.wrong) == is_early, check
