"""What commands say of errors and findings is printed as it is: nothing in it is taken for colours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from assay.conformance.targets import Endpoint
from assay.loadtests.exit_status import ExitStatus
from assay.reference_broker.trace.terminal import WholeConsole
from assay.sim.queue_model import __main__ as model_command
from assay.sim.queue_model.campaign import Campaign, Chunk

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    "assay",
    "conformance",
    "faults",
    "loadtests",
    "mutation",
    "reference_broker",
    "reports",
    "sim",
    "spark_analysis",
)
OF_OTHERS = frozenset(("detail", "error", "evidence", "failure", "message", "reason", "summary"))
"""Names of what may hold any text: that of an exception, of a finding, of a payload."""
TAG = re.compile(r"(?<!\\)\[(/?[a-z][^\[\]]*)\]")
STYLE = re.compile(r"/?(bold|cyan|dim|green|magenta|red|yellow)( (bold|cyan|dim|green|magenta|red|yellow))*")


def test_no_text_of_others_is_printed_as_markup() -> None:
    files = [path for folder in PROGRAMS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 500
    assert not [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _taken_for_markup(path)]


def test_the_advice_to_install_an_extra_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in brackets is a tag to the console, and vanishes if no style has it."""
    pytest.importorskip("hdrh", reason="the extra load is not installed")
    from assay.loadtests import locust_command

    monkeypatch.setattr(locust_command, "find_spec", lambda _: None)
    plan = locust_command.LocustPlan(user_classes=(), users=1, spawn_rate=1.0, seconds=1.0)
    nobody = Endpoint(host="127.0.0.1", port=1)
    assert locust_command.run_locust(plan, nobody, folder=tmp_path, console=WholeConsole()) == ExitStatus.USAGE
    assert "pip install 'assay-mq[load]'" in capsys.readouterr().out


def test_a_finding_of_the_model_is_said_at_once_and_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The campaign is stopped before its end: what it found is told all the same."""
    chunk = Chunk(seed=7, examples=1, covered={}, ends={}, seconds=0.0, failure="ViolationError: got [a] for [/b]")

    def stopped(*_: object, on_chunk: object, **__: object) -> Campaign:
        assert callable(on_chunk)
        found = Campaign(examples=1, failures=[chunk])
        on_chunk(found)
        on_chunk(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(model_command, "campaign", stopped)
    with pytest.raises(typer.Exit):
        model_command.main(examples=2, seed=1, workers=1, steps=1, mutant=None)
    said = capsys.readouterr().out
    assert said.count("found with seed 7:") == 1, said
    assert "ViolationError: got [a] for [/b]" in said


def _taken_for_markup(path: Path) -> Iterator[int]:
    text = path.read_text(encoding="utf-8")
    if "import WholeConsole" not in text and "from rich" not in text and "console" not in text:
        return
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "print":
            continue
        plain = any(each.arg == "markup" and ast.literal_eval(each.value) is False for each in call.keywords)
        if not plain and any(_is_of_others(part) or _has_a_tag(part) for each in call.args for part in _parts(each)):
            yield call.lineno


def _parts(argument: ast.expr) -> Iterator[ast.expr]:
    if isinstance(argument, ast.JoinedStr):
        yield from (each.value if isinstance(each, ast.FormattedValue) else each for each in argument.values)
    else:
        yield argument


def _has_a_tag(part: ast.expr) -> bool:
    """Whether a text has brackets that are no style."""
    text = part.value if isinstance(part, ast.Constant) else ""
    return isinstance(text, str) and not all(STYLE.fullmatch(tag) for tag in TAG.findall(text))


def _is_of_others(part: ast.expr) -> bool:
    name = part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
    return name in OF_OTHERS
