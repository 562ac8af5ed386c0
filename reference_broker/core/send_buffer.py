"""What a connection has to send: collected in a turn, and held back while it depends on what is not on disk yet."""

from __future__ import annotations

from assay.reference_broker.config import MqttConfig
from assay.reference_broker.core.output_gate import OutputGate
from assay.reference_broker.core.traffic import Traffic

_SURE_BYTES = 65_536
"""SendBuffer of one turn that may hold messages of QoS 0 without a look at what all clients leave unread."""


class SendBuffer:
    """The sending half of a connection. It collects; the driver takes what has come together, once a turn."""

    __slots__ = (
        "_awaited_turn",
        "_dirty",
        "_gate",
        "_limits",
        "_out",
        "_room_bytes",
        "_traffic",
        "backlog_bytes",
        "closing",
        "is_full",
        "noted_unread_bytes",
        "out_bytes",
        "qos0_room_bytes",
        "sure_room_bytes",
    )

    def __init__(self, traffic: Traffic, limits: MqttConfig) -> None:
        self.closing = False
        """Close the transport once the output is sent."""
        self.backlog_bytes = 0
        """Bytes the transport has not sent yet, as the driver saw it last."""
        self.noted_unread_bytes = 0
        """What of :attr:`unread_bytes` is in the total of all connections. While it is not 0, the driver is to tell
        the backlog whenever it looks at this connection."""
        self.is_full = False
        """The client leaves too much unread: no more deliveries until it has read."""
        self._room_bytes = limits.unread_high_water_bytes
        """What a turn's output may come to before it is full."""
        self.qos0_room_bytes = limits.max_unread_bytes
        """What it may come to before messages of QoS 0 are dropped."""
        self.sure_room_bytes = min(_SURE_BYTES, self.qos0_room_bytes)
        """What it may come to before :meth:`has_room_for` is to be asked."""
        self._limits = limits
        self._traffic = traffic
        self._out: list[bytes] = []
        self.out_bytes = 0
        """What is held back included."""
        self._dirty = False
        self._awaited_turn = 0
        self._gate: OutputGate | None = None

    def rouse(self) -> None:
        """Have the driver look at this connection at the end of the turn."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Some output was taken: perhaps it is full no more."""
        raise NotImplementedError

    @property
    def unread_bytes(self) -> int:
        """SendBuffer the client has not taken yet."""
        return self.backlog_bytes + self.out_bytes

    @property
    def room_bytes(self) -> int:
        """What may still come before it is full."""
        return self._room_bytes - self.out_bytes

    def has_room_for(self, size: int) -> bool:
        """Whether a message of QoS 0 may make this turn's output ``size`` bytes: it counts as unread until it is sent,
        so that one large message to many clients does not take more than all of them may leave unread."""
        if size > self.qos0_room_bytes:
            return False
        limits, traffic = self._limits, self._traffic
        more = self.backlog_bytes + size - self.noted_unread_bytes
        if traffic.unread_bytes + more > limits.max_total_unread_bytes:
            # Whoever reads everything at once still gets something.
            if traffic.large_bytes + more > limits.turn_bytes:
                return False
            traffic.large_bytes += more
        traffic.unread_bytes += more
        self.noted_unread_bytes += more
        self.sure_room_bytes = min(size + _SURE_BYTES, self.qos0_room_bytes)
        return True

    def _count_unread(self, backlog: int) -> None:
        """The transport has so many bytes that the client did not take: they leave less room for more."""
        limits, traffic = self._limits, self._traffic
        self.backlog_bytes = backlog
        unread = backlog + self.out_bytes
        traffic.unread_bytes += unread - self.noted_unread_bytes
        self.noted_unread_bytes = unread
        high_water = limits.unread_high_water_bytes
        qos0_water = limits.max_unread_bytes
        if traffic.unread_bytes > limits.max_total_unread_bytes:
            # All together leave too much: whoever reads everything at once is served on, and nobody else.
            high_water, qos0_water = 0, 0 if backlog else high_water
        self._room_bytes = high_water - backlog
        self.qos0_room_bytes = qos0_water - backlog
        self.sure_room_bytes = min(_SURE_BYTES, self.qos0_room_bytes)

    def _forget_unread(self) -> None:
        """The connection is over, and what is left unread with it."""
        self._traffic.unread_bytes -= self.noted_unread_bytes
        self.noted_unread_bytes = 0

    def take_output(self) -> bytes:
        """This turn's output in one piece. It counts as read, unless the driver says how much was not."""
        if self._gate is not None:
            return self._take_released(self._gate)
        out = self._out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._traffic.bytes_sent += self.out_bytes
        self.out_bytes = 0
        self._dirty = False
        if self.is_full:
            self._make_room()
        return data

    @property
    def may_close(self) -> bool:
        """It is over, and nothing of its output waits for the disk any more."""
        return self.closing and not self.holds_output

    # -- output that waits for the disk ----------------------------------------------------------------------------

    def await_write(self, turn: int) -> None:
        """As :meth:`SessionConnection.await_write`."""
        self._awaited_turn = turn

    def depends_on(self, turn: int) -> bool:
        """Whether what it sends in this turn depends on the turn's write."""
        return self._awaited_turn == turn

    @property
    def holds_output(self) -> bool:
        """Some of its output waits for the disk."""
        return self._gate is not None and not self._gate.is_released

    def hold_output(self, turn: int) -> None:
        """Keep back what is to be sent until the write of ``turn`` is on disk."""
        if self._gate is None:
            self._gate = OutputGate()
        self._gate.add(turn, b"".join(self._out))
        self._out.clear()

    def release_output(self, turn: int) -> None:
        """What was written up to this turn is on disk."""
        if self._gate is not None and self._gate.release(turn):
            self.rouse()

    def _take_released(self, held: OutputGate) -> bytes:
        data = held.take()
        if held.is_released:
            # What came since needs not wait.
            self._gate = None
            data += b"".join(self._out)
            self._out.clear()
        self._traffic.bytes_sent += len(data)
        self.out_bytes -= len(data)
        self._dirty = False
        if self.is_full:
            self._make_room()
        return data

    def _drop_output(self) -> None:
        self._gate = None
        self._out.clear()
        self.out_bytes = 0
