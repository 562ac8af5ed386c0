"""What was granted once is asked again: whenever users, tenants or access rules change, and when a session returns.

A right is not remembered longer than the rule that gave it. Subscriptions are judged as if they were asked for now, and
those that would be refused end; what waits to be sent on topics that may not be read any more is dropped. A will is
judged when it is sent (:meth:`MqttBroker.may_send_will`). Messages that a client published while it might stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.queue_topics.admin_topics import reaches_admin
from assay.reference_broker.queues import QueueError, QueueErrorCode

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
    from assay.reference_broker.mqtt.sessions.session import Session

PORTION = 10_000
"""Subscriptions and messages that a review looks at in one turn, and those of one session more."""
_PAUSE_S = 0.001
MayRead = Callable[[str], bool]


class AccessReview:
    """Holds all sessions of a broker against its rules, in portions."""

    def __init__(self, state: MqttBroker) -> None:
        self._state = state
        self.version = 0
        """Of the rules. A session that was last reviewed at another one is reviewed when it returns."""
        self._left: deque[Session] = deque()
        self._waiting: list[Callable[[], None]] = []

    def begin(self, now: float, on_done: Callable[[], None] | None = None) -> None:
        """The rules have changed. Sessions that are connected come first; ``on_done`` is called after the last."""
        self.version += 1
        is_under_way = bool(self._left)
        sessions = self._state.sessions.values()
        self._left = deque(session for session in sessions if session.connection is not None)
        self._left.extend(session for session in sessions if session.connection is None)
        if on_done is not None:
            self._waiting.append(on_done)
        if not is_under_way:
            self.go_on(now)

    def start(self, now: float) -> None:
        """The sessions of another life, all at once: nobody is connected yet, and the rules may be others."""
        self._left = deque(self._state.sessions.values())
        while self._left:
            self._one(now)

    def go_on(self, now: float) -> None:
        """Look at another portion; publishers are judged anew from their next publish on."""
        budget = PORTION
        while self._left and budget > 0:
            budget -= self._one(now)
        # Who may publish is part of the plans of publishers.
        self._state.tree.invalidate_plans()
        if self._left:
            self._state.timers.schedule(now + _PAUSE_S, self.go_on)
            return
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            on_done()

    def _one(self, now: float) -> int:
        """Returns how much there was to look at."""
        session = self._left.popleft()
        state = self._state
        if state.sessions.get(session.client_id) is not session:
            return 1
        size = 1 + len(session.subscriptions) + len(session.queued) + len(session.in_flight)
        if state.has_moved(session):
            self._move(session, now)
            return size
        if session.connection is None:
            session.may_administer = False
            may_read = self._offline_reader(session)
            if may_read is not None:
                self.review(session, now, may_read, resend=True)
            session.reviewed = self.version
        elif session.connection.ask_again(now):
            # What was sent on this connection is known to the client already; it is not sent again on the next.
            reviewed = session.reviewed
            self.review(session, now, session.connection.may_read, resend=False)
            session.reviewed = reviewed
        else:
            # It is one without a connection now, if its client asked for that.
            self._left.append(session)
        return size

    def _offline_reader(self, session: Session) -> MayRead | None:
        """None: it may read everything."""
        access = self._state.access
        if access is None:
            return None
        grants = access.grants(session.username, session.client_id)
        # Administration depends on the listener as well: it is judged when the session returns.
        return lambda topic: reaches_admin(topic) or grants.may_subscribe(topic)

    def _move(self, session: Session, now: float) -> None:
        """Its client belongs to another tenant, whose names name other queues: the session ends, as another user's."""
        will = session.will
        if will is not None and is_queue_topic(will.message.topic):
            session.will = None
        connection = session.connection
        if connection is not None:
            connection.close_as_moved(now)
        if self._state.sessions.get(session.client_id) is session:
            self._state.end_session(session, now)

    def resume(self, session: Session, now: float) -> None:
        """A session returns, and nothing was sent yet."""
        connection = session.connection
        if connection is None:
            return
        if session.reviewed != self.version:
            self.review(session, now, connection.may_read, resend=True)
            return
        if not session.subscriptions:
            return
        for topic_filter in [one for one in session.subscriptions if reaches_admin(one)]:
            if not connection.may_read(topic_filter):
                self._revoke(session, topic_filter, now)

    def review(self, session: Session, now: float, may_read: MayRead, *, resend: bool) -> None:
        """End what would be refused now. ``resend``: what is in flight would be sent again, and is judged as well."""
        for topic_filter, subscription in list(session.subscriptions.items()):
            if not (may_read(subscription.topic_filter) and self._reaches(session, topic_filter)):
                self._revoke(session, topic_filter, now)
        self._state.leave_shares(session, now)
        moving = session.drop_unreadable(may_read, resend=resend)
        self._state.pass_on(moving, now)
        session.reviewed = self.version

    def _reaches(self, session: Session, topic_filter: str) -> bool:
        """Whether a connected client belongs where a queue does. One that comes back is asked by ``consume``."""
        state = self._state
        if state.tenants is None or session.connection is None or not is_queue_topic(topic_filter):
            return True
        try:
            if session.tenant is None:
                state.tenants.check_reach(session, state.topics.read(topic_filter).address)
        except QueueError:
            return False
        return True

    def _revoke(self, session: Session, topic_filter: str, now: float) -> None:
        if is_queue_topic(topic_filter):
            self._state.admin.queue_ended(session, topic_filter, QueueErrorCode.NOT_ALLOWED.value)
        else:
            self._state.unsubscribe(session, topic_filter, now)
