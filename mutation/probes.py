"""Probes: which check reaches which statement of the broker, at the price of an ordinary run of the tests.

In front of each statement of a function stands one comparison, whatever mutants are drawn: what is recorded is good
for the next draw, too. The first time that a process gets there in a check it writes ``NUMBER <tab> CHECK`` to a file
that all processes of a copied tree share. :data:`VARIABLE` in the environment names a file with :class:`Probes`, which
the ``sitecustomize.py`` of the tree plants; :data:`CHECK` is the check that a process begins with.

Only the standard library is used here, since every Python of the copied tree does this before anything else.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import marshal
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from mutation.planting import Finder, compiled

VARIABLE = "ASSAY_PROBES"
CHECK = "ASSAY_CHECK"
IMPORT = "import"
"""The check of what runs while the broker is imported."""
_SEEN, _HIT = "_assay_seen", "_assay_hit"
_LOAD, _NOT_IN = ast.Load(), ast.NotIn()
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


class Probes(NamedTuple):
    """What is planted."""

    sink: str
    """The file that gets the lines."""
    modules: dict[str, tuple[str, int]]
    """Dotted name to path, and the number of the first probe."""
    compiled: str
    """The folder that keeps what was compiled: a Python that starts anew needs seconds for it."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self), encoding="utf-8")


class Recorder:
    """Writes the lines of this process."""

    def __init__(self, sink: str, check: str) -> None:
        self.seen: set[int] = set()
        """In this check; cleared, never replaced: the probes hold it."""
        self._check = check
        self._sink = os.open(sink, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._unwritten = b""
        """While no file may grow: what such a case reaches is reached by no other one."""

    def hit(self, number: int) -> None:
        self.seen.add(number)
        self._unwritten += f"{number}\t{self._check}\n".encode()
        try:
            written = os.write(self._sink, self._unwritten)
        except OSError:  # a test that lets no file grow: once it lets them, or never
            return
        self._unwritten = self._unwritten[written:]

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

    makers = {
        name: (each[0], functools.partial(_made, Path(probes.compiled) / name, *each))
        for name, each in probes.modules.items()
    }
    sys.meta_path.insert(0, Finder(makers))


def _made(kept: Path, path: str, first: int) -> CodeType:
    try:
        code: CodeType = marshal.loads(kept.read_bytes())  # noqa: S302 - written by the same Python, in a folder of its own
    except OSError:
        tree, _spans = with_probes(Path(path).read_text(encoding="utf-8"), first)
        code = compiled(tree, path)
        try:
            partial = kept.with_name(f"{kept.name}.{os.getpid()}")
            partial.write_bytes(marshal.dumps(code))
            partial.replace(kept)
        except OSError:  # a test that lets no file grow
            pass
    return code


def with_probes(source: str, first: int) -> tuple[ast.Module, list[tuple[int, int]]]:
    """The program with a probe in front of each statement of its functions, numbered from ``first``.

    With it where these statements stand, in the order of their numbers: the offset in bytes of the first byte, and of
    the one after the last. What is in the body of the module or of a class runs at import, and has no probe.
    """
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans: list[tuple[int, int]] = []

    def place_all(node: ast.AST, *, within: bool) -> None:
        for name in _NESTED:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            found: list[ast.AST] = []
            for each in block:
                if within and isinstance(each, ast.stmt) and not _is_literal(each):
                    assert each.end_lineno is not None
                    assert each.end_col_offset is not None
                    begin = starts[each.lineno - 1] + each.col_offset
                    found.append(_probe(first + len(spans), each))
                    spans.append((begin, starts[each.end_lineno - 1] + each.end_col_offset))
                place_all(each, within=within or isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
                found.append(each)
            setattr(node, name, found)

    tree = ast.parse(source)
    place_all(tree, within=False)
    return tree, spans


def _is_literal(node: ast.stmt) -> bool:
    """A docstring must stay the first."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _probe(number: int, place: ast.stmt) -> ast.stmt:
    """``if NUMBER not in SEEN: HIT(NUMBER)``, put together: to have each parsed took half of the time."""
    where: dict[str, Any] = {
        "lineno": place.lineno,
        "col_offset": place.col_offset,
        "end_lineno": place.end_lineno,
        "end_col_offset": place.end_col_offset,
    }
    known = ast.Constant(number, **where)
    unseen = ast.Compare(known, [_NOT_IN], [ast.Name(_SEEN, _LOAD, **where)], **where)
    hit = ast.Call(ast.Name(_HIT, _LOAD, **where), [known], [], **where)
    return ast.If(unseen, [ast.Expr(hit, **where)], [], **where)
