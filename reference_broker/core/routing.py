"""Who gets a message: the subscription tree, and a cache from topic to route.

The tree holds one node a filter level. A route is the answer for one topic: the subscribers with their options merged
(one copy a session, at the highest granted QoS, with all identifiers: MQTT 3.1.1 3.3.5-1, 5.0 3.3.4-2 to -4), and the
shared groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reference_broker.core.session import Session

MAX_CACHED_ROUTES = 65_536


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription of a session, as granted."""

    topic_filter: str
    """Without the ``$share`` prefix."""
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    """Subscription Identifier; 0 = none."""
    share_name: str | None = None


class RouteEntry:
    """A subscriber of one topic, its overlapping subscriptions merged."""

    __slots__ = ("identifiers", "own", "qos", "retain_as_published", "session")

    def __init__(self, session: Session, subscriptions: list[Subscription]) -> None:
        self.session = session
        self.qos = max(subscription.qos for subscription in subscriptions)
        self.retain_as_published = any(subscription.retain_as_published for subscription in subscriptions)
        self.identifiers = tuple(subscription.identifier for subscription in subscriptions if subscription.identifier)
        foreign = [subscription for subscription in subscriptions if not subscription.no_local]
        self.own: RouteEntry | None = self
        """What holds for the session's own publishes: No Local subscriptions do not count; None = nothing is left."""
        if len(foreign) < len(subscriptions):
            self.own = RouteEntry(session, foreign) if foreign else None


class SharedGroup:
    """Members of one shared subscription; each message goes to one of them, in turn."""

    __slots__ = ("_turn", "members")

    def __init__(self) -> None:
        self.members: dict[Session, Subscription] = {}
        self._turn = 0

    def choose(self) -> tuple[Session, Subscription] | None:
        """The next member: connected with room first, then any connected, then any that keeps a session."""
        members = list(self.members.items())
        if not members:
            return None
        self._turn = (self._turn + 1) % len(members)
        ordered = members[self._turn :] + members[: self._turn]
        for member in ordered:
            if member[0].has_room:
                return member
        for member in ordered:
            if member[0].connection is not None:
                return member
        return ordered[0]


class Route:
    """Receivers of one topic. ``plan`` is room for a protocol to remember how it serves this route (see ``epoch``)."""

    __slots__ = ("entries", "groups", "plan", "plan_epoch")

    def __init__(self, entries: list[RouteEntry], groups: list[SharedGroup]) -> None:
        self.entries = entries
        self.groups = groups
        self.plan: object = None
        self.plan_epoch = -1


class _Node:
    __slots__ = ("children", "groups", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.subscribers: dict[Session, Subscription] = {}
        self.groups: dict[str, SharedGroup] = {}

    @property
    def empty(self) -> bool:
        return not (self.children or self.subscribers or self.groups)


class SubscriptionTree:
    """All subscriptions of the broker."""

    def __init__(self) -> None:
        self._root = _Node()
        self._routes: dict[str, Route] = {}
        self.epoch = 0
        """Changes whenever a remembered plan may have become wrong."""

    def invalidate_plans(self) -> None:
        """A session connected, disconnected or changed: plans are stale, routes are not."""
        self.epoch += 1

    def add(self, session: Session, subscription: Subscription) -> None:
        """Add or replace the session's subscription to this filter (and share name)."""
        node = self._root
        for level in subscription.topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if subscription.share_name is None:
            node.subscribers[session] = subscription
        else:
            node.groups.setdefault(subscription.share_name, SharedGroup()).members[session] = subscription
        self._changed(subscription.topic_filter)

    def remove(self, session: Session, subscription: Subscription) -> None:
        """Remove a subscription; unknown ones are ignored."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in subscription.topic_filter.split("/"):
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return
            node = child
        if subscription.share_name is None:
            node.subscribers.pop(session, None)
        else:
            group = node.groups.get(subscription.share_name)
            if group is not None:
                group.members.pop(session, None)
                if not group.members:
                    del node.groups[subscription.share_name]
        for parent, level in reversed(path):
            if not parent.children[level].empty:
                break
            del parent.children[level]
        self._changed(subscription.topic_filter)

    def _changed(self, topic_filter: str) -> None:
        self.epoch += 1
        if "+" in topic_filter or "#" in topic_filter:
            self._routes.clear()
        else:
            self._routes.pop(topic_filter, None)

    def route(self, topic: str) -> Route:
        """Receivers of a topic name; the answer is cached until a subscription that could change it changes."""
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[topic] = self._match(topic)
        return route

    def _match(self, topic: str) -> Route:
        found: dict[Session, list[Subscription]] = {}
        groups: list[SharedGroup] = []
        for node in self._walk(topic):
            for session, subscription in node.subscribers.items():
                found.setdefault(session, []).append(subscription)
            groups.extend(node.groups.values())
        return Route([RouteEntry(session, subscriptions) for session, subscriptions in found.items()], groups)

    def _walk(self, topic: str) -> Iterator[_Node]:
        """Nodes whose filter matches the topic."""
        levels = topic.split("/")
        last = len(levels)
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            wildcards = depth > 0 or not topic.startswith("$")
            if wildcards and (rest := node.children.get("#")) is not None:
                yield rest
            if depth == last:
                yield node
                continue
            if wildcards and (single := node.children.get("+")) is not None:
                stack.append((single, depth + 1))
            child = node.children.get(levels[depth])
            if child is not None:
                stack.append((child, depth + 1))
