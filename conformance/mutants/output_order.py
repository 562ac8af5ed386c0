"""Lets packets leave the reference broker later than they could, each kind in a lane of its own.

Within a lane nothing overtakes; what the lanes are, and how late each is, makes a legal variation or a bug. CONNACK,
AUTH and DISCONNECT keep their places whatever is asked for.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from functools import partial
from inspect import getattr_static
from typing import NamedTuple
from weakref import WeakKeyDictionary

from assay.conformance.mutants import Patch
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire.packets import PacketType

FIRST_S = -1.0
"""Late by less than nothing: ahead of all that leaves in the same turn."""
LOOK_AGAIN_S = 0.02
_IN_PLACE = (PacketType.CONNACK, PacketType.AUTH)

Lane = Callable[[MqttConnection, bytes], tuple[object, float]]
"""The lane of a frame, and how late it is, in seconds."""


Hold = Callable[[MqttConnection, bytes], bool]
"""Whether a frame that is due must wait all the same, and what is behind it in its lane."""


class _Leaving(NamedTuple):
    due: float
    number: int
    frame: bytes
    lane: object


class _Outbox:
    """What one connection has still to send."""

    def __init__(self) -> None:
        self.waiting: list[_Leaving] = []
        self._number = 0
        self._floor = 0.0
        """Nothing that comes later leaves before."""
        self._lanes: dict[object, float] = {}
        self.timed = False

    def add(self, frame: bytes, lane: object, due: float) -> None:
        kind = frame[0] >> 4
        due = max(due, self._floor, self._lanes.get(lane, 0.0))
        if kind == PacketType.DISCONNECT and self.waiting:
            due = max(due, self.waiting[-1].due)
        if kind in _IN_PLACE:
            self._floor = due
        self._lanes[lane] = due
        self._number += 1
        insort(self.waiting, _Leaving(due, self._number, frame, lane))

    def take(self, now: float, is_held: Callable[[bytes], bool]) -> bytes:
        leaves: list[bytes] = []
        stays: list[_Leaving] = []
        closed: set[object] = set()
        for leaving in self.waiting:
            if leaving.due > now:
                stays.append(leaving)
            elif leaving.lane in closed or is_held(leaving.frame):
                closed.add(leaving.lane)
                stays.append(leaving._replace(due=now + LOOK_AGAIN_S))
            else:
                leaves.append(leaving.frame)
        self.waiting = sorted(stays)
        return b"".join(leaves)


def frames_of(data: bytes) -> Iterator[bytes]:
    """The packets of what a connection sends in one turn, which are whole."""
    at = 0
    while at < len(data):
        end, length, shift = at + 1, 0, 0
        while True:
            digit = data[end]
            length |= (digit & 0x7F) << shift
            end, shift = end + 1, shift + 7
            if digit < 0x80:
                break
        yield data[at : end + length]
        at = end + length


def topic_of(frame: bytes) -> bytes:
    """Of a PUBLISH; empty for other packets."""
    if frame[0] >> 4 != PacketType.PUBLISH:
        return b""
    at = 2
    while frame[at - 1] >= 0x80:
        at += 1
    return frame[at + 2 : at + 2 + int.from_bytes(frame[at : at + 2], "big")]


def is_kept(connection: MqttConnection) -> bool:
    """Its session outlives it: what is sent again must come in the order in which it was sent (4.4 and 4.6)."""
    return connection.session is not None and connection.session.expiry_s > 0


def send_by_lanes(patch: Patch, lane: Lane, is_held: Hold = lambda _connection, _frame: False) -> None:
    """Put every packet in a lane. Those of connections that end leave before the end."""
    outboxes: WeakKeyDictionary[MqttConnection, _Outbox] = WeakKeyDictionary()

    def make(original: Callable[[MqttConnection], bytes]) -> Callable[[MqttConnection], bytes]:
        def take_output(self: MqttConnection) -> bytes:
            data = original(self)
            outbox = outboxes.get(self)
            if outbox is None:
                if not data:
                    return data
                outbox = outboxes[self] = _Outbox()
            now = self.broker.now
            for frame in frames_of(data):
                key, late_s = lane(self, frame)
                outbox.add(frame, key, now + late_s)
            data = outbox.take(now, partial(is_held, self))
            if outbox.waiting and not outbox.timed:
                outbox.timed = True
                self.broker.timers.schedule(outbox.waiting[0].due, lambda _now: look_again(self, outbox))
            return data

        return take_output

    def look_again(connection: MqttConnection, outbox: _Outbox) -> None:
        outbox.timed = False
        connection.rouse()

    is_done = getattr_static(MqttConnection, "may_close").fget

    def may_close(self: MqttConnection) -> bool:
        outbox = outboxes.get(self)
        return bool(is_done(self)) and not (outbox and outbox.waiting)

    patch.wrap(MqttConnection, "take_output", make)
    patch.replace(MqttConnection, "may_close", property(may_close))
