"""``assay status`` and ``assay top``: the broker at a glance, once or as it goes on."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import msgspec
from rich.console import Group
from rich.live import Live
from rich.text import Text

from assay.reference_broker.clients.http_client import HttpQueues
from assay.reference_broker.commands.ends import UsageError
from assay.reference_broker.commands.resources import QUEUE_COLUMNS, all_stats
from assay.reference_broker.commands.shown import Column, Output, size, span, table_of, write_document
from assay.reference_broker.commands.verbs import Values, Verb, option
from assay.reference_broker.trace.terminal import WholeConsole

_ROWS: Final = 50
"""Queues of one view."""


def _status(client: HttpQueues, _values: Values) -> Any:
    return client.ask("GET", "/overview")


STATUS: Final = Verb(
    name="status",
    about="The broker: sessions, connections, traffic, and all queues together.",
    run=_status,
    rows=".",
    columns=(
        Column("NODE", "node"),
        Column("VERSION", "version"),
        Column("UP", "stats.uptime_seconds", span),
        Column("CONNECTIONS", "stats.connections.current"),
        Column("SESSIONS", "sessions.total"),
        Column("QUEUES", "stats.queues.queues"),
        Column("DEPTH", "stats.queues.depth"),
        Column("IN FLIGHT", "stats.queues.in_flight"),
        Column("DEAD", "stats.queues.dead_letters"),
        Column("RECEIVED", "stats.messages.received", wide=True),
        Column("SENT", "stats.messages.sent", wide=True),
        Column("BYTES IN", "stats.bytes.received", size, wide=True),
        Column("BYTES OUT", "stats.bytes.sent", size, wide=True),
        Column("RETAINED", "stats.retained_messages", wide=True),
    ),
)


class _Rates:
    """What grew since the last look, a second."""

    def __init__(self) -> None:
        self._at = 0.0
        self._seen: dict[str, tuple[int, int]] = {}

    def add_to(self, rows: list[dict[str, Any]], now: float) -> None:
        passed_s = now - self._at
        seen = {row["queue"]: (row["enqueued"], sum(each["acked"] for each in row["groups"])) for row in rows}
        for row in rows:
            before = self._seen.get(row["queue"])
            if before is not None and passed_s > 0:
                enqueued, acked = (
                    (now_count - then) / passed_s for now_count, then in zip(seen[row["queue"]], before, strict=True)
                )
                row |= {"in_rate": max(0.0, enqueued), "out_rate": max(0.0, acked)}
        self._at, self._seen = now, seen


def _rate(a_second: float) -> str:
    return f"{a_second:.0f}" if a_second >= 10 or not a_second else f"{a_second:.1f}"


_COLUMNS: Final = (
    *QUEUE_COLUMNS[:3],
    Column("IN/S", "in_rate", _rate),
    Column("ACKED/S", "out_rate", _rate),
    *QUEUE_COLUMNS[3:],
)


def _top(client: HttpQueues, values: Values) -> None:
    if values["interval"] < 0.1 or (values["times"] is not None and values["times"] < 1):
        raise UsageError("--interval is 0.1 or more, --times 1 or more")
    rates, times, output = _Rates(), values["times"], values["output"]
    console = WholeConsole(highlight=False)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
        try:
            while True:
                overview = client.ask("GET", "/overview")
                rows = list(all_stats(client, values["prefix"]))
                rates.add_to(rows, time.monotonic())
                rows.sort(key=lambda row: (-row.get("in_rate", 0), -row["depth"], row["queue"]))
                if not output.is_table:
                    _write_line(overview, rows, output)
                elif console.is_terminal:
                    live.update(_view(overview, rows, output), refresh=True)
                else:
                    console.print(_view(overview, rows, output))
                times = None if times is None else times - 1
                if times == 0:
                    return
                time.sleep(values["interval"])
        except KeyboardInterrupt:
            return


def _write_line(overview: Any, rows: list[dict[str, Any]], output: Output) -> None:
    looked = {"overview": overview, "queues": rows}
    if output is Output.YAML:
        write_document(looked, output)
    else:
        sys.stdout.buffer.write(msgspec.json.encode(looked) + b"\n")
        sys.stdout.buffer.flush()


def _view(overview: Any, rows: list[dict[str, Any]], output: Output) -> Group:
    stats = overview["stats"]
    said = (
        f"{overview['node']} {overview['version']}, up {span(stats['uptime_seconds'])}, "
        f"{stats['connections']['current']} connections, {overview['sessions']['total']} sessions, "
        f"{stats['queues']['queues']} queues"
    )
    left = f"... and {len(rows) - _ROWS} more" if len(rows) > _ROWS else ""
    return Group(Text(said), table_of(rows[:_ROWS], _COLUMNS, wide=output is Output.WIDE), Text(left))


TOP: Final = Verb(
    name="top",
    about="Queues as they go on, the busiest first, until Ctrl-C.",
    parameters=(
        option("prefix", "Only queues whose names start with it."),
        option("interval", "Seconds between looks.", float, 2.0),
        option("times", "End after so many looks.", int),
    ),
    run=_top,
)
