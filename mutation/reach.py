"""Which statement of the broker is reached by which check: probes, and all judges once on the sound project.

A *check* is the smallest thing that a judge can be asked for: a test, a case of a suite, a scenario. The map outlives
the sample it was made for: it knows statements, not mutants. What belongs together is a file in a folder named after
the broker's sources, and its own name is made of what it was recorded with: what has changed is recorded anew.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from assay.conformance.targets.process import packages_folder
from mutation import probes
from mutation.operators import Mutant
from mutation.planting import dotted
from mutation.probes import Probes
from mutation.tree import ROOT, Tree
from mutation.warm import Preload

_LIMIT_S = 3_600.0
_KEPT = 4
"""States of the broker whose maps are kept."""
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


def _stamp(part: Part) -> str:
    text = " ".join((part.judge, part.name, _digest_of(part.sources), *part.arguments))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Record(msgspec.Struct, kw_only=True):
    """What a file of the map holds: one part."""

    checks: list[Check] = []
    hits: dict[str, bytes] = {}
    """Check to the numbers of the statements it reached: a bit for each, the first is the least of the first byte."""


def digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files."""
    state = hashlib.sha256()
    for path in paths:
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


@functools.cache
def _digest_of(sources: tuple[str, ...]) -> str:
    return digest(ROOT / source for source in sources)


def cache_folder() -> Path:
    """Where maps are kept: below ``$ASSAY_CACHE``, or else the user's cache folder."""
    return packages_folder("").parent / "mutation"


class Layout:
    """Where the probes of all modules of the broker stand."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        """Path of a module to the number of its first probe."""
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self.size = 0
        for path in sorted((ROOT / "reference_broker").rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            self.first[module] = self.size
            self._spans[module] = probes.with_probes(path.read_text(encoding="utf-8"), self.size)[1]
            self.size += len(self._spans[module])

    def number(self, mutant: Mutant) -> int | None:
        """Of the innermost statement that holds a mutant; None: it runs at import."""
        spans = enumerate(self._spans[mutant.module], self.first[mutant.module])
        found = [(end - begin, number) for number, (begin, end) in spans if begin <= mutant.start < end]
        return min(found)[1] if found else None

    def of_module(self, module: str) -> int:
        """The bits of all statements of a module."""
        return ((1 << len(self._spans[module])) - 1) << self.first[module]


def _places(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        least = bits & -bits
        yield least.bit_length() - 1
        bits ^= least


@functools.cache
def layout() -> Layout:
    """Of the project this process runs in; it takes seconds."""
    return Layout()


class Reach:
    """The map, read and made. ``folder`` keeps it, and those of a few other states of the broker."""

    def __init__(self, folder: Path) -> None:
        self.layout = layout()
        sources = sorted((ROOT / "reference_broker").rglob("*.py"))
        self._folder = folder / digest([Path(probes.__file__), *sources])
        self.checks: dict[str, dict[str, Check]] = {}
        """Judge, then name, to all its checks."""
        self._parts: dict[str, list[list[Check]]] = {}
        self._hits: dict[str, dict[str, int]] = {}
        """Judge, then check, to the bits of what it reached."""
        self._at_import = 0
        self._lock = threading.Lock()

    def make(
        self, trees: list[Tree], parts: list[Part], preload: Preload, *, report: Callable[[str, int], None]
    ) -> None:
        """Read what is recorded, and record what is not.

        ``report`` gets the name of each part that is recorded, and how many are left.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.touch()
        kept = sorted(self._folder.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)
        for folder in kept[:-_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
        files = {self._folder / f"{_stamp(part)}.json": part for part in parts}
        imported = self._folder / f"{probes.IMPORT}.json"
        stale = [(part, file) for file, part in files.items() if not file.exists()]

        def work(tree: Tree) -> None:
            sink = tree.root.parent / "hits"
            sink.touch()
            warm = False
            while True:
                with self._lock:
                    if not stale and (warm or imported.exists()):
                        break
                    part, file = stale.pop(0) if stale else (None, imported)
                    report(part.name if part else probes.IMPORT, len(stale))
                if not warm:
                    self._plant(tree, sink, preload)
                    write(imported, Record(hits=self._read(sink)))
                    warm = True
                if part:
                    write(file, self._make_part(tree, part, sink))
            tree.cool_down()

        def write(file: Path, record: Record) -> None:
            partial = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            partial.write_bytes(msgspec.json.encode(record))
            partial.replace(file)

        with ThreadPoolExecutor(len(trees)) as pool:
            try:
                for done in [pool.submit(work, tree) for tree in trees]:
                    done.result()
            finally:
                with self._lock:
                    stale.clear()
        self._at_import = int.from_bytes(self._load(imported).hits.get(probes.IMPORT, b""), "little")
        self.checks, self._parts, self._hits = {}, {}, {}
        for file, part in files.items():
            record = self._load(file)
            self.checks.setdefault(part.judge, {}).update((check.name, check) for check in record.checks)
            self._parts.setdefault(part.judge, []).append(record.checks)
            hits = self._hits.setdefault(part.judge, {})
            for name, bits in record.hits.items():
                hits[name] = int.from_bytes(bits, "little")

    @staticmethod
    def _load(file: Path) -> Record:
        return msgspec.json.decode(file.read_bytes(), type=Record)

    def _plant(self, tree: Tree, sink: Path, preload: Preload) -> None:
        """Start a Python with the probes; the sink has what it executes when it imports the broker then."""
        modules = {
            dotted(module): (str(tree.root / "assay" / module), first) for module, first in self.layout.first.items()
        }
        planted, kept = tree.root.parent / "probes.json", tree.root.parent / "compiled"
        kept.mkdir()
        Probes(str(sink), modules, str(kept)).write(planted)
        tree.warm_up(preload, {probes.VARIABLE: str(planted)})

    def _read(self, sink: Path) -> dict[str, bytes]:
        """Check to the bits of what it reached since the last time."""
        found: dict[str, bytearray] = {}
        with sink.open(encoding="utf-8") as lines:
            for line in lines:
                number, _, check = line.rstrip("\n").partition("\t")
                place, bit = divmod(int(number), 8)
                found.setdefault(check, bytearray(self.layout.size // 8 + 1))[place] |= 1 << bit
        os.truncate(sink, 0)
        return {check: bytes(bits) for check, bits in found.items()}

    def _make_part(self, tree: Tree, part: Part, sink: Path) -> Record:
        tests = tree.root.parent / "tests.jsonl"
        tests.unlink(missing_ok=True)
        environment = {"ASSAY_TESTS": str(tests), "ASSAY_MOST_S": _MOST_S}
        environment |= {probes.CHECK: "" if part.many else part.name}
        ended = tree.run(part.arguments, limit_s=_LIMIT_S, environment=environment)
        hits = self._read(sink)
        hits.pop("", None)
        if not part.many:
            return Record(checks=[Check(name=part.name, ok=ended.status == 0, duration_s=ended.duration_s)], hits=hits)
        if not tests.exists():  # not even a test that was skipped for want of time
            if ended.status in _NO_TESTS:
                return Record()
            message = f"{part.name} cannot be mapped, exit status {ended.status}: {ended.output}"
            raise OSError(message)
        lines = tests.read_text(encoding="utf-8").splitlines()
        found = [msgspec.json.decode(line) for line in lines]
        return Record(checks=[Check(name=line.pop("test"), **line) for line in found], hits=hits)

    def unusable(self) -> list[str]:
        """Checks that fail the unchanged broker, or found nothing to check: nobody is judged by them."""
        return sorted(check.name for checks in self.checks.values() for check in checks.values() if not check.ok)

    def reaching(self, judge: str, mutant: Mutant) -> list[Check]:
        """The checks of a judge that reach the mutant; what runs at import concerns all who reach the module.

        A test that did not run for the map may do so where another test of its file reaches the module: it is taken to
        last as long as one of them.
        """
        number = self.layout.number(mutant)
        own = 0 if number is None else 1 << number
        module = self.layout.of_module(mutant.module)
        hits = self._hits.get(judge, {})
        found = {check for check, bits in hits.items() if bits & own}
        somehow = {check for check, bits in hits.items() if bits & module}
        if not found and self.ran_at_import(mutant):
            found = somehow
        good = {name: check for name, check in self.checks.get(judge, {}).items() if check.ok and check.ran}
        return [good[name] for name in sorted(found & good.keys())] + self._unknown(judge, somehow)

    def most_about(self, judge: str, mutant: Mutant) -> list[Check]:
        """Those that reach the mutant, in turn what tells the most about it beside what those before it tell.

        That is what it reaches of the mutant's module: a statement counts by how few reach it. So a mutant that every
        broker executes when it starts meets those first that use what it changed, and not those that reach the least.
        """
        module, hits = self.layout.of_module(mutant.module), self._hits.get(judge, {})
        checks = {check.name: check for check in self.reaching(judge, mutant)}
        theirs = {name: list(_places(hits.get(name, 0) & module)) for name in checks}
        often = Counter(place for places in theirs.values() for place in places)
        covered = set[int]()

        def gain(name: str) -> float:
            return sum(1.0 / often[place] for place in theirs[name] if place not in covered)

        found: list[Check] = []
        left = set(checks)
        while left:
            covered.clear()
            heap = [(-gain(name), self.breadth(judge, checks[name]), name) for name in left]
            heapq.heapify(heap)
            while heap:
                _, breadth, name = heapq.heappop(heap)
                now = gain(name)
                if heap and now < -heap[0][0]:
                    if now:
                        heapq.heappush(heap, (-now, breadth, name))
                    continue  # it may tell something in the next round
                found.append(checks[name])
                left.discard(name)
                covered.update(theirs[name])
        return found

    def breadth(self, judge: str, check: Check) -> int:
        """How many statements a check reaches."""
        return self._hits.get(judge, {}).get(check.name, 0).bit_count()

    def ran_at_import(self, mutant: Mutant) -> bool:
        """Whether the mutant is executed when the broker is imported, and what it computes is kept."""
        number = self.layout.number(mutant)
        return number is None or bool(self._at_import >> number & 1)

    def _unknown(self, judge: str, names: set[str]) -> list[Check]:
        """Tests that did not run, of the files of these tests."""
        found = []
        for checks in self._parts.get(judge, ()):
            ran = [check for check in checks if check.ran]
            if len(ran) < len(checks) and any(check.name in names for check in ran):
                mean_s = sum(check.duration_s for check in ran) / len(ran)
                found += [msgspec.structs.replace(check, duration_s=mean_s) for check in checks if not check.ran]
        return found
