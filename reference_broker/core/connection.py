"""One connection, whatever it speaks: what node, server, readiness, simulator and fuzz know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from assay.reference_broker.config import ServerReferenceConfig
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.send_buffer import SendBuffer
from assay.reference_broker.core.timers import Timer

_SOONEST_LOOK_S = 0.02
_LATEST_LOOK_S = 1.0
"""Between two looks at a client that has been sent all that it may leave unread."""


class Connection(SendBuffer, ABC):
    """Server side of one connection, sans-IO: bytes and ``now`` in, bytes out.

    A turn: :meth:`receive` for each chunk; at its end :meth:`take_output`, for those that had ``wake`` called. The base
    collects what is to be sent, holds it back while it tells of what is not on disk (:class:`SendBuffer`), and watches
    a client that does not read. What the bytes mean, a protocol says.
    """

    __slots__ = (
        "_progress_at",
        "_unread_timer",
        "_wake",
        "broker",
        "client_id",
        "cut",
        "error",
        "over_rate",
        "peer",
    )

    def __init__(self, broker: Broker, wake: Callable[[Connection], None], peer: str, now: float) -> None:
        """``wake`` is called when output appears after a quiet turn."""
        super().__init__(broker.traffic, broker.config.mqtt)
        self.broker = broker
        self.peer = peer
        self.client_id = ""
        """Who it is, once that is known."""
        self.error: Exception | None = None
        """What ended the connection, for the log."""
        self.cut = False
        """Its transport is to go at once, whatever it has not sent."""
        self.over_rate = False
        """Its address connects too often: it will be refused, in the words of its protocol."""
        self._wake = wake
        self._progress_at = now
        """When the client last took any of what it had not read."""
        self._unread_timer: Timer | None = None

    # -- what a protocol does --------------------------------------------------------------------------------------

    @abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Handle a chunk. Never raises for bad input: the connection answers and closes itself."""

    @abstractmethod
    def connection_lost(self, now: float) -> None:
        """The transport ended without a word. It lets go of its parts, and leaves no cycle."""

    @property
    @abstractmethod
    def wants_pause(self) -> bool:
        """Read no more for now."""

    @abstractmethod
    def give_way(self, now: float) -> None:
        """Too many connections have no client yet; as :class:`assay.reference_broker.core.newcomers.Newcomer`."""

    @abstractmethod
    def interrupt_login(self, now: float) -> None:
        """Users changed: whoever is still proving who it is must begin anew."""

    @abstractmethod
    def send_away(self, reference: ServerReferenceConfig, now: float) -> bool:
        """The client should go to another server, and is disconnected; False: it is not connected yet."""

    @abstractmethod
    def shut_down(self, now: float) -> None:
        """The broker stops: say so where the protocol can, and close."""

    @abstractmethod
    def abandon_output(self, problem: Exception, now: float) -> None:
        """What it would send is not true, since a write failed. Nothing is sent; the connection closes."""

    @abstractmethod
    def transport_stalled(self, now: float) -> None:
        """The client has taken nothing of what it was sent for too long."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Nothing is handled any more."""

    def rules_changed(self, now: float) -> None:
        """Users, access rules or tenants are others: who has no sessions that are looked at is judged here."""

    def on_full(self) -> None:
        """No more deliveries until the client has read."""

    def on_room(self) -> None:
        """The client has read: deliveries go on."""

    # -- output --------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Add bytes to this turn's output."""
        self._out.append(data)
        size = self.out_bytes = self.out_bytes + len(data)
        if size > self._room_bytes:
            self.pause_deliveries()
        if not self._dirty:
            self._dirty = True
            self._wake(self)

    def rouse(self) -> None:
        """Have the driver look at this connection at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self._wake(self)

    # -- what the client does not read -----------------------------------------------------------------------------

    def note_backlog(self, backlog: int, written: int, now: float) -> None:
        """The transport has so many bytes that the client did not take, after so many of output were added last.

        The driver tells it after a write that left any, and each time it looks at the connection until there are
        none. A client that takes nothing for too long is disconnected.
        """
        if not self.backlog_bytes or backlog < self.backlog_bytes + written:
            self._progress_at = now
        self._count_unread(backlog)
        if self.out_bytes > self._room_bytes:
            self.pause_deliveries()
        elif self.is_full:
            self._make_room()
        if self.noted_unread_bytes and not self.is_over:
            self._watch_reader(now)

    def pause_deliveries(self) -> None:
        """No more deliveries until the driver sees that the client has read."""
        if not self.is_full:
            self.is_full = True
            if not self.noted_unread_bytes:
                self._traffic.unread_bytes += self.out_bytes
                self.noted_unread_bytes = self.out_bytes
        self.on_full()

    def _make_room(self) -> None:
        if self.out_bytes > self._room_bytes:
            return
        self.is_full = False
        self.on_room()

    def _watch_reader(self, now: float) -> None:
        """Look again in time to see that it reads, or to cut it."""
        timeout_s = self.broker.config.mqtt.unread_timeout_s
        due = self._progress_at + timeout_s
        if self.backlog_bytes and now >= due:
            self.transport_stalled(now)
            return
        if self.is_full:
            # Not every transport says that it has room again.
            due = min(due, now + min(max(_SOONEST_LOOK_S, (now - self._progress_at) / 2), _LATEST_LOOK_S))
        due = max(due, now + _SOONEST_LOOK_S)
        timer = self._unread_timer
        if timer is None or due < timer.deadline:
            if timer is not None:
                timer.cancel()
            self._unread_timer = self.broker.timers.schedule(due, self._look_at_reader)

    def _look_at_reader(self, now: float) -> None:
        self._unread_timer = None
        self.rouse()

    waits_for_peer = False
    """Once its output is sent the peer closes first: what it still sends is passed over, and costs it no answer."""

    def end_output(self) -> None:
        """It closes once its output is sent; what is left unread counts no more."""
        self.closing = True
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._forget_unread()
