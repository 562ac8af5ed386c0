"""A probe stands where its mutant is executed, and tells each check once."""

from __future__ import annotations

import resource
from pathlib import Path

from mutation.planting import compiled
from mutation.probes import Recorder, with_probes

SOURCE = '''
"""Docstring."""
from __future__ import annotations

LIMIT = 10

def chooses(value, base=2):
    """Says so."""
    if value > LIMIT:
        value -= 1
    elif value < 0:
        try:
            value = 1 / 0
        except ZeroDivisionError:
            value = [each for each in (7,)][0]
    else:
        def inner():
            return base + 5
        value = inner
    return value

class Holder:
    size = 11
    def method(self, value):
        match value:
            case 1 if LIMIT:
                return 13
            case _:
                return 14
'''
STATEMENTS = [
    "if value > LIMIT",
    "value -= 1",
    "elif value < 0",
    "try:",
    "value = 1 / 0",
    "value = [each",
    "def inner",
    "return base + 5",
    "value = inner",
    "return value",
    "match value",
    "return 13",
    "return 14",
]
FIRST = 20


def test_a_probe_is_hit_where_its_statement_is_executed(tmp_path: Path) -> None:
    sink = tmp_path / "hits"
    recorder = Recorder(str(sink), "")
    tree, spans = with_probes(SOURCE, FIRST)
    begins = [SOURCE.encode()[begin:end].decode() for begin, end in spans]
    assert [text[: len(begin)] for text, begin in zip(begins, STATEMENTS, strict=True)] == STATEMENTS
    made: dict[str, object] = {"_assay_seen": recorder.seen, "_assay_hit": recorder.hit, "__name__": "made"}
    exec(compiled(tree, "made.py"), made)
    assert not sink.read_text(), "nothing of it was called yet"
    calls = {
        "chooses(11)": {0, 1, 9},
        "chooses(-1)": {0, 2, 3, 4, 5, 9},
        "chooses(1)": {0, 2, 6, 8, 9},
        "chooses(1)()": {0, 2, 6, 7, 8, 9},
        "Holder().method(1)": {10, 11},
        "Holder().method(2)": {10, 12},
    }
    for call in calls:
        recorder.begin(call)
        eval(call, made)
        eval(call, made)
    assert made["chooses"].__doc__ == "Says so."
    lines = [line.split("\t") for line in sink.read_text().splitlines()]
    assert len(lines) == sum(map(len, calls.values())), "each probe tells a check once"
    found = {call: {int(number) - FIRST for number, check in lines if check == call} for call in calls}
    assert found == calls


def test_what_is_reached_while_no_file_may_grow_is_told_afterwards(tmp_path: Path) -> None:
    sink = tmp_path / "hits"
    recorder = Recorder(str(sink), "full")
    recorder.hit(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sink.stat().st_size, hard))
    try:
        recorder.hit(2)
        recorder.hit(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    recorder.hit(4)
    assert sink.read_text() == "1\tfull\n2\tfull\n3\tfull\n4\tfull\n"
