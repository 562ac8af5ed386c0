"""Traces of messages: found, and one of them drawn as a waterfall."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from assay.reference_broker.clients.http_client import HttpQueues, path
from assay.reference_broker.commands.shown import Column
from assay.reference_broker.commands.verbs import Parameter, Place, Resource, Values, Verb, option

_WIDTH: Final = 30
"""Characters that a whole trace has in a waterfall."""
_LIMIT: Final = option("limit", "At most so many, up to 1000.", int, 100, "-n", place=Place.QUERY)
_TRACES: Final = (
    Column("TRACE", "trace_id"),
    Column("QUEUE", "topic"),
    Column("STATUS", "status"),
    Column("BEGAN", "start_time"),
    Column("MS", "duration_ms", lambda ms: f"{ms:.3f}"),
    Column("SPANS", lambda row: len(row["spans"])),
    Column("LEFT OUT", "spans_left_out", wide=True),
)


def _search(name: str, about: str, flag: str, kind: Any = str) -> Parameter:
    return Parameter(name, about, Place.QUERY, (flag,), kind, None)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def _show(client: HttpQueues, values: Values) -> Any:
    trace = client.ask("GET", path("/traces/{trace_id}", trace_id=values["trace_id"]))
    if not values["output"].is_table:
        return trace
    began, whole_ms = _seconds(trace["start_time"]), max(trace["duration_ms"], 1e-9)
    for span in trace["spans"]:
        took_ms = span["duration_ms"]
        span["at_ms"] = max(0.0, (_seconds(span["timestamp"]) - began) * 1_000 - took_ms)
        left = min(_WIDTH - 1, int(span["at_ms"] / whole_ms * _WIDTH))
        span["bar"] = " " * left + "▬" * max(1, min(_WIDTH - left, round(took_ms / whole_ms * _WIDTH)))
    return trace


TRACE: Final = Resource(
    about="Traces of messages that were sampled (tracing in the configuration), as long as they are in memory.",
    verbs=(
        Verb(
            name="list",
            about="Those that began last.",
            parameters=(_LIMIT,),
            path="/traces",
            rows="traces",
            columns=_TRACES,
        ),
        Verb(
            name="search",
            about="Those that fit.\n\nExample: assay trace search --queue orders --status failed",
            parameters=(
                _search("topic", "With a span of this queue.", "--queue"),
                _search("partition", "Of this partition.", "--partition", int),
                _search("consumer_group", "Of this group.", "--group"),
                _search("start", "Begun no earlier: RFC 3339.", "--start"),
                _search("end", "Begun before: RFC 3339.", "--end"),
                _search("status", "completed, in_progress, delayed, retrying, expired or failed.", "--status"),
                _LIMIT,
            ),
            path="/traces/search",
            rows="traces",
            columns=_TRACES,
        ),
        Verb(
            name="show",
            about="One, span by span, each where it stands in the whole time.",
            parameters=(Parameter("trace_id", "32 hexadecimal digits."),),
            run=_show,
            rows="spans",
            columns=(
                Column("AT MS", "at_ms", lambda ms: f"{ms:.3f}"),
                Column("TOOK MS", "duration_ms", lambda ms: f"{ms:.3f}"),
                Column("", "bar"),
                Column("STEP", "event_type"),
                Column("MESSAGE", "message_id"),
                Column("GROUP", "consumer_group"),
                Column("CLIENT", "client_id"),
                Column("DETAILS", "details"),
                Column("SPAN", "span_id", wide=True),
                Column("PARENT", "parent_span_id", wide=True),
            ),
        ),
        Verb(name="stats", about="How many there are, and what was left out or lost.", path="/traces/stats"),
    ),
)
