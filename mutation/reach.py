"""Which mutant is reached by which check: probes in front of the mutants, and all judges once on the sound project.

A *check* is the smallest thing that a judge can be asked for: a test, an area of a suite, a scenario. The map lies in a
file and is made anew where it is not of this broker, these mutants and these tests.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mutation import probes
from mutation.operators import Mutant
from mutation.planting import dotted
from mutation.probes import Probes, with_probes
from mutation.tree import ROOT, Tree
from mutation.warm import Preload

_LIMIT_S = 3_600.0
_MOST_S = "20"
"""Of the processor, for the tests of a file: these judges shall be fast."""
_NO_TESTS = (0, 5)
"""How pytest ends where all tests were skipped, or none was chosen."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one judge, as it went on the unchanged broker."""

    name: str
    ok: bool = True
    duration_s: float = 0.0
    ran: bool = True
    """False for a test whose file had had its time: nobody knows what it reaches, or how long it takes."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded in one go: a command that makes many checks, or that is one check itself."""

    judge: str
    name: str
    arguments: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Files whose change makes the record stale, beside the broker's own."""
    many: bool = False
    """It tells the probes which check runs, and writes a line for each, as :mod:`mutation.contexts` does."""


class Record(msgspec.Struct, kw_only=True):
    """What the file of the map holds."""

    broker: str = ""
    """Digest of all its modules, as they were then."""
    mutants: dict[str, int] = {}
    """Identity to the number of its probe."""
    modules: dict[str, int] = {}
    """Path to the number of the probes at the head of its functions."""
    at_import: set[int] = set()
    """Numbers of what is executed when the broker is imported."""
    digests: dict[str, str] = {}
    """Of each part, to see whether it is stale."""
    checks: dict[str, dict[str, list[Check]]] = {}
    """Judge, then part, to the checks."""
    hits: dict[str, dict[str, dict[str, set[int]]]] = {}
    """Judge, then part, then check, to the numbers it reached."""


def digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    state = hashlib.sha256()
    for path in paths:
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _stamp(part: Part) -> str:
    return f"{digest(ROOT / source for source in part.sources)} {' '.join(part.arguments)}"


class Reach:
    """The map, read and made."""

    def __init__(self, file: Path, mutants: Sequence[Mutant] = ()) -> None:
        self._file = file
        self.record = msgspec.json.decode(file.read_bytes(), type=Record) if file.exists() else Record()
        broker = digest(sorted((ROOT / "reference_broker").rglob("*.py")))
        if self.record.broker != broker or any(mutant.identity not in self.record.mutants for mutant in mutants):
            self.record = Record(broker=broker)
            self.record.mutants = {mutant.identity: number for number, mutant in enumerate(mutants)}
            modules = sorted({mutant.module for mutant in mutants})
            self.record.modules = {module: number for number, module in enumerate(modules, len(mutants))}
        self._mutants = mutants
        self._lock = threading.Lock()

    def make(
        self, trees: list[Tree], parts: list[Part], preload: Preload, *, report: Callable[[str, int], None]
    ) -> None:
        """Record what is not recorded yet, or stale.

        ``report`` gets the name of each part that is recorded, and how many are left.
        """
        stale = [(part, stamp) for part in parts if self.record.digests.get(part.name) != (stamp := _stamp(part))]
        self._file.parent.mkdir(parents=True, exist_ok=True)

        def work(tree: Tree) -> None:
            sink = tree.root.parent / "hits"
            sink.touch()
            warm = False
            while True:
                with self._lock:
                    if not stale:
                        break
                    part, stamp = stale.pop(0)
                    report(part.name, len(stale))
                if not warm:
                    self._plant(tree, sink, preload)
                    warm = True
                checks, hits = self._make_part(tree, part, sink)
                with self._lock:
                    self.record.checks.setdefault(part.judge, {})[part.name] = checks
                    self.record.hits.setdefault(part.judge, {})[part.name] = hits
                    self.record.digests[part.name] = stamp
            tree.cool_down()

        with ThreadPoolExecutor(len(trees)) as pool:
            try:
                for done in [pool.submit(work, tree) for tree in trees]:
                    done.result()
            finally:
                with self._lock:
                    stale.clear()
                    self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self.record), indent=1))
        for judge in {part.judge for part in parts}:
            mine = [part.name for part in parts if part.judge == judge]
            self.record.checks[judge] = {name: self.record.checks[judge][name] for name in mine}
            self.record.hits[judge] = {name: self.record.hits[judge][name] for name in mine}

    def _plant(self, tree: Tree, sink: Path, preload: Preload) -> None:
        """Start a Python with the probes; what it executes when it imports the broker is known then."""
        modules: dict[str, tuple[str, list[tuple[int, int]], int]] = {}
        without_probe = set[int]()
        for module, number in self.record.modules.items():
            mine = {
                self.record.mutants[mutant.identity]: mutant.start
                for mutant in self._mutants
                if mutant.module == module
            }
            with self._lock:
                # CPython 3.11 counts the depth of a tree once for all threads: two that parse at a time may fail.
                without_probe |= with_probes((ROOT / module).read_text(encoding="utf-8"), mine, number)[1]
            modules[dotted(module)] = str(tree.root / "assay" / module), list(mine.items()), number
        planted = tree.root.parent / "probes.json"
        Probes(str(sink), modules).write(planted)
        tree.warm_up(preload, {probes.VARIABLE: str(planted)})
        imported = self._read(sink).get(probes.IMPORT, set())
        with self._lock:
            self.record.at_import |= without_probe | imported

    @staticmethod
    def _read(sink: Path) -> dict[str, set[int]]:
        """Check to the numbers it reached since the last time."""
        found: dict[str, set[int]] = {}
        for line in sink.read_text(encoding="utf-8").splitlines():
            number, _, check = line.partition("\t")
            found.setdefault(check, set()).add(int(number))
        os.truncate(sink, 0)
        return found

    def _make_part(self, tree: Tree, part: Part, sink: Path) -> tuple[list[Check], dict[str, set[int]]]:
        tests = tree.root.parent / "tests.jsonl"
        tests.unlink(missing_ok=True)
        environment = {"ASSAY_TESTS": str(tests), "ASSAY_MOST_S": _MOST_S}
        environment |= {probes.CHECK: "" if part.many else part.name}
        ended = tree.run(part.arguments, limit_s=_LIMIT_S, environment=environment)
        hits = self._read(sink)
        hits.pop("", None)
        if not part.many:
            return [Check(name=part.name, ok=ended.status == 0, duration_s=ended.duration_s)], hits
        if not tests.exists():  # not even a test that was skipped for want of time
            if ended.status in _NO_TESTS:
                return [], {}
            message = f"{part.name} cannot be mapped, exit status {ended.status}: {ended.output}"
            raise OSError(message)
        lines = tests.read_text(encoding="utf-8").splitlines()
        found = [msgspec.json.decode(line) for line in lines]
        return [Check(name=line.pop("test"), **line) for line in found], hits

    def unusable(self) -> list[str]:
        """Checks that fail the unchanged broker, or found nothing to check: nobody is judged by them."""
        every = [check for parts in self.record.checks.values() for checks in parts.values() for check in checks]
        return sorted(check.name for check in every if not check.ok)

    def checks(self, judge: str) -> dict[str, Check]:
        """All checks of a judge that were good on the unchanged broker, by their names."""
        parts = self.record.checks.get(judge, {})
        return {check.name: check for checks in parts.values() for check in checks if check.ok and check.ran}

    def reaching(self, judge: str, mutant: Mutant) -> list[Check]:
        """The checks of a judge that reach the mutant; what runs at import concerns all who reach the module.

        A test that did not run for the map may do so where another test of its file reaches the module: it is taken to
        last as long as one of them.
        """
        own, module = self.record.mutants[mutant.identity], self.record.modules[mutant.module]
        hits = [pair for part in self.record.hits.get(judge, {}).values() for pair in part.items()]
        found = {check for check, numbers in hits if own in numbers}
        somehow = {check for check, numbers in hits if module in numbers}
        if not found and self.ran_at_import(mutant):
            found = somehow
        good = self.checks(judge)
        return [good[name] for name in sorted(found & good.keys())] + self._unknown(judge, somehow)

    def breadth(self, judge: str, check: Check) -> int:
        """How many mutants, and modules of theirs, a check reaches."""
        return sum(len(part.get(check.name, ())) for part in self.record.hits.get(judge, {}).values())

    def ran_at_import(self, mutant: Mutant) -> bool:
        """Whether the mutant is executed when the broker is imported, and what it computes is kept."""
        return self.record.mutants[mutant.identity] in self.record.at_import

    def _unknown(self, judge: str, names: set[str]) -> list[Check]:
        """Tests that did not run, of the files of these tests."""
        found = []
        for checks in self.record.checks.get(judge, {}).values():
            ran = [check for check in checks if check.ran]
            if len(ran) < len(checks) and any(check.name in names for check in ran):
                mean_s = sum(check.duration_s for check in ran) / len(ran)
                found += [msgspec.structs.replace(check, duration_s=mean_s) for check in checks if not check.ran]
        return found
