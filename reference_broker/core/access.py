"""Access rules: which topics a client may publish to, and which filters it may subscribe to.

Rules have no order: what no rule allows is refused (unless the default says otherwise), and what a ``deny`` rule names
is refused whatever else allows it. A filter is allowed when one rule covers all of it and no denial overlaps it, so
nothing needs to be checked when messages are delivered. Wildcards of rules are those of MQTT: a leading one does not
reach topics that start with ``$``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from assay.reference_broker.config import AclConfig, AclRuleConfig, DefaultAccess, Permission
from assay.reference_broker.core.queue_rights import READING_VERBS, WRITING_VERBS
from assay.reference_broker.queues.messages.address import DEAD_LETTER_ALIAS, DEAD_LETTER_PREFIX, QUEUE_PREFIX
from assay.reference_broker.routing.remembered import remember

MAX_CACHED_DECISIONS = 256
"""Per client and kind; a client that asks about more topics starts anew."""
Levels = tuple[str, ...]
Rules = Callable[[str], tuple[AclRuleConfig, ...]]
_ADMIN_DEAD_LETTERS, _ADMIN_DEAD_LETTERS_ALIAS = "$admin/queue/$dlq/", "$admin/queue/dlq/"
_CLIENT, _USER = "%c", "%u"


def covers(rule: Levels, topic_filter: Levels) -> bool:
    """Whether every topic that matches ``topic_filter`` (a filter or a topic) also matches ``rule``."""
    if topic_filter[0].startswith("$") and rule[0] in ("+", "#"):
        return False
    if topic_filter == ("#",) and rule == ("+", "#"):
        return True
    for index, level in enumerate(rule):
        if level == "#":
            return True
        if index >= len(topic_filter) or topic_filter[index] == "#" or level not in ("+", topic_filter[index]):
            return False
    return len(rule) == len(topic_filter)


def overlap(first: Levels, second: Levels) -> bool:
    """Whether some topic matches both filters."""
    for one, other in ((first, second), (second, first)):
        if one[0].startswith("$") and other[0] in ("+", "#"):
            return False
    for index in range(max(len(first), len(second))):
        if first[index : index + 1] == ("#",) or second[index : index + 1] == ("#",):
            return True
        if index >= min(len(first), len(second)):
            return False
        if first[index] != second[index] and "+" not in (first[index], second[index]):
            return False
    return True


class _Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as compiled at start."""

    rule: AclRuleConfig
    levels: Levels
    personal: bool
    """It contains %c or %u."""


class Grants:
    """What one client may do, fixed when it connects. Decisions are remembered by topic."""

    __slots__ = ("_denied", "_everything_denied", "_open", "_publish", "_read", "_subscribe", "_write")

    def __init__(
        self, read: list[Levels], write: list[Levels], denied: list[Levels], *, everything_denied: bool, open_: bool
    ) -> None:
        self._read = read
        self._write = write
        self._denied = denied
        self._everything_denied = everything_denied
        self._open = open_
        self._publish: dict[str, bool] = {}
        self._subscribe: dict[str, bool] = {}

    def may_publish(self, topic: str) -> bool:
        """Whether a valid topic name may be published to. Settling a delivery needs the right to read the queue."""
        decision = self._publish.get(topic)
        if decision is None:
            decision = _remember(self._publish, topic, self._decide_publish(topic))
        return decision

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether a valid filter, without ``$share/<name>/``, reaches nothing that may not be read."""
        decision = self._subscribe.get(topic_filter)
        if decision is None:
            decision = _remember(self._subscribe, topic_filter, self._decide_read(topic_filter))
        return decision

    def may_administer(self, topic: str, *, read: bool) -> bool:
        """Whether a rule allows a topic, or with ``read`` a filter, of the broker's administration.

        Not remembered: such requests are rare. What the default allows does not count.
        """
        levels = _levels(topic)
        if self._everything_denied or any(overlap(denied, levels) for denied in self._denied):
            return False
        return any(covers(rule, levels) for rule in (self._read if read else self._write))

    def _decide_publish(self, topic: str) -> bool:
        if topic.startswith((QUEUE_PREFIX, DEAD_LETTER_PREFIX)):
            path, slash, last = topic.rpartition("/")
            if slash and last in READING_VERBS:
                return self._decide_read(path)
            if slash and last in WRITING_VERBS:
                topic = path
        levels = _levels(topic)
        return self._allows(self._write, levels, levels)

    def _decide_read(self, topic_filter: str) -> bool:
        levels = _levels(topic_filter)
        reach = levels
        if levels[0] in ("$queue", "$dlq") and levels[-1] != "#":
            # A queue's name alone stands for every routing key below it.
            reach = (*levels, "#")
        return self._allows(self._read, levels, reach)

    def _allows(self, rules: list[Levels], levels: Levels, reach: Levels) -> bool:
        if self._everything_denied or any(overlap(denied, reach) for denied in self._denied):
            return False
        return self._open or any(covers(rule, levels) for rule in rules)


class AccessControl:
    """The access rules of a broker. They never change: other rules are another object, and remember nothing.

    What was granted by earlier ones is asked again by
    :class:`assay.reference_broker.mqtt.sessions.access_review.AccessReview`.
    """

    def __init__(self, config: AclConfig, external: Rules | None = None) -> None:
        """``config`` is checked: its topics are valid filters once %c and %u are replaced. ``external``: further rules
        of a user, likewise."""
        self._open = config.default is DefaultAccess.ALLOW
        self._patterns = [_pattern(rule) for rule in config.rules]
        self._external = external

    def may_publish(self, username: str | None, client_id: str, topic: str) -> bool:
        """Whether a client that is not connected might publish to a topic now."""
        return self.grants(username, client_id).may_publish(topic)

    def grants(self, username: str | None, client_id: str) -> Grants:
        """The rights of a client; ``username`` is None unless it was verified."""
        read: list[Levels] = []
        write: list[Levels] = []
        denied: list[Levels] = []
        everything_denied = False
        patterns = self._patterns
        if self._external is not None and username is not None:
            patterns = patterns + [_pattern(rule) for rule in self._external(username)]
        for pattern in patterns:
            rule = pattern.rule
            if rule.user is not None and rule.user != (username or ""):
                continue
            if rule.client is not None and rule.client != client_id:
                continue
            levels: Levels | None = pattern.levels
            if pattern.personal:
                levels = _personal(pattern.levels, username, client_id)
            if rule.access is Permission.DENY:
                if levels is None:
                    levels = _before_placeholder(pattern.levels)
                    everything_denied = everything_denied or levels == ("#",)
                denied.append(levels)
            elif levels is not None:
                if rule.access is not Permission.WRITE:
                    read.append(levels)
                if rule.access is not Permission.READ:
                    write.append(levels)
        return Grants(read, write, denied, everything_denied=everything_denied, open_=self._open)


def _pattern(rule: AclRuleConfig) -> _Pattern:
    return _Pattern(rule=rule, levels=_levels(rule.topic), personal=_CLIENT in rule.topic or _USER in rule.topic)


def _levels(topic: str) -> Levels:
    """Levels of a topic, filter or rule; the two spellings of a dead-letter queue become one."""
    if topic.startswith(DEAD_LETTER_ALIAS):
        topic = DEAD_LETTER_PREFIX + topic[len(DEAD_LETTER_ALIAS) :]
    elif topic.startswith(_ADMIN_DEAD_LETTERS):
        topic = _ADMIN_DEAD_LETTERS_ALIAS + topic[len(_ADMIN_DEAD_LETTERS) :]
    return tuple(topic.split("/"))


def _personal(levels: Levels, username: str | None, client_id: str) -> Levels | None:
    """Put the names in; None when a name would change what the rule reaches."""
    values = {_CLIENT: client_id, _USER: username or ""}
    used = [value for placeholder, value in values.items() if any(placeholder in level for level in levels)]
    if any(not value or not set("+#/").isdisjoint(value) for value in used):
        return None
    filled = tuple(_fill(level, values) for level in levels)
    # A name must not turn an ordinary topic into one of the broker's own.
    return None if filled[0].startswith("$") and not levels[0].startswith("$") else filled


def _fill(level: str, values: dict[str, str]) -> str:
    """Replace the placeholders in one pass: a name that contains one stays as it is."""
    parts = level.split("%")
    filled = parts[0]
    for part in parts[1:]:
        value = values.get(f"%{part[:1]}")
        filled += f"%{part}" if value is None else value + part[1:]
    return filled


def _before_placeholder(levels: Levels) -> Levels:
    """What a denial is widened to when the name in it cannot be put in."""
    place = next(index for index, level in enumerate(levels) if _CLIENT in level or _USER in level)
    return (*levels[:place], "#")


def _remember(cache: dict[str, bool], topic: str, decision: bool) -> bool:
    return remember(cache, topic, decision, len(topic), MAX_CACHED_DECISIONS)
