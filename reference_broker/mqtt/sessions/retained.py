"""Retained messages: the last one of each topic (MQTT 3.1.1 and 5.0, section 3.3.1.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto

from assay.reference_broker.routing.message import Message, memory_bytes, text_bytes


class _Siblings(Enum):
    """Which of a level's siblings a walk visits."""

    NO = auto()
    ALL = auto()
    BUT_DOLLAR = auto()
    """Wildcards at the first level do not reach topics that start with ``$`` (4.7.2-1)."""


LEVEL_BYTES = 448
"""What a level of topics takes beside its name."""


class _Level:
    """A topic level. Siblings form a list in order of arrival, so that a walk may stop anywhere and go on later.

    A level that was removed keeps ``next``: a walk that stopped there comes back to the levels that are left.
    """

    __slots__ = ("arrived", "children", "first", "last", "message", "name", "next", "number", "previous")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        """Levels and messages are numbered as they come."""
        self.arrived = 0
        """Number of its message: that with which the topic got one, which those that replace it take over."""
        self.message: Message | None = None
        self.children: dict[str, _Level] | None = None
        self.first: _Level | None = None
        self.last: _Level | None = None
        self.next: _Level | None = None
        self.previous: _Level | None = None

    def add(self, name: str, number: int) -> _Level:
        """A new child, the last one."""
        child = _Level(name, number)
        if self.children is None:
            self.children = {}
        self.children[name] = child
        if self.last is None:
            self.first = child
        else:
            self.last.next, child.previous = child, self.last
        self.last = child
        return child

    def remove(self, child: _Level) -> None:
        assert self.children is not None
        del self.children[child.name]
        if not self.children:
            self.children = None
        before, behind = child.previous, child.next
        if before is None:
            self.first = behind
        else:
            before.next = behind
        if behind is None:
            self.last = before
        else:
            behind.previous = before
        child.previous = None


class RetainedStore:
    """A tree of topic levels; matching a filter visits only the branches that can match."""

    def __init__(self, max_messages: int, max_bytes: int = 1 << 62, clock: Callable[[], float] = float) -> None:
        """``clock`` tells what has expired when it is replaced; by default nothing has."""
        self._root = _Level("", 0)
        self.newest = 0
        """The last number that a level or message got."""
        self._clock = clock
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._count = 0
        self.held_bytes = 0
        """What the messages and the levels of their topics take in memory."""
        self.on_absent: Callable[[str], None] | None = None
        """Told where nothing was there to delete."""
        self.on_change: Callable[[str], None] | None = None
        """Called with the topic whose message was replaced or removed."""

    def __len__(self) -> int:
        return self._count

    def store(self, message: Message) -> bool:
        """Keep a message, replacing the topic's last; an empty payload removes it. False: the store is full.

        In the place of one that had expired it is new: who subscribed before has it as it comes.
        """
        if not message.payload:
            self.delete(message.topic)
            return True
        level = self._root
        names = message.topic.split("/")
        known = 0
        for name in names:
            children = level.children
            if children is None or name not in children:
                break
            level = children[name]
            known += 1
        size = message.memory_bytes or memory_bytes(message)
        if known == len(names) and (last := level.message) is not None:
            if 0 < last.expires_at <= self._clock():
                self.delete(message.topic)
                return self.store(message)
            size -= last.memory_bytes or memory_bytes(last)
            if self.held_bytes + (size if size > 0 else 0) > self._max_bytes:
                return False
        else:
            missing = names[known:]
            size += sum([LEVEL_BYTES + text_bytes(name) for name in missing])
            if self._count >= self._max_messages or self.held_bytes + size > self._max_bytes:
                return False
            for name in missing:
                self.newest += 1
                level = level.add(name, self.newest)
            self.newest += 1
            level.arrived = self.newest
            self._count += 1
        self.held_bytes += size
        level.message = message
        if self.on_change is not None:
            self.on_change(message.topic)
        return True

    def get(self, topic: str) -> Message | None:
        """The message of a topic, expired or not; None when there is none."""
        path = self._path(topic)
        return path[-1].message if path else None

    def numbered(self, topic: str) -> tuple[Message | None, int]:
        """As :meth:`get`, with the number of the message."""
        path = self._path(topic)
        return (path[-1].message, path[-1].arrived) if path else (None, 0)

    def _path(self, topic: str) -> list[_Level]:
        """From the root to the topic's level; empty when there is none."""
        level = self._root
        path = [level]
        for name in topic.split("/"):
            child = level.children.get(name) if level.children is not None else None
            if child is None:
                return []
            path.append(level := child)
        return path

    def delete(self, topic: str) -> None:
        """Forget what is retained on a topic, if anything is, and levels that nothing else needs."""
        path = self._path(topic)
        message = path[-1].message if path else None
        if message is None and self.on_absent is not None:
            self.on_absent(topic)
        if not path:
            return
        if message is not None:
            self.held_bytes -= memory_bytes(message)
            path[-1].message = None
            self._count -= 1
            if self.on_change is not None:
                self.on_change(topic)
        for parent, child in zip(path[-2::-1], path[:0:-1], strict=True):
            if child.children is not None or child.message is not None:
                break
            parent.remove(child)
            self.held_bytes -= LEVEL_BYTES + text_bytes(child.name)

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """Unexpired messages that a filter matches, in order of their topics' arrival."""
        return (message for message in self.walk(topic_filter, lambda: now, self.newest) if message is not None)

    def walk(self, topic_filter: str, clock: Callable[[], float], newest: int) -> Iterator[Message | None]:
        """As :meth:`match`, step by step: None where a step finds no message. ``clock`` tells what has expired by then.

        Before and between steps the store may change: whatever was there when it had come to ``newest`` and still is
        is found, each topic once, with the message that it has when its turn comes. Topics that came later are not.
        """
        levels = topic_filter.split("/")
        stack: list[tuple[_Level, int, _Siblings]] = [(self._root, 0, _Siblings.NO)]
        """Levels to visit, with how much of the filter they have used up, and whether their siblings are to follow."""
        while stack:
            level, depth, siblings = stack.pop()
            if siblings is not _Siblings.NO and level.next is not None and level.next.number <= newest:
                stack.append((level.next, depth, siblings))
            follow = _Siblings.ALL if level is not self._root else _Siblings.BUT_DOLLAR
            found: Message | None = None
            if siblings is _Siblings.BUT_DOLLAR and level.name[:1] == "$":
                pass
            elif depth == len(levels):
                found = level.message
            elif levels[depth] in ("#", "+"):
                is_rest = levels[depth] == "#"
                if is_rest:
                    found = level.message
                if level.first is not None and level.first.number <= newest:
                    stack.append((level.first, depth if is_rest else depth + 1, follow))
            elif level.children is not None and (child := level.children.get(levels[depth])) is not None:
                stack.append((child, depth + 1, _Siblings.NO))
            if level.arrived > newest:
                found = None
            if found is not None and found.expires_at and found.expires_at <= clock():
                self.delete(found.topic)
                found = None
            yield found
