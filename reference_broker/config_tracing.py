"""The configuration of tracing: which messages, and where their spans go."""

from __future__ import annotations

from assay.reference_broker.config_mqtt import Section


class TracingConfig(Section, frozen=True, kw_only=True):
    """Spans of some messages of queues, as W3C Trace Context has them: docs/tracing.md."""

    enabled: bool = False
    ratio: float = 0.0
    """Of the messages that say nothing of a trace; whether another one is traced its own sampled flag says."""
    max_traces: int = 1_000
    """Kept in memory for ``/traces``; the oldest are forgotten."""
    max_spans: int = 64
    """Of a trace, and of a message; further ones are counted and left out."""
    max_messages: int = 4_096
    """Traced messages that are in queues; of the oldest nothing further is traced."""
    path: str = ""
    """JSON lines file of the spans (``.zst`` compresses); empty = none."""
    max_file_bytes: int = 64 * 1024 * 1024
    """Before compression. A full file, or that of the last start, is kept as ``<name>.1.<suffix>``, one of them."""
    otlp_endpoint: str = ""
    """Where to send spans by OTLP over HTTP, ``http://collector:4318/v1/traces``; needs the extra ``otlp``."""
    max_waiting: int = 10_000
    """Spans that wait to be written or sent; over it they are counted and left out."""


def tracing_problems(config: TracingConfig) -> list[str]:
    """What is wrong, each with its key."""
    problems: list[str] = []
    if not 0.0 <= config.ratio <= 1.0:
        problems.append("tracing.ratio must be 0 to 1")
    counts = ("max_traces", "max_spans", "max_messages", "max_waiting")
    problems += [f"tracing.{name} must be 1 to 100000" for name in counts if not 1 <= getattr(config, name) <= 100_000]
    if config.max_file_bytes < 1_048_576:
        problems.append("tracing.max_file_bytes must be at least 1048576")
    if config.otlp_endpoint and not config.otlp_endpoint.startswith(("http://", "https://")):
        problems.append("tracing.otlp_endpoint must be a URL of http or https")
    return problems
