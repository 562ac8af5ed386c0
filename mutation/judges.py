"""The judges, from fast to slow: what each is asked, and how it says what it found.

A judge is asked only for the checks that execute the mutant. What kills must do so twice, and leave the unchanged
broker alone, or it counts for nothing: machines are busy. A judge with a budget says how many checks it left out: what
lives then has not been judged whole, and is neither killed nor a survivor.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from assay.conformance.case import load_cases
from mutation.operators import Mutant
from mutation.reach import Check, Part, Reach
from mutation.tree import ROOT, Ended, Tree
from mutation.warm import PYTEST_OPTIONS, Preload

UNIT_FOLDERS = (
    "tests/routing",
    "tests/queues",
    "tests/core",
    "tests/mqtt",
    "tests/amqp091",
    "tests/storage",
    "tests/storage_tools",
    "tests/server",
    "tests/http",
    "tests/grpc_api",
    "tests/coap",
    "tests/schemas",
    "tests/trace",
)
_SLOW = ("tests/mqtt/quirks",)
"""Tests that run whole suites: other judges do that."""
_TESTS_AT_ONCE = 300
_FIRST_S = 1.0
"""Of tests, as long as they took for the map, that are asked first."""
_SOME_OF_A_FILE = 4
_TIMES_SLOWER = 4
_SAID = 300
_COMMAND = ("-m", "assay.cli")
_CASES = ("-m", "mutation.black_box", "cases")
_SUITES = ("mqtt311", "mqtt5", "queue", "amqp091", "http", "grpc")
_LIVES = 100
_QUEUE_LIVES = 60
_TINY_LIVES = 30
_AMQP_LIVES = 60
_HTTP_LIVES = 30
_PACKAGES = ("assay.reference_broker", "assay.conformance", "assay.faults", "assay.sim")
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


class Bench:
    """Where a mutant is judged: its tree, the map, and the limits.

    ``budget_s`` is how long the chosen tests took on the unchanged broker at most, and ``rest_s`` those that are made
    afterwards of a mutant that everybody let live; no command is ended before ``patience_s`` are over.
    """

    def __init__(self, tree: Tree, reach: Reach, *, budget_s: float, rest_s: float, patience_s: float) -> None:
        self.tree, self.reach = tree, reach
        self.budget_s, self.rest_s, self.patience_s = budget_s, rest_s, patience_s
        self._passes: dict[tuple[str, ...], bool] = {}

    def limit_s(self, checks: Sequence[Check], times: float = _TIMES_SLOWER) -> float:
        """The time limit of a command that makes these checks."""
        return self.patience_s + times * sum(check.duration_s for check in checks)

    def passes(self, arguments: tuple[str, ...], limit_s: float) -> bool:
        """Whether a command ends well on the unchanged broker; asked once."""
        if arguments not in self._passes:
            self._passes[arguments] = self.tree.run(arguments, limit_s=limit_s, sound=True).status == 0
        return self._passes[arguments]


class Judge:
    """One judge. ``black_box``: it sees no more of the broker than any client."""

    black_box = False

    def __init__(self, name: str) -> None:
        self.name = name

    def parts(self) -> list[Part]:
        """What is recorded on the unchanged broker."""
        raise NotImplementedError

    def preload(self) -> Preload:
        """What its commands import."""
        return Preload(packages=_PACKAGES)

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


@functools.cache
def _sources(*folders: str) -> tuple[str, ...]:
    """What all checks of a judge share: the modules below folders, but tests, mutants of ours, and cases."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    cases = {_path(case.module) for case in load_cases().values()}
    names = [path.relative_to(ROOT).as_posix() for path in paths if not path.name.startswith("test_")]
    return tuple(name for name in names if name not in cases and not name.startswith("conformance/mutants/"))


def _path(module: str) -> str:
    return module.removeprefix("assay.").replace(".", "/") + ".py"


class UnitTests(Judge):
    """Tests of pytest: those of files named after the module first, then a few of each file, from fast to slow."""

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
                sources=(name, *_sources("tests")),
                many=True,
            )
            for name in self._files
        ]

    def preload(self) -> Preload:
        return Preload(tests=tuple(self._files))

    @staticmethod
    def _arguments(*more: str) -> tuple[str, ...]:
        return ("-m", "pytest", *PYTEST_OPTIONS, *more)

    def chosen(self, mutant: Mutant, bench: Bench) -> tuple[list[Check], list[Check]]:
        stem = Path(mutant.module).stem
        checks = bench.reach.reaching(self.name, mutant)
        checks.sort(key=lambda check: check.duration_s)
        seen = Counter[str]()
        order = dict[str, tuple[bool, int]]()
        for check in checks:
            file = check.name.partition("::")[0]
            seen[file] += 1
            order[check.name] = stem not in file, seen[file] // _SOME_OF_A_FILE
        return within(sorted(checks, key=lambda check: order[check.name]), bench.budget_s)

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        ran: list[Ended] = []
        left = checks
        for most_s in (_FIRST_S, *[bench.budget_s + bench.rest_s] * len(checks)):
            # Most are killed by the first tests; who computes without end shall do so for a short time.
            some = within(left, most_s)[0][:_TESTS_AT_ONCE] or left[:1]
            if not some:
                break
            opinion = self._ask(some, bench, ran)
            if opinion.outcome in KILLS:
                return opinion
            left = [check for check in left if check not in some]
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
            # Without a failed test, the process ended in one, or could not even import the first.
            begun = [name for name in names if name not in {line["test"] for line in lines}]
            suspect = (failed or begun or names)[0]
            again = self._arguments("-x", suspect)
            ran.append(bench.tree.run(again, limit_s=bench.limit_s(checks)))
            if ran[-1].status != 0 and bench.passes(again, bench.limit_s(checks)):
                return self.opinion(Outcome.KILLED, suspect, *ran)
            names = names[names.index(suspect) + 1 :]
        return self.opinion(Outcome.SURVIVED, "", *ran)


class Commands(Judge):
    """Commands whose exit status says all; the same seed does the same."""

    def __init__(self, name: str, *commands: str, black_box: bool = False) -> None:
        super().__init__(name)
        self._commands = commands
        self.black_box = black_box

    def parts(self) -> list[Part]:
        sources = _sources("sim", "faults", "conformance", "mutation")
        return [
            Part(judge=self.name, name=text, arguments=tuple(text.split()), sources=sources) for text in self._commands
        ]

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        ran: list[Ended] = []
        for check in checks:
            ran.append(bench.tree.run(check.name.split(), limit_s=bench.limit_s([check])))
            if ran[-1].timed_out:
                return self.opinion(Outcome.TIMEOUT, check.name, *ran)
            if ran[-1].status != 0 and bench.passes(tuple(check.name.split()), bench.limit_s([check])):
                return self.opinion(Outcome.KILLED, f"{check.name}: {_said(ran[-1])}", *ran)
        return self.opinion(Outcome.SURVIVED, "", *ran)


class Suites(Judge):
    """Cases of the conformance suites, each chosen if it reaches the mutant; those of a module are mapped in one go.

    Those come first that are the most about what is around it (:meth:`mutation.reach.Reach.most_about`).
    """

    black_box = True

    def __init__(self, name: str, areas: Sequence[str] = ()) -> None:
        """``areas``: only these, e.g. ``mqtt5/will``."""
        super().__init__(name)
        self._cases: dict[str, list[str]] = {}
        for case in load_cases().values():
            area = f"{case.spec}/{case.area}"
            if case.spec in _SUITES and (not areas or area in areas):
                self._cases.setdefault(_path(case.module), []).append(case.id)

    def parts(self) -> list[Part]:
        return [
            Part(
                judge=self.name,
                name=module,
                arguments=(*_CASES, *sorted(cases)),
                sources=(module, *_sources("conformance")),
                many=True,
            )
            for module, cases in self._cases.items()
        ]

    def chosen(self, mutant: Mutant, bench: Bench) -> tuple[list[Check], list[Check]]:
        return within(bench.reach.most_about(self.name, mutant), bench.budget_s)

    def ask(self, checks: list[Check], bench: Bench) -> Opinion:
        """They run at the same time, which takes less than one by one; whom they kill they have killed twice."""
        if not checks:
            return self.opinion(Outcome.SURVIVED, "")
        asked = (*_CASES, *(check.name for check in checks))
        ran = bench.tree.run(asked, limit_s=bench.limit_s(checks, 1.0))
        if ran.timed_out:
            return self.opinion(Outcome.TIMEOUT, "", ran)
        if ran.status == 0:
            return self.opinion(Outcome.SURVIVED, "", ran)
        by = next((check.name for check in checks if f"{check.name}: " in ran.output), "")
        kills = bench.passes((*_CASES, by) if by else asked, bench.limit_s(checks, 1.0))
        return self.opinion(Outcome.KILLED if kills else Outcome.SURVIVED, _said(ran), ran)


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
        Commands("model", "-m assay.sim.queue_model --examples 40 --seed 1"),
        Commands(
            "fuzz", *(f"{run} fuzz {what} --packets 6000 --seed 1 --shrink-for-s 0" for what in ("mqtt", "amqp091"))
        ),
        Commands("simulation", *(f"{run} sim run {name} --seed 1" for name in _SCENARIOS)),
        Commands("explore", f"-m mutation.black_box lives {_LIVES} 1", black_box=True),
        Commands("explore queues", f"-m mutation.black_box queues {_QUEUE_LIVES} 1", black_box=True),
        Commands("explore amqp", f"-m mutation.black_box amqp {_AMQP_LIVES} 1", black_box=True),
        Commands("explore http", f"-m mutation.black_box http {_HTTP_LIVES} 1", black_box=True),
        Commands(
            "explore tiny",
            f"-m mutation.black_box tiny {_TINY_LIVES} 1",
            f"-m mutation.black_box tiny-lives {_TINY_LIVES} 1",
            black_box=True,
        ),
        Suites("conformance"),
    ]
