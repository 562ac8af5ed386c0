"""Session state (MQTT 3.1.1 section 3.1.2.4, 5.0 section 4.1): what outlives a connection.

A session knows no bytes. When connected it drives a :class:`SessionConnection`, which encodes and sends.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from assay.reference_broker.config import MqttConfig
from assay.reference_broker.core.budget import MessageBudget
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.core.traffic import Traffic
from assay.reference_broker.queues import Consumer, Delivery
from assay.reference_broker.queues.groups.delivery_run import DeliveryRun
from assay.reference_broker.routing.message import (
    HOLDER_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    Message,
    memory_bytes,
    text_bytes,
)

if TYPE_CHECKING:
    from assay.reference_broker.core.tenant import Tenant
    from assay.reference_broker.mqtt.sessions.retained_sends import RetainedSends
    from assay.reference_broker.mqtt.sessions.session_journal import Entry, KeptSession

MAX_PACKET_ID = 65_535
_SHORT_ID_BYTES = 256
LARGE_BYTES = 2_048
"""Messages that take as much memory wait when a turn has sent enough."""


class SessionConnection(Protocol):
    """What a session needs of the connection that serves it."""

    is_full: bool
    """The client leaves too much unread to be sent more. Then, the connection keeps the session's window closed."""

    def has_turn(self) -> bool:
        """Whether this turn may send more; if not, the session is woken for the next one."""

    def send_publish(
        self, packet_id: int, message: Message, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...]
    ) -> bool:
        """Send a PUBLISH; False when it is larger than the client accepts (then it counts as delivered)."""

    def send_delivery(self, packet_id: int, delivery: Delivery) -> bool | None:
        """Send a plain queue delivery at QoS 1, as :meth:`send_publish`; None when it must go by :meth:`send_publish`,
        with the properties of a delivery."""

    def send_delivery_run(self, first_id: int, run: DeliveryRun) -> bool:
        """Send plain queue deliveries at QoS 1 under the packet ids from ``first_id``; False: nothing was done, they
        must go one by one."""

    def send_pubrel(self, packet_id: int) -> None: ...

    def close_for_takeover(self, now: float) -> None:
        """Another connection took the session over."""

    def close_as_slow(self, now: float) -> None:
        """A queue is done with a consumer that settles nothing."""

    def close_as_moved(self, now: float) -> None:
        """The client belongs to another tenant now."""

    def may_read(self, topic_filter: str) -> bool:
        """Whether the client may subscribe to a filter (without ``$share/...``), or be sent what is on a topic."""

    def ask_again(self, now: float) -> bool:
        """Users, tenants or access rules changed: take what holds now. False: the client may not be here, and went."""

    def go_on_publishing(self) -> None:
        """Queues in memory, which this connection publishes to, have room again."""

    def await_write(self, turn: int) -> None:
        """What it sends in this turn depends on what the turn's write holds (see :class:`SessionJournal`)."""


FREE_IDS = 64
"""Received packet ids that count as part of a session."""
ID_BYTES = 256
"""What one more takes, at most, that it is written down included."""
_IDS_AT_A_TIME = 1_024


def session_bytes(client_id: str) -> int:
    """What a session takes in memory that others do not: that of a long client id. Sessions themselves are counted."""
    return 0 if 4 * len(client_id) <= _SHORT_ID_BYTES else max(0, text_bytes(client_id) - _SHORT_ID_BYTES)


class Will(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    delay_s: int = 0


class OutgoingState(Enum):
    """Where an outgoing QoS 1 or 2 delivery stands (5.0 section 4.3)."""

    WAIT_PUBACK = auto()
    WAIT_PUBREC = auto()
    WAIT_PUBCOMP = auto()


WAIT_PUBACK, WAIT_PUBREC = OutgoingState.WAIT_PUBACK, OutgoingState.WAIT_PUBREC
"""For what is done per message: to look up a member in its enumeration takes longer than a call."""


class _Sent:
    """What may be in flight under a packet id, or under several. Blocks have nothing but their messages."""

    __slots__ = ()

    identifiers: tuple[int, ...] = ()
    share = ""
    """The shared subscription that it came by, as its whole filter; empty = none."""
    retain = False
    is_released = False
    entry: Entry | None = None
    """What the log has of it while it is queued."""


class Outgoing(_Sent):
    """An outgoing QoS 1 or 2 message that is queued or in flight."""

    __slots__ = ("delivery", "entry", "identifiers", "left", "message", "qos", "retain", "size", "state")

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        delivery: Delivery | None = None,
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.delivery = delivery
        """The queue delivery this PUBLISH carries, if it does; such a message is never resent by the session."""
        self.entry = None
        self.left = 1
        """Packet ids that it is in flight under; likewise of the kinds below."""
        self.size = message.memory_bytes or memory_bytes(message)
        """What the session is charged with for it; likewise of the kinds below."""
        self.state = WAIT_PUBACK if qos < 2 else WAIT_PUBREC

    def message_for(self, packet_id: int) -> Message:
        """The message sent under a packet id."""
        return self.message

    def delivery_for(self, packet_id: int) -> Delivery | None:
        """The delivery sent under a packet id."""
        return self.delivery


class SharedOutgoing(Outgoing):
    """One that came by a shared subscription: should its session end, it goes to another member."""

    __slots__ = ("share",)

    def __init__(self, share: str, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...] = ()) -> None:
        super().__init__(message, qos, retain, identifiers)
        self.share = share


class OutgoingDeliveries(_Sent):
    """Queue deliveries sent as one block under consecutive packet ids: one object for all of them."""

    __slots__ = ("_first", "_first_id", "_run", "left", "size")

    qos = 1
    state = OutgoingState.WAIT_PUBACK

    def __init__(self, first_id: int, run: DeliveryRun, size: int) -> None:
        """``size``: see :func:`run_bytes`."""
        self._first_id = first_id
        self._run = run
        self.left = len(run.stored)
        self.size = size
        self._first: Delivery | None = None

    @property
    def delivery(self) -> Delivery | None:
        """The first of them: it says that they are deliveries. Made when it is asked for, which is seldom."""
        if self._first is None:
            self._first = self._run.delivery(0)
        return self._first

    def message_for(self, packet_id: int) -> Message:
        return self._run.stored[packet_id - self._first_id].message

    def delivery_for(self, packet_id: int) -> Delivery | None:
        return self._run.delivery(packet_id - self._first_id)


class OutgoingRun(_Sent):
    """``count`` messages sent as one block under consecutive packet ids: one object for all of them.

    ``make`` builds the message of an id again, should it have to be resent; they take ``size`` bytes in memory.
    """

    __slots__ = ("left", "make", "qos", "size", "state")

    delivery: Delivery | None = None

    def __init__(self, qos: int, make: Callable[[int], Message], count: int, size: int) -> None:
        self.qos = qos
        self.make = make
        self.left = count
        self.size = size
        self.state = WAIT_PUBACK if qos < 2 else WAIT_PUBREC

    def message_for(self, packet_id: int) -> Message:
        return self.make(packet_id)

    def delivery_for(self, packet_id: int) -> Delivery | None:
        return None


class Released(_Sent):
    """A QoS 2 delivery after its PUBREC: only the packet id is still needed."""

    __slots__ = ("left",)

    qos = 2
    is_released = True
    delivery: Delivery | None = None
    state = OutgoingState.WAIT_PUBCOMP
    size = 0

    def __init__(self) -> None:
        self.left = 1 << 62
        """All that is released shares one object, which takes no bytes."""

    def message_for(self, packet_id: int) -> Message:
        """There is none any more."""
        raise LookupError(f"the message of packet id {packet_id} was released")

    def delivery_for(self, packet_id: int) -> Delivery | None:
        return None


RELEASED = Released()
InFlight = Outgoing | OutgoingRun | OutgoingDeliveries | Released


_NONE_QUEUED: Final[deque[Outgoing]] = deque(maxlen=0)
"""What a session has until messages wait. An empty deque takes 600 bytes, and most sessions are idle."""


def run_bytes(run: DeliveryRun) -> int:
    """What these deliveries take in memory; they differ in payload and offset only."""
    stored = run.stored
    size = len(stored) * MESSAGE_OVERHEAD_BYTES + text_bytes(stored[0].topic)
    return size + sum([each.size for each in stored])


class Session:
    """One client's state."""

    # More attributes than instances of a class can share the keys of: without slots each would have a dict of its own.
    __slots__ = (
        "__weakref__",
        "_budget",
        "_next_packet_id",
        "_traffic",
        "_will",
        "asked",
        "auto_consumers",
        "client_id",
        "connection",
        "consumer_groups",
        "consumer_options",
        "consumers",
        "disconnected_at",
        "dropped",
        "ended",
        "expiry_s",
        "expiry_timer",
        "ids_paid",
        "in_flight",
        "in_flight_bytes",
        "inbound_qos2",
        "kept",
        "left_shares",
        "max_in_flight_bytes",
        "max_queued",
        "max_queued_bytes",
        "may_administer",
        "queued",
        "queued_bytes",
        "receive_maximum",
        "retained",
        "reviewed",
        "stalled_consumers",
        "subscription_bytes",
        "subscriptions",
        "tenant",
        "unsent",
        "username",
        "will_timer",
        "window",
    )

    def __init__(
        self,
        client_id: str,
        limits: MqttConfig | None = None,
        traffic: Traffic | None = None,
        budget: MessageBudget | None = None,
    ) -> None:
        limits = limits or MqttConfig()
        self.client_id = client_id
        self.max_queued = limits.max_queued_messages
        self.max_queued_bytes = limits.max_queued_bytes
        self.max_in_flight_bytes = limits.max_inflight_bytes
        self.connection: SessionConnection | None = None
        self.username: str | None = None
        """The verified user it belongs to."""
        self.tenant: Tenant | None = None
        """Whose queues its client uses; None = no tenant's."""
        self.may_administer = False
        """Only of a client that is connected."""
        self.reviewed = 0
        """The rules by which its subscriptions and messages were last judged (:class:`AccessReview`)."""
        self.expiry_s: float = 0.0
        """Seconds the session outlives its connection; ``inf`` = for ever."""
        self.disconnected_at = 0.0
        """Unix seconds; 0 = connected."""
        self.ended = False
        """It is over, though some of its subscriptions may still have to be taken out of the tree."""
        self.kept: KeptSession | None = None
        """Writes the session down; None = it need not survive a restart."""
        self.expiry_timer: Timer | None = None
        self._will: Will | None = None
        self.will_timer: Timer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        """By the whole filter as the client wrote it, ``$share/...`` included."""
        self.subscription_bytes = 0
        """What they take in memory (:func:`subscription_bytes`)."""
        self.consumers: dict[str, Consumer] = {}
        """Queue consumers by filter; they exist only while connected."""
        self.left_shares: dict[str, None] = {}
        """Shared subscriptions that it has left, while what waits for them here is not passed on yet."""
        self.consumer_groups: dict[str, str] = {}
        """Group of each queue subscription by filter, for the time after a reconnect."""
        self.consumer_options: dict[str, tuple[tuple[str, str], ...]] = {}
        """Likewise, the options it asked for, if any."""
        self.asked: tuple[tuple[str, str], ...] = ()
        """User properties of the SUBSCRIBE that is being handled."""
        self.auto_consumers: dict[tuple[str, str], Consumer] = {}
        """Those among :attr:`consumers` with automatic commit, by queue and group."""
        self.inbound_qos2: dict[int, bool] = {}
        """Packet ids received as QoS 2 and not yet released -> PUBREC may be sent (the message is safe)."""
        self.ids_paid = FREE_IDS
        """So many of these may be there before more of them are counted as held."""
        self.in_flight: dict[int, InFlight] = {}
        """Sent and not finished, in order of sending."""
        self.unsent: OrderedDict[int, Outgoing | OutgoingRun | OutgoingDeliveries] = OrderedDict()
        """Of those in flight, the ones that wait for room to be resent: this connection's window is the smaller one."""
        self.queued = _NONE_QUEUED
        """Waiting for a connection or for room in the window."""
        self.queued_bytes = 0
        """What the messages in ``queued`` take in memory (:func:`memory_bytes`)."""
        self.in_flight_bytes = 0
        """Likewise, those in ``in_flight``."""
        self.receive_maximum = MAX_PACKET_ID
        """Most unfinished outgoing messages the client takes."""
        self.window = MAX_PACKET_ID
        """The same, or 0 while it leaves too much unread, or anything waits to be resent."""
        self.retained: RetainedSends | None = None
        """Retained messages that it is to be sent as it takes them, if any. What is left when its connection ends, the
        next one gets."""
        self.dropped = 0
        self._traffic = traffic or Traffic()
        self._budget = budget or MessageBudget(limits.max_held_bytes)
        self._budget.used += session_bytes(client_id)
        self._next_packet_id = 1
        self.stalled_consumers: list[Consumer] = []
        """Consumers that were refused for lack of room; they are resumed when room appears."""

    @property
    def will(self) -> Will | None:
        return self._will

    @will.setter
    def will(self, will: Will | None) -> None:
        if self._will is not None:
            self._budget.let_go(self._will.message)
        if will is not None:
            self._budget.hold(will.message)
        self._will = will

    @property
    def has_room(self) -> bool:
        """Connected, and the window has room."""
        return self.connection is not None and len(self.in_flight) < self.window and self._has_bytes_for(0)

    @property
    def can_wait(self) -> bool:
        """One more message may wait in its queue."""
        return len(self.queued) < self.max_queued and self.queued_bytes < self.max_queued_bytes

    def can_take(self, message: Message) -> bool:
        """A message would be sent at once."""
        size = memory_bytes(message)
        if self.queued or self.connection is None or len(self.in_flight) >= self.window:
            return False
        if not self._has_bytes_for(size):
            return False
        return size < LARGE_BYTES or self.connection.has_turn()

    def _has_bytes_for(self, size: int) -> bool:
        """So many bytes more may be in flight. To the client to which none are, anything may."""
        return not self.in_flight or (
            self.in_flight_bytes + size <= self.max_in_flight_bytes and self._budget.admits(self.held_bytes, size)
        )

    @property
    def held_bytes(self) -> int:
        """What it holds in all: queued, in flight, its will, and many received packet ids."""
        size = self.queued_bytes + self.in_flight_bytes + ID_BYTES * (self.ids_paid - FREE_IDS)
        return size if self._will is None else size + memory_bytes(self._will.message)

    def pays_for_ids(self, count: int) -> bool:
        """Whether so many received packet ids may be there. An MQTT 3.1.1 client may have all there are unreleased."""
        if count <= self.ids_paid:
            return True
        more = -(-(count - self.ids_paid) // _IDS_AT_A_TIME) * _IDS_AT_A_TIME
        if not self._budget.admits(self.held_bytes, ID_BYTES * more):
            return False
        self.ids_paid += more
        self._budget.used += ID_BYTES * more
        return True

    def _stop_paying_for_ids(self) -> None:
        self._budget.used -= ID_BYTES * (self.ids_paid - FREE_IDS)
        self.ids_paid = FREE_IDS

    def recount_ids(self) -> None:
        """Of those that it has from before, at the start of the broker or of a connection."""
        if self.ids_paid > FREE_IDS:
            self._stop_paying_for_ids()
        if len(self.inbound_qos2) > FREE_IDS:
            self.ids_paid = len(self.inbound_qos2)
            self._budget.used += ID_BYTES * (self.ids_paid - FREE_IDS)

    def awaits_retained(self, topic_filter: str) -> bool:
        """Whether retained messages are still to be sent for a filter."""
        return self.retained is not None and topic_filter in self.retained

    def takes_retained(self, qos: int) -> bool:
        """Whether retained messages may go to a subscription of this QoS now, or behind what is queued."""
        if self.connection is None or not self.window:
            return False
        if not qos:
            return True
        # So many may join the queue that it still has room for what comes anew.
        short = len(self.queued) <= self.max_queued // 2 and self.queued_bytes <= self.max_queued_bytes // 2
        return len(self.in_flight) < self.window and short

    def allocate_packet_id(self) -> int:
        packet_id = self._next_packet_id
        while packet_id in self.in_flight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self._next_packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        delivery: Delivery | None = None,
        share: str = "",
    ) -> None:
        """Send now, or queue for later; over the limit the message is dropped and counted.

        ``share``: the whole filter of the shared subscription that it comes by.
        """
        connection = self.connection
        if qos == 0 or self.ended:
            # Offline QoS 0 messages are not kept (5.0 section 4.1 leaves it open).
            if connection is not None:
                connection.send_publish(0, message, 0, retain, False, identifiers)
            return
        size = message.memory_bytes or memory_bytes(message)
        budget = self._budget
        used = budget.used
        if (
            used + size > budget.half
            and not budget.admits(self.held_bytes, HOLDER_BYTES if message.holders else size)
            and delivery is None
        ):
            self._drop()
            return
        if share:
            outgoing: Outgoing = SharedOutgoing(share, message, qos, retain, identifiers)
        else:
            outgoing = Outgoing(message, qos, retain, identifiers, delivery)
        if (
            connection is not None
            and not self.queued
            and len(self.in_flight) < self.window
            and (self.in_flight_bytes + size <= self.max_in_flight_bytes or not self.in_flight)
            and (size < LARGE_BYTES or connection.has_turn())
        ):
            self.send(connection, outgoing)
            return
        queued = self.queued
        if len(queued) >= self.max_queued or self.queued_bytes + size > self.max_queued_bytes:
            self._drop()
            return
        # As queue() does, without the calls: a message may go to many that are offline.
        if queued is _NONE_QUEUED:
            queued = self.queued = deque()
        queued.append(outgoing)
        self.queued_bytes += size
        budget.used = used + (HOLDER_BYTES if message.holders else size)
        message.holders += 1
        if self.kept is not None:
            self.kept.queued(outgoing)

    def queue(self, outgoing: Outgoing) -> None:
        """It waits behind all others."""
        if self.queued is _NONE_QUEUED:
            self.queued = deque()
        self.queued.append(outgoing)
        self.queued_bytes += memory_bytes(outgoing.message)
        self._budget.hold(outgoing.message)

    def _unqueue(self, outgoing: Outgoing) -> None:
        """It waits no more."""
        self.queued_bytes -= memory_bytes(outgoing.message)
        self._budget.let_go(outgoing.message)

    def hand_over(self, connection: SessionConnection, delivery: Delivery) -> bool:
        """Send a queue delivery at QoS 1 by the short way; there is room for it. False: nothing was done, it must go
        by :meth:`deliver`."""
        packet_id = self.allocate_packet_id()
        sent = connection.send_delivery(packet_id, delivery)
        if sent:
            self.hold(packet_id, Outgoing(delivery.message, 1, False, (), delivery))
            return True
        if sent is None:
            self._next_packet_id = packet_id
            return False
        self._drop()
        return True

    def hold(self, packet_id: int, outgoing: Outgoing) -> None:
        """It is in flight under the packet id."""
        self.in_flight[packet_id] = outgoing
        self.in_flight_bytes += outgoing.size
        self._budget.used += outgoing.size

    def finish(self, packet_id: int) -> None:
        """Nothing is in flight under the packet id any more."""
        outgoing = self.in_flight.pop(packet_id)
        outgoing.left -= 1
        if not outgoing.left:
            self.let_go(outgoing.size)

    def let_go(self, size: int) -> None:
        """So many bytes were in flight under ids of which none is left: they are held no more."""
        self.in_flight_bytes -= size
        self._budget.used -= size

    def shared_left(self) -> tuple[list[SharedOutgoing], list[SharedOutgoing]]:
        """The session ends: what it holds of shared subscriptions that another member may get, in order, and what
        none may, since the client was sent it at QoS 2 and may have it (5.0 4.8.2-5).
        """
        moving: list[SharedOutgoing] = []
        lost: list[SharedOutgoing] = []
        for outgoing in self.in_flight.values():
            if isinstance(outgoing, SharedOutgoing):
                (moving if outgoing.qos == 1 else lost).append(outgoing)
        moving += [outgoing for outgoing in self.queued if isinstance(outgoing, SharedOutgoing)]
        return moving, lost

    def take_queued(self, shares: Collection[str]) -> list[SharedOutgoing]:
        """Take out of the queue what came by these shared subscriptions, in order."""
        taken = [each for each in self.queued if isinstance(each, SharedOutgoing) and each.share in shares]
        if taken:
            self.queued = deque(each for each in self.queued if each.share not in shares)
            for outgoing in taken:
                self._unqueue(outgoing)
                if self.kept is not None:
                    self.kept.dropped(outgoing)
        return taken

    def empty(self) -> None:
        """Nobody asks for what it had any more, though somebody may still know the session."""
        self.in_flight.clear()
        self.unsent.clear()
        self.queued.clear()

    def let_all_go(self) -> None:
        """The session is over: what it still has counts no more."""
        if self.in_flight:
            self.let_go(sum(outgoing.size for outgoing in dict.fromkeys(self.in_flight.values())))
        for outgoing in self.queued:
            self._unqueue(outgoing)
        if self.ids_paid > FREE_IDS:
            self._stop_paying_for_ids()
        self._budget.used -= session_bytes(self.client_id)

    def send(self, connection: SessionConnection, outgoing: Outgoing) -> None:
        """Send a new delivery at QoS 1 or 2 under a free packet identifier; it is in flight from then on."""
        # As allocate_packet_id() and hold() do, without the calls where they are not needed.
        packet_id = self._next_packet_id
        if packet_id in self.in_flight:
            packet_id = self.allocate_packet_id()
        else:
            self._next_packet_id = packet_id % MAX_PACKET_ID + 1
        self.in_flight[packet_id] = outgoing
        size = outgoing.size
        self.in_flight_bytes += size
        self._budget.used += size
        sent = connection.send_publish(
            packet_id, outgoing.message, outgoing.qos, outgoing.retain, False, outgoing.identifiers
        )
        if not sent:
            self.finish(packet_id)
            if self.kept is not None:
                self.kept.dropped(outgoing)
            self._drop()

    def drop_unreadable(self, may_read: Callable[[str], bool], *, resend: bool) -> list[SharedOutgoing]:
        """Drop what waits to be sent on topics that may not be read any more.

        ``resend``: all in flight waits to be sent again; else only what this connection was not sent yet. Returns what
        other members of shared subscriptions may get in its place.
        """
        kept = self.kept
        moving: list[SharedOutgoing] = []
        for packet_id in list(self.in_flight if resend else self.unsent):
            in_flight = self.in_flight.get(packet_id)
            if in_flight is None or isinstance(in_flight, Released) or in_flight.delivery is not None:
                continue
            if not may_read(in_flight.message_for(packet_id).topic):
                self.finish(packet_id)
                self.unsent.pop(packet_id, None)
                if isinstance(in_flight, SharedOutgoing) and in_flight.qos == 1:
                    moving.append(in_flight)
                else:
                    self._drop()
        if any(not may_read(outgoing.message.topic) for outgoing in self.queued):
            waiting, self.queued = self.queued, deque()
            for outgoing in waiting:
                if may_read(outgoing.message.topic):
                    self.queued.append(outgoing)
                    continue
                self._unqueue(outgoing)
                if kept is not None:
                    kept.dropped(outgoing)
                if isinstance(outgoing, SharedOutgoing):
                    moving.append(outgoing)
                else:
                    self._drop()
        return moving

    def _drop(self) -> None:
        self.dropped += 1
        self._traffic.dropped += 1

    def send_queued(self, now: float) -> None:
        """Fill the window from the queue; expired messages are dropped (5.0 3.3.2-5)."""
        connection = self.connection
        if self.unsent and connection is not None:
            self._resend_more(connection)
        while connection is not None and self.queued and len(self.in_flight) < self.window:
            size = memory_bytes(self.queued[0].message)
            if self.in_flight and self.in_flight_bytes + size > self.max_in_flight_bytes:
                break
            if size >= LARGE_BYTES and not connection.has_turn():
                break
            outgoing = self.queued.popleft()
            self._unqueue(outgoing)
            expires_at = outgoing.message.expires_at
            kept = self.kept
            if expires_at and expires_at <= now:
                if kept is not None:
                    kept.dropped(outgoing)
                continue
            if kept is not None:
                kept.leaves_queue(outgoing)
            self.send(connection, outgoing)

    def resume(self, now: float) -> None:
        """Resend what was in flight, in the original order (3.1.1 and 5.0 4.4.0-1), then what was queued.

        The client's window holds for what is resent as well, and may be smaller than it was (5.0 3.3.4-9, 4.9): then
        the rest follows as the client acknowledges. Nothing new is sent before that, or before the client has read.
        """
        connection = self.connection
        if connection is None:
            return
        self.unsent.clear()
        room = self.receive_maximum - sum(isinstance(outgoing, Released) for outgoing in self.in_flight.values())
        for packet_id, outgoing in list(self.in_flight.items()):
            if isinstance(outgoing, Released):
                connection.send_pubrel(packet_id)
            elif room <= 0 or connection.is_full or not connection.has_turn():
                room = 0
                self.unsent[packet_id] = outgoing
            else:
                room -= self.resend(connection, packet_id, outgoing)
        self.open_window()
        self.send_queued(now)

    def open_window(self) -> None:
        """Let new messages out, or not yet."""
        is_closed = self.unsent or self.connection is None or self.connection.is_full
        self.window = 0 if is_closed else self.receive_maximum

    def resend(
        self, connection: SessionConnection, packet_id: int, outgoing: Outgoing | OutgoingRun | OutgoingDeliveries
    ) -> bool:
        """Send a delivery in flight again, with DUP; False when the client no longer takes its size."""
        message = outgoing.message_for(packet_id)
        sent = connection.send_publish(packet_id, message, outgoing.qos, outgoing.retain, True, outgoing.identifiers)
        if not sent:
            self.finish(packet_id)
        return sent

    def _resend_more(self, connection: SessionConnection) -> None:
        """Fill the window from ``unsent``."""
        while (
            self.unsent
            and len(self.in_flight) - len(self.unsent) < self.receive_maximum
            and not connection.is_full
            and connection.has_turn()
        ):
            self.resend(connection, *self.unsent.popitem(last=False))
        self.open_window()

    def can_send_run(self, count: int, size: int) -> int:
        """First of ``count`` consecutive free packet ids when the window has room for them, and their bytes, now;
        else 0."""
        if self.connection is None or self.queued or len(self.in_flight) + count > self.window:
            return 0
        if self.in_flight_bytes + size > self.max_in_flight_bytes or self._budget.used + size > self._budget.half:
            return 0
        first = self._next_packet_id
        if first + count > MAX_PACKET_ID + 1:
            first = 1
        return first if self.in_flight.keys().isdisjoint(range(first, first + count)) else 0

    def hand_over_run(self, connection: SessionConnection, run: DeliveryRun) -> int:
        """Send the first of these queue deliveries, as many as the window has room for, at QoS 1 by the short way.

        Returns how many; 0: nothing was done.
        """
        count = min(len(run.stored), self.window - len(self.in_flight))
        if count <= 0:
            return 0
        if count < len(run.stored):
            run = run.first(count)
        size = run_bytes(run)
        first = self.can_send_run(count, size)
        if not first:
            return 0
        if not connection.send_delivery_run(first, run):
            return 0
        self.start_run(first, count, OutgoingDeliveries(first, run, size))
        return count

    def start_run(self, first: int, count: int, run: OutgoingRun | OutgoingDeliveries) -> None:
        """The run was sent under the ids from ``first``, which :meth:`can_send_run` offered."""
        self.in_flight.update(dict.fromkeys(range(first, first + count), run))
        self.in_flight_bytes += run.size
        self._budget.used += run.size
        self._next_packet_id = (first + count - 1) % MAX_PACKET_ID + 1

    def forget_deliveries(self) -> None:
        """The connection ended: the queue engine redelivers what was unsettled, so the session must not."""
        for packet_id in [key for key, value in self.in_flight.items() if value.delivery is not None]:
            self.finish(packet_id)
        if any(outgoing.delivery is not None for outgoing in self.queued):
            for outgoing in self.queued:
                if outgoing.delivery is not None:
                    self._unqueue(outgoing)
            self.queued = deque(outgoing for outgoing in self.queued if outgoing.delivery is None)
        self.consumers.clear()
        self.auto_consumers.clear()
        self.stalled_consumers.clear()
