"""The suite's AMQP client on servers that do as a script says: what it waits for, and what it holds against them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from assay.conformance.amqp091.bystander import AmqpBystander
from assay.conformance.amqp091.context import AmqpCaseFunction, AmqpContext, is_among, variants_of
from assay.conformance.bystander import BystanderError
from assay.conformance.case import Case, CaseFunction, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.rules import Rule
from assay.conformance.targets import (
    DEFAULT_CAPABILITIES,
    Endpoint,
    ProbeError,
    RunningTarget,
    Target,
    amqp_endpoint,
    greet,
    probe,
)
from assay.conformance.wire.amqp091 import AMQP_091, Method, encode_body, encode_header, encode_method
from assay.reference_broker.trace.conformance import CaseVerdict
from tests.conformance.amqp091.scripted_server import Script, serving, sound

ABLE = {**DEFAULT_CAPABILITIES, "amqp091": True}


def _case(run: AmqpCaseFunction, *clauses: str) -> Case:
    return Case(
        id="amqp091/assay/scripted",
        title="",
        expectation="",
        clauses=clauses,
        level="MUST",
        requires=(),
        mutant="",
        near_miss="",
        limit_s=2.0,
        module=__name__,
        run=cast(CaseFunction, run),
    )


def _judged(script: Script, run: AmqpCaseFunction, *clauses: str) -> Outcome:
    async def judged() -> Outcome:
        async with serving(script) as endpoint:
            engine = Engine(RunningTarget(Target(name="x"), endpoint), ABLE, RunOptions(patience_s=1.0))
            return await engine.run(_case(run, *clauses))

    return asyncio.run(judged())


def _answering(name: str, *answers: Method | bytes) -> Script:
    return lambda _channel, method: answers if method.name == name else None


async def _declares(ctx: AmqpContext) -> None:
    channel = await ctx.channel()
    await channel.queue()
    await channel.barrier()


async def _gets(ctx: AmqpContext) -> None:
    channel = await ctx.channel()
    await channel.get("q")


_REFUSED = Method("channel.close", reply_code=403, reply_text="no", class_id=50, method_id=10)


def test_a_server_that_answers_everything_passes() -> None:
    outcome = _judged(lambda _channel, _method: None, _declares)
    assert (outcome.result.verdict, outcome.result.detail) == (CaseVerdict.PASS, "")
    texts = [line.decoded for line in outcome.transcript]
    assert any(text.startswith("ch 1: queue.declare queue='assay.") for text in texts), texts
    assert "connection.start" in texts[2]


@pytest.mark.parametrize(
    "answers", [(_REFUSED,), (), (Method("queue.bind-ok"),), (Method("connection.close", reply_code=541),)]
)
def test_a_step_that_fails_is_booked_on_its_rule(answers: Sequence[Method]) -> None:
    """By itself, the case fails on the clauses of the step, and not on its own."""
    outcome = _judged(_answering("queue.declare", *answers), _declares, "basic.10")
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert outcome.result.clauses == ["sync.queue.declare"]


def test_one_root_is_one_failure() -> None:
    """A case about declarations fails for all that merely need one."""

    async def judged() -> list[Outcome]:
        async with serving(_answering("queue.declare", _REFUSED)) as endpoint:
            engine = Engine(RunningTarget(Target(name="x"), endpoint), ABLE, RunOptions(patience_s=1.0))
            cases = [
                load_cases()[name]
                for name in ("amqp091/queue/requests-are-answered", "amqp091/tx/publishes-wait-for-commit")
            ]
            return await engine.run_all(cases, lambda _outcome: None)

    outcomes = {outcome.result.case: outcome.result for outcome in asyncio.run(judged())}
    assert outcomes["amqp091/queue/requests-are-answered"].verdict is CaseVerdict.FAIL
    blocked = outcomes["amqp091/tx/publishes-wait-for-commit"]
    seen = blocked.verdict, blocked.blocked_by
    assert seen == (CaseVerdict.BLOCKED, "amqp091/queue/requests-are-answered"), blocked.detail


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x48\xcd",
        encode_method(1, Method("basic.deliver")) + encode_method(1, Method("basic.get-empty")),
        encode_method(7, Method("basic.get-empty")),
        encode_method(1, Method("basic.get-ok", delivery_tag=1)) + encode_header(1, 1, weight=1) + encode_body(1, b"x"),
    ],
)
def test_what_no_server_may_send_is_noticed_wherever_it_comes(data: bytes) -> None:
    outcome = _judged(_answering("basic.get", data), _gets, "basic.10")
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert "sent what no server may send" in outcome.result.detail
    assert any(incident.rule is Rule.AMQP_FORM for incident in outcome.incidents)


def test_a_code_of_the_connection_on_a_channel_is_a_failure_of_its_own() -> None:
    close = Method("channel.close", reply_code=540, class_id=60, method_id=40)

    async def immediate(ctx: AmqpContext) -> None:
        channel = await ctx.channel()
        channel.publish("", "q", b"", immediate=True)
        await channel.outcome_of()

    outcome = _judged(_answering("basic.publish", close), immediate, "basic.publish.immediate.01")
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert outcome.result.clauses == ["sec.2.3.6.exceptions", "sec.4.8.2.reply-code"]


@pytest.mark.parametrize(
    ("acks", "fault"),
    [
        ([(1, False), (2, False)], ""),
        ([(2, True)], ""),
        ([(2, False), (1, False)], ""),
        ([(1, False), (1, False)], "each once; seen tag 1"),
        ([(3, False)], "seen tag 3"),
        ([(0, True)], "seen tag 0"),
    ],
)
def test_confirms_are_counted(acks: Sequence[tuple[int, bool]], fault: str) -> None:
    seen = 0

    def script(_channel: int, method: Method) -> Sequence[Method] | None:
        nonlocal seen
        if method.name != "basic.publish":
            return None
        seen += 1
        return [Method("basic.ack", delivery_tag=tag, multiple=many) for tag, many in acks] if seen == 2 else []

    async def publishes(ctx: AmqpContext) -> None:
        channel = await ctx.channel()
        await channel.confirms()
        channel.publish("", "q", b"")
        channel.publish("", "q", b"")
        await channel.confirmed()

    outcome = _judged(script, publishes)
    assert (outcome.result.verdict is CaseVerdict.PASS) is not fault or fault in outcome.result.detail
    assert fault in outcome.result.detail


def test_what_comes_unasked_stays_for_who_waits_for_it() -> None:
    deliver = encode_method(1, Method("basic.deliver", consumer_tag="c", delivery_tag=1)) + encode_header(1, 0)

    async def consumes(ctx: AmqpContext) -> None:
        channel = await ctx.channel()
        await channel.consume("q")
        await channel.barrier()
        ctx.must((await channel.delivery()).tag == 1, "expected the delivery")

    script = _answering("basic.consume", Method("basic.consume-ok", consumer_tag="c"), deliver)
    assert _judged(script, consumes).result.verdict is CaseVerdict.PASS


def test_what_a_case_declared_is_deleted_behind_it() -> None:
    deleted: list[str] = []

    def script(_channel: int, method: Method) -> None:
        if method.name in ("queue.delete", "exchange.delete"):
            deleted.append(method.name)

    async def declares(ctx: AmqpContext) -> None:
        channel = await ctx.channel()
        await channel.queue(shared=True)
        await channel.exchange("fanout", durable=True)
        ctx.fail("whatever becomes of it")

    _judged(script, declares)
    assert deleted == ["queue.delete", "exchange.delete"]


def test_what_is_asked_for_again_and_again_has_an_end() -> None:
    """Every wait that ends well gives its time back: a loop of short ones went on for a quarter of an hour."""

    async def waits_in_vain(ctx: AmqpContext) -> None:
        channel = await ctx.channel()
        await channel.get_soon("q")

    outcome = _judged(lambda *_: None, waits_in_vain)
    assert outcome.result.verdict is CaseVerdict.FAIL
    assert outcome.result.duration_ms < 5_000


# Probing


def _asked(target: Target, function: Callable[[Target, Endpoint], object], script: Script = lambda *_: None) -> object:
    async def asked() -> object:
        async with serving(script) as endpoint:
            return await asyncio.to_thread(function, target, endpoint)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    "target",
    [Target(name="x"), Target(name="x", capabilities={"mqtt311": False, "mqtt5": False, "amqp091": True})],
)
def test_what_speaks_nothing_else_is_asked_for_amqp(target: Target) -> None:
    found = _asked(target, lambda target, endpoint: probe(target, endpoint, timeout_s=5.0))
    assert isinstance(found, dict)
    shown = [
        found[name] for name in ("mqtt311", "mqtt5", "amqp091", "publisher_confirms", "basic_nack", "direct_reply_to")
    ]
    assert shown == [False, False, True, True, False, False]


def test_a_target_file_may_take_an_extension_away() -> None:
    target = Target(
        name="x", capabilities={"mqtt311": False, "mqtt5": False, "amqp091": True, "publisher_confirms": False}
    )
    found = _asked(target, lambda target, endpoint: probe(target, endpoint, timeout_s=5.0))
    assert isinstance(found, dict)
    assert found["publisher_confirms"] is False


@pytest.mark.parametrize(
    ("name", "answers", "fault"),
    [
        ("connection.start-ok", [Method("connection.close", reply_code=403)], "connection.close 403"),
        ("connection.open", [Method("connection.close", reply_code=530)], "connection.close 530"),
        ("connection.open", [b"\x63\x00\x00\x00\x00\x00\x00\xce"], "no frames"),
    ],
)
def test_a_handshake_that_fails_says_how_far_it_came(name: str, answers: Sequence[Method | bytes], fault: str) -> None:
    with pytest.raises(ProbeError, match=fault):
        _asked(
            Target(name="x"), lambda _, endpoint: greet(endpoint, AMQP_091, timeout_s=5.0), _answering(name, *answers)
        )


def test_amqp_may_be_spoken_at_another_place() -> None:
    at = amqp_endpoint(Endpoint(port=1883, username="mqtt"), {"amqp091_url": "amqp://localhost:5673"})
    assert (at.host, at.port, at.username, at.password) == ("localhost", 5673, "guest", "guest")
    at = amqp_endpoint(Endpoint(port=5672, username="maria", password="secret"), {})
    assert (at.port, at.username, at.password) == (5672, "maria", "secret")


# The bystander


def _echo(_channel: int, method: Method) -> Sequence[Method | bytes] | None:
    """Every publish is delivered, as a body that the bystander's first message has."""
    if method.name != "basic.publish":
        return None
    deliver = encode_method(1, Method("basic.deliver", consumer_tag="c", delivery_tag=1))
    return [deliver + encode_header(1, 1) + encode_body(1, b"1")]


@pytest.mark.parametrize(("script", "served"), [(_echo, True), (sound, False)])
def test_a_bystander_tells_whether_it_is_served(script: Script, served: bool) -> None:
    async def joined() -> bool:
        async with serving(script) as endpoint:
            bystander = AmqpBystander(amqp_endpoint(endpoint, {}), timeout_s=5.0 if served else 0.3)
            try:
                await bystander.join()
            except BystanderError as error:
                assert "no answer within" in str(error)
                return False
            finally:
                bystander.close()
            return True

    assert asyncio.run(joined()) is served


# Variants


def test_outcomes_are_compared_with_the_words_of_the_registry() -> None:
    assert is_among("channel 404", ("channel 404", "ok"))
    assert not is_among("channel 404", ("connection 404", "close"))
    assert is_among("connection 541", ("connection any",))
    assert is_among("channel 406", ("channel any",))
    assert not is_among("channel 541", ("channel any",)), "a code of the connection"
    assert not is_among("connection 999", ("connection any",))
    assert not is_among("close", ("connection any",))
    with pytest.raises(KeyError):
        variants_of("basic.10")
