"""``assay``: one command for the whole bench. Each part is imported only when it is asked for.

A part whose extra is not installed says so in one line, with the command that installs it, and exit status 2.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from importlib import metadata
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperOption

from assay.reference_broker.trace.stopping import terminated_as_interrupted


class _Part(NamedTuple):
    """A command, or an application with commands of its own."""

    module: str
    attribute: str
    about: str
    panel: str
    extra: str = ""
    """Of the package, which it needs."""


_RUN, _OPERATE, _JUDGE = "Run a broker", "Operate a broker, over HTTP", "Judge brokers"
_INTERRUPTED = 130
"""What typer ends with after Ctrl-C."""
_STOPPED = 6
"""As README.md has it."""
_BROKER = "assay.reference_broker"
_COMMANDS = f"{_BROKER}.commands.cli"
_PARTS: dict[str, _Part] = {
    "serve": _Part(f"{_BROKER}.cli", "serve", "Run the reference broker.", _RUN),
    "hash-password": _Part(
        f"{_BROKER}.cli", "hash_password_command", "Make a password hash for the configuration.", _RUN
    ),
    "token": _Part(f"{_BROKER}.cli", "token_command", "Make a token for HTTP.", _RUN),
    "storage": _Part(
        f"{_BROKER}.storage_tools.cli", "app", "Inspect, verify, dump, repair, import and export data folders.", _RUN
    ),
    "quirks": _Part(
        f"{_BROKER}.quirks.cli", "quirks", "List the deviations of real brokers that it can imitate.", _RUN
    ),
    "status": _Part(_COMMANDS, "status", "The broker at a glance.", _OPERATE),
    "top": _Part(_COMMANDS, "top", "Queues as they go on, the busiest first.", _OPERATE),
    "queue": _Part(_COMMANDS, "queue", "Create, look at, change, bind and delete queues.", _OPERATE),
    "topic": _Part(_COMMANDS, "queue", "The same, for those who know queues as topics.", _OPERATE),
    "produce": _Part(_COMMANDS, "produce", "Publish messages from arguments, files or a pipe.", _OPERATE),
    "consume": _Part(_COMMANDS, "consume", "Show messages, for a group or as they are stored.", _OPERATE),
    "group": _Part(_COMMANDS, "group", "Consumer groups: lag, pending entries, claims, offsets.", _OPERATE),
    "dlq": _Part(_COMMANDS, "dlq", "Dead letters: list, replay, purge.", _OPERATE),
    "delayed": _Part(_COMMANDS, "delayed", "Messages that wait for their time.", _OPERATE),
    "transaction": _Part(_COMMANDS, "transaction", "Transactions that have not ended.", _OPERATE),
    "schema": _Part(_COMMANDS, "schema", "Schemas: register, compare, set compatibility.", _OPERATE),
    "trace": _Part(_COMMANDS, "trace", "Traces of messages, step by step.", _OPERATE),
    "tenant": _Part(_COMMANDS, "tenant", "Tenants, their quotas, and what they use.", _OPERATE),
    "session": _Part(_COMMANDS, "session", "Sessions of MQTT.", _OPERATE),
    "subscription": _Part(_COMMANDS, "subscription", "Subscriptions of MQTT.", _OPERATE),
    "cluster": _Part(_COMMANDS, "cluster", "Nodes of the broker.", _OPERATE),
    "config": _Part(_COMMANDS, "config", "Have the broker read its configuration again.", _OPERATE),
    "context": _Part(_COMMANDS, "context", "Brokers by name, and who asks them.", _OPERATE),
    "demo": _Part(
        "assay.demo", "demo", "The main job: assess the reference broker and open the report.", _JUDGE, "all"
    ),
    "conformance": _Part(
        "assay.conformance.cli", "app", "Test any broker against the standards' statements.", _JUDGE, "conformance"
    ),
    "sim": _Part(
        "assay.sim.cli",
        "app",
        "Run scenarios in simulation: virtual time, network and disk around the real broker code.",
        _JUDGE,
        "sim",
    ),
    "fuzz": _Part(
        "assay.sim.fuzz.cli",
        "app",
        "Send valid and damaged packets to the broker's code in memory, and check what it does.",
        _JUDGE,
    ),
    "faults": _Part(
        "assay.faults.cli",
        "app",
        "Run scenarios on real processes, through a fault proxy, with kill -9.",
        _JUDGE,
        "faults",
    ),
    "load": _Part(
        "assay.loadtests.cli", "app", "Open-loop load with honest latencies, and Locust users.", _JUDGE, "load"
    ),
    "bench": _Part(
        "assay.loadtests.bench.cli",
        "app",
        "Measure throughput against other brokers, and storage against raw system calls.",
        _JUDGE,
        "load",
    ),
    "spark": _Part(
        "assay.spark_analysis.cli", "app", "Judge histories and latencies with Spark, against targets.", _JUDGE, "spark"
    ),
    "report": _Part(
        "assay.reports.cli",
        "report",
        "Make a static site, JUnit, Markdown and a badge from a run folder.",
        _JUDGE,
        "reports",
    ),
}


class _Command(TyperCommand):
    """Refuses a second value for an option that takes one: the last would win, and nobody be told."""

    def make_parser(self, ctx: Any) -> Any:
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            parsed = parse(args)
            for option, times in Counter(parsed[2]).items():
                if (
                    times > 1
                    and isinstance(option, TyperOption)
                    and not (option.multiple or option.is_flag or option.count)
                ):
                    message = f"takes one value, and was given {times} times"
                    raise typer.BadParameter(message, ctx=ctx, param=option)
            return parsed

        parser.parse_args = parse_once
        return parser


def _strict(app: typer.Typer) -> typer.Typer:
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _strict(group.typer_instance)
    return app


def build_app(wanted: str | None) -> typer.Typer:
    """The command line; only the part called ``wanted`` is imported, the others show their help line only."""
    app = typer.Typer(
        name="assay",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="A reference message broker, and the bench that judges message brokers by it.",
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ) -> None:
        """A reference message broker, and the bench that judges message brokers by it."""

    for name, part in _PARTS.items():
        found = getattr(importlib.import_module(part.module), part.attribute) if name == wanted else _placeholder
        if isinstance(found, typer.Typer):
            app.add_typer(_strict(found), name=name, help=part.about, rich_help_panel=part.panel)
        elif found is _placeholder:
            app.command(name, help=part.about, rich_help_panel=part.panel)(found)
        else:
            app.command(name, cls=_Command, rich_help_panel=part.panel)(found)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("assay-mq"))
        raise typer.Exit


def _placeholder() -> None:
    """Stands in for a part that was not asked for."""


def _wanted() -> str | None:
    """The part that is asked for; a shell that completes a line says so in its environment."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    words = line.split()[1:] if "_ASSAY_COMPLETE" in os.environ else sys.argv[1:]
    return next((word for word in words if not word.startswith("-")), None)


def main() -> None:
    """Console script."""
    wanted = _wanted()
    try:
        with terminated_as_interrupted():
            build_app(wanted)()
    except SystemExit as ended:
        if ended.code != _INTERRUPTED:
            raise
        print(f"assay {wanted}: stopped before the end", file=sys.stderr)
        sys.exit(_STOPPED)
    except ModuleNotFoundError as error:
        extra = _PARTS[wanted].extra if wanted in _PARTS else ""
        missing = (error.name or "").partition(".")[0]
        if not extra or not missing or missing == "assay":
            raise
        print(
            f"assay {wanted}: {missing} is not installed; install what this part needs: "
            f"pip install 'assay-mq[{extra}]', or from a checkout: pip install '.[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
