"""The judges, from fast to slow: what each is asked, and how it says what it found.

A judge is asked only for the checks that execute the mutant. What kills must do so twice, and leave the unchanged
broker alone, or it counts for nothing: machines are busy. A judge with a budget says how many checks it left out: what
lives then has not been judged whole, and is neither killed nor a survivor.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from conformance.case import load_cases
from mutation.operators import Mutant
from mutation.reach import Check, Part, Reach
from mutation.tree import ROOT, Ended, Tree

UNIT_FOLDERS = ("tests/core", "tests/mqtt", "tests/storage", "tests/storage_tools", "tests/server")
_SLOW = ("tests/mqtt/quirks",)
"""Tests that run whole suites: other judges do that."""
_TESTS_AT_ONCE = 300
_TIMES_SLOWER = 5
_SAID = 300
_COMMAND = ("-m", "assay.cli")
_SUITES = ("mqtt311", "mqtt5", "queue")
_LIVES = 100
_SCENARIOS = ("crash-restart", "power-loss", "slow-consumer", "flaky-network")


class Outcome(StrEnum):
    KILLED = "killed"
    TIMEOUT = "timeout"
    """Killed, too: nothing of the kind takes that long on the unchanged broker."""
    SURVIVED = "survived"
    NOT_REACHED = "not reached"
    """None of its checks executes the mutant."""


KILLS = (Outcome.KILLED, Outcome.TIMEOUT)


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """What one judge says of one mutant."""

    judge: str
    outcome: Outcome
    by: str = ""
    """The check that killed it, or what it said."""
    duration_s: float = 0.0
    left_out: int = 0
    """Checks that may execute the mutant and were not made, for want of time."""


class SoundTree:
    """The unchanged project, shared by all workers: whoever kills must leave it alone."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._lock = threading.Lock()
        self._passes: dict[tuple[str, ...], bool] = {}

    def passes(self, arguments: tuple[str, ...], limit_s: float) -> bool:
        """Whether a command ends well on the unchanged broker; asked once."""
        with self._lock:
            if arguments not in self._passes:
                self._passes[arguments] = self.tree.run(arguments, limit_s=limit_s).status == 0
            return self._passes[arguments]


class Bench:
    """Where a mutant is judged: its tree, an unchanged one, the map, and the limits.

    ``budget_s`` is how long the chosen tests took on the unchanged broker at most, and ``rest_s`` those that are made
    afterwards of a mutant that everybody let live; no command is ended before ``patience_s`` are over.
    """

    def __init__(
        self, tree: Tree, sound: SoundTree, reach: Reach, *, budget_s: float, rest_s: float, patience_s: float
    ) -> None:
        self.tree, self.sound, self.reach = tree, sound, reach
        self.budget_s, self.rest_s, self.patience_s = budget_s, rest_s, patience_s

    def limit_s(self, checks: Sequence[Check], times: float = _TIMES_SLOWER) -> float:
        """The time limit of a command that makes these checks."""
        return self.patience_s + times * sum(check.duration_s for check in checks)


class Judge:
    """One judge. ``black_box``: it sees no more of the broker than any client."""

    black_box = False

    def __init__(self, name: str) -> None:
        self.name = name

    def parts(self) -> list[Part]:
        """What is recorded on the unchanged broker."""
        raise NotImplementedError

    def judge(self, mutant: Mutant, bench: Bench) -> Opinion:
        """Ask for everything that reaches the mutant, within the budget."""
        checks, left_out = self.chosen(mutant, bench)
        if not checks and not left_out:
            return Opinion(judge=self.name, outcome=Outcome.NOT_REACHED)
        return msgspec.structs.replace(self.ask(checks, bench), left_out=len(left_out))

    def judge_rest(self, mutant: Mutant, bench: Bench, before: Opinion) -> Opinion:
        """Ask for what :meth:`judge` left out."""
        checks, left_out = within(self.chosen(mutant, bench)[1], bench.rest_s)
        opinion = self.ask(checks, bench)
        spent_s = round(before.duration_s + opinion.duration_s, 2)
        return msgspec.structs.replace(opinion, left_out=len(left_out), duration_s=spent_s)

    def chosen(self, mutant: Mutant, bench: Bench) -> tuple[list[Check], list[Check]]:
        """The checks that execute the mutant and fit into the budget, the most promising first; and the others."""
        return bench.reach.reaching(self.name, mutant), []

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        raise NotImplementedError

    def opinion(self, outcome: Outcome, by: str, *ended: Ended) -> Opinion:
        spent_s = round(sum(one.duration_s for one in ended), 2)
        return Opinion(judge=self.name, outcome=outcome, by=by, duration_s=spent_s)


class UnitTests(Judge):
    """Tests of pytest: those of files named after the module first, then from fast to slow."""

    def __init__(self, name: str, files: Sequence[str] = ()) -> None:
        """``files``: only these files of tests."""
        super().__init__(name)
        paths = [path for folder in UNIT_FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"))]
        names = [path.relative_to(ROOT).as_posix() for path in paths]
        self._files = files or [name for name in names if not name.startswith(_SLOW)]

    def parts(self) -> list[Part]:
        return [
            Part(
                judge=self.name,
                name=name,
                arguments=self._arguments("-m", "not slow", name),
                sources=(name,),
                pytest=True,
            )
            for name in self._files
        ]

    @staticmethod
    def _arguments(*more: str) -> tuple[str, ...]:
        options = ("-q", "-p", "mutation.contexts", "-p", "no:cacheprovider", "--no-header")
        return ("-m", "pytest", *options, *more)

    def chosen(self, mutant: Mutant, bench: Bench) -> tuple[list[Check], list[Check]]:
        stem = Path(mutant.module).stem
        checks = bench.reach.reaching(self.name, mutant)
        checks.sort(key=lambda check: (stem not in check.name.partition("::")[0], check.duration_s))
        return within(checks, bench.budget_s)

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        ran: list[Ended] = []
        for place in range(0, len(checks), _TESTS_AT_ONCE):
            opinion = self._ask(checks[place : place + _TESTS_AT_ONCE], bench, ran)
            if opinion.outcome in KILLS:
                return opinion
        return self.opinion(Outcome.SURVIVED, "", *ran)

    def _ask(self, checks: list[Check], bench: Bench, ran: list[Ended]) -> Opinion:
        names = [check.name for check in checks]
        while names:
            record = bench.tree.scratch.parent / "tests.jsonl"
            record.unlink(missing_ok=True)
            environment = {"ASSAY_TESTS": str(record)}
            ran.append(
                bench.tree.run(self._arguments("-x", *names), limit_s=bench.limit_s(checks), environment=environment)
            )
            if ran[-1].timed_out:
                return self.opinion(Outcome.TIMEOUT, "", *ran)
            if ran[-1].status == 0:
                break
            lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
            failed = [line["test"] for line in lines if not line["ok"]]
            suspects = failed or names  # without a failed test, something could not even be imported
            ran.append(bench.tree.run(self._arguments("-x", *suspects), limit_s=bench.limit_s(checks)))
            if ran[-1].status != 0:
                return self.opinion(Outcome.KILLED, failed[0] if failed else _said(ran[0]), *ran)
            names = names[names.index(suspects[-1]) + 1 :]
        return self.opinion(Outcome.SURVIVED, "", *ran)


class Commands(Judge):
    """Commands whose exit status says all; the same seed does the same."""

    def __init__(self, name: str, *commands: str, black_box: bool = False) -> None:
        super().__init__(name)
        self._commands = commands
        self.black_box = black_box

    def parts(self) -> list[Part]:
        return [Part(judge=self.name, name=text, arguments=tuple(text.split())) for text in self._commands]

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        ran: list[Ended] = []
        for check in checks:
            ran.append(bench.tree.run(check.name.split(), limit_s=bench.limit_s([check])))
            if ran[-1].timed_out:
                return self.opinion(Outcome.TIMEOUT, check.name, *ran)
            if ran[-1].status != 0 and bench.sound.passes(tuple(check.name.split()), bench.limit_s([check])):
                return self.opinion(Outcome.KILLED, f"{check.name}: {_said(ran[-1])}", *ran)
        return self.opinion(Outcome.SURVIVED, "", *ran)


class Suites(Judge):
    """The conformance suites on a broker process, stopped at the first case that fails and fails again by itself."""

    black_box = True

    def __init__(self, name: str, areas: Sequence[str] = ()) -> None:
        """``areas``: only these, e.g. ``mqtt5/will/``."""
        super().__init__(name)
        every = dict.fromkeys(f"{case.spec}/{case.area}/" for case in load_cases().values() if case.spec in _SUITES)
        self._areas = areas or tuple(every)

    def parts(self) -> list[Part]:
        areas = self._areas
        return [Part(judge=self.name, name=area, arguments=self._arguments(area)) for area in areas]

    @staticmethod
    def _arguments(*texts: str) -> tuple[str, ...]:
        return (*_COMMAND, "conformance", "run", "--target", "reference", "-k", ",".join(texts))

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        areas = [check.name for check in checks]
        ran: list[Ended] = []
        report = bench.tree.scratch.parent / "report.jsonl"
        report.unlink(missing_ok=True)
        known: set[str] = set()

        def failed() -> list[str]:
            if not report.exists():
                return []
            found = []
            for line in report.read_bytes().split(b"\n")[:-1]:
                row = json.loads(line)
                if row.get("verdict") in ("fail", "error", "xpass") and row.get("case"):
                    found.append(str(row["case"]))
            return [case for case in found if case not in known]

        while True:
            command = self._arguments(*areas)
            report.unlink(missing_ok=True)
            limit_s = bench.limit_s(checks, 1.0)  # together they take less than one by one
            ran.append(
                bench.tree.run((*command, "--json", str(report)), limit_s=limit_s, enough=lambda: bool(failed()))
            )
            suspects = failed()
            if ran[-1].timed_out and not suspects:
                return self.opinion(Outcome.TIMEOUT, "", *ran)
            if ran[-1].status == 0 and not suspects:
                return self.opinion(Outcome.SURVIVED, "", *ran)
            again = self._arguments(*suspects[:1]) if suspects else command
            ran.append(bench.tree.run(again, limit_s=limit_s))
            if ran[-1].status != 0 and bench.sound.passes(again, limit_s):
                return self.opinion(Outcome.KILLED, suspects[0] if suspects else _said(ran[-1]), *ran)
            if not suspects or len(known) > 3:
                return self.opinion(Outcome.SURVIVED, "", *ran)
            known.update(suspects)


def within(checks: Sequence[Check], budget_s: float) -> tuple[list[Check], list[Check]]:
    """The checks that fit into a budget, each in its turn, and the others."""
    left_s, found, left_out = budget_s, list[Check](), list[Check]()
    for check in checks:
        fits = check.duration_s <= left_s
        (found if fits else left_out).append(check)
        left_s -= check.duration_s if fits else 0.0
    return found, left_out


def _said(ended: Ended) -> str:
    """What a command said last."""
    return " ".join(ended.output.split())[-_SAID:]


def all_judges() -> list[Judge]:
    """From fast to slow."""
    run = " ".join(_COMMAND)
    return [
        UnitTests("unit tests"),
        Commands("model", "-m sim.queue_model --examples 40 --seed 1"),
        Commands("fuzz", f"{run} fuzz mqtt --packets 6000 --seed 1 --shrink-for-s 0"),
        Commands("simulation", *(f"{run} sim run {name} --seed 1" for name in _SCENARIOS)),
        Suites("conformance"),
        Commands(
            "explore",
            f"{run} conformance explore --target reference --examples {_LIVES} --max-findings 1 --seed 1",
            black_box=True,
        ),
    ]
