"""Phases of a connection."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    WAIT_CONNECT = auto()
    CONNECTED = auto()
    CLOSED = auto()
