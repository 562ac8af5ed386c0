"""Which line of the broker is executed by which check: coverage.py over all judges, once, on the unchanged project.

A *check* is the smallest thing that a judge can be asked for: a test, an area of a suite, a scenario. The map lies in a
folder and is made anew where it is not of this broker and these tests.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import msgspec
from coverage import CoverageData

from mutation.operators import Mutant
from mutation.tree import ROOT, Tree

_RECORDED = "recorded.json"
_DATA = "reach.coverage"
_LIMIT_S = 3_600.0
_MOST_S = "20"
"""Of the processor, for the tests of a file: these judges shall be fast."""
_SEPARATOR = "|"
_NO_TESTS = (0, 5)
"""How pytest ends where all tests were skipped, or none was chosen."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one judge, as it went on the unchanged broker."""

    name: str
    ok: bool = True
    duration_s: float = 0.0
    ran: bool = True
    """False for a test whose file had had its time: nobody knows what it executes, or how long it takes."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded in one go: a command that makes many checks, or that is one check itself."""

    judge: str
    name: str
    arguments: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Files whose change makes the record stale, beside the broker's own."""
    records: bool = False
    """It starts coverage.py itself, for each check."""
    contexts: bool = False
    """It tells coverage.py which check runs, and writes a line for each, as :mod:`mutation.contexts` does."""


class Record(msgspec.Struct, kw_only=True):
    """What ``recorded.json`` holds."""

    digests: dict[str, str] = {}
    """Of each part, to see whether it is stale."""
    checks: dict[str, dict[str, list[Check]]] = {}
    """Judge, then part, to the checks."""
    modules: dict[str, str] = {}
    """Digest of each module of the broker, as it was then."""


_IMPORT = Part(
    judge="import",
    name="import",
    arguments=("-c", "from mutation.warm import import_all; import_all('assay.reference_broker')"),
    contexts=True,
)
"""What is executed at import, in a context without a check."""


def digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    state = hashlib.sha256()
    for path in paths:
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def broker_modules() -> dict[str, str]:
    """Digest of every module of the broker, by its path from the root."""
    paths = sorted((ROOT / "reference_broker").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): digest([path]) for path in paths}


def _stamp(part: Part) -> str:
    return f"{digest(ROOT / source for source in part.sources)} {' '.join(part.arguments)}"


class Reach:
    """The map, read and made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / _RECORDED
        self.record = msgspec.json.decode(self._file.read_bytes(), type=Record) if self._file.exists() else Record()
        self._changed = {
            module for module, now in broker_modules().items() if self.record.modules.get(module, now) != now
        }
        self._lock = threading.Lock()
        self.lines_of = lru_cache(maxsize=64)(self._lines_of)

    def make(self, trees: list[Tree], parts: list[Part], *, keep: bool, report: Callable[[str, int], None]) -> None:
        """Record what is not recorded yet, or stale. With ``keep`` a changed broker makes nothing stale.

        ``report`` gets the name of each part that is recorded, and how many are left.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = [_IMPORT, *parts]
        if self._changed and not keep:
            self.record = Record()
            self._changed.clear()
            (self.folder / _DATA).unlink(missing_ok=True)
        if not self.record.modules:
            self.record.modules = broker_modules()
        stale = [(part, stamp) for part in parts if self.record.digests.get(part.name) != (stamp := _stamp(part))]

        def work(tree: Tree) -> None:
            while True:
                with self._lock:
                    if not stale:
                        return
                    part, stamp = stale.pop(0)
                    report(part.name, len(stale))
                checks = self._make_part(tree, part)
                with self._lock:
                    self.record.checks.setdefault(part.judge, {})[part.name] = checks
                    self.record.digests[part.name] = stamp
                    self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self.record), indent=1))

        with ThreadPoolExecutor(len(trees)) as pool:
            for done in [pool.submit(work, tree) for tree in trees]:
                done.result()
        for judge in {part.judge for part in parts}:
            kept = self.record.checks[judge]
            self.record.checks[judge] = {part.name: kept[part.name] for part in parts if part.judge == judge}
        self.lines_of.cache_clear()

    def _make_part(self, tree: Tree, part: Part) -> list[Check]:
        made = tree.scratch.parent / "coverage"
        made.mkdir(exist_ok=True)
        settings = made / "coveragerc"
        settings.write_text(
            "[run]\ncore = ctrace\nparallel = true\npatch = subprocess, fork, _exit\nsigterm = true\n"
            "disable_warnings = no-data-collected, module-not-measured, no-ctracer\n"
            f"source = {tree.root}/reference_broker\ndata_file = {made}/data\n"
            f"context = {part.judge}{_SEPARATOR}{'' if part.contexts else part.name}\n",
            encoding="utf-8",
        )
        tests = made / "tests.jsonl"
        tests.unlink(missing_ok=True)
        environment = {
            "ASSAY_TESTS": str(tests),
            "ASSAY_MOST_S": _MOST_S,
            "ASSAY_CONTEXT": f"{part.judge}{_SEPARATOR * 2}",
        }
        if not part.records:
            environment["COVERAGE_PROCESS_START"] = str(settings)
        ended = tree.run(part.arguments, limit_s=_LIMIT_S, environment=environment)
        with self._lock:
            self._add(tree, sorted(made.glob("data.*")))
        if not part.contexts:
            return [Check(name=part.name, ok=ended.status == 0, duration_s=ended.duration_s)]
        if not tests.exists():  # not even a test that was skipped for want of time
            if ended.status in _NO_TESTS:
                return []
            message = f"{part.name} cannot be mapped, exit status {ended.status}: {ended.output}"
            raise OSError(message)
        lines = tests.read_text(encoding="utf-8").splitlines()
        found = [msgspec.json.decode(line) for line in lines]
        return [Check(name=line.pop("test"), **line) for line in found]

    def _add(self, tree: Tree, paths: list[Path]) -> None:
        data = CoverageData(basename=str(self.folder / _DATA))
        data.read()
        for path in paths:
            piece = CoverageData(basename=str(path))
            piece.read()
            data.update(piece, map_path=lambda name: str(Path(name).relative_to(tree.root)))
            piece.close()
            path.unlink()
        data.write()
        data.close()

    def unusable(self) -> list[str]:
        """Checks that fail the unchanged broker, or found nothing to check: nobody is judged by them."""
        every = [check for parts in self.record.checks.values() for checks in parts.values() for check in checks]
        return sorted(check.name for check in every if not check.ok)

    def checks(self, judge: str) -> dict[str, Check]:
        """All checks of a judge that were good on the unchanged broker, by their names."""
        parts = self.record.checks.get(judge, {})
        return {check.name: check for checks in parts.values() for check in checks if check.ok and check.ran}

    def _lines_of(self, module: str) -> dict[int, frozenset[str]]:
        """Line to the contexts that executed it: ``judge|check``, for one of many ``judge||check``."""
        with self._lock:  # the library is not made for threads
            return self._read_lines(module)

    def _read_lines(self, module: str) -> dict[int, frozenset[str]]:
        data = CoverageData(basename=str(self.folder / _DATA))
        data.read()
        found = {line: frozenset(contexts) for line, contexts in data.contexts_by_lineno(module).items()}
        data.close()
        return found

    def reaching(self, judge: str, mutant: Mutant) -> list[Check]:
        """The checks of a judge that execute the mutant; what runs at import concerns all who reach the module.

        A test that did not run for the map may do so where another test of its file reaches the module: it is taken to
        last as long as one of them.
        """
        lines = self.lines_of(mutant.module)
        contexts: set[str] = set()
        if mutant.module not in self._changed:
            for first in (mutant.line, mutant.statement_line):
                if not contexts:
                    contexts.update(*(lines.get(line, ()) for line in range(first, mutant.last_line + 1)))
        elif lines:
            contexts.update(*lines.values())
        good = self.checks(judge)
        found = _names(judge, contexts) - {""}
        somehow = _names(judge, {context for contexts in lines.values() for context in contexts})
        if not found and self.ran_at_import(mutant):
            found = somehow
        return [good[name] for name in sorted(found & good.keys())] + self._unknown(judge, somehow)

    def ran_at_import(self, mutant: Mutant) -> bool:
        """Whether the mutant is executed when the broker is imported, and what it computes is kept."""
        lines = self.lines_of(mutant.module)
        lines_of_it = range(mutant.statement_line, mutant.last_line + 1)
        return any(f"{_IMPORT.judge}{_SEPARATOR}" in lines.get(line, ()) for line in lines_of_it)

    def _unknown(self, judge: str, names: set[str]) -> list[Check]:
        """Tests that did not run, of the files of these tests."""
        found = []
        for checks in self.record.checks.get(judge, {}).values():
            ran = [check for check in checks if check.ran]
            if len(ran) < len(checks) and any(check.name in names for check in ran):
                mean_s = sum(check.duration_s for check in ran) / len(ran)
                found += [msgspec.structs.replace(check, duration_s=mean_s) for check in checks if not check.ran]
        return found


def _names(judge: str, contexts: Iterable[str]) -> set[str]:
    """The checks of a judge in contexts of coverage.py; an empty name stands for what is executed at import."""
    parts = (context.partition(_SEPARATOR) for context in contexts)
    return {rest.removeprefix(_SEPARATOR) for owner, _, rest in parts if owner == judge}
