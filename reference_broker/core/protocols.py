"""Protocols side by side: who a new connection belongs to, and what makes its server side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from assay.reference_broker.auth import Authenticator
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.connection import Connection

MQTT: Final = "mqtt"
MAX_OPENING_BYTES: Final = 16
"""By then every protocol has said whether a connection is its own."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A client that has connected."""

    broker: Broker
    authenticator: Authenticator
    wake: Callable[[Connection], None]
    """Is called with a connection that has output after a quiet turn."""
    peer: str
    now: float
    loopback: bool
    """The listener is bound to loopback only."""
    certificate_name: str | None
    """Who it is by its verified certificate, where the listener goes by that."""


class WireProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol that listeners can speak."""

    accept: Callable[[Arrival], Connection]
    opens: Callable[[bytes], bool | None]
    """Whether a connection that begins with these bytes is its own; None = more of them will tell."""


def detect(opening: bytes, names: Sequence[str], protocols: Mapping[str, WireProtocol]) -> str | None:
    """Whose the first bytes on a shared port are, of the protocols of a listener; None = more of them will tell.

    What is nobody's is the first one's, which says what is wrong with it.
    """
    undecided = False
    for name in names:
        opens = protocols[name].opens(opening)
        if opens:
            return name
        undecided = undecided or opens is None
    return None if undecided and len(opening) < MAX_OPENING_BYTES else names[0]
