"""One conformance run: target, engine in a thread of its own, report. Independent of who shows the results.

The engine's event loop lives in a thread, so that pytest (or anything else that is not async) can wait for each result
while the cases run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from conformance.case import Case, load_cases
from conformance.cohort import cohorts
from conformance.engine import BAD, Engine, Outcome, RunOptions, blank_result, missing_capability
from conformance.nursery import Nursery
from conformance.registry import SPECS, clauses
from conformance.report import (
    ExitCode,
    ReportWriter,
    exit_code,
    suite_version,
    this_machine,
    utc_now,
    write_run_result,
)
from conformance.targets import SECRETS, RunningTarget, Target, TargetStartError, probe, running
from reference_broker.trace.conformance import CaseResult, CaseVerdict, Header

_BROKERS_AT_ONCE = 4
"""Of a target that gets a broker for each case. Starting one keeps a processor busy."""


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

    def reproduce(self, case: Case) -> str:
        """The command that runs this case alone."""
        argument = self.target_argument or f"--target {shlex.quote(self.target.name)}"
        return f"assay conformance run {argument} --seed {self.options.seed} -k {case.id}"


def select(cases: Iterable[Case], *, text: str = "", spec: str = "", area: str = "") -> list[Case]:
    """Cases of a specification and an area whose id holds ``text``; several texts separated by commas."""
    texts = [part.strip() for part in text.split(",") if part.strip()]
    return [
        case
        for case in cases
        if (not spec or case.spec == spec)
        and (not area or case.area == area)
        and (not texts or any(part in case.id for part in texts))
    ]


class Run:
    """A run as a context manager: entering starts the target and probes it, leaving stops it.

    Entering raises :class:`TargetStartError` or :class:`ProbeError` when the target cannot be reached.
    """

    def __init__(self, plan: RunPlan, *, on_outcome: Callable[[Outcome], None] = lambda _outcome: None) -> None:
        self.plan = plan
        self.results: list[CaseResult] = []
        self._on_outcome = on_outcome
        self._stack = ExitStack()
        self._loop: asyncio.AbstractEventLoop
        self._writer: ReportWriter | None = None
        self._nursery: Nursery | None = None
        """Of the brokers that cases have to themselves; begun with the first of them."""
        self._lock = threading.Lock()
        self._brokers = asyncio.Semaphore(min(_BROKERS_AT_ONCE, plan.options.concurrency))
        self.broker: RunningTarget
        self.engine: Engine
        self.header: Header

    def __enter__(self) -> Self:
        plan = self.plan
        with ExitStack() as stack:
            self.broker = stack.enter_context(running(plan.target))
            capabilities = probe(self.broker.target, self.broker.endpoint)
            self.engine = Engine(self.broker, capabilities, plan.options, reproduce=plan.reproduce)
            self.header = Header(
                target=plan.target.name,
                target_version=self.broker.version,
                started_at=utc_now(),
                suite_version=suite_version(),
                seed=plan.options.seed,
                capabilities={name: value for name, value in capabilities.items() if name not in SECRETS},
                machine=this_machine(),
            )
            if plan.report is not None:
                self._writer = stack.enter_context(ReportWriter(plan.report, plan.folder))
                self._writer.begin(self.header, clauses(load_cases().values(), SPECS))
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, name="conformance engine", daemon=True)
            thread.start()
            stack.callback(self._stop_loop, thread)
            asyncio.run_coroutine_threadsafe(self.engine.invite_bystander(), self._loop).result()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _stop_loop(self, thread: threading.Thread) -> None:
        async def cancel_rest() -> None:
            self.engine.dismiss_bystander()
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

    async def _run_apart(self, cases: Sequence[Case]) -> list[Outcome]:
        """Run cases on a broker that is started for them and stopped after them; a hosted one is left to them alone."""
        is_hosted = self.plan.target.start is None
        async with self._brokers, self.engine.alone() if is_hosted else contextlib.nullcontext():
            with ExitStack() as stack:
                try:
                    broker = await asyncio.to_thread(lambda: stack.enter_context(self._broker_for(cases[0])))
                except TargetStartError as error:
                    return [Outcome(result=blank_result(case, CaseVerdict.ERROR, str(error))) for case in cases]
                options = msgspec.structs.replace(self.plan.options, concurrency=len(cases))
                engine = Engine(broker, self.engine.capabilities, options, reproduce=self.plan.reproduce)
                outcomes = await engine.run_together(cases)
                await asyncio.to_thread(stack.close)
                return outcomes

    async def _run_cohort(self, cases: Sequence[Case]) -> dict[str, Outcome]:
        """The outcomes of cases that share a broker; one that was bad there is judged by itself."""
        outcomes = {outcome.result.case: outcome for outcome in await self._run_apart(cases)}
        if len(cases) > 1:
            doubtful = [case for case in cases if outcomes[case.id].result.verdict in BAD]
            for again in await asyncio.gather(*(self._run_apart([case]) for case in doubtful)):
                outcomes[again[0].result.case] = again[0]
        return outcomes

    async def _run_one(self, case: Case, shared: Future[dict[str, Outcome]] | None) -> Outcome:
        if not self._is_apart(case):
            outcome = await self.engine.run(case)
        elif shared is None:
            outcome = (await self._run_apart([case]))[0]
        else:
            outcome = (await asyncio.wrap_future(shared))[case.id]
        if self._writer is not None:
            outcome = msgspec.structs.replace(outcome, result=self._writer.add(outcome))
        self.results.append(outcome.result)
        self._on_outcome(outcome)
        return outcome

    def _is_apart(self, case: Case) -> bool:
        """It gets a broker that is started for it (and perhaps some others)."""
        apart = case.is_private or self.plan.target.broker_per_case
        return apart and not missing_capability(case, self.engine.capabilities)

    def submit(self, case: Case, shared: Future[dict[str, Outcome]] | None = None) -> Future[Outcome]:
        """Run a case as soon as there is room; the future never raises for what the broker does.

        ``shared`` are the outcomes of cases that run together, this one among them.
        """
        return asyncio.run_coroutine_threadsafe(self._run_one(case, shared), self._loop)

    def submit_all(self, cases: Sequence[Case]) -> dict[str, Future[Outcome]]:
        """Submit cases in the order of the run's seed."""
        ordered = self.engine.in_order(cases)
        shared: dict[str, Future[dict[str, Outcome]]] = {}
        for group in cohorts(case for case in ordered if case.together and self._is_apart(case)):
            task = asyncio.run_coroutine_threadsafe(self._run_cohort(group), self._loop)
            shared.update((case.id, task) for case in group)
        return {case.id: self.submit(case, shared.get(case.id)) for case in ordered}

    def finish(self) -> ExitCode:
        """Footer and ``result.json``; returns the exit status of the run."""
        code = exit_code(self.results, self.plan.target.required, self.plan.target.optional)
        if self._writer is not None:
            write_run_result(
                self._writer.folder,
                self.header,
                self.results,
                clauses(load_cases().values(), SPECS),
                self._writer.finish(code),
                report=self._writer.path,
                command=self.plan.command,
            )
        return code
