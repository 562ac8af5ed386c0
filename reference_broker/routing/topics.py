"""Topic names and filters: validity and matching (MQTT 3.1.1 and 5.0 section 4.7; sharing: 5.0 section 4.8.2)."""

from __future__ import annotations

SHARE_PREFIX = "$share/"
MAX_TOPIC_BYTES = 65_535


class TopicError(ValueError):
    """A topic name or filter breaks a rule."""

    def __init__(self, text: str, statement: str, in_311: str = "") -> None:
        """``statement``: id of the rule, the same in both versions unless ``in_311`` is another."""
        super().__init__(text)
        self.statement = statement
        self.statement_311 = in_311 or statement


class TooManyLevelsError(TopicError):
    """A topic name or filter breaks no rule, but is over a limit of this broker."""


def validate_topic(topic: str, *, max_levels: int = 128) -> None:
    """Check a topic name. Raises :class:`TopicError`."""
    if not topic:
        raise TopicError("a topic name must have at least one character", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise TopicError("a topic name must not contain wildcard characters", "MQTT-3.3.2-2")
    if topic.count("/") >= max_levels:
        raise TooManyLevelsError(f"a topic name may have at most {max_levels} levels here", "MQTT-4.7.3-3")


def validate_filter(topic_filter: str, *, max_levels: int = 128) -> None:
    """Check a topic filter (without ``$share``). Raises :class:`TopicError`."""
    if not topic_filter:
        raise TopicError("a topic filter must have at least one character", "MQTT-4.7.3-1")
    levels = topic_filter.split("/")
    if "#" in topic_filter and ("#" in topic_filter[:-1] or levels[-1] != "#"):
        raise TopicError("'#' must be the whole last level of a filter", "MQTT-4.7.1-1", "MQTT-4.7.1-2")
    if topic_filter.count("+") > levels.count("+"):
        raise TopicError("'+' must be a whole level of a filter", "MQTT-4.7.1-2", "MQTT-4.7.1-3")
    if len(levels) > max_levels:
        raise TooManyLevelsError(f"a topic filter may have at most {max_levels} levels here", "MQTT-4.7.3-3")


def has_wildcard(topic_filter: str) -> bool:
    return "+" in topic_filter or "#" in topic_filter


def is_sys_topic(topic: str) -> bool:
    """Whether a topic name or filter is within ``$SYS``, where only the broker publishes."""
    return topic.startswith("$SYS/") or topic == "$SYS"


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """``$share/<name>/<filter>`` -> (name, filter); any other filter -> (None, filter). Raises :class:`TopicError`."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    name, separator, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not name or "+" in name or "#" in name:
        raise TopicError("a share name needs at least one character and no wildcard", "MQTT-4.8.2-1")
    if not separator or not rest:
        raise TopicError("a share name must be followed by '/' and a topic filter", "MQTT-4.8.2-2")
    return name, rest


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a valid filter matches a valid topic name. A leading wildcard never matches a leading ``$``."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    filter_levels = topic_filter.split("/")
    topic_levels = topic.split("/")
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index >= len(topic_levels) or (level != "+" and level != topic_levels[index]):
            return False
    return len(filter_levels) == len(topic_levels)
