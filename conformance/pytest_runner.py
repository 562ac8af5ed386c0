"""The suite as a pytest plugin: every case is an item, so ``-k``, ``--lf``, ``--junitxml`` and xdist work as usual.

Either through ``assay conformance run``, or directly::

    pytest -p assay.conformance.pytest_runner path/to/conformance/cases --assay-target mosquitto -k retained

All selected cases run at the same time in the engine; an item waits for its own result. Under xdist each worker starts
a broker of its own and runs its share.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

import pytest

import assay.conformance.cases
from assay.conformance.case import Case, load_cases
from assay.conformance.engine import RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.report import ExitCode
from assay.conformance.run import Run, RunPlan
from assay.conformance.selection import SelectionError, check_target, for_target
from assay.conformance.targets import Access, ProbeError, TargetError, TargetStartError, choose_target
from assay.reference_broker.trace.conformance import CaseVerdict

CASES_FOLDER = Path(assay.conformance.cases.__path__[0]).resolve()
_RESULT_MARGIN_S = 60.0
_SHOWN_TRANSCRIPT_LINES = 30


_PLUGIN: pytest.StashKey[ConformancePlugin] = pytest.StashKey()


class ConformanceFailureError(Exception):
    """A case whose verdict fails the run."""


def _stopped_by(error: KeyboardInterrupt) -> str:
    return f"the run was stopped{f' by {error}' if str(error) else ''} before its broker was up"


def transcript_text(outcome: Outcome, *, last: int = _SHOWN_TRANSCRIPT_LINES) -> str:
    """The end of a transcript for people."""
    arrows = {"send": "->", "recv": "<-", "event": "--"}
    lines = [
        f"{line.t_ns / 1e6:10.3f} ms  {line.connection:>6} {arrows[line.direction]} {line.decoded}"
        for line in outcome.transcript[-last:]
    ]
    return "\n".join(lines)


class CaseItem(pytest.Item):
    """One case."""

    case: Case

    def runtest(self) -> None:
        outcome = self.config.stash[_PLUGIN].outcome_of(self.case)
        result = outcome.result
        self.user_properties += [("verdict", result.verdict.value), ("clauses", " ".join(result.clauses))]
        if result.verdict in (CaseVerdict.BLOCKED, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN):
            pytest.skip(f"{result.verdict.value}: {result.detail}")
        if result.verdict is CaseVerdict.XFAIL:
            pytest.xfail(f"{result.detail} ({result.link})")
        if result.verdict is CaseVerdict.NON_STRICT:
            self.add_report_section("call", "non-strict", result.detail)
        elif result.verdict is not CaseVerdict.PASS:
            text = "\n\n".join(
                (f"{result.verdict.value}: {result.detail}", transcript_text(outcome), f"repeat: {result.reproduce}")
            )
            raise ConformanceFailureError(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, ConformanceFailureError):
            return f"{self.case.title}\nclauses: {', '.join(self.case.clauses)}\n{excinfo.value}"
        return str(excinfo.getrepr())

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.case.id


class CaseFile(pytest.File):
    """One module of cases."""

    def collect(self) -> Iterable[CaseItem]:
        parts = self.path.resolve().relative_to(CASES_FOLDER).with_suffix("").parts
        module = ".".join(("assay", "conformance", "cases", *parts))
        for case in load_cases().values():
            if case.module == module:
                item = CaseItem.from_parent(self, name=case.id)
                item.case = case
                yield item


class ConformancePlugin:
    """Starts the target when the items are about to run and hands each item its result."""

    def __init__(self, plan: RunPlan, *, run: Run | None = None, only: frozenset[str] | None = None) -> None:
        """``run`` lets a caller keep the run with its callbacks; ``only`` are the ids of the cases to collect."""
        self.run = run or Run(plan)
        self.only = only
        self.code: ExitCode | None = None
        self.unreachable = ""
        self._futures: dict[str, Future[Outcome]] = {}

    def outcome_of(self, case: Case) -> Outcome:
        """Wait for a case; submits it when that has not happened yet (in an xdist worker)."""
        if case.id not in self._futures:
            self._futures[case.id] = self.run.submit(case)
        # The engine limits each case; this limit is for a bug in the engine.
        waiting_s = _RESULT_MARGIN_S + sum(item.limit_s for item in load_cases().values())
        return self._futures[case.id].result(waiting_s)

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[_PLUGIN] = self

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> CaseFile | None:
        if (
            file_path.suffix == ".py"
            and file_path.name != "__init__.py"
            and CASES_FOLDER in file_path.resolve().parents
        ):
            collector: CaseFile = CaseFile.from_parent(parent, path=file_path)
            return collector
        return None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        only = self.only
        if only is None:
            try:
                cases = [item.case for item in items if isinstance(item, CaseItem)]
                only = frozenset(case.id for case in for_target(cases, self.run.plan.target))
            except SelectionError as error:
                raise pytest.UsageError(str(error)) from error
        dropped = [item for item in items if isinstance(item, CaseItem) and item.case.id not in only]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if item not in dropped]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        cases = [item.case for item in session.items if isinstance(item, CaseItem)]
        if not cases or session.config.option.collectonly:
            return (yield)
        try:
            self.run.__enter__()
        except (TargetStartError, ProbeError) as error:
            self.code, self.unreachable = ExitCode.UNREACHABLE, str(error)
            self.run.close_unbegun(cases, f"the target cannot be reached: {error}", self.code)
            pytest.exit(f"the target cannot be reached: {error}", returncode=int(ExitCode.UNREACHABLE))
        except KeyboardInterrupt as error:
            self.run.close_unbegun(cases, _stopped_by(error), ExitCode.STOPPED)
            raise
        try:
            if not hasattr(session.config, "workerinput"):
                self._futures = self.run.submit_all(cases)
            try:
                return (yield)
            except BaseException:
                self.run.stop("the test session was stopped")
                raise
            finally:
                self.code = self.run.finish()
        finally:
            self.run.__exit__(None, None, None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.code is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = int(self.code)


# Used through ``-p assay.conformance.pytest_runner``: options of its own, and registration of the plugin above.


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay conformance")
    group.addoption("--assay-target", default="", help="target name (default: reference) or path of a target file")
    group.addoption("--assay-host", default="", help="host of a broker that already runs")
    group.addoption("--assay-port", type=int, default=None, help="port of that broker (default: 1883)")
    group.addoption("--assay-seed", type=int, default=0, help="order and chance of the cases")
    group.addoption("--assay-out", default="", help="folder for report.jsonl, result.json and the transcripts")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    access = Access(target=option.assay_target, host=option.assay_host, port=option.assay_port)
    try:
        target = choose_target(access)
        check_target(target, load_cases())
    except (TargetError, SelectionError) as error:
        raise pytest.UsageError(str(error)) from error
    out = Path(option.assay_out) if option.assay_out else None
    plan = RunPlan(
        target=target,
        target_argument=access.arguments(),
        options=RunOptions(seed=option.assay_seed),
        report=None if out is None else out / "report.jsonl",
        command=shlex.join(sys.argv),
    )
    config.pluginmanager.register(ConformancePlugin(plan))


def run_with_pytest(plan: RunPlan, run: Run, selected: Iterable[Case]) -> ConformancePlugin:
    """Run cases in a pytest session of its own, without pytest's terminal output; used by the command line.

    Raises :class:`KeyboardInterrupt` when the user stops it.
    """
    plugin = ConformancePlugin(plan, run=run, only=frozenset(case.id for case in selected))
    # No configuration and no plugins of the place where the command happens to be typed.
    arguments = ["-c", os.devnull, "--rootdir", str(CASES_FOLDER), "-p", "no:terminal", "-p", "no:cacheprovider"]
    with mock.patch.dict(os.environ, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}):
        status = pytest.main([*arguments, str(CASES_FOLDER)], plugins=[plugin])
    if status == pytest.ExitCode.INTERRUPTED and plugin.code is None:
        raise KeyboardInterrupt
    if plugin.code is None:
        nothing = status == pytest.ExitCode.NO_TESTS_COLLECTED
        plugin.code = ExitCode.NOTHING_SELECTED if nothing else ExitCode.HARNESS
    return plugin
