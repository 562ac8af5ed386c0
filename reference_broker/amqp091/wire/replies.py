"""Reply codes, and the two levels on which a peer is told of them (AMQP 0.9.1 section 1.1, constants)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reply(IntEnum):
    """Reply codes of close and return methods."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT: Final = frozenset({311, 312, 313, 403, 404, 405, 406})
"""These close a channel; the others the connection."""


class AmqpError(Exception):
    """Something that a peer is told with a code. ``hard``: the connection closes, whatever the code's own level."""

    def __init__(self, code: Reply, text: str, *, rule: str = "", hard: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.rule = rule
        """The rule that was broken, for the trace."""
        self.hard = hard or code not in SOFT
        self.class_id = self.method_id = 0
        """The method that it was about; 0 = none."""

    @property
    def reply_text(self) -> str:
        """Written as RabbitMQ writes it: clients look for the name, and some for the text."""
        return f"{self.code.name} - {self.text}"

    def __str__(self) -> str:
        return self.reply_text + (f" ({self.rule})" if self.rule else "")
