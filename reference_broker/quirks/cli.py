"""``assay quirks``."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.reference_broker.config import ConfigError
from assay.reference_broker.quirks import QUIRKS, find_quirks
from assay.reference_broker.quirks.page import profiles_table, quirks_page, quirks_table
from assay.reference_broker.trace.terminal import WholeConsole

USAGE_ERROR = 2


def quirks(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these: profiles or single quirks.", show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/quirks.md instead.")] = False,
) -> None:
    """List the deviations of real brokers that the reference broker can imitate.

    Put their names under "quirks:" in the configuration, or say: assay serve --quirk mosquitto-2.0
    """
    if markdown:
        typer.echo(quirks_page(), nl=False)
        return
    try:
        chosen = find_quirks(names) if names else tuple(QUIRKS.values())
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error
    console = WholeConsole()
    if not names:
        console.print(profiles_table())
    console.print(quirks_table(chosen))
