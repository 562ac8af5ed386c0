"""Plants a mutant in a running Python, or in one that starts: no file of the tree is changed.

A process that has imported the broker already gets the mutant by :func:`swap`: every living function whose code the
mutant changes (methods, properties, closures made at import, what is decorated or kept in a table) gets the changed
code object in place of its own. What ran at import cannot be swapped: the bodies of modules and classes, defaults.

Every other process gets it at the import of the module: :data:`VARIABLE` in the environment names a :class:`Planted`
in JSON, and the ``sitecustomize.py`` of a copied tree calls :func:`plant_at_start`. Only the standard library is used
here, since every Python of the copied tree does this before anything else.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

VARIABLE = "ASSAY_MACHINE_MUTANT"


class Planted(NamedTuple):
    """A module with a bug in it."""

    path: str
    """Of the unchanged module as it is imported, absolute: through the link in ``assay/``."""
    module: str
    """Its dotted name."""
    source: str
    """The whole text, with the bug."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self), encoding="utf-8")


def dotted(module: str) -> str:
    """The name by which the module at a path from the root is imported."""
    return "assay." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(path: Path) -> Planted:
    """What :meth:`Planted.write` wrote."""
    return Planted(*json.loads(path.read_text(encoding="utf-8")))


def compiled(source: str | bytes | ast.Module, path: str) -> CodeType:
    """As the import does it: without what this module has from the future."""
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def _own(code: CodeType) -> tuple[object, ...]:
    """What a code object does by itself: neither where it stands in the text, nor what the functions in it do."""
    constants = tuple("code" if isinstance(each, CodeType) else (type(each), repr(each)) for each in code.co_consts)
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_exceptiontable,
        code.co_flags,
        code.co_argcount,
    )


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each code object with the one that stands in its place; below one with other parts than before there are none."""
    yield old, new
    before, after = _inner(old), _inner(new)
    if [each.co_name for each in before] == [each.co_name for each in after]:
        for pair in zip(before, after, strict=True):
            yield from _pairs(*pair)


def _below(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in _inner(code):
        yield from _below(each)


def same_program(old: CodeType, new: CodeType) -> bool:
    """Whether two modules are compiled to the same, wherever it stands in the text."""
    return [_own(each) for each in _below(old)] == [_own(each) for each in _below(new)]


def swap(planted: Planted, functions: Sequence[FunctionType] | None = None) -> bool:
    """Put the changed code in its place in all of the functions (None = all there are); False if that cannot be done.

    It is all or nothing: whatever the mutant changes is in a function that was swapped, or in one within it.
    """
    old, new = compiled(Path(planted.path).read_bytes(), planted.path), compiled(planted.source, planted.path)
    changed = {was: now for was, now in _pairs(old, new) if not same_program(was, now)}
    if functions is None:
        functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    found = [each for each in functions if each.__code__.co_filename == planted.path and each.__code__ in changed]
    if any(each.__code__.co_freevars != changed[each.__code__].co_freevars for each in found):
        return False
    reached = {id(code) for each in found for code in _below(changed[each.__code__])}
    if not found or any(id(now) not in reached for was, now in changed.items() if _own(was) != _own(now)):
        return False
    for each in found:
        each.__code__ = changed[each.__code__]
    return True


class Finder(MetaPathFinder):
    """Finds modules that are made anew: dotted name to the path, and what compiles it."""

    def __init__(self, makers: Mapping[str, tuple[str, Callable[[], CodeType]]]) -> None:
        self._makers = makers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname not in self._makers:
            return None
        file, make = self._makers[fullname]
        return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, file, make))


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, make: Callable[[], CodeType]) -> None:
        super().__init__(fullname, path)
        self._make = make

    def get_code(self, fullname: str) -> CodeType:
        """Never what was compiled before."""
        return self._make()


def plant_at_import(planted: Planted) -> None:
    """Whoever imports the module in this process gets the changed one."""
    make = functools.partial(compiled, planted.source, planted.path)
    sys.meta_path.insert(0, Finder({planted.module: (planted.path, make)}))


def plant_at_start() -> None:
    """What a Python of a copied tree does first."""
    if VARIABLE in os.environ:
        plant_at_import(read(Path(os.environ[VARIABLE])))


def plant(path: Path, functions: Sequence[FunctionType], *, ran_at_import: bool) -> bool:
    """Plant the mutant of a file in this process; False: another Python has to be started.

    ``ran_at_import``: what the changed code computed then is known to all, whatever it is now.
    """
    planted = read(path)
    if planted.module not in sys.modules:
        plant_at_import(planted)
        return True
    return not ran_at_import and swap(planted, functions)
