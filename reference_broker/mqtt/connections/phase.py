"""Phases of a connection."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    WAIT_CONNECT = auto()
    VERIFYING = auto()
    """CONNECT came, and its password is being checked."""
    AUTHENTICATING = auto()
    """CONNECT names an authentication method; CONNACK waits for the end of its exchange."""
    CONNECTED = auto()
    CLOSED = auto()
