"""How commands end: exit statuses as README.md has them, and what went wrong in one line that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

import typer

from assay.reference_broker.clients.shared import RefusedError, UnreachableError


class Exit(IntEnum):
    """Statuses of README.md that these commands have."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    STOPPED = 6


class UsageError(ValueError):
    """What was typed, or stands in a file, cannot be meant."""


class StoppedError(Exception):
    """It was interrupted before its end, and has said how far it came."""


class FailedError(Exception):
    """Some of it was refused, and each of that was said."""


_HINTS: Final = {
    "unauthenticated": "say who you are by --token, or --user and $ASSAY_PASSWORD, or in a context: assay context set",
    "not_allowed": "access rules or the token's scopes forbid it: assay token makes one with --scope admin",
    "misdirected": "name the host in http.hosts of the broker's configuration",
    "unknown_queue": "assay queue list shows those there are",
    "unknown_group": "assay group list QUEUE shows those there are",
    "unknown_schema": "assay schema list shows the subjects there are",
    "unknown_trace": "assay trace list shows those there are, assay trace stats whether tracing is on",
    "no_such_route": "is the broker of an older version, or a proxy between?",
}


def say(text: str) -> None:
    """On standard error, whatever is in it."""
    sys.stderr.write(shown_text(text) + "\n")
    sys.stderr.flush()


def shown_text(text: str) -> str:
    """Without characters that would move a terminal's cursor or change its state."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


@contextmanager
def failures_as_exits() -> Iterator[None]:
    """Expected failures become a line on standard error and an exit status."""
    try:
        yield
    except UnreachableError as error:
        hint = "; start one with: assay serve --http-port 8080" if "no broker answers" in error.text else ""
        _end(f"{error.text}{hint}", Exit.UNREACHABLE)
    except RefusedError as error:
        hint = f"; {_HINTS[error.code]}" if error.code in _HINTS else ""
        _end(f"{error.text} ({error.code}){hint}", Exit.REFUSED)
    except ValueError as error:
        _end(str(error), Exit.USAGE)
    except FailedError:
        raise typer.Exit(Exit.REFUSED) from None
    except (StoppedError, KeyboardInterrupt):
        raise typer.Exit(Exit.STOPPED) from None
    except BrokenPipeError:
        # The reader of a pipe, `head` for one, has enough. Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.DONE) from None
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        _end(f"{named}{error.strerror or error}", Exit.USAGE)


def _end(text: str, status: Exit) -> None:
    say(f"error: {text}")
    raise typer.Exit(status)
