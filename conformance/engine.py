"""Runs cases against a broker, many at a time, and turns the way each ends into one of the nine verdicts.

How verdicts come about (:class:`~assay.reference_broker.trace.conformance.CaseVerdict`):

=============================================  ============================================================
the case returned                              ``pass``, or ``non_strict`` if it reported something
a MUST was seen to be violated                 ``fail``
a step failed that the case is not about       ``blocked`` (:mod:`assay.conformance.booking`)
the target lacks a required capability         ``unsupported``; known before the case starts, or said by it
``fail`` of a case in ``expect_fail``          ``xfail``; if it passes instead, ``xpass``
anything else was raised, or the limit passed  ``error``: the harness failed
the harness itself was held up meanwhile       a ``fail`` or ``error`` does not count: the case is run again
it counts on timers, and the answers lag       a ``fail`` or ``blocked`` says nothing of the broker: the case is run
its own steps outlast an interval that it set  again with longer ones (:attr:`CaseContext.stretch`), in the end
                                               ``unsupported``
it took an acknowledgement for a delivery      a ``fail`` or ``blocked`` does not count: the case is run again with
                                               pauses (:mod:`assay.conformance.haste`), and ``non_strict`` if it passes
others are not served afterwards, each time    ``fail``: bad input and lost connections are their client's affair
the broker died meanwhile                      ``fail`` of a case that was alone with it; all others are ``not_run``,
                                               and :class:`assay.conformance.run.Run` runs them again where it can
=============================================  ============================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import secrets
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from assay.conformance.amqp091.bystander import AmqpBystander
from assay.conformance.amqp091.context import AmqpContext
from assay.conformance.booking import is_told_by, settle, step_of
from assay.conformance.bystander import Bystander, BystanderError, MqttBystander
from assay.conformance.case import ABSENT, Case, CaseContext
from assay.conformance.cohort import RestartGate
from assay.conformance.connection import Connection
from assay.conformance.grpc.context import GrpcContext
from assay.conformance.haste import HASTY, may_be_late
from assay.conformance.http.context import HttpContext
from assay.conformance.judged import Outcome
from assay.conformance.outcome import CaseFailureError, TargetUnreachableError, TooSlowError, UnsupportedError
from assay.conformance.rules import FACES, Incident, Rule, StepFailureError
from assay.conformance.stall import StallWatch
from assay.conformance.targets import (
    DENIED_BY_CONNACK,
    CapabilityValue,
    Damage,
    Endpoint,
    ExpectedFailure,
    ProbeError,
    RunningTarget,
    StrangeAnswerError,
    Target,
    TargetStartError,
    amqp_endpoint,
    face_endpoint,
    greet,
)
from assay.conformance.wire import Connack, Publish
from assay.conformance.wire.amqp091 import AMQP_091
from assay.conformance.wire.grpc import ADVICE, is_installed
from assay.conformance.wire.http import GRPC, HTTP_11
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict

DEFAULT_CONCURRENCY = 16
_CLEANUP_LIMIT_S = 2.0
_ALIVE_TIMEOUT_S = 5.0
_MAX_ATTEMPTS = 3
_STRETCH = 3
"""How much longer than in the attempt before the intervals are that a case sets."""
_SUSPECTED_TIMES = 2
_HANDSHAKES = 4
_SILENT_HANDSHAKES = 2
_STALL_S = 0.25
"""A harness that was held up for longer than this may have missed a deadline of the protocol, such as a keep alive."""
_NOT_JUDGED = "not judged: "
_TOO_LONG = "the case took longer than its limit"
_ALL_ENDED = "the broker has ended connections of clients that had no part in it"
BAD = (CaseVerdict.FAIL, CaseVerdict.BLOCKED, CaseVerdict.ERROR)


_CAPABILITY = {4: "mqtt311", 5: "mqtt5", AMQP_091: "amqp091", **{version: name for name, version in FACES.items()}}
"""To speak a version."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run."""

    seed: int = 0
    """Order of the cases, and what the cases vary by chance."""
    concurrency: int = DEFAULT_CONCURRENCY
    patience_s: float | None = None
    """Longest single wait; None = up to the limit of the case."""


def missing_capability(case: Case, capabilities: Mapping[str, CapabilityValue]) -> str:
    """Why the case cannot be run against a target with these capabilities; empty if it can."""
    needed = [name for name in (_CAPABILITY[case.version], *case.requires) if not name.startswith(ABSENT)]
    lacking = [name for name in needed if not capabilities.get(name, False)]
    if case.version == GRPC and capabilities.get("grpc_url") and not is_installed():
        return ADVICE
    if lacking:
        return f"the target lacks: {', '.join(lacking)} (declared, or shown by its CONNACK)"
    unwanted = [name.removeprefix(ABSENT) for name in case.requires if name.startswith(ABSENT)]
    present = [name for name in unwanted if capabilities.get(name, False)]
    return f"the target has: {', '.join(present)}; the case is about a target without" if present else ""


def with_expectation(result: CaseResult, target: Target) -> CaseResult:
    """Apply the target file's ``expect_fail`` and ``expect_step`` to a verdict."""
    entry = target.expected_failure(result.case)
    if entry is None and result.verdict is CaseVerdict.FAIL and (rule := step_of(result)) is not None:
        step = next((one for one in target.expect_step if one.statement in result.clauses), None)
        if step is not None:
            entry = ExpectedFailure(case=result.case, reason=step.reason, link=step.link)
        else:  # known by a case that is about it, and was perhaps not asked
            entry = next((one for one in target.expect_fail if is_told_by(rule, one.case, result.spec)), None)
    if entry is None:
        return result
    if result.verdict is CaseVerdict.FAIL:
        detail = f"known: {entry.reason}; {result.detail}"
        return msgspec.structs.replace(result, verdict=CaseVerdict.XFAIL, detail=detail, link=entry.link)
    if result.verdict in (CaseVerdict.PASS, CaseVerdict.NON_STRICT) and not entry.sometimes:
        detail = f"passes, but the target file expects it to fail ({entry.reason}): take the entry out"
        return msgspec.structs.replace(result, verdict=CaseVerdict.XPASS, detail=detail, link=entry.link)
    return result


def blank_result(case: Case, verdict: CaseVerdict, detail: str, *, reproduce: str = "") -> CaseResult:
    """A result of ``case`` without duration."""
    return CaseResult(
        case=case.id,
        title=case.title,
        expectation=case.expectation,
        spec=case.spec,
        area=case.area,
        clauses=list(case.clauses),
        level=case.level,
        verdict=verdict,
        detail=detail,
        requires=list(case.requires),
        mutant=case.mutant,
        reproduce=reproduce,
    )


class Engine:
    """Runs cases against one running broker within one event loop."""

    def __init__(
        self,
        broker: RunningTarget,
        capabilities: Mapping[str, CapabilityValue],
        options: RunOptions,
        *,
        reproduce: Callable[[Case], str] = lambda _case: "",
        solo: bool = False,
        restarts: bool = True,
    ) -> None:
        """``solo``: whichever case runs when the broker dies has killed it; else only one that runs by itself has.

        Without ``restarts``, a case that asks for one just loses its connections.
        """
        self.broker, self.capabilities, self.options, self.reproduce = broker, capabilities, options, reproduce
        self.solo, self._restarts = solo, restarts
        self.broker_died = ""
        """Why no further case is started; empty while the broker answers."""
        self.died_during: tuple[str, ...] = ()
        """The cases that ran when it died."""
        self._gone = self._ending = ""
        self._begun: list[str] = []
        self._alive_timeout_s = _ALIVE_TIMEOUT_S if options.patience_s is None else options.patience_s
        # Sessions and retained messages may outlive a run of a broker that is not ours: a fresh token keeps runs apart.
        self._run_token = f"{secrets.randbelow(16**4):04x}"
        self._slots = asyncio.Semaphore(options.concurrency)
        self._being_alone = asyncio.Lock()
        self._suspecting = asyncio.Lock()
        self._stalls = StallWatch()
        self._attempts = 0
        self._members, self._gate = 1, self._new_gate(1)
        """Of the cases that have the broker to themselves."""
        self._bystanders: dict[bool, Bystander[Any]] = {}
        """Of MQTT and (True) of AMQP, present while many cases run, unless the broker does not even serve a client that
        nobody disturbs."""

    def in_order(self, cases: Iterable[Case]) -> list[Case]:
        """The order in which the seed starts the cases."""
        ordered = sorted(cases, key=lambda case: case.id)
        random.Random(self.options.seed).shuffle(ordered)
        return ordered

    async def run_all(self, cases: Iterable[Case], report: Callable[[Outcome], None]) -> list[Outcome]:
        """Run cases at the same time, within ``concurrency``; ``report`` gets each outcome as it is known."""

        async def one(case: Case) -> Outcome:
            outcome = await self.judge(case)
            if not outcome.waits_for_others:
                report(outcome)
            return outcome

        await self.invite_bystander()
        try:
            outcomes = settle(await asyncio.gather(*(one(case) for case in self.in_order(cases))), self.expected)
        finally:
            self.dismiss_bystander()
        for outcome in outcomes:
            if outcome.waits_for_others:
                report(outcome)
        return outcomes

    def expected(self, result: CaseResult) -> CaseResult:
        """The verdict as the target file sees it."""
        return with_expectation(result, self.broker.target)

    async def idle(self) -> None:
        """Wait for the cases that run."""
        async with self._being_alone:
            for _ in range(self.options.concurrency):
                await self._slots.acquire()
            for _ in range(self.options.concurrency):
                self._slots.release()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait for the cases that run, and let none begin within the block: their broker is killed there."""
        async with self._being_alone:
            for _ in range(self.options.concurrency):
                await self._slots.acquire()
            had_bystander = bool(self._bystanders)
            self.dismiss_bystander()
            try:
                yield
            finally:
                if had_bystander:
                    await self.invite_bystander()
                for _ in range(self.options.concurrency):
                    self._slots.release()

    def _new_gate(self, members: int) -> RestartGate:
        return RestartGate(members, lambda ahead_s, damage: asyncio.to_thread(self.broker.restart, ahead_s, damage))

    async def run_together(self, cases: Sequence[Case]) -> list[Outcome]:
        """Run cases that share the broker and its restarts; ``concurrency`` must not be lower than their number."""
        self._members, self._gate = len(cases), self._new_gate(len(cases))

        async def one(case: Case) -> Outcome:
            try:
                return await self.judge(case)
            finally:
                self._gate.leave()

        return list(await asyncio.gather(*(one(case) for case in self.in_order(cases))))

    async def run(self, case: Case) -> Outcome:
        """Run one case by itself: a step that fails is then the only thing known, so that it decides."""
        return settle([await self.judge(case)], self.expected)[0]

    def capabilities_for(self, case: Case) -> Mapping[str, CapabilityValue]:
        """What the broker can in the version of the case.

        What a CONNACK of 5.0 denies it denies 5.0 clients: 3.1.1 has no such limits, so that only the target file may.
        """
        if case.version >= 5:
            return self.capabilities
        declared = self.broker.target.capabilities
        return {**self.capabilities, **{name: declared.get(name, True) for name in DENIED_BY_CONNACK}}

    async def judge(self, case: Case) -> Outcome:
        """Run one case; never raises for what the broker or the case does. Incidents are still to be settled."""
        lacking = missing_capability(case, self.capabilities_for(case))
        if lacking:
            return Outcome(result=blank_result(case, CaseVerdict.UNSUPPORTED, lacking))
        async with self._slots:
            if self.broker_died:
                return Outcome(result=blank_result(case, CaseVerdict.NOT_RUN, self.broker_died))
            self._begun.append(case.id)
            try:
                return await self._execute(case)
            finally:
                self._begun.remove(case.id)

    def _context(self, case: Case) -> CaseContext:
        self._attempts += 1
        make: Callable[..., CaseContext] = AmqpContext if case.version == AMQP_091 else CaseContext
        if case.is_about_a_face:
            kind = HttpContext if case.version == HTTP_11 else GrpcContext
            make = functools.partial(kind, where=lambda: self._endpoint(case.version))
        return make(
            case,
            self.broker.endpoint if case.is_about_a_face else self._endpoint(case.version),
            self.capabilities_for(case),
            run_token=f"{self._run_token}{self._attempts:03x}",
            seed=self.options.seed,
            patience_s=self.options.patience_s,
            looks_again=not self.broker.target.surely_fails(case.id),
            restart=self._restart_for(case),
            change=self._change_for(case),
            pid=lambda: self.broker.pid,
        )

    def _endpoint(self, version: int) -> Endpoint:
        endpoint = self.broker.endpoint
        if version in FACES.values():
            return face_endpoint(endpoint, str(self.broker.target.capabilities.get(f"{_CAPABILITY[version]}_url", "")))
        return amqp_endpoint(endpoint, self.capabilities) if version == AMQP_091 else endpoint

    def _restart_for(self, case: Case) -> Callable[[float, Damage], Awaitable[Endpoint]] | None:
        async def restart(clock_ahead_s: float, damage: Damage) -> Endpoint:
            if self._restarts:
                await self._gate.pass_through(clock_ahead_s, damage)
            return self.broker.endpoint if case.is_about_a_face else self._endpoint(case.version)

        return restart if case.is_private else None

    def _change_for(self, case: Case) -> Callable[[Mapping[str, Any], bool], Awaitable[None]] | None:
        change = self.broker.change
        if change is None or not case.is_private:
            return None
        return lambda settings, reload: asyncio.to_thread(change, settings, reload=reload)

    async def _execute_suspected(self, case: Case) -> Outcome:
        """Others were not served after the case, or after one beside it: it is accused if that happens each time."""
        async with self._suspecting:
            for _ in range(_SUSPECTED_TIMES):
                bystander = self._bystanders.get(case.version == AMQP_091)
                if bystander is not None:
                    with contextlib.suppress(BystanderError):
                        await bystander.join()
                outcome = await self._execute(case, suspected=True)
                if outcome.result.verdict is not CaseVerdict.FAIL:
                    break
            return outcome

    async def _execute(self, case: Case, *, suspected: bool = False) -> Outcome:
        why = hasty = ""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            began = asyncio.get_running_loop().time()
            ctx = self._context(case)
            losses = await self._losses_so_far()
            if attempt > 1:
                ctx.note(f"attempt {attempt}: in the one before, {why}")
                ctx.limit_s *= attempt
                ctx.stretch = _STRETCH ** (attempt - 1)
                ctx.haste.pauses = True
            try:
                with self._stalls:
                    verdict, detail = await _judge(case, ctx)
                    suspicion = await self._effect_on_others(ctx, verdict, losses)
                    stall_s = self._stalls.longest_since(began)
            except asyncio.CancelledError:
                # The run is stopped. What is not ours to throw away is left as it was found.
                if self.broker.is_hosted:
                    await _clean_up(ctx)
                raise
            finally:
                ctx.close()
            if suspicion and not suspected and not await self._why_gone(case.version):
                return await self._execute_suspected(case)
            if suspicion:
                verdict, detail = CaseVerdict.FAIL, f"after this case, others are not served: {suspicion}"
            if verdict in (CaseVerdict.FAIL, CaseVerdict.BLOCKED) and ctx.is_timed and not ctx.lag:
                await ctx.measure_a_delivery()
            if verdict in (CaseVerdict.FAIL, CaseVerdict.BLOCKED) and ctx.lag:
                verdict, detail = CaseVerdict.UNSUPPORTED, f"{_NOT_JUDGED}{ctx.lag}; {detail}"
                ctx.incidents.clear()
            if verdict in (CaseVerdict.FAIL, CaseVerdict.BLOCKED) and ctx.offer.exceeded:
                verdict, detail = CaseVerdict.UNSUPPORTED, f"{ctx.offer.exceeded}; {detail}"
                ctx.incidents.clear()
            never_back = any(incident.rule is Rule.STARTS_AGAIN for incident in ctx.incidents)
            says_nothing = detail.startswith(_NOT_JUDGED)
            is_in_haste = not hasty and stall_s < _STALL_S and self._is_in_haste(ctx, verdict)
            if never_back or (verdict not in BAD and not says_nothing and not is_in_haste):
                break
            took_too_long = detail.startswith(_TOO_LONG) and stall_s < _STALL_S
            attempts = 2 if ctx.lag or took_too_long else _MAX_ATTEMPTS
            means_something = stall_s < _STALL_S and not says_nothing and not detail.startswith(_TOO_LONG)
            means_something &= not is_in_haste
            if means_something or attempt >= attempts:
                break
            why = f"the harness was held up for {stall_s:.2f} s" if stall_s >= _STALL_S else detail
            if is_in_haste:
                why = hasty = f"{HASTY}: {detail or ctx.incidents[0].text}"
            # The harness was held up, so that timing means nothing, or has not come to the end: that does not count.
            is_gone = bool(await self._why_gone(case.version))
            if is_gone and is_in_haste:
                break  # which says more
            if not is_gone:
                await self._tidy_up(case, ctx)
        duration_ms = (asyncio.get_running_loop().time() - began) * 1_000
        if hasty and verdict in (CaseVerdict.PASS, CaseVerdict.NON_STRICT) and not ctx.incidents:
            verdict, detail = CaseVerdict.NON_STRICT, "; ".join(filter(None, (hasty, detail)))
        gone = "" if never_back else await self._why_dead(ctx, verdict)
        if not gone and self.broker.is_hosted and verdict in BAD and self._losses_of_others() > losses:
            gone = self._gone = _ALL_ENDED  # somebody else's broker may be there again before anybody looks
        if gone:
            verdict, detail = await self._judge_death(ctx, gone, detail)
        elif not never_back:
            await _clean_up(ctx)
        result = blank_result(case, verdict, detail, reproduce=self.reproduce(case))
        result = msgspec.structs.replace(result, duration_ms=round(duration_ms, 3))
        return Outcome(
            result=self.expected(result),
            transcript=tuple(ctx.transcript.lines) if verdict in BAD or not case.is_about_a_face else (),
            incidents=() if gone else tuple(ctx.incidents),
            beside_a_death=bool(gone) and verdict is CaseVerdict.NOT_RUN,
        )

    def _is_in_haste(self, ctx: CaseContext, verdict: CaseVerdict) -> bool:
        """Whether a broker that forwards later than it acknowledges may be what went wrong. A queue has what it has
        confirmed, and where the patience is short the broker is known to be broken."""
        went_wrong = verdict in (CaseVerdict.FAIL, CaseVerdict.BLOCKED) or ctx.incidents
        if not all(map(may_be_late, ctx.incidents)):
            return False
        is_judged = ctx.case.spec != "queue" and self.options.patience_s is None
        return bool(ctx.haste.was_hasty and went_wrong and is_judged)

    async def _tidy_up(self, case: Case, ctx: CaseContext) -> None:
        """Behind an attempt that does not count: a moved clock, and queues of a fixed name, bear no second one."""
        await _clean_up(ctx)
        if case.is_private and self._members == 1:
            with contextlib.suppress(TargetStartError):
                await asyncio.to_thread(self.broker.renew)
            self._gate = self._new_gate(1)

    async def invite_bystander(self) -> None:
        """Connect the clients that must not suffer from what the cases do."""
        speaks = self.capabilities.get
        timeout_s = self._alive_timeout_s
        invited: dict[bool, Bystander[Any]] = {}
        if speaks("mqtt311") or speaks("mqtt5") or not speaks("amqp091"):
            invited[False] = MqttBystander(self.broker.endpoint, 5 if speaks("mqtt5") else 4, timeout_s=timeout_s)
        if speaks("amqp091"):
            invited[True] = AmqpBystander(self._endpoint(AMQP_091), timeout_s=timeout_s)
        for is_amqp, bystander in invited.items():
            with contextlib.suppress(BystanderError):
                await bystander.join()
                self._bystanders[is_amqp] = bystander

    def dismiss_bystander(self) -> None:
        """Drop their connections."""
        while self._bystanders:
            self._bystanders.popitem()[1].close()

    def _losses_of_others(self) -> int:
        return sum(bystander.losses for bystander in self._bystanders.values())

    async def _losses_so_far(self) -> int:
        """Of connections of others than the case; whoever has none is connected, so that one more is seen."""
        for bystander in list(self._bystanders.values()) if self.broker.is_hosted else ():
            with contextlib.suppress(BystanderError):
                await bystander.join(again=True)
        return self._losses_of_others()

    async def _effect_on_others(self, ctx: CaseContext, verdict: CaseVerdict, losses: int) -> str:
        """Why a client that took no part in the case, connected before it, is not served any more; empty if it is."""
        bystander = self._bystanders.get(ctx.case.version == AMQP_091)
        if bystander is None or not ctx.disturbed or verdict in BAD:
            return ""
        if self.broker.is_hosted and self._losses_of_others() > losses:
            return _ALL_ENDED
        try:
            await bystander.join()
            await bystander.prove_served()
        except BystanderError as error:
            return str(error)
        return ""

    async def _why_dead(self, ctx: CaseContext, verdict: CaseVerdict) -> str:
        """Why the broker is taken for dead after a case, or one beside it; empty if it lives."""
        if self.broker_died:
            return self._gone
        lost = ctx.disturbed
        # A port may be held open by others than the broker, such as a container's proxy.
        if ctx.sent_raw or verdict is CaseVerdict.ERROR or (verdict in BAD and lost and self.broker.is_hosted):
            return await self._why_gone(ctx.case.version)
        if not lost and verdict not in BAD:
            return ""
        # A broker that answers a handshake in another way than it should is alive.
        gone, silent = await self._handshake(ctx.case.version)
        if not gone or silent:
            return gone
        if self.broker.process is None:
            return await self._why_refused()
        self._ending = await asyncio.to_thread(self.broker.ending)
        return self._ending and gone

    async def _judge_death(self, ctx: CaseContext, gone: str, detail: str) -> tuple[CaseVerdict, str]:
        """The verdict on one of the cases that ran when the broker died."""
        if not self.broker_died:
            self.died_during, self._gone = tuple(sorted(self._begun)), gone
            self.broker_died = f"not started: the broker stopped answering during {', '.join(self.died_during)}"
        text = await self.how_it_died()
        if not ctx.connected:
            return CaseVerdict.NOT_RUN, f"{text} before this case could do anything. {detail}".strip()
        if not self.solo and len(self.died_during) > 1:
            beside = len(self.died_during) - 1
            return CaseVerdict.NOT_RUN, f"{text}; {beside} other case(s) ran beside this one. {detail}".strip()
        words = self.broker.last_words()
        wrote = f"\nits log ends with:\n{words}" if words else ""
        return CaseVerdict.FAIL, f"{text}. {detail}".strip() + wrote

    async def how_it_died(self) -> str:
        """How the process of a dead broker ended, or else how it fails to answer."""
        self._ending = self._ending or await asyncio.to_thread(self.broker.ending)
        if self._ending:
            return f"the broker died ({self._ending})"
        return self._gone if self._gone == _ALL_ENDED else f"the broker does not answer: {self._gone}"

    async def _why_refused(self) -> str:
        """Why no connection is taken; empty if one is."""
        endpoint = self.broker.endpoint
        try:
            async with asyncio.timeout(self._alive_timeout_s):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except TimeoutError:
            return ""  # slow, and so not dead
        except OSError as error:
            return f"{endpoint.host}:{endpoint.port} cannot be reached: {error.strerror or error}"
        writer.transport.abort()
        return ""

    async def _why_gone(self, version: int) -> str:
        """Why a fresh handshake fails; empty if the broker is alive."""
        return (await self._handshake(version))[0]

    async def _handshake(self, version: int) -> tuple[str, bool]:
        """Why a fresh handshake fails, and whether that is for lack of any answer.

        A slow broker gets two chances, one that ends connections by chance gets some more.
        """
        problem: ProbeError | None = None
        silent = 0
        for _ in range(_HANDSHAKES):
            began = asyncio.get_running_loop().time()
            try:
                with self._stalls:
                    await asyncio.to_thread(greet, self._endpoint(version), version, timeout_s=self._alive_timeout_s)
            except StrangeAnswerError:
                return "", False  # whoever refuses, or answers nonsense, is alive
            except ProbeError as error:
                problem = error
                held_up = self._stalls.longest_since(began) >= _STALL_S
                silent += isinstance(error.__cause__, TimeoutError) and not held_up
                if silent == _SILENT_HANDSHAKES:
                    break
            else:
                return "", False
        return str(problem), silent == _SILENT_HANDSHAKES


async def _other_reasons(ctx: CaseContext) -> list[Incident]:
    with contextlib.suppress(TimeoutError, TargetUnreachableError):
        async with ctx.time_limit(ctx.limit_s):
            await ctx.read_on()
    return ctx.other_reasons()


def _is_about_order(case: Case) -> bool:
    """And about nothing else: messages that come in another order break no other statement that it cites."""
    return {*case.clauses} <= {*Rule.ORDER.clauses(case.version)}


async def _judge(case: Case, ctx: CaseContext) -> tuple[CaseVerdict, str]:
    """Run the function of a case: verdict and detail, before ``expect_fail``."""
    try:
        async with ctx.time_limit(ctx.limit_s):
            await case.run(ctx)
        if ctx.answered_again is not None:
            raise StepFailureError(ctx.answered_again)
    except StepFailureError as error:
        incident = error.incident
        ctx.incidents += (incident, *await _other_reasons(ctx))
        if incident.rule is Rule.CONTENT and ctx.flow.disorder:  # another message was due, and has come since
            incident = Incident(rule=Rule.ORDER, text=ctx.flow.disorder)
            ctx.incidents.insert(0, incident)
        about = incident.soft or incident.rule.is_subject_of(case.id, case.clauses)
        if incident.rule is Rule.ORDER:
            about = _is_about_order(case)
        return CaseVerdict.FAIL if about else CaseVerdict.BLOCKED, str(error)
    except CaseFailureError as error:
        ctx.incidents += await _other_reasons(ctx)
        if ctx.flow.disorder and not _is_about_order(case):
            ctx.incidents.insert(0, Incident(rule=Rule.ORDER, text=ctx.flow.disorder))
            return CaseVerdict.BLOCKED, str(error)
        return CaseVerdict.FAIL, str(error)
    except UnsupportedError as error:
        return CaseVerdict.UNSUPPORTED, str(error)
    except TooSlowError as error:
        return CaseVerdict.UNSUPPORTED, f"{_NOT_JUDGED}{error}"
    except TargetUnreachableError as error:
        return CaseVerdict.ERROR, str(error)
    except TimeoutError:
        if ctx.lag:
            return CaseVerdict.UNSUPPORTED, f"{_NOT_JUDGED}{ctx.lag}"
        return CaseVerdict.ERROR, f"{_TOO_LONG} of {ctx.limit_s:g} s"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return CaseVerdict.ERROR, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    if ctx.missed:
        return CaseVerdict.NON_STRICT, "; ".join(ctx.missed)
    return CaseVerdict.PASS, ""


async def _clean_up(ctx: CaseContext) -> None:
    """Delete what the case may have left in the broker. Its outcome has no influence on the verdict."""
    recorded = len(ctx.transcript.lines)
    try:
        async with ctx.time_limit(_CLEANUP_LIMIT_S):
            await _delete_leftovers(ctx)
    except (CaseFailureError, TargetUnreachableError, TimeoutError, OSError) as error:
        del ctx.transcript.lines[recorded:]
        ctx.note(f"clean-up after the case was not complete: {error}")
    else:
        del ctx.transcript.lines[recorded:]
    finally:
        ctx.close()


async def _delete_leftovers(ctx: CaseContext) -> None:
    await ctx.delete_leftovers()
    for client_id, version in sorted(ctx.persistent_clients.items()):
        if client_id:
            connection = await ctx.open(version=version)
            connection.send(ctx.connect_packet(version=version, client_id=client_id, clean=True))
            await connection.expect(Connack)
            await connection.disconnect()
    if ctx.retained_topics:
        connection = await _cleaner(ctx)
        for topic in sorted(ctx.retained_topics):
            connection.send(Publish(topic=topic, retain=True))
        await connection.barrier()
        await connection.disconnect()


async def _cleaner(ctx: CaseContext) -> Connection:
    connection = await ctx.open()
    connection.send(ctx.connect_packet())
    await connection.expect(Connack)
    return connection
