"""What the clients of a case have published and asked for, and what came of it, as far as that can be told.

This decides nothing: where a case fails, it says what else went wrong there, so that the failure can be booked on it
(:mod:`assay.conformance.booking`). What comes on topics of other cases is not looked at.
"""

from __future__ import annotations

from collections import Counter

from assay.conformance.explore.topics import SHARE, matches, pattern
from assay.conformance.rules import Incident, Rule, shape
from assay.conformance.wire import Publish, Subscribe, Will, describe

_Key = tuple[str, int]
"""A message: its topic, and the hash of its payload."""


def has_wildcard(topic_filter: str) -> bool:
    """It matches more topics than one, or is shared."""
    return not {"+", "#", "$share", "$queue"}.isdisjoint(topic_filter.split("/"))


def may_match_others(topic_filter: str) -> bool:
    """It may match topics of other cases."""
    levels = topic_filter.split("/")
    if levels[0] == "$share":
        levels = levels[2:]
    return not {"+", "#"}.isdisjoint(levels[:2])


class Flow:
    """The messages of one case. Clients go by their identifiers, connections by any hashable."""

    def __init__(self) -> None:
        self._filters: dict[str, Counter[str]] = {}
        """How often each client has subscribed to what."""
        self._sent: Counter[_Key] = Counter()
        self._wills: Counter[_Key] = Counter()
        """How often each may be published as a will."""
        self._retained: set[_Key] = set()
        self._newest: dict[str, tuple[_Key, Publish]] = {}
        """What must be retained on each topic."""
        self._due: Counter[tuple[str, _Key]] = Counter()
        """The most copies of each message that a client may get over one connection, wills apart."""
        self._got: Counter[tuple[object, _Key]] = Counter()
        self._reached: Counter[tuple[str, _Key]] = Counter()
        self._wanted: Counter[tuple[str, _Key]] = Counter()
        """Who should get which message how often, by what was subscribed to when it was published."""
        self._packets: dict[_Key, Publish] = {}
        self._lines: dict[_Key, tuple[str, int, int]] = {}
        """Who published a message at which QoS, and after how many others; of one that was published once."""
        self._last: dict[tuple[object, ...], int] = {}
        """Of each line of messages that must come in order, the latest that came."""
        self._changed = self._copied = self.disorder = ""

    def filters_of(self, client_id: str) -> set[str]:
        """All that a client has ever subscribed to."""
        return set(self._filters.get(client_id, ()))

    def all_filters(self) -> set[str]:
        """What any client has subscribed to."""
        return {name for filters in self._filters.values() for name in filters}

    def asked(self, client_id: str, packet: Publish) -> bool:
        """Whether a client has ever subscribed to the topic of a message; one without an identifier may have."""
        return not client_id or any(matches(pattern(name), packet.topic) for name in self.filters_of(client_id))

    def subscribes(self, client_id: str, packet: Subscribe) -> None:
        """A client asks for more; each time it may get what is retained."""
        filters = self._filters.setdefault(client_id, Counter())
        for entry in packet.subscriptions:
            filters[entry.filter] += 1
            for key in self._retained:
                self._due[client_id, key] += matches(entry.filter, key[0])
            for key, newest in self._newest.values():
                if entry.retain_handling == 0 and matches(entry.filter, key[0]):
                    self._wants(client_id, key, newest)

    def publishes(self, packet: Publish, topic: str, times: int = 1, publisher: str = "") -> None:
        """A client publishes; ``topic``: where an alias stands for it."""
        key = self._note(topic, packet.payload, is_retained=packet.retain, times=times)
        self._lines[key] = publisher, packet.qos, len(self._lines)
        for client_id, filters in self._filters.items():
            matching = [name for name in filters if matches(pattern(name), topic)]
            self._due[client_id, key] += times * len(matching)  # a copy for each of several that overlap is allowed
            if any(not name.startswith(SHARE) for name in matching):
                self._wants(client_id, key, packet, times)
        if packet.retain:
            self._newest.pop(topic, None)
            if packet.payload:
                self._newest[topic] = key, packet

    def _wants(self, client_id: str, key: _Key, packet: Publish, times: int = 1) -> None:
        self._wanted[client_id, key] += times
        self._packets[key] = packet

    def leaves_will(self, will: Will) -> None:
        """A client connects with a will, which may be published once."""
        self._wills[self._note(will.topic, will.payload, is_retained=will.retain)] += 1

    def _note(self, topic: str, payload: bytes, *, is_retained: bool, times: int = 1) -> _Key:
        key = (topic, hash(payload))
        self._sent[key] += times
        if is_retained:
            self._retained.add(key)
        return key

    def arrives(self, name: str, connection: object, client_id: str, packet: Publish) -> None:
        """A client gets a message on a topic of this case."""
        key = (packet.topic, hash(packet.payload))
        if not self._sent[key]:
            # Not counted either: a broker may invent any number of them.
            self._changed = self._changed or f"{name}: nobody published {describe(packet)}"
            return
        self._reached[client_id, key] += 1
        self._order(name, connection, client_id, packet)
        by_will = self._wills[key] * sum(matches(pattern(asked), key[0]) for asked in self.filters_of(client_id))
        most = self._due[client_id, key] + by_will
        if packet.dup or not most:
            return
        self._got[connection, key] += 1
        if self._got[connection, key] > most:
            times = self._sent[key]
            self._copied = self._copied or f"{name}: {describe(packet)} came again, and was published {times} time(s)"

    def _order(self, name: str, connection: object, client_id: str, packet: Publish) -> None:
        """Messages of one client, topic and QoS come in the order of their publication, where one subscription asks."""
        key = (packet.topic, hash(packet.payload))
        asked = [name for name in self.filters_of(client_id) if matches(pattern(name), packet.topic)]
        if packet.dup or packet.retain or self._sent[key] > 1 or len(asked) != 1 or asked[0].startswith(SHARE):
            return
        publisher, qos, place = self._lines.get(key, ("", 0, -1))
        line = (connection, packet.topic, publisher, qos, packet.qos)
        if place < self._last.get(line, place):
            self.disorder = self.disorder or f"{name}: {describe(packet)} came behind one that was published later"
        else:
            self._last[line] = place

    def misses_an_earlier_one(self) -> bool:
        """Whether a client has a message, and not yet one that was published before it."""
        newest: dict[tuple[object, ...], int] = {}
        for (client_id, key), times in self._reached.items():
            if times and key in self._lines:
                publisher, qos, place = self._lines[key]
                line = (client_id, key[0], publisher, qos)
                newest[line] = max(place, newest.get(line, place))
        for (client_id, key), times in self._wanted.items():
            if self._reached[client_id, key] < times and key in self._lines:
                publisher, qos, place = self._lines[key]
                if place < newest.get((client_id, key[0], publisher, qos), place):
                    return True
        return False

    def reasons(self) -> list[Incident]:
        """Why a case that fails may have failed: messages that were changed, came too often, in another order, or did
        not come."""
        found = []
        if self.disorder:
            found.append(Incident(rule=Rule.ORDER, text=self.disorder, soft=True))
        if self._changed:
            found.append(Incident(rule=Rule.CONTENT, text=self._changed, soft=True))
        if self._copied:
            found.append(Incident(rule=Rule.COPIES, text=self._copied, soft=True))
        missing = (wanted for wanted, times in self._wanted.items() if self._reached[wanted] < times)
        for client_id, key in missing:
            packet = self._packets[key]
            text = f"client {client_id} never got {describe(packet)}"
            return [*found, Incident(rule=Rule.DELIVERY, shape=shape(packet), text=text, soft=True)]
        return found
