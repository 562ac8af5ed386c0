"""A second protocol, as small as one can be: lines of text. It shows that the broker knows no protocol by name.

``hello <name>`` comes first. ``put <queue>[/<key>] <text>`` stores, ``take <queue> <group> <credit>`` consumes: each
``message <number> <delivery count> <text>`` is settled by ``done``, ``again``, ``release`` or ``refuse <number>``.
``grant`` and ``drain <queue> <credit>`` change the credit. ``listen <filter>`` and ``say <topic> <text>`` use ordinary
topics. ``bye`` ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.reference_broker.config import ServerReferenceConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.protocols import Arrival, WireProtocol
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.queues import Consumer, Delivery, Outcome, QueueAddress, QueueError
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.routing.message import Message

MAX_LINE_BYTES = 4_096
OPENING = b"hello "
_OUTCOMES = {"done": Outcome.ACCEPT, "again": Outcome.FAIL, "release": Outcome.RELEASE, "refuse": Outcome.REJECT}


class TextConnection(Connection):
    """One client: a :class:`Client` and a :class:`Subscriber` of the broker, without a session."""

    kept = None
    can_wait = False
    username: str | None = None
    tenant: Tenant | None = None
    may_administer = False

    def __init__(self, arrival: Arrival) -> None:
        super().__init__(arrival.broker, arrival.wake, arrival.peer, arrival.now)
        self._partial = b""
        self._over = False
        self._held: dict[int, Delivery] = {}
        self._number = 0
        self._consumers: dict[str, Consumer] = {}
        self._subscriptions: dict[str, Subscription] = {}

    # -- as a connection -----------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if not self._over:
                self._on_line(line.decode(errors="replace"), now)
        if len(self._partial) > MAX_LINE_BYTES:
            self._fail("a line is too long", now)

    def connection_lost(self, now: float) -> None:
        self._close(now)
        self._forget_unread()

    @property
    def wants_pause(self) -> bool:
        return self.out_bytes > self.qos0_room_bytes

    def give_way(self, now: float) -> None:
        self._fail("too many say nothing", now)

    def interrupt_login(self, now: float) -> None:
        """Nobody proves who it is."""

    def send_away(self, reference: ServerReferenceConfig, now: float) -> bool:
        if not self.client_id or self._over:
            return False
        self._fail(f"go to {reference.address}", now)
        return True

    def shut_down(self, now: float) -> None:
        self._fail("the broker stops", now)

    def abandon_output(self, problem: Exception, now: float) -> None:
        self.error = problem
        self._drop_output()
        self._close(now)

    def transport_stalled(self, now: float) -> None:
        self._fail("the client does not read", now)

    @property
    def is_over(self) -> bool:
        return self._over

    def on_full(self) -> None:
        for consumer in self._consumers.values():
            self.broker.engine.grant(consumer, 0, self.broker.now)

    def on_room(self) -> None:
        self._say("more")

    # -- as a subscriber -----------------------------------------------------------------------------------------

    @property
    def connection(self) -> object | None:
        return None if self._over else self

    @property
    def ended(self) -> bool:
        return self._over

    @property
    def has_room(self) -> bool:
        return not self._over and not self.is_full

    def deliver(
        self, message: Message, qos: int, retain: bool, identifiers: tuple[int, ...] = (), *, share: str = ""
    ) -> None:
        if self.has_room:
            self._say(f"news {message.topic} {message.payload.decode()}")

    # -- lines ---------------------------------------------------------------------------------------------------

    def _on_line(self, line: str, now: float) -> None:
        word, _, rest = line.partition(" ")
        if not self.client_id:
            if word != "hello" or not rest:
                self._fail("say hello first", now)
                return
            self.client_id = rest
            self.broker.connecting.remove(self)
            self._say("welcome")
            return
        known: dict[str, Callable[[str, float], None]] = {
            "put": self._put,
            "take": self._take,
            "grant": self._grant,
            "drain": self._drain,
            "listen": self._listen,
            "say": self._tell,
        }
        try:
            if word in known:
                known[word](rest, now)
            elif word in _OUTCOMES:
                self._settle(_OUTCOMES[word], int(rest), now)
            else:
                self._fail("bye" if word == "bye" else f"there is no {word}", now)
        except QueueError as error:
            self._say(f"error {error.code.value}")
        except ValueError:
            self._fail(f"{line} makes no sense", now)

    def _put(self, rest: str, now: float) -> None:
        place, text = rest.split(" ", 1)
        queue, _, key = place.partition("/")
        told: list[str] = []

        def stored(_kind: StoredAs, name: str) -> None:
            told.append(name)

        def confirmed(error: QueueError | None) -> None:
            self._say(f"stored {told[0]}" if error is None else f"error {error.code.value}")

        message = Message(topic="", payload=text.encode(), publisher=self.client_id)
        address = QueueAddress(queue=queue, routing_key=key)
        self.broker.enqueue(address, message, None, self, now, confirmed, stored)

    def _take(self, rest: str, now: float) -> None:
        queue, group, credit = rest.split(" ")
        address = QueueAddress(queue=queue)
        self._consumers[queue] = self.broker.consume(self, address, group, self._take_delivery, now, credit=int(credit))

    def _take_delivery(self, delivery: Delivery) -> bool:
        self._number += 1
        self._held[self._number] = delivery
        self._say(f"message {self._number} {delivery.delivery_count} {delivery.message.payload.decode()}")
        return True

    def _grant(self, rest: str, now: float) -> None:
        queue, credit = rest.split(" ")
        self.broker.engine.grant(self._consumers[queue], int(credit), now)

    def _drain(self, rest: str, now: float) -> None:
        queue, credit = rest.split(" ")
        drained = lambda left: self._say(f"drained {left}")  # noqa: E731 - it is told once
        self.broker.engine.grant(self._consumers[queue], int(credit), now, drained)

    def _settle(self, outcome: Outcome, number: int, now: float) -> None:
        delivery = self._held.pop(number)

        def settled(error: QueueError | None) -> None:
            self._say(f"settled {number}" if error is None else f"error {error.code.value}")

        self.broker.settle_delivery(delivery, outcome, self, now, settled)

    def _listen(self, topic_filter: str, now: float) -> None:
        subscription = self._subscriptions[topic_filter] = Subscription(topic_filter=topic_filter, qos=0)
        self.broker.tree.add(self, subscription)
        self._say("listening")

    def _tell(self, rest: str, now: float) -> None:
        topic, text = rest.split(" ", 1)
        message = Message(topic=topic, payload=text.encode(), publisher=self.client_id)
        self._say("heard" if self.broker.publish(message, self, now) else "unheard")

    # -- the end -------------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        if not self._over:
            self.send(line.encode() + b"\n")

    def _fail(self, text: str, now: float) -> None:
        self._say(text)
        self._close(now)

    def _close(self, now: float) -> None:
        if self._over:
            return
        self._over = True
        for consumer in self._consumers.values():
            self.broker.engine.unsubscribe(consumer, now)
        for subscription in self._subscriptions.values():
            self.broker.tree.remove(self, subscription)
        self.end_output()
        self.rouse()


def opens(opening: bytes) -> bool | None:
    """See :class:`WireProtocol`."""
    if len(opening) < len(OPENING) and OPENING.startswith(opening):
        return None
    return opening.startswith(OPENING)


TEXT = WireProtocol(accept=TextConnection, opens=opens)
