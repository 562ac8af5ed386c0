"""``$SYS`` topics: the broker's figures, under the names that Mosquitto gave them.

Nothing is stored: values are built for a new subscriber, and every ``sys.interval_s`` while there is one, only for the
topics that somebody gets. They travel at QoS 0, so nothing piles up for clients that are offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from assay.reference_broker.core.routing import Subscription
from assay.reference_broker.core.timers import Timer
from assay.reference_broker.core.version import installed_version
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import is_sys_topic, matches

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker

_ROOT = "$SYS/broker/"
_VERSION = "version"
"""It never changes: new subscribers get it, refreshes leave it out."""
Value = Callable[["MqttBroker", float], int | str]
"""A figure from the broker's state and the seconds since the start."""


_FIGURES: dict[str, Value] = {
    _VERSION: lambda state, uptime_s: f"assay version {installed_version()}",
    "uptime": lambda state, uptime_s: f"{int(uptime_s)} seconds",
    "clients/connected": lambda state, uptime_s: state.traffic.connected,
    "clients/active": lambda state, uptime_s: state.traffic.connected,
    "clients/disconnected": lambda state, uptime_s: len(state.sessions) - state.traffic.connected,
    "clients/inactive": lambda state, uptime_s: len(state.sessions) - state.traffic.connected,
    "clients/total": lambda state, uptime_s: len(state.sessions),
    "clients/connecting": lambda state, uptime_s: state.connecting.count,
    "clients/handshakes": lambda state, uptime_s: state.handshakes.count,
    "clients/maximum": lambda state, uptime_s: state.traffic.max_connected,
    "subscriptions/count": lambda state, uptime_s: state.traffic.subscriptions,
    "shared_subscriptions/count": lambda state, uptime_s: state.traffic.shared_subscriptions,
    "retained messages/count": lambda state, uptime_s: len(state.retained),
    "retained messages/bytes": lambda state, uptime_s: state.retained.held_bytes,
    "subscriptions/bytes": lambda state, uptime_s: state.filter_memory.used,
    "publish/messages/received": lambda state, uptime_s: state.traffic.publishes_received,
    "publish/messages/sent": lambda state, uptime_s: state.traffic.publishes_sent,
    "publish/messages/dropped": lambda state, uptime_s: state.traffic.dropped,
    "publish/bytes/received": lambda state, uptime_s: state.traffic.payload_bytes_received,
    "publish/bytes/sent": lambda state, uptime_s: state.traffic.payload_bytes_sent,
    "bytes/received": lambda state, uptime_s: state.traffic.bytes_received,
    "bytes/sent": lambda state, uptime_s: state.traffic.bytes_sent,
    "topic aliases/bytes": lambda state, uptime_s: state.alias_memory.used,
    "partial packets/bytes": lambda state, uptime_s: state.partial_packets.used_bytes,
    "routes/bytes": lambda state, uptime_s: state.tree.route_bytes + state.plan_memory.used_bytes,
    "store/messages/bytes": lambda state, uptime_s: state.held.used,
    "bytes/waiting": lambda state, uptime_s: state.traffic.waiting_bytes,
    "bytes/unread": lambda state, uptime_s: state.traffic.unread_bytes,
    "queues/partitions/count": lambda state, uptime_s: state.engine.usage(lambda _: True).partitions,
    "queues/groups/count": lambda state, uptime_s: state.engine.usage(lambda _: True).groups,
    "queues/memory/bytes": lambda state, uptime_s: 0 if (memory := state.engine.memory) is None else memory.held_bytes,
    "queues/known/bytes": lambda state, uptime_s: state.engine.known.used_bytes,
    "queues/count": lambda state, uptime_s: len(state.engine.queues()),
}
"""Topic below the root -> its value. ``queues/count`` is ours; ``active`` and ``inactive`` are old names in use."""


def figure_names() -> tuple[str, ...]:
    """The topics below ``$SYS/broker/``."""
    return tuple(_FIGURES)


class SysTopics:
    """Gives ``$SYS`` values to those who subscribe."""

    def __init__(self, state: MqttBroker, interval_s: float) -> None:
        self._state = state
        self._interval_s = interval_s
        self._subscriptions = 0
        self._timer: Timer | None = None
        self.started_at = 0.0
        """Unix seconds; set by whoever opens the broker."""

    @property
    def active(self) -> bool:
        """Whether somebody is subscribed, so that values are refreshed."""
        return self._timer is not None

    def subscribed(self, subscription: Subscription, now: float) -> None:
        """A new subscription, of any filter. The first one to ``$SYS`` starts the refreshing."""
        if is_sys_topic(subscription.topic_filter):
            self._subscriptions += 1
            if self._timer is None and self._interval_s > 0:
                self._timer = self._state.timers.schedule(now + self._interval_s, self._refresh)

    def unsubscribed(self, subscription: Subscription) -> None:
        """The opposite; the last one ends it."""
        if is_sys_topic(subscription.topic_filter):
            self._subscriptions -= 1
            if self._subscriptions == 0 and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """The present values a filter matches, as if they were retained."""
        if self._interval_s > 0 and is_sys_topic(topic_filter):
            for name in _FIGURES:
                if matches(topic_filter, _ROOT + name):
                    yield self._message(name, now)

    def _message(self, name: str, now: float) -> Message:
        value = _FIGURES[name](self._state, now - self.started_at)
        return Message(topic=_ROOT + name, payload=str(value).encode(), retain=True)

    def _refresh(self, now: float) -> None:
        self._timer = self._state.timers.schedule(now + self._interval_s, self._refresh)
        for name in _FIGURES:
            route = self._state.tree.route(_ROOT + name)
            if name != _VERSION and (route.entries or route.groups):
                self._state.publish_figure(self._message(name, now))
