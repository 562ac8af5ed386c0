"""Topic matching as the standards have it (4.7), for the model alone."""

from __future__ import annotations

SHARE = "$share/"


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter (without ``$share``) matches a topic name."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, part in enumerate(wanted):
        if part == "#":
            return True
        if index >= len(levels) or part not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def matches_but_for_dollar(topic_filter: str, topic: str) -> bool:
    """Whether a filter that begins with a wildcard would match if ``$`` were a character like others (4.7.2)."""
    return topic.startswith("$") and not matches(topic_filter, topic) and matches(topic_filter, "s" + topic[1:])


def is_shared(topic_filter: str) -> bool:
    return topic_filter.startswith(SHARE)


def pattern(topic_filter: str) -> str:
    """The filter that decides what matches: without ``$share/<name>/``."""
    return topic_filter.split("/", 2)[2] if is_shared(topic_filter) else topic_filter
