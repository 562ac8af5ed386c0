"""How answers are shown: tables for people, else the broker's own JSON, also as YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec
import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from assay.reference_broker.commands.ends import shown_text
from assay.reference_broker.trace.terminal import WholeConsole, WholeTable


class Output(StrEnum):
    """The forms."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_table(self) -> bool:
        return self in (Output.TABLE, Output.WIDE)


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    title: str
    source: str | Callable[[Any], Any]
    """Where it is in a row, as in ``config.partitions``, or how it is made of one."""
    form: Callable[[Any], str] = str
    wide: bool = False
    """Only in wide tables."""

    def cell(self, row: Any) -> str:
        found = self.source(row) if callable(self.source) else _inside(row, self.source)
        return "" if found is None or found == "" else shown_text(self.form(found))


def _inside(row: Any, source: str) -> Any:
    for part in source.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


# -- forms -----------------------------------------------------------------------------------------------------------


def moment(seconds: float) -> str:
    """Unix seconds as UTC; never, if 0."""
    if not seconds:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def span(seconds: float) -> str:
    """Seconds, as long times are said."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = int(seconds // 60), int(seconds // 3_600)
    return f"{minutes} min" if minutes < 120 else f"{hours} h" if hours < 48 else f"{hours // 24} d"


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1_000
    return f"{count:.3g} TB"


def joined(values: Iterable[object]) -> str:
    return ", ".join(str(each) for each in values)


def yes(flag: object) -> str:
    return "yes" if flag else "no"


# -- whole answers ---------------------------------------------------------------------------------------------------


def write_document(answer: Any, output: Output) -> None:
    """JSON or YAML, on standard output."""
    if output is Output.YAML:
        text = yaml.safe_dump(answer, sort_keys=False, allow_unicode=True).encode()
    else:
        text = msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n"
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def table_of(rows: Sequence[Any], columns: Sequence[Column], *, wide: bool = False) -> Table:
    """Numbers stand to the right."""
    shown = [each for each in columns if wide or not each.wide]
    table = WholeTable(box=box.SIMPLE_HEAD if _is_terminal() else None, pad_edge=False, header_style="bold")
    for column in shown:
        numbers = [column.source(row) if callable(column.source) else _inside(row, column.source) for row in rows]
        is_number = bool(numbers) and all(type(each) in (int, float) for each in numbers)
        table.add_column(Text(column.title), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in shown))
    return table


def write_table(table: Table) -> None:
    WholeConsole(highlight=False, soft_wrap=not _is_terminal()).print(table)


def write_pairs(answer: Any) -> None:
    """One thing: its members, those within others by dotted names."""
    table = table_of(list(flat(answer)), (Column("", lambda row: row[0]), Column("", lambda row: row[1])))
    table.show_header = False
    write_table(table)


def flat(answer: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Every member with its dotted name, as ``--set`` takes it."""
    if isinstance(answer, list) and answer and isinstance(answer[0], Mapping):
        answer = dict(enumerate(answer))
    if isinstance(answer, Mapping) and answer:
        for name, value in answer.items():
            yield from flat(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(answer, str):
        yield prefix, answer
    else:
        yield prefix, msgspec.json.encode(answer).decode()


def _is_terminal() -> bool:
    return sys.stdout.isatty()
