"""What a virtual host should do, said as plainly as possible: lists that are searched from front to back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from assay.reference_broker.amqp091.topology import Arguments
from assay.reference_broker.routing.properties import Kind, Typed

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
INTEGERS = (Kind.I8, Kind.I16, Kind.I32, Kind.I64)


@dataclass(frozen=True)
class ModelExchange:
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None
    was_bound: bool = False


@dataclass(frozen=True)
class ModelQueue:
    durable: bool
    owner: int | None
    auto_delete: bool
    arguments: Arguments


ModelBinding = tuple[str, str, str, str, tuple[tuple[str, object], ...]]
"""Source, "queue" or "exchange", destination, routing key, arguments."""


def plain(arguments: Arguments) -> tuple[tuple[str, object], ...]:
    """Values as pairs of a type and a value, in the order of their names."""
    return tuple(sorted([(name, plain_value(value)) for name, value in arguments], key=str))


def plain_value(value: Typed) -> object:
    return ("integer" if value.kind in INTEGERS else value.kind.value), value.value


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return topic_matches(pattern[1:], words) or (bool(words) and topic_matches(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


def headers_match(wanted: tuple[tuple[str, object], ...], headers: tuple[tuple[str, object], ...]) -> bool:
    have = dict(headers)
    match = str(dict(wanted).get("x-match", ("text", "all"))[1])  # type: ignore[index]
    answers = [
        name in have and (value == ("null", None) or have[name] == value)
        for name, value in wanted
        if name != "x-match" and (match.endswith("-with-x") or not name.startswith("x-"))
    ]
    return any(answers) if match.startswith("any") else all(answers)


@dataclass
class ModelHost:
    exchanges: dict[str, ModelExchange] = field(
        default_factory=lambda: {name: ModelExchange(kind) for name, kind in PREDECLARED.items()}
    )
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    bindings: list[ModelBinding] = field(default_factory=list)

    # Each returns the reply code, or None when all is well.

    def declare_exchange(self, name: str, wanted: ModelExchange, *, passive: bool) -> int | None:
        there = self.exchanges.get(name)
        if not passive and wanted.kind not in PREDECLARED.values():
            return 503
        if name == "":
            return 403
        if passive:
            return 404 if there is None else None
        if there is not None:
            return None if replace(there, was_bound=False) == wanted else 406
        if name.startswith("amq."):
            return 403
        self.exchanges[name] = wanted
        return None

    def delete_exchange(self, name: str, *, if_unused: bool) -> int | None:
        if name == "" or name.startswith("amq."):
            return 403
        if name in self.exchanges:
            if if_unused and any(each[0] == name for each in self.bindings):
                return 406
            self._remove_exchange(name)
        return None

    def _remove_exchange(self, name: str) -> None:
        del self.exchanges[name]
        self._remove_bindings([each for each in self.bindings if name == each[0] or each[1:3] == ("exchange", name)])

    def _remove_bindings(self, gone: list[ModelBinding]) -> None:
        for each in gone:
            if each in self.bindings:
                self.bindings.remove(each)
        for source in {each[0] for each in gone}:
            exchange = self.exchanges.get(source)
            if exchange is not None and exchange.auto_delete and not any(each[0] == source for each in self.bindings):
                self._remove_exchange(source)

    def declare_queue(self, name: str, wanted: ModelQueue, owner: int, *, passive: bool) -> int | None:
        there = self.queues.get(name)
        if there is None:
            if passive:
                return 404
            if name.startswith("amq."):
                return 403
            self.queues[name] = wanted
            return None
        if there.owner not in (None, owner):
            return 405
        if passive:
            return None
        if (there.owner is None) != (wanted.owner is None):
            return 405
        same = (there.durable, there.auto_delete, plain(there.arguments)) == (
            wanted.durable,
            wanted.auto_delete,
            plain(wanted.arguments),
        )
        return None if same else 406

    def remove_queue(self, name: str) -> None:
        if self.queues.pop(name, None) is not None:
            self._remove_bindings([each for each in self.bindings if each[1:3] == ("queue", name)])

    def bind(self, binding: ModelBinding, owner: int) -> int | None:
        source, kind, destination, _, arguments = binding
        if "" in (source, destination if kind == "exchange" else source):
            return 403
        if source not in self.exchanges or destination not in (self.queues if kind == "queue" else self.exchanges):
            return 404
        if kind == "queue" and self.queues[destination].owner not in (None, owner):
            return 405
        match = dict(arguments).get("x-match", ("text", "all"))
        if self.exchanges[source].kind == "headers" and match not in [
            ("text", each) for each in ("all", "any", "all-with-x", "any-with-x")
        ]:
            return 406
        if binding not in self.bindings:
            self.bindings.append(binding)
            self.exchanges[source] = replace(self.exchanges[source], was_bound=True)
        return None

    def unbind(self, binding: ModelBinding, owner: int) -> int | None:
        source, kind, destination, _, _ = binding
        if "" in (source, destination if kind == "exchange" else source):
            return 403
        if kind == "queue" and destination in self.queues and self.queues[destination].owner not in (None, owner):
            return 405
        if binding in self.bindings:
            self._remove_bindings([binding])
        return None

    def _matches(self, binding: ModelBinding, keys: list[str], headers: tuple[tuple[str, object], ...]) -> bool:
        kind, pattern = self.exchanges[binding[0]].kind, binding[3]
        if kind == "direct":
            return pattern in keys
        if kind == "topic":
            return any(topic_matches(words_of(pattern), words_of(key)) for key in keys)
        return kind == "fanout" or headers_match(binding[4], headers)

    def route(self, exchange: str, keys: list[str], headers: Arguments) -> list[str]:
        found: set[str] = set()
        seen: set[str] = set()

        def visit(name: str) -> None:
            if name in seen:
                return
            seen.add(name)
            if name == "":
                found.update(key for key in keys if key in self.queues)
                return
            if name not in self.exchanges:
                return
            matching = [each for each in self.bindings if each[0] == name and self._matches(each, keys, plain(headers))]
            for _, kind, destination, _, _ in matching:
                if kind == "queue":
                    found.add(destination)
                else:
                    visit(destination)
            alternate = self.exchanges[name].alternate
            if not matching and alternate is not None:
                visit(alternate)

        visit(exchange)
        return sorted(found)

    def restart(self) -> None:
        """Only what is durable is left, and what is between it; what lived for the rest goes with it."""
        self.queues = {name: each for name, each in self.queues.items() if each.durable}
        self.exchanges = {name: each for name, each in self.exchanges.items() if each.durable}
        ends = {("queue", name) for name in self.queues} | {("exchange", name) for name in self.exchanges}
        self.bindings = [each for each in self.bindings if each[0] in self.exchanges and each[1:3] in ends]
        while unused := [
            name
            for name, each in self.exchanges.items()
            if each.auto_delete and each.was_bound and not any(binding[0] == name for binding in self.bindings)
        ]:
            for name in unused:
                if name in self.exchanges:
                    self._remove_exchange(name)
