"""What clients are sent beyond answers, in fair and bounded portions a turn: what waited, and retained messages.

A session is woken when there may be more for it. Each turn goes round the woken ones, a portion each, until the turn
has done enough; the others, and those with more to get, have the next turn.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from assay.reference_broker.mqtt.sessions.retained_sends import Walk
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import is_sys_topic

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
    from assay.reference_broker.mqtt.sessions.session import Session

TURN_WORK: Final = 8_192
"""Of one turn. A step through the retained messages is 1, a message that is sent :data:`MESSAGE_WORK`."""
MESSAGE_WORK: Final = 8
PORTION: Final = 512
"""Of one session, before others have their turn."""


class Sending:
    """Goes on sending, turn by turn."""

    def __init__(self, broker: MqttBroker) -> None:
        self._broker = broker
        self._traffic = broker.traffic
        self._turn_bytes = broker.config.mqtt.turn_bytes
        self.woken: dict[Session, None] = {}
        """Whose turn it is next."""
        self.begin_turn()

    def begin_turn(self) -> None:
        """The turn's output is taken: there is room for the next one's."""
        traffic = self._traffic
        traffic.large_bytes = 0
        traffic.turn_end = traffic.payload_bytes_sent + self._turn_bytes

    @property
    def turn_is_over(self) -> bool:
        """What is sent in this turn is enough: messages of some size wait for the next."""
        return self._traffic.payload_bytes_sent >= self._traffic.turn_end

    def wake(self, session: Session) -> None:
        """There may be more for a session, and room for it."""
        self.woken[session] = None

    def go_on(self, now: float) -> None:
        """Send more to those that were woken; once a turn."""
        # What input had sent at once does not count: those who wait have a share of their own.
        self.begin_turn()
        work = 0
        while self.woken:
            woken, self.woken = self.woken, {}
            sessions = iter(woken)
            for session in sessions:
                work += self._serve(session, now)
                if work >= TURN_WORK or self.turn_is_over:
                    self.woken = {**dict.fromkeys(sessions), **self.woken}
                    return

    def _serve(self, session: Session, now: float) -> int:
        """A portion for one session; returns the work it was."""
        if session.connection is None:
            return 1
        sent = self._traffic.publishes_sent
        self._broker.room_appeared(session, now)
        steps = 1
        if session.retained is not None:
            steps += self.send_retained(session, PORTION)
        return steps + MESSAGE_WORK * (self._traffic.publishes_sent - sent)

    # -- retained messages -----------------------------------------------------------------------------------------

    def send_retained(self, session: Session, limit: int) -> int:
        """Retained messages, as far as the client takes them, and until so much work is done; returns the steps.

        Each is what its topic has at that moment, and takes its place behind what is queued, so nothing older follows.
        """
        retained = session.retained
        steps = 0
        sent = 0
        while retained is not None:
            subscription, newest = retained.first()
            is_full = not session.takes_retained(subscription.qos)
            if self.turn_is_over or (is_full and (retained.walk is None or retained.ahead is not None)):
                break
            if steps + MESSAGE_WORK * sent >= limit:
                self.wake(session)
                break
            walk = retained.walk
            if walk is None:
                walk = retained.walk = self._walk(subscription.topic_filter, newest)
                steps += MESSAGE_WORK
            try:
                message = next(walk) if retained.ahead is None else self._as_it_is(retained.ahead, newest)
            except StopIteration:
                finished = retained.finish_first()
                if not retained.count:
                    retained = session.retained = None
                if finished is not None and session.kept is not None:
                    session.kept.retained_due(finished, is_due=False)
                continue
            steps += 1
            retained.ahead = message if is_full else None
            if message is not None and not is_full:
                sent += 1
                identifiers = (subscription.identifier,) if subscription.identifier else ()
                session.deliver(message, min(message.qos, subscription.qos), True, identifiers)
        if retained is not None and self.turn_is_over:
            self.wake(session)
        return steps

    def _as_it_is(self, found: Message, newest: int) -> Message | None:
        """The message that the walk would find there by now; None if there is none."""
        if is_sys_topic(found.topic):
            return found
        message, arrived = self._broker.retained.numbered(found.topic)
        is_gone = message is None or arrived > newest or 0 < message.expires_at <= self._broker.now
        return None if is_gone else message

    def _walk(self, topic_filter: str, newest: int) -> Walk:
        broker = self._broker
        figures = broker.sys_topics.match(topic_filter, broker.now)
        return chain(figures, broker.retained.walk(topic_filter, lambda: broker.now, newest))
