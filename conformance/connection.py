"""One client connection of a case: raw bytes over TCP, a transcript of both directions, checks that name what was seen.

Every wait ends on an event (packet, end of stream) or on the patience of the case, which is a failure with a text.
Nothing here sleeps to see whether something might still arrive: :meth:`Connection.barrier` proves that instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from assay.conformance.arrival import arrival
from assay.conformance.outcome import CaseFailureError, ClientFaultError
from assay.conformance.rules import (
    ANSWERED_ONCE,
    ANSWERS,
    Incident,
    Rule,
    StepFailureError,
    asked_by,
    malformed,
    no_marker,
    request_shape,
    rule_of_missing,
    was_asked,
)
from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    decode_packet,
    describe,
    encode,
)
from assay.conformance.wire.decode import describe_bytes
from assay.conformance.wire.packets import NO_PROPERTIES

if TYPE_CHECKING:
    from assay.conformance.case import CaseContext

_P = TypeVar("_P", bound=Packet)
_MAX_INBOX_PACKETS = 100_000
_MAX_STRANGE_LINES = 200
"""Of a connection in a transcript, of what is not for its client, or comes behind what cannot be read."""
FIRST_FAILURE_CODE = 0x80
_SMALL_BUFFER_BYTES = 4_096
_END_AFTER_MALFORMED_S = 1.0
_ANSWERS_ONCE = frozenset(kind for kinds in ANSWERED_ONCE.values() for kind in kinds)
_BESIDE_PUBREL: tuple[type[Packet], ...] = (Publish, *_ANSWERS_ONCE)
"""What may come before it: no clause orders it among other packets than PUBRELs."""
_BY_QOS: dict[int, type[Packet]] = {1: Puback, 2: Pubrec}
_FLAGS = {"retain": (Rule.RETAIN_CLEAR, Rule.RETAIN_SET), "dup": (Rule.DUP_CLEAR, Rule.DUP_SET)}
"""The rules that a flag of a delivery follows where it must be 0, and 1."""


def _names(kinds: tuple[type[Packet], ...]) -> str:
    return " or ".join(kind.type.name for kind in kinds)


class Connection(asyncio.Protocol):
    """A client connection. Made by :meth:`CaseContext.connect` and :meth:`CaseContext.open`."""

    def __init__(self, ctx: CaseContext, name: str, version: int) -> None:
        self.ctx, self.name, self.version = ctx, name, version
        self.life = ctx.lives
        """Of the broker."""
        self.connack = Connack()
        """The CONNACK of :meth:`CaseContext.connect`."""
        self.client_id = ""
        self.closed = False
        """The broker ended the connection (or :meth:`abort` did)."""
        self.sent_raw = False
        """What it asked for may not be known."""
        self._asks_unseen = False  # what was sent is not all packets
        self._granted: dict[str, int] = {}  # filters to the QoS that was granted last
        self._own_bytes = Decoder(version)
        self.skip_malformed = False
        """Pass over packets that break the rules, as long as their length can be read; for what is judged elsewhere."""
        self._passed_over = ""
        self._decoder = Decoder(version)
        self._inbox: deque[Packet] = deque()
        self._wake = asyncio.Event()
        self._malformed: MalformedPacketError | None = None
        self._carrier: Incident | None = None
        """Why what carries the packets is broken."""
        self._transport: asyncio.Transport | None = None
        self._last_packet_id = 0
        self._sent: dict[type[Packet], Packet] = {}
        """The last packet of each type."""
        self._owed: Counter[tuple[type[Packet], int]] = Counter()
        """Requests without their answer, by its type and the identifier."""
        self._had: set[tuple[type[Packet], int]] = set()
        """Requests that were answered."""
        self.answered_again: list[Incident] = []
        """Answers that came again, in a case about such answers."""
        self._aliases: dict[int, str] = {}
        self._left = False
        """The case ended the connection, or asked for its end."""
        self._strange_lines = 0
        self._foreign: set[int] = set()
        """Identifiers of QoS 2 messages of other cases that wait for PUBREL."""
        self._to_acknowledge: dict[type[Packet], list[int]] = {Puback: [], Pubrec: []}
        """Identifiers of the deliveries that are not answered by such a packet, in the order in which they came."""
        self._at_qos_1: dict[int, Publish] = {}
        """Deliveries without PUBACK, by identifier."""
        self._in_pieces = False
        """Parts of a packet are sent by themselves, and nothing may come between them."""
        self._pings: deque[bool] = deque()
        """Pings without their answer, in order: whether it was sent to keep the connection alive."""
        self._next_ping: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            message = "a TCP transport was expected"
            raise TypeError(message)
        self._transport = transport
        self.ctx.transcript.add(self.name, "event", decoded="connection opened")

    def data_received(self, data: bytes) -> None:
        if self._malformed is not None:
            self._note_strange(data, "after a malformed packet, not read")
            return
        position = 0
        pending = self._decoder.pending
        try:
            for frame in self._decoder.feed_frames(data):
                position += len(frame)
                try:
                    packet = decode_packet(frame, self.version)
                except MalformedPacketError as error:
                    if not (self.skip_malformed or self.ctx.is_of_another_case(frame)):
                        position -= len(frame)
                        raise
                    self._passed_over = self._passed_over or str(error) * self.skip_malformed
                    self._note_strange(frame, f"MALFORMED, passed over: {error}")
                    continue
                if isinstance(packet, Publish):
                    self.ctx.look_at(self, packet)
                if self._is_foreign(packet):
                    self._note_strange(frame, f"NOT FOR THIS CLIENT: {describe(packet)}")
                    continue
                if isinstance(packet, Pingresp) and self._pings and self._pings.popleft():
                    self._note_strange(frame, f"ITS PING KEPT THE CONNECTION ALIVE: {describe(packet)}")
                    continue
                if self._is_repeated(packet):
                    self._note_strange(frame, f"ANSWERED BEFORE: {describe(packet)}")
                    continue
                if isinstance(packet, Publish) and packet.qos == 1:
                    if packet.dup and self.ctx.is_forgiven(self.client_id, packet, self.life):
                        self._note_strange(frame, f"ITS PUBACK DIED WITH THE BROKER: {describe(packet)}")
                        self._write(encode(Puback(packet_id=packet.packet_id), self.version))
                        continue
                    self._at_qos_1[packet.packet_id] = packet
                self.ctx.transcript.add(self.name, "recv", frame, describe(packet))
                if len(self._inbox) >= _MAX_INBOX_PACKETS:
                    message = f"more than {_MAX_INBOX_PACKETS} packets that the case did not ask for"
                    raise MalformedPacketError(message)
                self._inbox.append(packet)
                if isinstance(packet, Publish) and packet.qos and not packet.dup:  # what comes again has its old place
                    self._to_acknowledge[Puback if packet.qos == 1 else Pubrec].append(packet.packet_id)
        except MalformedPacketError as error:
            self._malformed = error
            self.ctx.transcript.add(self.name, "recv", (pending + data)[position:], f"MALFORMED: {error}")
        if self._inbox or self._malformed is not None:  # what the case does not see begins no wait anew
            self._wake.set()

    def _note_strange(self, data: bytes, text: str) -> None:
        """Into the transcript, as far as there is room for such."""
        self._strange_lines += 1
        if self._strange_lines <= _MAX_STRANGE_LINES:
            self.ctx.transcript.add(self.name, "recv", data, text)
        elif self._strange_lines == _MAX_STRANGE_LINES + 1:
            self.ctx.transcript.add(self.name, "event", decoded="more of the same is not written down")

    def _is_foreign(self, packet: Packet) -> bool:
        """A message of another case, or what follows it: noted, finished, and not shown to the case."""
        if isinstance(packet, Pubrel) and packet.packet_id in self._foreign:
            self._foreign.discard(packet.packet_id)
            self._write(encode(Pubcomp(packet_id=packet.packet_id), self.version))
            return True
        if not isinstance(packet, Publish) or not self.ctx.is_foreign(packet.topic, self.client_id, self.sent_raw):
            return False
        self.ctx.note_incident(Rule.FOREIGN, f"{self.name}: a message it never subscribed to: {describe(packet)}")
        if packet.qos == 1:
            self._write(encode(Puback(packet_id=packet.packet_id), self.version))
        elif packet.qos == 2:
            self._foreign.add(packet.packet_id)
            self._write(encode(Pubrec(packet_id=packet.packet_id), self.version))
        return True

    def _is_repeated(self, packet: Packet) -> bool:
        """An answer that this connection has had, and did not ask for again: noted, and not shown to the case.

        A case about such answers sees it; and nobody knows what was asked for in bytes that are no packets.
        """
        kind = type(packet)
        if kind not in _ANSWERS_ONCE or self._asks_unseen:
            return False
        key = (kind, getattr(packet, "packet_id", 0))
        if self._owed[key] > 0:
            self._owed[key] -= 1
            self._had.add(key)
            return False
        if key not in self._had:
            return False
        rule = ANSWERS[kind]
        if kind is not Pubrec:  # nothing forbids to repeat that one
            statements = rule.value.in_5 if self.version >= 5 else rule.value.in_311
            text = f"{self.name}: the answer came again: {describe(packet)}"
            asked = frozenset({kind.type.name})
            if rule.is_subject_of(self.ctx.case.id, self.ctx.case.clauses):
                if all(asked != known.shape for known in self.answered_again):
                    again = Incident(rule=Rule.ONCE, shape=asked, text=text, statements=statements, soft=True)
                    self.answered_again.append(again)
                return False
            self.ctx.note_incident(Rule.ONCE, text, asked, statements)
        return True

    @property
    def _was_cut(self) -> bool:  # by the broker, while it lived on, though the client had broken no rule
        return self.closed and not self._left and not self.sent_raw and self.life == self.ctx.lives

    def other_reasons(self) -> list[Incident]:
        """What went wrong here; a case that fails may have failed for that."""
        found = list(self.answered_again)
        if self._was_cut:
            text = f"{self.name}: the broker ended the connection"
            found.append(Incident(rule=Rule.STAYS_OPEN, text=text, soft=True))
        return found + self._unanswered()

    def _unanswered(self) -> list[Incident]:
        if self._asks_unseen:
            return []
        rules = {
            ANSWERS[kind]: f"{self.name}: {request.type.name} has no {kind.type.name}"
            for request, kinds in ANSWERED_ONCE.items()
            for kind in kinds
            if any(owed > 0 for (owing, _), owed in self._owed.items() if owing is kind)
        }
        return [
            Incident(rule=rule, shape=request_shape(rule, self._sent), text=text, soft=True)
            for rule, text in rules.items()
        ]

    def _refuse_bytes(self, reason: str, rule: Rule, *statements: str) -> None:
        """Every wait fails from now on: what carries the packets is broken, and these statements say so."""
        self._malformed = self._malformed or MalformedPacketError(reason)
        self._carrier = self._carrier or Incident(rule=rule, statements=statements, text=reason)

    def eof_received(self) -> bool:
        self.ctx.transcript.add(self.name, "event", decoded="the broker ended the stream")
        self.closed = True
        self._wake.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            reason = f"connection reset ({exc})" if exc else "connection closed"
            self.ctx.transcript.add(self.name, "event", decoded=reason)
        self.closed = True
        if self._next_ping is not None:
            self._next_ping.cancel()
        self._transport = None  # asyncio fails on one that is aborted after its end
        self._wake.set()

    # Sending

    def next_packet_id(self) -> int:
        """A packet identifier that this connection has not used yet."""
        self._last_packet_id = self._last_packet_id % 65_535 + 1
        return self._last_packet_id

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            self.ctx.transcript.add(self.name, "event", decoded="not sent: the connection is closed")
            return
        self._transport.write(data)

    def send(self, *packets: Packet) -> None:
        """Send packets in one write."""
        data = b""
        for packet in packets:
            if isinstance(packet, Connect):
                self.client_id = packet.client_id
            self.ctx.will_send(packet, self.client_id, topic=self._topic_of(packet))
            if isinstance(packet, Puback | Pubrec):
                self._keep_order(packet)
                message = self._at_qos_1.pop(packet.packet_id, None)
                if message is not None:
                    self.ctx.settled[self.client_id, message.topic, hash(message.payload)] = self.life
            self._sent[type(packet)] = packet
            self._left |= isinstance(packet, Disconnect)
            self._note_asked(packet)
            frame = encode(packet, packet.version if isinstance(packet, Connect) else self.version)
            self.ctx.transcript.add(self.name, "send", frame, describe(packet))
            data += self.ctx.offer.noted(frame)
        self._write(data)

    def _topic_of(self, packet: Packet) -> str:
        """Of a message, by its alias where it has no other; empty for other packets."""
        if not isinstance(packet, Publish):
            return ""
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        self._aliases[alias] = packet.topic or self._aliases.get(alias, "")
        return self._aliases[alias]

    def keep_alive(self, every_s: float) -> None:
        """Ping as often as that for as long as the connection lasts: its client did not ask to be watched."""
        self._next_ping = asyncio.get_running_loop().call_later(every_s, self.ping_on, every_s)

    def ping_on(self, every_s: float) -> None:
        """A ping whose answer the case does not see, and on; none where it could come into a packet in parts."""
        self.keep_alive(every_s)
        if not (self._in_pieces or self.sent_raw or self._left):
            frame = encode(Pingreq(), self.version)
            self._pings.append(True)
            self.ctx.transcript.add(self.name, "send", frame, "to keep the connection alive: PINGREQ")
            self._write(frame)

    def _note_asked(self, packet: Packet, times: int = 1) -> None:
        if isinstance(packet, Pingreq):
            self._pings.extend([False] * times)
        for kind in ANSWERED_ONCE.get(type(packet), ()):
            if not isinstance(packet, Publish) or kind is _BY_QOS.get(packet.qos):
                self._owed[kind, getattr(packet, "packet_id", 0)] += times

    def _note_bytes(self, data: bytes) -> None:
        """What is asked for by bytes that are sent as they are."""
        try:
            for packet in self._own_bytes.feed(data):
                self._note_asked(packet)
                self.ctx.will_send(packet, self.client_id, topic=self._topic_of(packet))
        except MalformedPacketError:
            self._asks_unseen = True

    def _keep_order(self, packet: Puback | Pubrec) -> None:
        """A client acknowledges in the order of the deliveries (4.6.0-2, 4.6.0-3), or a server may well end it."""
        waiting = self._to_acknowledge[type(packet)]
        if packet.packet_id in waiting:
            if waiting[0] != packet.packet_id:
                message = (
                    f"{self.name}: the case sends {describe(packet)} while deliveries {waiting} wait in this order"
                )
                raise ClientFaultError(message)
            del waiting[0]

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are; the runner then checks after the case that the broker is still alive."""
        self.ctx.sent_raw = self.sent_raw = True
        self._note_bytes(data)
        self.ctx.transcript.add(self.name, "send", data, describe_bytes(data, self.version))
        self._write(data)

    async def send_in_pieces(
        self, data: bytes, cuts: Sequence[int] = (), pause: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
    ) -> None:
        """Send packets in several writes, cut at these places or behind each byte, with a ``pause`` behind each."""
        cuts = cuts or range(1, len(data))
        said = f"cut at {', '.join(map(str, cuts))}: {describe_bytes(data, self.version)}"
        self.ctx.transcript.add(self.name, "send", data, said)
        self._note_bytes(data)
        self._in_pieces = True
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            self._write(data[start:end])
            await pause()
        self._in_pieces = False

    def send_many(self, packet: Packet, times: int) -> None:
        """Send the same packet many times in one write; the transcript shows it once."""
        frame = encode(packet, self.version)
        self.ctx.transcript.add(self.name, "send", frame, f"{times} times: {describe(packet)}")
        self._note_asked(packet, times)
        self.ctx.will_send(packet, self.client_id, topic=self._topic_of(packet), times=times)
        self._write(frame * times)

    def stop_reading(self, *, for_good: bool = True) -> None:
        """Read nothing more, and let the operating system keep little for later: the broker cannot get rid of data.

        With a buffer so small, what is read later takes long: who goes on is not stopped ``for_good``.
        """
        self.ctx.transcript.add(self.name, "event", decoded="the case stops reading")
        if self._transport is not None:
            self._transport.pause_reading()
            if for_good:
                self._set_option(socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)

    def go_on_reading(self) -> None:
        """Read again after :meth:`stop_reading`."""
        self.ctx.transcript.add(self.name, "event", decoded="the case reads again")
        if self._transport is not None:
            self._transport.resume_reading()

    def end_stream(self) -> None:
        """Half-close: the broker learns that nothing more will come, and may still answer."""
        if self._transport is not None and not self._transport.can_write_eof():
            self.ctx.unsupported("one direction of a connection cannot be ended alone over TLS")
        self.ctx.transcript.add(self.name, "event", decoded="half-closed by the case")
        self._left = True
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the broker may have reset the connection a moment ago
                self._transport.write_eof()

    def abort(self) -> None:
        """End the network connection without DISCONNECT, by a reset."""
        self.ctx.transcript.add(self.name, "event", decoded="reset by the case")
        self._left = True
        if self._transport is not None:
            self._set_option(socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def _set_option(self, name: int, value: int | bytes) -> None:
        """Of the socket, while there is one: the broker may have ended the connection a moment ago."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, name, value)

    def close(self) -> None:
        """Close without a word; used when the case is over."""
        self._left |= not self.closed
        if self._transport is not None:
            self._transport.abort()

    # Receiving

    def step_failed(self, rule: Rule, text: str, *, soft: bool = False) -> StepFailureError:
        """What to raise where a step fails that may not be what the case is about."""
        shape = self.ctx.delivery_shape() if rule is Rule.DELIVERY else request_shape(rule, self._sent)
        return StepFailureError(Incident(rule=rule, shape=shape, text=f"{self.name}: {text}", soft=soft))

    async def _arrival(self, expected: str, within_s: float | None = None, since: float | None = None) -> None:
        await arrival(self.ctx, self._wake, f"{self.name}: expected {expected}", within_s=within_s, since=since)

    async def receive(self, expected: str = "a packet", *, within_s: float | None = None) -> Packet | None:
        """The next packet; None when the broker has ended the connection.

        Raises :class:`CaseFailureError` if nothing arrives in time, or if the broker's bytes are malformed.
        """
        since = time.monotonic()
        while not self._inbox:
            if self._malformed is not None:
                if self._carrier is not None:
                    message = f"{self.name}: expected {expected}; {self._carrier.text}"
                    raise StepFailureError(msgspec.structs.replace(self._carrier, text=message))
                message = f"{self.name}: expected {expected}; the broker sent a malformed packet: {self._malformed}"
                raise StepFailureError(malformed(str(self._malformed), self.version, message))
            if self.closed:
                return None
            await self._arrival(expected, within_s, since)
        return self._inbox.popleft()

    async def expect(
        self, kind: type[_P], *, skipping: tuple[type[Packet], ...] = (), within_s: float | None = None
    ) -> _P:
        """The next packet, which must be of ``kind``; packets of the ``skipping`` types stay in the inbox."""
        skipped: list[Packet] = []
        while True:
            packet = await self._receive_for(kind, kind.type.name, within_s=within_s)
            if isinstance(packet, kind):
                self._inbox.extendleft(reversed(skipped))
                if isinstance(packet, Puback | Pubrec | Pubcomp):
                    self.ctx.haste.acknowledged(self)
                return packet
            if not isinstance(packet, skipping):
                text = f"expected {kind.type.name}; seen {describe(packet)}"
                again = next((extra for extra in self.answered_again if type(packet).type.name in extra.shape), None)
                if again is not None:
                    raise StepFailureError(msgspec.structs.replace(again, text=f"{self.name}: {text}"))
                if isinstance(packet, Publish) and not (self.sent_raw or self.ctx.flow.asked(self.client_id, packet)):
                    raise StepFailureError(Incident(rule=Rule.FOREIGN, text=f"{self.name}: {text}"))
                raise self._missing(kind, text, packet)
            skipped.append(packet)

    async def _receive_for(self, kind: type[Packet], expected: str, *, within_s: float | None = None) -> Packet:
        """The next packet, where one of ``kind`` is due."""
        try:
            packet = await self.receive(expected, within_s=within_s)
        except StepFailureError:
            raise
        except CaseFailureError as error:
            raise self._missing(kind, str(error).removeprefix(f"{self.name}: ")) from error
        if packet is None:
            raise self._missing(kind, f"expected {expected}; the broker ended the connection")
        return packet

    async def receive_or_end(self, kind: type[Packet]) -> Packet | None:
        """The next packet where one of ``kind`` is due, or the end of the connection (None)."""
        try:
            return await self.receive(f"{kind.type.name} or the end of the connection")
        except StepFailureError:
            raise
        except CaseFailureError as error:
            raise self._missing(kind, str(error).removeprefix(f"{self.name}: ")) from error

    def _missing(self, kind: type[Packet], text: str, seen: Packet | None = None) -> CaseFailureError:
        if self._passed_over.startswith(f"{kind.type.name}:"):
            return StepFailureError(malformed(self._passed_over, self.version, f"{self.name}: {text}"))
        rule = rule_of_missing(kind, self._sent, seen)
        self.ctx.allow_refusal(asked_by(rule, self._sent) if self.closed else None, None)
        if rule is None or not was_asked(rule, self._sent):
            return CaseFailureError(f"{self.name}: {text}")
        return self.step_failed(rule, text, soft=kind is Publish)

    async def expect_close(
        self,
        *,
        allowed: tuple[type[Packet], ...] | None = None,
        within_s: float | None = None,
        step: Rule | None = None,
    ) -> list[Packet]:
        """The broker must end the connection; returns what it sent before.

        ``allowed`` are the packets that may come before the end: by default DISCONNECT in 5.0 (a server of 3.1.1 has
        none, and one that it sends is booked by itself), so that the MUST (close) and the SHOULD (say why) stay two
        checks. ``step`` is the rule by which the connection ends, where the case is about what follows.
        """
        try:
            return await self._seen_until_end(allowed, within_s)
        except StepFailureError:
            raise
        except CaseFailureError as error:
            if step is None:
                raise
            raise StepFailureError(Incident(rule=step, text=str(error))) from error

    async def _seen_until_end(self, allowed: tuple[type[Packet], ...] | None, within_s: float | None) -> list[Packet]:
        if allowed is None:
            allowed = (Disconnect,) if self.version >= 5 else ()
        seen: list[Packet] = []
        expected = "the broker to end the connection"
        while (packet := await self._receive_until_end(expected, within_s)) is not None:
            if isinstance(packet, Disconnect) and self.version < 5 and Disconnect not in allowed:
                text = f"{self.name}: a server of 3.1.1 has no DISCONNECT; seen {describe(packet)}"
                self.ctx.note_incident(Rule.FORM, text, frozenset({"DISCONNECT of a server"}))
                continue
            if not isinstance(packet, allowed):
                message = f"{self.name}: expected {expected}; seen {describe(packet)}"
                raise CaseFailureError(message)
            seen.append(packet)
        return seen

    async def _receive_until_end(self, expected: str, within_s: float | None) -> Packet | None:
        """The next packet. A malformed one is the step of a case that waits for the end only if that comes, too."""
        try:
            return await self.receive(expected, within_s=within_s)
        except StepFailureError as error:
            with contextlib.suppress(CaseFailureError):
                while not self.closed:
                    await self._arrival(expected, _END_AFTER_MALFORMED_S)
            if self.closed:
                raise
            raise CaseFailureError(str(error)) from error

    async def expect_refusal(self, *codes: int, step: Rule | None = None) -> int | None:
        """A CONNECT must be refused: an end without CONNACK, or a CONNACK that refuses and then the end.

        Returns the code of that CONNACK, None without one. With ``codes``, no other code may be sent. ``step`` is the
        rule by which it is refused, where the case is about how.
        """
        first = await self.receive("the connection to be refused")
        if isinstance(first, Connack) and first.reason_code == 0:
            message = f"{self.name}: expected the connection to be refused; seen {describe(first)}"
            raise CaseFailureError(message) if step is None else StepFailureError(Incident(rule=step, text=message))
        if first is not None:
            self._inbox.appendleft(first)
        seen = await self.expect_close(allowed=(Connack, Disconnect))
        for packet in seen:
            if isinstance(packet, Connack):
                if codes and packet.reason_code not in codes:
                    wanted = ", ".join(f"0x{code:02x}" for code in codes)
                    message = f"{self.name}: expected CONNACK with code {wanted}; seen {describe(packet)}"
                    raise CaseFailureError(message)
                return packet.reason_code
        return None

    async def is_accepted(self) -> bool:
        """Whether the answer to a CONNECT accepts it; silence as long as the patience lasts is no acceptance."""
        try:
            answer = await self.receive("an answer to the CONNECT")
        except CaseFailureError:
            return False
        return isinstance(answer, Connack) and answer.reason_code == 0

    async def expect_refused_subscription(self) -> list[Packet]:
        """A SUBSCRIBE must be refused: by SUBACK with failure codes only, or by the end of the connection.

        Returns what came in place of the mere end: the SUBACK, or the DISCONNECT before the end.
        """
        packet = await self.receive("SUBACK with a failure code, or the end of the connection")
        if packet is None:
            return []
        if isinstance(packet, Suback):
            if min(packet.reason_codes) < FIRST_FAILURE_CODE:
                message = f"{self.name}: expected the subscription to be refused; seen {describe(packet)}"
                raise CaseFailureError(message)
            return [packet]
        self._inbox.appendleft(packet)
        return await self.expect_close()

    async def barrier(self) -> list[Packet]:
        """PINGREQ to PINGRESP; returns whatever the broker sent on this connection before the PINGRESP."""
        self.send(Pingreq())
        before: list[Packet] = []
        while True:
            packet = await self._receive_for(Pingresp, "PINGRESP")
            if isinstance(packet, Pingresp):
                return before
            before.append(packet)

    async def receive_marker(self, qos: int) -> Packet:
        """The next packet, where a marker is due: a message like any other, published and delivered at ``qos``."""
        try:
            packet = await self.receive("the marker")
        except StepFailureError:
            raise
        except CaseFailureError as error:
            raise no_marker(str(error), qos) from error
        if packet is None:
            text = f"{self.name}: expected the marker; the broker ended the connection"
            raise no_marker(text, qos, cut=self._was_cut)
        return packet

    async def expect_nothing(self, *, before: float = math.inf) -> None:
        """Nothing may be waiting: the next packet after a PINGREQ must be its PINGRESP.

        ``before``: the time of :meth:`CaseContext.due_in` until which that holds. A moved clock goes on, and a slow
        machine may take that long: what comes later stays in the inbox.
        """
        found = await self.barrier()
        if found and self.ctx.broker_time_s < before:
            message = f"{self.name}: expected nothing; seen {describe(found[0])}"
            raise CaseFailureError(message)
        self._inbox.extendleft(reversed(found))

    # Whole exchanges

    async def subscribe(
        self,
        *filters: str | Subscription,
        qos: int = 0,
        properties: Properties = NO_PROPERTIES,
        at_least: int | None = None,
    ) -> tuple[int, ...]:
        """SUBSCRIBE to SUBACK; every filter must be accepted, or so many. Publishes stay in the inbox meanwhile."""
        entries = tuple(
            entry if isinstance(entry, Subscription) else Subscription(filter=entry, qos=qos) for entry in filters
        )
        await self.ctx.haste.before_a_step()
        request = Subscribe(packet_id=self.next_packet_id(), subscriptions=entries, properties=properties)
        self.send(request)
        return await self.granted(request, at_least=at_least)

    async def granted(
        self,
        request: Subscribe,
        *,
        at_least: int | None = None,
        skipping: tuple[type[Packet], ...] = (Publish, Pubrel),
    ) -> tuple[int, ...]:
        """SUBACK of what was sent by whatever means; every filter must be accepted, or so many."""
        packet_id, entries = request.packet_id, request.subscriptions
        suback = await self.expect(Suback, skipping=skipping)
        if suback.packet_id != packet_id:
            raise self._missing(Suback, f"expected SUBACK for packet identifier {packet_id}; seen {describe(suback)}")
        wanted = len(entries) if at_least is None else at_least
        accepted = sum(code < FIRST_FAILURE_CODE for code in suback.reason_codes)
        if len(suback.reason_codes) != len(entries) or accepted < wanted:
            self.ctx.allow_refusal(self._sent.get(Subscribe), suback)
            raise self._missing(Suback, f"expected {wanted} subscription(s) to be accepted; seen {describe(suback)}")
        self._granted.update(zip((entry.filter for entry in entries), suback.reason_codes, strict=True))
        return suback.reason_codes

    async def unsubscribe(self, *filters: str) -> Unsuback:
        """UNSUBSCRIBE to UNSUBACK."""
        await self.ctx.haste.before_a_step()
        packet_id = self.next_packet_id()
        self.send(Unsubscribe(packet_id=packet_id, filters=filters))
        unsuback = await self.expect(Unsuback, skipping=(Publish, Pubrel))
        if unsuback.packet_id != packet_id:
            text = f"expected UNSUBACK for packet identifier {packet_id}; seen {describe(unsuback)}"
            raise self._missing(Unsuback, text)
        return unsuback

    def expect_new_session(self) -> None:
        """CONNACK must have said that no session was there."""
        text = f"expected Session Present 0; seen {describe(self.connack)}"
        if self.connack.session_present:
            raise self.step_failed(Rule.SESSION_NEW, text, soft=True)

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """Publish and run the whole QoS exchange; returns the packet identifier (0 at QoS 0)."""
        await self.ctx.haste.before_a_step(self)
        packet_id = self.next_packet_id() if qos else 0
        self.send(
            Publish(topic=topic, payload=payload, qos=qos, packet_id=packet_id, retain=retain, properties=properties)
        )
        if qos == 1:
            self._check_ack(await self.expect(Puback, skipping=(Publish, Pubrel)), packet_id)
        elif qos == 2:
            self._check_ack(await self.expect(Pubrec, skipping=(Publish, Pubrel)), packet_id)
            self.send(Pubrel(packet_id=packet_id))
            self._check_ack(await self.expect(Pubcomp, skipping=(Publish, Pubrel)), packet_id)
        return packet_id

    def _check_ack(self, ack: Puback | Pubrec | Pubrel | Pubcomp, packet_id: int) -> None:
        if ack.packet_id != packet_id or ack.reason_code >= FIRST_FAILURE_CODE:
            self.ctx.allow_refusal(self._sent.get(Publish), ack)
            text = f"expected {ack.type.name} for packet identifier {packet_id}; seen {describe(ack)}"
            raise self._missing(type(ack), text)

    async def expect_publish(
        self,
        topic: str | None = None,
        payload: bytes | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        dup: bool | None = None,
        ack: bool = True,
    ) -> Publish:
        """The next packet must be a PUBLISH with the given fields; ``ack`` runs its QoS exchange to the end.

        A wrong flag (``retain``, ``dup``) or QoS decides only cases that are about it.
        """
        packet = await self.expect(Publish)
        wanted = {"topic": topic, "payload": payload}
        shown = ", ".join(f"{key}={item!r}" for key, item in (*wanted.items(), ("qos", qos)) if item is not None)
        text = f"{self.name}: expected PUBLISH {shown}; seen {describe(packet)}"
        if any(value is not None and getattr(packet, name) != value for name, value in wanted.items()):
            raise self.step_failed(Rule.CONTENT, text.removeprefix(f"{self.name}: "), soft=True)
        if qos is not None and packet.qos != min(qos, self._granted.get(packet.topic, qos)):
            self.ctx.breach(Rule.QOS, text)
        self.check_flag(packet, retain=retain, dup=dup)
        if ack:
            await self.acknowledge(packet)
        return packet

    def check_flag(self, packet: Publish, *, retain: bool | None = None, dup: bool | None = None) -> None:
        """A flag of a message must be so; that decides only cases that are about the flag."""
        for name, value in {"retain": retain, "dup": dup}.items():
            if value is not None and getattr(packet, name) != value:
                text = f"{self.name}: expected {name.upper()} {int(value)}; seen {describe(packet)}"
                self.ctx.breach(_FLAGS[name][int(value)], text)

    async def acknowledge(self, packet: Publish) -> None:
        """Acknowledge a received PUBLISH as its QoS asks, to the end."""
        if packet.qos == 1:
            self.send(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            self.send(Pubrec(packet_id=packet.packet_id))
            self._check_ack(await self.expect(Pubrel, skipping=_BESIDE_PUBREL), packet.packet_id)
            self.send(Pubcomp(packet_id=packet.packet_id))

    async def disconnect(self, packet: Disconnect | None = None) -> None:
        """Send DISCONNECT and wait for the broker to end the connection (or for the patience of the case)."""
        await self.ctx.haste.before_a_step()
        self.send(packet or Disconnect())
        try:
            while await self.receive("the end of the connection", within_s=1.0) is not None:
                pass
        except CaseFailureError:
            self.ctx.transcript.add(self.name, "event", decoded="the broker left the connection open")
        self.close()
