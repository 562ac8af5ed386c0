"""Exchanges and bindings of a life, and to which queues they take a message. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.conformance.explore.amqp.life import ExchangePlan


@dataclass(frozen=True)
class Binding:
    """From an exchange to a queue or an exchange."""

    name: str
    to_exchange: bool
    key: str
    match: str = ""
    wanted: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class Exchange:
    name: str
    plan: ExchangePlan
    alternate: str = ""
    bindings: dict[Binding, None] = field(default_factory=dict)
    was_bound: bool = False
    """An auto-delete exchange goes with its last binding, and not before it had one."""


def matches_topic(pattern: str, key: str) -> bool:
    """``*`` is one word, ``#`` any number; words are what stands between dots, and "" has none."""
    return _matches(_words(pattern), _words(key))


def _words(text: str) -> list[str]:
    return text.split(".") if text else []


def _matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])


def matches_headers(binding: Binding, headers: Mapping[str, Any]) -> bool:
    """x-match all and any pass over names that begin with x-; all-with-x and any-with-x look at them, too."""
    kind = binding.match or "all"
    wanted = [(name, value) for name, value in binding.wanted if kind.endswith("-with-x") or not name.startswith("x-")]
    found = [name in headers and headers[name] == value for name, value in wanted]
    return all(found) if kind.startswith("all") else any(found)


def matches(kind: str, binding: Binding, keys: Collection[str], headers: Mapping[str, Any]) -> bool:
    """Whether a binding of an exchange of this type takes a message with these routing keys."""
    match kind:
        case "fanout":
            return True
        case "topic":
            return any(matches_topic(binding.key, key) for key in keys)
        case "headers":
            return matches_headers(binding, headers)
    return binding.key in keys


def route(
    exchanges: Mapping[str, Exchange],
    queues: Collection[str],
    entry: str,
    keys: Collection[str],
    headers: Mapping[str, Any],
) -> set[str]:
    """The queues that a message reaches, each once whatever leads to it; "" is the default exchange."""
    if not entry:
        return {key for key in keys if key in queues}
    found: set[str] = set()
    waiting, seen = [entry], {entry}
    for name in waiting:
        exchange = exchanges.get(name)
        if exchange is None:
            continue
        taken = [each for each in exchange.bindings if matches(exchange.plan.kind, each, keys, headers)]
        found |= {each.name for each in taken if not each.to_exchange}
        further = [each.name for each in taken if each.to_exchange]
        if not taken and exchange.alternate:
            further = [exchange.alternate]
        for each in further:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return found
