"""What a broker says that it offers. A case that asks for more, and goes wrong, says nothing of the broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from assay.conformance.outcome import UnsupportedError
from assay.conformance.targets.model import CapabilityValue
from assay.conformance.wire import Connack, Connect


class Offer:
    """Of one case: its broker's Maximum Packet Size, which no client may exceed, and whether sessions are kept."""

    def __init__(self, requires: Collection[str], capabilities: Mapping[str, CapabilityValue]) -> None:
        """``requires``: of the case; one that requires the limit is about it."""
        is_about_it = "maximum_packet_size" in requires
        self._is_asked_for = "settings" in requires
        """By the case, in a broker of its own."""
        self._maximum_bytes = 0 if is_about_it else int(capabilities.get("maximum_packet_size", 0))
        self.exceeded = ""
        """What the case has sent, though the broker does not take it."""

    def noted(self, frame: bytes) -> bytes:
        """A packet that is sent."""
        if 0 < self._maximum_bytes < len(frame):
            self.exceeded = f"the broker takes packets of up to {self._maximum_bytes} bytes, and one has {len(frame)}"
        return frame

    def check_session(self, asked: Connect, answer: Connack) -> None:
        """Raises :class:`UnsupportedError` where a session was to be kept, and the answer is that none is."""
        grants_none = answer.properties.session_expiry_interval == 0 and not self._is_asked_for
        if asked.properties.session_expiry_interval and grants_none:
            message = "the broker keeps no sessions: it answers with a Session Expiry Interval of 0"
            raise UnsupportedError(message)
