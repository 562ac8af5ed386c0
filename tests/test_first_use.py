"""msgspec may crash the process where two threads first decode a type at once: ours pass through ``described``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("reference_broker", "conformance", "faults", "loadtests", "reports", "sim")
_DECODES = re.compile(r"msgspec\.(json|msgpack|toml|yaml)\.decode|msgspec\.convert|msgspec\.(json|msgpack)\.Decoder")
_PLAIN = re.compile(r"(dict|list|tuple)\[[\w, .\[\]]*\]|\w*[aA]ny")
"""Types without a struct in them."""
_ALREADY = {"_OPTIONS", "Properties"}
"""Names of types that passed through it once, or that msgspec learns as their module is imported."""


def _unsafe(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not _DECODES.fullmatch(ast.unparse(node.func)):
            continue
        place = 0 if ast.unparse(node.func).endswith("Decoder") else 1
        wanted = [keyword.value for keyword in node.keywords if keyword.arg == "type"] or node.args[place : place + 1]
        for kind in map(ast.unparse, wanted):
            builtin = _PLAIN.fullmatch(kind) and not re.search(r"\b(?!Any\b)_?[A-Z]", kind)
            if not (kind.startswith("described(") or kind in _ALREADY or builtin):
                yield f"line {node.lineno}: {kind}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_whatever_is_decoded_is_known_before(folder: str) -> None:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "described.py"]
    found = {path: list(_unsafe(path.read_text(encoding="utf-8"))) for path in paths}
    assert not {path: lines for path, lines in found.items() if lines}


def test_what_is_not_known_is_found() -> None:
    safe = "msgspec.convert(x, described(Kind)); msgspec.json.decode(x, type=dict[str, Any]); msgspec.json.decode(x)"
    assert not list(_unsafe(safe))
    for text in ("convert(x, Kind)", "json.decode(x, type=list[Kind])", "json.Decoder(Kind)", "toml.decode(x, type=K)"):
        assert list(_unsafe(f"msgspec.{text}")), text


_STARTS = {
    "configurations": "from assay.reference_broker.config import load_config\nuse = lambda: load_config(path)",
    "target files": "from assay.conformance.targets import load_target\nuse = lambda: load_target('reference')",
}
_TOGETHER = """
import sys, threading
from pathlib import Path
path = Path(sys.argv[1])
{start}
sys.setswitchinterval(1e-6)
together, done = threading.Barrier(8), []
def first():
    together.wait()
    use()
    done.append(None)
threads = [threading.Thread(target=first) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(done) != 8)
"""


@pytest.mark.parametrize("what", _STARTS)
def test_eight_threads_may_be_the_first_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("queues: {defaults: {partitions: 2}}\n", encoding="utf-8")
    command = [sys.executable, "-c", _TOGETHER.format(start=_STARTS[what]), str(path)]
    for _ in range(3):
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, f"status {run.returncode}: {run.stderr[-500:]}"
