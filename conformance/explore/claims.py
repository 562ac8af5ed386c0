"""What sessions have a right to: each message has claims, each claim slots, and each copy that arrives must fit a slot.

A session that has subscriptions of its own and is a member of shares gets several copies, which look alike: which copy
is for which slot is found by matching, so that a copy is refused only if no arrangement of all copies has room for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from assay.conformance.explore.rules import Rule
from assay.conformance.wire import NO_PROPERTIES, Properties, Publish

Objection = tuple[Rule, str]
_MANY = 1_000
_order = itertools.count()
"""Claims and copies are numbered as they come about: a copy is never for what was claimed after it."""
_RICH_BYTES = 150
"""At least what the properties of a publish take here."""
_HEADER_BYTES = 60
"""At least what header, packet identifier, alias and subscription identifiers take."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as it was granted."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    earlier: tuple[Subscription, ...] = ()
    """Of a share that was subscribed to again: no statement says that the new options replace the old ones."""

    @property
    def identifiers(self) -> frozenset[int]:
        return frozenset({self.identifier} - {0})

    def __str__(self) -> str:
        return f"{self.filter!r} at QoS {self.qos}"


class Via(Enum):
    LIVE = "subscription"
    RETAINED = "retained message"
    SHARE = "share"


@dataclass(eq=False)
class Copy:
    """A PUBLISH that came to a client, for the first time."""

    client: int
    version: int
    packet: Publish
    came_at: float
    sent_before: float | None = None
    """It may have been sent before the broker's clock was moved, which was this then."""
    number: int = field(default_factory=lambda: next(_order))


@dataclass(eq=False)
class Claim:
    """What one session gets of one message by its own subscriptions, or the members of a share by theirs."""

    message: Message
    via: Via
    members: dict[int, tuple[Subscription, ...]]
    """Client to its subscriptions that match: one client but for shares; of a retained message, the one that asked."""
    must: bool
    queued: bool = False
    """The session was without connection."""
    maybe_sent: bool = False
    """A connection ended before it was seen: it may come with DUP."""
    loose: bool = False
    """Subscriptions changed while the message was under way, or a member went: QoS, identifiers, or who gets it are
    open, and so is how often a share delivers it."""
    is_optional: bool = False
    """Nothing is ever due: it was made after its message was published, which a server may have handed on by then, or
    a connection ended that may have got it at QoS 0."""
    is_over: bool = False
    """The session has ended: nothing comes by it any more."""
    others: frozenset[int] = frozenset()
    """Identifiers of other subscriptions that match, which may stand beside that of a retained message."""
    number: int = field(default_factory=lambda: next(_order))
    main: Slot | None = None
    """Room for the copy that must come, once its message has it."""

    @property
    def satisfied(self) -> bool:
        return self.main is not None and bool(self.main.copies)

    def join(self, client: int, entries: tuple[Subscription, ...]) -> None:
        """A member of the share may get it as it asks for by now, or asked for before."""
        self.members[client] = tuple(dict.fromkeys((*entries, *self.members.get(client, ()))))

    @property
    def came(self) -> bool:
        """Some copy did, if not the one that must."""
        return any(slot.claim is self and slot.copies for slot in self.message.slots)

    def qos_of(self, client: int) -> int:
        """The QoS of the copy that must come: the maximum of all matching subscriptions decides."""
        return min(self.message.qos, max(entry.qos for entry in self.members[client]))

    @property
    def qos(self) -> int:
        """The lowest that it may be for a member."""
        if self.via is Via.SHARE:
            # What a member has asked for one after the other.
            return min(self.message.qos, *(entry.qos for entries in self.members.values() for entry in entries))
        return min(self.qos_of(client) for client in self.members)

    def why(self, client: int) -> str:
        filters = ", ".join(str(entry) for entry in self.members.get(client, ()))
        return f"{filters} ({self.via.value})"


@dataclass(eq=False)
class Slot:
    """Room for one copy."""

    claim: Claim
    only: Subscription | None = None
    """The subscription whose further copy this is; None for the copy that must come, which may stand for all."""
    extra: bool = False
    """Its message was published a second time: nothing is due."""
    copies: list[Copy] = field(default_factory=list)

    @property
    def main(self) -> bool:
        return self.only is None and not self.extra

    @property
    def due(self) -> bool:
        return self.main and self.claim.must and not self.copies

    @property
    def has_room(self) -> bool:
        shared = self.claim.via is Via.SHARE
        return len(self.copies) < (_MANY if shared and self.claim.loose else 1)

    def _retain(self, entry: Subscription) -> bool:
        if self.claim.via is Via.RETAINED:
            return True
        return self.claim.message.retain and entry.retain_as_published

    def is_named_by(self, copy: Copy) -> bool:
        """The copy has identifiers, and these subscriptions have them."""
        seen = frozenset(copy.packet.properties.subscription_identifier)
        return bool(seen) and seen <= frozenset[int]().union(
            *(entry.identifiers for entry in self.claim.members[copy.client])
        )

    @property
    def may_be_retained(self) -> bool:
        """Some subscription gives its copy RETAIN 1."""
        return any(self._retain(entry) for entries in self.claim.members.values() for entry in entries)

    def _fits_one(self, copy: Copy, entry: Subscription) -> bool:
        packet = copy.packet
        if packet.qos != min(self.claim.message.qos, entry.qos) or packet.retain != self._retain(entry):
            return False
        seen = frozenset(packet.properties.subscription_identifier)
        return copy.version < 5 or entry.identifiers <= seen <= entry.identifiers | self.claim.others

    def _fits_some(self, copy: Copy, entries: tuple[Subscription, ...]) -> bool:
        """Of what a share may still be, each option by itself: no statement says what a new one replaces."""
        if self.claim.via is Via.RETAINED:
            return any(self._fits_one(copy, entry) for entry in entries)
        seen = frozenset(copy.packet.properties.subscription_identifier)
        return (
            copy.packet.qos in {min(self.claim.message.qos, entry.qos) for entry in entries}
            and copy.packet.retain in {self._retain(entry) for entry in entries}
            and (copy.version < 5 or seen in {entry.identifiers for entry in entries})
        )

    def objection(self, copy: Copy) -> Objection | None:
        """What is wrong with the copy for this slot; None if nothing is. The client must be a member."""
        claim, packet = self.claim, copy.packet
        entries = claim.members[copy.client]
        if claim.loose and claim.via is Via.LIVE:
            return None
        if claim.via is not Via.LIVE and self._fits_some(copy, entries):
            return None
        wanted_qos = claim.qos_of(copy.client)
        if self.only is not None:
            return None if self._fits_one(copy, self.only) else (Rule.DUPLICATE, "no subscription has a copy left")
        if any(self._fits_one(copy, entry) for entry in entries) and packet.qos == wanted_qos:
            return None
        why = claim.why(copy.client)
        if packet.qos != wanted_qos:
            return Rule.QOS, f"expected QoS {wanted_qos}, which {why} gives"
        if packet.retain not in {self._retain(entry) for entry in entries}:
            rule = Rule.RETAIN_FLAG_OF_RETAINED if claim.via is Via.RETAINED else Rule.RETAIN_FLAG
            return rule, f"expected RETAIN {int(not packet.retain)}, which {why} gives"
        identifiers = frozenset[int]().union(*(entry.identifiers for entry in entries))
        seen = frozenset(packet.properties.subscription_identifier)
        if copy.version >= 5 and not identifiers <= seen <= identifiers | claim.others:
            return Rule.IDENTIFIERS, f"expected the identifiers {sorted(identifiers) or 'none'}, which {why} gives"
        return None


@dataclass(eq=False)
class Message:
    """An application message, known by its topic and payload; one with an empty payload by its topic alone."""

    number: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    version: int
    """Of the publisher."""
    publisher: int
    sent_at: float
    properties: Properties = NO_PROPERTIES
    is_will: bool = False
    published: bool = True
    """False: a will that is still armed, or that was discarded."""
    any_time: bool = False
    """A will that a server may publish whenever it likes, if at all: its expiry interval begins then."""
    is_unordered: bool = False
    """Others published to its topic at the same time."""
    acknowledged: bool = False
    """To its publisher, to the end."""
    again_at: list[float] = field(default_factory=list)
    """When its PUBLISH was said again, with DUP: a server may count from any of them."""
    claims: list[Claim] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    @property
    def expires_at(self) -> float:
        """After that nobody gets it."""
        return float("inf") if self.any_time else self._expires(max([self.sent_at, *self.again_at]))

    @property
    def owed_until(self) -> float:
        """After that nobody need get it."""
        return self._expires(self.sent_at)

    def _expires(self, published_at: float) -> float:
        interval_s = self.properties.message_expiry_interval
        return float("inf") if interval_s is None else published_at + interval_s

    @property
    def most_bytes(self) -> int:
        """Of its PUBLISH, whatever a server adds to it."""
        return len(self.payload) + len(self.topic.encode()) + (_RICH_BYTES if self.version >= 5 else 0) + _HEADER_BYTES

    @property
    def name(self) -> str:
        return f"{'will' if self.is_will else 'message'} {self.number} ({self.topic!r}, QoS {self.qos})"

    def add(self, claim: Claim) -> None:
        """A claim with its slots: one copy, or one for each of several subscriptions of a session."""
        self.claims.append(claim)
        claim.main = Slot(claim=claim)
        self.slots.append(claim.main)
        if claim.via is Via.LIVE:
            entries = next(iter(claim.members.values()))
            self.slots += [Slot(claim=claim, only=entry) for entry in (entries if len(entries) > 1 else ())]

    def widen(self, claim: Claim, copies: int) -> None:
        """Subscriptions were added while it was under way: room for a copy of each."""
        (entries,) = claim.members.values()
        extras = sum(slot.extra for slot in self.slots if slot.claim is claim)
        self.slots += [Slot(claim=claim, extra=True) for _ in range(copies - len(entries) - extras)]

    def remove(self, claim: Claim) -> None:
        """A claim that was added, and of which nothing came."""
        self.claims.remove(claim)
        self.slots = [slot for slot in self.slots if slot.claim is not claim]

    def published_again(self) -> None:
        """At QoS 1, by a publisher that came back: all may come once more."""
        self.slots += [Slot(claim=slot.claim, only=slot.only, extra=True) for slot in self.slots if not slot.extra]

    def slots_of(self, client: int) -> list[Slot]:
        """Those in which the copy of a client may be, what must be filled first."""
        mine = [slot for slot in self.slots if client in slot.claim.members and not slot.claim.is_over]
        return sorted(mine, key=_rank)

    def is_shared_with(self, client: int) -> bool:
        """A share may bring it as well: a copy without identifiers may be either."""
        return any(one.via is Via.SHARE and client in one.members for one in self.claims)

    def count(self, claim: Claim, *, extra: bool = False) -> int:
        """Copies that came for a claim."""
        return sum(len(slot.copies) for slot in self.slots if slot.claim is claim and slot.extra is extra)

    def is_served(self, claim: Claim, subscriptions: int, *, extra: bool) -> bool:
        """Each of its subscriptions has had a copy of each publish."""
        rounds = sum(slot.only is None for slot in self.slots if slot.claim is claim and slot.extra is extra)
        return self.count(claim, extra=extra) >= subscriptions * rounds

    def _fits_elsewhere(self, slot: Slot, copy: Copy) -> bool:
        """It may be another claim's, of which none came."""
        others = (other for other in self.slots_of(copy.client) if other.claim is not slot.claim and other.has_room)
        return any(copy.number > other.claim.number and other.objection(copy) is None for other in others)

    def complaint(self) -> tuple[int, Objection] | None:
        """At the end: a client whose single copy, of several subscriptions', lacks identifiers, and the objection."""
        for slot in self.slots:
            copies = slot.copies
            if slot.claim.via is not Via.LIVE or not slot.main or not copies or slot.claim.loose:
                continue
            copy = copies[0]
            if self.is_shared_with(copy.client) or self._fits_elsewhere(slot, copy):
                continue  # which of its copies is the one of its own subscriptions is not certain
            entries = slot.claim.members[copy.client]
            if (slot.claim.queued or slot.claim.maybe_sent) and any(entry.qos == 0 for entry in entries):
                continue  # a copy at QoS 0 may be gone
            identifiers = frozenset[int]().union(*(entry.identifiers for entry in entries))
            seen = frozenset(copy.packet.properties.subscription_identifier)
            if copy.version >= 5 and seen != identifiers and self.count(slot.claim) == 1:
                text = f"{self.name} came once, with the identifiers {sorted(seen)} in place of {sorted(identifiers)}"
                return copy.client, (Rule.IDENTIFIERS, text)
        return None


def _rank(slot: Slot) -> tuple[bool, bool, bool, int]:
    """What must be filled comes first."""
    return not slot.due, not slot.main, slot.extra, len(slot.copies)


def place(messages: list[Message], copy: Copy, fits: Callable[[Message, Copy], bool]) -> Slot | None:
    """Find room for a copy among messages of one content, moving other copies if need be; None if there is none.

    First where a copy must be, then where one may be as well; both among messages that ``fits`` before the others.
    """
    for mains, every in ((True, False), (False, False), (True, True), (False, True)):
        slots = [
            slot
            for message in messages
            for slot in message.slots
            if (slot.main or not mains) and (every or fits(message, copy))
        ]
        found = _place(sorted(slots, key=_rank), copy, set())
        if found is not None:
            return found
    return None


def _place(slots: list[Slot], copy: Copy, tried: set[int]) -> Slot | None:
    for slot in slots:
        claim = slot.claim
        if id(slot) in tried or claim.is_over or copy.client not in claim.members or slot.objection(copy) is not None:
            continue
        if slot.only is not None and claim.message.is_served(claim, len(claim.members[copy.client]), extra=slot.extra):
            continue
        tried.add(id(slot))
        if not slot.has_room:
            other = slot.copies[0]
            if _place(slots, other, tried) is None:
                continue
            slot.copies.remove(other)
        slot.copies.append(copy)
        return slot
    return None


def refill(
    claim: Claim, same: Iterable[Message], owed: Callable[[Claim], bool], fits: Callable[[Message, Copy], bool]
) -> bool:
    """Fill what a claim is owed with a copy that stands where none is owed, or whose place another one can take.

    ``same``: the messages of this content, which nobody can tell apart; ``fits``: as for :func:`place`.
    """
    slots = [slot for message in same for slot in message.slots]
    return _refill(claim, slots, owed, fits, set())


def _refill(
    claim: Claim,
    slots: list[Slot],
    owed: Callable[[Claim], bool],
    fits: Callable[[Message, Copy], bool],
    tried: set[int],
) -> bool:
    main = claim.main
    assert main is not None
    tried.add(id(claim))
    for slot in slots:
        if id(slot.claim) in tried:
            continue
        for copy in slot.copies:
            is_for = copy.number > claim.number and copy.client in claim.members and fits(claim.message, copy)
            if not is_for or main.objection(copy) is not None:
                continue
            is_free = not slot.main or len(slot.copies) > 1 or not owed(slot.claim)
            if is_free or _refill(slot.claim, slots, owed, fits, tried):
                slot.copies.remove(copy)
                main.copies.append(copy)
                return True
    return False


def is_sent_again(message: Message, copy: Copy) -> bool:
    """With DUP 1: its delivery may have begun before the message expired, and what has begun is completed."""
    return copy.packet.dup and any(slot.claim.maybe_sent for slot in message.slots_of(copy.client))
