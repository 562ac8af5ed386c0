"""The mutants of a source text: each one a small change at one place, written as text into what stands around it.

Not mutated, since no client and no file can show it: annotations, docstrings, decorators, and what is for type checkers
only; texts (mostly reasons for people), what only shows (``__repr__``); the keywords of a class (frozen or not is for
authors); what states what is so anyway (``assert``, ``zip(strict=True)``); defaults of functions that do nothing (of a
protocol: they are never called); the order of the arguments of ``min`` and ``max``. What would not compile, or is the
same program, is no mutant. What is equivalent for a reason of its own is in ``equivalents.toml``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from enum import StrEnum

import msgspec

from mutation.planting import compiled, same_program


class Operator(StrEnum):
    """Kinds of mechanical bugs."""

    NEGATE = "negate"
    """A condition is turned round."""
    COMPARE = "compare"
    """``<`` becomes ``<=``, ``==`` becomes ``!=``, and so on."""
    LOGIC = "logic"
    """``and`` becomes ``or``, and the other way round."""
    OPERAND = "operand"
    """One part of an ``and`` or ``or`` is left out."""
    ARITHMETIC = "arithmetic"
    CONSTANT = "constant"
    """A number is one more, a truth value turned round."""
    OFF_BY_ONE = "off by one"
    """The bound of a slice or range is one more."""
    DROP = "drop"
    """A statement is left out."""
    SWAP = "swap"
    """The last two arguments of a call change places."""


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one module."""

    module: str
    """Path of the module from the root of the project."""
    function: str
    """Qualified name of the function or class around it, empty at the level of the module."""
    operator: Operator
    line: int
    """From 1."""
    last_line: int
    statement_line: int
    """Where the statement begins that holds it."""
    start: int
    """Offset of the replaced text in the source, in bytes."""
    was: str
    now: str
    key: str
    """What names the mutant, and no other one, however far its lines move; known equivalents are found by it."""

    @property
    def identity(self) -> str:
        """What names it in this text of the module."""
        return f"{self.module}:{self.start}:{self.was}:{self.now}"

    def apply(self, source: str) -> str:
        """The source with the bug in it."""
        raw = source.encode()
        return (raw[: self.start] + self.now.encode() + raw[self.start + len(self.was.encode()) :]).decode()


def _one_line(text: str) -> str:
    return " ".join(text.split())


_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_BOUNDARIES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_SHOWS = {"__repr__", "__str__"}
_NOT_BUILT = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass)
"""Statements without mutants."""


class _Finder:
    """Walks a module and collects its mutants in the order of the text."""

    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.scope: list[str] = []
        self.statement_line = 1
        self.found: list[Mutant] = []

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.raw[start:end].decode()

    def emit(self, operator: Operator, start: int, end: int, now: str) -> None:
        was = self.raw[start:end].decode()
        line = self.raw.count(b"\n", 0, start) + 1
        function = ".".join(self.scope)
        before = after = ""
        if operator is Operator.CONSTANT:  # a number alone would name many
            before = self.raw[self.starts[line - 1] : start].decode()
            after = self.raw[end : self.starts[line]].decode()
        change = f"{_one_line(before + was + after)} -> {_one_line(before + now + after)}"
        self.found.append(
            Mutant(
                module=self.module,
                function=function,
                operator=operator,
                line=line,
                last_line=line + was.count("\n"),
                statement_line=min(line, self.statement_line),
                start=start,
                was=was,
                now=now,
                key=f"{self.module}::{function}: {change}",
            )
        )

    def replace(self, operator: Operator, node: ast.expr | ast.stmt, now: str) -> None:
        self.emit(operator, *self.span(node), now)

    def between(
        self, operator: Operator, around: ast.expr, left: ast.expr, right: ast.expr, symbols: tuple[str, str]
    ) -> None:
        """Replace the operator that stands between two operands; the whole expression is what the mutant shows."""
        start, end = self.span(around)
        gap_start, gap_end = self.span(left)[1], self.span(right)[0]
        gap = self.raw[gap_start:gap_end].decode()
        pattern, now = symbols
        # A comment may stand in the gap, too.
        found = re.search(pattern, re.sub(r"#.*", lambda comment: " " * len(comment.group()), gap))
        if found:
            changed = gap[: found.start()] + now + gap[found.end() :]
            whole = self.raw[start:gap_start].decode() + changed + self.raw[gap_end:end].decode()
            self.emit(operator, start, end, whole)

    def visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params", "decorator_list"):
                continue
            if name == "keywords" and isinstance(node, ast.ClassDef):
                continue  # whether a struct is frozen is for authors, not for users
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, _NOT_BUILT):
                    self.enter(node, child)

    def enter(self, parent: ast.AST, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in _SHOWS or all(map(_is_literal, node.body)):
                return
            self.scope.append(node.name)
            self.visit(node)
            self.scope.pop()
            return
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if _is_literal(node) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            return
        if isinstance(node, ast.stmt):
            self.statement_line = node.lineno
            self.statement(node)
        if isinstance(node, ast.expr):
            self.expression(parent, node)
        if isinstance(node, ast.Assert):
            return  # states what is so anyway
        if isinstance(node, ast.Raise | ast.JoinedStr):
            return  # the statement itself may be dropped; what it says is for people
        self.visit(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
                self.negate(test)
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                self.replace(Operator.DROP, node, "pass")
            case ast.Continue() | ast.Break() | ast.Return(value=None):
                self.replace(Operator.DROP, node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if self.scope[-1:] != ["__init__"]:
                self.replace(Operator.DROP, node, "pass")

    def negate(self, test: ast.expr) -> None:
        plain = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        now = self.text(test.operand) if isinstance(test, ast.UnaryOp) and plain else f"not ({self.text(test)})"
        self.replace(Operator.NEGATE, test, f"({now})")

    def expression(self, parent: ast.AST, node: ast.expr) -> None:
        match node:
            case ast.IfExp(test=test):
                self.negate(test)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                # A condition that is nothing but an equation is turned round already.
                condition = isinstance(parent, ast.If | ast.While | ast.IfExp) and parent.test is node
                if type(op) in _BOUNDARIES or not condition:
                    self.between(Operator.COMPARE, node, left, right, _COMPARISONS[type(op)])
            case ast.BoolOp(op=op, values=values):
                now = "or" if isinstance(op, ast.And) else "and"
                was = "and" if isinstance(op, ast.And) else "or"
                self.between(Operator.LOGIC, node, values[0], values[1], (rf"\b{was}\b", now))
                for index in range(len(values)):
                    rest = [self.text(value) for place, value in enumerate(values) if place != index]
                    self.replace(Operator.OPERAND, node, "(" + f" {was} ".join(f"({text})" for text in rest) + ")")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                alias = isinstance(op, ast.BitOr) and not self.scope  # a union of types
                if not alias and not any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (left, right)):
                    self.between(Operator.ARITHMETIC, node, left, right, _ARITHMETIC[type(op)])
            case ast.Constant(value=bool() as truth):
                self.replace(Operator.CONSTANT, node, str(not truth))
            case ast.Constant(value=int() | float() as number):
                self.replace(Operator.CONSTANT, node, repr(number + 1))
            case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)):
                for bound in (lower, upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        self.replace(Operator.OFF_BY_ONE, bound, f"({self.text(bound)}) + 1")
            case ast.Call(func=ast.Name(id="range"), args=[*_, stop]) if not isinstance(stop, ast.Constant):
                self.replace(Operator.OFF_BY_ONE, stop, f"({self.text(stop)}) + 1")
            case ast.Call(func=ast.Name(id="min" | "max")):
                pass
            case ast.Call(args=[*args]) if len(args) > 1 and not any(isinstance(arg, ast.Starred) for arg in args):
                left, right = args[-2:]
                gap = self.raw[self.span(left)[1] : self.span(right)[0]].decode()
                start, end = self.span(left)[0], self.span(right)[1]
                self.emit(Operator.SWAP, start, end, self.text(right) + gap + self.text(left))


def _is_literal(node: ast.AST) -> bool:
    """A docstring, or the three dots of what does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text; ``module`` is its path from the root of the project.

    Whether a mutant is a program, and another one, is for :func:`is_sound` to say: it takes ten milliseconds.
    """
    finder = _Finder(module, source)
    finder.visit(ast.parse(source))
    unique = {(mutant.start, mutant.was, mutant.now): mutant for mutant in finder.found}
    found = sorted(unique.values(), key=lambda mutant: (mutant.start, mutant.now))
    seen: Counter[str] = Counter()
    for place, mutant in enumerate(found):
        seen[mutant.key] += 1
        if (number := seen[mutant.key]) > 1:
            found[place] = msgspec.structs.replace(mutant, key=f"{mutant.key} (number {number})")
    return found


def is_sound(mutant: Mutant, source: str) -> bool:
    """Whether the mutant compiles, and is not the same program."""
    changed = mutant.apply(source)
    try:
        made = compiled(changed, mutant.module)
    except SyntaxError:
        return False
    return not same_program(compiled(source, mutant.module), made)
