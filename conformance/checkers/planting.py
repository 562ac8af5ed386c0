"""Breaks a right history in one named way; see :mod:`assay.conformance.checkers.specimens`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import msgspec

from assay.conformance.checkers.specimens import DLQ, QUEUE, TIMEOUT_S, renumber
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

_SETTLING = (OpKind.ACK, OpKind.NACK, OpKind.REJECT)
Events = list[HistoryEvent]
replace = msgspec.structs.replace


def plant(anomaly: str, rng: random.Random, events: Events) -> Events | None:
    """The history with the anomaly of this catalogue id; None where the history offers no place for it."""
    changed = PLANTERS[anomaly](rng, events)
    return None if changed is None else renumber(changed)


class _Life:
    """The events of one (group, value), by kind."""

    def __init__(self) -> None:
        self.deliveries: Events = []
        self.invoked: Events = []
        self.completed: Events = []


def _lives(events: Events) -> dict[tuple[str, str], _Life]:
    lives: defaultdict[tuple[str, str], _Life] = defaultdict(_Life)
    for event in events:
        if event.queue != QUEUE:
            continue
        life = lives[event.group, event.value]
        if event.f is OpKind.DELIVER:
            life.deliveries.append(event)
        elif event.f in _SETTLING:
            (life.invoked if event.type is OpType.INVOKE else life.completed).append(event)
    return lives


def _calm(events: Events, since: int, until: int) -> bool:
    return not any(
        event.f in (OpKind.FAULT, OpKind.SESSION_END) for event in events if since <= event.index <= until
    ) and not _in_fault(events, since)


def _in_fault(events: Events, at: int) -> bool:
    """A fault is open at this index."""
    marks = [event.type for event in events if event.f is OpKind.FAULT and event.index < at]
    return bool(marks) and marks[-1] is OpType.INVOKE


def _acked_once(events: Events) -> list[tuple[HistoryEvent, HistoryEvent, HistoryEvent]]:
    """(delivery, ack invocation, ack ok) of values delivered once and acked soon, with nothing else since the send."""
    found = []
    sent = {event.value: event for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE}
    confirmed = {event.value for event in events if event.f is OpKind.PUBLISH and event.type is OpType.OK}
    for life in _lives(events).values():
        if len(life.deliveries) != 1 or len(life.invoked) != 1 or len(life.completed) != 1:
            continue
        delivery, invoked, completed = life.deliveries[0], life.invoked[0], life.completed[0]
        send = sent[delivery.value]
        quick = completed.time_ns - send.time_ns < TIMEOUT_S / 2 * 1e9
        plain = completed.f is OpKind.ACK and completed.type is OpType.OK and delivery.value in confirmed
        if quick and plain and _calm(events, send.index, completed.index):
            found.append((delivery, invoked, completed))
    return found


def _undisturbed(events: Events, since: int) -> bool:
    """No fault is open here, and no session ends or fault begins within two seconds."""
    until_ns = events[since].time_ns + 2_000_000_000
    until = max(event.index for event in events if event.time_ns <= until_ns)
    return _calm(events, since, until)


def _after(events: Events, place: int, added: HistoryEvent) -> Events:
    """Insert behind the event with this index. The newcomer shares its time, so that no timeout elapses."""
    return [*events[: place + 1], replace(added, index=-1, time_ns=events[place].time_ns), *events[place + 1 :]]


def _again(delivery: HistoryEvent) -> HistoryEvent:
    return replace(delivery, delivery_count=delivery.delivery_count + 1, redelivered=True)


def _lose(rng: random.Random, events: Events) -> Events | None:
    """A1: nobody ever gets a confirmed message."""
    values = [event.value for event in events if event.f is OpKind.PUBLISH and event.type is OpType.OK]
    if not values:
        return None
    value = rng.choice(values)
    return [event for event in events if event.value != value or event.f is OpKind.PUBLISH]


def _vanish(rng: random.Random, events: Events) -> Events | None:
    """F6: the only settlement of a message was a nack."""
    dead = {event.value for event in events if event.queue == DLQ}
    choices = [life for life in _acked_once(events) if life[0].value not in dead]
    if not choices:
        return None
    _, invoked, completed = rng.choice(choices)
    touched = (invoked.index, completed.index)
    return [replace(event, f=OpKind.NACK) if event.index in touched else event for event in events]


def _invent(rng: random.Random, events: Events, value: str) -> Events | None:
    choices = [event for event in events if event.f is OpKind.DELIVER and event.queue == QUEUE]
    if not choices:
        return None
    model = rng.choice(choices)
    return _after(events, model.index, replace(model, value=value, offset=100_000, message_id="0:100000"))


def _refuse(rng: random.Random, events: Events) -> Events | None:
    """A10: the broker says that it refused a message that it delivers."""
    seen = {event.value for event in events if event.f is OpKind.DELIVER}
    choices = [e for e in events if e.f is OpKind.PUBLISH and e.type is OpType.OK and e.value in seen]
    if not choices:
        return None
    chosen = rng.choice(choices)
    return [replace(event, type=OpType.FAIL) if event is chosen else event for event in events]


def _confuse(rng: random.Random, events: Events) -> Events | None:
    """C1: a delivery carries the value of another message, whose own offset is known."""
    choices = [delivery for delivery, _, _ in _acked_once(events)]
    if len(choices) < 2 or any(event.f is OpKind.FAULT for event in events):
        return None
    one, other = rng.sample(choices, 2)
    if one.value == other.value:  # the same message at two groups
        return None
    return _after(events, max(one.index, other.index), replace(one, value=other.value))


def _store_twice(rng: random.Random, events: Events) -> Events | None:
    """B1: a value that was sent once has a second offset."""
    choices = _acked_once(events)
    if not choices:
        return None
    delivery, _, completed = rng.choice(choices)
    return _after(events, completed.index, replace(delivery, offset=100_000, message_id="0:100000"))


def _repeat(rng: random.Random, events: Events) -> Events | None:
    """B3: the same consumer gets a message again while it still works on it."""
    choices = [delivery for delivery, _, _ in _acked_once(events) if _undisturbed(events, delivery.index)]
    if not choices:
        return None
    delivery = rng.choice(choices)
    return _after(events, delivery.index, _again(delivery))


def _share(rng: random.Random, events: Events) -> Events | None:
    """B6: another consumer gets a message that one still holds."""
    choices = [delivery for delivery, _, _ in _acked_once(events) if _undisturbed(events, delivery.index)]
    if not choices:
        return None
    delivery = rng.choice(choices)
    return _after(events, delivery.index, replace(_again(delivery), process="thief.0"))


def _resurrect(rng: random.Random, events: Events) -> Events | None:
    """A15: a message comes again after its confirmed ack."""
    choices = _acked_once(events)
    if not choices:
        return None
    delivery, _, completed = rng.choice(choices)
    return _after(events, completed.index, _again(delivery))


def _swap(rng: random.Random, events: Events) -> Events | None:
    """D8: two messages of one producer and key change places."""
    streams: defaultdict[tuple[str, str, str, str], list[HistoryEvent]] = defaultdict(list)
    held_until = {(e.group, e.value): e.index for _, e, _ in _acked_once(events)}
    for delivery, _, _ in _acked_once(events):
        streams[delivery.group, delivery.process, delivery.producer, delivery.key].append(delivery)
    pairs = [
        (one, other)
        for stream in streams.values()
        for one, other in pairwise(stream)
        if one.index < other.index < held_until[one.group, one.value]
    ]
    if not pairs:
        return None
    one, other = rng.choice(pairs)
    swapped = {
        one.index: replace(other, index=one.index, time_ns=one.time_ns),
        other.index: replace(one, index=other.index, time_ns=other.time_ns),
    }
    return [swapped.get(event.index, event) for event in events]


def _lose_dead_letter(rng: random.Random, events: Events) -> Events | None:
    """A11: a rejected message is not in the dead-letter queue."""
    dead = {event.value for event in events if event.queue == DLQ}
    acked = {event.value for event in events if event.f is OpKind.ACK}
    rejected = [
        event.value
        for event in events
        if event.f is OpKind.REJECT and event.type is OpType.OK and event.value in dead - acked
    ]
    if not rejected:
        return None
    value = rng.choice(rejected)
    return [event for event in events if event.queue != DLQ or event.value != value]


def _bury(rng: random.Random, events: Events) -> Events | None:
    """A12: an acknowledged message turns up in the dead-letter queue."""
    settled = {event.value for event in events if event.f in (OpKind.NACK, OpKind.REJECT) or event.redelivered}
    sent = {event.value: event.index for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE}
    choices = [
        (delivery, completed)
        for delivery, _, completed in _acked_once(events)
        if delivery.value not in settled and _calm(events, sent[delivery.value], completed.index)
    ]
    if not choices:
        return None
    delivery, completed = rng.choice(choices)
    letter = replace(delivery, queue=DLQ, group="watch", process="watch.0", partition=-1, offset=-1, reason="rejected")
    return _after(events, completed.index, letter)


def _forget_count(rng: random.Random, events: Events) -> Events | None:
    """B4: a redelivery that claims to be the first delivery."""
    sent = {event.value: event.index for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INVOKE}
    choices = [
        life.deliveries[1]
        for life in _lives(events).values()
        if len(life.deliveries) > 1 and _calm(events, sent[life.deliveries[1].value], life.deliveries[1].index)
    ]
    if not choices:
        return None
    chosen = rng.choice(choices)
    return [replace(e, delivery_count=1, redelivered=False) if e is chosen else e for e in events]


PLANTERS: dict[str, Callable[[random.Random, Events], Events | None]] = {
    "A1": _lose,
    "F6": _vanish,
    "A5": lambda rng, events: _invent(rng, events, "ghost-0"),
    "A7": lambda rng, events: _invent(rng, events, "corrupt:00c0ffee"),
    "A10": _refuse,
    "C1": _confuse,
    "B1": _store_twice,
    "B3": _repeat,
    "B6": _share,
    "A15": _resurrect,
    "D8": _swap,
    "A11": _lose_dead_letter,
    "A12": _bury,
    "B4": _forget_count,
}
"""By catalogue id."""
