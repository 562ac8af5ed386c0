"""What the commands of ``assay storage`` share: options, exit statuses, errors as one line, progress bars."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, ParamSpec

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage_tools.layout import StoreFormat, StoreLayout, find_layout, open_directory
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk
from assay.reference_broker.storage_tools.segment_exam import Progress as Report
from assay.reference_broker.trace.terminal import WholeConsole

_Parameters = ParamSpec("_Parameters")


class ExitStatus(IntEnum):
    """What the commands exit with."""

    SOUND = 0
    FAULTS = 1
    """Faults were found, or records could not be read."""
    UNUSABLE = 2
    """Usage, or the directory cannot be read at all."""


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Forced = Annotated[
    StoreFormat | None,
    typer.Option("--format", help="Read it as this, whatever it looks like.", show_default=False),
]
Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue (or topic).", show_default=False)]


@contextmanager
def failures_as_exits() -> Iterator[None]:
    """Expected failures become one line on stderr and an exit status."""
    try:
        yield
    except (LogError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(ExitStatus.UNUSABLE) from error
    except BrokenPipeError:
        # The reader of a pipe, `head` for one, has enough. Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitStatus.SOUND) from None
    except OSError as error:
        complain(f"cannot read {error.filename or 'the directory'}: {error.strerror or error}")
        raise typer.Exit(ExitStatus.UNUSABLE) from error


def complain(message: str) -> None:
    WholeConsole(stderr=True, highlight=False, soft_wrap=True).print(f"error: {message}", style="red", markup=False)


def say(message: str, style: str = "yellow") -> None:
    WholeConsole(stderr=True, highlight=False, soft_wrap=True).print(message, style=style, markup=False)


def tables() -> Console:
    return WholeConsole(highlight=False, soft_wrap=not sys.stdout.isatty())


def print_json(document: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def progress_bar(text: str, total: int | None) -> Iterator[Report]:
    """A bar on stderr while something long runs, if stderr is a terminal."""
    errors = WholeConsole(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.advance(task, count)


def open_layout(directory: Path, forced: StoreFormat | None) -> tuple[ReadOnlyDisk, StoreLayout]:
    disk = open_directory(directory)
    return disk, find_layout(disk, forced)


def described_command(
    app: typer.Typer, name: str
) -> Callable[[Callable[_Parameters, None]], Callable[_Parameters, None]]:
    """Add a command whose help is its docstring, wrapped to the terminal and not where the source is wrapped."""

    def register(function: Callable[_Parameters, None]) -> Callable[_Parameters, None]:
        text = inspect.cleandoc(function.__doc__ or "")
        app.command(name, help=re.sub(r"(?<=\S)\n(?=\S)", " ", text))(function)
        return function

    return register
