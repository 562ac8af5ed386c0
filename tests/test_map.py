"""ARCHITECTURE.md is a map: what it names is there, and what is there has its line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
WALKS = TEXT[TEXT.index("## A message, from socket") : TEXT.index("## Seams")]
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", WALKS)))


def _names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}


def _resolve(name: str) -> ast.stmt:
    """Where a dotted name below the broker or one of the parts is defined. Raises LookupError.

    Nothing is imported, since parts need extras.
    """
    parts = name.split(".")
    for root in (ROOT / "reference_broker", ROOT):
        for length in range(len(parts) - 1, 0, -1):
            place = root.joinpath(*parts[:length])
            path = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
            if path.exists():
                body = ast.parse(path.read_text(encoding="utf-8")).body
                for part in parts[length:]:
                    found = _names(body)[part]
                    body = found.body if isinstance(found, ast.ClassDef) else []
                return found
    raise LookupError(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_a_walk_exists(name: str) -> None:
    _resolve(name)


def test_the_walks_name_their_steps() -> None:
    assert len(NAMES) > 30
    steps = re.findall(r"(?m)^\d+\. .*(?:\n   .*)*", WALKS)
    assert all("`" in step for step in steps), [step for step in steps if "`" not in step]


@pytest.mark.parametrize("name", ["core.no_such_module.f", "queues.engine.QueueEngine.no_such_method"])
def test_a_step_that_does_not_exist_is_found(name: str) -> None:
    with pytest.raises(LookupError):
        _resolve(name)


@pytest.mark.parametrize("folder", ["reference_broker", "reference_broker/queues", "reference_broker/mqtt"])
def test_every_folder_has_a_line(folder: str) -> None:
    heading = TEXT.index(f"| `{folder}/` |")
    table = TEXT[heading : TEXT.index("\n\n", heading)]
    named = set(re.findall(r"`([a-z0-9_]+)/`", table.split("\n", 1)[1]))
    there = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
    assert named == there
