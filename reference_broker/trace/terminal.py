"""How commands write tables: whole, also into a pipe, which has no width.

Rich takes 80 columns where it finds no terminal, and cuts what is longer: a name that was cut can be neither searched
for nor typed again.
"""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console, ConsoleDimensions
from rich.table import Table

PIPE_WIDTH: Final = 100_000
"""Columns of an output that is no terminal: as many as a table needs."""


class WholeConsole(Console):
    """A console as wide as its terminal, which never wraps or cuts where there is none."""

    @property
    def size(self) -> ConsoleDimensions:
        """Of the terminal; ``PIPE_WIDTH`` wide without one, whatever ``COLUMNS`` says."""
        return super().size if self.is_terminal else ConsoleDimensions(PIPE_WIDTH, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


class WholeTable(Table):
    """A table whose cells wrap, and whose long words fold, in a terminal that is too narrow."""

    def add_column(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("overflow", "fold")
        super().add_column(*arguments, **options)
