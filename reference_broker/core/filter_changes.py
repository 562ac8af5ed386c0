"""Which filters with wildcards came or went lately: what a cached answer for a topic must be held against.

Each filter is filed under one of its exact levels, the one with the fewest others under it, so that a topic finds the
changes that may concern it by looking up its own levels, however many changes there were.
"""

from __future__ import annotations

MAX_FILTERS = 1_024
"""Filters remembered; then all are forgotten, and what is older than that has to be found out anew."""
_ANYWHERE = (-1, "")
"""Where filters without an exact level are filed."""


class FilterChanges:
    """``count`` changes so far; each is known by its number."""

    def __init__(self) -> None:
        self.count = 0
        self.compared = 0
        """Levels of changes that were held against the last topic, at most."""
        self._forgotten = 0
        self._filed: dict[tuple[int, str], dict[str, tuple[int, list[str]]]] = {}
        """By index and text of a level: filter -> number of its latest change, and its levels."""
        self._places: dict[str, tuple[int, str]] = {}
        """Where each filter is filed."""

    def note(self, topic_filter: str, levels: list[str]) -> bool:
        """A filter with wildcards, and the same by level, came or went. True: all that is older is to be found out
        anew, since there were too many of them.
        """
        self.count += 1
        filed = self._filed
        place = self._places.get(topic_filter)
        if place is None:
            if len(self._places) >= MAX_FILTERS:
                filed.clear()
                self._places.clear()
                self._forgotten = self.count
                return True
            fewest = MAX_FILTERS
            place = _ANYWHERE
            for candidate in enumerate(levels):
                if candidate[1] != "+" and candidate[1] != "#":
                    there = filed.get(candidate)
                    if there is None:
                        place = candidate
                        break
                    if len(there) < fewest:
                        place, fewest = candidate, len(there)
            self._places[topic_filter] = place
        filed.setdefault(place, {})[topic_filter] = (self.count, levels)
        return False

    def concern(self, topic: str, since: int) -> bool:
        """Whether a change after number ``since`` may have changed who gets the topic."""
        self.compared = 0
        if since < self._forgotten:
            return True
        levels = topic.split("/")
        filed = self._filed
        for place in (_ANYWHERE, *enumerate(levels)):
            if place not in filed:
                continue
            self.compared += len(filed[place]) * len(levels)
            for number, changed in filed[place].values():
                if number > since and may_match(changed, levels):
                    return True
        return False


def may_match(levels: list[str], topic_levels: list[str]) -> bool:
    """Whether a filter matches a topic, both by level; also True for ``$`` topics that a leading wildcard misses."""
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(topic_levels) or (level != "+" and level != topic_levels[index]):
            return False
    return len(levels) == len(topic_levels)
