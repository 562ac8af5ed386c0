"""Broker code must not ask the machine for time or chance, and cannot within a run."""

from __future__ import annotations

import ast
import contextlib
import os
import random
import secrets
import threading
import time
import uuid
from pathlib import Path

import pytest

import assay.faults.workload
import assay.reference_broker
from assay.sim.guard import NondeterminismError, deterministic

CALLS = {
    "time.time": time.time,
    "time.monotonic": time.monotonic,
    "random.random": random.random,
    "random.choice": lambda: random.choice([1]),
    "os.urandom": lambda: os.urandom(1),
    "uuid.uuid4": uuid.uuid4,
    "secrets.token_hex": secrets.token_hex,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_machine_is_out_of_reach_within_a_run(name: str) -> None:
    module_name, function = name.split(".")
    module = {"time": time, "random": random, "os": os, "uuid": uuid, "secrets": secrets}[module_name]
    arguments = {"choice": ([1],), "urandom": (1,)}.get(function, ())
    text = name.replace(".", r"\.")
    with (
        pytest.raises(NondeterminismError, match=text),
        deterministic(),
        pytest.raises(NondeterminismError, match=text),
    ):
        getattr(module, function)(*arguments)
    getattr(module, function)(*arguments)


def test_an_error_that_was_caught_comes_again_at_the_end() -> None:
    with (
        pytest.raises(NondeterminismError, match=r"time\.time"),
        deterministic(),
        contextlib.suppress(NondeterminismError),
    ):
        time.time()


def test_generators_with_a_seed_are_allowed() -> None:
    with deterministic():
        assert random.Random(7).random() == random.Random(7).random()


def test_other_threads_go_on() -> None:
    seen: list[float] = []
    with deterministic():
        thread = threading.Thread(target=lambda: seen.append(time.time()))
        thread.start()
        thread.join()
    assert len(seen) == 1


SANS_IO = ("core", "storage", "mqtt", "node.py")
FORBIDDEN_MODULES = {"time", "secrets", "uuid", "asyncio", "threading", "socket"}


def sources() -> list[Path]:
    root = Path(assay.reference_broker.__file__).parent
    paths: list[Path] = []
    for name in SANS_IO:
        path = root / name
        paths += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [*paths, *sorted(Path(assay.faults.workload.__file__).parent.glob("*.py"))]


def attributes_of(module: str, tree: ast.AST) -> set[str]:
    """Names that a source uses of a module it imports."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    }


@pytest.mark.parametrize("path", sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_sans_io_code_does_not_import_clocks_or_chance(path: Path) -> None:
    """What a patch at run time cannot see: names imported from modules, and generators without a seed."""
    problems = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Something to keep for each thread that calls, or to let one in at a time, is no thread of one's own.
    allowed = {"threading"} if attributes_of("threading", tree) <= {"local", "Lock"} else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            problems += sorted(roots & FORBIDDEN_MODULES - allowed)
        elif isinstance(node, ast.ImportFrom) and node.module:
            root = node.module.split(".")[0]
            if root in FORBIDDEN_MODULES or (root == "random" and {a.name for a in node.names} - {"Random"}):
                problems.append(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            if called == "Random" and not node.args:
                problems.append("random.Random() without a seed")
            if called in {"utcnow", "today"} or (called == "now" and getattr(node.func.value, "id", "") == "datetime"):
                problems.append(f"datetime.{called}")
    assert problems == []
