"""What clients give and raise, whatever they speak."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec


class RefusedError(Exception):
    """The broker refused, or was not reached."""

    def __init__(
        self,
        code: str,
        text: str,
        details: Mapping[str, str] | None = None,
        *,
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        """``code``: stable, for programs: as docs/openapi.json has it, over gRPC as docs/grpc.md, or the name of gRPC's
        status. ``status``: of HTTP. ``retry_after_s``: the same request may be taken then."""
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.details = dict(details or {})
        self.status = status
        self.retry_after_s = retry_after_s


class UnreachableError(RefusedError):
    """No broker answers, or not in time (code ``unreachable``): whether it did what was asked is not known."""

    def __init__(self, text: str) -> None:
        super().__init__("unreachable", text)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message that was published is."""

    message_id: str
    partition: int
    offset: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a consumer got. It is to be settled: ``ack``, ``nack``."""

    queue: str
    group: str
    payload: bytes
    key: str
    headers: dict[str, str]
    message_id: str
    partition: int
    offset: int
    receipt: str
    delivery_count: int
    enqueued_at: float
    """Unix seconds."""


def basic(username: str, password: str) -> str:
    """The value of ``authorization`` for a user."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
