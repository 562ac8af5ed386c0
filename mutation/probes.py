"""Probes: which check reaches which mutant, at the price of an ordinary run of the tests.

In front of the statement of each mutant stands one comparison, and at the head of each function of its module another.
The first time that a process gets there in a check it writes a line ``NUMBER <tab> CHECK`` to a file that all
processes of a copied tree share. :data:`VARIABLE` in the environment names a file with :class:`Probes`, which the
``sitecustomize.py`` of the tree plants; :data:`CHECK` is the check that a process begins with.

Only the standard library is used here, since every Python of the copied tree does this before anything else.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from mutation.planting import Finder, compiled

VARIABLE = "ASSAY_PROBES"
CHECK = "ASSAY_CHECK"
IMPORT = "import"
"""The check of what runs while the broker is imported."""
_SEEN, _HIT = "_assay_seen", "_assay_hit"
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


class Probes(NamedTuple):
    """What is planted."""

    sink: str
    """The file that gets the lines."""
    modules: dict[str, tuple[str, list[tuple[int, int]], int]]
    """Dotted name to path, places of mutants (number, offset in bytes), and the number of the module itself."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self), encoding="utf-8")


class Recorder:
    """Writes the lines of this process."""

    def __init__(self, sink: str, check: str) -> None:
        self.seen: set[int] = set()
        """In this check; cleared, never replaced: the probes hold it."""
        self._check = check
        self._sink = os.open(sink, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def hit(self, number: int) -> None:
        self.seen.add(number)
        try:
            os.write(self._sink, f"{number}\t{self._check}\n".encode())
        except OSError:  # a test that lets no file grow: nobody knows what it reaches then
            self.seen.discard(number)

    def begin(self, check: str) -> None:
        self._check = check
        self.seen.clear()


_recorder: Recorder | None = None


def begin(check: str) -> None:
    """From now on this process, and those that are forked from it, make this check."""
    os.environ[CHECK] = check
    if _recorder is not None:
        _recorder.begin(check)


def plant_at_start() -> None:
    """What a Python of a copied tree does first."""
    global _recorder
    if VARIABLE not in os.environ or _recorder is not None:
        return
    probes = Probes(*json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8")))
    _recorder = Recorder(probes.sink, os.environ.get(CHECK, ""))
    setattr(builtins, _SEEN, _recorder.seen)
    setattr(builtins, _HIT, _recorder.hit)

    makers = {name: (each[0], functools.partial(_made, *each)) for name, each in probes.modules.items()}
    sys.meta_path.insert(0, Finder(makers))


def _made(path: str, places: Sequence[tuple[int, int]], module: int) -> CodeType:
    tree, _at_import = with_probes(Path(path).read_text(encoding="utf-8"), dict(places), module)
    return compiled(tree, path)


def with_probes(source: str, places: Mapping[int, int], module: int) -> tuple[ast.Module, set[int]]:
    """The program with probes for mutants (number to offset in bytes) and functions (all have the module's number).

    With it the numbers that have no probe: they stand in the body of the module or of a class, and run at import.
    """
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    left, at_import = dict(places), set[int]()

    def place_all(node: ast.AST, within: bool) -> None:
        """The innermost statement takes the probe."""
        for name in _NESTED:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            found: list[ast.AST] = []
            for each in block:
                inside = within or isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                place_all(each, inside)
                if isinstance(each, ast.stmt):
                    assert each.end_lineno is not None
                    assert each.end_col_offset is not None
                    first = starts[each.lineno - 1] + each.col_offset
                    last = starts[each.end_lineno - 1] + each.end_col_offset
                    mine = [number for number, offset in left.items() if first <= offset < last]
                    for number in mine:
                        del left[number]
                    if within:
                        found += [_probe(number, each) for number in mine]
                    else:
                        at_import.update(mine)
                    if inside and not within:
                        function = each.body  # type: ignore[attr-defined]
                        function.insert(_after_docstring(function), _probe(module, each))
                found.append(each)
            setattr(node, name, found)

    tree = ast.parse(source)
    place_all(tree, within=False)
    return ast.fix_missing_locations(tree), at_import | left.keys()


def _after_docstring(body: Sequence[ast.stmt]) -> int:
    return int(isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))


def _probe(number: int, place: ast.stmt) -> ast.stmt:
    text = f"if {number} not in {_SEEN}: {_HIT}({number})"
    (probe,) = ast.parse(text).body
    for node in ast.walk(probe):
        ast.copy_location(node, place)
    return probe
