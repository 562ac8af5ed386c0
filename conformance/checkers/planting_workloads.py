"""Breaks a right history of transactions, delays, priorities, passing groups or plain MQTT in one named way.

The right histories are those of simulated runs of the reference broker, which the checkers must not accuse.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from assay.conformance.checkers.planting import Events
from assay.conformance.checkers.priority import GRACE_NS
from assay.conformance.checkers.redeliveries import SESSION_END_GRACE_NS
from assay.conformance.checkers.specimens import renumber
from assay.conformance.checkers.tables import (
    MQTT_PREFIX,
    RETAINED_PREFIX,
    SHARE_PREFIX,
    Link,
    Send,
    Tables,
    build_tables,
)
from assay.conformance.checkers.wills import missing
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType

replace = msgspec.structs.replace


class Planting:
    """A right history, and what is needed to break it."""

    def __init__(self, rng: random.Random, events: Events) -> None:
        self.rng = rng
        self.events = events
        self.tables: Tables = build_tables(events)

    def pick(self, choices: Iterable[HistoryEvent]) -> HistoryEvent | None:
        """One of them, by chance."""
        kept = list(choices)
        return self.rng.choice(kept) if kept else None

    def deliveries(self, wanted: Callable[[HistoryEvent, Send], bool]) -> list[HistoryEvent]:
        """First main deliveries of sends, those that are wanted."""
        firsts = [(events[0], self.tables.sends.get(events[0].value)) for events in self.tables.main.values()]
        return [first for first, send in firsts if send is not None and wanted(first, send)]

    def after(self, place: int, added: HistoryEvent) -> Events:
        """With another event behind that one, at its time."""
        events = self.events
        return [*events[: place + 1], replace(added, index=-1, time_ns=events[place].time_ns), *events[place + 1 :]]

    def changed(self, wanted: Callable[[HistoryEvent], bool], **fields: object) -> Events:
        """With other fields in some events."""
        return [replace(event, **fields) if wanted(event) else event for event in self.events]

    def calm(self, since: int, until: int) -> bool:
        """No fault and no end of a session in between, or near."""
        return not any(
            event.f in (OpKind.FAULT, OpKind.SESSION_END) for event in self.events[max(0, since) : until + 1]
        ) and not any(span.overlaps(since, until) for span in self.tables.faults)


def _dirty_read(given: Planting) -> Events | None:
    """E1: a message of a transaction comes right after its publish."""
    commits = given.tables.commits
    chosen = given.pick(given.deliveries(lambda first, send: send.txn in commits and first.index > send.cpl_idx))
    if chosen is None:
        return None
    return given.after(given.tables.sends[chosen.value].inv_idx, chosen)


def _tear(given: Planting) -> Events | None:
    """E2: of a transaction whose commit is unknown, one message is missing."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    for send in given.tables.sends.values():
        if send.txn and send.status is OpType.OK:
            members[send.txn].append(send.value)
    several = [txn for txn, values in members.items() if len(values) > 1]
    if not several:
        return None
    txn = given.rng.choice(several)
    gone = given.rng.choice(members[txn])
    events = given.changed(
        lambda event: event.txn == txn and event.type is OpType.OK and event.f in (OpKind.COMMIT, OpKind.PUBLISH),
        type=OpType.INFO,
    )
    return [event for event in events if event.value != gone or event.f is OpKind.PUBLISH]


def _too_early(given: Planting) -> Events | None:
    """D13: the publisher had asked for an hour."""
    chosen = given.pick(given.deliveries(lambda first, send: send.delay_ns >= 0 and send.txn == ""))
    if chosen is None:
        return None
    return given.changed(
        lambda event: event.value == chosen.value and event.f is OpKind.PUBLISH, delay_ns=3_600_000_000_000
    )


def _take_back(given: Planting) -> Events | None:
    """A17: a message that comes had been taken back."""
    chosen = given.pick(given.deliveries(lambda first, send: send.delay_ns >= 0 and 0 <= send.cpl_idx < first.index))
    if chosen is None:
        return None
    send = given.tables.sends[chosen.value]
    fields = {"process": f"{send.producer}.9", "f": OpKind.CANCEL, "queue": send.queue, "value": send.value}
    place, time_ns = send.cpl_idx, send.cpl_ns
    asked = HistoryEvent(index=900_000_000, time_ns=time_ns, type=OpType.INVOKE, **fields)  # type: ignore[arg-type]
    told = HistoryEvent(index=-1, time_ns=time_ns, type=OpType.OK, op=900_000_000, **fields)  # type: ignore[arg-type]
    return [*given.events[: place + 1], asked, told, *given.events[place + 1 :]]


def _starve(given: Planting) -> Events | None:
    """D10: an urgent message comes after everything else."""
    drain = next(event.index for event in given.events if event.f is OpKind.DRAIN)
    last = max((span.to_idx for span in given.tables.faults), default=-1)
    urgent = given.deliveries(
        lambda first, send: send.lane == 0 and send.status is OpType.OK and send.inv_idx > last and send.delay_ns < 0
    )
    once = [first for first in urgent if len(given.tables.main[first.queue, first.group, first.value]) == 1]
    once.sort(key=lambda first: first.index)

    def is_enough(chosen: HistoryEvent) -> bool:
        """More comes behind it than the shares let pass an urgent message, whose lane has half of each round, and
        nothing of its lane is between two deliveries meanwhile."""
        here = given.deliveries(
            lambda first, _: (
                (first.queue, first.group, first.partition) == (chosen.queue, chosen.group, chosen.partition)
            )
        )
        lanes = [
            given.tables.sends[first.value].lane
            for first in here
            if first.time_ns > chosen.time_ns + 2 * GRACE_NS and first.index < drain
        ]
        again = [given.tables.main[first.queue, first.group, first.value] for first in here]
        held = any(
            events[-1].index > chosen.index - 100 and (len(events) > 1 or events[0].redelivered)
            for events in again
            if given.tables.sends[events[0].value].lane == 0
        )
        return not held and len(lanes) - lanes.count(0) > (lanes.count(0) // 50 + 2) * 50

    chosen = given.pick([first for first in once[: len(once) // 4] if is_enough(first)])
    if chosen is None:
        return None
    moved = [e for e in given.events if e.value == chosen.value and e.f is not OpKind.PUBLISH]
    at = given.events[drain].time_ns
    kept = [event for event in given.events if event not in moved]
    place = next(place for place, event in enumerate(kept) if event.f is OpKind.DRAIN)
    return [*kept[:place], *(replace(event, time_ns=at) for event in moved), *kept[place:]]


def _old_news(given: Planting) -> Events | None:
    """F14: a new group gets what was confirmed before it was there."""
    latest = given.tables.latest
    chosen = given.pick(given.deliveries(lambda first, send: (first.queue, first.group) in latest))
    if chosen is None:
        return None
    began = latest[chosen.queue, chosen.group]
    sends = given.tables.sends.values()
    old = [s.value for s in sends if s.queue == chosen.queue and 0 <= s.cpl_idx < began and s.delay_ns < 0]
    old = [value for value in old if (chosen.queue, chosen.group, value) not in given.tables.main]
    if not old:
        return None
    return given.after(chosen.index, replace(chosen, value=given.rng.choice(old), offset=-1, message_id=""))


def _plain(first: HistoryEvent, qos: int, *, shared: bool = False) -> bool:
    ours = first.queue.startswith(MQTT_PREFIX) and first.qos == qos
    return ours and first.group.startswith(SHARE_PREFIX) is shared


def _twice_at_qos_2(given: Planting) -> Events | None:
    """B2: the same message again, in a session."""
    chosen = given.pick(given.deliveries(lambda first, send: _plain(first, 2)))
    return None if chosen is None else given.after(chosen.index, replace(chosen, redelivered=True))


def _again_over_one_connection(given: Planting) -> Events | None:
    """B3: a message of QoS 1 again over the same connection."""
    chosen = given.pick(given.deliveries(lambda first, send: _plain(first, 1) and send.invocations == 1))
    return None if chosen is None else given.after(chosen.index, replace(chosen, redelivered=True))


def _to_two_members(given: Planting) -> Events | None:
    """B6: another member of a share gets the message, too."""
    firsts = given.deliveries(lambda first, send: _plain(first, 1, shared=True) and send.invocations == 1)
    chosen = given.pick(
        first
        for first in firsts
        if not any(
            idx < first.index + 2 or at <= first.time_ns + SESSION_END_GRACE_NS
            for idx, at in given.tables.session_ends.get(first.process, ())
        )
        and not any(span.overlaps(first.index, first.index + 2) for span in given.tables.faults)
    )
    return None if chosen is None else given.after(chosen.index, replace(chosen, process="thief.0"))


def _accepted(given: Planting, wanted: Callable[[list[Link], int], bool]) -> int | None:
    places = [
        links[number].ok_idx
        for links in given.tables.sessions.values()
        for number in range(len(links))
        if links[number].status is OpType.OK and links[number].expiry_ns != 0 and wanted(links, number)
    ]
    return given.rng.choice(places) if places else None


def _forget_session(given: Planting) -> Events | None:
    """S1: a session that was resumed in time is new."""
    place = _accepted(given, lambda links, number: links[number].present and links[number].expiry_ns < 0)
    return None if place is None else given.changed(lambda event: event.index == place, reason="new")


def _invent_session(given: Planting) -> Events | None:
    """S2: the first connection of a client finds a session."""
    place = _accepted(given, lambda links, number: number == 0)
    return None if place is None else given.changed(lambda event: event.index == place, reason="present")


def _read_changed(given: Planting, value_of: Callable[[HistoryEvent, list[Send]], str | None]) -> Events | None:
    writes: defaultdict[str, list[Send]] = defaultdict(list)
    for send in given.tables.sends.values():
        if send.queue.startswith(RETAINED_PREFIX):
            writes[send.key.rpartition(":")[0]].append(send)
    choices = []
    for event in given.events:
        if event.f is OpKind.READ and event.type is OpType.OK:
            value = value_of(event, writes[event.group])
            if value is not None:
                choices.append((event.index, value))
    if not choices:
        return None
    place, value = given.rng.choice(choices)
    return given.changed(lambda event: event.index == place, value=value)


def _stale(event: HistoryEvent, writes: list[Send]) -> str | None:
    confirmed = [send for send in writes if send.status is OpType.OK and send.cpl_idx < event.op]
    newest = max((send.inv_idx for send in confirmed), default=-1)
    old = [send for send in confirmed if send.cpl_idx < newest and not send.removes]
    return old[0].value if old else None


def _absent(event: HistoryEvent, writes: list[Send]) -> str | None:
    confirmed = [send for send in writes if send.status is OpType.OK and send.cpl_idx < event.op]
    newest = max((send.inv_idx for send in confirmed if not send.removes), default=-1)
    doubtful = [s for s in writes if (s.removes or s.qos == 0) and s.inv_idx < event.index]
    surely = newest >= 0 and all(0 <= send.cpl_idx < newest for send in doubtful)
    return "" if surely and event.value else None


def _unpublished_will(given: Planting) -> Events | None:
    """W1: a will that was due does not come to one session."""
    wills = given.tables.wills
    owed = []
    for first in given.deliveries(lambda first, send: send.value in wills and _plain(first, 1)):
        subject = (first.queue, first.group, first.value)
        kept = given.tables.main.pop(subject)
        if given.tables.drained(first.queue, first.group):
            owed += [row for row in missing(given.tables, Contract(), *subject[:2]) if row.value == first.value]
        given.tables.main[subject] = kept
    if not owed:
        return None
    row = given.rng.choice(owed)
    return [
        event
        for event in given.events
        if not (event.f is OpKind.DELIVER and (event.group, event.value) == (row.group, row.value))
    ]


def _withdrawn_will(given: Planting) -> Events | None:
    """W2: a will comes although its client had said DISCONNECT."""
    model = given.pick(given.deliveries(lambda first, send: _plain(first, 1)))
    withdrawn = [
        will
        for will in given.tables.wills.values()
        if will.status is OpType.FAIL and given.calm(will.send.inv_idx, will.end_idx - 2)
    ]
    withdrawn = [
        will
        for will in withdrawn
        if not any(
            will.end_ns - 600_000_000 <= span.from_ns <= will.end_ns + 600_000_000 for span in given.tables.faults
        )
    ]
    if model is None or not withdrawn:
        return None
    will = given.rng.choice(withdrawn)
    return given.after(will.end_idx, replace(model, value=will.send.value, producer=will.send.producer))


def _early_will(given: Planting) -> Events | None:
    """W3: a will comes a second before its delay is over; its client stays away for longer."""
    wills, sessions = given.tables.wills, given.tables.sessions
    choices: list[tuple[str, int]] = []
    for first in given.deliveries(lambda first, send: send.value in wills and wills[send.value].status is OpType.OK):
        will = wills[first.value]
        links = sessions[will.session]
        number = next(number for number, link in enumerate(links) if link.process == will.process)
        due_ns = first.time_ns + 1_000_000_000
        if all(link.inv_ns > due_ns for link in links[number + 1 :]):
            choices.append((first.value, due_ns - links[number].alive_ns))
    if not choices:
        return None
    value, delay_ns = given.rng.choice(choices)
    return given.changed(lambda event: event.f is OpKind.WILL and event.value == value, delay_ns=delay_ns)


def _lose(given: Planting) -> Events | None:
    """A1: a session that lived to the end never gets what was confirmed."""
    subscribed = given.tables.subscribed
    chosen = given.pick(
        given.deliveries(
            lambda first, send: (
                first.queue.startswith(MQTT_PREFIX)
                and send.status is OpType.OK
                and given.tables.drained(first.queue, first.group)
                and send.inv_idx > subscribed.get((first.queue, first.group), -1)
            )
        )
    )
    if chosen is None:
        return None
    return [
        event
        for event in given.events
        if event.f is not OpKind.DELIVER or (event.group, event.value) != (chosen.group, chosen.value)
    ]


PLANTERS: dict[str, tuple[str, Callable[[Planting], Events | None]]] = {
    "E1": ("transactions", _dirty_read),
    "E2": ("transactions", _tear),
    "D13": ("delays-priorities", _too_early),
    "A17": ("delays-priorities", _take_back),
    "D10": ("delays-priorities", _starve),
    "F14": ("passing-groups", _old_news),
    "A1": ("mqtt-sessions", _lose),
    "B2": ("mqtt-sessions", _twice_at_qos_2),
    "B3": ("mqtt-sessions", _again_over_one_connection),
    "B6": ("mqtt-sessions", _to_two_members),
    "S1": ("mqtt-sessions", _forget_session),
    "S2": ("mqtt-sessions", _invent_session),
    "R1": ("mqtt-sessions", lambda given: _read_changed(given, _stale)),
    "R2": ("mqtt-sessions", lambda given: _read_changed(given, _absent)),
    "R3": ("mqtt-sessions", lambda given: _read_changed(given, lambda event, writes: "ghost-0")),
    "W1": ("mqtt-flaky-network", _unpublished_will),
    "W2": ("mqtt-sessions", _withdrawn_will),
    "W3": ("mqtt-sessions", _early_will),
}
"""By catalogue id: the scenario whose history has room for it, and what breaks that."""


def plant(anomaly: str, rng: random.Random, events: Events) -> Events | None:
    """The history with the anomaly of this catalogue id; None where the history offers no place for it."""
    changed = PLANTERS[anomaly][1](Planting(rng, events))
    return None if changed is None else renumber(changed)
