"""Brokers with one fault that shows all over the suites, whatever a case is about.

What they do to messages keeps to all other rules: identifiers are free, windows and orders are kept.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from assay.conformance.explore.topics import matches, pattern
from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.output_order import frames_of, send_by_lanes, topic_of
from assay.conformance.wire import MalformedPacketError, Publish, decode_packet, encode
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.sessions.retained import RetainedStore
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.packets import PacketType

_SEED = 12
_RETAIN, _DUP, _QOS = 0x01, 0x08, 0x06
_SOME = 0.3
_FEW = 0.05
_ENDED = 0.02
_OVERTAKEN_S = 0.15
_FIRST_READS = 4


def _output(patch: Patch, change: Callable[[bytes, int], bytes]) -> None:
    """Change every frame, given the version of its connection, on its way out."""

    def make(original: Callable[[MqttConnection], bytes]) -> Callable[[MqttConnection], bytes]:
        return lambda self: b"".join(change(frame, self.version) for frame in frames_of(original(self)))

    patch.wrap(MqttConnection, "take_output", make)


def _deliveries(patch: Patch, change: Callable[[Publish], Publish | None]) -> None:
    """Change messages on their way out; None: they are lost."""

    def changed(frame: bytes, version: int) -> bytes:
        if frame[0] >> 4 != PacketType.PUBLISH:
            return frame
        try:
            packet = decode_packet(frame, version)
        except MalformedPacketError:
            return frame
        assert isinstance(packet, Publish)
        other = change(packet)
        return b"" if other is None else encode(other, version)

    _output(patch, changed)


def _flags(patch: Patch, change: Callable[[int], int]) -> None:
    def changed(frame: bytes, _version: int) -> bytes:
        is_message = frame[0] >> 4 == PacketType.PUBLISH
        return bytes((change(frame[0]),)) + frame[1:] if is_message else frame

    _output(patch, changed)


def _deliver(patch: Patch, then: Callable[..., None]) -> None:
    """Do something more with each message for a session; ``then`` gets what delivers it, the session, and the rest."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def deliver(self: Session, message: Any, *arguments: Any, **options: Any) -> None:
            original(self, message, *arguments, **options)
            then(original, self, message, *arguments, **options)

        return deliver

    patch.wrap(Session, "deliver", make)
    patch.replace(Session, "can_send_run", lambda *_arguments: 0)


@mutant("confused-all-twice", "each message is delivered twice, at QoS 1 and 2 under two identifiers")
def all_twice(patch: Patch) -> None:
    _deliver(patch, lambda deliver, *arguments, **options: deliver(*arguments, **options))


@mutant("confused-topics", "some messages come on a topic that they were not published to")
def wrong_topics(patch: Patch) -> None:
    rng = random.Random(_SEED)

    def change(packet: Publish) -> Publish:
        return replace(packet, topic=f"{packet.topic}-") if packet.topic and rng.random() < _SOME else packet

    _deliveries(patch, change)


@mutant("confused-receivers", "messages are delivered to a client that never asked for them, too")
def wrong_receivers(patch: Patch) -> None:
    rng = random.Random(_SEED)

    def tell_another(_deliver: object, session: Session, message: Any, *_arguments: Any, **_options: Any) -> None:
        broker: Any = session.connection and session.connection.broker  # type: ignore[attr-defined]
        others = [
            each
            for each in (broker.sessions.values() if broker else ())
            if each.connection is not None
            and not any(matches(pattern(name), message.topic) for name in each.subscriptions)
        ]
        if others:
            rng.choice(others).connection.send_publish(0, message, 0, False, False, ())

    _deliver(patch, tell_another)


@mutant("confused-loses-some", "one message of twenty at QoS 0 is lost")
def loses_some(patch: Patch) -> None:
    rng = random.Random(_SEED)
    _deliveries(patch, lambda packet: None if packet.qos == 0 and rng.random() < _FEW else packet)


@mutant("confused-keeps-retained", "an empty retained message removes none")
def keeps_retained(patch: Patch) -> None:
    patch.replace(RetainedStore, "delete", lambda _self, _topic: None)


@mutant("confused-pings", "PINGREQ has two answers")
def two_answers(patch: Patch) -> None:
    _output(patch, lambda frame, _version: frame * 2 if frame[0] >> 4 == PacketType.PINGRESP else frame)


@mutant("confused-order", "of the messages of a topic every other one is overtaken by the next")
def other_order(patch: Patch) -> None:
    counted: WeakKeyDictionary[MqttConnection, Counter[bytes]] = WeakKeyDictionary()

    def lane(connection: MqttConnection, frame: bytes) -> tuple[object, float]:
        topic = topic_of(frame)
        counts = counted.setdefault(connection, Counter())
        counts[topic] += 1
        late = bool(topic) and counts[topic] % 2 == 1
        return late, _OVERTAKEN_S if late else 0.0

    send_by_lanes(patch, lane)


@mutant("confused-ends-some", "one connection of fifty ends, without a word, at one of its first packets")
def ends_some(patch: Patch) -> None:
    rng = random.Random(_SEED)
    left: WeakKeyDictionary[MqttConnection, int] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            if self not in left:
                left[self] = rng.randint(1, _FIRST_READS) if rng.random() < _ENDED else -1
            left[self] -= data[0] >> 4 != PacketType.DISCONNECT
            if left[self] == 0 and data[0] >> 4 != PacketType.DISCONNECT:
                self.close_now(now)
            else:
                original(self, data, now)

        return receive

    patch.wrap(MqttConnection, "receive", make)


@mutant("confused-retain-1", "RETAIN is 1 on whatever is delivered")
def retain_set(patch: Patch) -> None:
    _flags(patch, lambda first: first | _RETAIN)


@mutant("confused-retain-0", "RETAIN is 0 on whatever is delivered")
def retain_clear(patch: Patch) -> None:
    _flags(patch, lambda first: first & ~_RETAIN)


@mutant("confused-dup-1", "DUP is 1 on whatever is delivered at QoS 1 and 2")
def dup_set(patch: Patch) -> None:
    _flags(patch, lambda first: first | _DUP if first & _QOS else first)


@mutant("confused-dup-0", "DUP is 0 on whatever is delivered")
def dup_clear(patch: Patch) -> None:
    _flags(patch, lambda first: first & ~_DUP)
