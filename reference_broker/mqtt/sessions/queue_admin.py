"""The administration of queues over topics, as seen by the broker: answers to requests, and the stream of figures.

A client publishes a request to ``$admin/queue/...`` (see :mod:`assay.reference_broker.queues.admin.admin`); the answer
goes to its response topic, with its correlation data. Who subscribes to ``$admin/queue/<queue>/stats`` gets the figures
of the queue every ``queues.stats_interval_s``, at QoS 0. Nothing on these topics is retained or routed between clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from assay.reference_broker.config import AdminTopics
from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.mqtt.queue_topics.admin_topics import perform_on_topic, reaches_admin, topic_of_stats
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.admin import admin as operations
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.core.access import Grants
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
    from assay.reference_broker.mqtt.sessions.session import Session


def check_response_topic(request: Message, may_publish: Callable[[str], bool]) -> None:
    """``may_publish``: as of :meth:`QueueAdmin.request`. Raises :class:`QueueError` (NOT_ALLOWED)."""
    topic = request.response_topic
    if topic is not None and (topic.startswith("$") or not may_publish(topic)):
        text = "the response topic must be an ordinary one that the client itself may publish to"
        raise QueueError(QueueErrorCode.NOT_ALLOWED, text)


class QueueAdmin:
    """Serves administration requests of clients."""

    def __init__(self, state: MqttBroker) -> None:
        self._state = state
        self._config = state.config.queues
        self._subscriptions = 0
        self._timer: Timer | None = None

    def allows(self, topic: str, grants: Grants | None, *, loopback: bool, read: bool) -> bool:
        """Whether a client may publish to an administration topic or, with ``read``, subscribe to such a filter.

        With access rules, one of them must allow the topic: that everything is allowed by default is not enough.
        Without, the client must have come over a listener on loopback.
        """
        if self._config.admin_topics is AdminTopics.OFF:
            return False
        if grants is None:
            return loopback
        return grants.may_administer(topic, read=read)

    def request(self, message: Message, may_publish: Callable[[str], bool], now: float, on_done: Confirm) -> None:
        """Serve a request of a client that may administer; ``on_done`` is called once, now or later.

        ``may_publish`` tells whether the client itself may publish to a topic, for its response topic.
        """
        response_topic = message.response_topic

        def answer(result: object) -> None:
            if response_topic is not None:
                self.send_answer(message, response_topic, operations.encode_answer(result))
            on_done(result if isinstance(result, QueueError) else None)

        try:
            check_response_topic(message, may_publish)
        except QueueError as error:
            on_done(error)
            return
        try:
            perform_on_topic(self._state.engine, message.topic, message.payload, now, answer)
        except QueueError as error:
            answer(error.bare())

    def send_answer(self, request: Message, topic: str, payload: bytes) -> None:
        """Publish an answer at the QoS of its request, with its correlation data."""
        response = Message(
            topic=topic,
            payload=payload,
            qos=request.qos,
            content_type="application/json",
            correlation_data=request.correlation_data,
        )
        self._state.publish(response, None, self._state.now)

    def queue_ended(self, session: Session, topic_filter: str, event: str) -> None:
        """A queue that a session consumes from is not there any more: the subscription ends, and the client is told.

        It gets a message on ``<its filter without wildcards>/$ended``, QoS 0: MQTT has no packet for it.
        """
        self._state.unsubscribe(session, topic_filter, self._state.now)
        levels = [level for level in topic_filter.split("/") if level not in ("+", "#")]
        payload = operations.encode_answer({"event": event, "filter": topic_filter})
        notice = Message(topic="/".join((*levels, "$ended")), payload=payload, content_type="application/json")
        session.deliver(notice, 0, False, ())

    # -- the stream of figures -----------------------------------------------------------------------------------

    def subscribed(self, subscription: Subscription, now: float) -> None:
        """A new subscription, of any filter. The first one to administration topics starts the stream."""
        if reaches_admin(subscription.topic_filter):
            self._subscriptions += 1
            if self._timer is None:
                self._timer = self._state.timers.schedule(now, self.publish_figures)

    def unsubscribed(self, subscription: Subscription) -> None:
        """The opposite; the last one ends it."""
        if reaches_admin(subscription.topic_filter):
            self._subscriptions -= 1
            if self._subscriptions == 0 and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def publish_figures(self, now: float) -> None:
        state = self._state
        self._timer = state.timers.schedule(now + self._config.stats_interval_s, self.publish_figures)
        for queue in state.engine.queues():
            topic = topic_of_stats(queue)
            route = state.tree.route(topic)
            if route.entries or route.groups:
                payload = operations.encode_answer(state.engine.stats(queue))
                state.publish_figure(Message(topic=topic, payload=payload, content_type="application/json"))
