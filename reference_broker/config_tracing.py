"""The configuration of tracing: which messages, and where their spans go."""

from __future__ import annotations

from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Range


class TracingConfig(Section, frozen=True, kw_only=True):
    """Spans of some messages of queues, as W3C Trace Context has them: docs/tracing.md."""

    enabled: bool = False
    ratio: Annotated[float, Range(0, 1)] = 0.0
    """Of the messages that say nothing of a trace; whether another one is traced its own sampled flag says."""
    max_traces: Annotated[int, Range(1, 100_000)] = 1_000
    """Kept in memory for ``/traces``; the oldest are forgotten."""
    max_spans: Annotated[int, Range(1, 100_000)] = 64
    """Of a trace, and of a message; further ones are counted and left out."""
    max_messages: Annotated[int, Range(1, 100_000)] = 4_096
    """Traced messages that are in queues; of the oldest nothing further is traced."""
    path: str = ""
    """JSON lines file of the spans (``.zst`` compresses); empty = none."""
    max_file_bytes: Annotated[int, Range(1_048_576)] = 64 * 1024 * 1024
    """Before compression. A full file, or that of the last start, is kept as ``<name>.1.<suffix>``, one of them."""
    otlp_endpoint: str = ""
    """Where to send spans by OTLP over HTTP, ``http://collector:4318/v1/traces``; needs the extra ``otlp``."""
    max_waiting: Annotated[int, Range(1, 100_000)] = 10_000
    """Spans that wait to be written or sent; over it they are counted and left out."""


def tracing_problems(config: TracingConfig) -> list[str]:
    """What is wrong, each with its key."""
    if config.otlp_endpoint and not config.otlp_endpoint.startswith(("http://", "https://")):
        return ["tracing.otlp_endpoint must be a URL of http or https"]
    return []
