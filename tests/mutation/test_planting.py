"""A mutant that is planted in a running process is met by whoever calls the function, however it is held."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from mutation.operators import is_sound, mutants_of
from mutation.planting import Planted, dotted, plant, plant_at_import, same_program, swap

SOURCE = """
import functools

LIMIT = 10

def plain(value=3):
    return value + 1

taken = plain

def decorated(function):
    @functools.wraps(function)
    def wrapper(*values):
        return function(*values) * 100
    return wrapper

@decorated
def wrapped():
    return 2 + 2

def generator():
    yield 3 + 3

def makes(step):
    def made(value):
        return value + step
    return made

made_at_import = makes(5)
TABLE = {"key": lambda value: value + 7, "other": lambda value: value + 8}

def comprehends(values):
    return [value + 9 for value in values]

class Held:
    size = 11

    @property
    def seen(self):
        return 12 + 12

    @functools.cached_property
    def kept(self):
        return 13 + 13

    @staticmethod
    def still():
        return 14 + 14

    @classmethod
    def of_class(cls):
        return 15 + 15

    class Inner:
        def deep(self):
            return 16 + 16

async def waits():
    return 17 + 17

COMPUTED = plain()
"""
CALLS = {
    "value + 1": ("plain(1)", "taken(1)"),
    "function(*values) * 100": ("wrapped()",),
    "2 + 2": ("wrapped()",),
    "3 + 3": ("next(generator())",),
    "value + step": ("made_at_import(1)", "makes(2)(2)"),
    "value + 7": ("TABLE['key'](1)",),
    "value + 8": ("TABLE['other'](1)",),
    "value + 9": ("comprehends([1])",),
    "12 + 12": ("Held().seen",),
    "13 + 13": ("Held().kept",),
    "14 + 14": ("Held.still()",),
    "15 + 15": ("Held.of_class()",),
    "16 + 16": ("Held.Inner().deep()",),
    "17 + 17": ("next(waits().__await__())",),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "shapes_of_code.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shapes_of_code")
    del sys.modules["shapes_of_code"]


def _planted(module: ModuleType, was: str, now: str) -> Planted:
    assert SOURCE.count(was) == 1
    assert module.__file__
    return Planted(path=module.__file__, module=module.__name__, source=SOURCE.replace(was, now))


def _results(module: ModuleType, calls: tuple[str, ...]) -> list[object]:
    found: list[object] = []
    for call in calls:
        try:
            found.append(eval(call, vars(module)))
        except StopIteration as ended:
            found.append(ended.value)
    return found


@pytest.mark.parametrize("was", CALLS)
def test_who_holds_a_function_meets_the_bug(module: ModuleType, was: str) -> None:
    before = _results(module, CALLS[was])
    now = was.replace(" + ", " - ").replace(" * ", " + ")
    assert swap(_planted(module, was, now))
    for good, bad in zip(before, _results(module, CALLS[was]), strict=True):
        assert good != bad


def test_a_bug_changes_nothing_else(module: ModuleType) -> None:
    others = [call for was, calls in CALLS.items() if was != "value + 9" for call in calls]
    before = _results(module, tuple(others))
    assert swap(_planted(module, "[value + 9 for value in values]", "list(map(LIMIT.__add__, values))"))
    assert _results(module, tuple(others)) == before
    assert _results(module, ("comprehends([1])",)) == [[11]]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("LIMIT = 10", "LIMIT = 11"),
        ("value=3", "value=4"),
        ("size = 11", "size = 12"),
        ("COMPUTED = plain()", "COMPUTED = 5"),
        ("return value + step", "return value"),  # another closure than the one that was made
    ],
)
def test_what_ran_at_import_is_not_swapped(module: ModuleType, was: str, now: str, tmp_path: Path) -> None:
    before = {name: getattr(value, "__code__", value) for name, value in vars(module).items()}
    planted = _planted(module, was, now)
    assert not swap(planted)
    assert {name: getattr(value, "__code__", value) for name, value in vars(module).items()} == before
    planted.write(tmp_path / "mutant.json")
    assert not plant(tmp_path / "mutant.json", [], ran_at_import=False)


def test_what_computed_something_at_import_is_not_swapped(module: ModuleType, tmp_path: Path) -> None:
    """``COMPUTED`` would stay what it is."""
    _planted(module, "value + 1", "value + 2").write(tmp_path / "mutant.json")
    functions = [module.plain]
    assert not plant(tmp_path / "mutant.json", functions, ran_at_import=True)
    assert module.plain(1) == 2
    assert plant(tmp_path / "mutant.json", functions, ran_at_import=False)
    assert module.plain(1) == 3


def test_who_imports_the_module_later_gets_the_bug(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = _planted(module, "LIMIT = 10", "LIMIT = 11")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    plant_at_import(planted)
    monkeypatch.delitem(sys.modules, "shapes_of_code")
    assert importlib.import_module("shapes_of_code").LIMIT == 11
    sys.modules["shapes_of_code"] = module


def test_the_same_program_elsewhere_in_the_text_is_the_same() -> None:
    code = compile(SOURCE, "m.py", "exec")
    assert same_program(code, compile("\n\n" + SOURCE.replace("2 + 2", "(2 + 2)"), "m.py", "exec"))
    assert not same_program(code, compile(SOURCE.replace("value + 9", "value + 9.0"), "m.py", "exec"))
    assert not same_program(code, compile(SOURCE.replace("size = 11", "size = True"), "m.py", "exec"))


def test_nearly_every_mutant_within_a_function_of_the_broker_can_be_swapped() -> None:
    """Whatever the broker is made of: structs, slots, properties, generators, closures."""
    name = "reference_broker/mqtt/sessions/retained.py"
    module = importlib.import_module(dotted(name))
    assert module.__file__
    source = Path(module.__file__).read_text(encoding="utf-8")
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    codes = {each: each.__code__ for each in functions if each.__code__.co_filename == module.__file__}
    made = [mutant for mutant in mutants_of(name, source) if mutant.function and is_sound(mutant, source)][::3]
    swapped = 0
    for mutant in made:
        planted = Planted(path=module.__file__, module=module.__name__, source=mutant.apply(source))
        if swap(planted, list(codes)):
            swapped += 1
            assert any(function.__code__ is not code for function, code in codes.items()), mutant.key
        for function, code in codes.items():
            function.__code__ = code
    assert swapped >= 0.9 * len(made) > 10
