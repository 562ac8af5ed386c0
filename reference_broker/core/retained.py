"""Retained messages: the last one of each topic (MQTT 3.1.1 and 5.0, section 3.3.1.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reference_broker.core.message import Message
from reference_broker.core.topics import has_wildcard


class _Level:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = {}
        self.message: Message | None = None


class RetainedStore:
    """A tree of topic levels; matching a filter visits only the branches that can match."""

    def __init__(self, max_messages: int) -> None:
        self._root = _Level()
        self._max_messages = max_messages
        self._count = 0
        self.on_change: Callable[[str], None] | None = None
        """Called with the topic whose message was replaced or removed."""

    def __len__(self) -> int:
        return self._count

    def store(self, message: Message) -> bool:
        """Keep a message, replacing the topic's last; an empty payload removes it. False: the store is full."""
        if not message.payload:
            self._remove(message.topic)
            return True
        level = self._root
        for name in message.topic.split("/"):
            child = level.children.get(name)
            if child is None:
                if self._count >= self._max_messages:
                    return False
                child = level.children[name] = _Level()
            level = child
        if level.message is None:
            if self._count >= self._max_messages:
                return False
            self._count += 1
        level.message = message
        if self.on_change is not None:
            self.on_change(message.topic)
        return True

    def get(self, topic: str) -> Message | None:
        """The message of a topic, expired or not; None when there is none."""
        level = self._root
        for name in topic.split("/"):
            child = level.children.get(name)
            if child is None:
                return None
            level = child
        return level.message

    def _remove(self, topic: str) -> None:
        path: list[tuple[_Level, str]] = []
        level = self._root
        for name in topic.split("/"):
            path.append((level, name))
            child = level.children.get(name)
            if child is None:
                return
            level = child
        if level.message is not None:
            level.message = None
            self._count -= 1
            if self.on_change is not None:
                self.on_change(topic)
        for parent, name in reversed(path):
            child = parent.children[name]
            if child.children or child.message is not None:
                break
            del parent.children[name]

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """Unexpired messages that a filter matches, in order of their topics' arrival."""
        expired = []
        for message in self._find(topic_filter):
            if message.expires_at and message.expires_at <= now:
                expired.append(message.topic)
            else:
                yield message
        for topic in expired:
            self._remove(topic)

    def _find(self, topic_filter: str) -> list[Message]:
        levels = topic_filter.split("/")
        found: list[Message] = []
        if not has_wildcard(topic_filter):
            level: _Level | None = self._root
            for name in levels:
                level = level.children.get(name) if level is not None else None
            if level is not None and level.message is not None:
                found.append(level.message)
            return found
        stack: list[tuple[_Level, int]] = [(self._root, 0)]
        while stack:
            level, depth = stack.pop()
            if depth == len(levels):
                if level.message is not None:
                    found.append(level.message)
                continue
            name = levels[depth]
            if name == "#" and level.message is not None:
                found.append(level.message)
            if name in ("+", "#"):
                following = depth if name == "#" else depth + 1
                stack.extend(
                    (child, following)
                    for key, child in reversed(level.children.items())
                    if level is not self._root or not key.startswith("$")
                )
            elif name in level.children:
                stack.append((level.children[name], depth + 1))
        return found
