"""Brokers on which one client's slowness or bad input costs others, and legal ways to treat such clients."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.core import routing
from assay.reference_broker.core.clients import Subscriber
from assay.reference_broker.core.routing import RouteEntry, SharedGroup
from assay.reference_broker.mqtt.connections import connection as connections
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.sending import Sending
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import Subscribe

_Receive = Callable[[MqttConnection, bytes, float], None]
_UNREAD_BYTES = 1_000_000
_SMALL_WINDOW = 20
_EARLY_BYTES = 10_000
_PIECE_BYTES = 7
_MOST_PACKETS = 20
_TIMES = 8
"""What takes the square of the time is done so often that it takes seconds on a fast machine, too."""


def _around_receive(patch: Patch, make: Callable[[_Receive], _Receive]) -> None:
    patch.wrap(MqttConnection, "receive", make)


@mutant("half-a-packet-blocks-others", "while one client is in the middle of a packet, others wait")
def half_a_packet_blocks(patch: Patch) -> None:
    seen: WeakSet[MqttConnection] = WeakSet()
    held: list[tuple[MqttConnection, bytes]] = []

    def make(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            seen.add(self)
            held.append((self, data))
            for entry in list(held):
                if not any(other._partial for other in seen if other is not entry[0] and not other.closing):
                    held.remove(entry)
                    original(*entry, now)

        return receive

    _around_receive(patch, make)


@mutant("unread-output-blocks-others", "while one client leaves its output unread, nobody's packets are handled")
def unread_output_blocks(patch: Patch) -> None:
    seen: WeakSet[MqttConnection] = WeakSet()

    def make(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            seen.add(self)
            if not any(other.unread_bytes > _UNREAD_BYTES for other in seen):
                original(self, data, now)

        return receive

    _around_receive(patch, make)


def _frame_end(data: bytes, start: int) -> int:
    """Where the packet at ``start`` ends; beyond the data if it is not whole."""
    length = 0
    for index in range(4):
        at = start + 1 + index
        if at >= len(data):
            break
        length |= (data[at] & 0x7F) << (7 * index)
        if data[at] < 0x80:
            return at + 1 + length
    return len(data) + 1


@mutant("rest-of-a-segment-is-lost", "of the packets that come in one segment only the first twenty are handled")
def rest_lost(patch: Patch) -> None:
    def make(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            end = 0
            for _ in range(_MOST_PACKETS):
                end = min(_frame_end(data, end), len(data))
            original(self, data[:end], now)

        return receive

    _around_receive(patch, make)


@mutant(
    "others-unserved-after-bad-input", "a malformed packet ends its connection, and then nobody's packets are handled"
)
def others_unserved(patch: Patch) -> None:
    seen: WeakSet[MqttConnection] = WeakSet()
    unserved: WeakSet[MqttConnection] = WeakSet()

    def make_receive(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            seen.add(self)
            if self not in unserved:
                original(self, data, now)

        return receive

    def make_fail(
        original: Callable[[MqttConnection, ProtocolError, float], None],
    ) -> Callable[[MqttConnection, ProtocolError, float], None]:
        def fail(self: MqttConnection, error: ProtocolError, now: float) -> None:
            unserved.update(seen)
            original(self, error, now)

        return fail

    _around_receive(patch, make_receive)
    patch.wrap(MqttConnection, "fail", make_fail)


@mutant("refused-runs-are-looked-at-anew", "a burst that cannot be passed on is looked through again for each packet")
def refused_runs_anew(patch: Patch) -> None:
    original = Inbound.on_bytes
    taken: WeakKeyDictionary[Inbound, int] = WeakKeyDictionary()

    def on_bytes(self: Inbound, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        self.refused = b""
        # The network may bring the burst in pieces: what came before is looked at, too.
        count = taken[self] = taken.get(self, 0) + 1
        sum(1 for _ in range(2 * _TIMES * count))
        return original(self, header, data, start, body, end, now)

    patch.replace(Inbound, "on_bytes", on_bytes)
    patch.replace(connections, "PACKETS", range(1_000_000))


@mutant("filters-compared-with-each-other", "each filter of a SUBSCRIBE is held against all that are before it")
def filters_compared(patch: Patch) -> None:
    original = handlers.on_subscribe

    def on_subscribe(connection: MqttConnection, packet: Subscribe, now: float) -> None:
        for count, request in enumerate(packet.requests):
            for _ in range(_TIMES):
                sum(1 for other in packet.requests[:count] if other == request)
        original(connection, packet, now)

    patch.replace(handlers, "on_subscribe", on_subscribe)


@mutant("overlaps-merged-two-by-two", "of overlapping subscriptions each is merged with the result of those before it")
def merged_two_by_two(patch: Patch) -> None:
    def receivers_of(nodes: tuple[routing.RouteNode, ...]) -> tuple[list[RouteEntry], list[SharedGroup]]:
        found: dict[Subscriber, RouteEntry] = {}
        for node in nodes:
            for session, subscription in node.subscribers.items():
                before = found[session].subscriptions if session in found else []
                for _ in range(_TIMES):
                    found[session] = RouteEntry(session, [*before, subscription])
        return list(found.values()), [group for node in nodes for group in node.groups.values()]

    patch.replace(routing, "receivers_of", receivers_of)


@variation("reads-in-small-pieces", "whatever arrives is taken in pieces of a few bytes")
def small_pieces(patch: Patch) -> None:
    def make(original: _Receive) -> _Receive:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            for start in range(0, len(data), _PIECE_BYTES):
                original(self, data[start : start + _PIECE_BYTES], now)

        return receive

    _around_receive(patch, make)


@mutant("a-burst-cuts-its-reader", "a client is cut once a megabyte is sent to it that it had no time to read")
def burst_cuts_reader(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection], None]) -> Callable[[MqttConnection], None]:
        def fill(self: MqttConnection) -> None:
            if not self.is_full:
                self.broker.timers.schedule(self.broker.now, self.transport_stalled)
            original(self)

        return fill

    patch.wrap(MqttConnection, "pause_deliveries", make)


@mutant(
    "a-pause-of-a-consumer-loses-deliveries", "what a queue's consumer had no room for at once is never given to it"
)
def pause_loses_deliveries(patch: Patch) -> None:
    def room_appeared(self: MqttBroker, session: Session, now: float) -> None:
        session.stalled_consumers.clear()
        original(self, session, now)

    original = MqttBroker.room_appeared
    patch.replace(MqttBroker, "room_appeared", room_appeared)


@mutant("retained-beyond-the-window-lost", "retained messages that do not fit into the window at once are lost")
def retained_lost(patch: Patch) -> None:
    def make(original: Callable[[Sending, Session, int], int]) -> Callable[[Sending, Session, int], int]:
        def send_retained(self: Sending, session: Session, limit: int) -> int:
            session.window, window = min(session.window, _SMALL_WINDOW), session.window
            steps = original(self, session, limit)
            session.window = window
            session.retained = None
            return steps

        return send_retained

    patch.wrap(Sending, "send_retained", make)


@variation("deliveries-wait-for-readers-early", "deliveries wait as soon as a client has ten kilobytes to read")
def wait_early(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def initialise(self: MqttConnection, broker: MqttBroker, *rest: object, **named: object) -> None:
            mqtt = msgspec.structs.replace(broker.config.mqtt, unread_high_water_bytes=_EARLY_BYTES)
            broker.config = msgspec.structs.replace(broker.config, mqtt=mqtt)
            original(self, broker, *rest, **named)

        return initialise

    patch.wrap(MqttConnection, "__init__", make)


@variation("slow-readers-are-ended", "a client that leaves more than a megabyte unread is disconnected")
def slow_readers_ended(patch: Patch) -> None:
    def forward(self: MqttConnection, run: bytes, count: int) -> None:
        if self.unread_bytes > _UNREAD_BYTES:
            self.transport_stalled(self.broker.now)
        if not self.closing:
            original(self, run, count)

    original = MqttConnection.forward
    patch.replace(MqttConnection, "forward", forward)
