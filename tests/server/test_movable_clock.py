"""The clock of a broker that a test may move: what is due happens at once, and nobody else may touch it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from assay.conformance.case import Case, CaseContext, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.nursery import Nursery
from assay.conformance.targets import Target, TargetError, load_target, parse_target, probe
from assay.conformance.wire import Properties, Puback, Publish, Subscription
from assay.reference_broker.config import ConfigError, parse_config
from assay.reference_broker.queues import QueueError
from assay.reference_broker.server.clock import MAX_ADVANCE_S, Clock, seconds_of
from assay.reference_broker.trace.conformance import CaseVerdict


def test_the_clock_moves_forward_only() -> None:
    clock = Clock(ahead_s=1_000.0)
    before = clock.now()
    assert 990 < before - time.time() < 1_010
    clock.advance(50.0)
    assert 50 <= clock.now() - before < 60
    for seconds in (0.0, -1.0, MAX_ADVANCE_S * 2):
        with pytest.raises(QueueError, match="a clock moves by"):
            clock.advance(seconds)


@pytest.mark.parametrize("payload", [b"", b"soon", b"nan", b"inf", "１".encode(), b"1e999"])
def test_a_payload_that_is_no_number_of_seconds_is_refused(payload: bytes) -> None:
    with pytest.raises(QueueError, match="number of seconds"):
        seconds_of(payload)


@pytest.mark.parametrize(
    ("testing", "host", "complaint"),
    [
        ({"movable_clock": True}, "0.0.0.0", "loopback"),
        ({"clock_ahead_s": 5}, "127.0.0.1", "needs testing.movable_clock"),
        ({"movable_clock": True, "clock_ahead_s": -1}, "127.0.0.1", "0 to"),
    ],
)
def test_a_clock_that_anybody_could_move_is_refused(testing: dict[str, Any], host: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_config({"listeners": [{"host": "127.0.0.1"}, {"host": host}], "testing": testing})


def test_only_the_reference_broker_is_private_to_a_case() -> None:
    with pytest.raises(TargetError, match="reference broker"):
        parse_target('name = "mine"\n[capabilities]\nclock = true\n')


def run_privately(run: Callable[[CaseContext], Awaitable[None]], *requires: str, **settings: Any) -> str:
    """Run a function as a case with a broker of its own; what it failed with, or an empty text."""
    sample = load_cases()["queue/publish/kept-until-somebody-consumes"]
    fields = {name: getattr(sample, name) for name in sample.__struct_fields__}
    case = Case(**{**fields, "run": run, "requires": ("queues", *requires), "settings": settings, "limit_s": 20.0})
    target: Target = load_target("reference")
    with Nursery() as nursery, nursery.broker(target, "", case) as broker:
        engine = Engine(broker, probe(broker.target, broker.endpoint), RunOptions())
        result = asyncio.run(engine.run(case)).result
    return "" if result.verdict is CaseVerdict.PASS else f"{result.verdict} {result.detail}"


def test_what_is_due_has_happened_before_the_advance_is_confirmed() -> None:
    async def run(ctx: CaseContext) -> None:
        publisher = await ctx.connect(version=5, name="publisher")
        subscriber = await ctx.connect(version=5, name="subscriber")
        expiring = Properties(message_expiry_interval=100)
        await publisher.publish(ctx.topic("kept"), b"x", retain=True, qos=1, properties=expiring)
        await ctx.advance(60)
        await ctx.advance(60.5)
        await subscriber.subscribe(Subscription(filter=ctx.topic("kept"), qos=1))
        await subscriber.expect_nothing()

    assert run_privately(run, "clock") == ""


def test_an_unreasonable_advance_is_refused_with_a_code() -> None:
    async def run(ctx: CaseContext) -> None:
        client = await ctx.connect(version=5)
        for payload in (b"-1", b"later"):
            client.send(Publish(topic="$admin/clock/advance", payload=payload, qos=1, packet_id=7))
            puback = await client.expect(Puback)
            ctx.must(puback.reason_code == 0x83, f"expected 0x83; seen {puback}")

    assert run_privately(run, "clock") == ""


def test_a_restart_keeps_the_data_and_the_time() -> None:
    async def run(ctx: CaseContext) -> None:
        publisher = await ctx.connect(version=5, name="publisher")
        ttl = Properties(message_expiry_interval=100)
        await publisher.publish("$queue/kept", b"short", qos=1, properties=ttl)
        await publisher.publish("$queue/kept", b"long", qos=1)
        await ctx.advance(60)
        await ctx.restart()
        await ctx.advance(60)
        consumer = await ctx.connect(version=5, name="consumer")
        await consumer.subscribe(Subscription(filter="$queue/kept", qos=1))
        await consumer.expect_publish(payload=b"long")
        await consumer.expect_nothing()

    assert run_privately(run, "clock", "restart") == ""


def test_a_case_has_settings_of_its_own() -> None:
    async def run(ctx: CaseContext) -> None:
        client = await ctx.connect(version=5)
        client.send(Publish(topic="$queue/none", payload=b"x", qos=1, packet_id=7))
        puback = await client.expect(Puback)
        ctx.must(puback.reason_code >= 0x80, f"expected a refusal; seen {puback}")

    assert run_privately(run, "settings", queues={"auto_create": False}) == ""


def test_a_shared_broker_is_not_restarted() -> None:
    async def run(ctx: CaseContext) -> None:
        await ctx.restart()

    assert "not private" in run_privately(run)
