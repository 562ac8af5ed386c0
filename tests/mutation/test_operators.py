"""Each kind of mechanical bug: where it is made, where not, and that the text around it stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutation.operators import Mutant, Operator, is_sound, mutants_of

ROOT = Path(__file__).resolve().parents[2]


def _made(source: str, operator: Operator) -> set[str]:
    return {mutant.apply(source) for mutant in mutants_of("m.py", source) if mutant.operator is operator}


@pytest.mark.parametrize(
    ("operator", "source", "expected"),
    [
        (Operator.NEGATE, "if a:\n    b = 1\n", {"if (not (a)):\n    b = 1\n"}),
        (Operator.NEGATE, "while not a:\n    b = 1\n", {"while (a):\n    b = 1\n"}),
        (Operator.NEGATE, "x = b if a else c\n", {"x = b if (not (a)) else c\n"}),
        (Operator.NEGATE, "while True:\n    b = 1\n", set()),
        (Operator.COMPARE, "x = a < b\n", {"x = a <= b\n"}),
        (Operator.COMPARE, "x = a >= (b)\n", {"x = a > (b)\n"}),
        (Operator.COMPARE, "x = a is  not b\n", {"x = a is b\n"}),
        (Operator.COMPARE, "if a == b:\n    c = 1\n", set()),
        (Operator.COMPARE, "if a <= b:\n    c = 1\n", {"if a < b:\n    c = 1\n"}),
        (Operator.COMPARE, "x = (a  # is it < b?\n     < b)\n", {"x = (a  # is it < b?\n     <= b)\n"}),
        (Operator.LOGIC, "x = a and b and c\n", {"x = a or b and c\n"}),
        (Operator.OPERAND, "x = a or b\n", {"x = ((a))\n", "x = ((b))\n"}),
        (Operator.ARITHMETIC, "x = a + b\n", {"x = a - b\n"}),
        (Operator.ARITHMETIC, "x = 'ä' + (b)\n", set()),
        (Operator.ARITHMETIC, "x = y['ä'] * (b)\n", {"x = y['ä'] + (b)\n"}),
        (Operator.ARITHMETIC, "X = A | B\n", set()),
        (Operator.CONSTANT, "x = 41\ny = True\n", {"x = 42\ny = True\n", "x = 41\ny = False\n"}),
        (Operator.CONSTANT, "class A(B, frozen=True):\n    x = 'text'\n", set()),
        (Operator.OFF_BY_ONE, "x = a[b:]\n", {"x = a[(b) + 1:]\n"}),
        (Operator.OFF_BY_ONE, "x = range(n)\n", {"x = range((n) + 1)\n"}),
        (Operator.DROP, "f(x)\n", {"pass\n"}),
        (Operator.DROP, "for x in y:\n    z += x\n", {"for x in y:\n    pass\n"}),
        (Operator.DROP, "a.b = 1\nx = 2\n", {"pass\nx = 2\n"}),
        (Operator.DROP, "def f():\n    return\n", {"def f():\n    pass\n"}),
        (Operator.DROP, "'''A docstring.'''\nimport os\n", set()),
        (Operator.SWAP, "f(a, b, c)\n", {"f(a, c, b)\n"}),
        (Operator.SWAP, "f(*a, b)\nf(a)\nmin(a, b)\n", set()),
        (Operator.CONSTANT, "zip(a, b, strict=True)\nf(c=True)\n", {"zip(a, b, strict=True)\nf(c=False)\n"}),
        (Operator.CONSTANT, "class A(Protocol):\n    def f(self, x=1):\n        'Text.'\n        ...\n", set()),
    ],
)
def test_an_operator_changes_one_place(operator: Operator, source: str, expected: set[str]) -> None:
    assert _made(source, operator) == expected


def test_what_is_only_for_people_or_type_checkers_is_left_alone() -> None:
    source = (
        "def __repr__():\n    return 1 + 1\n"
        "if TYPE_CHECKING:\n    x = 1\n"
        "def f(a: tuple[int, 3]) -> list[4]:\n    assert a < 5\n    g(f'{a + 1}')\n"
    )
    assert [mutant.operator for mutant in mutants_of("m.py", source)] == [Operator.DROP]


def test_a_mutant_says_where_it_is() -> None:
    source = "class A:\n    def f(self):\n        g(\n            1,\n        )\n"
    drop, constant = mutants_of("reference_broker/m.py", source)
    assert (drop.line, drop.last_line, drop.statement_line) == (3, 5, 3)
    assert (constant.line, constant.last_line, constant.statement_line) == (4, 4, 3)
    assert constant.key == "reference_broker/m.py::A.f: 1, -> 2,"


def test_mutants_that_look_alike_are_named_apart() -> None:
    made = mutants_of("m.py", "def f():\n    g(0, 0)\n    return\n    return\n")
    assert [mutant.key.partition("::f: ")[2] for mutant in made] == [
        "g(0, 0) -> pass",
        "0, 0 -> 0, 0",
        "g(0, 0) -> g(1, 0)",
        "g(0, 0) -> g(0, 1)",
        "return -> pass",
        "return -> pass (number 2)",
    ]


def test_what_does_not_compile_or_is_the_same_program_is_no_mutant() -> None:
    def mutant(was: str, now: str) -> Mutant:
        return Mutant(
            key="",
            module="m.py",
            function="",
            operator=Operator.DROP,
            line=1,
            last_line=1,
            statement_line=1,
            start=0,
            was=was,
            now=now,
        )

    assert is_sound(mutant("x = 1", "x = 2"), "x = 1\n")
    assert not is_sound(mutant("x = 1", "x = "), "x = 1\n")
    assert not is_sound(mutant("x = 1", "x = (1)"), "x = 1\n")


def test_every_operator_finds_work_in_the_broker() -> None:
    """Text and offsets fit together in real modules, those with letters beyond ASCII included."""
    made: dict[Operator, int] = {}
    for path in sorted((ROOT / "reference_broker" / "mqtt").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for number, mutant in enumerate(mutants_of(path.name, source)):
            assert source.encode()[mutant.start :].startswith(mutant.was.encode())
            made[mutant.operator] = made.get(mutant.operator, 0) + 1
            if number % 100 == 0:
                compile(mutant.apply(source), path.name, "exec")
    assert set(made) == set(Operator)
