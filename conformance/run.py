"""One conformance run: target, engine in a thread of its own, report. Independent of who shows the results.

The engine's event loop lives in a thread, so that pytest (or anything else that is not async) can wait for each result
while the cases run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from assay.conformance.booking import settle
from assay.conformance.case import DEFAULT_LIMIT_S, Case, load_cases
from assay.conformance.cohort import cohorts
from assay.conformance.engine import BAD, Engine, RunOptions, blank_result, missing_capability
from assay.conformance.judged import Outcome
from assay.conformance.nursery import Nursery
from assay.conformance.registry import clauses, spoken
from assay.conformance.report import (
    ExitCode,
    ReportWriter,
    exit_code,
    suite_version,
    this_machine,
    utc_now,
    write_run_result,
)
from assay.conformance.targets import (
    SECRETS,
    CapabilityValue,
    ProbeError,
    RunningTarget,
    Target,
    TargetStartError,
    probe,
    running,
)
from assay.reference_broker.trace.conformance import BrokerDeath, CaseResult, CaseVerdict, Clause, Header

_T = TypeVar("_T")

_BROKERS_AT_ONCE = 4
"""Of brokers that cases have to themselves. Starting one keeps a processor busy."""
DEFAULT_RESTARTS = 20
"""Times that a broker which died is started again."""
_KEPT_LOG_BYTES = 1_000_000
RETURN_TIMEOUT_S = 10.0
_RETURN_POLL_S = 0.25
_TOKEN = re.compile(r"[0-9a-z]{4}[0-9a-f]{11,}")
_SEEN = re.compile(r"; (?:seen|nothing arrived|the broker)\b")


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where the evidence goes."""

    target: Target
    target_argument: str = ""
    """How the user named the target; for the reproduce command."""
    options: RunOptions = RunOptions()
    report: Path | None = None
    folder: Path | None = None
    """Folder of ``result.json`` and ``transcripts``; None = the folder of the report."""
    command: str = ""
    restarts: int = DEFAULT_RESTARTS
    """How often a broker that died is started again (or may come back, where it is not ours) until the run gives up."""
    time_limit_s: float | None = None
    """Of the whole run: what has no verdict by then is ``not_run``."""
    left_out: dict[str, int] = {}
    """Cases that were not even selected for lack of a capability, by its name."""

    def reproduce(self, case: Case) -> str:
        """The command that runs this case alone."""
        argument = self.target_argument or f"--target {shlex.quote(self.target.name)}"
        return f"assay conformance run {argument} --seed {self.options.seed} -k {case.id}"


class Run:
    """A run as a context manager: entering starts the target and probes it, leaving stops it.

    Entering raises :class:`TargetStartError` or :class:`ProbeError` when the target cannot be reached.
    """

    def __init__(self, plan: RunPlan, *, on_outcome: Callable[[Outcome], None] = lambda _outcome: None) -> None:
        self.plan = plan
        self.results: list[CaseResult] = []
        self._on_outcome = on_outcome
        self._under_way = 0
        """Cases that were submitted and have not ended."""
        self._unsettled: dict[asyncio.Future[Outcome], Outcome] = {}
        """What depends on how the others end."""
        self._judged: list[Outcome] = []
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop
        self._writer: ReportWriter | None = None
        self._nursery: Nursery | None = None
        """Of the brokers that cases have to themselves; begun with the first of them."""
        self._lock = threading.Lock()
        self._own = ExitStack()
        """Ends the shared broker."""
        self._reviving = asyncio.Lock()
        self._given_up = False
        self._lives = 0
        self.deaths: list[BrokerDeath] = []
        self.is_open = False
        """The broker answers, and cases may be submitted."""
        self.stopped = ""
        """Why the run was stopped before its end."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._submitted: list[Future[Outcome]] = []
        self._brokers = asyncio.Semaphore(min(_BROKERS_AT_ONCE, plan.options.concurrency))
        self.broker: RunningTarget
        self.engine: Engine
        self.header: Header

    def __enter__(self) -> Self:
        plan = self.plan
        with ExitStack() as stack:
            self._own = stack.enter_context(ExitStack())
            self.broker = self._own.enter_context(running(plan.target))
            capabilities = probe(self.broker.target, self.broker.endpoint)
            self.engine = Engine(self.broker, capabilities, plan.options, reproduce=plan.reproduce)
            self.header = self._header(self.broker.version, capabilities)
            if plan.report is not None:
                self._writer = stack.enter_context(ReportWriter(plan.report, plan.folder))
                self._writer.begin(self.header, self._clauses())
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, name="conformance engine", daemon=True)
            thread.start()
            stack.callback(self._stop_loop, thread)
            asyncio.run_coroutine_threadsafe(self.engine.invite_bystander(), self._loop).result()
            if plan.time_limit_s is not None:
                reason = f"the time limit of {plan.time_limit_s:g} s has passed"
                self._loop.call_soon_threadsafe(self._loop.call_later, plan.time_limit_s, self._cancel, reason)
            self._stack = stack.pop_all()
            self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False
        self._stack.close()

    def _header(self, version: str, capabilities: Mapping[str, CapabilityValue]) -> Header:
        return Header(
            target=self.plan.target.name,
            target_version=version,
            started_at=utc_now(),
            suite_version=suite_version(),
            seed=self.plan.options.seed,
            capabilities={name: value for name, value in capabilities.items() if name not in SECRETS},
            machine=this_machine(),
            left_out=self.plan.left_out,
        )

    def _clauses(self) -> list[Clause]:
        return clauses(load_cases().values(), spoken({**self.plan.target.capabilities, **self.header.capabilities}))

    def close_unbegun(self, cases: Sequence[Case], reason: str, code: ExitCode) -> None:
        """The report of a run that ended before its broker was up, in place of a former one: no case has a verdict.

        Does nothing to a run that has begun.
        """
        if self._submitted or self.results:
            return
        self.stopped = reason
        self.header = self._header("", {})
        self.results = [blank_result(case, CaseVerdict.NOT_RUN, f"no verdict: {reason}") for case in cases]
        if self.plan.report is None:
            return
        with ReportWriter(self.plan.report, self.plan.folder) as writer:
            writer.begin(self.header, self._clauses())
            for result in self.results:
                writer.add(Outcome(result=result))
            self._close(writer, code)

    def stop(self, reason: str) -> None:
        """End the run from any thread: cases without a verdict become ``not_run``, so that every future ends soon."""
        self._loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str) -> None:
        self.stopped = self.stopped or reason
        for task in self._tasks:
            task.cancel()

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.stopped:
                raise asyncio.CancelledError
            yield
        finally:
            self._tasks.discard(task)

    def _stop_loop(self, thread: threading.Thread) -> None:
        async def cancel_rest() -> None:
            self.engine.dismiss_bystander()
            self._settle()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel_rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _broker_for(self, case: Case) -> AbstractContextManager[RunningTarget]:
        if not case.is_private or not self.plan.target.is_ours:
            return running(self.plan.target)
        with self._lock:
            if self._nursery is None:
                self._nursery = self._stack.enter_context(Nursery())
        return self._nursery.broker(self.plan.target, "", case)

    def _engine(self, broker: RunningTarget, options: RunOptions, *, solo: bool, restarts: bool = True) -> Engine:
        """For a further broker of the same target: it can the same, on ports of its own."""
        texts = {name: value for name, value in broker.target.capabilities.items() if isinstance(value, str)}
        capabilities = {**self.engine.capabilities, **texts}
        return Engine(broker, capabilities, options, reproduce=self.plan.reproduce, solo=solo, restarts=restarts)

    async def _run_apart(self, cases: Sequence[Case], *, restarts: bool = True) -> list[Outcome]:
        """Run cases on a broker that is started for them and stopped after them; a hosted one is left to them alone."""
        is_hosted = self.plan.target.start is None
        async with self._brokers, self.engine.alone() if is_hosted else contextlib.nullcontext():
            with ExitStack() as stack:
                try:
                    broker = await _to_its_end(lambda: stack.enter_context(self._broker_for(cases[0])))
                except (TargetStartError, ProbeError) as error:
                    return [Outcome(result=blank_result(case, CaseVerdict.ERROR, str(error))) for case in cases]
                options = msgspec.structs.replace(self.plan.options, concurrency=len(cases))
                if len(cases) > 1 and options.patience_s is None:
                    # While one waits, all others do; what it misses for that, it is asked for again alone.
                    options = msgspec.structs.replace(options, patience_s=DEFAULT_LIMIT_S)
                engine = self._engine(broker, options, solo=len(cases) == 1, restarts=restarts)
                outcomes = await engine.run_together(cases)
                if engine.broker_died and engine.solo:
                    outcomes = [self._note_killer(cases[0], engine, await engine.how_it_died(), outcomes[0])]
                await _to_its_end(stack.close)
                return outcomes

    async def _run_cohort(self, cases: Sequence[Case]) -> dict[str, Outcome]:
        """The outcomes of cases that share a broker; one that was bad there is judged by itself."""
        with self._stoppable():
            outcomes = {outcome.result.case: outcome for outcome in await self._run_apart(cases)}
            if len(cases) > 1:
                doubtful = [case for case in cases if outcomes[case.id].result.verdict in (*BAD, CaseVerdict.NOT_RUN)]
                for again in await asyncio.gather(*(self._run_apart([case]) for case in doubtful)):
                    outcomes[again[0].result.case] = again[0]
            return outcomes

    def _note_killer(self, case: Case, engine: Engine, status: str, outcome: Outcome) -> Outcome:
        """The case has killed a broker that it had to itself: keep the log, and say where it is."""
        log = self._keep_log(engine.broker, f"{case.id.replace('/', '-')}.log")
        beside = next((index for index, death in enumerate(self.deaths) if case.id in death.during), None)
        if beside is None:
            self.deaths.append(BrokerDeath(during=[case.id], status=status, killers=[case.id], log=log))
        else:
            death = self.deaths[beside]
            self.deaths[beside] = msgspec.structs.replace(death, killers=sorted({*death.killers, case.id}))
        detail = f"{outcome.result.detail}\nits whole log: {log}" if log else outcome.result.detail
        return msgspec.structs.replace(outcome, result=msgspec.structs.replace(outcome.result, detail=detail))

    def _keep_log(self, broker: RunningTarget, name: str) -> str:
        if self._writer is None or broker.log is None or not broker.log.exists():
            return ""
        return self._writer.keep_log(name, broker.log_tail(_KEPT_LOG_BYTES).encode())

    async def _run_shared(self, case: Case) -> Outcome:
        """Run a case on the broker that all share; if that dies meanwhile, by itself or on the next one."""
        while True:
            engine = self.engine
            outcome = await engine.judge(case)
            verdict = outcome.result.verdict
            if not engine.broker_died or verdict is CaseVerdict.UNSUPPORTED:
                return outcome
            revived = await self._revive(engine)
            if self.plan.target.start is not None and (outcome.beside_a_death or verdict is not CaseVerdict.NOT_RUN):
                return (await self._run_apart([case]))[0]
            if verdict is not CaseVerdict.NOT_RUN or (outcome.beside_a_death and not revived):
                return outcome
            if not revived:
                return Outcome(result=blank_result(case, CaseVerdict.NOT_RUN, engine.broker_died))

    async def _revive(self, dead: Engine) -> bool:
        """Have a broker again in place of the dead one; False when the run gives up. The first who comes does it."""
        async with self._reviving:
            if self.engine is not dead or self._given_up:
                return not self._given_up
            if self.plan.target.start is None:
                await dead.idle()  # whatever kills it once more concerns nobody who runs on its next life
            dead.dismiss_bystander()
            self._lives += 1
            status, during = await dead.how_it_died(), list(dead.died_during)
            sure = self.plan.target.start is None and len(during) == 1
            log = self._keep_log(dead.broker, f"shared-{self._lives}.log")
            self.deaths.append(BrokerDeath(during=during, status=status, killers=during if sure else [], log=log))
            problem = ""
            if self._lives > self.plan.restarts:
                problem = f"the run gives up after {self.plan.restarts} restart(s); --restarts allows more"
            else:
                try:
                    await self._start_again(dead)
                except (TargetStartError, ProbeError) as error:
                    problem = f"it does not start again: {error}"
            if problem:
                self._given_up = True
                dead.broker_died = f"{status} during {', '.join(during)}; {problem}"
            return not problem

    async def _start_again(self, dead: Engine) -> None:
        options = self.plan.options
        if self.plan.target.start is None:
            # Somebody else's to start. From now on one case at a time, so that the next death has one cause.
            await _to_its_end(lambda: await_return(self.plan.target))
            broker, options = dead.broker, msgspec.structs.replace(options, concurrency=1)
        else:
            await _to_its_end(self._own.close)
            broker = await _to_its_end(lambda: self._own.enter_context(running(self.plan.target)))
        self.broker, self.engine = broker, self._engine(broker, options, solo=self.plan.target.start is None)
        await self.engine.invite_bystander()

    async def _run_one(self, case: Case, shared: Future[dict[str, Outcome]] | None) -> Outcome:
        try:
            with self._stoppable():
                outcome = await self._judge(case, shared)
        except asyncio.CancelledError:
            if not self.stopped:
                self._end_one()
                raise
            outcome = Outcome(result=blank_result(case, CaseVerdict.NOT_RUN, f"no verdict: {self.stopped}"))
        except BaseException:
            self._end_one()
            raise
        self._judged.append(outcome)
        if not outcome.waits_for_others:
            self._end_one()
            return self._record(outcome)
        settled: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._unsettled[settled] = outcome
        self._end_one()
        return await settled

    def _end_one(self) -> None:
        """One case less is under way; the last settles what depended on all."""
        self._under_way -= 1
        if not self._under_way:
            self._settle()

    def _settle(self) -> None:
        if self._unsettled:
            self._judged = settle(self._judged, self.engine.expected)
            by_case = {outcome.result.case: outcome for outcome in self._judged}
            waiting, self._unsettled = self._unsettled, {}
            for settled, outcome in waiting.items():
                settled.set_result(self._record(by_case[outcome.result.case]))

    def _record(self, outcome: Outcome) -> Outcome:
        if self._writer is not None:
            outcome = msgspec.structs.replace(outcome, result=self._writer.add(outcome))
        self.results.append(outcome.result)
        self._on_outcome(outcome)
        return outcome

    async def _judge(self, case: Case, shared: Future[dict[str, Outcome]] | None) -> Outcome:
        if not self._is_apart(case):
            return await self._run_shared(case)
        outcome = (await self._run_apart([case]))[0] if shared is None else (await asyncio.wrap_future(shared))[case.id]
        if outcome.result.verdict is not CaseVerdict.FAIL or "restart" not in case.requires:
            return outcome
        return await self._compare_without_restarts(case, outcome)

    async def _compare_without_restarts(self, case: Case, outcome: Outcome) -> Outcome:
        """A case that fails in the same way when its broker lives on is not about what a restart has lost."""
        control = (await self._run_apart([case], restarts=False))[0].result
        same = control.verdict is CaseVerdict.FAIL and expectation_of(control.detail) == expectation_of(
            outcome.result.detail
        )
        if not same:
            return outcome
        detail = f"without a restart as well: {outcome.result.detail}"
        result = msgspec.structs.replace(outcome.result, detail=detail)
        return msgspec.structs.replace(outcome, result=result, is_no_matter_of_restarts=True)

    def _may_share(self, case: Case) -> bool:
        """Whether it may have its broker with others, who wait for it wherever it waits for what does not come."""
        return self._is_apart(case) and not self.plan.target.surely_fails(case.id)

    def _is_apart(self, case: Case) -> bool:
        """It gets a broker that is started for it (and perhaps some others)."""
        apart = case.is_private or self.plan.target.broker_per_case
        return apart and not missing_capability(case, self.engine.capabilities_for(case))

    def submit(self, case: Case) -> Future[Outcome]:
        """Run a case as soon as there is room; the future never raises for what the broker does.

        The outcome of a case that depends on others comes when no case is under way any more.
        """
        return self.submit_all([case])[case.id]

    def submit_all(self, cases: Sequence[Case]) -> dict[str, Future[Outcome]]:
        """Submit cases in the order of the run's seed."""
        ordered = self.engine.in_order(cases)
        shared: dict[str, Future[dict[str, Outcome]]] = {}
        self._loop.call_soon_threadsafe(self._count_in, len(ordered))
        for group in cohorts(case for case in ordered if case.together and self._may_share(case)):
            task = asyncio.run_coroutine_threadsafe(self._run_cohort(group), self._loop)
            shared.update((case.id, task) for case in group)
        futures = {
            case.id: asyncio.run_coroutine_threadsafe(self._run_one(case, shared.get(case.id)), self._loop)
            for case in ordered
        }
        self._submitted += futures.values()
        return futures

    def _count_in(self, cases: int) -> None:
        self._under_way += cases

    def finish(self) -> ExitCode:
        """Footer and ``result.json``, when all that was submitted has ended; returns the exit status of the run."""
        wait(self._submitted)
        target = self.plan.target
        code = exit_code(self.results, target.required, target.optional, self.deaths, stopped=bool(self.stopped))
        if self._writer is not None:
            self._close(self._writer, code)
        return code

    def _close(self, writer: ReportWriter, code: ExitCode) -> None:
        write_run_result(
            writer.folder,
            self.header,
            self.results,
            self._clauses(),
            writer.finish(code, self.deaths),
            report=writer.path,
            command=self.plan.command,
        )


def expectation_of(detail: str) -> str:
    """What a failed case had expected, without what differs from run to run: the tokens in names, and what was seen."""
    return _SEEN.split(_TOKEN.sub("", detail))[0]


async def _to_its_end(function: Callable[[], _T]) -> _T:
    """Call a function in a thread. Unlike :func:`asyncio.to_thread`, a cancelled caller waits until it has returned."""
    work = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def await_return(target: Target) -> None:
    """Wait until a broker that is not ours answers again, started by whoever watches over it. Raises ProbeError."""
    deadline = time.monotonic() + RETURN_TIMEOUT_S
    while True:
        try:
            probe(target, target.endpoint)
        except ProbeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETURN_POLL_S)  # the only way to learn that a foreign process listens
        else:
            return
