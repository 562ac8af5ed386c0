"""Performs a life on real sockets: sends what its steps say, reads what comes, and asks the referee about all of it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from assay.conformance.case import CLOCK_TOPIC
from assay.conformance.explore import life as plan
from assay.conformance.explore.control import Control, connected, with_credentials
from assay.conformance.explore.held import Held
from assay.conformance.explore.referee import Referee
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.sockets import Sockets, Wire
from assay.conformance.explore.state import Link
from assay.conformance.explore.topics import is_shared
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import CapabilityValue, Endpoint
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)

PATIENCE_S = 4.0
_WILL_PATIENCE = 2
"""Wills get so many times more: no statement says how soon a server learns of a lost connection, or acts on it."""
_SENT_AGAIN = (Rule.NOT_RESENT, Rule.PUBREL)
"""No statement says how soon: the target file may (``resends_after_s``)."""
_GOODBYE_S = 0.5
"""How long the broker gets to close after DISCONNECT before the client does."""
_OBSERVER = 1_000
"""Client number of the observer: it sees wills, and what is retained at the end."""
_LONG_S = 90
"""Longer than the short delays of wills."""
_WIDE = ("assay/{t}/#", "/{t}/#", "{t}")
"""Filters that match every topic of a life, but for those with $, which are the server's affair."""
_BEFORE_FIRST_ID = (0, 250, 65_530, 0)
"""By client: packet identifiers are of one byte, become longer, or begin anew."""
_END = "end/{t}"
_BEGUN = "assay/{t}/a"
"""The topic of packets that nobody ends."""
_WILL_EXPIRY_S = 100_000
RICH = Properties(
    payload_format_indicator=1,
    content_type="text/plain; ü",
    response_topic="answers/here",
    correlation_data=b"\x00\xff\x01",
    user_property=(("z", "1"), ("a", "2"), ("z", "")),
)


class _RefusedError(Exception):
    """A broker has enough of a client's takeovers, as it may: the rest of the life says nothing."""


@dataclass(eq=False, kw_only=True)
class _Wire(Wire):
    """A connection with what belongs to it."""

    link: Link
    held: deque[Packet] = field(default_factory=deque)
    """Acknowledgements that the client does not send for the time being."""
    deferred: deque[Publish] = field(default_factory=deque)
    """What came while SUBACK is awaited: only that says which subscription it belongs to."""
    keep_pubrel: bool = False
    blind: bool = False
    """Acknowledgements are read, and not seen: the connection is about to be lost."""
    unseen: int = 0
    packet_id: int = 0
    aliases: set[int] = field(default_factory=set)
    """Topic aliases that the server knows."""
    alias_topics: dict[int, str] = field(default_factory=dict)
    alias_maximum: int = 0
    receive_maximum: int = 65_535


class Player(Sockets):
    """Plays lives, one after the other, on one broker."""

    def __init__(
        self,
        endpoint: Endpoint,
        capabilities: dict[str, CapabilityValue],
        *,
        run_token: str,
        patience_s: float = PATIENCE_S,
        restart: Callable[[float], Endpoint] | None = None,
        held: Collection[str] = (),
    ) -> None:
        """``run_token`` (0-9, a-z) keeps the names of two runs apart; ``restart`` kills and starts the broker.

        ``held``: names for :class:`Held`.
        """
        self.endpoint, self.capabilities, self.patience_s = endpoint, capabilities, patience_s
        self.restart = restart
        self._run_token = run_token
        self._lives = itertools.count(1)
        self.ahead_s = 0.0
        self.control = self._new_control()
        self._held = Held(held)
        self._begin()

    def _new_control(self) -> Control:
        version = 5 if self.capabilities.get("mqtt5", False) else 4
        return Control(self.endpoint, version, plan.keep_alive_s(self.capabilities))

    def _begin(self) -> None:
        self.token = f"{self._run_token}{next(self._lives):x}"
        self.referee = Referee(ours=self.token)
        self.begin_life()
        self.answers_together = False
        self._wires: dict[int, _Wire] = {}
        """Client to its connection."""
        self._holds: dict[int, plan.Hold] = {}
        self._names = itertools.count(1)
        self._payloads = itertools.count(1)
        self._settled: set[tuple[int, int, str, bytes]] = set()
        self._may_return: set[tuple[int, int, str, bytes]] = set()
        """Client, packet identifier, topic and payload of what was answered by PUBACK, ever and before a kill."""
        self._said = self._heard = 0
        """Packets that clients sent and got, PINGREQ and PINGRESP aside."""

    @property
    def now(self) -> float:
        """The broker's clock."""
        return time.monotonic() + self.ahead_s

    # A life

    def play(self, life: plan.Life) -> None:
        """Play a life and its audit. Raises :class:`ViolationError`, :class:`TargetUnreachableError`."""
        self._begin()
        self._life = life
        self.answers_together = any(isinstance(step, plan.Burst) and step.together for step in life.steps)
        used = set[int]().union(*(plan.clients_of(step) for step in life.steps))
        wills = {
            client.will.topic: None
            for index, client in enumerate(life.clients)
            if client.will is not None and index in used
        }
        self._held.begin(self.control, self.patience_s)
        try:
            if wills:
                observer = self._wire(_OBSERVER)
                entries = tuple(Subscription(filter=self._named(topic), qos=self._qos(2)) for topic in wills)
                self._send(observer, Subscribe(packet_id=self._next_id(observer), subscriptions=entries))
                self._settle()
            for step in life.steps:
                self.note(str(step))
                self._perform(step)
                self._settle()
            self._audit()
            self._held.end(self.control, self.patience_s)
        except _RefusedError:
            self.note("the broker refuses a client that was taken over a moment ago: the life is over")
        finally:
            self.end_life()

    def _perform(self, step: plan.Step) -> None:
        match step:
            case plan.Join():
                self._connect(step.client, afresh=step.afresh, like=step.like)
            case plan.Leave():
                self._leave(self._wire(step.client), step.how)
            case plan.Subscribe():
                self._subscribe(self._wire(step.client), step)
            case plan.Unsubscribe():
                wire = self._wire(step.client)
                filters = tuple(self._named(topic_filter) for topic_filter in step.filters)
                self._send(wire, Unsubscribe(packet_id=self._next_id(wire), filters=filters))
            case plan.Publish():
                self._publish(step)
            case plan.Burst():
                self._burst(step)
            case plan.Withhold():
                self._withhold(self._wire(step.client), step.what)
            case plan.Restart():
                self._restart()
            case plan.Advance():
                self._advance(step.seconds)

    def _audit(self) -> None:
        """Everybody comes back for what is kept, and nothing may come that nobody asked for."""
        self.note("the audit begins")
        for client in list(self._holds):
            self._holds[client] = plan.Hold.NOTHING
        for client, session in list(self.referee.sessions.items()):
            if session.link is None:
                self._connect(client)
                self._settle()
            elif self._wires[client].held:
                self._withhold(self._wires[client], plan.Hold.NOTHING)
                self._settle()
        if any(link.will_delay_s > 0 for link in self.referee.links.values()):
            self._advance(_LONG_S)  # a will whose client came back in time is not published
            self._settle()
        observer = self._wire(_OBSERVER)
        self._settle()
        wide = tuple(Subscription(filter=self._named(text), qos=self._qos(2)) for text in _WIDE)
        if self.capabilities.get("retain", True) and self.capabilities.get("wildcards", True):
            self._send(observer, Subscribe(packet_id=self._next_id(observer), subscriptions=wide))
            self._settle()
        for topic in self._topics():  # what each subscription is like by now
            self._send_publish(plan.Publish(client=_OBSERVER, topic=topic, qos=self._qos(2), retain=True))
            self._settle()
        end = Subscription(filter=self._named(_END), qos=self._qos(2))
        connected = [wire for wire in self._wires.values() if wire.open]
        for wire in connected:
            self._send(wire, Subscribe(packet_id=self._next_id(wire), subscriptions=(end,)))
        self._settle()
        self._send_publish(plan.Publish(client=_OBSERVER, topic=_END, qos=self._qos(2)))
        self._settle()
        self._barrier(*connected)  # a further copy may have waited for the last acknowledgement
        self._settle()
        self.referee.audit()
        self._clean_up()

    def _topics(self) -> list[str]:
        """Those of the life, but for ``$`` topics."""
        named: dict[str, None] = {}
        for step in self._life.steps:
            publishes = step.publishes if isinstance(step, plan.Burst) else (step,)
            named.update({one.topic: None for one in publishes if isinstance(one, plan.Publish)})
        return [topic for topic in named if not topic.startswith("$")]

    def _clean_up(self) -> None:
        """Leave nothing to the lives after this one."""
        for client, session in list(self.referee.sessions.items()):
            wire = self._wires.get(client)
            if wire is not None and wire.open and session.link is wire.link:
                ends = session.version >= 5 and wire.link.kept_s > 0
                self.write(wire, Disconnect(properties=Properties(session_expiry_interval=0 if ends else None)))
                if ends or wire.link.kept_s <= 0:
                    continue
            refusals = (TargetUnreachableError,) if self.referee.may_be_refused(client, self.now) else ()
            with contextlib.suppress(*refusals):
                self.control.end_session(self._client_id(client))
        topics = self.referee.retained_topics()
        for wire in self._wires.values():
            if wire.open:
                self.drop(wire)
        self.control.publish(*(topic for topic in topics if not topic.startswith("$")), retain=True)
        for topic in [topic for topic in topics if topic.startswith("$")]:
            with contextlib.suppress(
                TargetUnreachableError
            ):  # a server may end the connection of who publishes to such
                self.control.publish(topic, retain=True)

    # Steps

    def _plan(self, client: int) -> plan.Client:
        if client == _OBSERVER:
            version = 5 if self.capabilities.get("mqtt5", False) else 4
            return plan.Client(version=version, keep_alive_s=plan.keep_alive_s(self.capabilities))
        return self._life.clients[client % len(self._life.clients)]

    def _qos(self, wanted: int) -> int:
        while wanted and not self.capabilities.get(f"qos{wanted}", True):
            wanted -= 1
        return wanted

    @property
    def _most_bytes(self) -> int:
        """Of a payload that the server takes; CONNACK tells clients of 5.0 alone."""
        most = int(self.capabilities.get("maximum_packet_size", 0))
        return max(8, most - 1_000) if most else 1 << 28

    def _named(self, template: str) -> str:
        return template.replace("{t}", self.token)

    def _client_id(self, client: int) -> str:
        return f"{self.token}c{client}"

    def _next_id(self, wire: _Wire) -> int:
        session = wire.link.session
        taken = session.outgoing if session is not None else {}
        while True:
            wire.packet_id = wire.packet_id % 65_535 + 1
            if wire.packet_id not in taken:
                return wire.packet_id

    def _wire(self, client: int) -> _Wire:
        """The connection of a client, made now if there is none."""
        wire = self._wires.get(client)
        return wire if wire is not None and wire.open else self._connect(client)

    def _connect(self, client: int, *, afresh: bool = False, like: int = -1) -> _Wire:
        older = self._wires.get(client)
        if older is not None and older.open:
            self._barrier(older)
        fields = own = self._plan(client)
        if like >= 0:
            fields = msgspec.structs.replace(
                self._plan(like), version=own.version, max_packet_bytes=own.max_packet_bytes
            )
        properties = Properties()
        if fields.version >= 5:
            properties = Properties(
                session_expiry_interval=None if fields.clean else fields.expiry_s,
                receive_maximum=fields.receive_maximum or None,
                topic_alias_maximum=fields.alias_maximum or None,
                maximum_packet_size=fields.max_packet_bytes or None,
            )
        packet = Connect(
            client_id=self._client_id(client),
            version=fields.version,
            clean=fields.clean or afresh,
            keep_alive_s=fields.keep_alive_s,
            will=self._will(fields),
            properties=properties,
        )
        kept_s = 0.0 if afresh and fields.version < 5 else fields.kept_s
        packet = with_credentials(packet, self.endpoint)
        sock = connected(self.endpoint)
        name = f"c{client}.{next(self._names)}" if client != _OBSERVER else "observer"
        link = self.referee.connect(name, client, packet, kept_s, self.now)
        wire = _Wire(
            name=link.name,
            version=fields.version,
            sock=sock,
            decoder=Decoder(fields.version),
            most_bytes=link.most_bytes,
            pieces=fields.pieces,
            link=link,
            packet_id=_BEFORE_FIRST_ID[client % len(_BEFORE_FIRST_ID)],
        )
        self._wires[client] = wire
        self.watch(wire)
        self.write(wire, packet)
        self._settle(until=lambda: link.session is not None or (link.over and link.may_be_refused))
        if link.session is None:
            raise _RefusedError
        if older is not None:
            older.held.clear()
        self._resume(wire)
        self._settle()
        return wire

    def _will(self, fields: plan.Client) -> Will | None:
        if fields.will is None:
            return None
        properties = Properties()
        if fields.version >= 5:
            rich = RICH if fields.will.rich else properties
            properties = msgspec.structs.replace(
                rich,
                will_delay_interval=fields.will.delay_s or None,
                message_expiry_interval=_WILL_EXPIRY_S if fields.will.rich else None,
            )
        return Will(
            topic=self._named(fields.will.topic),
            payload=self._payload(8),
            qos=self._qos(fields.will.qos),
            retain=fields.will.retain and bool(self.capabilities.get("retain", True)),
            properties=properties,
        )

    def _resume(self, wire: _Wire) -> None:
        """A client sends again what the server has not acknowledged (MQTT-4.4.0-1), in the order of old (4.6.0-1)."""
        session = wire.link.session
        for packet_id, outgoing in list(session.outgoing.items()) if session is not None else ():
            if outgoing.link is wire.link:
                continue  # PUBREC came once more, right behind CONNACK, and was answered
            if outgoing.received:
                self._send(wire, Pubrel(packet_id=packet_id))
            else:
                message = outgoing.message
                properties = msgspec.structs.replace(message.properties, topic_alias=None)
                self._send(
                    wire,
                    Publish(
                        topic=message.topic,
                        payload=message.payload,
                        qos=message.qos,
                        packet_id=packet_id,
                        retain=message.retain,
                        dup=True,
                        properties=properties,
                    ),
                )

    def _leave(self, wire: _Wire, how: plan.Leaving) -> None:
        self._barrier(wire)
        if not wire.open:
            return
        version = wire.link.version
        if how is plan.Leaving.RESET or (how is plan.Leaving.WITH_WILL and version < 5):
            self._reset(wire)
            return
        code = 0x04 if how is plan.Leaving.WITH_WILL else 0
        expiry_s: int | None = None
        if version >= 5 and wire.link.kept_s > 0:
            others = {plan.Leaving.END_SESSION: 0, plan.Leaving.OTHER_EXPIRY: plan.other_expiry_s(wire.link.kept_s)}
            expiry_s = others.get(how)
        properties = Properties(session_expiry_interval=expiry_s)
        self._send(wire, Disconnect(reason_code=code, properties=properties))
        deadline = time.monotonic() + _GOODBYE_S
        while wire.open and time.monotonic() < deadline:
            self.read(max(0.0, deadline - time.monotonic()))
        if wire.open:
            self.note(f"{wire.link.name}: the broker leaves the connection open after DISCONNECT")
            self._close(wire, by_broker=False)
            self._let_the_broker_notice()

    def _reset(self, wire: _Wire) -> None:
        if wire.pieces:
            begun = encode(Publish(topic=self._named(_BEGUN), payload=self._payload(2_000)), wire.version)
            self.note(f"{wire.link.name}: the beginning of a PUBLISH")
            wire.pieces = False
            self.send(wire, begun[: len(begun) // 2])
            self.control.round_trip()
        self.note(f"{wire.link.name}: reset by the client")
        self.drop(wire, reset=True)
        self.referee.ended(wire.link, self.now, by_broker=False)
        self._let_the_broker_notice()

    def let_pass(self) -> None:
        self.control.round_trip()

    def round_trip(self) -> float:
        return self.control.round_trip()

    def _let_the_broker_notice(self) -> None:
        """What ended a moment ago is seen by a broker before the second round trip of somebody else."""
        for _ in range(2):
            self.control.round_trip()

    def _subscribe(self, wire: _Wire, step: plan.Subscribe) -> None:
        new = wire.link.version >= 5
        entries: dict[str, Subscription] = {}
        for entry in step.filters:
            shared = is_shared(entry.filter)
            if shared and not (new and self.capabilities.get("shared", True)):
                continue
            if ("+" in entry.filter or "#" in entry.filter) and not self.capabilities.get("wildcards", True):
                continue
            topic_filter = self._named(entry.filter)
            entries[topic_filter] = Subscription(
                filter=topic_filter,
                qos=entry.qos,
                no_local=new and entry.no_local and not shared,
                retain_as_published=new and entry.retain_as_published,
                retain_handling=entry.retain_handling if new else 0,
            )
        if not entries:
            return
        identifiers = new and step.identifier and self.capabilities.get("subscription_identifiers", True)
        properties = Properties(subscription_identifier=(step.identifier,) if identifiers else ())
        packet = Subscribe(packet_id=self._next_id(wire), subscriptions=tuple(entries.values()), properties=properties)
        self._send(wire, packet)

    def _payload(self, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        text = f"{next(self._payloads)}:{self.token}:"
        return text.encode().ljust(size_bytes, b".")

    def _send_publish(self, step: plan.Publish) -> tuple[_Wire, int]:
        wire = self._wire(step.client)
        new = wire.link.version >= 5
        qos = self._qos(step.qos)
        topic = named = self._named(step.topic)
        alias = step.alias if new and step.alias <= wire.alias_maximum else 0
        if alias:
            if wire.alias_topics.get(alias) == named:
                topic = ""
            wire.alias_topics[alias] = named
        properties = Properties()
        if new:
            properties = msgspec.structs.replace(
                RICH if step.rich else properties,
                message_expiry_interval=step.expiry_s or None,
                topic_alias=alias or None,
            )
        packet_id = self._next_id(wire) if qos else 0
        retain = step.retain and bool(self.capabilities.get("retain", True))
        packet = Publish(
            topic=topic,
            payload=self._payload(min(step.size_bytes, self._most_bytes)),
            qos=qos,
            packet_id=packet_id,
            retain=retain,
            properties=properties,
        )
        self._send(wire, packet)
        return wire, packet_id

    def _publish(self, step: plan.Publish) -> None:
        wire = self._wire(step.client)
        qos = self._qos(step.qos)
        if qos and self._quota(wire) <= 0:
            return
        wire.blind = step.cut.is_unread and qos > 0
        repeats = step.again and qos == 2 and wire.link.version < 5
        wire.keep_pubrel = qos == 2 and (repeats or step.cut.is_before_pubrel)
        wire.unseen = 0
        if step.cut is not plan.Cut.NOT:
            self._barrier(wire)  # what was under way before is over
        _wire, packet_id = self._send_publish(step)
        if wire.blind:
            self._settle(until=lambda: wire.unseen > 0 or not wire.open or self.referee.is_pressed)
            if not wire.unseen:
                self.referee.unread(step.client, packet_id)
            self._cut(wire, step)
            return
        if qos == 0:
            self._barrier(wire)
            return
        if not wire.keep_pubrel:
            return
        self._settle()
        if not wire.open:
            return
        if step.cut.is_before_pubrel:
            self._cut(wire, step)
            return
        outgoing = self.referee.sessions[step.client].outgoing.get(packet_id)
        if outgoing is not None and outgoing.awaits is None:
            message = outgoing.message
            again = Publish(
                topic=message.topic,
                payload=message.payload,
                qos=2,
                packet_id=packet_id,
                retain=message.retain,
                dup=True,
            )
            self._send(wire, again)
            self._settle()
            self._send(wire, Pubrel(packet_id=packet_id))
        wire.keep_pubrel = False

    def _cut(self, wire: _Wire, step: plan.Publish) -> None:
        if wire.open and step.cut.is_takeover:
            self._connect(step.client)
        elif wire.open:
            self._reset(wire)

    def _quota(self, wire: _Wire) -> int:
        """How many publishes at QoS 1 and 2 the server takes before it acknowledges one more (MQTT-3.3.4-7)."""
        session = wire.link.session
        return wire.receive_maximum - (len(session.outgoing) if session is not None else 0)

    def _burst(self, step: plan.Burst) -> None:
        room: dict[int, int] = {}
        for publish in step.publishes:
            self._wire(publish.client)
        self.referee.burst(begins=True)
        with self.together() if step.together else contextlib.nullcontext():
            for publish in step.publishes:
                wire = self._wire(publish.client)
                left = room.setdefault(publish.client, self._quota(wire))
                if not publish.qos or left > 0:
                    room[publish.client] = left - (publish.qos > 0)
                    self._send_publish(publish)
        self._barrier(*(self._wire(client) for client in room))
        self._settle()
        self.referee.burst(begins=False)

    def _withhold(self, wire: _Wire, what: plan.Hold) -> None:
        self._holds[wire.link.client] = what
        held = list(wire.held)
        wire.held.clear()
        for packet in held:
            self._acknowledge(wire, packet)

    def _restart(self) -> None:
        if self.restart is None:
            return
        self._hear_all()
        self.endpoint = self.restart(self.ahead_s)
        self.control.close()
        self.control = self._new_control()
        self.note("the broker was killed and started again")
        for wire in list(self._wires.values()):
            if wire.open:
                self.drop(wire)
        if not self.capabilities.get("clock", False):  # ours says what it keeps
            self._may_return |= self._settled
        self.referee.restarted(self.now)

    def _advance(self, seconds: int) -> None:
        if not self.capabilities.get("clock", False):
            return
        self._hear_all()
        self.control.publish(CLOCK_TOPIC, payload=repr(float(seconds)).encode())
        self.ahead_s += seconds
        if self.capabilities.get("server_keep_alive", 0):
            self.control.close()  # it was silent for as long; it connects anew when it is needed
        self.note(f"the broker's clock was moved by {seconds} s")
        self.referee.moved(self.now, seconds)

    def _hear_all(self) -> None:
        """Nothing is under way on any connection."""
        self._barrier(*self._wires.values())

    def _barrier(self, *wires: _Wire) -> None:
        """What was sent on these connections has been handled, or they are over: also what answers deliveries that come
        meanwhile, which a connection that is reset right behind would lose."""
        said = -1
        while said != self._said:
            said = self._said
            for wire in wires:
                self._send(wire, Pingreq())
            self._settle(until=lambda: not any(wire.link.pings and wire.open for wire in wires))

    # Packets

    def _send(self, wire: _Wire, packet: Packet) -> None:
        """On a connection that is over, nothing: a server may end one as soon as it is there."""
        if not wire.open or wire.link.over:
            return
        self._said += not isinstance(packet, Pingreq)
        if isinstance(packet, Puback) and wire.link.session is not None:
            flight = wire.link.session.flights.get(packet.packet_id)
            if flight is not None:
                self._settled.add((wire.link.client, packet.packet_id, flight.topic, flight.packet.payload))
        self.referee.sent(wire.link, packet, self.now)
        self.write(wire, packet)

    def _settle(self, *, until: Callable[[], bool] | None = None) -> None:
        """Read until nothing is due any more, or until something is seen. Raises :class:`ViolationError`."""
        patience, heard = self.patience(), self._heard
        while True:
            wanted = self.referee.waiting(self.now)
            if until() if until is not None else wanted is None:
                return
            if heard != self._heard:  # whoever sends one at a time takes its time for each
                patience, heard = self.patience(), self._heard
            more_s = 0.0
            if wanted is not None and wanted[0] is Rule.WILL_UNSENT:
                more_s = self.patience_s * _WILL_PATIENCE
            if wanted is not None and wanted[0] in _SENT_AGAIN:
                more_s = int(self.capabilities.get("resends_after_s", 0))
            left_s = patience.left_s(more_s)
            self.read(left_s)
            if left_s > 0:
                continue
            wanted = self.referee.waiting(self.now)
            if wanted is None and until is None:
                return
            rule, version, text = wanted or (Rule.PUBACK, 5, "an acknowledgement")
            text = f"nothing came for {self.patience_s:g} s; missing: {text}"
            raise ViolationError(rule, version, text, waited=True)

    def received(self, wire: Wire, packet: Packet) -> None:
        assert isinstance(wire, _Wire)
        self._heard += not isinstance(packet, Pingresp)
        if isinstance(packet, Publish) and self._has_returned(wire.link, packet):
            self.write(wire, Puback(packet_id=packet.packet_id))
            return
        if isinstance(packet, Publish) and (wire.link.subscribing or wire.deferred):
            wire.deferred.append(packet)
            return
        if wire.blind and isinstance(packet, Puback | Pubrec):
            wire.unseen += 1
            return
        self.referee.received(wire.link, packet, self.now)
        if isinstance(packet, Connack):
            said = packet.properties
            wire.alias_maximum = said.topic_alias_maximum or 0
            wire.receive_maximum = said.receive_maximum or 65_535
        if not wire.link.superseded:
            self._answer(wire, packet)
        while wire.deferred and not wire.link.subscribing:
            deferred = wire.deferred.popleft()
            self.referee.received(wire.link, deferred, self.now)
            self._answer(wire, deferred)

    def _has_returned(self, link: Link, packet: Publish) -> bool:
        """Nothing answers a PUBACK: one that was killed may not know of it, and sends the message again."""
        if link.session is None or not packet.dup or packet.qos != 1 or not packet.payload:
            return False
        return (link.client, packet.packet_id, packet.topic, packet.payload) in self._may_return

    def _answer(self, wire: _Wire, packet: Packet) -> None:
        if isinstance(packet, Pubrec):
            if packet.reason_code < 0x80 and not wire.keep_pubrel and self._owes_pubrel(wire, packet.packet_id):
                self._send(wire, Pubrel(packet_id=packet.packet_id))
            return
        answer: Packet | None = None
        if isinstance(packet, Publish) and packet.qos:
            kind = Puback if packet.qos == 1 else Pubrec
            answer = kind(packet_id=packet.packet_id)
        elif isinstance(packet, Pubrel):
            answer = Pubcomp(packet_id=packet.packet_id)
        if answer is not None:
            self._acknowledge(wire, answer)

    def _owes_pubrel(self, wire: _Wire, packet_id: int) -> bool:
        session = wire.link.session
        outgoing = session.outgoing.get(packet_id) if session is not None else None
        return outgoing is not None and outgoing.awaits is None

    def _acknowledge(self, wire: _Wire, answer: Packet) -> None:
        hold = self._holds.get(wire.link.client, plan.Hold.NOTHING)
        first = isinstance(answer, Puback | Pubrec)
        session = wire.link.session
        begun = session is not None and any(flight.received for flight in session.flights.values())
        withheld = {
            plan.Hold.FIRST: first,
            plan.Hold.PUBCOMP: not first,
            plan.Hold.MIXED: not first or begun,
        }
        if withheld.get(hold, False):
            wire.held.append(answer)
        elif wire.open:
            self._send(wire, answer)

    def ended_by_broker(self, wire: Wire) -> None:
        assert isinstance(wire, _Wire)
        self._close(wire, by_broker=True)

    def _close(self, wire: _Wire, *, by_broker: bool) -> None:
        self.drop(wire)
        self.referee.ended(wire.link, self.now, by_broker=by_broker)
