"""The publish rate of one client: over it, what the client sent waits, and its transport is read no further.

Nothing is dropped and nobody else notices: packets keep their order, and TCP slows the sender down.
"""

from __future__ import annotations

from assay.reference_broker.config import LimitsConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.rates import TokenBucket
from assay.reference_broker.core.timers import Timer

_MIN_WAIT_S = 0.01
"""At high rates, tokens of this time are waited for at once."""
_PUBLISH = 3


class Throttle:
    """Stands before a connection's input and lets packets through as they are paid for.

    Each PUBLISH costs a message token, everything a byte token a byte. A packet begins once no bucket is in debt, and
    then may overdraw the bytes: one larger than the bucket still passes, and what follows waits the longer.
    """

    def __init__(self, connection: Connection, messages: TokenBucket | None, octets: TokenBucket | None) -> None:
        self._connection = connection
        self._traffic = connection.broker.traffic
        self._messages = messages
        self._octets = octets
        self._held = bytearray()
        """Input not let through yet; it begins with a packet, or the rest of one that is paid for (``_paid``)."""
        self._paid = 0
        self._timer: Timer | None = None

    @property
    def waiting(self) -> bool:
        """Packets wait for tokens: read no more."""
        return self._timer is not None

    def admit(self, data: bytes, now: float) -> bytes:
        """Takes a chunk from the transport; returns what may be handled now, of this chunk or of earlier ones."""
        self._held += data
        self._traffic.waiting_bytes += len(data)
        if self._timer is not None:
            return b""
        wait_s, end = self._pay(now)
        if wait_s:
            self._timer = self._connection.broker.timers.schedule(now + max(wait_s, _MIN_WAIT_S), self._go_on)
        admitted = bytes(self._held[:end])
        del self._held[:end]
        self._traffic.waiting_bytes -= end
        return admitted

    def end(self) -> None:
        """The connection is over: what waits will not be heard."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._traffic.waiting_bytes -= len(self._held)
        self._held = bytearray()

    def _go_on(self, now: float) -> None:
        self._timer = None
        self._connection.receive(b"", now)
        if self._timer is None:
            self._connection.rouse()

    def _pay(self, now: float) -> tuple[float, int]:
        """(seconds to wait, or 0; end of what may pass)."""
        held, position = self._held, 0
        messages = self._messages.available(now) if self._messages is not None else 0.0
        octets = self._octets.available(now) if self._octets is not None else 0.0
        size = len(held)
        while position < size:
            if not self._paid:
                length = _packet_bytes(held, position)
                if not length:
                    break
                if self._octets is not None and octets < 0:
                    return self._octets.wait_s(0), position
                if self._messages is not None and held[position] >> 4 == _PUBLISH:
                    if messages < 1:
                        return self._messages.wait_s(1), position
                    self._messages.take(1)
                    messages -= 1
                self._paid = length
            step = min(self._paid, size - position)
            self._paid -= step
            position += step
            if self._octets is not None:
                self._octets.take(step)
                octets -= step
        return 0.0, position


def throttle_for(connection: Connection, limits: LimitsConfig, now: float) -> Throttle | None:
    """The throttle the limits ask for; None when they are off."""
    messages, octets = (
        TokenBucket(rate, max(1.0, rate * limits.publish_burst_s), now) if rate else None
        for rate in (limits.publish_messages_per_s, limits.publish_bytes_per_s)
    )
    return Throttle(connection, messages, octets) if messages or octets else None


def _packet_bytes(data: bytearray, start: int) -> int:
    """Size of the packet that begins at ``start``; 0 while its header is not whole. A header with too long a length
    counts as all that is there: the connection will refuse it."""
    length = 0
    for index in range(4):
        at = start + 1 + index
        if at >= len(data):
            return 0
        length |= (data[at] & 0x7F) << (7 * index)
        if data[at] < 0x80:
            return 2 + index + length
    return len(data) - start
