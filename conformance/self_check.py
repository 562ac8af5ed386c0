"""Proves the suite by mutation: a case that a broken broker passes proves nothing.

The selected cases must pass the reference broker as it is. Each mutant is started in a process of its own, and the
cases that name it must all fail it, or be blocked by one that does and fail another mutant; each near miss (a legal
variation) must be passed by those that name it. Every case must pass the variations of :data:`EVERYONE`, too, which use
what the standards leave to any server.
A case says on which configuration of the reference broker (``judged_on``, a target file) all this happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec
from rich.console import Console
from rich.markup import escape

from assay.conformance import mutants
from assay.conformance.booking import settle
from assay.conformance.case import Case
from assay.conformance.cohort import cohorts
from assay.conformance.engine import DEFAULT_CONCURRENCY, Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.nursery import Nursery
from assay.conformance.registry import unproven_case_ids
from assay.conformance.report import ExitCode, this_machine, utc_now
from assay.conformance.targets import ProbeError, Target, TargetStartError, load_target, probe
from assay.conformance.targets.probe import HANDSHAKE_TIMEOUT_S
from assay.reference_broker.trace import results
from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import Finding, RunKind, RunResult, Severity, Verdict, write_result
from assay.reference_broker.trace.terminal import WholeTable

PATIENCE_S = 1.5
"""A broken broker often answers nothing at all; waiting the whole limit for each would take minutes."""
JOBS = 12
"""Brokers that run at the same time. Most cases wait most of the time: for what does not come, or for a clock."""
BASELINE = "(unchanged)"
CRASH = "Traceback"
"""In the log of a Python process that failed: a mutant that merely crashes proves nothing."""
SLOW_AT_ONCE = 200
"""Cases that run at the same time on a broker that takes seconds for each answer."""
LOG_BYTES = 1_000_000
LOG_SHOWN = 1_500
GOOD = (CaseVerdict.PASS, CaseVerdict.NON_STRICT)
EVERYONE = {
    "any-window-of-one+any-plain-codes+any-back-pressure+any-late-resumption+any-shares-in-any-order": (
        "mqtt311",
        "mqtt5",
        "queue",
    ),
    "any-pingresp-first+any-packet-id+any-retained-late+any-qos-0-first+any-late-qos-1-and-2": (
        "mqtt311",
        "mqtt5",
        "queue",
    ),
    "any-topics-apart+any-qos-apart+any-forwarded-later+v5-retained-qos-0-not-kept+any-small-server": (
        "mqtt311",
        "mqtt5",
    ),  # a partition of a queue is ordered across topics
    "any-slow-answers+any-answers-in-any-order": ("mqtt311", "mqtt5", "queue"),
    "any-late-acknowledgements+any-late-wills+any-late-end+any-late-forgetting": ("mqtt311", "mqtt5", "queue"),
    "any-says-little+any-pingresp-last+any-late-qos-0+any-retained-after-live+any-settled-is-gone": (
        "mqtt311",
        "mqtt5",
        "queue",
    ),
    "any-tiny-insides": ("mqtt311", "mqtt5", "queue"),
    "any-amqp-late-and-in-pieces+any-amqp-small-frames+any-amqp-skipped-tags+any-amqp-other-names"
    "+any-amqp-missing-is-an-error+any-amqp-damage-without-a-word+any-amqp-back-in-any-order"
    "+any-amqp-codes-of-others+any-amqp-expirations-are-moments+any-amqp-any-x-match": ("amqp091",),
    "any-amqp-heartbeats-between+any-amqp-confirms-one-by-one+any-amqp-other-codes+any-amqp-late-closes"
    "+any-amqp-logins-end-silently+any-amqp-headers-bound-by-key+any-amqp-no-bindings-between-exchanges"
    "+any-settled-is-gone": ("amqp091",),
    "any-http-late+any-http-in-pieces+any-http-closes+any-http-other-words+any-settled-is-gone": ("http",),
    "any-grpc-late+any-grpc-other-words+any-settled-is-gone": ("grpc",),
}
"""Variations with a freedom (:attr:`Mutant.freedom`), several at once in one broker, which saves time: the whole suite
runs on each. A case that has a broker to itself runs on one of them. ``--mutant NAME`` runs all on that one alone."""

_WHOLE = {BASELINE, *EVERYONE}
"""Run on whole suites."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one mutant or variation."""

    mutant: str
    target: str
    what: str
    legal: bool
    cases: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    """Cases with the wrong verdict, each with that verdict and its detail."""
    blocked: tuple[str, ...] = ()
    """Cases that met the failure of a step which another case is about, and failed on: another mutant proves them."""
    reported: tuple[tuple[str, str], ...] = ()
    """Cases that saw a SHOULD missed, each with what it said."""
    unsteady: tuple[str, ...] = ()
    """Wrong verdicts on a legal broker that another run of it did not repeat: no verdict on the suite, but a case to
    look at."""
    problem: str = ""
    """Why nothing could be checked."""

    @property
    def name(self) -> str:
        """The mutant, and where it is not the usual one, the target that it was judged on."""
        return self.mutant if self.target == "reference" else f"{self.mutant} on {self.target}"

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.problem


class SelfCheck(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one self-check."""

    checks: tuple[Check, ...]
    without_mutant: tuple[str, ...]
    """Cases that name no mutant."""
    started_at: str
    duration_s: float

    @property
    def exit_code(self) -> ExitCode:
        if not self.checks:
            return ExitCode.NOTHING_SELECTED
        if all(check.problem for check in self.checks):
            return ExitCode.UNREACHABLE
        all_ok = all(check.ok for check in self.checks) and not self.without_mutant
        return ExitCode.OK if all_ok else ExitCode.FAILED


Group = tuple[Case | None, list[Case]]
"""Cases that share a broker, and if it is private to them, the one that says what it is like."""


def groups_of(cases: Sequence[Case]) -> list[Group]:
    """The cases that share a broker, and those that have one to themselves."""
    together = [case for case in cases if not case.is_private]
    groups: list[Group] = [(None, together)] if together else []
    return groups + [(group[0], group) for group in cohorts(case for case in cases if case.is_private)]


def _run_group(
    nursery: Nursery, target: Target, mutant: str, group: Group, patience_s: float | None, least_at_once: int
) -> tuple[list[Outcome], str]:
    """The outcomes, and what went wrong within the broker process."""
    owner, cases = group
    try:
        faces = any(case.is_about_a_face for case in cases)
        with nursery.broker(target, mutant, owner, faces=faces) as broker:
            at_once = least_at_once if owner is None else max(least_at_once, len(cases))
            options = RunOptions(patience_s=patience_s, concurrency=at_once)
            # All these cases must notice one bug: if the broker dies of it, each of them has.
            capabilities = probe(broker.target, broker.endpoint, timeout_s=patience_s and HANDSHAKE_TIMEOUT_S)
            engine = Engine(broker, capabilities, options, solo=True)
            # Without a bystander: a broker that is killed serves nobody.
            run = engine.run_all(cases, lambda _outcome: None) if owner is None else engine.run_together(cases)
            outcomes = asyncio.run(run)
            _, crash, text = broker.log_tail(LOG_BYTES).partition(CRASH)
    except (TargetStartError, ProbeError) as error:
        return [], str(error)
    return outcomes, f"the broker crashed: {crash}{text[:LOG_SHOWN]}" if crash else ""


def _wanted(entry: mutants.Mutant, case: Case) -> tuple[CaseVerdict, ...]:
    """The verdicts that a case must come to; a case about a SHOULD never fails, it only reports."""
    if entry.legal:
        may_be_silent = entry.minutes or case.id in entry.silences
        return (*GOOD, CaseVerdict.UNSUPPORTED) if may_be_silent else GOOD
    advisory = case.level != "MUST"
    return (CaseVerdict.FAIL, CaseVerdict.NON_STRICT) if advisory else (CaseVerdict.FAIL,)


def judged(
    entry: mutants.Mutant, cases: Sequence[Case], outcomes: Sequence[Outcome]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Wrong verdicts of cases on a mutant or variation, each with its detail; and the cases that it only blocks.

    A case proves itself by failing on what it is about. A mutant that breaks a step of it proves nothing of it, and is
    accepted where another case of this mutant fails on that step.
    """
    by_id = {case.id: case for case in cases}
    # A variation must not even break a step; each case by itself, so that none is excused by another.
    booked = [settle([outcome])[0] for outcome in outcomes] if entry.legal else settle(outcomes)
    decided = booked if entry.legal else outcomes
    failed = {outcome.result.case for outcome in decided if outcome.result.verdict is CaseVerdict.FAIL}
    wrong, blocked = [], []
    for by_itself, among_all in zip(decided, booked, strict=True):
        result = by_itself.result
        if result.verdict in _wanted(entry, by_id[result.case]):
            continue
        if not entry.legal and among_all.result.blocked_by in failed:
            blocked.append(result.case)
        else:
            wrong.append(f"{result.case}: {result.verdict.value} {result.detail}".strip())
    return tuple(wrong), tuple(blocked)


async def _check_one(pool: Executor, nursery: Nursery, target: Target, name: str, cases: Sequence[Case]) -> Check:
    """Run the cases against the reference broker with the mutant ``name``, each group in a thread of the pool."""
    case_ids = tuple(case.id for case in cases)
    if name == BASELINE:
        entry = mutants.Mutant(name=name, what="the reference broker as it is", apply=lambda _patch: None, legal=True)
    else:
        try:
            entry = mutants.find(name)
        except mutants.UnknownMutantError as error:
            return Check(mutant=name, target=target.name, what="", legal=False, cases=case_ids, problem=str(error))
    by_id = {case.id: case for case in cases}

    async def run(group: Group, patience_s: float | None) -> tuple[list[Outcome], str]:
        planted = "" if name == BASELINE else name
        loop = asyncio.get_running_loop()
        at_once = SLOW_AT_ONCE if entry.minutes else DEFAULT_CONCURRENCY
        outcomes, problem = await loop.run_in_executor(
            pool, _run_group, nursery, target, planted, group, patience_s, at_once
        )
        unnoticed = [
            outcome
            for outcome in outcomes
            if outcome.result.verdict not in (*_wanted(entry, by_id[outcome.result.case]), CaseVerdict.BLOCKED)
        ]
        if unnoticed and not problem and patience_s is not None:
            # It survives, or the machine is busy and a step took longer than this patience: the whole time tells.
            return await run(group, None)
        return outcomes, problem

    # A broken broker may be silent; a sound one may be slow, so that it gets the whole time.
    patience_s = None if entry.legal else PATIENCE_S
    ran = await asyncio.gather(*(run(group, patience_s) for group in groups_of(cases)))
    results = [outcome for outcomes, _problem in ran for outcome in outcomes]
    wrong, blocked = judged(entry, cases, results)
    unsteady: tuple[str, ...] = ()
    if wrong and entry.legal:
        at_first, names = wrong, {line.partition(":")[0] for line in wrong}
        some = groups_of([case for case in cases if case.id in names])
        again = {
            outcome.result.case: outcome
            for outcomes, _problem in await asyncio.gather(*(run(group, patience_s) for group in some))
            for outcome in outcomes
        }
        results = [again.get(outcome.result.case, outcome) for outcome in results]
        wrong, blocked = judged(entry, cases, results)
        still = {line.partition(":")[0] for line in wrong}
        unsteady = tuple(line for line in at_first if line.partition(":")[0] not in still)
    missed = [each.result for each in results if each.result.verdict is CaseVerdict.NON_STRICT]
    return Check(
        mutant=name,
        target=target.name,
        what=entry.what,
        legal=entry.legal,
        cases=case_ids,
        wrong=wrong,
        blocked=blocked,
        unsteady=unsteady,
        reported=tuple([(result.case, result.detail) for result in missed]),
        problem=next((problem for _outcomes, problem in ran if problem), ""),
    )


Work = dict[tuple[str, str], list[Case]]
"""Name of a target, and of a mutant or variation, to the cases that name both."""


def work_of(cases: Sequence[Case], only: str = "") -> Work:
    """What is to be checked, in order of names; ``only``: of this mutant or variation."""
    work: Work = {}
    unproven = set(unproven_case_ids())
    free = only in mutants.all_mutants() and mutants.find(only).freedom
    for case in cases:
        for name in {case.mutant, case.near_miss, *case.kills} - {""}:
            if not only or name == only:
                work.setdefault((case.judged_on, name), []).append(case)
        if case.id in unproven:
            continue
        groups = [] if only else [group for group, specs in EVERYONE.items() if case.spec in specs]
        for group in groups[crc32(case.id.encode()) % len(groups) :][:1] if case.is_private and groups else groups:
            work.setdefault((case.judged_on, group), []).append(case)
        if only != case.near_miss and free:
            work.setdefault((case.judged_on, only), []).append(case)
    return dict(sorted(work.items()))


def baselines(work: Work) -> Work:
    """Each target as it is, with the cases whose report on it is needed, or that pass no variation of it."""
    concerned: dict[str, dict[str, Case]] = {}
    passing = {case.id for (_target, name), cases in work.items() if _is_legal(name) for case in cases}
    for (target, _mutant), cases in work.items():
        asked = [case for case in cases if case.level != "MUST" or case.id not in passing]
        concerned.setdefault(target, {}).update((case.id, case) for case in asked)
    return {(target, BASELINE): list(cases.values()) for target, cases in concerned.items() if cases}


def _is_legal(name: str) -> bool:
    with suppress(mutants.UnknownMutantError):
        return mutants.find(name).legal
    return False


async def _check_all(
    nursery: Nursery, work: Work, jobs: int, report: Callable[[Check], None] = lambda _check: None
) -> list[Check]:
    targets = {name: load_target(name) for name, _mutant in work}
    # Threads of our own: those that asyncio has at hand are four more than processors, whatever ``jobs`` says.
    with ThreadPoolExecutor(jobs, "self-check") as pool:

        async def one(target: str, name: str, cases: list[Case]) -> Check:
            check = await _check_one(pool, nursery, targets[target], name, cases)
            report(check)
            return check

        # The slowest first: nobody waits for one that was begun last.
        slowest_first = sorted(
            work.items(),
            key=lambda entry: (-len(entry[1]) * (entry[0][1] in _WHOLE), -max(c.limit_s for c in entry[1])),
        )
        checks = await asyncio.gather(*(one(*names, cases) for names, cases in slowest_first))
    return sorted(checks, key=lambda check: (check.target, check.mutant))


def demand_proof(checks: Sequence[Check]) -> list[Check]:
    """The checks; where all mutants of a case only block it, those are wrong."""
    proved = {
        case
        for check in checks
        if not check.legal and not check.problem
        for case in set(check.cases) - set(check.blocked)
    }
    return [
        msgspec.structs.replace(
            check,
            wrong=(*check.wrong, *(f"{case}: no mutant does more than block it" for case in sorted(unproved))),
        )
        if (unproved := set(check.blocked) - proved)
        else check
        for check in checks
    ]


def demand_difference(checks: Sequence[Check]) -> list[Check]:
    """The checks; where a case reports of a mutant what it reports of the sound broker as well, those are wrong."""
    sound = {
        (check.target, case): said for check in checks if check.mutant == BASELINE for case, said in check.reported
    }
    found = []
    for check in checks:
        same = [case for case, said in check.reported if not check.legal and sound.get((check.target, case)) == said]
        lines = tuple(f"{case}: says what it says of the sound broker" for case in same)
        found.append(msgspec.structs.replace(check, wrong=(*check.wrong, *lines)))
    return found


def check_mutants(
    cases: Sequence[Case],
    *,
    only: str = "",
    jobs: int = JOBS,
    report: Callable[[Check], None] = lambda _check: None,
) -> SelfCheck:
    """Check every mutant and near miss that ``cases`` name; ``report`` gets each check as it is known."""
    began, started_at = time.monotonic(), utc_now()
    work = work_of(cases, only)
    with Nursery() as nursery:
        checks = asyncio.run(_check_all(nursery, baselines(work) | work, jobs, report))
    # One mutant alone cannot say what the others prove.
    checks = demand_difference(checks if only else demand_proof(checks))
    # Where the broker itself does not start, nothing else has anything to say.
    broken = [check for check in checks if check.mutant == BASELINE and check.problem]
    return SelfCheck(
        checks=tuple(broken or checks),
        without_mutant=tuple(case.id for case in cases if not case.mutant and case.id not in unproven_case_ids()),
        started_at=started_at,
        duration_s=time.monotonic() - began,
    )


def _outcome_text(check: Check) -> str:
    if check.problem:
        return "[bold red]problem[/]"
    if check.wrong:
        return "[bold red]accused[/]" if check.legal else "[bold red]survives[/]"
    return "[green]passed[/]" if check.legal else "[green]killed[/]"


def print_table(console: Console, result: SelfCheck) -> None:
    """The checks for people, and one line at the end."""
    table = WholeTable("mutant", "what is changed", "cases", "outcome")
    for check in result.checks:
        table.add_row(check.name, check.what, str(len(check.cases)), _outcome_text(check))
    console.print(table)
    for check in result.checks:
        for line in (*check.wrong, *([check.problem] if check.problem else [])):
            console.print(f"[bold red]{check.name}[/]: {escape(line)}", soft_wrap=True)
        for line in check.unsteady:
            console.print(f"[yellow]{check.name}, once in two runs[/]: {escape(line)}", soft_wrap=True)
    for case_id in result.without_mutant:
        console.print(f"[bold red]no mutant[/]: {case_id}", soft_wrap=True)
    bugs = [check for check in result.checks if not check.legal]
    legal = [check for check in result.checks if check.legal and check.mutant != BASELINE]
    verdict = "[bold green]PASS[/]" if result.exit_code is ExitCode.OK else f"[bold red]{result.exit_code.name}[/]"
    console.print(
        f"{verdict}  {sum(check.ok for check in bugs)} of {len(bugs)} mutants killed, "
        f"{sum(check.ok for check in legal)} of {len(legal)} near misses passed, {result.duration_s:.1f} s"
    )


def _as_check(check: Check) -> results.Check:
    """One broker, broken or legal, for the report; 1 when every case judged it right."""
    verdict = Verdict.PASS if check.ok else Verdict.ERROR if check.problem else Verdict.FAIL
    return results.Check(name=check.name, value=float(check.ok), unit="", verdict=verdict, source=check.what)


def write_self_check(folder: Path, result: SelfCheck, *, command: str) -> Path:
    """``result.json`` of a self-check."""
    bugs = [check for check in result.checks if not check.legal]
    killed = sum(check.ok for check in bugs)
    findings = [
        Finding(
            checker="self_check",
            anomaly="problem" if check.problem else "accused" if check.legal else "survives",
            severity=Severity.SAFETY,
            message=f"{check.name} ({check.what}): {line}",
            values=list(check.cases),
        )
        for check in result.checks
        for line in (*check.wrong, *([check.problem] if check.problem else []))
    ]
    verdict = {ExitCode.OK: Verdict.PASS, ExitCode.FAILED: Verdict.FAIL}.get(result.exit_code, Verdict.ERROR)
    return write_result(
        folder,
        RunResult(
            kind=RunKind.SELF_CHECK,
            name="conformance self-check",
            verdict=verdict,
            summary=f"{killed} of {len(bugs)} mutants killed",
            started_at=result.started_at,
            duration_s=round(result.duration_s, 3),
            command=command,
            findings=findings,
            checks=[
                results.Check(
                    name="mutants killed",
                    value=float(killed),
                    unit="mutants",
                    bound=float(len(bugs)),
                    relation="==",
                    verdict=Verdict.PASS if killed == len(bugs) else Verdict.FAIL,
                    source="every case fails the broken broker that it names",
                ),
                *(_as_check(check) for check in result.checks),
            ],
            machine=this_machine(),
        ),
    )
