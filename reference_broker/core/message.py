"""The one message type that every protocol, queue and log shares."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """An application message. Treat as immutable once routed; the payload is never copied between protocols."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    expires_at: float = 0.0
    """Unix seconds after which nobody may start to receive it; 0 = never."""
    publisher: str = ""
    """Client id of the publisher."""
    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    def user_property(self, name: str) -> str | None:
        """First value of a user property; None when absent."""
        for key, value in self.user_properties:
            if key == name:
                return value
        return None
