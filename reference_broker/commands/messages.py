"""Messages as they are shown: rows of tables, lines of a stream, JSON lines that produce reads back, payloads alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import yaml

from assay.reference_broker.clients.http_client import payload_of
from assay.reference_broker.commands.shown import Column, Output, moment

Message = Mapping[str, Any]
"""As the broker tells it."""


def _payload(message: Message) -> str:
    if "payload_base64" in message:
        return f"base64:{message['payload_base64']}"
    return str(message.get("payload", ""))


def _pairs(headers: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in headers.items())


MESSAGE_COLUMNS: Final = (
    Column("MESSAGE", "message_id"),
    Column("PUBLISHED", "enqueued_at", moment),
    Column("KEY", "key"),
    Column("PRIORITY", "priority", wide=True),
    Column("DELIVERIES", "delivery_count", wide=True),
    Column("TYPE", "content_type", wide=True),
    Column("HEADERS", lambda row: row.get("headers"), _pairs, wide=True),
    Column("PAYLOAD", _payload),
)


def encoded(message: Message, output: Output, *, payloads: bool) -> bytes:
    """One message as a stream has it, with the end of its line."""
    if payloads:
        return payload_of(message) + b"\n"
    if output is Output.JSON:
        return msgspec.json.encode(message) + b"\n"
    if output is Output.YAML:
        return yaml.safe_dump(dict(message), sort_keys=False, allow_unicode=True, explicit_start=True).encode()
    shown = [each for each in MESSAGE_COLUMNS if output is Output.WIDE or not each.wide]
    return "\t".join(each.cell(message) for each in shown).encode() + b"\n"


def write(messages: Iterable[Message], output: Output, *, payloads: bool) -> None:
    """All of them, and return once the other side of standard output has them."""
    sys.stdout.buffer.write(b"".join(encoded(each, output, payloads=payloads) for each in messages))
    sys.stdout.buffer.flush()
