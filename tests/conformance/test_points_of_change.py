"""Mutants change the broker where it has a name for what they change: private names are its own affair."""

from __future__ import annotations

import ast
import importlib
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from assay.conformance import mutants
from assay.conformance.mutants import Patch, all_mutants

FOLDER = Path(mutants.__file__).parent
BROKER = "assay.reference_broker"


class _Noted(Patch):
    """Notes the private names, of attributes and of what has them, that a mutant changes."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.names: set[str] = set()

    def replace(self, owner: type | ModuleType, name: str, value: object) -> None:
        home = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
        path = f"{home}.{name}"
        if any(part.startswith("_") and not part.startswith("__") for part in path.split(".")):
            self.names.add(path)
        super().replace(owner, name, value)


def _patched() -> set[str]:
    found: set[str] = set()
    for mutant in all_mutants().values():
        with ExitStack() as stack:
            patch = _Noted(stack)
            mutant.apply(patch)
            found |= patch.names
    return found


def _named() -> set[str]:
    """Private names of the broker's modules that the mutants' text names: imported, or behind the module's name."""
    found: set[str] = set()
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        homes = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in imports
            if str(node.module).startswith(BROKER)
            for alias in node.names
        }
        for parameter in (node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)):
            homes.pop(parameter, None)
        found |= {home for home in homes.values() if home.rpartition(".")[2].startswith("_")}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.startswith("_"):
                home = homes.get(node.value.id, "")
                if home and not node.attr.startswith("__"):
                    found.add(f"{home}.{node.attr}")
    return found


def test_mutants_change_only_what_has_a_public_name() -> None:
    assert not _patched() | _named(), "name the point of change in the broker and say in its docstring what it does"


def test_private_names_are_seen() -> None:
    module = importlib.import_module(f"{BROKER}.storage.log_opening")
    with ExitStack() as stack:
        patch = _Noted(stack)
        name = next(name for name in vars(module) if name.startswith("_") and not name.startswith("__"))
        patch.replace(module, name, None)
    assert patch.names == {f"{module.__name__}.{name}"}
