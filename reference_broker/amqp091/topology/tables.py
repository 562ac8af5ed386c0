"""Bindings of one exchange, by its type. A message costs by what it finds, not by how many bindings there are."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from assay.reference_broker.amqp091.topology.arguments import Arguments, comparable, first_fields, type_name
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination
from assay.reference_broker.amqp091.topology.refusals import precondition_failed
from assay.reference_broker.routing.properties import Kind, Typed

X_MATCH: Final = "x-match"
_MATCH_RULE: Final = "sec.3.1.3.4.headers-bad-xmatch"


class ExchangeKind(StrEnum):
    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class Table(Protocol):
    """The bindings of one exchange."""

    looks_at_key: bool
    looks_at_headers: bool

    def add(self, binding: Binding) -> None:
        """One that it does not have."""

    def remove(self, binding: Binding) -> None:
        """One that it has."""

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        """Where a message with these routing keys goes; each at least once."""


class _Ends:
    """Destinations, and how many bindings lead to each."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[Destination, int] = {}

    def add(self, destination: Destination) -> None:
        self.counts[destination] = self.counts.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        left = self.counts[destination] - 1
        if left:
            self.counts[destination] = left
        else:
            del self.counts[destination]


class FanoutTable:
    """All of them (sec.3.1.3.2.fanout)."""

    looks_at_key = False
    looks_at_headers = False

    def __init__(self) -> None:
        self._ends = _Ends()

    def add(self, binding: Binding) -> None:
        self._ends.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        self._ends.remove(binding.destination)

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        return self._ends.counts


class DirectTable:
    """Those with the key (queue.bind.routing-key.direct-exchange-key-matching)."""

    looks_at_key = True
    looks_at_headers = False

    def __init__(self) -> None:
        self._ends: dict[str, _Ends] = {}

    def add(self, binding: Binding) -> None:
        self._ends.setdefault(binding.routing_key, _Ends()).add(binding.destination)

    def remove(self, binding: Binding) -> None:
        ends = self._ends[binding.routing_key]
        ends.remove(binding.destination)
        if not ends.counts:
            del self._ends[binding.routing_key]

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        return [each for key in keys if (ends := self._ends.get(key)) is not None for each in ends.counts]


class _Node:
    """A word of topic patterns, after those above it."""

    __slots__ = ("children", "ends", "is_rest")

    def __init__(self, *, is_rest: bool) -> None:
        self.children: dict[str, _Node] = {}
        self.ends = _Ends()
        self.is_rest = is_rest
        """``#``: any number of words, none among them."""


def _words(key: str) -> list[str]:
    """No key, no word; ``a..b`` has an empty one in its middle."""
    return key.split(".") if key else []


class TopicTable:
    """Those whose pattern the key matches (sec.3.1.3.3.topic-match).

    Patterns share their first words. A key is followed through all of them at once, word by word, so that it costs by
    its words and by how many places in patterns it may be at, each counted once however many ways lead to it.
    """

    looks_at_key = True
    looks_at_headers = False

    def __init__(self) -> None:
        self.root = _Node(is_rest=False)
        self.steps = 0
        """Nodes that were visited."""

    def add(self, binding: Binding) -> None:
        node = self.root
        for word in _words(binding.routing_key):
            if node.is_rest and word == "#":
                # Twice any number of words is any number of words.
                continue
            below = node.children.get(word)
            if below is None:
                below = node.children[word] = _Node(is_rest=word == "#")
            node = below
        node.ends.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        node = self.root
        way: list[tuple[_Node, str]] = []
        for word in _words(binding.routing_key):
            if node.is_rest and word == "#":
                continue
            way.append((node, word))
            node = node.children[word]
        node.ends.remove(binding.destination)
        while way and not node.children and not node.ends.counts:
            node, word = way.pop()
            del node.children[word]

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        found: dict[Destination, int] = {}
        for key in keys:
            places = self._with_rests([self.root])
            for word in _words(key):
                places = self._with_rests(self.after(places, word))
            for node in places:
                found |= node.ends.counts
        return found

    def after(self, places: dict[_Node, None], word: str) -> Iterable[_Node]:
        """Places after one more word."""
        self.steps += len(places)
        for node in places:
            if node.is_rest:
                yield node
            if (any_word := node.children.get("*")) is not None:
                yield any_word
            if (exact := node.children.get(word)) is not None:
                yield exact

    @staticmethod
    def _with_rests(nodes: Iterable[_Node]) -> dict[_Node, None]:
        """Each once, with the ``#`` below it, which may be no word at all."""
        places: dict[_Node, None] = {}
        for node in nodes:
            places[node] = None
            if (rest := node.children.get("#")) is not None:
                places[rest] = None
        return places


class Match(StrEnum):
    """Which of the fields that a binding names a message must have, and whether those with ``x-`` count."""

    ALL = "all"
    ANY = "any"
    ALL_WITH_X = "all-with-x"
    ANY_WITH_X = "any-with-x"


def match_of(fields: dict[str, Typed]) -> Match:
    """What ``x-match`` says. Raises :class:`AmqpError` for what it may not be."""
    given = fields.get(X_MATCH)
    if given is None:
        return Match.ALL
    if given.kind is not Kind.TEXT:
        text = f"Invalid x-match field type {type_name(given)} (value {str(given.value)[:40]}); expected longstr"
        raise precondition_failed(text, _MATCH_RULE)
    try:
        return Match(given.value)
    except ValueError:
        text = f"Invalid x-match field value {given.value[:40]}; expected all, any, all-with-x, or any-with-x"
        raise precondition_failed(text, _MATCH_RULE) from None


_Want = tuple[str, Hashable]
"""A field and its value, comparable; None = whatever it is (sec.3.1.3.4.headers-void)."""


class Pattern:
    """What a binding to an exchange of headers asks for. Raises :class:`AmqpError` when that is not understood."""

    __slots__ = ("is_any", "wants")

    def __init__(self, arguments: Arguments) -> None:
        fields = first_fields(arguments)
        match = match_of(fields)
        self.is_any = match in (Match.ANY, Match.ANY_WITH_X)
        with_x = match in (Match.ALL_WITH_X, Match.ANY_WITH_X)
        self.wants: tuple[_Want, ...] = tuple(
            [
                (name, None if value.kind is Kind.NULL else comparable(value))
                for name, value in fields.items()
                if name != X_MATCH and (with_x or not name.startswith("x-"))
            ]
        )


class HeadersTable:
    """Those whose fields the headers have (sec.3.1.3.4.headers-all, -any, -void).

    Each binding waits at one of its fields where all must match, at each where any may; a message asks at
    its own fields only.
    """

    looks_at_key = False
    looks_at_headers = True

    def __init__(self) -> None:
        self._patterns: dict[Binding, tuple[Pattern, tuple[_Want, ...]]] = {}
        """And at which fields it waits."""
        self._waiting: dict[_Want, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}
        """All of no fields."""
        self.steps = 0
        """Bindings that were looked at."""

    @staticmethod
    def check(arguments: Arguments) -> None:
        """Raises :class:`AmqpError` for arguments that no binding may have."""
        match_of(first_fields(arguments))

    def add(self, binding: Binding) -> None:
        pattern = Pattern(binding.arguments)
        places = pattern.wants
        if not pattern.is_any:
            if not places:
                self._always[binding] = None
            # Where the fewest wait; rather at a value than at a name.
            places = tuple(sorted(places, key=lambda want: (want[1] is None, len(self._waiting.get(want, ()))))[:1])
        for want in places:
            self._waiting.setdefault(want, {})[binding] = None
        self._patterns[binding] = pattern, places

    def remove(self, binding: Binding) -> None:
        _, places = self._patterns.pop(binding)
        self._always.pop(binding, None)
        for want in places:
            waiting = self._waiting[want]
            del waiting[binding]
            if not waiting:
                del self._waiting[want]

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        found = dict.fromkeys([binding.destination for binding in self._always])
        if not self._waiting:
            return found
        have: set[_Want] = set()
        for name, value in first_fields(headers).items():
            have.add((name, None))
            have.add((name, comparable(value)))
        for want in have:
            for binding in self._waiting.get(want, ()):
                self.steps += 1
                pattern, _ = self._patterns[binding]
                if binding.destination not in found and (pattern.is_any or have.issuperset(pattern.wants)):
                    found[binding.destination] = None
        return found


TABLES: Final[dict[ExchangeKind, type[DirectTable | FanoutTable | TopicTable | HeadersTable]]] = {
    ExchangeKind.DIRECT: DirectTable,
    ExchangeKind.FANOUT: FanoutTable,
    ExchangeKind.TOPIC: TopicTable,
    ExchangeKind.HEADERS: HeadersTable,
}
