"""What must still come before a life can go on. Pure: it reads the links, sessions and shares of a :class:`Referee`.

Nothing is demanded where a server has a choice: a window of one delivery is legal, so nothing more is due to a client
with an unacknowledged one; and acknowledgements of publishes have no deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from assay.conformance.explore.claims import Claim, Via
from assay.conformance.explore.rules import Rule
from assay.conformance.explore.state import Link, Session
from assay.conformance.wire import Packet, Puback, Pubcomp, Pubrec

MARGIN_S = 5.0
"""Times that the broker must keep are judged with this much room; lives use such as differ by more."""
RATE_S = 2.0
"""Who connects again so soon after a takeover may be refused (5.0 5.4.9)."""
_ACKNOWLEDGEMENTS: dict[type[Packet], Rule] = {Puback: Rule.PUBACK, Pubrec: Rule.PUBREC, Pubcomp: Rule.PUBCOMP}

Wanted = tuple[Rule, int, str]
"""What must still come: the rule, the version of the client, and the text."""


Refill = Callable[[Claim, Callable[[Claim], bool]], bool]


def first_wanted(
    links: Collection[Link], sessions: Mapping[int, Session], shares: Iterable[Claim], now: float, refill: Refill
) -> Wanted | None:
    """Something that has to arrive before anything else is asked of the broker; None if nothing has.

    ``refill``: whether a copy that came, and that is owed to nobody, is the one which a claim waits for.
    """

    def is_ready(claim: Claim) -> bool:
        members = [sessions.get(client) for client in claim.members]
        return all(each is not None and each.link is not None and not each.flights for each in members)

    def is_owed(claim: Claim) -> bool:
        in_time = now < claim.message.owed_until - MARGIN_S
        return (
            claim.must and in_time and _may_be_sent(claim, sessions) and (claim.via is not Via.SHARE or is_ready(claim))
        )

    def is_missing(claim: Claim) -> bool:
        """Of one that must come, and did not."""
        return is_owed(claim) and not refill(claim, is_owed)

    pressed = is_pressed(sessions.values())
    for link in links:
        if link.over and link.must_close is None:
            continue
        wanted = _wanted_on(link, is_missing, pressed=pressed)
        if wanted is not None:
            return wanted
    for claim in [claim for claim in shares if claim.must and not claim.satisfied]:
        if is_missing(claim):
            return Rule.SHARE_UNDELIVERED, 5, f"{claim.message.name} for one member of {share_of(claim)!r}"
    return None


def _may_be_sent(claim: Claim, sessions: Mapping[int, Session]) -> bool:
    """It is not too large for any client that may get it."""
    links = [session.link for client in claim.members if (session := sessions.get(client)) is not None]
    return all(claim.message.most_bytes <= link.most_bytes for link in links if link is not None)


def _wanted_on(link: Link, is_missing: Callable[[Claim], bool], *, pressed: bool) -> Wanted | None:
    version = link.version
    if link.must_close is not None:
        return link.must_close, version, f"{link.name}: the end of the connection"
    if link.session is None:
        return Rule.CONNACK, version, f"{link.name}: CONNACK"
    if link.subscribing:
        return Rule.SUBACK, version, f"{link.name}: SUBACK {next(iter(link.subscribing))}"
    if link.unsubscribing:
        return Rule.UNSUBACK, version, f"{link.name}: UNSUBACK {next(iter(link.unsubscribing))}"
    if link.pings:
        return Rule.PINGRESP, version, f"{link.name}: PINGRESP"
    for packet_id, outgoing in () if pressed else link.session.outgoing.items():
        if outgoing.link is link and outgoing.awaits is not None:
            text = f"{link.name}: {outgoing.awaits.type.name} {packet_id} for {outgoing.message.name}"
            return _ACKNOWLEDGEMENTS[outgoing.awaits], version, text
    for packet_id, flight in link.session.flights.items():
        if flight.received and not (flight.released and flight.link is link):
            rule = Rule.PUBREL if flight.link is link else Rule.NOT_RESENT
            return rule, version, f"{link.name}: PUBREL {packet_id}"
    return _wanted_delivery(link, link.session, is_missing)


def is_pressed(sessions: Iterable[Session]) -> bool:
    """Some client has not acknowledged a delivery. Acknowledgements of publishes have no deadline (4.3.2, 4.3.3): a
    server may keep them back until it is rid of what it has."""
    return any(session.flights for session in sessions)


def _wanted_delivery(link: Link, session: Session, is_missing: Callable[[Claim], bool]) -> Wanted | None:
    flights = session.flights.values()
    if any(flight.link is link for flight in flights):
        return None  # a window of one is legal
    for flight in flights:
        text = f"{link.name}: PUBLISH {flight.packet.packet_id} ({flight.topic!r}) once more, with DUP"
        return Rule.NOT_RESENT, link.version, text
    for claim in [claim for claim in session.claims if claim.must and not claim.satisfied]:
        message = claim.message
        if is_missing(claim):
            if claim.came:
                rule = Rule.QOS  # only a copy at a lower one came (MQTT-3.3.5-1)
            elif claim.via is Via.RETAINED:
                rule = Rule.RETAINED_UNSENT
            elif message.is_will:
                rule = Rule.WILL_UNSENT
            else:
                rule = Rule.QUEUED_LOST if claim.queued else Rule.UNDELIVERED
            return rule, link.version, f"{link.name}: {message.name} at QoS {claim.qos} ({claim.via.value})"
    return None


def share_of(claim: Claim) -> str:
    """The filter of a share."""
    return next(iter(claim.members.values()))[0].filter
