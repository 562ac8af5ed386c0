"""Commands made of resources and verbs, and those of contexts, which ask no broker."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import msgspec
import typer

from assay.reference_broker.commands import contexts, resources
from assay.reference_broker.commands.consume import CONSUME
from assay.reference_broker.commands.contexts import Context
from assay.reference_broker.commands.ends import failures_as_exits
from assay.reference_broker.commands.produce import PRODUCE
from assay.reference_broker.commands.shown import Column, Output, table_of, write_document, write_table, yes
from assay.reference_broker.commands.top import STATUS, TOP
from assay.reference_broker.commands.traces import TRACE
from assay.reference_broker.commands.verbs import app_of, command_of

queue = app_of(resources.QUEUE)
group = app_of(resources.GROUP)
dlq = app_of(resources.DLQ)
delayed = app_of(resources.DELAYED)
transaction = app_of(resources.TRANSACTION)
schema = app_of(resources.SCHEMA)
tenant = app_of(resources.TENANT)
session = app_of(resources.SESSION)
subscription = app_of(resources.SUBSCRIPTION)
cluster = app_of(resources.CLUSTER)
config = app_of(resources.CONFIG)
trace = app_of(TRACE)
produce = command_of(PRODUCE)
consume = command_of(CONSUME)
status = command_of(STATUS)
top = command_of(TOP)

context = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Brokers by name, and who asks them: in a file that only you can read.",
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the context.")]
_Output = Annotated[Output, typer.Option("--output", "-o", help="How answers are shown.")]
_COLUMNS: Final = (
    Column("CURRENT", "current", lambda flag: "*" if flag else ""),
    Column("NAME", "name"),
    Column("SERVER", "server"),
    Column("USER", "user"),
    Column("SECRETS", "secrets", yes),
    Column("CA", "ca", wide=True),
)


@context.command("list")
def list_contexts(output: _Output = Output.TABLE) -> None:
    """Those there are; secrets are not shown."""
    with failures_as_exits():
        found = contexts.load()
        rows = [
            {
                "name": name,
                "current": name == found.current,
                "server": each.server,
                "user": each.user.partition(":")[0],
                "secrets": each.has_secrets,
                "ca": each.ca,
            }
            for name, each in found.contexts.items()
        ]
        if output.is_table:
            write_table(table_of(rows, _COLUMNS, wide=output is Output.WIDE))
        else:
            write_document(rows, output)


@context.command("set")
def set_context(
    name: _Name,
    server: Annotated[str | None, typer.Option("--server", "-s", help="URL of the broker's HTTP.")] = None,
    token: Annotated[str | None, typer.Option(help="Made by assay token; - reads it from standard input.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Name of a user.")] = None,
    password: Annotated[str | None, typer.Option(help="Of the user; - reads it from standard input.")] = None,
    ca: Annotated[str | None, typer.Option(help="File of who signed the broker's certificate.")] = None,
    certificate: Annotated[str | None, typer.Option(help="File of your own certificate.")] = None,
    key: Annotated[str | None, typer.Option(help="File of its key.")] = None,
) -> None:
    """Make a context, or change what is named of it. The first one is the current one."""
    with failures_as_exits():
        found = contexts.load()
        given = {
            "server": server,
            "token": _secret(token),
            "user": user,
            "password": _secret(password),
            "ca": ca,
            "certificate": certificate,
            "key": key,
        }
        changed = msgspec.structs.replace(
            found.contexts.get(name, Context()), **{field: each for field, each in given.items() if each is not None}
        )
        contexts.connect(changed, 1.0).close()  # for its checks
        contexts.save(
            msgspec.structs.replace(found, current=found.current or name, contexts={**found.contexts, name: changed})
        )


def _secret(text: str | None) -> str | None:
    return sys.stdin.readline().rstrip("\r\n") if text == "-" else text


@context.command("use")
def use_context(name: _Name) -> None:
    """Let commands ask this broker from now on."""
    with failures_as_exits():
        found = contexts.load()
        found.named(name)
        contexts.save(msgspec.structs.replace(found, current=name))


@context.command("delete")
def delete_context(name: _Name) -> None:
    """Forget one."""
    with failures_as_exits():
        found = contexts.load()
        found.named(name)
        left = {each: value for each, value in found.contexts.items() if each != name}
        contexts.save(
            msgspec.structs.replace(found, current="" if found.current == name else found.current, contexts=left)
        )
