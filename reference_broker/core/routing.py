"""Who gets a message: the subscription tree, and a cache from topic to route.

The tree holds one node a filter level. A route is the answer for one topic: the subscribers with their options merged
(one copy each, at the highest granted QoS, with all identifiers: MQTT 3.1.1 3.3.5-1, 5.0 3.3.4-2 to -4), and the
shared groups. A cached route outlives changes of filters that do not match its topic (see ``filter_changes``).
"""

from __future__ import annotations

import msgspec

from assay.reference_broker.core.clients import Subscriber
from assay.reference_broker.core.filter_changes import FilterChanges
from assay.reference_broker.routing.filter_tree import FilterTree
from assay.reference_broker.routing.message import text_bytes

MAX_CACHED_ROUTES = 65_536
MAX_CACHED_ROUTE_BYTES = 64 * 1024 * 1024
_ROUTE_BYTES = 256
"""What a cached route takes beside its topic and its receivers."""
_RECEIVER_BYTES = 16
MAX_RECEIVERS = 1_024
_SUBSCRIPTION_BYTES = 1_024
_NODE_BYTES = 512


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription of a client, as granted."""

    topic_filter: str
    """Without the ``$share`` prefix."""
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0
    """Subscription Identifier; 0 = none."""
    share_name: str | None = None


def subscription_bytes(topic_filter: str, asked: tuple[tuple[str, str], ...] = ()) -> int:
    """What a subscription takes in memory, at most: its filter as the client wrote it, the nodes of its levels, and
    what a consumer of a queue asked for."""
    size = _SUBSCRIPTION_BYTES + 3 * text_bytes(topic_filter) + _NODE_BYTES * (topic_filter.count("/") + 1)
    for name, value in asked:
        size += _SUBSCRIPTION_BYTES // 4 + text_bytes(name) + text_bytes(value)
    return size


class RouteEntry:
    """A subscriber of one topic, its overlapping subscriptions merged. Routes share entries: they never change."""

    __slots__ = ("_other", "_own_differs", "identifiers", "qos", "retain_as_published", "subscriber", "subscriptions")

    def __init__(self, subscriber: Subscriber, subscriptions: list[Subscription]) -> None:
        self.subscriber = subscriber
        self.subscriptions = subscriptions
        self._own_differs = False
        self._other: RouteEntry | None = None
        if len(subscriptions) == 1:
            (only,) = subscriptions
            self.qos = only.qos
            self.retain_as_published = only.retain_as_published
            self.identifiers: tuple[int, ...] = (only.identifier,) if only.identifier else ()
            self._own_differs = only.no_local
            return
        self.qos = max(subscription.qos for subscription in subscriptions)
        self.retain_as_published = any(subscription.retain_as_published for subscription in subscriptions)
        self.identifiers = tuple(subscription.identifier for subscription in subscriptions if subscription.identifier)
        foreign = [subscription for subscription in subscriptions if not subscription.no_local]
        if len(foreign) < len(subscriptions):
            self.own = RouteEntry(subscriber, foreign) if foreign else None

    @property
    def own(self) -> RouteEntry | None:
        """What holds for its own publishes: No Local subscriptions do not count; None = nothing is left."""
        # No reference to itself: that would keep the subscriber alive until the garbage collector comes by.
        return self._other if self._own_differs else self

    @own.setter
    def own(self, entry: RouteEntry | None) -> None:
        self._own_differs = True
        self._other = entry


class SharedGroup:
    """Members of one shared subscription; each message goes to one of them, in turn."""

    __slots__ = ("_ordered", "_turn", "members", "share")

    def __init__(self, share: str) -> None:
        self.share = share
        """The whole filter."""
        self.members: dict[Subscriber, Subscription] = {}
        self._ordered: list[tuple[Subscriber, Subscription]] = []
        """The members, as long as none comes or goes."""
        self._turn = 0

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A member comes, or subscribes anew."""
        self.members[subscriber] = subscription
        self._ordered = []

    def remove(self, subscriber: Subscriber) -> None:
        """A member leaves; others are ignored."""
        self.members.pop(subscriber, None)
        self._ordered = []

    @property
    def is_served(self) -> bool:
        """There is a member; those whose subscriber has ended may still be listed."""
        return not all(subscriber.ended for subscriber in self.members)

    def choose(self) -> tuple[Subscriber, Subscription] | None:
        """The next member: connected with room first, then any connected whose queue has room, then any that keeps
        its subscriber, with room in its queue and a QoS that lets the message wait there, then any connected.
        """
        members = self._ordered
        if not members:
            members = self._ordered = list(self.members.items())
            if not members:
                return None
        turn = self._turn = (self._turn + 1) % len(members)
        if members[turn][0].has_room:
            return members[turn]
        best: tuple[Subscriber, Subscription] | None = None
        best_rank = 5
        for at in range(turn, turn + len(members)):
            member = members[at % len(members)]
            subscriber, subscription = member
            if subscriber.has_room:
                return member
            if subscriber.connection is not None:
                rank = 1 if subscriber.can_wait else 3
            elif subscriber.ended:
                continue
            else:
                rank = 2 if subscription.qos and subscriber.can_wait else 4
            if rank < best_rank:
                best, best_rank = member, rank
        return best


class Route:
    """Receivers of one topic. The lists are shared by topics that match the same filters."""

    __slots__ = ("entries", "groups", "known_right_at", "work")

    def __init__(self, entries: list[RouteEntry], groups: list[SharedGroup], work: int = 0) -> None:
        self.entries = entries
        self.groups = groups
        self.known_right_at = 0
        """How many changes of filters with wildcards the tree had seen when this was last known to be right."""
        self.work = work
        """What a message for them takes; see :attr:`Broker.work`."""


class RouteNode:
    __slots__ = ("children", "entries", "groups", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, RouteNode] = {}
        self.subscribers: dict[Subscriber, Subscription] = {}
        self.entries: dict[Subscriber, RouteEntry] | None = None
        """Of ``subscribers``, each for itself; made when a topic first matches."""
        self.groups: dict[str, SharedGroup] = {}

    @property
    def empty(self) -> bool:
        return not (self.children or self.subscribers or self.groups)

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        if subscription.share_name is not None:
            group = self.groups.get(subscription.share_name)
            if group is None:
                share = f"$share/{subscription.share_name}/{subscription.topic_filter}"
                group = self.groups[subscription.share_name] = SharedGroup(share)
            group.add(subscriber, subscription)
            return
        self.subscribers[subscriber] = subscription
        if self.entries is not None:
            self.entries[subscriber] = RouteEntry(subscriber, [subscription])

    def remove(self, subscriber: Subscriber, share_name: str | None) -> None:
        if share_name is None:
            self.subscribers.pop(subscriber, None)
            if self.entries is not None:
                self.entries.pop(subscriber, None)
            return
        group = self.groups.get(share_name)
        if group is not None:
            group.remove(subscriber)
            if not group.members:
                del self.groups[share_name]

    def all_entries(self) -> dict[Subscriber, RouteEntry]:
        entries = self.entries
        if entries is None:
            entries = self.entries = {
                each: RouteEntry(each, [subscription]) for each, subscription in self.subscribers.items()
            }
        return entries


class SubscriptionTree(FilterTree[RouteNode]):
    """All subscriptions of the broker."""

    def __init__(self) -> None:
        self._root = RouteNode()
        self._routes: dict[str, Route] = {}
        self._receivers: dict[tuple[RouteNode, ...], tuple[list[RouteEntry], list[SharedGroup], int]] = {}
        """By the nodes that match: topics that match the same filters share these lists. Until the next change."""
        self._named: dict[str, int] = {}
        """How many nodes there are for a level, wherever it stands."""
        self._changes = FilterChanges()
        self.route_bytes = 0
        """What the cached routes take in memory, at most."""
        self.epoch = 0
        """Changes whenever a remembered plan may have become wrong."""
        self.sessions_epoch = 0
        """Changes when a plan may have become wrong although its route is the same: a client came, went or changed."""

    def invalidate_plans(self) -> None:
        """A subscriber connected, disconnected or changed: plans are stale, routes are not."""
        self.epoch += 1
        self.sessions_epoch += 1

    def add(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """Add or replace the subscriber's subscription to this filter (and share name)."""
        node = self._root
        levels = subscription.topic_filter.split("/")
        for level in levels:
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = RouteNode()
                self._named[level] = self._named.get(level, 0) + 1
            node = child
        node.add(subscriber, subscription)
        self._note_change(subscription.topic_filter, levels)

    def remove(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """Remove a subscription; unknown ones are ignored."""
        path: list[tuple[RouteNode, str]] = []
        node = self._root
        levels = subscription.topic_filter.split("/")
        for level in levels:
            path.append((node, level))
            child = node.children.get(level)
            if child is None:
                return
            node = child
        node.remove(subscriber, subscription.share_name)
        for parent, level in reversed(path):
            if not parent.children[level].empty:
                break
            del parent.children[level]
            self._named[level] -= 1
            if not self._named[level]:
                del self._named[level]
        self._note_change(subscription.topic_filter, levels)

    def shared_group(self, share: str) -> SharedGroup | None:
        """The members of a shared subscription, by its whole filter; None when there are none."""
        _, name, topic_filter = share.split("/", 2)
        node = self._root
        for level in topic_filter.split("/"):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.groups.get(name)

    def _note_change(self, topic_filter: str, levels: list[str]) -> None:
        self.epoch += 1
        self._receivers.clear()
        if not self._routes:
            return
        if "+" in topic_filter or "#" in topic_filter:
            if self._changes.note(topic_filter, levels) or not self._root.children:
                # Routes hold sessions: what nobody asks for again must not keep them for ever.
                self._forget_routes()
        else:
            self._routes.pop(topic_filter, None)

    def names(self, level: str) -> bool:
        """Whether some filter has this level, wherever; topics that differ only in levels that none has go one way."""
        return level in self._named

    def route(self, topic: str) -> Route:
        """Receivers of a topic name; the answer is cached until a subscription that could change it changes."""
        changes = self._changes
        route = self._routes.get(topic)
        if route is not None:
            if route.known_right_at == changes.count:
                return route
            concerns = changes.concern(topic, route.known_right_at)
            self.walked += changes.compared >> 1
            if not concerns:
                route.known_right_at = changes.count
                return route
        if self.route_bytes >= MAX_CACHED_ROUTE_BYTES or (route is None and len(self._routes) >= MAX_CACHED_ROUTES):
            self._forget_routes()
        route = self._routes[topic] = self.match(topic)
        route.known_right_at = changes.count
        self.route_bytes += _ROUTE_BYTES + text_bytes(topic)
        return route

    def take_cost(self) -> int:
        """What it took lately to find out who gets topics; see :attr:`Broker.work`."""
        cost, self.walked = self.walked >> 5, 0
        return cost

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._receivers.clear()
        self.route_bytes = 0

    def match(self, topic: str) -> Route:
        """The route of a topic that is not remembered."""
        matching = tuple(self.walk(topic))
        receivers = self._receivers.get(matching)
        if receivers is None:
            if len(self._receivers) >= MAX_RECEIVERS:
                self._receivers.clear()
            receivers = self._receivers[matching] = receivers_of(matching)
            self.route_bytes += _RECEIVER_BYTES * (len(receivers[0]) + len(receivers[1]))
        return Route(*receivers)


def receivers_of(nodes: tuple[RouteNode, ...]) -> tuple[list[RouteEntry], list[SharedGroup], int]:
    found: dict[Subscriber, RouteEntry] = {}
    overlapping: dict[Subscriber, list[Subscription]] = {}
    groups: list[SharedGroup] = []
    for node in nodes:
        if node.subscribers:
            entries = node.entries or node.all_entries()
            if found and not found.keys().isdisjoint(entries):
                for subscriber in found.keys() & entries.keys():
                    # One entry is made of all there are: of each two of them, it would take the square of the time.
                    subscriptions = overlapping.get(subscriber)
                    if subscriptions is None:
                        subscriptions = overlapping[subscriber] = [*found[subscriber].subscriptions]
                    subscriptions += entries[subscriber].subscriptions
            found.update(entries)
        if node.groups:
            groups.extend(node.groups.values())
    for subscriber, subscriptions in overlapping.items():
        found[subscriber] = RouteEntry(subscriber, subscriptions)
    identifiers = sum([len(entry.identifiers) for entry in found.values()])
    return list(found.values()), groups, (len(found) >> 2) + (identifiers >> 5)
