"""Verbs as data: what is asked of the broker, and how the answer is shown; and the commands that are made of them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.clients.shared import RefusedError
from assay.reference_broker.commands.contexts import connect, resolve
from assay.reference_broker.commands.ends import UsageError, failures_as_exits, say, shown_text
from assay.reference_broker.commands.shown import Column, Output, table_of, write_document, write_pairs, write_table

Values = Mapping[str, Any]
"""What was typed, by the names of parameters."""


class Place(StrEnum):
    """Where the value of a parameter goes."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    OWN = "own"
    """To the verb itself."""


class Parameter(msgspec.Struct, frozen=True):
    """An argument, or with flags an option."""

    name: str
    """As the request has it."""
    about: str
    place: Place = Place.PATH
    flags: tuple[str, ...] = ()
    kind: Any = str
    default: Any = ...
    """Left out: it must be given. None is not sent."""
    env: str = ""
    panel: str = ""
    complete: Callable[[typer.Context, str], list[str]] | None = None
    """What a shell offers."""

    def signature(self) -> inspect.Parameter:
        """As typer reads it."""
        kind = self.kind if self.default is not None else self.kind | None
        told: dict[str, Any] = {"help": self.about, "envvar": self.env or None, "rich_help_panel": self.panel or None}
        told["autocompletion"] = self.complete
        shown = self.default not in (None, False, ())
        info: Any
        if self.flags:
            info = typer.Option(*self.flags, show_default=shown, **told)
        else:
            info = typer.Argument(metavar=self.name.upper(), show_default=shown, **told)
        default = inspect.Parameter.empty if self.default is ... else self.default
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
        )


def option(
    name: str, about: str, kind: Any = str, default: Any = None, *short: str, place: Place = Place.OWN
) -> Parameter:
    """One whose flag is its name."""
    return Parameter(name, about, place, (f"--{name.replace('_', '-')}", *short), kind, default)


_PANEL: Final = "The broker"
CONNECTION: Final = (
    Parameter("server", "URL of the broker's HTTP.", Place.OWN, ("--server", "-s"), str, None, "ASSAY_SERVER", _PANEL),
    Parameter(
        "context",
        "Of assay context, in place of the current one.",
        Place.OWN,
        ("--context", "-c"),
        str,
        None,
        "ASSAY_CONTEXT",
        _PANEL,
    ),
    Parameter("token", "Made by assay token.", Place.OWN, ("--token",), str, None, "ASSAY_TOKEN", _PANEL),
    Parameter("user", "Name of a user.", Place.OWN, ("--user", "-u"), str, None, "ASSAY_USER", _PANEL),
    Parameter("ca", "File of who signed its certificate.", Place.OWN, ("--ca",), str, None, "ASSAY_CA", _PANEL),
    Parameter("timeout", "Seconds for an answer.", Place.OWN, ("--timeout",), float, 30.0, "ASSAY_TIMEOUT", _PANEL),
    option("output", "How answers are shown.", Output, Output.TABLE, "-o"),
)
"""Options of every verb."""
_YES: Final = option("yes", "Do not ask whether it is meant.", bool, False, "-y")


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A command."""

    name: str
    about: str
    """With its example, if it needs one, behind an empty line."""
    parameters: tuple[Parameter, ...] = ()
    method: str = "GET"
    path: str = ""
    run: Callable[[HttpQueues, Values], Any] | None = None
    """In place of the one request; with the answer that is shown, None = it has shown all itself."""
    rows: str = ""
    """Member of the answer that has the rows of the table; ``.``: the answer itself has."""
    columns: tuple[Column, ...] = ()
    """Without: the answer is one thing, shown member by member."""
    said: str = ""
    """What is told in place of a table, with values that were typed and members of the answer."""
    asks: str = ""
    """What cannot be undone, and is asked about first."""
    more: str = ""
    """The option that goes on where a page ends, and the member of the answer that says where: ``after=next``."""


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the broker that a line means, if it answers at once."""
    try:
        with connect(resolve({each.name: ctx.params.get(each.name) for each in CONNECTION}), 1.0) as client:
            return list(client.ask("GET", "/queues", query={"prefix": incomplete})["queues"])
    except (RefusedError, ValueError, OSError):
        return []


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A noun with its verbs."""

    about: str
    verbs: tuple[Verb, ...]


def ask(client: HttpQueues, verb: Verb, values: Values) -> Any:
    """The request of a verb."""
    named = [(each, values[each.name]) for each in verb.parameters if values.get(each.name) is not None]
    query = {each.name: value for each, value in named if each.place is Place.QUERY}
    body: Any = {each.name: value for each, value in named if each.place is Place.BODY}
    has_body = any(each.place is Place.BODY for each in verb.parameters)
    return client.ask(verb.method, path(verb.path, **values), query=query, body=body if has_body else None)


def show(verb: Verb, answer: Any, values: Values) -> None:
    """On standard output."""
    output: Output = values["output"]
    if not output.is_table:
        write_document(answer, output)
        return
    if verb.said:
        told = answer if isinstance(answer, dict) else {"answer": answer}
        said = {name: _said(value) for name, value in {**values, **told}.items()}
        typer.echo(shown_text(verb.said.format_map(said)))
        return
    rows = answer if verb.rows in ("", ".") else answer[verb.rows]
    if verb.columns:
        write_table(table_of(rows if isinstance(rows, list) else [rows], verb.columns, wide=output is Output.WIDE))
    else:
        write_pairs(rows)
    option, _, member = verb.more.partition("=")
    if member and answer[member]:
        say(f"there are more: --{option.replace('_', '-')} {answer[member]}")


def _said(value: Any) -> str:
    """Within a sentence."""
    if isinstance(value, dict):
        value = [f"{name}: {each}" for name, each in value.items()]
    return (", ".join(str(each) for each in value) or "nothing") if isinstance(value, list) else str(value)


def _check_meant(verb: Verb, values: Values) -> None:
    if not verb.asks or values["yes"]:
        return
    question = shown_text(verb.asks.format_map(values))
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say so by --yes")
    typer.confirm(question, abort=True, err=True)


def command_of(verb: Verb) -> Callable[..., None]:
    """What typer takes."""
    parameters = (*verb.parameters, *((_YES,) if verb.asks else ()), *CONNECTION)

    def command(**values: Any) -> None:
        with failures_as_exits():
            _check_meant(verb, values)
            with connect(resolve(values), values["timeout"]) as client:
                answer = ask(client, verb, values) if verb.run is None else verb.run(client, values)
            if answer is not None:
                show(verb, answer, values)

    command.__signature__ = inspect.Signature([each.signature() for each in parameters])  # type: ignore[attr-defined]
    command.__doc__ = verb.about
    return command


def wrapped(text: str) -> str:
    """Help as typer takes it: wrapped to the terminal, not where the source is."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(text))


def app_of(resource: Resource) -> typer.Typer:
    """A command with a command for each verb."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, help=resource.about)
    for verb in resource.verbs:
        app.command(verb.name, help=wrapped(verb.about))(command_of(verb))
    return app
