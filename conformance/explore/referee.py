"""The model: sees every packet of a life, says what is not allowed and what must still come. Pure: no clock, no socket.

The player tells what was sent, received and ended, with the time of the broker's clock. :class:`ViolationError` is
raised as soon as something cannot be right; :meth:`Referee.waiting` names what has to arrive before a life can go on.

Where the standards leave a choice, nothing is demanded: a window of one delivery is legal, so that nothing is due from
a session with an unacknowledged one; QoS 0 for a session without connection may be kept or not; overlapping
subscriptions give one copy or several; a retained QoS 0 message may vanish; what nobody has seen yet, or the
acknowledgement of which, may be handed on by later subscriptions; what ``$`` topics carry between
clients is the server's affair; order counts for one publisher, topic and QoS alone; a refusal is no violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from assay.conformance.explore.claims import Claim, Copy, Message, Slot, Subscription, Via, is_sent_again, place, refill
from assay.conformance.explore.contents import changed, is_alike, is_kept_away, objections_of
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.state import Flight, Link, Outgoing, Session, race
from assay.conformance.explore.topics import is_shared, matches, matches_but_for_dollar, pattern
from assay.conformance.explore.wanted import MARGIN_S, RATE_S, Wanted, first_wanted, is_pressed, share_of
from assay.conformance.wire import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    describe,
)

REFUSED = 0x80
NO_SUBSCRIPTION_EXISTED = 0x11
_WITH_WILL = 0x04
_ADMINISTRATORS_S = 25.0
_NEAREST = {Rule.QOS: 1, Rule.RETAIN_FLAG: 2, Rule.RETAIN_FLAG_OF_RETAINED: 2, Rule.IDENTIFIERS: 3}
"""Of several objections, the one of the slot in which most fits: the others are about slots that it is not for."""


class Referee:
    """One life."""

    def __init__(self, *, ours: str) -> None:
        """``ours`` is in every topic of this life: messages without it are somebody else's."""
        self.ours = ours
        self.links: dict[str, Link] = {}
        self.sessions: dict[int, Session] = {}
        self.retained: dict[str, list[Message | None]] = {}
        """Topic to what may be retained there; one entry where that is certain."""
        self._retained_last: dict[str, Message] = {}
        """Topic to what was sent to be retained there last, or to remove it."""
        self.messages: list[Message] = []
        self._by_content: dict[tuple[str, bytes], list[Message]] = {}
        self._by_payload: dict[bytes, Message] = {}
        self._shares: list[Claim] = []
        self._hazy: set[str] = set()
        """Topics to which a retained will may be published at any time."""
        self._taken_over_at: dict[int, float] = {}
        self._at_once: dict[str, set[int]] | None = None
        """Topic to the clients that publish to it within the burst that is going on."""

    # What the player tells

    def sent(self, link: Link, packet: Packet, now: float) -> None:
        """A client sent a packet. The first on a link is CONNECT, by :meth:`connect`."""
        link.last_sent_at = now
        match packet:
            case Publish():
                self._sent_publish(link, packet, now)
            case Subscribe():
                link.subscribing[packet.packet_id] = packet
                link.beside[packet.packet_id] = self._under_way()
            case Unsubscribe():
                link.unsubscribing[packet.packet_id] = packet
                link.beside[packet.packet_id] = self._under_way()
            case Pingreq():
                link.pings += 1
            case Pubrel():
                outgoing = self._session(link).outgoing[packet.packet_id]
                outgoing.link, outgoing.awaits = link, Pubcomp
                self._route_again(outgoing.message, now)
            case Puback() | Pubcomp():
                self._session(link).flights.pop(packet.packet_id, None)
            case Pubrec():
                flight = self._session(link).flights.get(packet.packet_id)
                if flight is not None:
                    flight.received = True
            case Disconnect():
                link.goodbye = True
                if packet.properties.session_expiry_interval is not None:
                    link.kept_s = float(packet.properties.session_expiry_interval)
                if packet.reason_code != _WITH_WILL:
                    link.will = None
                self._finish(link, now)

    def connect(self, name: str, client: int, packet: Connect, kept_s: float, now: float) -> Link:
        """A client sends CONNECT on a new connection; a connection that it has is taken over."""
        link = Link(name=name, client=client, connect=packet, kept_s=kept_s, last_sent_at=now)
        link.keep_alive_s = float(packet.keep_alive_s)
        if packet.will is not None:
            will = packet.will
            link.will = self._remember(
                Publish(
                    topic=will.topic,
                    payload=will.payload,
                    qos=will.qos,
                    retain=will.retain,
                    properties=will.properties,
                ),
                link,
                now,
            )
            link.will.is_will, link.will.published = True, False
            link.will_delay_s = float(will.properties.will_delay_interval or 0)
        session = self.sessions.get(client)
        link.may_be_refused = self.may_be_refused(client, now)
        if session is not None and session.link is not None:
            self._taken_over_at[client] = now
            older = session.link
            older.superseded = True
            older.must_close = Rule.TAKEOVER
            self._finish(older, now, taken_over_by=packet)
        if packet.clean and client in self.sessions:
            self._end_session(self.sessions[client], now, by_clean_start=True)
        self.links[name] = link
        return link

    def may_be_refused(self, client: int, now: float) -> bool:
        """The client has just taken a connection of its own over: a server may have enough of that."""
        return now - self._taken_over_at.get(client, float("-inf")) < RATE_S

    def burst(self, *, begins: bool) -> None:
        """From here on, or until here, publishes of several clients are under way at once, in any order."""
        self._at_once = {} if begins else None

    def received(self, link: Link, packet: Packet, now: float) -> None:
        """The broker sent a packet. Raises :class:`ViolationError`."""
        if link.superseded or link.over:
            return  # what was under way when the connection was given up says nothing
        if link.session is None:
            if not isinstance(packet, Connack):
                raise self._violation(Rule.CONNACK, link, f"expected CONNACK, seen {describe(packet)}")
            self._accepted(link, packet, now)
            return
        match packet:
            case Publish():
                self._received_publish(link, packet, now)
            case Puback() | Pubrec() | Pubcomp():
                self._acknowledged(link, packet)
            case Pubrel():
                self._released(link, packet)
            case Suback():
                self._subscribed(link, packet, now)
            case Unsuback():
                self._unsubscribed(link, packet, now)
            case Pingresp():
                if not link.pings:
                    raise self._violation(Rule.UNASKED, link, "a PINGRESP without PINGREQ")
                link.pings -= 1
            case Disconnect():
                link.goodbye = True
                if link.must_close is None and not link.may_be_ended:
                    raise self._violation(Rule.ENDED, link, f"no reason for {describe(packet)}")
            case _:
                raise self._violation(Rule.UNASKED, link, f"unexpected {describe(packet)}")

    def ended(self, link: Link, now: float, *, by_broker: bool) -> None:
        """The connection is gone. Raises :class:`ViolationError` if the broker had no reason to end it."""
        expected = link.must_close is not None or link.goodbye or link.over or link.may_be_ended
        link.must_close = None
        if by_broker and not expected:
            pending = self.waiting(now)
            text = f"; it owes {pending[2]}" if pending else ""
            rule = pending[0] if pending and pending[0] not in (Rule.UNDELIVERED, Rule.QUEUED_LOST) else Rule.ENDED
            raise self._violation(rule, link, f"the broker ended the connection for no reason{text}")
        if not link.over:
            self._finish(link, now)

    def moved(self, now: float, by_s: float) -> None:
        """The broker's clock was moved to ``now``: all that was due meanwhile is due at once, in any order."""
        self.burst(begins=True)
        for link in list(self.links.values()):
            link.moved = now - by_s, now + MARGIN_S
            is_late = 0 < 1.5 * link.keep_alive_s < now - link.last_sent_at
            if link.session is not None and not link.over and is_late:
                link.must_close = Rule.KEEP_ALIVE
                self._finish(link, now)
        for session in list(self.sessions.values()):
            if session.link is None and session.will is not None and now > session.will_due_at:
                self._publish_will(session, now)
            if session.link is None and now > session.expires_at:
                self._end_session(session, now)
        lost = [link.session for link in self.links.values() if link.must_close is Rule.KEEP_ALIVE and link.session]
        for claim in [claim for session in lost for claim in session.claims]:
            claim.maybe_sent = claim.maybe_sent or not claim.satisfied  # before the end of the connection
        self.burst(begins=False)

    def restarted(self, now: float) -> None:
        """The broker was killed and runs again: connections are gone, sessions are not, wills may be sent or not."""
        links = list(self.links.values())
        broken = [link for link in links if not link.over]
        for link in links:
            link.must_close = None
        # A server that is asked to end may publish them while it still has connections, to clients that see no more.
        for link in broken:
            will, link.will = link.will, None
            if will is not None:
                orphan = Session(client=link.client, version=link.version, will=will)
                self._publish_will(orphan, now, must=False)
        for session in self.sessions.values():
            session.begin_retained_anew()
        for link in broken:
            self._finish(link, now)

    def retained_topics(self) -> list[str]:
        """Topics on which something may be retained, now or once every will was published."""
        wills = {message.topic for message in self.messages if message.is_will and message.retain}
        return sorted(wills | {topic for topic, candidates in self.retained.items() if candidates != [None]})

    # What must still come

    def waiting(self, now: float) -> Wanted | None:
        """Something that has to arrive before anything else is asked of the broker; None if nothing has."""
        return first_wanted(self.links.values(), self.sessions, self._shares, now, self._refill)

    def _refill(self, claim: Claim, owed: Callable[[Claim], bool]) -> bool:
        """Whether a copy of a message with the same content may be the one that a claim waits for."""
        message = claim.message
        return refill(claim, self._by_content[message.topic, message.payload], owed, is_alike)

    @property
    def is_pressed(self) -> bool:
        """See :func:`is_pressed`."""
        return is_pressed(self.sessions.values())

    def audit(self) -> None:
        """At the end of a life. Raises :class:`ViolationError` for what only the whole shows."""
        for message in self.messages:
            if (found := message.complaint()) is not None:
                client, (rule, text) = found
                raise ViolationError(rule, 5, f"client {client}: {text}")

    # Connections and sessions

    def _session(self, link: Link) -> Session:
        if link.session is None:
            message = f"{link.name} is not accepted yet"
            raise RuntimeError(message)
        return link.session

    def _violation(self, rule: Rule, link: Link, text: str) -> ViolationError:
        return ViolationError(rule, link.version, f"{link.name}: {text}")

    def _accepted(self, link: Link, packet: Connack, now: float) -> None:
        if packet.reason_code != 0:
            if link.may_be_refused:
                link.over = True
                return
            raise self._violation(Rule.CONNACK, link, f"expected to be accepted, seen {describe(packet)}")
        session = self.sessions.get(link.client)
        if link.connect.clean:
            if packet.session_present:
                raise self._violation(Rule.SESSION_KEPT_AT_CLEAN, link, "Session Present 1 after a clean start")
            session = None
        elif session is not None and not packet.session_present:
            # One that ended as it was taken over may be seen either way.
            if now < min(session.expires_at, session.bounded_at):
                raise self._violation(Rule.SESSION_LOST, link, "Session Present 0, and there is a session")
            self._end_session(session, now)
            session = None
        elif session is None and packet.session_present:
            raise self._violation(Rule.SESSION_LEFT, link, "Session Present 1, and there is no session")
        if session is None:
            session = self.sessions[link.client] = Session(client=link.client, version=link.version)
        link.session, session.link = session, link
        session.will = None  # a new connection before the delay has passed (MQTT-3.1.3-9)
        said = packet.properties
        if said.server_keep_alive is not None:
            link.keep_alive_s = float(said.server_keep_alive)
        if said.session_expiry_interval is not None:
            link.kept_s = link.most_kept_s = float(said.session_expiry_interval)

    def _finish(self, link: Link, now: float, *, taken_over_by: Connect | None = None) -> None:
        """The server has no connection any more for what belongs to this link."""
        link.over = True
        session = link.session
        if session is None:
            return
        session.link = None
        for claim in [claim for message in link.doubtful for claim in message.claims]:
            claim.must = False  # the server ended the connection before it came to that, perhaps
        for claim in session.claims:
            if not claim.satisfied:
                claim.maybe_sent = True
                claim.is_optional = claim.is_optional or claim.qos == 0
                claim.must = claim.must and not claim.is_optional
        for share in self._shares:
            if session.client in share.members and (not share.satisfied or session.flights):
                share.must, share.loose, share.maybe_sent = False, True, True
        for outgoing in session.outgoing.values():
            for claim in outgoing.message.claims if outgoing.awaits is Pubcomp else ():
                claim.must = False  # PUBREL may be lost
            outgoing.awaits = None
        session.expires_at = now + link.kept_s
        session.bounded_at = now + (_ADMINISTRATORS_S if link.version < 5 else min(link.kept_s, link.most_kept_s))
        ends = link.kept_s <= 0
        if link.will is not None:
            session.will, session.will_due_at = link.will, now + min(link.will_delay_s, link.kept_s)
            if link.will_delay_s > 0 and taken_over_by is not None:
                if ends or taken_over_by.clean:
                    self._publish_will(session, now, must=False)  # back in time, or the session ended: both is said
            elif link.will_delay_s <= 0 or ends:
                self._publish_will(session, now)
        if ends and (taken_over_by is None or link.version < 5 or taken_over_by.clean):
            self._end_session(session, now)

    def _notice_an_end(self, topic: str, payload: bytes, now: float) -> None:
        """A will says that the server has ended a connection, where it may, before the end is seen on that one."""
        for link in list(self.links.values()):
            will = link.will if (link.may_be_ended or link.goodbye) and not link.over else None
            if will is not None and (will.topic, will.payload) == (topic, payload):
                link.must_close = Rule.WILL_EARLY
                self._finish(link, now)

    def _publish_will(self, session: Session, now: float, *, must: bool = True) -> None:
        """``must`` not: a server may also discard it, or publish it at any later time."""
        will, session.will = session.will, None
        if will is not None:
            will.published, will.sent_at, will.any_time = True, now, not must
            if will.retain and not must:
                self._hazy.add(will.topic)
            self._route(will, now, must=must)
            self._retain(will, certain=must)

    def _end_session(self, session: Session, now: float, *, by_clean_start: bool = False) -> None:
        if self.sessions.get(session.client) is session:
            del self.sessions[session.client]
        for claim in session.claims:
            claim.must, claim.is_over = False, True
        self._leave_shares(session.client, self._shares)
        self._publish_will(session, now, must=not by_clean_start)  # a client that is back in time has none, either

    def _leave_shares(self, client: int, shares: Iterable[Claim]) -> None:
        for share in shares:
            if client in share.members:
                share.must, share.loose = share.must and share.satisfied, share.loose or not share.satisfied

    # Publishing

    def _remember(self, packet: Publish, link: Link, now: float) -> Message:
        message = Message(
            number=len(self.messages) + 1,
            topic=packet.topic,
            payload=packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            version=link.version,
            publisher=link.client,
            sent_at=now,
            properties=packet.properties,
        )
        self.messages.append(message)
        self._by_content.setdefault((packet.topic, packet.payload), []).append(message)
        if packet.payload:
            self._by_payload[packet.payload] = message
        return message

    def _sent_publish(self, link: Link, packet: Publish, now: float) -> None:
        session = self._session(link)
        link.excused = link.excused or packet.topic.startswith("$")
        alias = packet.properties.topic_alias
        if alias is not None:
            if packet.topic:
                link.own_aliases[alias] = packet.topic
            else:
                packet = msgspec.structs.replace(packet, topic=link.own_aliases[alias])
        outgoing = session.outgoing.get(packet.packet_id) if packet.qos else None
        if outgoing is not None and packet.dup:
            outgoing.link = link
            outgoing.awaits = Puback if packet.qos == 1 else Pubrec
            outgoing.message.again_at.append(now)
            if packet.qos == 1:
                self._route(outgoing.message, now, must=False)
                outgoing.message.published_again()
                self._retain(outgoing.message, certain=False)
            return
        message = self._remember(packet, link, now)
        if link.excused:
            link.doubtful.append(message)
        if packet.qos:
            awaits = Puback if packet.qos == 1 else Pubrec
            session.outgoing[packet.packet_id] = Outgoing(message=message, link=link, awaits=awaits)
        self._route(message, now, must=packet.qos < 2)
        self._retain(message, certain=packet.qos == 0 and not link.excused)

    def _retain(self, message: Message, *, certain: bool) -> None:
        race(message, self.sessions.values())
        if message.retain:
            self._retained_last[message.topic] = message
            self._keep(message, certain=certain)

    def _keep(self, message: Message, *, certain: bool) -> None:
        if not message.retain:
            return
        kept: list[Message | None] = [message if message.payload else None]
        if message.qos == 0 and message.payload:
            kept.append(None)  # may be discarded at any time (3.3.1.3 of both versions)
        if self._at_once is not None:
            publishers = self._at_once.setdefault(message.topic, set())
            publishers.add(message.publisher)
            message.is_unordered = message.is_unordered or len(publishers) > 1
        certain = certain and not message.is_unordered and message.topic not in self._hazy
        for session in self.sessions.values():
            session.replace_retained(message)
        before = [] if certain else self.retained.get(message.topic, [None])
        self.retained[message.topic] = [*(entry for entry in before if entry not in kept), *kept]

    def _matching(self, message: Message) -> Iterator[tuple[Session, tuple[Subscription, ...]]]:
        for session in self.sessions.values():
            own = tuple(
                entry
                for entry in session.subscriptions.values()
                if not is_shared(entry.filter)
                and matches(entry.filter, message.topic)
                and not (entry.no_local and session.client == message.publisher and not message.is_will)
            )
            if own:
                yield session, own

    def _route(self, message: Message, now: float, *, must: bool) -> None:
        """Give every session its claim, as the subscriptions are now."""
        must = must and not message.topic.startswith("$")
        for session, own in self._matching(message):
            self._route_to_session(message, session, own, must)
        shares: dict[str, dict[int, tuple[Subscription, ...]]] = {}
        for session in self.sessions.values():
            for entry in session.subscriptions.values():
                if is_shared(entry.filter) and matches(pattern(entry.filter), message.topic):
                    shares.setdefault(entry.filter, {})[session.client] = session.alternatives(entry.filter)
        for members in shares.values():
            self._route_to_share(message, members, must)

    def _route_to_session(self, message: Message, session: Session, own: tuple[Subscription, ...], must: bool) -> None:
        queued = session.link is None
        known = next((one for one in session.claims if one.message is message and one.via is Via.LIVE), None)
        if known is not None:
            if known.members[session.client] != own:
                known.loose = True
                message.widen(known, len(own))
            elif must and not known.is_optional:
                known.must = known.must or known.qos > 0 or not (queued or known.queued)
            return
        claim = Claim(message=message, via=Via.LIVE, members={session.client: own}, must=must, queued=queued)
        own_will = message.is_will and session.client == message.publisher
        claim.loose = own_will and any(entry.no_local for entry in own)  # which may hold for a will or not
        claim.must = must and (claim.qos > 0 or not queued) and not own_will
        session.claims.append(claim)
        message.add(claim)

    def _route_to_share(self, message: Message, members: dict[int, tuple[Subscription, ...]], must: bool) -> None:
        name = next(iter(members.values()))[0].filter
        known = next((one for one in self._shares if one.message is message and share_of(one) == name), None)
        connected = all(self.sessions[client].link is not None for client in members)
        if known is None:
            claim = Claim(message=message, via=Via.SHARE, members=members, must=must and connected)
            claim.loose = claim.maybe_sent = not connected
            self._shares.append(claim)
            message.add(claim)
        elif known.members != members:
            known.loose = True
            for client, entries in members.items():
                known.join(client, entries)
        elif must and not known.is_optional:
            known.must = connected and not known.loose

    def _route_again(self, message: Message, now: float) -> None:
        """QoS 2, at PUBREL: a server may hand on at PUBLISH or now; what is the same at both must come."""
        self._route_late(message, now, must=True)
        race(message, self.sessions.values())
        self._keep(message, certain=False)

    def _route_late(self, message: Message, now: float, *, must: bool) -> None:
        """As the subscriptions are now, some time after its PUBLISH."""
        before = {id(claim) for claim in message.claims}
        self._route(message, now, must=must)
        for claim in message.claims:
            if id(claim) not in before:
                claim.is_optional, claim.must = True, False

    def _under_way(self) -> list[Message]:
        """What is sent and not acknowledged."""
        sent = [outgoing for session in self.sessions.values() for outgoing in session.outgoing.values()]
        return [outgoing.message for outgoing in sent if outgoing.awaits is not None]

    def _route_under_way(self, beside: list[Message], now: float) -> None:
        """What was under way ``beside`` a request, or still is, may be handled before it, or after it."""
        for message in dict.fromkeys((*beside, *self._under_way())):
            self._route_late(message, now, must=False)
        for will in self.messages:
            if will.any_time and will.published and not any(slot.copies for slot in will.slots):
                self._route_late(will, now, must=False)

    def unread(self, client: int, packet_id: int) -> None:
        """A connection was lost so soon after a PUBLISH that nobody knows whether the server has seen it."""
        session = self.sessions.get(client)
        outgoing = session.outgoing.get(packet_id) if session is not None else None
        for claim in outgoing.message.claims if outgoing is not None else ():
            claim.must = False  # it was not sent if the server cut it off

    def _acknowledged(self, link: Link, packet: Puback | Pubrec | Pubcomp) -> None:
        session = self._session(link)
        outgoing = session.outgoing.get(packet.packet_id)
        if isinstance(packet, Pubrec) and outgoing is not None and outgoing.awaits is Pubcomp:
            return  # sent again to a client that came back
        if outgoing is not None and outgoing.link is not link:
            return  # said again to a client that is back, before that has said anything again: nothing forbids it
        if outgoing is None or not isinstance(packet, outgoing.awaits or ()):
            raise self._violation(Rule.UNASKED, link, f"nothing to acknowledge by {describe(packet)}")
        outgoing.awaits, outgoing.received = None, isinstance(packet, Pubrec)
        outgoing.message.acknowledged = not isinstance(packet, Pubrec)
        if packet.reason_code >= REFUSED:
            for claim in outgoing.message.claims:
                claim.must = False
            self._retain(outgoing.message, certain=False)
        elif not isinstance(packet, Pubrec):
            last = self._retained_last.get(outgoing.message.topic)  # whether anything was published behind it
            self._keep(outgoing.message, certain=last is outgoing.message)
        if not isinstance(packet, Pubrec) or packet.reason_code >= REFUSED:
            del session.outgoing[packet.packet_id]

    # Subscriptions

    def _subscribed(self, link: Link, packet: Suback, now: float) -> None:
        session = self._session(link)
        asked = link.subscribing.pop(packet.packet_id, None)
        if asked is None:
            raise self._violation(Rule.UNASKED, link, f"no SUBSCRIBE for {describe(packet)}")
        if len(packet.reason_codes) != len(asked.subscriptions):
            text = f"{len(packet.reason_codes)} code(s) for {len(asked.subscriptions)} filter(s)"
            raise self._violation(Rule.SUBACK, link, text)
        identifier = next(iter(asked.properties.subscription_identifier), 0)
        for entry, code in zip(asked.subscriptions, packet.reason_codes, strict=True):
            if code >= REFUSED:
                continue
            if code > entry.qos:
                raise self._violation(Rule.SUBACK, link, f"granted QoS {code} for {entry.filter!r} at {entry.qos}")
            existed = entry.filter in session.subscriptions
            granted = Subscription(
                filter=entry.filter,
                qos=code,
                no_local=entry.no_local,
                retain_as_published=entry.retain_as_published,
                identifier=identifier,
                earlier=session.alternatives(entry.filter) if is_shared(entry.filter) else (),
            )
            session.subscriptions[entry.filter] = granted
            handling = entry.retain_handling if link.version >= 5 else 0
            if not is_shared(entry.filter) and (handling == 0 or (handling == 1 and not existed)):
                self._claim_retained(session, granted, now)
        self._route_under_way(link.beside.pop(packet.packet_id, []), now)

    def _claim_retained(self, session: Session, granted: Subscription, now: float) -> None:
        for topic, candidates in self.retained.items():
            if not matches(granted.filter, topic):
                continue
            matching = [entry for entry in session.subscriptions.values() if matches(pattern(entry.filter), topic)]
            others = frozenset[int]().union(*(entry.identifiers for entry in matching))
            for message in candidates:
                if message is not None and now < message.expires_at + MARGIN_S:
                    claim = Claim(
                        message=message,
                        via=Via.RETAINED,
                        members={session.client: (granted,)},
                        must=len(candidates) == 1 and not topic.startswith("$"),
                        others=others - granted.identifiers,
                    )
                    session.claims.append(claim)
                    message.add(claim)

    def _unsubscribed(self, link: Link, packet: Unsuback, now: float) -> None:
        session = self._session(link)
        asked = link.unsubscribing.pop(packet.packet_id, None)
        if asked is None:
            raise self._violation(Rule.UNASKED, link, f"no UNSUBSCRIBE for {describe(packet)}")
        codes = packet.reason_codes
        if link.version >= 5 and len(codes) != len(asked.filters):
            raise self._violation(Rule.UNSUBACK, link, f"{len(codes)} code(s) for {len(asked.filters)} filter(s)")
        for index, topic_filter in enumerate(asked.filters):
            code = codes[index] if link.version >= 5 else 0
            if code >= REFUSED:
                continue
            known = session.subscriptions.pop(topic_filter, None)
            if known is None:
                continue
            session.former.add(topic_filter)
            if code == NO_SUBSCRIPTION_EXISTED:
                raise self._violation(Rule.UNSUBACK_CODE, link, f"code 0x11 for {topic_filter!r}, which existed")
            for claim in session.claims:
                if any(one.filter == topic_filter for one in claim.members[session.client]) and not claim.satisfied:
                    claim.must = False  # what is queued may be dropped, or come (MQTT-3.10.4-3)
            self._leave_shares(session.client, [one for one in self._shares if share_of(one) == topic_filter])
        self._route_under_way(link.beside.pop(packet.packet_id, []), now)

    # Deliveries

    def _released(self, link: Link, packet: Pubrel) -> None:
        flight = self._session(link).flights.get(packet.packet_id)
        if flight is None:
            if link.version >= 5 and link.connect.clean:  # 3.1.1 may repeat it
                raise self._violation(Rule.UNASKED, link, f"no PUBREC for {describe(packet)}")
            return
        if not flight.received:
            raise self._violation(Rule.PUBREL, link, f"{describe(packet)} before the client sent PUBREC")
        flight.released, flight.link = True, link

    def _received_publish(self, link: Link, packet: Publish, now: float) -> None:
        session = self._session(link)
        topic = link.topic_of(packet)
        self._notice_an_end(topic, packet.payload, now)
        flight = session.flights.get(packet.packet_id) if packet.qos else None
        if flight is not None:
            self._received_again(link, session, flight, packet, topic)
            return
        maximum = link.receive_maximum
        # A PUBREL that is sent again stands for no PUBLISH of this connection (5.0 3.1.2.11.3).
        under_way = sum(one.sent_on is link for one in session.flights.values())
        if packet.qos and under_way >= maximum:
            text = f"{under_way} deliveries are unacknowledged, Receive Maximum is {maximum}: {describe(packet)}"
            raise self._violation(Rule.RECEIVE_MAXIMUM, link, text)
        if packet.qos:
            session.flights[packet.packet_id] = Flight(packet=packet, topic=topic, link=link, sent_on=link)
        if self.ours not in topic:
            return
        copy = Copy(session.client, session.version, packet, now, link.sent_before(now))
        slot = self._slot_for(link, session, copy, topic, now)
        message = slot.claim.message
        if packet.dup and not any(one.claim.maybe_sent for one in message.slots_of(session.client)):
            raise self._violation(Rule.DUP, link, f"DUP 1 at the first delivery: {describe(packet)}")
        objection = changed(message, copy)
        if objection is not None:
            raise self._violation(objection[0], link, f"{objection[1]}: {describe(packet)}")
        is_first = slot.claim.via is Via.LIVE and message.count(slot.claim) == 1
        if is_first and not message.is_will and not message.is_shared_with(copy.client):
            self._check_order(link, session, message, packet)

    def _received_again(self, link: Link, session: Session, flight: Flight, packet: Publish, topic: str) -> None:
        same = (topic, packet.payload, packet.qos) == (flight.topic, flight.packet.payload, flight.packet.qos)
        if not same:
            text = f"packet identifier {packet.packet_id} is in use for {flight.topic!r}: {describe(packet)}"
            raise self._violation(Rule.PACKET_ID, link, text)
        if flight.received:
            raise self._violation(Rule.AFTER_PUBREC, link, f"the client has sent PUBREC: {describe(packet)}")
        if not packet.dup:
            raise self._violation(Rule.DUP, link, f"DUP 0 at a delivery that was sent before: {describe(packet)}")
        if flight.link is link and link.version >= 5:
            raise self._violation(Rule.RESENT, link, f"it was sent on this connection: {describe(packet)}")
        before, after = flight.packet, packet
        flags = (before.retain, set(before.properties.subscription_identifier))
        if flags != (after.retain, set(after.properties.subscription_identifier)):
            text = f"sent again as {describe(after)}, first as {describe(before)}"
            raise self._violation(Rule.RESENT_OTHERWISE, link, text)
        if link.version < 5 and flight.link is not link:
            waiting = [one for one in session.flights.values() if one.link is not link and not one.received]
            if waiting[0] is not flight:
                text = f"sent again before {describe(waiting[0].packet)}: {describe(packet)}"
                raise ViolationError(Rule.ORDER, link.version, f"{link.name}: {text}", ("MQTT-4.6.0-1",))
        flight.link = flight.sent_on = link
        sent, maximum = sum(one.sent_on is link for one in session.flights.values()), link.receive_maximum
        if sent > maximum:
            text = f"{sent} deliveries are unacknowledged, Receive Maximum is {maximum}: {describe(packet)}"
            raise self._violation(Rule.RECEIVE_MAXIMUM, link, text)

    def _slot_for(self, link: Link, session: Session, copy: Copy, topic: str, now: float) -> Slot:
        """Where the copy fits. Raises :class:`ViolationError` with the reason why it fits nowhere."""
        packet = copy.packet
        known = self._by_content.get((topic, packet.payload), [])
        if not known:
            other = self._by_payload.get(packet.payload)
            if other is not None:
                raise self._violation(Rule.TOPIC, link, f"{other.name} came as {describe(packet)}")
            raise self._violation(Rule.UNKNOWN_MESSAGE, link, f"nobody published {describe(packet)}")
        fresh = [one for one in known if now <= one.expires_at + MARGIN_S or is_sent_again(one, copy)]
        for message in fresh:
            self._join_loose_shares(message, session)
        slot = place(fresh, copy, is_alike) or self._handed_on_late(session, copy, fresh, now)
        if slot is not None:
            return slot
        objections = [found for one in fresh for found in objections_of(one, copy)]
        if any(found is None for one in known if one not in fresh for found in objections_of(one, copy)):
            raise self._violation(Rule.EXPIRED, link, f"its expiry interval has passed: {describe(packet)}")
        open_ones = [slot for one in fresh for slot in one.slots_of(copy.client) if slot.main and not slot.copies]
        if (
            packet.retain
            and not any(slot.may_be_retained for slot in open_ones)
            and any(
                is_shared(entry.filter) and matches(pattern(entry.filter), topic)
                for entry in session.subscriptions.values()
            )
        ):
            raise self._violation(Rule.RETAINED_FOR_SHARE, link, f"a share brings no retained ones: {describe(packet)}")
        if any(is_kept_away(entry, packet, known, session.client) for entry in session.subscriptions.values()):
            raise self._violation(Rule.NO_LOCAL, link, describe(packet))
        named = [slot for slot in open_ones if slot.is_named_by(copy)]
        objections = [slot.objection(copy) for slot in named or open_ones] or objections
        if objections and None not in objections:
            rule, text = max(
                (found for found in objections if found is not None), key=lambda one: _NEAREST.get(one[0], 0)
            )
            raise self._violation(rule, link, f"{text}: {describe(packet)}")
        raise self._no_right(link, session, known, packet, topic)

    def _handed_on_late(self, session: Session, copy: Copy, fresh: list[Message], now: float) -> Slot | None:
        """What nobody has seen, or the acknowledgement of which, may go by subscriptions that came after it."""
        for message in fresh:
            seen = message.acknowledged or any(slot.copies for slot in message.slots)
            if seen or not message.published or now > message.sent_at + MARGIN_S:
                continue
            known: set[tuple[Via, str]] = {(one.via, share_of(one)) for one in message.claims if one.via is Via.SHARE}
            known |= {(Via.LIVE, "") for one in message.slots_of(session.client) if one.claim.via is Via.LIVE}
            for via, entries in self._ways_of(session, message):
                if (via, entries[0].filter if via is Via.SHARE else "") in known:
                    continue
                claim = Claim(message=message, via=via, members={session.client: entries}, must=False)
                message.add(claim)
                slot = place([message], copy, lambda _message, _copy: True)
                if slot is not None:
                    (self._shares if via is Via.SHARE else session.claims).append(claim)
                    return slot
                message.remove(claim)
        return None

    def _ways_of(self, session: Session, message: Message) -> Iterator[tuple[Via, tuple[Subscription, ...]]]:
        """By which subscriptions of a session a message comes: its own ones together, each share apart."""
        own = next((own for one, own in self._matching(message) if one is session), ())
        if own:
            yield Via.LIVE, own
        for entry in session.subscriptions.values():
            if is_shared(entry.filter) and matches(pattern(entry.filter), message.topic):
                yield Via.SHARE, session.alternatives(entry.filter)

    def _join_loose_shares(self, message: Message, session: Session) -> None:
        """What a share has not delivered may go to whoever is a member by now."""
        is_open = any(one.via is Via.SHARE and (one.loose or not one.satisfied) for one in message.claims)
        for claim in message.claims:
            entry = session.subscriptions.get(share_of(claim)) if is_open and claim.via is Via.SHARE else None
            if entry is not None:
                claim.join(session.client, session.alternatives(entry.filter))

    def _no_right(
        self, link: Link, session: Session, known: list[Message], packet: Publish, topic: str
    ) -> ViolationError:
        """Why a session has no claim on a message that exists."""
        message = known[-1]
        what = f"{message.name}: {describe(packet)}"
        entries = list(session.subscriptions.values())
        matching = [entry for entry in entries if matches(pattern(entry.filter), topic)]
        if not any(one.published for one in known):
            rule = Rule.WILL_EARLY if self._is_armed(message) else Rule.WILL_UNWANTED
            return self._violation(rule, link, what)
        claims = [claim for one in known for claim in one.claims if not claim.is_over]
        if any(session.client in claim.members for claim in claims):
            return self._violation(session.copy_too_many(packet, topic, claims), link, what)
        if not matching:
            if any(matches_but_for_dollar(pattern(entry.filter), topic) for entry in entries):
                return self._violation(Rule.DOLLAR, link, what)
            if any(matches(pattern(former), topic) for former in session.former):
                return self._violation(Rule.UNSUBSCRIBED, link, what)
            return self._violation(Rule.UNMATCHED, link, what)
        if packet.retain:
            stale = all(one not in known for one in self.retained.get(topic, [None]))
            return self._violation(Rule.RETAINED_STALE if stale else Rule.RETAINED_UNWANTED, link, what)
        if message.publisher == session.client and any(entry.no_local for entry in matching):
            return self._violation(Rule.NO_LOCAL, link, what)
        return self._violation(Rule.TOO_EARLY, link, what)

    def _is_armed(self, will: Message) -> bool:
        on_links = any(link.will is will and not link.over for link in self.links.values())
        return on_links or any(session.will is will for session in self.sessions.values())

    def _check_order(self, link: Link, session: Session, message: Message, packet: Publish) -> None:
        if len(self._by_content[message.topic, message.payload]) > 1 or message.again_at:
            return  # which of several empty ones it is, or which publish of it brought the copy, nobody can tell
        key = (message.publisher, message.topic, message.qos, packet.qos)
        last = session.order.get(key, 0)
        if message.number < last and not packet.dup:
            raise self._violation(Rule.ORDER, link, f"{message.name} came after message {last}: {describe(packet)}")
        session.order[key] = max(last, message.number)
