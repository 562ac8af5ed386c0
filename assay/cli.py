"""``assay``: one command for the whole bench. Each part is imported only when it is asked for.

A part whose extra is not installed says so in one line, with the command that installs it, and exit status 2.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

_PARTS: dict[str, tuple[str, str]] = {
    "conformance": ("assay.conformance.cli", "Test any MQTT broker against the standards' statements."),
    "sim": (
        "assay.sim.cli",
        "Run scenarios in simulation: virtual time, network and disk around the real broker code.",
    ),
    "fuzz": (
        "assay.sim.fuzz.cli",
        "Send valid and damaged packets to the broker's code in memory, and check what it does.",
    ),
    "faults": ("assay.faults.cli", "Run scenarios on real processes, through a fault proxy, with kill -9."),
    "load": ("assay.loadtests.cli", "Open-loop load with honest latencies, and Locust users."),
    "bench": (
        "assay.loadtests.bench.cli",
        "Measure throughput against other brokers, and storage against raw system calls.",
    ),
    "storage": (
        "assay.reference_broker.storage_tools.cli",
        "Inspect, verify, dump, repair, import and export data folders.",
    ),
    "spark": ("assay.spark_analysis.cli", "Judge histories and latencies with Spark, against targets."),
}
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("assay.reference_broker.cli", "serve", "Run the reference broker."),
    "quirks": (
        "assay.reference_broker.quirks.cli",
        "quirks",
        "List the deviations of real brokers that it can imitate.",
    ),
    "hash-password": (
        "assay.reference_broker.cli",
        "hash_password_command",
        "Make a password hash for the configuration.",
    ),
    "token": ("assay.reference_broker.cli", "token_command", "Make a token for HTTP."),
    "report": ("assay.reports.cli", "report", "Make a static site, JUnit, Markdown and a badge from a run folder."),
    "demo": ("assay.demo", "demo", "The main job: assess the reference broker and open the report."),
}
_EXTRAS = {part: part for part in ("conformance", "sim", "faults", "load", "spark")} | {
    "bench": "load",
    "report": "reports",
    "demo": "all",
}
"""The extra of the package that a part needs."""


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
        add_completion=False,
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

    for name, (module, attribute, text) in _COMMANDS.items():
        if name == wanted:
            app.command(name, cls=_Command)(getattr(importlib.import_module(module), attribute))
        else:
            app.command(name, help=text)(_placeholder)
    for name, (module, text) in _PARTS.items():
        if name == wanted:
            app.add_typer(_strict(importlib.import_module(module).app), name=name, help=text)
        else:
            app.add_typer(typer.Typer(help=text), name=name)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("assay-mq"))
        raise typer.Exit


def _placeholder() -> None:
    """Stands in for a part that was not asked for."""


def main() -> None:
    """Console script."""
    wanted = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    try:
        build_app(wanted)()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(wanted or "")
        missing = (error.name or "").partition(".")[0]
        if extra is None or not missing or missing == "assay":
            raise
        print(
            f"assay {wanted}: {missing} is not installed; install what this part needs: "
            f"pip install 'assay-mq[{extra}]', or from a checkout: pip install '.[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
