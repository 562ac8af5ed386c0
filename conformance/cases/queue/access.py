"""Access rules that overlap: which of them decide is held against a list of all topics, in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from assay.conformance.case import MARKER_PREFIX, CaseContext, case
from assay.conformance.connection import Connection
from assay.conformance.explore.topics import SHARE, matches, pattern
from assay.conformance.wire import Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription

_FAILED, _REFUSED = 0x80, 0x87
_DEPTH = 4
"""Levels of the topics that tell rules apart, one more than any rule or filter has."""
GUEST = "guest"
"""A user of the target."""
_ODD_IDS = ("x+y", "#", "p/q", "$assay")
"""What must not become part of a rule, or make one for ``$`` topics of another."""


class _Rule(NamedTuple):
    topic: str
    access: str
    client: str = ""
    user: str = ""


class _Asker(NamedTuple):
    """A client."""

    client_id: str
    user: str = ""

    def topics(self) -> frozenset[str]:
        """All topics that could tell the rules of this client apart."""
        levels = ("a", "b", "z", "", *({self.client_id, self.user or "a"} - {"a", "b", ""}))
        plain = [
            "/".join(parts)
            for depth in range(1, _DEPTH + 1)
            for parts in itertools.product([each for each in levels if not set("+#/") & set(each)], repeat=depth)
        ]
        return frozenset(plain) | {f"$assay/{topic}" for topic in plain if topic.count("/") < _DEPTH - 1} - {""}


def _filled(rule: _Rule, asker: _Asker) -> str | None:
    """The rule's topic for a client; None if it says nothing of it."""
    if rule.client not in ("", asker.client_id) or rule.user not in ("", asker.user):
        return None
    names = {"%c": asker.client_id, "%u": asker.user}
    used = [name for name in names if name in rule.topic]
    if any(not names[name] or set("+#/") & set(names[name]) for name in used):
        if rule.access != "deny":
            return None
        levels = rule.topic.split("/")
        place = next(index for index, level in enumerate(levels) if "%" in level)
        return "/".join((*levels[:place], "#"))
    found = rule.topic.replace("%c", "\0").replace("%u", asker.user).replace("\0", asker.client_id)
    if found.startswith("$") and not rule.topic.startswith("$"):
        return None if rule.access != "deny" else "#"
    return found


class _Model:
    """What one client may do."""

    def __init__(self, rules: Sequence[_Rule], asker: _Asker) -> None:
        self._topics = asker.topics()
        known = [(rule, topic) for rule in rules if (topic := _filled(rule, asker)) is not None]
        self._denied = frozenset[str]().union(*(self._reached(topic) for rule, topic in known if rule.access == "deny"))
        self._denied |= self._all_of_it(known)
        self._read = [self._reached(topic) for rule, topic in known if rule.access in ("read", "readwrite")]
        self._write = [self._reached(topic) for rule, topic in known if rule.access in ("write", "readwrite")]

    def _all_of_it(self, known: Sequence[tuple[_Rule, str]]) -> frozenset[str]:
        """A denial of everything, which a name made of one, means ``$`` topics, too."""
        wide = any(rule.access == "deny" and topic == "#" != rule.topic for rule, topic in known)
        return self._topics if wide else frozenset()

    def _reached(self, topic_filter: str) -> frozenset[str]:
        return frozenset(topic for topic in self._topics if matches(topic_filter, topic))

    def may_publish(self, topic: str) -> bool:
        return topic not in self._denied and any(topic in allowed for allowed in self._write)

    def may_subscribe(self, topic_filter: str) -> bool:
        wanted = self._reached(pattern(topic_filter))
        return not wanted & self._denied and any(wanted <= allowed for allowed in self._read)


def _pattern(chance: Random, *more: str) -> str:
    """Of a rule, or a filter."""
    levels = [chance.choice(("a", "a", "b", "+", "", *more)) for _ in range(chance.choice((1, 2, 2, 3)))]
    if chance.choice((True, False, False)):
        levels[-1] = "#"
    return chance.choice(("", "", "", "$assay/")) + "/".join(levels) or "a"


def _rules(chance: Random, askers: Sequence[_Asker]) -> Iterator[_Rule]:
    kinds = ("read", "write", "readwrite", "readwrite", "deny")
    for asker in askers:
        own = [
            _Rule(_pattern(chance, "%c", "%u"), chance.choice(kinds), client=asker.client_id)
            for _ in range(chance.choice((1, 2, 3, 5)))
        ]
        yield from own
        yield _Rule(chance.choice(("#", "a/#", "+/+", "+/a", "%c/#")), "readwrite", client=asker.client_id)
    yield _Rule("a/%u/#", "readwrite", user=GUEST)
    yield _Rule("b/%u", "deny", user=GUEST)
    yield _Rule("b/%c/+", "read")


_ASKERS = (
    *(_Asker(f"k{number}") for number in range(14)),
    *(_Asker(f"g{number}", GUEST) for number in range(4)),
    *(_Asker(name) for name in _ODD_IDS),
)
_RULES = tuple(_rules(Random("access"), _ASKERS))


def _settings() -> dict[str, Any]:
    rules = [
        {"topic": rule.topic, "access": rule.access}
        | ({"client": rule.client} if rule.client else {})
        | ({"user": rule.user} if rule.user else {})
        for rule in _RULES
    ]
    return {"acl": {"default": "deny", "rules": rules}}


async def _connect(ctx: CaseContext, asker: _Asker) -> Connection:
    if not asker.user:
        return await ctx.connect(version=5, client_id=asker.client_id)
    return await ctx.connect(version=5, client_id=asker.client_id, username=asker.user, password=b"guest")


def _questions(asker: _Asker, chance: Random) -> tuple[list[str], list[str]]:
    """Topics, and filters."""
    own = [each for each in (asker.client_id, asker.user) if each and not set("+#/$") & set(each)]
    filters = [_pattern(chance, *own) for _ in range(14)]
    filters += [f"{SHARE}g/{each}" for each in filters[:3]]
    topics = sorted(asker.topics())
    near = [topic for topic in topics if topic.count("/") < _DEPTH - 1]
    return [topic for topic in chance.sample(near, 16) if topic], list(dict.fromkeys(filters))


def _judge(ctx: CaseContext, asker: _Asker, what: str, code: int, *, may: bool) -> None:
    who = f"{asker.client_id}{f' ({asker.user})' if asker.user else ''}"
    expected = f"expected {what} to be {'allowed' if may else 'refused with 0x87'}"
    ctx.must(code < _FAILED if may else code == _REFUSED, f"{who}: {expected}; seen {code:#x}")


async def _ask(ctx: CaseContext, asker: _Asker) -> None:
    model, (topics, filters) = _Model(_RULES, asker), _questions(asker, Random(asker.client_id))
    client = await _connect(ctx, asker)
    asked = {client.next_packet_id(): topic for topic in topics}
    for packet_id, topic in asked.items():
        client.send(Publish(topic=topic, qos=1, packet_id=packet_id))
    codes = dict[int, int]()
    for _ in asked:  # in whatever order they come
        puback = await client.expect(Puback, skipping=(Publish,))
        codes[puback.packet_id] = puback.reason_code
    ctx.must(codes.keys() == asked.keys(), "each publish has its PUBACK")
    for packet_id, topic in asked.items():
        _judge(ctx, asker, f"a publish to {topic!r}", codes[packet_id], may=model.may_publish(topic))
    entries = tuple(Subscription(filter=each, qos=0) for each in filters)
    client.send(Subscribe(packet_id=client.next_packet_id(), subscriptions=entries))
    suback = await client.expect(Suback, skipping=(Publish,))
    for topic_filter, code in zip(filters, suback.reason_codes, strict=True):
        _judge(ctx, asker, f"a subscription to {topic_filter!r}", code, may=model.may_subscribe(topic_filter))
    await client.disconnect()


@case(
    "queue/access/rules-that-overlap",
    clauses=("Q-ACCESS-01", "Q-ACCESS-02", "Q-ACCESS-03", "Q-ACCESS-04", "Q-ACCESS-06"),
    requires=("queues",),
    mutant="access-denials-must-cover",
    kills=("access-rules-for-anybody",),
    settings=_settings(),
    together=True,
)
async def overlapping(ctx: CaseContext) -> None:
    """Of rules that overlap, each denial holds, and one that allows has to cover a filter.

    18 clients, four of them of a user, have 1 to 6 drawn rules each, beside some for all. Each publishes to 16 topics
    and subscribes to some 15 filters, three of them as shares: what is allowed is what a list of all topics says.
    """
    for asker in _ASKERS[: -len(_ODD_IDS)]:
        await _ask(ctx, asker)


@case(
    "queue/access/odd-names",
    clauses=("Q-ACCESS-05",),
    requires=("queues",),
    mutant="access-names-go-in-as-they-are",
    settings=_settings(),
    together=True,
)
async def odd_names(ctx: CaseContext) -> None:
    """A name that would change what a rule reaches never goes into one.

    Clients called x+y, #, p/q and $assay have rules with %c: those that allow allow nothing, those that deny deny
    everything from that level on.
    """
    for asker in _ASKERS[-len(_ODD_IDS) :]:
        await _ask(ctx, asker)


_OPEN, _SHUT = "open/t", "shut/t"
_MAY_WRITE_OPEN = (
    {"topic": "#", "access": "read"},
    {"topic": f"{MARKER_PREFIX}#", "access": "write"},
    {"topic": "open/#", "access": "write"},
)


async def _publish_all(client: Connection, topic: str, count: int, *, qos: int, retain: bool, refused: bool) -> None:
    """So many in one go, and what they are answered."""
    packet_ids = [client.next_packet_id() if qos else 0 for _ in range(count)]
    message = Publish(topic=topic, payload=b"m", qos=qos, retain=retain)
    client.send(*(msgspec.structs.replace(message, packet_id=packet_id) for packet_id in packet_ids))
    for _ in packet_ids if qos else ():
        code = (await client.expect(Puback if qos == 1 else Pubrec)).reason_code
        expected = f"expected a publish to {topic} at QoS {qos} to be {'refused with 0x87' if refused else 'taken'}"
        client.ctx.must(code == _REFUSED if refused else code < _FAILED, f"{expected}; seen {code:#x}")
    for packet_id in packet_ids if qos == 2 and not refused else ():
        client.send(Pubrel(packet_id=packet_id))
        await client.expect(Pubcomp)


@case(
    "queue/access/refused-reaches-nobody",
    clauses=("Q-ACCESS-01",),
    requires=("queues",),
    mutant="access-qos-0-is-not-asked-about",
    kills=("access-runs-are-not-asked-about",),
    settings={"acl": {"default": "deny", "rules": list(_MAY_WRITE_OPEN)}},
)
async def refused_reaches_nobody(ctx: CaseContext) -> None:
    """What may not be published reaches nobody and is not retained, at any QoS, alone or among many.

    Everybody may write to open/# alone. A client publishes to open/t and shut/t at QoS 0, 1 and 2: a retained message,
    and then up to 20 in one go. A subscriber of both gets what went to open/t, one that comes later nothing of shut/t.
    """
    watcher, client = await ctx.connect(version=5, name="watcher"), await ctx.connect(version=5, name="client")
    await watcher.subscribe(Subscription(filter="+/t", qos=2))
    many = min(20, client.connack.properties.receive_maximum or 20)
    for qos in (0, 1, 2):
        for retain, count in ((True, 1), (False, many)):
            for topic in (_OPEN, _SHUT):
                await _publish_all(client, topic, count, qos=qos, retain=retain, refused=topic == _SHUT)
    came = await ctx.messages_before_marker(client, watcher, at_least=2 * (1 + many))
    seen = {packet.topic for packet in came if isinstance(packet, Publish)}
    ctx.must(seen == {_OPEN}, f"watcher: expected messages of {_OPEN} alone; seen {sorted(seen)}")
    late = await ctx.connect(version=5, name="late")
    await late.subscribe(Subscription(filter=_SHUT, qos=2))
    await ctx.expect_no_message(client, late)


_QUEUE_RULES = {
    "reader": (("$queue/orders/#", "read"),),
    "writer": (("$queue/orders/#", "write"),),
    "part": (("$queue/orders/eu", "read"), ("$queue/orders/eu/$ack", "write")),
    "letters": (("$dlq/orders/#", "read"), ("$queue/dlq/other/#", "readwrite")),
    "barred": (("$queue/+/#", "readwrite"), ("$queue/orders/secret", "deny"), ("$dlq/orders", "deny")),
}
_MAY_SUBSCRIBE = {
    "$queue/orders": ("reader",),
    "$queue/orders/#": ("reader",),
    "$queue/orders/eu": ("reader", "part", "barred"),
    "$queue/orders/secret": ("reader",),
    "$dlq/orders": ("letters",),
    "$queue/dlq/orders": ("letters",),
    "$dlq/other": ("letters",),
    "$queue/dlq/other": ("letters",),
}
_MAY_PUBLISH = {
    "$queue/orders": ("writer", "barred"),
    "$queue/orders/eu": ("writer", "barred"),
    "$queue/orders/secret": ("writer",),
    "$queue/orders/$cancel": ("writer", "barred"),
    "$queue/orders/$ack": ("reader",),
    "$queue/orders/$nack": ("reader",),
    "$queue/orders/$claim": ("reader",),
    "$queue/orders/$commit": ("reader",),
    "$queue/dlq/orders/$ack": ("letters",),
    "$queue/dlq/other/$ack": ("letters",),
}
"""Topics to the clients that have the right; whether there is anything to settle is another question."""


def _queue_settings() -> dict[str, Any]:
    rules = [
        {"topic": topic, "access": access, "client": client}
        for client, own in _QUEUE_RULES.items()
        for topic, access in own
    ]
    return {"acl": {"default": "deny", "rules": rules}}


@case(
    "queue/access/rights-on-queues",
    clauses=("Q-ACCESS-07",),
    requires=("queues",),
    mutant="access-settling-is-writing",
    settings=_queue_settings(),
    together=True,
)
async def rights_on_queues(ctx: CaseContext) -> None:
    """Who reads a queue settles it, who writes enqueues and takes back what waits.

    Five clients with different rights on the queue orders, parts of it and its dead letters publish to each topic and
    verb, and subscribe to each filter: 0x87 tells which right is missing.
    """
    for client_id in _QUEUE_RULES:
        client = await ctx.connect(version=5, client_id=client_id)
        for topic, whose in _MAY_PUBLISH.items():
            client.send(Publish(topic=topic, qos=1, packet_id=client.next_packet_id()))
            puback = await client.expect(Puback, skipping=(Publish,))
            told = f"{client_id}: expected {topic} to be {'allowed' if client_id in whose else 'refused with 0x87'}"
            ctx.must((puback.reason_code == _REFUSED) != (client_id in whose), f"{told}; seen {puback.reason_code:#x}")
        for topic, whose in _MAY_SUBSCRIBE.items():
            entries = (Subscription(filter=topic, qos=1),)
            client.send(Subscribe(packet_id=client.next_packet_id(), subscriptions=entries))
            suback = await client.expect(Suback, skipping=(Publish,))
            _judge(ctx, _Asker(client_id), topic, suback.reason_codes[0], may=client_id in whose)
        await client.disconnect()
